//! The seconds of an optimizer step of one model, and of a pass without gradients.
//!
//! ```text
//!   micro-batches of a rank | stages of its pipeline | schedule   ->   forward, backward, waiting
//!   what a micro-batch and a step exchange | links                ->   seconds by purpose
//! ```
//! The rows of a step are divided as `gemini::Engine` divides them: into micro-batches of one size, and those
//! round-robin over the ranks. Exchanges inside of a layer delay the layer, and so does the message to the
//! next stage of a pipeline. Gradients and weights are exchanged while a GPU computes, so they count as far
//! as they take longer than the backward pass; on processors, which move bytes with the cores that compute,
//! they count in full.

use std::collections::BTreeMap;

use parallel::Axis;
use parallel::pipeline::{Schedule, partition_balanced};

use crate::Error;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::pass::{self, PassSeconds};
use crate::segment::{Model, RowTokens, Segment};
use crate::timeline;
use crate::traffic::{self, Exchange, Purpose, Traffic};

/// The rows that run through a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// The mean row.
    pub row: RowTokens,
    /// The number of rows, on all ranks.
    pub count: f64,
    /// The most rows of a micro-batch.
    pub micro_batch_size: usize,
}

/// What the rank that needs most time spends it on, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepSeconds {
    /// Forward passes, with what they exchange.
    pub forward: f64,
    /// Backward passes, with what they exchange.
    pub backward: f64,
    /// Waiting for the other stages of a pipeline.
    pub waiting: f64,
    /// What is exchanged once in a step, as far as nothing is computed meanwhile.
    pub exchange: f64,
    /// The seconds of all that is exchanged, by purpose. They are a part of the others.
    pub by_purpose: ByPurpose,
}

/// Seconds of exchanges by what they are for.
pub type ByPurpose = BTreeMap<Purpose, f64>;

/// The micro-batches of a step on the rank that has most of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroBatches {
    /// Their number.
    pub count: usize,
    /// The mean number of rows of each.
    pub rows: f64,
}

impl MicroBatches {
    /// The micro-batches of `rows` rows that `ranks` ranks divide.
    pub fn of(rows: f64, micro_batch_size: usize, ranks: usize) -> Self {
        let size = (micro_batch_size as f64).min((rows / ranks as f64).ceil()).max(1.0);
        let all = (rows / size).ceil().max(1.0);
        Self { count: (all / ranks as f64).ceil() as usize, rows: rows / all }
    }
}

impl StepSeconds {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.waiting + self.exchange
    }

    /// Adds so many steps.
    pub fn add(&mut self, step: &Self, count: f64) {
        self.forward += count * step.forward;
        self.backward += count * step.backward;
        self.waiting += count * step.waiting;
        self.exchange += count * step.exchange;
        self.add_exchanges(&step.by_purpose, count);
    }

    fn add_exchanges(&mut self, seconds: &ByPurpose, count: f64) {
        for (&purpose, seconds) in seconds {
            *self.by_purpose.entry(purpose).or_default() += count * seconds;
        }
    }
}

/// The seconds of the forward and backward passes of a step, and of what is exchanged for it. The update of
/// the weights is not among them.
pub fn training(
    model: &Model,
    batch: Batch,
    layout: &Layout,
    hardware: &Hardware,
) -> Result<StepSeconds, Error> {
    let micro_batches = MicroBatches::of(batch.count, batch.micro_batch_size, layout.row_ranks());
    let rows = batch.row.times(micro_batches.rows);
    let traffic = Traffic { model, layout, tokens: rows.tokens };

    let stages = stages(model, layout);
    let mut passes = Vec::new();
    for &segments in &stages {
        passes.push(StagePasses::of(segments, rows, traffic, hardware)?);
    }
    let seconds: Vec<PassSeconds> = passes.iter().map(|stage| stage.seconds).collect();
    let schedule =
        Schedule::new(layout.schedule, layout.size(Axis::Pipeline), layout.chunks, micro_batches.count);
    let timeline = timeline::simulate(&schedule, &seconds, traffic.message().seconds(hardware)?);

    // The rank that computes longest, and its stages.
    let longest = |&left: &usize, &right: &usize| timeline.busy[left].total_cmp(&timeline.busy[right]);
    let busiest = (0..schedule.num_ranks).max_by(longest).expect("a pipeline has a rank");
    let is_own = |&stage: &usize| layout.schedule.rank_of_stage(stage, schedule.num_ranks) == busiest;
    let own: Vec<usize> = (0..stages.len()).filter(is_own).collect();
    let count = micro_batches.count as f64;
    let mut step = StepSeconds::default();
    for &stage in &own {
        let PassSeconds { forward, input, weight } = seconds[stage];
        step.forward += count * forward;
        step.backward += count * (input + weight);
        step.add_exchanges(&passes[stage].exchanges, count);
    }
    // Until the last rank has ended.
    step.waiting = (timeline.seconds - step.forward - step.backward).max(0.0);

    // The gradients of a rank are those of its stages.
    let held: Vec<Segment> = own.iter().flat_map(|&stage| stages[stage].iter().copied()).collect();
    let once = exchange_seconds(traffic::step(&held, model.dtype, layout), hardware)?;
    step.add_exchanges(&once, 1.0);
    let is_beside = hardware.device.threads.is_none();
    let hidden = if is_beside { step.backward / count } else { 0.0 };
    step.exchange = (once.values().sum::<f64>() - hidden).max(0.0);
    Ok(step)
}

/// The passes of a micro-batch through a stage, with what it exchanges in them.
struct StagePasses {
    seconds: PassSeconds,
    exchanges: ByPurpose,
}

impl StagePasses {
    fn of(
        segments: &[Segment],
        rows: RowTokens,
        traffic: Traffic<'_>,
        hardware: &Hardware,
    ) -> Result<Self, Error> {
        let (mut seconds, mut exchanges) = (PassSeconds::default(), ByPurpose::new());
        for segment in segments {
            let machine = (traffic.layout, &hardware.device, traffic.model.dtype);
            let computed = pass::training(segment, rows, machine);
            let forward = exchange_seconds(traffic.forward(segment), hardware)?;
            let backward = exchange_seconds(traffic.backward(segment), hardware)?;
            seconds.forward += computed.forward + forward.values().sum::<f64>();
            seconds.input += computed.input + backward.values().sum::<f64>();
            seconds.weight += computed.weight;
            forward
                .into_iter()
                .chain(backward)
                .for_each(|(purpose, seconds)| *exchanges.entry(purpose).or_default() += seconds);
        }
        Ok(Self { seconds, exchanges })
    }
}

/// The seconds of a pass over a batch for its output alone.
pub fn inference(model: &Model, batch: Batch, layout: &Layout, hardware: &Hardware) -> Result<f64, Error> {
    let micro_batches = MicroBatches::of(batch.count, batch.micro_batch_size, layout.replicas());
    let rows = batch.row.times(micro_batches.rows);
    let traffic = Traffic { model, layout, tokens: rows.tokens };
    let of_stage = |segments: &&[Segment]| -> Result<f64, Error> {
        let mut seconds = 0.0;
        for segment in *segments {
            seconds += pass::inference(segment, rows, (layout, &hardware.device, model.dtype));
            seconds += exchange_seconds(traffic.inference(segment), hardware)?.values().sum::<f64>();
        }
        Ok(seconds)
    };
    let stages = stages(model, layout).iter().map(of_stage).collect::<Result<Vec<f64>, _>>()?;
    // Micro-batches follow one another through the stages, as fast as the slowest.
    let slowest = stages.iter().copied().fold(0.0, f64::max);
    let message = (stages.len() - 1) as f64 * traffic.message().seconds(hardware)?;
    Ok(stages.iter().sum::<f64>() + message + (micro_batches.count - 1) as f64 * slowest)
}

/// The segments of each stage of the pipeline.
pub(crate) fn stages<'a>(model: &'a Model, layout: &Layout) -> Vec<&'a [Segment]> {
    let ranks = layout.size(Axis::Pipeline);
    let count = if ranks == 1 { 1 } else { ranks * layout.schedule.virtual_stages(layout.chunks) };
    let costs: Vec<f64> = model.segments.iter().map(|segment| segment.stage_cost).collect();
    partition_balanced(&costs, count).into_iter().map(|range| &model.segments[range]).collect()
}

/// The seconds of some exchanges.
pub(crate) fn exchange_seconds(exchanges: Vec<Exchange>, hardware: &Hardware) -> Result<ByPurpose, Error> {
    let mut seconds = ByPurpose::new();
    for exchange in exchanges {
        *seconds.entry(exchange.purpose).or_default() += exchange.seconds(hardware)?;
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use parallel::Mesh;
    use parallel::pipeline::ScheduleKind;

    use super::*;
    use crate::hardware::{Dtype, round_numbers};
    use crate::layout::{Divided, SequenceMode};
    use crate::segment::Part;

    /// An embedding, two blocks and a head with round numbers: 1e9 operations of a token in each block, of
    /// which the tensor ranks divide all, and 2e9 in the head.
    fn model() -> Model {
        let segment = |part, operations: f64, trained: f64| Segment {
            trained: Divided::tensor(trained),
            weight_bytes: Divided::tensor(4.0 * trained),
            operations: Divided::tensor(operations),
            trained_operations: Divided::tensor(operations),
            stage_cost: operations,
            ..Segment::empty(part, 128.0)
        };
        let block =
            segment(Part::Block { query_bytes: 100.0, key_bytes: 100.0, routed_bytes: 0.0 }, 1e9, 1e6);
        let segments = vec![segment(Part::Embedding, 0.0, 1e6), block, block, segment(Part::Head, 2e9, 1e6)];
        Model { segments, hidden_bytes: 100.0, dtype: Dtype::Float32, vocabulary: None }
    }

    /// 16 rows of 10 tokens, all of them with a loss, in micro-batches of 2.
    const BATCH: Batch = Batch {
        row: RowTokens { tokens: 10.0, squares: 100.0, predicted: 10.0 },
        count: 16.0,
        micro_batch_size: 2,
    };

    fn layout(axes: &[(Axis, usize)]) -> Layout {
        let ranks = axes.iter().map(|(_, size)| size).product();
        Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), ..Layout::single() }
    }

    fn train(layout: &Layout) -> StepSeconds {
        training(&model(), BATCH, layout, &round_numbers()).unwrap()
    }

    #[track_caller]
    fn same(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-9 * wanted.abs(), "{found:e}, wanted {wanted:e}");
    }

    #[test]
    fn one_rank_by_hand() {
        // 160 tokens with 2e9 operations in blocks: 3.2 s forward, twice that backward, and three passes over
        // the head of 3.2 s each.
        let step = train(&layout(&[]));
        same(step.forward, 3.2);
        same(step.backward, 6.4 + 9.6);
        assert!(step.waiting < 1e-9, "{step:?}");
        assert_eq!((step.exchange, step.by_purpose.values().sum::<f64>()), (0.0, 0.0));
        // Frozen weights have no gradients: a pass over the blocks less, and one over the head.
        let mut frozen = model();
        frozen.segments.iter_mut().for_each(|segment| segment.trained_operations = Divided::default());
        let step_of_inputs = training(&frozen, BATCH, &layout(&[]), &round_numbers()).unwrap();
        same(step_of_inputs.backward, step.backward - 6.4);
        let recomputed = train(&Layout { recomputes: true, ..layout(&[]) });
        same(recomputed.backward, step.backward + step.forward);
        same(inference(&model(), BATCH, &layout(&[]), &round_numbers()).unwrap(), 3.2 + 3.2);
    }

    #[test]
    fn data_parallel_ranks_divide_the_rows_and_add_up_gradients() {
        let step = train(&layout(&[(Axis::Data, 2)]));
        same(step.forward, 1.6);
        same(step.backward, 8.0);
        // An all-reduce of 4e6 gradients in fp32 over two ranks: two messages, and 1.6e7 bytes at 1 GB/s.
        same(step.exchange, 2e-6 + 0.016);
        assert_eq!(step.by_purpose[&Purpose::Gradients], step.exchange);
        // A GPU computes meanwhile.
        let mut gpu = round_numbers();
        gpu.device.threads = None;
        assert_eq!(training(&model(), BATCH, &layout(&[(Axis::Data, 2)]), &gpu).unwrap().exchange, 0.0);
        // Ranks with different experts divide the rows as well: what they do not divide, they do not do
        // faster.
        same(train(&layout(&[(Axis::Expert, 2)])).forward, 1.6);
    }

    #[test]
    fn tensor_ranks_divide_the_products_and_wait_for_their_sums() {
        let step = train(&layout(&[(Axis::Tensor, 2)]));
        // Eight micro-batches of 20 tokens: five all-reduces forward and five backward of 2000 bytes, half of
        // which twice over two ranks, and two messages each.
        let reduce = 2e-6 + 2000.0 / 1e9;
        same(step.forward, 1.6 + 8.0 * 5.0 * reduce);
        same(step.backward, 8.0 + 8.0 * 5.0 * reduce);
        same(step.by_purpose[&Purpose::Tensor], 80.0 * reduce);
        // Megatron's mode sends the same bytes in as many messages.
        let megatron = Layout { sequence: SequenceMode::Megatron, ..layout(&[(Axis::Tensor, 2)]) };
        same(train(&megatron).total(), step.total());
    }

    #[test]
    fn a_pipeline_waits_at_its_ends() {
        // The stages are the embedding with two blocks, and the head: 0.4 + 0.8 s and 1.2 s a micro-batch.
        // Under 1F1B the second rank begins 0.4 s late, and the first ends 0.8 s after it.
        let mut hardware = round_numbers();
        hardware.links[0] = crate::hardware::Link { ranks: 2, latency: 1e-9, bandwidth: 1e15 };
        let step = training(&model(), BATCH, &layout(&[(Axis::Pipeline, 2)]), &hardware).unwrap();
        assert!((step.total() - (8.0 * 1.2 + 0.4 + 0.8)).abs() < 1e-6, "{step:?}");
        assert!((step.waiting - 1.2).abs() < 1e-6, "{step:?}");
        // GPipe computes no loss before the last forward pass has ended.
        let gpipe = Layout { schedule: ScheduleKind::GPipe, ..layout(&[(Axis::Pipeline, 2)]) };
        let gpipe = training(&model(), BATCH, &gpipe, &hardware).unwrap();
        assert!((gpipe.total() - (8.0 * 0.4 + 8.0 * 1.2 + 0.8)).abs() < 1e-6, "{gpipe:?}");
        // Without gradients, 0.4 s in each stage.
        let passed = inference(&model(), BATCH, &layout(&[(Axis::Pipeline, 2)]), &hardware).unwrap();
        assert!((passed - 9.0 * 0.4).abs() < 1e-6, "{passed}");
    }

    #[test]
    fn micro_batches_are_those_of_the_engine() {
        let of = |rows, size, ranks| {
            let MicroBatches { count, rows } = MicroBatches::of(rows, size, ranks);
            (count, rows)
        };
        assert_eq!(of(16.0, 2, 1), (8, 2.0));
        // Three micro-batches of ten rows; two ranks have two and one of them.
        assert_eq!(of(10.0, 4, 2), (2, 10.0 / 3.0));
        // Fewer micro-batches than ranks become smaller.
        assert_eq!(of(8.0, 8, 4), (1, 2.0));
        assert_eq!(of(1.0, 8, 4), (1, 1.0));
    }
}
