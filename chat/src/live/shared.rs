//! What the training thread of a rank tells the thread that writes the state of the rank, and that thread.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gemini::ChunkManager;
use parallel::{memory, regular_file};
use rlhf::run::Phase;

use super::format::{
    LIVE, RankFile, RequestFile, RequestKind, Tier, host, rank_path, requests_path, unix_seconds,
};
use crate::console::print_stderr;
use crate::interrupt;
use crate::own_file::{self, is_folder};

/// The time between two looks for requests, and the least time between two states.
const TICK: Duration = Duration::from_millis(250);

/// The longest time between two states.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// What the training thread tells the thread that writes the state.
pub(super) struct Shared {
    pub(super) out: PathBuf,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Identifies the run, on every rank in the same way: requests name it.
    pub(super) run: String,
    pub(super) models: Arc<ChunkManager>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// What a rank does now.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) step: u64,
    pub(super) has_ended: bool,
    /// False if rank 0 could not prepare the folder.
    pub(super) is_watched: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the state and takes requests until the run ends.
    pub(super) fn run(&self) {
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
    pub(super) fn take_requests(&self) {
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
