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

use crate::Error;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::pass::{self, PassSeconds};
use crate::segment::{Model, RowTokens, Segment};
use crate::timeline::{self, Timeline};
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
    let passes = StepPasses::new(model, batch, layout, hardware)?;
    let step = passes.without_waiting()?;
    let waiting = (passes.timeline()?.seconds - step.forward - step.backward).max(0.0);
    Ok(StepSeconds { waiting, ..step })
}

/// The same without running the schedule of the pipeline, in much less time: never more than [`training`].
pub fn training_at_least(
    model: &Model,
    batch: Batch,
    layout: &Layout,
    hardware: &Hardware,
) -> Result<StepSeconds, Error> {
    let passes = StepPasses::new(model, batch, layout, hardware)?;
    let step = passes.without_waiting()?;
    let waiting = (passes.least_seconds()? - step.forward - step.backward).max(0.0);
    Ok(StepSeconds { waiting, ..step })
}

/// The passes of a step on a simulated clock, with the seconds of what it exchanges after them.
pub fn timeline(
    model: &Model,
    batch: Batch,
    layout: &Layout,
    hardware: &Hardware,
) -> Result<(Timeline, f64), Error> {
    let passes = StepPasses::new(model, batch, layout, hardware)?;
    Ok((passes.timeline()?, passes.without_waiting()?.exchange))
}

/// What each rank of the pipeline exchanges in a step whose micro-batches are equal.
pub fn exchanges(model: &Model, batch: Batch, layout: &Layout) -> Vec<Vec<Exchange>> {
    let micro_batches = MicroBatches::of(batch.count, batch.micro_batch_size, layout.row_ranks());
    let count = micro_batches.count as f64;
    let traffic = Traffic { model, layout, rows: batch.row.times(micro_batches.rows) };
    let stages = stages(model, layout);
    let ranks = layout.size(Axis::Pipeline);
    let rank_of = |stage: usize| layout.schedule.rank_of_stage(stage, ranks);
    let of_rank = |(rank, own): (usize, Vec<usize>)| {
        let held = segments_of(&own, &stages);
        let mut exchanges = Vec::new();
        for segment in &held {
            let passes = traffic.forward(segment).into_iter().chain(traffic.backward(segment));
            exchanges.extend(passes.map(|exchange| exchange.times(count)));
        }
        // Hidden states go to the next stage, their gradients to the one before.
        let neighbours = |&stage: &usize| [stage.checked_sub(1), Some(stage + 1)].into_iter().flatten();
        let is_elsewhere = |&stage: &usize| stage < stages.len() && rank_of(stage) != rank;
        let sent = own.iter().flat_map(neighbours).filter(is_elsewhere).count();
        exchanges.push(traffic.message().times(count * sent as f64));
        exchanges.extend(traffic::step(model, &held, layout));
        exchanges.retain(|exchange| exchange.bytes_sent() > 0.0);
        exchanges
    };
    stages_of_ranks(layout, stages.len()).into_iter().enumerate().map(of_rank).collect()
}

/// The passes of a step through the stages of a pipeline.
struct StepPasses<'a> {
    traffic: Traffic<'a>,
    hardware: &'a Hardware,
    micro_batches: usize,
    stages: Vec<&'a [Segment]>,
    /// The passes of a micro-batch, by stage.
    passes: Vec<StagePasses>,
}

impl<'a> StepPasses<'a> {
    fn new(
        model: &'a Model,
        batch: Batch,
        layout: &'a Layout,
        hardware: &'a Hardware,
    ) -> Result<Self, Error> {
        let micro_batches = MicroBatches::of(batch.count, batch.micro_batch_size, layout.row_ranks());
        let rows = batch.row.times(micro_batches.rows);
        let traffic = Traffic { model, layout, rows };
        let stages = stages(model, layout);
        let passes = stages.iter().map(|segments| StagePasses::of(segments, rows, traffic, hardware));
        let passes = passes.collect::<Result<_, _>>()?;
        Ok(Self { traffic, hardware, micro_batches: micro_batches.count, stages, passes })
    }

    /// The schedule of the pipeline on a simulated clock, in the replica that takes longest.
    fn timeline(&self) -> Result<Timeline, Error> {
        let layout = self.traffic.layout;
        let schedule = layout.pipeline_schedule(self.micro_batches);
        let message = self.traffic.message().seconds(self.hardware)?;
        let rank_of = |stage| schedule.kind.rank_of_stage(stage, schedule.num_ranks);
        let simulate = |slowdowns: Vec<f64>| {
            let passes = self.passes.iter().enumerate();
            let seconds: Vec<PassSeconds> =
                passes.map(|(stage, passes)| passes.slowed(slowdowns[rank_of(stage)])).collect();
            timeline::simulate(&schedule, &seconds, message)
        };
        let replicas = self.hardware.slowdowns(layout)?.into_iter().map(simulate);
        let slowest = replicas.max_by(|left, right| left.seconds.total_cmp(&right.seconds));
        Ok(slowest.expect("a run has a replica"))
    }

    /// What the rank does that computes longest, and what it exchanges once in the step.
    fn without_waiting(&self) -> Result<StepSeconds, Error> {
        let layout = self.traffic.layout;
        let own = self.stages_of_busiest_rank();
        let count = self.micro_batches as f64;
        let mut step = StepSeconds::default();
        for &stage in &own {
            let StagePasses { seconds, exchanges, .. } = &self.passes[stage];
            step.forward += count * seconds.forward;
            step.backward += count * (seconds.input + seconds.weight);
            step.add_exchanges(exchanges, count);
        }

        // The gradients of a rank are those of its stages.
        let held = segments_of(&own, &self.stages);
        let once = exchange_seconds(traffic::step(self.traffic.model, &held, layout), self.hardware)?;
        step.add_exchanges(&once, 1.0);

        let is_beside = self.hardware.device.threads.is_none();
        let hidden = if is_beside { step.backward / count } else { 0.0 };
        step.exchange = (once.values().sum::<f64>() - hidden).max(0.0);
        Ok(step)
    }

    /// The seconds of the schedule if each rank only waits until its first micro-batch has arrived, and,
    /// where backward passes are not split, until its last one has gone back through the stages before it.
    fn least_seconds(&self) -> Result<f64, Error> {
        let layout = self.traffic.layout;
        let own = stages_of_ranks(layout, self.stages.len());
        let of_replica = |slowdowns: Vec<f64>| {
            let mut passes = vec![PassSeconds::default(); self.passes.len()];
            for (rank, &slowdown) in slowdowns.iter().enumerate() {
                own[rank].iter().for_each(|&stage| passes[stage] = self.passes[stage].slowed(slowdown));
            }
            least_of_replica(&passes, &own, layout.schedule.splits_backward(), self.micro_batches)
        };
        Ok(self.hardware.slowdowns(layout)?.into_iter().map(of_replica).fold(0.0, f64::max))
    }

    fn stages_of_busiest_rank(&self) -> Vec<usize> {
        let all = stages_of_ranks(self.traffic.layout, self.stages.len()).into_iter();
        all.max_by(|left, right| self.busy(left).total_cmp(&self.busy(right))).unwrap_or_default()
    }

    /// The seconds of a micro-batch in some stages.
    fn busy(&self, stages: &[usize]) -> f64 {
        stages.iter().map(|&stage| self.passes[stage].seconds.total()).sum()
    }
}

/// The passes of a micro-batch through a stage.
struct StagePasses {
    /// What a rank computes, and what it exchanges meanwhile.
    seconds: PassSeconds,
    /// The part of these seconds in which it exchanges.
    exchanged: PassSeconds,
    exchanges: ByPurpose,
}

impl StagePasses {
    fn of(
        segments: &[Segment],
        rows: RowTokens,
        traffic: Traffic<'_>,
        hardware: &Hardware,
    ) -> Result<Self, Error> {
        let (mut seconds, mut exchanged) = (PassSeconds::default(), PassSeconds::default());
        let mut exchanges = ByPurpose::new();
        // The blocks of a model are mostly equal.
        for equal in segments.chunk_by(PartialEq::eq) {
            let (segment, count) = (&equal[0], equal.len() as f64);
            let machine = (traffic.layout, &hardware.device, traffic.model.dtype);
            let computed = pass::training(segment, rows, machine);
            let forward = exchange_seconds(traffic.forward(segment), hardware)?;
            let backward = exchange_seconds(traffic.backward(segment), hardware)?;
            exchanged.forward += count * forward.values().sum::<f64>();
            exchanged.input += count * backward.values().sum::<f64>();
            seconds.forward += count * computed.forward;
            seconds.input += count * computed.input;
            seconds.weight += count * computed.weight;
            forward
                .into_iter()
                .chain(backward)
                .for_each(|(purpose, seconds)| *exchanges.entry(purpose).or_default() += count * seconds);
        }
        Ok(Self { seconds: seconds + exchanged, exchanged, exchanges })
    }

    /// The same on a rank that takes `slowdown` times as long to compute.
    fn slowed(&self, slowdown: f64) -> PassSeconds {
        self.seconds * slowdown + self.exchanged * (1.0 - slowdown)
    }
}

/// The seconds of a pass over a batch for its output alone.
pub fn inference(model: &Model, batch: Batch, layout: &Layout, hardware: &Hardware) -> Result<f64, Error> {
    let micro_batches = MicroBatches::of(batch.count, batch.micro_batch_size, layout.replicas());
    let rows = batch.row.times(micro_batches.rows);
    let traffic = Traffic { model, layout, rows };
    let of_stage = |segments: &&[Segment]| -> Result<f64, Error> {
        let mut seconds = 0.0;
        for segment in *segments {
            let computed = pass::inference(segment, rows, (layout, &hardware.device, model.dtype));
            seconds += computed * hardware.largest_slowdown();
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

/// The least seconds of a replica whose stages take these seconds, by the rank that has most to do.
fn least_of_replica(
    passes: &[PassSeconds],
    stages_of_ranks: &[Vec<usize>],
    splits_backward: bool,
    micro_batches: usize,
) -> f64 {
    let before =
        |stage: &PassSeconds| stage.forward + if splits_backward { 0.0 } else { stage.input + stage.weight };
    let mut arrival = vec![0.0; passes.len()];
    for stage in 1..passes.len() {
        arrival[stage] = arrival[stage - 1] + before(&passes[stage - 1]);
    }
    let of_rank = |own: &Vec<usize>| {
        let arrival = own.iter().map(|&stage| arrival[stage]).fold(f64::INFINITY, f64::min);
        arrival + micro_batches as f64 * own.iter().map(|&stage| passes[stage].total()).sum::<f64>()
    };
    stages_of_ranks.iter().map(of_rank).fold(0.0, f64::max)
}

/// The stages of each rank, in a pipeline with `num_stages` stages.
fn stages_of_ranks(layout: &Layout, num_stages: usize) -> Vec<Vec<usize>> {
    let ranks = layout.size(Axis::Pipeline);
    let mut own: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    (0..num_stages).for_each(|stage| own[layout.schedule.rank_of_stage(stage, ranks)].push(stage));
    own
}

/// The segments of some stages.
fn segments_of(own: &[usize], stages: &[&[Segment]]) -> Vec<Segment> {
    own.iter().flat_map(|&stage| stages[stage].iter().copied()).collect()
}

/// The segments of each stage of the pipeline.
pub(crate) fn stages<'a>(model: &'a Model, layout: &Layout) -> Vec<&'a [Segment]> {
    let ranks = layout.size(Axis::Pipeline);
    let count = if ranks == 1 { 1 } else { ranks * layout.schedule.virtual_stages(layout.chunks) };
    model.stages(count)
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
    use crate::hardware::{Dtype, Link, Straggler, round_numbers};
    use crate::layout::{Divided, SequenceMode};
    use crate::segment::{Part, Partitions};

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
        Model {
            segments,
            hidden_bytes: 100.0,
            dtype: Dtype::Float32,
            vocabulary: None,
            partitions: Partitions::default(),
            tied: Divided::default(),
        }
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
        hardware.links[0] = Link { ranks: 2, latency: 1e-9, bandwidth: 1e15 };
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
    fn a_step_waits_for_its_slowest_rank() {
        let hardware = |stragglers: &[(usize, f64)]| {
            let stragglers = stragglers.iter().map(|&(rank, slowdown)| Straggler { rank, slowdown });
            let links = vec![Link { ranks: 8, latency: 1e-9, bandwidth: 1e15 }];
            Hardware { stragglers: stragglers.collect(), links, ..round_numbers() }
        };
        let step = |layout: &Layout, stragglers: &[(usize, f64)]| {
            training(&model(), BATCH, layout, &hardware(stragglers)).unwrap()
        };
        // Two data-parallel ranks with half of the 19.2 s each, one of which takes twice as long.
        let data = layout(&[(Axis::Data, 2)]);
        let slow = step(&data, &[(1, 2.0)]);
        assert!((slow.total() - 19.2).abs() < 1e-6 && (slow.waiting - 9.6).abs() < 1e-6, "{slow:?}");
        // The second of two stages: its eight micro-batches of 1.2 s take twice as long, between the forward
        // pass of the first and the backward pass of the last in the first stage.
        let pipeline = layout(&[(Axis::Pipeline, 2)]);
        let slow = step(&pipeline, &[(1, 2.0)]);
        assert!((slow.total() - (0.4 + 8.0 * 2.4 + 0.8)).abs() < 1e-6, "{slow:?}");
        // Replicas do not wait for one another before their gradients: the slowest counts.
        let both = layout(&[(Axis::Pipeline, 2), (Axis::Data, 2)]);
        let [one, two] = [&[(2, 2.0)][..], &[(2, 2.0), (1, 1.5)]].map(|slow| step(&both, slow).total());
        assert!((one - two).abs() < 1e-9 && (one - (0.4 + 4.0 * 2.4 + 0.8)).abs() < 1e-6, "{one} {two}");

        let error = training(&model(), BATCH, &data, &hardware(&[(2, 2.0)])).unwrap_err().to_string();
        assert!(error.contains("is 2") && error.contains("--nproc"), "{error}");
    }

    #[test]
    fn a_bound_is_never_above_the_schedule_and_not_far_below() {
        use ScheduleKind::{GPipe, Interleaved, OneForwardOneBackward, ZeroBubbleH1, ZeroBubbleV};
        let mut model = model();
        let block = model.segments[1];
        (0..6).for_each(|_| model.segments.insert(1, block));
        let mut hardware = round_numbers();
        hardware.links[1] = Link { ranks: 8, latency: 1e-9, bandwidth: 1e15 };
        for schedule in [GPipe, OneForwardOneBackward, Interleaved, ZeroBubbleH1, ZeroBubbleV] {
            for ranks in [1, 2, 4] {
                let layout = Layout { schedule, chunks: 2, ..layout(&[(Axis::Pipeline, ranks)]) };
                let batch = Batch { micro_batch_size: 1, ..BATCH };
                for slow in [None, Some(Straggler { rank: ranks - 1, slowdown: 2.0 })] {
                    let hardware = Hardware { stragglers: slow.into_iter().collect(), ..hardware.clone() };
                    let exact = training(&model, batch, &layout, &hardware).unwrap().total();
                    let bound = training_at_least(&model, batch, &layout, &hardware).unwrap().total();
                    assert!(bound <= exact * (1.0 + 1e-9), "{schedule:?} on {ranks}: {bound} above {exact}");
                    assert!(bound > 0.7 * exact, "{schedule:?} on {ranks}: {bound} far below {exact}");
                }
            }
        }
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
