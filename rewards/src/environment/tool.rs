//! An environment with one built-in tool: a turn that calls the tool is answered with its result, and any other
//! turn is the last one.
//!
//! The result is a message with the role `tool`. There are no rewards of turns: whether a call was of use
//! shows in the reward of the last turn. The chat template is told of no tools, because the calls are not those
//! of a template: the policy learns them from demonstrations, or from the system message of the prompt.

use std::collections::BTreeSet;

use datasets::Message;
use serde_json::Value;

use super::episode::{Environment, Step, Turn};
use super::error::EnvironmentError;

/// An environment with one built-in tool.
#[derive(Debug)]
pub(super) struct ToolEnvironment {
    /// The result of the call in a turn; none if the turn calls nothing.
    tool: fn(&str) -> Option<String>,
    open: BTreeSet<u64>,
}

impl ToolEnvironment {
    pub(super) fn new(tool: fn(&str) -> Option<String>) -> Self {
        Self { tool, open: BTreeSet::new() }
    }
}

impl Environment for ToolEnvironment {
    fn reset(&mut self, episode: u64, _: &[Message], _: Option<&str>) -> Result<(), EnvironmentError> {
        if self.open.insert(episode) { Ok(()) } else { Err(EnvironmentError::HasBegun { episode }) }
    }

    fn step(&mut self, turns: &[Turn<'_>]) -> Vec<Result<Step, EnvironmentError>> {
        let step = |&Turn { episode, text }: &Turn<'_>| {
            if !self.open.contains(&episode) {
                return Err(EnvironmentError::UnknownEpisode { episode });
            }
            let messages: Vec<Message> = (self.tool)(text).map(Message::tool).into_iter().collect();
            Ok(Step { done: messages.is_empty(), messages, reward: None })
        };
        turns.iter().map(step).collect()
    }

    fn tools(&self) -> Option<Value> {
        None
    }

    fn end(&mut self, episode: u64) {
        self.open.remove(&episode);
    }
}

/// The part of a turn that follows `mark`, if its last line that is not blank begins with it.
pub(super) fn call<'a>(turn: &'a str, mark: &str) -> Option<&'a str> {
    let line = turn.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    line.strip_prefix(mark).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_answered_and_anything_else_ends_the_episode() {
        let mut echo = ToolEnvironment::new(|turn| call(turn, "!").map(str::to_owned));
        echo.reset(3, &[], None).unwrap();
        echo.reset(9, &[], None).unwrap();
        assert_eq!(echo.reset(3, &[], None), Err(EnvironmentError::HasBegun { episode: 3 }));

        let turn = |episode, text| Turn { episode, text };
        let steps = echo.step(&[turn(9, "let me see\n ! hey \n\n"), turn(4, "! hey"), turn(3, "hey !")]);
        let answer = Step { messages: vec![Message::tool("hey")], reward: None, done: false };
        let end = Step { messages: vec![], reward: None, done: true };
        assert_eq!(steps, [Ok(answer), Err(EnvironmentError::UnknownEpisode { episode: 4 }), Ok(end)]);

        echo.end(9);
        echo.end(77);
        assert!(echo.step(&[turn(9, "")])[0].is_err());
        assert_eq!(echo.reset(9, &[], None), Ok(()));
    }

    #[test]
    fn only_the_last_line_calls() {
        assert_eq!(call("= 1+1", "="), Some("1+1"));
        assert_eq!(call("37 + 45\n=37+45\r\n", "="), Some("37+45"));
        assert_eq!(call("= 1\n2", "="), None);
        assert_eq!(call("1 = 1", "="), None);
        assert_eq!(call("=", "="), Some(""));
        for nothing in ["", " \n\n", "82"] {
            assert_eq!(call(nothing, "="), None);
        }
    }
}
