//! The part of a stage that is the same for all stages: check for an interrupt, log, evaluate held-out rows,
//! save, and resume.
//!
//! A run writes to the folder `out/`. `checkpoints/step-N/` and `final/` are model folders that HF
//! `transformers` can load; a checkpoint also has `trainer_state/` beside the weights. The recorder writes
//! the metrics files, and creates `out/` when the run begins. The caller chooses the checkpoint that a
//! resumed run continues from. This module contains no training algorithm.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gemini::{ChunkManager, Engine, ZeroStage, checkpoint};
use parallel::ProcessGroups;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::event::{Event, Metrics, Recorder};

/// Intervals in steps. 0 means never.
#[derive(Clone, Copy, Debug)]
pub struct StepIntervals {
    /// Steps between checkpoints.
    pub save_steps: u64,
    /// Number of checkpoints to keep.
    pub save_total_limit: usize,
    /// Steps between logged metrics. The last step is always logged.
    pub logging_steps: u64,
    /// Steps between evaluations, of the held-out rows and on tasks.
    pub eval_steps: u64,
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// An optimizer step of a stage that learns from rows.
    Step,
    /// Replies are generated.
    Rollout,
    /// The models are run on the replies.
    Score,
    /// The policy and the critic learn from the rollout.
    Update,
    /// The model is evaluated on held-out rows or on tasks.
    Evaluation,
    /// A checkpoint or the finished model is written.
    Save,
    /// The rank waits until it may go on.
    Pause,
}

impl Phase {
    /// The name of the phase.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Rollout => "rollout",
            Self::Score => "score",
            Self::Update => "update",
            Self::Evaluation => "evaluation",
            Self::Save => "save",
            Self::Pause => "pause",
        }
    }
}

/// The time between two looks whether a paused run may go on.
const PAUSE_POLL: Duration = Duration::from_millis(100);

/// A function that writes files into a model folder.
pub type SaveFn<'a> = dyn Fn(&Path) -> Result<(), Error> + 'a;

/// What a model in training scores on benchmarks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskScores {
    /// The scores, named `eval/...`.
    pub metrics: Metrics,
    /// What the user must know of them: questions that were left without an answer.
    pub warnings: Vec<String>,
}

/// A function that asks the model in training the questions of benchmarks, after a number of steps. All ranks
/// call it, and what it returns is the same on all: the scores, or [`Error::Tasks`], which does not end the
/// run. Any other error ends it.
pub type TaskEvaluationFn<'a> = dyn Fn(u64) -> Result<TaskScores, Error> + 'a;

/// The context of one stage: run folder, process groups, intervals and recorder.
pub struct StageRun<'a> {
    /// The name of the stage.
    pub stage: &'static str,
    /// The run folder.
    pub out: &'a Path,
    /// The process groups of the job. All ranks run the same steps; rank 0 writes files and records events.
    pub groups: Arc<ProcessGroups>,
    /// The memory of the models and their optimizers.
    pub memory: Arc<ChunkManager>,
    /// The seed of the data order and of random draws.
    pub seed: u64,
    /// When to save, log and evaluate.
    pub intervals: StepIntervals,
    /// The checkpoint that the model was loaded from, when the run is resumed.
    pub resume: Option<PathBuf>,
    /// Set when the user interrupts the run. The run then saves a checkpoint after the current step and ends.
    pub interrupted: &'a AtomicBool,
    /// Set when a checkpoint after the current step is requested. Cleared when the request is handled.
    pub save_requested: &'a AtomicBool,
    /// Set while the run is to wait after the current step. All ranks wait if it is set on any of them.
    pub paused: &'a AtomicBool,
    /// Told on every rank what it does next, and how many steps are complete.
    pub progress: &'a (dyn Fn(Phase, u64) + 'a),
    /// Receives the events of the stage.
    pub recorder: &'a mut dyn Recorder,
    /// Writes the files of a model folder besides the model: the tokenizer and its chat template.
    pub save_tokenizer: &'a SaveFn<'a>,
    /// Asks the questions of benchmarks at each evaluation, if there are any.
    pub evaluate_tasks: Option<&'a TaskEvaluationFn<'a>>,
}

impl StageRun<'_> {
    /// Restores the engine if the run is resumed. Returns the saved state of the stage.
    pub(crate) fn restore<S: DeserializeOwned>(&self, engine: &mut Engine) -> Result<Option<S>, Error> {
        let Some(folder) = &self.resume else { return Ok(None) };
        let state = checkpoint::load_state(folder, engine)?;
        self.check_step(engine.step_count())?;
        Ok(Some(state))
    }

    /// Records the start of the stage, `step` steps of which are complete. Until then, a run that is refused
    /// has written nothing: the recorder creates the run folder. No rank writes before rank 0 has done so.
    pub(crate) fn begin(&mut self, total_steps: u64, step: u64) -> Result<(), Error> {
        let recorded = self.record(&Event::Started { stage: self.stage, total_steps, step });
        let problems = self.groups.world().all_gather_object(vec![recorded.is_err()])?;
        recorded?;
        if problems[0] { Err(Error::RankZeroFailed) } else { Ok(()) }
    }

    /// Refuses a checkpoint whose saved step differs from the step in its name.
    pub(crate) fn check_step(&self, step: u64) -> Result<(), Error> {
        let Some(path) = &self.resume else { return Ok(()) };
        let named = path.file_name().and_then(|name| checkpoint::parse_step(name.to_str()?));
        if named.is_none_or(|named| named == step) {
            return Ok(());
        }
        let problem = format!(
            "its saved state belongs to step {step}: remove this checkpoint, and --resume continues from the previous one"
        );
        Err(Error::RunFolder { path: path.clone(), problem })
    }

    /// Refuses to resume if the training rows differ from the rows at the time of the checkpoint.
    pub(crate) fn check_content(&mut self, saved: Option<&str>, content_hash: &str) -> Result<(), Error> {
        let Some(path) = self.resume.clone() else { return Ok(()) };
        match saved {
            Some(saved) if saved == content_hash => Ok(()),
            Some(_) => {
                let problem = "the training rows have changed since this checkpoint was saved: restore them, or start a new run \
                               with another `out`";
                Err(Error::RunFolder { path, problem: problem.to_owned() })
            }
            None => {
                let text = "this checkpoint has no hash of its training rows: whether they have changed is not checked";
                self.record(&Event::Message(text))
            }
        }
    }

    /// Refuses a run that is shorter than at the time of its checkpoint, and reports one that is longer.
    /// `saved` and `total` are the numbers of steps (for PPO: iterations) of the full run, then and now;
    /// `saved` is `None` in checkpoints of earlier versions. `step` is the number of completed steps.
    /// `next_lr` returns the learning rate of the next optimizer step in a run of the given number of steps.
    pub(crate) fn check_total_steps(
        &mut self,
        saved: Option<u64>,
        step: u64,
        total: u64,
        next_lr: impl Fn(u64) -> f64,
    ) -> Result<(), Error> {
        let Some(path) = self.resume.clone() else { return Ok(()) };
        let was = saved.unwrap_or(step);
        if total < was {
            let problem = format!(
                "it belongs to a run of {was} steps, and this configuration makes {total}: a run can become longer, not \
                 shorter; ask for {was} or more"
            );
            return Err(Error::RunFolder { path, problem });
        }

        if saved.is_none_or(|saved| saved == total) {
            return Ok(());
        }
        let [before, now] = [was, total].map(next_lr);
        self.record(&Event::Message(&format!(
            "this run is extended from {was} to {total} steps, and so is its learning-rate schedule: the next step \
             has the rate {now:.3e} instead of {before:.3e}"
        )))
    }

    /// Whether to log the metrics of `step`.
    pub(crate) fn should_log(&self, step: u64, total_steps: u64) -> bool {
        falls_on_interval(step, self.intervals.logging_steps) || step == total_steps
    }

    /// Whether to evaluate after `step`. An interrupted run skips the evaluation.
    pub(crate) fn should_evaluate(&self, step: u64, total_steps: u64) -> Result<bool, Error> {
        let is_due = falls_on_interval(step, self.intervals.eval_steps)
            || (step == total_steps && self.intervals.eval_steps > 0);
        Ok(is_due && !self.requested([self.interrupted])?[0])
    }

    /// Starts a step under the budget of memory, and tells the user if other processes have changed what is
    /// left of it. All ranks call this.
    pub(crate) fn begin_step(&mut self) -> Result<(), Error> {
        let memory = Arc::clone(&self.memory);
        let (Some(bytes), Some(budget)) = (memory.begin_step(&self.groups)?, memory.budget()) else {
            return Ok(());
        };
        self.record(&Event::Message(&format!(
            "other processes use the device: from here on {} of {} MiB are left for the models",
            bytes >> 20,
            budget.device_bytes >> 20
        )))
    }

    pub(crate) fn record_step(&mut self, step: u64, metrics: &Metrics, tokens: u64) -> Result<(), Error> {
        self.record(&Event::Step { step, metrics, tokens })
    }

    /// Whether to ask the tasks after `step`, once the model is saved. [`Self::finish`] asks them after the
    /// last step.
    pub(crate) fn should_ask_tasks(&self, step: u64, total_steps: u64) -> Result<bool, Error> {
        Ok(self.evaluate_tasks.is_some() && step < total_steps && self.should_evaluate(step, total_steps)?)
    }

    /// Asks the model the tasks after `step`, which is saved by then if it is to be. An interrupted run skips
    /// them. A failure costs the scores, not the run.
    pub(crate) fn ask_tasks(&mut self, step: u64) -> Result<(), Error> {
        let Some(evaluate) = self.evaluate_tasks else { return Ok(()) };
        if self.requested([self.interrupted])?[0] {
            return Ok(());
        }
        (self.progress)(Phase::Evaluation, step);
        let TaskScores { metrics, warnings } = match evaluate(step) {
            Ok(scores) => scores,
            Err(error @ Error::Tasks(_)) => {
                let text = if self.requested([self.interrupted])?[0] {
                    format!("the evaluation on tasks after step {step} is broken off")
                } else {
                    format!("warning: {error}; step {step} has no scores, and the run goes on")
                };
                return self.record(&Event::Message(&text));
            }
            Err(error) => return Err(error),
        };
        for warning in warnings {
            self.record(&Event::Message(&format!("warning: {warning}")))?;
        }
        if metrics.0.is_empty() { Ok(()) } else { self.record_evaluation(step, &metrics) }
    }

    pub(crate) fn record_evaluation(&mut self, step: u64, metrics: &Metrics) -> Result<(), Error> {
        self.record(&Event::Evaluated { step, metrics })
    }

    /// Sends an event to the recorder, on rank 0 only.
    pub(crate) fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        if self.groups.is_rank_zero() { self.recorder.record(event) } else { Ok(()) }
    }

    /// Returns for each flag whether it is set on any rank. All ranks call this.
    fn requested<const K: usize>(&self, flags: [&AtomicBool; K]) -> Result<[bool; K], Error> {
        let local = flags.map(|flag| f64::from(u8::from(flag.load(Ordering::Relaxed))));
        Ok(self.groups.world().all_reduce_max(local)?.map(|requested| requested == 1.0))
    }

    /// Saves a checkpoint after `step` of `total_steps` when one is due or requested, or when the run was
    /// interrupted. The last step has a checkpoint as well, from which the run can become longer. An
    /// interrupted run ends with [`Error::Interrupted`]. A paused run waits here, and still saves and stops.
    /// `save` writes the trained models and the trainer state.
    pub(crate) fn save_or_stop(
        &mut self,
        step: u64,
        total_steps: u64,
        save: &SaveFn<'_>,
    ) -> Result<(), Error> {
        let is_last = step == total_steps && self.intervals.save_steps > 0;
        let mut is_due = falls_on_interval(step, self.intervals.save_steps) || is_last;
        let mut saved: Option<PathBuf> = None;
        let mut has_waited = false;
        loop {
            let flags = [self.interrupted, self.save_requested, self.paused];
            let [interrupted, save_requested, paused] = self.requested(flags)?;
            if save_requested {
                self.save_requested.store(false, Ordering::Relaxed);
            }
            if is_due || interrupted || save_requested {
                saved = Some(self.checkpoint_of(step, saved, save)?);
                is_due = false;
            }
            if let Some(path) = saved.take_if(|_| interrupted) {
                return Err(Error::Interrupted { path });
            }
            // After the last step there is nothing to wait for.
            if !paused || step == total_steps {
                return if has_waited { self.record(&Event::Continued { step }) } else { Ok(()) };
            }
            if !has_waited {
                self.record(&Event::Paused { step })?;
                has_waited = true;
            }
            // In each round, because a checkpoint may have been saved in it.
            (self.progress)(Phase::Pause, step);
            thread::sleep(PAUSE_POLL);
        }
    }

    /// Returns the checkpoint of `step`, which is written unless it was `saved` before.
    fn checkpoint_of(
        &mut self,
        step: u64,
        saved: Option<PathBuf>,
        save: &SaveFn<'_>,
    ) -> Result<PathBuf, Error> {
        let Some(path) = saved else { return self.write_checkpoint(step, save) };
        self.record(&Event::Checkpoint { step, path: &path })?;
        Ok(path)
    }

    /// Writes `checkpoints/step-N` atomically, and removes the oldest checkpoints above the limit.
    fn write_checkpoint(&mut self, step: u64, save: &SaveFn<'_>) -> Result<PathBuf, Error> {
        let folder = self.out.join("checkpoints");
        let path = folder.join(format!("step-{step}"));
        (self.progress)(Phase::Save, step);
        self.write_model(&path, save)?;
        if self.groups.is_rank_zero() {
            checkpoint::prune(&folder, self.intervals.save_total_limit.max(1))?;
        }
        self.record(&Event::Checkpoint { step, path: &path })?;
        self.groups.world().barrier()?;
        Ok(path)
    }

    /// Writes a model folder atomically. Every rank that saves weights calls `save`, and with ZeRO every
    /// rank, because each has a shard; rank 0 writes the files.
    fn write_model(&self, path: &Path, save: &SaveFn<'_>) -> Result<(), Error> {
        if !self.groups.is_rank_zero() {
            let takes_part = self.groups.saves_weights() || self.memory.zero_stage() > ZeroStage::None;
            return if takes_part { save(path) } else { Ok(()) };
        }
        if !self.out.is_dir() {
            // A recreated run folder would contain a checkpoint that no run could continue from.
            let problem =
                "this run folder was removed while the run was under way; nothing is saved".to_owned();
            return Err(Error::RunFolder { path: self.out.to_owned(), problem });
        }
        checkpoint::write_folder(path, |folder| {
            save(folder)?;
            (self.save_tokenizer)(folder)?;
            // Last, because the manifest lists every other file.
            if folder.join(checkpoint::STATE_FOLDER).exists() {
                checkpoint::write_manifest(folder)?;
            }
            Ok(())
        })
    }

    /// Saves the model that `step` steps have trained under `final/`, and asks it the tasks.
    pub(crate) fn finish(&mut self, step: u64, save: &SaveFn<'_>) -> Result<(), Error> {
        (self.progress)(Phase::Save, step);
        self.write_model(&self.out.join("final"), save)?;
        // No rank may start a next stage that loads this model before it is written.
        self.groups.world().barrier()?;
        if self.intervals.eval_steps > 0 {
            self.ask_tasks(step)?;
        }
        self.record(&Event::Finished)
    }
}

fn falls_on_interval(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

#[cfg(test)]
mod tests;
