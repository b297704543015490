//! Waiting on a word of memory: spinning, `futex(2)` within one process, and a lock made of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps. Sleeping and waking takes 5 to 50 microseconds, so a shorter
/// time makes regions that follow each other slower. A longer time keeps a core from the thread that is
/// waited for. Tried on an AMD EPYC (Zen 4, two threads) alone, from 10 to 2000 microseconds: beside a busy
/// process, 10 to 50 are the fastest; without one, 50 and 200 differ by 5 % in decoding and not in training.
const SPIN: Duration = Duration::from_micros(50);

/// Spins while `is_pending`, for [`SPIN`] at most. Returns whether it still is.
pub(super) fn spin_while(is_pending: impl Fn() -> bool) -> bool {
    if !is_pending() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..16 {
            std::hint::spin_loop();
            if !is_pending() {
                return false;
            }
        }
    }
    is_pending()
}

/// Sleeps until another thread calls [`wake`], unless `word` is no longer `value`. May return for no reason.
pub(super) fn sleep(word: &AtomicU32, value: u32) {
    let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address is mapped, and there is no time limit.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), flags, value, std::ptr::null::<libc::timespec>())
    };
}

/// Wakes up to `count` threads that sleep on `word`.
pub(super) fn wake(word: &AtomicU32, count: i32) {
    let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address is mapped, and waking has no other effect.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, count) };
}

/// A lock whose owner need not be the scope that locked it. All bytes are zero while it is open.
#[repr(transparent)]
pub(super) struct Lock(AtomicU32);

const OPEN: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and another thread may sleep until it is open.
const AWAITED: u32 = 2;

impl Lock {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(OPEN))
    }

    pub(super) fn lock(&self) {
        if self.0.compare_exchange(OPEN, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != OPEN {
            sleep(&self.0, AWAITED);
        }
    }

    pub(super) fn unlock(&self) {
        if self.0.swap(OPEN, Ordering::Release) == AWAITED {
            wake(&self.0, 1);
        }
    }
}
