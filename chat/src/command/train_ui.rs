//! `--ui` of a stage: starts the training as a process of its own and shows the dashboard of `watch`.
//!
//! ```text
//!   colossal-chat ppo --ui ...      shows what the run says while it loads, then the dashboard
//!     +- colossal-chat ppo ...      the run, which goes on when the dashboard is closed
//!          +- rank 0, rank 1, ...   with --nproc
//! ```
//! The run writes its messages to `OUT/logs/run.log`. It is in a process group of its own, so neither Ctrl-C nor a closed
//! terminal ends it; while it loads, Ctrl-C is passed on. If the run ends while the dashboard is open, its last messages
//! are printed and its exit code is returned.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parallel::RankInfo;
use parallel::process::send_signal;
use signal_hook::iterator::Signals;
use tui::terminal::Environment;

use super::watch;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::exit::{FAILED, Failure};
use crate::run_reader::{Follower, Piece, RunReader};
use crate::{folder, interrupt, launch, live};

/// The time between two looks at a run that loads.
const POLL: Duration = Duration::from_millis(100);

/// How long a run may take to exit after it has said that it is done.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Starts the run of `out` with the arguments of this process, and shows it.
pub(crate) fn run(out: &Path, resume: bool) -> anyhow::Result<()> {
    check_terminal(out)?;
    if resume && !folder::holds_run(out)? {
        return Err(ConfigError::NothingToResume(out.to_owned()).into());
    }
    folder::lock_for_launcher(out, &folder::RUN_NAMES, resume)?;
    let mut run = StartedRun::start(out)?;
    if let Some(status) = run.wait_until_it_trains()? {
        return run.end(status);
    }
    interrupt::listen()?;
    let status = watch::show(RunReader::at(out), Environment::read().color(true))?;
    if !status.is_alive() {
        run.wait(GRACE_PERIOD)?;
    }
    if let Some(status) = run.child.try_wait()? {
        return run.end(status);
    }
    let (process, log) = (run.child.id(), run.log.path().display());
    print_stderr(&format!("the run goes on as process {process}; its messages are in {log}"));
    print_stderr(&watch::how_to_watch(out));
    Ok(())
}

/// Refuses to show a dashboard where there is no terminal, and on one rank of several.
fn check_terminal(out: &Path) -> anyhow::Result<()> {
    let refuse = |problem: &str| {
        let problem =
            format!("{problem}: leave it out, and watch with: colossal-chat watch {}", out.display());
        Err(ConfigError::Argument { argument: "--ui".to_owned(), problem }.into())
    };
    if RankInfo::from_environment()?.size > 1 {
        return refuse("this is one rank of a job that something else has started");
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return refuse("there is no terminal");
    }
    Ok(())
}

/// A run that this process has started.
struct StartedRun {
    child: Child,
    out: PathBuf,
    /// Its messages.
    log: Follower,
    /// When it was started, in seconds since 1970.
    since: f64,
}

impl StartedRun {
    fn start(out: &Path) -> anyhow::Result<Self> {
        let folder = out.join("logs");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let path = folder.join("run.log");
        let opened = File::options().append(true).create(true).open(&path);
        let file = opened.with_context(|| path.display().to_string())?;
        let mut log = Follower::new(path);
        // The messages of earlier runs are not shown.
        while log.poll()?.1 {}

        let arguments: Vec<OsString> =
            launch::own_arguments().into_iter().filter(|argument| argument != "--ui").collect();
        let mut command = Command::new(std::env::current_exe().context("this program's own file")?);
        command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().context("the run does not start")?;
        Ok(Self { child, out: out.to_owned(), log, since: live::unix_seconds() })
    }

    /// Prints the new messages of the run.
    fn print_messages(&mut self) -> anyhow::Result<()> {
        for piece in self.log.poll()?.0 {
            if let Piece::Line(_, line) = piece {
                print_stderr(&String::from_utf8_lossy(&line));
            }
        }
        Ok(())
    }

    /// Prints what the run says while it loads. Returns how it has ended, if it has.
    fn wait_until_it_trains(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let mut signals = Signals::new(interrupt::handled_signals()).context("cannot listen for Ctrl-C")?;
        loop {
            self.print_messages()?;
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            let events = fs::metadata(live::events_path(&self.out)).and_then(|found| found.modified());
            let written = events.ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            if written.is_some_and(|time| time.as_secs_f64() >= self.since) {
                return Ok(None);
            }
            for signal in signals.pending() {
                send_signal(self.child.id(), signal);
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until the process has exited, but not for long.
    fn wait(&mut self, patience: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + patience;
        while self.child.try_wait()?.is_none() && Instant::now() < until {
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Prints the last messages of a run that has ended, and returns its outcome.
    fn end(&mut self, status: ExitStatus) -> anyhow::Result<()> {
        self.print_messages()?;
        if status.success() {
            return Ok(());
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
        Err(Failure::AlreadyReported { code }.into())
    }
}
