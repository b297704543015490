//! The report as one HTML file: no script, readable without its style sheet.

use std::fmt::Write as _;

use super::contents::{Benchmarks, Overlay, Report, RunPart, RunSample};
use crate::page::chart::bars;
use crate::page::number::{bytes, metric, percent, percent_interval};
use crate::page::{self, Page, block, curve, escape_html, note, plane, section};
use crate::results;

/// Renders the HTML page.
pub(super) fn html(report: &Report) -> String {
    // With the tables of `eval`, the page looks like the page of `eval`.
    let kind = if report.benchmarks.is_some() { "results" } else { "runs" };
    let body = [
        main_figures(report),
        report.benchmarks.as_ref().map_or_else(String::new, benchmarks),
        page::curves("Training", &report.curves.iter().map(figure).collect::<String>()),
        cost(report),
        report.runs.iter().map(run).collect(),
        reproduction(report),
    ];
    Page { title: &report.title, kind, body: body.concat(), script: None }.html()
}

/// The scores of the models and what their comparisons show, as tiles.
fn main_figures(report: &Report) -> String {
    let results = report.benchmarks.as_ref().map(|benchmarks| &benchmarks.results);
    let mut tiles = results.map_or_else(Vec::new, results::main_figures);
    if let Some(model) = &report.reward_model {
        let note = format!("{} of {} pairs ranked right", percent_interval(model.low, model.high), model.n);
        tiles.push(["reward model".into(), percent(model.accuracy), note]);
    }
    page::tiles(&tiles)
}

/// The tasks that every model was asked.
fn benchmarks(benchmarks: &Benchmarks) -> String {
    let tables = results::scores_and_differences(&benchmarks.results);
    let report = escape_html(&benchmarks.report);
    let link = format!("<p><a href=\"{report}#samples\">The replies of the models side by side</a></p>\n");
    section("Tasks", &(tables + &link))
}

/// The curves of a metric. A single curve is smoothed; several have the names of their runs by their numbers.
fn figure(Overlay { stage, metric, curves }: &Overlay) -> String {
    let title = format!("{}: {}", escape_html(stage), escape_html(metric));
    if let [(_, points)] = curves.as_slice() {
        let drawing = plane::curve(&format!("{metric} of {stage} by step"), "run-0", points);
        let smooth = curve::window(points).map(|window| format!(", centred average over {window} points"));
        let note = format!("{} points{}{}", points.len(), smooth.unwrap_or_default(), gaps(", ", points));
        return page::figure(&title, &note, drawing);
    }
    let curves_by_number = (1..).zip(curves);
    let names = curves_by_number
        .map(|(number, (name, points))| format!("{number} {}{}", escape_html(name), gaps(" ", points)));
    let names: Vec<String> = names.collect();
    page::figure(&title, &names.join(", "), Some(plane::overlay(metric, curves)))
}

/// How many points are not drawn, after `before`.
fn gaps(before: &str, points: &[(f64, f64)]) -> String {
    match curve::gaps(points) {
        0 => String::new(),
        gaps => format!("{before}<b class=\"wrong\">{gaps} not finite</b>"),
    }
}

fn cost(report: &Report) -> String {
    let mut parts = report.times();
    let total = parts.pop();
    let mut body = String::new();
    if let Some(drawing) = bars("Wall-clock time per part", &parts) {
        let _ = writeln!(body, "<figure>{drawing}</figure>");
    }
    if let Some((_, _, text)) = total.filter(|total| total.1 > 0.0) {
        let _ = writeln!(body, "<p><b>Total:</b> {text}.</p>");
    }
    if let Some(peak) = report.peak_rss_bytes {
        let _ = writeln!(body, "<p><b>Peak memory:</b> {}.</p>", bytes(peak));
    }
    if body.is_empty() { body } else { section("Time and memory", &body) }
}

fn run(run: &RunPart) -> String {
    let mut body = format!("<p>{}, {} steps.</p>\n", escape_html(&run.status), run.steps);
    if !run.settings.is_empty() {
        body.push_str(&note("Settings that differ from the defaults"));
    }
    body.push_str(&run.settings().html(true));
    body.push_str(&run.numbers().html(true));
    for RunSample { step, prompt, reply, score } in &run.samples {
        let prompt = block("prompt", &format!("step {step}"), prompt, usize::MAX);
        let reply = block("reply", &format!("score {}", metric(*score)), reply, usize::MAX);
        body.extend(["<article>", &prompt, &reply, "</article>\n"]);
    }
    section(&format!("{} {}", escape_html(&run.stage), escape_html(&run.name)), &body)
}

fn reproduction(report: &Report) -> String {
    let facts = [("Settings", &report.settings), ("Machine", &report.machine)];
    let facts = facts.map(|(caption, values)| page::facts(caption, &page::settings(values))).concat();
    let body = format!("{}<div class=\"pairs\">\n{facts}</div>\n", page::command(&report.command));
    section("How to make it again", &body)
}

/// Draws curves over one another as an SVG file of its own.
pub fn overlay_svg(metric: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    const STYLE: &str = "<style>svg{background:#fff;font:11px sans-serif}.grid{stroke:#ddd}.axis{stroke:#555;fill:none}\
         .line{fill:none;stroke:currentColor;stroke-width:1.5}.run-0{color:#2367b8}.run-1{color:#c4571a}.run-2{color:#2f8f6b}\
         .run-3{color:#7a828c}.run-4{color:#6b3fa0}.run-5{color:#b3261e}.end{fill:currentColor}</style>";
    let svg = plane::overlay(metric, curves);
    svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1).replacen(
        "<title>",
        &format!("{STYLE}<title>"),
        1,
    )
}
