//! What the ranks of a layout exchange, from the numbers of a model alone.
//!
//! `n` tokens of a micro-batch on a rank, `H` bytes of a hidden state, `P` ranks of the axis:
//!
//! | axis | in the forward pass | in the backward pass |
//! |---|---|---|
//! | tensor | of a block: 2 all-reduces of `n H`; of the embedding: 1 | of a block: 2; of the head: 1 |
//! | tensor, Megatron's mode | a gather and a reduce-scatter in place of each all-reduce | the same |
//! | sequence, Ulysses | of a block: all-to-all of queries, keys, values, results | the same |
//! | sequence, ring | of a block: keys and values, `P - 1` times | the same, and `P` times their gradients in fp32 |
//! | sequence | the last hidden states are gathered, `n H` | their gradient is reduce-scattered |
//! | expert | of a block with experts: all-to-all of the hidden states of a token for each of its experts, twice | the same |
//! | pipeline | `n H` from stage to stage | the same |
//! | data, expert, sequence | | once in a step: the gradients, in fp32; with ZeRO also weights |
//!
//! The last block drops the tokens without logits after attention, unless the layout needs all of them
//! ([`Layout::keeps_all_tokens`]). Recomputation repeats what a block exchanges in its forward pass. The loss
//! of a vocabulary that is divided exchanges two numbers for each position with logits. Once in a step,
//! Megatron's mode adds up the gradients of norms, and a pipeline adds up the gradients of a tied embedding.
//! Not counted are the padding of the chunks that ZeRO divides, and single numbers of a step, such as its
//! loss. `docs/parallel.md` has the same table for users.

use parallel::Axis;
use serde::Serialize;

use crate::Error;
use crate::collective::Collective;
use crate::hardware::{Dtype, Hardware};
use crate::layout::{Divided, Layout, SequenceMode};
use crate::segment::{Model, Part, RowTokens, Segment};

/// Some equal collectives of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// What for.
    pub purpose: Purpose,
    /// What is exchanged.
    pub collective: Collective,
    /// The number of ranks that take part.
    pub ranks: usize,
    /// The number of consecutive ranks among which they lie.
    pub span: usize,
    /// The number of collectives.
    pub count: f64,
    /// The bytes that each rank has in each.
    pub bytes: f64,
}

/// What ranks exchange something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The partial sums of tensor-parallel layers.
    Tensor,
    /// The tokens of other ranks.
    Sequence,
    /// The tokens of experts.
    Experts,
    /// The hidden states between two stages of a pipeline.
    Pipeline,
    /// The gradients of a step.
    Gradients,
    /// The weights that ZeRO divides.
    Weights,
}

const TENSOR: &[Axis] = &Axis::TENSOR;
/// The ranks that hold the same dense weights, and those that hold the same experts.
const DENSE_COPIES: &[Axis] = &[Axis::Data, Axis::Expert, Axis::Sequence];
const EXPERT_COPIES: &[Axis] = &[Axis::Data, Axis::Sequence];
/// Gradients are in fp32, and so are the numbers of a loss.
const GRADIENT_BYTES: f64 = 4.0;
const NUMBER_BYTES: f64 = 4.0;

impl Exchange {
    /// One collective among the ranks along some axes.
    fn along(
        axes: &[Axis],
        layout: &Layout,
        purpose: Purpose,
        (collective, bytes): (Collective, f64),
    ) -> Self {
        let ranks = axes.iter().map(|&axis| layout.size(axis)).product();
        Self { purpose, collective, ranks, span: layout.span(axes), count: 1.0, bytes }
    }

    pub(crate) fn times(self, count: f64) -> Self {
        Self { count: self.count * count, ..self }
    }

    /// The bytes that a rank sends in all of them.
    pub fn bytes_sent(&self) -> f64 {
        self.count * self.collective.bytes_sent(self.ranks, self.bytes)
    }

    /// The seconds of all of them.
    pub fn seconds(&self, hardware: &Hardware) -> Result<f64, Error> {
        if self.ranks == 1 || self.count == 0.0 {
            return Ok(0.0);
        }
        let link = hardware.link(self.span)?;
        Ok(self.count * self.collective.seconds(self.ranks, self.bytes, link))
    }
}

/// What a model exchanges in the passes of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// The model.
    pub model: &'a Model,
    /// How ranks divide it.
    pub layout: &'a Layout,
    /// The rows of a rank, which its sequence ranks have together.
    pub rows: RowTokens,
}

impl Traffic<'_> {
    /// What a segment exchanges in a forward pass with gradients.
    pub fn forward(&self, segment: &Segment) -> Vec<Exchange> {
        match segment.part {
            Part::Embedding => self.tensor_parallel(1.0),
            Part::Block { .. } => {
                let mut exchanges = if self.drops_tokens(segment) {
                    // Out of attention and of the MLP.
                    self.all_reduces(self.rows.predicted, 2.0)
                } else {
                    self.tensor_parallel(2.0)
                };
                exchanges.extend(self.attention(segment, false));
                exchanges.extend(self.experts(segment));
                exchanges
            }
            Part::Head => {
                vec![self.sequence(Collective::AllGather, self.own_tokens() * self.model.hidden_bytes)]
            }
        }
    }

    /// What a segment exchanges in a backward pass.
    pub fn backward(&self, segment: &Segment) -> Vec<Exchange> {
        match segment.part {
            Part::Embedding => Vec::new(),
            Part::Block { .. } => {
                let mut exchanges = if self.drops_tokens(segment) {
                    // Into attention and into the MLP.
                    let tokens = [self.rows.tokens, self.rows.predicted].into_iter();
                    tokens.flat_map(|tokens| self.all_reduces(tokens, 1.0)).collect()
                } else {
                    self.tensor_parallel(2.0)
                };
                exchanges.extend(self.attention(segment, true));
                exchanges.extend(self.experts(segment));
                if self.layout.recomputes {
                    exchanges.extend(self.forward(segment));
                }
                exchanges
            }
            Part::Head => {
                let mut exchanges = if self.layout.keeps_all_tokens() {
                    self.tensor_parallel(1.0)
                } else {
                    self.all_reduces(self.rows.predicted, 1.0)
                };
                let hidden = self.all_tokens() * self.model.hidden_bytes;
                exchanges.push(self.sequence(Collective::ReduceScatter, hidden));
                exchanges.extend(self.loss());
                exchanges
            }
        }
    }

    /// What a segment exchanges in a pass without gradients, of rows that no sequence ranks divide.
    pub fn inference(&self, segment: &Segment) -> Vec<Exchange> {
        match segment.part {
            Part::Embedding => self.all_reduces(self.rows.tokens, 1.0),
            Part::Block { .. } => {
                let drops = segment.selected_fraction > 0.0 && self.layout.size(Axis::Pipeline) == 1;
                self.all_reduces(if drops { self.rows.predicted } else { self.rows.tokens }, 2.0)
            }
            Part::Head => Vec::new(),
        }
    }

    /// The message from a stage of a pipeline to the next one.
    pub fn message(&self) -> Exchange {
        let bytes = self.own_tokens() * self.model.hidden_bytes;
        let stages =
            Exchange::along(&[Axis::Pipeline], self.layout, Purpose::Pipeline, (Collective::Send, bytes));
        // Neighbours lie closer than the first and the last.
        let gap = (stages.span - 1) / (stages.ranks - 1).max(1);
        Exchange { ranks: stages.ranks.min(2), span: gap + 1, ..stages }
    }

    /// Whether the last block drops the tokens without logits.
    fn drops_tokens(&self, segment: &Segment) -> bool {
        segment.selected_fraction > 0.0 && !self.layout.keeps_all_tokens()
    }

    /// The numbers of a loss of tokens whose vocabulary or whose tokens ranks divide.
    fn loss(&self) -> Vec<Exchange> {
        if self.model.vocabulary.is_none() {
            return Vec::new();
        }
        let of_positions = self.rows.predicted * NUMBER_BYTES / self.layout.size(Axis::Sequence) as f64;
        // The logarithms of sums, and the log-probabilities.
        let of_vocabulary = [Collective::AllGather, Collective::AllReduce].map(|collective| {
            Exchange::along(TENSOR, self.layout, Purpose::Tensor, (collective, of_positions))
        });
        of_vocabulary.into_iter().chain([self.sequence(Collective::AllReduce, NUMBER_BYTES)]).collect()
    }

    /// The tokens of a rank's rows. The ring cuts each row into two parts for each of its ranks, all of one
    /// length.
    fn all_tokens(&self) -> f64 {
        let RowTokens { tokens, squares, .. } = self.rows;
        let parts = 2.0 * self.layout.size(Axis::Sequence) as f64;
        if self.layout.sequence != SequenceMode::Ring || parts <= 2.0 || tokens == 0.0 {
            return tokens;
        }
        let length = squares / tokens;
        tokens / length * (length / parts).ceil() * parts
    }

    fn own_tokens(&self) -> f64 {
        self.all_tokens() / self.layout.size(Axis::Sequence) as f64
    }

    /// `count` times leaving (or, in the backward pass, entering) a tensor-parallel layer.
    fn tensor_parallel(&self, count: f64) -> Vec<Exchange> {
        if !self.layout.is_megatron() {
            return self.all_reduces(self.own_tokens(), count);
        }
        let bytes = self.all_tokens() * self.model.hidden_bytes;
        let part = bytes / self.layout.tensor_ranks() as f64;
        [(Collective::AllGather, part), (Collective::ReduceScatter, bytes)]
            .map(|exchange| Exchange::along(TENSOR, self.layout, Purpose::Tensor, exchange).times(count))
            .into()
    }

    fn all_reduces(&self, tokens: f64, count: f64) -> Vec<Exchange> {
        let hidden = (Collective::AllReduce, tokens * self.model.hidden_bytes);
        vec![Exchange::along(TENSOR, self.layout, Purpose::Tensor, hidden).times(count)]
    }

    /// What the sequence ranks exchange in attention.
    fn attention(&self, segment: &Segment, is_backward: bool) -> Vec<Exchange> {
        let Part::Block { query_bytes, key_bytes, .. } = segment.part else { return Vec::new() };
        let ranks = self.layout.size(Axis::Sequence) as f64;
        // Of the heads of this rank.
        let own = self.own_tokens() / self.layout.tensor_ranks() as f64;
        match self.layout.sequence {
            // Queries and results; keys and values.
            SequenceMode::Ulysses => [query_bytes, key_bytes]
                .map(|bytes| self.sequence(Collective::AllToAll, own * bytes).times(2.0))
                .into(),
            SequenceMode::Ring if ranks > 1.0 => {
                let keys_and_values = self.sequence(Collective::Send, 2.0 * own * key_bytes);
                let in_fp32 = GRADIENT_BYTES / self.model.dtype.bytes();
                let gradients = Exchange { bytes: in_fp32 * keys_and_values.bytes, ..keys_and_values };
                let shifts = [keys_and_values.times(ranks - 1.0), gradients.times(ranks)];
                shifts.into_iter().take(if is_backward { 2 } else { 1 }).collect()
            }
            SequenceMode::Ring | SequenceMode::None | SequenceMode::Megatron => Vec::new(),
        }
    }

    /// What expert ranks exchange in a block: hidden states to the experts, and their outputs back.
    fn experts(&self, segment: &Segment) -> Option<Exchange> {
        let Part::Block { routed_bytes, .. } = segment.part else { return None };
        let routed = (Collective::AllToAll, routed_bytes * self.own_tokens());
        let exchange = Exchange::along(&[Axis::Expert], self.layout, Purpose::Experts, routed);
        (routed_bytes > 0.0).then_some(exchange.times(2.0))
    }

    fn sequence(&self, collective: Collective, bytes: f64) -> Exchange {
        Exchange::along(&[Axis::Sequence], self.layout, Purpose::Sequence, (collective, bytes))
    }
}

/// What a rank exchanges once in an optimizer step of a model, for the `segments` that it has.
pub fn step(model: &Model, segments: &[Segment], layout: &Layout) -> Vec<Exchange> {
    let mut exchanges = of_copies(segments, model.dtype, layout);
    let along = |axes, bytes| {
        Exchange::along(axes, layout, Purpose::Gradients, (Collective::AllReduce, GRADIENT_BYTES * bytes))
    };
    // Of weights that tensor ranks have whole, each has the gradients of its tokens.
    if layout.is_megatron() {
        exchanges.push(along(TENSOR, segments.iter().map(|segment| segment.trained.whole).sum()));
    }
    // The first and the last rank of a pipeline have the gradients of their copies of the embedding.
    let has_copy = |segment: &Segment| !matches!(segment.part, Part::Block { .. });
    if layout.size(Axis::Pipeline) > 1 && segments.iter().any(has_copy) {
        let tied = along(&[Axis::Pipeline], layout.weight_share(model.tied));
        exchanges.push(Exchange { ranks: 2, ..tied });
    }
    exchanges.retain(|exchange| exchange.bytes_sent() > 0.0);
    exchanges
}

/// What the ranks with the same weights exchange once in a step.
fn of_copies(segments: &[Segment], dtype: Dtype, layout: &Layout) -> Vec<Exchange> {
    let share = |part: fn(&Segment) -> Divided| -> [f64; 2] {
        let all: Divided = segments.iter().map(part).sum();
        let experts = Divided { expert: all.expert, ..Divided::default() };
        [Divided { expert: 0.0, ..all }, experts].map(|part| layout.weight_share(part))
    };
    let (trained, weights) = (share(|segment| segment.trained), share(|segment| segment.weight_bytes));
    let groups = [DENSE_COPIES, EXPERT_COPIES].into_iter().zip(trained).zip(weights);
    let exchanges = groups.flat_map(|((axes, trained), weights)| {
        let ranks: usize = axes.iter().map(|&axis| layout.size(axis)).product();
        let reduce = if layout.zero == 0 { Collective::AllReduce } else { Collective::ReduceScatter };
        let gathered = match layout.zero {
            0 => 0.0,
            // What the owners of its optimizer state have updated.
            1 | 2 => trained * dtype.bytes(),
            // All weights: once in a pipeline, which keeps them for the step, or for each pass.
            _ if layout.size(Axis::Pipeline) > 1 => weights,
            _ => 2.0 * weights,
        };
        let along = |purpose, exchange| Exchange::along(axes, layout, purpose, exchange);
        [
            along(Purpose::Gradients, (reduce, GRADIENT_BYTES * trained)),
            along(Purpose::Weights, (Collective::AllGather, gathered / ranks as f64)),
        ]
    });
    exchanges.collect()
}

#[cfg(test)]
mod tests {
    use parallel::Mesh;

    use super::*;
    use crate::segment::Partitions;

    /// Twelve tokens.
    const ROWS: RowTokens = RowTokens { tokens: 12.0, squares: 144.0, predicted: 12.0 };

    /// A block with 8 bytes of hidden states, as many of queries and half of them of keys.
    fn block() -> Segment {
        let part = Part::Block { query_bytes: 8.0, key_bytes: 4.0, routed_bytes: 16.0 };
        Segment {
            trained: Divided { whole: 10.0, tensor: 100.0, expert: 1000.0 },
            weight_bytes: Divided { whole: 20.0, tensor: 200.0, expert: 2000.0 },
            ..Segment::empty(part, 2.0)
        }
    }

    fn model() -> Model {
        Model {
            segments: vec![block()],
            hidden_bytes: 8.0,
            dtype: Dtype::BFloat16,
            vocabulary: None,
            partitions: Partitions::default(),
            tied: Divided::default(),
        }
    }

    fn layout(axes: &[(Axis, usize)], sequence: SequenceMode) -> Layout {
        let ranks = axes.iter().map(|(_, size)| size).product();
        Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), sequence, ..Layout::single() }
    }

    /// The bytes that a rank sends for a purpose in the forward and in the backward pass of 12 tokens.
    fn sent(layout: &Layout, purpose: Purpose) -> [f64; 2] {
        let model = model();
        let traffic = Traffic { model: &model, layout, rows: ROWS };
        [traffic.forward(&block()), traffic.backward(&block())].map(|exchanges| {
            let of_purpose = exchanges.iter().filter(|exchange| exchange.purpose == purpose);
            of_purpose.map(Exchange::bytes_sent).sum()
        })
    }

    #[test]
    fn the_last_block_drops_tokens_only_where_nobody_needs_them() {
        let mut last = block();
        last.selected_fraction = 0.5;
        let model = Model { segments: vec![last], ..model() };
        let rows = RowTokens { predicted: 3.0, ..ROWS };
        let bytes = |layout: &Layout| -> [f64; 2] {
            let traffic = Traffic { model: &model, layout, rows };
            [traffic.forward(&last), traffic.backward(&last)]
                .map(|exchanges| exchanges.iter().map(Exchange::bytes_sent).sum())
        };
        // Of two all-reduces over two ranks, of 12 or of 3 tokens with 8 bytes: both out of attention and of
        // the MLP, and of those into them only the one into the MLP is small.
        assert_eq!(bytes(&layout(&[(Axis::Tensor, 2)], SequenceMode::None)), [24.0 + 24.0, 96.0 + 24.0]);
        let pipeline = [(Axis::Pipeline, 2), (Axis::Tensor, 2)];
        assert_eq!(bytes(&layout(&pipeline, SequenceMode::None)), [192.0, 192.0]);
    }

    #[test]
    fn the_parts_of_a_ring_have_one_length() {
        // Rows of 5 and 7 tokens, of which the mean by token is 74 / 12: two parts of two ranks each have 8.
        let rows = RowTokens { tokens: 12.0, squares: 74.0, predicted: 12.0 };
        let layout = layout(&[(Axis::Sequence, 2)], SequenceMode::Ring);
        let tokens = Traffic { model: &model(), layout: &layout, rows }.all_tokens();
        assert!((tokens - 12.0 / (74.0 / 12.0) * 8.0).abs() < 1e-9, "{tokens}");
    }

    #[test]
    fn gradients_of_what_several_ranks_have_whole_are_added_up_once() {
        let tied = Divided::tensor(100.0);
        let model = Model { tied, ..model() };
        let bytes = |segments: &[Segment], layout: &Layout| -> f64 {
            step(&model, segments, layout).iter().map(Exchange::bytes_sent).sum()
        };
        // Ten numbers in fp32 over two ranks, as an all-reduce.
        let megatron = layout(&[(Axis::Tensor, 2)], SequenceMode::Megatron);
        assert_eq!(bytes(&[block()], &megatron), 40.0);
        // The first and the last of four stages have half of the tied embedding each.
        let axes = [(Axis::Pipeline, 4), (Axis::Tensor, 2)];
        let pipeline = layout(&axes, SequenceMode::None);
        let ends = [Part::Embedding, Part::Head].map(|part| Segment::empty(part, 2.0));
        assert_eq!(ends.map(|end| bytes(&[end], &pipeline)), [200.0; 2]);
        assert_eq!(bytes(&[block()], &pipeline), 0.0);
    }

    #[test]
    fn tensor_ranks_send_as_much_with_megatrons_mode_as_without() {
        let axes = [(Axis::Tensor, 4)];
        // Two all-reduces of 12 * 8 bytes over four ranks.
        let wanted = 2.0 * 2.0 * 96.0 * 3.0 / 4.0;
        for mode in [SequenceMode::None, SequenceMode::Megatron] {
            let mut layout = layout(&axes, mode);
            assert_eq!(sent(&layout, Purpose::Tensor), [wanted, wanted], "{mode:?}");
            layout.recomputes = true;
            assert_eq!(sent(&layout, Purpose::Tensor), [wanted, 2.0 * wanted], "{mode:?}");
        }
    }

    #[test]
    fn sequence_ranks_send_what_the_papers_say() {
        let axes = [(Axis::Sequence, 3)];
        // n = 4 tokens of a rank: 2 (q + k) n (P - 1) / P.
        let ulysses = 2.0 * (8.0 + 4.0) * 4.0 * 2.0 / 3.0;
        assert_eq!(sent(&layout(&axes, SequenceMode::Ulysses), Purpose::Sequence), [ulysses; 2]);
        // 2 n G (P - 1) in each pass, and 2 n G P of gradients, which have twice the bytes of bf16.
        let shift = 2.0 * 4.0 * 4.0;
        let ring = [2.0 * shift, 2.0 * shift + 3.0 * 2.0 * shift];
        assert_eq!(sent(&layout(&axes, SequenceMode::Ring), Purpose::Sequence), ring);
        assert_eq!(sent(&layout(&[], SequenceMode::Ring), Purpose::Sequence), [0.0; 2]);
    }

    #[test]
    fn tokens_go_to_their_experts_and_back() {
        // 16 bytes of each of 12 tokens, of which half are on the other rank.
        assert_eq!(sent(&layout(&[(Axis::Expert, 2)], SequenceMode::None), Purpose::Experts), [192.0; 2]);
    }

    #[test]
    fn gradients_and_weights_are_those_of_the_table_of_zero() {
        // Dense weights are on 2 * 2 ranks, experts on 2 of them, each with half of the experts.
        let mut layout = layout(&[(Axis::Data, 2), (Axis::Expert, 2)], SequenceMode::None);
        let sent = |layout: &Layout| {
            let sum = |purpose| {
                let all = step(&model(), &[block()], layout);
                let of_purpose = all.iter().filter(|exchange| exchange.purpose == purpose);
                of_purpose.map(Exchange::bytes_sent).sum::<f64>()
            };
            [sum(Purpose::Gradients), sum(Purpose::Weights)]
        };
        let (dense, experts) = (110.0 * 3.0 / 4.0, 500.0 / 2.0);
        assert_eq!(sent(&layout), [8.0 * (dense + experts), 0.0]);
        layout.zero = 1;
        assert_eq!(sent(&layout), [4.0 * (dense + experts), 2.0 * (dense + experts)]);
        layout.zero = 3;
        assert_eq!(sent(&layout), [4.0 * (dense + experts), 4.0 * (dense + experts)]);
    }

    #[test]
    fn neighbours_in_a_pipeline_may_be_closer_than_its_ends() {
        // rank = stage * 4 + data: neighbours are 4 ranks apart.
        let layout = layout(&[(Axis::Pipeline, 4), (Axis::Data, 4)], SequenceMode::None);
        let model = model();
        let message = Traffic { model: &model, layout: &layout, rows: ROWS }.message();
        assert_eq!((message.ranks, message.span, message.bytes_sent()), (2, 5, 96.0));
    }
}
