//! Embeddings and logits with a vocabulary that is sharded over a tensor-parallel group (Megatron's
//! `VocabParallelEmbedding`).

use std::ops::Range;
use std::sync::Arc;

use parallel::ShardSpec;
use parallel::comm::ProcessGroup;
use tch::Tensor;

use crate::lora::EmbeddingAdapter;
use crate::model_parallel::WeightPlacement;
use crate::tensor_parallel_region::TensorParallelRegion;

/// The split of a vocabulary over a group: each rank holds the embeddings and logits of some tokens.
#[derive(Clone, Debug)]
pub struct VocabShard {
    pub(crate) spec: ShardSpec,
    pub(crate) group: Arc<ProcessGroup>,
}

impl VocabShard {
    /// The split of a vocabulary with the given placement over `group`; `None` if it is not sharded.
    pub(crate) fn new(placement: &WeightPlacement, group: Option<&Arc<ProcessGroup>>) -> Option<Self> {
        match (placement, group) {
            (WeightPlacement::Shard(spec), Some(group)) => {
                Some(Self { spec: spec.clone(), group: Arc::clone(group) })
            }
            _ => None,
        }
    }

    /// The tokens of this rank.
    pub(crate) fn local_range(&self) -> &Range<i64> {
        &self.spec.ranges(self.group.rank())[0]
    }

    /// The average number of tokens per rank.
    pub(crate) fn mean_local_size(&self) -> i64 {
        (self.spec.global_len() / self.group.size() as i64).max(1)
    }

    /// The token with the largest logit over all ranks; ties go to the first. `logits` `[n, V]` are this
    /// rank's.
    pub(crate) fn argmax(&self, logits: &Tensor) -> Result<Tensor, parallel::Error> {
        let (value, index) = logits.max_dim(1, false);
        let values = self.group.all_gather(&value.unsqueeze(0))?; // [ranks, n]
        let tokens = index + self.local_range().start;
        let tokens = self.group.all_gather(&tokens.unsqueeze(0))?;
        Ok(tokens.gather(0, &values.argmax(0, true), false).squeeze_dim(0))
    }

    /// The `count`-th largest number of each row over all ranks, `[n, 1]`. `numbers` `[n, V]` are this
    /// rank's.
    pub(crate) fn kth_largest(&self, numbers: &Tensor, count: i64) -> Result<Tensor, parallel::Error> {
        let (rows, held) = (numbers.size()[0], numbers.size()[1].min(count));
        let (largest, _) = numbers.topk(held, 1, true, true);
        // The ranks exchange tensors of one shape, and a rank may hold fewer tokens.
        let missing =
            Tensor::full([rows, count - held], f64::NEG_INFINITY, (numbers.kind(), numbers.device()));
        let candidates = Tensor::cat(&[largest, missing], 1).tr(); // [count, n]
        let all = self.group.all_gather(&candidates)?; // [ranks * count, n]
        Ok(all.topk(count, 0, true, true).0.narrow(0, count - 1, 1).tr())
    }
}

/// Token ids relative to this rank's shard of the vocabulary.
pub(crate) struct MaskedIds {
    /// The index of each token in this rank's shard; 0 for a token of another rank.
    pub(crate) masked_ids: Tensor,
    /// True for tokens of other ranks; `None` if the vocabulary is not sharded.
    pub(crate) input_mask: Option<Tensor>,
}

impl MaskedIds {
    /// Maps `ids`, int64 of any shape, to this rank's shard of the vocabulary.
    pub(crate) fn new(ids: &Tensor, vocabulary: Option<&VocabShard>) -> Self {
        let Some(vocabulary) = vocabulary else {
            return Self { masked_ids: ids.shallow_clone(), input_mask: None };
        };
        let local_range = vocabulary.local_range();
        let input_mask = ids.lt(local_range.start).logical_or(&ids.ge(local_range.end));
        Self {
            masked_ids: (ids - local_range.start).masked_fill(&input_mask, 0),
            input_mask: Some(input_mask),
        }
    }

    /// Sets `x` to zero at the tokens of other ranks. The mask is broadcast to `x`.
    pub(crate) fn zero_masked(&self, x: Tensor) -> Tensor {
        match &self.input_mask {
            None => x,
            Some(input_mask) if input_mask.dim() as i64 == x.dim() as i64 => x.masked_fill(input_mask, 0.0),
            Some(input_mask) => x.masked_fill(&input_mask.unsqueeze(-1), 0.0),
        }
    }
}

/// The token embedding.
#[derive(Debug)]
pub struct VocabParallelEmbedding {
    /// This rank's rows, `[V, H]`.
    pub(crate) weight: Tensor,
    pub(crate) vocabulary: Option<VocabShard>,
    /// The adapter, if `weight` has one.
    pub(crate) adapter: Option<EmbeddingAdapter>,
}

impl VocabParallelEmbedding {
    /// Embeds `ids` `[N]` to `[N, H]`; with Megatron sequence parallelism each rank keeps its shard of the
    /// tokens.
    pub fn forward(&self, ids: &Tensor, tp_region: &TensorParallelRegion) -> Result<Tensor, parallel::Error> {
        let masked = MaskedIds::new(ids, self.vocabulary.as_ref());
        let mut output = Tensor::embedding(&self.weight, &masked.masked_ids, -1, false, false);
        if let Some(adapter) = &self.adapter {
            output = adapter.apply(ids, &masked.masked_ids, &output);
        }
        tp_region.reduce_from_region(&masked.zero_masked(output))
    }
}
