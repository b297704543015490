//! The report of any runs: their curves over one another, and for each run its settings, numbers and samples.
//!
//! It has the same three files as the report of a pipeline, and the same page without scripts and network.
//! All text comes from run folders and is escaped.

use std::fmt::Write as _;

use serde::Serialize;

use super::html::gaps;
use super::{Files, of_texts};
use crate::Error;
use crate::page::number::metric;
use crate::page::{self, Page, Table, block, escape_html, escape_markdown, note, plane, section};

/// A report of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunsReport {
    /// Title of the report.
    pub title: String,
    /// The command that makes the report again.
    pub command: String,
    /// The runs.
    pub runs: Vec<RunPart>,
    /// The curves of each metric.
    pub curves: Vec<Overlay>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunPart {
    /// Its name, usually its folder.
    pub name: String,
    /// The stage.
    pub stage: String,
    /// How it is, in words.
    pub status: String,
    /// The number of complete steps.
    pub steps: u64,
    /// The settings that differ from the defaults: key, default and value.
    pub settings: Vec<(String, String, String)>,
    /// Its metrics.
    pub numbers: Vec<MetricSummary>,
    /// Some of its samples.
    pub samples: Vec<RunSample>,
}

/// A metric of a run in four numbers. A number that is not finite is `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MetricSummary {
    /// Its name.
    pub metric: String,
    /// The number of its values.
    pub rows: usize,
    /// The first value.
    pub first: f64,
    /// The newest value.
    pub newest: f64,
    /// The lowest finite value.
    pub lowest: f64,
    /// The highest finite value.
    pub highest: f64,
}

/// A reply of the model under training.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunSample {
    /// The step.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The reply.
    pub reply: String,
    /// Its score.
    pub score: f64,
}

/// The curves of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlay {
    /// The metric.
    pub metric: String,
    /// The name of each run that has the metric, and its pairs of step and value.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// Makes `report.json`, `report.md` and `report.html` of a report.
pub fn run_files(report: &RunsReport) -> Result<Files, Error> {
    of_texts(report, runs_markdown(report), runs_html(report))
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

/// Renders the HTML page.
fn runs_html(report: &RunsReport) -> String {
    let mut body = page::curves("Training", &report.curves.iter().map(figure).collect::<String>());
    for run in &report.runs {
        let heading = format!("{} {}", escape_html(&run.stage), escape_html(&run.name));
        body.push_str(&section(&heading, &run_html(run)));
    }
    body.push_str(&section("How to make it again", &page::command(&report.command)));
    Page { title: &report.title, kind: "runs", body, script: None }.html()
}

/// The curves of a metric, with the names of the runs by their numbers.
fn figure(Overlay { metric, curves }: &Overlay) -> String {
    let names = curves.iter().enumerate();
    let names = names
        .map(|(index, (name, points))| format!("{} {}{}", index + 1, escape_html(name), gaps(" ", points)));
    let names: Vec<String> = names.collect();
    page::figure(&escape_html(metric), &names.join(", "), Some(plane::overlay(metric, curves)))
}

fn run_html(run: &RunPart) -> String {
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
    body
}

/// Renders the Markdown document.
fn runs_markdown(report: &RunsReport) -> String {
    let mut text = format!("# {}\n", escape_markdown(&report.title));
    for run in &report.runs {
        let [stage, name, status] = [&run.stage, &run.name, &run.status].map(|text| escape_markdown(text));
        let _ = writeln!(text, "\n## {stage} {name}\n\n{status}, {} steps.", run.steps);
        for table in [run.settings(), run.numbers(), run.samples()] {
            if !table.rows.is_empty() {
                let _ = write!(text, "\n{}", table.markdown());
            }
        }
    }
    let _ = writeln!(text, "\n## How to make it again\n\n{}", escape_markdown(&report.command));
    text
}

impl RunPart {
    fn settings(&self) -> Table {
        Table::of(
            "Settings that differ from the defaults",
            3,
            &self.settings,
            &[
                ("setting", &|(key, _, _)| key.clone()),
                ("value", &|(_, _, value)| value.clone()),
                ("default", &|(_, default, _)| default.clone()),
            ],
        )
    }

    fn numbers(&self) -> Table {
        Table::of(
            "Metrics",
            1,
            &self.numbers,
            &[
                ("metric", &|of| of.metric.clone()),
                ("rows", &|of| of.rows.to_string()),
                ("first", &|of| metric(of.first)),
                ("newest", &|of| metric(of.newest)),
                ("lowest", &|of| metric(of.lowest)),
                ("highest", &|of| metric(of.highest)),
            ],
        )
    }

    fn samples(&self) -> Table {
        Table::of(
            "Samples",
            3,
            &self.samples,
            &[
                ("step", &|sample| sample.step.to_string()),
                ("prompt", &|sample| sample.prompt.clone()),
                ("reply", &|sample| sample.reply.clone()),
                ("score", &|sample| metric(sample.score)),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RunsReport {
        let points = |scale: f64| (0..30).map(|i| (f64::from(i), scale * f64::from(i))).collect::<Vec<_>>();
        let mut broken = points(2.0);
        broken[7].1 = f64::NAN;
        RunsReport {
            title: "Two <runs>".to_owned(),
            command: "colossal-chat report a b".to_owned(),
            runs: vec![RunPart {
                name: "runs/a|b".to_owned(),
                stage: "ppo".to_owned(),
                status: "finished".to_owned(),
                steps: 30,
                settings: vec![("train.lr".into(), "0.1".into(), "0.2".into())],
                numbers: vec![MetricSummary {
                    metric: "loss".into(),
                    rows: 30,
                    lowest: 1e-7,
                    ..MetricSummary::default()
                }],
                samples: vec![RunSample {
                    prompt: "<script>".into(),
                    reply: "\u{1b}[2J".into(),
                    ..RunSample::default()
                }],
            }],
            curves: vec![Overlay {
                metric: "loss".to_owned(),
                curves: vec![("a".to_owned(), points(1.0)), ("b".to_owned(), broken)],
            }],
        }
    }

    #[test]
    fn the_three_files_hold_the_runs_and_no_markup_of_theirs() {
        let [(_, json), (_, text), (_, page)] = run_files(&report()).unwrap();
        assert!(!page.contains("<script>") && !page.contains('\u{1b}') && page.contains("Two &lt;runs&gt;"));
        assert!(page.contains("1 not finite") && page.contains("class=\"run-1\""));
        assert!(text.contains(r"runs/a\|b") && text.contains("1.00e-7"));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["curves"][0]["curves"][1][1][7][1].is_null());
    }

    #[test]
    fn a_chart_of_its_own_is_a_whole_svg_file() {
        let svg = overlay_svg("loss", &report().curves[0].curves);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox"));
        assert!(svg.ends_with("</svg>") && svg.contains("<style>") && svg.contains("run-1"));
    }
}
