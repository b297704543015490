//! The collective that a rank calls, as it announces it to the others, and the comparison of two such calls.

use std::sync::atomic::{AtomicU64, Ordering};

use tch::Kind;

use crate::Error;

/// A [`Call`] in shared memory.
#[repr(C)]
pub(super) struct CallSlot {
    what: AtomicU64,
    bytes: AtomicU64,
}

/// The collective that a rank calls. Every rank of the group must make the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The index of its name in [`Call::NAMES`].
    name: u8,
    /// The element type.
    kind: u8,
    /// The reduction or the root.
    reduction_or_root: u32,
    bytes: u64,
}

impl Call {
    const NAMES: [&'static str; 6] =
        ["barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"];

    pub(super) fn new(name: &str, kind: Kind, reduction_or_root: usize, bytes: usize) -> Self {
        let index = Self::NAMES.iter().position(|known| *known == name).expect("a collective");
        Self {
            name: index as u8,
            kind: kind as u8,
            reduction_or_root: reduction_or_root as u32,
            bytes: bytes as u64,
        }
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES.get(usize::from(self.name)).copied().unwrap_or("another collective")
    }

    fn packed(self) -> u64 {
        u64::from(self.name) | u64::from(self.kind) << 8 | u64::from(self.reduction_or_root) << 32
    }

    pub(super) fn write(self, slot: &CallSlot) {
        slot.what.store(self.packed(), Ordering::SeqCst);
        slot.bytes.store(self.bytes, Ordering::SeqCst);
    }

    pub(super) fn read(slot: &CallSlot) -> Self {
        let what = slot.what.load(Ordering::SeqCst);
        let bytes = slot.bytes.load(Ordering::SeqCst);
        Self { name: what as u8, kind: (what >> 8) as u8, reduction_or_root: (what >> 32) as u32, bytes }
    }

    /// Returns the error that says how `other`, the call of `rank`, differs from this call of the rank
    /// `own_rank`.
    pub(super) fn difference(self, own_rank: usize, other: Self, rank: usize) -> Error {
        let (name, other_name) = (self.name(), other.name());
        let problem = if name != other_name {
            format!("rank {rank} of the group calls {other_name}, and rank {own_rank} {name}")
        } else if self.bytes != other.bytes {
            format!(
                "rank {rank} of the group passes {} bytes, and rank {own_rank} {}",
                other.bytes, self.bytes
            )
        } else {
            format!("rank {rank} of the group uses another dtype, reduction or root than rank {own_rank}")
        };
        Error::Shared { call: name.to_owned(), problem }
    }
}
