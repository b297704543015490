//! The report as Markdown: the tables and conclusions of the HTML page, for terminals and code hosting sites.
//! Of each curve it shows the first, last and extreme values; `report.json` has all points.

use std::fmt::Write as _;

use super::contents::{self, SCORES};
use super::{Curve, MODELS, Reply, Report, Sample};
use crate::page::number::{bytes, or_nothing};
use crate::page::{self, Table, curve, escape_markdown};

/// The largest number of prompts shown. The other two files have all of them.
const MOST_SAMPLES: usize = 40;

/// Renders the Markdown document.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n", escape_markdown(&report.title));
    text.push_str(&exact_match(report));
    if let Some(benchmarks) = &report.benchmarks {
        let tables = benchmarks.results.markdown_tables("###");
        let _ = write!(text, "\n## Tasks\n{tables}\nAll samples: {}\n", escape_markdown(&benchmarks.report));
    }
    text.push_str(&under("Training", &curves(&report.curves)));
    text.push_str(&under("Samples", &samples(&report.samples)));
    if report.samples.len() > MOST_SAMPLES {
        let _ = writeln!(text, "\n{} more in report.html.", report.samples.len() - MOST_SAMPLES);
    }
    text.push_str(&under("Time and memory", &times(report)));
    if let Some(peak) = report.peak_rss_bytes {
        let _ = writeln!(text, "\n**Peak memory:** {}.", bytes(peak));
    }
    text + &reproduction(report)
}

/// A table under a heading; nothing without rows.
fn under(heading: &str, table: &Table) -> String {
    if table.rows.is_empty() { String::new() } else { format!("\n## {heading}\n\n{}", table.markdown()) }
}

fn exact_match(report: &Report) -> String {
    let mut text = under("Exact match", &contents::scores(&report.exact_match));
    if !text.is_empty() {
        let _ = writeln!(
            text,
            "\n{SCORES} In brackets 95 % intervals; n counts prompts, and several samples of one prompt are averaged \
             first."
        );
    }
    for (name, gain) in [("sampled", &report.paired_gain), ("greedy", &report.paired_gain_greedy)] {
        if let Some(gain) = gain {
            let gain = contents::gain(gain);
            let _ = writeln!(text, "\n**PPO over SFT on the same prompts, {name}:** {gain}");
        }
    }
    if let Some(model) = &report.reward_model {
        let _ = writeln!(text, "\n**Reward model:** {}.", contents::reward_model(model));
    }
    if let Some(kl) = report.kl {
        let _ = writeln!(text, "\n**KL to the reference:** {kl:.3} nats per reply.");
    }
    text
}

fn curves(curves: &[Curve]) -> Table {
    let values = |curve: &Curve| -> Vec<f64> {
        curve.points.iter().map(|point| point.1).filter(|value| value.is_finite()).collect()
    };
    let drawn: Vec<(&Curve, Vec<f64>)> =
        curves.iter().map(|curve| (curve, values(curve))).filter(|(_, values)| !values.is_empty()).collect();
    let text = |value: f64| format!("{value:.4}");
    Table::of(
        "",
        2,
        &drawn,
        &[
            ("stage", &|(curve, _)| curve.stage.clone()),
            ("metric", &|(curve, _)| curve.metric.clone()),
            ("points", &|(curve, _)| curve.points.len().to_string()),
            ("first", &|(_, values)| text(values[0])),
            ("last", &|(_, values)| text(values[values.len() - 1])),
            ("lowest", &|(_, values)| text(values.iter().copied().fold(f64::INFINITY, f64::min))),
            ("highest", &|(_, values)| text(values.iter().copied().fold(f64::NEG_INFINITY, f64::max))),
            ("not finite", &|(curve, _)| curve::gaps(&curve.points).to_string()),
        ],
    )
}

fn samples(samples: &[Sample]) -> Table {
    let shown = &samples[..samples.len().min(MOST_SAMPLES)];
    let columns: [page::Column<'_, Sample>; 2] =
        [("prompt", &|sample| sample.prompt.clone()), ("answer", &|sample| sample.answer.clone())];
    let mut table = Table::of("", usize::MAX, shown, &columns);
    // Models without any reply get no column.
    let has_replied = |model: &&str| samples.iter().any(|sample| sample.replies.get(model).is_some());
    for model in MODELS.into_iter().filter(has_replied) {
        table.head.push(model.to_owned());
        let text = |reply: &Reply| format!("{} {}", if reply.correct { "✓" } else { "✗" }, reply.text);
        for (sample, row) in shown.iter().zip(&mut table.rows) {
            row.push(or_nothing(sample.replies.get(model), text));
        }
    }
    table
}

fn times(report: &Report) -> Table {
    Table::of(
        "",
        1,
        &contents::times(report),
        &[("stage", &|(name, _, _)| (*name).to_owned()), ("time", &|(_, _, text)| text.clone())],
    )
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
        let columns: [page::Column<'_, (String, String)>; 2] =
            [(heading, &|(name, _)| name.clone()), ("value", &|(_, value)| value.clone())];
        let table = Table::of("", 2, &facts, &columns).markdown();
        if !table.is_empty() {
            let _ = write!(text, "\n{table}");
        }
    }
    text
}
