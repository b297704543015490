//! Reads and writes the rows of `generate`, `logprobs` and `reward`: JSON objects, one per line. Parquet
//! files can be read as well.
//!
//! An input row contains a text, a list of token ids, a conversation, or a pair of answers to one prompt; see
//! [`InputKind`]. Other fields are ignored. Rows are counted from 1, as in every message about data.

use std::io::BufRead;
use std::path::Path;

use datasets::{
    Demonstration, Error, Layout, Message, Preference, Prompt, Record, Row, RowLocation, TableReader,
};
use serde::Serialize;

use crate::console::print_rows;
use crate::failure::Failure;
use crate::output;

/// The input path that stands for stdin.
const STDIN: &str = "-";

/// The content of an input row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RowInput {
    /// Plain text, or a prompt given as one string.
    Text(String),
    /// Token ids.
    Ids(Vec<i64>),
    /// A conversation.
    Messages(Vec<Message>),
    /// Two conversations with the same prompt: one ends with the chosen answer, the other with the rejected
    /// one.
    Pair([Vec<Message>; 2]),
}

/// The kind of rows that a command expects. It determines which fields a row may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// A prompt to be completed: `prompt`, `messages`, `text` or `ids`.
    Prompt,
    /// Tokens whose log-probabilities are computed: a pair, `prompt` with an answer, or one of `prompt`,
    /// `messages`, `text` and `ids`.
    Tokens,
    /// An answer to be scored: a pair, `prompt` with an answer, `messages`, `text` or `ids`.
    Answer,
}

impl InputKind {
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Prompt | Self::Tokens => &["prompt", "messages", "text", "ids"],
            Self::Answer => &["messages", "text", "ids"],
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Prompt => "prompt, messages, text or ids",
            Self::Tokens => "prompt, messages, text, ids, or prompt with chosen and rejected",
            Self::Answer => "messages, text, ids, prompt with completion, or prompt with chosen and rejected",
        }
    }
}

/// An input row with its location.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// The content of the row.
    pub(crate) value: RowInput,
    /// The file and row number.
    pub(crate) at: RowLocation,
}

/// Reads all rows of a file, or of stdin if the path is `-`.
pub(crate) fn read(path: &Path, wants: InputKind) -> Result<Vec<Input>, Error> {
    if path == Path::new(STDIN) {
        return read_lines(std::io::stdin().lock(), wants);
    }
    let mut inputs = Vec::new();
    for row in TableReader::open(path)?.rows(None)? {
        let (at, row) = row?;
        inputs.push(Input { value: parse(&row, &at, wants)?, at });
    }
    non_empty(inputs, path)
}

/// Reads one JSON object per line.
fn read_lines(lines: impl BufRead, wants: InputKind) -> Result<Vec<Input>, Error> {
    let path = Path::new("stdin");
    let mut inputs = Vec::new();
    for (row, line) in lines.lines().enumerate() {
        let line = line.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let at = RowLocation { path: path.to_owned(), row: row + 1 };
        let row: Row =
            serde_json::from_str(&line).map_err(|source| Error::broken_json(at.clone(), &source))?;
        inputs.push(Input { value: parse(&row, &at, wants)?, at });
    }
    non_empty(inputs, path)
}

fn non_empty(inputs: Vec<Input>, path: &Path) -> Result<Vec<Input>, Error> {
    if inputs.is_empty() { Err(Error::NoRows { path: path.to_owned() }) } else { Ok(inputs) }
}

fn parse(row: &Row, at: &RowLocation, wants: InputKind) -> Result<RowInput, Error> {
    let has = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
    if wants != InputKind::Prompt && has("chosen") && has("rejected") {
        return pair(row, at);
    }
    let answer = ["completion", "response"].into_iter().find(|name| has(name));
    if let Some(answer) = answer.filter(|_| wants != InputKind::Prompt && has("prompt")) {
        return prompt_and_answer(row, answer, at);
    }

    // Every other row must have exactly one of the accepted fields, whose name determines the kind of
    // content.
    let there: Vec<&str> = wants.fields().iter().copied().filter(|name| has(name)).collect();
    match there[..] {
        ["prompt"] if row["prompt"].is_string() => text(row, "prompt", at),
        ["prompt"] => Ok(RowInput::Messages(Prompt::parse(Layout::Prompt, row, at)?.messages)),
        ["messages"] => messages(Layout::Messages, row, at),
        ["text"] => text(row, "text", at),
        ["ids"] => ids(row, at),
        [] => Err(Error::MissingField {
            at: at.clone(),
            field: wants.in_words().to_owned(),
            expected: "one of them",
        }),
        _ => Err(Error::WrongType {
            at: at.clone(),
            field: there.join(" and "),
            found: "there together".to_owned(),
            expected: "exactly one of them",
        }),
    }
}

fn pair(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    let with_prompt = row.get("prompt").is_some_and(|prompt| !prompt.is_null());
    let layout = if with_prompt { Layout::Preference } else { Layout::ImplicitPreference };
    match Preference::parse(layout, row, at)? {
        Preference::Messages { prompt, chosen, rejected, .. } => {
            Ok(RowInput::Pair([chosen, rejected].map(|answer| [prompt.as_slice(), &answer].concat())))
        }
        Preference::Tokens { .. } => unreachable!("the layout {layout} has turns"),
    }
}

fn prompt_and_answer(row: &Row, answer: &str, at: &RowLocation) -> Result<RowInput, Error> {
    let columns = [("prompt", "prompt"), ("completion", answer)];
    let row: Row = columns.into_iter().map(|(to, from)| (to.to_owned(), row[from].clone())).collect();
    messages(Layout::PromptCompletion, &row, at)
}

fn messages(layout: Layout, row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    match Demonstration::parse(layout, row, at)? {
        Demonstration::Messages(messages) => Ok(RowInput::Messages(messages)),
        Demonstration::PromptCompletion { prompt, completion } => {
            Ok(RowInput::Messages([prompt, completion].concat()))
        }
        other => unreachable!("the layout {layout} does not read as {other:?}"),
    }
}

fn text(row: &Row, field: &str, at: &RowLocation) -> Result<RowInput, Error> {
    let text = Row::from_iter([("text".to_owned(), row[field].clone())]);
    match Demonstration::parse(Layout::Text, &text, at)? {
        Demonstration::Text(text) => Ok(RowInput::Text(text)),
        other => unreachable!("text does not read as {other:?}"),
    }
}

fn ids(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    let wrong = |field: String, found: &serde_json::Value| Error::WrongType {
        at: at.clone(),
        field,
        found: found.to_string(),
        expected: "a list of whole numbers, at least one",
    };
    let list = row["ids"]
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or_else(|| wrong("ids".into(), &row["ids"]))?;
    let id = |(index, id): (usize, &serde_json::Value)| {
        id.as_i64().ok_or_else(|| wrong(format!("ids[{index}]"), id))
    };
    Ok(RowInput::Ids(list.iter().enumerate().map(id).collect::<Result<_, _>>()?))
}

/// Refuses a row that has no token, has an id outside the vocabulary, or has more than `longest` tokens.
pub(crate) fn check_ids(ids: &[i64], at: &RowLocation, vocab_size: i64, longest: i64) -> Result<(), Error> {
    if ids.is_empty() {
        return Err(Error::MissingField {
            at: at.clone(),
            field: "text".to_owned(),
            expected: "text with at least one token",
        });
    }
    if let Some(&id) = ids.iter().find(|&&id| id < 0 || id >= vocab_size) {
        return Err(Error::IdOutsideVocabulary {
            place: at.to_string(),
            id,
            vocab_size: vocab_size as usize,
        });
    }
    if ids.len() as i64 > longest {
        return Err(Error::LongForModel { at: at.clone(), length: ids.len(), longest });
    }
    Ok(())
}

/// Converts each row to token ids with `ids`. A pair yields two entries: the chosen answer, then the rejected
/// one.
pub(crate) fn tokens(
    inputs: &[Input],
    mut ids: impl FnMut(&RowInput) -> Result<Vec<i64>, Error>,
) -> Result<Vec<(RowLocation, Vec<i64>)>, Error> {
    let mut rows = Vec::with_capacity(inputs.len());
    for input in inputs {
        let mut add = |given: &RowInput| -> Result<(), Error> {
            rows.push((input.at.clone(), ids(given).map_err(|error| error.in_row(&input.at))?));
            Ok(())
        };
        match &input.value {
            RowInput::Pair(answers) => {
                answers.iter().try_for_each(|answer| add(&RowInput::Messages(answer.clone())))?;
            }
            given => add(given)?,
        }
    }
    Ok(rows)
}

/// Refuses NaN and infinity, which JSON would write as `null`.
pub(crate) fn check_finite<'a>(
    at: &RowLocation,
    numbers: impl IntoIterator<Item = &'a f32>,
) -> Result<(), Failure> {
    match numbers.into_iter().find(|number| !number.is_finite()) {
        Some(&number) => Err(Failure::NotFinite { at: at.clone(), number }),
        None => Ok(()),
    }
}

/// Writes one JSON object per line to `output`, or to stdout if there is no `output`. The file is written
/// atomically, and an existing file is replaced only with `force`.
pub(crate) fn write<T: Serialize>(rows: &[T], output: Option<&Path>, force: bool) -> anyhow::Result<()> {
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, row)?;
        text.push(b'\n');
    }
    match output {
        Some(path) if force => Ok(output::write_atomically(path, &text)?),
        Some(path) => Ok(output::write_new(path, &text)?),
        None => Ok(print_rows(&text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str) -> Row {
        serde_json::from_str(line).unwrap()
    }

    fn one(line: &str, wants: InputKind) -> Result<RowInput, String> {
        let at = RowLocation { path: "rows.jsonl".into(), row: 3 };
        parse(&row(line), &at, wants).map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_gives_text_ids_or_messages() {
        let one = |line| one(line, InputKind::Prompt).unwrap();
        assert_eq!(one(r#"{"text": "hi", "source": 7}"#), RowInput::Text("hi".into()));
        assert_eq!(one(r#"{"ids": [1, 2], "text": null}"#), RowInput::Ids(vec![1, 2]));
        let hi = RowInput::Messages(vec![Message::user("hi")]);
        assert_eq!(one(r#"{"messages": [{"role": "user", "content": "hi"}]}"#), hi);
        assert_eq!(
            one(r#"{"prompt": [{"role": "user", "content": "hi"}], "chosen": "x", "rejected": "y"}"#),
            hi
        );
        assert_eq!(one(r#"{"prompt": "hi", "completion": "x"}"#), RowInput::Text("hi".into()));
    }

    #[test]
    fn answers_are_taken_where_they_are_scored() {
        let talk = |answer: &str| vec![Message::user("q"), Message::assistant(answer)];
        for wants in [InputKind::Tokens, InputKind::Answer] {
            let given = one(r#"{"prompt": "q", "chosen": "a", "rejected": "b"}"#, wants).unwrap();
            assert_eq!(given, RowInput::Pair([talk("a"), talk("b")]));
            let whole = r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}], "messages": 7}"#;
            assert_eq!(one(whole, wants).unwrap(), given);
            for answer in ["completion", "response"] {
                let line = format!(r#"{{"prompt": "q", "{answer}": "a"}}"#);
                assert_eq!(one(&line, wants).unwrap(), RowInput::Messages(talk("a")));
            }
        }
        assert!(one(r#"{"prompt": "q"}"#, InputKind::Answer).unwrap_err().contains("prompt with completion"));
    }

    #[test]
    fn a_wrong_row_names_file_row_and_field() {
        for (line, words) in [
            ("{}", "field prompt, messages, text or ids is missing or null"),
            (r#"{"text": "a", "ids": [1]}"#, "exactly one of them"),
            (r#"{"text": 3}"#, "field text is the number 3"),
            (r#"{"ids": [1, "x"]}"#, "field ids[1] is \"x\""),
            (r#"{"ids": []}"#, "at least one"),
            (r#"{"messages": []}"#, "field messages has no turns"),
            (r#"{"messages": [{"role": "robot", "content": "x"}]}"#, "field messages[0].role is \"robot\""),
        ] {
            let message = one(line, InputKind::Prompt).unwrap_err();
            assert!(message.starts_with("rows.jsonl line 3") && message.contains(words), "{line}: {message}");
        }
    }

    #[test]
    fn stdin_is_read_line_by_line() {
        let read = |text: &str| read_lines(text.as_bytes(), InputKind::Prompt);
        let inputs = read("{\"text\": \"a\"}\n\n{\"ids\": [1]}\n").unwrap();
        assert_eq!(inputs.len(), 2);
        assert_eq!(inputs[1].at.row, 3);
        assert!(read("\n").unwrap_err().to_string().contains("has no rows"));
        assert!(read("{\"text\": \"a\"}\n{").unwrap_err().to_string().starts_with("stdin "));
    }

    #[test]
    fn ids_are_checked_against_the_model() {
        let at = RowLocation { path: "rows.jsonl".into(), row: 1 };
        assert!(check_ids(&[0, 4], &at, 5, 2).is_ok());
        assert!(check_ids(&[5], &at, 5, 2).is_err());
        assert!(check_ids(&[-1], &at, 5, 2).is_err());
        let error = check_ids(&[0, 1, 2], &at, 5, 2).unwrap_err().to_string();
        assert!(error.starts_with("rows.jsonl line 1") && error.contains("3 tokens"), "{error}");
        assert!(check_ids(&[], &at, 5, 2).is_err());
    }
}
