//! `runs compare`: the settings in which runs differ, and their numbers side by side.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use text::number;

use crate::args::RunsCompareArgs;
use crate::console::{print, table};
use crate::run_data::{RunData, extremes};

/// Prints the comparison.
pub(crate) fn run(arguments: &RunsCompareArgs) -> anyhow::Result<()> {
    let runs: Vec<RunData> = arguments.runs.iter().map(|out| RunData::read(out)).collect::<Result<_, _>>()?;
    runs.iter().for_each(RunData::print_warnings);
    let settings = settings(&runs);
    let metrics = metrics(&runs);
    if arguments.json {
        let settings: Map<String, Value> =
            settings.into_iter().map(|(key, values)| (key, json!(values))).collect();
        let numbers: Map<String, Value> = metrics
            .iter()
            .map(|name| (name.clone(), json!(runs.iter().map(|run| numbers(run, name)).collect::<Vec<_>>())))
            .collect();
        let names: Vec<_> = runs.iter().map(|run| &run.out).collect();
        let all = json!({"runs": names, "settings": settings, "numbers": numbers});
        return Ok(print(&serde_json::to_string_pretty(&all)?)?);
    }

    let head = |first: &str| {
        let names = runs.iter().map(|run| run.facts.name.clone());
        std::iter::once(first.to_owned()).chain(names).collect::<Vec<_>>()
    };
    let mut rows = vec![head("setting")];
    for (key, values) in settings {
        let values = values.into_iter().map(|value| value.unwrap_or_else(|| "not set".to_owned()));
        rows.push(std::iter::once(key).chain(values).collect());
    }
    let mut text = if rows.len() > 1 { table(&rows, 1) } else { "the settings are equal".to_owned() };
    let mut rows = vec![head("newest (lowest to highest)")];
    for name in &metrics {
        let cells = runs.iter().map(|run| cell(run, name));
        rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    let _ = write!(text, "\n\n{}", table(&rows, 1));
    Ok(print(&text)?)
}

/// The settings that are not equal in all runs, with the value in each.
fn settings(runs: &[RunData]) -> Vec<(String, Vec<Option<String>>)> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    let values = |key: &String| runs.iter().map(|run| run.settings.get(key).cloned()).collect::<Vec<_>>();
    let all = keys.into_iter().map(|key| (key.clone(), values(key)));
    all.filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1])).collect()
}

/// The metrics of the runs, in the order of their rows.
fn metrics(runs: &[RunData]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for series in runs.iter().flat_map(|run| &run.series) {
        if !names.contains(&series.name) {
            names.push(series.name.clone());
        }
    }
    names
}

fn cell(run: &RunData, name: &str) -> String {
    let Some(series) = run.find(name) else { return "-".to_owned() };
    let newest = series.last().map_or_else(String::new, number::metric);
    match extremes(series) {
        Some((low, high)) => format!("{newest} ({} to {})", number::metric(low), number::metric(high)),
        None => newest,
    }
}

fn numbers(run: &RunData, name: &str) -> Value {
    let Some(series) = run.find(name) else { return Value::Null };
    let (low, high) = extremes(series).unzip();
    json!({"newest": series.last(), "lowest": low, "highest": high})
}
