//! What a training run says of itself in its run folder while it trains, and the requests that it takes from
//! there.
//!
//! ```text
//! out/live/events.jsonl      rank 0 appends: the start, checkpoints, pauses, messages, the end
//!     live/rank-N.json       what rank N does now; replaced when it changes, and every two seconds
//!     live/requests/         one file a request; rank 0 removes each when it takes it
//! ```
//! One thread in each rank writes the state and, in rank 0, looks for requests four times a second. The
//! training thread only stores what it does, so watching costs a step nothing. Rank 0 turns a request into a
//! flag, and all ranks agree on the flags after every step, as they do on signals. A request names the run it
//! is meant for: one that was meant for an earlier run in the folder is removed and does nothing. Ranks of
//! other machines are seen if they share the folder. Nothing here ends a training run: what cannot be written
//! is named in a warning ([`event_log`], [`files`], [`crate::own_file`]).

mod event_log;
mod files;
mod format;
mod shared;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, JoinHandle};

use gemini::ChunkManager;
use parallel::ProcessGroups;
use rlhf::run::Phase;

pub(crate) use event_log::EventLog;
pub(crate) use format::{
    EventRow, LIVE, RankFile, RequestFile, RequestKind, events_path, host, modified, rank_path,
    requests_path, unix_seconds,
};
use shared::{Shared, State};

use crate::console::print_stderr;

/// The live state of one rank. Dropping it ends its thread.
pub(crate) struct Live {
    shared: Arc<Shared>,
    thread: OnceLock<Option<JoinHandle<()>>>,
}

impl Live {
    /// The state of this rank, for a run in `out`. Nothing is written before the run begins. All ranks call
    /// this, and take the name of the run from rank 0.
    pub(crate) fn new(
        out: &Path,
        groups: &ProcessGroups,
        models: &Arc<ChunkManager>,
    ) -> Result<Self, parallel::Error> {
        let own = format!("{}-{}", std::process::id(), (unix_seconds() * 1000.0) as u64);
        let shared = Shared {
            out: out.to_owned(),
            rank: groups.world().rank(),
            ranks: groups.world().size(),
            run: groups.world().all_gather_object(vec![own])?.swap_remove(0),
            models: Arc::clone(models),
            state: Mutex::new(State { phase: Phase::Step, step: 0, has_ended: false, is_watched: true }),
            changed: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared), thread: OnceLock::new() })
    }

    /// Notes what this rank does next. The first call starts the thread; by then rank 0 has prepared the
    /// folder.
    pub(crate) fn progress(&self, phase: Phase, step: u64) {
        let is_watched = {
            let mut state = self.shared.lock();
            (state.phase, state.step) = (phase, step);
            state.is_watched
        };
        self.thread.get_or_init(|| {
            if !is_watched {
                return None;
            }
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("live".to_owned()).spawn(move || shared.run());
            if let Err(error) = &thread {
                print_stderr(&format!("warning: this run cannot be watched: no thread starts ({error})"));
            }
            thread.ok()
        });
    }

    /// A recorder that appends the events of the run. Only rank 0 records.
    pub(crate) fn recorder(&self) -> EventLog {
        EventLog::new(&self.shared)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_all();
        if let Some(Some(thread)) = self.thread.take() {
            // A panic of the thread was shown when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
