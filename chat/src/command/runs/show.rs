//! `runs show`: one run in full: how it is, its settings, its numbers, its checkpoints.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use text::number;
use tui::dashboard::Series;

use crate::args::RunsShowArgs;
use crate::console::{print, table};
use crate::run_data::{RunData, extremes};

/// Prints a run.
pub(crate) fn run(arguments: &RunsShowArgs) -> anyhow::Result<()> {
    let run = RunData::read(&arguments.run)?;
    run.print_warnings();
    let text = if arguments.json { serde_json::to_string_pretty(&as_json(&run))? } else { as_text(&run) };
    Ok(print(&text)?)
}

fn as_text(run: &RunData) -> String {
    let facts = &run.facts;
    let total = facts.total_steps.map_or_else(String::new, |total| format!(" of {total}"));
    let status = facts.status.text();
    let mut text =
        format!("{}  {}  {status}, {} {}{total}\n", facts.name, facts.stage, facts.unit, run.step());

    let settings = run.changed_settings();
    if !settings.is_empty() {
        let rows: Vec<Vec<String>> =
            settings.into_iter().map(|d| vec![d.key, d.now, format!("({})", d.was)]).collect();
        let _ = write!(text, "\nsettings that differ from the defaults\n{}\n", table(&rows, 3));
    }
    let mut rows =
        vec![["metric", "rows", "first", "newest", "lowest", "highest"].map(str::to_owned).to_vec()];
    for series in &run.series {
        let value = |value: Option<f64>| value.map_or_else(String::new, number::metric);
        let (low, high) = extremes(series).unzip();
        let first = series.points.first().map(|point| point.1);
        let count = series.points.len().to_string();
        rows.push(vec![
            series.name.clone(),
            count,
            value(first),
            value(series.last()),
            value(low),
            value(high),
        ]);
    }
    let _ = write!(text, "\n{}\n", table(&rows, 1));
    let checkpoints = run.checkpoints();
    let checkpoints = if checkpoints.is_empty() { "none".to_owned() } else { checkpoints.join(", ") };
    let _ = write!(text, "\ncheckpoints: {checkpoints}");
    if let Some(sample) = run.samples.last() {
        let score = number::metric(sample.score);
        let _ = write!(
            text,
            "\n\nnewest sample, {} {}, score {score}\nprompt: {}\nreply: {}",
            facts.unit,
            sample.step,
            text::sanitize(&sample.prompt),
            text::sanitize(&sample.reply)
        );
    }
    text
}

fn as_json(run: &RunData) -> Value {
    let changed = run.changed_settings().into_iter();
    let changed: Map<String, Value> =
        changed.map(|d| (d.key, json!({"default": d.was, "value": d.now}))).collect();
    let numbers: Map<String, Value> =
        run.series.iter().map(|series| (series.name.clone(), numbers(series))).collect();

    let mut object = run.json();
    let found = [
        ("settings", json!(run.settings)),
        ("changed_settings", json!(changed)),
        ("numbers", json!(numbers)),
        ("checkpoints", json!(run.checkpoints())),
        ("warnings", json!(run.warnings)),
        ("more_warnings", json!(run.more_warnings)),
    ];
    object.extend(found.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(object)
}

/// The values of a metric in short.
fn numbers(series: &Series) -> Value {
    let (low, high) = extremes(series).unzip();
    let first = series.points.first().map(|point| point.1);
    let rows = series.points.len();
    json!({"rows": rows, "first": first, "newest": series.last(), "lowest": low, "highest": high})
}
