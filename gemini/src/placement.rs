//! Placement: which chunks are in the memory of the device, as pure functions from numbers to decisions.
//! Nothing here moves a byte.
//!
//! ```text
//!   choose_evictions    which chunks make room: those whose next use is farthest in the future
//!   choose_prefetches   which chunks are fetched ahead
//!   simulate            what the policy `auto` moves over a recorded order of use
//! ```
//! Time is counted in moments: one moment is one segment's forward or backward pass or one piece of the
//! optimizer, and it needs a set of chunks at once.

mod eviction;
mod lookahead;

use serde::{Deserialize, Serialize};

pub use eviction::{Candidate, choose_evictions};
pub(crate) use lookahead::LOOKAHEAD_MOMENTS;
pub use lookahead::{
    ChunkUse, DoesNotFit, Moves, READ_AHEAD_PARTS, RecordedOrder, choose_prefetches, simulate,
};

/// Where chunks are kept. Colossal-AI: `placement_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementPolicy {
    /// Everything stays on the device.
    Cuda,
    /// Nothing stays on the device that is not in use; the rest is in host memory. DeepSpeed: ZeRO-3 with
    /// `offload_param` and `offload_optimizer` to the `cpu`.
    Cpu,
    /// Chunks stay on the device while there is room. Then the chunk whose next use is farthest in the future
    /// is evicted (Belady 1966), and chunks are fetched before their use.
    Auto,
    /// The state of the optimizer is off the device, and everything else stays. DeepSpeed: ZeRO-Offload;
    /// Colossal-AI: `static` with `offload_optim_frac` = 1.
    Static,
    /// Nothing stays that is not in use; the rest is on disk. DeepSpeed: ZeRO-Infinity with `nvme`.
    Disk,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_written_in_snake_case() {
        use PlacementPolicy::{Auto, Cpu, Cuda, Disk, Static};
        let policies = ["cuda", "cpu", "auto", "static", "disk"];
        let parsed: Vec<PlacementPolicy> =
            policies.iter().map(|name| serde_json::from_value((*name).into()).unwrap()).collect();
        assert_eq!(parsed, [Cuda, Cpu, Auto, Static, Disk]);
    }
}
