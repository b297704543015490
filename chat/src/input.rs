//! Reads and writes the rows of `generate`, `logprobs` and `reward`: JSON objects, one per line. Parquet
//! files can be read as well.
//!
//! An input row contains a text, a list of token ids, a conversation, or a pair of answers to one prompt; see
//! [`InputKind`]. A conversation has the fields `system` and `tools`, too. Other fields are ignored. Rows are
//! counted from 1, as in every message about data.

use std::io::BufRead;
use std::path::Path;

use datasets::record::preview;
use datasets::{
    Demonstration, Error, Layout, Message, Preference, Prompt, Record, Row, RowLocation, TableReader,
};
use serde::Serialize;
use serde_json::Value;

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
    Messages {
        /// The turns.
        messages: Vec<Message>,
        /// The tools that the assistant may call.
        tools: Option<Value>,
    },
    /// Two conversations with the same prompt.
    Pair {
        /// The one that ends with the chosen answer, and the one that ends with the rejected answer.
        sides: [Vec<Message>; 2],
        /// The tools that the assistant may call.
        tools: Option<Value>,
    },
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
    /// The expected answer, for verifiers: the field `answer`. What is no text is taken as its JSON.
    pub(crate) answer: Option<String>,
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
        inputs.push(Input { value: parse(&row, &at, wants)?, answer: answer(&row), at });
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
        inputs.push(Input { value: parse(&row, &at, wants)?, answer: answer(&row), at });
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
    let answers = [("completion", Layout::PromptCompletion), ("response", Layout::PromptResponse)];
    let answer = answers.into_iter().find(|(name, _)| has(name));
    if let Some((_, layout)) = answer.filter(|_| wants != InputKind::Prompt && has("prompt")) {
        return messages(layout, row, at);
    }

    // Every other row must have exactly one of the accepted fields, whose name determines the kind of
    // content.
    let there: Vec<&str> = wants.fields().iter().copied().filter(|name| has(name)).collect();
    match there[..] {
        ["prompt"] => prompt(row, at),
        ["messages"] => messages(Layout::Messages, row, at),
        ["text"] => text(row, at),
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

/// The expected answer of a row.
fn answer(row: &Row) -> Option<String> {
    match row.get("answer")? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn pair(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    let with_prompt = row.get("prompt").is_some_and(|prompt| !prompt.is_null());
    let layout = if with_prompt { Layout::Preference } else { Layout::ImplicitPreference };
    match Preference::parse(layout, row, at)? {
        Preference::Messages { prompt, chosen, rejected, tools, .. } => {
            let sides = [chosen, rejected].map(|answer| [prompt.as_slice(), &answer].concat());
            Ok(RowInput::Pair { sides, tools })
        }
        Preference::Tokens { .. } => unreachable!("the layout {layout} has turns"),
    }
}

/// A prompt without an answer. One that is a text and nothing else may also be read as it is.
fn prompt(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    // The answer is for verifiers and may be any JSON.
    let without_answer = row.iter().filter(|(name, _)| *name != "answer");
    let of_prompt: Row = without_answer.map(|(name, value)| (name.clone(), value.clone())).collect();
    let Prompt { messages, tools, .. } = Prompt::parse(Layout::Prompt, &of_prompt, at)?;
    match row["prompt"].as_str() {
        Some(text) if tools.is_none() && messages == [Message::user(text)] => {
            Ok(RowInput::Text(text.to_owned()))
        }
        _ => Ok(RowInput::Messages { messages, tools }),
    }
}

fn messages(layout: Layout, row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    match Demonstration::parse(layout, row, at)? {
        Demonstration::Messages { messages, tools } => Ok(RowInput::Messages { messages, tools }),
        Demonstration::PromptCompletion { prompt, completion, tools } => {
            Ok(RowInput::Messages { messages: [prompt, completion].concat(), tools })
        }
        other => unreachable!("the layout {layout} does not read as {other:?}"),
    }
}

fn text(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    refuse_tools(row, at)?;
    match Demonstration::parse(Layout::Text, row, at)? {
        Demonstration::Text(text) => Ok(RowInput::Text(text)),
        other => unreachable!("text does not read as {other:?}"),
    }
}

/// Refuses tools beside a text, which has no place for them.
fn refuse_tools(row: &Row, at: &RowLocation) -> Result<(), Error> {
    let Some(tools) = row.get("tools") else { return Ok(()) };
    let columns = [("prompt", Value::from("")), ("tools", tools.clone())];
    let of_tools: Row = columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    match Prompt::parse(Layout::Prompt, &of_tools, at)?.tools {
        None => Ok(()),
        Some(_) => Err(Error::WrongType {
            at: at.clone(),
            field: "tools".to_owned(),
            found: preview(tools),
            expected: "absent beside text: give prompt or messages, which may have tools",
        }),
    }
}

fn ids(row: &Row, at: &RowLocation) -> Result<RowInput, Error> {
    let wrong = |field: String, found: &Value| Error::WrongType {
        at: at.clone(),
        field,
        found: found.to_string(),
        expected: "a list of whole numbers, at least one",
    };
    let list = row["ids"]
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or_else(|| wrong("ids".into(), &row["ids"]))?;
    let id = |(index, id): (usize, &Value)| id.as_i64().ok_or_else(|| wrong(format!("ids[{index}]"), id));
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
            RowInput::Pair { sides, tools } => sides.iter().try_for_each(|side| {
                add(&RowInput::Messages { messages: side.clone(), tools: tools.clone() })
            })?,
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
        let hi = RowInput::Messages { messages: vec![Message::user("hi")], tools: None };
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
            assert_eq!(given, RowInput::Pair { sides: [talk("a"), talk("b")], tools: None });
            let whole = r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}], "messages": 7}"#;
            assert_eq!(one(whole, wants).unwrap(), given);
            for answer in ["completion", "response"] {
                let line = format!(r#"{{"prompt": "q", "{answer}": "a"}}"#);
                let wanted = RowInput::Messages { messages: talk("a"), tools: None };
                assert_eq!(one(&line, wants).unwrap(), wanted);
            }
        }
        assert!(one(r#"{"prompt": "q"}"#, InputKind::Answer).unwrap_err().contains("prompt with completion"));
    }

    #[test]
    fn tools_and_the_system_prompt_are_part_of_a_conversation() {
        let tools = r#""tools": [{"name": "add"}], "system": "s""#;
        let given = Some(serde_json::json!([{"name": "add"}]));
        let asked = || vec![Message::system("s"), Message::user("q")];
        let answered = |answer: &str| [asked(), vec![Message::assistant(answer)]].concat();
        let messages = |messages: Vec<Message>| RowInput::Messages { messages, tools: given.clone() };
        let turns = r#"[{"role": "user", "content": "q"}]"#;
        for line in [
            format!(r#"{{"prompt": "q", {tools}}}"#),
            format!(r#"{{"prompt": {turns}, "answer": {{"any": 1}}, {tools}}}"#),
            format!(r#"{{"messages": {turns}, {tools}}}"#),
        ] {
            assert_eq!(one(&line, InputKind::Prompt).unwrap(), messages(asked()), "{line}");
        }
        for wants in [InputKind::Tokens, InputKind::Answer] {
            for answer in ["completion", "response"] {
                let line = format!(r#"{{"prompt": "q", "{answer}": "a", {tools}}}"#);
                assert_eq!(one(&line, wants).unwrap(), messages(answered("a")));
            }
            let line = format!(r#"{{"prompt": "q", "chosen": "a", "rejected": "b", {tools}}}"#);
            let wanted = RowInput::Pair { sides: [answered("a"), answered("b")], tools: given.clone() };
            assert_eq!(one(&line, wants).unwrap(), wanted);
        }
        // Nothing is no tools, and ids are what they are.
        for nothing in ["null", "[]", "\"\"", "\" [] \""] {
            for field in ["prompt", "text"] {
                let line = format!(r#"{{"{field}": "q", "tools": {nothing}, "system": ""}}"#);
                assert_eq!(one(&line, InputKind::Prompt).unwrap(), RowInput::Text("q".into()), "{line}");
            }
        }
        let ids = format!(r#"{{"ids": [1], {tools}}}"#);
        assert_eq!(one(&ids, InputKind::Answer).unwrap(), RowInput::Ids(vec![1]));
    }

    #[test]
    fn the_two_sides_of_a_pair_become_conversations_with_its_tools() {
        let line = r#"{"prompt": "q", "chosen": "a", "rejected": "b", "tools": [{"name": "add"}]}"#;
        let inputs = read_lines(line.as_bytes(), InputKind::Answer).unwrap();
        let mut seen = Vec::new();
        let rows = tokens(&inputs, |given| {
            seen.push(given.clone());
            Ok(vec![seen.len() as i64])
        });
        assert_eq!(rows.unwrap().into_iter().map(|(_, ids)| ids[0]).collect::<Vec<_>>(), [1, 2]);
        let side = |answer: &str| RowInput::Messages {
            messages: vec![Message::user("q"), Message::assistant(answer)],
            tools: Some(serde_json::json!([{"name": "add"}])),
        };
        assert_eq!(seen, [side("a"), side("b")]);
    }

    #[test]
    fn a_wrong_row_names_file_row_and_field() {
        for (line, words) in [
            ("{}", "field prompt, messages, text or ids is missing or null"),
            (r#"{"text": "a", "ids": [1]}"#, "exactly one of them"),
            (r#"{"text": 3}"#, "field text is the number 3"),
            (
                r#"{"text": "a", "tools": [{"name": "f"}]}"#,
                "field tools is a list of 1; it must be absent beside",
            ),
            (r#"{"text": "a", "tools": "f"}"#, "field tools is the text \"f\""),
            (r#"{"prompt": "a", "tools": {"name": "f"}}"#, "field tools is an object with name"),
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
