//! The memory of libtorch's tensors on the device of a manager.

use parallel::{allocator, device_allocator};
use tch::Device;

use crate::Error;

/// Where the tensors are that share the budget with the chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TensorMemory {
    /// Tensors of the CPU. The memory of freed ones stays with our allocator for the next tensors.
    #[default]
    Host,
    /// Tensors of a device. The memory of freed ones stays with its allocator, and is not counted: it goes back
    /// to the driver where that has no other.
    Device(Device),
}

use TensorMemory::{Device as OnDevice, Host};

impl TensorMemory {
    /// Counts the tensors of `device` from now on, and asks `budget` before more memory is taken, with the
    /// bytes that are not counted yet.
    pub(super) fn watch(device: Device, budget: Box<allocator::Budget>) -> Result<Self, Error> {
        if device == Device::Cpu {
            allocator::install()?;
            allocator::set_budget(Some(budget));
            return Ok(Host);
        }
        device_allocator::watch(device)?;
        device_allocator::set_budget(Some(Box::new(move |_| budget(0))));
        Ok(OnDevice(device))
    }

    /// The bytes that tensors hold now.
    pub(super) fn live_bytes(self) -> usize {
        match self {
            Host => allocator::live_bytes(),
            OnDevice(_) => device_allocator::live_bytes(),
        }
    }

    /// The bytes that the allocator has taken from the system or the driver.
    pub(super) fn reserved_bytes(self) -> Result<usize, Error> {
        match self {
            Host => Ok(allocator::held_bytes()),
            OnDevice(device) => Ok(device_allocator::reserved_bytes(device)?),
        }
    }

    /// Gives the memory of all freed tensors of a device back to its driver.
    pub(super) fn empty_cache(self) -> Result<(), Error> {
        match self {
            Host => Ok(()),
            OnDevice(device) => Ok(device_allocator::empty_cache(device)?),
        }
    }

    /// The bytes of live and freed tensors that are in memory.
    pub(super) fn held_bytes(self) -> usize {
        match self {
            Host => allocator::held_bytes(),
            OnDevice(_) => device_allocator::live_bytes(),
        }
    }

    /// The most bytes that tensors held at once since [`reset_peak`](Self::reset_peak).
    pub(super) fn peak_live_bytes(self) -> usize {
        match self {
            Host => allocator::peak_live_bytes(),
            OnDevice(_) => device_allocator::peak_live_bytes(),
        }
    }

    /// Starts [`peak_live_bytes`](Self::peak_live_bytes) anew.
    pub(super) fn reset_peak(self) {
        match self {
            Host => allocator::reset_peak(),
            OnDevice(_) => device_allocator::reset_peak(),
        }
    }

    /// Gives up to `bytes` of freed tensors back, but leaves `kept_bytes` of them.
    pub(super) fn trim_to(self, kept_bytes: usize, bytes: usize) {
        let cached = if self == Host { allocator::cached_bytes() } else { 0 };
        if bytes > 0 && cached > kept_bytes {
            allocator::trim(cached.saturating_sub(bytes).max(kept_bytes));
        }
    }
}
