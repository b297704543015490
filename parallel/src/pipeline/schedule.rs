//! Pipeline schedules: the order of the actions of each rank. A schedule is plain data. This module builds
//! it, [`Schedule::simulate`] checks it, and `execute` runs it.
//!
//! | method | stages | order on rank `p` of `P` | micro-batches in flight | idle units, `M` micro-batches |
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
    /// The gradient of the input.
    BackwardInput,
    /// The gradients of the weights.
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
    pub microbatch: usize,
}

/// The actions of each rank, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The kind of schedule.
    pub method: ScheduleKind,
    /// The number of ranks.
    pub num_ranks: usize,
    /// The number of stages of all ranks.
    pub num_stages: usize,
    /// The number of micro-batches.
    pub num_microbatches: usize,
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

    fn of_computation(self, step: ComputationType) -> usize {
        match step {
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
    done: Vec<Option<usize>>,
}

impl SimulatorState {
    fn new(stages: usize, micros: usize) -> Self {
        Self { stages, done: vec![None; 3 * stages * micros] }
    }

    fn slot_index(&self, step: ComputationType, micro: usize, stage: usize) -> usize {
        let kind = match step {
            ComputationType::Forward => 0,
            ComputationType::FullBackward | ComputationType::BackwardInput => 1,
            ComputationType::BackwardWeight => 2,
        };
        (micro * self.stages + stage) * 3 + kind
    }

    /// The end time of a computation; `None` if it is not done.
    fn finished_at(&self, step: ComputationType, micro: usize, stage: usize) -> Option<usize> {
        self.done[self.slot_index(step, micro, stage)]
    }

    fn finish(&mut self, Action { computation, microbatch, stage }: Action, time: usize) {
        let place = self.slot_index(computation, microbatch, stage);
        self.done[place] = Some(time);
    }

    /// The time at which all inputs of an action are available; `None` if one of them is not yet scheduled.
    fn ready_at(&self, Action { computation, microbatch, stage }: Action) -> Option<usize> {
        match computation {
            ComputationType::Forward if stage == 0 => Some(0),
            ComputationType::Forward => self.finished_at(ComputationType::Forward, microbatch, stage - 1),
            ComputationType::BackwardWeight => {
                self.finished_at(ComputationType::BackwardInput, microbatch, stage)
            }
            ComputationType::FullBackward | ComputationType::BackwardInput => {
                let own = self.finished_at(ComputationType::Forward, microbatch, stage)?;
                if stage + 1 == self.stages {
                    return Some(own);
                }
                Some(own.max(self.finished_at(ComputationType::BackwardInput, microbatch, stage + 1)?))
            }
        }
    }
}

impl Schedule {
    /// Builds the schedule of `num_microbatches` micro-batches over `num_ranks` ranks. `chunks` is the number
    /// of stages per rank of the interleaved schedule.
    pub fn new(method: ScheduleKind, num_ranks: usize, chunks: usize, num_microbatches: usize) -> Self {
        let num_stages = num_ranks * method.virtual_stages(chunks);
        let actions = match method {
            ScheduleKind::ZeroBubbleV => zero_bubble_v(num_ranks, num_microbatches),
            _ => (0..num_ranks)
                .map(|rank| warmup_steady_cooldown(method, [rank, num_ranks, num_stages, num_microbatches]))
                .collect(),
        };
        Self { method, num_ranks, num_stages, num_microbatches, actions }
    }

    /// Simulates the schedule. On a deadlock, returns the actions that wait for one another.
    pub fn simulate(&self, costs: Costs) -> Result<Timeline, Vec<Action>> {
        let mut progress = SimulatorState::new(self.num_stages, self.num_microbatches);
        let mut next = vec![0; self.num_ranks];
        let mut free_at = vec![0; self.num_ranks];
        let (mut busy, mut held, mut peak_in_flight) =
            (vec![0; self.num_ranks], vec![0_usize; self.num_ranks], vec![0; self.num_ranks]);

        let mut left: usize = self.actions.iter().map(Vec::len).sum();
        while left > 0 {
            let before = left;
            for rank in 0..self.num_ranks {
                while let Some(&action) = self.actions[rank].get(next[rank]) {
                    let Some(ready) = progress.ready_at(action) else { break };
                    free_at[rank] = ready.max(free_at[rank]) + costs.of_computation(action.computation);
                    busy[rank] += costs.of_computation(action.computation);
                    progress.finish(action, free_at[rank]);
                    match action.computation {
                        ComputationType::Forward => held[rank] += 1,
                        ComputationType::FullBackward | ComputationType::BackwardWeight => held[rank] -= 1,
                        ComputationType::BackwardInput => {}
                    }
                    peak_in_flight[rank] = peak_in_flight[rank].max(held[rank]);
                    next[rank] += 1;
                    left -= 1;
                }
            }
            if left == before {
                let stuck =
                    (0..self.num_ranks).filter_map(|rank| self.actions[rank].get(next[rank]).copied());
                return Err(stuck.collect());
            }
        }

        Ok(Timeline { length: free_at.into_iter().max().unwrap_or(0), busy, peak_in_flight })
    }
}

/// Builds one rank's actions: warm-up forward passes, then forward and backward passes alternately, then the
/// remaining backward passes.
fn warmup_steady_cooldown(method: ScheduleKind, [rank, ranks, stages, micros]: [usize; 4]) -> Vec<Action> {
    let (chunks, after) = (stages / ranks, ranks - rank - 1);
    // Build the order for a multiple of `ranks` micro-batches, then drop the actions of micro-batches that do
    // not exist. Dropping actions adds no dependency, so no rank waits longer.
    let full = micros.next_multiple_of(ranks);
    // Groups of `ranks` micro-batches go through one chunk before they go through the next.
    let order = |computation: ComputationType, chunk: &dyn Fn(usize) -> usize| -> Vec<Action> {
        (0..full * chunks)
            .map(|index| {
                let (turn, place) = (index / (ranks * chunks), index % (ranks * chunks));
                let microbatch = turn * ranks + place % ranks;
                Action { computation, microbatch, stage: chunk(place / ranks) * ranks + rank }
            })
            .collect()
    };

    let backward =
        if method.splits_backward() { ComputationType::BackwardInput } else { ComputationType::FullBackward };
    let forwards = order(ComputationType::Forward, &|chunk| chunk);
    let backwards = order(backward, &|chunk| chunks - 1 - chunk);

    let num_warmup_microbatches = match method {
        ScheduleKind::GPipe => forwards.len(),
        ScheduleKind::Interleaved => 2 * after + (chunks - 1) * ranks,
        _ => after,
    };

    let mut actions: Vec<Action> = forwards.iter().take(num_warmup_microbatches).copied().collect();
    let mut late =
        backwards.iter().map(|action| Action { computation: ComputationType::BackwardWeight, ..*action });

    let mut forwards = forwards.iter().skip(num_warmup_microbatches);
    for (index, action) in backwards.iter().enumerate() {
        actions.extend(forwards.next());
        actions.push(*action);
        if method.splits_backward() && index >= rank {
            actions.extend(late.next());
        }
    }
    if method.splits_backward() {
        actions.extend(late);
    }

    actions.retain(|action| action.microbatch < micros);
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
fn zero_bubble_v(ranks: usize, micros: usize) -> Vec<Vec<Action>> {
    let mut progress = SimulatorState::new(2 * ranks, micros);
    let mut waiting: Vec<RankQueues> = (0..ranks).map(|rank| RankQueues::new(rank, ranks, micros)).collect();
    let mut actions = vec![Vec::new(); ranks];
    let mut now = 0;
    while actions.iter().map(Vec::len).sum::<usize>() < 6 * ranks * micros {
        for (rank, actions) in waiting.iter_mut().zip(&mut actions) {
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
    fn new(rank: usize, ranks: usize, micros: usize) -> Self {
        // Prefer the second (returning) stage of a rank: its micro-batches free their activations soonest.
        let both = |computation| {
            let of_micro = move |microbatch| {
                [2 * ranks - 1 - rank, rank].map(|stage| Action { computation, stage, microbatch })
            };
            (0..micros).flat_map(of_micro)
        };
        let mut forward: Vec<Action> = both(ComputationType::Forward).collect();
        forward.sort_by_key(|action| action.stage < ranks);
        Self {
            input: both(ComputationType::BackwardInput).collect(),
            forward: forward.into(),
            weight: both(ComputationType::BackwardWeight).collect(),
            in_flight: 0,
            free_at: 0,
        }
    }

    /// Takes an action that can start now: an input gradient first, then a forward pass if there is memory
    /// for it, then a weight gradient.
    fn next(&mut self, ranks: usize, progress: &SimulatorState, now: usize) -> Option<Action> {
        let ready = |action: &Action| progress.ready_at(*action).is_some_and(|time| time <= now);
        if let Some(place) = self.input.iter().position(ready) {
            return self.input.remove(place);
        }
        // A forward pass in the first stage also reserves the activation memory of the second: hence the 2.
        let room = self.in_flight + 2 <= 2 * ranks;
        if let Some(place) =
            self.forward.iter().position(|action| ready(action) && (action.stage >= ranks || room))
        {
            let action = self.forward.remove(place)?;
            self.in_flight += if action.stage < ranks { 2 } else { 0 };
            return Some(action);
        }
        let place = self.weight.iter().position(ready)?;
        self.in_flight -= 1;
        self.weight.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [ScheduleKind; 5] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleV,
    ];

    fn simulated(method: ScheduleKind, ranks: usize, micros: usize, costs: Costs) -> Timeline {
        Schedule::new(method, ranks, 2, micros).simulate(costs).unwrap()
    }

    #[test]
    fn everything_is_done_once_by_its_rank_and_nobody_waits_for_ever() {
        for method in METHODS {
            for ranks in 1..6 {
                for micros in [1, 2, 3, 7, 8, 12] {
                    let schedule = Schedule::new(method, ranks, 2, micros);
                    let mut found: Vec<Action> = Vec::new();
                    for (rank, actions) in schedule.actions.iter().enumerate() {
                        assert!(
                            actions.iter().all(|action| method.rank_of_stage(action.stage, ranks) == rank)
                        );
                        // The messages from one stage to the next keep their order.
                        let kind = |action: &Action| (action.computation, action.stage);
                        let mut sorted = actions.clone();
                        sorted.sort_by_key(kind);
                        assert!(sorted.is_sorted(), "{method:?} {ranks} {micros}");
                        found.extend(actions);
                    }
                    found.sort();
                    found.dedup();
                    let kinds = if method.splits_backward() { 3 } else { 2 };
                    assert_eq!(
                        found.len(),
                        kinds * schedule.num_stages * micros,
                        "{method:?} {ranks} {micros}"
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
            let micros = 4 * ranks;
            let idle = |method: ScheduleKind, costs: Costs| {
                let timeline = simulated(method, ranks, micros, costs);
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
    fn a_rank_holds_no_more_than_its_method_says() {
        for ranks in [2, 4, 8] {
            let micros = 4 * ranks;
            let peak = |method| simulated(method, ranks, micros, Costs::UNIFORM).peak_in_flight;
            assert_eq!(peak(ScheduleKind::GPipe), vec![micros; ranks]);
            assert_eq!(peak(ScheduleKind::OneForwardOneBackward), (1..=ranks).rev().collect::<Vec<_>>());
            assert_eq!(peak(ScheduleKind::ZeroBubbleH1), vec![ranks; ranks]);
            // Each one counts for half of a rank's layers.
            let interleaved: Vec<usize> = (0..ranks).map(|rank| 2 * (ranks - rank - 1) + ranks + 1).collect();
            assert_eq!(peak(ScheduleKind::Interleaved), interleaved);
            assert!(peak(ScheduleKind::ZeroBubbleV).iter().all(|&held| held <= 2 * ranks));
        }
    }

    #[test]
    fn an_order_in_which_ranks_wait_for_one_another_is_found() {
        let mut schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
        schedule.actions[0].reverse();
        let stuck = schedule.simulate(Costs::UNIFORM).unwrap_err();
        assert_eq!(stuck[0], Action { computation: ComputationType::FullBackward, microbatch: 1, stage: 0 });
    }
}
