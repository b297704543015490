//! Sequence parallelism: how the tokens of a batch are distributed over the ranks of a group, and how
//! attention sees all of them.
//!
//! | method | token order | attention |
//! |---|---|---|
//! | Megatron | contiguous | over all tokens: [`gather_from_sequence_region`](crate::mappings::gather_from_sequence_region) before a tensor-parallel layer, [`reduce_scatter_to_sequence_region`](crate::mappings::reduce_scatter_to_sequence_region) after it |
//! | Ulysses | contiguous | over all tokens for some of the heads, by [`mappings::all_to_all`](crate::mappings::all_to_all) |
//! | ring | zig-zag | for all heads, with keys and values passed around the ring ([`ring`]) |
//!
//! (Korthikanti et al. 2022, arXiv 2205.05198; Jacobs et al. 2023, arXiv 2309.14509; Liu et al. 2023, arXiv
//! 2310.01889, with the order of Brandon et al. 2023, arXiv 2311.09431, section 3.) Every rank gets the same
//! number of tokens. If the tokens cannot be split evenly, the last ones are repeated as padding; the padding
//! reaches neither the attention of real tokens nor the loss. This module knows no layer.

pub mod ring;
mod tile_attention;

use crate::comm::ProcessGroup;

/// How the tokens of a batch are split over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceOrder {
    /// One contiguous range of the flat batch per rank.
    Contiguous,
    /// Each row is split into `2 P` chunks; rank `r` gets the `r`-th chunk from the start and the `r`-th from
    /// the end. This balances the work of all ranks under a causal mask.
    ZigZag,
}

/// The tokens of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceShard {
    order: SequenceOrder,
    ranks: i64,
    rank: i64,
}

impl SequenceShard {
    /// The shard of this process in `group`.
    pub fn new(order: SequenceOrder, group: &ProcessGroup) -> Self {
        Self { order, ranks: group.size() as i64, rank: group.rank() as i64 }
    }

    /// The number of tokens per rank for rows of these lengths.
    pub fn local_len(&self, lengths: &[i64]) -> i64 {
        match self.order {
            SequenceOrder::Contiguous => ceil(lengths.iter().sum(), self.ranks),
            SequenceOrder::ZigZag => self.chunk_lens(lengths).iter().map(|chunk| 2 * chunk).sum(),
        }
    }

    /// The number of tokens per chunk for each row, in zig-zag order.
    pub fn chunk_lens(&self, lengths: &[i64]) -> Vec<i64> {
        lengths.iter().map(|&length| ceil(length, 2 * self.ranks)).collect()
    }

    /// The tokens of this rank, as indices into the flat batch.
    pub fn local_indices(&self, lengths: &[i64]) -> Vec<i64> {
        let all = lengths.iter().sum::<i64>();
        match self.order {
            SequenceOrder::Contiguous => {
                let size = self.local_len(lengths);
                (self.rank * size..(self.rank + 1) * size).map(|token| token.min(all - 1)).collect()
            }
            SequenceOrder::ZigZag => {
                let mut indices = Vec::with_capacity(self.local_len(lengths) as usize);
                let mut start = 0;
                for (&length, chunk) in lengths.iter().zip(self.chunk_lens(lengths)) {
                    for index in [self.rank, 2 * self.ranks - 1 - self.rank] {
                        let tokens = index * chunk..(index + 1) * chunk;
                        indices.extend(tokens.map(|token| start + token.min(length - 1)));
                    }
                    start += length;
                }
                indices
            }
        }
    }

    /// A mask over the local tokens: 1 for a real token that no earlier rank holds, 0 for padding.
    pub fn unique_mask(&self, lengths: &[i64]) -> Vec<f32> {
        let size = self.local_len(lengths);
        let unshard_indices =
            self.unshard_indices(lengths).unwrap_or_else(|| (0..lengths.iter().sum()).collect());
        let mut mask = vec![0.0; size as usize];
        for index in unshard_indices.into_iter().filter(|index| index / size == self.rank) {
            mask[(index % size) as usize] = 1.0;
        }
        mask
    }

    /// The index of each token of the flat batch in the concatenated shards of all ranks; `None` if the order
    /// is the same.
    pub fn unshard_indices(&self, lengths: &[i64]) -> Option<Vec<i64>> {
        if self.order == SequenceOrder::Contiguous {
            return None;
        }
        let (size, mut offset) = (self.local_len(lengths), 0);
        let mut indices = Vec::with_capacity(lengths.iter().sum::<i64>() as usize);
        for (&length, chunk) in lengths.iter().zip(self.chunk_lens(lengths)) {
            indices.extend((0..length).map(|token| {
                let index = token / chunk;
                let early = index < self.ranks;
                let (rank, late) = if early { (index, 0) } else { (2 * self.ranks - 1 - index, chunk) };
                rank * size + offset + late + token % chunk
            }));
            offset += 2 * chunk;
        }
        Some(indices)
    }
}

fn ceil(count: i64, divisor: i64) -> i64 {
    (count + divisor - 1) / divisor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_at_its_unshard_index() {
        for order in [SequenceOrder::Contiguous, SequenceOrder::ZigZag] {
            for lengths in [vec![1], vec![8], vec![5, 3, 17, 1], vec![24, 24]] {
                for ranks in [1, 2, 3] {
                    let layout = |rank| SequenceShard { order, ranks, rank };
                    let indices: Vec<i64> =
                        (0..ranks).flat_map(|rank| layout(rank).local_indices(&lengths)).collect();
                    assert_eq!(indices.len() as i64, ranks * layout(0).local_len(&lengths));
                    let all: i64 = lengths.iter().sum();
                    let unshard_indices =
                        layout(0).unshard_indices(&lengths).unwrap_or_else(|| (0..all).collect());
                    let found = unshard_indices.into_iter().map(|index| indices[index as usize]);
                    assert!(found.eq(0..all), "{order:?} {lengths:?} {ranks}");
                }
            }
        }
    }

    #[test]
    fn chunks_go_from_both_ends_to_the_middle() {
        let local_indices =
            |rank| SequenceShard { order: SequenceOrder::ZigZag, ranks: 2, rank }.local_indices(&[8, 4]);
        assert_eq!(local_indices(0), [0, 1, 6, 7, 8, 11]);
        assert_eq!(local_indices(1), [2, 3, 4, 5, 9, 10]);
    }
}
