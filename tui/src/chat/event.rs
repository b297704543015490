//! What the chat screen is told, and what it asks for.
//!
//! The screen itself runs no model and opens no file. It turns events into a new state and into effects; the
//! program carries the effects out, and sends what comes of them as events.

use serde::{Deserialize, Serialize};

use super::conversation::{Conversation, Judgement, Role, TurnId};
use crate::line::Statistics;
use crate::screen::Input;

pub use super::conversation::Sampling;

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The user did something.
    Input(Input),
    /// A model reports.
    Model(ModelEvent),
    /// A session was read.
    Opened(Box<Saved>),
    /// The sessions that there are, the newest first.
    Sessions(Vec<SessionSummary>),
    /// The external editor was closed with this text.
    Edited(String),
    /// Something that was asked for is done, or failed.
    Notice(Notice),
    /// A judgement could not be written down, so the answer shows it no longer.
    NotWritten {
        /// The session.
        session: String,
        /// The answer.
        turn: TurnId,
        /// What was thought of it before.
        before: Judgement,
    },
    /// A text to be read at leisure.
    Text {
        /// What it is.
        title: String,
        /// The text, not sanitized.
        text: String,
    },
    /// A moment passed.
    Tick,
}

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The line, not sanitized.
    pub text: String,
    /// Whether something failed.
    pub is_error: bool,
}

impl Notice {
    /// Something is done.
    pub fn done(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false }
    }

    /// Something failed.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }
}

/// A report of a model. Models are named by their slot: the place in the order in which they were loaded.
#[derive(Clone, Debug)]
pub enum ModelEvent {
    /// A model is being loaded.
    Loading {
        /// The model.
        slot: usize,
        /// How far, such as `reading 1.2 of 3.4 GB`.
        note: String,
    },
    /// A model can answer.
    Loaded {
        /// The model.
        slot: usize,
        /// Its context length, in tokens, if known.
        context: Option<u64>,
        /// Size, device and number format, such as `135 M parameters, cpu, float32`.
        detail: String,
    },
    /// A model cannot be loaded.
    LoadFailed {
        /// The model.
        slot: usize,
        /// Why, not sanitized.
        error: String,
    },
    /// An answer begins.
    Started {
        /// The answer.
        turn: TurnId,
        /// The tokens that the model got.
        prompt_tokens: u64,
        /// The oldest messages that were left out because the context is full.
        dropped: usize,
    },
    /// The next piece of an answer.
    Piece {
        /// The answer.
        turn: TurnId,
        /// The piece, not sanitized.
        text: String,
        /// The tokens so far.
        new_tokens: u64,
        /// Tokens a second so far, after the first token.
        rate: Option<f64>,
    },
    /// An answer is complete.
    Finished {
        /// The answer.
        turn: TurnId,
        /// Its measurements.
        statistics: Statistics,
    },
    /// An answer failed.
    Failed {
        /// The answer.
        turn: TurnId,
        /// Why, not sanitized.
        error: String,
    },
    /// A reward model scored an answer.
    Scored {
        /// The session of the answer.
        session: String,
        /// The answer.
        turn: TurnId,
        /// Its score.
        score: f64,
    },
    /// The tokens of an answer with their log-probabilities.
    Tokens(Box<TokenReport>),
}

/// The tokens of an answer under a model and, if there is one, under a reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenReport {
    /// The model, and the reference.
    pub models: [Option<String>; 2],
    /// The tokens of the answer.
    pub tokens: Vec<TokenScore>,
}

/// A token of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScore {
    /// Its text, not sanitized.
    pub text: String,
    /// `log p` under the model, in nats.
    pub logprob: f64,
    /// `log p` under the reference, in nats.
    pub reference: Option<f64>,
    /// `KL(model ‖ reference)` of the whole distribution at this place, in nats.
    pub kl: Option<f64>,
    /// The tokens that the model finds most likely here.
    pub alternatives: Vec<Alternative>,
}

/// A token that could have stood here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alternative {
    /// Its text, not sanitized.
    pub text: String,
    /// `log p` under the model, in nats.
    pub logprob: f64,
    /// `log p` under the reference, in nats.
    pub reference: Option<f64>,
}

/// What happens when a conversation no longer fits into the context of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextPolicy {
    /// The model no longer sees the oldest turns.
    #[default]
    Drop,
    /// The model sees a summary, written by itself, instead of the oldest turns.
    Summarize,
    /// The message is refused.
    Stop,
}

impl ContextPolicy {
    /// All policies with the names that users write.
    pub const ALL: [(&'static str, Self); 3] =
        [("drop", Self::Drop), ("summarize", Self::Summarize), ("stop", Self::Stop)];
}

/// An answer that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The answer.
    pub turn: TurnId,
    /// The model.
    pub slot: usize,
    /// The instructions and turns before the answer.
    pub messages: Vec<(Role, String)>,
    /// The text with which the answer already begins.
    pub prefix: String,
    /// How it is drawn.
    pub sampling: Sampling,
    /// What happens when the context is full.
    pub policy: ContextPolicy,
}

/// What the log-probabilities of a model are compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// They are shown alone.
    Nothing,
    /// A reference; without a name, the one before.
    Reference(Option<String>),
}

/// A judgement that is to be written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// The session.
    pub session: String,
    /// The answer that shows the judgement.
    pub turn: TurnId,
    /// What was thought of it before.
    pub before: Judgement,
    /// The instructions and turns before the answer.
    pub prompt: Vec<(Role, String)>,
    /// What was judged.
    pub verdict: Verdict,
    /// A remark of the user.
    pub note: Option<String>,
    /// Tags of the user.
    pub tags: Vec<String>,
}

/// An answer with the model that wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The model; `None` for a person.
    pub model: Option<String>,
    /// How the model drew it.
    pub sampling: Option<Sampling>,
}

/// What the user thinks.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// One answer is better than another.
    Pair {
        /// The better one.
        chosen: Answer,
        /// The other one.
        rejected: Answer,
        /// How the two came about.
        source: PairSource,
        /// Whether the names of the models were hidden.
        blind: bool,
    },
    /// Two answers are equally good.
    Tie {
        /// The two.
        answers: [Answer; 2],
        /// Whether the names of the models were hidden.
        blind: bool,
    },
    /// An answer is good or bad.
    Thumb {
        /// The answer.
        answer: Answer,
        /// Whether it is good.
        good: bool,
    },
    /// An answer has a grade.
    Rating {
        /// The answer.
        answer: Answer,
        /// From 1 to 5.
        rating: u8,
    },
}

/// How two answers of a pair came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairSource {
    /// Several models answered the same.
    Compare,
    /// The model answered again.
    Sibling,
    /// The user rewrote the answer.
    Edit,
}

/// A session as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// The version of this form.
    pub version: u32,
    /// The name of its file.
    pub id: String,
    /// What the user calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The model that answered last, as the user gave it.
    pub model: String,
    /// How answers are drawn.
    pub sampling: Sampling,
    /// What happens when the context is full.
    pub context: ContextPolicy,
    /// The conversation.
    pub conversation: Conversation,
}

impl Saved {
    /// The version that is written.
    pub const VERSION: u32 = 2;
}

/// A line in the list of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// The name of its file.
    pub id: String,
    /// Its title, not sanitized.
    pub title: String,
    /// How long ago it was used, such as `2 h ago`.
    pub age: String,
    /// The number of turns.
    pub turns: usize,
}

/// Something that the program has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Load a model into a slot.
    Load {
        /// The slot.
        slot: usize,
        /// A folder, hub name or address.
        model: String,
    },
    /// Write answers. Different models answer at once, and the answers of one model come in their order.
    Generate(Vec<Request>),
    /// Stop all answers that are asked for.
    Stop,
    /// Use another chat template for the model of a slot.
    Template {
        /// The slot.
        slot: usize,
        /// A built-in name, or Jinja source.
        template: String,
    },
    /// Score an answer with a reward model.
    Score {
        /// The session of the answer.
        session: String,
        /// The answer.
        turn: TurnId,
        /// The conversation up to the answer, included.
        messages: Vec<(Role, String)>,
        /// Another reward model than before.
        model: Option<String>,
    },
    /// Compute the log-probabilities of the tokens of an answer.
    Tokens {
        /// The model.
        slot: usize,
        /// The conversation up to the answer, included.
        messages: Vec<(Role, String)>,
        /// What it is compared with.
        against: Against,
        /// Whether the model ended the answer itself.
        ends: bool,
    },
    /// Show the text that a model would get for this request.
    Prompt(Request),
    /// Keep the session.
    Save(Box<Saved>),
    /// List the sessions.
    ListSessions,
    /// Read a session; without an id, the newest other than `current`.
    Open {
        /// Which one.
        id: Option<String>,
        /// The session on the screen.
        current: String,
    },
    /// Delete a session.
    Delete(String),
    /// Write down a judgement.
    Judge(Feedback),
    /// Add a message to the history.
    Remember(String),
    /// Copy a text to the clipboard.
    Copy(String),
    /// Write the conversation on the screen to a file.
    Export {
        /// `md`, `json`, `jsonl` or `parquet`.
        format: String,
        /// The file; without one, a new name is chosen.
        path: Option<String>,
        /// The title of the session.
        title: String,
        /// The conversation.
        messages: Vec<(Role, String)>,
    },
    /// Open an editor with a text.
    OpenEditor(String),
    /// Let the terminal report the mouse, or not.
    Mouse(bool),
    /// Draw everything again.
    Redraw,
    /// End the chat.
    Quit,
}
