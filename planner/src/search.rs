//! Which layout of a run is fastest, among all that fit.
//!
//! The layouts of `P` ranks are the ways to write `P` as a product of the sizes of the axes, each with every
//! ZeRO stage, schedule, recomputation and micro-batch. For 10,000 ranks these are some hundred thousand, so
//! [`best`] compares lower bounds first (branch and bound, Land and Doig 1960): in ascending order of the
//! bound it computes exact seconds, until the bound of the next layout is above the slowest of those that are
//! kept. What it returns is what an exhaustive search returns.

use parallel::pipeline::ScheduleKind;
use parallel::{Axis, Mesh};

use crate::layout::{Layout, SequenceMode};

/// What a search may choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// The number of ranks.
    pub ranks: usize,
    /// The sizes of tensor parallelism that divide the heads of all models.
    pub tensor: Vec<usize>,
    /// The largest number of stages of a pipeline.
    pub most_stages: usize,
    /// The sizes of expert parallelism.
    pub expert: Vec<usize>,
    /// The modes of sequence parallelism.
    pub sequence: Vec<SequenceMode>,
    /// The largest number of ranks that divide the tokens of a row.
    pub most_sequence_ranks: usize,
    /// The stages of ZeRO.
    pub zero: Vec<u8>,
    /// The schedules of a pipeline, each with its stages on a rank.
    pub schedules: Vec<(ScheduleKind, usize)>,
    /// Whether activations are computed again.
    pub recomputes: Vec<bool>,
    /// The rows of a step.
    pub rows: usize,
    /// The sizes of micro-batches.
    pub micro_batch_sizes: Vec<usize>,
}

/// A layout with the rows of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// How ranks divide the work.
    pub layout: Layout,
    /// The most rows of a micro-batch.
    pub micro_batch_size: usize,
}

impl Space {
    /// Every layout of the space, in a fixed order.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        for [tensor, pipeline, expert] in self.model_sizes() {
            let rest = self.ranks / (tensor * pipeline * expert);
            for (mode, sequence) in self.sequences(rest, tensor) {
                let data = rest / sequence;
                // Every rank has a row of each step.
                if data * expert > self.rows {
                    continue;
                }
                let sizes = [
                    (Axis::Pipeline, pipeline),
                    (Axis::Data, data),
                    (Axis::Expert, expert),
                    (Axis::Sequence, sequence),
                    (Axis::Tensor, tensor),
                ];
                let mesh = Mesh::new(&sizes, 0, self.ranks).expect("the sizes are factors of the ranks");
                self.add_variants(&mesh, mode, &mut found);
            }
        }
        found
    }

    /// The sizes of tensor, pipeline and expert parallelism whose product divides the ranks.
    fn model_sizes(&self) -> Vec<[usize; 3]> {
        let mut found = Vec::new();
        for stages in 1..=self.most_stages.min(self.ranks) {
            for &tensor in &self.tensor {
                for &expert in &self.expert {
                    if self.ranks.is_multiple_of(tensor * stages * expert) {
                        found.push([tensor, stages, expert]);
                    }
                }
            }
        }
        found
    }

    /// The modes of sequence parallelism with their number of ranks, of `rest` that are left.
    fn sequences(&self, rest: usize, tensor: usize) -> Vec<(SequenceMode, usize)> {
        let most = self.most_sequence_ranks.min(rest);
        let sizes = |mode: SequenceMode| -> Vec<usize> {
            match mode {
                SequenceMode::Megatron if tensor == 1 => Vec::new(),
                SequenceMode::None | SequenceMode::Megatron => vec![1],
                SequenceMode::Ulysses | SequenceMode::Ring => {
                    (2..=most).filter(|size| rest.is_multiple_of(*size)).collect()
                }
            }
        };
        self.sequence.iter().flat_map(|&mode| sizes(mode).into_iter().map(move |size| (mode, size))).collect()
    }

    /// Adds every way to run on a mesh.
    fn add_variants(&self, mesh: &Mesh, sequence: SequenceMode, found: &mut Vec<Candidate>) {
        let stages = mesh.size(Axis::Pipeline);
        let row_ranks = mesh.size(Axis::Data) * mesh.size(Axis::Expert);
        let copies = row_ranks * mesh.size(Axis::Sequence);
        let schedules: &[(ScheduleKind, usize)] =
            if stages == 1 { &[(ScheduleKind::OneForwardOneBackward, 1)] } else { &self.schedules };
        for &(schedule, chunks) in schedules {
            // Each stage has a segment.
            if stages > 1 && stages * schedule.virtual_stages(chunks) > self.most_stages {
                continue;
            }
            // Where one rank has each weight, ZeRO divides nothing.
            for &zero in self.zero.iter().filter(|&&zero| copies > 1 || zero == 0) {
                for &recomputes in &self.recomputes {
                    let fits = |size: &&usize| **size * row_ranks <= self.rows.next_multiple_of(row_ranks);
                    for &micro_batch_size in self.micro_batch_sizes.iter().filter(fits) {
                        let mesh = mesh.clone();
                        let layout = Layout { mesh, sequence, zero, schedule, chunks, recomputes };
                        found.push(Candidate { layout, micro_batch_size });
                    }
                }
            }
        }
    }
}

/// The `keep` candidates with the least exact costs, ascending, with what is known of them. `bound` is never
/// above the exact cost. `exact` is `None` for a candidate that cannot be, and may be for one whose cost is
/// above its second argument.
pub fn best<C, T, E>(
    candidates: Vec<C>,
    keep: usize,
    mut bound: impl FnMut(&C) -> Result<f64, E>,
    mut exact: impl FnMut(&C, f64) -> Result<Option<(f64, T)>, E>,
) -> Result<Vec<(C, T)>, E> {
    let mut ordered = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        ordered.push((bound(&candidate)?, candidate));
    }
    ordered.sort_by(|(left, _), (right, _)| left.total_cmp(right));
    let mut found: Vec<(f64, (C, T))> = Vec::new();
    for (bound, candidate) in ordered {
        let slowest = found.last().filter(|_| found.len() == keep).map_or(f64::INFINITY, |&(cost, _)| cost);
        if bound > slowest {
            break;
        }
        let Some((cost, known)) = exact(&candidate, slowest)? else { continue };
        let place = found.partition_point(|&(other, _)| other <= cost);
        found.insert(place, (cost, (candidate, known)));
        found.truncate(keep);
    }
    Ok(found.into_iter().map(|(_, known)| known).collect())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn space(ranks: usize) -> Space {
        Space {
            ranks,
            tensor: vec![1, 2, 4],
            most_stages: 4,
            expert: vec![1],
            sequence: vec![SequenceMode::None, SequenceMode::Megatron, SequenceMode::Ulysses],
            most_sequence_ranks: 2,
            zero: vec![0, 3],
            schedules: vec![(ScheduleKind::OneForwardOneBackward, 1), (ScheduleKind::Interleaved, 2)],
            recomputes: vec![false, true],
            rows: 8,
            micro_batch_sizes: vec![1, 4],
        }
    }

    #[test]
    fn one_rank_has_one_layout_with_every_setting() {
        // Recomputation or not, and micro-batches of 1 or 4.
        let candidates = space(1).candidates();
        assert_eq!(candidates.len(), 4);
        assert!(candidates.iter().all(|candidate| candidate.layout.zero == 0));
    }

    #[test]
    fn every_factorization_is_there_once() {
        let candidates = space(8).candidates();
        let mut meshes: Vec<String> = candidates
            .iter()
            .map(|candidate| format!("{} {:?}", candidate.layout.mesh, candidate.layout.sequence))
            .collect();
        meshes.dedup();
        let mut unique = meshes.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), meshes.len(), "{meshes:?}");
        // tensor 1, 2, 4 x pipeline 1, 2, 4 with a product of at most 8: eight pairs, each without sequence
        // parallelism; five of them with Megatron's mode (tensor 2 and 4); six, with a product of at most 4,
        // leave two ranks for Ulysses.
        let count = |mode: &str| meshes.iter().filter(|mesh| mesh.ends_with(mode)).count();
        assert_eq!((count("None"), count("Megatron"), count("Ulysses")), (8, 5, 6), "{meshes:#?}");
        // Two stages of four are more than there are segments.
        let interleaved = |candidate: &&Candidate| candidate.layout.schedule == ScheduleKind::Interleaved;
        assert!(
            candidates.iter().filter(interleaved).all(|candidate| candidate.layout.size(Axis::Pipeline) == 2)
        );
    }

    #[test]
    fn micro_batches_are_not_larger_than_the_rows_of_a_rank() {
        let large =
            |candidate: &Candidate| candidate.micro_batch_size == 4 && candidate.layout.row_ranks() > 2;
        assert!(!space(8).candidates().iter().any(large));
    }

    proptest! {
        #[test]
        fn the_best_are_those_of_an_exhaustive_search(
            costs in prop::collection::vec((0.0..1.0, 0.0..1.0, prop::bool::weighted(0.8)), 0..40),
            keep in 1_usize..5,
        ) {
            let candidates: Vec<usize> = (0..costs.len()).collect();
            let exact = |&index: &usize| costs[index].2.then_some(costs[index].0 + costs[index].1);
            let bound = |&index: &usize| Ok::<_, Infallible>(costs[index].0);
            let found = best(candidates.clone(), keep, bound, |index, slowest| {
                Ok(exact(index).filter(|&cost| cost <= slowest).map(|cost| (cost, cost)))
            });
            let mut wanted: Vec<f64> = candidates.iter().filter_map(exact).collect();
            wanted.sort_by(f64::total_cmp);
            wanted.truncate(keep);
            let found: Vec<f64> = found.unwrap().into_iter().map(|(_, cost)| cost).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
