//! A batch of replies as JSON, for the programs and servers of the user that score it, and how batches are
//! shared among them.
//!
//! ```text
//!   request   {"id": 1, "replies": [{"prompt": [{"role": "user", "content": "2 + 2?"}], "reply": "4",
//!                                    "answer": "4", "tokens": 2, "stopped": true}, ...]}
//!   answer    {"id": 1, "scores": [1.0, null, ...]}
//! ```
//! `answer` is null for a row without one. A score is a number, or true for 1 and false for 0, as verifiers
//! return them; null is no score. This file does not know how the JSON gets there; the id belongs to whoever
//! sends it.

use std::thread;

use datasets::Message;
use serde::Serialize;
use serde_json::{Map, Value};
use text::number::counted;

use crate::score::{Reply, ScoreError, quoted};

/// What is asked about replies.
#[derive(Debug, Serialize)]
pub(crate) struct ScoreRequest<'a> {
    replies: Vec<AskedReply<'a>>,
}

#[derive(Debug, Serialize)]
struct AskedReply<'a> {
    prompt: &'a [Message],
    reply: &'a str,
    answer: Option<&'a str>,
    tokens: usize,
    stopped: bool,
}

impl<'a> ScoreRequest<'a> {
    pub(crate) fn new(replies: &[Reply<'a>]) -> Self {
        let asked = |reply: &Reply<'a>| AskedReply {
            prompt: reply.prompt,
            reply: reply.text,
            answer: reply.answer,
            tokens: reply.tokens,
            stopped: reply.stopped,
        };
        Self { replies: replies.iter().map(asked).collect() }
    }
}

/// The scores in the answer to a request about `asked` replies. Without one entry for each reply, nobody
/// knows which score belongs to which reply, so none has a score.
pub(crate) fn scores(answer: &Map<String, Value>, asked: usize) -> Vec<Result<f64, ScoreError>> {
    let reason = match answer.get("scores") {
        Some(Value::Array(scores)) if scores.len() == asked => return scores.iter().map(score).collect(),
        Some(Value::Array(scores)) => {
            format!("{} for {}", counted(scores.len() as u64, "score"), counted(asked as u64, "reply"))
        }
        Some(other) => format!("`scores` is {}, which is no list", quoted(&other.to_string())),
        None => "an answer without `scores`".to_owned(),
    };
    vec![Err(ScoreError::NotAScore { reason }); asked]
}

fn score(value: &Value) -> Result<f64, ScoreError> {
    let reason = || format!("{} is no score", quoted(&value.to_string()));
    match value {
        Value::Bool(is_right) => Ok(f64::from(*is_right)),
        Value::Null => Err(ScoreError::Declined { reason: reason() }),
        _ => value
            .as_f64()
            .filter(|score| score.is_finite())
            .ok_or_else(|| ScoreError::NotAScore { reason: reason() }),
    }
}

/// Has the items worked on by all workers at the same time, and returns the results in the order of the
/// items. Worker `w` of `n` gets the items `w`, `w + n`, `w + 2n` and so on, whatever the timing, so that a
/// program sees the same requests in each run.
pub(crate) fn share<W: Send, T: Sync, R: Send>(
    workers: &mut [W],
    items: &[T],
    work: impl Fn(&mut W, &T) -> R + Sync,
) -> Vec<R> {
    let number = workers.len();
    let of_worker = |first: usize, worker: &mut W| -> Vec<R> {
        items.iter().skip(first).step_by(number).map(|item| work(&mut *worker, item)).collect()
    };
    let of_worker = &of_worker;
    let mut results: Vec<std::vec::IntoIter<R>> = thread::scope(|scope| {
        let workers = workers.iter_mut().enumerate().take(items.len());
        let running: Vec<_> =
            workers.map(|(first, worker)| scope.spawn(move || of_worker(first, worker))).collect();
        let ended = running.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        ended.map(IntoIterator::into_iter).collect()
    });
    let next = |index: usize| results[index % number].next().expect("each item has a result");
    (0..items.len()).map(next).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(answer: &str, asked: usize) -> Vec<Result<f64, ScoreError>> {
        scores(&serde_json::from_str(answer).unwrap(), asked)
    }

    #[test]
    fn a_request_says_all_that_is_known_of_a_reply() {
        let prompt = [Message::system("be brief"), Message::user("2\n+ 2?")];
        let reply = Reply { prompt: &prompt, text: "4", answer: Some("4"), tokens: 2, stopped: true };
        let bare = Reply { prompt: &[], text: "", answer: None, tokens: 0, stopped: false };
        assert_eq!(
            serde_json::to_value(ScoreRequest::new(&[reply, bare])).unwrap(),
            json!({"replies": [
                {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2\n+ 2?"}],
                 "reply": "4", "answer": "4", "tokens": 2, "stopped": true},
                {"prompt": [], "reply": "", "answer": null, "tokens": 0, "stopped": false},
            ]})
        );
    }

    #[test]
    fn an_entry_that_is_no_number_costs_its_own_reply() {
        let not = |found: &str| Err(ScoreError::NotAScore { reason: format!("{found} is no score") });
        let null = Err(ScoreError::Declined { reason: "null is no score".to_owned() });
        let found = read(r#"{"id":1,"scores":[1, -0.5, null, "1", "true", [2], {}]}"#, 7);
        let (one, yes) = (not("\"1\""), not("\"true\""));
        assert_eq!(found, [Ok(1.0), Ok(-0.5), null, one, yes, not("[2]"), not("{}")]);
    }

    #[test]
    fn true_and_false_are_1_and_0() {
        assert_eq!(read(r#"{"scores":[true, false, 0.5]}"#, 3), [Ok(1.0), Ok(0.0), Ok(0.5)]);
    }

    #[test]
    fn a_list_of_another_length_says_nothing_of_any_reply() {
        for (answer, reason) in [
            (r#"{"scores":[1]}"#, "1 score for 2 replies"),
            (r#"{"scores":[1,2,3]}"#, "3 scores for 2 replies"),
            (r#"{"scores":7}"#, "`scores` is 7, which is no list"),
            (r#"{"score":[1,2]}"#, "an answer without `scores`"),
        ] {
            let none = Err(ScoreError::NotAScore { reason: reason.to_owned() });
            assert_eq!(read(answer, 2), [none.clone(), none]);
        }
        assert_eq!(read(r#"{"scores":[]}"#, 0), []);
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        // Seven items of three workers: 0 3 6, 1 4, 2 5. The first worker is the slowest.
        let mut workers = [2_u64, 0, 1];
        let items: Vec<u64> = (0..7).collect();
        let results = share(&mut workers, &items, |worker, item| {
            std::thread::sleep(std::time::Duration::from_millis(*worker));
            (*item, *worker)
        });
        assert_eq!(results, [(0, 2), (1, 0), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2)]);
        assert_eq!(share(&mut workers, &[] as &[u64], |_, item| *item), Vec::<u64>::new());
    }
}
