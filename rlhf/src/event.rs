//! What a stage tells of itself while it runs.
//!
//! A stage emits [`Event`]s to a [`Recorder`] and knows no terminal, no file and no page.

use std::path::Path;

use crate::Error;

/// The named numbers of one optimiser step, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(pub Vec<(String, f64)>);

impl Metrics {
    /// Adds a number.
    pub fn push(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    /// The number called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(other, _)| other == name).map(|&(_, value)| value)
    }
}

/// Something that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A stage begins (`step` is not 0 when it is resumed).
    Started {
        /// The stage: `sft`, `rm`, `ppo`, `pretrain`.
        stage: &'a str,
        /// Optimiser steps (for PPO: iterations) of the whole stage.
        total_steps: u64,
        /// Steps that were made before.
        step: u64,
    },
    /// One step is done.
    Step {
        /// Its number, from 1.
        step: u64,
        /// Its numbers: `loss`, `lr`, `grad_norm`, `tokens`, `seconds`, and the stage's own.
        metrics: &'a Metrics,
        /// Tokens processed since the last logged step, including those of steps that were not logged.
        tokens: u64,
    },
    /// The held-out rows were looked at.
    Evaluated {
        /// The step before which it was.
        step: u64,
        /// The numbers, named `eval/...`.
        metrics: &'a Metrics,
    },
    /// A generated reply, for people to read.
    Sample {
        /// The step.
        step: u64,
        /// The prompt as text.
        prompt: &'a str,
        /// The reply as text.
        reply: &'a str,
        /// What the reward model gave.
        score: f64,
    },
    /// A checkpoint is whole.
    Checkpoint {
        /// The step.
        step: u64,
        /// Its folder.
        path: &'a Path,
    },
    /// Something that a person should know.
    Message(&'a str),
    /// The stage is over.
    Finished,
}

/// Somebody who listens.
pub trait Recorder {
    /// Takes note of one event.
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error>;
}

/// Nobody listens.
impl Recorder for () {
    fn record(&mut self, _: &Event<'_>) -> Result<(), Error> {
        Ok(())
    }
}
