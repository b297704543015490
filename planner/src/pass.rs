//! The seconds of a rank in one pass of a segment, without what it exchanges with other ranks.
//!
//! Operations of a forward pass over `n` tokens, in sequences of lengths `T`:
//! ```text
//!   matrices    2 P n                  P parameters of the matrices that a token runs through
//!   attention   2 q sum T^2            q = heads * D: scores and values, half of which are masked
//!   head        2 V h                  for each position with logits; V vocabulary, h its width
//! ```
//! (Kaplan et al. 2020, arXiv 2001.08361, table 1.) A backward pass has twice as many: the gradients of
//! inputs and those of weights. Recomputation adds a forward pass (Korthikanti et al. 2022, arXiv
//! 2205.05198). A loss of tokens computes the gradients of the head with its logits: 3 passes over the head.
//! Weights that are frozen have no gradients, so their products have one backward pass.
//!
//! The last block runs its output projection and its MLP for the positions with logits alone, unless the
//! layout needs all tokens ([`Layout::keeps_all_tokens`]).
//!
//! The seconds are those of the operations of matrices over the speed of products of their width, of
//! attention over its speed, and of the bytes of activations over the speed of activation functions. A
//! forward pass writes and reads what a block keeps; a backward pass reads it, and writes and reads its
//! gradient.

use std::ops::{Add, Mul};

use parallel::Axis;

use crate::hardware::{Device, Dtype};
use crate::layout::{Divided, Layout};
use crate::segment::{Part, RowTokens, Segment};

/// How often a pass with these operations goes over the activations of a block.
const FORWARD_TRAVERSALS: f64 = 2.0;
const BACKWARD_TRAVERSALS: f64 = 3.0;

/// The seconds of the passes of one micro-batch through some segments, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassSeconds {
    /// The forward pass.
    pub forward: f64,
    /// The gradients of the inputs, with what is computed again for them.
    pub input: f64,
    /// The gradients of the weights.
    pub weight: f64,
}

impl PassSeconds {
    /// All of it.
    pub fn total(self) -> f64 {
        self.forward + self.input + self.weight
    }
}

impl Add for PassSeconds {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            forward: self.forward + other.forward,
            input: self.input + other.input,
            weight: self.weight + other.weight,
        }
    }
}

impl Mul<f64> for PassSeconds {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self { forward: self.forward * factor, input: self.input * factor, weight: self.weight * factor }
    }
}

/// The seconds in which a rank runs `rows` forward and backward through a segment.
pub fn training(
    segment: &Segment,
    rows: RowTokens,
    (layout, device, dtype): (&Layout, &Device, Dtype),
) -> PassSeconds {
    let uses = segment.uses(rows, layout.keeps_all_tokens());
    let seconds_of =
        |operations| layout.training_share(operations) * uses / device.matmul_flops(segment.width, dtype);
    let (products, weight) = (seconds_of(segment.operations), seconds_of(segment.trained_operations));
    if segment.part == Part::Head {
        // The loss computes logits and their gradients at once, when the backward pass begins.
        return PassSeconds { forward: 0.0, input: 2.0 * products + weight, weight: 0.0 };
    }
    let ranks = (layout.tensor_ranks() * layout.size(Axis::Sequence)) as f64;
    let attention = segment.attention * rows.squares / ranks / device.attention.of(dtype);
    let bytes = layout.training_share(segment.activations) * uses;
    let traversal = bytes / device.elementwise.of(dtype);

    let forward = products + attention + FORWARD_TRAVERSALS * traversal;
    let again = if layout.recomputes { forward } else { 0.0 };
    // Attention has no weights, and activations are traversed for the gradients of inputs.
    let input = again + products + 2.0 * attention + BACKWARD_TRAVERSALS * traversal;
    PassSeconds { forward, input, weight }
}

/// The seconds in which a rank runs `rows` through a segment for their output alone.
pub fn inference(
    segment: &Segment,
    rows: RowTokens,
    (layout, device, dtype): (&Layout, &Device, Dtype),
) -> f64 {
    let uses = segment.uses(rows, layout.size(Axis::Pipeline) > 1);
    let operations = layout.inference_share(segment.operations) * uses;
    let products = operations / device.matmul_flops(segment.width, dtype);
    let attention =
        segment.attention * rows.squares / layout.tensor_ranks() as f64 / device.attention.of(dtype);
    // A head has no activations but a norm.
    let activations = if segment.part == Part::Head { Divided::default() } else { segment.activations };
    let bytes = layout.inference_share(activations) * uses;
    products + attention + FORWARD_TRAVERSALS * bytes / device.elementwise.of(dtype)
}
