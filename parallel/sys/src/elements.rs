//! The numbers that the elements of a part of a tensor have in the whole tensor.
//!
//! ```text
//!   whole [2, 6]    0  1 |2  3  4| 5       part: its columns 2 to 4, a tensor [2, 3] of its own
//!                   6  7 |8  9 10|11       numbers, in the order of the part: 2, 3, 4, 8, 9, 10
//! ```
//! Elements are numbered in row-major order. Consecutive elements of the part with consecutive numbers form a
//! run, here two runs of three. What is derived from these numbers is the same for every copy of an element,
//! however the tensor is divided. This module knows no mesh.

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

/// The numbers of the elements of a part.
///
/// The part consists of blocks of equal length. The numbers of a block are those of the block before it plus
/// the length of a block of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementNumbers {
    /// The numbers in the first block, in the order of the part.
    ranges: Arc<[Range<u64>]>,
    /// The elements of a block of the part.
    block: u64,
    /// The elements of a block of the whole.
    whole_block: u64,
    /// The elements of the part before the first one that is meant.
    skipped: u64,
}

impl ElementNumbers {
    /// Consecutive numbers from `first` on.
    pub fn starting_at(first: u64) -> Self {
        Self::in_blocks(once(first..u64::MAX), 0)
    }

    /// The numbers of a part whose first block has these `ranges`, of a whole in blocks of `whole_block`
    /// elements.
    pub fn in_blocks(ranges: impl IntoIterator<Item = Range<u64>>, whole_block: u64) -> Self {
        let ranges: Arc<[Range<u64>]> = ranges.into_iter().collect();
        let block = ranges.iter().map(|range| range.end - range.start).sum();
        Self { ranges, block, whole_block, skipped: 0 }
    }

    /// The numbers from element `count` of the part on.
    #[must_use]
    pub fn skip(&self, count: u64) -> Self {
        Self { skipped: self.skipped + count, ..self.clone() }
    }

    /// The number of the element at `index`, and how many elements from there on have consecutive numbers.
    ///
    /// # Panics
    /// Panics if the part has no elements.
    pub fn run_at(&self, index: u64) -> (u64, u64) {
        let index = self.skipped + index;
        let (block, mut within) = (index / self.block, index % self.block);
        for range in &*self.ranges {
            let length = range.end - range.start;
            if within < length {
                return (block * self.whole_block + range.start + within, length - within);
            }
            within -= length;
        }
        unreachable!("the ranges are as long as a block");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the first `count` elements, run by run.
    fn numbers(elements: &ElementNumbers, count: u64) -> Vec<u64> {
        let mut found = Vec::new();
        while (found.len() as u64) < count {
            let (number, length) = elements.run_at(found.len() as u64);
            found.extend(number..number + length.min(count));
        }
        found.truncate(count as usize);
        found
    }

    #[test]
    fn columns_by_hand() {
        let columns = ElementNumbers::in_blocks(once(2..5), 6);
        assert_eq!(numbers(&columns, 6), [2, 3, 4, 8, 9, 10]);
        assert_eq!(columns.run_at(4), (9, 2));
        assert_eq!(numbers(&columns.skip(2), 3), [4, 8, 9]);
        assert_eq!(numbers(&columns.skip(1).skip(3), 2), [9, 10]);
    }

    #[test]
    fn a_fused_matrix_has_several_ranges_in_a_block_by_hand() {
        // Rows of 8: of each row the part holds 6 and 7, then 1.
        let fused = ElementNumbers::in_blocks([6..8, 1..2], 8);
        assert_eq!(numbers(&fused, 7), [6, 7, 1, 14, 15, 9, 22]);
        assert_eq!(numbers(&ElementNumbers::starting_at(u64::from(u32::MAX)), 2), [0xffff_ffff, 1 << 32]);
    }
}
