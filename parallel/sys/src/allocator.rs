//! An allocator for libtorch's CPU tensors that counts the bytes they hold and asks a budget for more.
//!
//! | request | memory | counted as |
//! |---|---|---|
//! | below [`LARGE_BYTES`] | the heap of the C library | what the heap sets aside for it |
//! | from [`LARGE_BYTES`] on | pages of address space that the allocator keeps | whole pages |
//!
//! A tensor that dies leaves its pages in memory for the next ones, whatever their sizes are: free ranges
//! that meet become one, and a request takes a part of one (best fit). A step whose rows are longer or
//! shorter than those of the last step therefore finds its memory present. [`trim`] gives free pages back
//! to the system, and what is trimmed keeps its addresses. So the resident memory of tensors is at most
//! [`held_bytes`] and falls when trimmed, while the heap that [`crate::memory::keep_large_buffers`] sets up
//! keeps what it once had.
//!
//! Not counted are tensors from before [`install`], tensors over memory of others, and memory that libtorch
//! takes elsewhere, such as the work space of MKL and oneDNN.

mod free_space;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::free_space::{FreeSpace, Reservation};
use crate::arena::page_bytes;
use crate::autograd::{fail, panic_text};
use crate::{Error, check, raw};

/// Requests of at least this many bytes get whole pages.
pub const LARGE_BYTES: usize = 64 << 10;

/// Decides whether so many more bytes of memory may be used. The text of a refusal becomes the error of the
/// operation.
pub type Budget = dyn Fn(usize) -> Result<(), String> + Send + Sync;

/// Free pages in memory are at most one part in this number of the memory that tensors have held at once,
/// when new ones are needed. They lie in pieces that are too small then.
const MAX_WASTE: usize = 8;

/// Address space is mapped in multiples of this many bytes, so that free ranges meet.
const GROWTH_BYTES: usize = 64 << 20;

/// The alignment of small requests, as libtorch's own allocator has it.
const ALIGNMENT: usize = 64;

/// Every page starts at a multiple of this, also where pages are larger.
const PAGE: usize = 4096;

static INSTALLED: Mutex<bool> = Mutex::new(false);
static POOL: Mutex<Pool> = Mutex::new(Pool { live: BTreeMap::new(), free: FreeSpace::new() });
static BUDGET: Mutex<Option<Arc<Budget>>> = Mutex::new(None);

static LIVE: Counter = Counter::new();
static HELD: Counter = Counter::new();
/// The most that tensors have held at once so far, as far as large requests have noticed.
static MOST_LIVE: AtomicUsize = AtomicUsize::new(0);
/// Changes only under the lock of [`POOL`].
static CACHED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether the budget runs on this thread.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Makes libtorch take the memory of CPU tensors from this allocator, until the process ends. Call it before
/// other threads use libtorch. Tensors from before are freed as they were allocated; a second call does
/// nothing. Fails if libtorch keeps another allocator.
pub fn install() -> Result<(), Error> {
    let mut installed = lock(&INSTALLED);
    if !*installed {
        // SAFETY: both functions are there as long as the process and may be called on any thread.
        check("SetCPUAllocator", unsafe { raw::shim_set_cpu_allocator(take, give_back) })?;
        *installed = true;
    }
    Ok(())
}

/// The bytes that tensors hold now.
pub fn live_bytes() -> usize {
    LIVE.now.load(Relaxed)
}

/// The most bytes that tensors held at once since [`reset_peak`].
pub fn peak_live_bytes() -> usize {
    LIVE.peak.load(Relaxed)
}

/// The bytes of free pages that are in memory for the next tensors.
pub fn cached_bytes() -> usize {
    CACHED.load(Relaxed)
}

/// The bytes that this allocator holds from the system: [`live_bytes`] and [`cached_bytes`].
pub fn held_bytes() -> usize {
    HELD.now.load(Relaxed)
}

/// The most bytes that this allocator held from the system since [`reset_peak`].
pub fn peak_held_bytes() -> usize {
    HELD.peak.load(Relaxed)
}

/// Starts [`peak_live_bytes`] and [`peak_held_bytes`] anew at the current values.
pub fn reset_peak() {
    LIVE.reset_peak();
    HELD.reset_peak();
}

/// Gives free pages back to the system, those freed first before the others, until at most
/// `target_cached_bytes` of them are in memory. Returns the bytes that went back.
pub fn trim(target_cached_bytes: usize) -> usize {
    let released = {
        let mut pool = lock(&POOL);
        let excess = CACHED.load(Relaxed).saturating_sub(target_cached_bytes);
        let ranges = pool.free.take_oldest(excess.next_multiple_of(page_bytes()));
        CACHED.fetch_sub(ranges.iter().map(Range::len).sum(), Relaxed);
        ranges
    };
    // The system call takes its time, so other threads may allocate meanwhile.
    for range in &released {
        let address = ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: whole pages of this allocator that no tensor uses, and no request finds them now.
        unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) };
    }
    let bytes = released.iter().map(Range::len).sum();
    HELD.sub(bytes);
    let mut pool = lock(&POOL);
    for range in released {
        pool.free.add_absent(range);
    }
    bytes
}

/// Sets or removes the function that is asked before a large request that free pages in memory cannot
/// serve, with the bytes of the new pages. An `Err` fails the operation with that text as its whole
/// message; a panic does with the text of the panic.
///
/// The function may use tensors, [`trim`] and [`set_budget`]: no lock is held while it runs, and requests
/// that it makes on its thread are not asked about. It runs on the thread of the request, which may be one
/// of libtorch's pool amid an operation, so it must not wait for a thread that may be in an operation. Two
/// threads may ask at the same time, and [`held_bytes`] grows only after the answer.
pub fn set_budget(budget: Option<Box<Budget>>) {
    let before = std::mem::replace(&mut *lock(&BUDGET), budget.map(Arc::from));
    // Without the lock, since it may hold tensors.
    drop(before);
}

/// A number of bytes and its peak.
struct Counter {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Counter {
    const fn new() -> Self {
        Self { now: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        // Most additions make no peak, and a load is cheaper than a maximum.
        if now > self.peak.load(Relaxed) {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    fn sub(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Relaxed);
    }

    fn reset_peak(&self) {
        self.peak.store(self.now.load(Relaxed), Relaxed);
        // Another thread may have added in between.
        self.peak.fetch_max(self.now.load(Relaxed), Relaxed);
    }
}

/// The address space of large requests.
struct Pool {
    /// The bytes that each tensor has, by address.
    live: BTreeMap<usize, usize>,
    free: FreeSpace,
}

impl Pool {
    /// Takes memory back from a tensor; `false` if it is not from here.
    fn take_back(&mut self, address: usize) -> bool {
        let Some(bytes) = self.live.remove(&address) else { return false };
        self.free.add(address..address + bytes);
        CACHED.fetch_add(bytes, Relaxed);
        LIVE.sub(bytes);
        true
    }

    /// Serves a request with free pages in memory.
    fn reuse(&mut self, bytes: usize) -> Option<*mut c_void> {
        let address = self.free.take_resident(bytes)?;
        CACHED.fetch_sub(bytes, Relaxed);
        LIVE.add(bytes);
        Some(self.hand_out(address, bytes))
    }

    fn hand_out(&mut self, address: usize, bytes: usize) -> *mut c_void {
        self.live.insert(address, bytes);
        ptr::with_exposed_provenance_mut(address)
    }

    /// Reserves the addresses for a request, with the free pages in memory that lie there.
    fn reserve(&mut self, bytes: usize) -> io::Result<Reservation> {
        let mut reservation = self.free.reserve(bytes);
        if reservation.is_none() {
            self.free.add_absent(map(bytes.next_multiple_of(GROWTH_BYTES))?);
            reservation = self.free.reserve(bytes);
        }
        let reservation = reservation.expect("the new range is large enough");
        CACHED.fetch_sub(reservation.resident_bytes(), Relaxed);
        LIVE.add(reservation.resident_bytes());
        Ok(reservation)
    }

    /// Undoes [`reserve`](Self::reserve).
    fn cancel(&mut self, reservation: &Reservation) {
        self.free.cancel(reservation);
        CACHED.fetch_add(reservation.resident_bytes(), Relaxed);
        LIVE.sub(reservation.resident_bytes());
    }
}

/// Maps address space. The system adds pages as they are touched, and the budget decides how many.
fn map(bytes: usize) -> io::Result<Range<usize>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the system chooses an address where nothing is mapped.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page would bring memory that is not counted. Systems without huge pages refuse, which is right.
    // SAFETY: the pages of the new mapping.
    unsafe { libc::madvise(address, bytes, libc::MADV_NOHUGEPAGE) };
    let start = address.expose_provenance();
    Ok(start..start + bytes)
}

/// The memory of a tensor of `bytes` bytes, more than 0; null with a message left for libtorch.
extern "C" fn take(bytes: usize) -> *mut c_void {
    let memory = if bytes < LARGE_BYTES { take_small(bytes) } else { take_large(bytes) };
    memory.unwrap_or_else(|message| {
        fail(&message);
        ptr::null_mut()
    })
}

extern "C" fn give_back(data: *mut c_void) {
    // A small request may start at a page too: then the pool does not know it.
    if data.is_null() || (data.addr().is_multiple_of(PAGE) && lock(&POOL).take_back(data.addr())) {
        return;
    }
    // SAFETY: what the pool does not know came from `take_small`, and libtorch gives it back once.
    unsafe {
        let bytes = libc::malloc_usable_size(data);
        LIVE.sub(bytes);
        HELD.sub(bytes);
        libc::free(data);
    }
}

fn take_small(bytes: usize) -> Result<*mut c_void, String> {
    let allocate = || {
        let mut data = ptr::null_mut();
        // SAFETY: writes the address to `data`, and only where it returns 0.
        match unsafe { libc::posix_memalign(&raw mut data, ALIGNMENT, bytes) } {
            0 => Ok(data),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    };
    let again_without_free_pages = |_| {
        trim(0);
        allocate()
    };
    let data = allocate()
        .or_else(again_without_free_pages)
        .map_err(|error| format!("no {bytes} bytes for a tensor: {error}"))?;
    // SAFETY: `data` was allocated just now.
    let usable = unsafe { libc::malloc_usable_size(data) };
    LIVE.add(usable);
    HELD.add(usable);
    Ok(data)
}

fn take_large(bytes: usize) -> Result<*mut c_void, String> {
    let no_memory = |problem: &dyn std::fmt::Display| format!("no {bytes} bytes for a tensor: {problem}");
    let bytes = bytes
        .checked_next_multiple_of(page_bytes())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| no_memory(&"no address space is that large"))?;
    let reserved = {
        let mut pool = lock(&POOL);
        if let Some(data) = pool.reuse(bytes) {
            return Ok(data);
        }
        pool.reserve(bytes)
    };
    let reservation = match reserved {
        Ok(reservation) => reservation,
        // What the budget says is more useful.
        Err(error) => return ask(bytes).and_then(|()| Err(no_memory(&error))),
    };

    let missing = reservation.missing_bytes();
    let answer = ask(missing);
    let mut pool = lock(&POOL);
    // The budget may have freed a tensor whose pages serve the request.
    if answer.is_err() || pool.free.has_resident(bytes) {
        pool.cancel(&reservation);
        answer?;
        return Ok(pool.reuse(bytes).expect("free space has grown"));
    }
    drop(pool);
    trim_waste(missing);
    LIVE.add(missing);
    HELD.add(missing);
    Ok(lock(&POOL).hand_out(reservation.range.start, bytes))
}

/// Gives free pages back before `bytes` of new ones are used, so that no more is held than the most that
/// tensors held at once and [`MAX_WASTE`] of it.
fn trim_waste(bytes: usize) {
    let live = LIVE.now.load(Relaxed) + bytes;
    let most = MOST_LIVE.fetch_max(live, Relaxed).max(live);
    let excess = (HELD.now.load(Relaxed) + bytes).saturating_sub(most + most / MAX_WASTE);
    if excess > 0 {
        trim(CACHED.load(Relaxed).saturating_sub(excess));
    }
}

/// Asks the budget, unless this thread runs it already.
fn ask(bytes: usize) -> Result<(), String> {
    if ASKING.get() {
        return Ok(());
    }
    let Some(budget) = lock(&BUDGET).clone() else { return Ok(()) };
    ASKING.set(true);
    // The closure owns the budget, perhaps as its last owner: its tensors go while the flag is set.
    let answer = catch_unwind(AssertUnwindSafe(move || budget(bytes)));
    ASKING.set(false);
    answer.unwrap_or_else(|panic| Err(format!("the memory budget panicked: {}", panic_text(&*panic))))
}

/// No thread leaves a state half changed by a panic, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_starts_anew_at_the_current_value() {
        let counter = Counter::new();
        counter.add(5);
        counter.add(3);
        counter.sub(6);
        assert_eq!((counter.now.load(Relaxed), counter.peak.load(Relaxed)), (2, 8));
        counter.reset_peak();
        assert_eq!(counter.peak.load(Relaxed), 2);
        counter.add(1);
        assert_eq!(counter.peak.load(Relaxed), 3);
    }
}
