//! Waiting on a word of memory: `futex(2)` within one process, and a lock made of it.

use std::sync::atomic::{AtomicU32, Ordering};

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
