//! One request to the system, and the progress of the transfer to which it belongs.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{BLOCK_BYTES, DiskFile};
use crate::Error;
use crate::arena::Arena;

/// The number of times that a request is asked again after an interruption, without progress in between.
const MAX_ATTEMPTS: u32 = 1000;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// From a file to an arena.
    Read,
    /// From an arena to a file.
    Write,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The progress of a transfer.
#[derive(Debug)]
pub(super) struct Progress {
    /// The number of requests that are not finished.
    left: AtomicUsize,
    /// The first error.
    error: Mutex<Option<Error>>,
}

impl Progress {
    pub(super) fn new(requests: usize) -> Self {
        Self { left: AtomicUsize::new(requests), error: Mutex::new(None) }
    }

    /// Whether no request is left.
    pub(super) fn is_finished(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Whether a request has failed, so that the others need not be asked.
    pub(super) fn has_failed(&self) -> bool {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes the first error.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts a request as finished, after its error is kept.
    pub(super) fn finish_one(&self, error: Option<Error>) {
        if let Some(error) = error {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.left.fetch_sub(1, Ordering::Release);
    }
}

/// What follows from an answer of the system.
#[derive(Debug)]
pub(super) enum Step {
    /// The request is finished.
    Finished,
    /// The rest must be asked for.
    Again,
    /// The request failed.
    Failed(Error),
}

/// One read or write of at most [`REQUEST_BYTES`](super::REQUEST_BYTES).
#[derive(Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) file: Arc<DiskFile>,
    pub(super) arena: Arc<Arena>,
    /// The offset in the file.
    pub(super) offset: u64,
    /// The offset in the arena.
    pub(super) start: usize,
    /// The number of bytes to ask for, in whole blocks for direct I/O.
    pub(super) length: usize,
    /// The number of those that the file has.
    pub(super) wanted: usize,
    /// The number of interruptions since the last progress.
    pub(super) attempts: u32,
    pub(super) progress: Arc<Progress>,
}

impl Request {
    /// Asks the system and blocks until it answers with a number of bytes.
    pub(super) fn run(&self) -> io::Result<usize> {
        let range = self.start..self.start + self.length;
        match self.operation {
            Operation::Read => self.file.read_once(&self.arena, range, self.offset),
            Operation::Write => self.file.write_once(&self.arena, range, self.offset),
        }
    }

    /// Goes on behind the bytes that the system has transferred.
    pub(super) fn advance(&mut self, answer: io::Result<usize>) -> Step {
        let count = match answer {
            Ok(count) => count,
            Err(error) if is_interruption(&error) && self.attempts < MAX_ATTEMPTS => {
                self.attempts += 1;
                return Step::Again;
            }
            Err(error) => return Step::Failed(self.error(error.to_string())),
        };
        if count >= self.wanted {
            self.wanted = 0;
            return Step::Finished;
        }
        // Direct I/O can go on only at a block.
        let unit = if self.file.is_direct() { BLOCK_BYTES } else { 1 };
        let whole = count / unit * unit;
        if whole == 0 {
            return Step::Failed(self.error(format!(
                "the system transferred {count} bytes of {}; a file must not become shorter while it is open",
                self.wanted
            )));
        }
        self.offset += whole as u64;
        self.start += whole;
        self.length -= whole;
        self.wanted -= whole;
        self.attempts = 0;
        Step::Again
    }

    fn error(&self, problem: String) -> Error {
        Error::DiskTransfer {
            operation: self.operation.name(),
            file: self.file.describe(),
            offset: self.offset,
            length: self.wanted,
            problem,
        }
    }
}

/// Whether an error says to ask again. The kernel cancels requests of `io_uring` whose thread has ended.
fn is_interruption(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(is_scratch: bool, length: usize, wanted: usize) -> (Request, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = if is_scratch {
            DiskFile::scratch(folder.path(), 1 << 20)
        } else {
            // The file system of /proc has no direct I/O.
            DiskFile::open(std::path::Path::new("/proc/self/status"))
        };
        let request = Request {
            operation: Operation::Read,
            file: Arc::new(file.unwrap()),
            arena: Arena::reserve(1 << 20).unwrap(),
            offset: 8192,
            start: 4096,
            length,
            wanted,
            attempts: 0,
            progress: Arc::new(Progress::new(1)),
        };
        (request, folder)
    }

    #[test]
    fn a_short_answer_is_continued() {
        let (mut buffered, _folder) = request(false, 100, 90);
        assert!(!buffered.file.is_direct());
        assert!(matches!(buffered.advance(Ok(33)), Step::Again));
        let place = (buffered.offset, buffered.start, buffered.length, buffered.wanted);
        assert_eq!(place, (8225, 4129, 67, 57));
        assert!(matches!(buffered.advance(Ok(57)), Step::Finished));

        let (mut direct, _folder) = request(true, 12288, 9000);
        if !direct.file.is_direct() {
            println!("the folder for temporary files has no direct I/O: not tested here");
            return;
        }
        // Of 5000 bytes, one block is whole, and the request goes on behind it.
        assert!(matches!(direct.advance(Ok(5000)), Step::Again));
        let place = (direct.offset, direct.start, direct.length, direct.wanted);
        assert_eq!(place, (12288, 8192, 8192, 4904));
        let Step::Failed(error) = direct.advance(Ok(4000)) else { panic!("no block is whole") };
        assert!(error.to_string().contains("transferred 4000 bytes of 4904"), "{error}");
        assert!(matches!(direct.advance(Ok(4904)), Step::Finished));
    }

    #[test]
    fn an_interruption_is_repeated_but_not_for_ever() {
        let (mut request, _folder) = request(false, 100, 100);
        let interrupted = |code| Err(io::Error::from_raw_os_error(code));
        for code in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            assert!(matches!(request.advance(interrupted(code)), Step::Again));
        }
        assert_eq!(request.attempts, 3);
        assert!(matches!(request.advance(Ok(1)), Step::Again));
        for _ in 0..MAX_ATTEMPTS {
            assert!(matches!(request.advance(interrupted(libc::EAGAIN)), Step::Again));
        }
        let Step::Failed(error) = request.advance(interrupted(libc::EAGAIN)) else { panic!("too often") };
        assert!(
            error.to_string().starts_with("read of 99 bytes at offset 8193 of /proc/self/status: "),
            "{error}"
        );
        assert!(matches!(request.advance(interrupted(libc::EIO)), Step::Failed(_)));
    }

    #[test]
    fn the_first_error_is_kept() {
        let (request, _folder) = request(false, 100, 100);
        let progress = Progress::new(3);
        progress.finish_one(None);
        assert!(!progress.has_failed());
        progress.finish_one(Some(request.error("first".to_owned())));
        assert!(progress.has_failed() && !progress.is_finished());
        progress.finish_one(Some(request.error("second".to_owned())));
        assert!(progress.is_finished());
        assert!(progress.take_error().unwrap().to_string().ends_with("first"));
    }
}
