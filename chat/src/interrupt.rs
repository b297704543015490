//! Signals that ask the program to end: Ctrl-C (SIGINT), SIGTERM, and the SIGHUP of a terminal that was
//! closed.
//!
//! | while | the first signal | another one |
//! |---|---|---|
//! | a stage trains, `chat` answers ([`enter_graceful`]) | sets a flag: the step is finished and saved, the answer ends | ends the program at once |
//! | anything else: loading, tokenising, converting, reports | ends the program at once | |
//!
//! Ending at once removes the temporary files of this process from the folders that were named to
//! [`register_temp_folder`], and gives [`exit::INTERRUPTED`]. SIGHUP comes several times when a terminal closes (from
//! the kernel and from the shell), so it never counts as another signal. Where it is ignored from the start,
//! as under `nohup`, it stays ignored.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context;
use gemini::checkpoint;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::print_stderr;
use crate::exit;

/// Set by a signal while there is work that ends by itself.
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether a person or a scheduler asked, rather than a closed terminal.
static EXPLICIT_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Whether there is such work.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
/// Where temporary files of this process may lie.
static TEMP_FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Listens from now on. Not for a launcher, which hands its signals on to its ranks.
pub(crate) fn listen() -> anyhow::Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| outcome = start());
    outcome.context("cannot listen for signals")
}

fn start() -> std::io::Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP, &std::fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    let receive_all = move || signals.forever().for_each(receive);
    std::thread::Builder::new().name("signals".to_owned()).spawn(receive_all).map(drop)
}

/// Whether whoever started this process had it ignore `signal`; `status` is `/proc/self/status`.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

fn receive(signal: i32) {
    let again = signal != SIGHUP && EXPLICIT_SIGNAL.swap(true, Ordering::SeqCst);
    if GRACEFUL.load(Ordering::SeqCst) && !again {
        STOP_REQUESTED.store(true, Ordering::SeqCst);
    } else {
        end();
    }
}

/// Ends the program. The exit handlers of libtorch are not run: its threads may be at work.
fn end() {
    for folder in TEMP_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        remove_own_temporaries(folder);
    }
    print_stderr("error: interrupted");
    signal_hook::low_level::exit(exit::INTERRUPTED.into());
}

/// Removes what this process is writing in `folder`.
fn remove_own_temporaries(folder: &Path) {
    let own =
        |name: &str| checkpoint::parse_temporary(name).is_some_and(|(_, by)| by == Some(std::process::id()));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(own) {
            // The program ends: what cannot be removed is removed at the next start.
            let _ = std::fs::remove_file(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Names a folder in which this process writes under temporary names.
pub(crate) fn register_temp_folder(folder: &Path) {
    TEMP_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// The flag that work looks at.
pub(crate) fn flag() -> &'static AtomicBool {
    &STOP_REQUESTED
}

/// Whether somebody asked during the last work.
pub(crate) fn is_stop_requested() -> bool {
    STOP_REQUESTED.load(Ordering::SeqCst)
}

/// Work that looks at the flag and ends by itself; until this is dropped.
pub(crate) struct GracefulScope(());

/// Such work begins: what was asked before is forgotten.
#[must_use = "the work ends when this is dropped"]
pub(crate) fn enter_graceful() -> GracefulScope {
    STOP_REQUESTED.store(false, Ordering::SeqCst);
    EXPLICIT_SIGNAL.store(false, Ordering::SeqCst);
    GRACEFUL.store(true, Ordering::SeqCst);
    GracefulScope(())
}

impl Drop for GracefulScope {
    fn drop(&mut self) {
        GRACEFUL.store(false, Ordering::SeqCst);
        EXPLICIT_SIGNAL.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen_in_the_mask_of_ignored_signals() {
        // SIGHUP is 1 and SIGPIPE 13, of which bit 12 is set: this runtime ignores it.
        assert!(is_ignored(SIGHUP, "SigBlk:\t0\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored(SIGHUP, "SigBlk:\t1\nSigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(SIGHUP, ""));
    }

    #[test]
    fn only_the_temporary_files_of_this_process_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("{}x1.tmp", checkpoint::temporary_prefix(Path::new("rows.parquet")));
        for name in [own.as_str(), ".rows.parquet.1-x1.tmp", ".rows.parquet.tmp", "rows.parquet"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join(own.replace("x1", "x2"))).unwrap();
        remove_own_temporaries(folder.path());
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".rows.parquet.1-x1.tmp", ".rows.parquet.tmp", "rows.parquet"]);
    }
}
