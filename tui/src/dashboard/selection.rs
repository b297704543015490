//! Which metrics each chart shows.
//!
//! A stage lists the charts that tell most about it, the most important first. Metrics that no chart names
//! follow, each in a chart of its own, so every number of a run can be seen. A stage that lists none shows all
//! metrics so.

use super::series::Series;
use super::state::Dashboard;

/// Metrics that are shown elsewhere, or that say nothing as a curve.
const NOT_CHARTED: [&str; 3] = ["epoch", "tokens", "loss"];

/// A chart with its metrics.
pub(super) struct Chart<'a> {
    /// What it shows.
    pub(super) title: String,
    /// Its curves.
    pub(super) series: Vec<&'a Series>,
}

/// The charts of the run, those without a number left out.
pub(super) fn charts(dashboard: &Dashboard) -> Vec<Chart<'_>> {
    let listed = dashboard.run.charts;
    let mut charts: Vec<Chart<'_>> = listed
        .iter()
        .map(|(title, metrics)| Chart {
            title: (*title).to_owned(),
            series: metrics.iter().filter_map(|name| dashboard.find(name)).collect(),
        })
        .filter(|chart| !chart.series.is_empty())
        .collect();
    let is_shown = |name: &str| {
        let known = !listed.is_empty() && NOT_CHARTED.contains(&name);
        known || listed.iter().any(|(_, metrics)| metrics.contains(&name))
    };
    let others = dashboard.series.iter().filter(|series| !is_shown(&series.name));
    charts.extend(others.map(|series| Chart { title: series.name.clone(), series: vec![series] }));
    charts
}
