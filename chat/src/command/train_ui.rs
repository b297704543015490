//! `--ui` of a stage: starts the training as a process of its own and shows the dashboard of `watch`.
//!
//! ```text
//!   colossal-chat ppo --ui ...      shows what the run says while it loads, then the dashboard
//!     +- colossal-chat ppo ...      the run, which goes on when the dashboard is closed
//!          +- rank 0, rank 1, ...   with --nproc
//! ```
//! The run writes its messages to `OUT/logs/run.log`. It is in a process group of its own, so neither Ctrl-C
//! nor a closed terminal ends it; while it loads, Ctrl-C is passed on. If the run ends while the dashboard is
//! open, its last messages are printed and its exit code is returned.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parallel::process::send_signal;
use parallel::{RankInfo, regular_file};
use signal_hook::iterator::Signals;
use tui::terminal::Environment;

use super::watch;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::exit::FAILED;
use crate::failure::Failure;
use crate::run_reader::{Follower, Piece, RunReader};
use crate::{folder, interrupt, launch, live, own_file};

/// The time between two looks at a run that loads.
const POLL: Duration = Duration::from_millis(100);

/// How long a run may take to exit after it has said that it is done.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Starts the run of `out` with the arguments of this process, and shows it.
pub(crate) fn run(out: &Path) -> anyhow::Result<()> {
    check_terminal(out)?;
    folder::lock_for_launcher(out, &folder::RUN)?;
    let mut run = StartedRun::start(out)?;
    let shown = run.show();
    run.leave(shown, print_stderr)
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
        own_file::make_folder(&folder).with_context(|| folder.display().to_string())?;
        let path = folder.join("run.log");
        let opened = regular_file::open(&path, File::options().append(true).create(true));
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

    /// Shows what the run says while it loads, then the dashboard. Returns when the user closes it or the run
    /// has ended.
    fn show(&mut self) -> anyhow::Result<()> {
        if !self.wait_until_it_trains()? {
            return Ok(());
        }
        interrupt::listen()?;
        let status = watch::show(RunReader::at(&self.out), Environment::read().color(true))?;
        if status.is_alive() { Ok(()) } else { self.wait(GRACE_PERIOD) }
    }

    /// Returns the outcome of a run that has ended. Of a run that goes on, says where, and how to watch it
    /// again; the failure of the screen, if `shown` is one, ends no run, so it comes after these lines.
    fn leave(&mut self, shown: anyhow::Result<()>, say: impl Fn(&str)) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else {
            let (process, log) = (self.child.id(), self.log.path().display());
            say(&format!("the run goes on as process {process}; its messages are in {log}"));
            say(&watch::how_to_watch(&self.out));
            return shown;
        };

        let ended = self.end(status);
        // The exit code is that of the run, so the other failure is only told.
        if let (Err(_), Err(error)) = (&ended, &shown) {
            say(&format!("warning: the dashboard failed: {error:#}"));
        }
        ended.and(shown)
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

    /// Prints what the run says while it loads. Returns `false` if it ends before it trains.
    fn wait_until_it_trains(&mut self) -> anyhow::Result<bool> {
        let mut signals = Signals::new(interrupt::handled_signals()).context("cannot listen for Ctrl-C")?;
        loop {
            self.print_messages()?;
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            // A run that cannot write events still writes metrics.
            let signs = [live::events_path(&self.out), self.out.join("metrics.jsonl")];
            if signs.iter().filter_map(|path| live::modified(path)).any(|time| time >= self.since) {
                return Ok(true);
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A process in the place of a run, in the folder `out`.
    fn started(out: &Path, program: &str) -> StartedRun {
        let mut command = Command::new("sh");
        let child = command.args(["-c", program]).stdin(Stdio::null()).spawn().unwrap();
        let log = Follower::new(out.join("logs/run.log"));
        StartedRun { child, out: out.to_owned(), log, since: 0.0 }
    }

    /// What is said, and how the program ends.
    fn left(run: &mut StartedRun, shown: anyhow::Result<()>) -> (Vec<String>, anyhow::Result<()>) {
        let said = RefCell::new(Vec::new());
        let outcome = run.leave(shown, |line| said.borrow_mut().push(line.to_owned()));
        (said.into_inner(), outcome)
    }

    fn broken_screen() -> anyhow::Result<()> {
        Err(anyhow::anyhow!("the terminal is gone"))
    }

    #[test]
    fn a_run_that_outlives_its_screen_is_named_whether_or_not_the_screen_failed() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = started(folder.path(), "exec sleep 600");
        let watch = format!("colossal-chat watch {}", folder.path().display());
        for shown in [Ok(()), broken_screen()] {
            let has_failed = shown.is_err();
            let (said, outcome) = left(&mut run, shown);
            assert!(said[0].contains(&format!("process {}; ", run.child.id())), "{said:?}");
            assert!(said[0].contains("logs/run.log") && said[1].contains(&watch), "{said:?}");
            assert_eq!(outcome.is_err(), has_failed);
        }
        run.child.kill().unwrap();
        run.child.wait().unwrap();
    }

    #[test]
    fn the_outcome_of_a_run_that_has_ended_comes_before_that_of_the_screen() {
        let folder = tempfile::tempdir().unwrap();
        let end = |program, shown| {
            let mut run = started(folder.path(), program);
            run.child.wait().unwrap();
            let (said, outcome) = left(&mut run, shown);
            (said, outcome.map_err(|error| crate::exit::code(&error)))
        };
        assert_eq!(end("exit 0", Ok(())), (vec![], Ok(())));
        assert_eq!(end("exit 5", Ok(())), (vec![], Err(5)));
        assert_eq!(end("exit 0", broken_screen()), (vec![], Err(FAILED)));
        let warning = "warning: the dashboard failed: the terminal is gone".to_owned();
        assert_eq!(end("exit 5", broken_screen()), (vec![warning], Err(5)));
    }
}
