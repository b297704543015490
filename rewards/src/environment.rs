//! Environments: what answers the policy between the turns of an episode.
//!
//! An episode begins with a prompt. The policy writes a turn, the environment answers with messages, the
//! policy writes the next turn, until the environment says that the episode is done or the turns are used up.
//! Turns may have rewards of their own.
//!
//! | `kind` | what the policy can do |
//! |---|---|
//! | `calculator` | `= 12*7+3` in the last line of a turn is computed |
//! | `search` | `? friday` in the last line of a turn is looked up among facts of the synthetic data |
//! | `command` | what a program of the user makes of its turns |
//! | `http` | what a server of the user makes of its turns |
//!
//! An episode whose environment fails has no reward, and the others go on. This module knows neither models
//! nor tokens, and no chat template.

mod calculator;
mod episode;
mod error;
mod remote;
mod search;
mod section;
mod step;
mod tool;

pub use self::episode::{Environment, Step, Turn};
pub use self::error::EnvironmentError;
pub use self::section::{EnvironmentKind, EnvironmentSection};
