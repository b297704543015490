//! Displays the progress of a stage on stderr with the `tui` crate.

use std::io::{IsTerminal, Stderr};

use rlhf::Error;
use rlhf::event::{Event, Metrics, Recorder};
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

/// The metrics that are shown beside the progress, the most important first. A stage reports only some of
/// them.
const DISPLAYED_METRICS: [&str; 9] = [
    "objective/scores",
    "loss",
    "objective/kl",
    "accuracy",
    "response_length/mean",
    "lr",
    "grad_norm",
    "eval/loss",
    "eval/accuracy",
];

/// A recorder that displays the events of a stage.
pub(crate) struct Display {
    progress: Progress<Stderr>,
}

impl Display {
    /// A display for a single stage, whose steps are called `step`.
    pub(crate) fn new(step: &'static str) -> Self {
        let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
        let mut progress = Progress::new(std::io::stderr(), mode);
        progress.call_steps(step);
        Self { progress }
    }

    /// A display for a stage that is part `number` of the `parts` parts of a pipeline.
    pub(crate) fn part(step: &'static str, number: usize, parts: usize) -> Self {
        let mut display = Self::new(step);
        display.progress = display.progress.starting_at_stage(number, parts);
        display
    }

    fn steps(&mut self, step: u64, metrics: &Metrics, tokens: u64) -> std::io::Result<()> {
        let shown: Vec<(&str, f64)> =
            DISPLAYED_METRICS.iter().filter_map(|&name| Some((name, metrics.get(name)?))).collect();
        self.progress.count_tokens(tokens);
        self.progress.update(step, &shown)
    }

    fn evaluation(&mut self, metrics: &Metrics) -> std::io::Result<()> {
        let numbers: Vec<String> =
            metrics.0.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        self.progress.message(&numbers.join("  "))
    }

    fn show(&mut self, event: &Event<'_>) -> std::io::Result<()> {
        match event {
            Event::Started { stage, total_steps, step } => self.progress.start_at(stage, *total_steps, *step),
            Event::Step { step, metrics, tokens } => self.steps(*step, metrics, *tokens),
            Event::Evaluated { metrics, .. } => self.evaluation(metrics),
            Event::Checkpoint { path, .. } => self.progress.message(&format!("saved {}", path.display())),
            Event::Paused { step } => {
                self.progress.message(&format!("paused after {step}, until it is asked to go on"))
            }
            Event::Continued { .. } => self.progress.message("goes on"),
            Event::Message(text) => self.progress.message(text),
            Event::Sample { .. } => Ok(()),
            Event::Finished => self.progress.finish(),
        }
    }
}

impl Recorder for Display {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        // If stderr is closed, training continues: the run folder records the metrics as well.
        let _ = self.show(event);
        Ok(())
    }
}
