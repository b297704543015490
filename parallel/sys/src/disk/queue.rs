//! The queue: splits transfers into requests, keeps many of them in flight and settles their answers.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::request::{Operation, Progress, Request, Step};
use super::threads::Threads;
use super::uring::Uring;
use super::{BLOCK_BYTES, DiskFile, QUEUE_DEPTH, REQUEST_BYTES};
use crate::Error;
use crate::arena::{Arena, page_bytes};

/// The threads of a queue on a system without `io_uring`.
const THREADS: usize = 4;

/// A transfer that was started. Dropping it does not stop it.
#[derive(Debug)]
#[must_use = "the range is in use until the transfer is waited for"]
pub struct Transfer {
    progress: Arc<Progress>,
}

/// How requests reach the system.
enum Mechanism {
    Uring(Box<Uring>),
    Threads(Threads),
}

/// A queue of transfers. See the description of the module [`disk`](super).
///
/// Dropping a queue waits for all its transfers.
pub struct DiskQueue {
    mechanism: Mechanism,
    /// The requests that do not fit into the depth of the queue.
    waiting: VecDeque<Request>,
    in_flight: usize,
    most_in_flight: usize,
    bytes_read: u64,
    bytes_written: u64,
}

impl DiskQueue {
    /// Opens a queue over `io_uring`, or over 4 threads if the system does not allow that.
    pub fn open() -> Result<Self, Error> {
        Self::with_uring().or_else(|_| Self::with_threads(THREADS))
    }

    /// Opens a queue over `count` threads, at least one. Fails if the system refuses them.
    pub fn with_threads(count: usize) -> Result<Self, Error> {
        let threads = Threads::open(count).map_err(|error| failed("open", "threads", &error))?;
        Ok(Self::new(Mechanism::Threads(threads)))
    }

    /// Opens a queue over `io_uring`.
    pub(super) fn with_uring() -> Result<Self, Error> {
        let ring = Uring::open().map_err(|error| failed("open", "io_uring", &error))?;
        Ok(Self::new(Mechanism::Uring(Box::new(ring))))
    }

    fn new(mechanism: Mechanism) -> Self {
        let waiting = VecDeque::new();
        Self { mechanism, waiting, in_flight: 0, most_in_flight: 0, bytes_read: 0, bytes_written: 0 }
    }

    /// How requests reach the system: `io_uring` or `threads`.
    pub fn mechanism(&self) -> &'static str {
        match self.mechanism {
            Mechanism::Uring(_) => "io_uring",
            Mechanism::Threads(_) => "threads",
        }
    }

    /// The bytes that this queue has read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The bytes that this queue has written so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// The largest number of requests that were in flight at the same time.
    pub fn most_in_flight(&self) -> usize {
        self.most_in_flight
    }

    /// Starts to read `file` from `offset` (bytes) on into `range` (bytes) of `arena`.
    ///
    /// Nobody may use the range, release it or give it to another transfer until [`Self::wait`] has returned
    /// or [`Self::is_done`] has answered `true`: its contents are undefined meanwhile.
    ///
    /// The range may reach beyond the end of the file by less than a page of memory. What is there of that
    /// page is undefined afterwards: left as it is, or zeros.
    ///
    /// Fails if the range does not lie in the arena or the file, or if the file is direct and the offset or
    /// the range is not aligned to [`BLOCK_BYTES`]. After [`Error::DiskQueue`], here or from any other call,
    /// ranges of unfinished transfers stay in use until the queue is dropped.
    pub fn read(
        &mut self,
        file: &Arc<DiskFile>,
        offset: u64,
        arena: &Arc<Arena>,
        range: Range<usize>,
    ) -> Result<Transfer, Error> {
        self.start(Operation::Read, (file, offset), (arena, range))
    }

    /// Starts to write `range` (bytes) of `arena` to `file` from `offset` (bytes) on.
    ///
    /// Nobody may write the range, release it or read into it until [`Self::wait`] has returned or
    /// [`Self::is_done`] has answered `true`: what the file gets is undefined otherwise. The tensors over the
    /// range may be read meanwhile.
    ///
    /// Fails as [`Self::read`] does, and if the file is open only to read or the range would make it longer.
    pub fn write(
        &mut self,
        file: &Arc<DiskFile>,
        offset: u64,
        arena: &Arc<Arena>,
        range: Range<usize>,
    ) -> Result<Transfer, Error> {
        self.start(Operation::Write, (file, offset), (arena, range))
    }

    /// Whether a transfer is finished, with or without an error, which [`Self::wait`] then returns. Starts
    /// waiting requests, and does not block. Fails if the mechanism of the queue fails.
    pub fn is_done(&mut self, transfer: &Transfer) -> Result<bool, Error> {
        if !transfer.progress.is_finished() {
            self.run_requests(false)?;
        }
        Ok(transfer.progress.is_finished())
    }

    /// Blocks until a transfer of this queue is finished. Returns the first error of its requests, of which
    /// none is in flight any more.
    #[expect(clippy::needless_pass_by_value, reason = "a transfer is waited for once")]
    pub fn wait(&mut self, transfer: Transfer) -> Result<(), Error> {
        while !transfer.progress.is_finished() {
            if self.in_flight == 0 && self.waiting.is_empty() {
                let foreign = io::Error::other("this transfer is not one of the queue's");
                return Err(failed("wait", self.mechanism(), &foreign));
            }
            self.run_requests(true)?;
        }
        transfer.progress.take_error().map_or(Ok(()), Err)
    }

    fn start(
        &mut self,
        operation: Operation,
        (file, offset): (&Arc<DiskFile>, u64),
        (arena, range): (&Arc<Arena>, Range<usize>),
    ) -> Result<Transfer, Error> {
        check_place(operation, (file, offset), (arena, &range))?;
        // Without what lies behind the end of the file.
        let wanted = file.len().saturating_sub(offset).min(range.len() as u64) as usize;
        let progress = Arc::new(Progress::new(wanted.div_ceil(REQUEST_BYTES)));
        for done in (0..wanted).step_by(REQUEST_BYTES) {
            self.waiting.push_back(Request {
                operation,
                file: Arc::clone(file),
                arena: Arc::clone(arena),
                offset: offset + done as u64,
                start: range.start + done,
                length: (range.len() - done).min(REQUEST_BYTES),
                wanted: (wanted - done).min(REQUEST_BYTES),
                attempts: 0,
                progress: Arc::clone(&progress),
            });
        }
        self.run_requests(false)?;
        Ok(Transfer { progress })
    }

    /// Settles the finished requests and starts waiting ones. Blocks for an answer if `is_blocking`.
    fn run_requests(&mut self, is_blocking: bool) -> Result<(), Error> {
        self.fill()?;
        if self.in_flight == 0 {
            return Ok(());
        }
        let mut finished = Vec::new();
        match &mut self.mechanism {
            Mechanism::Uring(ring) => ring.complete(is_blocking, &mut finished),
            Mechanism::Threads(threads) => threads.complete(is_blocking, &mut finished),
        }
        .map_err(|error| failed("completion", self.mechanism(), &error))?;
        for (request, answer) in finished {
            self.in_flight -= 1;
            self.settle(request, answer);
        }
        self.fill()
    }

    /// Starts waiting requests up to the depth of the queue.
    fn fill(&mut self) -> Result<(), Error> {
        while self.in_flight < QUEUE_DEPTH
            && let Some(request) = self.waiting.pop_front()
        {
            if request.progress.has_failed() {
                request.progress.finish_one(None);
                continue;
            }
            match &mut self.mechanism {
                Mechanism::Uring(ring) => ring.submit(request),
                Mechanism::Threads(threads) => {
                    threads.submit(request).map_err(|error| failed("submission", "threads", &error))?;
                }
            }
            self.in_flight += 1;
            self.most_in_flight = self.most_in_flight.max(self.in_flight);
        }
        match &mut self.mechanism {
            Mechanism::Uring(ring) => ring.flush().map_err(|error| failed("submission", "io_uring", &error)),
            Mechanism::Threads(_) => Ok(()),
        }
    }

    /// Counts the bytes of an answer, and finishes the request or puts its rest in front.
    fn settle(&mut self, mut request: Request, answer: io::Result<usize>) {
        let before = request.wanted;
        let step = request.advance(answer);
        let moved = (before - request.wanted) as u64;
        match request.operation {
            Operation::Read => self.bytes_read += moved,
            Operation::Write => self.bytes_written += moved,
        }
        match step {
            Step::Again => self.waiting.push_front(request),
            Step::Finished => request.progress.finish_one(None),
            Step::Failed(error) => request.progress.finish_one(Some(error)),
        }
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        // After an error, the mechanism keeps what the system still uses.
        while self.in_flight > 0 || !self.waiting.is_empty() {
            if self.run_requests(true).is_err() {
                return;
            }
        }
    }
}

/// Checks that a transfer is possible.
fn check_place(
    operation: Operation,
    (file, offset): (&DiskFile, u64),
    (arena, range): (&Arena, &Range<usize>),
) -> Result<(), Error> {
    let refused =
        |problem: String| Err(Error::Disk { call: operation.name(), file: file.describe(), problem });
    arena.host_address(operation.name(), range.clone())?;
    if operation == Operation::Write && !file.is_writable() {
        return refused("it is open only to be read".to_owned());
    }

    // A read may end with the page in which the file ends.
    let limit = match operation {
        Operation::Read => file.len().checked_next_multiple_of(page_bytes() as u64),
        Operation::Write => Some(file.len()),
    };
    let end = offset.checked_add(range.len() as u64);
    if end.is_none_or(|end| end > limit.unwrap_or(u64::MAX)) {
        return refused(format!(
            "{} bytes at offset {offset} lie behind the end of its {} bytes",
            range.len(),
            file.len()
        ));
    }

    let is_aligned = |bytes: usize| bytes.is_multiple_of(BLOCK_BYTES);
    let offset_is_aligned = offset.is_multiple_of(BLOCK_BYTES as u64);
    if file.is_direct() && !(offset_is_aligned && is_aligned(range.start) && is_aligned(range.end)) {
        return refused(format!(
            "offset {offset} and the bytes {} to {} of the arena are not all multiples of {BLOCK_BYTES}",
            range.start, range.end
        ));
    }
    Ok(())
}

fn failed(call: &'static str, mechanism: &'static str, error: &io::Error) -> Error {
    Error::DiskQueue { call, mechanism, problem: error.to_string() }
}
