//! Who does what in which order: a schedule is data, made here, checked by [`Schedule::simulate`], and run by [`execute`](super::execute).
//!
//! | method | stages | order on rank `p` of `P` | micro-batches that it holds | idle units, `M` micro-batches |
//! |---|---|---|---|---|
//! | `GPipe` | `P` | all forward, all backward | `M` | `(P - 1) (F + B)` |
//! | 1F1B | `P` | `P - p - 1` forward, then in turn | `P - p` | `(P - 1) (F + B)` |
//! | interleaved | `P v`, dealt out in turn | `2 (P - p - 1) + (v - 1) P` forward, then in turn | `2 (P - p - 1) + (v - 1) P + 1` parts of `1 / v` | `(P - 1) (F + B) / v` |
//! | ZB-H1 | `P` | as 1F1B, gradients of weights `p` micro-batches late | `P` | `(P - 1) (F + I - W)` |
//! | ZB-V | `2 P`, there and back | what is ready: input gradients, forward, weight gradients | `P` | about `(P - 1) F / 2` |
//!
//! `F`, `B = I + W`: units of forward and backward of a rank's layers; the backward pass makes the gradient of the input (`I`) and of the
//! weights (`W`). (Huang et al. 2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473; Qi et al. 2024, arXiv 2401.10241 and
//! 2405.15362.)

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// How micro-batches go through a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// All forward, then all backward.
    #[serde(rename = "gpipe")]
    GPipe,
    /// A backward pass as soon as one can be.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with several stages a rank.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// Gradients of weights wait for idle time.
    #[serde(rename = "zb-h1")]
    ZeroBubbleH1,
    /// The same with two stages a rank: the first on the way there, the second on the way back.
    #[serde(rename = "zb-v")]
    ZeroBubbleV,
}

impl Method {
    /// Whether the two halves of a backward pass are actions of their own.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZeroBubbleH1 | Self::ZeroBubbleV)
    }

    /// Stages of a rank, where `chunks` are wanted of the interleaved method.
    pub fn chunks(self, chunks: usize) -> usize {
        match self {
            Self::Interleaved => chunks.max(1),
            Self::ZeroBubbleV => 2,
            Self::GPipe | Self::OneForwardOneBackward | Self::ZeroBubbleH1 => 1,
        }
    }

    /// The rank of a stage.
    pub fn owner(self, stage: usize, ranks: usize) -> usize {
        match self {
            Self::ZeroBubbleV if stage >= ranks => 2 * ranks - 1 - stage,
            _ => stage % ranks,
        }
    }
}

/// What a rank does with a micro-batch in one of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Hidden states onwards.
    Forward,
    /// The gradients of input and weights.
    Backward,
    /// The gradient of the input.
    Input,
    /// The gradients of the weights.
    Weight,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// What.
    pub step: Step,
    /// In which stage, of all ranks.
    pub stage: usize,
    /// With which micro-batch.
    pub micro: usize,
}

/// What each rank does, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The method.
    pub method: Method,
    /// Ranks.
    pub ranks: usize,
    /// Stages of all ranks.
    pub stages: usize,
    /// Micro-batches.
    pub micros: usize,
    /// The actions of each rank.
    pub actions: Vec<Vec<Action>>,
}

/// Units of time that the steps of one stage take.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Forward.
    pub forward: usize,
    /// The gradient of the input.
    pub input: usize,
    /// The gradients of the weights.
    pub weight: usize,
}

impl Costs {
    /// As in networks of matrix products.
    pub const EVEN: Self = Self { forward: 1, input: 1, weight: 1 };

    fn of(self, step: Step) -> usize {
        match step {
            Step::Forward => self.forward,
            Step::Backward => self.input + self.weight,
            Step::Input => self.input,
            Step::Weight => self.weight,
        }
    }
}

/// How a schedule goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Units from the first action to the end of the last.
    pub length: usize,
    /// Units of work of each rank.
    pub busy: Vec<usize>,
    /// Parts of micro-batches that each rank holds at most, from their forward to the gradient of their weights.
    pub peak: Vec<usize>,
}

impl Timeline {
    /// The share of the time in which the ranks do nothing.
    pub fn bubble(&self) -> f64 {
        let busy: usize = self.busy.iter().sum();
        1.0 - busy as f64 / (self.length * self.busy.len()) as f64
    }
}

/// What is done so far, and when.
struct Progress {
    stages: usize,
    /// When each step of each micro-batch in each stage was done.
    done: Vec<Option<usize>>,
}

impl Progress {
    fn new(stages: usize, micros: usize) -> Self {
        Self { stages, done: vec![None; 3 * stages * micros] }
    }

    fn place(&self, step: Step, micro: usize, stage: usize) -> usize {
        let kind = match step {
            Step::Forward => 0,
            Step::Backward | Step::Input => 1,
            Step::Weight => 2,
        };
        (micro * self.stages + stage) * 3 + kind
    }

    /// When the gradient of the input, or the forward pass, was done.
    fn at(&self, step: Step, micro: usize, stage: usize) -> Option<usize> {
        self.done[self.place(step, micro, stage)]
    }

    fn finish(&mut self, Action { step, micro, stage }: Action, time: usize) {
        let place = self.place(step, micro, stage);
        self.done[place] = Some(time);
    }

    /// When everything is there that an action needs; `None` if something is not even begun.
    fn ready(&self, Action { step, micro, stage }: Action) -> Option<usize> {
        match step {
            Step::Forward if stage == 0 => Some(0),
            Step::Forward => self.at(Step::Forward, micro, stage - 1),
            Step::Weight => self.at(Step::Input, micro, stage),
            Step::Backward | Step::Input => {
                let own = self.at(Step::Forward, micro, stage)?;
                if stage + 1 == self.stages {
                    return Some(own);
                }
                Some(own.max(self.at(Step::Input, micro, stage + 1)?))
            }
        }
    }
}

impl Schedule {
    /// The schedule of `micros` micro-batches over `ranks` ranks with `chunks` stages each.
    pub fn new(method: Method, ranks: usize, chunks: usize, micros: usize) -> Self {
        let stages = ranks * method.chunks(chunks);
        let actions = match method {
            Method::ZeroBubbleV => there_and_back(ranks, micros),
            _ => (0..ranks).map(|rank| in_turn(method, [rank, ranks, stages, micros])).collect(),
        };
        Self { method, ranks, stages, micros, actions }
    }

    /// Runs the schedule on paper. Fails with the actions that wait for one another for ever.
    pub fn simulate(&self, costs: Costs) -> Result<Timeline, Vec<Action>> {
        let mut progress = Progress::new(self.stages, self.micros);
        let mut next = vec![0; self.ranks];
        let mut free_at = vec![0; self.ranks];
        let (mut busy, mut held, mut peak) =
            (vec![0; self.ranks], vec![0_usize; self.ranks], vec![0; self.ranks]);
        let mut left: usize = self.actions.iter().map(Vec::len).sum();
        while left > 0 {
            let before = left;
            for rank in 0..self.ranks {
                while let Some(&action) = self.actions[rank].get(next[rank]) {
                    let Some(ready) = progress.ready(action) else { break };
                    free_at[rank] = ready.max(free_at[rank]) + costs.of(action.step);
                    busy[rank] += costs.of(action.step);
                    progress.finish(action, free_at[rank]);
                    match action.step {
                        Step::Forward => held[rank] += 1,
                        Step::Backward | Step::Weight => held[rank] -= 1,
                        Step::Input => {}
                    }
                    peak[rank] = peak[rank].max(held[rank]);
                    next[rank] += 1;
                    left -= 1;
                }
            }
            if left == before {
                let stuck = (0..self.ranks).filter_map(|rank| self.actions[rank].get(next[rank]).copied());
                return Err(stuck.collect());
            }
        }
        Ok(Timeline { length: free_at.into_iter().max().unwrap_or(0), busy, peak })
    }
}

/// Some forward passes, then one backward pass for each forward pass, then the backward passes that are left.
fn in_turn(method: Method, [rank, ranks, stages, micros]: [usize; 4]) -> Vec<Action> {
    let (chunks, after) = (stages / ranks, ranks - rank - 1);
    // Build the order for a multiple of `ranks` micro-batches, then drop the actions of micro-batches that do
    // not exist. Dropping actions adds no dependency, so no rank waits longer.
    let full = micros.next_multiple_of(ranks);
    // As many micro-batches as ranks go through one stage before the next stage has its turn.
    let order = |step: Step, chunk: &dyn Fn(usize) -> usize| -> Vec<Action> {
        (0..full * chunks)
            .map(|index| {
                let (turn, place) = (index / (ranks * chunks), index % (ranks * chunks));
                let micro = turn * ranks + place % ranks;
                Action { step, micro, stage: chunk(place / ranks) * ranks + rank }
            })
            .collect()
    };
    let backward = if method.splits_backward() { Step::Input } else { Step::Backward };
    let forwards = order(Step::Forward, &|chunk| chunk);
    let backwards = order(backward, &|chunk| chunks - 1 - chunk);
    let ahead = match method {
        Method::GPipe => forwards.len(),
        Method::Interleaved => 2 * after + (chunks - 1) * ranks,
        _ => after,
    };
    let mut actions: Vec<Action> = forwards.iter().take(ahead).copied().collect();
    let mut late = backwards.iter().map(|action| Action { step: Step::Weight, ..*action });
    let mut forwards = forwards.iter().skip(ahead);
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
    actions.retain(|action| action.micro < micros);
    actions
}

/// What a rank of a pipeline there and back has still to do, each kind in the order in which it is preferred.
struct Waiting {
    input: VecDeque<Action>,
    forward: VecDeque<Action>,
    weight: VecDeque<Action>,
    /// Stages of micro-batches that it holds, with those that are still to come back.
    held: usize,
    free_at: usize,
}

/// Ranks with a stage on the way there and one on the way back: whoever is free takes what is ready.
fn there_and_back(ranks: usize, micros: usize) -> Vec<Vec<Action>> {
    let mut progress = Progress::new(2 * ranks, micros);
    let mut waiting: Vec<Waiting> = (0..ranks).map(|rank| Waiting::new(rank, ranks, micros)).collect();
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

impl Waiting {
    fn new(rank: usize, ranks: usize, micros: usize) -> Self {
        // Prefer the second (returning) stage of a rank: its micro-batches free their activations soonest.
        let both = |step| {
            let of_micro =
                move |micro| [2 * ranks - 1 - rank, rank].map(|stage| Action { step, stage, micro });
            (0..micros).flat_map(of_micro)
        };
        let mut forward: Vec<Action> = both(Step::Forward).collect();
        forward.sort_by_key(|action| action.stage < ranks);
        Self {
            input: both(Step::Input).collect(),
            forward: forward.into(),
            weight: both(Step::Weight).collect(),
            held: 0,
            free_at: 0,
        }
    }

    /// Takes what can begin now: the gradient of an input, else a forward pass for which there is room, else a gradient of weights.
    fn next(&mut self, ranks: usize, progress: &Progress, now: usize) -> Option<Action> {
        let ready = |action: &Action| progress.ready(*action).is_some_and(|time| time <= now);
        if let Some(place) = self.input.iter().position(ready) {
            return self.input.remove(place);
        }
        // A forward pass in the first stage also reserves the activation memory of the second: hence the 2.
        let room = self.held + 2 <= 2 * ranks;
        if let Some(place) =
            self.forward.iter().position(|action| ready(action) && (action.stage >= ranks || room))
        {
            let action = self.forward.remove(place)?;
            self.held += if action.stage < ranks { 2 } else { 0 };
            return Some(action);
        }
        let place = self.weight.iter().position(ready)?;
        self.held -= 1;
        self.weight.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Method; 5] = [
        Method::GPipe,
        Method::OneForwardOneBackward,
        Method::Interleaved,
        Method::ZeroBubbleH1,
        Method::ZeroBubbleV,
    ];

    fn simulated(method: Method, ranks: usize, micros: usize, costs: Costs) -> Timeline {
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
                        assert!(actions.iter().all(|action| method.owner(action.stage, ranks) == rank));
                        // What one stage hands to the next comes in order.
                        let kind = |action: &Action| (action.step, action.stage);
                        let mut sorted = actions.clone();
                        sorted.sort_by_key(kind);
                        assert!(sorted.is_sorted(), "{method:?} {ranks} {micros}");
                        found.extend(actions);
                    }
                    found.sort();
                    found.dedup();
                    let kinds = if method.splits_backward() { 3 } else { 2 };
                    assert_eq!(found.len(), kinds * schedule.stages * micros, "{method:?} {ranks} {micros}");
                    assert_eq!(found.len(), schedule.actions.iter().map(Vec::len).sum::<usize>());
                    for costs in [Costs::EVEN, Costs { forward: 3, input: 4, weight: 1 }] {
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
            let idle = |method: Method, costs: Costs| {
                let timeline = simulated(method, ranks, micros, costs);
                timeline.length - timeline.busy[0]
            };
            // Units of a stage; interleaved has two stages a rank, so that its bubble is half of the others' share.
            let costs = Costs { forward: 2, input: 3, weight: 1 };
            let all = costs.forward + costs.input + costs.weight;
            assert_eq!(idle(Method::GPipe, costs), (ranks - 1) * all);
            assert_eq!(idle(Method::OneForwardOneBackward, costs), (ranks - 1) * all);
            assert_eq!(idle(Method::Interleaved, Costs::EVEN), (ranks - 1) * 3);
            assert_eq!(idle(Method::ZeroBubbleH1, Costs::EVEN), ranks - 1);
        }
        // The way to the last rank is all that is left.
        assert_eq!(simulated(Method::ZeroBubbleV, 4, 16, Costs::EVEN).length, 16 * 6 + 3);
        let timeline = simulated(Method::OneForwardOneBackward, 4, 8, Costs::EVEN);
        assert!((timeline.bubble() - 3.0 / 11.0).abs() < 1e-12);
    }

    #[test]
    fn a_rank_holds_no_more_than_its_method_says() {
        for ranks in [2, 4, 8] {
            let micros = 4 * ranks;
            let peak = |method| simulated(method, ranks, micros, Costs::EVEN).peak;
            assert_eq!(peak(Method::GPipe), vec![micros; ranks]);
            assert_eq!(peak(Method::OneForwardOneBackward), (1..=ranks).rev().collect::<Vec<_>>());
            assert_eq!(peak(Method::ZeroBubbleH1), vec![ranks; ranks]);
            // Parts of half a rank's layers.
            let interleaved: Vec<usize> = (0..ranks).map(|rank| 2 * (ranks - rank - 1) + ranks + 1).collect();
            assert_eq!(peak(Method::Interleaved), interleaved);
            assert!(peak(Method::ZeroBubbleV).iter().all(|&held| held <= 2 * ranks));
        }
    }

    #[test]
    fn an_order_in_which_ranks_wait_for_one_another_is_found() {
        let mut schedule = Schedule::new(Method::OneForwardOneBackward, 2, 1, 2);
        schedule.actions[0].reverse();
        let stuck = schedule.simulate(Costs::EVEN).unwrap_err();
        assert_eq!(stuck[0], Action { step: Step::Backward, micro: 1, stage: 0 });
    }
}
