//! Pipeline schedules: the order of the actions of each rank. A schedule is plain data. This module builds
//! it, [`Schedule::simulate`] checks it, and `execute` runs it.
//!
//! | kind | stages | order on rank `p` of `P` | micro-batches in flight | idle units, `M` micro-batches |
//! |---|---|---|---|---|
//! | `GPipe` | `P` | all forward, then all backward | `M` | `(P - 1) (F + B)` |
//! | 1F1B | `P` | `P - p - 1` forward, then one forward and one backward alternately | `P - p` | `(P - 1) (F + B)` |
//! | interleaved | `P v`, assigned round-robin | `2 (P - p - 1) + (v - 1) P` forward, then one forward and one backward alternately | `2 (P - p - 1) + (v - 1) P + 1`, each with `1 / v` of the rank's layers | `(P - 1) (F + B) / v` |
//! | ZB-H1 | `P` | as 1F1B, weight gradients `p` micro-batches late | `P` | `(P - 1) (F + I - W)` |
//! | ZB-V | `2 P`, from rank 0 to the last rank and back | the first ready action of: input gradient, forward, weight gradient | `P` | about `(P - 1) F / 2` |
//!
//! `F` and `B = I + W` are the times of forward and backward through a rank's layers. The backward pass
//! computes the gradient of the input (`I`) and of the weights (`W`). (Huang et al. 2019, arXiv 1811.06965;
//! Narayanan et al. 2021, arXiv 2104.04473; Qi et al. 2024, arXiv 2401.10241 and 2405.15362.)

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The order in which micro-batches pass through a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes.
    #[serde(rename = "gpipe")]
    GPipe,
    /// Each backward pass as soon as possible.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B with several stages per rank.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// 1F1B with the weight gradients deferred to idle time.
    #[serde(rename = "zb-h1")]
    ZeroBubbleH1,
    /// Deferred weight gradients with two stages per rank in a V shape: the first stages go from rank 0 to
    /// the last rank, the second stages go back to rank 0.
    #[serde(rename = "zb-v")]
    ZeroBubbleV,
}

impl ScheduleKind {
    /// Whether input gradients and weight gradients are separate actions.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZeroBubbleH1 | Self::ZeroBubbleV)
    }

    /// The number of stages per rank. `chunks` is the number for the interleaved schedule.
    pub fn virtual_stages(self, chunks: usize) -> usize {
        match self {
            Self::Interleaved => chunks.max(1),
            Self::ZeroBubbleV => 2,
            Self::GPipe | Self::OneForwardOneBackward | Self::ZeroBubbleH1 => 1,
        }
    }

    /// The rank that holds a stage.
    pub fn rank_of_stage(self, stage: usize, ranks: usize) -> usize {
        match self {
            Self::ZeroBubbleV if stage >= ranks => 2 * ranks - 1 - stage,
            _ => stage % ranks,
        }
    }
}

/// The computation that a rank does for a micro-batch in one of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ComputationType {
    /// The forward pass.
    Forward,
    /// The gradients of input and weights.
    FullBackward,
    /// The gradient of the input (dgrad).
    BackwardInput,
    /// The gradients of the weights (wgrad).
    BackwardWeight,
}

/// One computation for one micro-batch in one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// The computation.
    pub computation: ComputationType,
    /// The stage, counted over all ranks.
    pub stage: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

/// The actions of each rank, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The kind of schedule.
    pub kind: ScheduleKind,
    /// The number of ranks.
    pub num_ranks: usize,
    /// The number of stages of all ranks.
    pub num_stages: usize,
    /// The number of micro-batches.
    pub num_micro_batches: usize,
    /// The actions of each rank.
    pub actions: Vec<Vec<Action>>,
}

/// The duration of each computation of one stage, in units of time.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The forward pass.
    pub forward: usize,
    /// The gradient of the input.
    pub input: usize,
    /// The gradients of the weights.
    pub weight: usize,
}

impl Costs {
    /// Equal durations, as for matrix products.
    pub const UNIFORM: Self = Self { forward: 1, input: 1, weight: 1 };

    fn of_computation(self, computation: ComputationType) -> usize {
        match computation {
            ComputationType::Forward => self.forward,
            ComputationType::FullBackward => self.input + self.weight,
            ComputationType::BackwardInput => self.input,
            ComputationType::BackwardWeight => self.weight,
        }
    }
}

/// The simulated execution of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The time from the start of the first action to the end of the last.
    pub length: usize,
    /// The busy time of each rank.
    pub busy: Vec<usize>,
    /// The largest number of micro-batches in flight on each rank, counted per stage, from their forward pass
    /// to their weight gradients.
    pub peak_in_flight: Vec<usize>,
}

impl Timeline {
    /// The fraction of the time in which the ranks are idle.
    pub fn bubble_fraction(&self) -> f64 {
        let busy: usize = self.busy.iter().sum();
        1.0 - busy as f64 / (self.length * self.busy.len()) as f64
    }
}

/// The computations done so far, with their end times.
struct SimulatorState {
    stages: usize,
    /// The end time of each computation, by micro-batch, stage and kind.
    end_times: Vec<Option<usize>>,
}

impl SimulatorState {
    fn new(stages: usize, num_micro_batches: usize) -> Self {
        Self { stages, end_times: vec![None; 3 * stages * num_micro_batches] }
    }

    fn computation_index(&self, computation: ComputationType, micro_batch: usize, stage: usize) -> usize {
        let kind = match computation {
            ComputationType::Forward => 0,
            ComputationType::FullBackward | ComputationType::BackwardInput => 1,
            ComputationType::BackwardWeight => 2,
        };
        (micro_batch * self.stages + stage) * 3 + kind
    }

    /// The end time of a computation; `None` if it is not done.
    fn finished_at(&self, computation: ComputationType, micro_batch: usize, stage: usize) -> Option<usize> {
        self.end_times[self.computation_index(computation, micro_batch, stage)]
    }

    fn finish(&mut self, Action { computation, micro_batch, stage }: Action, time: usize) {
        let index = self.computation_index(computation, micro_batch, stage);
        self.end_times[index] = Some(time);
    }

    /// The time at which all inputs of an action are available; `None` if one of them is not yet scheduled.
    fn ready_at(&self, Action { computation, micro_batch, stage }: Action) -> Option<usize> {
        match computation {
            ComputationType::Forward if stage == 0 => Some(0),
            ComputationType::Forward => self.finished_at(ComputationType::Forward, micro_batch, stage - 1),
            ComputationType::BackwardWeight => {
                self.finished_at(ComputationType::BackwardInput, micro_batch, stage)
            }
            ComputationType::FullBackward | ComputationType::BackwardInput => {
                let forward_end = self.finished_at(ComputationType::Forward, micro_batch, stage)?;
                if stage + 1 == self.stages {
                    return Some(forward_end);
                }
                Some(forward_end.max(self.finished_at(
                    ComputationType::BackwardInput,
                    micro_batch,
                    stage + 1,
                )?))
            }
        }
    }
}

impl Schedule {
    /// Builds the schedule of `num_micro_batches` micro-batches over `num_ranks` ranks. `chunks` is the
    /// number of stages per rank of the interleaved schedule.
    pub fn new(kind: ScheduleKind, num_ranks: usize, chunks: usize, num_micro_batches: usize) -> Self {
        let num_stages = num_ranks * kind.virtual_stages(chunks);
        let actions = match kind {
            ScheduleKind::ZeroBubbleV => zero_bubble_v(num_ranks, num_micro_batches),
            _ => (0..num_ranks)
                .map(|rank| warmup_steady_cooldown(kind, [rank, num_ranks, num_stages, num_micro_batches]))
                .collect(),
        };
        Self { kind, num_ranks, num_stages, num_micro_batches, actions }
    }

    /// Simulates the schedule. On a deadlock, returns the actions that wait for one another.
    pub fn simulate(&self, costs: Costs) -> Result<Timeline, Vec<Action>> {
        let mut progress = SimulatorState::new(self.num_stages, self.num_micro_batches);
        let mut next = vec![0; self.num_ranks];
        let mut free_at = vec![0; self.num_ranks];
        let (mut busy, mut in_flight, mut peak_in_flight) =
            (vec![0; self.num_ranks], vec![0_usize; self.num_ranks], vec![0; self.num_ranks]);

        let mut remaining: usize = self.actions.iter().map(Vec::len).sum();
        while remaining > 0 {
            let before = remaining;
            for rank in 0..self.num_ranks {
                while let Some(&action) = self.actions[rank].get(next[rank]) {
                    let Some(ready) = progress.ready_at(action) else { break };
                    free_at[rank] = ready.max(free_at[rank]) + costs.of_computation(action.computation);
                    busy[rank] += costs.of_computation(action.computation);
                    progress.finish(action, free_at[rank]);
                    match action.computation {
                        ComputationType::Forward => in_flight[rank] += 1,
                        ComputationType::FullBackward | ComputationType::BackwardWeight => {
                            in_flight[rank] -= 1;
                        }
                        ComputationType::BackwardInput => {}
                    }
                    peak_in_flight[rank] = peak_in_flight[rank].max(in_flight[rank]);
                    next[rank] += 1;
                    remaining -= 1;
                }
            }
            if remaining == before {
                let stuck =
                    (0..self.num_ranks).filter_map(|rank| self.actions[rank].get(next[rank]).copied());
                return Err(stuck.collect());
            }
        }

        Ok(Timeline { length: free_at.into_iter().max().unwrap_or(0), busy, peak_in_flight })
    }
}

/// Builds one rank's actions: warm-up forward passes, then forward and backward passes alternately (the
/// steady phase of 1F1B), then the remaining backward passes.
fn warmup_steady_cooldown(
    kind: ScheduleKind,
    [rank, ranks, stages, num_micro_batches]: [usize; 4],
) -> Vec<Action> {
    let (chunks, ranks_after) = (stages / ranks, ranks - rank - 1);
    // Build the order for a multiple of `ranks` micro-batches, then drop the actions of micro-batches that do
    // not exist. Dropping actions adds no dependency, so no rank waits longer.
    let padded = num_micro_batches.next_multiple_of(ranks);
    // Groups of `ranks` micro-batches go through one chunk before they go through the next.
    let order = |computation: ComputationType, chunk: &dyn Fn(usize) -> usize| -> Vec<Action> {
        (0..padded * chunks)
            .map(|index| {
                let (round, offset) = (index / (ranks * chunks), index % (ranks * chunks));
                let micro_batch = round * ranks + offset % ranks;
                Action { computation, micro_batch, stage: chunk(offset / ranks) * ranks + rank }
            })
            .collect()
    };

    let backward =
        if kind.splits_backward() { ComputationType::BackwardInput } else { ComputationType::FullBackward };
    let forwards = order(ComputationType::Forward, &|chunk| chunk);
    let backwards = order(backward, &|chunk| chunks - 1 - chunk);

    // Megatron: `num_warmup_microbatches`.
    let num_warmup_micro_batches = match kind {
        ScheduleKind::GPipe => forwards.len(),
        ScheduleKind::Interleaved => 2 * ranks_after + (chunks - 1) * ranks,
        _ => ranks_after,
    };

    let mut actions: Vec<Action> = forwards.iter().take(num_warmup_micro_batches).copied().collect();
    let mut weight_grads =
        backwards.iter().map(|action| Action { computation: ComputationType::BackwardWeight, ..*action });

    let mut forwards = forwards.iter().skip(num_warmup_micro_batches);
    for (index, action) in backwards.iter().enumerate() {
        actions.extend(forwards.next());
        actions.push(*action);
        if kind.splits_backward() && index >= rank {
            actions.extend(weight_grads.next());
        }
    }
    if kind.splits_backward() {
        actions.extend(weight_grads);
    }

    actions.retain(|action| action.micro_batch < num_micro_batches);
    actions
}

/// The remaining actions of a rank of a V-shaped pipeline, each kind in order of preference.
struct RankQueues {
    input: VecDeque<Action>,
    forward: VecDeque<Action>,
    weight: VecDeque<Action>,
    /// The number of stage activations that the rank holds or has reserved.
    in_flight: usize,
    free_at: usize,
}

/// Builds the ZB-V schedule greedily: each idle rank takes the next ready action.
fn zero_bubble_v(ranks: usize, num_micro_batches: usize) -> Vec<Vec<Action>> {
    let mut progress = SimulatorState::new(2 * ranks, num_micro_batches);
    let mut rank_queues: Vec<RankQueues> =
        (0..ranks).map(|rank| RankQueues::new(rank, ranks, num_micro_batches)).collect();
    let mut actions = vec![Vec::new(); ranks];
    let mut now = 0;
    while actions.iter().map(Vec::len).sum::<usize>() < 6 * ranks * num_micro_batches {
        for (rank, actions) in rank_queues.iter_mut().zip(&mut actions) {
            if rank.free_at <= now
                && let Some(action) = rank.next(ranks, &progress, now)
            {
                rank.free_at = now + 1;
                progress.finish(action, rank.free_at);
                actions.push(action);
            }
        }
        now += 1;
    }
    actions
}

impl RankQueues {
    fn new(rank: usize, ranks: usize, num_micro_batches: usize) -> Self {
        // Prefer the second (returning) stage of a rank: its micro-batches free their activations soonest.
        let actions_of = |computation| {
            let stage_actions = move |micro_batch| {
                [2 * ranks - 1 - rank, rank].map(|stage| Action { computation, stage, micro_batch })
            };
            (0..num_micro_batches).flat_map(stage_actions)
        };
        let mut forward: Vec<Action> = actions_of(ComputationType::Forward).collect();
        forward.sort_by_key(|action| action.stage < ranks);
        Self {
            input: actions_of(ComputationType::BackwardInput).collect(),
            forward: forward.into(),
            weight: actions_of(ComputationType::BackwardWeight).collect(),
            in_flight: 0,
            free_at: 0,
        }
    }

    /// Takes an action that can start now: an input gradient first, then a forward pass if there is memory
    /// for it, then a weight gradient.
    fn next(&mut self, ranks: usize, progress: &SimulatorState, now: usize) -> Option<Action> {
        let ready = |action: &Action| progress.ready_at(*action).is_some_and(|time| time <= now);
        if let Some(index) = self.input.iter().position(ready) {
            return self.input.remove(index);
        }
        // A forward pass in the first stage also reserves the activation memory of the second: hence the 2.
        let has_memory = self.in_flight + 2 <= 2 * ranks;
        if let Some(index) =
            self.forward.iter().position(|action| ready(action) && (action.stage >= ranks || has_memory))
        {
            let action = self.forward.remove(index)?;
            self.in_flight += if action.stage < ranks { 2 } else { 0 };
            return Some(action);
        }
        let index = self.weight.iter().position(ready)?;
        self.in_flight -= 1;
        self.weight.remove(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ScheduleKind; 5] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleV,
    ];

    fn simulated(kind: ScheduleKind, ranks: usize, num_micro_batches: usize, costs: Costs) -> Timeline {
        Schedule::new(kind, ranks, 2, num_micro_batches).simulate(costs).unwrap()
    }

    #[test]
    fn every_action_runs_once_on_its_rank_without_deadlock() {
        for kind in KINDS {
            for ranks in 1..6 {
                for num_micro_batches in [1, 2, 3, 7, 8, 12] {
                    let schedule = Schedule::new(kind, ranks, 2, num_micro_batches);
                    let mut found: Vec<Action> = Vec::new();
                    for (rank, actions) in schedule.actions.iter().enumerate() {
                        assert!(actions.iter().all(|action| kind.rank_of_stage(action.stage, ranks) == rank));
                        // The messages from one stage to the next keep their order.
                        let by_stage = |action: &Action| (action.computation, action.stage);
                        let mut sorted = actions.clone();
                        sorted.sort_by_key(by_stage);
                        assert!(sorted.is_sorted(), "{kind:?} {ranks} {num_micro_batches}");
                        found.extend(actions);
                    }
                    found.sort();
                    found.dedup();
                    let kinds = if kind.splits_backward() { 3 } else { 2 };
                    assert_eq!(
                        found.len(),
                        kinds * schedule.num_stages * num_micro_batches,
                        "{kind:?} {ranks} {num_micro_batches}"
                    );
                    assert_eq!(found.len(), schedule.actions.iter().map(Vec::len).sum::<usize>());
                    for costs in [Costs::UNIFORM, Costs { forward: 3, input: 4, weight: 1 }] {
                        let timeline = schedule.simulate(costs).unwrap();
                        assert!(timeline.busy.iter().all(|&busy| busy <= timeline.length));
                    }
                }
            }
        }
    }

    #[test]
    fn the_bubble_is_what_the_papers_say() {
        for ranks in [2, 3, 4, 8] {
            let num_micro_batches = 4 * ranks;
            let idle = |kind: ScheduleKind, costs: Costs| {
                let timeline = simulated(kind, ranks, num_micro_batches, costs);
                timeline.length - timeline.busy[0]
            };
            // Times are per stage. Interleaved has two stages per rank, so its relative bubble is half as
            // large.
            let costs = Costs { forward: 2, input: 3, weight: 1 };
            let all = costs.forward + costs.input + costs.weight;
            assert_eq!(idle(ScheduleKind::GPipe, costs), (ranks - 1) * all);
            assert_eq!(idle(ScheduleKind::OneForwardOneBackward, costs), (ranks - 1) * all);
            assert_eq!(idle(ScheduleKind::Interleaved, Costs::UNIFORM), (ranks - 1) * 3);
            assert_eq!(idle(ScheduleKind::ZeroBubbleH1, Costs::UNIFORM), ranks - 1);
        }
        // Only the fill time up to the last rank remains.
        assert_eq!(simulated(ScheduleKind::ZeroBubbleV, 4, 16, Costs::UNIFORM).length, 16 * 6 + 3);
        let timeline = simulated(ScheduleKind::OneForwardOneBackward, 4, 8, Costs::UNIFORM);
        assert!((timeline.bubble_fraction() - 3.0 / 11.0).abs() < 1e-12);
    }

    #[test]
    fn micro_batches_in_flight_are_those_of_the_table() {
        for ranks in [2, 4, 8] {
            let num_micro_batches = 4 * ranks;
            let peak = |kind| simulated(kind, ranks, num_micro_batches, Costs::UNIFORM).peak_in_flight;
            assert_eq!(peak(ScheduleKind::GPipe), vec![num_micro_batches; ranks]);
            assert_eq!(peak(ScheduleKind::OneForwardOneBackward), (1..=ranks).rev().collect::<Vec<_>>());
            assert_eq!(peak(ScheduleKind::ZeroBubbleH1), vec![ranks; ranks]);
            // Each one counts for half of a rank's layers.
            let interleaved: Vec<usize> = (0..ranks).map(|rank| 2 * (ranks - rank - 1) + ranks + 1).collect();
            assert_eq!(peak(ScheduleKind::Interleaved), interleaved);
            assert!(peak(ScheduleKind::ZeroBubbleV).iter().all(|&in_flight| in_flight <= 2 * ranks));
        }
    }

    #[test]
    fn a_deadlock_is_found() {
        let mut schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
        schedule.actions[0].reverse();
        let stuck = schedule.simulate(Costs::UNIFORM).unwrap_err();
        assert_eq!(stuck[0], Action { computation: ComputationType::FullBackward, micro_batch: 1, stage: 0 });
    }
}
