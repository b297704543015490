//! A sandbox for the programs that a model writes: each runs as a Python process that reaches nothing
//! outside.
//!
//! Each program gets user, mount, network, process, IPC and host-name namespaces of its own (`unshare`), a
//! root folder that holds nothing but the system's libraries and the interpreter, read-only, and an empty
//! `/tmp` ([`ENTER`]), no capabilities (`setpriv`), limits for memory, processor time, file size and
//! processes (`prlimit`), and an empty environment. Process 1 of the sandbox watches it and ends at the time
//! limit at the latest ([`SUPERVISE`]); the kernel then kills all others of the sandbox.
//!
//! [`Sandbox::open`] tries from within what a program must not be able to do ([`PROBE`]). A machine on which
//! one of these things succeeds gets an error: no program runs outside a sandbox. The kernel is shared, so
//! this is no virtual machine.

mod interpreter;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use eval::code_execution::{CodeRunner, Program, RunnerError, Verdict};
use tempfile::TempDir;

use crate::exit::Failure;
use interpreter::Interpreter;

/// Builds the root folder.
const ENTER: &str = include_str!("sandbox/enter.sh");
/// Process 1 of a sandbox.
const SUPERVISE: &str = include_str!("sandbox/supervise.py");
/// What must not be possible in a sandbox.
const PROBE: &str = include_str!("sandbox/probe.py");

/// The address space of a process, in bytes.
const MEMORY: u64 = 1 << 30;
/// The largest file, in bytes. `/tmp` as a whole has four times as much.
const FILE_SIZE: u64 = 16 << 20;
/// The processes and threads of a sandbox.
const PROCESSES: u64 = 16;
/// The open files of a process.
const OPEN_FILES: u64 = 64;
/// How long the start of a sandbox may take on a busy machine.
const START: Duration = Duration::from_secs(30);
/// The most sandboxes at a time.
const MOST_WORKERS: usize = 64;
/// Where the user ids begin that sandboxes of root get: each sandbox has one of its own.
const FIRST_UID: u64 = 1 << 30;

/// Runs programs in sandboxes.
#[derive(Debug)]
pub(super) struct Sandbox {
    tools: Tools,
    interpreter: Interpreter,
    /// Whether root runs this program. Limits for processes do not hold for root.
    is_root: bool,
    workers: usize,
    /// The folder over which each sandbox mounts its root folder.
    root: TempDir,
}

/// The commands that a sandbox is made of.
#[derive(Debug)]
struct Tools {
    sh: PathBuf,
    unshare: PathBuf,
    setpriv: PathBuf,
    prlimit: PathBuf,
}

impl Sandbox {
    /// Finds what a sandbox is made of, and checks that one works on this machine.
    pub(super) fn open() -> Result<Self, Failure> {
        let tools = Tools {
            sh: tool("sh", "a shell")?,
            unshare: tool("unshare", "util-linux")?,
            setpriv: tool("setpriv", "util-linux")?,
            prlimit: tool("prlimit", "util-linux")?,
        };
        let sandbox = Self {
            tools,
            interpreter: Interpreter::find(&on_path("python3", "Python 3")?)?,
            is_root: is_root(),
            workers: thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS),
            root: tempfile::tempdir().map_err(|error| broken("has no temporary folder", &error))?,
        };
        sandbox.check()?;
        Ok(sandbox)
    }

    /// Runs a program that tries what must not be possible, one that never ends, and one that ends early.
    fn check(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| broken("cannot be checked", &error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let outside = tempfile::NamedTempFile::new().map_err(failed)?;
        let constants = format!(
            "PORT, OUTSIDE = {port}, {:?}\nMEMORY, FILE_SIZE, PROCESSES = {MEMORY}, {FILE_SIZE}, {PROCESSES}\n",
            outside.path().display().to_string()
        );
        let program = |source: String, timeout| Program { source, timeout };
        let probe = program(format!("{constants}{PROBE}"), Duration::from_secs(10));
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

    /// Runs the programs, as many at a time as the machine has processors.
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
            let workers = self.workers.min(programs.len());
            let running: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
            running.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let verdicts = verdicts.into_inner().expect("no worker panics");
        Ok(verdicts.into_iter().flatten().collect())
    }

    fn run_one(&self, worker: usize, program: &Program) -> Result<Verdict, Failure> {
        let failed = |error: io::Error| broken("cannot start a process", &error);
        let mut input = tempfile::tempfile().map_err(failed)?;
        write!(input, "{}\n{}", program.timeout.as_secs_f64(), program.source).map_err(failed)?;
        input.rewind().map_err(failed)?;
        // Files, because a process can neither fill nor hold them open as it can pipes.
        let mut output = tempfile::tempfile().map_err(failed)?;
        let mut errors = tempfile::tempfile().map_err(failed)?;
        let mut child = self
            .command(worker, program.timeout)
            .stdin(input)
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(errors.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        wait(&mut child, program.timeout + START).map_err(failed)?;

        let said = beginning(&mut output).map_err(failed)?;
        let Some(said) = said.strip_prefix("ready\n") else {
            let errors = beginning(&mut errors).map_err(failed)?;
            let problem = match errors.trim() {
                "" => format!("cannot start: its first process said nothing within {} s", START.as_secs()),
                errors => {
                    format!("cannot start: {}", errors.split_whitespace().collect::<Vec<_>>().join(" "))
                }
            };
            return Err(Failure::Sandbox { problem });
        };
        Ok(verdict(said))
    }

    /// The command that runs the program on its stdin in a sandbox.
    fn command(&self, worker: usize, timeout: Duration) -> Command {
        let Tools { sh, unshare, setpriv, prlimit } = &self.tools;
        let mut command = Command::new(unshare);
        // A process group of its own: what kills its group does not kill this program.
        command.process_group(0).env_clear();
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        // The order of sets and the threads of numpy are the same in each run.
        command.envs([("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1"), ("LC_ALL", "C.UTF-8")]);
        command.args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]);
        if !self.is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg(sh).args(["-c", ENTER, "enter.sh"]).arg(self.root.path());
        self.interpreter.mounts.iter().for_each(|mount| {
            command.args(mount.arguments());
        });

        command.arg("--").arg(setpriv);
        if self.is_root {
            let uid = FIRST_UID + u64::from(std::process::id()) * MOST_WORKERS as u64 + worker as u64;
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
        }
        command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--pdeathsig=KILL"]);
        // Root of a namespace that owns nothing: it can change its root folder, and then it has no rights.
        command.arg(unshare).args(["--user", "--root=.", "--wd=/tmp"]);
        let seconds = timeout.as_secs() + 2;
        command.arg(prlimit).args([
            format!("--as={MEMORY}"),
            format!("--cpu={seconds}"),
            format!("--fsize={FILE_SIZE}"),
            format!("--nproc={PROCESSES}"),
            format!("--nofile={OPEN_FILES}"),
            "--core=0".to_owned(),
        ]);
        command.arg(&self.interpreter.executable).args(["-s", "-B", "-c", SUPERVISE]);
        command
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

/// What the supervisor said after "ready". A sandbox that ended without a word was ended by its program.
fn verdict(said: &str) -> Verdict {
    let line = said.lines().next().unwrap_or_default();
    match line.strip_prefix("failed: ") {
        Some(reason) => Verdict::Failed { reason: reason.to_owned() },
        None if line == "passed" => Verdict::Passed,
        None if line == "timed out" => Verdict::TimedOut,
        None => Verdict::Failed { reason: "the sandbox ended before the program".to_owned() },
    }
}

/// Waits for the end of a process, and kills it at the limit.
fn wait(child: &mut Child, limit: Duration) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(2);
    let end = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            break;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The beginning of what was written to a file.
fn beginning(file: &mut File) -> io::Result<String> {
    const LONGEST: u64 = 4096;
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The path of a command without links, so that it is the same in the root folder of a sandbox.
fn tool(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = on_path(name, package)?;
    Ok(fs::canonicalize(&path).unwrap_or(path))
}

/// The path of a command.
fn on_path(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    let problem = || format!("needs {name}, which is not on PATH: install {package}");
    found.ok_or_else(|| Failure::Sandbox { problem: problem() })
}

/// Whether this process is root with all user ids, not only root of a container's own ids.
fn is_root() -> bool {
    let uid = fs::metadata("/proc/self").map(|process| process.uid());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid.is_ok_and(|uid| uid == 0) && map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn broken(problem: &str, error: &io::Error) -> Failure {
    Failure::Sandbox { problem: format!("{problem}: {error}") }
}
