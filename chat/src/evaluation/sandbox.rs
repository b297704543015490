//! A sandbox for the programs that a model writes: each runs as a Python process that reaches nothing
//! outside.
//!
//! | protection | by |
//! |---|---|
//! | user, mount, network, process, IPC and host-name namespaces | `unshare` ([`command`]) |
//! | a root folder with the system's libraries and the interpreter, read-only, and an empty `/tmp` | [`command::ENTER`] |
//! | no capabilities, no new privileges | `setpriv` |
//! | an empty session keyring, and descriptors and memory of process 1 out of reach | [`command::SUPERVISE`] |
//! | no call that reaches other processes, keys, kernels or uncounted memory; no second process | [`syscall_filter`] |
//! | limits for memory, processor time, files and threads, which add up to one for the sandbox | [`limits`] |
//! | an end with the process and thread that started it, whatever ends those | [`command::START`] |
//!
//! Process 1 of the sandbox watches the program and ends at the time limit at the latest
//! ([`command::SUPERVISE`]); the kernel then kills all others of the sandbox. Its verdict bears a nonce that
//! the program does not know. Once a sandbox was ready, whatever happens to it fails its program alone
//! ([`running`]).
//!
//! [`Sandbox::open`] tries from within what a program must not be able to do ([`PROBE`]). A machine on which
//! one of these things succeeds gets an error: no program runs outside a sandbox. The kernel is shared, so
//! this is no virtual machine.

#[cfg(test)]
mod attacks;
mod command;
mod interpreter;
mod limits;
mod running;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use eval::code_execution::{CodeRunner, Program, RunnerError, Verdict};
use parallel::syscall_filter;

use crate::failure::Failure;
use command::{ROOT, Tools, on_path};
use interpreter::Interpreter;
pub(crate) use limits::most_memory;
use running::{Running, broken};

/// What must not be possible in a sandbox.
const PROBE: &str = include_str!("sandbox/probe.py");

/// Runs programs in sandboxes.
#[derive(Debug)]
pub(super) struct Sandbox {
    tools: Tools,
    interpreter: Interpreter,
    /// The filter of system calls, in hexadecimal.
    filter: String,
}

impl Sandbox {
    /// Finds what a sandbox is made of, and checks that one works on this machine.
    pub(super) fn open() -> Result<Self, Failure> {
        if !Path::new(ROOT).is_dir() {
            let problem = format!("needs the folder {ROOT}, over which it mounts its own: mount /sys");
            return Err(Failure::Sandbox { problem });
        }
        let filter = syscall_filter::filter().ok_or_else(|| Failure::Sandbox {
            problem: "knows the system calls of x86-64 and aarch64, and not of this processor".to_owned(),
        })?;
        let filter = filter.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes any text");
            text
        });
        let sandbox = Self {
            tools: Tools::find()?,
            interpreter: Interpreter::find(&on_path("python3", "Python 3")?)?,
            filter,
        };
        sandbox.check()?;
        Ok(sandbox)
    }

    /// Runs a program that tries what must not be possible, one that never ends, and one that ends early.
    fn check(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| broken("cannot be checked", &error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let program = |source: String, timeout| Program { source, timeout };
        let probe = program(format!("{}{PROBE}", probe_constants(port)), Duration::from_secs(20));
        let endless = program("while True: pass".to_owned(), Duration::from_millis(200));
        let early = program("import os\nos._exit(0)".to_owned(), Duration::from_secs(10));

        let verdicts = self.run_all(&[probe, endless, early])?;
        let problem = match &verdicts[..] {
            [Verdict::Passed, Verdict::TimedOut, Verdict::Failed { .. }] => return Ok(()),
            [Verdict::Passed, Verdict::TimedOut, _] => {
                "it takes a program that left early for a success".to_owned()
            }
            [Verdict::Passed, ..] => "its time limit does not hold".to_owned(),
            [Verdict::Failed { reason }, ..] => reason.clone(),
            _ => "its check takes too long".to_owned(),
        };
        Err(Failure::Sandbox { problem: format!("does not isolate: {problem}") })
    }

    /// Runs the programs, as many at a time as the machine has processors and free memory for.
    fn run_all(&self, programs: &[Program]) -> Result<Vec<Verdict>, Failure> {
        let next = AtomicUsize::new(0);
        let verdicts = Mutex::new(vec![None; programs.len()]);
        let work = |worker: usize| -> Result<(), Failure> {
            while let Some((index, program)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                programs.get(index).map(|program| (index, program))
            } {
                // After a failure the others stop too.
                let verdict = self
                    .run_one(worker, program)
                    .inspect_err(|_| next.store(programs.len(), Ordering::Relaxed))?;
                verdicts.lock().expect("no worker panics")[index] = Some(verdict);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers = limits::at_a_time().min(programs.len());
            let running: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
            running.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let verdicts = verdicts.into_inner().expect("no worker panics");
        Ok(verdicts.into_iter().flatten().collect())
    }

    fn run_one(&self, worker: usize, program: &Program) -> Result<Verdict, Failure> {
        let command = self.tools.command(&self.interpreter, worker, program.timeout);
        Running::start(command, &self.filter, program)?.verdict(program.timeout)
    }
}

impl CodeRunner for Sandbox {
    fn interpreter(&self) -> String {
        self.interpreter.version.clone()
    }

    fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError> {
        Ok(self.run_all(programs)?)
    }
}

/// What [`PROBE`] knows of the machine and the limits, as Python. A server listens at `port` outside.
fn probe_constants(port: u16) -> String {
    let limits = limits::of_probe();
    let refused: Vec<String> =
        syscall_filter::REFUSED.iter().map(|(name, number)| format!("{name:?}: {number}")).collect();
    format!("PORT = {port}\n{limits}\nREFUSED = {{{}}}\n", refused.join(", "))
}
