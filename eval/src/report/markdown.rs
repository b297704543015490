//! The report as Markdown: the tables and conclusions of the HTML page, for terminals and code hosting sites.
//! Of each curve it shows the first, last and extreme values; `report.json` has all points.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::escape::escape_markdown;
use super::{Curve, Family, Report, Sample, Score, Scores, layout};

/// The largest number of prompts shown. The other two files have all of them.
const MOST_SAMPLES: usize = 40;

/// Renders the Markdown document.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n", escape_markdown(&report.title));
    text.push_str(&exact_match(report));
    text.push_str(&families(&report.families));
    if let Some(benchmarks) = &report.benchmarks {
        let tables = benchmarks.results.markdown_tables("###");
        let _ = write!(text, "\n## Tasks\n{tables}\nAll samples: {}\n", escape_markdown(&benchmarks.report));
    }
    text.push_str(&curves(&report.curves));
    text.push_str(&samples(&report.samples));
    text.push_str(&cost(report));
    text.push_str(&reproduction(report));
    text
}

fn exact_match(report: &Report) -> String {
    let mut text = String::new();
    let models = report.exact_match.named();
    if models.iter().any(|(_, scores)| scores.is_some()) {
        text.push_str("\n## Exact match\n\n| model | greedy | sampled | n |\n|---|---:|---:|---:|\n");
    }
    for (name, scores) in models {
        let Some(Scores { greedy, sampled }) = scores else { continue };
        let cell = |score: &Option<Score>| score.as_ref().map_or_else(|| "–".to_owned(), layout::score);
        let n = greedy.or(*sampled).map_or_else(|| "–".to_owned(), |score| score.n.to_string());
        let _ = writeln!(text, "| {name} | {} | {} | {n} |", cell(greedy), cell(sampled));
    }

    if !text.is_empty() {
        text.push_str(
            "\nA reply is right when, stripped of white space, it equals the answer. In brackets 95 % intervals; n counts \
             prompts, and several samples of one prompt are averaged first.\n",
        );
    }

    for (name, gain) in [("sampled", &report.paired_gain), ("greedy", &report.paired_gain_greedy)] {
        if let Some(gain) = gain {
            let verdict = layout::verdict(gain);
            let _ = writeln!(
                text,
                "\n**PPO over SFT on the same prompts, {name}:** {}. {verdict}",
                layout::gain(gain)
            );
        }
    }

    if let Some(model) = &report.reward_model {
        let _ = writeln!(text, "\n**Reward model:** {}.", layout::reward_model(model));
    }
    if let Some(kl) = report.kl {
        let _ = writeln!(text, "\n**KL to the reference:** {kl:.3} nats per reply.");
    }

    text
}

fn families(families: &[Family]) -> String {
    if families.is_empty() {
        return String::new();
    }

    // Models without any score get no columns.
    let shown: Vec<usize> =
        (0..3).filter(|&i| families.iter().any(|family| family.exact_match.named()[i].1.is_some())).collect();
    let mut text = String::from("\n## By family\n\n| family |");

    for &i in &shown {
        let name = families[0].exact_match.named()[i].0;
        let _ = write!(text, " {name} greedy | {name} sampled |");
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(2 * shown.len()));

    for family in families {
        let _ = write!(text, "| {} |", escape_markdown(&family.name));
        let models = family.exact_match.named();
        for &i in &shown {
            let scores = models[i].1.copied().unwrap_or_default();
            for score in [scores.greedy, scores.sampled] {
                let _ = write!(
                    text,
                    " {} |",
                    score.map_or_else(|| "–".to_owned(), |score| layout::score(&score))
                );
            }
        }
        text.push('\n');
    }
    text
}

fn curves(curves: &[Curve]) -> String {
    let mut rows = String::new();

    for curve in curves {
        let values: Vec<f64> =
            curve.points.iter().map(|point| point.1).filter(|value| value.is_finite()).collect();
        let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
        let (low, high) = values.iter().fold((*first, *first), |(low, high), &v| (low.min(v), high.max(v)));
        let (stage, metric) = (escape_markdown(&curve.stage), escape_markdown(&curve.metric));
        let _ = writeln!(
            rows,
            "| {stage} | {metric} | {} | {first:.4} | {last:.4} | {low:.4} | {high:.4} | {} |",
            curve.points.len(),
            super::curve::gaps(&curve.points)
        );
    }

    if rows.is_empty() {
        return rows;
    }

    format!(
        "\n## Training\n\n| stage | metric | points | first | last | lowest | highest | not finite |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n{rows}"
    )
}

fn samples(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return String::new();
    }

    // Models without any reply get no column.
    let shown: Vec<usize> =
        (0..3).filter(|&i| samples.iter().any(|sample| sample.replies.named()[i].1.is_some())).collect();
    let mut text = String::from("\n## Samples\n\n| prompt | answer |");

    for &i in &shown {
        let _ = write!(text, " {} |", samples[0].replies.named()[i].0);
    }
    let _ = writeln!(text, "\n|{}", "---|".repeat(2 + shown.len()));

    for sample in samples.iter().take(MOST_SAMPLES) {
        let _ = write!(text, "| {} | {} |", escape_markdown(&sample.prompt), escape_markdown(&sample.answer));
        for &i in &shown {
            let reply = sample.replies.named()[i].1;
            let cell = |reply: &super::Reply| {
                format!("{} {}", if reply.correct { "✓" } else { "✗" }, escape_markdown(&reply.text))
            };
            let _ = write!(text, " {} |", reply.map_or_else(|| "–".to_owned(), cell));
        }
        text.push('\n');
    }

    if samples.len() > MOST_SAMPLES {
        let _ = writeln!(text, "\n{} more in report.html.", samples.len() - MOST_SAMPLES);
    }
    text
}

fn cost(report: &Report) -> String {
    let stages = report.seconds.named();
    let mut text = String::new();
    if !stages.is_empty() {
        text.push_str("\n## Time and memory\n\n| stage | time |\n|---|---:|\n");
        for (name, value) in &stages {
            let _ = writeln!(text, "| {name} | {} |", layout::seconds(*value));
        }
        let total: f64 = stages.iter().map(|stage| stage.1).sum();
        let _ = writeln!(text, "| total | {} |", layout::seconds(total));
    }
    if let Some(bytes) = report.peak_rss_bytes {
        let _ = writeln!(text, "\n**Peak memory:** {}.", layout::bytes(bytes));
    }
    text
}

fn reproduction(report: &Report) -> String {
    let mut text = String::from("\n## How to make it again\n");
    if !report.command.is_empty() {
        // A fence longer than any run of backticks in the command cannot be closed by the command.
        let fence = "`".repeat(longest_run(&report.command, '`').max(2) + 1);
        let _ = writeln!(text, "\n{fence}sh\n{}\n{fence}", report.command.trim_end());
    }
    text.push_str(&name_value_table("setting", &report.settings));
    text.push_str(&name_value_table("machine", &report.machine));
    text
}

fn longest_run(text: &str, wanted: char) -> usize {
    text.split(|c| c != wanted).map(|run| run.chars().count()).max().unwrap_or(0)
}

fn name_value_table(heading: &str, rows: &Map<String, Value>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!("\n| {heading} | value |\n|---|---|\n");
    for (name, value) in rows {
        let _ =
            writeln!(text, "| {} | {} |", escape_markdown(name), escape_markdown(&layout::setting(value)));
    }
    text
}
