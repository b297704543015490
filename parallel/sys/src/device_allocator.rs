//! Counts the bytes of the tensors that libtorch makes on a device other than the CPU, and asks a budget
//! before it makes one. The counterpart of [`crate::allocator`], which is for the CPU: the memory itself
//! still comes from libtorch's allocator of the device.
//!
//! The allocator of a GPU keeps the memory of freed tensors, which [`reserved_bytes`] counts and
//! [`live_bytes`] does not, until [`empty_cache`] gives it back to the driver.
//!
//! Not counted are tensors from before [`watch`], tensors over memory of others, and what the libraries of
//! CUDA take for themselves.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};

use crate::allocator::Budget;
use crate::autograd::{fail, panic_text};
use crate::driver::device_number;
use crate::{Error, check, raw};

/// A device sets memory aside in multiples of this many bytes (`kMinBlockSize` of the caching allocator of
/// CUDA).
const BLOCK_BYTES: usize = 512;

static WATCHED: Mutex<Option<Device>> = Mutex::new(None);
static BUDGET: Mutex<Option<Arc<Budget>>> = Mutex::new(None);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts the tensors of `device` from now on, until the process ends. A second call does nothing. Fails if
/// libtorch keeps another allocator, or if another device is watched.
pub fn watch(device: Device) -> Result<(), Error> {
    let mut watched = lock(&WATCHED);
    match *watched {
        Some(other) if other == device => Ok(()),
        Some(other) => {
            let message =
                format!("the tensors of {other:?} are watched already, and those of {device:?} cannot be");
            Err(Error::Torch { call: "SetAllocator".to_owned(), message })
        }
        None => {
            // libtorch sets its allocator of a device up when it makes the first tensor there.
            let failed =
                |error: tch::TchError| Error::Torch { call: "empty".to_owned(), message: error.to_string() };
            let _first = Tensor::f_empty([0], (Kind::Uint8, device)).map_err(failed)?;
            // SAFETY: both functions are there as long as the process and may be called on any thread.
            let code = unsafe { raw::shim_watch_device_allocator(device_number(device), ask, tell) };
            check("SetAllocator", code)?;
            *watched = Some(device);
            Ok(())
        }
    }
}

/// The bytes that libtorch has taken from the driver of `device`: those of live tensors, and those that it
/// keeps for tensors to come.
pub fn reserved_bytes(device: Device) -> Result<usize, Error> {
    let mut bytes = live_bytes();
    // SAFETY: a place for the answer.
    let code = unsafe { raw::shim_device_reserved_bytes(device_number(device), &raw mut bytes) };
    check("getDeviceStats", code)?;
    Ok(bytes)
}

/// Gives the memory back to the driver of `device` that libtorch keeps for tensors to come.
pub fn empty_cache(device: Device) -> Result<(), Error> {
    // SAFETY: a plain call.
    check("emptyCache", unsafe { raw::shim_device_empty_cache(device_number(device)) })
}

/// The bytes that tensors hold now.
pub fn live_bytes() -> usize {
    LIVE.load(Relaxed)
}

/// The most bytes that tensors held at once since [`reset_peak`].
pub fn peak_live_bytes() -> usize {
    PEAK.load(Relaxed)
}

/// Starts [`peak_live_bytes`] anew at the current value.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// Sets or removes the function that is asked before each tensor, with its bytes, which [`live_bytes`] has
/// already. It is asked as that of [`crate::allocator::set_budget`] is, but may make no tensor of the device.
pub fn set_budget(budget: Option<Box<Budget>>) {
    let before = std::mem::replace(&mut *lock(&BUDGET), budget.map(Arc::from));
    drop(before);
}

extern "C" fn ask(bytes: usize) -> c_int {
    let bytes = bytes.next_multiple_of(BLOCK_BYTES);
    // Counted before it is asked, so that two threads that ask at the same time know of each other.
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    let budget = lock(&BUDGET).clone();
    let answer = match budget {
        Some(budget) => catch_unwind(AssertUnwindSafe(|| budget(bytes))),
        None => Ok(Ok(())),
    };
    let refusal = match answer {
        Ok(Ok(())) => {
            PEAK.fetch_max(live, Relaxed);
            return 0;
        }
        Ok(Err(message)) => message,
        Err(panic) => format!("the memory budget panicked: {}", panic_text(&*panic)),
    };
    LIVE.fetch_sub(bytes, Relaxed);
    fail(&refusal)
}

extern "C" fn tell(bytes: usize) {
    LIVE.fetch_sub(bytes.next_multiple_of(BLOCK_BYTES), Relaxed);
}

/// No thread leaves a state half changed by a panic, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
