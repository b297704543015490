//! What the dashboard knows of a run, and what of it the user looks at.

use std::collections::VecDeque;

use super::layout::Pane;
use super::series::Series;
use crate::theme::{Symbols, Theme};

/// The largest number of samples and of messages that are kept. Older ones are in the run folder.
const MOST_KEPT: usize = 1000;

/// The largest number of different metrics that are kept, so that a damaged file cannot fill the memory with
/// names.
const MOST_METRICS: usize = 200;

/// The metric that the dashboard computes itself: tokens per second.
pub const THROUGHPUT: &str = "tokens/second";

/// How a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Status {
    /// No run has begun in the folder yet.
    #[default]
    Waiting,
    /// A process trains.
    Running,
    /// A process waits after a step until it may go on.
    Paused {
        /// The step.
        step: u64,
    },
    /// A process holds the folder, and has said nothing for a while.
    Silent {
        /// How long, in seconds.
        seconds: u64,
    },
    /// The run is complete.
    Finished,
    /// The run was asked to stop, and saved a checkpoint.
    Stopped,
    /// No process holds the folder, and the run is not complete.
    Ended,
}

impl Status {
    /// The status in words.
    pub fn text(self) -> String {
        match self {
            Self::Waiting => "waiting for the run to begin".to_owned(),
            Self::Running => "running".to_owned(),
            Self::Paused { step } => format!("paused after {step}"),
            Self::Silent { seconds } => format!("no sign of life for {seconds} s"),
            Self::Finished => "finished".to_owned(),
            Self::Stopped => "stopped, saved".to_owned(),
            Self::Ended => "not running".to_owned(),
        }
    }

    /// Whether a process of the run can be asked for something.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Running | Self::Paused { .. } | Self::Silent { .. })
    }
}

/// The charts of a stage: each with a title, and the metrics that share it.
pub type Charts = &'static [(&'static str, &'static [&'static str])];

/// What is known of a run besides its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// The name of the run, usually its folder.
    pub name: String,
    /// The stage, such as `ppo`.
    pub stage: String,
    /// The charts of the stage, the most important first.
    pub charts: Charts,
    /// Whether the stage generates samples.
    pub has_samples: bool,
    /// What one step is called, such as `iteration`.
    pub unit: String,
    /// The number of steps of the whole run, if it is known.
    pub total_steps: Option<u64>,
    /// How the run is.
    pub status: Status,
    /// Whether the run takes requests: runs of earlier versions do not.
    pub takes_requests: bool,
    /// The settings that are numbers, by their dotted key, such as `ppo.kl_target`.
    pub settings: Vec<(String, f64)>,
}

/// One reply of the model under training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The step.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The reply.
    pub reply: String,
    /// The score of the reward model.
    pub score: f64,
}

/// What one process of the run last said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankState {
    /// The rank.
    pub rank: usize,
    /// What it does, such as `rollout`.
    pub phase: String,
    /// The number of complete steps.
    pub step: u64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Seconds since it said so.
    pub age_seconds: u64,
}

/// Memory of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Each model with the planned bytes of its weights, gradients and optimizer state.
    pub models: Vec<(String, [u64; 3])>,
    /// Each tier, such as the device, with the bytes in use and the limit, if there is one.
    pub tiers: Vec<(String, u64, Option<u64>)>,
}

/// What lies over the panes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Overlay {
    #[default]
    None,
    Help,
    ConfirmStop,
}

/// The state of the dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    pub(super) theme: Theme,
    pub(super) symbols: Symbols,
    pub(super) run: RunFacts,
    /// The metrics in the order in which they were first seen.
    pub(super) series: Vec<Series>,
    pub(super) samples: VecDeque<Sample>,
    pub(super) messages: VecDeque<String>,
    pub(super) ranks: Vec<RankState>,
    pub(super) memory: Memory,
    pub(super) newest_step: u64,
    pub(super) notice: String,
    pub(super) overlay: Overlay,
    pub(super) focus: Pane,
    /// The chart that is shown, or shown first.
    pub(super) chart: usize,
    /// How many samples before the newest one is shown.
    pub(super) sample_back: usize,
    /// The first line that the focused pane shows.
    pub(super) scroll: usize,
    /// An index of [`SMOOTHING`](super::series::SMOOTHING).
    pub(super) smoothing: usize,
    pub(super) is_log_scale: bool,
}

impl Dashboard {
    /// An empty dashboard.
    pub fn new(theme: Theme, symbols: Symbols) -> Self {
        Self {
            theme,
            symbols,
            run: RunFacts { unit: "step".to_owned(), ..RunFacts::default() },
            series: Vec::new(),
            samples: VecDeque::new(),
            messages: VecDeque::new(),
            ranks: Vec::new(),
            memory: Memory::default(),
            newest_step: 0,
            notice: String::new(),
            overlay: Overlay::None,
            focus: Pane::Charts,
            chart: 0,
            sample_back: 0,
            scroll: 0,
            smoothing: 0,
            is_log_scale: false,
        }
    }

    /// How the run is.
    pub fn run(&self) -> &RunFacts {
        &self.run
    }

    /// The newest step that a row belongs to.
    pub fn newest_step(&self) -> u64 {
        self.newest_step
    }

    /// The metrics so far.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The rest of the run in seconds, by the median time of the newest steps.
    pub fn remaining_seconds(&self) -> Option<f64> {
        let left = self.run.total_steps?.checked_sub(self.newest_step)?;
        let seconds = self.find("seconds")?.median_of_last(20)?;
        Some(left as f64 * seconds)
    }

    pub(super) fn find(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    pub(super) fn add_row(&mut self, step: u64, numbers: Vec<(String, f64)>) {
        self.newest_step = self.newest_step.max(step);
        let get = |name: &str| numbers.iter().find(|(other, _)| other == name).map(|&(_, value)| value);
        let throughput = match (get("tokens"), get("seconds")) {
            (Some(tokens), Some(seconds)) if seconds > 0.0 => Some((THROUGHPUT.to_owned(), tokens / seconds)),
            _ => None,
        };
        for (name, value) in numbers.into_iter().chain(throughput) {
            if let Some(series) = self.series.iter_mut().find(|series| series.name == name) {
                series.push(step, value);
            } else if self.series.len() < MOST_METRICS {
                self.series.push(Series::new(name, step, value));
            }
        }
    }

    pub(super) fn add_sample(&mut self, sample: Sample) {
        // Someone who reads an older sample goes on reading it.
        if self.sample_back > 0 {
            self.sample_back = (self.sample_back + 1).min(MOST_KEPT - 1);
        }
        keep(&mut self.samples, sample);
    }
}

/// Appends to a list, and drops the oldest item if it is full.
pub(super) fn keep<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == MOST_KEPT {
        list.pop_front();
    }
    list.push_back(item);
}
