//! The numbers of a model, segment by segment: what a plan has in place of its tensors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use parallel::pipeline::partition_balanced;

use crate::hardware::Dtype;
use crate::layout::Divided;

/// A model as a plan sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The embedding, each block, and the head.
    pub segments: Vec<Segment>,
    /// The bytes of the hidden state of a token between two segments.
    pub hidden_bytes: f64,
    /// The dtype of weights and activations.
    pub dtype: Dtype,
    /// The loss of a vocabulary head; `None` for a score.
    pub vocabulary: Option<Vocabulary>,
    /// The stages into which the segments were divided before.
    pub partitions: Partitions,
    /// The elements of the embedding that is also the head, if two ranks of a pipeline have a copy each.
    pub tied: Divided,
}

/// The segments of each stage, by the number of stages. A search asks for the same partitions again and
/// again, and finding one takes longer than all else.
#[derive(Clone, Debug, Default)]
pub struct Partitions(RefCell<BTreeMap<usize, Rc<[Range<usize>]>>>);

impl PartialEq for Partitions {
    /// They say nothing that the segments do not say.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Model {
    /// The segments of each of `count` stages of a pipeline, whose costs are as equal as they can be.
    pub fn stages(&self, count: usize) -> Vec<&[Segment]> {
        let find = || {
            let costs: Vec<f64> = self.segments.iter().map(|segment| segment.stage_cost).collect();
            partition_balanced(&costs, count).into()
        };
        let stages = Rc::clone(self.partitions.0.borrow_mut().entry(count).or_insert_with(find));
        stages.iter().map(|range| &self.segments[range.clone()]).collect()
    }
}

/// A head whose loss makes the logits of a chunk of positions at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vocabulary {
    /// The number of tokens.
    pub size: f64,
    /// The width of the hidden states that it reads.
    pub width: f64,
    /// Whether its weights are trained.
    pub is_trained: bool,
    /// The logits of a chunk.
    pub chunk_elements: f64,
    /// The least and the most positions of a chunk.
    pub chunk_rows: (f64, f64),
}

/// A part of a model that runs as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Which part it is.
    pub part: Part,
    /// The parameters that are trained.
    pub trained: Divided,
    /// The bytes of all parameters, also of those that are frozen.
    pub weight_bytes: Divided,
    /// The bytes of the masters and the moments of those that are trained.
    pub optimizer_bytes: Divided,
    /// The operations of the matrix products of a forward pass: for each token; of the head, for each
    /// position with logits.
    pub operations: Divided,
    /// The operations of products whose weights are trained: a backward pass computes the gradients of no
    /// other weights.
    pub trained_operations: Divided,
    /// The operations of attention in a forward pass, for each square of the length of a sequence. The tensor
    /// ranks divide them by heads.
    pub attention: f64,
    /// The bytes that a forward pass keeps of a token for the backward pass.
    pub activations: Divided,
    /// The bytes of a token that attention keeps beside these for sequences of different lengths.
    pub padding: Divided,
    /// The bytes of a token that a backward pass takes beside what was kept.
    pub gradients: Divided,
    /// The bytes that a backward pass takes for any number of tokens: the gradients of its largest matrix,
    /// and the numbers of weights that are held in codes.
    pub scratch: Divided,
    /// The width of the input of its products.
    pub width: f64,
    /// What the assignment of segments to the stages of a pipeline counts.
    pub stage_cost: f64,
    /// The part of its products that the last block runs for the positions with logits alone; 0 for every
    /// other segment.
    pub selected_fraction: f64,
}

/// Which part of a model a segment is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// The token embedding.
    Embedding,
    /// Attention with an MLP.
    Block {
        /// The bytes of the queries of a token.
        query_bytes: f64,
        /// The bytes of the keys of a token; its values have as many.
        key_bytes: f64,
        /// The bytes of a token's hidden states that go to experts: one for each of its experts.
        routed_bytes: f64,
    },
    /// The last norm, and the vocabulary or the score.
    Head,
}

/// The tokens that run through a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowTokens {
    /// The tokens of all sequences.
    pub tokens: f64,
    /// The sum of the squared lengths of the sequences.
    pub squares: f64,
    /// The positions with logits.
    pub predicted: f64,
}

impl RowTokens {
    /// The mean over `rows`. `lengths` gives the lengths of the sequences of a row, and how many of their
    /// positions have logits.
    pub fn mean<T, I>(rows: &[T], lengths: impl Fn(&T) -> (I, usize)) -> Self
    where
        I: IntoIterator<Item = usize>,
    {
        let mut sum = Self::default();
        for (sequences, predicted) in rows.iter().map(lengths) {
            for length in sequences.into_iter().map(|length| length as f64) {
                sum.tokens += length;
                sum.squares += length * length;
            }
            sum.predicted += predicted as f64;
        }
        sum.times(1.0 / rows.len().max(1) as f64)
    }

    /// These rows if each goes on for `new` tokens, which alone have logits.
    #[must_use]
    pub fn continued(self, new: f64) -> Self {
        // The mean of (P + R)^2 is that of P^2 + 2 P R + R^2.
        let squares = self.squares + 2.0 * self.tokens * new + new * new;
        Self { tokens: self.tokens + new, squares, predicted: new }
    }

    /// So many times these rows.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self { tokens: self.tokens * count, squares: self.squares * count, predicted: self.predicted * count }
    }
}

impl Segment {
    /// A segment without weights, operations and memory.
    pub fn empty(part: Part, width: f64) -> Self {
        let none = Divided::default();
        Self {
            part,
            trained: none,
            weight_bytes: none,
            optimizer_bytes: none,
            operations: none,
            trained_operations: none,
            attention: 0.0,
            activations: none,
            padding: none,
            gradients: none,
            scratch: none,
            width,
            stage_cost: 0.0,
            selected_fraction: 0.0,
        }
    }

    /// How often `rows` run through the products of the segment: once for each token, or for each position
    /// with logits. `keeps_all` is whether the last block keeps all tokens.
    pub fn uses(&self, rows: RowTokens, keeps_all: bool) -> f64 {
        let dropped =
            if keeps_all { 0.0 } else { self.selected_fraction * (rows.tokens - rows.predicted).max(0.0) };
        match self.part {
            Part::Head => rows.predicted,
            Part::Embedding | Part::Block { .. } => rows.tokens - dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_row_counts_every_sequence_and_its_square() {
        // Two pairs of 3 and 5, 4 and 2 tokens: 14 tokens, squares of 9 + 25 + 16 + 4 = 54.
        let mean = RowTokens::mean(&[[3, 5], [4, 2]], |&lengths| (lengths, 1));
        assert_eq!(mean, RowTokens { tokens: 7.0, squares: 27.0, predicted: 1.0 });
        assert_eq!(mean.times(4.0), RowTokens { tokens: 28.0, squares: 108.0, predicted: 4.0 });
    }

    #[test]
    fn a_prompt_goes_on_in_its_reply() {
        // Prompts of 3 and 5 tokens with 2 more: squares of 25 and 49.
        let prompts = RowTokens::mean(&[3, 5], |&length| ([length], length));
        assert_eq!(prompts.continued(2.0), RowTokens { tokens: 6.0, squares: 37.0, predicted: 2.0 });
    }
}
