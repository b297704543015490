//! A conversation as a tree: whoever edits a message or asks for another answer starts a new branch, and
//! every earlier branch stays.
//!
//! The turns lie in one list in the order in which they were made; each knows its parent, and the root turns
//! have none. The head is the turn at which the conversation stands: its ancestors are what the screen shows
//! and what the model gets. Session files hold this structure as JSON, so [`Conversation::check`] must pass
//! before a loaded one is used.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// The place of a turn in the list of its conversation.
pub type TurnId = usize;

/// A message of the user, or an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// The turn before it.
    pub parent: Option<TurnId>,
    /// Who speaks: the user or the assistant.
    pub role: Role,
    /// What was said.
    pub text: String,
    /// The model that wrote the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Why the answer ended: `stop`, `length` or `interrupted`. `None` while it is being written, and for
    /// users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// What the answer was asked for with. `None` for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// What the user thinks of the answer.
    #[serde(default, skip_serializing_if = "Judgement::is_empty")]
    pub judgement: Judgement,
    /// The score of the reward model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
}

/// How answers are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Draw from this many tokens; 0 for all.
    pub top_k: usize,
    /// Draw from the most likely tokens that together reach this probability.
    pub top_p: f64,
    /// The longest answer, in tokens.
    pub max_new_tokens: usize,
    /// Chooses the draws.
    pub seed: u64,
}

/// What an answer was asked for with. Both may change during a conversation, so each answer keeps its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// How it was drawn.
    pub sampling: Sampling,
    /// Whether its model is hidden from the user, who has not chosen yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blind: bool,
}

/// What the user thinks of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// Good or bad.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<bool>,
    /// From 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating: Option<u8>,
    /// Whether the user preferred it to its siblings.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preferred: bool,
}

impl Judgement {
    // The signature is that of serde.
    #[expect(clippy::trivially_copy_pass_by_ref)]
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a loaded conversation cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The turn, counted from 0; `None` for the conversation itself.
    pub turn: Option<TurnId>,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// A tree of turns, and where the conversation stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversation {
    /// Instructions for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    turns: Vec<Turn>,
    head: Option<TurnId>,
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// Refuses a conversation whose parents, roles or head cannot be right.
    pub fn check(&self) -> Result<(), Damaged> {
        for (id, turn) in self.turns.iter().enumerate() {
            let damaged = |problem| Err(Damaged { turn: Some(id), problem });
            match turn.parent {
                Some(parent) if parent >= id => return damaged("its parent is not an earlier turn"),
                Some(parent) if self.turns[parent].role == turn.role => {
                    return damaged("its parent has the same role");
                }
                None if turn.role != Role::User => return damaged("a conversation begins with the user"),
                _ => {}
            }
            if turn.role == Role::System {
                return damaged("instructions belong into `system`");
            }
        }
        match self.head {
            Some(head) if head >= self.turns.len() => {
                Err(Damaged { turn: None, problem: "its head is not one of its turns" })
            }
            _ => Ok(()),
        }
    }

    /// Whether nothing was said yet.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The turn at which the conversation stands.
    pub fn head(&self) -> Option<TurnId> {
        self.head
    }

    /// A turn of this conversation.
    pub fn turn(&self, id: TurnId) -> &Turn {
        &self.turns[id]
    }

    /// A turn, to be changed.
    pub fn turn_mut(&mut self, id: TurnId) -> &mut Turn {
        &mut self.turns[id]
    }

    /// The number of turns on all branches.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Adds a turn below `parent` and goes there.
    pub fn add(&mut self, parent: Option<TurnId>, role: Role, text: impl Into<String>) -> TurnId {
        let text = text.into();
        let judgement = Judgement::default();
        let turn =
            Turn { parent, role, text, model: None, finish: None, asked: None, judgement, reward: None };
        self.turns.push(turn);
        self.head = Some(self.turns.len() - 1);
        self.turns.len() - 1
    }

    /// Moves to a turn, or to the very beginning.
    pub fn go_to(&mut self, turn: Option<TurnId>) {
        self.head = turn.filter(|&id| id < self.turns.len());
    }

    /// Moves to a turn and on to the newest turn below it.
    pub fn go_below(&mut self, turn: TurnId) {
        let mut head = turn;
        while let Some(child) = self.newest_child(head) {
            head = child;
        }
        self.head = Some(head);
    }

    fn newest_child(&self, parent: TurnId) -> Option<TurnId> {
        (parent + 1..self.turns.len()).rev().find(|&id| self.turns[id].parent == Some(parent))
    }

    /// Removes `question` with its answers, if no other turn was added after it and it is not on the path.
    /// Returns what was removed.
    pub fn remove_last(&mut self, question: TurnId) -> Range<TurnId> {
        let is_below = |turn: &Turn| turn.parent.is_some_and(|parent| parent >= question);
        let is_last = self.turns[question + 1..].iter().all(is_below);
        if !is_last || self.head.is_some_and(|head| head >= question) {
            return 0..0;
        }
        let removed = question..self.turns.len();
        self.turns.truncate(question);
        removed
    }

    /// The turns from the beginning to the head.
    pub fn path(&self) -> Vec<TurnId> {
        self.path_to(self.head)
    }

    /// The turns from the beginning to `turn`, included.
    pub fn path_to(&self, turn: Option<TurnId>) -> Vec<TurnId> {
        let mut path: Vec<TurnId> = std::iter::successors(turn, |&id| self.turns[id].parent).collect();
        path.reverse();
        path
    }

    /// The last turn of `role` on the path.
    pub fn last(&self, role: Role) -> Option<TurnId> {
        self.path().into_iter().rev().find(|&id| self.turns[id].role == role)
    }

    /// All turns with the same parent, in the order in which they were made.
    pub fn siblings(&self, turn: TurnId) -> Vec<TurnId> {
        let parent = self.turns[turn].parent;
        (0..self.turns.len()).filter(|&id| self.turns[id].parent == parent).collect()
    }

    /// The sibling `offset` places further, if there is one.
    pub fn sibling(&self, turn: TurnId, offset: isize) -> Option<TurnId> {
        let siblings = self.siblings(turn);
        let place = siblings.iter().position(|&id| id == turn)?;
        siblings.get(place.checked_add_signed(offset)?).copied()
    }

    /// The instructions that an answer was asked for with; those of now if nobody asked yet.
    pub fn system_of(&self, turn: Option<TurnId>) -> Option<&str> {
        match turn.and_then(|turn| self.turns[turn].asked.as_ref()) {
            Some(asked) => asked.system.as_deref(),
            None => self.system.as_deref(),
        }
    }

    /// Whether the model of an answer is hidden.
    pub fn is_blind(&self, turn: TurnId) -> bool {
        self.turns[turn].asked.as_ref().is_some_and(|asked| asked.blind)
    }

    /// Hides the models of answers, or shows them.
    pub fn set_blind(&mut self, turns: &[TurnId], blind: bool) {
        for &turn in turns {
            if let Some(asked) = &mut self.turns[turn].asked {
                asked.blind = blind;
            }
        }
    }

    /// What a model gets to write `turn`: its instructions and all turns before it.
    pub fn messages_before(&self, turn: TurnId) -> Vec<(Role, String)> {
        self.messages(self.system_of(Some(turn)), self.turns[turn].parent)
    }

    /// The instructions of `turn` and all turns up to it, included.
    pub fn messages_to(&self, turn: Option<TurnId>) -> Vec<(Role, String)> {
        self.messages(self.system_of(turn), turn)
    }

    fn messages(&self, system: Option<&str>, turn: Option<TurnId>) -> Vec<(Role, String)> {
        let system = system.map(|text| (Role::System, text.to_owned()));
        let turns = self.path_to(turn).into_iter().map(|id| &self.turns[id]);
        system.into_iter().chain(turns.map(|turn| (turn.role, turn.text.clone()))).collect()
    }

    /// The beginning of the first message, which serves as a title.
    pub fn title(&self) -> Option<String> {
        let first = self.turns.first()?;
        let line = first.text.lines().find(|line| !line.trim().is_empty())?;
        Some(text::truncate(&text::single_line(line.trim()), 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question with two answers, the first of which was asked about.
    fn branched() -> Conversation {
        let mut talk = Conversation::new(Some("be short".into()));
        let question = talk.add(None, Role::User, "q");
        let first = talk.add(Some(question), Role::Assistant, "a");
        let more = talk.add(Some(first), Role::User, "why?");
        talk.add(Some(more), Role::Assistant, "because");
        talk.add(Some(question), Role::Assistant, "b");
        talk
    }

    #[test]
    fn a_branch_hides_the_others_and_loses_none() {
        let mut talk = branched();
        assert_eq!(talk.path(), [0, 4]);
        assert_eq!(talk.siblings(4), [1, 4]);
        assert_eq!((talk.sibling(4, -1), talk.sibling(4, 1), talk.sibling(1, -1)), (Some(1), None, None));
        talk.go_below(1);
        assert_eq!(talk.path(), [0, 1, 2, 3]);
        talk.go_to(None);
        assert_eq!((talk.path(), talk.len()), (vec![], 5));
    }

    #[test]
    fn a_model_gets_the_instructions_and_what_lies_before() {
        let talk = branched();
        let texts =
            |messages: Vec<(Role, String)>| messages.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(talk.messages_before(3)), ["be short", "q", "a", "why?"]);
        assert_eq!(texts(talk.messages_before(4)), ["be short", "q"]);
    }

    #[test]
    fn a_saved_conversation_is_the_same_and_a_damaged_one_is_refused() {
        let talk = branched();
        let text = serde_json::to_string(&talk).unwrap();
        let again: Conversation = serde_json::from_str(&text).unwrap();
        assert_eq!(again, talk);
        assert!(again.check().is_ok());
        for (damage, instead, problem) in [
            (r#""parent":0"#, r#""parent":4"#, "earlier turn"),
            (r#""parent":0"#, r#""parent":9"#, "earlier turn"),
            (r#""head":4"#, r#""head":5"#, "head"),
            (r#""assistant","text":"a""#, r#""user","text":"a""#, "same role"),
            (r#""parent":0"#, r#""parent":null"#, "begins with the user"),
        ] {
            let damaged: Conversation = serde_json::from_str(&text.replacen(damage, instead, 1)).unwrap();
            assert!(damaged.check().unwrap_err().problem.contains(problem), "{instead}");
        }
    }
}
