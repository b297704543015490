//! Which chunks make room: those whose next use is farthest in the future.

use std::cmp::Reverse;

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
}
