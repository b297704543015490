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
use parallel::Groups;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::event::{Event, Metrics, Recorder};

/// How often things happen, in steps; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct Cadence {
    /// A checkpoint.
    pub checkpoint: u64,
    /// Checkpoints that are kept.
    pub keep: usize,
    /// A row of metrics (the last step always has one).
    pub log: u64,
    /// A look at the held-out rows.
    pub eval: u64,
}

/// Writes something into a model folder.
pub type Save<'a> = dyn Fn(&Path) -> Result<(), Error> + 'a;

/// The surroundings of one stage.
pub struct Run<'a> {
    /// The name of the stage.
    pub stage: &'static str,
    /// The run folder.
    pub out: &'a Path,
    /// The processes of the job. All of them go through the same steps; the first one writes and tells.
    pub groups: Arc<Groups>,
    /// Decides data order and draws.
    pub seed: u64,
    /// How often things happen.
    pub cadence: Cadence,
    /// The checkpoint from which the model was loaded, when the run is resumed.
    pub resume: Option<PathBuf>,
    /// Set when a person asks the run to end: it ends after the step, with a checkpoint.
    pub interrupted: &'a AtomicBool,
    /// Who listens.
    pub recorder: &'a mut dyn Recorder,
    /// Writes what a model folder holds beside the model: the tokenizer and its template.
    pub companions: &'a Save<'a>,
}

impl Run<'_> {
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
        let named = path.file_name().and_then(|name| checkpoint::step_of(name.to_str()?));
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
    pub(crate) fn logs(&self, step: u64, total_steps: u64) -> bool {
        due(step, self.cadence.log) || step == total_steps
    }

    /// Whether to evaluate after `step`. A run that was asked to stop skips the evaluation.
    pub(crate) fn evaluates(&self, step: u64, total_steps: u64) -> Result<bool, Error> {
        let is_due = due(step, self.cadence.eval) || (step == total_steps && self.cadence.eval > 0);
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
        if self.groups.is_first() { self.recorder.record(event) } else { Ok(()) }
    }

    /// Whether a person asked any of the processes to end the run.
    fn is_interrupted(&self) -> Result<bool, Error> {
        let asked = self.interrupted.load(Ordering::Relaxed);
        Ok(self.groups.world().max([f64::from(u8::from(asked))])? == [1.0])
    }

    /// Saves a checkpoint after `step` when one is due, or when the run is asked to end; then ends it. `save`
    /// writes the models that are trained and the state of the trainer.
    pub(crate) fn after_step(&mut self, step: u64, save: &Save<'_>) -> Result<(), Error> {
        let interrupted = self.is_interrupted()?;
        if !due(step, self.cadence.checkpoint) && !interrupted {
            return Ok(());
        }
        let path = self.write_checkpoint(step, save)?;
        if interrupted { Err(Error::Interrupted { path }) } else { Ok(()) }
    }

    /// Writes `checkpoints/step-N` whole, and removes those that are too many.
    fn write_checkpoint(&mut self, step: u64, save: &Save<'_>) -> Result<PathBuf, Error> {
        let folder = self.out.join("checkpoints");
        let path = folder.join(format!("step-{step}"));
        self.write_model(&path, save)?;
        if self.groups.is_first() {
            checkpoint::prune(&folder, self.cadence.keep.max(1))?;
        }
        self.record(&Event::Checkpoint { step, path: &path })?;
        self.groups.world().barrier()?;
        Ok(path)
    }

    /// Writes a model folder whole: every process that holds a part hands it in, and the first one writes.
    fn write_model(&self, path: &Path, save: &Save<'_>) -> Result<(), Error> {
        if !self.groups.is_first() {
            return if self.groups.is_saved() { save(path) } else { Ok(()) };
        }
        if !self.out.is_dir() {
            // Made anew, it would hold a checkpoint that no run could go on from.
            let problem =
                "this run folder was removed while the run was under way; nothing is saved".to_owned();
            return Err(Error::RunFolder { path: self.out.to_owned(), problem });
        }
        checkpoint::write_folder(path, |folder| {
            save(folder)?;
            (self.companions)(folder)?;
            // Last, for it names every other file.
            if folder.join(checkpoint::STATE_FOLDER).exists() {
                checkpoint::write_manifest(folder)?;
            }
            Ok(())
        })
    }

    /// Saves the finished model under `final/`.
    pub(crate) fn finish(&mut self, save: &Save<'_>) -> Result<(), Error> {
        self.write_model(&self.out.join("final"), save)?;
        // Nobody goes on to a stage that begins with this model before it is there.
        self.groups.world().barrier()?;
        self.record(&Event::Finished)
    }
}

fn due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}
