//! Downloads a file of a repository into the cache. Interrupted downloads are resumed, and the result is
//! checked.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::bounds::{self, Pace};
use super::cache::{CacheFolder, make_parent, written};
use super::client::{Client, FileInfo};
use super::name::{Kind, RepositoryName, blob_name, percent_encoded};
use super::settings::HubSettings;
use crate::error::{Error, Result};
use crate::small_file::SMALL_FILE_BYTES;

/// How often an interrupted transfer is tried in total.
const ATTEMPTS: usize = 4;

/// A repository at one commit.
pub(super) struct Snapshot<'a> {
    pub(super) settings: &'a HubSettings,
    pub(super) name: &'a RepositoryName,
    pub(super) client: &'a Client,
    pub(super) cache: &'a CacheFolder,
    /// 40 hexadecimal digits.
    pub(super) commit: &'a str,
}

/// A file of the repository that is not in the snapshot.
struct Missing<'a> {
    file: &'a str,
    address: String,
    info: FileInfo,
    /// The name of its blob.
    etag: String,
}

impl Snapshot<'_> {
    /// Returns the path of a file in the cache, and downloads the file if it is missing. The name must be a
    /// plain path.
    pub(super) fn fetch(&self, file: &str) -> Result<PathBuf> {
        self.fetch_files(&[file]).map(|mut paths| paths.remove(0))
    }

    /// Returns the paths of files in the cache, and downloads those that are missing, if all of them fit on
    /// the disk. The names must be plain paths.
    pub(super) fn fetch_files(&self, files: &[&str]) -> Result<Vec<PathBuf>> {
        if files.len() > bounds::FILES {
            let reason = format!("there are {} of them, more than {}", files.len(), bounds::FILES);
            return Err(self.failed("the files", reason));
        }
        let snapshot = self.cache.snapshot(self.commit);
        let missing = files.iter().filter(|file| !snapshot.join(file).is_file());
        let missing = missing.map(|file| self.ask(file)).collect::<Result<Vec<_>>>()?;
        let sizes = missing.iter().map(|missing| self.missing_bytes(missing));
        self.check_space("the files", sizes.fold(0, u64::saturating_add))?;
        missing.iter().try_for_each(|missing| self.download(missing))?;
        Ok(files.iter().map(|file| snapshot.join(file)).collect())
    }

    /// Asks the hub for the size and the `ETag` of a file.
    fn ask<'a>(&self, file: &'a str) -> Result<Missing<'a>> {
        let kind = self.name.kind;
        let prefix = kind.in_address();
        let address = format!("{prefix}/{}/resolve/{}/{}", self.name.id, self.commit, percent_encoded(file));
        let info = self.client.file_info(&address).map_err(|reason| self.failed(file, reason))?;
        let etag = blob_name(&info.etag).ok_or_else(|| self.hostile("ETag", &info.etag))?;
        let may_be_large = kind == Kind::Dataset || file.ends_with(".safetensors");
        if !may_be_large && info.size > SMALL_FILE_BYTES {
            return Err(
                self.failed(file, format!("it has {} bytes, more than {SMALL_FILE_BYTES}", info.size))
            );
        }
        Ok(Missing { file, address, info, etag })
    }

    /// The bytes of a file that are still to come.
    fn missing_bytes(&self, missing: &Missing<'_>) -> u64 {
        let held = |path: &Path| fs::metadata(path).map_or(0, |held| held.len());
        let (blob, incomplete) = (self.cache.blob(&missing.etag), self.cache.incomplete(&missing.etag));
        missing.info.size.saturating_sub(held(&blob).max(held(&incomplete)))
    }

    fn check_space(&self, file: &str, missing: u64) -> Result<()> {
        let folder = self.settings.cache.clone();
        bounds::too_little_space(&folder, missing).map_or(Ok(()), |free| {
            let (model, file) = (self.name.full.clone(), file.to_owned());
            Err(Error::HubSpace { model, file, missing, free, folder })
        })
    }

    fn download(&self, missing: &Missing<'_>) -> Result<()> {
        let Missing { file, address, info, etag } = missing;
        let blob = self.cache.blob(etag);
        let _lock =
            self.cache.lock(etag, || self.report(&format!("{file}: another process fetches it; waiting")))?;
        let held = fs::metadata(&blob).is_ok_and(|held| held.len() == info.size);
        if !held {
            let incomplete = self.cache.incomplete(etag);
            self.transfer(file, address, info, &incomplete)?;
            self.check(file, etag, &incomplete)?;
            written(&blob, fs::rename(&incomplete, &blob))?;
        }
        self.cache.link(self.commit, file, etag).map(drop)
    }

    /// The error for an unsafe name chosen by the repository.
    pub(super) fn hostile(&self, what: &'static str, found: &str) -> Error {
        Error::HostileName { model: self.name.full.clone(), what, found: found.to_owned() }
    }

    fn transfer(&self, file: &str, address: &str, info: &FileInfo, incomplete: &Path) -> Result<()> {
        written(incomplete, make_parent(incomplete))?;
        if info.size == 0 {
            written(incomplete, File::create(incomplete))?;
        }
        let mut progress = Progress::new(self, file, info.size);
        for attempt in 1..=ATTEMPTS {
            let start = fs::metadata(incomplete).map_or(0, |held| held.len());
            if start == info.size && incomplete.is_file() {
                break;
            }
            // An incomplete file longer than the expected size belongs to another file.
            let start = if start > info.size { 0 } else { start };
            match self.append(address, start, info.size, incomplete, &mut progress)? {
                Ok(()) => break,
                Err(reason) if attempt == ATTEMPTS || progress.is_too_slow => {
                    return Err(self.failed(file, reason));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(300)),
            }
        }
        Ok(())
    }

    /// Appends bytes from `start` on. The outer error comes from the disk, the inner one from the network.
    fn append(
        &self,
        address: &str,
        start: u64,
        size: u64,
        path: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<Result<(), String>> {
        let (reader, resumes) = match self.client.bytes_from(address, start) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let start = if resumes { start } else { 0 };
        let mut out = written(path, File::options().create(true).truncate(false).write(true).open(path))?;
        written(
            path,
            out.set_len(start).and_then(|()| io::Seek::seek(&mut out, io::SeekFrom::End(0)).map(drop)),
        )?;

        // One extra byte is enough to notice a file that is too long.
        let mut reader = reader.take(size - start + 1);
        let mut buffer = vec![0; 1 << 16];
        let mut done = start;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    written(path, out.write_all(&buffer[..count]))?;
                    done += count as u64;
                    if progress.came(count as u64) {
                        self.check_space(progress.file, size.saturating_sub(done))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Err(self.client.explain_io(&error))),
            }
            progress.show(done);
            if let Err(reason) = progress.check_pace() {
                return Ok(Err(reason));
            }
        }
        written(path, out.sync_all())?;
        Ok(if done == size { Ok(()) } else { Err(format!("{done} of {size} bytes came")) })
    }

    /// Checks the SHA-256 of a large file, which is its `ETag`. Other `ETag`s cannot be checked.
    fn check(&self, file: &str, etag: &str, path: &Path) -> Result<()> {
        if etag.len() != 64 || !etag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(());
        }
        let mut hasher = Sha256::new();
        let read = File::open(path).and_then(|mut bytes| io::copy(&mut bytes, &mut hasher));
        read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let found = format!("{:x}", hasher.finalize());
        if found.eq_ignore_ascii_case(etag) {
            return Ok(());
        }
        written(path, fs::remove_file(path))?;
        Err(self.failed(
            file,
            format!("its SHA-256 is {found} and should be {etag}; what came was removed: try again"),
        ))
    }

    fn failed(&self, file: &str, reason: String) -> Error {
        self.settings.failed(self.name, file, reason)
    }

    /// Prints a line of progress. Errors of stderr are ignored, so the download continues.
    fn report(&self, text: &str) {
        if self.settings.progress {
            let _ = writeln!(io::stderr(), "{}: {text}", self.name.full);
        }
    }
}

/// Prints the progress of a transfer at regular intervals, and checks its speed.
struct Progress<'a> {
    snapshot: &'a Snapshot<'a>,
    file: &'a str,
    size: u64,
    last_report: Instant,
    pace: Pace,
    /// The bytes that came, in all attempts.
    bytes: u64,
    is_too_slow: bool,
}

impl<'a> Progress<'a> {
    const EVERY: Duration = Duration::from_secs(5);
    /// The bytes after which the space of the disk is checked again.
    const CHECKED_BYTES: u64 = 256 << 20;

    fn new(snapshot: &'a Snapshot<'a>, file: &'a str, size: u64) -> Self {
        if size > 1 << 20 {
            snapshot.report(&format!("fetching {file}, {} MB", size.div_ceil(1_000_000)));
        }
        let pace = Pace::new(snapshot.settings.timeout);
        Self { snapshot, file, size, last_report: Instant::now(), pace, bytes: 0, is_too_slow: false }
    }

    /// Counts bytes. Returns whether so many came that the space of the disk should be checked again.
    fn came(&mut self, count: u64) -> bool {
        let before = self.bytes;
        self.bytes += count;
        before / Self::CHECKED_BYTES != self.bytes / Self::CHECKED_BYTES
    }

    fn check_pace(&mut self) -> Result<(), String> {
        let pace = self.pace.check(self.bytes);
        self.is_too_slow = pace.is_err();
        pace
    }

    fn show(&mut self, done: u64) {
        if self.last_report.elapsed() > Self::EVERY {
            self.last_report = Instant::now();
            let (done, size) = (done / 1_000_000, self.size.div_ceil(1_000_000));
            self.snapshot.report(&format!("{}: {done} of {size} MB", self.file));
        }
    }
}
