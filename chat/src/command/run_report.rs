//! `report`: writes a page about any runs. The report of a pipeline, which measures models, is in
//! [`crate::report`].

use eval::report::{MetricSummary, Overlay, RunPart, RunSample, RunsReport};

use super::runs::print_warnings;
use crate::args::ReportArgs;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::run_data::{RunData, extremes};
use crate::{interrupt, output, own_file};

/// The most samples of a run that are shown, spread evenly over it.
const SAMPLES: usize = 16;

/// Metrics that say nothing as a curve.
const NOT_DRAWN: [&str; 2] = ["epoch", "tokens"];

/// Writes the report.
pub(crate) fn run(arguments: &ReportArgs) -> anyhow::Result<()> {
    interrupt::listen()?;
    let ReportArgs { runs, out, force } = arguments;
    let files = ["report.html", "report.md", "report.json"].map(|name| out.join(name));
    let refuse =
        |problem: String| ConfigError::Argument { argument: format!("--out {}", out.display()), problem };
    if let Some(file) = files.iter().find(|file| file.symlink_metadata().is_ok() && !force) {
        let problem =
            format!("{} exists already: choose another folder, or replace it with --force", file.display());
        return Err(refuse(problem).into());
    }
    output::check_parent(&files[0]).map_err(refuse)?;

    let data: Vec<RunData> = runs.iter().map(|out| RunData::read(out)).collect::<Result<_, _>>()?;
    data.iter().for_each(print_warnings);
    let names: Vec<String> = runs.iter().map(|out| out.display().to_string()).collect();
    let report = RunsReport {
        title: if let [name] = names.as_slice() {
            format!("The run {name}")
        } else {
            format!("{} runs", names.len())
        },
        command: format!("colossal-chat report {} --out {}", names.join(" "), out.display()),
        runs: data.iter().map(part).collect(),
        curves: overlays(&data),
    };
    own_file::write_all(out, &eval::report::run_files(&report)?)?;
    print_stderr(&files[0].display().to_string());
    Ok(())
}

fn part(run: &RunData) -> RunPart {
    let summary = |series: &tui::dashboard::Series| {
        let (lowest, highest) = extremes(series).unwrap_or((f64::NAN, f64::NAN));
        let first = series.points.first().map_or(f64::NAN, |point| point.1);
        let newest = series.last().unwrap_or(f64::NAN);
        let (metric, rows) = (series.name.clone(), series.points.len());
        MetricSummary { metric, rows, first, newest, lowest, highest }
    };
    let every = run.samples.len().div_ceil(SAMPLES).max(1);
    let sample = |sample: &tui::dashboard::Sample| RunSample {
        step: sample.step,
        prompt: sample.prompt.clone(),
        reply: sample.reply.clone(),
        score: sample.score,
    };
    RunPart {
        name: run.facts.name.clone(),
        stage: run.facts.stage.clone(),
        status: run.facts.status.text(),
        steps: run.step(),
        settings: run.changed_settings().into_iter().map(|d| (d.key, d.was, d.now)).collect(),
        numbers: run.series.iter().map(summary).collect(),
        samples: run.samples.iter().step_by(every).map(sample).collect(),
    }
}

/// The curves of every metric with more than one value, in the order of the rows.
fn overlays(runs: &[RunData]) -> Vec<Overlay> {
    let mut overlays: Vec<Overlay> = Vec::new();
    for run in runs {
        let drawn = |name: &str| !NOT_DRAWN.contains(&name);
        for series in run.series.iter().filter(|series| series.points.len() > 1 && drawn(&series.name)) {
            let curve = (run.facts.name.clone(), series.points.clone());
            match overlays.iter_mut().find(|overlay| overlay.metric == series.name) {
                Some(overlay) => overlay.curves.push(curve),
                None => overlays.push(Overlay { metric: series.name.clone(), curves: vec![curve] }),
            }
        }
    }
    overlays
}
