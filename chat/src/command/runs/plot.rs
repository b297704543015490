//! `runs plot`: the curve of a metric as text, with the runs over one another, or as an SVG file.

use std::io::{IsTerminal, Write};

use tui::plot;
use tui::terminal::{Columns, Environment};
use tui::theme::Symbols;

use crate::args::RunsPlotArgs;
use crate::config::ConfigError;
use crate::console::print;
use crate::output;
use crate::run_data::RunData;

/// The size of a chart off a terminal.
const WIDTH: usize = 80;

/// Prints the chart.
pub(crate) fn run(arguments: &RunsPlotArgs) -> anyhow::Result<()> {
    let RunsPlotArgs { runs, metric, svg, force, log } = arguments;
    if let Some(path) = svg {
        output::check_named_file("--svg", path, *force, &[])?;
    }
    let runs: Vec<RunData> = runs.iter().map(|out| RunData::read(out)).collect::<Result<_, _>>()?;
    runs.iter().for_each(RunData::print_warnings);
    let mut curves = Vec::new();
    for run in &runs {
        let name = metric.clone().or_else(|| run.main_metric().map(|series| series.name.clone()));
        let series = name.as_deref().and_then(|name| run.find(name));
        let Some(series) = series else { return Err(unknown_metric(run, metric.as_deref())) };
        curves.push((format!("{} of {}", series.name, run.facts.name), series.points.clone()));
    }
    if let Some(path) = svg {
        let drawing = eval::report::overlay_svg(metric.as_deref().unwrap_or("metric"), &curves);
        let write = if *force { output::write_atomically } else { output::write_new };
        return Ok(write(path, drawing.as_bytes())?);
    }
    let is_terminal = std::io::stdout().is_terminal();
    let width = if is_terminal { Columns::Terminal.get() } else { WIDTH };
    let color = Environment::read().color(is_terminal);
    let symbols = Symbols::detect(std::env::var_os);
    let lines = plot::plot(&curves, *log, (width.clamp(20, 200) as u16, 20), &symbols);
    // The lines hold nothing of a file that was not sanitised; `print` would take the colours away.
    let text: Vec<String> = lines.iter().map(|line| tui::terminal::paint(line, color)).collect();
    if color {
        return Ok(std::io::stdout().write_all(format!("{}\n", text.join("\n")).as_bytes())?);
    }
    Ok(print(&text.join("\n"))?)
}

fn unknown_metric(run: &RunData, metric: Option<&str>) -> anyhow::Error {
    let names: Vec<&str> = run.series.iter().map(|series| series.name.as_str()).collect();
    let problem = format!("{} has no such metric; it has {}", run.out.display(), names.join(", "));
    let argument = format!("--metric {}", metric.unwrap_or("NAME"));
    ConfigError::Argument { argument, problem }.into()
}
