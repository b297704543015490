//! The time of a step, predicted from configurations, the lengths of rows, and a hardware file
//! ([`planner::Hardware`]).
//!
//! The planner has the formulas of passes ([`planner::pass`]), of what ranks exchange
//! ([`planner::traffic`]) and of rollouts ([`planner::rollout`]). Here are the passes of a stage, and what
//! comes beside them:
//! - updates: 16 bytes a parameter and micro-batch, because a gradient is written and added to the sum; 3 x
//!   gradients (norm, update, zero) + 2 x (weights, masters, moments); all over the speed of copies.
//! - offload: the bytes that a budget moves ([`chunk_uses`](super::chunk_uses)), over the speed of the disk,
//!   or of the host of a GPU.
//!
//! `auto` moves chunks while it computes, so the larger of the two counts, for each of three phases: rollout
//! and scoring, forward passes with the updates before them, backward passes. (Chunks are not read further
//! ahead than an eighth of the budget.) The other placements wait for the transfers. Not counted: the
//! reading of rows, checkpoints, evaluation.

use std::rc::Rc;

use anyhow::Context;
use gemini::placement::PlacementPolicy;
use planner::Hardware;
use planner::collective::Collective;
use planner::layout::Layout;
use planner::rollout::{self, Rollout};
use planner::segment::{Model, RowTokens};
use planner::step::{self, Batch, StepSeconds};
use planner::trace::Trace;
use planner::traffic::{Exchange, Purpose};
use rlhf::config::OldLogprobs;
use serde::Serialize;

use super::chunk_uses::{ChunkTraffic, ChunkUses, ModelPieces, Phase, PhaseTraffic};
use super::model_memory::{ModelBytes, PlannedModel};
use super::peak_memory;
use super::segments;
use super::work::{PlannedRun, Work};
use crate::config::section::Dtype;

/// The bytes of a gradient that is written, read, and added to a sum that is read and written.
const GRADIENT_BYTES: f64 = 16.0;

/// The predicted seconds of a step; for PPO, of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StepTime {
    /// All of it.
    pub(crate) seconds: f64,
    /// Forward and backward passes.
    pub(crate) computation: f64,
    /// What ranks exchange in passes and after them.
    pub(crate) communication: f64,
    /// Waiting for the other stages of a pipeline.
    pub(crate) waiting: f64,
    /// The rollout of PPO.
    pub(crate) rollout: f64,
    /// The updates.
    pub(crate) update: f64,
    /// The transfers of chunks under a budget.
    pub(crate) offload: f64,
}

/// The predicted seconds of a step with weights in one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct DtypeTime {
    pub(crate) dtype: Dtype,
    /// The seconds of a step; for PPO, of an iteration.
    pub(crate) seconds: f64,
}

/// Equal collectives in which a rank sends something.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PlannedExchange {
    /// What they exchange it for.
    purpose: Purpose,
    collective: Collective,
    /// The number of ranks that take part.
    ranks: usize,
    /// The number of collectives.
    calls: f64,
    /// The bytes that a rank sends in all of them.
    bytes: f64,
}

impl PlannedExchange {
    fn of(exchange: &Exchange) -> Self {
        let &Exchange { purpose, collective, ranks, count, .. } = exchange;
        Self { purpose, collective, ranks, calls: count, bytes: exchange.bytes_sent() }
    }
}

/// The passes of a step, on the hardware that they run on.
struct Passes<'a> {
    run: PlannedRun<'a>,
    hardware: &'a Hardware,
    layout: Layout,
    /// The numbers of the models.
    numbers: Rc<[Model]>,
    /// Whether the schedule of a pipeline is run, and not only bounded from below.
    is_exact: bool,
    /// Those without gradients.
    inference: f64,
    /// Those with gradients.
    training: StepSeconds,
}

impl PlannedRun<'_> {
    /// Predicts the time of a step.
    pub(super) fn step_time(&self, hardware: &Hardware) -> anyhow::Result<StepTime> {
        let (passes, rollout) = self.passes(hardware, true)?;
        let update = self.updates(hardware);
        let training = &passes.training;
        let mut busy = [0.0; 3];
        busy[Phase::Inference as usize] = passes.inference + rollout;
        busy[Phase::Forward as usize] = training.forward + update;
        busy[Phase::Backward as usize] = training.backward + training.waiting + training.exchange;

        let offload = self.offload(hardware)?;
        let is_overlapped = self.config.gemini.placement == PlacementPolicy::Auto;
        let phases = busy.iter().zip(offload);
        let seconds =
            phases.map(|(&busy, moving)| if is_overlapped { busy.max(moving) } else { busy + moving });

        let in_passes = [Purpose::Tensor, Purpose::Sequence, Purpose::Experts];
        let in_passes: f64 = in_passes.iter().filter_map(|purpose| training.by_purpose.get(purpose)).sum();
        Ok(StepTime {
            seconds: seconds.sum(),
            computation: passes.inference + training.forward + training.backward - in_passes,
            communication: in_passes + training.exchange,
            waiting: training.waiting,
            rollout,
            update,
            offload: offload.iter().sum(),
        })
    }

    /// An optimizer step of the first model that is trained, on a simulated clock.
    pub(super) fn trace(&self, hardware: &Hardware) -> anyhow::Result<Trace> {
        let (layout, numbers) = self.layout()?;
        let (index, batch) = self.first_trained()?;
        let (timeline, exchange) = step::timeline(&numbers[index], batch, &layout, hardware)?;
        Ok(Trace::new(&timeline, exchange, self.update(&self.state[index], hardware)))
    }

    /// What each rank of the pipeline sends in an optimizer step of the first model that is trained.
    pub(super) fn communication(&self) -> anyhow::Result<Vec<Vec<PlannedExchange>>> {
        let (layout, numbers) = self.layout()?;
        let (index, batch) = self.first_trained()?;
        let ranks = step::exchanges(&numbers[index], batch, &layout).into_iter();
        Ok(ranks.map(|exchanges| exchanges.iter().map(PlannedExchange::of).collect()).collect())
    }

    /// The first model that is trained, and the rows of one of its optimizer steps.
    fn first_trained(&self) -> anyhow::Result<(usize, Batch)> {
        let lengths = self.work.lengths;
        let trained = self.work.models.iter().position(|model| model.is_trained);
        let row = match lengths.new_tokens {
            0 => lengths.row,
            new => lengths.row.continued(new as f64),
        };
        let count = peak_memory::step_rows(self.config, lengths) as f64;
        let batch = Batch { row, count, micro_batch_size: self.config.train.micro_batch_size };
        Ok((trained.context("a stage trains a model")?, batch))
    }

    fn layout(&self) -> Result<(Layout, Rc<[Model]>), models::Error> {
        let layout = segments::layout(self.config, self.mesh);
        let numbers = self.work.numbers.of(&layout)?;
        Ok((layout, numbers))
    }

    /// Never more than [`step_time`](Self::step_time) says, and told in much less time: no schedule of a
    /// pipeline is run, and no chunk is moved.
    pub(super) fn least_seconds(&self, hardware: &Hardware) -> anyhow::Result<f64> {
        let (passes, rollout) = self.passes(hardware, false)?;
        Ok(passes.inference + rollout + passes.training.total() + self.updates(hardware))
    }

    /// The passes of a step, and the seconds of the rollout before them.
    fn passes<'a>(&'a self, hardware: &'a Hardware, is_exact: bool) -> anyhow::Result<(Passes<'a>, f64)> {
        let mut passes = Passes::new(*self, hardware, is_exact)?;
        if self.work.lengths.new_tokens == 0 {
            passes.add_supervised()?;
            return Ok((passes, 0.0));
        }
        passes.add_iteration()?;
        let rollout = passes.rollout()?;
        Ok((passes, rollout))
    }

    fn trained(&self) -> impl Iterator<Item = (&PlannedModel<'_>, &ModelBytes)> {
        self.work.models.iter().zip(self.state).filter(|(model, _)| model.is_trained)
    }

    /// The seconds of all optimizer steps beside their passes: gradients are added up, and weights updated.
    fn updates(&self, hardware: &Hardware) -> f64 {
        let has_rollout = self.work.lengths.new_tokens > 0;
        let steps = if has_rollout { self.config.ppo.steps_per_iteration() as f64 } else { 1.0 };
        steps * self.trained().map(|(_, state)| self.update(state, hardware)).sum::<f64>()
    }

    /// The seconds of one optimizer step of a model beside its passes.
    fn update(&self, state: &ModelBytes, hardware: &Hardware) -> f64 {
        let micro_batches = peak_memory::micro_batches(self.config, self.mesh, self.work.lengths) as f64;
        let [weights, gradients, optimizer] =
            [state.bytes.weights, state.bytes.gradients, state.bytes.optimizer].map(|bytes| bytes as f64);
        let added = micro_batches * GRADIENT_BYTES * gradients / 4.0;
        let bytes = added + 3.0 * gradients + 2.0 * (weights + optimizer);
        bytes / hardware.device.memory_copy * hardware.largest_slowdown()
    }

    /// The seconds in which a budget moves chunks, in each phase.
    fn offload(&self, hardware: &Hardware) -> anyhow::Result<[f64; 3]> {
        let moved = self.chunk_traffic()?;
        if moved == ChunkTraffic::default() {
            return Ok([0.0; 3]);
        }
        let tier = hardware.outer_tier()?;
        Ok(moved.map(|moved| moved.read as f64 / tier.read + moved.written as f64 / tier.write))
    }

    /// Whether a step moves chunks under its budget.
    pub(super) fn moves_chunks(&self) -> Result<bool, models::Error> {
        Ok(self.chunk_traffic()? != ChunkTraffic::default())
    }

    /// What a step moves under a budget.
    fn chunk_traffic(&self) -> Result<ChunkTraffic, models::Error> {
        let Some(budget) = self.config.gemini.device_memory else { return Ok(ChunkTraffic::default()) };
        let traffic = |mini_batches: usize| {
            let uses = self.chunk_uses(mini_batches)?;
            Ok::<_, models::Error>(uses.traffic(budget.0 as usize, self.config.gemini.placement))
        };
        let once = traffic(1)?;
        let mini_batches = self.config.ppo.steps_per_iteration() as usize;
        if self.work.lengths.new_tokens == 0 || mini_batches <= 1 {
            return Ok(once);
        }
        // Every further mini-batch moves as much as the second.
        let twice = traffic(2)?;
        let all = |one: usize, two: usize| one + (mini_batches - 1) * two.saturating_sub(one);
        Ok(std::array::from_fn(|phase| {
            let (once, twice) = (once[phase], twice[phase]);
            PhaseTraffic { read: all(once.read, twice.read), written: all(once.written, twice.written) }
        }))
    }

    /// The chunks that each moment of a step needs; for PPO, with `mini_batches` mini-batches.
    pub(super) fn chunk_uses(&self, mini_batches: usize) -> Result<ChunkUses, models::Error> {
        let Self { config, mesh, work: Work { models, numbers, lengths, .. }, state } = *self;
        let numbers = numbers.of(&segments::layout(config, mesh))?;
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
        let trained = models.iter().zip(&*numbers).zip(&pieces).filter(|((model, _), _)| model.is_trained);
        for (model, pieces) in trained {
            if lengths.before_step.is_some() {
                uses.add_forward_pass(pieces);
            }
            let tensors = peak_memory::training_step(config, mesh, model, lengths);
            let steps = if has_rollout { mini_batches } else { 1 };
            (0..steps).for_each(|_| uses.add_training_step(pieces, &tensors));
        }
        Ok(uses)
    }
}

impl<'a> Passes<'a> {
    fn new(run: PlannedRun<'a>, hardware: &'a Hardware, is_exact: bool) -> anyhow::Result<Self> {
        let (layout, numbers) = run.layout()?;
        Ok(Self {
            run,
            hardware,
            layout,
            numbers,
            is_exact,
            inference: 0.0,
            training: StepSeconds::default(),
        })
    }

    /// The passes of a step on rows.
    fn add_supervised(&mut self) -> anyhow::Result<()> {
        let Work { models, lengths, .. } = self.run.work;
        let batch = self.run.config.train.batch_size() as f64;
        for (index, model) in models.iter().enumerate() {
            if !model.is_trained {
                self.score(index, lengths.row, batch)?;
                continue;
            }
            self.train(index, lengths.row, batch)?;
            if let Some(rows) = lengths.before_step {
                self.score(index, rows, batch)?;
            }
        }
        Ok(())
    }

    /// The passes of an iteration on the replies of a rollout.
    fn add_iteration(&mut self) -> anyhow::Result<()> {
        let (config, Work { models, lengths, .. }) = (self.run.config, self.run.work);
        let ppo = &config.ppo;
        let replies = (ppo.rollout_batch_size * ppo.samples_per_prompt) as f64;
        let sequence = lengths.row.continued(lengths.new_tokens as f64);
        let learned_per_prompt = lengths.learned_per_prompt.unwrap_or(ppo.samples_per_prompt);
        let all_epochs = (ppo.rollout_batch_size * learned_per_prompt * ppo.epochs) as f64;
        // Every replica checks one micro-batch of the sampler's log-probabilities.
        let checked = replies.min((self.layout.replicas() * config.train.micro_batch_size) as f64);
        for (index, model) in models.iter().enumerate() {
            let scored = match model.role {
                "policy" if lengths.learned_per_prompt.is_some() => 0.0,
                "policy" if ppo.old_logprobs == OldLogprobs::Sampler => checked,
                // It runs before the gradients of each step.
                "teacher" => all_epochs,
                _ => replies,
            };
            self.score(index, sequence, scored)?;
            if model.is_trained {
                self.train(index, sequence, all_epochs)?;
            }
        }
        let trained = models.iter().position(|model| model.is_trained);
        if let Some((index, ptx)) = trained.zip(lengths.ptx) {
            self.train(index, ptx, all_epochs)?;
        }
        Ok(())
    }

    /// Adds a pass of a model over `count` rows for their output alone.
    fn score(&mut self, index: usize, row: RowTokens, count: f64) -> anyhow::Result<()> {
        if count > 0.0 {
            let batch = self.batch(row, count);
            self.inference += step::inference(&self.numbers[index], batch, &self.layout, self.hardware)?;
        }
        Ok(())
    }

    /// Adds the forward and backward passes of a model over `count` rows, in as many optimizer steps as they
    /// are for.
    fn train(&mut self, index: usize, row: RowTokens, count: f64) -> anyhow::Result<()> {
        let step_rows = peak_memory::step_rows(self.run.config, self.run.work.lengths) as f64;
        let steps = (count / step_rows).max(1.0);
        let batch = self.batch(row, count / steps);
        let training = if self.is_exact { step::training } else { step::training_at_least };
        let step = training(&self.numbers[index], batch, &self.layout, self.hardware)?;
        self.training.add(&step, steps);
        Ok(())
    }

    fn batch(&self, row: RowTokens, count: f64) -> Batch {
        Batch { row, count, micro_batch_size: self.run.config.train.micro_batch_size }
    }

    /// The seconds in which the first model, the policy, replies to the prompts.
    fn rollout(&self) -> anyhow::Result<f64> {
        let (config, Work { models, lengths, .. }) = (self.run.config, self.run.work);
        let rollout = Rollout {
            prompt: lengths.row,
            replies: (config.ppo.rollout_batch_size * config.ppo.samples_per_prompt) as f64,
            concurrent: config.ppo.rollout_micro_batch_size.unwrap_or(usize::MAX),
            new_tokens: lengths.new_tokens as f64,
            vocab_size: models[0].config.architecture().vocab_size as f64,
        };
        let seconds = rollout::seconds(&self.numbers[0], rollout, &self.layout, self.hardware)?;
        let is_copied = peak_memory::decodes_with_a_copy(config);
        let weights = self.run.state[0].bytes.weights as f64;
        let copy = if is_copied { 2.0 * weights / self.hardware.device.memory_copy } else { 0.0 };
        Ok(copy + seconds)
    }
}

#[cfg(test)]
mod tests {
    use gemini::StateBytes;
    use gemini::config::memory::ByteSize;
    use models::config::Config;
    use models::decoder::HeadKind;
    use tch::Kind;

    use super::*;
    use crate::config::RunConfig;
    use crate::launch;
    use crate::stage::lengths::SequenceLengths;
    use crate::stage::segments::Numbers;

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
        let numbers = Numbers::new(config, &models);
        let work = Work {
            models: &models,
            numbers: &numbers,
            lengths: &lengths,
            program_bytes: 0,
            machine_bytes: None,
        };
        let run = PlannedRun { config, mesh: &mesh, work, state: &state };
        run.step_time(&planner::hardware::round_numbers()).unwrap()
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
        // Matrices of 8 (2 * 8 + 2 * 8) + 3 * 8 * 16 = 640 parameters. Of these, 8 * 8 + 3 * 8 * 16 = 448
        // only see the 4 positions with a loss: the others of 10 tokens count 0.3, so 2 * 640 * 5.8 = 7424
        // operations, 2 * 8 * 50 = 800 of attention, and 2 * 32 * 8 * 4 = 2048 of the head. A block keeps 2
        // (8 + 1) + 2 * 8 + 4 * 8 + 2 + 3 * 16 = 116 numbers of a token.
        let mut config = two_rows();
        let time = predict(&config, 1, 0);
        let parts = |passes: f64| {
            [passes * 7424.0 + 3.0 * 2048.0, passes * 800.0, (2.0 * passes - 1.0) * 116.0 * 4.0 * 5.8]
        };
        let seconds = |[matrices, attention, activations]: [f64; 3]| {
            matrices / 1e11 + attention / 2e10 + activations / 5e9
        };
        same(time.computation, seconds(parts(3.0)));
        // 896 gradients of two micro-batches.
        same(time.update, (2.0 * 16.0 * 896.0 + 3.0 * 3584.0 + 2.0 * (3584.0 + 7168.0)) / 1e10);
        assert_eq!((time.rollout, time.offload), (0.0, 0.0));
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
        // An all-reduce of 920 gradients in fp32 (of three norms, too) over two ranks: two messages, and each
        // rank sends as many bytes as it has.
        same(pair.communication, 2e-6 + 3680.0 / 1e9);
        assert_eq!((alone.communication, alone.waiting), (0.0, 0.0));

        // The block and the head on a rank each: between its last forward and its first backward pass, the
        // rank with the block waits for two messages of 5 * 8 numbers and the loss, but for a forward pass.
        config.parallel.pipeline.size = 2;
        let forward = 6400.0 / 1e11 + 400.0 / 2e10 + 2.0 * 116.0 * 4.0 * 5.0 / 5e9;
        let (message, loss) = (1e-6 + 160.0 / 1e9, 3.0 * 1024.0 / 1e11);
        same(predict(&config, 2, 0).waiting, 2.0 * message + loss - forward);
    }

    #[test]
    fn the_disk_counts_as_far_as_it_is_not_hidden() {
        // The optimizer state is read at 2 GB/s and written at 1 GB/s, nothing of it meanwhile.
        let mut config = two_rows();
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        config.gemini.placement = PlacementPolicy::Static;
        let time = predict(&config, 1, 0);
        same(time.offload, 7168.0 / 2e9 + 7168.0 / 1e9);
        same(time.seconds, time.computation + time.update + time.offload);

        // Nothing fits, and everything that is moved is moved beside the computation.
        config.gemini.placement = PlacementPolicy::Auto;
        config.gemini.device_memory = Some(ByteSize(8));
        let time = predict(&config, 1, 0);
        assert!(time.offload > 7168.0 / 2e9 + 7168.0 / 1e9, "{time:?}");
        same(time.seconds, time.offload);
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        assert_eq!(predict(&config, 1, 0).offload, 0.0);
    }

    #[test]
    fn a_rollout_by_hand() {
        // Four replies of 3 tokens, two at a time.
        let mut config = two_rows();
        config.ppo.rollout_batch_size = 4;
        config.ppo.mini_batch_size = 4;
        config.ppo.rollout_micro_batch_size = Some(2);
        let time = predict(&config, 1, 3);
        // Of 20 tokens 4 have logits, the last of each prompt: 2 * 640 * (20 - 0.7 * 16) and 2 * 8 * 100
        // operations.
        let activations = 2.0 * 116.0 * 4.0 * 8.8 / 5e9;
        let prefill = (1280.0 * 8.8 + 2.0 * 256.0 * 4.0) / 1e11 + 1600.0 / 2e10 + activations;
        // A token of two replies: 920 weights and 6.5 tokens of the cache, of 2 * 8 * 4 bytes, are read in
        // more time than 2 * 640 * 2 + 2 * 256 * 2 operations take.
        let token = (3680.0 + 2.0 * 6.5 * 64.0) / 2e10 + 6.0 * 4.0 * 2.0 * 32.0 / 1e10;
        same(time.rollout, prefill + 2.0 * 3.0 * token);

        // Weights that may leave memory are copied: read and written once.
        config.gemini.device_memory = Some(ByteSize(1 << 20));
        same(predict(&config, 1, 3).rollout, 2.0 * 3584.0 / 1e10 + prefill + 2.0 * 3.0 * token);

        // Scoring and four epochs over 4 sequences of 8 tokens, with 3 logits each: 32 - 0.7 * 20 = 18.
        let (matrices, head) = (2.0 * 640.0 * 18.0, 2.0 * 256.0 * 12.0);
        let (attention, activations) = (2.0 * 8.0 * 4.0 * 64.0 / 2e10, 116.0 * 4.0 * 18.0 / 5e9);
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
