//! The vocabulary head, computed a few rows at a time: cross-entropy and log-probabilities without a `[N, V]`
//! tensor.
//!
//! For hidden states `h_n`, weights `W` and temperature `t`: `z = (W h_n + b) / t`,
//! `log p(y_n) = z[y_n] - log sum_v exp z[v]`, entropy `H_n = log sum exp z - sum_v p_v z_v`.
//! Everything runs over chunks of 128 to 256 rows. A loss that is a sum over rows, [`token_loss`] and its
//! special case [`cross_entropy`], computes its gradient in the forward pass, while the logits exist,
//! because the gradient of a sum is known up to a factor. [`logprobs`] serves every other loss, and recomputes
//! the logits in its backward pass. (The idea is from Wijmans et al. 2024, arXiv 2411.09009.)
//!
//! If the vocabulary is sharded over a group, each rank computes the logits of its own tokens, and the ranks
//! exchange only one number per row (the log of the sum of exponentials) and the results. If the rows are
//! split over a group, each rank computes its own rows. In both cases every rank holds the full hidden
//! states, and the gradient that it computes for them is partial (DTensor: `Partial`): the backward pass of
//! the region that they came from sums it over the ranks.
//!
//! `N` rows, `H` hidden size, `V` vocabulary size (of this rank). The softmax is in fp32 for any dtype of the
//! weights. This module knows nothing about reductions or training algorithms.

use std::sync::Arc;

use parallel::autograd::{self, Backward, with_backward};
use parallel::comm::{ProcessGroup, Reduction};
use parallel::residency::{Access, HeldWeights, ModelPart, Residency, Weights};
use parallel::{PipelineStages, SysError};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::layer::{onednn_linear, use_onednn};
use crate::model_parallel::needs_grad;
use crate::tensor_parallel_region::TokenPartition;
use crate::vocab_parallel::{MaskedIds, VocabShard};

/// The number of rows of a chunk. A product of the head needs so many rows for each time that it reads the
/// weights, and reads and writes their gradient: with `R` rows it computes `6 R V H` numbers from `16 V H` bytes.
const CHUNK_ROWS: std::ops::RangeInclusive<i64> = 128..=256;
/// The number of logits for which a chunk has less than the most rows: 32 MiB in fp32.
const CHUNK_ELEMENTS: i64 = 1 << 23;

/// The weights of a vocabulary head.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[V, H]`.
    pub weight: &'a Tensor,
    /// `[V]`.
    pub bias: Option<&'a Tensor>,
    /// This rank's shard of the vocabulary; `None` if the rank holds all of it.
    pub vocabulary: Option<&'a VocabShard>,
    /// The ranks that split the rows in a pass with gradients; `None` if the rows are not split.
    pub sequence_group: Option<&'a Arc<ProcessGroup>>,
    /// The pipeline stages of the model, if only the last stage holds the head.
    pub pipeline: Option<&'a PipelineStages>,
    /// The size of the full vocabulary.
    pub vocab_size: i64,
    /// What keeps the weights in memory while they are used; `None` if they always are in memory.
    pub residency: Option<&'a dyn Residency>,
}

/// The result of [`logprobs`] for each row.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `log p(target)`, `[N]`, fp32, differentiable in the hidden states and the head.
    pub logprobs: Tensor,
    /// The entropy in nats, `[N]`, fp32.
    pub entropy: Tensor,
}

impl<'a> Head<'a> {
    /// A head that is not split over ranks.
    pub fn new(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Self {
        Self {
            weight,
            bias,
            vocabulary: None,
            sequence_group: None,
            pipeline: None,
            vocab_size: weight.size()[0],
            residency: None,
        }
    }

    /// Holds the weights of the head while it computes.
    fn hold(&self) -> Result<HeldWeights<'a>, Error> {
        Ok(HeldWeights::fetch(self.residency, Weights::Part(ModelPart::Head), Access::Read)?)
    }

    /// The logits of a few rows over the full vocabulary, for the sampler. They have no autograd graph if the
    /// vocabulary is sharded.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, Error> {
        let shape = [hidden.size()[0], self.vocab_size];
        if let Some(result) =
            self.broadcast_from_last_stage(hidden, &shape, hidden.kind(), |head| head.logits(hidden))
        {
            return result;
        }
        let _weights = self.hold()?;
        let local_logits = if use_onednn(hidden, self.weight) {
            onednn_linear(hidden, self.weight, self.bias)
        } else {
            hidden.linear(self.weight, self.bias)
        };
        match self.vocabulary {
            None => Ok(local_logits),
            Some(vocabulary) => Ok(vocabulary.spec.with_dim(1).unshard(&local_logits, &vocabulary.group)?),
        }
    }

    fn inputs<'h>(&'h self, hidden: &'h Tensor) -> Vec<&'h Tensor> {
        [Some(hidden), Some(self.weight), self.bias].into_iter().flatten().collect()
    }

    /// Whether a gradient is needed for any input.
    fn requires_grad(&self, hidden: &Tensor) -> bool {
        autograd::is_enabled() && self.inputs(hidden).iter().any(|input| input.requires_grad())
    }

    /// Runs the head on the last pipeline stage and broadcasts the result to all stages. Returns `None`
    /// without pipeline parallelism, and in a pass with gradients.
    fn broadcast_from_last_stage(
        self,
        hidden: &Tensor,
        shape: &[i64],
        kind: Kind,
        make: impl FnOnce(Head<'_>) -> Result<Tensor, Error>,
    ) -> Option<Result<Tensor, Error>> {
        let pipeline = self.pipeline.filter(|_| !needs_grad(hidden))?;
        let make = || {
            let output =
                if pipeline.is_last_stage() { Some(make(Head { pipeline: None, ..self })?) } else { None };
            Ok(pipeline.broadcast_from_last_stage(output, shape, (kind, hidden.device()))?)
        };
        Some(make())
    }

    /// The split of the rows over the sequence-parallel group, if a gradient is needed.
    fn row_partition(&self, hidden: &Tensor) -> Option<TokenPartition> {
        let group = self.sequence_group.filter(|_| self.requires_grad(hidden))?;
        Some(TokenPartition(vec![Arc::clone(group)]))
    }

    /// The head without its autograd graph, for a backward pass that outlives the borrow.
    fn detach(&self) -> DetachedHead {
        DetachedHead {
            weight: self.weight.detach(),
            bias: self.bias.map(Tensor::detach),
            vocabulary: self.vocabulary.cloned(),
        }
    }

    /// The number of rows per chunk. It is computed from the average shard, because all ranks need the same
    /// number and their shards of the vocabulary may differ by one token.
    fn chunk_rows(&self) -> i64 {
        chunk_rows(self.vocabulary.map_or(self.weight.size()[0], VocabShard::mean_local_size))
    }
}

/// The number of rows whose logits over `vocab_size` tokens are held at once.
pub(crate) fn chunk_rows(vocab_size: i64) -> i64 {
    (CHUNK_ELEMENTS / vocab_size).clamp(*CHUNK_ROWS.start(), *CHUNK_ROWS.end())
}

struct DetachedHead {
    weight: Tensor,
    bias: Option<Tensor>,
    vocabulary: Option<VocabShard>,
}

impl DetachedHead {
    fn logits(&self, hidden: &Tensor, temperature: f64) -> Tensor {
        let mut logits = hidden.linear(&self.weight, self.bias.as_ref()).to_kind(Kind::Float);
        if temperature != 1.0 {
            let _ = logits.g_div_scalar_(temperature);
        }
        logits
    }

    /// The log of the sum of exponentials over the full vocabulary, `[n, 1]`, from this rank's logits
    /// `[n, V]`; `None` if the vocabulary is not sharded.
    fn global_logsumexp(&self, logits: &Tensor) -> Result<Option<Tensor>, Error> {
        let Some(VocabShard { group, .. }) = &self.vocabulary else { return Ok(None) };
        let local_logsumexp = logits.logsumexp([1i64].as_slice(), true);
        let all = group.all_gather(&local_logsumexp.tr())?; // [ranks, n]
        Ok(Some(all.logsumexp([0i64].as_slice(), true).tr()))
    }

    fn mask_targets(&self, target: &Tensor) -> MaskedIds {
        MaskedIds::new(target, self.vocabulary.as_ref())
    }

    /// Sums `terms` in place over the ranks that hold shards of the vocabulary.
    fn all_reduce(&self, terms: &Tensor) -> Result<(), parallel::Error> {
        match &self.vocabulary {
            None => Ok(()),
            Some(vocabulary) => vocabulary.group.all_reduce(terms, Reduction::Sum),
        }
    }
}

/// The log-softmax of `z` `[n, V]`: `z - log_total` if the vocabulary is sharded.
fn log_softmax(z: &Tensor, log_total: Option<&Tensor>) -> Tensor {
    match log_total {
        None => z.log_softmax(1, Kind::Float),
        Some(log_total) => z - log_total,
    }
}

/// Computes `-sum_n w_n log p(target_n)`, a scalar in fp32. `hidden` is `[N, H]`, `targets` is `[N]`, and
/// `weights` is `[N]` or `None` for ones.
/// Megatron: `vocab_parallel_cross_entropy`, if the vocabulary is sharded; Liger: `FusedLinearCrossEntropy`.
pub fn cross_entropy(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    weights: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| cross_entropy(hidden, head, targets, weights);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &[], Kind::Float, make) {
        return result;
    }
    let sums = token_loss(hidden, head, targets, TokenTerms::default(), &mut |rows, terms| {
        let logprobs = match weights {
            Some(weights) => &terms.logprobs * rows.of(weights).to_kind(Kind::Float),
            None => terms.logprobs.shallow_clone(),
        };
        Ok::<_, Error>(RowSums { loss: -logprobs.sum(Kind::Double), statistics: None })
    })?;
    Ok(sums.loss)
}

/// What [`token_loss`] computes of each row.
#[derive(Clone, Copy, Debug)]
pub struct TokenTerms {
    /// The divisor of the logits.
    pub temperature: f64,
    /// Whether the loss reads the entropy. Without it, the gradient takes less time and memory.
    pub entropy: bool,
}

impl Default for TokenTerms {
    fn default() -> Self {
        Self { temperature: 1.0, entropy: false }
    }
}

/// A chunk of the rows of a loss.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    start: i64,
    length: i64,
}

impl Rows {
    /// The elements of `[N, ..]` that belong to these rows.
    pub fn of(self, x: &Tensor) -> Tensor {
        x.narrow(0, self.start, self.length)
    }
}

/// Sums over rows.
#[derive(Debug)]
pub struct RowSums {
    /// The loss, a scalar with a gradient.
    pub loss: Tensor,
    /// Other sums, `[K]` in fp64, without a gradient.
    pub statistics: Option<Tensor>,
}

/// Computes the part of a loss that belongs to some rows, from the log-probabilities and entropies of the rows.
/// The loss of a row may depend on no other row.
pub type RowLoss<'a, E> = dyn FnMut(Rows, &TokenLogprobs) -> Result<RowSums, E> + 'a;

/// Computes a loss `sum_n f_n(log p(target_n), H_n)` and its gradient from logits that are computed once for
/// each row. `hidden` is `[N, H]`, and `targets` is `[N]`. The loss is a scalar in fp32. Without
/// `terms.entropy`, the entropies that `row_loss` gets are zero.
///
/// On pipeline stages, only the last one may call it.
/// Liger: `LigerFusedLinearPPOBase`.
pub fn token_loss<E: From<Error>>(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    terms: TokenTerms,
    row_loss: &mut RowLoss<'_, E>,
) -> Result<RowSums, E> {
    let Some(row_partition) = head.row_partition(hidden) else {
        return local_token_loss(hidden, head, targets, terms, row_loss);
    };
    let range = row_partition.local_range(targets.size()[0]);
    let local = Rows { start: range.start, length: range.end - range.start };
    let sums = local_token_loss(
        &local.of(hidden),
        head,
        &local.of(targets),
        terms,
        &mut |Rows { start, length }, found| row_loss(Rows { start: local.start + start, length }, found),
    )?;
    let all_reduce = |sum| row_partition.all_reduce(sum).map_err(Error::from);
    Ok(RowSums { loss: all_reduce(sums.loss)?, statistics: sums.statistics.map(all_reduce).transpose()? })
}

/// [`token_loss`] of rows that only this rank computes.
fn local_token_loss<E: From<Error>>(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    terms: TokenTerms,
    row_loss: &mut RowLoss<'_, E>,
) -> Result<RowSums, E> {
    let _weights = head.hold()?;
    let wants_grad = head.requires_grad(hidden);
    let mut grads = HeadGrads::new(hidden, &head, wants_grad);
    let detached_head = head.detach();
    let mut total = Tensor::zeros([], (Kind::Double, hidden.device()));
    let mut statistics: Option<Tensor> = None;

    for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
        let rows = Rows { start, length };
        let hidden = rows.of(hidden).detach();
        let chunk = no_grad(|| ChunkLogprobs::new(&detached_head, &hidden, &rows.of(targets), terms))?;
        let found = chunk.found.with_grad(wants_grad);
        let sums = row_loss(rows, &found)?;
        no_grad(|| {
            total += sums.loss.detach().to_kind(Kind::Double);
            if let Some(of_chunk) = sums.statistics {
                statistics = Some(match statistics.take() {
                    Some(sum) => sum + of_chunk,
                    None => of_chunk.detach(),
                });
            }
        });
        if wants_grad {
            let seeds = found.seeds(&sums.loss, terms)?;
            no_grad(|| grads.add(&detached_head, &hidden, &chunk.logits_grad(seeds, terms), start));
        }
    }

    let total = total.to_kind(Kind::Float);
    if !wants_grad {
        return Ok(RowSums { loss: total, statistics });
    }
    let count = head.inputs(hidden).len();
    let backward: Backward = Box::new(move |seed| {
        let grads = std::mem::take(&mut grads);
        Ok(seed[0].as_ref().map_or_else(|| no_grads(count), |seed| grads.scaled(seed)))
    });
    let [loss] = attached([&total], &head.inputs(hidden), backward)?;
    Ok(RowSums { loss, statistics })
}

/// The log-probabilities of a chunk of rows over the tokens of this rank.
struct ChunkLogprobs {
    /// `[n, V]`.
    logprobs: Tensor,
    target: MaskedIds,
    /// `log p(target)` and the entropy of each row, over the full vocabulary.
    found: TokenLogprobs,
}

impl ChunkLogprobs {
    fn new(head: &DetachedHead, hidden: &Tensor, targets: &Tensor, terms: TokenTerms) -> Result<Self, Error> {
        let target = head.mask_targets(&targets.unsqueeze(1));
        let logits = head.logits(hidden, terms.temperature);
        let logprobs = log_softmax(&logits, head.global_logsumexp(&logits)?.as_ref());
        drop(logits);
        let picked = target.zero_masked(logprobs.gather(1, &target.masked_ids, false)).squeeze_dim(1);
        let found = if terms.entropy {
            let stacked = Tensor::stack(&[picked, local_entropy(&logprobs)], 0);
            head.all_reduce(&stacked)?;
            TokenLogprobs { logprobs: stacked.select(0, 0), entropy: stacked.select(0, 1) }
        } else {
            head.all_reduce(&picked)?;
            TokenLogprobs { entropy: picked.zeros_like(), logprobs: picked }
        };
        Ok(Self { logprobs, target, found })
    }

    fn logits_grad(self, seeds: [Option<Tensor>; 2], terms: TokenTerms) -> Tensor {
        let seeds = seeds.map(|seed| seed.map(|seed| seed.unsqueeze(1) / terms.temperature));
        logits_grad(self.logprobs, &self.target, &self.found.entropy.unsqueeze(1), seeds)
    }
}

impl TokenLogprobs {
    /// The same numbers as leaves of a graph.
    fn with_grad(&self, wanted: bool) -> Self {
        let leaf = |x: &Tensor| x.detach().set_requires_grad(wanted);
        Self { logprobs: leaf(&self.logprobs), entropy: leaf(&self.entropy) }
    }

    /// The gradients of `loss` with respect to log-probabilities and entropies.
    fn seeds(&self, loss: &Tensor, terms: TokenTerms) -> Result<[Option<Tensor>; 2], Error> {
        let leaves = if terms.entropy { vec![&self.logprobs, &self.entropy] } else { vec![&self.logprobs] };
        let grads = autograd::grad(&[loss], &[&loss.ones_like()], &leaves).map_err(parallel::Error::from)?;
        let mut grads = grads.into_iter();
        Ok([grads.next().flatten(), grads.next().flatten()])
    }
}

/// The part of the entropy of each row that this rank's tokens have, `[n]`.
fn local_entropy(logprobs: &Tensor) -> Tensor {
    let terms = (logprobs.exp() * logprobs).nan_to_num(0.0, None, None);
    -terms.sum_dim_intlist(1, false, Kind::Float)
}

/// Computes `log p(target_n)` and the entropy of each row at `temperature`. `hidden` is `[N, H]`, and
/// `targets` is `[N]`.
pub fn logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    temperature: f64,
) -> Result<TokenLogprobs, Error> {
    let make = |head: Head<'_>| {
        let found = logprobs(hidden, head, targets, temperature)?;
        Ok(Tensor::stack(&[found.logprobs, found.entropy], 0))
    };

    if let Some(result) = head.broadcast_from_last_stage(hidden, &[2, targets.size()[0]], Kind::Float, make) {
        let result = result?;
        return Ok(TokenLogprobs { logprobs: result.select(0, 0), entropy: result.select(0, 1) });
    }

    if let Some(row_partition) = head.row_partition(hidden) {
        let rows = targets.size()[0];
        let range = row_partition.local_range(rows);
        let local_rows = |x: &Tensor| x.narrow(0, range.start, range.end - range.start);
        let found = local_logprobs(&local_rows(hidden), head, &local_rows(targets), temperature)?;
        let gather_rows = |local_rows: &Tensor| row_partition.gather_rows(local_rows, rows);
        return Ok(TokenLogprobs {
            logprobs: gather_rows(&found.logprobs)?,
            entropy: gather_rows(&found.entropy)?,
        });
    }

    local_logprobs(hidden, head, targets, temperature)
}

/// [`logprobs`] of rows that only this rank computes.
fn local_logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    targets: &Tensor,
    temperature: f64,
) -> Result<TokenLogprobs, Error> {
    let _weights = head.hold()?;
    let chunk_rows = head.chunk_rows();
    let (mut chunk_results, mut log_totals) = (Vec::new(), Vec::new());
    let stacked = no_grad(|| {
        let detached_head = head.detach();
        for (start, length) in chunks(hidden.size()[0], chunk_rows) {
            let target = detached_head.mask_targets(&targets.narrow(0, start, length).unsqueeze(1));
            let logits = detached_head.logits(&hidden.narrow(0, start, length), temperature);
            let log_total = detached_head.global_logsumexp(&logits)?;
            let logprobs = log_softmax(&logits, log_total.as_ref());
            let picked = target.zero_masked(logprobs.gather(1, &target.masked_ids, false)).squeeze_dim(1);
            chunk_results.push(Tensor::stack(&[picked, local_entropy(&logprobs)], 0));
            log_totals.push(log_total);
        }
        if chunk_results.is_empty() {
            chunk_results.push(Tensor::zeros([2, 0], (Kind::Float, hidden.device())));
        }
        let stacked = Tensor::cat(&chunk_results, 1);
        detached_head.all_reduce(&stacked)?;
        Ok::<_, Error>(stacked)
    })?;

    let (values, entropy) = (stacked.select(0, 0), stacked.select(0, 1));
    if !head.requires_grad(hidden) {
        return Ok(TokenLogprobs { logprobs: values, entropy });
    }

    let (detached_head, rows, targets) = (head.detach(), hidden.detach(), targets.shallow_clone());
    let entropies = entropy.shallow_clone();
    let mut sums = HeadGrads::new(hidden, &head, true);
    let count = head.inputs(hidden).len();
    let backward: Backward = Box::new(move |grads| {
        if grads.iter().all(Option::is_none) {
            return Ok(no_grads(count));
        }
        no_grad(|| {
            for ((start, length), log_total) in chunks(rows.size()[0], chunk_rows).zip(&log_totals) {
                let chunk = rows.narrow(0, start, length);
                let target = detached_head.mask_targets(&targets.narrow(0, start, length).unsqueeze(1));
                let chunk_column = |flat: &Tensor| flat.narrow(0, start, length).unsqueeze(1);
                let seeds = [&grads[0], &grads[1]]
                    .map(|grad| grad.as_ref().map(|grad| chunk_column(grad) / temperature));
                let logprobs = log_softmax(&detached_head.logits(&chunk, temperature), log_total.as_ref());
                let grad_logits = logits_grad(logprobs, &target, &chunk_column(&entropies), seeds);
                sums.add(&detached_head, &chunk, &grad_logits, start);
            }
        });
        Ok(std::mem::take(&mut sums).into_grads())
    });

    let [logprobs, entropy] = attached([&values, &entropy], &head.inputs(hidden), backward)?;
    Ok(TokenLogprobs { logprobs, entropy })
}

/// The gradient with respect to `z` `[n, V]`, from the incoming gradients `[n, 1]` of log-probabilities and
/// entropies: `d log p(y) / d z = onehot(y) - p` and `d H / d z = -p (log p + H)`.
fn logits_grad(
    mut logprobs: Tensor,
    target: &MaskedIds,
    entropy: &Tensor,
    [logprobs_grad, entropy_grad]: [Option<Tensor>; 2],
) -> Tensor {
    // `p (log p + H)` needs both p and log p; everything else overwrites log p, which is as large as the logits.
    let of_entropy = entropy_grad.map(|seed| {
        let mut terms = &logprobs + entropy;
        let _ = terms.g_mul_(&logprobs.exp());
        terms.nan_to_num_(0.0, None, None) * seed
    });
    let mut grad_logits = logprobs.exp_();
    match logprobs_grad {
        Some(seed) => {
            let _ = grad_logits.g_mul_(&-&seed);
            let _ = grad_logits.scatter_add_(1, &target.masked_ids, &target.zero_masked(seed));
        }
        None => _ = grad_logits.zero_(),
    }
    if let Some(of_entropy) = of_entropy {
        let _ = grad_logits.g_sub_(&of_entropy);
    }
    grad_logits
}

/// The most likely token of each row, `[N]`, for accuracy metrics.
pub fn argmax(hidden: &Tensor, head: Head<'_>) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| argmax(hidden, head);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &hidden.size()[..1], Kind::Int64, make) {
        return result;
    }
    let _weights = head.hold()?;
    no_grad(|| {
        let detached_head = head.detach();
        let mut best = Vec::new();
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let logits = detached_head.logits(&hidden.narrow(0, start, length), 1.0);
            best.push(match &detached_head.vocabulary {
                None => logits.argmax(1, false),
                Some(vocabulary) => vocabulary.argmax(&logits)?,
            });
        }
        Ok(Tensor::cat(&best, 0))
    })
}

/// The result of [`target_logprobs`].
#[derive(Debug)]
pub struct TargetLogprobs {
    /// `log p(target)` of each target, `[M]`, fp32, without a gradient.
    pub logprobs: Tensor,
    /// The most likely token of each row, `[N]`.
    pub argmax: Tensor,
}

/// Computes `log p(targets[m])` at row `rows[m]` of `hidden`, and the most likely token of each row, from
/// logits that are computed once for each row. `hidden` is `[N, H]`, `rows` has `M` indices below `N`, and
/// `targets` is `[M]`. For evaluation, where several answers are scored after one prompt.
pub fn target_logprobs(
    hidden: &Tensor,
    head: Head<'_>,
    rows: &[i64],
    targets: &[i64],
) -> Result<TargetLogprobs, Error> {
    let device = hidden.device();
    if head.vocabulary.is_some() || head.pipeline.is_some() || head.sequence_group.is_some() {
        let repeated = hidden.index_select(0, &parallel::upload(rows, device));
        let found = logprobs(&repeated, head, &parallel::upload(targets, device), 1.0)?;
        return Ok(TargetLogprobs { logprobs: found.logprobs, argmax: argmax(hidden, head)? });
    }

    // In the order of the rows, so that the targets of a chunk of rows are neighbours.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| rows[at]);
    let sorted_rows: Vec<i64> = order.iter().map(|&at| rows[at]).collect();
    let sorted_targets: Vec<i64> = order.iter().map(|&at| targets[at]).collect();
    let mut place = vec![0; rows.len()];
    for (sorted, &at) in order.iter().enumerate() {
        place[at] = sorted as i64;
    }

    let _weights = head.hold()?;
    no_grad(|| {
        let detached_head = head.detach();
        let empty = |kind| Tensor::zeros([0], (kind, device));
        let (mut picked, mut best) = (vec![empty(Kind::Float)], vec![empty(Kind::Int64)]);
        let mut first = 0;
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let logits = detached_head.logits(&hidden.narrow(0, start, length), 1.0);
            best.push(logits.argmax(1, false));

            let end = sorted_rows.partition_point(|&row| row < start + length);
            let vocab_size = logits.size()[1];
            let flat = |at: usize| (sorted_rows[at] - start) * vocab_size + sorted_targets[at];
            let flat: Vec<i64> = (first..end).map(flat).collect();
            let within: Vec<i64> = sorted_rows[first..end].iter().map(|row| row - start).collect();
            let log_total = logits.logsumexp([1i64].as_slice(), false);
            let target = logits.view([-1]).index_select(0, &parallel::upload(&flat, device));
            picked.push(target - log_total.index_select(0, &parallel::upload(&within, device)));
            first = end;
        }
        let logprobs = Tensor::cat(&picked, 0).index_select(0, &parallel::upload(&place, device));
        Ok(TargetLogprobs { logprobs, argmax: Tensor::cat(&best, 0) })
    })
}

/// The gradients of the hidden states and the head, accumulated chunk by chunk. The head's gradients are
/// accumulated in fp32.
#[derive(Default)]
struct HeadGrads {
    hidden: Option<Tensor>,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    has_bias: bool,
}

impl HeadGrads {
    fn new(hidden: &Tensor, head: &Head<'_>, wanted: bool) -> Self {
        let zeros = |tensor: &Tensor, kind| {
            (wanted && tensor.requires_grad()).then(|| Tensor::zeros(tensor.size(), (kind, tensor.device())))
        };
        Self {
            hidden: zeros(hidden, hidden.kind()),
            weight: zeros(head.weight, Kind::Float),
            bias: head.bias.and_then(|bias| zeros(bias, Kind::Float)),
            has_bias: head.bias.is_some(),
        }
    }

    /// Accumulates the gradients of the rows from `start` on, where `grad_logits = d loss / d logits`.
    fn add(&mut self, head: &DetachedHead, rows: &Tensor, grad_logits: &Tensor, start: i64) {
        let kind = rows.kind();
        let narrow = grad_logits.to_kind(kind);
        if let Some(hidden) = &mut self.hidden {
            hidden.narrow(0, start, rows.size()[0]).copy_(&narrow.matmul(&head.weight));
        }
        if let Some(weight) = &mut self.weight {
            if kind == Kind::Float {
                let _ = weight.addmm_(&narrow.tr(), rows);
            } else {
                let _ = weight.g_add_(&narrow.tr().matmul(rows));
            }
        }
        if let Some(bias) = &mut self.bias {
            let _ = bias.g_add_(&grad_logits.sum_dim_intlist(0, false, Kind::Float));
        }
    }

    fn into_grads(self) -> Vec<Option<Tensor>> {
        let bias = self.has_bias.then_some(self.bias);
        [Some(self.hidden), Some(self.weight), bias].into_iter().flatten().collect()
    }

    /// Multiplies the gradients by `factor`, in place because the weight's gradient is as large as the head.
    fn scaled(mut self, factor: &Tensor) -> Vec<Option<Tensor>> {
        for tensor in [&mut self.hidden, &mut self.weight, &mut self.bias].into_iter().flatten() {
            let _ = no_grad(|| tensor.g_mul_(factor));
        }
        self.into_grads()
    }
}

/// Returns no gradient for each of `count` inputs.
fn no_grads(count: usize) -> Vec<Option<Tensor>> {
    (0..count).map(|_| None).collect()
}

fn attached<const K: usize>(
    outputs: [&Tensor; K],
    inputs: &[&Tensor],
    backward: Backward,
) -> Result<[Tensor; K], Error> {
    let attached =
        with_backward(&outputs, inputs, backward).map_err(|error: SysError| parallel::Error::from(error))?;
    Ok(attached.try_into().expect("one attached tensor per result"))
}

/// `(start, length)` of each chunk of at most `size` rows.
fn chunks(rows: i64, size: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..rows).step_by(size as usize).map(move |start| (start, size.min(rows - start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    struct Case {
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
    }

    /// A random test case. With V = `70_000` a chunk has 128 rows, so 300 rows need several chunks.
    fn case(rows: i64, vocabulary: i64) -> Case {
        tch::manual_seed(7);
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        Case {
            hidden: random(&[rows, 8]),
            weight: random(&[vocabulary, 8]),
            bias: random(&[vocabulary]),
            targets: Tensor::randint(vocabulary, [rows], (Kind::Int64, Device::Cpu)),
        }
    }

    fn close(left: &Tensor, right: &Tensor) {
        close_to(left, right, 2e-5);
    }

    fn close_to(left: &Tensor, right: &Tensor, tolerance: f64) {
        let worst = (left - right).abs().max().double_value(&[]);
        let scale = right.abs().max().double_value(&[]).max(1.0);
        assert!(worst < tolerance * scale, "{worst} against {scale}");
    }

    fn grads(loss: &Tensor, case: &Case) -> Vec<Tensor> {
        Tensor::run_backward(&[loss], &[&case.hidden, &case.weight, &case.bias], false, false)
    }

    #[test]
    fn cross_entropy_equals_the_dense_form_with_its_gradients() {
        for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
            let case = case(rows, vocabulary);
            let head = Head::new(&case.weight, Some(&case.bias));
            let weights = Tensor::arange(rows, (Kind::Float, Device::Cpu)) / rows as f64;
            let ours = cross_entropy(&case.hidden, head, &case.targets, Some(&weights)).unwrap() * 3.0;
            let dense = case.hidden.linear(&case.weight, Some(&case.bias)).log_softmax(1, Kind::Float);
            let picked = dense.gather(1, &case.targets.unsqueeze(1), false).squeeze_dim(1);
            let dense = -(picked * &weights).sum(Kind::Float) * 3.0;
            close(&ours, &dense);
            for (left, right) in grads(&ours, &case).iter().zip(&grads(&dense, &case)) {
                close(left, right);
            }
        }
    }

    #[test]
    fn logprobs_and_entropy_equal_the_dense_form_with_gradients() {
        for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
            let case = case(rows, vocabulary);
            let head = Head::new(&case.weight, Some(&case.bias));
            let seeds = Tensor::arange(rows, (Kind::Float, Device::Cpu)) - 2.0;
            for shares in [[1.0, 0.0], [0.0, 1.0], [0.3, -2.0]] {
                let ours = logprobs(&case.hidden, head, &case.targets, 0.7).unwrap();
                // The reference is in double precision, because a sum over 70 000 tokens loses digits in
                // fp32.
                let [hidden, weight, bias] =
                    [&case.hidden, &case.weight, &case.bias].map(|tensor| tensor.to_kind(Kind::Double));
                let dense = (hidden.linear(&weight, Some(&bias)) / 0.7).log_softmax(1, Kind::Double);
                let picked = dense.gather(1, &case.targets.unsqueeze(1), false).squeeze_dim(1);
                let entropy = -(dense.exp() * &dense).sum_dim_intlist(1, false, Kind::Double);
                close(&ours.logprobs, &picked);
                close(&ours.entropy, &entropy);
                let weigh = |logprobs: &Tensor, entropy: &Tensor| {
                    let weighted_terms = [(logprobs, shares[0]), (entropy, shares[1])];
                    let used = weighted_terms.into_iter().filter(|(_, share)| *share != 0.0);
                    let sums = used.map(|(values, share)| (values * &seeds).sum(Kind::Float) * share);
                    sums.reduce(|left, right| left + right).unwrap()
                };
                let (left, right) = (weigh(&ours.logprobs, &ours.entropy), weigh(&picked, &entropy));
                // The terms p (log p + H) of the entropy cancel in the sum over the vocabulary, so fp32 keeps
                // one digit less.
                let tolerance = if shares[1] == 0.0 { 2e-5 } else { 1e-4 };
                for (left, right) in grads(&left, &case).iter().zip(&grads(&right, &case)) {
                    close_to(left, right, tolerance);
                }
            }
        }
    }

    #[test]
    fn a_loss_of_tokens_equals_that_of_their_logprobs_and_entropies() {
        for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
            let case = case(rows, vocabulary);
            let head = Head::new(&case.weight, Some(&case.bias));
            let advantages = Tensor::arange(rows, (Kind::Float, Device::Cpu)).sin();
            for entropy in [true, false] {
                let terms = TokenTerms { temperature: 0.7, entropy };
                let loss = |found: &TokenLogprobs, advantages: &Tensor| {
                    let policy = (found.logprobs.exp() * advantages).sum(Kind::Float);
                    if entropy { policy - found.entropy.sum(Kind::Float) * 0.3 } else { policy }
                };
                let ours = token_loss(&case.hidden, head, &case.targets, terms, &mut |rows, found| {
                    let statistics = Some(found.logprobs.sum(Kind::Double).view([1]).detach());
                    Ok::<_, Error>(RowSums { loss: loss(found, &rows.of(&advantages)), statistics })
                })
                .unwrap();
                let found = logprobs(&case.hidden, head, &case.targets, 0.7).unwrap();
                let wanted = loss(&found, &advantages);
                close(&ours.loss, &wanted);
                close(&ours.statistics.unwrap(), &found.logprobs.sum(Kind::Double).view([1]));
                for (left, right) in
                    grads(&(ours.loss * 3.0), &case).iter().zip(&grads(&(wanted * 3.0), &case))
                {
                    close(left, right);
                }
            }
        }
    }

    #[test]
    fn targets_that_share_rows_have_the_logprobs_of_repeated_rows() {
        for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
            let case = case(rows, vocabulary);
            let head = Head::new(&case.weight, Some(&case.bias));
            let shared: Vec<i64> = (0..2 * rows).map(|at| (at * 7) % rows).collect();
            let targets: Vec<i64> = (0..2 * rows).map(|at| (at * 13) % vocabulary).collect();
            let found = target_logprobs(&case.hidden, head, &shared, &targets).unwrap();
            let repeated = case.hidden.index_select(0, &Tensor::from_slice(&shared));
            let wanted = logprobs(&repeated, head, &Tensor::from_slice(&targets), 1.0).unwrap();
            close(&found.logprobs, &wanted.logprobs);
            assert_eq!(found.argmax, argmax(&case.hidden, head).unwrap());
        }
        let none = Tensor::zeros([0, 8], (Kind::Float, Device::Cpu));
        let case = case(1, 11);
        let found = target_logprobs(&none, Head::new(&case.weight, None), &[], &[]).unwrap();
        assert_eq!((found.logprobs.size(), found.argmax.size()), (vec![0], vec![0]));
    }

    #[test]
    fn a_uniform_head_by_hand() {
        // With W = 0, p = 1/4 for every token, so log p = -ln 4 and the entropy is ln 4.
        let hidden = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        let weight = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        let targets = Tensor::from_slice(&[1i64, 3]);
        let found = logprobs(&hidden, Head::new(&weight, None), &targets, 1.0).unwrap();
        assert!((found.logprobs.double_value(&[0]) + 4f64.ln()).abs() < 1e-6);
        assert!((found.entropy.double_value(&[1]) - 4f64.ln()).abs() < 1e-6);
        let loss = cross_entropy(&hidden, Head::new(&weight, None), &targets, None).unwrap();
        assert!((loss.double_value(&[]) - 2.0 * 4f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn no_rows_give_no_numbers() {
        let hidden = Tensor::zeros([0, 3], (Kind::Float, Device::Cpu));
        let weight = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        let targets = Tensor::from_slice::<i64>(&[]);
        let found = logprobs(&hidden, Head::new(&weight, None), &targets, 1.0).unwrap();
        assert_eq!(found.logprobs.size(), [0]);
    }

    #[test]
    fn without_a_graph_no_gradient_is_made() {
        let case = case(5, 11);
        let head = Head::new(&case.weight, Some(&case.bias));
        let loss = no_grad(|| cross_entropy(&case.hidden, head, &case.targets, None)).unwrap();
        let found = no_grad(|| logprobs(&case.hidden, head, &case.targets, 1.0)).unwrap();
        assert!(!loss.requires_grad() && !found.logprobs.requires_grad());
    }
}
