//! The peak memory of a process, predicted from configurations and the lengths of rows, before anything is
//! loaded.
//!
//! ```text
//!   the program | weights, gradients, optimizer state of all models | the larger of
//!                                                                       one training step: activations
//!                                                                       one rollout: copy of the policy, KV cache
//! ```
//! The prediction is for a run on the host, and for the process of a mesh that needs most.

use gemini::TrainConfig;
use models::activations::ActivationMemory;
use models::decoder::HeadKind;
use parallel::{Axis, Mesh};
use serde::Serialize;
use tch::Kind;

use super::model_memory::{ModelBytes, PlannedModel};
use super::rows::EncodedRows;
use crate::config::RunConfig;

/// What a process takes without any model: libtorch with its work space, the tokenizer, the rows. Measured on
/// Linux on x86-64 with two threads.
const PROGRAM_BYTES: usize = 170 << 20;

/// Without a budget, the heap keeps freed tensors of sizes that are not needed again: so many bytes for each byte
/// of activations, measured over batches of different lengths. With checkpointing, short-lived tensors are most
/// of the activations; in bf16, tensors come in two dtypes.
const HEAP_WASTE: f64 = 1.25;
const HEAP_WASTE_CHECKPOINTING: f64 = 1.6;
const HEAP_WASTE_BF16: f64 = 1.8;

/// The rows that run through a model together.
#[derive(Clone, Copy, Debug)]
pub(super) struct MicroBatchRows {
    /// Mean and standard deviation of the number of tokens of a sequence.
    pub(super) mean: f64,
    pub(super) deviation: f64,
    /// The tokens of the longest sequence.
    pub(super) longest: usize,
    /// The sequences of a row: two for a pair.
    pub(super) sequences: usize,
    /// The tokens of a reply that is sampled after the sequence; 0 in a stage without rollouts.
    pub(super) new_tokens: usize,
}

impl MicroBatchRows {
    /// Of rows of so many sequences each.
    pub(super) fn of<T>(rows: &EncodedRows<T>, sequences: usize) -> Self {
        let EncodedRows { longest, mean, deviation, .. } = *rows;
        Self { mean, deviation, longest, sequences, new_tokens: 0 }
    }

    /// Of bins of packed rows, which are nearly full, each with several rows of different lengths.
    pub(super) fn packed(bin_tokens: usize) -> Self {
        Self { mean: bin_tokens as f64, deviation: 1.0, longest: bin_tokens, sequences: 1, new_tokens: 0 }
    }

    /// The tokens of the largest of `count` micro-batches of `rows` rows each: for a normal distribution, the
    /// largest of `count` values is about `sqrt(2 ln count)` deviations above the mean.
    fn largest(&self, rows: usize, count: f64) -> usize {
        let sequences = (rows * self.sequences) as f64;
        let expected =
            self.mean * sequences + self.deviation * sequences.sqrt() * (2.0 * count.max(1.0).ln()).sqrt();
        (expected.min(self.longest as f64 * sequences) + self.new_tokens as f64 * sequences) as usize
    }
}

/// The memory of a process at the moment that needs most.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PeakMemory {
    /// The activations of a training step, with the gradients that are not yet in their place.
    pub(crate) activations: usize,
    /// The copy of the policy, the KV cache and the logits of a rollout.
    pub(crate) rollout: usize,
    /// What the program takes without models.
    pub(crate) program: usize,
    /// The peak: that of the models, at most the budget, and the program.
    pub(crate) total: usize,
}

/// Predicts the peak of a process that holds `state`, the bytes of `models`.
pub(super) fn predict(
    config: &RunConfig,
    mesh: &Mesh,
    models: &[PlannedModel<'_>],
    state: &[ModelBytes],
    rows: &MicroBatchRows,
) -> PeakMemory {
    let trained = models.iter().filter(|model| model.is_trained);
    let activations = trained.map(|model| training_step(config, mesh, model, rows)).max().unwrap_or(0);
    let policy = models.first().zip(state.first()).filter(|_| rows.new_tokens > 0);
    let rollout = policy.map_or(0, |(policy, state)| rollout(config, mesh, policy, state, rows));

    let held: usize = state.iter().map(|model| model.bytes.total()).sum();
    let is_fp32 = config.model.dtype.kind() == Kind::Float;
    let waste = match (is_fp32, config.train.activation_checkpointing) {
        (false, _) => HEAP_WASTE_BF16,
        (true, true) => HEAP_WASTE_CHECKPOINTING,
        (true, false) => HEAP_WASTE,
    };
    let models = match config.gemini.device_memory {
        Some(budget) => (held + activations.max(rollout)).min(budget.0 as usize),
        None => held + rollout.max((waste * activations as f64) as usize),
    };
    PeakMemory { activations, rollout, program: PROGRAM_BYTES, total: models + PROGRAM_BYTES }
}

/// The tensors of a forward and backward pass at their peak.
fn training_step(config: &RunConfig, mesh: &Mesh, model: &PlannedModel<'_>, rows: &MicroBatchRows) -> usize {
    let TrainConfig { micro_batch_size, gradient_accumulation_steps, activation_checkpointing, .. } =
        config.train;
    let (architecture, memory) = (model.config.architecture(), memory_of(mesh, model));
    let micro_batches = gradient_accumulation_steps.div_ceil(mesh.size(Axis::Data));
    let tokens = rows.largest(micro_batch_size, 200.0).div_ceil(mesh.size(Axis::Sequence));

    let stages = mesh.size(Axis::Pipeline);
    let layers = (architecture.num_layers as usize).div_ceil(stages);
    let padding = if rows.deviation > 0.0 { memory.padded_attention(tokens) } else { 0 };
    let block = |layer: usize| memory.block(layer, tokens) + padding;
    let blocks = (0..layers).map(block);
    let largest = (0..layers).map(|layer| block(layer) + memory.block_backward(layer, tokens));
    let largest = largest.max().unwrap_or(0);
    let [head_kept, head_most] = match model.head {
        HeadKind::Vocabulary => memory.vocabulary_loss(tokens),
        HeadKind::Scalar => [memory.hidden(tokens); 2],
    };

    // Under a budget, and with sharded weights, all micro-batches run through a segment before the next.
    let is_segment_major =
        config.gemini.device_memory.is_some() || config.parallel.zero >= gemini::ZeroStage::Gradients;
    let in_flight = if is_segment_major { micro_batches } else { micro_batches.min(stages) };
    if activation_checkpointing {
        let inputs = in_flight * (layers + 1) * memory.hidden(tokens);
        inputs + largest.max(memory.final_norm(tokens) + head_most)
    } else {
        let kept = memory.hidden(tokens) + blocks.sum::<usize>() + memory.final_norm(tokens);
        in_flight * kept + head_most.max(head_kept + memory.block_backward(0, tokens))
    }
}

/// What a rollout takes beside the state of the models.
fn rollout(
    config: &RunConfig,
    mesh: &Mesh,
    policy: &PlannedModel<'_>,
    state: &ModelBytes,
    rows: &MicroBatchRows,
) -> usize {
    let (architecture, memory) = (policy.config.architecture(), memory_of(mesh, policy));
    let ppo = &config.ppo;
    let replies = (ppo.rollout_batch_size * ppo.samples_per_prompt).div_ceil(mesh.size(Axis::Data));
    let positions = architecture.max_positions as usize;
    let capacity = (rows.longest + rows.new_tokens).min(positions);
    let cache = replies * capacity * memory.cached_token() / mesh.size(Axis::Pipeline);
    // The sampler works on the logits of all replies in fp32.
    let logits = 3 * replies * architecture.vocab_size as usize * 4;
    // The head of the copy is laid out anew, also where it is the embedding.
    let head = (architecture.vocab_size * architecture.embedding_size) as usize;
    state.bytes.weights + head * policy.kind.elt_size_in_bytes() / mesh.size(Axis::Tensor) + cache + logits
}

fn memory_of<'a>(mesh: &Mesh, model: &PlannedModel<'a>) -> ActivationMemory<'a> {
    ActivationMemory::new(model.config.architecture(), model.kind, mesh.size(Axis::Tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_micro_batch_is_above_the_mean_and_not_above_the_longest_rows() {
        let rows = MicroBatchRows { mean: 100.0, deviation: 20.0, longest: 128, sequences: 1, new_tokens: 0 };
        // Of 1000 standard normal values the largest is about sqrt(2 ln 1000) = 3.72.
        assert_eq!(rows.largest(16, 1000.0), 1600 + (20.0 * 4.0 * 3.716_922) as usize);
        assert_eq!(rows.largest(1, 1000.0), 128);
        assert_eq!(rows.largest(16, 1.0), 1600);
        let pairs = MicroBatchRows { sequences: 2, deviation: 0.0, ..rows };
        assert_eq!(pairs.largest(4, 9.0), 800);
        let prompts = MicroBatchRows { new_tokens: 24, deviation: 0.0, ..rows };
        assert_eq!(prompts.largest(4, 9.0), 4 * 124);
        assert_eq!(MicroBatchRows::packed(256).largest(2, 100.0), 512);
    }
}
