//! The answers of one model to questions.

use super::question::Question;
use crate::Error;

/// The answers of one model to a list of questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The name of the model.
    pub model: String,
    /// The hash of the model.
    pub digest: String,
    /// For each question, one reply for each turn.
    pub replies: Vec<Vec<String>>,
}

/// Whether there are questions, and a reply to each turn.
pub(super) fn check(task: &str, questions: &[Question], answers: &[&Answers]) -> Result<(), Error> {
    if questions.is_empty() {
        return Err(Error::NoDocuments { task: task.to_owned() });
    }
    for answers in answers {
        let (left, right) = (questions.len(), answers.replies.len());
        if left != right {
            return Err(Error::Unpaired { left, right });
        }
        for (row, (question, replies)) in questions.iter().zip(&answers.replies).enumerate() {
            let (turns, got) = (question.turns.len(), replies.len());
            if turns != got || turns == 0 {
                let problem =
                    format!("has {got} replies of {}, and the question has {turns} turns", answers.model);
                let source = Box::new(Error::BadColumn { key: "turns", problem });
                return Err(Error::InRow { task: task.to_owned(), row, source });
            }
        }
    }
    Ok(())
}
