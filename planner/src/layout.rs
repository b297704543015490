//! How the work of a training run is divided over ranks: the mesh, and what each axis of it divides.
//!
//! | axis | the rows of a step | the tokens of a row | weights | experts | rows without gradients |
//! |---|---|---|---|---|---|
//! | pipeline | | | by layers | by layers | |
//! | data | yes | | | | yes |
//! | expert | yes | | | yes | |
//! | sequence | | yes | | | yes |
//! | tensor | | with Megatron's mode, outside its layers | yes | yes | |
//!
//! A quantity of a model is divided accordingly: [`Divided`]. ZeRO divides state over the ranks that hold the
//! same weights, in addition.

use std::iter::Sum;
use std::ops::{Add, Mul};

use parallel::pipeline::{Schedule, ScheduleKind};
use parallel::{Axis, Mesh};

/// How ranks divide the tokens of a row in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SequenceMode {
    /// Each rank has all tokens of its rows.
    #[default]
    None,
    /// The tensor ranks divide the tokens outside tensor-parallel layers (Korthikanti et al. 2022, arXiv
    /// 2205.05198).
    Megatron,
    /// The ranks of the sequence axis divide the tokens, and inside attention the heads (Jacobs et al. 2023,
    /// arXiv 2309.14509).
    Ulysses,
    /// The ranks of the sequence axis divide the tokens, and keys and values go around (Liu et al. 2023,
    /// arXiv 2310.01889).
    Ring,
}

/// How the work of a run is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of ranks along each axis.
    pub mesh: Mesh,
    /// How ranks divide the tokens of a row.
    pub sequence: SequenceMode,
    /// What the ranks that hold the same weights divide: 0 nothing, 1 the state of the optimizer, 2 also
    /// gradients, 3 also weights.
    pub zero: u8,
    /// The order of micro-batches in a pipeline.
    pub schedule: ScheduleKind,
    /// The stages of a rank, for a schedule that leaves their number open.
    pub chunks: usize,
    /// Whether a backward pass computes the activations of each segment again.
    pub recomputes: bool,
}

/// A quantity of a model in three parts, by the ranks that divide it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divided {
    /// What every rank has whole, such as the weights of a norm.
    pub whole: f64,
    /// What the tensor ranks divide.
    pub tensor: f64,
    /// What the tensor ranks and the expert ranks divide.
    pub expert: f64,
}

impl Layout {
    /// The layout of a run on one rank.
    pub fn single() -> Self {
        let schedule = ScheduleKind::OneForwardOneBackward;
        Self {
            mesh: Mesh::single(),
            sequence: SequenceMode::None,
            zero: 0,
            schedule,
            chunks: 1,
            recomputes: false,
        }
    }

    /// The schedule of `micro_batches` micro-batches through the pipeline. A rank alone runs them one after
    /// the other, whatever the schedule.
    pub fn pipeline_schedule(&self, micro_batches: usize) -> Schedule {
        let ranks = self.size(Axis::Pipeline);
        let kind = if ranks == 1 { ScheduleKind::OneForwardOneBackward } else { self.schedule };
        Schedule::new(kind, ranks, self.chunks, micro_batches)
    }

    /// The number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.mesh.size(axis)
    }

    /// The ranks that divide each weight of a layer.
    pub fn tensor_ranks(&self) -> usize {
        Axis::TENSOR.iter().map(|&axis| self.size(axis)).product()
    }

    /// The ranks that divide the rows of an optimizer step.
    pub fn row_ranks(&self) -> usize {
        self.size(Axis::Data) * self.size(Axis::Expert)
    }

    /// The ranks that divide rows which no gradient is computed of, such as those of a rollout.
    pub fn replicas(&self) -> usize {
        self.size(Axis::Data) * self.size(Axis::Sequence)
    }

    /// The ranks that hold the same weights, other than those of experts.
    pub fn weight_copies(&self) -> usize {
        self.replicas() * self.size(Axis::Expert)
    }

    /// The ranks from the first to the last of a group along some axes, which decide what link joins them.
    pub fn span(&self, axes: &[Axis]) -> usize {
        // The last rank of the group of rank 0. A step along an axis passes all ranks of the faster axes.
        let (mut last, mut stride) = (0, 1);
        for axis in Axis::ALL.into_iter().rev() {
            if axes.contains(&axis) {
                last += (self.size(axis) - 1) * stride;
            }
            stride *= self.size(axis);
        }
        last + 1
    }

    /// Whether the last block keeps the tokens without logits in a pass with gradients: for the next stage of
    /// a pipeline, and for ranks that divide the tokens.
    pub fn keeps_all_tokens(&self) -> bool {
        self.size(Axis::Pipeline) > 1 || self.size(Axis::Sequence) > 1 || self.is_megatron()
    }

    /// Whether the tensor ranks divide the tokens outside their layers.
    pub fn is_megatron(&self) -> bool {
        self.sequence == SequenceMode::Megatron && self.tensor_ranks() > 1
    }

    /// The part of a quantity of each token that a rank has in a pass with gradients: its own tokens, all
    /// experts that they are sent to.
    pub fn training_share(&self, quantity: Divided) -> f64 {
        let tensor = self.tensor_ranks() as f64;
        let whole = if self.is_megatron() { quantity.whole / tensor } else { quantity.whole };
        (whole + (quantity.tensor + quantity.expert) / tensor) / self.size(Axis::Sequence) as f64
    }

    /// The part of a quantity of each token that a rank has in a pass without gradients, in which all expert
    /// ranks have the same tokens.
    pub fn inference_share(&self, quantity: Divided) -> f64 {
        let (tensor, expert) = (self.tensor_ranks() as f64, self.size(Axis::Expert) as f64);
        quantity.whole + quantity.tensor / tensor + quantity.expert / (tensor * expert)
    }

    /// The part of the weights of a model that a rank has, if it has all layers.
    pub fn weight_share(&self, weights: Divided) -> f64 {
        self.inference_share(weights)
    }
}

impl Divided {
    /// What every rank has whole.
    pub fn whole(whole: f64) -> Self {
        Self { whole, ..Self::default() }
    }

    /// What the tensor ranks divide.
    pub fn tensor(tensor: f64) -> Self {
        Self { tensor, ..Self::default() }
    }

    /// All of it.
    pub fn total(self) -> f64 {
        self.whole + self.tensor + self.expert
    }
}

impl Add for Divided {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            whole: self.whole + other.whole,
            tensor: self.tensor + other.tensor,
            expert: self.expert + other.expert,
        }
    }
}

impl Mul<f64> for Divided {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self { whole: self.whole * factor, tensor: self.tensor * factor, expert: self.expert * factor }
    }
}

impl Sum for Divided {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(axes: &[(Axis, usize)], sequence: SequenceMode) -> Layout {
        let ranks = axes.iter().map(|(_, size)| size).product();
        Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), sequence, ..Layout::single() }
    }

    const QUANTITY: Divided = Divided { whole: 8.0, tensor: 16.0, expert: 32.0 };

    #[test]
    fn ranks_divide_rows_tokens_and_weights() {
        let axes =
            [(Axis::Pipeline, 2), (Axis::Data, 3), (Axis::Expert, 4), (Axis::Sequence, 5), (Axis::Tensor, 2)];
        let layout = layout(&axes, SequenceMode::Ulysses);
        assert_eq!((layout.row_ranks(), layout.replicas(), layout.weight_copies()), (12, 15, 60));
        // The tokens of a row are divided by five; its experts are on four ranks, which have other rows.
        assert_eq!(layout.training_share(QUANTITY), (8.0 + 16.0 / 2.0 + 32.0 / 2.0) / 5.0);
        assert_eq!(layout.inference_share(QUANTITY), 8.0 + 16.0 / 2.0 + 32.0 / 8.0);
    }

    #[test]
    fn megatron_divides_what_lies_between_the_layers_too() {
        let plain = layout(&[(Axis::Tensor, 4)], SequenceMode::None);
        let megatron = layout(&[(Axis::Tensor, 4)], SequenceMode::Megatron);
        assert_eq!(plain.training_share(QUANTITY), 8.0 + 48.0 / 4.0);
        assert_eq!(megatron.training_share(QUANTITY), 56.0 / 4.0);
        // Without gradients, and of weights, nothing changes.
        assert_eq!(plain.inference_share(QUANTITY), megatron.inference_share(QUANTITY));
        assert!(!layout(&[(Axis::Data, 4)], SequenceMode::Megatron).is_megatron());
    }

    #[test]
    fn a_group_spans_all_ranks_between_its_first_and_its_last() {
        // rank = data * 4 + tensor
        let layout = layout(&[(Axis::Data, 2), (Axis::Tensor, 4)], SequenceMode::None);
        assert_eq!(layout.span(&[Axis::Tensor]), 4);
        assert_eq!(layout.span(&[Axis::Data]), 5);
        assert_eq!(layout.span(&[Axis::Data, Axis::Tensor]), 8);
        assert_eq!(layout.span(&[Axis::Pipeline]), 1);
        for axes in [[Axis::Data, Axis::Pipeline], [Axis::Tensor, Axis::Expert]] {
            assert_eq!(layout.span(&axes), layout.mesh.group(&axes).last().unwrap() + 1);
        }
    }
}
