//! Files for direct I/O: scratch files without a name, and files that are only read.
//!
//! A scratch file has all its space from the start, so a full disk is an error when the file is made and not
//! in the middle of a run. Nobody else can open it, and the system removes it when the process ends, however
//! it ends.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::arena::{Arena, page_bytes};

/// What offsets, lengths and addresses of direct I/O are multiples of, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// The largest request in bytes.
pub const REQUEST_BYTES: usize = 1 << 20;

/// A file that a [`DiskQueue`](super::DiskQueue) reads and writes.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    path: PathBuf,
    len: u64,
    is_direct: bool,
    is_writable: bool,
}

impl DiskFile {
    /// Makes an unnamed file of `bytes` bytes, rounded up to whole pages of memory, in `folder`, with all its
    /// space allocated (on a file system that cannot allocate ahead, only its length is set). Its contents
    /// are zeros.
    ///
    /// Fails with [`Error::DiskSpace`] if the disk has not as much space.
    pub fn scratch(folder: &Path, bytes: u64) -> Result<Self, Error> {
        let refused = |error: io::Error| failed("scratch", folder, &error.to_string());
        let file = match unnamed(folder) {
            Err(error) if is_unsupported(&error) => named_and_removed(folder),
            result => result,
        }
        .map_err(refused)?;

        let free = free_bytes(&file).map_err(refused)?;
        let too_large = |problem: String| Error::DiskSpace {
            folder: folder.to_owned(),
            wanted: bytes,
            free: free.unwrap_or(0),
            problem,
        };
        let len = bytes
            .checked_next_multiple_of(page_bytes() as u64)
            .filter(|&len| i64::try_from(len).is_ok())
            .ok_or_else(|| too_large("no file is that large".to_owned()))?;
        // Asked first, because an allocation that fails has taken all free space from others before.
        if free.is_some_and(|free| len > free) {
            return Err(too_large("the disk is too full".to_owned()));
        }
        allocate(&file, len).map_err(|error| too_large(error.to_string()))?;
        let is_direct = make_direct(&file);
        Ok(Self { file, path: folder.to_owned(), len, is_direct, is_writable: true })
    }

    /// Opens the regular file at `path` to read it. It must not be written or shortened while it is open.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refused = |error: io::Error| failed("open", path, &error.to_string());
        // Checked before the opening too, which would wait at a pipe.
        let is_file = fs::metadata(path).map_err(refused)?.is_file();
        if !is_file {
            return Err(failed("open", path, "it is not a regular file"));
        }
        let file = File::open(path).map_err(refused)?;
        let len = file.metadata().map_err(refused)?.len();
        let is_direct = make_direct(&file);
        Ok(Self { file, path: path.to_owned(), len, is_direct, is_writable: false })
    }

    /// The path; of a scratch file, its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length in bytes when the file was opened or made.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether transfers pass the page cache, and so must be aligned to [`BLOCK_BYTES`].
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the file can be written: a scratch file can.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Fills `buffer` with the bytes from `offset` on, which need no alignment, and blocks until they are
    /// there. Fails if the file has fewer bytes.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let length = buffer.len();
        let refused = |problem: String| Error::DiskTransfer {
            operation: "read",
            file: self.describe(),
            offset,
            length,
            problem,
        };
        if offset.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(refused(format!("the file has {} bytes", self.len)));
        }
        if self.is_direct {
            self.read_windows(buffer, offset)
        } else {
            self.file.read_exact_at(buffer, offset)
        }
        .map_err(|error| refused(error.to_string()))
    }

    /// Reads through a window of whole blocks.
    fn read_windows(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let widened = buffer.len().saturating_add(2 * BLOCK_BYTES);
        let window = Arena::reserve(widened.min(REQUEST_BYTES)).map_err(io::Error::other)?;
        let mut filled = 0;
        while filled < buffer.len() {
            let position = offset + filled as u64;
            let skipped = (position % BLOCK_BYTES as u64) as usize;
            let blocks = (skipped + buffer.len() - filled).next_multiple_of(BLOCK_BYTES);
            let count = loop {
                match self.read_once(&window, 0..blocks.min(window.len()), position - skipped as u64) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => break result?,
                }
            };
            let usable = count.saturating_sub(skipped).min(buffer.len() - filled);
            if usable == 0 {
                return Err(io::Error::other("the file has become shorter"));
            }
            window.read_bytes(skipped, &mut buffer[filled..filled + usable]).map_err(io::Error::other)?;
            filled += usable;
        }
        Ok(())
    }

    /// One `pread` from `offset` to `range` of an arena. Returns the number of bytes read.
    pub(super) fn read_once(&self, arena: &Arena, range: Range<usize>, offset: u64) -> io::Result<usize> {
        let address = arena.host_address("read", range.clone()).map_err(io::Error::other)?.cast();
        // SAFETY: the range lies in the arena, which outlives the call; by the contract of the transfers
        // nobody else uses it meanwhile.
        let count = unsafe { libc::pread(self.descriptor(), address, range.len(), offset.cast_signed()) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// One `pwrite` from `range` of an arena to `offset`. Returns the number of bytes written.
    pub(super) fn write_once(&self, arena: &Arena, range: Range<usize>, offset: u64) -> io::Result<usize> {
        let address = arena.host_address("write", range.clone()).map_err(io::Error::other)?;
        let address = address.cast_const().cast();
        // SAFETY: as in `read_once`.
        let count = unsafe { libc::pwrite(self.descriptor(), address, range.len(), offset.cast_signed()) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// The descriptor, which is open as long as this file lives.
    pub(super) fn descriptor(&self) -> libc::c_int {
        self.file.as_raw_fd()
    }

    /// How errors call the file.
    pub(super) fn describe(&self) -> String {
        let path = self.path.display();
        if self.is_writable { format!("the scratch file in {path}") } else { path.to_string() }
    }
}

/// Makes a file without a name, where the file system can.
fn unnamed(folder: &Path) -> io::Result<File> {
    // O_EXCL: the file can never get a name.
    let flags = libc::O_TMPFILE | libc::O_EXCL;
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(folder)
}

/// Makes a file with a random name and removes the name at once.
fn named_and_removed(folder: &Path) -> io::Result<File> {
    let random = || RandomState::new().build_hasher().finish();
    let path = folder.join(format!(".scratch-{:016x}{:016x}", random(), random()));
    // `create_new` is O_CREAT | O_EXCL, which fails if anything has the name.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Whether a file system or an old kernel says with an error that it has no unnamed files.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS))
}

/// Turns the page cache off for this descriptor. Returns whether the file system allows that.
fn make_direct(file: &File) -> bool {
    let descriptor = file.as_raw_fd();
    // SAFETY: plain calls on an open descriptor.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        flags >= 0 && libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_DIRECT) == 0
    }
}

/// The bytes that this user may still allocate in the file system of `file`; `None` if it has no limit or
/// does not tell.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let mut numbers = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: an open descriptor, and a place for the answer, which is plain numbers.
    let numbers = unsafe {
        if libc::fstatvfs(file.as_raw_fd(), numbers.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        numbers.assume_init()
    };
    Ok((numbers.f_blocks > 0).then(|| numbers.f_bavail.saturating_mul(numbers.f_frsize)))
}

/// Allocates the first `len` bytes of an empty file, or sets its length if the file system cannot allocate.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    loop {
        // SAFETY: plain numbers on an open descriptor.
        let code = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len.cast_signed()) };
        if code == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return file.set_len(len),
            _ => return Err(error),
        }
    }
}

fn failed(call: &'static str, path: &Path, problem: &str) -> Error {
    Error::Disk { call, file: path.display().to_string(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::*;
    use crate::disk::DiskQueue;

    #[test]
    fn a_scratch_file_has_its_space_and_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = DiskFile::scratch(folder.path(), 5 * 4096 - 1).unwrap();
        let metadata = file.file.metadata().unwrap();
        assert_eq!((file.len(), metadata.len()), (5 * 4096, 5 * 4096));
        assert!(metadata.blocks() * 512 >= 5 * 4096, "{} blocks", metadata.blocks());
        assert_eq!((metadata.nlink(), metadata.mode() & 0o777), (0, 0o600));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(file.is_writable() && file.path() == folder.path());
        let empty = DiskFile::scratch(folder.path(), 0).unwrap();
        assert!(empty.is_empty());
    }

    #[test]
    fn a_file_system_without_unnamed_files_gets_a_name_for_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let file = named_and_removed(folder.path()).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.nlink(), metadata.mode() & 0o777), (0, 0o600));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        for code in [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL] {
            assert!(is_unsupported(&io::Error::from_raw_os_error(code)));
        }
        for code in [libc::ENOENT, libc::EACCES, libc::ENOSPC] {
            assert!(!is_unsupported(&io::Error::from_raw_os_error(code)));
        }
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(&tempfile::tempfile_in(folder.path()).unwrap()).unwrap();
        for wanted in [free.unwrap_or(0) + (1 << 40), 1 << 60, u64::MAX] {
            let error = DiskFile::scratch(folder.path(), wanted).unwrap_err();
            let Error::DiskSpace { free: told, .. } = &error else { panic!("{error}") };
            let message = error.to_string();
            let start = format!(
                "a scratch file of {wanted} bytes does not fit in {}, where {told} bytes are free: ",
                folder.path().display()
            );
            assert!(message.starts_with(&start), "{message}");
            // Others write to the same disk.
            assert!(free.is_none_or(|free| free.abs_diff(*told) < free / 2), "{free:?} {told}");
        }
        let error = DiskFile::scratch(&folder.path().join("none"), 4096).unwrap_err().to_string();
        assert!(error.starts_with("scratch of ") && error.contains("/none: No such file"), "{error}");
    }

    #[test]
    fn bytes_are_read_from_any_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        let bytes: Vec<u8> = (0..3 * REQUEST_BYTES + 777).map(|index| ((index * 31) >> 3) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let direct = DiskFile::open(&path).unwrap();
        let mut buffered = DiskFile::open(&path).unwrap();
        buffered.file = File::open(&path).unwrap();
        buffered.is_direct = false;
        assert_eq!((direct.len(), direct.is_writable()), (bytes.len() as u64, false));
        for file in [&direct, &buffered] {
            let mut buffer = vec![0; bytes.len()];
            file.read_at(&mut buffer, 0).unwrap();
            assert!(buffer == bytes);
            for (offset, length) in
                [(1, 1), (4095, 2), (4096, 4096), (5000, 2 * REQUEST_BYTES), (bytes.len() - 3, 3), (9, 0)]
            {
                let mut buffer = vec![0; length];
                file.read_at(&mut buffer, offset as u64).unwrap();
                assert!(buffer == bytes[offset..offset + length], "{length} at {offset}");
            }
            let error = file.read_at(&mut [0; 4], bytes.len() as u64 - 3).unwrap_err().to_string();
            assert!(
                error.contains("read of 4 bytes at offset 3146502 of /")
                    && error.contains("the file has 3146505 bytes"),
                "{error}"
            );
        }
        fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(direct.read_at(&mut [0; 4], 200).unwrap_err().to_string().contains("become shorter"));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let error = DiskFile::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("open of /") && error.ends_with(": it is not a regular file"), "{error}");
        let error = DiskFile::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn the_reason_of_the_system_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frozen");
        fs::write(&path, [1; 8192]).unwrap();
        let mut file = DiskFile::open(&path).unwrap();
        file.is_writable = true;
        let (file, arena) = (Arc::new(file), Arena::reserve(8192).unwrap());
        for mut queue in [DiskQueue::open().unwrap(), DiskQueue::with_threads(1).unwrap()] {
            let transfer = queue.write(&file, 4096, &arena, 0..4096).unwrap();
            let error = queue.wait(transfer).unwrap_err().to_string();
            assert!(error.starts_with("write of 4096 bytes at offset 4096 of "), "{error}");
            assert!(error.ends_with(": Bad file descriptor (os error 9)"), "{error}");
        }
    }
}
