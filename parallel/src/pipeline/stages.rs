//! Which segments of a network each rank of a pipeline holds.

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::{PendingSends, Schedule, ScheduleKind};
use crate::Error;
use crate::comm::ProcessGroup;

/// The pipeline stages of a network.
#[derive(Clone, Debug)]
pub struct PipelineStages {
    group: Arc<ProcessGroup>,
    schedule_kind: ScheduleKind,
    virtual_stages: usize,
    /// The segments of each stage.
    stages: Vec<Range<usize>>,
}

impl PipelineStages {
    /// Assigns segments of the given `costs` to the ranks of a group. `virtual_stages` is the number of
    /// stages per rank if the schedule leaves it free. Returns `None` if there are more stages than segments.
    pub fn new(
        group: &Arc<ProcessGroup>,
        schedule_kind: ScheduleKind,
        virtual_stages: usize,
        costs: &[f64],
    ) -> Option<Self> {
        let stages = group.size() * schedule_kind.virtual_stages(virtual_stages);
        (stages <= costs.len()).then(|| Self {
            group: Arc::clone(group),
            schedule_kind,
            virtual_stages,
            stages: partition_balanced(costs, stages),
        })
    }

    /// The process group of the pipeline.
    pub fn group(&self) -> &Arc<ProcessGroup> {
        &self.group
    }

    /// The segments of a stage.
    pub fn segments(&self, stage: usize) -> Range<usize> {
        self.stages[stage].clone()
    }

    /// Whether this rank has the segment.
    pub fn owns_segment(&self, segment: usize) -> bool {
        let stage = self.stages.iter().position(|stage| stage.contains(&segment));
        stage.is_some_and(|stage| self.rank_of_stage(stage) == self.group.rank())
    }

    /// Whether this rank has the last segment.
    pub fn is_last_stage(&self) -> bool {
        self.last_stage_rank() == self.group.rank()
    }

    /// Whether every rank has one stage, so that a batch visits it once.
    pub fn has_one_stage_per_rank(&self) -> bool {
        self.stages.len() == self.group.size()
    }

    /// The schedule of a step with `num_micro_batches` micro-batches.
    pub fn schedule(&self, num_micro_batches: usize) -> Schedule {
        Schedule::new(self.schedule_kind, self.group.size(), self.virtual_stages, num_micro_batches)
    }

    /// Runs one batch forward through all stages. `run_segments` computes the output of a range of segments
    /// from the output of the previous range. `shape` is the shape of the hidden states between two stages.
    /// Returns the last output on the rank that has it. The messages to the next stages are added to `sends`,
    /// so that this rank can run another batch meanwhile.
    pub fn run_stages(
        &self,
        shape: &[i64],
        options: (Kind, Device),
        sends: &mut PendingSends,
        mut run_segments: impl FnMut(Range<usize>, Option<Tensor>) -> Result<Tensor, Error>,
    ) -> Result<Option<Tensor>, Error> {
        let mut hidden = None;
        for (stage, segments) in self.stages.iter().enumerate() {
            let tag = self.inference_tag() + stage;
            if self.rank_of_stage(stage) != self.group.rank() {
                continue;
            }
            if stage > 0 && self.rank_of_stage(stage - 1) != self.group.rank() {
                hidden = Some(self.group.recv(shape, options, self.rank_of_stage(stage - 1), tag)?);
            }
            hidden = Some(run_segments(segments.clone(), hidden.take())?);
            if stage + 1 < self.stages.len() && self.rank_of_stage(stage + 1) != self.group.rank() {
                let output = hidden.take().expect("a stage has an output").contiguous();
                sends.send(&self.group, output, self.rank_of_stage(stage + 1), tag + 1)?;
            }
        }
        Ok(hidden)
    }

    /// Sends what the rank with the last stage knows to every other rank, which
    /// [receives](Self::receive_from_last_stage) it. Unlike a broadcast, no rank waits for another one here.
    pub fn send_from_last_stage(&self, message: &Tensor, sends: &mut PendingSends) -> Result<(), Error> {
        let others = (0..self.group.size()).filter(|&rank| rank != self.group.rank());
        others.into_iter().try_for_each(|rank| {
            sends.send(&self.group, message.shallow_clone(), rank, self.inference_tag() + self.stages.len())
        })
    }

    /// Receives a message of the rank with the last stage.
    pub fn receive_from_last_stage(&self, shape: &[i64], options: (Kind, Device)) -> Result<Tensor, Error> {
        self.group.recv(shape, options, self.last_stage_rank(), self.inference_tag() + self.stages.len())
    }

    /// The first tag of messages without gradients. Smaller tags belong to the messages of a training step.
    fn inference_tag(&self) -> usize {
        2 * self.stages.len()
    }

    /// Broadcasts the output of the rank with the last segment to every rank.
    pub fn broadcast_from_last_stage(
        &self,
        output: Option<Tensor>,
        shape: &[i64],
        options: (Kind, Device),
    ) -> Result<Tensor, Error> {
        let output = output.map_or_else(|| Tensor::empty(shape, options), |output| output.contiguous());
        self.group.broadcast(&output, self.last_stage_rank())?;
        Ok(output)
    }

    fn rank_of_stage(&self, stage: usize) -> usize {
        self.schedule_kind.rank_of_stage(stage, self.group.size())
    }

    fn last_stage_rank(&self) -> usize {
        self.rank_of_stage(self.stages.len() - 1)
    }
}

/// Splits the segments into `num_ranges` contiguous non-empty ranges such that the largest total cost of a
/// range is minimal.
pub fn partition_balanced(costs: &[f64], num_ranges: usize) -> Vec<Range<usize>> {
    let count = costs.len();
    let sum = |range: Range<usize>| costs[range].iter().sum::<f64>();

    // min_max_cost[r][n]: the smallest possible maximum cost when the first n segments are split into r + 1
    // ranges, and the start of the last of these ranges.
    let mut min_max_cost: Vec<Vec<(f64, usize)>> = vec![(0..=count).map(|end| (sum(0..end), 0)).collect()];
    for index in 1..num_ranges {
        let previous = &min_max_cost[index - 1];
        let best = |end: usize| {
            let choices = (index..end).map(|start| (previous[start].0.max(sum(start..end)), start));
            choices.min_by(|left, right| left.0.total_cmp(&right.0)).unwrap_or((f64::INFINITY, 0))
        };
        let row = (0..=count).map(best).collect();
        min_max_cost.push(row);
    }

    // Follow the recorded starts from the last range back to the first.
    let mut stages = Vec::with_capacity(num_ranges);
    let mut end = count;
    for index in (0..num_ranges).rev() {
        let start = min_max_cost[index][end].1;
        stages.push(start..end);
        end = start;
    }
    stages.reverse();
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_partitioned_by_cost() {
        assert_eq!(partition_balanced(&[0.0, 1.0, 1.0, 1.0, 1.0, 2.0], 2), [0..4, 4..6]);
        // The head is expensive, so the rank that has it gets fewer layers.
        assert_eq!(partition_balanced(&[0.0, 1.0, 1.0, 1.0, 1.0, 3.0], 3), [0..3, 3..5, 5..6]);
        assert_eq!(partition_balanced(&[1.0; 4], 4), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(partition_balanced(&[5.0, 1.0], 1), vec![0..2; 1]);
    }
}
