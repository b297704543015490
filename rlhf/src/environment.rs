//! Environments: what answers the policy between its turns.
//!
//! An episode begins with a prompt. The policy writes a turn, the environment answers with turns of tools or of
//! a user and may reward the turn, and so on until the environment is done or a limit is reached. One rank of
//! each model replica asks the environment for the episodes of the replica and tells the others. This module
//! knows no tool, no program and no server.

use datasets::Message;
use serde::{Deserialize, Serialize};

/// The beginning of an episode.
#[derive(Clone, Debug)]
pub struct NewEpisode<'a> {
    /// The number of the episode, which no other one of the job has.
    pub episode: u64,
    /// The turns of the prompt.
    pub prompt: &'a [Message],
    /// The expected answer of the row.
    pub answer: Option<&'a str>,
}

/// A turn that the policy has written.
#[derive(Clone, Debug)]
pub struct PolicyTurn<'a> {
    /// The number of the episode.
    pub episode: u64,
    /// The text of the turn, without the token that ended it.
    pub text: &'a str,
}

/// What follows a turn of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The turns that the policy reads next; none if the episode is done.
    pub messages: Vec<Message>,
    /// The reward of the turn.
    pub reward: Option<f64>,
    /// Whether the episode is done.
    pub done: bool,
}

/// Answers the policy. A reason in place of an answer ends the episode, which then takes part in nothing.
pub trait Environment: Send {
    /// Begins episodes.
    fn reset(&mut self, episodes: &[NewEpisode<'_>]) -> Vec<Result<(), String>>;

    /// Answers one turn of each of some episodes.
    fn step(&mut self, turns: &[PolicyTurn<'_>]) -> Vec<Result<Step, String>>;

    /// Ends an episode, whether or not it was done.
    fn end(&mut self, episode: u64);
}
