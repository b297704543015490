//! Hostile programs, as root and as an ordinary user, and sandboxes that are damaged or lose their parent.
//!
//! A machine that permits no sandbox cannot run these tests. A line of the test then says so.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::command::{START, is_root};
use super::*;

/// The filter that allows every call: `BPF_RET` with `SECCOMP_RET_ALLOW`.
const ALLOW_ALL: &str = "060000000000ff7f";

/// Someone who runs sandboxes.
struct Owner {
    sandbox: Sandbox,
    /// The user that root changes to before it starts a sandbox.
    user: Option<u32>,
}

impl Owner {
    /// This user, and for root an ordinary one too. Those for whom this machine permits no sandbox are left out
    /// with a line that says so.
    fn all() -> Vec<Self> {
        let mut owners = Vec::new();
        match Sandbox::open() {
            Ok(sandbox) => owners.push(Self { sandbox, user: None }),
            Err(error) => eprintln!("skipped, because {error}"),
        }
        if is_root() && !owners.is_empty() {
            match Self::ordinary() {
                Ok(ordinary) => owners.push(ordinary),
                Err(problem) => eprintln!("not tested as an ordinary user, because {problem}"),
            }
        }
        owners
    }

    /// The user `nobody`, who may not reach the interpreter of root.
    fn ordinary() -> Result<Self, String> {
        let interpreter =
            Interpreter::find(Path::new("/usr/bin/python3")).map_err(|error| error.to_string())?;
        let mut sandbox = Sandbox::open().map_err(|error| error.to_string())?;
        sandbox.tools.is_root = false;
        sandbox.interpreter = interpreter;
        let owner = Self { sandbox, user: Some(65534) };
        match owner.run("") {
            Ok(Verdict::Passed) => Ok(owner),
            other => Err(format!("{other:?}")),
        }
    }

    fn command(&self, timeout: Duration) -> Command {
        let command = self.sandbox.tools.command(&self.sandbox.interpreter, 0, timeout);
        let Some(user) = self.user else { return command };
        let mut outer = Command::new("setpriv");
        outer.args([format!("--reuid={user}"), format!("--regid={user}")]).arg("--clear-groups");
        outer.arg(command.get_program()).args(command.get_args()).process_group(0).env_clear();
        let set = |(name, value): (_, Option<&OsStr>)| Some((name, value?.to_owned()));
        outer.envs(command.get_envs().filter_map(set));
        outer
    }

    fn run_with(&self, filter: &str, source: &str) -> Result<Verdict, Failure> {
        let timeout = Duration::from_secs(20);
        let program = Program { source: source.to_owned(), timeout };
        Running::start(self.command(timeout), filter, &program)?.verdict(timeout)
    }

    fn run(&self, source: &str) -> Result<Verdict, Failure> {
        self.run_with(&self.sandbox.filter, source)
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn hostile_programs_are_refused_everything() {
    let attacks = format!("{}\n{}", limits::of_probe(), include_str!("attacks.py"));
    for owner in Owner::all() {
        assert_eq!(owner.run(&attacks).unwrap(), Verdict::Passed);
        // Where the kernel has no calls of 32-bit programs, such a call is a fault (signal 11).
        match owner.run(CALL_OF_A_32_BIT_PROGRAM).unwrap() {
            Verdict::Failed { reason } if reason.contains("signal 11") => {}
            verdict => assert_eq!(verdict, Verdict::Passed),
        }
        // What the program tries at the start holds for this user too.
        let probe = format!("{}{PROBE}", probe_constants(1));
        assert_eq!(owner.run(&probe).unwrap(), Verdict::Passed);
    }
}

/// `getpid` by `int 0x80`: mov eax, 20; int 0x80; ret.
const CALL_OF_A_32_BIT_PROGRAM: &str = r"
import ctypes, mmap
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')
entry = ctypes.addressof(ctypes.c_char.from_buffer(code))
assert ctypes.CFUNCTYPE(ctypes.c_int)(entry)() == -1
";

/// Without the filter, each attack meets a second protection. The numbers are those of x86-64.
#[test]
#[cfg(target_arch = "x86_64")]
fn process_1_and_the_keyring_are_out_of_reach_without_the_filter_too() {
    let source = r"
import ctypes, errno
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
def refused(number, *arguments):
    result = call(number, *arguments)
    assert result == -1 and ctypes.get_errno() == errno.EPERM, (number, result, ctypes.get_errno())
process = call(434, 1, 0)
assert process >= 0
for descriptor in range(4):
    refused(438, process, descriptor, 0)
refused(101, 16, 1, 0, 0)
refused(101, 0x4206, 1, 0, 0)
# KEYCTL_READ of the session keyring: the bytes of the list of its keys.
assert call(250, 11, -3, 0, 0) == 0
";
    for owner in Owner::all() {
        assert_eq!(owner.run_with(ALLOW_ALL, source).unwrap(), Verdict::Passed);
    }
}

#[test]
fn the_probe_names_a_protection_that_is_missing() {
    for owner in Owner::all() {
        let probe = format!("{}{PROBE}", probe_constants(1));
        let verdict = owner.run_with(ALLOW_ALL, &probe).unwrap();
        let Verdict::Failed { reason } = verdict else { panic!("{verdict:?}") };
        assert_eq!(reason, "AssertionError: the system call ptrace is possible");
        // A filter that the kernel does not take is a fault of the machine, not of the program.
        let error = owner.run_with("ff", "").unwrap_err().to_string();
        assert!(error.contains("cannot start: the program cannot be confined"), "{error}");
    }
}

/// A process in place of a sandbox, which says what `script` says.
fn damaged(script: &str) -> Result<Verdict, Failure> {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let timeout = Duration::from_millis(1);
    Running::start(command, ALLOW_ALL, &Program { source: String::new(), timeout })?.verdict(timeout)
}

#[test]
fn a_damaged_verdict_fails_its_program_alone() {
    let ended = Verdict::Failed { reason: "the sandbox ended before the program".to_owned() };
    for script in [
        "echo ready",
        "echo ready; echo passed >&2",
        "echo ready; echo 00000000000000000000000000000000 passed >&2",
        "echo ready; head -c 1000000 /dev/zero >&2",
        "echo ready; kill -9 $$",
    ] {
        assert_eq!(damaged(script).unwrap(), ended, "{script}");
    }
    // A sandbox that does not end is killed, and its program has taken too long.
    assert_eq!(damaged("echo ready; exec sleep 100").unwrap(), Verdict::TimedOut);
    // One that was never ready is a fault of the machine: a verdict on the program would be made up.
    let error = damaged("echo 'no memory' >&2; exit 1").unwrap_err().to_string();
    assert!(error.contains("cannot start: no memory"), "{error}");
}

#[test]
fn a_sandbox_ends_with_its_parent() {
    // A parent that has ended before the kernel was asked to watch it.
    let start = |parent: u32| {
        let parent = parent.to_string();
        Command::new("sh").args(["-c", START, "start.sh", &parent, "echo", "started"]).output().unwrap()
    };
    assert_eq!(start(std::process::id()).stdout, b"started\n");
    assert_eq!(start(std::process::id() + 1).stdout, b"");

    for owner in Owner::all() {
        let timeout = Duration::from_secs(60);
        let program = Program { source: "while True: pass".to_owned(), timeout };
        let running = Running::start(owner.command(timeout), &owner.sandbox.filter, &program).unwrap();
        // unshare, process 1, the program
        let mut processes = vec![running.process()];
        wait_until("the program has begun", || {
            let parents = processes.clone();
            let found = alive().into_iter().filter(|(_, parent)| parents.contains(parent));
            processes.extend(found.map(|(process, _)| process));
            processes.sort_unstable();
            processes.dedup();
            processes.len() >= 3
        });
        drop(running);
        wait_until("they have ended", || {
            !alive().iter().any(|(process, _)| processes.binary_search(process).is_ok())
        });
    }
}

/// The processes that are alive, each with its parent.
fn alive() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let of_entry = |entry: std::fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        // `PID (NAME) STATE PARENT ...`, and a name may hold anything.
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let is_dead = matches!(fields.next()?, "Z" | "X");
        (!is_dead).then_some((process, fields.next()?.parse().ok()?))
    };
    entries.filter_map(|entry| of_entry(entry.ok()?)).collect()
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}
