//! Problems, questions and the verifier.
//!
//! A problem is data, without wording and without language. A question is a problem put in words. The answer
//! depends only on the problem and the language of the question. The wordings are in `phrase`.

use super::arithmetic::{Arithmetic, Operation};
use super::comparison::{Comparison, Relation};
use super::conversion::{Conversion, Target};
use super::date::{Date, Direction};
use super::dice::SynthRng;
use super::letter::{Letters, Spelling};
use super::list::{ListProblem, Wanted};
use super::phrase;
use super::task::{Language, Task};
use crate::conversation::{Message, Role};

/// A question with its one right answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// One or two exchanges, ending with the turn to be answered.
    pub messages: Vec<Message>,
    /// The bare right answer to the last turn.
    pub answer: String,
    /// One of [`FAMILIES`](super::FAMILIES).
    pub family: &'static str,
    /// The task within the family, for example `sum`.
    pub task: &'static str,
    /// The language of all turns.
    pub language: Language,
    /// The key of the problem of each user turn, the same in all wordings and languages.
    pub keys: Vec<String>,
    /// The problem of the last turn.
    pub(super) problem: Problem,
}

/// Whether a reply is right: it equals the answer after white space around it is removed.
pub fn verify(answer: &str, reply: &str) -> bool {
    reply.trim() == answer
}

/// A problem of any family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Arithmetic(Arithmetic),
    List(ListProblem),
    Letters(Letters),
    Comparison(Comparison),
    Conversion(Conversion),
    Date(Date),
}

impl Problem {
    pub(super) fn task(&self) -> &dyn Task {
        match self {
            Self::Arithmetic(problem) => problem,
            Self::List(problem) => problem,
            Self::Letters(problem) => problem,
            Self::Comparison(problem) => problem,
            Self::Conversion(problem) => problem,
            Self::Date(problem) => problem,
        }
    }

    /// The problem of a second turn that builds on the answer to this one, if there is one.
    fn follow_up(&self, dice: &mut SynthRng) -> Option<Self> {
        match self {
            Self::Arithmetic(problem) => Some(Self::Arithmetic(problem.follow_up(dice))),
            Self::List(problem) => problem.follow_up().map(Self::List),
            Self::Date(problem) => problem.follow_up(dice).map(Self::Date),
            Self::Letters(_) | Self::Comparison(_) | Self::Conversion(_) => None,
        }
    }
}

/// The kind of problem to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Arithmetic(Operation),
    List(Wanted),
    Letters(Spelling),
    Comparison(Relation),
    Conversion(Target),
    Date(Direction),
}

/// All kinds of problems with their weights. Kinds that are hard to learn have larger weights.
pub(super) const KINDS: [(Kind, u32); 24] = [
    (Kind::Arithmetic(Operation::Sum), 14),
    (Kind::Arithmetic(Operation::Difference), 12),
    (Kind::Arithmetic(Operation::Product), 3),
    (Kind::List(Wanted::Reverse), 7),
    (Kind::List(Wanted::Sort), 7),
    (Kind::List(Wanted::Largest), 4),
    (Kind::List(Wanted::Smallest), 4),
    (Kind::List(Wanted::Nth), 5),
    (Kind::List(Wanted::Length), 4),
    (Kind::Letters(Spelling::Count), 5),
    (Kind::Letters(Spelling::First), 3),
    (Kind::Letters(Spelling::Last), 3),
    (Kind::Letters(Spelling::Spelled), 4),
    (Kind::Letters(Spelling::Backwards), 5),
    (Kind::Comparison(Relation::Larger), 4),
    (Kind::Comparison(Relation::Smaller), 4),
    (Kind::Comparison(Relation::Same), 4),
    (Kind::Conversion(Target::Centimetres), 2),
    (Kind::Conversion(Target::Minutes), 2),
    (Kind::Conversion(Target::Grams), 2),
    (Kind::Conversion(Target::Words), 3),
    (Kind::Date(Direction::After), 5),
    (Kind::Date(Direction::Before), 5),
    (Kind::Date(Direction::Earlier), 3),
];

/// Kinds whose answers a second turn can build on.
pub(super) const FOLLOWED_KINDS: [(Kind, u32); 5] = [
    (Kind::Arithmetic(Operation::Sum), 3),
    (Kind::Arithmetic(Operation::Difference), 3),
    (Kind::Arithmetic(Operation::Product), 1),
    (Kind::List(Wanted::Sort), 2),
    (Kind::Date(Direction::After), 2),
];

impl Kind {
    pub(super) fn draw(self, dice: &mut SynthRng) -> Problem {
        match self {
            Self::Arithmetic(operation) => Problem::Arithmetic(Arithmetic::draw(operation, dice)),
            Self::List(wanted) => Problem::List(ListProblem::draw(wanted, dice)),
            Self::Letters(spelling) => Problem::Letters(Letters::draw(spelling, dice)),
            Self::Comparison(relation) => Problem::Comparison(Comparison::draw(relation, dice)),
            Self::Conversion(target) => Problem::Conversion(Conversion::draw(target, dice)),
            Self::Date(direction) => Problem::Date(Date::draw(direction, dice)),
        }
    }
}

/// The problems of a conversation, before they are put in words.
#[derive(Clone, Debug)]
pub(super) struct QuestionPlan {
    pub(super) first: Problem,
    pub(super) second: Option<Problem>,
}

impl QuestionPlan {
    pub(super) fn draw(kind: Kind, two_turns: bool, dice: &mut SynthRng) -> Self {
        let first = kind.draw(dice);
        let second = if two_turns { first.follow_up(dice) } else { None };
        Self { first, second }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        [Some(&self.first), self.second.as_ref()].into_iter().flatten().map(|p| p.task().key()).collect()
    }

    /// Puts the problems into words.
    pub(super) fn ask(self, language: Language, dice: &mut SynthRng) -> Question {
        let keys = self.keys();
        let mut messages = vec![Message::user(phrase::ask(self.first.task(), language, dice))];
        if let Some(second) = &self.second {
            messages.push(Message::assistant(self.first.task().answer(language)));
            messages.push(Message::user(phrase::ask_further(second.task(), language, dice)));
        }
        let problem = self.second.unwrap_or(self.first);
        let task = problem.task();
        Question {
            messages,
            answer: task.answer(language),
            family: task.family(),
            task: task.name(),
            language,
            keys,
            problem,
        }
    }
}

impl Question {
    /// The keys as one string. It distinguishes this question from all questions that are not rewordings of
    /// it.
    pub fn key(&self) -> String {
        self.keys.join(";")
    }

    /// The turns as one string, to compare prompts.
    pub fn text(&self) -> String {
        let turns = self.messages.iter().map(|message| match message.role {
            Role::Assistant => format!("> {}", message.content),
            _ => message.content.clone(),
        });
        turns.collect::<Vec<_>>().join("\n")
    }

    /// The conversation with a reply appended.
    pub fn answered(&self, reply: impl Into<String>) -> Vec<Message> {
        let mut messages = self.messages.clone();
        messages.push(Message::assistant(reply));
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bare_answer_is_right() {
        assert!(verify("82", "82"));
        assert!(verify("82", " 82\n"));
        for wrong in ["82.", "82!!", "answer=82", "\"82\"", "82 82", "it is 82", "83", "", "八十二"] {
            assert!(!verify("82", wrong), "{wrong}");
        }
    }

    #[test]
    fn near_misses_are_wrong_in_every_kind_and_language() {
        let mut dice = SynthRng::new(5, 0);
        for (kind, _) in KINDS {
            for _ in 0..300 {
                let problem = kind.draw(&mut dice);
                for language in [Language::English, Language::Chinese] {
                    let answer = problem.task().answer(language);
                    let near = problem.task().near_miss(language, &mut dice);
                    assert_ne!(near, answer, "{problem:?}");
                    assert_eq!(near.trim(), near);
                    if let Some(other) = problem.task().other_form(language) {
                        assert_ne!(other, answer, "{problem:?}");
                    }
                }
            }
        }
    }
}
