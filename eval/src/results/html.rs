//! The results as one HTML page: tiles, scores with intervals, paired differences, lengths of replies,
//! contamination, protocols, how to make it again, and a browser of samples.
//!
//! The page is whole without scripts, except for the browser of samples: the samples are JSON in the page,
//! and one script makes elements of them, which sets what comes from the data as text alone.
//!
//! This module computes no score. What depends on the time or the machine comes as [`Notes`].

mod browser;
mod differences;
mod lengths;
mod overview;
mod samples;
mod scores;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::Results;
use crate::Error;
use crate::evaluation::{Evaluation, ModelRun};
use crate::page::{Page, isolated};

/// The browser of samples.
const SCRIPT: &str = include_str!("html/browser.js");

/// What the page says besides the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// The title of the page.
    pub title: String,
    /// The command that makes the results again.
    pub command: String,
    /// When the evaluation started, for people.
    pub started: String,
    /// The seconds that each model took, in the order of the models.
    pub elapsed_seconds: Vec<f64>,
}

/// A part of the page with a heading.
struct Section {
    id: &'static str,
    heading: &'static str,
    /// HTML.
    body: String,
}

/// Renders the page. `runs` are those that `results` come from, in the same order.
pub fn html(
    results: &Results,
    evaluation: &Evaluation,
    runs: &[ModelRun],
    notes: &Notes,
) -> Result<String, Error> {
    let embedded = samples::embed(evaluation, runs)?;
    let rows = scores::rows(results);
    let sections = [
        scores::section(results, &rows),
        differences::section(results),
        lengths::section(evaluation, runs),
        overview::contamination(&results.contamination),
        Some(overview::protocols(results, &embedded.counts)),
        Some(overview::reproduction(results, notes)),
        Some(browser::section(&embedded, evaluation, runs)),
    ];
    let (mut links, mut text) = (Vec::new(), String::new());
    for Section { id, heading, body } in sections.into_iter().flatten() {
        links.push(format!("<a href=\"#{id}\">{heading}</a>"));
        let _ = writeln!(text, "<section id=\"{id}\">\n<h2>{heading}</h2>\n{body}</section>");
    }
    let body = format!(
        "<nav class=\"contents\" aria-label=\"sections\">{}</nav>\n{}{}{text}",
        links.join(" "),
        overview::tiles(results, evaluation, &rows, notes),
        overview::warnings(results)
    );
    let script = Some((embedded.data.as_str(), SCRIPT));
    Ok(Page { title: &notes.title, kind: "results", body, script }.html())
}

/// The scores and the differences alone, for a page of the kind `results` about more than an evaluation.
pub(crate) fn scores_and_differences(results: &Results) -> String {
    let sections = [scores::section(results, &scores::rows(results)), differences::section(results)];
    sections.into_iter().flatten().map(|section| section.body).collect()
}

/// A metric with its filter, if it has one, and the arrow that says which direction is better, as HTML.
fn metric(name: &str, filter: &str, higher_is_better: bool) -> String {
    let (arrow, words) = if higher_is_better { ('↑', "more is better") } else { ('↓', "less is better") };
    let filter = if filter == "none" { String::new() } else { format!(", {}", isolated(filter)) };
    let arrow = format!("<span role=\"img\" aria-label=\"{words}\" title=\"{words}\">{arrow}</span>");
    format!("{}{filter} {arrow}", isolated(name))
}
