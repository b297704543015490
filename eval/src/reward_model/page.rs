//! The report of a reward model as one HTML page, without scripts: tiles, charts, tables, the pairs with the
//! lowest margins, how to make it again.

use std::fmt::Write as _;

use super::data::{Entry, Facts};
use super::tables::tables;
use super::{BestOfN, OverOptimization, PairReport, RewardModelReport, ScoredFile};
use crate::page::number::{number, percent, percent_interval};
use crate::page::plane::{Line, Plane, histogram};
use crate::page::{self, Page, block, escape_html, isolated, note, section};
use crate::statistics::{Estimate, wilson};

/// The pairs that the page shows.
const MOST_PAIRS: usize = 30;
/// The most characters of a text on the page.
const MOST_CHARACTERS: usize = 3000;

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
    let mut body = page::tiles(&tiles(report)) + &page::curves("Charts", &charts(report, files));
    for table in tables(report) {
        body.push_str(&section(&isolated(&table.title), &table.html(false)));
    }
    body.push_str(&lowest_margins(files));
    body.push_str(&reproduction(report, notes));
    let title = format!("Reward model {}", report.model.name);
    Page { title: &title, kind: "rewards", body, script: None }.html()
}

/// The main figures.
fn tiles(report: &RewardModelReport) -> Vec<[String; 3]> {
    let pairs = |name: &str, pairs: &PairReport| {
        let Estimate { mean, low, high, n, .. } = pairs.accuracy;
        let note = format!("of {n} pairs right, {}", percent_interval(low, high));
        [isolated(name), percent(mean), note]
    };
    let mut tiles: Vec<_> = report.all_pairs.iter().map(|all| pairs("all pairs", all)).collect();
    tiles.extend(report.files.iter().filter_map(|file| Some(pairs(&file.file, file.pairs.as_ref()?))));
    for file in &report.files {
        let benches = [
            ("RewardBench", file.reward_bench.as_ref().and_then(|bench| bench.score)),
            ("RewardBench 2", file.reward_bench_2.as_ref().and_then(|bench| bench.score)),
        ];
        for (name, score) in benches {
            tiles.extend(
                score.map(|score| [name.to_owned(), format!("{:.1}", 100.0 * score), isolated(&file.file)]),
            );
        }
        if let Some(point) = file.best_of_n.as_ref().and_then(|curve| curve.points.last()) {
            let note = format!("gold value of the best of {}, {}", point.n, isolated(&file.file));
            tiles.push(["best of n".to_owned(), number(point.gold.mean), note]);
        }
    }
    tiles
}

fn charts(report: &RewardModelReport, files: &[ScoredFile]) -> String {
    let figure =
        |title: &str, note: &str, drawing| page::figure(&isolated(title), &escape_html(note), drawing);
    let mut figures = Vec::new();
    for (file, scored) in report.files.iter().zip(files) {
        if let Some(pairs) = &file.pairs {
            let margins: Vec<f64> = scored.pairs().iter().map(super::ScoredPair::margin).collect();
            let title = format!("Margins of {}", file.file);
            let note = "pairs; below 0 the rejected reply scores higher";
            figures.push(figure(&title, note, histogram(&title, "margin", &margins)));
            let title = format!("Reliability of {}", file.file);
            let note = "accuracy over sigmoid(|margin|), 95 % intervals; dashed: calibrated";
            figures.push(figure(&title, note, reliability(&title, pairs)));
        }
        if let Some(curve) = &file.best_of_n {
            let title = format!("Best of n, {}", file.file);
            let note = "over the KL bound: 1 gold value of the pick with its interval, 2 gold best";
            figures.push(figure(&title, note, best_of_n(&title, curve)));
        }
    }
    if let Some(curve) = &report.over_optimization {
        for (title, note, line) in over_optimization(curve) {
            let x_label = "sqrt(KL), KL in nats per reply";
            let plane = Plane { title: &title, x_label, lines: vec![line], ..Plane::default() };
            figures.push(figure(&title, note, plane.svg()));
        }
    }
    figures.concat()
}

fn reliability(title: &str, pairs: &PairReport) -> Option<String> {
    let (mut points, mut intervals) = (Vec::new(), Vec::new());
    for bin in &pairs.calibration.as_ref()?.bins {
        let (Some(confidence), Some(accuracy)) = (bin.confidence, bin.accuracy) else { continue };
        let right = (accuracy * bin.n as f64).round() as u64;
        points.push((confidence, accuracy));
        intervals.extend(wilson(right, bin.n as u64).ok().map(|rate| (confidence, rate.low, rate.high)));
    }
    let plane = Plane {
        title,
        x_label: "probability of the preferred reply",
        lines: vec![Line::through(&points).marked(intervals)],
        reference: Some([(0.5, 0.5), (1.0, 1.0)]),
        is_numbered: false,
    };
    plane.svg()
}

/// The interval of an estimate at a place of a chart, if it has one.
fn with_interval(place: f64, estimate: &Estimate) -> Option<(f64, f64, f64)> {
    estimate.interval().map(|(low, high)| (place, low, high))
}

fn best_of_n(title: &str, curve: &BestOfN) -> Option<String> {
    let points = || curve.points.iter();
    let picked: Vec<_> = points().map(|point| (point.kl_bound, point.gold.mean)).collect();
    let best: Vec<_> = points().map(|point| (point.kl_bound, point.gold_best.mean)).collect();
    let intervals = points().filter_map(|point| with_interval(point.kl_bound, &point.gold)).collect();
    let lines = vec![Line::through(&picked).marked(intervals), Line::through(&best).marked(Vec::new())];
    let x_label = "ln n - (n - 1)/n, nats";
    Plane { title, x_label, lines, is_numbered: true, reference: None }.svg()
}

/// Proxy and gold in a chart each, for they have scales of their own: title, what is drawn, and the line.
fn over_optimization(curve: &OverOptimization) -> [(String, &'static str, Line<'static>); 2] {
    let mut points: Vec<_> = curve.points.iter().collect();
    points.sort_by(|left, right| left.root_kl.total_cmp(&right.root_kl));
    let proxy: Vec<_> = points.iter().map(|point| (point.root_kl, point.proxy)).collect();
    let gold: Vec<_> = points.iter().filter_map(|point| Some((point.root_kl, point.gold?))).collect();
    let intervals =
        points.iter().filter_map(|point| with_interval(point.root_kl, point.gold_estimate.as_ref()?));
    let proxy = Line { has_marks: proxy.len() < 100, ..Line::through(&proxy) };
    let gold = Line::through(&gold).marked(intervals.collect());
    [
        (format!("Proxy reward, {}", curve.run), "as the run logged it", proxy),
        (format!("Gold reward, {}", curve.run), "of the same policies", gold),
    ]
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
    for (file, entry, scores) in pairs.into_iter().take(MOST_PAIRS) {
        let unit = datasets::RowLocation::unit(&entry.at.path);
        let group = if entry.group.is_empty() { String::new() } else { format!(", {}", entry.group) };
        let place = isolated(&format!("{} {unit} {}{group}", file.data.name, entry.at.row));
        let margin = number(scores[0] - scores[1]);
        let _ = writeln!(body, "<article><h3>{place} · margin {margin}</h3>");
        for turn in &entry.prompt {
            body.push_str(&block("prompt", turn.role.as_str(), &turn.content, MOST_CHARACTERS));
        }
        body.push_str("<div class=\"replies\">");
        for ((what, score), reply) in ["chosen", "rejected"].into_iter().zip(scores).zip(&entry.replies) {
            let what = format!("{what}, score {}", number(score));
            body.push_str(&block("reply", &what, reply, MOST_CHARACTERS));
        }
        body.push_str("</div></article>\n");
    }
    section(heading, &(body + &note("samples.jsonl has every row with its scores.")))
}

fn reproduction(report: &RewardModelReport, notes: &Notes) -> String {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut facts = vec![pair("program", &report.program), pair("model", &report.model.digest)];
    if !notes.finished.is_empty() {
        facts.push(pair("finished", &notes.finished));
    }
    facts.extend(report.settings.as_object().map(page::settings).unwrap_or_default());
    section("How to make it again", &(page::command(&notes.command) + &page::facts("", &facts)))
}
