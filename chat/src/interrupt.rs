//! Handles the signals that stop the program (Ctrl-C, that is SIGINT, SIGTERM, and the SIGHUP of a closed
//! terminal) and SIGUSR1, which requests a checkpoint.
//!
//! | while | the first signal | a second signal |
//! |---|---|---|
//! | a stage trains ([`enter_graceful`]) | the step is finished and saved | exits at once |
//! | `chat` answers ([`enter_graceful`]) | the answer stops | exits at once |
//! | `serve` runs ([`enter_graceful`]) | replies under way end, new requests are refused | exits at once |
//! | the program does anything else | exits at once | |
//!
//! SIGUSR1 sets a flag while a stage trains: a checkpoint is saved after the step, and the run continues. At
//! any other time it is ignored.
//!
//! An immediate exit removes the temporary files of this process from the folders registered with
//! [`register_temp_folder`] and exits with the code [`exit::INTERRUPTED`]. A closing terminal sends SIGHUP
//! several times (from the kernel and from the shell), so SIGHUP never counts as a second signal. If SIGHUP
//! is ignored when the program starts, as under `nohup`, it stays ignored.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context;
use gemini::checkpoint;
use parallel::process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::console::print_stderr;
use crate::exit;

/// Whether a signal has requested a stop during the current or last graceful scope.
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether a SIGUSR1 has requested a checkpoint that is not saved yet.
static SAVE_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether the run in progress is to wait after its current step.
static PAUSED: AtomicBool = AtomicBool::new(false);
/// Whether a SIGINT or SIGTERM has arrived. A SIGHUP from a closed terminal does not count.
static EXPLICIT_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Whether a graceful scope is active: work that checks [`STOP_REQUESTED`] and stops by itself.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
/// The folders in which this process may have temporary files.
static TEMP_FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Starts to handle signals. A launcher must not call this function: it forwards its signals to its ranks.
pub(crate) fn listen() -> anyhow::Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| outcome = start());
    outcome.context("cannot listen for signals")
}

/// The signals that a run handles. `nohup` starts a process with SIGHUP ignored, and then it stays ignored; a
/// shell starts background jobs with SIGINT ignored, and there `kill -INT` must still stop the run.
pub(crate) fn handled_signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM, SIGUSR1];
    if !process::is_signal_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

fn start() -> std::io::Result<()> {
    let mut signals = Signals::new(handled_signals())?;
    let receive_all = move || signals.forever().for_each(receive);
    std::thread::Builder::new().name("signals".to_owned()).spawn(receive_all).map(drop)
}

fn receive(signal: i32) {
    if signal == SIGUSR1 {
        SAVE_REQUESTED.store(GRACEFUL.load(Ordering::SeqCst), Ordering::SeqCst);
        return;
    }
    let again = signal != SIGHUP && EXPLICIT_SIGNAL.swap(true, Ordering::SeqCst);
    if GRACEFUL.load(Ordering::SeqCst) && !again {
        STOP_REQUESTED.store(true, Ordering::SeqCst);
    } else {
        end();
    }
}

/// Exits the program. The exit handlers of libtorch are not run, because its threads may still be working.
fn end() {
    tui::screen::restore();
    for folder in TEMP_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        remove_own_temporaries(folder);
    }
    print_stderr("error: interrupted");
    signal_hook::low_level::exit(exit::INTERRUPTED.into());
}

/// Removes the temporary files and folders of this process from `folder`.
fn remove_own_temporaries(folder: &Path) {
    let own =
        |name: &str| checkpoint::parse_temporary(name).is_some_and(|(_, by)| by == Some(std::process::id()));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(own) {
            // Whatever cannot be removed now is removed at the next start.
            let _ = std::fs::remove_file(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Registers a folder in which this process writes files under temporary names.
pub(crate) fn register_temp_folder(folder: &Path) {
    TEMP_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// The stop flag that graceful work checks.
pub(crate) fn stop_flag() -> &'static AtomicBool {
    &STOP_REQUESTED
}

/// The flag that asks a training stage for a checkpoint.
pub(crate) fn save_flag() -> &'static AtomicBool {
    &SAVE_REQUESTED
}

/// The flag that lets a training stage wait.
pub(crate) fn pause_flag() -> &'static AtomicBool {
    &PAUSED
}

/// Requests a stop, as the first signal does.
pub(crate) fn request_stop() {
    // Or: a request that comes too late must not erase a signal.
    STOP_REQUESTED.fetch_or(GRACEFUL.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Requests a checkpoint, as SIGUSR1 does.
pub(crate) fn request_save() {
    SAVE_REQUESTED.fetch_or(GRACEFUL.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Lets the run in progress wait after its current step, or go on.
pub(crate) fn request_pause(is_paused: bool) {
    PAUSED.store(is_paused, Ordering::SeqCst);
}

/// Whether a signal requested a stop during the current or last graceful scope.
pub(crate) fn is_stop_requested() -> bool {
    STOP_REQUESTED.load(Ordering::SeqCst)
}

/// A scope of work that checks the stop flag and stops by itself. Dropping it ends the scope.
pub(crate) struct GracefulScope(());

/// Begins a graceful scope. Earlier stop requests are cleared.
#[must_use = "the work ends when this is dropped"]
pub(crate) fn enter_graceful() -> GracefulScope {
    STOP_REQUESTED.store(false, Ordering::SeqCst);
    SAVE_REQUESTED.store(false, Ordering::SeqCst);
    PAUSED.store(false, Ordering::SeqCst);
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
