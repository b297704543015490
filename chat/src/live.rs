//! What a training run says of itself in its run folder while it trains, and the requests that it takes from there.
//!
//! ```text
//! out/live/events.jsonl      rank 0 appends: the start, checkpoints, pauses, messages, the end
//!     live/rank-N.json       what rank N does now; replaced when it changes, and every two seconds
//!     live/requests/         one file a request; rank 0 removes each when it takes it
//! ```
//! One thread in each rank writes the state and, in rank 0, looks for requests four times a second. The training thread
//! only stores what it does, so watching costs a step nothing. Rank 0 turns a request into a flag, and all ranks agree
//! on the flags after every step, as they do on signals. A request names the run it is meant for: one that was meant for
//! an earlier run in the folder is removed and does nothing. Ranks of other machines are seen if they share the folder.

mod format;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gemini::ChunkManager;
use parallel::{ProcessGroups, memory};
use rlhf::Error;
use rlhf::event::{Event, Recorder};
use rlhf::run::Phase;

pub(crate) use format::{EventRow, RankFile, RequestFile, RequestKind, Tier};

use crate::console::print_stderr;
use crate::interrupt;

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

/// The seconds since 1970.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
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
    /// Identifies the run of this process: requests name it.
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
}

impl Live {
    /// The state of this rank, for a run in `out`. Nothing is written before the run begins.
    pub(crate) fn new(out: &Path, groups: &ProcessGroups, models: &Arc<ChunkManager>) -> Self {
        let shared = Shared {
            out: out.to_owned(),
            rank: groups.world().rank(),
            ranks: groups.world().size(),
            run: format!("{}-{}", std::process::id(), (unix_seconds() * 1000.0) as u64),
            models: Arc::clone(models),
            state: Mutex::new(State { phase: Phase::Step, step: 0, has_ended: false }),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared), thread: OnceLock::new() }
    }

    /// Notes what this rank does next. The first call starts the thread; by then rank 0 has prepared the folder.
    pub(crate) fn progress(&self, phase: Phase, step: u64) {
        {
            let mut state = self.shared.lock();
            (state.phase, state.step) = (phase, step);
        }
        self.thread.get_or_init(|| {
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
        EventLog { shared: Arc::clone(&self.shared), file: None }
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
            let State { phase, step, has_ended } = *self.lock();
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

    /// Replaces the state of this rank, unless this machine does not see the folder. A torn file after a crash does no
    /// harm, so nothing is synced.
    fn write_state(&self, phase: Phase, step: u64) -> std::io::Result<()> {
        let path = rank_path(&self.out, self.rank);
        if !self.out.join(LIVE).is_dir() {
            return Ok(());
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let state = RankFile {
            run: self.run.clone(),
            rank: self.rank,
            process: std::process::id(),
            host: host.trim().to_owned(),
            phase: phase.as_str().to_owned(),
            step,
            time: unix_seconds(),
            resident_bytes: memory::rss_bytes(),
            peak_bytes: memory::peak_rss_bytes(),
            tiers: self.tiers(),
        };
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, serde_json::to_vec(&state)?)?;
        fs::rename(&temporary, &path)
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
            let limit = budget.host_bytes.map(|bytes| bytes as u64);
            tiers.push(tier("on the host, at most", traffic.host_peak_bytes as u64, limit));
        }
        if traffic.written_bytes > 0 {
            tiers.push(tier("written to the disk", traffic.written_bytes, None));
            tiers.push(tier("read from the disk", traffic.fetched_bytes, None));
        }
        tiers
    }

    /// Takes every request, in the order of the names of their files.
    fn take_requests(&self) {
        let entries = fs::read_dir(requests_path(&self.out)).into_iter().flatten().flatten();
        let is_request = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_request).collect();
        paths.sort();
        for path in paths {
            // A pipe would block this thread, and a large file fill the memory.
            let is_small =
                fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= 4096);
            let text = if is_small { fs::read_to_string(&path).ok() } else { None };
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

/// Appends the events of a run to `live/events.jsonl`.
pub(crate) struct EventLog {
    shared: Arc<Shared>,
    file: Option<File>,
}

impl EventLog {
    /// Prepares the folder for this run: nothing that an earlier run left there stands for this one. A resumed run keeps
    /// the events of the run before it.
    fn start(&mut self, stage: &str, total_steps: u64, step: u64) -> Result<(), Error> {
        let out = &self.shared.out;
        let folder = out.join(LIVE);
        let failed = |source| Error::Io { path: folder.clone(), source };
        fs::create_dir_all(requests_path(out)).map_err(failed)?;
        for left in [&folder, &requests_path(out)] {
            for entry in fs::read_dir(left).map_err(failed)?.flatten() {
                if entry.path().extension().is_some_and(|extension| extension == "json" || extension == "tmp")
                {
                    fs::remove_file(entry.path()).map_err(failed)?;
                }
            }
        }
        let path = events_path(out);
        let is_fresh = step == 0;
        let opened =
            OpenOptions::new().create(true).append(!is_fresh).write(true).truncate(is_fresh).open(&path);
        let mut file = opened.map_err(failed)?;
        // A row that a crash cut in two must not swallow the next one.
        let old = fs::read(&path).map_err(failed)?;
        if old.last().is_some_and(|&last| last != b'\n') {
            file.write_all(b"\n").map_err(failed)?;
        }
        self.file = Some(file);
        let mut row = EventRow::new("started", Some(step));
        row.run = Some(self.shared.run.clone());
        row.stage = Some(stage.to_owned());
        row.total_steps = Some(total_steps);
        row.processes = Some(self.shared.ranks);
        self.append(&row)
    }

    fn append(&mut self, row: &EventRow) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_string(row)
            .map_err(std::io::Error::from)
            .map_err(|source| self.shared.failed(source))?;
        line.push('\n');
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|source| self.shared.failed(source))
    }

    /// Appends how the run has ended.
    pub(crate) fn end(&mut self, outcome: &Result<(), Error>) -> Result<(), Error> {
        let step = self.shared.lock().step;
        let row = match outcome {
            Ok(()) => EventRow::new("finished", None),
            Err(Error::Interrupted { path }) => {
                EventRow::new("stopped", Some(step)).text(&path.display().to_string())
            }
            Err(error) => EventRow::new("failed", Some(step)).text(&error.to_string()),
        };
        self.append(&row)
    }
}

impl Shared {
    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { path: events_path(&self.out), source }
    }
}

impl Recorder for EventLog {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        let row = match event {
            Event::Started { stage, total_steps, step } => return self.start(stage, *total_steps, *step),
            Event::Checkpoint { step, path } => {
                EventRow::new("checkpoint", Some(*step)).text(&path.display().to_string())
            }
            Event::Paused { step } => EventRow::new("paused", Some(*step)),
            Event::Continued { step } => EventRow::new("continued", Some(*step)),
            Event::Message(text) => EventRow::new("message", None).text(text),
            Event::Step { .. } | Event::Evaluated { .. } | Event::Sample { .. } | Event::Finished => {
                return Ok(());
            }
        };
        // A full disk must not end the training for a line that only observers read.
        if let Err(error) = self.append(&row) {
            print_stderr(&format!("warning: {error}: observers are told no more of this run"));
            self.file = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(out: &Path) -> Live {
        Live::new(out, &ProcessGroups::single(), &ChunkManager::unlimited())
    }

    fn events(out: &Path) -> Vec<String> {
        let text = fs::read_to_string(events_path(out)).unwrap();
        text.lines().map(|line| serde_json::from_str::<EventRow>(line).unwrap().event).collect()
    }

    #[test]
    fn a_resumed_run_appends_to_the_events_and_a_fresh_one_begins_them_anew() {
        let folder = tempfile::tempdir().unwrap();
        let run = |step| {
            let live = live(folder.path());
            let mut log = live.recorder();
            log.record(&Event::Started { stage: "sft", total_steps: 9, step }).unwrap();
            log.record(&Event::Paused { step: step + 1 }).unwrap();
            log.end(&Ok(())).unwrap();
        };
        run(0);
        OpenOptions::new()
            .append(true)
            .open(events_path(folder.path()))
            .unwrap()
            .write_all(b"{\"cut")
            .unwrap();
        run(3);
        let text = fs::read_to_string(events_path(folder.path())).unwrap();
        assert_eq!(text.lines().count(), 7);
        assert_eq!(text.lines().nth(3), Some("{\"cut"));
        run(0);
        assert_eq!(events(folder.path()), ["started", "paused", "finished"]);
    }

    #[test]
    fn what_an_earlier_run_left_is_removed_when_a_run_begins() {
        let folder = tempfile::tempdir().unwrap();
        let requests = requests_path(folder.path());
        fs::create_dir_all(&requests).unwrap();
        let left = [requests.join("1.json"), rank_path(folder.path(), 7)];
        for path in &left {
            fs::write(path, "{}").unwrap();
        }
        let live = live(folder.path());
        live.recorder().record(&Event::Started { stage: "sft", total_steps: 9, step: 0 }).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
    }

    #[test]
    fn the_state_says_what_the_rank_does_and_stays_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let live = live(folder.path());
        live.recorder().record(&Event::Started { stage: "ppo", total_steps: 9, step: 0 }).unwrap();
        live.progress(Phase::Rollout, 4);
        live.progress(Phase::Update, 5);
        drop(live);
        let text = fs::read_to_string(rank_path(folder.path(), 0)).unwrap();
        let state: RankFile = serde_json::from_str(&text).unwrap();
        assert_eq!((state.phase.as_str(), state.step, state.process), ("update", 5, std::process::id()));
        assert!(state.resident_bytes > 0);
    }

    #[test]
    fn a_folder_that_this_machine_does_not_see_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("elsewhere");
        let live = live(&out);
        live.progress(Phase::Step, 1);
        drop(live);
        assert!(!out.exists());
    }
}
