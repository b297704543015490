//! The report as Markdown: the tables of the HTML page, for terminals and code hosting sites. It shows the
//! first, newest and extreme values of each curve; `report.json` has all points.

use std::fmt::Write as _;

use super::contents::Report;
use crate::page::number::bytes;
use crate::page::{self, Column, Table, escape_markdown};

/// Renders the Markdown document.
pub(super) fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n", escape_markdown(&report.title));
    if let Some(benchmarks) = &report.benchmarks {
        let tables = benchmarks.results.markdown_tables("###");
        let link = escape_markdown(&benchmarks.report);
        let _ = write!(text, "\n## Tasks\n{tables}\nThe replies of the models side by side: {link}\n");
    }
    if let Some(model) = &report.reward_model {
        let _ = writeln!(text, "\n**Reward model:** {}.", model.text());
    }
    text.push_str(&cost(report));
    for run in &report.runs {
        let [stage, name, status] = [&run.stage, &run.name, &run.status].map(|text| escape_markdown(text));
        let _ = writeln!(text, "\n## {stage} {name}\n\n{status}, {} steps.", run.steps);
        for table in [run.settings(), run.numbers(), run.samples()] {
            if !table.rows.is_empty() {
                let _ = write!(text, "\n{}", table.markdown());
            }
        }
    }
    text + &reproduction(report)
}

fn cost(report: &Report) -> String {
    let columns: [Column<'_, (&str, f64, String)>; 2] =
        [("part", &|(part, _, _)| (*part).to_owned()), ("time", &|(_, _, text)| text.clone())];
    let times = Table::of("", 1, &report.times(), &columns);
    let mut text = String::new();
    if !times.rows.is_empty() {
        let _ = write!(text, "\n## Time and memory\n\n{}", times.markdown());
    }
    if let Some(peak) = report.peak_rss_bytes {
        let _ = writeln!(text, "\n**Peak memory:** {}.", bytes(peak));
    }
    text
}

fn reproduction(report: &Report) -> String {
    let mut text = String::from("\n## How to make it again\n");
    if !report.command.is_empty() {
        // A fence longer than any run of backticks in the command cannot be closed by the command.
        let runs = report.command.split(|character| character != '`').map(str::len);
        let fence = "`".repeat(runs.max().unwrap_or(0).max(2) + 1);
        let _ = writeln!(text, "\n{fence}sh\n{}\n{fence}", report.command.trim_end());
    }
    for (heading, values) in [("setting", &report.settings), ("machine", &report.machine)] {
        let facts = page::settings(values);
        let columns: [Column<'_, (String, String)>; 2] =
            [(heading, &|(name, _)| name.clone()), ("value", &|(_, value)| value.clone())];
        let table = Table::of("", 2, &facts, &columns).markdown();
        if !table.is_empty() {
            let _ = write!(text, "\n{table}");
        }
    }
    text
}
