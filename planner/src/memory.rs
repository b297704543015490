//! The bytes of the tensors of a training step at their peak, on the rank of a pipeline that needs most.
//!
//! ```text
//!   kept, of every micro-batch in flight | the larger of
//!     hidden states, and what each block         a block in its backward pass
//!     keeps; recomputed: hidden states alone      the head with its loss: a chunk of logits, gradients
//! ```
//! The simulated schedule says how many micro-batches are in flight. Without a pipeline, all of them are
//! where they run through a segment before the next, as with gradients that ZeRO divides. (Korthikanti et al.
//! 2022, arXiv 2205.05198, has what a block keeps; `models::activations` what ours keep.)

use parallel::Axis;
use parallel::pipeline::ScheduleKind;
use parallel::pipeline::schedule::Costs;

use crate::hardware::Dtype;
use crate::layout::Layout;
use crate::segment::{Model, Part, Segment, Vocabulary};
use crate::step::stages;

/// What a training step runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepBatch {
    /// The tokens of the largest micro-batch, on all sequence ranks together.
    pub tokens: f64,
    /// The micro-batches of a rank.
    pub micro_batches: usize,
    /// Whether sequences have different lengths.
    pub is_padded: bool,
    /// Whether all micro-batches run through a segment before the next. In a pipeline they never do.
    pub is_segment_major: bool,
    /// The bytes that the step keeps of models that are not trained.
    pub frozen: f64,
    /// How often the loss has as many logits again, of such a model.
    pub frozen_logits: f64,
}

/// The tensors of a training step at its peak, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTensors {
    /// What all micro-batches in flight keep at the end of the forward pass.
    pub kept: f64,
    /// What a block takes beside that in its backward pass.
    pub block: f64,
    /// What the head and its loss take beside that.
    pub head: f64,
    /// The part of the head that is logits and their gradients.
    pub logits: f64,
}

impl StepTensors {
    /// The most at any moment.
    pub fn peak(&self) -> f64 {
        self.kept + self.block.max(self.head)
    }
}

/// The tensors of a step of `model` on the rank that needs most.
pub fn training(model: &Model, batch: StepBatch, layout: &Layout) -> StepTensors {
    let ranks = layout.size(Axis::Pipeline);
    let in_flight = most_in_flight(layout, ranks, batch.micro_batches);
    let stages = stages(model, layout);
    let tensors = |rank: usize| {
        let own = (0..stages.len()).filter(|&stage| layout.schedule.rank_of_stage(stage, ranks) == rank);
        let own: Vec<&[Segment]> = own.map(|stage| stages[stage]).collect();
        // In a schedule with several stages on a rank, each micro-batch in flight is in one of them.
        let is_segment_major = batch.is_segment_major && ranks == 1;
        let flying = if is_segment_major { batch.micro_batches } else { in_flight[rank] };
        OfRank { model, batch, layout, segments: own.concat() }.tensors(flying as f64 / own.len() as f64)
    };
    (0..ranks).map(tensors).max_by(|left, right| left.peak().total_cmp(&right.peak())).unwrap_or_default()
}

/// The most micro-batches that each rank of a pipeline has begun and not ended.
fn most_in_flight(layout: &Layout, ranks: usize, micro_batches: usize) -> Vec<usize> {
    if layout.schedule == ScheduleKind::GPipe && ranks > 1 {
        return vec![micro_batches; ranks];
    }
    // Further micro-batches repeat what the first ones do.
    let enough = 4 * ranks * layout.schedule.virtual_stages(layout.chunks);
    let schedule = layout.pipeline_schedule(micro_batches.min(enough));
    let timeline = schedule.simulate(Costs::UNIFORM);
    timeline.expect("a schedule that this program builds does not wait for itself").peak_in_flight
}

/// The segments of one rank.
struct OfRank<'a> {
    model: &'a Model,
    batch: StepBatch,
    layout: &'a Layout,
    segments: Vec<Segment>,
}

impl OfRank<'_> {
    fn tensors(&self, in_flight: f64) -> StepTensors {
        let blocks = || self.segments.iter().filter(|segment| matches!(segment.part, Part::Block { .. }));
        let head = self.segments.iter().find(|segment| segment.part == Part::Head);
        let [head_kept, head_most] = head.map_or([0.0; 2], |_| self.loss());
        let norm = head.map_or(0.0, |head| self.kept(head));
        let head_most = head_most + self.batch.frozen_logits * (head_most - head_kept);
        let logits = head_most - head_kept;

        if self.layout.recomputes {
            let largest = blocks().map(|block| self.kept(block) + self.backward(block)).fold(0.0, f64::max);
            let states = (blocks().count() + 1) as f64 * self.hidden();
            let kept = self.batch.frozen + in_flight * states;
            return StepTensors { kept, block: largest, head: norm + head_most, logits };
        }
        let largest = blocks().map(|block| self.backward(block)).fold(0.0, f64::max);
        let of_blocks: f64 = blocks().map(|block| self.kept(block)).sum();
        let kept = self.batch.frozen + in_flight * (self.hidden() + of_blocks + norm);
        StepTensors { kept, block: head_kept + largest, head: head_most, logits }
    }

    /// What a segment keeps of a micro-batch.
    fn kept(&self, segment: &Segment) -> f64 {
        let padding = if self.batch.is_padded { self.layout.training_share(segment.padding) } else { 0.0 };
        self.batch.tokens * (self.layout.training_share(segment.activations) + padding)
    }

    /// What the backward pass of a segment takes beside that.
    fn backward(&self, segment: &Segment) -> f64 {
        let of_tokens = self.batch.tokens * self.layout.training_share(segment.gradients);
        of_tokens + self.layout.weight_share(segment.scratch)
    }

    fn hidden(&self) -> f64 {
        let divided = if self.layout.is_megatron() { self.layout.tensor_ranks() } else { 1 };
        self.batch.tokens * self.model.hidden_bytes / (divided * self.layout.size(Axis::Sequence)) as f64
    }

    /// What the head keeps until the backward pass, and the most while its loss is computed.
    fn loss(&self) -> [f64; 2] {
        let tokens = self.batch.tokens / self.layout.size(Axis::Sequence) as f64;
        let Some(vocabulary) = self.model.vocabulary else { return [tokens * self.model.hidden_bytes; 2] };
        vocabulary.loss(tokens, self.layout.tensor_ranks() as f64, self.model.dtype)
    }
}

impl Vocabulary {
    /// The bytes of its loss with the gradients, for `tokens` tokens: what is kept until the backward pass,
    /// and the most while it is computed.
    pub fn loss(&self, tokens: f64, tensor_ranks: f64, dtype: Dtype) -> [f64; 2] {
        let (outputs, width, element) = (self.size / tensor_ranks, self.width, dtype.bytes());
        let (least, most) = self.chunk_rows;
        let rows = (self.chunk_elements / outputs).floor().clamp(least, most).min(tokens);
        let of_weights = if self.is_trained { outputs * width * 4.0 } else { 0.0 };
        let kept = tokens * width * element + of_weights;
        let logits = rows * outputs;
        // First logits and log-probabilities are there, later the gradients of the logits, and of hidden
        // states or weights. In bf16 the gradients are in both dtypes.
        let gradients = match (dtype, self.is_trained) {
            (Dtype::Float32, _) => 4.0 * (logits + rows * width),
            (Dtype::BFloat16, true) => (4.0 + element) * (logits + rows.max(outputs) * width),
            (Dtype::BFloat16, false) => (4.0 + element) * logits + element * rows * width,
        };
        [kept, kept + gradients.max(2.0 * 4.0 * logits)]
    }
}

#[cfg(test)]
mod tests {
    use parallel::Mesh;

    use super::*;
    use crate::layout::{Divided, SequenceMode};
    use crate::segment::Partitions;

    /// Two blocks that keep 30 bytes of a token, of which tensor ranks divide 20, and take 7 bytes of a token
    /// and 100 in their backward pass; a head of 8 tokens with 4 numbers each.
    fn model() -> Model {
        let part = Part::Block { query_bytes: 0.0, key_bytes: 0.0, routed_bytes: 0.0 };
        let block = Segment {
            activations: Divided { whole: 10.0, tensor: 20.0, expert: 0.0 },
            padding: Divided::tensor(2.0),
            gradients: Divided::tensor(7.0),
            scratch: Divided::tensor(100.0),
            stage_cost: 1.0,
            ..Segment::empty(part, 4.0)
        };
        let head = Segment { activations: Divided::whole(5.0), ..Segment::empty(Part::Head, 4.0) };
        let vocabulary = Vocabulary {
            size: 8.0,
            width: 4.0,
            is_trained: true,
            chunk_elements: 16.0,
            chunk_rows: (1.0, 64.0),
        };
        Model {
            segments: vec![Segment::empty(Part::Embedding, 4.0), block, block, head],
            hidden_bytes: 16.0,
            dtype: Dtype::Float32,
            vocabulary: Some(vocabulary),
            partitions: Partitions::default(),
            tied: Divided::default(),
        }
    }

    const BATCH: StepBatch = StepBatch {
        tokens: 10.0,
        micro_batches: 4,
        is_padded: false,
        is_segment_major: false,
        frozen: 0.0,
        frozen_logits: 0.0,
    };

    fn layout(axes: &[(Axis, usize)]) -> Layout {
        let ranks = axes.iter().map(|(_, size)| size).product();
        Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), ..Layout::single() }
    }

    #[test]
    fn one_rank_by_hand() {
        // Hidden states of 160 bytes, two blocks of 300, a norm of 50. The loss keeps the gradients of 160
        // bytes of hidden states and of 32 weights, and has two rows of logits and log-probabilities beside
        // them.
        let tensors = training(&model(), BATCH, &layout(&[]));
        let (kept, loss) = (160.0 + 600.0 + 50.0, 160.0 + 128.0);
        let logits = 2.0 * 4.0 * 16.0;
        assert_eq!(tensors, StepTensors { kept, block: loss + 170.0, head: loss + logits, logits });
        assert_eq!(tensors.peak(), kept + loss + 170.0);

        let padded = training(&model(), StepBatch { is_padded: true, ..BATCH }, &layout(&[]));
        assert_eq!(padded.kept, kept + 2.0 * 20.0);
        let all = training(&model(), StepBatch { is_segment_major: true, ..BATCH }, &layout(&[]));
        assert_eq!(all.kept, 4.0 * kept);
        let recomputed = training(&model(), BATCH, &Layout { recomputes: true, ..layout(&[]) });
        assert_eq!((recomputed.kept, recomputed.block), (3.0 * 160.0, 300.0 + 170.0));
    }

    #[test]
    fn few_micro_batches_show_how_many_are_in_flight() {
        use ScheduleKind::{GPipe, Interleaved, OneForwardOneBackward, ZeroBubbleH1, ZeroBubbleV};
        for schedule in [GPipe, OneForwardOneBackward, Interleaved, ZeroBubbleH1, ZeroBubbleV] {
            for (ranks, micro_batches) in [(1, 7), (2, 1), (2, 31), (3, 60), (4, 3), (4, 100)] {
                let layout = Layout { schedule, chunks: 2, ..layout(&[(Axis::Pipeline, ranks)]) };
                let all = layout.pipeline_schedule(micro_batches).simulate(Costs::UNIFORM).unwrap();
                let told = most_in_flight(&layout, ranks, micro_batches);
                assert_eq!(told, all.peak_in_flight, "{schedule:?}, {ranks} ranks, {micro_batches}");
            }
        }
    }

    #[test]
    fn megatrons_mode_divides_what_tensor_ranks_otherwise_all_keep() {
        let axes = [(Axis::Tensor, 2)];
        let plain = training(&model(), BATCH, &layout(&axes));
        assert_eq!(plain.kept, 160.0 + 2.0 * (100.0 + 100.0) + 50.0);
        let megatron = Layout { sequence: SequenceMode::Megatron, ..layout(&axes) };
        assert_eq!(training(&model(), BATCH, &megatron).kept, (160.0 + 600.0 + 50.0) / 2.0);
    }

    #[test]
    fn the_first_stage_of_a_pipeline_holds_a_micro_batch_for_each_stage() {
        // The stages are a block each; the second has the head, and one micro-batch in flight.
        let tensors = training(&model(), BATCH, &layout(&[(Axis::Pipeline, 2)]));
        assert_eq!((tensors.kept, tensors.head), (2.0 * (160.0 + 300.0), 0.0));
        // Micro-batches pass through a pipeline one after the other.
        let all = StepBatch { is_segment_major: true, ..BATCH };
        assert_eq!(training(&model(), all, &layout(&[(Axis::Pipeline, 2)])), tensors);
    }
}
