//! The commands that a sandbox is made of, one within the other.
//!
//! ```text
//!   setpriv  dies with its parent
//!     sh  START: its parent lives, and memory that runs out ends the sandbox first
//!       unshare  namespaces; kills process 1 when it dies
//!         sh  ENTER: the root folder
//!           setpriv  no capabilities, no new privileges, for root a user of its own
//!             unshare  into the root folder, as root of a namespace that owns nothing
//!               prlimit  limits
//!                 python3  SUPERVISE
//! ```
//! Nothing of it lies in a folder of this program: the root folder is mounted over [`ROOT`] in the mount
//! namespace of the sandbox alone. So nothing is left, whatever ends this program.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::interpreter::Interpreter;
use super::limits::{self, MOST_WORKERS, TMP_FILES, TMP_SIZE};
use crate::failure::Failure;

/// Starts a sandbox.
pub(super) const START: &str = include_str!("start.sh");
/// Builds the root folder.
pub(super) const ENTER: &str = include_str!("enter.sh");
/// Process 1 of a sandbox.
pub(super) const SUPERVISE: &str = include_str!("supervise.py");

/// The folder over which each sandbox mounts its root folder, in a namespace of its own. It exists on every
/// system, holds no mounts, and no sandbox shows it.
pub(super) const ROOT: &str = "/sys/class";
/// Where the user ids begin that sandboxes of root get: each sandbox has one of its own.
const FIRST_UID: u64 = 1 << 30;

/// The commands, and who runs them.
#[derive(Debug)]
pub(super) struct Tools {
    sh: PathBuf,
    unshare: PathBuf,
    setpriv: PathBuf,
    prlimit: PathBuf,
    /// Whether root runs this program. Limits for processes do not hold for root.
    pub(super) is_root: bool,
}

impl Tools {
    pub(super) fn find() -> Result<Self, Failure> {
        Ok(Self {
            sh: tool("sh", "a shell")?,
            unshare: tool("unshare", "util-linux")?,
            setpriv: tool("setpriv", "util-linux")?,
            prlimit: tool("prlimit", "util-linux")?,
            is_root: is_root(),
        })
    }

    /// The command that runs the program on its stdin in a sandbox.
    pub(super) fn command(&self, interpreter: &Interpreter, worker: usize, timeout: Duration) -> Command {
        let Self { sh, unshare, setpriv, prlimit, is_root } = self;
        let mut command = Command::new(setpriv);
        // A process group of its own: what kills its group does not kill this program.
        command.process_group(0).env_clear();
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        // The order of sets and the threads of numpy are the same in each run.
        command.envs([("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1"), ("LC_ALL", "C.UTF-8")]);
        command.arg("--pdeathsig=KILL").arg(sh).args(["-c", START, "start.sh"]);
        command.arg(std::process::id().to_string()).arg(unshare);
        command.args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]);
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg(sh).args(["-c", ENTER, "enter.sh", ROOT]);
        command.args([TMP_SIZE.to_string(), TMP_FILES.to_string()]);
        interpreter.mounts.iter().for_each(|mount| {
            command.args(mount.arguments());
        });

        command.arg("--").arg(setpriv);
        if *is_root {
            let uid = FIRST_UID + u64::from(std::process::id()) * MOST_WORKERS as u64 + worker as u64;
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
        }
        command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--pdeathsig=KILL"]);
        // Root of a namespace that owns nothing: it can change its root folder, and then it has no rights.
        command.arg(unshare).args(["--user", "--root=.", "--wd=/tmp"]);
        command.arg(prlimit).args(limits::of_process(timeout));
        command.arg(&interpreter.executable).args(["-s", "-B", "-c", SUPERVISE]);
        command
    }
}

/// The path of a command without links, so that it is the same in the root folder of a sandbox.
fn tool(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = on_path(name, package)?;
    Ok(fs::canonicalize(&path).unwrap_or(path))
}

/// The path of a command.
pub(super) fn on_path(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    let problem = || format!("needs {name}, which is not on PATH: install {package}");
    found.ok_or_else(|| Failure::Sandbox { problem: problem() })
}

/// Whether this process is root with all user ids, not only root of a container's own ids.
pub(super) fn is_root() -> bool {
    let uid = fs::metadata("/proc/self").map(|process| process.uid());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid.is_ok_and(|uid| uid == 0) && map.split_whitespace().eq(["0", "0", "4294967295"])
}
