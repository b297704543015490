//! Whether comparisons determine finite strengths: whether the graph with an edge from each model to all from
//! which it took points is strongly connected. It is if every model is reached from one of them, and reaches
//! it.
//!
//! This file does not know how strengths are computed.

use super::comparisons::Points;

/// Two groups of models such that no model of the second took a point from one of the first, or `None` if
/// there are no such groups. `start` is any model.
pub(super) fn separated(points: &Points, start: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    // No model of those reached took a point from the rest: the rest is unbeaten.
    let (reached, rest) = reach(points.models, start, |from, to| points.get(from, to) > 0.0);
    if !rest.is_empty() {
        return Some((rest, reached));
    }
    // Backward along the edges: no model of the rest took a point from one of those that reach `start`.
    let (reached, rest) = reach(points.models, start, |from, to| points.get(to, from) > 0.0);
    (!rest.is_empty()).then_some((reached, rest))
}

/// The models that are reached from `start` and those that are not, both ascending.
fn reach(models: usize, start: usize, leads: impl Fn(usize, usize) -> bool) -> (Vec<usize>, Vec<usize>) {
    let mut is_reached = vec![false; models];
    is_reached[start] = true;
    let mut open = vec![start];
    while let Some(from) = open.pop() {
        for (to, is_reached) in is_reached.iter_mut().enumerate() {
            if !*is_reached && leads(from, to) {
                *is_reached = true;
                open.push(to);
            }
        }
    }
    (0..models).partition(|&model| is_reached[model])
}
