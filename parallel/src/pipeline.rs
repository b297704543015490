//! Layers among the ranks of a group: each has one or more runs of segments, called stages, and micro-batches go through all of them.
//!
//! ```text
//!   schedule    who does what in which order: data
//!   Pipeline    which segments lie where
//!   execute     one rank's share of a step, by the schedule
//! ```

mod execute;
pub mod schedule;

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::comm::Group;

pub use execute::execute;
pub use schedule::{Action, Method, Schedule, Step};

/// The stages of a network.
#[derive(Clone, Debug)]
pub struct Pipeline {
    group: Arc<Group>,
    method: Method,
    chunks: usize,
    /// The segments of each stage.
    stages: Vec<Range<usize>>,
}

impl Pipeline {
    /// Lays segments that cost so much each on the ranks of a group, `chunks` stages on each where the method leaves the choice. `None`
    /// if there are more stages than segments.
    pub fn new(group: &Arc<Group>, method: Method, chunks: usize, costs: &[f64]) -> Option<Self> {
        let stages = group.size() * method.chunks(chunks);
        (stages <= costs.len()).then(|| Self {
            group: Arc::clone(group),
            method,
            chunks,
            stages: balanced(costs, stages),
        })
    }

    /// The ranks.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The segments of a stage.
    pub fn segments(&self, stage: usize) -> Range<usize> {
        self.stages[stage].clone()
    }

    /// Whether this rank has a segment.
    pub fn has(&self, segment: usize) -> bool {
        let stage = self.stages.iter().position(|stage| stage.contains(&segment));
        stage.is_some_and(|stage| self.owner(stage) == self.group.rank())
    }

    /// Whether this rank has the last segment.
    pub fn is_last(&self) -> bool {
        self.last() == self.group.rank()
    }

    /// The schedule of a step of so many micro-batches.
    pub fn schedule(&self, micros: usize) -> Schedule {
        Schedule::new(self.method, self.group.size(), self.chunks, micros)
    }

    /// Sends one batch through all stages: `run` makes the output of some segments from the output of those before. Gives the last output
    /// on the rank that has it. `shape` is that of what goes from stage to stage.
    pub fn relay(
        &self,
        shape: &[i64],
        options: (Kind, Device),
        mut run: impl FnMut(Range<usize>, Option<Tensor>) -> Result<Tensor, Error>,
    ) -> Result<Option<Tensor>, Error> {
        let mut held = None;
        for (stage, segments) in self.stages.iter().enumerate() {
            // The tags below are those of a step.
            let tag = 2 * self.stages.len() + stage;
            if self.owner(stage) != self.group.rank() {
                continue;
            }
            if stage > 0 && self.owner(stage - 1) != self.group.rank() {
                held = Some(self.group.receive(shape, options, self.owner(stage - 1), tag)?);
            }
            held = Some(run(segments.clone(), held.take())?);
            if stage + 1 < self.stages.len() && self.owner(stage + 1) != self.group.rank() {
                let output = held.take().expect("a stage has an output").contiguous();
                self.group.send(&output, self.owner(stage + 1), tag + 1)?.wait()?;
            }
        }
        Ok(held)
    }

    /// What the rank with the last segment has made, on every rank.
    pub fn tell(
        &self,
        made: Option<Tensor>,
        shape: &[i64],
        options: (Kind, Device),
    ) -> Result<Tensor, Error> {
        let made = made.map_or_else(|| Tensor::empty(shape, options), |made| made.contiguous());
        self.group.broadcast(&made, self.last())?;
        Ok(made)
    }

    fn owner(&self, stage: usize) -> usize {
        self.method.owner(stage, self.group.size())
    }

    fn last(&self) -> usize {
        self.owner(self.stages.len() - 1)
    }
}

/// Cuts segments into runs, none of them empty, so that the dearest run is as cheap as can be.
fn balanced(costs: &[f64], runs: usize) -> Vec<Range<usize>> {
    let count = costs.len();
    let sum = |range: Range<usize>| costs[range].iter().sum::<f64>();
    // dearest[r][n]: of the first n segments in r + 1 runs, with the begin of the last run.
    let mut dearest: Vec<Vec<(f64, usize)>> = vec![(0..=count).map(|end| (sum(0..end), 0)).collect()];
    for run in 1..runs {
        let before = &dearest[run - 1];
        let best = |end: usize| {
            let choices = (run..end).map(|start| (before[start].0.max(sum(start..end)), start));
            choices.min_by(|left, right| left.0.total_cmp(&right.0)).unwrap_or((f64::INFINITY, 0))
        };
        let row = (0..=count).map(best).collect();
        dearest.push(row);
    }
    let mut stages = Vec::with_capacity(runs);
    let mut end = count;
    for run in (0..runs).rev() {
        let start = dearest[run][end].1;
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
    fn segments_are_laid_out_by_their_cost() {
        assert_eq!(balanced(&[0.0, 1.0, 1.0, 1.0, 1.0, 2.0], 2), [0..4, 4..6]);
        // The head is dear: the rank that has it has fewer layers.
        assert_eq!(balanced(&[0.0, 1.0, 1.0, 1.0, 1.0, 3.0], 3), [0..3, 3..5, 5..6]);
        assert_eq!(balanced(&[1.0; 4], 4), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(balanced(&[5.0, 1.0], 1), vec![0..2; 1]);
    }
}
