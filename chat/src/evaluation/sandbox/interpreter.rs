//! The Python interpreter of the sandboxes, and the folders that they show.
//!
//! A sandbox has the system's programs and libraries, a few devices, and the libraries of the interpreter. It
//! has no home folders, no `/proc`, no `/run`, and of `/etc` only what the linker reads.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::failure::Failure;

/// Prints what [`Found`] holds.
const DESCRIBE: &str = include_str!("interpreter.py");

/// What every interpreter may need of a system: programs, libraries, where the linker finds them, devices.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/nix/store",
    "/gnu/store",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
];

/// A Python interpreter.
#[derive(Debug)]
pub(super) struct Interpreter {
    /// Its version, such as 3.11.7.
    pub(super) version: String,
    /// Its path, in a sandbox as outside.
    pub(super) executable: PathBuf,
    /// What the root folder of a sandbox holds.
    pub(super) mounts: Vec<Mount>,
}

/// A path that a sandbox shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mount {
    Folder(PathBuf),
    File(PathBuf),
    Link { path: PathBuf, target: PathBuf },
}

/// What an interpreter says of itself.
#[derive(Deserialize)]
struct Found {
    version: String,
    executable: PathBuf,
    places: Vec<PathBuf>,
}

impl Interpreter {
    /// Asks the interpreter `python` what it is and needs. `python` may be a script that starts another one.
    pub(super) fn find(python: &Path) -> Result<Self, Failure> {
        let failed = |problem: String| Failure::Sandbox {
            problem: format!("cannot use {}: {problem}; put a Python 3 first on PATH", python.display()),
        };
        let output = Command::new(python).args(["-I", "-c", DESCRIBE]).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        let found: Found = serde_json::from_slice(&output.stdout).map_err(|error| {
            let said = String::from_utf8_lossy(&output.stderr);
            failed(said.lines().last().map_or_else(|| error.to_string(), str::to_owned))
        })?;

        let system = SYSTEM.iter().map(PathBuf::from).filter(|path| path.symlink_metadata().is_ok());
        Ok(Self {
            version: found.version,
            executable: found.executable,
            mounts: mounts(system.chain(found.places)),
        })
    }
}

/// The mounts that show `paths`, in an order in which they can be made.
fn mounts(paths: impl Iterator<Item = PathBuf>) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for path in paths {
        if mounts.iter().any(|mount| mount.shows(&path)) {
            continue;
        }
        let target = fs::read_link(&path).ok();
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let is_folder = real.is_dir();
        mounts.push(match target {
            // A link to a folder that is not shown becomes a folder.
            Some(target) if !is_folder || mounts.iter().any(|mount| mount.shows(&real)) => {
                Mount::Link { path, target }
            }
            _ if is_folder => Mount::Folder(path),
            _ => Mount::File(path),
        });
    }
    mounts
}

impl Mount {
    /// Whether `path` can be reached through this mount.
    fn shows(&self, path: &Path) -> bool {
        match self {
            Self::Folder(folder) => path.starts_with(folder),
            Self::File(file) => path == file,
            Self::Link { path: link, .. } => path.starts_with(link),
        }
    }

    /// The mount as `enter.sh` takes it.
    pub(super) fn arguments(&self) -> Vec<&OsStr> {
        match self {
            Self::Folder(path) => vec![OsStr::new("folder"), path.as_os_str()],
            Self::File(path) => vec![OsStr::new("file"), path.as_os_str()],
            Self::Link { path, target } => vec![OsStr::new("link"), path.as_os_str(), target.as_os_str()],
        }
    }
}
