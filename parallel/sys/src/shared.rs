//! Memory that the ranks of one host share, and the collectives over it.
//!
//! ```text
//!   states   one per rank: its barrier count, how many ranks sleep until it arrives, its process id
//!   buffers  two per rank of `BUFFER_BYTES` each, used alternately
//! ```
//! A tensor is copied through the buffers in chunks that stay in the cache. One barrier separates the write
//! of a chunk from its reads. A rank enters the barrier of chunk `c + 1` only after it has read chunk `c`, so
//! with two buffers one barrier per chunk is enough. Reductions add in rank order, so all ranks get
//! bit-identical results.
//!
//! Before the first barrier of a collective, each rank announces its collective and its number of bytes, and
//! it compares the announcements after the barrier. If they differ, the ranks get an error before any of them
//! reads data. Two announcement slots, used alternately, are enough: a rank writes a slot again only after
//! all other ranks have arrived at the barrier of the next collective, and so have compared the previous
//! announcements.
//!
//! The memory is an anonymous file. Rank 0 creates it, the others open it through `/proc` (`shared/file.rs`),
//! and the system removes it when the processes end.

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

/// The size of one buffer in bytes.
const BUFFER_BYTES: usize = 512 << 10;
/// The size of a cache line in bytes, together with the neighbouring line that the processor prefetches.
const CACHE_LINE: usize = 128;
/// The number of checks of a flag before the thread yields, and before it sleeps.
const SPINS: [u32; 2] = [200, 2_000];

/// The state of one rank, which the other ranks read.
#[repr(C, align(128))]
struct RankState {
    /// The number of barriers that the rank has arrived at.
    arrived: AtomicU32,
    /// The number of ranks that sleep until it arrives.
    waiters: AtomicU32,
    /// Its process id.
    process: AtomicU32,
    /// The collectives that it has announced, in two slots used alternately.
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
    /// The number of collectives so far.
    calls: usize,
    buffer_index: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and every method that accesses it takes
// `&mut self`.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Creates the memory `name` of a group of `size` ranks, as its rank 0. A rank waits at most `timeout`
    /// for another.
    pub fn create(name: &str, size: usize, timeout: Duration) -> Result<Self, Error> {
        Self::map(file::create(name, bytes_of(size))?, [0, size], timeout)
    }

    /// The address under which the other ranks open the memory: `process:descriptor`.
    pub fn address(&self) -> String {
        format!("{}:{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Opens the memory `name` at `address`, which the process `owner` has created, as `rank` of `size`.
    /// Fails if there is anything else at that address.
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
        // SAFETY: a new mapping of a file of the same length.
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
            return Err(file::failed("mmap", &std::io::Error::last_os_error()));
        }
        let start = start.cast();
        let memory = Self { file, start, rank, size, timeout, barriers: 0, calls: 0, buffer_index: 0 };
        memory.line(rank).process.store(std::process::id(), Ordering::SeqCst);
        Ok(memory)
    }

    /// Blocks until every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let call = self.announce(Call::new("barrier", Kind::Uint8, 0, 0));
        self.barrier_and_check(call)
    }

    /// Announces the collective that this rank calls.
    fn announce(&mut self, call: Call) -> Call {
        self.calls = self.calls.wrapping_add(1);
        call.write(&self.line(self.rank).announced[self.calls % 2]);
        call
    }

    /// Runs a barrier of `call` and then checks that all ranks have announced the same call.
    fn barrier_and_check(&mut self, call: Call) -> Result<(), Error> {
        self.barriers = self.barriers.wrapping_add(1);
        let local_line = self.line(self.rank);
        local_line.arrived.store(self.barriers, Ordering::SeqCst);
        if local_line.waiters.load(Ordering::SeqCst) > 0 {
            wake(&local_line.arrived);
        }
        self.peers().try_for_each(|rank| self.wait_for(rank))?;
        self.peers().try_for_each(|rank| {
            let other = Call::read(&self.line(rank).announced[self.calls % 2]);
            if other == call { Ok(()) } else { Err(call.difference(self.rank, other, rank)) }
        })
    }

    /// Replaces every rank's `tensor` by the reduction over all ranks.
    pub fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<(), Error> {
        let (mut bytes, add) = (TensorBytes::of("all_reduce", tensor)?, Add::of(tensor.kind(), reduction)?);
        let call = self.announce(Call::new("all_reduce", tensor.kind(), reduction as usize, bytes.length));
        // Each rank reduces one piece, a multiple of the cache line.
        let piece = BUFFER_BYTES / self.size / CACHE_LINE * CACHE_LINE;

        for chunk in bytes.chunks(piece * self.size) {
            let turn = self.flip_buffer();
            let pieces: Vec<Range<usize>> = (0..self.size)
                .map(|rank| (rank * piece).min(chunk.len())..((rank + 1) * piece).min(chunk.len()))
                .collect();
            let values = &bytes.as_slice()[chunk.clone()];

            // Reduce-scatter: each rank writes the pieces that the others reduce.
            for other in self.peers() {
                let piece = pieces[other].clone();
                self.buffer_mut(turn)[piece.clone()].copy_from_slice(&values[piece]);
            }
            self.barrier_and_check(call)?;

            let local_piece = pieces[self.rank].clone();
            let (piece, contributions) = self.reduce_views(turn, &local_piece, &values[local_piece.clone()]);
            add.run(piece, &contributions);
            self.barrier_and_check(call)?;

            // All-gather: read the reduced pieces of all ranks.
            for (rank, piece) in pieces.into_iter().enumerate() {
                let target = chunk.start + piece.start..chunk.start + piece.end;
                bytes.as_mut_slice()[target].copy_from_slice(&self.buffer(rank, turn)[piece]);
            }
        }
        Ok(())
    }

    /// Writes the concatenated inputs of all ranks to `output`.
    pub fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<(), Error> {
        let kind = input.kind();
        let (mut output, input) =
            (TensorBytes::of("all_gather", output)?, TensorBytes::of("all_gather", input)?);
        let length = input.length;
        check_sizes("all_gather", output.length, length * self.size)?;
        let call = self.announce(Call::new("all_gather", kind, 0, length));
        for chunk in input.chunks(BUFFER_BYTES) {
            let turn = self.flip_buffer();
            self.buffer_mut(turn)[..chunk.len()].copy_from_slice(&input.as_slice()[chunk.clone()]);
            self.barrier_and_check(call)?;
            for rank in 0..self.size {
                let target = rank * length + chunk.start..rank * length + chunk.end;
                output.as_mut_slice()[target].copy_from_slice(&self.buffer(rank, turn)[..chunk.len()]);
            }
        }
        Ok(())
    }

    /// Writes this rank's chunk of the sum of all inputs to `output`.
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
            let source =
                |rank: usize| &input.as_slice()[rank * length + chunk.start..rank * length + chunk.end];
            let target = |rank: usize| rank * piece..rank * piece + chunk.len();
            for other in self.peers() {
                self.buffer_mut(turn)[target(other)].copy_from_slice(source(other));
            }
            self.barrier_and_check(call)?;
            let (_, contributions) = self.reduce_views(turn, &target(self.rank), source(self.rank));
            add.run(&mut output.as_mut_slice()[chunk.clone()], &contributions);
        }
        Ok(())
    }

    /// Fills `tensor`, of which each rank has its own equal part, with the parts of all ranks.
    pub fn all_gather_in_place(&mut self, tensor: &Tensor) -> Result<(), Error> {
        let mut bytes = TensorBytes::of("all_gather", tensor)?;
        let length = bytes.length / self.size;
        check_sizes("all_gather", bytes.length, length * self.size)?;
        let call = self.announce(Call::new("all_gather", tensor.kind(), 0, length));
        let within = |start: usize| start..(start + BUFFER_BYTES).min(length);
        for chunk in (0..length).step_by(BUFFER_BYTES).map(within) {
            let turn = self.flip_buffer();
            let place = |rank: usize| rank * length + chunk.start..rank * length + chunk.end;
            let own = &bytes.as_slice()[place(self.rank)];
            self.buffer_mut(turn)[..chunk.len()].copy_from_slice(own);
            self.barrier_and_check(call)?;
            for rank in self.peers() {
                let part = &self.buffer(rank, turn)[..chunk.len()];
                bytes.as_mut_slice()[place(rank)].copy_from_slice(part);
            }
        }
        Ok(())
    }

    /// Replaces this rank's equal part of `tensor` by the sum of this part over all ranks. The other parts
    /// keep the values of this rank.
    pub fn reduce_scatter_in_place(&mut self, tensor: &Tensor) -> Result<(), Error> {
        let add = Add::of(tensor.kind(), Reduction::Sum)?;
        let mut bytes = TensorBytes::of("reduce_scatter", tensor)?;
        let length = bytes.length / self.size;
        check_sizes("reduce_scatter", bytes.length, length * self.size)?;
        let call = self.announce(Call::new("reduce_scatter", tensor.kind(), 0, length));
        let piece = BUFFER_BYTES / self.size / CACHE_LINE * CACHE_LINE;
        let within = |start: usize| start..(start + piece).min(length);
        for chunk in (0..length).step_by(piece).map(within) {
            let turn = self.flip_buffer();
            let place = |rank: usize| rank * length + chunk.start..rank * length + chunk.end;
            let target = |rank: usize| rank * piece..rank * piece + chunk.len();
            for other in self.peers() {
                self.buffer_mut(turn)[target(other)].copy_from_slice(&bytes.as_slice()[place(other)]);
            }
            self.barrier_and_check(call)?;
            // The sum is made in this rank's own part of its buffer, which no other rank reads.
            let (sum, contributions) =
                self.reduce_views(turn, &target(self.rank), &bytes.as_slice()[place(self.rank)]);
            add.run(sum, &contributions);
            let sum = &self.buffer(self.rank, turn)[target(self.rank)];
            bytes.as_mut_slice()[place(self.rank)].copy_from_slice(sum);
        }
        Ok(())
    }

    /// Sends the `i`-th chunk of every input to rank `i`. `received` and `sent` are numbers of bytes, one per
    /// rank.
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

            let mut start = 0;
            for (rank, &length) in sent.iter().enumerate() {
                let range = within(length);
                let target = rank * piece..rank * piece + range.len();
                self.buffer_mut(turn)[target]
                    .copy_from_slice(&input.as_slice()[start + range.start..start + range.end]);
                start += length;
            }
            self.barrier_and_check(call)?;

            let mut start = 0;
            for (rank, &length) in received.iter().enumerate() {
                let range = within(length);
                let source = self.rank * piece..self.rank * piece + range.len();
                let target = start + range.start..start + range.end;
                output.as_mut_slice()[target].copy_from_slice(&self.buffer(rank, turn)[source]);
                start += length;
            }
        }
        Ok(())
    }

    /// Copies the `tensor` of rank `root` to every rank, in place.
    pub fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<(), Error> {
        let mut bytes = TensorBytes::of("broadcast", tensor)?;
        let call = self.announce(Call::new("broadcast", tensor.kind(), root, bytes.length));
        for chunk in bytes.chunks(BUFFER_BYTES) {
            let turn = self.flip_buffer();
            if self.rank == root {
                self.buffer_mut(turn)[..chunk.len()].copy_from_slice(&bytes.as_slice()[chunk.clone()]);
            }
            self.barrier_and_check(call)?;
            if self.rank != root {
                bytes.as_mut_slice()[chunk.clone()].copy_from_slice(&self.buffer(root, turn)[..chunk.len()]);
            }
        }
        Ok(())
    }

    /// Checks that each rank sends as many bytes as the receiver expects. Returns the largest chunk in bytes.
    fn exchange_split_sizes(&mut self, call: Call, [received, sent]: [&[usize]; 2]) -> Result<usize, Error> {
        const WIDTH: usize = size_of::<u64>();
        let (size, turn) = (self.size, self.flip_buffer());
        assert!(
            2 * size * WIDTH <= BUFFER_BYTES && received.len() == size && sent.len() == size,
            "one chunk per rank"
        );

        for (index, &bytes) in received.iter().chain(sent).enumerate() {
            let target = index * WIDTH..(index + 1) * WIDTH;
            self.buffer_mut(turn)[target].copy_from_slice(&(bytes as u64).to_ne_bytes());
        }
        self.barrier_and_check(call)?;

        let read = |rank: usize, index: usize| {
            let bytes = &self.buffer(rank, turn)[index * WIDTH..(index + 1) * WIDTH];
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
        let local_rank = self.rank;
        (0..self.size).filter(move |&rank| rank != local_rank)
    }

    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
    fn line(&self, rank: usize) -> &RankState {
        // SAFETY: the mapping begins with one `RankState` per rank, aligned to a page. Zeroed bytes are a
        // valid state, and all fields are atomic.
        unsafe { &*self.start.cast::<RankState>().add(rank) }
    }

    /// A buffer of any rank. It may be read from the barrier after its write until this rank enters the
    /// barrier of the next chunk.
    fn buffer(&self, rank: usize, turn: usize) -> &[u8] {
        // SAFETY: inside the mapping; by the protocol above no rank writes where this rank reads.
        unsafe { std::slice::from_raw_parts(self.start.add(offset(self.size, rank, turn)), BUFFER_BYTES) }
    }

    /// A buffer of this rank, to write.
    fn buffer_mut(&mut self, turn: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; by the protocol above no rank reads where this rank writes.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(offset(self.size, self.rank, turn)), BUFFER_BYTES)
        }
    }

    /// Returns the bytes `range` of this rank's buffer, to write the result, and the contributions of all
    /// ranks, to read: `local` for this rank, and the same range of the buffers of the others.
    fn reduce_views<'a>(
        &'a mut self,
        turn: usize,
        range: &Range<usize>,
        local: &'a [u8],
    ) -> (&'a mut [u8], Vec<&'a [u8]>) {
        assert!(range.end <= BUFFER_BYTES, "a piece fits into the buffer");
        let start = |rank| self.start.wrapping_add(offset(self.size, rank, turn) + range.start);
        // SAFETY: inside the mapping; only this rank accesses the piece until the next barrier.
        let piece = unsafe { std::slice::from_raw_parts_mut(start(self.rank), range.len()) };
        // SAFETY: inside the mapping and outside this rank's buffer; written before the last barrier, and not
        // again before the next one.
        let contribution = |rank| unsafe { std::slice::from_raw_parts(start(rank), range.len()) };
        let contributions =
            (0..self.size).map(|rank| if rank == self.rank { local } else { contribution(rank) }).collect();
        (piece, contributions)
    }

    /// Waits until `rank` has arrived at the current barrier.
    fn wait_for(&self, rank: usize) -> Result<(), Error> {
        let line = self.line(rank);
        let has_arrived = || {
            let arrived = line.arrived.load(Ordering::SeqCst);
            (arrived.wrapping_sub(self.barriers).cast_signed() >= 0).then_some(()).ok_or(arrived)
        };

        for spin in 0..SPINS[1] {
            if has_arrived().is_ok() {
                return Ok(());
            }
            if spin < SPINS[0] { std::hint::spin_loop() } else { std::thread::yield_now() }
        }

        let started = Instant::now();
        loop {
            line.waiters.fetch_add(1, Ordering::SeqCst);
            let seen = has_arrived();
            if let Err(arrived) = seen {
                sleep(&line.arrived, arrived);
            }
            line.waiters.fetch_sub(1, Ordering::SeqCst);
            if seen.is_ok() {
                return Ok(());
            }

            let process = line.process.load(Ordering::SeqCst);
            if process != 0 && !is_alive(process) && has_arrived().is_err() {
                return Err(missing(rank, &format!("its process {process} is gone")));
            }
            if started.elapsed() > self.timeout {
                return Err(missing(rank, &format!("it did not arrive within {:?}", self.timeout)));
            }
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, unmapped once.
        unsafe { libc::munmap(self.start.cast(), bytes_of(self.size)) };
    }
}

fn bytes_of(size: usize) -> usize {
    offset(size, size, 0)
}

/// The offset of the buffer `turn` of `rank`. `offset(size, size, 0)` is the total size.
fn offset(size: usize, rank: usize, turn: usize) -> usize {
    let lines = (size * size_of::<RankState>()).next_multiple_of(4096);
    lines + (rank * 2 + turn) * BUFFER_BYTES
}

/// The elements of a tensor as bytes.
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
        // An empty tensor makes one empty chunk, so that the ranks still meet at a barrier.
        (0..length.max(1)).step_by(size).map(move |start| start..(start + size).min(length))
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory of a contiguous tensor, which `_tensor` keeps alive. The pointer of an empty
        // tensor may be null.
        if self.length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.start, self.length) } }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: as above, and only this collective writes it.
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

/// Sleeps while `flag` is `value`, for at most 50 ms, because a dead rank wakes no other.
fn sleep(flag: &AtomicU32, value: u32) {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // SAFETY: the address is mapped, and the time lives during the call.
    unsafe { libc::syscall(libc::SYS_futex, flag.as_ptr(), libc::FUTEX_WAIT, value, &raw const nap) };
}

fn is_alive(process: u32) -> bool {
    // The system keeps the entry of a zombie process, so its state must be checked.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

fn missing(rank: usize, problem: &str) -> Error {
    Error::Shared { call: "barrier".to_owned(), problem: format!("rank {rank} is missing: {problem}") }
}

#[cfg(test)]
mod tests;
