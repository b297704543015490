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

mod lookahead;

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

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

/// A chunk that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its size.
    pub bytes: usize,
    /// The number of moments until its next use; `None` if no further use is known.
    pub next_use: Option<usize>,
    /// Whether it has changed since it was fetched, so that evicting it means writing it.
    pub dirty: bool,
}

/// Chooses what to evict in order to free `needed_bytes`, and returns indices into `candidates`. The chunk
/// whose next use is farthest in the future goes first, and one without a next use before all others. Among
/// equals the order is: clean before dirty, larger before smaller, lower index. If a later choice made an
/// earlier one unnecessary, the earlier one stays. Returns `None` if all candidates together are not enough.
///
/// For chunks of equal size this gives the least possible number of fetches (Belady 1966, "A study of
/// replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2)), also if a moment needs
/// several chunks and if the capacity changes over time. For chunks of different sizes it is a heuristic: the
/// best choice is then NP-hard to find (Chrobak et al. 2012, "Caching is hard, even in the fault model").
pub fn choose_evictions(candidates: &[Candidate], needed_bytes: usize) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&index| {
        let Candidate { bytes, next_use, dirty } = candidates[index];
        (Reverse(next_use.unwrap_or(usize::MAX)), dirty, Reverse(bytes))
    });

    let mut freed = 0;
    let mut chosen = Vec::new();
    for index in order {
        if freed >= needed_bytes {
            break;
        }
        freed += candidates[index].bytes;
        chosen.push(index);
    }
    if freed < needed_bytes {
        return None;
    }

    // Of the chunks that turn out not to be needed, the one with the nearest next use stays first.
    for position in (0..chosen.len()).rev() {
        let without = freed - candidates[chosen[position]].bytes;
        if without >= needed_bytes {
            freed = without;
            chosen.remove(position);
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(bytes: usize, next_use: Option<usize>, dirty: bool) -> Candidate {
        Candidate { bytes, next_use, dirty }
    }

    #[test]
    fn the_farthest_next_use_goes_first() {
        let candidates = [
            candidate(10, Some(3), false),
            candidate(10, Some(9), true),
            candidate(10, None, true),
            candidate(10, Some(1), false),
        ];
        assert_eq!(choose_evictions(&candidates, 0), Some(vec![]));
        assert_eq!(choose_evictions(&candidates, 1), Some(vec![2]));
        assert_eq!(choose_evictions(&candidates, 11), Some(vec![2, 1]));
        assert_eq!(choose_evictions(&candidates, 40), Some(vec![2, 1, 0, 3]));
        assert_eq!(choose_evictions(&candidates, 41), None);
        assert_eq!(choose_evictions(&[], 1), None);
    }

    #[test]
    fn equals_go_clean_then_large_then_in_order() {
        let candidates = [
            candidate(20, Some(5), true),
            candidate(10, Some(5), false),
            candidate(10, Some(5), false),
            candidate(15, Some(5), false),
            candidate(30, Some(5), true),
        ];
        assert_eq!(choose_evictions(&candidates, 85), Some(vec![3, 1, 2, 4, 0]));
        assert_eq!(choose_evictions(&candidates, 16), Some(vec![3, 1]));
    }

    #[test]
    fn what_a_later_choice_makes_unnecessary_stays() {
        let candidates = [
            candidate(1, Some(9), false),
            candidate(2, Some(8), false),
            candidate(3, Some(7), false),
            candidate(9, Some(6), false),
        ];
        // 1 + 2 + 3 < 10, and with 9 it is 15. Without 3 it is 12, without 2 as well 10, and 1 is needed.
        assert_eq!(choose_evictions(&candidates, 10), Some(vec![0, 3]));
        assert_eq!(choose_evictions(&candidates, 9), Some(vec![3]));
        assert_eq!(choose_evictions(&candidates, 6), Some(vec![0, 1, 2]));
    }

    #[test]
    fn policies_are_written_in_snake_case() {
        use PlacementPolicy::{Auto, Cpu, Cuda, Disk, Static};
        let policies = ["cuda", "cpu", "auto", "static", "disk"];
        let parsed: Vec<PlacementPolicy> =
            policies.iter().map(|name| serde_json::from_value((*name).into()).unwrap()).collect();
        assert_eq!(parsed, [Cuda, Cpu, Auto, Static, Disk]);
    }
}
