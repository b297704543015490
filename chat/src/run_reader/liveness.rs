//! Whether the newest run in a folder lives, what it does, and whether it can be asked for something.
//!
//! After a crash the last words of a run stay in the folder, and a run that is resumed there holds the lock
//! while it loads its models. What was said before the lock was taken is therefore of an earlier run, and
//! counts for nothing.

use std::path::Path;

use tui::dashboard::{RankState, Status};

use super::{RunReader, is_run_folder};
use crate::live::{self, RankFile, RequestFile, RequestKind};
use crate::{folder, output, own_file};

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

impl RunReader {
    /// Tells who holds the lock. `ranks` are the states of the ranks of the newest run, with their age.
    pub(super) fn holder(&self, ranks: &[(RankFile, f64)]) -> Holder {
        let Some(since) = folder::locked_since(&self.out) else { return Holder::Nobody };
        let is_gone = rank_zero(ranks).is_some_and(|(file, age)| is_gone(file, *age));
        if is_gone || self.last_word(ranks) < since { Holder::NextRun } else { Holder::NewestRun }
    }

    /// When the newest run last said something, in seconds since 1970.
    fn last_word(&self, ranks: &[(RankFile, f64)]) -> f64 {
        rank_zero(ranks).map_or(self.run.time, |(file, _)| file.time.max(self.run.time))
    }

    /// How the run is: the lock tells whether a process has the folder, the events and the ranks what it
    /// does.
    pub(super) fn status(&self, holder: Holder, ranks: &[(RankFile, f64)]) -> Status {
        let state = self.run.state.map(|(state, _)| state);
        let is_finished = self.out.join("final").exists();
        // A pipeline keeps the folders of its earlier stages locked.
        if holder == Holder::Nobody || state == Some(State::Finished) {
            return match state {
                _ if is_finished => Status::Finished,
                Some(State::Stopped) => Status::Stopped,
                None if !is_run_folder(&self.out) => Status::Waiting,
                _ => Status::Ended,
            };
        }

        let silence = live::unix_seconds() - self.last_word(ranks);
        match self.run.state {
            Some((State::Running | State::Paused, step)) if holder == Holder::NewestRun => match state {
                _ if silence > SILENCE => Status::Silent { seconds: silence as u64 },
                Some(State::Paused) => Status::Paused { step },
                _ => Status::Running,
            },
            // A run of an earlier version.
            None if self.out.join("metrics.jsonl").exists() && !is_finished => Status::Running,
            // A run that cannot write its events.
            _ if holder == Holder::NextRun && self.has_new_rows() => Status::Running,
            // The process still loads its models, or it saves them and ends.
            _ => Status::Waiting,
        }
    }

    /// Whether metrics were written since the lock was taken.
    fn has_new_rows(&self) -> bool {
        let rows = live::modified(&self.out.join("metrics.jsonl"));
        rows.zip(folder::locked_since(&self.out)).is_some_and(|(rows, since)| rows > since)
    }

    /// What a rank is shown to do.
    pub(super) fn rank_state(&self, holder: Holder, file: RankFile, age: f64) -> RankState {
        let has_said_its_end =
            matches!(self.run.state, Some((State::Finished | State::Stopped | State::Failed, _)));
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

    /// Asks the run for something. It answers in its events. Refuses a request that no run would take.
    pub(crate) fn ask(&self, request: RequestKind) -> anyhow::Result<()> {
        let out = self.out.display();
        let Some(run) = self.run.id.clone() else {
            anyhow::bail!("{out}: no run that takes requests");
        };
        if let Some(reason) = self.refusal() {
            anyhow::bail!("{out}: {reason}");
        }
        let folder = live::requests_path(&self.out);
        if !own_file::is_folder(&folder) {
            anyhow::bail!("{}: this is no folder, so the run takes no requests", folder.display());
        }

        let nanoseconds = (live::unix_seconds() * 1e9) as u64;
        let name = format!("{nanoseconds}-{}.json", std::process::id());
        let text = serde_json::to_vec(&RequestFile { run, request })?;
        Ok(output::write_new(&folder.join(name), &text)?)
    }

    /// Why the run cannot be asked for anything now, if it cannot.
    fn refusal(&self) -> Option<String> {
        // The last call of `poll` may be a while ago.
        let ranks = self.ranks();
        let host = rank_zero(&ranks).map(|(file, _)| &file.host);
        let holder = self.holder(&ranks);
        match (self.status(holder, &ranks), host) {
            (Status::Running, _) if holder == Holder::NextRun => {
                Some("this run cannot be watched and takes no requests; its messages say why".to_owned())
            }
            (Status::Silent { seconds }, Some(host)) if *host != live::host() => Some(format!(
                "the run has said nothing for {seconds} s, and only its machine {host} can tell whether it \
                 lives: ask there"
            )),
            // On this machine it has the lock. It takes the request when the machine lets it go on.
            (Status::Running | Status::Paused { .. } | Status::Silent { .. }, _) => None,
            (Status::Waiting, _) => Some("the run has not begun: ask again when it trains".to_owned()),
            (Status::Finished | Status::Stopped | Status::Ended, _) => {
                Some("nothing runs in this folder".to_owned())
            }
        }
    }
}

fn rank_zero(ranks: &[(RankFile, f64)]) -> Option<&(RankFile, f64)> {
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
