//! The report as one HTML file: no script, no network access, readable without its style sheet.
//!
//! The sample browser filters with radio buttons and sibling selectors only.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::escape::escape_html;
use super::{Benchmarks, Family, PerModel, Reply, Report, Sample, Scores, chart, curve, layout};
use crate::results;

const STYLE: &str = include_str!("style.css");

/// Renders the HTML page.
pub fn html(report: &Report) -> String {
    let style = if report.benchmarks.is_some() { results::STYLE } else { "" };
    let mut page = head(&report.title, style);
    let sections = [
        headline(report),
        exact_match(report),
        families(&report.families),
        benchmarks(report),
        curves(report),
        samples(&report.samples),
        cost(report),
        Some(reproduction(report)),
    ];
    page.extend(sections.into_iter().flatten());
    page + "</main>\n</body>\n</html>\n"
}

/// The tasks that every model was asked.
fn benchmarks(report: &Report) -> Option<String> {
    let Benchmarks { report, results } = report.benchmarks.as_ref()?;
    let link = format!("<p><a href=\"{}\">All samples</a></p>\n", escape_html(report));
    Some(section("Tasks", &format!("{}{link}", results::scores_and_differences(results))))
}

/// The page up to its first section. `style` follows the common style sheet.
pub(crate) fn head(title: &str, style: &str) -> String {
    let title = escape_html(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// A section. `heading` is HTML.
pub(crate) fn section(heading: &str, body: &str) -> String {
    format!("<section>\n<h2>{heading}</h2>\n{body}</section>\n")
}

/// The main figures of the report, as tiles.
fn headline(report: &Report) -> Option<String> {
    let mut tiles = String::new();
    let mut tile = |name: &str, value: String, note: String| {
        let _ = writeln!(
            tiles,
            "<div class=\"tile\"><div class=\"what\">{name}</div><div class=\"figure\">{value}</div>\
             <div class=\"note\">{note}</div></div>"
        );
    };

    for (name, scores) in report.exact_match.named() {
        if let Some(score) = scores.and_then(|scores| scores.sampled) {
            let note = format!("{:.1} to {:.1}, n = {}", 100.0 * score.low, 100.0 * score.high, score.n);
            tile(&format!("{name}, sampled"), layout::percent(score.mean), note);
        }
    }

    if let Some(gain) = &report.paired_gain {
        let interval =
            format!("points paired, {} to {}", layout::points(gain.low), layout::points(gain.high));
        tile("PPO over SFT", layout::points(gain.mean), interval);
    }

    if let Some(model) = &report.reward_model {
        let note = format!("of {} pairs ranked right", model.n);
        tile("reward model", layout::percent(model.accuracy), note);
    }
    if let Some(kl) = report.kl {
        tile("KL to reference", format!("{kl:.3}"), "nats per reply".into());
    }

    (!tiles.is_empty()).then(|| format!("<div class=\"tiles\">\n{tiles}</div>\n"))
}

fn exact_match(report: &Report) -> Option<String> {
    let drawing = chart::scores(&report.exact_match)?;
    let mut body = format!("<figure>{drawing}</figure>\n{}", score_table(&report.exact_match));
    body.push_str(
        "<p class=\"note\">A reply is right when, stripped of white space, it equals the answer. Intervals are 95 %; \
         n counts prompts, and several samples of one prompt are averaged first.</p>\n",
    );
    if let Some(drawing) = chart::gains(report.paired_gain.as_ref(), report.paired_gain_greedy.as_ref()) {
        let _ = writeln!(body, "<h3>PPO over SFT on the same prompts</h3>\n<figure>{drawing}</figure>");
        for (name, gain) in [("Sampled", &report.paired_gain), ("Greedy", &report.paired_gain_greedy)] {
            if let Some(gain) = gain {
                let _ =
                    writeln!(body, "<p><b>{name}:</b> {}. {}</p>", layout::gain(gain), layout::verdict(gain));
            }
        }
    }
    if let Some(model) = &report.reward_model {
        let _ = writeln!(body, "<p><b>Reward model:</b> {}.</p>", layout::reward_model(model));
    }
    Some(section("Exact match", &body))
}

fn score_table(models: &PerModel<Scores>) -> String {
    let mut table = String::from(
        "<table>\n<thead><tr><th>model</th><th class=\"num\">greedy</th><th class=\"num\">sampled</th>\
         <th class=\"num\">n</th></tr></thead>\n<tbody>\n",
    );
    for (name, scores) in models.named() {
        let Some(Scores { greedy, sampled }) = scores else { continue };
        let cell =
            |score: &Option<super::Score>| score.as_ref().map_or_else(|| "–".to_owned(), layout::score);
        let n = greedy.or(*sampled).map_or_else(|| "–".to_owned(), |score| score.n.to_string());
        let _ = writeln!(
            table,
            "<tr><th>{name}</th><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{n}</td></tr>",
            cell(greedy),
            cell(sampled)
        );
    }
    table + "</tbody>\n</table>\n"
}

fn families(families: &[Family]) -> Option<String> {
    if families.is_empty() {
        return None;
    }
    let mut table = String::from(
        "<div class=\"wide\"><table class=\"families\">\n<thead><tr><th>family</th><th class=\"num\">n</th>",
    );

    // Models without any score get no columns.
    let shown: Vec<usize> =
        (0..3).filter(|&i| families.iter().any(|family| family.exact_match.named()[i].1.is_some())).collect();

    for &i in &shown {
        let name = families[0].exact_match.named()[i].0;
        let _ = write!(table, "<th class=\"num\">{name} greedy</th><th class=\"num\">{name} sampled</th>");
    }
    table.push_str("</tr></thead>\n<tbody>\n");

    for family in families {
        let models = family.exact_match.named();
        let any =
            models.iter().find_map(|(_, scores)| scores.and_then(|scores| scores.greedy.or(scores.sampled)));
        let n = any.map_or_else(|| "–".to_owned(), |score| score.n.to_string());
        let _ = write!(table, "<tr><th>{}</th><td class=\"num\">{n}</td>", escape_html(&family.name));
        for &i in &shown {
            let scores = models[i].1.copied().unwrap_or_default();
            table.push_str(&rate_cell(scores.greedy));
            table.push_str(&rate_cell(scores.sampled));
        }
        table.push_str("</tr>\n");
    }

    table.push_str("</tbody>\n</table></div>\n<p class=\"note\">The bar behind a figure is the figure; hover for its 95 % interval.</p>\n");
    Some(section("By family", &table))
}

fn rate_cell(score: Option<super::Score>) -> String {
    let Some(score) = score else { return "<td class=\"num\">–</td>".into() };
    let width = (100.0 * score.mean).clamp(0.0, 100.0);
    format!(
        "<td class=\"num rate\" style=\"--rate:{width:.1}%\" title=\"{}, n = {}\">{}</td>",
        layout::score(&score),
        score.n,
        layout::percent(score.mean)
    )
}

fn curves(report: &Report) -> Option<String> {
    let mut body = String::new();
    for curve in &report.curves {
        let Some(drawing) = chart::curve(curve) else { continue };
        let name = format!("{}: {}", escape_html(&curve.stage), escape_html(&curve.metric));
        let smooth =
            curve::window(&curve.points).map(|window| format!(", centred average over {window} points"));
        let gaps = match curve::gaps(&curve.points) {
            0 => String::new(),
            gaps => format!(", <b class=\"wrong\">{gaps} not finite</b>"),
        };
        let note = format!("{} points{}{gaps}", curve.points.len(), smooth.unwrap_or_default());
        let _ = writeln!(
            body,
            "<figure><figcaption><b>{name}</b> <span class=\"note\">{note}</span></figcaption>{drawing}</figure>"
        );
    }
    (!body.is_empty()).then(|| section("Training", &format!("<div class=\"curves\">\n{body}</div>\n")))
}

/// How the last training stage changed the correctness of a reply. The filter above the samples uses this
/// class.
fn change(sample: &Sample) -> &'static str {
    let PerModel { base, sft, ppo } = &sample.replies;
    let right = |reply: &Option<Reply>| reply.as_ref().map(|reply| reply.correct);
    let (before, after) = match (right(sft).or(right(base)), right(ppo)) {
        (before, Some(after)) => (before, Some(after)),
        (_, None) => (right(base), right(sft)),
    };
    match (before, after) {
        (Some(false), Some(true)) => "gained",
        (Some(true), Some(false)) => "lost",
        (_, Some(true)) | (Some(true), None) => "right",
        _ => "wrong",
    }
}

fn samples(samples: &[Sample]) -> Option<String> {
    if samples.is_empty() {
        return None;
    }
    let mut body = String::from("<div class=\"samples\">\n");

    let filters = [
        ("all", "all"),
        ("gained", "wrong, now right"),
        ("lost", "right, now wrong"),
        ("right", "still right"),
        ("wrong", "still wrong"),
    ];
    for (id, label) in filters {
        let count =
            if id == "all" { samples.len() } else { samples.iter().filter(|s| change(s) == id).count() };
        let checked = if id == "all" { " checked" } else { "" };
        let _ = writeln!(
            body,
            "<input type=\"radio\" name=\"show\" id=\"show-{id}\"{checked}><label for=\"show-{id}\">{label} ({count})</label>"
        );
    }

    for sample in samples {
        let _ = writeln!(
            body,
            "<article class=\"{}\">\n<div class=\"prompt\"><span class=\"what\">prompt</span><pre>{}</pre></div>\n\
             <div class=\"prompt\"><span class=\"what\">answer</span><pre>{}</pre></div>\n<div class=\"replies\">",
            change(sample),
            escape_html(&sample.prompt),
            escape_html(&sample.answer)
        );

        for (name, reply) in sample.replies.named() {
            let Some(Reply { text, correct }) = reply else { continue };
            let (class, verdict) = if *correct { ("right", "✓ right") } else { ("wrong", "✗ wrong") };
            let _ = writeln!(
                body,
                "<div class=\"reply\"><span class=\"what\">{name} <b class=\"{class}\">{verdict}</b></span><pre>{}</pre></div>",
                escape_html(text)
            );
        }
        body.push_str("</div>\n</article>\n");
    }

    body.push_str("</div>\n");
    Some(section("Samples", &body))
}

fn cost(report: &Report) -> Option<String> {
    let mut body =
        chart::seconds(&report.seconds).map_or_else(String::new, |svg| format!("<figure>{svg}</figure>\n"));
    let total: f64 = report.seconds.named().iter().map(|stage| stage.1).sum();
    if total > 0.0 {
        let _ = writeln!(body, "<p><b>Total:</b> {}.</p>", layout::seconds(total));
    }
    if let Some(bytes) = report.peak_rss_bytes {
        let _ = writeln!(body, "<p><b>Peak memory:</b> {}.</p>", layout::bytes(bytes));
    }
    (!body.is_empty()).then(|| section("Time and memory", &body))
}

fn reproduction(report: &Report) -> String {
    let mut body = String::new();
    if !report.command.is_empty() {
        let _ = writeln!(body, "<pre class=\"command\">{}</pre>", escape_html(&report.command));
    }
    body.push_str("<div class=\"pairs\">\n");
    body.push_str(&name_value_table("Settings", &report.settings));
    body.push_str(&name_value_table("Machine", &report.machine));
    body.push_str("</div>\n");
    section("How to make it again", &body)
}

fn name_value_table(heading: &str, rows: &Map<String, Value>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = format!("<table><caption>{heading}</caption>\n<tbody>\n");
    for (name, value) in rows {
        let (name, value) = (escape_html(name), escape_html(&layout::setting(value)));
        let _ = writeln!(table, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    table + "</tbody>\n</table>\n"
}
