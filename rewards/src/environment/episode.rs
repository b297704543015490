//! The turns of an episode: what an environment is told, and what it answers.

use datasets::Message;
use serde_json::Value;

use super::error::EnvironmentError;

/// One turn of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    /// The number of the episode.
    pub episode: u64,
    /// What the policy wrote.
    pub text: &'a str,
}

/// What follows a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The messages that the policy reads next, with the role `tool` or `user`. Empty if the episode is done,
    /// and only then. The text may be anything: the caller has to keep it from acting as special tokens.
    pub messages: Vec<Message>,
    /// The reward of this turn, which is finite; none is 0.
    pub reward: Option<f64>,
    /// Whether the episode has ended.
    pub done: bool,
}

/// What answers the policy between its turns. Each episode is on its own.
pub trait Environment: Send {
    /// Begins an episode, whose number no other open episode has. A failure of a program or a server may
    /// show only at the first step.
    fn reset(
        &mut self,
        episode: u64,
        prompt: &[Message],
        answer: Option<&str>,
    ) -> Result<(), EnvironmentError>;

    /// Takes the policy's turns, one of each episode, and returns what follows each, in their order. An
    /// episode with an error does not go on; the others do.
    fn step(&mut self, turns: &[Turn<'_>]) -> Vec<Result<Step, EnvironmentError>>;

    /// The tools for the chat template, a list in JSON. None if the template does not have to know of any.
    fn tools(&self) -> Option<Value>;

    /// Ends an episode, whether it is done or not. Unknown episodes are ignored.
    fn end(&mut self, episode: u64);
}
