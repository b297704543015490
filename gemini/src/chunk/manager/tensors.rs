//! The memory of libtorch's tensors on the device of a manager.

use parallel::{allocator, device_allocator};
use tch::Device;

use crate::Error;

/// Where the tensors are that share the budget with the chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TensorMemory {
    /// Those of the CPU. The memory of freed ones stays with our allocator for the next tensors.
    #[default]
    Host,
    /// Those of a device, whose allocator gives freed memory back at once.
    Device,
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
        Ok(OnDevice)
    }

    /// The bytes that tensors hold now.
    pub(super) fn live_bytes(self) -> usize {
        match self {
            Host => allocator::live_bytes(),
            OnDevice => device_allocator::live_bytes(),
        }
    }

    /// The bytes of live and freed tensors that are in memory.
    pub(super) fn held_bytes(self) -> usize {
        match self {
            Host => allocator::held_bytes(),
            OnDevice => device_allocator::live_bytes(),
        }
    }

    /// The most bytes that tensors held at once since [`reset_peak`](Self::reset_peak).
    pub(super) fn peak_live_bytes(self) -> usize {
        match self {
            Host => allocator::peak_live_bytes(),
            OnDevice => device_allocator::peak_live_bytes(),
        }
    }

    /// Starts [`peak_live_bytes`](Self::peak_live_bytes) anew.
    pub(super) fn reset_peak(self) {
        match self {
            Host => allocator::reset_peak(),
            OnDevice => device_allocator::reset_peak(),
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
