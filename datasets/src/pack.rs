//! Packs rows into bins of a fixed number of tokens. The rows of a bin share one forward pass.
//!
//! Packing uses best-fit decreasing (Johnson 1973; at most 11/9 of the optimal number of bins, plus a
//! constant): rows are placed from longest to shortest, each into the fullest bin that still has room for it.
//! Rows are never cut. This module only uses row lengths. The attention gets the lengths too, and keeps
//! packed rows from attending to each other (flash-attn: `cu_seqlens`).

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// Packs rows with the given lengths (in tokens) into bins of at most `max_length` tokens.
///
/// Returns the row indices of each bin, in ascending order within a bin. Bins are ordered by their first row.
/// Equal inputs give equal outputs.
pub fn pack(lengths: &[usize], max_length: usize) -> Result<Vec<Vec<usize>>> {
    if let Some((row, &length)) = lengths.iter().enumerate().find(|&(_, &length)| length > max_length) {
        return Err(Error::RowTooLong { row: row + 1, length, max_length });
    }

    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut room: BTreeSet<(usize, usize)> = BTreeSet::new(); // (tokens left, bin)
    for row in longest_first(lengths) {
        let length = lengths[row];
        let best = room.range((length, 0)..).next().copied();
        let (left, bin) = best.unwrap_or_else(|| {
            bins.push(Vec::new());
            (max_length, bins.len() - 1)
        });
        room.remove(&(left, bin));
        room.insert((left - length, bin));
        bins[bin].push(row);
    }

    // Placement order is by length. Sorting makes the result follow the order of the data set.
    for bin in &mut bins {
        bin.sort_unstable();
    }
    bins.sort_unstable();
    Ok(bins)
}

/// Returns row indices from longest to shortest, with equal lengths in row order.
fn longest_first(lengths: &[usize]) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..lengths.len()).collect();
    rows.sort_by_key(|&row| (std::cmp::Reverse(lengths[row]), row));
    rows
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    use super::*;

    fn random_lengths(seed: u64, max: u64) -> Vec<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = rng.next_u64() % 200;
        (0..count).map(|_| (rng.next_u64() % max + 1) as usize).collect()
    }

    fn rows_of(groups: &[Vec<usize>]) -> Vec<usize> {
        let mut rows: Vec<usize> = groups.iter().flatten().copied().collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn worked_example() {
        // Longest first: 6 -> new bin (4 left), 5 -> new bin (5 left), 4 -> the fuller bin that fits (4 left
        // -> 0), 3 -> second bin (5 -> 2), 2 -> second bin (2 -> 0).
        assert_eq!(pack(&[4, 5, 2, 6, 3], 10).unwrap(), [vec![0, 3], vec![1, 2, 4]]);
    }

    #[test]
    fn every_row_once_and_no_bin_overflows() {
        for seed in 0..200 {
            let lengths = random_lengths(seed, 64);
            let bins = pack(&lengths, 64).unwrap();
            assert_eq!(rows_of(&bins), (0..lengths.len()).collect::<Vec<_>>());
            let loads: Vec<usize> =
                bins.iter().map(|bin| bin.iter().map(|&row| lengths[row]).sum()).collect();
            assert!(loads.iter().all(|&load| load <= 64));
            // Checks Johnson's bound, with the total number of tokens as the lower bound on the optimum.
            let volume = lengths.iter().sum::<usize>().div_ceil(64);
            assert!(9 * bins.len() <= 11 * volume + 9 * 4 + lengths.len() / 4, "{} {volume}", bins.len());
            // No two bins fit into one.
            let mut sorted = loads;
            sorted.sort_unstable();
            assert!(sorted.len() < 2 || sorted[0] + sorted[1] > 64);
        }
    }

    #[test]
    fn too_long_a_row_is_named() {
        let error = pack(&[3, 11], 10).unwrap_err();
        assert!(matches!(error, Error::RowTooLong { row: 2, length: 11, max_length: 10 }));
    }
}
