//! An allocator for libtorch's CPU tensors that counts the bytes they hold and asks a budget for more.
//!
//! | request | memory | counted as |
//! |---|---|---|
//! | below [`LARGE_BYTES`] | the heap of the C library | what the heap sets aside for it |
//! | from [`LARGE_BYTES`] on | an anonymous mapping of its own | its size class |
//!
//! A size class is the request rounded up to a multiple of an eighth of the power of two at or below it: at
//! most 12.5 % more than the request, in pages that nobody touches. A tensor that dies leaves its mapping in
//! a cache, where the next tensor of the same class, or of one slightly below, finds the pages present;
//! [`trim`] gives cached mappings back to the system. So the resident memory of tensors is at most
//! [`held_bytes`] and falls when trimmed, while the heap that [`crate::memory::keep_large_buffers`] sets up
//! keeps what it once had. Nothing else bounds the cache: a class may keep as much as its tensors ever held
//! at once.
//!
//! Not counted are tensors from before [`install`], tensors over memory of others, and memory that libtorch
//! takes elsewhere, such as the work space of MKL and oneDNN.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::HUGE_PAGE_BYTES;
use crate::autograd::{fail, panic_text};
use crate::{Error, check, raw};

/// Requests of at least so many bytes get a mapping of their own.
pub const LARGE_BYTES: usize = 64 << 10;

/// Decides whether so many bytes may be mapped. The text of a refusal becomes the error of the operation.
pub type Budget = dyn Fn(usize) -> Result<(), String> + Send + Sync;

/// The cache takes at most one part in so many of the memory that tensors have held at once. Batches of
/// different lengths leave mappings of sizes that no tensor needs again for a long time.
const MAX_WASTE: usize = 8;

/// The alignment of small requests, as libtorch's own allocator has it.
const ALIGNMENT: usize = 64;

/// Every mapping starts at a multiple of this, also where pages are larger.
const PAGE: usize = 4096;

static INSTALLED: Mutex<bool> = Mutex::new(false);
static POOL: Mutex<Pool> = Mutex::new(Pool {
    live: BTreeMap::new(),
    cached: BTreeMap::new(),
    num_freed: 0,
    classes: BTreeMap::new(),
    peak_bytes_by_class: 0,
});
static BUDGET: Mutex<Option<Arc<Budget>>> = Mutex::new(None);

static LIVE: Counter = Counter::new();
static HELD: Counter = Counter::new();
/// The most that tensors have held at once so far, as far as large requests have noticed.
static MOST_LIVE: AtomicUsize = AtomicUsize::new(0);
/// The part of [`LIVE`] that small requests have taken from the heap.
static SMALL: Counter = Counter::new();
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

/// The bytes that this allocator would have held since [`reset_peak`] if it never had to map memory while
/// some was cached: the sum over the size classes of the most bytes that tensors of the class held at once.
/// It is at least [`peak_live_bytes`]. As long as so many bytes are held, the same tensors need no new
/// memory.
pub fn peak_bytes_by_class() -> usize {
    lock(&POOL).peak_bytes_by_class + SMALL.peak.load(Relaxed)
}

/// The bytes of freed mappings that wait for the next tensor of their size.
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

/// Starts [`peak_live_bytes`], [`peak_held_bytes`] and [`peak_bytes_by_class`] anew at the current values.
pub fn reset_peak() {
    LIVE.reset_peak();
    HELD.reset_peak();
    SMALL.reset_peak();
    lock(&POOL).reset_peak();
}

/// Unmaps cached mappings, those freed first before the others, until at most `target_cached_bytes` are
/// cached. Returns the bytes that went back to the system.
pub fn trim(target_cached_bytes: usize) -> usize {
    let mut unused = Vec::new();
    {
        let mut pool = lock(&POOL);
        while CACHED.load(Relaxed) > target_cached_bytes {
            let Some(mapping) = pool.pop_oldest() else { break };
            unused.push(mapping);
        }
    }
    let bytes = unused.iter().map(|mapping: &Mapping| mapping.bytes).sum();
    // Unmapping takes its time, so other threads may allocate meanwhile.
    drop(unused);
    bytes
}

/// Sets or removes the function that is asked before a large request that the cache cannot serve, with the
/// bytes that would be mapped. An `Err` fails the operation with that text as its whole message; a panic does
/// with the text of the panic.
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

/// An anonymous mapping that no tensor uses; unmapped when dropped.
struct Mapping {
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, and its owner alone uses the address.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: the system chooses an address where nothing is mapped.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages are made present faster. A refusal costs only speed.
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the pages of the new mapping.
            unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
        }
        HELD.add(bytes);
        Ok(Self { address, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped these bytes, and no tensor uses them.
        unsafe {
            // The system refuses where it would have to split one more area than a process may have. Then the
            // pages go back, and only the addresses are lost.
            if libc::munmap(self.address, self.bytes) != 0 {
                libc::madvise(self.address, self.bytes, libc::MADV_DONTNEED);
            }
        }
        HELD.sub(self.bytes);
    }
}

/// All mappings.
struct Pool {
    /// The bytes of each mapping that a tensor uses, by address.
    live: BTreeMap<usize, usize>,
    /// The unused mappings by their bytes, those freed first in front, with the number of their freeing.
    cached: BTreeMap<usize, VecDeque<(u64, Mapping)>>,
    /// How often a mapping was freed.
    num_freed: u64,
    /// For each number of bytes, how many mappings of that size tensors use now, and the most since the peaks
    /// were started anew.
    classes: BTreeMap<usize, (usize, usize)>,
    /// The bytes of these most.
    peak_bytes_by_class: usize,
}

impl Pool {
    fn hand_out(&mut self, mapping: Mapping) -> *mut c_void {
        let mapping = ManuallyDrop::new(mapping);
        self.live.insert(mapping.address.addr(), mapping.bytes);
        let (now, most) = self.classes.entry(mapping.bytes).or_default();
        *now += 1;
        if now > most {
            *most = *now;
            self.peak_bytes_by_class += mapping.bytes;
        }
        LIVE.add(mapping.bytes);
        mapping.address
    }

    /// Takes a mapping back from a tensor; `false` if the address is not one of a mapping.
    fn take_back(&mut self, address: *mut c_void) -> bool {
        let Some(bytes) = self.live.remove(&address.addr()) else { return false };
        self.classes.entry(bytes).and_modify(|(now, _)| *now -= 1);
        self.num_freed += 1;
        self.cached.entry(bytes).or_default().push_back((self.num_freed, Mapping { address, bytes }));
        CACHED.fetch_add(bytes, Relaxed);
        LIVE.sub(bytes);
        true
    }

    fn reset_peak(&mut self) {
        self.classes.retain(|_, (now, most)| {
            *most = *now;
            *now > 0
        });
        self.peak_bytes_by_class = self.classes.iter().map(|(bytes, (now, _))| bytes * now).sum();
    }

    /// The mapping of this class that was freed last: the processor's caches may still have some of it. If
    /// the class has none, one of at most a quarter more bytes: batches of different lengths need tensors of
    /// slightly different sizes, and new pages cost more than some unused ones.
    fn pop_newest(&mut self, class: usize) -> Option<Mapping> {
        let fitting = self.cached.range_mut(class..=class + class / 4);
        let queue = fitting.map(|(_, queue)| queue).find(|queue| !queue.is_empty())?;
        let (_, mapping) = queue.pop_back()?;
        CACHED.fetch_sub(mapping.bytes, Relaxed);
        Some(mapping)
    }

    fn pop_oldest(&mut self) -> Option<Mapping> {
        let queues = self.cached.values_mut().filter(|queue| !queue.is_empty());
        let queue = queues.min_by_key(|queue| queue.front().map(|(number, _)| *number))?;
        let (_, mapping) = queue.pop_front()?;
        CACHED.fetch_sub(mapping.bytes, Relaxed);
        Some(mapping)
    }
}

/// The memory of a tensor of so many bytes, more than 0; null with a message left for libtorch.
extern "C" fn take(bytes: usize) -> *mut c_void {
    let memory = if bytes < LARGE_BYTES { take_small(bytes) } else { take_large(bytes) };
    memory.unwrap_or_else(|message| {
        fail(&message);
        ptr::null_mut()
    })
}

extern "C" fn give_back(data: *mut c_void) {
    // A small request may start at a page too: then the pool does not know it.
    if data.is_null() || (data.addr().is_multiple_of(PAGE) && lock(&POOL).take_back(data)) {
        return;
    }
    // SAFETY: what the pool does not know came from `take_small`, and libtorch gives it back once.
    unsafe {
        let bytes = libc::malloc_usable_size(data);
        SMALL.sub(bytes);
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
    let data = or_after_trim(allocate).map_err(|error| format!("no {bytes} bytes for a tensor: {error}"))?;
    // SAFETY: `data` was allocated just now.
    let usable = unsafe { libc::malloc_usable_size(data) };
    SMALL.add(usable);
    LIVE.add(usable);
    HELD.add(usable);
    Ok(data)
}

fn take_large(bytes: usize) -> Result<*mut c_void, String> {
    let class =
        class_bytes(bytes).ok_or_else(|| format!("no {bytes} bytes for a tensor: no address space"))?;
    if let Some(data) = reuse(class) {
        return Ok(data);
    }
    ask(class)?;
    // The budget may have freed a tensor of this class.
    if let Some(data) = reuse(class) {
        return Ok(data);
    }
    trim_waste(class);
    let mapping = or_after_trim(|| Mapping::new(class))
        .map_err(|error| format!("no {class} bytes for a tensor: {error}"))?;
    Ok(lock(&POOL).hand_out(mapping))
}

/// Makes the cache smaller before `bytes` are mapped, so that no more is held than the most that tensors held
/// at once and [`MAX_WASTE`] of it.
fn trim_waste(bytes: usize) {
    let live = LIVE.now.load(Relaxed) + bytes;
    let most = MOST_LIVE.fetch_max(live, Relaxed).max(live);
    let excess = (HELD.now.load(Relaxed) + bytes).saturating_sub(most + most / MAX_WASTE);
    if excess > 0 {
        trim(CACHED.load(Relaxed).saturating_sub(excess));
    }
}

fn reuse(class: usize) -> Option<*mut c_void> {
    let mut pool = lock(&POOL);
    let mapping = pool.pop_newest(class)?;
    Some(pool.hand_out(mapping))
}

/// Tries again without the cache where the system has no memory.
fn or_after_trim<T>(allocate: impl Fn() -> io::Result<T>) -> io::Result<T> {
    allocate().or_else(|_| {
        trim(0);
        allocate()
    })
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

/// The size class of a large request in bytes; `None` beyond what a process can address.
fn class_bytes(bytes: usize) -> Option<usize> {
    let step = (1 << bytes.ilog2()) / 8;
    bytes.checked_next_multiple_of(step).filter(|&class| isize::try_from(class).is_ok())
}

/// No thread leaves a state half changed by a panic, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_classes_lie_between_powers_of_two() {
        const KIB: usize = 1 << 10;
        // From 64 KiB on in steps of 8 KiB, from 128 KiB on in steps of 16 KiB.
        assert_eq!(class_bytes(LARGE_BYTES), Some(64 * KIB));
        assert_eq!(class_bytes(64 * KIB + 1), Some(72 * KIB));
        assert_eq!(class_bytes(72 * KIB), Some(72 * KIB));
        assert_eq!(class_bytes(128 * KIB - 1), Some(128 * KIB));
        assert_eq!(class_bytes(128 * KIB + 1), Some(144 * KIB));
        for shift in 16..40 {
            let power = 1usize << shift;
            let classes: std::collections::BTreeSet<_> =
                (1..=4096).filter_map(|part| class_bytes(power + power / 4096 * part)).collect();
            assert_eq!(classes.len(), 8);
            assert!(classes.iter().all(|class| class.is_multiple_of(PAGE)));
        }
        assert_eq!(class_bytes(usize::MAX), None);
        assert_eq!(class_bytes(isize::MAX as usize), None);
    }

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
