//! What all judgements have in common: who judged, what was heard, and what speaks against the numbers.

use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::question::Question;
use crate::Error;
use crate::request::{Response, sha256};

/// With fewer items than this, intervals say little.
const FEW: usize = 30;
/// A larger share of unreadable verdicts is worth a warning.
const MANY_UNPARSED: f64 = 0.05;

/// Who judged, and by which rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedBy {
    /// The name of the judge.
    pub judge: String,
    /// The hash of the judge.
    pub digest: String,
    /// Prompts, questions, judge and, in a comparison, the answers of the baseline in short. Judgements are
    /// comparable exactly if their ids are equal.
    pub protocol_id: String,
}

/// What the judge said about one item.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Heard<T> {
    pub(super) verdict: Option<T>,
    /// Why the judge gave no answer. Without it and without a verdict, the replies could not be read.
    pub(super) failed: Option<String>,
    /// The replies: the second one follows the reminder.
    pub(super) replies: Vec<String>,
}

impl<T> Heard<T> {
    /// Takes the next answer of the judge.
    pub(super) fn take(&mut self, response: Response, read: impl Fn(&str) -> Option<T>) -> Result<(), Error> {
        match response {
            Response::Reply { text, .. } => {
                self.verdict = read(&text);
                self.replies.push(text);
            }
            Response::Failed { problem } => self.failed = Some(problem),
            Response::Loglikelihood { .. } => return Err(Error::WrongResponse { wanted: "a reply" }),
        }
        Ok(())
    }
}

impl JudgedBy {
    pub(super) fn new(
        rules: &str,
        questions: &[Question],
        (judge, digest): (&str, &str),
        baseline: Option<&Answers>,
    ) -> Self {
        let short = |hash: &str| hash.chars().take(8).collect::<String>();
        let text = serde_json::to_string(questions).expect("questions are plain data");
        let (n, hash) = (questions.len(), short(&sha256(text.as_bytes())));
        // The hash of the answers and not of a model: other answers are another baseline.
        let against = baseline.map_or_else(String::new, |baseline| {
            let text = serde_json::to_string(&baseline.replies).expect("replies are plain data");
            format!("/baseline#{}", short(&sha256(text.as_bytes())))
        });
        let protocol_id = format!("{rules}@{n}questions#{hash}/judge#{}{against}", short(digest));
        Self { judge: judge.to_owned(), digest: digest.to_owned(), protocol_id }
    }
}

/// A warning if there are few independent items that have a verdict.
pub(super) fn warning_of_few(what: &str, judged: usize) -> Option<String> {
    (judged < FEW)
        .then(|| format!("there are {judged} judged {what}, and fewer than {FEW} say little: judge more"))
}

/// Warnings about items that have no verdict.
pub(super) fn warnings_of_missing(what: &str, judged: usize, unparsed: usize, failed: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    if unparsed as f64 > MANY_UNPARSED * (judged + unparsed) as f64 {
        warnings.push(format!(
            "{unparsed} {what} have no verdict that can be read and do not count: use a judge that keeps to its \
             format"
        ));
    }
    if failed > 0 {
        warnings.push(format!(
            "{failed} {what} were not answered and do not count; the same command asks them again"
        ));
    }
    warnings
}
