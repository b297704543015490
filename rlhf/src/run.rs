//! What every stage does around its steps: listen for an interrupt, log, look at held-out rows, save, and resume.
//!
//! A run lives in `out/`: `checkpoints/step-N/` and `final/` are model folders that HF `transformers` loads,
//! a checkpoint with `trainer_state/` beside the weights. The recorder writes the files of metrics; whoever
//! starts the run has made `out/` and chosen the checkpoint that a resumed run goes on from. Knows no
//! algorithm.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gemini::{Engine, checkpoint};
use parallel::ProcessGroups;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::event::{Event, Metrics, Recorder};

/// How often things happen, in steps; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct StepIntervals {
    /// A checkpoint.
    pub save_steps: u64,
    /// Checkpoints that are kept.
    pub save_total_limit: usize,
    /// A row of metrics (the last step always has one).
    pub logging_steps: u64,
    /// A look at the held-out rows.
    pub eval_steps: u64,
}

/// Writes something into a model folder.
pub type SaveFn<'a> = dyn Fn(&Path) -> Result<(), Error> + 'a;

/// The surroundings of one stage.
pub struct StageRun<'a> {
    /// The name of the stage.
    pub stage: &'static str,
    /// The run folder.
    pub out: &'a Path,
    /// The processes of the job. All of them go through the same steps; the first one writes and tells.
    pub groups: Arc<ProcessGroups>,
    /// Decides data order and draws.
    pub seed: u64,
    /// How often things happen.
    pub intervals: StepIntervals,
    /// The checkpoint from which the model was loaded, when the run is resumed.
    pub resume: Option<PathBuf>,
    /// Set when a person asks the run to end: it ends after the step, with a checkpoint.
    pub interrupted: &'a AtomicBool,
    /// Who listens.
    pub recorder: &'a mut dyn Recorder,
    /// Writes what a model folder holds beside the model: the tokenizer and its template.
    pub save_tokenizer: &'a SaveFn<'a>,
}

impl StageRun<'_> {
    /// Announces the stage and, when it is resumed, restores the engine; returns the stage's own state.
    pub(crate) fn start<S: DeserializeOwned>(
        &mut self,
        engine: &mut Engine,
        total_steps: u64,
    ) -> Result<Option<S>, Error> {
        let state = match &self.resume {
            Some(folder) => Some(checkpoint::load_state(folder, engine)?),
            None => None,
        };
        let step = engine.step_count();
        self.check_step(step, total_steps)?;
        self.record(&Event::Started { stage: self.stage, total_steps, step })?;
        Ok(state)
    }

    /// Refuses a checkpoint whose state is not that of its name, or beyond the end of the run.
    pub(crate) fn check_step(&self, step: u64, total_steps: u64) -> Result<(), Error> {
        let Some(path) = &self.resume else { return Ok(()) };
        let named = path.file_name().and_then(|name| checkpoint::parse_step(name.to_str()?));
        let problem = match named {
            Some(named) if named != step => format!("its state is that after step {step}"),
            _ if step > total_steps => {
                format!("it was saved after step {step}, and this run has {total_steps}")
            }
            _ => return Ok(()),
        };
        let problem = format!("{problem}: remove this checkpoint, and --resume goes on from the one before");
        Err(Error::RunFolder { path: path.clone(), problem })
    }

    /// Whether metrics of `step` are wanted.
    pub(crate) fn should_log(&self, step: u64, total_steps: u64) -> bool {
        falls_on_interval(step, self.intervals.logging_steps) || step == total_steps
    }

    /// Whether to evaluate after `step`. A run that was asked to stop skips the evaluation.
    pub(crate) fn should_evaluate(&self, step: u64, total_steps: u64) -> Result<bool, Error> {
        let is_due = falls_on_interval(step, self.intervals.eval_steps)
            || (step == total_steps && self.intervals.eval_steps > 0);
        Ok(is_due && !self.is_interrupted()?)
    }

    pub(crate) fn record_step(&mut self, step: u64, metrics: &Metrics, tokens: u64) -> Result<(), Error> {
        self.record(&Event::Step { step, metrics, tokens })
    }

    pub(crate) fn record_evaluation(&mut self, step: u64, metrics: &Metrics) -> Result<(), Error> {
        self.record(&Event::Evaluated { step, metrics })
    }

    /// Tells who listens, from the first process.
    pub(crate) fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        if self.groups.is_rank_zero() { self.recorder.record(event) } else { Ok(()) }
    }

    /// Whether a person asked any of the processes to end the run.
    fn is_interrupted(&self) -> Result<bool, Error> {
        let asked = self.interrupted.load(Ordering::Relaxed);
        Ok(self.groups.world().all_reduce_max([f64::from(u8::from(asked))])? == [1.0])
    }

    /// Saves a checkpoint after `step` when one is due, or when the run is asked to end; then ends it. `save`
    /// writes the models that are trained and the state of the trainer.
    pub(crate) fn save_or_stop(&mut self, step: u64, save: &SaveFn<'_>) -> Result<(), Error> {
        let interrupted = self.is_interrupted()?;
        if !falls_on_interval(step, self.intervals.save_steps) && !interrupted {
            return Ok(());
        }
        let path = self.write_checkpoint(step, save)?;
        if interrupted { Err(Error::Interrupted { path }) } else { Ok(()) }
    }

    /// Writes `checkpoints/step-N` whole, and removes those that are too many.
    fn write_checkpoint(&mut self, step: u64, save: &SaveFn<'_>) -> Result<PathBuf, Error> {
        let folder = self.out.join("checkpoints");
        let path = folder.join(format!("step-{step}"));
        self.write_model(&path, save)?;
        if self.groups.is_rank_zero() {
            checkpoint::prune(&folder, self.intervals.save_total_limit.max(1))?;
        }
        self.record(&Event::Checkpoint { step, path: &path })?;
        self.groups.world().barrier()?;
        Ok(path)
    }

    /// Writes a model folder whole: every process that holds a part hands it in, and the first one writes.
    fn write_model(&self, path: &Path, save: &SaveFn<'_>) -> Result<(), Error> {
        if !self.groups.is_rank_zero() {
            return if self.groups.saves_weights() { save(path) } else { Ok(()) };
        }
        if !self.out.is_dir() {
            // Made anew, it would hold a checkpoint that no run could go on from.
            let problem =
                "this run folder was removed while the run was under way; nothing is saved".to_owned();
            return Err(Error::RunFolder { path: self.out.to_owned(), problem });
        }
        checkpoint::write_folder(path, |folder| {
            save(folder)?;
            (self.save_tokenizer)(folder)?;
            // Last, for it names every other file.
            if folder.join(checkpoint::STATE_FOLDER).exists() {
                checkpoint::write_manifest(folder)?;
            }
            Ok(())
        })
    }

    /// Saves the finished model under `final/`.
    pub(crate) fn finish(&mut self, save: &SaveFn<'_>) -> Result<(), Error> {
        self.write_model(&self.out.join("final"), save)?;
        // Nobody goes on to a stage that begins with this model before it is there.
        self.groups.world().barrier()?;
        self.record(&Event::Finished)
    }
}

fn falls_on_interval(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}
