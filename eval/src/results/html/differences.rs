//! Every other model against the first one and the one before it: a forest plot of the paired differences,
//! with the documents on which a model is better, equal or worse.
//!
//! The right side is the better one for every metric: where less is better, the drawing is mirrored, and the
//! numbers are not. A difference counts as shown if Holm's p-value is below 5 %. Shape and words say what the
//! colours say.

use std::fmt::Write as _;

use super::plot::{Mark, Scale, Shape, shares, strip, ticks};
use super::{Section, count, metric, wide};
use crate::report::{escape_html, isolated};
use crate::results::{Comparison, Results, number, p_value};

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
        let is_shown = comparison.p_value_holm < SIGNIFICANCE;
        if is_shown && gain > 0.0 {
            Self::Better
        } else if is_shown && gain < 0.0 {
            Self::Worse
        } else {
            Self::Open
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Open => "no difference shown",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Open => "open",
        }
    }

    fn shape(self) -> Shape {
        match self {
            Self::Better => Shape::Up,
            Self::Worse => Shape::Down,
            Self::Open => Shape::Disc,
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
    let mut body = String::from(
        "<p class=\"note\">Paired by document, with 95 % intervals. Right of the line is better, also where less is \
         better (↓): there the drawing is mirrored. ▲ better and ▼ worse: Holm's p-value, for all comparisons of \
         a model, is below 0.05. ● no difference shown. The bar counts documents: better, equal, worse.</p>\n",
    );
    for of_pair in pairs(results) {
        let (name, baseline) = (isolated(&of_pair[0].model), isolated(&of_pair[0].baseline));
        let _ = writeln!(body, "<h3>{name} against {baseline}</h3>\n{}", forest(&of_pair));
    }
    let _ = write!(
        body,
        "<details>\n<summary>All {}</summary>\n{}</details>\n",
        count(results.comparisons.len(), "comparison", "comparisons"),
        wide("all comparisons", &table(&results.comparisons))
    );
    Some(Section { id: "differences", heading: "Differences", body })
}

/// The comparisons of each pair of models.
pub(super) fn pairs(results: &Results) -> Vec<Vec<&Comparison>> {
    let mut pairs: Vec<Vec<&Comparison>> = Vec::new();
    for comparison in &results.comparisons {
        let is_same = |pair: &&mut Vec<&Comparison>| {
            (&pair[0].model, &pair[0].baseline) == (&comparison.model, &comparison.baseline)
        };
        match pairs.iter_mut().find(is_same) {
            Some(pair) => pair.push(comparison),
            None => pairs.push(vec![comparison]),
        }
    }
    pairs
}

/// The plot of one pair of models. With too many rows, those with the smallest p-values.
fn forest(comparisons: &[&Comparison]) -> String {
    let mut order: Vec<usize> = (0..comparisons.len()).collect();
    order.sort_by(|&left, &right| comparisons[left].p_value_holm.total_cmp(&comparisons[right].p_value_holm));
    order.truncate(MOST_ROWS);
    order.sort_unstable();
    let drawn: Vec<&Comparison> = order.into_iter().map(|index| comparisons[index]).collect();

    let shared = drawn.iter().map(|comparison| reach(comparison)).filter(|reach| *reach <= SHARED_REACH);
    let scale = Scale::around_zero(shared.fold(0.0, f64::max));
    let mut plot = String::from("<figure class=\"chart forest\">\n");
    for comparison in &drawn {
        plot.push_str(&row(comparison, scale));
    }
    let quarters = scale.quarters();
    let labels = quarters.map(|value| (value, if value == 0.0 { "0".to_owned() } else { label(value) }));
    let _ = writeln!(
        plot,
        "<div class=\"block\"><div></div>{}<div></div></div>\n</figure>",
        ticks(scale, &labels)
    );

    if comparisons.len() > drawn.len() {
        let rest = count(comparisons.len() - drawn.len(), "comparison", "comparisons");
        let _ = writeln!(
            plot,
            "<p class=\"note\">{rest} with larger p-values: not drawn, in the table of all comparisons.</p>"
        );
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
    format!("{rounded:+}").replace('-', "−")
}

fn row(comparison: &Comparison, shared: Scale) -> String {
    let estimate = &comparison.difference.estimate;
    let has_own_scale = reach(comparison) > SHARED_REACH;
    let scale = if has_own_scale { Scale::around_zero(reach(comparison)) } else { shared };
    let verdict = Verdict::of(comparison);
    let mark = Mark {
        class: verdict.class(),
        shape: verdict.shape(),
        value: gain(comparison, estimate.mean),
        interval: comparison.interval().map(|(low, high)| {
            let ends = [low, high].map(|end| gain(comparison, end));
            (ends[0].min(ends[1]), ends[0].max(ends[1]))
        }),
    };
    let own = if has_own_scale { format!(", own scale of ±{}", number(scale.high)) } else { String::new() };
    let (better, worse) = counts(comparison);

    format!(
        "<div class=\"block\"><div class=\"name\"><b>{}</b> <span class=\"note\">{}{own}</span></div>\n{}\n\
         <div class=\"says\"><span class=\"num\"><b>{}</b> <span class=\"note\">{}</span></span> \
         <span class=\"{}\">{}, p {}</span>{}<span class=\"note\">{better} better, {} equal, {worse} worse</span>\
         </div></div>\n",
        isolated(&comparison.task),
        metric(&comparison.metric, &comparison.filter, comparison.higher_is_better),
        strip(scale, &scale.quarters(), Some(0.0), &mark),
        signed(estimate.mean),
        signed_interval(comparison.interval()),
        verdict.class(),
        verdict.text(),
        probability(comparison.p_value_holm),
        shares(&[("better", better), ("equal", comparison.equal), ("worse", worse)]),
        comparison.equal,
    )
}

/// The documents on which the model is better, and on which it is worse.
fn counts(comparison: &Comparison) -> (usize, usize) {
    let Comparison { more, less, .. } = *comparison;
    if comparison.higher_is_better { (more, less) } else { (less, more) }
}

/// A difference with its sign.
pub(super) fn signed(value: f64) -> String {
    let sign = if value > 0.0 {
        "+"
    } else if value < 0.0 {
        "−"
    } else {
        ""
    };
    format!("{sign}{}", number(value.abs()))
}

/// An interval of a difference; an en dash where there is none.
pub(super) fn signed_interval(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(|| "–".to_owned(), |(low, high)| format!("{} to {}", signed(low), signed(high)))
}

/// A p-value as HTML: the smallest ones read `<0.0001`.
fn probability(value: f64) -> String {
    escape_html(&p_value(value))
}

fn table(comparisons: &[Comparison]) -> String {
    let mut table = String::from("<table>\n<thead><tr>");
    for heading in ["model", "baseline", "task", "metric"] {
        let _ = write!(table, "<th scope=\"col\">{heading}</th>");
    }
    let numbers = ["difference", "95 % interval", "more, equal, less", "p", "p (Holm)", "detectable"];
    for heading in numbers {
        let _ = write!(table, "<th scope=\"col\" class=\"num\">{heading}</th>");
    }
    table.push_str("</tr></thead>\n<tbody>\n");

    for comparison in comparisons {
        let Comparison { difference, more, equal, less, .. } = comparison;
        let _ = write!(
            table,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td>",
            isolated(&comparison.model),
            isolated(&comparison.baseline),
            isolated(&comparison.task),
            metric(&comparison.metric, &comparison.filter, comparison.higher_is_better)
        );
        let cells = [
            signed(difference.estimate.mean),
            signed_interval(comparison.interval()),
            format!("{more}, {equal}, {less}"),
            probability(comparison.p_value),
            probability(comparison.p_value_holm),
            number(comparison.detectable),
        ];
        for cell in cells {
            let _ = write!(table, "<td class=\"num\">{cell}</td>");
        }
        table.push_str("</tr>\n");
    }
    table + "</tbody>\n</table>\n"
}
