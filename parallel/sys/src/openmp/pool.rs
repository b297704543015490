//! The threads that help one thread with its parallel regions.
//!
//! Each worker has a word of memory with its state. The owner of the pool offers a share, the worker takes it
//! and is idle again when it has finished. The owner takes back an offer that the worker has not taken.
//!
//! ```text
//!            owner: offer                worker: take
//!   IDLE ------------------> OFFERED ------------------> TAKEN
//!    ^  \                       |                        |   \ owner: sleep
//!    |   \ worker: sleep        | owner: take back       |    v
//!    |    v                     v                        |   AWAITED
//!    |   ASLEEP                IDLE                      |    |
//!    +---------------------------------------------------+----+  worker: finish
//! ```
//! Only the worker sleeps on an idle word and only the owner on a taken one, so a wake never reaches the
//! wrong thread.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::futex::{self, spin_while};
use super::team::{Member, Team};
use super::thread::{THREADS, run_as};

/// The body of a region, which the compiler made of the block after `#pragma omp parallel`.
pub(super) type Region = unsafe extern "C" fn(*mut c_void);

/// The stack of a worker, which is the usual one of a main thread. Only pages that are used take memory.
const STACK_BYTES: usize = 8 << 20;

const IDLE: u32 = 0;
const ASLEEP: u32 = 1;
const OFFERED: u32 = 2;
const TAKEN: u32 = 3;
const AWAITED: u32 = 4;
const STOPPED: u32 = 5;

/// A share of a region: what one member does.
#[derive(Clone, Copy)]
struct Share {
    region: Region,
    data: *mut c_void,
    team: *const Team,
    id: u32,
    /// The owner's default size of a region, which its helpers inherit.
    threads: u32,
}

impl Share {
    /// # Safety
    ///
    /// The region has not ended.
    unsafe fn run(self) {
        // SAFETY: the owner keeps the team until the region has ended.
        let member = Member::new(unsafe { &*self.team }, self.id, true);
        // SAFETY: the compiler made `region` for `data`.
        run_as(member, || unsafe { (self.region)(self.data) });
    }
}

/// What a worker and the owner of its pool share. It has cache lines of its own, with the neighbouring one
/// that the processor prefetches.
#[repr(align(128))]
struct Worker {
    state: AtomicU32,
    /// Written by the owner before the offer, read by the worker after it has taken the offer.
    share: UnsafeCell<Option<Share>>,
}

// SAFETY: the state says which of the two threads may use the share, and what a share points to lives until
// its region has ended.
unsafe impl Send for Worker {}
// SAFETY: as above.
unsafe impl Sync for Worker {}

impl Worker {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU32::new(IDLE), share: UnsafeCell::new(None) })
    }

    fn spawn() -> Arc<Self> {
        let worker = Self::new();
        let of_thread = Arc::clone(&worker);
        let builder = thread::Builder::new().name("openmp".to_owned()).stack_size(STACK_BYTES);
        // The caller is C++ code that cannot fail: a panic here ends the program.
        let started = builder.spawn(move || of_thread.work());
        let _ = started.expect("the system has another thread for libtorch; set fewer with --threads");
        worker
    }

    /// Offers a share. What `share` points to must live until [`await_end`](Self::await_end) returns, or
    /// until the share was [taken back](Self::take_back).
    fn offer(&self, share: Share) {
        // SAFETY: the worker is idle.
        unsafe { *self.share.get() = Some(share) };
        if self.state.swap(OFFERED, Ordering::AcqRel) == ASLEEP {
            futex::wake(&self.state, 1);
        }
    }

    /// Takes back a share that the worker has not begun.
    fn take_back(&self) -> Option<Share> {
        self.state.compare_exchange(OFFERED, IDLE, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the worker has not taken the share, and is idle.
        unsafe { (*self.share.get()).take() }
    }

    /// Waits until the worker has finished its share.
    fn await_end(&self) {
        let is_busy = || matches!(self.state.load(Ordering::Acquire), TAKEN | AWAITED);
        while spin_while(is_busy) {
            let _ = self.state.compare_exchange(TAKEN, AWAITED, Ordering::Relaxed, Ordering::Relaxed);
            futex::sleep(&self.state, AWAITED);
        }
    }

    /// Runs shares until the pool is dropped.
    fn work(&self) {
        loop {
            let is_idle = || matches!(self.state.load(Ordering::Relaxed), IDLE | ASLEEP);
            while spin_while(is_idle) {
                let _ = self.state.compare_exchange(IDLE, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
                futex::sleep(&self.state, ASLEEP);
            }
            match self.state.compare_exchange(OFFERED, TAKEN, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => self.run_share(),
                Err(STOPPED) => return,
                // The owner has taken the offer back.
                Err(_) => {}
            }
        }
    }

    fn run_share(&self) {
        // SAFETY: the owner wrote the share before it offered it, and waits until it has been run.
        if let Some(share) = unsafe { (*self.share.get()).take() } {
            THREADS.set(share.threads);
            // SAFETY: as above.
            unsafe { share.run() };
        }
        if self.state.swap(IDLE, Ordering::AcqRel) == AWAITED {
            futex::wake(&self.state, 1);
        }
    }
}

/// The workers of one thread. A second thread with regions of its own has a second pool.
pub(super) struct Pool {
    workers: Vec<Arc<Worker>>,
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self { workers: Vec::new() }
    }

    /// Workers that never begin, as if other processes held all cores.
    #[cfg(test)]
    pub(super) fn without_threads(count: usize) -> Self {
        Self { workers: (0..count).map(|_| Worker::new()).collect() }
    }

    /// Runs `region` once for each of `size` members, and returns when all have finished.
    pub(super) fn run(&mut self, region: Region, data: *mut c_void, size: u32, threads: u32) {
        while self.workers.len() + 1 < size as usize {
            self.workers.push(Worker::spawn());
        }
        let helpers = &self.workers[..size as usize - 1];

        let team = Team::with_size(size);
        let share = |id| Share { region, data, team: &raw const team, id, threads };
        for (id, worker) in (1..).zip(helpers) {
            worker.offer(share(id));
        }
        // SAFETY: the team lives until the end of this function, which waits for all members.
        unsafe { share(0).run() };

        // A worker that has not begun has no core, or has just been woken. A region that has ended for member
        // 0 has no barrier ahead, so its other shares can run one after another.
        for share in helpers.iter().filter_map(|worker| worker.take_back()) {
            // SAFETY: as above.
            unsafe { share.run() };
        }
        for worker in helpers {
            worker.await_end();
        }
    }
}

impl Drop for Pool {
    /// Ends the threads, and waits for none of them.
    fn drop(&mut self) {
        for worker in &self.workers {
            if worker.state.swap(STOPPED, Ordering::AcqRel) == ASLEEP {
                futex::wake(&worker.state, 1);
            }
        }
    }
}
