//! The folder of one repository in the cache, in the form that Python's `huggingface_hub` gives it.
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG                 the bytes; ETAG.incomplete while they come
//! models--OWNER--NAME/snapshots/COMMIT/FILE      a link to its blob
//! models--OWNER--NAME/refs/REVISION              the commit that the revision was
//! .locks/models--OWNER--NAME/ETAG.lock           held (flock) by whoever fetches the blob
//! ```
//!
//! The system drops the lock of a process that dies, so no lock is ever stale. Knows no network.

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

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository().join("snapshots").join(commit)
    }

    /// The commit that a revision was when it was fetched last.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let noted = fs::read_to_string(self.repository().join("refs").join(revision)).ok()?;
        Some(noted.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Notes the commit of a revision.
    pub(super) fn note(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.repository().join("refs").join(revision);
        written(&path, Cache::new(self.cache.clone()).repo(self.repo.clone()).create_ref(commit))
    }

    /// Where the bytes with this name are, or will be.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.repository().join("blobs").join(etag)
    }

    /// Where the bytes with this name are while they come.
    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.repository().join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits for the right to fetch a blob, and holds it until the file is dropped. `waiting` is called if
    /// another process has it.
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

    /// Links a blob into a snapshot.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(file);
        let linked = || -> io::Result<()> {
            make_parent(&path)?;
            // A link whose blob was deleted is replaced.
            if fs::symlink_metadata(&path).is_ok() {
                fs::remove_file(&path)?;
            }
            match std::os::unix::fs::symlink(format!("../../blobs/{etag}"), &path) {
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

/// Makes the folder of a file.
pub(super) fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Names the file that could not be written.
pub(super) fn written<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Write { path: path.to_owned(), source })
}
