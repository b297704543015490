//! The time of a step, predicted from configurations, the lengths of rows, and the measured speeds of a
//! machine ([`MachineSpeed`]).
//!
//! Operations of a forward pass over `n` tokens, in sequences of lengths `T`:
//! ```text
//!   matrices    2 P n                  P parameters of the matrices that a token runs through
//!   attention   2 q sum T^2            q = heads * D: scores and values, half of which are masked
//!   head        2 V h                  for each position with logits; V vocabulary, h its width
//! ```
//! (Kaplan et al. 2020, arXiv 2001.08361, table 1.) A backward pass has twice as many, and activation
//! checkpointing one forward pass more (Korthikanti et al. 2022, arXiv 2205.05198). A loss of tokens computes
//! the gradients of the head with its logits: 3 passes over the head.
//!
//! The seconds of a step are those of
//! - computation: the operations of matrices and head over the speed of products of the hidden size, those of
//!   attention over its speed, and the bytes of activations over the speed of activation functions. A forward
//!   pass writes and reads what a block keeps; a backward pass reads it, and writes and reads its gradient.
//! - gradients: 16 bytes a parameter and micro-batch, because a gradient is written and added to the sum.
//! - updates: 3 x gradients (norm, update, zero) + 2 x (weights, masters, moments), over the speed of copies.
//! - decoding, for each token of a reply: the operations, or the reading of all weights and of the cache if
//!   it takes longer; then the sampler goes six times over the logits.
//! - disk: the bytes that a budget moves ([`chunk_uses`](super::chunk_uses)), over the speed of the disk.
//!
//! `auto` moves chunks while it computes, so the larger of the two counts, for each of three phases: rollout
//! and scoring, forward passes with the updates before them, backward passes. (Chunks are not read further
//! ahead than an eighth of the budget.) The other placements wait for the disk. All ranks of the mesh divide
//! the operations; a pipeline of `p` stages idles `(p - 1) / (m + p - 1)` of the time with `m` micro-batches
//! (Narayanan et al. 2021, arXiv 2104.04473), which zero-bubble schedules shorten. Replies are taken to be of
//! full length. Not counted: communication between ranks, the reading of rows, checkpoints, evaluation.

use gemini::placement::PlacementPolicy;
use models::architecture::Architecture;
use models::decoder::HeadKind;
use parallel::pipeline::ScheduleKind;
use parallel::{Axis, Mesh};
use rlhf::config::OldLogprobs;
use serde::Serialize;

use super::chunk_uses::{ChunkUses, DiskTraffic, ModelPieces, Phase, PhaseTraffic};
use super::model_memory::{ModelBytes, PlannedModel};
use super::peak_memory::{self, RowTokens, SequenceLengths};
use crate::config::RunConfig;
use crate::config::section::Dtype;
use crate::machine_speed::MachineSpeed;

/// The bytes of a gradient that is written, read, and added to a sum that is read and written.
const GRADIENT_BYTES: f64 = 16.0;
/// How often the sampler reads or writes the logits of a token.
const SAMPLER_PASSES: f64 = 6.0;

/// The predicted seconds of a step; for PPO, of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StepTime {
    /// All of it.
    pub(crate) seconds: f64,
    /// Forward and backward passes.
    pub(crate) computation: f64,
    /// The rollout of PPO.
    pub(crate) rollout: f64,
    /// The updates.
    pub(crate) update: f64,
    /// The transfers between memory and disk.
    pub(crate) disk: f64,
}

/// The predicted seconds of a step with weights in one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct DtypeTime {
    pub(crate) dtype: Dtype,
    /// The seconds of a step; for PPO, of an iteration.
    pub(crate) seconds: f64,
}

/// The run whose time is predicted.
#[derive(Clone, Copy)]
pub(super) struct PlannedRun<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) mesh: &'a Mesh,
    pub(super) models: &'a [PlannedModel<'a>],
    pub(super) state: &'a [ModelBytes],
    pub(super) lengths: &'a SequenceLengths,
}

/// Seconds of computation, by [`Phase`].
type PhaseSeconds = [f64; 3];

impl PlannedRun<'_> {
    /// Predicts the time of a step.
    pub(super) fn step_time(&self, speed: &MachineSpeed) -> StepTime {
        let has_rollout = self.lengths.new_tokens > 0;
        let computation = if has_rollout { self.ppo(speed) } else { self.supervised(speed) };
        let rollout = if has_rollout { self.rollout(speed) } else { 0.0 };
        let update = self.updates(speed);
        let mut busy = computation;
        busy[Phase::Inference as usize] += rollout;
        busy[Phase::Forward as usize] += update;

        let transfer = |moved: PhaseTraffic| {
            moved.read as f64 / speed.disk.read + moved.written as f64 / speed.disk.write
        };
        let disk = self.disk_traffic().map(transfer);
        let is_overlapped = self.config.gemini.placement == PlacementPolicy::Auto;
        let phases = busy.iter().zip(disk);
        let seconds = phases.map(|(&busy, disk)| if is_overlapped { busy.max(disk) } else { busy + disk });
        let (seconds, computation, disk) = (seconds.sum(), computation.iter().sum(), disk.iter().sum());
        StepTime { seconds, computation, rollout, update, disk }
    }

    fn supervised(&self, speed: &MachineSpeed) -> PhaseSeconds {
        let batch = self.config.train.batch_size() as f64;
        let mut seconds = PhaseSeconds::default();
        for (model, _) in self.trained() {
            seconds = added(seconds, self.training(model, self.lengths.row.times(batch), speed));
            if let Some(rows) = self.lengths.before_step {
                seconds[Phase::Inference as usize] += self.scoring(model, rows.times(batch), speed);
            }
        }
        for model in self.models.iter().filter(|model| !model.is_trained) {
            seconds[Phase::Inference as usize] += self.scoring(model, self.lengths.row.times(batch), speed);
        }
        seconds
    }

    fn ppo(&self, speed: &MachineSpeed) -> PhaseSeconds {
        let ppo = &self.config.ppo;
        let replies = (ppo.rollout_batch_size * ppo.samples_per_prompt) as f64;
        let (prompt, new) = (self.lengths.row, self.lengths.new_tokens as f64);
        // The mean of (P + R)^2 is that of P^2 + 2 P R + R^2.
        let sequence = RowTokens {
            tokens: prompt.tokens + new,
            squares: prompt.squares + 2.0 * prompt.tokens * new + new * new,
            predicted: new,
        };

        let learned_per_prompt = self.lengths.learned_per_prompt.unwrap_or(ppo.samples_per_prompt);
        let all_epochs = (ppo.rollout_batch_size * learned_per_prompt * ppo.epochs) as f64;
        // Every data-parallel rank checks one micro-batch of the sampler's log-probabilities.
        let ranks = self.mesh.size(Axis::Data);
        let checked = replies.min((ranks * self.config.train.micro_batch_size) as f64);
        let mut seconds = PhaseSeconds::default();
        for model in self.models {
            let computed = match model.role {
                "policy" if self.lengths.learned_per_prompt.is_some() => 0.0,
                "policy" if ppo.old_logprobs == OldLogprobs::Sampler => checked,
                // It runs before the gradients of each step.
                "teacher" => all_epochs,
                _ => replies,
            };
            seconds[Phase::Inference as usize] += self.scoring(model, sequence.times(computed), speed);
        }
        for (index, (model, _)) in self.trained().enumerate() {
            seconds = added(seconds, self.training(model, sequence.times(all_epochs), speed));
            if let Some(ptx) = self.lengths.ptx.filter(|_| index == 0) {
                seconds = added(seconds, self.training(model, ptx.times(all_epochs), speed));
            }
        }
        seconds
    }

    fn trained(&self) -> impl Iterator<Item = (&PlannedModel<'_>, &ModelBytes)> {
        self.models.iter().zip(self.state).filter(|(model, _)| model.is_trained)
    }

    /// The seconds of a forward pass of `rows` for their logits alone.
    fn scoring(&self, model: &PlannedModel<'_>, rows: RowTokens, speed: &MachineSpeed) -> f64 {
        let forward = block_seconds(model, rows, 2.0, speed) + head_seconds(model, rows, speed);
        self.divided(forward)
    }

    /// The seconds of a forward and backward pass of `rows`.
    fn training(&self, model: &PlannedModel<'_>, rows: RowTokens, speed: &MachineSpeed) -> PhaseSeconds {
        let forward = block_seconds(model, rows, 2.0, speed);
        // Twice the operations, and three traversals: as much as two forward passes with 1.5 each.
        let mut backward = 2.0 * block_seconds(model, rows, 1.5, speed);
        if self.config.train.activation_checkpointing {
            backward += forward;
        }
        let backward = backward + 3.0 * head_seconds(model, rows, speed);
        [0.0, self.divided(forward), self.divided(backward)]
    }

    /// The seconds that each rank needs for its part of what one rank would do in `seconds`.
    fn divided(&self, seconds: f64) -> f64 {
        seconds / self.mesh.world_size() as f64 / (1.0 - self.bubble())
    }

    /// The part of the time in which a pipeline stage waits.
    fn bubble(&self) -> f64 {
        let waits = self.mesh.size(Axis::Pipeline) as f64 - 1.0;
        let pipeline = &self.config.parallel.pipeline;
        let chunks = if pipeline.schedule == ScheduleKind::Interleaved { pipeline.chunks } else { 1 };
        let micro_batches = peak_memory::micro_batches(self.config, self.mesh, self.lengths) * chunks;
        waits / (micro_batches as f64 + waits)
    }

    /// The seconds of all optimizer steps beside their passes: gradients are added up, and weights updated.
    fn updates(&self, speed: &MachineSpeed) -> f64 {
        let micro_batches = peak_memory::micro_batches(self.config, self.mesh, self.lengths) as f64;
        let steps =
            if self.lengths.new_tokens > 0 { self.config.ppo.steps_per_iteration() as f64 } else { 1.0 };
        let bytes = self.trained().map(|(_, state)| {
            let [weights, gradients, optimizer] =
                [state.bytes.weights, state.bytes.gradients, state.bytes.optimizer].map(|bytes| bytes as f64);
            let added = micro_batches * GRADIENT_BYTES * gradients / 4.0;
            added + 3.0 * gradients + 2.0 * (weights + optimizer)
        });
        steps * bytes.sum::<f64>() / speed.memory.copy
    }

    /// The seconds in which the first model, the policy, replies to the prompts.
    fn rollout(&self, speed: &MachineSpeed) -> f64 {
        let (policy, state) = (&self.models[0], &self.state[0]);
        let architecture = policy.config.architecture();
        let replies = peak_memory::replies(self.config, self.mesh) as f64;
        let batch = peak_memory::concurrent_replies(self.config, self.mesh) as f64;
        let (prompt, new) = (self.lengths.row, self.lengths.new_tokens as f64);

        // Layers and heads are divided over the ranks that hold parts of the model; the replies are already
        // those of this rank.
        let parts = self.mesh.world_size() as f64 / self.mesh.size(Axis::Data) as f64;
        let flops = speed.matmul_flops(architecture.hidden_size as f64, policy.kind) * parts;
        let prompts = RowTokens { predicted: 1.0, ..prompt }.times(replies);
        let prefill =
            matrix_operations(architecture, prompts.tokens) + head_operations(architecture, prompts);
        let attention = attention_operations(architecture, prompts.squares);
        let prefill = prefill / flops + attention / (parts * speed.attention.of(policy.kind));

        let token = RowTokens { tokens: batch, squares: 0.0, predicted: batch };
        let operations = matrix_operations(architecture, batch) + head_operations(architecture, token);
        let logits = 4.0 * batch * architecture.vocab_size as f64;
        let memory = peak_memory::memory_of(self.mesh, policy);
        let cache = batch * (prompt.tokens + new / 2.0) * memory.cached_token() as f64;
        let weights = state.bytes.weights as f64;
        let decode = (operations / flops).max((weights + cache / parts) / speed.memory.read)
            + SAMPLER_PASSES * logits / speed.memory.copy;

        let is_copied = peak_memory::decodes_with_a_copy(self.config);
        let copy = if is_copied { 2.0 * weights / speed.memory.copy } else { 0.0 };
        copy + prefill + new * (replies / batch).ceil() * decode
    }

    /// What a step moves to and from the disk.
    fn disk_traffic(&self) -> DiskTraffic {
        let Some(budget) = self.config.gemini.device_memory else { return DiskTraffic::default() };
        let traffic = |mini_batches: usize| {
            self.chunk_uses(mini_batches).disk_traffic(budget.0 as usize, self.config.gemini.placement)
        };
        let once = traffic(1);
        let mini_batches = self.config.ppo.steps_per_iteration() as usize;
        if self.lengths.new_tokens == 0 || mini_batches <= 1 {
            return once;
        }
        // Every further mini-batch moves as much as the second.
        let twice = traffic(2);
        let all = |one: usize, two: usize| one + (mini_batches - 1) * two.saturating_sub(one);
        std::array::from_fn(|phase| {
            let (once, twice) = (once[phase], twice[phase]);
            PhaseTraffic { read: all(once.read, twice.read), written: all(once.written, twice.written) }
        })
    }

    /// The chunks that each moment of a step needs; for PPO, with `mini_batches` mini-batches.
    pub(super) fn chunk_uses(&self, mini_batches: usize) -> ChunkUses {
        let Self { config, mesh, models, state, lengths } = *self;
        let mut uses = ChunkUses::default();
        let add = |(model, state)| uses.add_model((mesh, config.parallel.zero), model, state);
        let pieces: Vec<ModelPieces> = models.iter().zip(state).map(add).collect();
        let has_rollout = lengths.new_tokens > 0;
        if has_rollout {
            uses.add_rollout(&pieces[0], &peak_memory::rollout(config, mesh, models, state, lengths));
            let scores = |model: &PlannedModel<'_>| !model.is_trained || lengths.learned_per_prompt.is_none();
            let scoring = models.iter().zip(&pieces).filter(|(model, _)| scores(model));
            scoring.for_each(|(_, pieces)| uses.add_forward_pass(pieces));
        } else {
            let frozen = models.iter().zip(&pieces).filter(|(model, _)| !model.is_trained);
            frozen.for_each(|(_, pieces)| uses.add_forward_pass(pieces));
        }
        for (model, pieces) in models.iter().zip(&pieces).filter(|(model, _)| model.is_trained) {
            if lengths.before_step.is_some() {
                uses.add_forward_pass(pieces);
            }
            let tensors = peak_memory::training_step(config, mesh, model, lengths);
            let steps = if has_rollout { mini_batches } else { 1 };
            (0..steps).for_each(|_| uses.add_training_step(pieces, &tensors));
        }
        uses
    }
}

fn added(left: PhaseSeconds, right: PhaseSeconds) -> PhaseSeconds {
    std::array::from_fn(|phase| left[phase] + right[phase])
}

/// The seconds of the operations of a forward pass through all blocks, and of `traversals` traversals of the
/// tensors that the blocks keep.
fn block_seconds(model: &PlannedModel<'_>, rows: RowTokens, traversals: f64, speed: &MachineSpeed) -> f64 {
    let (architecture, kind) = (model.config.architecture(), model.kind);
    matrix_operations(architecture, rows.tokens) / speed.matmul_flops(architecture.hidden_size as f64, kind)
        + attention_operations(architecture, rows.squares) / speed.attention.of(kind)
        + traversals * activation_bytes(model, rows.tokens) / speed.elementwise.of(kind)
}

/// The seconds in which the logits of `rows` are computed once.
fn head_seconds(model: &PlannedModel<'_>, rows: RowTokens, speed: &MachineSpeed) -> f64 {
    let architecture = model.config.architecture();
    match model.head {
        HeadKind::Vocabulary => {
            let flops = speed.matmul_flops(architecture.embedding_size as f64, model.kind);
            head_operations(architecture, rows) / flops
        }
        HeadKind::Scalar => 0.0,
    }
}

/// The operations of the matrices of all blocks in a forward pass.
fn matrix_operations(architecture: &Architecture, tokens: f64) -> f64 {
    let hidden = architecture.hidden_size as f64;
    let queries = (architecture.num_heads * architecture.head_dim) as f64;
    let keys = (architecture.num_kv_heads * architecture.head_dim) as f64;
    let attention = hidden * (2.0 * queries + 2.0 * keys);
    let matrices = if architecture.gated_mlp { 3.0 } else { 2.0 };
    let mlp = |inner: i64| matrices * hidden * inner as f64;

    let layer = |index: usize| match &architecture.experts {
        Some(experts) if experts.is_moe_layer[index] => {
            let router = hidden * experts.num_experts as f64;
            let chosen = experts.num_experts_per_tok as f64 * mlp(experts.intermediate_size);
            router + chosen + mlp(experts.shared_expert_intermediate_size.unwrap_or(0))
        }
        _ => mlp(architecture.intermediate_size),
    };
    let layers = architecture.num_layers as usize;
    let parameters: f64 = (0..layers).map(|index| attention + layer(index)).sum();
    2.0 * parameters * tokens
}

/// The operations of attention in a forward pass over sequences with this sum of squared lengths.
fn attention_operations(architecture: &Architecture, squares: f64) -> f64 {
    let queries = architecture.num_heads * architecture.head_dim;
    (architecture.num_layers * 2 * queries) as f64 * squares
}

/// The operations of the vocabulary head.
fn head_operations(architecture: &Architecture, rows: RowTokens) -> f64 {
    2.0 * (architecture.vocab_size * architecture.embedding_size) as f64 * rows.predicted
}

/// The bytes that all blocks keep of `tokens` tokens for their backward pass.
fn activation_bytes(model: &PlannedModel<'_>, tokens: f64) -> f64 {
    // Per token, by a number of tokens that no rounding matters for.
    const TOKENS: usize = 1024;
    let architecture = model.config.architecture();
    let memory = models::activations::ActivationMemory::new(architecture, model.kind, 1);
    let blocks: usize = (0..architecture.num_layers as usize).map(|layer| memory.block(layer, TOKENS)).sum();
    blocks as f64 / TOKENS as f64 * tokens
}

#[cfg(test)]
mod tests {
    use gemini::StateBytes;
    use gemini::config::memory::ByteSize;
    use models::config::Config;
    use tch::Kind;

    use super::*;
    use crate::launch;
    use crate::machine_speed;

    const CONFIG: &str = r#"{
      "model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "tie_word_embeddings": true
    }"#;
    /// Rows of 5 tokens, with a loss at two positions.
    const ROW: RowTokens = RowTokens { tokens: 5.0, squares: 25.0, predicted: 2.0 };

    fn lengths(new_tokens: usize) -> SequenceLengths {
        SequenceLengths {
            mean: 5.0,
            deviation: 0.0,
            longest: 5,
            are_mixed: false,
            num_rows: 2,
            per_row: 1,
            new_tokens,
            reply_tokens: new_tokens,
            row: ROW,
            ..SequenceLengths::default()
        }
    }

    fn predict(config: &RunConfig, processes: usize, new_tokens: usize) -> StepTime {
        let model = Config::from_json(CONFIG, "test").unwrap();
        let (head, kind) = (HeadKind::Vocabulary, Kind::Float);
        let models = [PlannedModel::trained("policy", &model, head, kind)];
        let bytes = StateBytes { weights: 3584, gradients: 3584, optimizer: 7168 };
        let state = [ModelBytes { role: "policy", bytes }];
        let mesh = launch::mesh(&config.parallel, 0, processes).unwrap();
        let lengths = lengths(new_tokens);
        let run = PlannedRun { config, mesh: &mesh, models: &models, state: &state, lengths: &lengths };
        run.step_time(&machine_speed::tests::round())
    }

    /// Two micro-batches of a row.
    fn two_rows() -> RunConfig {
        let mut config = RunConfig::default();
        config.train.micro_batch_size = 1;
        config.train.gradient_accumulation_steps = 2;
        config
    }

    #[track_caller]
    fn same(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6 * wanted, "{found:e}, wanted {wanted:e}");
    }

    #[test]
    fn a_supervised_step_by_hand() {
        // Matrices of 8 (2 * 8 + 2 * 8) + 3 * 8 * 16 = 640 parameters: 2 * 640 * 10 = 12800 operations, 2 * 8
        // * 50 = 800 of attention, and 2 * 32 * 8 * 4 = 2048 of the head. A block keeps 2 (8 + 1) + 2 * 8
        // + 4 * 8 + 2 + 3 * 16 = 116 numbers of a token.
        let mut config = two_rows();
        let time = predict(&config, 1, 0);
        let parts = |passes: f64| {
            [passes * 12800.0 + 3.0 * 2048.0, passes * 800.0, (2.0 * passes - 1.0) * 116.0 * 4.0 * 10.0]
        };
        let seconds = |[matrices, attention, activations]: [f64; 3]| {
            matrices / 1e11 + attention / 2e10 + activations / 5e9
        };
        same(time.computation, seconds(parts(3.0)));
        // 896 gradients of two micro-batches.
        same(time.update, (2.0 * 16.0 * 896.0 + 3.0 * 3584.0 + 2.0 * (3584.0 + 7168.0)) / 1e10);
        assert_eq!((time.rollout, time.disk), (0.0, 0.0));
        same(time.seconds, time.computation + time.update);

        config.train.activation_checkpointing = true;
        let time = predict(&config, 1, 0);
        same(time.computation, seconds(parts(4.0)));
    }

    #[test]
    fn ranks_divide_the_work_and_a_pipeline_waits() {
        let mut config = two_rows();
        let alone = predict(&config, 1, 0);
        let pair = predict(&config, 2, 0);
        same(pair.computation, alone.computation / 2.0);
        // One micro-batch instead of two adds gradients.
        same(alone.update - pair.update, 16.0 * 896.0 / 1e10);
        // Two stages with two micro-batches wait a third of the time.
        config.parallel.pipeline.size = 2;
        same(predict(&config, 2, 0).computation, alone.computation / 2.0 * 1.5);
    }

    #[test]
    fn the_disk_counts_as_far_as_it_is_not_hidden() {
        // The optimizer state is read at 2 GB/s and written at 1 GB/s, nothing of it meanwhile.
        let mut config = two_rows();
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        config.gemini.placement = PlacementPolicy::Static;
        let time = predict(&config, 1, 0);
        same(time.disk, 7168.0 / 2e9 + 7168.0 / 1e9);
        same(time.seconds, time.computation + time.update + time.disk);

        // Nothing fits, and everything that is moved is moved beside the computation.
        config.gemini.placement = PlacementPolicy::Auto;
        config.gemini.device_memory = Some(ByteSize(8));
        let time = predict(&config, 1, 0);
        assert!(time.disk > 7168.0 / 2e9 + 7168.0 / 1e9, "{time:?}");
        same(time.seconds, time.disk);
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        assert_eq!(predict(&config, 1, 0).disk, 0.0);
    }

    #[test]
    fn a_rollout_by_hand() {
        // Four replies of 3 tokens, two at a time.
        let mut config = two_rows();
        config.ppo.rollout_batch_size = 4;
        config.ppo.mini_batch_size = 4;
        config.ppo.rollout_micro_batch_size = Some(2);
        let time = predict(&config, 1, 3);
        // 2 * 640 * 20 and 2 * 8 * 100 operations, and the logits of the last position of each prompt.
        let prefill = (25600.0 + 2.0 * 256.0 * 4.0) / 1e11 + 1600.0 / 2e10;
        // A token of two replies: weights and 6.5 tokens of the cache, of 2 * 8 * 4 bytes, are read in more
        // time than 2 * 640 * 2 + 2 * 256 * 2 operations take.
        let token = (3584.0 + 2.0 * 6.5 * 64.0) / 2e10 + 6.0 * 4.0 * 2.0 * 32.0 / 1e10;
        same(time.rollout, prefill + 2.0 * 3.0 * token);

        // Weights that may leave memory are copied: read and written once.
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        same(predict(&config, 1, 3).rollout, 2.0 * 3584.0 / 1e10 + prefill + 2.0 * 3.0 * token);

        // Scoring and four epochs over 4 sequences of 8 tokens, with 3 logits each.
        let (matrices, head) = (2.0 * 640.0 * 32.0, 2.0 * 256.0 * 12.0);
        let (attention, activations) = (2.0 * 8.0 * 4.0 * 64.0 / 2e10, 116.0 * 4.0 * 32.0 / 5e9);
        let score = (matrices + head) / 1e11 + attention + 2.0 * activations;
        let epoch = (3.0 * matrices + 3.0 * head) / 1e11 + 3.0 * attention + 5.0 * activations;
        same(time.computation, score + 4.0 * epoch);
        // The log-probabilities of the sampler are checked on one micro-batch, which has one of four replies.
        config.ppo.old_logprobs = OldLogprobs::Sampler;
        same(predict(&config, 1, 3).computation, score / 4.0 + 4.0 * epoch);
        // Four steps, each with the gradients of four micro-batches.
        same(time.update, 4.0 * (4.0 * 16.0 * 896.0 + 3.0 * 3584.0 + 2.0 * (3584.0 + 7168.0)) / 1e10);
    }
}
