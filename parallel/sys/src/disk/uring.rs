//! Requests through `io_uring`: one system call starts many, and the kernel fills in the answers.
//!
//! The ring takes no registered buffers or files, so it needs no locked memory. Completions are posted by the
//! thread that asked, at its next entry to the kernel, to which the kernel forces it; if that thread has
//! ended, its requests are cancelled or completed, and the queue asks the cancelled ones again.

use std::io;

use io_uring::{IoUring, Probe, opcode, types};

use super::request::{Operation, Request};

/// The largest number of requests in flight.
pub const QUEUE_DEPTH: usize = 64;

/// A ring and the requests that the kernel holds.
pub(super) struct Uring {
    ring: IoUring,
    /// The requests in flight; the kernel knows each by its index.
    slots: Vec<Option<Request>>,
    /// The empty slots.
    free: Vec<usize>,
}

impl Uring {
    /// Opens a ring. Fails where the kernel lacks it or the administrator or a sandbox forbids it.
    pub(super) fn open() -> io::Result<Self> {
        let ring = IoUring::new(QUEUE_DEPTH as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A sandbox may allow a ring and forbid its use.
        ring.submit()?;
        let slots = (0..QUEUE_DEPTH).map(|_| None).collect();
        Ok(Self { ring, slots, free: (0..QUEUE_DEPTH).collect() })
    }

    /// Adds a request, of which at most `QUEUE_DEPTH` may be in flight; [`Self::flush`] starts it.
    pub(super) fn submit(&mut self, request: Request) {
        let slot = self.free.pop().expect("a slot for each request in flight");
        let descriptor = types::Fd(request.file.descriptor());
        let range = request.start..request.start + request.length;
        let address = request.arena.host_address("transfer", range).expect("the queue has checked the place");
        let length = u32::try_from(request.length).expect("a request is small");
        let entry = match request.operation {
            Operation::Read => opcode::Read::new(descriptor, address, length).offset(request.offset).build(),
            Operation::Write => {
                opcode::Write::new(descriptor, address, length).offset(request.offset).build()
            }
        }
        .user_data(slot as u64);
        self.slots[slot] = Some(request);
        // SAFETY: the slot owns the file and the arena until the kernel has answered, also if this ring is
        // dropped; the queue has checked that the range lies in the arena.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("an entry for each request in flight");
    }

    /// Starts the requests that were added. What the kernel cannot take now is taken by a later call.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0)
    }

    /// Adds the finished requests and their answers to `finished`. Blocks for one if `is_blocking`, though it
    /// may return early with none.
    pub(super) fn complete(
        &mut self,
        is_blocking: bool,
        finished: &mut Vec<(Request, io::Result<usize>)>,
    ) -> io::Result<()> {
        if is_blocking && self.ring.completion().is_empty() {
            self.enter(1)?;
        }
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            let request = self.slots[slot].take().expect("the kernel answers each request once");
            self.free.push(slot);
            let code = entry.result();
            let answer = usize::try_from(code).map_err(|_| io::Error::from_raw_os_error(-code));
            finished.push((request, answer));
        }
        Ok(())
    }

    /// Enters the kernel, to wait for `count` answers.
    fn enter(&self, count: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(count) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Ok(()),
                // The kernel lacks memory for requests until others are finished.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    std::thread::yield_now();
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.free.len() < self.slots.len() {
            if self.complete(true, &mut finished).is_err() {
                // The kernel may still use the memory of these requests, so it is never unmapped.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
            finished.clear();
        }
    }
}
