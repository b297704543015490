//! The schedule of a pipeline on a simulated clock.
//!
//! A rank runs its actions in their order, each as soon as its inputs are there. The output of a stage
//! reaches the next stage after the seconds of a message, unless one rank has both; the sender does not wait.
//! With messages that take no time and equal stages this is `parallel::pipeline::Schedule::simulate`.

use parallel::pipeline::{Action, ComputationType, Schedule};

use crate::pass::PassSeconds;

/// The simulated run of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The seconds from the start of the first action to the end of the last.
    pub seconds: f64,
    /// The seconds in which each rank computes.
    pub busy: Vec<f64>,
    /// The actions of each rank with their start and end, in order.
    pub spans: Vec<Vec<Span>>,
}

/// An action with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// The second in which it starts.
    pub start: f64,
    /// The second in which it ends.
    pub end: f64,
}

/// Runs a schedule whose stages take these seconds for a micro-batch, and whose messages take
/// `message_seconds`.
///
/// # Panics
///
/// If the actions wait for one another, which no schedule that [`Schedule::new`] builds does.
pub fn simulate(schedule: &Schedule, stages: &[PassSeconds], message_seconds: f64) -> Timeline {
    let mut ends = Ends::new(schedule, message_seconds);
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); schedule.num_ranks];
    let mut remaining: usize = schedule.actions.iter().map(Vec::len).sum();
    while remaining > 0 {
        let before = remaining;
        for (actions, spans) in schedule.actions.iter().zip(&mut spans) {
            while let Some(&action) = actions.get(spans.len()) {
                let Some(ready) = ends.ready_at(action) else { break };
                let start = spans.last().map_or(0.0, |last: &Span| last.end).max(ready);
                let end = start + seconds_of(action.computation, stages[action.stage]);
                ends.set(action, end);
                spans.push(Span { action, start, end });
                remaining -= 1;
            }
        }
        assert!(remaining < before, "the actions of the schedule wait for one another");
    }

    let seconds = spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
    let busy = spans.iter().map(|spans| spans.iter().map(|span| span.end - span.start).sum()).collect();
    Timeline { seconds, busy, spans }
}

fn seconds_of(computation: ComputationType, stage: PassSeconds) -> f64 {
    match computation {
        ComputationType::Forward => stage.forward,
        ComputationType::FullBackward => stage.input + stage.weight,
        ComputationType::BackwardInput => stage.input,
        ComputationType::BackwardWeight => stage.weight,
    }
}

/// When the computations end that are done so far.
struct Ends<'a> {
    schedule: &'a Schedule,
    message_seconds: f64,
    /// By micro-batch, stage, and forward or backward. Nothing waits for the gradients of weights, but for
    /// those of inputs.
    finished: Vec<[Option<f64>; 2]>,
}

impl<'a> Ends<'a> {
    fn new(schedule: &'a Schedule, message_seconds: f64) -> Self {
        let finished = vec![[None; 2]; schedule.num_stages * schedule.num_micro_batches];
        Self { schedule, message_seconds, finished }
    }

    fn index(&self, stage: usize, micro_batch: usize) -> usize {
        micro_batch * self.schedule.num_stages + stage
    }

    fn set(&mut self, Action { computation, stage, micro_batch }: Action, end: f64) {
        let index = self.index(stage, micro_batch);
        match computation {
            ComputationType::Forward => self.finished[index][0] = Some(end),
            ComputationType::FullBackward | ComputationType::BackwardInput => {
                self.finished[index][1] = Some(end);
            }
            ComputationType::BackwardWeight => {}
        }
    }

    /// When all inputs of an action are on its rank; `None` if one of them is not computed yet.
    fn ready_at(&self, Action { computation, stage, micro_batch }: Action) -> Option<f64> {
        let [forward, backward] = self.finished[self.index(stage, micro_batch)];
        match computation {
            ComputationType::Forward if stage == 0 => Some(0.0),
            ComputationType::Forward => self.arrival(0, stage - 1, stage, micro_batch),
            ComputationType::BackwardWeight => backward,
            ComputationType::FullBackward | ComputationType::BackwardInput => {
                let forward = forward?;
                if stage + 1 == self.schedule.num_stages {
                    return Some(forward);
                }
                Some(forward.max(self.arrival(1, stage + 1, stage, micro_batch)?))
            }
        }
    }

    /// When the output of a stage reaches another stage.
    fn arrival(&self, pass: usize, from: usize, to: usize, micro_batch: usize) -> Option<f64> {
        let rank_of = |stage| self.schedule.kind.rank_of_stage(stage, self.schedule.num_ranks);
        let message = if rank_of(from) == rank_of(to) { 0.0 } else { self.message_seconds };
        self.finished[self.index(from, micro_batch)][pass].map(|end| end + message)
    }
}

#[cfg(test)]
mod tests {
    use parallel::pipeline::ScheduleKind;
    use parallel::pipeline::schedule::Costs;

    use super::*;

    const KINDS: [ScheduleKind; 5] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleV,
    ];

    #[test]
    fn without_latency_it_is_the_simulation_of_the_schedule() {
        let costs = Costs { forward: 3, input: 4, weight: 2 };
        let stage = PassSeconds { forward: 3.0, input: 4.0, weight: 2.0 };
        for kind in KINDS {
            for ranks in 1..6 {
                for micro_batches in [1, 2, 3, 7, 8, 12] {
                    let schedule = Schedule::new(kind, ranks, 2, micro_batches);
                    let exact = schedule.simulate(costs).unwrap();
                    let found = simulate(&schedule, &vec![stage; schedule.num_stages], 0.0);
                    let whole = |seconds: f64| seconds as usize;
                    assert_eq!(whole(found.seconds), exact.length, "{kind:?} {ranks} {micro_batches}");
                    assert_eq!(found.busy.iter().map(|&busy| whole(busy)).collect::<Vec<_>>(), exact.busy);
                }
            }
        }
    }

    #[test]
    fn messages_and_slow_stages_by_hand() {
        // Two stages and two micro-batches under 1F1B. Stage 1 takes twice as long, and a message a second.
        //   rank 0: F0 0-1  F1 1-2            B0 9-11              B1 15-17
        //   rank 1:         F0 2-4  B0 4-8    F1 8-10  B1 10-14
        let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
        let first = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
        let second = PassSeconds { forward: 2.0, input: 2.0, weight: 2.0 };
        let timeline = simulate(&schedule, &[first, second], 1.0);
        let times = |rank: usize| -> Vec<(f64, f64)> {
            timeline.spans[rank].iter().map(|span| (span.start, span.end)).collect()
        };
        assert_eq!(times(0), [(0.0, 1.0), (1.0, 2.0), (9.0, 11.0), (15.0, 17.0)]);
        assert_eq!(times(1), [(2.0, 4.0), (4.0, 8.0), (8.0, 10.0), (10.0, 14.0)]);
        assert_eq!((timeline.seconds, timeline.busy), (17.0, vec![6.0, 12.0]));
    }
}
