//! An environment that a program or a server of the user keeps: `kind = "command"` and `kind = "http"`.
//!
//! ```text
//!   request   {"id": 9, "end": [3], "reset": [{"episode": 4, "prompt": [...], "answer": "82"}],
//!              "turns": [{"episode": 4, "text": "= 37+45"}, {"episode": 2, "text": "..."}]}
//!   answer    {"id": 9, "steps": [...]}     one step for each turn (see `step.rs`)
//! ```
//! The lists of a request are to be taken in this order. An episode is begun in the request with its first
//! turn, and an end is told in a later request, so a turn of all episodes takes one exchange for each
//! `batch_size` of them. `end` may name an episode that the other side does not know, and no request begins an
//! episode twice. The first request has empty lists; its answer may name the `tools` for the chat template.
//!
//! Each episode belongs to one channel: to one program, which remembers it, or to one connection. After a
//! failure of a request nobody knows what became of its turns. They are not sent again, and their episodes
//! have failed. A program that was started anew knows no episode from before, so those have failed as well.

use std::collections::BTreeMap;

use datasets::Message;
use serde::Serialize;
use serde_json::{Map, Value};

use super::episode::{Environment, Step, Turn};
use super::error::EnvironmentError;
use super::step::{steps, tools};
use crate::batch::share;
use crate::client::Client;
use crate::entry::{CommandConfig, HttpConfig};
use crate::error::Wrong;
use crate::program::{Program, ProgramLog};

/// The longest answer to a request, in bytes.
const LONGEST_ANSWER: usize = 16 << 20;

/// Starts programs that keep an environment.
pub(super) fn command(config: &CommandConfig, log: &ProgramLog) -> Result<impl Environment + use<>, Wrong> {
    let programs = Program::start_all("environment", config, LONGEST_ANSWER, log)?;
    RemoteEnvironment::open(programs, config.batch_size, "command")
}

/// Connects to a server that keeps an environment.
pub(super) fn http(config: &HttpConfig) -> Result<impl Environment + use<>, Wrong> {
    let clients = vec![Client::new(config, LONGEST_ANSWER)?; config.concurrency];
    RemoteEnvironment::open(clients, config.batch_size, "url")
}

/// What carries requests to the other side.
trait Channel: Send {
    /// Sends the request that `body` makes, and returns the answer. `body` gets a number that is another one
    /// when the other side has lost what it knew of the episodes of this channel.
    fn ask<'a>(
        &mut self,
        body: impl FnOnce(u64) -> Request<'a>,
    ) -> Result<Map<String, Value>, EnvironmentError>;

    /// Asks at the start of a run.
    fn probe(&mut self, request: &Request<'_>) -> Result<Map<String, Value>, Wrong>;
}

impl Channel for Program {
    fn ask<'a>(
        &mut self,
        body: impl FnOnce(u64) -> Request<'a>,
    ) -> Result<Map<String, Value>, EnvironmentError> {
        Self::ask(self, body).map_err(|error| EnvironmentError::Failed { reason: error.to_string() })
    }

    fn probe(&mut self, request: &Request<'_>) -> Result<Map<String, Value>, Wrong> {
        Self::ask(self, |_| request).map_err(|error| error.wrong())
    }
}

impl Channel for Client {
    fn ask<'a>(
        &mut self,
        body: impl FnOnce(u64) -> Request<'a>,
    ) -> Result<Map<String, Value>, EnvironmentError> {
        Self::ask(self, &body(1)).map_err(|error| EnvironmentError::Failed { reason: error.to_string() })
    }

    fn probe(&mut self, request: &Request<'_>) -> Result<Map<String, Value>, Wrong> {
        Self::ask(self, request).map_err(|error| error.wrong())
    }
}

#[derive(Debug, Default, Serialize)]
struct Request<'a> {
    end: Vec<u64>,
    reset: Vec<Reset>,
    turns: Vec<AskedTurn<'a>>,
}

#[derive(Debug, Serialize)]
struct Reset {
    episode: u64,
    prompt: Vec<Message>,
    answer: Option<String>,
}

#[derive(Debug, Serialize)]
struct AskedTurn<'a> {
    episode: u64,
    text: &'a str,
}

/// An environment that the other side of some channels keeps.
#[derive(Debug)]
struct RemoteEnvironment<C> {
    lanes: Vec<Lane<C>>,
    tools: Option<Value>,
}

impl<C: Channel> RemoteEnvironment<C> {
    /// Asks each channel once. `key` is the setting to blame.
    fn open(mut channels: Vec<C>, batch_size: usize, key: &'static str) -> Result<Self, Wrong> {
        let each = vec![(); channels.len()];
        let answers = share(&mut channels, &each, |channel, ()| channel.probe(&Request::default()));
        let mut named = None;
        for answer in answers {
            let answer = answer?;
            if !answer.get("steps").is_some_and(Value::is_array) {
                let fix = "answer a request with empty lists with {\"id\": 1, \"steps\": []}";
                return Err(Wrong::new(key, "gives an answer without `steps`", fix));
            }
            let fix = "give a list of tools as the chat template expects it, or leave `tools` out";
            named = tools(&answer).map_err(|problem| Wrong::new(key, problem, fix))?;
        }
        let lane = |channel| Lane { channel, batch_size, episodes: Episodes::default() };
        Ok(Self { lanes: channels.into_iter().map(lane).collect(), tools: named })
    }

    fn lane(&self, episode: u64) -> usize {
        (episode % self.lanes.len() as u64) as usize
    }
}

impl<C: Channel> Environment for RemoteEnvironment<C> {
    fn reset(
        &mut self,
        episode: u64,
        prompt: &[Message],
        answer: Option<&str>,
    ) -> Result<(), EnvironmentError> {
        let lane = self.lane(episode);
        let episodes = &mut self.lanes[lane].episodes.open;
        if episodes.contains_key(&episode) {
            return Err(EnvironmentError::HasBegun { episode });
        }
        let reset = Reset { episode, prompt: prompt.to_vec(), answer: answer.map(str::to_owned) };
        episodes.insert(episode, Episode::Queued(reset));
        Ok(())
    }

    fn step(&mut self, turns: &[Turn<'_>]) -> Vec<Result<Step, EnvironmentError>> {
        let mut of_lanes: Vec<Vec<Turn<'_>>> = vec![Vec::new(); self.lanes.len()];
        for turn in turns {
            of_lanes[self.lane(turn.episode)].push(*turn);
        }
        // There are as many lists as lanes, so each lane gets its own.
        let steps = share(&mut self.lanes, &of_lanes, |lane, turns| lane.step(turns));
        let mut steps: Vec<_> = steps.into_iter().map(IntoIterator::into_iter).collect();
        let next = |turn: &Turn<'_>| steps[self.lane(turn.episode)].next().expect("each turn has a step");
        turns.iter().map(next).collect()
    }

    fn tools(&self) -> Option<Value> {
        self.tools.clone()
    }

    fn end(&mut self, episode: u64) {
        let lane = self.lane(episode);
        self.lanes[lane].end(episode);
    }
}

/// A channel and its episodes.
#[derive(Debug)]
struct Lane<C> {
    channel: C,
    batch_size: usize,
    episodes: Episodes,
}

impl<C: Channel> Lane<C> {
    fn step(&mut self, turns: &[Turn<'_>]) -> Vec<Result<Step, EnvironmentError>> {
        turns.chunks(self.batch_size).flat_map(|turns| self.exchange(turns)).collect()
    }

    /// Sends the turns of one request, as far as their episodes go on.
    fn exchange(&mut self, turns: &[Turn<'_>]) -> Vec<Result<Step, EnvironmentError>> {
        let Self { channel, episodes, .. } = self;
        let mut refused: Vec<Option<EnvironmentError>> = vec![None; turns.len()];
        let answer = channel.ask(|process| episodes.request(process, turns, &mut refused));

        let asked = refused.iter().filter(|refusal| refusal.is_none()).count();
        let mut answered = match answer {
            Ok(answer) => {
                episodes.ended.clear();
                steps(&answer, asked)
            }
            Err(error) => vec![Err(error); asked],
        }
        .into_iter();
        let result = |(turn, refusal): (&Turn<'_>, Option<EnvironmentError>)| {
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            let step = answered.next().expect("each turn that was sent has a step");
            step.inspect_err(|_| episodes.lose(turn.episode))
        };
        turns.iter().zip(refused).map(result).collect()
    }

    fn end(&mut self, episode: u64) {
        let Self { channel, episodes, .. } = self;
        let is_known = !matches!(episodes.open.remove(&episode), None | Some(Episode::Queued(_)));
        if is_known {
            episodes.ended.push(episode);
        }
        // After the last one, what the other side holds for the episodes is not kept until the next rollout.
        if episodes.open.is_empty()
            && !episodes.ended.is_empty()
            && channel.ask(|process| episodes.request(process, &[], &mut [])).is_ok()
        {
            episodes.ended.clear();
        }
    }
}

/// The episodes of a channel.
#[derive(Debug, Default)]
struct Episodes {
    /// What the number of the channel was at the last request.
    process: u64,
    open: BTreeMap<u64, Episode>,
    /// Episodes whose end is not told yet.
    ended: Vec<u64>,
}

#[derive(Debug)]
enum Episode {
    /// The other side is not told of it yet.
    Queued(Reset),
    /// The other side knows it.
    Begun,
    /// What the other side knows of it is unknown.
    Lost,
}

impl Episodes {
    /// The request with the ends that are not told yet and with `turns`. Turns that cannot be sent are left
    /// out, and `refused` says why.
    fn request<'a>(
        &mut self,
        process: u64,
        turns: &[Turn<'a>],
        refused: &mut [Option<EnvironmentError>],
    ) -> Request<'a> {
        if std::mem::replace(&mut self.process, process) != process {
            let begun = self.open.values_mut().filter(|episode| matches!(episode, Episode::Begun));
            begun.for_each(|episode| *episode = Episode::Lost);
        }
        let mut request = Request { end: self.ended.clone(), ..Request::default() };
        for (&Turn { episode, text }, refused) in turns.iter().zip(refused) {
            match self.open.get_mut(&episode) {
                None => *refused = Some(EnvironmentError::UnknownEpisode { episode }),
                Some(Episode::Lost) => *refused = Some(EnvironmentError::Lost { episode }),
                Some(known) => {
                    if let Episode::Queued(reset) = std::mem::replace(known, Episode::Begun) {
                        request.reset.push(reset);
                    }
                    request.turns.push(AskedTurn { episode, text });
                }
            }
        }
        request
    }

    fn lose(&mut self, episode: u64) {
        if let Some(known) = self.open.get_mut(&episode) {
            *known = Episode::Lost;
        }
    }
}

#[cfg(test)]
mod tests;
