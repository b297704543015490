//! Memory that the ranks of one host share, and the collectives over it.
//!
//! ```text
//!   lines    one a rank: how many barriers it has arrived at, who sleeps until then, which process it is
//!   slots    for each rank two buffers of SLOT bytes, used in turn
//! ```
//! A tensor goes through the slots in chunks that stay in the cache. Between a write and the reads of it lies one barrier; since a rank
//! enters the barrier of chunk `c + 1` after it has read chunk `c`, two buffers are enough for one barrier a chunk.
//! Reductions run over the ranks in order, so every rank has the same bits.
//!
//! Before the first barrier of a collective each rank writes down what it calls and how many bytes it brings,
//! and compares after it: ranks that differ get an error and touch nothing of each other. Two entries in turn
//! are enough, since a rank writes the next but one after all others have arrived at the next, and so have
//! compared.
//!
//! The memory is an anonymous file: rank 0 makes it, the others open it through `/proc` (`shared/file.rs`),
//! and nothing is left behind when they end.

mod call;
mod file;
mod reduce;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::c10d::Reduction;

use call::{Call, CallSlot};
use reduce::Add;

/// Bytes of one buffer.
const BUFFER_BYTES: usize = 512 << 10;
/// Bytes of a cache line, with its neighbour that the processor fetches along.
const CACHE_LINE: usize = 128;
/// Looks at a flag before the processor is given away, and before the thread sleeps.
const SPINS: [u32; 2] = [200, 2_000];

/// What one rank tells the others.
#[repr(C, align(128))]
struct RankState {
    /// Barriers that it has arrived at.
    arrived: AtomicU32,
    /// Ranks that sleep until it arrives.
    waiters: AtomicU32,
    /// Its process.
    process: AtomicU32,
    /// What it calls, in turn.
    announced: [CallSlot; 2],
}

/// One rank's view of the memory of a group.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    start: *mut u8,
    rank: usize,
    size: usize,
    timeout: Duration,
    barriers: u32,
    /// Collectives so far.
    calls: usize,
    buffer_index: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and every method that touches it takes `&mut self`.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Makes the memory `name` of a group of `size` ranks, as its rank 0. A rank waits at most `timeout` for
    /// another.
    pub fn create(name: &str, size: usize, timeout: Duration) -> Result<Self, Error> {
        Self::map(file::create(name, bytes_of(size))?, [0, size], timeout)
    }

    /// Where the others find it: `process:descriptor`.
    pub fn address(&self) -> String {
        format!("{}:{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Opens the memory `name` at `address`, which the process `owner` has made, as `rank` of `size`.
    /// Anything else at that address is refused.
    pub fn open(
        address: &str,
        name: &str,
        owner: u32,
        [rank, size]: [usize; 2],
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::map(file::open(address, name, owner, bytes_of(size))?, [rank, size], timeout)
    }

    fn map(file: File, [rank, size]: [usize; 2], timeout: Duration) -> Result<Self, Error> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping over a file that is as long.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes_of(size),
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(failed("mmap", &std::io::Error::last_os_error()));
        }
        let start = start.cast();
        let memory = Self { file, start, rank, size, timeout, barriers: 0, calls: 0, buffer_index: 0 };
        memory.line(rank).process.store(std::process::id(), Ordering::SeqCst);
        Ok(memory)
    }

    /// Returns once every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let call = self.announce(Call::new("barrier", Kind::Uint8, 0, 0));
        self.barrier_and_check(call)
    }

    /// Writes down what this rank calls.
    fn announce(&mut self, call: Call) -> Call {
        self.calls = self.calls.wrapping_add(1);
        call.write(&self.line(self.rank).announced[self.calls % 2]);
        call
    }

    /// A barrier of `call`, after which every rank knows that all of them called the same.
    fn barrier_and_check(&mut self, call: Call) -> Result<(), Error> {
        self.barriers = self.barriers.wrapping_add(1);
        let own = self.line(self.rank);
        own.arrived.store(self.barriers, Ordering::SeqCst);
        if own.waiters.load(Ordering::SeqCst) > 0 {
            wake(&own.arrived);
        }
        self.peers().try_for_each(|rank| self.wait_for(rank))?;
        self.peers().try_for_each(|rank| {
            let other = Call::read(&self.line(rank).announced[self.calls % 2]);
            if other == call { Ok(()) } else { Err(call.difference(self.rank, other, rank)) }
        })
    }

    /// Every rank's `tensor` becomes the reduction of all.
    pub fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<(), Error> {
        let (mut bytes, add) = (TensorBytes::of("all_reduce", tensor)?, Add::of(tensor.kind(), reduction)?);
        let call = self.announce(Call::new("all_reduce", tensor.kind(), reduction as usize, bytes.length));
        // A piece a rank, of whole cache lines.
        let piece = BUFFER_BYTES / self.size / CACHE_LINE * CACHE_LINE;
        for chunk in bytes.chunks(piece * self.size) {
            let turn = self.flip_buffer();
            let pieces: Vec<Range<usize>> = (0..self.size)
                .map(|rank| (rank * piece).min(chunk.len())..((rank + 1) * piece).min(chunk.len()))
                .collect();
            let values = &bytes.part()[chunk.clone()];
            for other in self.peers() {
                let piece = pieces[other].clone();
                self.slot_mut(turn)[piece.clone()].copy_from_slice(&values[piece]);
            }
            self.barrier_and_check(call)?;
            let own = pieces[self.rank].clone();
            let (piece, parts) = self.reduce_views(turn, &own, &values[own.clone()]);
            add.run(piece, &parts);
            self.barrier_and_check(call)?;
            for (rank, piece) in pieces.into_iter().enumerate() {
                let target = chunk.start + piece.start..chunk.start + piece.end;
                bytes.part_mut()[target].copy_from_slice(&self.slot(rank, turn)[piece]);
            }
        }
        Ok(())
    }

    /// `output` becomes the inputs of all ranks, end to end.
    pub fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<(), Error> {
        let kind = input.kind();
        let (mut output, input) =
            (TensorBytes::of("all_gather", output)?, TensorBytes::of("all_gather", input)?);
        let length = input.length;
        check_sizes("all_gather", output.length, length * self.size)?;
        let call = self.announce(Call::new("all_gather", kind, 0, length));
        for chunk in input.chunks(BUFFER_BYTES) {
            let turn = self.flip_buffer();
            self.slot_mut(turn)[..chunk.len()].copy_from_slice(&input.part()[chunk.clone()]);
            self.barrier_and_check(call)?;
            for rank in 0..self.size {
                let target = rank * length + chunk.start..rank * length + chunk.end;
                output.part_mut()[target].copy_from_slice(&self.slot(rank, turn)[..chunk.len()]);
            }
        }
        Ok(())
    }

    /// `output` becomes this rank's part of the sum of all inputs.
    pub fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<(), Error> {
        let (kind, add) = (output.kind(), Add::of(output.kind(), Reduction::Sum)?);
        let (mut output, input) =
            (TensorBytes::of("reduce_scatter", output)?, TensorBytes::of("reduce_scatter", input)?);
        let length = output.length;
        check_sizes("reduce_scatter", input.length, length * self.size)?;
        let call = self.announce(Call::new("reduce_scatter", kind, 0, length));
        let piece = BUFFER_BYTES / self.size / CACHE_LINE * CACHE_LINE;
        for chunk in output.chunks(piece) {
            let turn = self.flip_buffer();
            let source = |rank: usize| &input.part()[rank * length + chunk.start..rank * length + chunk.end];
            let target = |rank: usize| rank * piece..rank * piece + chunk.len();
            for other in self.peers() {
                self.slot_mut(turn)[target(other)].copy_from_slice(source(other));
            }
            self.barrier_and_check(call)?;
            let (_, parts) = self.reduce_views(turn, &target(self.rank), source(self.rank));
            add.run(&mut output.part_mut()[chunk.clone()], &parts);
        }
        Ok(())
    }

    /// Rank `i` receives the `i`-th part of every input. `received` and `sent` are bytes, one entry a rank.
    pub fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        [received, sent]: [&[usize]; 2],
    ) -> Result<(), Error> {
        let call = Call::new("all_to_all", input.kind(), 0, 0);
        let (mut output, input) =
            (TensorBytes::of("all_to_all", output)?, TensorBytes::of("all_to_all", input)?);
        check_sizes("all_to_all", output.length, received.iter().sum())?;
        check_sizes("all_to_all", input.length, sent.iter().sum())?;
        let piece = BUFFER_BYTES / self.size / CACHE_LINE * CACHE_LINE;
        let call = self.announce(call);
        let largest = self.exchange_split_sizes(call, [received, sent])?;
        for round in 0..largest.div_ceil(piece) {
            let turn = self.flip_buffer();
            let within = |length: usize| (round * piece).min(length)..((round + 1) * piece).min(length);
            let mut before = 0;
            for (rank, &length) in sent.iter().enumerate() {
                let part = within(length);
                let target = rank * piece..rank * piece + part.len();
                self.slot_mut(turn)[target]
                    .copy_from_slice(&input.part()[before + part.start..before + part.end]);
                before += length;
            }
            self.barrier_and_check(call)?;
            let mut before = 0;
            for (rank, &length) in received.iter().enumerate() {
                let part = within(length);
                let source = self.rank * piece..self.rank * piece + part.len();
                let target = before + part.start..before + part.end;
                output.part_mut()[target].copy_from_slice(&self.slot(rank, turn)[source]);
                before += length;
            }
        }
        Ok(())
    }

    /// Every rank's `tensor` becomes that of `root`.
    pub fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<(), Error> {
        let mut bytes = TensorBytes::of("broadcast", tensor)?;
        let call = self.announce(Call::new("broadcast", tensor.kind(), root, bytes.length));
        for chunk in bytes.chunks(BUFFER_BYTES) {
            let turn = self.flip_buffer();
            if self.rank == root {
                self.slot_mut(turn)[..chunk.len()].copy_from_slice(&bytes.part()[chunk.clone()]);
            }
            self.barrier_and_check(call)?;
            if self.rank != root {
                bytes.part_mut()[chunk.clone()].copy_from_slice(&self.slot(root, turn)[..chunk.len()]);
            }
        }
        Ok(())
    }

    /// Compares what each rank sends with what the others expect; the largest part, in bytes.
    fn exchange_split_sizes(&mut self, call: Call, [received, sent]: [&[usize]; 2]) -> Result<usize, Error> {
        const WIDTH: usize = size_of::<u64>();
        let (size, turn) = (self.size, self.flip_buffer());
        assert!(
            2 * size * WIDTH <= BUFFER_BYTES && received.len() == size && sent.len() == size,
            "one part a rank"
        );
        for (place, &bytes) in received.iter().chain(sent).enumerate() {
            let target = place * WIDTH..(place + 1) * WIDTH;
            self.slot_mut(turn)[target].copy_from_slice(&(bytes as u64).to_ne_bytes());
        }
        self.barrier_and_check(call)?;
        let read = |rank: usize, place: usize| {
            let bytes = &self.slot(rank, turn)[place * WIDTH..(place + 1) * WIDTH];
            u64::from_ne_bytes(bytes.try_into().expect("eight bytes")) as usize
        };
        let mut largest = 0;
        for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
            let (sends, expects) = (read(from, size + to), read(to, from));
            if sends != expects {
                let problem = format!(
                    "rank {from} of the group sends {sends} bytes to rank {to}, which expects {expects}"
                );
                return Err(Error::Shared { call: call.name().to_owned(), problem });
            }
            largest = largest.max(sends);
        }
        Ok(largest)
    }

    fn flip_buffer(&mut self) -> usize {
        self.buffer_index ^= 1;
        self.buffer_index
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.size).filter(move |&rank| rank != own)
    }

    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
    fn line(&self, rank: usize) -> &RankState {
        // SAFETY: the mapping begins with one line a rank, aligned to a page; zeroed bytes are a valid line, and all of it is atomic.
        unsafe { &*self.start.cast::<RankState>().add(rank) }
    }

    /// A buffer of any rank, to read between the barrier after its write and the barrier of the next chunk but one.
    fn slot(&self, rank: usize, turn: usize) -> &[u8] {
        // SAFETY: inside the mapping; by the protocol above nobody writes where this rank reads.
        unsafe { std::slice::from_raw_parts(self.start.add(offset(self.size, rank, turn)), BUFFER_BYTES) }
    }

    /// The own buffer, to write.
    fn slot_mut(&mut self, turn: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; by the protocol above nobody reads where this rank writes.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(offset(self.size, self.rank, turn)), BUFFER_BYTES)
        }
    }

    /// The bytes `range` of the own buffer, to write, and what each rank has to give for them, to read: `own`, and what lies in the buffers of
    /// the others.
    fn reduce_views<'a>(
        &'a mut self,
        turn: usize,
        range: &Range<usize>,
        own: &'a [u8],
    ) -> (&'a mut [u8], Vec<&'a [u8]>) {
        assert!(range.end <= BUFFER_BYTES, "a piece lies inside its buffer");
        let start = |rank| self.start.wrapping_add(offset(self.size, rank, turn) + range.start);
        // SAFETY: inside the mapping; a piece is its rank's alone until the next barrier.
        let piece = unsafe { std::slice::from_raw_parts_mut(start(self.rank), range.len()) };
        // SAFETY: inside the mapping, not in the own buffer; written before the barrier, and next after another.
        let part = |rank| unsafe { std::slice::from_raw_parts(start(rank), range.len()) };
        let parts = (0..self.size).map(|rank| if rank == self.rank { own } else { part(rank) }).collect();
        (piece, parts)
    }

    /// Waits until `rank` has arrived at the barrier that this rank is in.
    fn wait_for(&self, rank: usize) -> Result<(), Error> {
        let line = self.line(rank);
        let there = || {
            let arrived = line.arrived.load(Ordering::SeqCst);
            (arrived.wrapping_sub(self.barriers).cast_signed() >= 0).then_some(()).ok_or(arrived)
        };
        for spin in 0..SPINS[1] {
            if there().is_ok() {
                return Ok(());
            }
            if spin < SPINS[0] { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let started = Instant::now();
        loop {
            line.waiters.fetch_add(1, Ordering::SeqCst);
            let seen = there();
            if let Err(arrived) = seen {
                sleep(&line.arrived, arrived);
            }
            line.waiters.fetch_sub(1, Ordering::SeqCst);
            if seen.is_ok() {
                return Ok(());
            }
            let process = line.process.load(Ordering::SeqCst);
            if process != 0 && !is_alive(process) && there().is_err() {
                return Err(missing(rank, &format!("its process {process} is gone")));
            }
            if started.elapsed() > self.timeout {
                return Err(missing(rank, &format!("it did not come within {:?}", self.timeout)));
            }
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, given back once.
        unsafe { libc::munmap(self.start.cast(), bytes_of(self.size)) };
    }
}

fn bytes_of(size: usize) -> usize {
    offset(size, size, 0)
}

/// Where the buffer `buffer_index` of `rank` begins.
fn offset(size: usize, rank: usize, turn: usize) -> usize {
    let lines = (size * size_of::<RankState>()).next_multiple_of(4096);
    lines + (rank * 2 + turn) * BUFFER_BYTES
}

/// The numbers of a tensor as bytes.
struct TensorBytes {
    start: *mut u8,
    length: usize,
    _tensor: Tensor,
}

impl TensorBytes {
    fn of(call: &str, tensor: &Tensor) -> Result<Self, Error> {
        if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
            let problem = "a tensor must be contiguous and on the CPU";
            return Err(Error::Shared { call: call.to_owned(), problem: problem.to_owned() });
        }
        let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
        Ok(Self { start: tensor.data_ptr().cast(), length, _tensor: tensor.shallow_clone() })
    }

    fn chunks(&self, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let length = self.length;
        // One even of nothing: the ranks meet in it.
        (0..length.max(1)).step_by(size).map(move |start| start..(start + size).min(length))
    }

    fn part(&self) -> &[u8] {
        // SAFETY: a contiguous tensor's own memory, which it keeps alive. An empty one may have no address.
        if self.length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.start, self.length) } }
    }

    fn part_mut(&mut self) -> &mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: as above, and written by this collective alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

fn check_sizes(call: &str, found: usize, wanted: usize) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    let problem = format!("a tensor has {found} bytes and must have {wanted}");
    Err(Error::Shared { call: call.to_owned(), problem })
}

fn wake(flag: &AtomicU32) {
    // SAFETY: the address is mapped, and waking has no other effect.
    unsafe { libc::syscall(libc::SYS_futex, flag.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sleeps while `flag` is `value`, but not for long: a rank that died wakes nobody.
fn sleep(flag: &AtomicU32, value: u32) {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // SAFETY: the address is mapped, and the time lives during the call.
    unsafe { libc::syscall(libc::SYS_futex, flag.as_ptr(), libc::FUTEX_WAIT, value, &raw const nap) };
}

fn is_alive(process: u32) -> bool {
    // Of a process that has ended and was not waited for, the system keeps the entry: its state tells.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

fn failed(call: &str, error: &std::io::Error) -> Error {
    Error::Shared { call: call.to_owned(), problem: error.to_string() }
}

fn missing(rank: usize, problem: &str) -> Error {
    Error::Shared { call: "barrier".to_owned(), problem: format!("rank {rank} is missing: {problem}") }
}

#[cfg(test)]
mod tests;
