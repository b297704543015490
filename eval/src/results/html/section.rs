//! What the sections of the page share: their form, the notes that are no results, and the names of metrics.

use crate::page::isolated;

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
pub(super) struct Section {
    pub(super) id: &'static str,
    pub(super) heading: &'static str,
    /// HTML.
    pub(super) body: String,
}

/// A metric with its filter, if it has one, and the arrow that says which direction is better, as HTML.
pub(super) fn metric(name: &str, filter: &str, higher_is_better: bool) -> String {
    let (arrow, words) = if higher_is_better { ('↑', "more is better") } else { ('↓', "less is better") };
    let filter = if filter == "none" { String::new() } else { format!(", {}", isolated(filter)) };
    let arrow = format!("<span role=\"img\" aria-label=\"{words}\" title=\"{words}\">{arrow}</span>");
    format!("{}{filter} {arrow}", isolated(name))
}
