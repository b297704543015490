//! Reports of runs: what `report` and the part `report` of a pipeline show of each run.

pub(crate) mod pipeline;

use eval::report::{MetricSummary, Overlay, RunPart, RunSample};
use tui::dashboard::{Sample, Series};

use crate::run_data::{RunData, extremes};

/// The most samples of a run that are shown, spread evenly over it.
const SAMPLES: usize = 16;

/// A run: its settings, metrics and some of its samples.
pub(crate) fn part(run: &RunData) -> RunPart {
    let summary = |series: &Series| {
        let (lowest, highest) = extremes(series).unwrap_or((f64::NAN, f64::NAN));
        let first = series.points.first().map_or(f64::NAN, |point| point.1);
        let newest = series.last().unwrap_or(f64::NAN);
        let (metric, rows) = (series.name.clone(), series.points.len());
        MetricSummary { metric, rows, first, newest, lowest, highest }
    };
    let every = run.samples.len().div_ceil(SAMPLES).max(1);
    let sample = |sample: &Sample| RunSample {
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

/// The curves of every metric that is drawn and has more than one value, by stage, in the order of the rows.
pub(crate) fn overlays(runs: &[RunData], is_drawn: impl Fn(&RunData, &str) -> bool) -> Vec<Overlay> {
    let mut overlays: Vec<Overlay> = Vec::new();
    for run in runs {
        let stage = &run.facts.stage;
        let drawn = run.series.iter().filter(|series| series.points.len() > 1 && is_drawn(run, &series.name));
        for series in drawn {
            let curve = (run.facts.name.clone(), series.points.clone());
            let known =
                overlays.iter_mut().find(|known| known.stage == *stage && known.metric == series.name);
            match known {
                Some(overlay) => overlay.curves.push(curve),
                None => overlays.push(Overlay {
                    stage: stage.clone(),
                    metric: series.name.clone(),
                    curves: vec![curve],
                }),
            }
        }
    }
    overlays
}
