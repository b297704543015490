//! The events that a stage emits while it runs.
//!
//! A stage sends [`Event`]s to a [`Recorder`]. The stage itself writes to no terminal, log file or web page.

use std::path::Path;

use crate::Error;

/// Named numbers of one step, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(pub Vec<(String, f64)>);

impl Metrics {
    /// Appends a number.
    pub fn push(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    /// Returns the number called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(other, _)| other == name).map(|&(_, value)| value)
    }
}

/// An event of a stage.
#[derive(Debug)]
pub enum Event<'a> {
    /// A stage starts. `step` is not 0 when it is resumed.
    Started {
        /// The stage: `base`, `sft`, `rm` or `ppo`.
        stage: &'a str,
        /// Number of optimizer steps (for PPO: iterations) of the full stage.
        total_steps: u64,
        /// Number of steps completed before this start.
        step: u64,
    },
    /// One step is complete.
    Step {
        /// The number of the step, from 1.
        step: u64,
        /// The metrics of the step: `loss`, `lr`, `grad_norm`, `tokens`, `seconds`, and those specific to the
        /// stage.
        metrics: &'a Metrics,
        /// Tokens processed since the last logged step, including those of steps that were not logged.
        tokens: u64,
    },
    /// The model was evaluated on held-out rows or on tasks.
    Evaluated {
        /// The step after which the evaluation ran.
        step: u64,
        /// The metrics, named `eval/...`.
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
        /// The score from the reward model.
        score: f64,
    },
    /// A checkpoint was written completely.
    Checkpoint {
        /// The step.
        step: u64,
        /// The checkpoint folder.
        path: &'a Path,
    },
    /// The stage waits until it may go on.
    Paused {
        /// The number of complete steps.
        step: u64,
    },
    /// The stage goes on after it has waited.
    Continued {
        /// The number of complete steps.
        step: u64,
    },
    /// A message for the user.
    Message(&'a str),
    /// The stage is complete.
    Finished,
}

/// A subscriber to the events of a stage.
pub trait Recorder {
    /// Records one event.
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error>;
}

impl<R: Recorder + ?Sized> Recorder for &mut R {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        (**self).record(event)
    }
}

/// Discards all events.
impl Recorder for () {
    fn record(&mut self, _: &Event<'_>) -> Result<(), Error> {
        Ok(())
    }
}
