//! The answers that are judged: a model replies to the turns of questions one after the other, or a file
//! holds replies that were given before.
//!
//! A prompt of a later turn holds the earlier replies. A reply that failed ends its question, and leaves the
//! other questions alone. Files are read in the forms of MT-Bench (`choices[0].turns`) and of Arena-Hard
//! (`messages`), and written in the first.

use std::collections::HashMap;

use datasets::Row;
use serde_json::{Value, json};

use super::answers::Answers;
use super::question::{Question, choice, id, present, texts, wrong};
use crate::Error;
use crate::request::{LanguageModel, Prompt, Request, Response, sha256};
use crate::request_set::Progress;
use crate::request_set::RequestSet;
use crate::response_cache::ResponseCache;

/// The temperature that MT-Bench draws the replies of a category with (`temperature_config` in
/// `fastchat/llm_judge/common.py`).
pub fn mt_bench_temperature(category: &str) -> f64 {
    match category {
        "extraction" | "math" | "coding" | "reasoning" => 0.0,
        "stem" | "humanities" => 0.1,
        _ => 0.7,
    }
}

/// How replies are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerSettings {
    /// The most tokens of a reply.
    pub max_gen_toks: usize,
    /// For each question, the temperature; 0 is greedy decoding.
    pub temperatures: Vec<f64>,
}

/// The answers of one model, of which some may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSheet {
    /// The name of the model.
    pub model: String,
    /// The hash of the model, or of the replies if a file held them.
    pub digest: String,
    /// For each question, one reply for each turn, or why they are missing.
    pub replies: Vec<Result<Vec<String>, String>>,
    /// The replies that ended at the limit of tokens.
    pub cut: usize,
}

impl AnswerSheet {
    /// Reads the answers of one model from the rows of a file. Rows of other questions are left out. `name`
    /// is the model's if no row names it.
    pub fn from_rows(name: &str, rows: &[Row], questions: &[Question]) -> Result<Self, Error> {
        let mut held: HashMap<String, Vec<String>> = HashMap::new();
        let mut model: Option<&str> = None;
        for row in rows {
            let Some(id) = id(row) else { return Err(wrong("question_id", "is missing")) };
            let named = ["model_id", "model"].iter().find_map(|name| present(row, name)?.as_str());
            if let (Some(before), Some(now)) = (model, named)
                && before != now
            {
                let problem =
                    format!("is {before:?} in one row and {now:?} in another; give one file for each model");
                return Err(wrong("model_id", &problem));
            }
            model = model.or(named);
            if held.insert(id.clone(), replies(row)?).is_some() {
                return Err(wrong("question_id", &format!("{id:?} is there twice; leave one row of them")));
            }
        }
        let reply = |question: &Question| {
            let replies = held.remove(&question.id).ok_or("the file has no answer to it")?;
            match (replies.len(), question.turns.len()) {
                (got, turns) if got == turns => Ok(replies),
                (got, turns) => {
                    Err(format!("the file has {got} replies, and the question has {turns} turns"))
                }
            }
        };
        let replies: Vec<_> = questions.iter().map(reply).collect();
        let digest = sha256(format!("{replies:?}").as_bytes());
        Ok(Self { model: model.unwrap_or(name).to_owned(), digest, replies, cut: 0 })
    }

    /// The answers as rows in the form of MT-Bench. Questions without an answer are left out.
    pub fn rows(&self, questions: &[Question]) -> Vec<Value> {
        let row = |(question, replies): (&Question, &Result<Vec<String>, String>)| {
            let turns = replies.as_ref().ok()?;
            let choices = json!([{"index": 0, "turns": turns}]);
            Some(json!({"question_id": question.id, "model_id": self.model, "choices": choices}))
        };
        questions.iter().zip(&self.replies).filter_map(row).collect()
    }

    /// The number of questions without an answer, and why the first of them has none.
    pub fn missing(&self) -> Option<(usize, &str)> {
        let mut problems = self.replies.iter().filter_map(|replies| replies.as_ref().err());
        let first = problems.next()?;
        Some((1 + problems.count(), first))
    }

    /// The mean length of a reply, in characters. 0 without replies.
    pub fn mean_length(&self) -> f64 {
        let lengths: Vec<usize> =
            self.replies.iter().flatten().flatten().map(|reply| reply.chars().count()).collect();
        lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64
    }
}

/// The questions that all of `sheets` answer, as indices, and the answers to them.
pub fn common(sheets: &[&AnswerSheet]) -> (Vec<usize>, Vec<Answers>) {
    let questions = sheets.iter().map(|sheet| sheet.replies.len()).min().unwrap_or(0);
    let rows: Vec<usize> =
        (0..questions).filter(|&row| sheets.iter().all(|sheet| sheet.replies[row].is_ok())).collect();
    let of_sheet = |sheet: &&AnswerSheet| Answers {
        model: sheet.model.clone(),
        digest: sheet.digest.clone(),
        replies: rows.iter().filter_map(|&row| sheet.replies[row].clone().ok()).collect(),
    };
    let answers = sheets.iter().map(of_sheet).collect();
    (rows, answers)
}

/// Has a model answer the questions, one turn of all of them after the other. What `cache` holds is not asked
/// again. `on_progress` gets the turn, from 1.
pub fn answer(
    model: &mut dyn LanguageModel,
    questions: &[Question],
    settings: &AnswerSettings,
    cache: &mut ResponseCache,
    on_progress: &mut dyn FnMut(usize, Progress),
) -> Result<AnswerSheet, Error> {
    let mut replies: Vec<Result<Vec<String>, String>> = questions.iter().map(|_| Ok(Vec::new())).collect();
    let mut cut = 0;
    let turns = questions.iter().map(|question| question.turns.len()).max().unwrap_or(0);
    for turn in 0..turns {
        let mut requests = RequestSet::default();
        let mut places = Vec::new();
        for (row, question) in
            questions.iter().enumerate().filter(|(_, question)| turn < question.turns.len())
        {
            let Ok(held) = &replies[row] else { continue };
            let request = Request::GenerateUntil {
                context: Prompt::Chat(question.messages(held)),
                until: Vec::new(),
                max_gen_toks: settings.max_gen_toks,
                temperature: settings.temperatures[row],
                sample: 0,
            };
            places.push((row, requests.add(request)));
        }
        if places.is_empty() {
            break;
        }

        let responses = requests.ask(model, cache, &mut |progress| on_progress(turn + 1, progress))?;
        for (row, place) in places {
            match (&responses[place], &mut replies[row]) {
                (Response::Reply { text, ended, .. }, Ok(held)) => {
                    held.push(text.clone());
                    cut += usize::from(!ended);
                }
                (Response::Failed { problem }, held) => *held = Err(problem.clone()),
                _ => return Err(Error::WrongResponse { wanted: "a reply" }),
            }
        }
    }
    Ok(AnswerSheet { model: model.name().to_owned(), digest: model.digest().to_owned(), replies, cut })
}

/// The replies in a row of a file of answers.
fn replies(row: &Row) -> Result<Vec<String>, Error> {
    if let Some(turns) = choice(row) {
        return texts("choices", turns);
    }
    let Some(Value::Array(messages)) = present(row, "messages") else {
        return Err(wrong("choices", "have no turns, and there are no `messages`"));
    };
    // Arena-Hard keeps the text under `answer`.
    let text = |message: &Value| {
        let content = &message["content"];
        content.as_str().or_else(|| content["answer"].as_str()).map(str::to_owned)
    };
    let of_assistant = messages.iter().filter(|message| message["role"] == "assistant");
    let replies: Option<Vec<String>> = of_assistant.map(text).collect();
    replies.ok_or_else(|| wrong("messages", "hold a reply without a text `content` or `content.answer`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions() -> Vec<Question> {
        let rows = [
            json!({"question_id": 81, "category": "writing", "turns": ["a", "b"]}),
            json!({"uid": "f0", "prompt": "c"}),
            json!({"id": "none", "prompt": "d"}),
        ];
        let read =
            |(number, row): (usize, &Value)| Question::from_row(row.as_object().unwrap(), number).unwrap();
        rows.iter().enumerate().map(read).collect()
    }

    fn sheet(rows: &[Value]) -> Result<AnswerSheet, Error> {
        let rows: Vec<Row> = rows.iter().map(|row| row.as_object().unwrap().clone()).collect();
        AnswerSheet::from_rows("file", &rows, &questions())
    }

    #[test]
    fn files_of_both_forms_are_read_and_written() {
        let rows = [
            json!({"question_id": 81, "model_id": "m", "choices": [{"index": 0, "turns": ["x", "yy"]}]}),
            json!({"uid": "f0", "model": "m", "messages": [
                {"role": "user", "content": "c"}, {"role": "assistant", "content": {"answer": "zzz"}}]}),
            json!({"uid": "other", "messages": [{"role": "assistant", "content": "w"}]}),
        ];
        let found = sheet(&rows).unwrap();
        let wanted = [Ok(vec!["x".to_owned(), "yy".into()]), Ok(vec!["zzz".into()])];
        assert_eq!((found.model.as_str(), &found.replies[..2]), ("m", &wanted[..]));
        assert_eq!((found.missing().unwrap().0, found.mean_length()), (1, 2.0));
        let written = found.rows(&questions());
        assert_eq!(written.len(), 2);
        assert_eq!(sheet(&written).unwrap(), found);
        let (rows, answers) = common(&[&found, &sheet(&written[1..]).unwrap()]);
        assert_eq!((rows, answers[0].replies.len()), (vec![1], 1));
    }

    #[test]
    fn wrong_rows_are_named() {
        let good = json!({"question_id": 81, "choices": [{"turns": ["x"]}]});
        let found = sheet(std::slice::from_ref(&good)).unwrap();
        let problem = found.replies[0].as_ref().unwrap_err();
        assert!(
            found.model == "file" && problem.contains("1 replies") && problem.contains("2 turns"),
            "{problem}"
        );
        for (rows, words) in [
            (vec![good.clone(), good.clone()], "twice"),
            (vec![json!({"choices": [{"turns": []}]})], "question_id is missing"),
            (vec![json!({"id": 1})], "choices"),
            (vec![json!({"id": 1, "messages": [{"role": "assistant", "content": {}}]})], "content.answer"),
            (
                vec![
                    json!({"id": 1, "model": "a", "messages": []}),
                    json!({"id": 2, "model": "b", "messages": []}),
                ],
                "one file",
            ),
        ] {
            let error = sheet(&rows).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_temperatures_of_mt_bench() {
        let found = ["math", "stem", "writing"].map(mt_bench_temperature);
        assert_eq!(found, [0.0, 0.1, 0.7]);
    }
}
