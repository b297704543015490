//! The bytes of weights, gradients and optimizer state of a model on each rank of a pipeline.
//!
//! | state | bytes | divided by ZeRO |
//! |---|---|---|
//! | weights | [`Segment::weight_bytes`] | from stage 3 on |
//! | gradients | 4 of each trained parameter | from stage 2 on |
//! | masters and moments | [`Segment::optimizer_bytes`] | from stage 1 on |
//!
//! ZeRO divides over the ranks that hold the same weights, which of experts are fewer than of other weights
//! (Rajbhandari et al. 2020, arXiv 1910.02054). The padding of chunks is not counted, and neither is what is
//! rounded up where a size does not divide: `gemini::StateBytes` counts the tensors of a real model.

use parallel::Axis;

use crate::layout::{Divided, Layout};
use crate::segment::{Model, Segment};
use crate::step::stages;

/// Gradients are in fp32.
const GRADIENT_BYTES: f64 = 4.0;

/// The memory of a model on a rank, without activations, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StateBytes {
    /// The weights.
    pub weights: f64,
    /// The gradients of those that are trained.
    pub gradients: f64,
    /// Masters and moments.
    pub optimizer: f64,
}

impl StateBytes {
    /// All of it.
    pub fn total(self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }
}

/// The state of `model` on each rank of the pipeline.
pub fn of_ranks(model: &Model, layout: &Layout) -> Vec<StateBytes> {
    let ranks = layout.size(Axis::Pipeline);
    let mut found = vec![StateBytes::default(); ranks];
    for (stage, segments) in stages(model, layout).into_iter().enumerate() {
        let state = &mut found[layout.schedule.rank_of_stage(stage, ranks)];
        let of = |zero, part: fn(&Segment) -> Divided| {
            let all: Divided = segments.iter().map(part).sum();
            share(all, layout, layout.zero >= zero)
        };
        state.weights += of(3, |segment| segment.weight_bytes);
        state.gradients += GRADIENT_BYTES * of(2, |segment| segment.trained);
        state.optimizer += of(1, |segment| segment.optimizer_bytes);
    }
    found
}

/// The part of a rank, which ZeRO divides further or not.
fn share(all: Divided, layout: &Layout, is_divided: bool) -> f64 {
    let experts = layout.weight_share(Divided { expert: all.expert, ..Divided::default() });
    let dense = layout.weight_share(all) - experts;
    let [copies, expert_copies] =
        if is_divided { [layout.weight_copies(), layout.replicas()] } else { [1; 2] };
    dense / copies as f64 + experts / expert_copies as f64
}

#[cfg(test)]
mod tests {
    use parallel::Mesh;

    use super::*;
    use crate::hardware::Dtype;
    use crate::segment::{Part, Partitions};

    /// A segment with 40 parameters in bf16: 8 on every rank, 16 of matrices, 16 of experts.
    fn segment(part: Part) -> Segment {
        let trained = Divided { whole: 8.0, tensor: 16.0, expert: 16.0 };
        Segment {
            trained,
            weight_bytes: trained * 2.0,
            optimizer_bytes: trained * 12.0,
            stage_cost: 1.0,
            ..Segment::empty(part, 4.0)
        }
    }

    fn states(axes: &[(Axis, usize)], zero: u8) -> Vec<StateBytes> {
        let block = Part::Block { query_bytes: 0.0, key_bytes: 0.0, routed_bytes: 0.0 };
        let model = Model {
            segments: vec![segment(block), segment(Part::Head)],
            hidden_bytes: 8.0,
            dtype: Dtype::BFloat16,
            vocabulary: None,
            partitions: Partitions::default(),
            tied: Divided::default(),
        };
        let ranks = axes.iter().map(|(_, size)| size).product();
        of_ranks(&model, &Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), zero, ..Layout::single() })
    }

    #[test]
    fn each_axis_divides_what_it_holds_and_zero_the_rest() {
        let state = |weights, gradients, optimizer| StateBytes { weights, gradients, optimizer };
        assert_eq!(states(&[], 3), [state(160.0, 320.0, 960.0)]);
        assert_eq!(states(&[(Axis::Pipeline, 2)], 0), [state(80.0, 160.0, 480.0); 2]);
        // Two segments of 8 + 16 / 2 + 16 / 2 parameters.
        assert_eq!(states(&[(Axis::Tensor, 2)], 0), [state(2.0 * 48.0, 4.0 * 48.0, 12.0 * 48.0)]);
        // Four ranks hold the dense weights, and two of them the same experts.
        let mesh = [(Axis::Data, 2), (Axis::Expert, 2)];
        let (all, divided) = (2.0 * (24.0 + 16.0 / 2.0), 2.0 * (24.0 / 4.0 + 16.0 / 2.0 / 2.0));
        assert_eq!(states(&mesh, 0), [state(2.0 * all, 4.0 * all, 12.0 * all)]);
        assert_eq!(states(&mesh, 1), [state(2.0 * all, 4.0 * all, 12.0 * divided)]);
        assert_eq!(states(&mesh, 3), [state(2.0 * divided, 4.0 * divided, 12.0 * divided)]);
    }
}
