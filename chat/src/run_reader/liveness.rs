//! Whether the newest run in a folder lives, and what it does.
//!
//! After a crash the last words of a run stay in the folder, and a run that is resumed there holds the lock
//! while it loads its models. What was said before the lock was taken is therefore of an earlier run, and
//! counts for nothing.

use std::path::Path;

use parallel::regular_file;
use tui::dashboard::{RankState, Status};

use crate::folder::{self, CONFIGURATION};
use crate::live::{self, RankFile};

/// The largest file besides the rows that is read.
const LARGEST_FILE: u64 = 16 << 20;

/// The time without a word after which a run counts as silent, in seconds: five times that between two
/// states.
const SILENCE: f64 = 10.0;

/// The time without a word after which the process of a rank is looked for, in seconds. It is not looked for
/// at once, because a process in another container on this machine is not seen.
const OVERDUE: f64 = 5.0;

/// What `live/events.jsonl` says of the newest run.
#[derive(Clone, Debug, Default)]
pub(super) struct NewestRun {
    pub(super) id: Option<String>,
    pub(super) stage: Option<String>,
    pub(super) total_steps: Option<u64>,
    pub(super) processes: usize,
    /// The last event that changes how the run is, with its step.
    pub(super) state: Option<(State, u64)>,
    /// The time of the last event, in seconds since 1970.
    pub(super) time: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Paused,
    Finished,
    Stopped,
    Failed,
}

/// Who holds the lock of the run folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Nobody,
    /// The process of the newest run.
    NewestRun,
    /// A process that has said nothing yet: its run has not begun.
    NextRun,
}

impl NewestRun {
    /// Tells who holds the lock of the run folder `out`. `ranks` are the states of the ranks of the newest run,
    /// with their age.
    pub(super) fn holder(&self, out: &Path, ranks: &[(RankFile, f64)]) -> Holder {
        let Some(since) = folder::locked_since(out) else { return Holder::Nobody };
        let is_gone = rank_zero(ranks).is_some_and(|(file, age)| is_gone(file, *age));
        if is_gone || self.last_word(ranks) < since { Holder::NextRun } else { Holder::NewestRun }
    }

    /// When the newest run last said something, in seconds since 1970.
    fn last_word(&self, ranks: &[(RankFile, f64)]) -> f64 {
        rank_zero(ranks).map_or(self.time, |(file, _)| file.time.max(self.time))
    }

    /// How the run is: the lock tells whether a process has the folder, the events and the ranks what it
    /// does.
    pub(super) fn status(&self, out: &Path, holder: Holder, ranks: &[(RankFile, f64)]) -> Status {
        let state = self.state.map(|(state, _)| state);
        let is_finished = out.join("final").exists();
        // A pipeline keeps the folders of its earlier stages locked.
        if holder == Holder::Nobody || state == Some(State::Finished) {
            return match state {
                _ if is_finished => Status::Finished,
                Some(State::Stopped) => Status::Stopped,
                None if !is_run_folder(out) => Status::Waiting,
                _ => Status::Ended,
            };
        }

        let silence = live::unix_seconds() - self.last_word(ranks);
        match self.state {
            Some((State::Running | State::Paused, step)) if holder == Holder::NewestRun => match state {
                _ if silence > SILENCE => Status::Silent { seconds: silence as u64 },
                Some(State::Paused) => Status::Paused { step },
                _ => Status::Running,
            },
            // A run of an earlier version.
            None if out.join("metrics.jsonl").exists() && !is_finished => Status::Running,
            // A run that cannot write its events.
            _ if holder == Holder::NextRun && has_new_rows(out) => Status::Running,
            // The process still loads its models, or it saves them and ends.
            _ => Status::Waiting,
        }
    }

    /// What a rank is shown to do.
    pub(super) fn rank_state(&self, holder: Holder, file: RankFile, age: f64) -> RankState {
        let has_said_its_end =
            matches!(self.state, Some((State::Finished | State::Stopped | State::Failed, _)));
        let is_lost = holder != Holder::NewestRun || is_gone(&file, age);
        let RankFile { rank, phase, step, resident_bytes, .. } = file;
        let phase = match is_lost {
            true if has_said_its_end => "ended".to_owned(),
            true => "lost".to_owned(),
            false => phase,
        };
        // A whole second of age is no news, and would redraw the screen.
        let age_seconds = if age > SILENCE { age as u64 } else { 0 };
        RankState { rank, phase, step, resident_bytes, age_seconds }
    }
}

/// Whether metrics were written since the lock was taken.
fn has_new_rows(out: &Path) -> bool {
    let rows = live::modified(&out.join("metrics.jsonl"));
    rows.zip(folder::locked_since(out)).is_some_and(|(rows, since)| rows > since)
}

pub(super) fn rank_zero(ranks: &[(RankFile, f64)]) -> Option<&(RankFile, f64)> {
    ranks.first().filter(|(file, _)| file.rank == 0)
}

/// Whether the process that wrote a state has ended, as far as this machine can tell.
fn is_gone(file: &RankFile, age: f64) -> bool {
    let processes = Path::new("/proc");
    age > OVERDUE
        && file.host == live::host()
        && processes.join("self").exists()
        && !processes.join(file.process.to_string()).exists()
}

/// Whether a run has written into `out`, or is about to.
pub(crate) fn is_run_folder(out: &Path) -> bool {
    let is_pipeline = out.join("seconds.json").exists()
        || read_small(&out.join(CONFIGURATION)).is_some_and(|text| text.contains("[pipeline]"));
    let has_rows = ["metrics.jsonl", "plan.json", live::LIVE].iter().any(|name| out.join(name).exists());
    has_rows && !is_pipeline
}

/// Reads a text file that is not too large.
pub(crate) fn read_small(path: &Path) -> Option<String> {
    regular_file::read_to_string(path, LARGEST_FILE).ok()
}
