//! The results as one HTML page: tiles, scores with intervals, paired differences, lengths of replies,
//! contamination, protocols, how to make it again, and a browser of samples.
//!
//! The page loads nothing. It is whole without scripts, except for the browser of samples: the samples are
//! JSON in the page, and one script, whose hash the content security policy names, makes elements of them.
//! Names, prompts and replies are untrusted: Rust escapes them for HTML, the script sets them as text alone,
//! and in the JSON no character can end its element.
//!
//! This module computes no score. What depends on the time or the machine comes as [`Notes`].

mod differences;
mod lengths;
mod overview;
mod plot;
mod samples;
mod scores;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::Results;
use crate::Error;
use crate::evaluation::{Evaluation, ModelRun};
use crate::report::{escape_html, isolated};

/// The style of every report.
const COMMON_STYLE: &str = include_str!("../report/style.css");
/// What this page adds to it.
pub(crate) const STYLE: &str = include_str!("html/style.css");
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
    let sections: Vec<Section> = [
        scores::section(results, &rows),
        differences::section(results),
        lengths::section(evaluation, runs),
        overview::contamination(&results.contamination),
        Some(overview::protocols(results, embedded.counts())),
        Some(overview::reproduction(results, notes)),
        Some(samples::section(&embedded, evaluation, runs)),
    ]
    .into_iter()
    .flatten()
    .collect();

    let mut page = head(&notes.title);
    page.push_str(&contents(&sections));
    page.push_str(&overview::tiles(results, evaluation, &rows, notes));
    page.push_str(&overview::warnings(results));
    for Section { id, heading, body } in &sections {
        let _ = writeln!(page, "<section id=\"{id}\">\n<h2>{heading}</h2>\n{body}</section>");
    }
    page.push_str("</main>\n");
    page.push_str(&embedded.data);
    let _ = writeln!(page, "<script>{SCRIPT}</script>\n</body>\n</html>");
    Ok(page)
}

/// The scores and the differences alone, for a report of more than an evaluation. It needs [`STYLE`].
pub(crate) fn scores_and_differences(results: &Results) -> String {
    let sections = [scores::section(results, &scores::rows(results)), differences::section(results)];
    sections.into_iter().flatten().map(|section| section.body).collect()
}

fn head(title: &str) -> String {
    let title = escape_html(title);
    let hash = STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{COMMON_STYLE}{STYLE}</style>\n</head>\n<body>\n<main>\n<h1 dir=\"auto\">{title}</h1>\n"
    )
}

/// Links to the sections.
fn contents(sections: &[Section]) -> String {
    let mut links = String::new();
    for Section { id, heading, .. } in sections {
        let _ = write!(links, "<a href=\"#{id}\">{heading}</a> ");
    }
    format!("<nav class=\"contents\" aria-label=\"sections\">{}</nav>\n", links.trim_end())
}

/// A table that scrolls sideways where it is too wide. `label` says what it shows; it and `table` are HTML.
fn wide(label: &str, table: &str) -> String {
    format!("<div class=\"wide\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\">\n{table}</div>\n")
}

/// The arrow that says which direction of a metric is better, with the words for those who cannot see it.
fn arrow(higher_is_better: bool) -> &'static str {
    if higher_is_better {
        "<span role=\"img\" aria-label=\"more is better\" title=\"more is better\">↑</span>"
    } else {
        "<span role=\"img\" aria-label=\"less is better\" title=\"less is better\">↓</span>"
    }
}

/// A metric with its filter, if it has one, and its direction, as HTML.
fn metric(name: &str, filter: &str, higher_is_better: bool) -> String {
    let filter = if filter == "none" { String::new() } else { format!(", {}", isolated(filter)) };
    format!("{}{filter} {}", isolated(name), arrow(higher_is_better))
}

/// `1 row`, `2 rows`.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A share as `12.5 %`.
fn percent(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
