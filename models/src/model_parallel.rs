//! One decoder among several ranks.
//!
//! Those of a tensor group have parts of the weights: every rank computes some heads, some of the MLP's inner columns and the logits of
//! some words, and tokens enter and leave that work together (Shoeybi et al. 2019, arXiv 1909.08053, section 3). In training, ranks may
//! also have different tokens: those of a tensor group between its borders, those of a sequence group all the way
//! ([`parallel::sequence`]). The last hidden states are whole on every rank, and what a rank's head adds to their gradient is one term of
//! a sum.

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::pipeline::ScheduleKind;
use parallel::sequence::{SequenceOrder, SequenceShard, ring};
use parallel::{ShardSpec, autograd, mappings};
use tch::Tensor;

use crate::Error;
use crate::architecture::Architecture;
use crate::attention::Attention;
use crate::batch::{Alibi, Batch, LocalBatch, MaskKind};
use crate::layer::Linear;
use crate::moe::LoadBalancingLoss;

/// How ranks share a model and the tokens that go through it.
#[derive(Clone, Debug)]
pub struct ModelParallel {
    /// Those who have parts of the weights; `None` for a rank with all of them.
    pub tensor_parallel: Option<Arc<ProcessGroup>>,
    /// Who has which tokens in training.
    pub sequence_parallel: SequenceParallel,
    /// Those who have some layers each; `None` for a rank with all of them.
    pub pipeline_parallel: Option<PipelineParallel>,
    /// Those who have other experts of the same layers; `None` for a rank with all of them.
    pub expert_parallel: Option<Arc<ProcessGroup>>,
    /// All who have other parameters; `None` for a rank with all of them.
    pub model_parallel_group: Option<Arc<ProcessGroup>>,
}

/// Ranks that have some layers each.
#[derive(Clone, Debug)]
pub struct PipelineParallel {
    /// The ranks.
    pub group: Arc<ProcessGroup>,
    /// How micro-batches go through them.
    pub schedule_kind: ScheduleKind,
    /// Stages of a rank, where the method leaves the choice.
    pub virtual_stages: usize,
    /// The first and the last of them, if this rank is one of them.
    pub embedding_group: Option<Arc<ProcessGroup>>,
}

/// Who has which tokens in training. Without a gradient every rank runs whole rows.
#[derive(Clone, Debug)]
pub enum SequenceParallel {
    /// Every rank all of them.
    Replicated,
    /// The ranks that share the weights have some each between two split layers (Korthikanti et al. 2022).
    Megatron,
    /// Those of this group some each, and attention some heads each (Jacobs et al. 2023).
    Ulysses(Arc<ProcessGroup>),
    /// Those of this group some each, and keys and values go around (Liu et al. 2023).
    Ring(Arc<ProcessGroup>),
}

impl ModelParallel {
    /// A model that no other rank has a part in.
    pub const NONE: Self = Self {
        tensor_parallel: None,
        sequence_parallel: SequenceParallel::Replicated,
        pipeline_parallel: None,
        expert_parallel: None,
        model_parallel_group: None,
    };

    /// Weights shared by a group, which may be of one, and every token on every rank.
    pub fn tensor_parallel_only(group: &Arc<ProcessGroup>) -> Self {
        Self { tensor_parallel: (group.size() > 1).then(|| Arc::clone(group)), ..Self::NONE }
    }

    /// Into how many parts the weights of a model are cut at most.
    pub(crate) fn num_shards(&self) -> usize {
        let layers = self.pipeline_parallel.as_ref().map(|layers| &layers.group);
        let groups = [self.tensor_parallel.as_ref(), layers, self.expert_parallel.as_ref()];
        groups.into_iter().flatten().map(|group| group.size()).product()
    }

    /// What this rank has of the tokens; `None` for all.
    pub(crate) fn sequence_shard(&self) -> Option<SequenceShard> {
        match (&self.sequence_parallel, &self.tensor_parallel) {
            (SequenceParallel::Megatron, Some(group)) | (SequenceParallel::Ulysses(group), _) => {
                Some(SequenceShard::new(SequenceOrder::Contiguous, group))
            }
            (SequenceParallel::Ring(group), _) => Some(SequenceShard::new(SequenceOrder::ZigZag, group)),
            (SequenceParallel::Replicated, _) | (SequenceParallel::Megatron, None) => None,
        }
    }

    /// Whether ranks that share the weights have different tokens.
    pub(crate) fn is_megatron_sp(&self) -> bool {
        self.tensor_parallel.is_some() && matches!(self.sequence_parallel, SequenceParallel::Megatron)
    }

    /// Those who train different tokens with the same weights.
    pub(crate) fn sequence_group(&self) -> Option<&Arc<ProcessGroup>> {
        match &self.sequence_parallel {
            SequenceParallel::Ulysses(group) | SequenceParallel::Ring(group) => Some(group),
            SequenceParallel::Replicated | SequenceParallel::Megatron => None,
        }
    }

    /// The ranks that hold the same final hidden states in a training pass. The head's rows are split over
    /// them instead of being computed on each; every rank then produces a partial gradient, and the sum over
    /// the ranks is the full gradient.
    pub(crate) fn row_partition(&self, hidden: &Tensor) -> Option<RowPartition> {
        let groups: Vec<Arc<ProcessGroup>> =
            self.sequence_group().into_iter().chain(&self.tensor_parallel).cloned().collect();
        let wanted = needs_grad(hidden) && !groups.is_empty();
        wanted.then_some(RowPartition(groups))
    }

    /// What a rank holds of a parameter that belongs to no split layer.
    pub(crate) fn non_parallel_placement(&self) -> WeightPlacement {
        if self.is_megatron_sp() { WeightPlacement::Partial } else { WeightPlacement::Replicate }
    }

    /// Refuses an attention that the tokens cannot be shared for.
    pub(crate) fn check_attention(&self, heads: &Range<i64>, mask: &MaskKind) -> Result<(), Error> {
        let (own, axis) = (heads.end - heads.start, "sequence");
        match &self.sequence_parallel {
            SequenceParallel::Ulysses(group) if own % group.size() as i64 != 0 => Err(Error::Indivisible {
                axis,
                ranks: group.size(),
                what: format!("{own} query heads of a rank"),
            }),
            SequenceParallel::Ring(group) if mask.window.is_some() || mask.alibi.is_some() => {
                let what = "attention with a window or ALiBi in mode = \"ring\"".to_owned();
                Err(Error::Indivisible { axis, ranks: group.size(), what })
            }
            _ => Ok(()),
        }
    }

    /// What keeps experts equally busy in training, of the tokens that this rank routes.
    pub(crate) fn load_balancing_loss(
        &self,
        batch: &Batch,
        part: Option<&LocalBatch>,
    ) -> Option<LoadBalancingLoss> {
        let group = if self.is_megatron_sp() { self.tensor_parallel.as_ref() } else { self.sequence_group() };
        batch.load_balancing_loss(part, group)
    }

    /// The last hidden states of every token `[N, H]` from those that this rank has; what each rank adds to their gradient is added up.
    pub(crate) fn gather_hidden(
        &self,
        hidden: &Tensor,
        part: Option<&LocalBatch>,
    ) -> Result<Tensor, parallel::Error> {
        let tp_region = if self.is_megatron_sp() { None } else { self.tensor_parallel.as_ref() };
        let hidden = TensorParallelRegion::new(tp_region).copy_to_region(hidden)?;
        let sharers =
            if self.is_megatron_sp() { self.tensor_parallel.as_ref() } else { self.sequence_group() };
        match (sharers, part) {
            (Some(group), Some(part)) => {
                Ok(part.unshard(&mappings::gather_from_sequence_region(&hidden, 0, group)?))
            }
            _ => Ok(hidden),
        }
    }

    /// Attention of a batch in training, over the tokens that this rank has: `q` `[n, heads, D]`, `k` and `v` `[n, kv_heads, D]` to
    /// `[n, heads * D]`.
    pub(crate) fn attend(
        &self,
        batch: &Batch,
        part: Option<&LocalBatch>,
        attention: &Attention,
        [q, k, v]: &[Tensor; 3],
    ) -> Result<Tensor, parallel::Error> {
        let (scale, mask) = (attention.scale(), attention.mask());
        match (&self.sequence_parallel, part) {
            (SequenceParallel::Ulysses(group), Some(part)) => {
                let mask = mask_for_local_heads(mask, q.size()[1], group);
                let [q, k, v] = [q, k, v].map(|x| scatter_heads_gather_tokens(x, q.size()[1], group));
                let [q, k, v] = [part.unshard(&q?), part.unshard(&k?), part.unshard(&v?)];
                let attended = batch.attend(&q, &k, &v, scale, &mask);
                scatter_tokens_gather_heads(&attended.unflatten(1, [q.size()[1], -1]), group)
            }
            (SequenceParallel::Ring(group), Some(part)) => {
                Ok(ring::attention([q, k, v], &part.chunk_lens, scale, group)?.flatten(1, 2))
            }
            _ => Ok(batch.attend(q, k, v, scale, mask)),
        }
    }
}

/// Whether hidden states are those of a training pass.
pub(crate) fn needs_grad(hidden: &Tensor) -> bool {
    hidden.requires_grad() && autograd::is_enabled()
}

/// Ulysses all-to-all: each rank sends its tokens' heads and receives its heads' tokens, from `[n, heads, D]`
/// to `[P n, heads / P, D]`. If the key-value heads do not divide by the ranks, they are first repeated to
/// the number of query heads.
fn scatter_heads_gather_tokens(
    x: &Tensor,
    heads: i64,
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, parallel::Error> {
    let own = x.size()[1];
    let even = own % group.size() as i64 == 0;
    let x = if even { x.shallow_clone() } else { x.repeat_interleave_self_int(heads / own, 1, None) };
    mappings::all_to_all(&x, 1, 0, group)
}

/// The reverse of [`scatter_heads_gather_tokens`] of `[N, heads / P, D]`, with the heads joined: `[n, heads * D]`.
fn scatter_tokens_gather_heads(x: &Tensor, group: &Arc<ProcessGroup>) -> Result<Tensor, parallel::Error> {
    let ranks = group.size() as i64;
    let x = pad_rows(x, ranks);
    Ok(mappings::all_to_all(&x, 0, 1, group)?.flatten(1, 2))
}

/// The mask of the heads that this rank of `group` attends with, of those that it has.
fn mask_for_local_heads(mask: &MaskKind, heads: i64, group: &ProcessGroup) -> MaskKind {
    let own = heads / group.size() as i64;
    let alibi = mask.alibi.as_ref().map(|alibi| {
        let start = alibi.local_heads.start + group.rank() as i64 * own;
        Alibi { heads: alibi.heads, local_heads: start..start + own }
    });
    MaskKind { alibi, ..mask.clone() }
}

/// `[N, ..]` with zeros behind it, up to a multiple of `ranks` rows.
fn pad_rows(x: &Tensor, ranks: i64) -> Tensor {
    let mut shape = x.size();
    shape[0] = shape[0].rem_euclid(ranks);
    if shape[0] == 0 {
        return x.shallow_clone();
    }
    shape[0] = ranks - shape[0];
    Tensor::cat(&[x, &Tensor::zeros(&shape, (x.kind(), x.device()))], 0)
}

/// What each rank holds of a parameter.
#[derive(Clone, Debug)]
pub enum WeightPlacement {
    /// All of it, for the same work on every rank.
    Replicate,
    /// Replicated, with a partial gradient: every rank holds the full weight and applies it to different
    /// work, so the gradients are summed over the ranks.
    Partial,
    /// A part.
    Shard(ShardSpec),
}

/// A tensor-parallel region: hidden states are copied (or gathered) on entry and reduced (or
/// reduce-scattered) on exit. With one rank both are the identity.
#[derive(Clone, Debug)]
pub struct TensorParallelRegion {
    group: Option<Arc<ProcessGroup>>,
    /// The tokens of the batch, where each rank has some of them outside.
    sequence_parallel_tokens: Option<i64>,
}

impl TensorParallelRegion {
    /// The border of a group of which every rank has all tokens; `None` for a rank by itself.
    pub fn new(group: Option<&Arc<ProcessGroup>>) -> Self {
        Self { group: group.cloned(), sequence_parallel_tokens: None }
    }

    /// The border of a group whose ranks share the `tokens` of a batch outside.
    pub fn with_sequence_parallel(group: Option<&Arc<ProcessGroup>>, tokens: i64) -> Self {
        Self { group: group.cloned(), sequence_parallel_tokens: Some(tokens) }
    }

    /// Tokens into the work of each rank: `[N, H]`.
    pub fn copy_to_region(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.sequence_parallel_tokens) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => mappings::copy_to_region(x, group),
            (Some(group), Some(tokens)) => {
                Ok(mappings::gather_from_sequence_region(x, 0, group)?.narrow(0, 0, tokens))
            }
        }
    }

    /// What all ranks have made of the tokens, `[N, H]` each, added up.
    pub fn reduce_from_region(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match (&self.group, self.sequence_parallel_tokens) {
            (None, _) => Ok(x.shallow_clone()),
            (Some(group), None) => mappings::reduce_from_region(x, group),
            (Some(group), Some(_)) => {
                mappings::reduce_scatter_to_sequence_region(&pad_rows(x, group.size() as i64), 0, group)
            }
        }
    }

    /// `linear(x) + residual`, where each rank has some of the columns of `x` `[N, ..]`.
    pub fn row_parallel_linear(
        &self,
        linear: &Linear,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        if self.group.is_none() {
            return Ok(linear.forward_add(x, residual));
        }
        let sum = linear.with_bias(self.reduce_from_region(&linear.matmul(x))?);
        Ok(match residual {
            Some(residual) => sum + residual,
            None => sum,
        })
    }
}

/// Rows of hidden states, which every rank has, dealt out for what a head makes of them.
#[derive(Clone, Debug)]
pub(crate) struct RowPartition(pub(crate) Vec<Arc<ProcessGroup>>);

impl RowPartition {
    /// The rows of this rank, of `rows`.
    pub(crate) fn local_range(&self, rows: i64) -> Range<i64> {
        self.0.iter().fold(0..rows, |run, group| {
            let share = group.shard_range((run.end - run.start) as usize);
            run.start + share.start as i64..run.start + share.end as i64
        })
    }

    /// What this rank has made of its rows, `[n, ..]`, among that of all: `[rows, ..]`.
    pub(crate) fn gather_rows(&self, own: &Tensor, rows: i64) -> Result<Tensor, parallel::Error> {
        let run = self.local_range(rows);
        let zeros = |count: i64| {
            let shape = [&[count], &own.size()[1..]].concat();
            Tensor::zeros(shape.as_slice(), (own.kind(), own.device()))
        };
        self.all_reduce(Tensor::cat(&[&zeros(run.start), own, &zeros(rows - run.end)], 0))
    }

    /// The sum over the ranks.
    pub(crate) fn all_reduce(&self, own: Tensor) -> Result<Tensor, parallel::Error> {
        self.0.iter().try_fold(own, |sum, group| mappings::reduce_from_region(&sum, group))
    }
}

/// The heads of one rank.
#[derive(Clone, Debug)]
pub struct HeadPartition {
    /// Its query heads.
    pub query_heads: Range<i64>,
    /// The key-value heads that they read.
    pub kv_heads: Range<i64>,
    /// What it holds of the query projection, in columns.
    pub query_placement: WeightPlacement,
    /// What it holds of the key and value projections, in columns.
    pub kv_placement: WeightPlacement,
}

impl HeadPartition {
    /// Heads are dealt out in groups that share a key-value head. Where there are fewer key-value heads than ranks, every rank holds
    /// the projections of all, and several ranks share one.
    pub fn new(architecture: &Architecture, group: Option<&Arc<ProcessGroup>>) -> Result<Self, Error> {
        let (heads, kv_heads) = (architecture.num_heads, architecture.num_kv_heads);
        let Some(group) = group else {
            let (query_placement, kv_placement) = (WeightPlacement::Replicate, WeightPlacement::Replicate);
            return Ok(Self { query_heads: 0..heads, kv_heads: 0..kv_heads, query_placement, kv_placement });
        };
        let (ranks, rank) = (group.size(), group.rank());
        let dim = architecture.head_dim;
        if kv_heads >= ranks as i64 {
            let keys = ShardSpec::even(0, kv_heads, ranks);
            let queries = keys.clone().with_block_size(architecture.heads_per_kv());
            return Ok(Self {
                query_heads: queries.ranges(rank)[0].clone(),
                kv_heads: keys.ranges(rank)[0].clone(),
                query_placement: WeightPlacement::Shard(queries.with_block_size(dim)),
                kv_placement: WeightPlacement::Shard(keys.with_block_size(dim)),
            });
        }
        if ranks as i64 % kv_heads != 0 || heads % ranks as i64 != 0 {
            return Err(Error::Indivisible {
                axis: "tensor",
                ranks,
                what: format!("{heads} query heads with {kv_heads} key-value heads"),
            });
        }
        let queries = ShardSpec::even(0, heads, ranks);
        let shared = rank as i64 * kv_heads / ranks as i64;
        Ok(Self {
            query_heads: queries.ranges(rank)[0].clone(),
            kv_heads: shared..shared + 1,
            query_placement: WeightPlacement::Shard(queries.with_block_size(dim)),
            kv_placement: WeightPlacement::Partial,
        })
    }

    /// What a rank holds of one matrix of all queries, all keys and all values, which have as many heads.
    pub fn fused_placement(&self) -> WeightPlacement {
        match (&self.query_placement, &self.kv_placement) {
            (WeightPlacement::Shard(queries), WeightPlacement::Shard(keys)) => {
                WeightPlacement::Shard(ShardSpec::concat(&[queries.clone(), keys.clone(), keys.clone()]))
            }
            _ => WeightPlacement::Replicate,
        }
    }

    /// What a rank holds of one matrix with each head's query, key and value side by side.
    pub fn interleaved_placement(&self) -> WeightPlacement {
        match &self.query_placement {
            WeightPlacement::Shard(queries) => WeightPlacement::Shard(queries.clone().with_block_size(3)),
            _ => WeightPlacement::Replicate,
        }
    }
}

/// `length` columns or rows, as even as can be.
pub fn shard_evenly(
    length: i64,
    what: &str,
    group: Option<&Arc<ProcessGroup>>,
) -> Result<WeightPlacement, Error> {
    match group {
        None => Ok(WeightPlacement::Replicate),
        Some(group) if length < group.size() as i64 => {
            Err(Error::Indivisible { axis: "tensor", ranks: group.size(), what: format!("{length} {what}") })
        }
        Some(group) => Ok(WeightPlacement::Shard(ShardSpec::even(0, length, group.size()))),
    }
}

/// The tokens whose embeddings and logits each rank of a group has.
#[derive(Clone, Debug)]
pub struct VocabShard {
    pub(crate) spec: ShardSpec,
    pub(crate) group: Arc<ProcessGroup>,
}

impl VocabShard {
    /// The vocabulary of which each rank of `group` has its `share`; `None` if all have all.
    pub(crate) fn new(share: &WeightPlacement, group: Option<&Arc<ProcessGroup>>) -> Option<Self> {
        match (share, group) {
            (WeightPlacement::Shard(spec), Some(group)) => {
                Some(Self { spec: spec.clone(), group: Arc::clone(group) })
            }
            _ => None,
        }
    }

    /// Tokens of a rank, on the mean.
    pub(crate) fn mean_local_size(&self) -> i64 {
        (self.spec.global_len() / self.group.size() as i64).max(1)
    }

    /// The token with the largest of all ranks' logits, whose own are `[n, V]`; the first of equals.
    pub(crate) fn argmax(&self, logits: &Tensor) -> Result<Tensor, parallel::Error> {
        let (value, place) = logits.max_dim(1, false);
        let values = self.group.all_gather(&value.unsqueeze(0))?; // [ranks, n]
        let tokens = place + self.spec.ranges(self.group.rank())[0].start;
        let tokens = self.group.all_gather(&tokens.unsqueeze(0))?;
        Ok(tokens.gather(0, &values.argmax(0, true), false).squeeze_dim(0))
    }
}

/// Tokens as places among those of this rank.
pub(crate) struct MaskedIds {
    /// The place of each token; of one that this rank does not have, any.
    pub(crate) masked_ids: Tensor,
    /// Whether this rank does not have the token.
    pub(crate) input_mask: Option<Tensor>,
}

impl MaskedIds {
    /// `ids`, int64 of any shape, in a vocabulary that may be split.
    pub(crate) fn new(ids: &Tensor, vocabulary: Option<&VocabShard>) -> Self {
        let Some(vocabulary) = vocabulary else {
            return Self { masked_ids: ids.shallow_clone(), input_mask: None };
        };
        let own = &vocabulary.spec.ranges(vocabulary.group.rank())[0];
        let foreign = ids.lt(own.start).logical_or(&ids.ge(own.end));
        Self { masked_ids: (ids - own.start).masked_fill(&foreign, 0), input_mask: Some(foreign) }
    }

    /// `x` with zeros at the tokens that this rank does not have. The mask is broadcast to `x`.
    pub(crate) fn zero_masked(&self, x: Tensor) -> Tensor {
        match &self.input_mask {
            None => x,
            Some(foreign) if foreign.dim() as i64 == x.dim() as i64 => x.masked_fill(foreign, 0.0),
            Some(foreign) => x.masked_fill(&foreign.unsqueeze(-1), 0.0),
        }
    }
}

/// The table of token embeddings.
#[derive(Debug)]
pub struct VocabParallelEmbedding {
    /// This rank's rows, `[V, H]`.
    pub(crate) weight: Tensor,
    pub(crate) vocabulary: Option<VocabShard>,
}

impl VocabParallelEmbedding {
    /// The embeddings `[N, H]` of `ids` `[N]`, of which a rank may keep some.
    pub fn forward(&self, ids: &Tensor, tp_region: &TensorParallelRegion) -> Result<Tensor, parallel::Error> {
        let places = MaskedIds::new(ids, self.vocabulary.as_ref());
        let found = Tensor::embedding(&self.weight, &places.masked_ids, -1, false, false);
        tp_region.reduce_from_region(&places.zero_masked(found))
    }
}
