//! The tensor-parallel region that hidden states enter and leave (Shoeybi et al. 2019, arXiv 1909.08053,
//! section 3), and the split of a head's rows over ranks that hold the same hidden states.

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::mappings;
use tch::Tensor;

use crate::linear::Linear;

/// A tensor-parallel region: hidden states are copied (or gathered) on entry and reduced (or
/// reduce-scattered) on exit. With one rank both are the identity.
#[derive(Clone, Debug)]
pub struct TensorParallelRegion {
    group: Option<Arc<ProcessGroup>>,
    /// The number of tokens of the batch if they are split over the group outside the region.
    sequence_parallel_tokens: Option<i64>,
}

impl TensorParallelRegion {
    /// The region of a group whose ranks all have all tokens. `None` means no tensor parallelism.
    pub fn new(group: Option<&Arc<ProcessGroup>>) -> Self {
        Self { group: group.cloned(), sequence_parallel_tokens: None }
    }

    /// The region of a group that splits the `tokens` tokens of a batch over its ranks outside the region.
    pub fn with_sequence_parallel(group: Option<&Arc<ProcessGroup>>, tokens: i64) -> Self {
        Self { group: group.cloned(), sequence_parallel_tokens: Some(tokens) }
    }

    /// Enters the region: returns all tokens `[N, H]` on every rank.
    pub fn copy_to_region(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.sequence_parallel_tokens) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => mappings::copy_to_region(x, group),
            (Some(group), Some(tokens)) => {
                Ok(mappings::gather_from_sequence_region(x, 0, group)?.narrow(0, 0, tokens))
            }
        }
    }

    /// Leaves the region: sums the partial outputs `[N, H]` of all ranks.
    pub fn reduce_from_region(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.sequence_parallel_tokens) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => mappings::reduce_from_region(x, group),
            (Some(group), Some(_)) => {
                mappings::reduce_scatter_to_sequence_region(&pad_rows(x, group.size() as i64), 0, group)
            }
        }
    }

    /// `linear(x) + residual`, where each rank has its columns of `x` `[N, ..]`. Leaves the region.
    /// Megatron: `RowParallelLinear.forward`.
    pub fn forward_row_parallel(
        &self,
        linear: &Linear,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        if self.group.is_none() {
            return linear.forward_add(x, residual);
        }
        let sum = linear.with_bias(self.reduce_from_region(&linear.matmul(x)?)?);
        Ok(match residual {
            Some(residual) => sum + residual,
            None => sum,
        })
    }
}

/// A split of tokens (the rows of `[N, H]`) over groups whose ranks all hold the same hidden states, for the
/// head and for expert layers: each rank computes its range of them.
#[derive(Clone, Debug)]
pub(crate) struct TokenPartition(pub(crate) Vec<Arc<ProcessGroup>>);

impl TokenPartition {
    /// The range of rows that this rank computes, out of `rows`.
    pub(crate) fn local_range(&self, rows: i64) -> Range<i64> {
        self.0.iter().fold(0..rows, |range, group| {
            let shard = group.shard_range((range.end - range.start) as usize);
            range.start + shard.start as i64..range.start + shard.end as i64
        })
    }

    /// Gathers the results of all ranks, `[rows, ..]`, from this rank's results `[n, ..]`.
    pub(crate) fn gather_rows(&self, local: &Tensor, rows: i64) -> Result<Tensor, parallel::Error> {
        let range = self.local_range(rows);
        let zeros = |count: i64| {
            let shape = [&[count], &local.size()[1..]].concat();
            Tensor::zeros(shape.as_slice(), (local.kind(), local.device()))
        };
        self.all_reduce(Tensor::cat(&[&zeros(range.start), local, &zeros(rows - range.end)], 0))
    }

    /// Sums a tensor over the ranks.
    pub(crate) fn all_reduce(&self, local: Tensor) -> Result<Tensor, parallel::Error> {
        self.0.iter().try_fold(local, |sum, group| mappings::reduce_from_region(&sum, group))
    }
}

/// Appends zero rows to `x` `[N, ..]` up to a multiple of `ranks` rows.
pub(crate) fn pad_rows(x: &Tensor, ranks: i64) -> Tensor {
    let mut shape = x.size();
    shape[0] = shape[0].rem_euclid(ranks);
    if shape[0] == 0 {
        return x.shallow_clone();
    }
    shape[0] = ranks - shape[0];
    Tensor::cat(&[x, &Tensor::zeros(&shape, (x.kind(), x.device()))], 0)
}
