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

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gemini::ChunkManager;
use parallel::{ProcessGroups, memory, regular_file};
use rlhf::run::Phase;

pub(crate) use event_log::EventLog;
pub(crate) use format::{EventRow, RankFile, RequestFile, RequestKind, Tier};

use crate::console::print_stderr;
use crate::interrupt;
use crate::own_file::{self, is_folder};

/// The folder inside the run folder.
pub(crate) const LIVE: &str = "live";

/// The time between two looks for requests, and the least time between two states.
const TICK: Duration = Duration::from_millis(250);

/// The longest time between two states.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The file of events in the run folder `out`.
pub(crate) fn events_path(out: &Path) -> PathBuf {
    out.join(LIVE).join("events.jsonl")
}

/// The folder of requests in the run folder `out`.
pub(crate) fn requests_path(out: &Path) -> PathBuf {
    out.join(LIVE).join("requests")
}

/// The file of the state of a rank in the run folder `out`.
pub(crate) fn rank_path(out: &Path, rank: usize) -> PathBuf {
    out.join(LIVE).join(format!("rank-{rank}.json"))
}

/// When a file was last changed, in seconds since 1970. `None` if there is no such file.
pub(crate) fn modified(path: &Path) -> Option<f64> {
    let modified = fs::metadata(path).and_then(|found| found.modified()).ok()?;
    Some(modified.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()))
}

/// The seconds since 1970.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The live state of one rank. Dropping it ends its thread.
pub(crate) struct Live {
    shared: Arc<Shared>,
    thread: OnceLock<Option<JoinHandle<()>>>,
}

struct Shared {
    out: PathBuf,
    rank: usize,
    ranks: usize,
    /// Identifies the run, on every rank in the same way: requests name it.
    run: String,
    models: Arc<ChunkManager>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy)]
struct State {
    phase: Phase,
    step: u64,
    has_ended: bool,
    /// False if rank 0 could not prepare the folder.
    is_watched: bool,
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the state and takes requests until the run ends.
    fn run(&self) {
        let mut written: Option<(Phase, u64, Instant)> = None;
        let mut has_warned = false;
        loop {
            let State { phase, step, has_ended, .. } = *self.lock();
            let is_due = written.is_none_or(|(last, at, when)| {
                (last, at) != (phase, step) || when.elapsed() >= HEARTBEAT || has_ended
            });
            if is_due {
                let outcome = self.write_state(phase, step);
                written = Some((phase, step, Instant::now()));
                if let Err(error) = outcome
                    && !std::mem::replace(&mut has_warned, true)
                {
                    let path = rank_path(&self.out, self.rank);
                    print_stderr(&format!("warning: {}: {error}: this rank is not shown", path.display()));
                }
            }
            if has_ended {
                return;
            }
            if self.rank == 0 {
                self.take_requests();
            }
            let state = self.lock();
            // Whether it was woken does not matter: the loop looks at everything again.
            drop(self.changed.wait_timeout_while(state, TICK, |state| !state.has_ended));
        }
    }

    /// Replaces the state of this rank, unless this machine does not see the folder. A torn file after a
    /// crash does no harm, so nothing is synced.
    fn write_state(&self, phase: Phase, step: u64) -> std::io::Result<()> {
        if !is_folder(&self.out.join(LIVE)) {
            return Ok(());
        }
        let state = RankFile {
            run: self.run.clone(),
            rank: self.rank,
            process: std::process::id(),
            host: host(),
            phase: phase.as_str().to_owned(),
            step,
            time: unix_seconds(),
            resident_bytes: memory::rss_bytes(),
            peak_bytes: memory::peak_rss_bytes(),
            tiers: self.tiers(),
        };
        let text = serde_json::to_vec(&state)?;
        own_file::replace(&rank_path(&self.out, self.rank), |file| file.write_all(&text)).map(drop)
    }

    /// The memory of the models of this rank by tier. Without a budget there are no tiers.
    fn tiers(&self) -> Vec<Tier> {
        let Some(budget) = self.models.budget() else { return Vec::new() };
        let traffic = self.models.traffic();
        let tier = |name: &str, bytes, limit| Tier { name: name.to_owned(), bytes, limit };
        let mut tiers = vec![
            tier("models", self.models.resident_bytes() as u64, Some(budget.device_bytes as u64)),
            tier("models, at most", traffic.peak_bytes as u64, None),
        ];
        if traffic.host_peak_bytes > 0 {
            let limit = budget.buffer_bytes().map(|bytes| bytes as u64);
            tiers.push(tier("on the host, at most", traffic.host_peak_bytes as u64, limit));
        }
        if traffic.written_bytes > 0 {
            tiers.push(tier("written to the disk", traffic.written_bytes, None));
            tiers.push(tier("read from the disk", traffic.fetched_bytes, None));
        }
        tiers
    }

    /// Takes every request, in the order of the names of their files. What is no regular file is left alone.
    fn take_requests(&self) {
        let folder = requests_path(&self.out);
        // A link would lead to files of someone else.
        if !is_folder(&self.out.join(LIVE)) || !is_folder(&folder) {
            return;
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_request = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_request).collect();
        paths.sort();
        for path in paths {
            if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                continue;
            }
            let text = regular_file::read_to_string(&path, 4096).ok();
            // A request that stays would be taken again and again.
            if fs::remove_file(&path).is_err() {
                continue;
            }
            match text.and_then(|text| serde_json::from_str::<RequestFile>(&text).ok()) {
                Some(request) if request.run == self.run => take(request.request),
                Some(_) => print_stderr("warning: a request for an earlier run in this folder does nothing"),
                None => print_stderr(&format!("warning: {}: this is no request", path.display())),
            }
        }
    }
}

/// Sets the flag of a request. The ranks look at the flags after every step.
fn take(request: RequestKind) {
    match request {
        RequestKind::Pause => interrupt::request_pause(true),
        RequestKind::Continue => interrupt::request_pause(false),
        RequestKind::Checkpoint => interrupt::request_save(),
        RequestKind::Stop => interrupt::request_stop(),
    }
}

#[cfg(test)]
mod tests;
