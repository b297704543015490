//! The head over a chunk of rows: its logits, log-probabilities and gradients.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parallel::autograd::{self, Backward, with_backward};
use parallel::comm::{ProcessGroup, Reduction};
use parallel::residency::{Access, HeldWeights, ModelPart, Residency, Weights};
use parallel::{PipelineStages, SysError};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::linear::few_rows_linear;
use crate::lora::HeadAdapter;
use crate::lora::head_adapter::Addition;
use crate::model_parallel::needs_grad;
use crate::tensor_parallel_region::TokenPartition;
use crate::vocab_parallel::{MaskedIds, VocabShard};

/// The fewest and the most rows of a chunk. A chunk of `R` rows takes `6 R V H` operations and moves `16 V H`
/// bytes, because it reads the weights twice, and reads and writes their gradient. With 128 rows that is 48
/// operations for a byte in fp32. A processor computes fewer in the time in which it reads a byte: 6 on two
/// cores of an AMD EPYC (Zen 4, measured), 23 on all 96 cores of one (10.7 Tflop/s and 460 GB/s, by its data
/// sheet). On the two cores 128 rows and more take equally long, at vocabularies of 32,000 and 128,000, and
/// 32 rows take half as long again.
const CHUNK_ROWS: RangeInclusive<i64> = 128..=256;
/// Between these two, a chunk has the rows whose logits fill this many numbers: 32 MiB in fp32.
const CHUNK_ELEMENTS: i64 = 1 << 23;
/// The same on a GPU, which computes more operations in the time in which it reads a byte: in bf16 153 on an
/// A100, 206 on an H200 and 295 on an H100, by their data sheets. A chunk of 2,048 rows has 768 for each
/// byte. With 128 rows an H200 spent 61 ms of a step of 256 ms on adding 64 times to the weight's gradient
/// (1.2 B parameters, a vocabulary of 128,256).
const DEVICE_CHUNK_ROWS: RangeInclusive<i64> = 128..=2048;
/// The logits of a chunk on a GPU: 1 GiB in fp32.
const DEVICE_CHUNK_ELEMENTS: i64 = 1 << 28;

/// The weights of a vocabulary head.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[V, H]`.
    pub weight: &'a Tensor,
    /// `[V]`.
    pub bias: Option<&'a Tensor>,
    /// The adapter, if `weight` has one.
    pub adapter: Option<&'a HeadAdapter>,
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

/// What a loss reads of the distribution over the vocabulary at each row.
#[derive(Clone, Copy, Debug)]
pub struct LogprobsOptions {
    /// The divisor of the logits.
    pub temperature: f64,
    /// Whether the entropy is wanted. Without it, a loss and its gradient take less time and memory.
    pub entropy: bool,
}

impl Default for LogprobsOptions {
    fn default() -> Self {
        Self { temperature: 1.0, entropy: false }
    }
}

impl<'a> Head<'a> {
    /// A head that is not split over ranks.
    pub fn new(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Self {
        Self {
            weight,
            bias,
            adapter: None,
            vocabulary: None,
            sequence_group: None,
            pipeline: None,
            vocab_size: weight.size()[0],
            residency: None,
        }
    }

    /// The head on a rank with the last stage of a pipeline, whose results stay on the ranks of this stage.
    #[must_use]
    pub fn of_last_stage(self) -> Self {
        Self { pipeline: None, ..self }
    }

    /// Holds the weights of the head while it computes.
    pub(super) fn hold(&self) -> Result<HeldWeights<'a>, Error> {
        Ok(HeldWeights::fetch(self.residency, Weights::Part(ModelPart::Head), Access::Read)?)
    }

    /// Holds the weights of the head over several calls, if ranks share them and fetch them together: the
    /// ranks may make different numbers of calls.
    pub fn hold_if_sharded(&self) -> Result<HeldWeights<'a>, Error> {
        let is_sharded = self.residency.is_some_and(Residency::is_sharded);
        if is_sharded { self.hold() } else { Ok(HeldWeights::none()) }
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
        let mut local_logits = few_rows_linear(hidden, self.weight, self.bias)
            .unwrap_or_else(|| hidden.linear(self.weight, self.bias));
        if let Some(addition) = self.addition() {
            local_logits = addition.add_to(local_logits, hidden);
        }
        match self.vocabulary {
            None => Ok(local_logits),
            Some(vocabulary) => Ok(vocabulary.spec.with_dim(1).unshard(&local_logits, &vocabulary.group)?),
        }
    }

    pub(super) fn inputs<'h>(&'h self, hidden: &'h Tensor) -> Vec<&'h Tensor> {
        let adapter = self.adapter.into_iter().flat_map(HeadAdapter::tensors);
        [Some(hidden), Some(self.weight), self.bias].into_iter().flatten().chain(adapter).collect()
    }

    /// What the adapter adds to the logits; `None` if it adds nothing on this rank.
    fn addition(&self) -> Option<Addition> {
        self.adapter.and_then(|adapter| adapter.addition(self.weight))
    }

    /// Whether a gradient is needed for any input.
    pub(super) fn requires_grad(&self, hidden: &Tensor) -> bool {
        autograd::is_enabled() && self.inputs(hidden).iter().any(|input| input.requires_grad())
    }

    /// Runs the head on the last pipeline stage and broadcasts the result to all stages. Returns `None`
    /// without pipeline parallelism, and in a pass with gradients.
    pub(super) fn broadcast_from_last_stage(
        self,
        hidden: &Tensor,
        shape: &[i64],
        kind: Kind,
        make: impl FnOnce(Head<'_>) -> Result<Tensor, Error>,
    ) -> Option<Result<Tensor, Error>> {
        let pipeline = self.pipeline.filter(|_| !needs_grad(hidden))?;
        let make = || {
            let output = if pipeline.is_last_stage() { Some(make(self.of_last_stage())?) } else { None };
            Ok(pipeline.broadcast_from_last_stage(output, shape, (kind, hidden.device()))?)
        };
        Some(make())
    }

    /// The split of the rows over the sequence-parallel group, if a gradient is needed.
    pub(super) fn row_partition(&self, hidden: &Tensor) -> Option<TokenPartition> {
        let group = self.sequence_group.filter(|_| self.requires_grad(hidden))?;
        Some(TokenPartition(vec![Arc::clone(group)]))
    }

    /// The head without its autograd graph, for a backward pass that outlives the borrow. The caller holds
    /// the weights.
    pub(super) fn detach(&self) -> DetachedHead {
        DetachedHead {
            weight: self.weight.detach(),
            bias: self.bias.map(Tensor::detach),
            addition: no_grad(|| self.addition()),
            vocabulary: self.vocabulary.cloned(),
        }
    }

    /// The number of rows per chunk. It is computed from the average shard, because all ranks need the same
    /// number and their shards of the vocabulary may differ by one token.
    pub(super) fn chunk_rows(&self) -> i64 {
        let vocab_size = self.vocabulary.map_or(self.weight.size()[0], VocabShard::mean_local_size);
        chunk_rows(vocab_size, self.weight.device())
    }
}

/// The number of rows whose logits over `vocab_size` tokens are held at once.
fn chunk_rows(vocab_size: i64, device: Device) -> i64 {
    let (rows, elements) = chunk_limits(device);
    (elements / vocab_size).clamp(*rows.start(), *rows.end())
}

/// The least and the most rows of a chunk, and the logits that it has between these.
pub(crate) fn chunk_limits(device: Device) -> (RangeInclusive<i64>, i64) {
    match device {
        Device::Cpu => (CHUNK_ROWS, CHUNK_ELEMENTS),
        _ => (DEVICE_CHUNK_ROWS, DEVICE_CHUNK_ELEMENTS),
    }
}

/// A head without an autograd graph.
pub(super) struct DetachedHead {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
    addition: Option<Addition>,
    pub(super) vocabulary: Option<VocabShard>,
}

impl DetachedHead {
    pub(super) fn logits(&self, hidden: &Tensor, temperature: f64) -> Tensor {
        let mut logits = hidden.linear(&self.weight, self.bias.as_ref());
        if let Some(addition) = &self.addition {
            logits = addition.add_to(logits, hidden);
        }
        logits = logits.to_kind(Kind::Float);
        if temperature != 1.0 {
            let _ = logits.g_div_scalar_(temperature);
        }
        logits
    }

    /// The log of the sum of exponentials over the full vocabulary, `[n, 1]`, from this rank's logits
    /// `[n, V]`; `None` if the vocabulary is not sharded.
    pub(super) fn global_logsumexp(&self, logits: &Tensor) -> Result<Option<Tensor>, Error> {
        let Some(VocabShard { group, .. }) = &self.vocabulary else { return Ok(None) };
        let local_logsumexp = logits.logsumexp([1i64].as_slice(), true);
        let all = group.all_gather(&local_logsumexp.tr())?; // [ranks, n]
        Ok(Some(all.logsumexp([0i64].as_slice(), true).tr()))
    }

    /// The `count`-th largest number of each row over the full vocabulary, `[n, 1]`, from this rank's numbers
    /// `[n, V]`.
    pub(super) fn kth_largest(&self, numbers: &Tensor, count: i64) -> Result<Tensor, Error> {
        match &self.vocabulary {
            None => Ok(numbers.topk(count, 1, true, true).0.narrow(1, count - 1, 1)),
            Some(vocabulary) => Ok(vocabulary.kth_largest(numbers, count)?),
        }
    }

    pub(super) fn mask_targets(&self, target: &Tensor) -> MaskedIds {
        MaskedIds::new(target, self.vocabulary.as_ref())
    }

    /// Sums `terms` in place over the ranks that hold shards of the vocabulary.
    pub(super) fn all_reduce(&self, terms: &Tensor) -> Result<(), parallel::Error> {
        match &self.vocabulary {
            None => Ok(()),
            Some(vocabulary) => vocabulary.group.all_reduce(terms, Reduction::Sum),
        }
    }
}

/// The log-softmax of `z` `[n, V]`: `z - log_total` if the vocabulary is sharded.
pub(super) fn log_softmax(z: &Tensor, log_total: Option<&Tensor>) -> Tensor {
    match log_total {
        None => z.log_softmax(1, Kind::Float),
        Some(log_total) => z - log_total,
    }
}

/// The log-probabilities of a chunk of rows.
pub(super) struct ChunkLogprobs {
    /// The log-probabilities of the tokens of this rank, `[n, V]`.
    pub(super) logprobs: Tensor,
    /// See [`DetachedHead::global_logsumexp`].
    pub(super) log_total: Option<Tensor>,
    pub(super) target: MaskedIds,
    /// `log p(target)` over the full vocabulary and, if it is wanted, the entropy: `[1 or 2, n]`.
    pub(super) values: Tensor,
}

impl ChunkLogprobs {
    pub(super) fn new(
        head: &DetachedHead,
        hidden: &Tensor,
        targets: &Tensor,
        options: LogprobsOptions,
    ) -> Result<Self, Error> {
        let target = head.mask_targets(&targets.unsqueeze(1));
        let logits = head.logits(hidden, options.temperature);
        let log_total = head.global_logsumexp(&logits)?;
        let logprobs = log_softmax(&logits, log_total.as_ref());
        drop(logits);

        let picked = target.zero_masked(logprobs.gather(1, &target.masked_ids, false)).squeeze_dim(1);
        let entropy = options.entropy.then(|| local_entropy(&logprobs));
        let values = Tensor::stack(&std::iter::once(picked).chain(entropy).collect::<Vec<_>>(), 0);
        head.all_reduce(&values)?;
        Ok(Self { logprobs, log_total, target, values })
    }
}

/// The part of the entropy of each row that this rank's tokens have, `[n]`.
fn local_entropy(logprobs: &Tensor) -> Tensor {
    let terms = (logprobs.exp() * logprobs).nan_to_num(0.0, None, None);
    -terms.sum_dim_intlist(1, false, Kind::Float)
}

/// The gradient with respect to `z` `[n, V]`, from the incoming gradients `[n, 1]` of log-probabilities, and
/// of entropies with the entropies themselves: `d log p(y) / d z = onehot(y) - p` and
/// `d H / d z = -p (log p + H)`.
pub(super) fn logits_grad(
    mut logprobs: Tensor,
    target: &MaskedIds,
    logprobs_grad: Option<Tensor>,
    entropy_grad: Option<(Tensor, Tensor)>,
) -> Tensor {
    // `p (log p + H)` needs both p and log p. Everything else overwrites log p, which is as large as the
    // logits.
    let of_entropy = entropy_grad.map(|(grad, entropy)| {
        let mut terms = &logprobs + entropy;
        let _ = terms.g_mul_(&logprobs.exp());
        terms.nan_to_num_(0.0, None, None) * grad
    });

    let mut grad_logits = logprobs.exp_();
    match logprobs_grad {
        Some(grad) => {
            let _ = grad_logits.g_mul_(&-&grad);
            let _ = grad_logits.scatter_add_(1, &target.masked_ids, &target.zero_masked(grad));
        }
        None => _ = grad_logits.zero_(),
    }
    if let Some(of_entropy) = of_entropy {
        let _ = grad_logits.g_sub_(&of_entropy);
    }
    grad_logits
}

/// The gradients of the hidden states and the head, accumulated chunk by chunk. The head's gradients are
/// accumulated in fp32.
#[derive(Default)]
pub(super) struct HeadGrads {
    hidden: Option<Tensor>,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// For each trained tensor of the adapter.
    adapter: Vec<Option<Tensor>>,
    has_bias: bool,
}

impl HeadGrads {
    pub(super) fn new(hidden: &Tensor, head: &Head<'_>, wanted: bool) -> Self {
        let zeros = |tensor: &Tensor, kind| {
            (wanted && tensor.requires_grad()).then(|| Tensor::zeros(tensor.size(), (kind, tensor.device())))
        };
        let adapter = head.adapter.into_iter().flat_map(HeadAdapter::tensors);
        Self {
            hidden: zeros(hidden, hidden.kind()),
            weight: zeros(head.weight, Kind::Float),
            bias: head.bias.and_then(|bias| zeros(bias, Kind::Float)),
            adapter: adapter.map(|tensor| zeros(tensor, Kind::Float)).collect(),
            has_bias: head.bias.is_some(),
        }
    }

    /// Accumulates the gradients of the rows from `start` on, where `grad_logits = d loss / d logits`.
    pub(super) fn add(&mut self, head: &DetachedHead, rows: &Tensor, grad_logits: &Tensor, start: i64) {
        let kind = rows.kind();
        let narrow = grad_logits.to_kind(kind);
        if let Some(hidden) = &mut self.hidden {
            let of_table = narrow.matmul(&head.weight);
            let grad = match &head.addition {
                Some(addition) => addition.hidden_grad(&of_table, grad_logits),
                None => of_table,
            };
            hidden.narrow(0, start, rows.size()[0]).copy_(&grad);
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
        if let Some(addition) = head.addition.as_ref().filter(|_| self.adapter.iter().all(Option::is_some)) {
            let mut sums: Vec<&mut Tensor> = self.adapter.iter_mut().flatten().collect();
            addition.add_grads(&mut sums, rows, grad_logits);
        }
    }

    pub(super) fn into_grads(self) -> Vec<Option<Tensor>> {
        let bias = self.has_bias.then_some(self.bias);
        [Some(self.hidden), Some(self.weight), bias].into_iter().flatten().chain(self.adapter).collect()
    }

    /// Multiplies the gradients by `factor`, in place because the weight's gradient is as large as the head.
    pub(super) fn scaled(mut self, factor: &Tensor) -> Vec<Option<Tensor>> {
        let own = [&mut self.hidden, &mut self.weight, &mut self.bias];
        for tensor in own.into_iter().chain(&mut self.adapter).flatten() {
            let _ = no_grad(|| tensor.g_mul_(factor));
        }
        self.into_grads()
    }
}

/// Returns no gradient for each of `count` inputs.
pub(super) fn no_grads(count: usize) -> Vec<Option<Tensor>> {
    (0..count).map(|_| None).collect()
}

/// Attaches gradients that are known already, those of `loss`, a scalar.
pub(super) fn with_grads(
    loss: &Tensor,
    hidden: &Tensor,
    head: &Head<'_>,
    mut grads: HeadGrads,
) -> Result<Tensor, Error> {
    let count = head.inputs(hidden).len();
    let backward: Backward = Box::new(move |seed| {
        let grads = std::mem::take(&mut grads);
        Ok(seed[0].as_ref().map_or_else(|| no_grads(count), |seed| grads.scaled(seed)))
    });
    let [loss] = attached([loss], &head.inputs(hidden), backward)?;
    Ok(loss)
}

pub(super) fn attached<const K: usize>(
    outputs: [&Tensor; K],
    inputs: &[&Tensor],
    backward: Backward,
) -> Result<[Tensor; K], Error> {
    let attached =
        with_backward(&outputs, inputs, backward).map_err(|error: SysError| parallel::Error::from(error))?;
    Ok(attached.try_into().expect("one attached tensor per result"))
}

/// `(start, length)` of each chunk of at most `size` rows.
pub(super) fn chunks(rows: i64, size: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..rows).step_by(size as usize).map(move |start| (start, size.min(rows - start)))
}
