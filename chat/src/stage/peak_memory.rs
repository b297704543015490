//! The peak memory of a process, predicted from configurations and the lengths of rows, before anything is
//! loaded.
//!
//! ```text
//!   the program | weights, gradients, optimizer state of all models | the larger of
//!                                                                       one training step: activations
//!                                                                       a rollout, or the replies to tasks:
//!                                                                           copy of the policy, KV cache
//!   a sandbox, if tasks run code
//! ```
//! The prediction is for a run on the host, and for the process of a mesh that needs most.

use gemini::ZeroStage;
use inference::engine;
use models::activations::ActivationMemory;
use parallel::{Axis, Mesh};
use planner::memory::{self, StepBatch};
use planner::segment::Model;
use planner::step::MicroBatches;
use serde::Serialize;
use tch::Kind;

use super::lengths::{SequenceLengths, TaskReplies};
use super::model_memory::{ModelBytes, PlannedModel};
use super::segments;
use super::work::{PlannedRun, Work};
use crate::config::RunConfig;

/// What a process takes without any model, where it was not measured: libtorch with its work space, the
/// tokenizer, the rows. It was 170 to 190 MiB on two machines with x86-64.
pub(super) const PROGRAM_BYTES: usize = 180 << 20;

/// Without a budget, the heap keeps freed tensors of sizes that are not needed again: so many bytes for each
/// byte of activations, measured over batches of different lengths. With checkpointing, short-lived tensors
/// are most of the activations; in bf16, tensors come in two dtypes.
const HEAP_WASTE: f64 = 1.25;
const HEAP_WASTE_CHECKPOINTING: f64 = 1.6;
const HEAP_WASTE_BF16: f64 = 1.8;

/// In bf16, oneDNN keeps what it has compiled for 64 shapes of matrices: 1 to 1.5 MiB for each on a processor
/// with AMX.
const COMPILED_BYTES_BF16: usize = 80 << 20;

/// The memory of a process at the moment that needs most, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PeakMemory {
    /// The activations of a training step, with the gradients that are not yet in their place.
    pub(crate) activations: usize,
    /// The logits of the loss with their gradients, while they exist.
    pub(crate) logits: usize,
    /// The copy of the policy, the KV cache and the logits of a rollout, or of the replies to tasks if they
    /// take more.
    pub(crate) rollout: usize,
    /// The KV cache of these.
    pub(crate) kv_cache: usize,
    /// What the program takes without models.
    pub(crate) program: usize,
    /// What a program takes that the model writes for a task, in its sandbox.
    pub(crate) sandbox: usize,
    /// The peak: that of the models, at most the budget, and the program.
    pub(crate) total: usize,
}

/// The tensors of a forward and backward pass, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepTensors {
    /// What all micro-batches in flight keep at the end of the forward pass.
    pub(super) kept: usize,
    /// What a block takes beside that in its backward pass.
    pub(super) block: usize,
    /// What the head and its loss take beside that.
    pub(super) head: usize,
    /// The part of the head that is logits and their gradients.
    pub(super) logits: usize,
}

impl StepTensors {
    /// The most at any moment.
    pub(super) fn peak(&self) -> usize {
        self.kept + self.block.max(self.head)
    }
}

/// What a rollout takes beside the state of the models, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RolloutTensors {
    /// The copy of the policy's weights, if there is one.
    pub(super) policy: usize,
    /// The keys and values of all replies that are generated at the same time.
    pub(super) kv_cache: usize,
    /// What the sampler works on.
    pub(super) logits: usize,
    /// The least that a budget has to leave for cache and logits: room for the longest reply alone.
    pub(super) least: usize,
}

impl RolloutTensors {
    /// All of it.
    pub(super) fn total(&self) -> usize {
        self.policy + self.kv_cache + self.logits
    }
}

/// Predicts the peak of the process that needs most.
pub(super) fn predict(run: PlannedRun<'_>) -> Result<PeakMemory, models::Error> {
    let PlannedRun { config, mesh, work: Work { models, numbers, lengths, program_bytes, .. }, state } = run;
    let numbers = numbers.of(&segments::layout(config, mesh))?;
    let trained = models.iter().zip(&*numbers).filter(|(model, _)| model.is_trained);
    let steps: Vec<StepTensors> = trained.map(|model| training_step(config, mesh, model, lengths)).collect();
    let activations = steps.iter().map(StepTensors::peak).max().unwrap_or(0);
    let logits = steps.iter().map(|step| step.logits).max().unwrap_or(0);
    let replies =
        [rollout(config, mesh, models, state, lengths), task_replies(config, mesh, models, state, lengths)];
    let tensors = replies.into_iter().max_by_key(RolloutTensors::total).unwrap_or_default();
    let (rollout, kv_cache) = (tensors.total(), tensors.kv_cache);

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
    let program = in_dtype(program_bytes, config);
    // The heap keeps what the models took while programs run.
    let sandbox = sandbox_bytes(lengths);
    let total = models + program + sandbox;
    Ok(PeakMemory { activations, logits, rollout, kv_cache, program, sandbox, total })
}

/// What a process takes beside its models, of which `program_bytes` are there in every dtype.
pub(super) fn in_dtype(program_bytes: usize, config: &RunConfig) -> usize {
    match config.model.dtype.kind() {
        Kind::Float => program_bytes,
        _ => program_bytes + COMPILED_BYTES_BF16,
    }
}

/// What a program takes that the model writes for a task.
pub(super) fn sandbox_bytes(lengths: &SequenceLengths) -> usize {
    lengths.task_replies.map_or(0, |replies| replies.programs)
}

/// The micro-batches of an optimizer step that one process runs.
pub(super) fn micro_batches(config: &RunConfig, mesh: &Mesh, lengths: &SequenceLengths) -> usize {
    let (rows, ranks) = (step_rows(config, lengths) as f64, segments::layout(config, mesh).row_ranks());
    MicroBatches::of(rows, config.train.micro_batch_size, ranks).count
}

/// The rows of an optimizer step; in a stage with rollouts, the replies, or the rows that are made of them.
pub(super) fn step_rows(config: &RunConfig, lengths: &SequenceLengths) -> usize {
    if lengths.new_tokens == 0 {
        return config.train.batch_size();
    }
    let replies = config.ppo.mini_batch_size;
    match lengths.learned_per_prompt {
        None => replies,
        Some(learned) => (replies * learned / config.ppo.samples_per_prompt / lengths.per_row).max(1),
    }
}

/// The hidden states that a step keeps of models that are not trained.
fn frozen_states(config: &RunConfig, mesh: &Mesh, lengths: &SequenceLengths) -> usize {
    let rows = micro_batches(config, mesh, lengths) * config.train.micro_batch_size;
    let predicted = match lengths.new_tokens {
        0 => lengths.row.times(rows as f64).predicted as usize,
        _ => rows * lengths.reply_tokens,
    };
    lengths.frozen_state * predicted
}

/// The tensors of a forward and backward pass at their peak.
pub(super) fn training_step(
    config: &RunConfig,
    mesh: &Mesh,
    (model, numbers): (&PlannedModel<'_>, &Model),
    lengths: &SequenceLengths,
) -> StepTensors {
    let layout = segments::layout(config, mesh);
    let rows = config.train.micro_batch_size.min(step_rows(config, lengths));
    // The loss of a teacher's distributions has its logits beside those of the model, and with `top_k` those
    // of the outcomes of both. Sharded, the weights of its head stay for all micro-batches of a step.
    let is_distilled = lengths.frozen_state > 0;
    let copies = if config.distill.top_k.is_some() { 2.0 } else { 1.0 };
    let is_held = is_distilled && config.parallel.zero >= ZeroStage::Weights;
    let vocab_size = (model.config.architecture().vocab_size as usize).div_ceil(layout.tensor_ranks());
    let held = if is_held { lengths.frozen_state * vocab_size } else { 0 };
    let batch = StepBatch {
        tokens: lengths.largest_micro_batch(rows) as f64,
        micro_batches: micro_batches(config, mesh, lengths),
        is_padded: lengths.are_mixed,
        // Under a budget, and with sharded weights, all micro-batches run through a segment before the next.
        is_segment_major: config.gemini.device_memory.is_some()
            || config.parallel.zero >= ZeroStage::Gradients,
        frozen: (held + frozen_states(config, mesh, lengths)) as f64,
        frozen_logits: if is_distilled { copies } else { 0.0 },
    };
    let tensors = memory::training(numbers, batch, &layout);
    let [kept, block, head, logits] =
        [tensors.kept, tensors.block, tensors.head, tensors.logits].map(|bytes| bytes as usize);
    StepTensors { kept, block, head, logits }
}

/// What a rollout of the first model, the policy, takes beside the `state` of the models. Nothing in a stage
/// without rollouts.
pub(super) fn rollout(
    config: &RunConfig,
    mesh: &Mesh,
    models: &[PlannedModel<'_>],
    state: &[ModelBytes],
    lengths: &SequenceLengths,
) -> RolloutTensors {
    let policy = models.first().zip(state.first()).filter(|_| lengths.new_tokens > 0);
    let Some(policy) = policy else { return RolloutTensors::default() };
    let replies = concurrent_replies(config, mesh);
    generation(config, mesh, policy, (replies, lengths.longest + lengths.new_tokens))
}

/// What the replies to tasks take beside the `state` of the models. The first model generates them.
fn task_replies(
    config: &RunConfig,
    mesh: &Mesh,
    models: &[PlannedModel<'_>],
    state: &[ModelBytes],
    lengths: &SequenceLengths,
) -> RolloutTensors {
    let Some(TaskReplies { count, capacity, .. }) = lengths.task_replies else {
        return RolloutTensors::default();
    };
    let model = models.first().zip(state.first());
    model.map_or_else(RolloutTensors::default, |model| generation(config, mesh, model, (count, capacity)))
}

/// The memory that a model takes to generate a number of replies, each of a number of tokens.
fn generation(
    config: &RunConfig,
    mesh: &Mesh,
    (policy, state): (&PlannedModel<'_>, &ModelBytes),
    (replies, capacity): (usize, usize),
) -> RolloutTensors {
    let (architecture, memory) = (policy.config.architecture(), memory_of(mesh, policy));
    let capacity = capacity.min(architecture.max_positions as usize);
    let kv_cache =
        engine::cached_tokens(replies, capacity) * memory.cached_token() / mesh.size(Axis::Pipeline);
    let logits = memory.sampled_logits(replies);
    let policy = if decodes_with_a_copy(config) { state.bytes.weights } else { 0 };
    let least = memory.step(engine::SMALL_STEP, replies) + kv_cache.div_ceil(replies.max(1));
    RolloutTensors { policy, kv_cache, logits, least: least.min(kv_cache + logits) }
}

/// Whether replies are generated with a copy of the weights, because the weights themselves may leave memory.
pub(super) fn decodes_with_a_copy(config: &RunConfig) -> bool {
    config.gemini.device_memory.is_some() || config.parallel.zero == ZeroStage::Weights
}

/// The replies that a process generates in a rollout.
pub(super) fn replies(config: &RunConfig, mesh: &Mesh) -> usize {
    let replicas = segments::layout(config, mesh).replicas();
    (config.ppo.rollout_batch_size * config.ppo.samples_per_prompt).div_ceil(replicas)
}

/// The replies that a process generates at the same time.
pub(super) fn concurrent_replies(config: &RunConfig, mesh: &Mesh) -> usize {
    replies(config, mesh).min(config.ppo.rollout_micro_batch_size.unwrap_or(usize::MAX))
}

pub(super) fn memory_of<'a>(mesh: &Mesh, model: &PlannedModel<'a>) -> ActivationMemory<'a> {
    ActivationMemory::new(model.config.architecture(), model.kind, mesh.size(Axis::Tensor))
}

#[cfg(test)]
mod tests {
    use models::config::Config;
    use models::decoder::HeadKind;
    use planner::segment::RowTokens;

    use super::*;
    use crate::launch;
    use crate::stage::model_memory;
    use crate::stage::segments::Numbers;

    #[test]
    fn the_largest_micro_batch_is_above_the_mean_and_not_above_the_longest_rows() {
        let lengths = SequenceLengths {
            mean: 100.0,
            deviation: 20.0,
            longest: 128,
            are_mixed: true,
            num_rows: 16_000,
            per_row: 1,
            ..SequenceLengths::default()
        };
        // Of 1000 values the largest is sqrt(2 ln 1000) = 3.716 922 deviations above the mean.
        assert_eq!(lengths.largest_micro_batch(16), 1600 + (20.0 * 4.0 * 3.716_922) as usize);
        assert_eq!(lengths.largest_micro_batch(1), 128);
        assert_eq!(lengths.largest_micro_batch(16_000), 1_600_000);
        let pairs = SequenceLengths { per_row: 2, deviation: 0.0, ..lengths };
        assert_eq!(pairs.largest_micro_batch(4), 800);
        let prompts = SequenceLengths { new_tokens: 24, reply_tokens: 24, deviation: 0.0, ..lengths };
        assert_eq!(prompts.largest_micro_batch(4), 4 * 124);
        // Both replies of a pair follow the same prompt.
        let pairs = SequenceLengths { per_row: 2, ..prompts };
        assert_eq!(pairs.largest_micro_batch(4), 8 * 124);
    }

    #[test]
    fn the_rows_of_a_step_are_made_of_its_replies() {
        let mut config = RunConfig::default();
        config.ppo.samples_per_prompt = 4;
        config.ppo.mini_batch_size = 64;
        let of = |per_row, learned_per_prompt| {
            let lengths =
                SequenceLengths { new_tokens: 8, per_row, learned_per_prompt, ..SequenceLengths::default() };
            step_rows(&config, &lengths)
        };
        // Replies; a pair for each of 16 prompts; replies again.
        assert_eq!((of(1, None), of(2, Some(2)), of(1, Some(4))), (64, 16, 64));
    }

    #[test]
    fn the_states_of_a_teacher_are_as_long_as_the_replies() {
        let mut config = RunConfig::default();
        config.ppo.mini_batch_size = 64;
        config.train.micro_batch_size = 8;
        let mesh = Mesh::new(&[], 0, 1).unwrap();
        let lengths = SequenceLengths {
            new_tokens: 8,
            reply_tokens: 20,
            frozen_state: 4,
            ..SequenceLengths::default()
        };
        // Episodes of several turns are longer than a turn, and the shortest replies have one token.
        assert_eq!(frozen_states(&config, &mesh, &lengths), 64 * 20 * 4);
        assert_eq!(frozen_states(&config, &mesh, &lengths.at_least()), 64 * 4);
    }

    #[test]
    fn replies_to_tasks_count_where_they_take_more_than_a_training_step() {
        let text = r#"{
          "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu"
        }"#;
        let model = Config::from_json(text, "test").unwrap();
        let (head, kind) = (HeadKind::Vocabulary, Kind::Float);
        let models = [PlannedModel::trained("model", &model, head, kind)];
        let config = RunConfig::default();
        let mesh = launch::mesh(&config.parallel, 0, 1).unwrap();
        let state = model_memory::of_fullest_process(&config, &mesh, &models).unwrap();
        let row = RowTokens { tokens: 16.0, squares: 256.0, predicted: 16.0 };
        let lengths = SequenceLengths {
            mean: 16.0,
            deviation: 0.0,
            longest: 16,
            are_mixed: false,
            num_rows: 8,
            per_row: 1,
            row,
            ..SequenceLengths::default()
        };
        let numbers = Numbers::new(&config, &models);
        let peak = |task_replies| {
            let lengths = &SequenceLengths { task_replies, ..lengths };
            let work =
                Work { models: &models, numbers: &numbers, lengths, program_bytes: 0, machine_bytes: None };
            predict(PlannedRun { config: &config, mesh: &mesh, work, state: &state }).unwrap()
        };
        let (without, with) =
            (peak(None), peak(Some(TaskReplies { count: 64, capacity: 2000, programs: 0 })));
        assert_eq!((without.rollout, without.kv_cache), (0, 0));
        // 64 replies of 1024 tokens at most; keys and values of 2 heads of 16 numbers of 4 bytes in 2 layers.
        assert_eq!(with.kv_cache, 64 * 1024 * 2 * 2 * 16 * 4 * 2);
        assert!(with.total >= without.total + with.kv_cache / 2, "{without:?} {with:?}");

        // A program in its sandbox comes on top of all that the process keeps.
        let running = peak(Some(TaskReplies { count: 64, capacity: 2000, programs: 1 << 30 }));
        assert_eq!((with.sandbox, running.sandbox), (0, 1 << 30));
        assert_eq!(running.total, with.total + (1 << 30));
    }
}
