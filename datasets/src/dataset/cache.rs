//! Caches tokenized rows on disk, so that a second run with the same data does not tokenize again.
//!
//! The name of a cache file is a hash (two XXH64 hashes with different seeds) of everything that the rows
//! depend on: the bytes of the data files, the tokenizer with its chat template, the settings, the kind of
//! rows, the format of the file, and the version of this program. A cache file is written under a temporary
//! name and then renamed, so it is either complete or absent. Its magic bytes and checksum are verified when
//! it is read, and a damaged file is rebuilt. Processes that need the same rows wait for the process that is
//! tokenizing them.
//!
//! ```text
//! "colossal-chat rows 2\n" | XXH64 of the rest, little endian | postcard: counts, layouts, notes, rows
//! ```
//! Beside them lie numbers that belong to rows, such as log-probabilities under a reference model, in the
//! same form, under the [`Fingerprint`] of whatever they depend on.

use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use super::{Counts, EncodedDataset, FileRead, LoadOptions, TrainingRow};
use crate::error::{Error, Result};
use crate::record::{Layout, Notes, Record};
use crate::table::atomically;
use crate::tokenizer::Tokenizer;

pub use super::{Cache, CacheUse};

/// The magic bytes at the start of a cache file, with the number of the format.
const MAGIC: &[u8] = b"colossal-chat rows 2\n";

#[derive(Serialize, Deserialize)]
struct CachedRows<T> {
    counts: Counts,
    files: Vec<(Layout, Notes)>,
    rows: Vec<T>,
}

impl Cache {
    /// The numbers that [`write_numbers`](Self::write_numbers) has kept under `fingerprint`. `None` if there
    /// are none, or if they are damaged.
    pub fn read_numbers(&self, fingerprint: &str) -> Option<Vec<f64>> {
        open(&self.numbers_path(fingerprint))?.ok()
    }

    /// Keeps `numbers` under `fingerprint`. Returns their file.
    pub fn write_numbers(&self, fingerprint: &str, numbers: &[f64]) -> Result<PathBuf> {
        let path = self.numbers_path(fingerprint);
        let failed = |source| Error::Write { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(failed)?;
        keep(&path, &numbers)?;
        Ok(path)
    }

    fn numbers_path(&self, fingerprint: &str) -> PathBuf {
        self.folder.join(format!("{fingerprint}.numbers"))
    }

    /// Whether the data files are large enough for the cache to be used.
    pub(super) fn is_large_enough(&self, paths: &[PathBuf]) -> Result<bool> {
        let mut bytes = 0;
        for path in paths {
            let metadata = fs::metadata(path);
            bytes += metadata.map_err(|source| Error::Read { path: path.clone(), source })?.len();
        }
        Ok(!paths.is_empty() && bytes >= self.least_bytes)
    }

    /// Loads the rows from the cache, or produces them with `read` and writes them to the cache.
    pub(super) fn load<T: TrainingRow>(
        &self,
        paths: &[PathBuf],
        tokenizer: &Tokenizer,
        options: &LoadOptions,
        read: impl FnOnce() -> Result<EncodedDataset<T>>,
    ) -> Result<EncodedDataset<T>> {
        let path = self.folder.join(format!("{}.rows", key::<T>(paths, tokenizer, options)?));
        let lock = path.with_extension("lock");
        // Some network file systems have no locks. Without a lock, two processes may tokenize the same rows,
        // which is harmless.
        let held = fs::create_dir_all(&self.folder).and_then(|()| open_lock(&lock));
        let held = held.and_then(|file| file.lock().map(|()| file));

        let damaged = match open::<CachedRows<T>>(&path) {
            Some(Ok(kept)) => {
                unlock(held, &lock);
                return Ok(dataset(kept, paths, CacheUse::Read(path)));
            }
            Some(Err(Damaged)) => true,
            None => false,
        };

        let made = read().map(|mut made| {
            made.cache = match keep_rows(&path, &made) {
                Ok(()) if damaged => CacheUse::Rebuilt(path),
                Ok(()) => CacheUse::Written(path),
                Err(error) => CacheUse::Failed(error.to_string()),
            };
            made
        });
        unlock(held, &lock);
        made
    }
}

/// Releases the lock for the next process. A lock file that stays behind does no harm.
fn unlock(held: io::Result<File>, lock: &Path) {
    if held.is_ok() {
        let _ = fs::remove_file(lock);
    }
    drop(held);
}

/// Builds the data set from the contents of a cache file.
fn dataset<T>(kept: CachedRows<T>, paths: &[PathBuf], cache: CacheUse) -> EncodedDataset<T> {
    let files = paths.iter().zip(kept.files);
    let files = files.map(|(path, (layout, notes))| FileRead { path: path.clone(), layout, notes }).collect();
    EncodedDataset { rows: kept.rows, counts: kept.counts, files, cache }
}

/// The error for a cache file whose magic bytes, checksum or contents are wrong.
struct Damaged;

/// Opens the lock file, or creates it.
fn open_lock(path: &Path) -> io::Result<File> {
    match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open_regular(path),
        created => created,
    }
}

/// Opens a file of the cache, which is a regular file. To open a pipe would wait for someone who writes, and
/// a link leads to a file of someone else.
fn open_regular(path: &Path) -> io::Result<File> {
    let found = check_regular(path)?;
    let file = File::open(path)?;
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
        return Err(io::Error::other("this file was replaced while it was opened"));
    }
    Ok(file)
}

fn check_regular(path: &Path) -> io::Result<Metadata> {
    let found = fs::symlink_metadata(path)?;
    if found.is_file() {
        return Ok(found);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "this is no regular file: move it away"))
}

/// Reads a cache file. Returns `None` if it cannot be read.
fn open<T: DeserializeOwned>(path: &Path) -> Option<Result<T, Damaged>> {
    let mut bytes = Vec::new();
    open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)).ok()?;
    let rest = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk::<8>);
    let kept = rest
        .filter(|(sum, payload)| u64::from_le_bytes(**sum) == XxHash64::oneshot(0, payload))
        .and_then(|(_, payload)| postcard::from_bytes(payload).ok());
    Some(kept.ok_or(Damaged))
}

/// Writes the cache file of a data set.
fn keep_rows<T: TrainingRow>(path: &Path, dataset: &EncodedDataset<T>) -> Result<()> {
    #[derive(Serialize)]
    struct Keeping<'a, T> {
        counts: Counts,
        files: Vec<(Layout, &'a Notes)>,
        rows: &'a [T],
    }
    let files = dataset.files.iter().map(|file| (file.layout, &file.notes)).collect();
    keep(path, &Keeping { counts: dataset.counts, files, rows: &dataset.rows })
}

/// Writes a cache file.
fn keep(path: &Path, content: &impl Serialize) -> Result<()> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    match check_regular(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let payload = postcard::to_allocvec(content).map_err(|error| failed(io::Error::other(error)))?;
    atomically(path, true, |file| {
        let sum = XxHash64::oneshot(0, &payload).to_le_bytes();
        [MAGIC, &sum, &payload].iter().try_for_each(|part| file.write_all(part)).map_err(failed)
    })
}

/// Returns the cache key of the rows.
fn key<T: TrainingRow>(paths: &[PathBuf], tokenizer: &Tokenizer, options: &LoadOptions) -> Result<String> {
    let LoadOptions { reading, max_length, on_overlong, limit, cache: _ } = options;
    let mut fingerprint = Fingerprint::default();
    let settings = format!("{reading:?} {max_length} {on_overlong:?} {limit:?}");
    fingerprint.add(MAGIC);
    for part in [T::Source::KIND, &settings, &tokenizer.fingerprint()?] {
        fingerprint.add(part.as_bytes());
    }
    for path in paths {
        // The extensions decide how the bytes are parsed, so they are part of the key.
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        fingerprint.add(name.split_once('.').map_or("", |(_, extensions)| extensions).as_bytes());
        fingerprint.add_file(path)?;
    }
    Ok(fingerprint.finish())
}

/// A hash of everything that a cached file depends on, of which the version of this program is the first
/// part: two XXH64 hashes with different seeds. Lengths are hashed too, so moving bytes from one part to the
/// next changes the hash.
#[derive(Debug)]
pub struct Fingerprint([XxHash64; 2]);

impl Default for Fingerprint {
    fn default() -> Self {
        let mut fingerprint = Self([1, 2].map(XxHash64::with_seed));
        fingerprint.add(env!("CARGO_PKG_VERSION").as_bytes());
        fingerprint
    }
}

impl Fingerprint {
    /// Adds a part.
    pub fn add(&mut self, bytes: &[u8]) {
        for hasher in &mut self.0 {
            hasher.write(&(bytes.len() as u64).to_le_bytes());
            hasher.write(bytes);
        }
    }

    /// Adds the content of a file.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                count => self.add(&buffer[..count]),
            }
        }
        self.add(&[]);
        Ok(())
    }

    /// The hash: 32 hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.map(|hasher| format!("{:016x}", hasher.finish())).concat()
    }
}
