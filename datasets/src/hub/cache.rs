//! The folder of one repository in the cache, in the layout of Python's `huggingface_hub`.
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG                 the bytes; ETAG.incomplete during the download
//! models--OWNER--NAME/snapshots/COMMIT/FILE      a link to its blob
//! models--OWNER--NAME/refs/REVISION              the commit of the revision at the last download
//! .locks/models--OWNER--NAME/ETAG.lock           held (flock) by the process that downloads the blob
//! ```
//!
//! The operating system releases the lock of a process that dies, so no lock is ever stale. This module does
//! not use the network.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo};

use super::name::{RepositoryName, is_commit};
use crate::error::{Error, Result};

/// The cache of one repository.
pub(super) struct CacheFolder {
    cache: PathBuf,
    repo: Repo,
}

impl CacheFolder {
    pub(super) fn new(cache: &Path, name: &RepositoryName) -> Self {
        Self { cache: cache.to_owned(), repo: name.repo() }
    }

    /// The folder with the files of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository().join("snapshots").join(commit)
    }

    /// The commit of a revision at the last download.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let noted = fs::read_to_string(self.repository().join("refs").join(revision)).ok()?;
        Some(noted.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Records the commit of a revision.
    pub(super) fn note(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.repository().join("refs").join(revision);
        written(&path, Cache::new(self.cache.clone()).repo(self.repo.clone()).create_ref(commit))
    }

    /// The path of the blob with this `ETag`, which may not exist yet.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.repository().join("blobs").join(etag)
    }

    /// The path of the blob with this `ETag` during its download.
    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.repository().join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits for the lock of a blob, and holds it until the returned file is dropped. `waiting` is called if
    /// another process holds the lock.
    pub(super) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<File> {
        let path = self.cache.join(".locks").join(self.repo.folder_name()).join(format!("{etag}.lock"));
        let open = || -> io::Result<File> {
            make_parent(&path)?;
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    waiting();
                    file.lock()?;
                }
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
            Ok(file)
        };
        written(&path, open())
    }

    /// Links a blob into a snapshot. `file` may lie in folders of the repository.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(file);
        let linked = || -> io::Result<()> {
            make_parent(&path)?;
            // A link to a deleted blob is replaced.
            if fs::symlink_metadata(&path).is_ok() {
                fs::remove_file(&path)?;
            }
            let up = "../".repeat(2 + file.matches('/').count());
            match std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        };
        written(&path, linked())?;
        Ok(path)
    }

    fn repository(&self) -> PathBuf {
        self.cache.join(self.repo.folder_name())
    }
}

/// Creates the parent folder of a file.
pub(super) fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Adds the path to the error if the file could not be written.
pub(super) fn written<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Write { path: path.to_owned(), source })
}
