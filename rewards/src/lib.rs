//! Rewards: what gives scores to the replies of a policy, without a gradient and without torch.
//!
//! A list of [`RewardEntry`] says what gives scores. [`check`] refuses settings that cannot work, and
//! [`scorer`] makes of one entry a [`Scorer`], which gives each [`Reply`] a score or says why there is none
//! ([`ScoreError`]). [`answer_check`] says before the first step to which rows no reply can have a score.
//!
//! - Verifiers compare a reply with the answer of its row: [`ExactConfig`](entry::ExactConfig), `numeric`,
//!   `math`, `choice`, `world`; or they look at the reply alone: `regex`, `json`, `format`, `ifeval`,
//!   `length`, `language`, `repetition`.
//! - Programs: `code` runs what the model wrote, `command` and `http` ask a program or a server of the user.
//! - Models: `model` and `judge` are only settings here. The caller runs them.
//!
//! What the crate `eval` can verify is verified there, so training and evaluation agree about it. This crate
//! does not know how scores are weighted, normalized, or turned into advantages.

mod answer;
mod batch;
mod choice;
mod client;
mod code;
mod command;
pub mod entry;
pub mod environment;
mod error;
mod exact;
mod exchange;
mod extract;
mod format;
mod http;
mod instruction;
mod json;
mod language;
mod length;
mod limits;
mod math;
mod number;
mod numeric;
mod pattern;
mod program;
mod registry;
mod repetition;
mod score;
mod world;

#[cfg(test)]
mod hostile_text;
#[cfg(test)]
mod test_program;
#[cfg(test)]
mod test_server;

pub use entry::{Extract, Normalize, RewardEntry, RewardKind};
pub use error::Error;
pub use program::ProgramLog;
pub use registry::{AnswerCheck, answer_check, check, scorer};
pub use score::{Reply, ScoreError, Scorer, quoted};
