//! The scores of all models side by side, as a table and as a chart.

use std::fmt::Write as _;

use super::section::{Section, metric};
use crate::evaluation::Score;
use crate::page::number::{count, interval, number, or_nothing, percent_of};
use crate::page::strip::{Mark, Scale, Shape, strip, ticks};
use crate::page::{isolated, note, wide};
use crate::results::Results;

/// The most rows of the chart, and the most marks in it.
const MOST_ROWS: usize = 40;
const MOST_MARKS: usize = 160;
/// The share of replies without an answer above which a score says more about the format than about the
/// model.
const MANY_UNPARSED: f64 = 0.05;
/// The colours of models; the style sheet has as many.
const COLOURS: usize = 6;

/// The same score of every model.
pub(super) struct Row<'a> {
    /// The task or group.
    pub(super) task: &'a str,
    /// The metric.
    pub(super) metric: &'a str,
    /// The filter pipeline.
    pub(super) filter: &'a str,
    /// Whether it is a group.
    pub(super) is_group: bool,
    /// Whether more is better.
    pub(super) higher_is_better: bool,
    /// For each model; `None` if it answered nothing.
    pub(super) scores: Vec<Option<&'a Score>>,
}

/// The scores of all models by task, metric and filter; groups first.
pub(super) fn rows(results: &Results) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for is_group in [true, false] {
        for (at, model) in results.models.iter().enumerate() {
            let scores = if is_group { &model.groups } else { &model.scores };
            for score in scores {
                let key = (score.task.as_str(), score.metric.as_str(), score.filter.as_str());
                let known = rows.iter().position(|row| (row.task, row.metric, row.filter) == key);
                let place = known.unwrap_or_else(|| {
                    rows.push(Row {
                        task: key.0,
                        metric: key.1,
                        filter: key.2,
                        is_group,
                        higher_is_better: score.higher_is_better,
                        scores: vec![None; results.models.len()],
                    });
                    rows.len() - 1
                });
                rows[place].scores[at] = Some(score);
            }
        }
    }
    rows
}

/// Whether so many replies have no answer that the score needs a warning.
pub(super) fn has_many_unparsed(score: &Score) -> bool {
    score.unparsed as f64 > MANY_UNPARSED * score.n as f64
}

/// The class of the colour of a model.
pub(super) fn colour(model: usize) -> String {
    format!("model-{}", model % COLOURS)
}

/// The table and the chart.
pub(super) fn section(results: &Results, rows: &[Row<'_>]) -> Option<Section> {
    if rows.is_empty() {
        return None;
    }
    let mut body = wide("scores of all models", &table(results, rows));
    body.push_str(&note(
        "Intervals are 95 %. n counts documents; a reply without an answer counts as wrong and as unparsed, and a \
         document that the model could not answer does not count. ↑ more is better, ↓ less is better.",
    ));
    body.push_str(&chart(results, rows));
    Some(Section { id: "scores", heading: "Scores", body })
}

fn table(results: &Results, rows: &[Row<'_>]) -> String {
    let mut table = String::from(
        "<table class=\"scores\">\n<thead><tr><th scope=\"col\">task</th><th scope=\"col\">metric</th>",
    );
    for model in &results.models {
        let _ = write!(table, "<th scope=\"col\">{}</th>", isolated(&model.name));
    }
    table.push_str("<th scope=\"col\" class=\"num\">n</th></tr></thead>\n<tbody>\n");

    for row in rows {
        let class = if row.is_group { " class=\"group\"" } else { "" };
        let _ = write!(
            table,
            "<tr{class}><th scope=\"row\">{}</th><td>{}</td>",
            isolated(row.task),
            metric(row.metric, row.filter, row.higher_is_better)
        );
        let scale = row.scale();
        for (model, score) in row.scores.iter().enumerate() {
            table.push_str(&cell(*score, scale, model));
        }
        let _ = writeln!(table, "<td class=\"num\">{}</td></tr>", row.counts());
    }
    table + "</tbody>\n</table>\n"
}

impl Row<'_> {
    fn known(&self) -> impl Iterator<Item = &Score> {
        self.scores.iter().copied().flatten()
    }

    /// Whether the scores are shares of which more is better.
    fn is_share(&self) -> bool {
        self.higher_is_better && self.known().all(|score| (0.0..=1.0).contains(&score.aggregated.value))
    }

    /// The scale of the bars of this row.
    fn scale(&self) -> Option<Scale> {
        if self.is_share() {
            return Some(Scale::SHARE);
        }
        let ends = |score: &Score| {
            let (low, high) = score.aggregated.interval.unwrap_or((f64::NAN, f64::NAN));
            [score.aggregated.value, low, high]
        };
        Scale::over(self.known().flat_map(ends))
    }

    /// The number of documents; if models differ, that of each.
    fn counts(&self) -> String {
        let mut counts: Vec<String> =
            self.scores.iter().map(|score| or_nothing(*score, |score| score.n.to_string())).collect();
        if counts.iter().all(|count| *count == counts[0]) {
            counts.truncate(1);
        }
        counts.join(", ")
    }
}

/// The score of one model: value, interval, bar, and what must be known about it.
fn cell(score: Option<&Score>, scale: Option<Scale>, model: usize) -> String {
    let Some(score) = score else { return "<td>–</td>".to_owned() };
    let mut cell = format!("<td class=\"score\"><b>{}</b>", number(score.aggregated.value));
    if let Some(ends) = score.aggregated.interval {
        let _ = write!(cell, " <span class=\"note\">{}</span>", interval(Some(ends)));
    }
    if let Some(scale) = scale {
        cell.push_str(&strip(scale, &[scale.low, scale.high], None, &mark(score, &colour(model))));
    }
    if score.unparsed > 0 {
        let text = format!("{} unparsed ({})", score.unparsed, percent_of(score.unparsed, score.n));
        let (class, sign) = if has_many_unparsed(score) { ("warning", "⚠ ") } else { ("note", "") };
        let _ = write!(cell, "<span class=\"{class} line\">{sign}{text}</span>");
    }
    if score.failed > 0 {
        let _ = write!(cell, "<span class=\"warning line\">{} failed</span>", score.failed);
    }
    cell + "</td>"
}

fn mark<'a>(score: &Score, class: &'a str) -> Mark<'a> {
    let aggregated = score.aggregated;
    Mark { class, shape: Shape::Disc, value: aggregated.value, interval: aggregated.interval }
}

/// The shares of all models on one scale, as far as there is room.
fn chart(results: &Results, rows: &[Row<'_>]) -> String {
    let most = (MOST_MARKS / results.models.len().max(1)).clamp(1, MOST_ROWS);
    let shares = rows.iter().filter(|row| row.is_share());
    let (drawn, all) = (shares.clone().take(most), shares.clone().count());
    if all == 0 {
        return String::new();
    }

    let scale = Scale::SHARE;
    let mut blocks = String::new();
    for row in drawn {
        let _ = writeln!(
            blocks,
            "<div class=\"block\"><div class=\"name\"><b>{}</b> <span class=\"note\">{}</span></div>\n<div>",
            isolated(row.task),
            metric(row.metric, row.filter, row.higher_is_better)
        );
        for (model, score) in row.scores.iter().enumerate() {
            let Some(score) = score else { continue };
            let drawing = strip(scale, &scale.quarters(), None, &mark(score, &colour(model)));
            let _ = writeln!(
                blocks,
                "<div class=\"row\"><span class=\"model\">{}</span>{drawing}<span class=\"num\">{}</span></div>",
                isolated(&results.models[model].name),
                number(score.aggregated.value)
            );
        }
        blocks.push_str("</div></div>\n");
    }

    let labels = scale.quarters().map(|value| (value, value.to_string()));
    let _ = writeln!(
        blocks,
        "<div class=\"block\"><div></div><div class=\"row\"><span></span>{}<span></span></div></div>",
        ticks(scale, &labels)
    );
    let left_out = left_out(all.saturating_sub(most), rows.len() - all);
    format!("<h3>Shares with 95 % intervals</h3>\n<figure class=\"chart\">\n{blocks}</figure>\n{left_out}")
}

/// What the table shows and the chart does not.
fn left_out(many: usize, other: usize) -> String {
    let mut reasons = Vec::new();
    if many > 0 {
        reasons.push(format!("{} for want of room", count(many, "score", "scores")));
    }
    if other > 0 {
        let scores = count(other, "score", "scores");
        reasons.push(format!("{scores} of another kind (no share, or less is better)"));
    }
    if reasons.is_empty() {
        return String::new();
    }
    note(&format!("In the table and not in the chart: {}.", reasons.join(", and ")))
}
