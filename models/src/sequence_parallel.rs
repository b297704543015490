//! Training with the tokens of a batch split over ranks: Megatron sequence parallelism (Korthikanti et al.
//! 2022, arXiv 2205.05198), Ulysses (Jacobs et al. 2023, arXiv 2309.14509) and ring attention (Liu et al.
//! 2023, arXiv 2310.01889). Where hidden states enter and leave the tensor-parallel region of Megatron is in
//! [`tensor_parallel_region`](crate::tensor_parallel_region).

use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::mappings;
use parallel::sequence::ring;
use tch::Tensor;

use crate::attention::Attention;
use crate::batch::{Batch, LocalBatch};
use crate::load_balancing::LoadBalancingLoss;
use crate::mask::{Alibi, MaskKind};
use crate::model_parallel::{ModelParallel, SequenceParallel, needs_grad};
use crate::tensor_parallel_region::{TensorParallelRegion, TokenPartition, pad_rows};

impl ModelParallel {
    /// The ranks that hold the same final hidden states in a training pass. The head's rows are split over
    /// these ranks instead of being computed on each. Every rank then has a partial gradient, and the sum
    /// over the ranks is the full gradient.
    pub(crate) fn row_partition(&self, hidden: &Tensor) -> Option<TokenPartition> {
        let groups: Vec<Arc<ProcessGroup>> =
            self.sequence_group().into_iter().chain(&self.tensor_parallel).cloned().collect();
        let is_split = needs_grad(hidden) && !groups.is_empty();
        is_split.then_some(TokenPartition(groups))
    }

    /// The load-balancing auxiliary loss over the tokens that this rank routes, with the model's coefficient
    /// `coef`.
    pub(crate) fn load_balancing_loss(
        &self,
        coef: f64,
        batch: &Batch,
        local_batch: Option<&LocalBatch>,
    ) -> Option<LoadBalancingLoss> {
        let group = if self.is_megatron_sp() { self.tensor_parallel.as_ref() } else { self.sequence_group() };
        batch.load_balancing_loss(coef, local_batch, group)
    }

    /// Gathers the final hidden states of all tokens `[N, H]` from this rank's tokens. The backward pass sums
    /// the gradients of all ranks.
    pub(crate) fn gather_hidden(
        &self,
        hidden: &Tensor,
        local_batch: Option<&LocalBatch>,
    ) -> Result<Tensor, parallel::Error> {
        let tp_group = if self.is_megatron_sp() { None } else { self.tensor_parallel.as_ref() };
        let hidden = TensorParallelRegion::new(tp_group).copy_to_region(hidden)?;
        let gather_group =
            if self.is_megatron_sp() { self.tensor_parallel.as_ref() } else { self.sequence_group() };
        match (gather_group, local_batch) {
            (Some(group), Some(local_batch)) => {
                Ok(local_batch.unshard(&mappings::gather_from_sequence_region(&hidden, 0, group)?))
            }
            _ => Ok(hidden),
        }
    }

    /// Attention in training, over the tokens of this rank: from `q` `[n, heads, D]`, `k` and `v`
    /// `[n, kv_heads, D]` to `[n, heads * D]`.
    pub(crate) fn attend(
        &self,
        batch: &Batch,
        local_batch: Option<&LocalBatch>,
        attention: &Attention,
        [q, k, v]: &[Tensor; 3],
    ) -> Result<Tensor, parallel::Error> {
        let (scale, mask) = (attention.scale(), attention.mask());
        match (&self.sequence_parallel, local_batch) {
            (SequenceParallel::Ulysses(group), Some(local_batch)) => {
                let mask = mask_for_local_heads(mask, q.size()[1], group);
                let [q, k, v] = [q, k, v].map(|x| scatter_heads_gather_tokens(x, q.size()[1], group));
                let [q, k, v] =
                    [local_batch.unshard(&q?), local_batch.unshard(&k?), local_batch.unshard(&v?)];
                let attended = batch.attend(&q, &k, &v, scale, &mask);
                scatter_tokens_gather_heads(&attended.unflatten(1, [q.size()[1], -1]), group)
            }
            (SequenceParallel::Ring(group), Some(local_batch)) => {
                assert!(!batch.has_prefixes(), "a ring splits whole sequences, see `can_share_prefixes`");
                Ok(ring::ring_attention([q, k, v], &local_batch.chunk_lens, scale, group)?.flatten(1, 2))
            }
            _ => Ok(batch.attend(q, k, v, scale, mask)),
        }
    }
}

/// The first Ulysses all-to-all, from `[n, heads, D]` to `[P n, heads / P, D]`: each rank gives up some heads
/// of its tokens and receives all tokens of its heads. If the number of key-value heads is not divisible by
/// the number of ranks, they are first repeated to the number of query heads.
fn scatter_heads_gather_tokens(
    x: &Tensor,
    heads: i64,
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, parallel::Error> {
    let local_heads = x.size()[1];
    let is_divisible = local_heads % group.size() as i64 == 0;
    let x = if is_divisible {
        x.shallow_clone()
    } else {
        x.repeat_interleave_self_int(heads / local_heads, 1, None)
    };
    mappings::all_to_all(&x, 1, 0, group)
}

/// The reverse of [`scatter_heads_gather_tokens`], from `[N, heads / P, D]` to `[n, heads * D]` with the
/// heads joined.
fn scatter_tokens_gather_heads(x: &Tensor, group: &Arc<ProcessGroup>) -> Result<Tensor, parallel::Error> {
    let ranks = group.size() as i64;
    let x = pad_rows(x, ranks);
    Ok(mappings::all_to_all(&x, 0, 1, group)?.flatten(1, 2))
}

/// The mask for the heads that this rank of `group` computes after the all-to-all. `heads` is the number of
/// heads before it.
fn mask_for_local_heads(mask: &MaskKind, heads: i64, group: &ProcessGroup) -> MaskKind {
    let local_heads = heads / group.size() as i64;
    let alibi = mask.alibi.as_ref().map(|alibi| {
        let start = alibi.local_heads.start + group.rank() as i64 * local_heads;
        Alibi { heads: alibi.heads, local_heads: start..start + local_heads }
    });
    MaskKind { alibi, ..mask.clone() }
}
