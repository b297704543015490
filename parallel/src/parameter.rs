//! A named parameter and its placement on the mesh.
//!
//! The placement is plain data. Loading, saving and resharding read it, so they are written once for all
//! layers.

use std::ops::Range;
use std::sync::Arc;

use parallel_sys::elements::ElementNumbers;
use tch::{Tensor, no_grad};

use crate::comm::ProcessGroup;
use crate::{Error, ProcessGroups};

/// How one dimension of a tensor is sharded over a process group: for each rank, the index ranges that the
/// rank holds, concatenated in this order.
///
/// A rank holds several ranges of a fused matrix (queries, keys and values in one). The ranges of all ranks
/// cover each index of the dimension exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    dim: usize,
    ranges: Vec<Vec<Range<i64>>>,
}

impl ShardSpec {
    /// Splits the `length` indices of dimension `dim` into one contiguous range per rank, as evenly as
    /// possible.
    pub fn even(dim: usize, length: i64, ranks: usize) -> Self {
        let boundary = |rank: usize| length * rank as i64 / ranks as i64;
        let range = |rank| std::iter::once(boundary(rank)..boundary(rank + 1));
        Self { dim, ranges: (0..ranks).map(|rank| range(rank).collect()).collect() }
    }

    /// One contiguous range per rank, of these lengths, one after the other.
    pub fn of_lengths(dim: usize, lengths: &[i64]) -> Self {
        let mut end = 0;
        let range = |length: &i64| {
            end += length;
            std::iter::once(end - length..end).collect()
        };
        Self { dim, ranges: lengths.iter().map(range).collect() }
    }

    /// Replaces each index of this spec by a block of `width` consecutive indices.
    #[must_use]
    pub fn with_block_size(self, width: i64) -> Self {
        let scale_range = |range: Range<i64>| range.start * width..range.end * width;
        let ranges = self
            .ranges
            .into_iter()
            .map(|rank_ranges| rank_ranges.into_iter().map(scale_range).collect())
            .collect();
        Self { dim: self.dim, ranges }
    }

    /// Concatenates several specs of the same dimension.
    pub fn concat(specs: &[Self]) -> Self {
        let (dim, ranks) = (specs[0].dim, specs[0].ranges.len());
        let mut ranges = vec![Vec::new(); ranks];
        let mut start = 0;
        for spec in specs {
            for (rank, rank_ranges) in spec.ranges.iter().enumerate() {
                ranges[rank].extend(rank_ranges.iter().map(|range| range.start + start..range.end + start));
            }
            start += spec.global_len();
        }
        Self { dim, ranges }
    }

    /// The same spec for another dimension.
    #[must_use]
    pub fn with_dim(&self, dim: usize) -> Self {
        Self { dim, ranges: self.ranges.clone() }
    }

    /// The sharded dimension.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The index ranges that rank `rank` holds.
    pub fn ranges(&self, rank: usize) -> &[Range<i64>] {
        &self.ranges[rank]
    }

    /// The number of indices that rank `rank` holds.
    pub fn local_len(&self, rank: usize) -> i64 {
        self.ranges[rank].iter().map(|range| range.end - range.start).sum()
    }

    /// The length of the full dimension.
    pub fn global_len(&self) -> i64 {
        (0..self.ranges.len()).map(|rank| self.local_len(rank)).sum()
    }

    /// The shard of rank `rank` of the full tensor `full`.
    pub fn local_shard(&self, full: &Tensor, rank: usize) -> Tensor {
        let narrow_to =
            |range: &Range<i64>| full.narrow(self.dim as i64, range.start, range.end - range.start);
        match self.ranges(rank) {
            [range] => narrow_to(range).contiguous(),
            ranges => Tensor::cat(&ranges.iter().map(narrow_to).collect::<Vec<_>>(), self.dim as i64),
        }
    }

    /// Gathers the full tensor on every rank of `group` from each rank's `shard`, without a graph.
    pub fn unshard(&self, shard: &Tensor, group: &ProcessGroup) -> Result<Tensor, Error> {
        no_grad(|| {
            // The all-gather concatenates along the first dimension and needs inputs of equal length, so
            // shorter shards are padded with zeros.
            let dim = self.dim as i64;
            let rows = shard.detach().transpose(0, dim);
            let longest = (0..self.ranges.len()).map(|rank| self.local_len(rank)).max().unwrap_or(0);
            let missing = longest - rows.size()[0];
            let rows = if missing > 0 {
                let mut shape = rows.size();
                shape[0] = missing;
                Tensor::cat(&[&rows, &Tensor::zeros(&shape, (rows.kind(), rows.device()))], 0)
            } else {
                rows
            };

            let all = group.all_gather(&rows)?;

            let mut shape = all.size();
            shape[0] = self.global_len();
            let full = Tensor::empty(&shape, (all.kind(), all.device()));
            for (rank, rank_ranges) in self.ranges.iter().enumerate() {
                let mut start = rank as i64 * longest;
                for range in rank_ranges {
                    let length = range.end - range.start;
                    full.narrow(0, range.start, length).copy_(&all.narrow(0, start, length));
                    start += length;
                }
            }
            Ok(full.transpose(0, dim).contiguous())
        })
    }
}

/// How the values of one parameter are distributed.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Every rank holds the full tensor.
    Replicate,
    /// Each rank of a group holds a shard.
    Shard {
        /// The index ranges of each rank.
        spec: ShardSpec,
        /// The process group.
        group: Arc<ProcessGroup>,
    },
}

impl Placement {
    /// The shape of the full tensor, given the shape `local_shape` of this rank's shard.
    pub fn global_shape(&self, local_shape: &[i64]) -> Vec<i64> {
        let mut shape = local_shape.to_vec();
        if let Self::Shard { spec, .. } = self {
            shape[spec.dim] = spec.global_len();
        }
        shape
    }

    /// The shape of this rank's shard, given the shape `global_shape` of the full tensor.
    pub fn local_shape(&self, global_shape: &[i64]) -> Vec<i64> {
        let mut shape = global_shape.to_vec();
        if let Self::Shard { spec, group } = self {
            shape[spec.dim] = spec.local_len(group.rank());
        }
        shape
    }

    /// The numbers that the elements of this rank's shard have in the full tensor, of which `global_shape` is
    /// the shape.
    pub fn element_numbers(&self, global_shape: &[i64]) -> ElementNumbers {
        let numel = |shape: &[i64]| shape.iter().product::<i64>() as u64;
        match self {
            Self::Replicate => ElementNumbers::starting_at(0),
            Self::Shard { spec, group } => {
                let inner = numel(&global_shape[spec.dim + 1..]);
                let elements = |range: &Range<i64>| range.start as u64 * inner..range.end as u64 * inner;
                let ranges = spec.ranges(group.rank()).iter().map(elements);
                ElementNumbers::in_blocks(ranges, numel(&global_shape[spec.dim..]))
            }
        }
    }

    /// This rank's shard of the full tensor `full`.
    pub fn shard(&self, full: &Tensor) -> Tensor {
        match self {
            Self::Replicate => full.shallow_clone(),
            Self::Shard { spec, group } => no_grad(|| spec.local_shard(full, group.rank())),
        }
    }

    /// Gathers the full tensor from the shards of all ranks. Every rank of the group calls it.
    pub fn full_tensor(&self, shard: &Tensor) -> Result<Tensor, Error> {
        match self {
            Self::Replicate => Ok(shard.detach()),
            Self::Shard { spec, group } => spec.unshard(shard, group),
        }
    }

    /// Whether this rank writes the full tensor to a file. For a sharded tensor this is the first rank of the
    /// group.
    pub fn is_writer(&self) -> bool {
        match self {
            Self::Replicate => true,
            Self::Shard { group, .. } => group.rank() == 0,
        }
    }

    /// Whether the tensor is sharded.
    pub fn is_shard(&self) -> bool {
        matches!(self, Self::Shard { .. })
    }
}

/// A parameter under its name in a Hugging Face checkpoint.
#[derive(Debug)]
pub struct Parameter {
    /// The name in the checkpoint, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The local shard of the values. Layers hold handles to this same tensor.
    pub tensor: Tensor,
    /// How the full tensor is distributed over the ranks.
    pub placement: Placement,
    /// Whether the local gradient is a partial sum that must be all-reduced over the tensor-parallel group:
    /// every rank of the group holds the full values and uses them in a different part of the computation.
    /// DTensor: `Partial` (of the gradient); Megatron: the parameter attribute `sequence_parallel`.
    pub partial_grad: bool,
    /// Whether this is an expert parameter: the other ranks of the expert-parallel group hold other
    /// parameters in its place.
    pub is_expert: bool,
    /// The ranks that hold a tied copy of this weight (the input embedding and the output head). Their
    /// gradients are all-reduced.
    pub tied_group: Option<Arc<ProcessGroup>>,
    /// Whether weight decay applies. It applies to matrices and embeddings, not to norms and biases.
    pub weight_decay: bool,
}

impl Parameter {
    /// A parameter that every rank holds in full. Weight decay applies if it has two dimensions or more.
    pub fn replicated(name: impl Into<String>, tensor: &Tensor) -> Self {
        Self::with_placement(name, tensor, Placement::Replicate)
    }

    /// A parameter with the local shard `tensor`. Weight decay applies if it has two dimensions or more.
    pub fn with_placement(name: impl Into<String>, tensor: &Tensor, placement: Placement) -> Self {
        let (tensor, weight_decay) = (tensor.shallow_clone(), tensor.dim() > 1);
        Self {
            name: name.into(),
            tensor,
            placement,
            partial_grad: false,
            is_expert: false,
            tied_group: None,
            weight_decay,
        }
    }

    /// Whether this rank owns the tied weight. Only the owner is counted in norms, parameter counts and
    /// checkpoints.
    pub fn is_tied_owner(&self) -> bool {
        self.tied_group.as_ref().is_none_or(|tied_group| tied_group.rank() == 0)
    }

    /// Whether this rank owns the parameter, for counts over the pipeline-expert group. Exactly one rank of
    /// the group owns each parameter.
    pub fn is_owned(&self, groups: &ProcessGroups) -> bool {
        self.is_tied_owner() && (self.is_expert || groups.expert_parallel().rank() == 0)
    }

    /// The number of elements of the full tensor.
    pub fn num_elements(&self) -> usize {
        self.placement.global_shape(&self.tensor.size()).iter().product::<i64>() as usize
    }

    /// The size of the full tensor in bytes.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.tensor.kind().elt_size_in_bytes()
    }
}

impl Clone for Parameter {
    /// Makes another handle to the same values.
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            tensor: self.tensor.shallow_clone(),
            placement: self.placement.clone(),
            partial_grad: self.partial_grad,
            is_expert: self.is_expert,
            tied_group: self.tied_group.clone(),
            weight_decay: self.weight_decay,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::Transport;
    use crate::world::tests::run_worlds;

    #[test]
    fn seven_indices_over_three_ranks_by_hand() {
        let spec = ShardSpec::even(1, 7, 3);
        let firsts = [0, 1, 2].map(|rank| spec.ranges(rank)[0].clone());
        assert_eq!(firsts, [0..2, 2..4, 4..7]);
        assert_eq!(spec.global_len(), 7);
    }

    #[test]
    fn ranges_of_given_lengths_lie_one_after_the_other() {
        let spec = ShardSpec::of_lengths(0, &[3, 0, 4]);
        assert_eq!([0, 1, 2].map(|rank| spec.ranges(rank)[0].clone()), [0..3, 3..3, 3..7]);
        assert_eq!((spec.global_len(), spec.local_len(2)), (7, 4));
    }

    #[test]
    fn a_fused_qkv_matrix_has_three_ranges_per_rank() {
        // Four query heads and two key-value heads of three columns each.
        let heads = |count| ShardSpec::even(0, count, 2).with_block_size(3);
        let fused = ShardSpec::concat(&[heads(4), heads(2), heads(2)]);
        assert_eq!(fused.ranges(0), [0..6, 12..15, 18..21]);
        assert_eq!(fused.ranges(1), [6..12, 15..18, 21..24]);
    }

    /// A tensor whose values are the numbers of its elements.
    #[test]
    fn the_elements_of_every_shard_have_the_numbers_of_the_full_tensor() {
        let shape = [5, 12, 3];
        let full = Tensor::arange(5 * 12 * 3, (Kind::Int64, Device::Cpu)).reshape(shape);
        let heads = |count| ShardSpec::even(1, count, 3).with_block_size(2);
        let fused = ShardSpec::concat(&[heads(4), heads(2)]);
        for spec in [ShardSpec::even(0, 5, 3), ShardSpec::even(1, 12, 3), ShardSpec::even(2, 3, 3), fused] {
            for rank in 0..3 {
                let group = Arc::new(ProcessGroup::fake("test", vec![0, 1, 2], rank));
                let placement = Placement::Shard { spec: spec.clone(), group };
                let shard: Vec<i64> = placement.shard(&full).flatten(0, -1).try_into().unwrap();
                let elements = placement.element_numbers(&shape);
                let found = (0..shard.len()).map(|index| elements.run_at(index as u64).0 as i64);
                assert_eq!(found.collect::<Vec<_>>(), shard, "{spec:?} {rank}");
            }
        }
        assert_eq!(Placement::Replicate.element_numbers(&shape).run_at(7).0, 7);
    }

    #[test]
    fn full_tensor_restores_the_sharded_tensor_on_every_rank() {
        let full = Tensor::arange(24 * 5, (Kind::Float, Device::Cpu)).reshape([5, 24]);
        let heads = |count| ShardSpec::even(1, count, 3).with_block_size(3);
        let specs =
            [ShardSpec::even(1, 24, 3), ShardSpec::even(0, 5, 3), ShardSpec::concat(&[heads(4), heads(4)])];
        let full = std::sync::Mutex::new(full);
        for transport in [Transport::Shared, Transport::Gloo] {
            run_worlds(3, transport, |world| {
                let group = Arc::new(world.group("test", &[0, 1, 2]).unwrap());
                let full = full.lock().unwrap().copy();
                for spec in &specs {
                    let placement = Placement::Shard { spec: spec.clone(), group: Arc::clone(&group) };
                    let shard = placement.shard(&full);
                    assert_eq!(shard.size(), placement.local_shape(&full.size()));
                    assert_eq!(placement.global_shape(&shard.size()), full.size());
                    assert_eq!(placement.full_tensor(&shard).unwrap(), full);
                }
            });
        }
    }
}
