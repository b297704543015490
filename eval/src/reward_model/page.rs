//! The report of a reward model as one HTML page, without scripts and without network: tiles, charts, tables,
//! the pairs with the lowest margins, how to make it again.
//!
//! Names, prompts and replies are untrusted: all text is escaped, and the content security policy of the page
//! forbids loading anything.

use std::fmt::Write as _;

use serde_json::Value;

use super::data::{Entry, Facts};
use super::tables::{Table, tables};
use super::{BestOfN, OverOptimization, PairReport, RewardModelReport, ScoredFile};
use crate::report::{LINE_COLOURS, Line, Plane, escape_html, head, histogram, isolated, section};
use crate::results::number;
use crate::statistics::{Estimate, wilson};

/// The pairs that the page shows.
const MOST_PAIRS: usize = 30;
/// The most characters of a text on the page.
const MOST_CHARACTERS: usize = 3000;

const STYLE: &str = "main{max-width:76rem} article pre{max-height:18rem;overflow:auto} .wide th,.wide td{overflow-wrap:normal}\n";

/// What the page says besides the results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The command that makes the report again.
    pub command: String,
    /// When the evaluation ended, for people.
    pub finished: String,
}

/// Renders the page. `files` are those that `report` was made of.
pub fn html(report: &RewardModelReport, files: &[ScoredFile], notes: &Notes) -> String {
    let title = format!("Reward model {}", report.model.name);
    let mut page = head(&title, &format!("{LINE_COLOURS}{STYLE}"));
    page.push_str(&tiles(report));
    let charts = charts(report, files);
    if !charts.is_empty() {
        page.push_str(&section("Charts", &format!("<div class=\"curves\">\n{charts}</div>\n")));
    }
    for table in tables(report) {
        page.push_str(&section(&isolated(&table.title), &table_html(&table)));
    }
    page.push_str(&lowest_margins(files));
    page.push_str(&reproduction(report, notes));
    page + "</main>\n</body>\n</html>\n"
}

/// The main figures.
fn tiles(report: &RewardModelReport) -> String {
    let mut tiles = String::new();
    let mut tile = |what: &str, figure: &str, note: &str| {
        let _ = writeln!(
            tiles,
            "<div class=\"tile\"><div class=\"what\">{what}</div><div class=\"figure\">{figure}</div>\
             <div class=\"note\">{note}</div></div>"
        );
    };
    let mut pairs = |name: &str, pairs: &PairReport| {
        let Estimate { mean, low, high, n, .. } = pairs.accuracy;
        let note = format!("of {n} pairs right, {:.1} to {:.1}", 100.0 * low, 100.0 * high);
        tile(&isolated(name), &format!("{:.1} %", 100.0 * mean), &note);
    };
    if let Some(all) = &report.all_pairs {
        pairs("all pairs", all);
    }
    for file in &report.files {
        if let Some(found) = &file.pairs {
            pairs(&file.file, found);
        }
    }
    for file in &report.files {
        let benches = [
            ("RewardBench", file.reward_bench.as_ref().and_then(|bench| bench.score)),
            ("RewardBench 2", file.reward_bench_2.as_ref().and_then(|bench| bench.score)),
        ];
        for (name, score) in benches {
            if let Some(score) = score {
                tile(name, &format!("{:.1}", 100.0 * score), &isolated(&file.file));
            }
        }
        if let Some(point) = file.best_of_n.as_ref().and_then(|curve| curve.points.last()) {
            let note = format!("gold value of the best of {}, {}", point.n, isolated(&file.file));
            tile("best of n", &number(point.gold.mean), &note);
        }
    }
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

fn charts(report: &RewardModelReport, files: &[ScoredFile]) -> String {
    let mut body = String::new();
    let mut figure = |title: &str, note: &str, drawing: Option<String>| {
        if let Some(drawing) = drawing {
            let (title, note) = (isolated(title), escape_html(note));
            let _ = writeln!(
                body,
                "<figure><figcaption><b>{title}</b> <span class=\"note\">{note}</span></figcaption>{drawing}</figure>"
            );
        }
    };
    for (file, scored) in report.files.iter().zip(files) {
        if let Some(pairs) = &file.pairs {
            let margins: Vec<f64> = scored.pairs().iter().map(super::ScoredPair::margin).collect();
            let title = format!("Margins of {}", file.file);
            figure(
                &title,
                "pairs; below 0 the rejected reply scores higher",
                histogram(&title, "margin", &margins),
            );
            let title = format!("Reliability of {}", file.file);
            figure(
                &title,
                "accuracy over sigmoid(|margin|), 95 % intervals; dashed: calibrated",
                reliability(&title, pairs),
            );
        }
        if let Some(curve) = &file.best_of_n {
            let title = format!("Best of n, {}", file.file);
            let note = "over the KL bound: 1 gold value of the pick with its interval, 2 gold best";
            figure(&title, note, best_of_n(&title, curve));
        }
    }
    if let Some(curve) = &report.over_optimization {
        for (what, title, drawing) in over_optimization(curve) {
            figure(&title, what, drawing);
        }
    }
    body
}

fn reliability(title: &str, pairs: &PairReport) -> Option<String> {
    let calibration = pairs.calibration.as_ref()?;
    let mut line = Line { has_marks: true, ..Line::default() };
    for bin in &calibration.bins {
        let (Some(confidence), Some(accuracy)) = (bin.confidence, bin.accuracy) else { continue };
        let right = (accuracy * bin.n as f64).round() as u64;
        line.points.push((confidence, accuracy));
        line.intervals.extend(wilson(right, bin.n as u64).ok().map(|rate| (confidence, rate.low, rate.high)));
    }
    let reference = Some([(0.5, 0.5), (1.0, 1.0)]);
    Plane { title, x_label: "probability of the preferred reply", lines: vec![line], reference }.svg()
}

/// The interval of an estimate at a place of a chart, if it has one.
fn with_interval(place: f64, estimate: &Estimate) -> Option<(f64, f64, f64)> {
    estimate.interval().map(|(low, high)| (place, low, high))
}

fn best_of_n(title: &str, curve: &BestOfN) -> Option<String> {
    let points = curve.points.iter();
    let picked = Line {
        points: points.clone().map(|point| (point.kl_bound, point.gold.mean)).collect(),
        intervals: points.clone().filter_map(|point| with_interval(point.kl_bound, &point.gold)).collect(),
        has_marks: true,
    };
    let best = Line {
        points: points.map(|point| (point.kl_bound, point.gold_best.mean)).collect(),
        has_marks: true,
        ..Line::default()
    };
    Plane { title, x_label: "ln n - (n - 1)/n, nats", lines: vec![picked, best], reference: None }.svg()
}

/// Proxy and gold in a chart each, for they have scales of their own: what is drawn, title, drawing.
fn over_optimization(curve: &OverOptimization) -> [(&'static str, String, Option<String>); 2] {
    let draw = |title: &str, lines: Vec<Line>| {
        Plane { title, x_label: "sqrt(KL), KL in nats per reply", lines, reference: None }.svg()
    };
    let mut points: Vec<_> = curve.points.iter().collect();
    points.sort_by(|left, right| left.root_kl.total_cmp(&right.root_kl));
    let proxy = Line {
        points: points.iter().map(|point| (point.root_kl, point.proxy)).collect(),
        has_marks: points.len() < 100,
        ..Line::default()
    };
    let gold = Line {
        points: points.iter().filter_map(|point| Some((point.root_kl, point.gold?))).collect(),
        intervals: points
            .iter()
            .filter_map(|point| with_interval(point.root_kl, point.gold_estimate.as_ref()?))
            .collect(),
        has_marks: true,
    };
    let titles = [format!("Proxy reward, {}", curve.run), format!("Gold reward, {}", curve.run)];
    let drawings = [draw(&titles[0], vec![proxy]), draw(&titles[1], vec![gold])];
    let [proxy_title, gold_title] = titles;
    let [proxy, gold] = drawings;
    [("as the run logged it", proxy_title, proxy), ("of the same policies", gold_title, gold)]
}

fn table_html(table: &Table) -> String {
    let cell = |column: usize, tag: &str, text: &str| {
        let class = if column < table.left { "" } else { " class=\"num\"" };
        format!("<{tag}{class}>{}</{tag}>", isolated(text))
    };
    let line = |row: &Vec<String>, tag: &str| {
        let cells: String = row.iter().enumerate().map(|(column, text)| cell(column, tag, text)).collect();
        format!("<tr>{cells}</tr>")
    };
    let mut body = String::from("<div class=\"wide\" tabindex=\"0\"><table>\n");
    for (index, row) in table.rows.iter().enumerate() {
        let _ = match index {
            0 => writeln!(body, "<thead>{}</thead>\n<tbody>", line(row, "th")),
            _ => writeln!(body, "{}", line(row, "td")),
        };
    }
    body.push_str("</tbody>\n</table></div>\n");
    if !table.note.is_empty() {
        let _ = writeln!(body, "<p class=\"note\">{}</p>", isolated(&table.note));
    }
    body
}

/// The pairs that the model gets most wrong.
fn lowest_margins(files: &[ScoredFile]) -> String {
    let mut pairs: Vec<(&ScoredFile, &Entry, [f64; 2])> = Vec::new();
    for file in files {
        for (entry, scores) in file.data.entries.iter().zip(&file.scores) {
            if let (Facts::Pair, &[chosen, rejected]) = (&entry.facts, scores.as_slice()) {
                pairs.push((file, entry, [chosen, rejected]));
            }
        }
    }
    if pairs.is_empty() {
        return String::new();
    }
    pairs.sort_by(|left, right| (left.2[0] - left.2[1]).total_cmp(&(right.2[0] - right.2[1])));
    let heading = if pairs.len() > MOST_PAIRS { "Pairs with the lowest margins" } else { "Pairs by margin" };

    let mut body = String::new();
    for (file, entry, [chosen, rejected]) in pairs.into_iter().take(MOST_PAIRS) {
        let place = format!("{} {} {}", file.data.name, unit(entry), entry.at.row);
        let group = if entry.group.is_empty() { String::new() } else { format!(", {}", entry.group) };
        let _ = writeln!(
            body,
            "<article><h3>{} · margin {}</h3>",
            isolated(&format!("{place}{group}")),
            number(chosen - rejected)
        );
        for turn in &entry.prompt {
            let (role, text) = (turn.role.as_str(), block(&turn.content));
            let _ = writeln!(body, "<div class=\"prompt\"><span class=\"what\">{role}</span>{text}</div>");
        }
        body.push_str("<div class=\"replies\">");
        for (index, (what, score)) in [("chosen", chosen), ("rejected", rejected)].into_iter().enumerate() {
            let _ = writeln!(
                body,
                "<div class=\"reply\"><span class=\"what\">{what}, score {}</span>{}</div>",
                number(score),
                block(&entry.replies[index])
            );
        }
        body.push_str("</div></article>\n");
    }
    body.push_str("<p class=\"note\">samples.jsonl has every row with its scores.</p>\n");
    section(heading, &body)
}

fn unit(entry: &Entry) -> &'static str {
    datasets::RowLocation::unit(&entry.at.path)
}

fn reproduction(report: &RewardModelReport, notes: &Notes) -> String {
    let mut body = format!(
        "<pre class=\"command\" dir=\"auto\">{}</pre>\n<table><tbody>\n",
        escape_html(&notes.command)
    );
    let mut pair = |name: &str, value: &str| {
        let _ = writeln!(body, "<tr><th>{}</th><td>{}</td></tr>", isolated(name), isolated(value));
    };
    pair("program", &report.program);
    pair("model", &report.model.digest);
    if !notes.finished.is_empty() {
        pair("finished", &notes.finished);
    }
    for (name, value) in report.settings.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        pair(name, &text);
    }
    body.push_str("</tbody></table>\n");
    section("How to make it again", &body)
}

/// Untrusted text as a block, cut if it is very long.
fn block(text: &str) -> String {
    if text.is_empty() {
        return "<p class=\"note\">(empty)</p>".to_owned();
    }
    let shown: String = text.chars().take(MOST_CHARACTERS).collect();
    let left = text.chars().count().saturating_sub(MOST_CHARACTERS);
    let rest = if left > 0 { format!("<p class=\"note\">{left} more characters</p>") } else { String::new() };
    format!("<div><pre dir=\"auto\">{}</pre>{rest}</div>", escape_html(&shown))
}
