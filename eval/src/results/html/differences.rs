//! Every other model against the first one and the one before it: a forest plot of the paired differences,
//! with the documents on which a model is better, equal or worse.
//!
//! The right side is the better one for every metric: where less is better, the drawing is mirrored, and the
//! numbers are not. A difference counts as shown if Holm's p-value is below 5 %. Shape and words say what the
//! colours say.

use std::fmt::Write as _;

use super::section::{Section, metric};
use crate::page::number::{count, number, p_value, signed, signed_interval};
use crate::page::strip::{Mark, Scale, Shape, shares, strip, ticks};
use crate::page::{Column, escape_html, html_table, isolated, note};
use crate::results::{Comparison, Results};

/// The most differences of one model in its plot.
const MOST_ROWS: usize = 40;
/// The p-value below which a difference counts as shown.
const SIGNIFICANCE: f64 = 0.05;
/// The difference up to which one scale serves all rows.
const SHARED_REACH: f64 = 1.0;

/// What a comparison shows about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is better than the baseline.
    Better,
    /// It is worse.
    Worse,
    /// Neither is shown.
    Open,
}

impl Verdict {
    /// What a comparison shows.
    pub(super) fn of(comparison: &Comparison) -> Self {
        let gain = gain(comparison, comparison.difference.estimate.mean);
        if comparison.p_value_holm >= SIGNIFICANCE || gain == 0.0 {
            Self::Open
        } else if gain > 0.0 {
            Self::Better
        } else {
            Self::Worse
        }
    }

    /// Its class, its words and its shape.
    fn look(self) -> (&'static str, &'static str, Shape) {
        match self {
            Self::Better => ("better", "better", Shape::Up),
            Self::Worse => ("worse", "worse", Shape::Down),
            Self::Open => ("open", "no difference shown", Shape::Disc),
        }
    }
}

/// A difference in the direction that is better.
fn gain(comparison: &Comparison, difference: f64) -> f64 {
    if comparison.higher_is_better { difference } else { -difference }
}

/// The plots of all models, and the numbers. `None` with one model alone.
pub(super) fn section(results: &Results) -> Option<Section> {
    if results.comparisons.is_empty() {
        return None;
    }
    let mut body = note(
        "Paired by document, with 95 % intervals. Right of the line is better, also where less is better (↓): there \
         the drawing is mirrored. ▲ better and ▼ worse: Holm's p-value, for all comparisons of a model, is below \
         0.05. ● no difference shown. The bar counts documents: better, equal, worse.",
    );
    for of_pair in pairs(results) {
        let (name, baseline) = (isolated(&of_pair[0].model), isolated(&of_pair[0].baseline));
        let _ = writeln!(body, "<h3>{name} against {baseline}</h3>\n{}", forest(of_pair));
    }
    let _ = write!(
        body,
        "<details>\n<summary>All {}</summary>\n{}</details>\n",
        count(results.comparisons.len(), "comparison", "comparisons"),
        table(&results.comparisons)
    );
    Some(Section { id: "differences", heading: "Differences", body })
}

/// The comparisons of each pair of models, which follow one another.
pub(super) fn pairs(results: &Results) -> impl Iterator<Item = &[Comparison]> {
    let is_same = |left: &Comparison, right: &Comparison| {
        (&left.model, &left.baseline) == (&right.model, &right.baseline)
    };
    results.comparisons.chunk_by(is_same)
}

/// The plot of one pair of models. With too many rows, those with the smallest p-values.
fn forest(comparisons: &[Comparison]) -> String {
    let mut order: Vec<usize> = (0..comparisons.len()).collect();
    order.sort_by(|&left, &right| comparisons[left].p_value_holm.total_cmp(&comparisons[right].p_value_holm));
    order.truncate(MOST_ROWS);
    order.sort_unstable();
    let drawn: Vec<&Comparison> = order.into_iter().map(|index| &comparisons[index]).collect();

    let shared = drawn.iter().map(|comparison| reach(comparison)).filter(|reach| *reach <= SHARED_REACH);
    let scale = Scale::around_zero(shared.fold(0.0, f64::max));
    let rows: String = drawn.iter().map(|comparison| row(comparison, scale)).collect();
    let labels = scale.quarters().map(|value| (value, label(value)));
    let mut plot = format!(
        "<figure class=\"chart forest\">\n{rows}<div class=\"block\"><div></div>{}<div></div></div>\n</figure>\n",
        ticks(scale, &labels)
    );
    if comparisons.len() > drawn.len() {
        let rest = count(comparisons.len() - drawn.len(), "comparison", "comparisons");
        plot.push_str(&note(&format!(
            "{rest} with larger p-values: not drawn, in the table of all comparisons."
        )));
    }
    plot
}

/// How far the interval of a comparison reaches from zero.
fn reach(comparison: &Comparison) -> f64 {
    let estimate = &comparison.difference.estimate;
    // Without an interval, NaN: `max` then takes the other number.
    estimate.low.abs().max(estimate.high.abs()).max(estimate.mean.abs())
}

/// The label of a tick: the gain, with its sign.
fn label(value: f64) -> String {
    // A tick is 1, 2 or 5 times a power of ten or half of it: Rust's shortest form has few digits, once
    // rounding errors are gone.
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    if value == 0.0 { "0".to_owned() } else { format!("{rounded:+}").replace('-', "−") }
}

fn row(comparison: &Comparison, shared: Scale) -> String {
    let Comparison { task, difference, equal, .. } = comparison;
    let has_own_scale = reach(comparison) > SHARED_REACH;
    let scale = if has_own_scale { Scale::around_zero(reach(comparison)) } else { shared };
    let own = if has_own_scale { format!(", own scale of ±{}", number(scale.high)) } else { String::new() };
    let (class, words, shape) = Verdict::of(comparison).look();
    let interval = comparison.interval().map(|(low, high)| {
        let ends = [low, high].map(|end| gain(comparison, end));
        (ends[0].min(ends[1]), ends[0].max(ends[1]))
    });
    let mark = Mark { class, shape, value: gain(comparison, difference.estimate.mean), interval };
    let (mut better, mut worse) = (comparison.more, comparison.less);
    if !comparison.higher_is_better {
        std::mem::swap(&mut better, &mut worse);
    }

    format!(
        "<div class=\"block\"><div class=\"name\"><b>{}</b> <span class=\"note\">{}{own}</span></div>\n{}\n\
         <div class=\"says\"><span class=\"num\"><b>{}</b> <span class=\"note\">{}</span></span> \
         <span class=\"{class}\">{words}, p {}</span>{}\
         <span class=\"note\">{better} better, {equal} equal, {worse} worse</span></div></div>\n",
        isolated(task),
        metric(&comparison.metric, &comparison.filter, comparison.higher_is_better),
        strip(scale, &scale.quarters(), Some(0.0), &mark),
        signed(difference.estimate.mean),
        signed_interval(comparison.interval()),
        probability(comparison.p_value_holm),
        shares(&[("better", better), ("equal", *equal), ("worse", worse)]),
    )
}

/// A p-value as HTML: the smallest ones read `<0.0001`.
fn probability(value: f64) -> String {
    escape_html(&p_value(value))
}

fn table(comparisons: &[Comparison]) -> String {
    let columns: [Column<'_, Comparison>; 10] = [
        ("model", &|row| isolated(&row.model)),
        ("baseline", &|row| isolated(&row.baseline)),
        ("task", &|row| isolated(&row.task)),
        ("metric", &|row| metric(&row.metric, &row.filter, row.higher_is_better)),
        ("#difference", &|row| signed(row.difference.estimate.mean)),
        ("#95 % interval", &|row| signed_interval(row.interval())),
        ("#more, equal, less", &|row| format!("{}, {}, {}", row.more, row.equal, row.less)),
        ("#p", &|row| probability(row.p_value)),
        ("#p (Holm)", &|row| probability(row.p_value_holm)),
        ("#detectable", &|row| number(row.detectable)),
    ];
    html_table("all comparisons", comparisons, &columns)
}
