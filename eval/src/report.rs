//! The report of training runs: of any runs, or of the stages of a pipeline with the evaluation of their
//! models.
//!
//! [`Report`] is the data. [`files`] makes three forms of it: `report.json` for programs, `report.md` and
//! `report.html` for people. The page has no script and needs no network.
//!
//! This module does not know how the numbers were measured. It rejects impossible numbers: a duration that is
//! not finite, or a rate outside its own interval. All text comes from run folders and is escaped.

mod contents;
mod html;
mod markdown;
#[cfg(test)]
mod tests;

use crate::Error;
pub use contents::{Benchmarks, MetricSummary, Overlay, Report, RewardModel, RunPart, RunSample};
pub use html::overlay_svg;

/// The name and the text of each file of a report.
pub type Files = [(&'static str, String); 3];

/// Checks `report` and makes `report.json`, `report.md` and `report.html` of it.
pub fn files(report: &Report) -> Result<Files, Error> {
    report.check()?;
    let json = serde_json::to_string_pretty(report)? + "\n";
    let (text, page) = (markdown::markdown(report), html::html(report));
    Ok([("report.json", json), ("report.md", text), ("report.html", page)])
}
