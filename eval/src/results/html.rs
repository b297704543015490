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
mod section;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::Results;
use crate::Error;
use crate::evaluation::{Evaluation, ModelRun};
use crate::page::Page;
pub use section::Notes;
use section::Section;

/// The browser of samples.
const SCRIPT: &str = include_str!("html/browser.js");

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

/// The main scores and what the comparisons show, as tiles of a page about more than an evaluation.
pub(crate) fn main_figures(results: &Results) -> Vec<[String; 3]> {
    let names: Vec<&str> = results.tasks.iter().map(|task| task.task.as_str()).collect();
    overview::main_figures(results, &scores::rows(results), &names)
}

/// The scores and the differences alone, for a page of the kind `results` about more than an evaluation.
pub(crate) fn scores_and_differences(results: &Results) -> String {
    let sections = [scores::section(results, &scores::rows(results)), differences::section(results)];
    sections.into_iter().flatten().map(|section| section.body).collect()
}
