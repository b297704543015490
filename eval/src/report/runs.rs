//! The report of any runs: their curves over one another, and for each run its settings, numbers and samples.
//!
//! It has the same three files as the report of a pipeline, and the same page without scripts and network.
//! All text comes from run folders and is escaped.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::escape::{escape_html, escape_markdown};
use super::plane::LINE_COLOURS;
use super::{chart, curve, html, write_files};
use crate::Error;

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

/// Writes `report.json`, `report.md` and `report.html` into `dir`, which is created if missing.
pub fn write_runs(report: &RunsReport, dir: &Path) -> Result<(), Error> {
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    let (text, page) = (runs_markdown(report), runs_html(report));
    write_files(dir, [("report.json", json), ("report.md", text), ("report.html", page)])
}

/// Draws curves over one another as an SVG file of its own.
pub fn overlay_svg(metric: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    const STYLE: &str = "<style>svg{background:#fff;font:11px sans-serif}.grid{stroke:#ddd}.axis{stroke:#555;fill:none}\
         .line{fill:none;stroke:currentColor;stroke-width:1.5}.run-0{color:#2367b8}.run-1{color:#c4571a}.run-2{color:#2f8f6b}\
         .run-3{color:#7a828c}.run-4{color:#6b3fa0}.run-5{color:#b3261e}.end{fill:currentColor}</style>";
    let svg = chart::overlay(metric, curves);
    svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1).replacen(
        "<title>",
        &format!("{STYLE}<title>"),
        1,
    )
}

/// Renders the HTML page.
fn runs_html(report: &RunsReport) -> String {
    let mut page = html::head(&report.title, LINE_COLOURS);
    let mut body = String::new();

    for overlay in &report.curves {
        let drawing = chart::overlay(&overlay.metric, &overlay.curves);
        let names = overlay.curves.iter().enumerate().map(|(index, (name, points))| {
            let gaps = match curve::gaps(points) {
                0 => String::new(),
                gaps => format!(" <b class=\"wrong\">{gaps} not finite</b>"),
            };
            format!("{} {}{gaps}", index + 1, escape_html(name))
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let metric = escape_html(&overlay.metric);
        let _ = writeln!(
            body,
            "<figure><figcaption><b>{metric}</b> <span class=\"note\">{names}</span></figcaption>{drawing}</figure>"
        );
    }
    if !body.is_empty() {
        page.push_str(&html::section("Training", &format!("<div class=\"curves\">\n{body}</div>\n")));
    }

    for run in &report.runs {
        let heading = format!("{} {}", escape_html(&run.stage), escape_html(&run.name));
        page.push_str(&html::section(&heading, &run_html(run)));
    }

    let command = format!("<pre class=\"command\">{}</pre>\n", escape_html(&report.command));
    page.push_str(&html::section("How to make it again", &command));
    page + "</main>\n</body>\n</html>\n"
}

fn run_html(run: &RunPart) -> String {
    let mut body = format!("<p>{}, {} steps.</p>\n", escape_html(&run.status), run.steps);
    if !run.settings.is_empty() {
        body.push_str("<table><caption>Settings that differ from the defaults</caption>\n<tbody>\n");
        for (key, default, value) in &run.settings {
            let [key, default, value] = [key, default, value].map(|text| escape_html(text));
            let _ =
                writeln!(body, "<tr><th>{key}</th><td>{value}</td><td class=\"note\">{default}</td></tr>");
        }
        body.push_str("</tbody>\n</table>\n");
    }

    if !run.numbers.is_empty() {
        body.push_str("<table><thead><tr><th>metric</th>");
        let names = ["rows", "first", "newest", "lowest", "highest"];
        body.push_str(&names.map(|name| format!("<th class=\"num\">{name}</th>")).concat());
        body.push_str("</tr></thead>\n<tbody>\n");
        for metric in &run.numbers {
            let cells = metric.cells().map(|cell| format!("<td class=\"num\">{cell}</td>")).concat();
            let _ = writeln!(body, "<tr><th>{}</th>{cells}</tr>", escape_html(&metric.metric));
        }
        body.push_str("</tbody>\n</table>\n");
    }

    for sample in &run.samples {
        let [prompt, reply] = [&sample.prompt, &sample.reply].map(|text| escape_html(text));
        let (step, score) = (sample.step, number(sample.score));
        let _ = writeln!(
            body,
            "<article><div class=\"prompt\"><span class=\"what\">step {step}</span><pre>{prompt}</pre></div>\n\
             <div class=\"reply\"><span class=\"what\">score {score}</span><pre>{reply}</pre></div></article>"
        );
    }
    body
}

impl MetricSummary {
    /// The numbers as text.
    fn cells(&self) -> [String; 5] {
        let Self { rows, first, newest, lowest, highest, .. } = self;
        [rows.to_string(), number(*first), number(*newest), number(*lowest), number(*highest)]
    }
}

/// A number with about four digits.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "not finite".to_owned();
    }
    let size = value.abs();
    if value != 0.0 && !(1e-3..1e6).contains(&size) { format!("{value:.2e}") } else { format!("{value:.4}") }
}

/// Renders the Markdown document.
fn runs_markdown(report: &RunsReport) -> String {
    let mut text = format!("# {}\n", escape_markdown(&report.title));
    for run in &report.runs {
        let (stage, name) = (escape_markdown(&run.stage), escape_markdown(&run.name));
        let _ =
            writeln!(text, "\n## {stage} {name}\n\n{}, {} steps.", escape_markdown(&run.status), run.steps);
        if !run.settings.is_empty() {
            text.push_str("\n| setting | value | default |\n|---|---|---|\n");
        }
        for (key, default, value) in &run.settings {
            let [key, default, value] = [key, default, value].map(|text| escape_markdown(text));
            let _ = writeln!(text, "| {key} | {value} | {default} |");
        }

        if !run.numbers.is_empty() {
            text.push_str(
                "\n| metric | rows | first | newest | lowest | highest |\n|---|---:|---:|---:|---:|---:|\n",
            );
        }
        for metric in &run.numbers {
            let _ =
                writeln!(text, "| {} | {} |", escape_markdown(&metric.metric), metric.cells().join(" | "));
        }

        if !run.samples.is_empty() {
            text.push_str("\n| step | prompt | reply | score |\n|---:|---|---|---:|\n");
        }
        for RunSample { step, prompt, reply, score } in &run.samples {
            let [prompt, reply] = [prompt, reply].map(|text| escape_markdown(text));
            let _ = writeln!(text, "| {step} | {prompt} | {reply} | {} |", number(*score));
        }
    }
    let _ = writeln!(text, "\n## How to make it again\n\n{}", escape_markdown(&report.command));
    text
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
        let folder = tempfile::tempdir().unwrap();
        write_runs(&report(), folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let page = read("report.html");
        assert!(!page.contains("<script>") && !page.contains('\u{1b}') && page.contains("Two &lt;runs&gt;"));
        assert!(page.contains("1 not finite") && page.contains("class=\"run-1\""));
        assert!(read("report.md").contains(r"runs/a\|b") && read("report.md").contains("1.00e-7"));
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert!(json["curves"][0]["curves"][1][1][7][1].is_null());
    }

    #[test]
    fn a_chart_of_its_own_is_a_whole_svg_file() {
        let svg = overlay_svg("loss", &report().curves[0].curves);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox"));
        assert!(svg.ends_with("</svg>") && svg.contains("<style>") && svg.contains("run-1"));
    }
}
