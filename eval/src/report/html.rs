//! The report as one HTML file: no script, readable without its style sheet.

use std::fmt::Write as _;

use super::contents::{self, SCORES};
use super::{Benchmarks, Curve, Gain, PerModel, Report, Sample, Score, Scores};
use crate::page::chart::{Dot, bars, dot_chart};
use crate::page::number::{bytes, percent, percent_interval, points};
use crate::page::{self, Page, block, curve, escape_html, note, plane, section};
use crate::results;

/// Renders the HTML page.
pub fn html(report: &Report) -> String {
    // With the tables of `eval`, the page looks like that of `eval`.
    let kind = if report.benchmarks.is_some() { "results" } else { "pipeline" };
    let body = [
        headline(report),
        exact_match(report),
        report.benchmarks.as_ref().map_or_else(String::new, benchmarks),
        page::curves("Training", &report.curves.iter().map(training_curve).collect::<String>()),
        samples(&report.samples),
        cost(report),
        reproduction(report),
    ];
    Page { title: &report.title, kind, body: body.concat(), script: None }.html()
}

/// The tasks that every model was asked.
fn benchmarks(benchmarks: &Benchmarks) -> String {
    let tables = results::scores_and_differences(&benchmarks.results);
    let link = format!("<p><a href=\"{}\">All samples</a></p>\n", escape_html(&benchmarks.report));
    section("Tasks", &(tables + &link))
}

/// The main figures of the report.
fn headline(report: &Report) -> String {
    let mut tiles = Vec::new();
    for (name, scores) in report.exact_match.known() {
        if let Some(Score { mean, low, high, n }) = scores.sampled {
            let note = format!("{}, n = {n}", percent_interval(low, high));
            tiles.push([format!("{name}, sampled"), percent(mean), note]);
        }
    }
    if let Some(Gain { mean, low, high }) = report.paired_gain {
        let note = format!("points paired, {} to {}", points(low), points(high));
        tiles.push(["PPO over SFT".into(), points(mean), note]);
    }
    if let Some(model) = &report.reward_model {
        let note = format!("of {} pairs ranked right", model.n);
        tiles.push(["reward model".into(), percent(model.accuracy), note]);
    }
    if let Some(kl) = report.kl {
        tiles.push(["KL to reference".into(), format!("{kl:.3}"), "nats per reply".into()]);
    }
    page::tiles(&tiles)
}

fn exact_match(report: &Report) -> String {
    let Some(drawing) = score_chart(&report.exact_match) else { return String::new() };
    let table = contents::scores(&report.exact_match).html(true);
    let mut body = format!("<figure>{drawing}</figure>\n{table}");
    body.push_str(&note(&format!(
        "{SCORES} Intervals are 95 %; n counts prompts, and several samples of one prompt are averaged first."
    )));
    let gains = [("sampled", "Sampled", report.paired_gain), ("greedy", "Greedy", report.paired_gain_greedy)];
    if let Some(drawing) = gain_chart(gains.map(|(label, _, gain)| (label, gain))) {
        let _ = writeln!(body, "<h3>PPO over SFT on the same prompts</h3>\n<figure>{drawing}</figure>");
    }
    for (_, name, gain) in gains {
        body.extend(gain.map(|gain| format!("<p><b>{name}:</b> {}</p>\n", contents::gain(&gain))));
    }
    if let Some(model) = &report.reward_model {
        let _ = writeln!(body, "<p><b>Reward model:</b> {}.</p>", contents::reward_model(model));
    }
    section("Exact match", &body)
}

/// Exact match of each model, greedy and sampled. The axis always runs from 0 to 100 %.
pub(super) fn score_chart(models: &PerModel<Scores>) -> Option<String> {
    let mut dots = Vec::new();
    for (name, scores) in models.known() {
        dots.extend(scores.decodings().into_iter().map(|(decoding, Score { mean, low, high, .. })| Dot {
            label: format!("{name} {decoding}"),
            class: name.to_lowercase(),
            is_filled: decoding == "sampled",
            values: [mean, low, high].map(|share| 100.0 * share),
            text: percent(mean),
        }));
    }
    dot_chart("Exact match, %, with 95 % intervals", &dots, (0.0, 100.0))
}

/// The paired gains around a line at zero.
fn gain_chart([sampled, greedy]: [(&str, Option<Gain>); 2]) -> Option<String> {
    let dot = |(label, gain): (&str, Option<Gain>)| {
        gain.map(|Gain { mean, low, high }| Dot {
            label: label.to_owned(),
            class: "ppo".to_owned(),
            is_filled: label == "sampled",
            values: [mean, low, high].map(|share| 100.0 * share),
            text: points(mean),
        })
    };
    let dots: Vec<Dot> = [greedy, sampled].into_iter().filter_map(dot).collect();
    let reach = dots.iter().flat_map(|dot| dot.values).map(f64::abs).fold(1.0, f64::max) * 1.1;
    dot_chart("PPO minus SFT, percentage points, with 95 % intervals", &dots, (-reach, reach))
}

fn training_curve(Curve { stage, metric, points }: &Curve) -> String {
    let drawing = plane::curve(&format!("{metric} of {stage} by step"), &stage.to_lowercase(), points);
    let smooth = curve::window(points).map(|window| format!(", centred average over {window} points"));
    let smooth = smooth.unwrap_or_default();
    let note = format!("{} points{smooth}{}", points.len(), gaps(", ", points));
    page::figure(&format!("{}: {}", escape_html(stage), escape_html(metric)), &note, drawing)
}

/// How many points are not drawn, after `before`.
pub(super) fn gaps(before: &str, points: &[(f64, f64)]) -> String {
    match curve::gaps(points) {
        0 => String::new(),
        gaps => format!("{before}<b class=\"wrong\">{gaps} not finite</b>"),
    }
}

/// How the last training stage changed the correctness of a reply: the class of the sample.
fn change(sample: &Sample) -> &'static str {
    let correct = |model| sample.replies.get(model).map(|reply| reply.correct);
    let (before, after) = match correct("PPO") {
        Some(after) => (correct("SFT").or(correct("base")), Some(after)),
        None => (correct("base"), correct("SFT")),
    };
    match (before, after) {
        (Some(false), Some(true)) => "gained",
        (Some(true), Some(false)) => "lost",
        (_, Some(true)) | (Some(true), None) => "correct",
        _ => "incorrect",
    }
}

fn samples(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let kinds = [
        ("all", "all"),
        ("gained", "wrong, now right"),
        ("lost", "right, now wrong"),
        ("correct", "still right"),
        ("incorrect", "still wrong"),
    ];
    let count = |kind: &str| samples.iter().filter(|s| kind == "all" || change(s) == kind).count();
    let mut body = page::filters("samples", &kinds, count);
    for sample in samples {
        let _ = writeln!(
            body,
            "<article class=\"{}\">\n{}{}<div class=\"replies\">",
            change(sample),
            block("prompt", "prompt", &sample.prompt, usize::MAX),
            block("prompt", "answer", &sample.answer, usize::MAX)
        );
        for (name, reply) in sample.replies.known() {
            let (class, verdict) =
                if reply.correct { ("right", "✓ right") } else { ("wrong", "✗ wrong") };
            let what = format!("{name} <b class=\"{class}\">{verdict}</b>");
            body.push_str(&block("reply", &what, &reply.text, usize::MAX));
        }
        body.push_str("</div>\n</article>\n");
    }
    section("Samples", &format!("<div class=\"filtered\">\n{body}</div>\n"))
}

fn cost(report: &Report) -> String {
    let mut stages = contents::times(report);
    let total = stages.pop();
    let mut body = String::new();
    if let Some(drawing) = bars("Wall-clock time per stage", &stages) {
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

fn reproduction(report: &Report) -> String {
    let facts = [("Settings", &report.settings), ("Machine", &report.machine)];
    let facts = facts.map(|(caption, values)| page::facts(caption, &page::settings(values))).concat();
    let body = format!("{}<div class=\"pairs\">\n{facts}</div>\n", page::command(&report.command));
    section("How to make it again", &body)
}
