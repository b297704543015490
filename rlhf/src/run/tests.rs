//! What a rank says that it does between two steps.

use std::cell::RefCell;

use super::*;

/// Ends the pause as soon as a checkpoint is saved.
struct EndsPause<'a>(&'a AtomicBool);

impl Recorder for EndsPause<'_> {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        if let Event::Checkpoint { .. } = event {
            self.0.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[test]
fn a_paused_run_says_so_again_after_a_checkpoint_and_the_last_save_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let [interrupted, save_requested, paused] = [false, false, true].map(AtomicBool::new);
    let phases = RefCell::new(Vec::new());
    // The checkpoint is asked for during the pause.
    let progress = |phase, step| {
        save_requested.store(phases.borrow().is_empty(), Ordering::Relaxed);
        phases.borrow_mut().push((phase, step));
    };
    let mut run = StageRun {
        stage: "test",
        out: folder.path(),
        groups: Arc::new(ProcessGroups::single()),
        memory: ChunkManager::unlimited(),
        seed: 5,
        intervals: StepIntervals { save_steps: 0, save_total_limit: 1, logging_steps: 1, eval_steps: 0 },
        resume: None,
        interrupted: &interrupted,
        save_requested: &save_requested,
        paused: &paused,
        progress: &progress,
        recorder: &mut EndsPause(&paused),
        save_tokenizer: &|_| Ok(()),
        evaluate_tasks: None,
    };
    run.save_or_stop(4, 9, &|_| Ok(())).unwrap();
    run.finish(9, &|_| Ok(())).unwrap();
    assert_eq!(*phases.borrow(), [(Phase::Pause, 4), (Phase::Save, 4), (Phase::Pause, 4), (Phase::Save, 9)]);
}
