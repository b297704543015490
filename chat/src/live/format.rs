//! The rows and files under `live/`, as `docs/formats.md` describes them. Reading ignores fields that it does
//! not know, so a run of a later version can be watched.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The folder inside the run folder.
pub(crate) const LIVE: &str = "live";

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

/// A row of `events.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EventRow {
    /// Seconds since 1970.
    pub(crate) time: f64,
    /// `started`, `checkpoint`, `paused`, `continued`, `message`, `finished`, `stopped` or `failed`.
    pub(crate) event: String,
    /// The number of complete steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// The path of a checkpoint, a message, or an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// Of `started`: what requests for this run must name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// Of `started`: the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stage: Option<String>,
    /// Of `started`: the number of steps of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) total_steps: Option<u64>,
    /// Of `started`: the number of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) processes: Option<usize>,
}

impl EventRow {
    /// An event of this moment.
    pub(super) fn new(event: &str, step: Option<u64>) -> Self {
        Self { time: unix_seconds(), event: event.to_owned(), step, ..Self::default() }
    }

    /// The event with a text.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.text = Some(text.to_owned());
        self
    }
}

/// `rank-N.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankFile {
    pub(crate) run: String,
    pub(crate) rank: usize,
    pub(crate) process: u32,
    /// Its machine.
    pub(crate) host: String,
    /// What it does.
    pub(crate) phase: String,
    /// The number of complete steps.
    pub(crate) step: u64,
    /// When it said so, in seconds since 1970.
    pub(crate) time: f64,
    /// Resident memory of the process.
    pub(crate) resident_bytes: u64,
    /// The peak of it since training began.
    pub(crate) peak_bytes: u64,
    /// The memory of the models by tier.
    #[serde(default)]
    pub(crate) tiers: Vec<Tier>,
}

/// Memory of one tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tier {
    /// What is counted.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The limit, if there is one.
    #[serde(default)]
    pub(crate) limit: Option<u64>,
}

/// A file of `requests/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestFile {
    /// The run that it is meant for.
    pub(crate) run: String,
    /// What is asked.
    pub(crate) request: RequestKind,
}

/// What a run can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestKind {
    /// Wait after the current step.
    Pause,
    /// Go on.
    Continue,
    /// Save a checkpoint after the current step.
    Checkpoint,
    /// Save a checkpoint after the current step and end.
    Stop,
}
