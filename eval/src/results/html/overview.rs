//! The parts of the page that are tables of facts: tiles, warnings, contamination, protocols, and how to make
//! the results again.

use std::cmp::Reverse;
use std::fmt::Write as _;

use serde_json::Value;

use super::differences::{Verdict, pairs, signed, signed_interval};
use super::scores::{Row, has_many_unparsed};
use super::{Notes, Section, count, percent, wide};
use crate::contamination::Contamination;
use crate::evaluation::{Evaluation, Score};
use crate::report::{escape_html, isolated};
use crate::results::{Comparison, Results, number};
use crate::task::OutputType;

/// The most scores that get a tile.
const MOST_TILES: usize = 8;
/// The most warnings in full.
const MOST_WARNINGS: usize = 8;

/// The main figures, as tiles.
pub(super) fn tiles(results: &Results, evaluation: &Evaluation, rows: &[Row<'_>], notes: &Notes) -> String {
    let mut tiles = String::new();
    let documents: usize = results.tasks.iter().map(|task| task.effective).sum();
    let models = count(results.models.len(), "model", "models");
    let note = format!("{}, {models}", count(documents, "document", "documents"));
    let tasks = if results.tasks.len() == 1 { "task" } else { "tasks" };
    tiles.push_str(&tile(tasks, &results.tasks.len().to_string(), &note));

    let names = headline_names(results, evaluation);
    let first = |name: &&str| rows.iter().find(|row| row.task == *name);
    let scores = names.iter().filter_map(first).flat_map(|row| {
        row.scores.iter().enumerate().filter_map(move |(model, score)| Some((row, model, (*score)?)))
    });
    for (row, model, score) in scores.take(MOST_TILES) {
        let what = format!("{}, {}", isolated(&results.models[model].name), isolated(row.task));
        tiles.push_str(&tile(&what, &short(score.aggregated.value), &score_note(score)));
    }
    for pair in pairs(results) {
        tiles.push_str(&verdicts(&pair));
    }

    let seconds: f64 = notes.elapsed_seconds.iter().sum();
    if seconds > 0.0 {
        tiles.push_str(&tile("time", &duration(seconds), "for the requests of this run"));
    }
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

/// A tile. All parts are HTML.
fn tile(what: &str, figure: &str, note: &str) -> String {
    format!(
        "<div class=\"tile\"><div class=\"what\">{what}</div><div class=\"figure\">{figure}</div>\
         <div class=\"note\">{note}</div></div>\n"
    )
}

/// A number that fits into a tile.
fn short(value: f64) -> String {
    if (100.0..10_000.0).contains(&value.abs()) { format!("{value:.1}") } else { number(value) }
}

fn score_note(score: &Score) -> String {
    let interval = score.aggregated.interval;
    let interval =
        interval.map_or_else(String::new, |(low, high)| format!(", {} to {}", number(low), number(high)));
    format!("{}{interval}, n = {}", isolated(&score.metric), score.n)
}

/// How many comparisons of a pair of models show something.
fn verdicts(pair: &[&Comparison]) -> String {
    let verdicts: Vec<Verdict> = pair.iter().map(|comparison| Verdict::of(comparison)).collect();
    let number_of = |wanted: Verdict| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let note = format!(
        "{} worse, {} without a difference shown",
        number_of(Verdict::Worse),
        number_of(Verdict::Open)
    );
    let what = format!("{} against {}", isolated(&pair[0].model), isolated(&pair[0].baseline));
    tile(&what, &format!("{} better", number_of(Verdict::Better)), &note)
}

/// The largest groups, then the tasks that are in none of them.
fn headline_names<'a>(results: &'a Results, evaluation: &'a Evaluation) -> Vec<&'a str> {
    let has_score =
        |name: &str| results.models.iter().any(|model| model.groups.iter().any(|score| score.task == name));
    let mut groups: Vec<_> = evaluation.groups.iter().filter(|(group, _)| has_score(&group.group)).collect();
    groups.sort_by_key(|(_, tasks)| Reverse(tasks.len()));

    let mut covered: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (group, tasks) in groups {
        if tasks.iter().any(|task| !covered.contains(&task.as_str())) {
            names.push(&group.group);
            covered.extend(tasks.iter().map(String::as_str));
        }
    }
    let alone = results.tasks.iter().map(|task| task.task.as_str()).filter(|task| !covered.contains(task));
    names.extend(alone);
    names
}

/// What makes scores doubtful: documents without an answer of the model, prompts that it did not see as a
/// whole, replies without an answer in them.
pub(super) fn warnings(results: &Results) -> String {
    let mut lines = Vec::new();
    for model in &results.models {
        let (mut failed, mut cut): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for score in &model.scores {
            let (name, task) = (isolated(&model.name), isolated(&score.task));
            if score.failed > 0 && !failed.contains(&score.task.as_str()) {
                failed.push(&score.task);
                let documents = count(score.failed, "document", "documents");
                lines.push(format!("{name} could not answer {documents} of {task}; they do not count."));
            }
            if score.cut > 0 && !cut.contains(&score.task.as_str()) {
                cut.push(&score.task);
                let documents = count(score.cut, "document", "documents");
                lines.push(format!(
                    "The prompts of {documents} of {task} are longer than {name} takes; they lost their beginning."
                ));
            }
            if has_many_unparsed(score) {
                let share = percent(score.unparsed, score.n);
                let finder = match score.filter.as_str() {
                    "none" => String::new(),
                    filter => format!(" that {} finds", isolated(filter)),
                };
                lines.push(format!(
                    "{share} of the replies of {name} to {task} have no answer{finder}; they count as wrong."
                ));
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }

    let rest = lines.len().saturating_sub(MOST_WARNINGS);
    lines.truncate(MOST_WARNINGS);
    if rest > 0 {
        lines.push(format!("{rest} more: see the table of scores."));
    }
    let mut items = String::new();
    for line in lines {
        let _ = writeln!(items, "<li>⚠ {line}</li>");
    }
    format!("<ul class=\"warnings\" aria-label=\"warnings\">\n{items}</ul>\n")
}

/// Which tasks the training data holds rows of. `None` if nobody looked.
pub(super) fn contamination(rows: &[Contamination]) -> Option<Section> {
    if rows.is_empty() {
        return None;
    }
    let mut table = table_head(&[
        ("task", ""),
        ("model", ""),
        ("metric", ""),
        ("rows in the training data", "num"),
        ("rows not examined", "num"),
        ("score of the clean rows", "num"),
        ("score of the rows in the training data", "num"),
        ("difference", "num"),
        ("95 % interval", "num"),
    ]);
    for row in rows {
        let score = |score: Option<f64>| score.map_or_else(|| "–".to_owned(), number);
        let class = if row.contaminated > 0 { "num warning" } else { "num" };
        let _ = writeln!(
            table,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"{class}\">{} of {} ({})</td>\
             <td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>\
             <td class=\"num\">{}</td></tr>",
            isolated(&row.task),
            isolated(&row.model),
            isolated(&row.metric),
            row.contaminated,
            row.checked,
            percent(row.contaminated, row.checked),
            row.unexamined,
            score(row.clean_score),
            score(row.dirty_score),
            row.difference().map_or_else(|| "–".to_owned(), signed),
            signed_interval(row.difference_interval),
        );
    }
    table.push_str("</tbody>\n</table>\n");
    let mut body = wide("contamination", &table);
    body.push_str(
        "<p class=\"note\">A row stands in the training data if 13 words of one of its texts follow one another there, \
         or 20 characters of a script without spaces, or the whole of a shorter text of at least 8 words or 12 \
         characters. Texts count that are asked or that are the answer, without what more than 10 rows of the \
         task share. A row without such a text was not examined and is in neither score.</p>\n",
    );
    Some(Section { id: "contamination", heading: "Contamination", body })
}

/// What identifies the scores of each task, and how many of its samples are in the page.
pub(super) fn protocols(results: &Results, embedded: &[(usize, usize)]) -> Section {
    let mut table = table_head(&[
        ("task", ""),
        ("protocol id", ""),
        ("same numbers as", ""),
        ("version", "num"),
        ("asked for", ""),
        ("shots", "num"),
        ("rows", "num"),
        ("samples here", "num"),
    ]);
    for (index, task) in results.tasks.iter().enumerate() {
        let version = task.version.map_or_else(|| "–".to_owned(), |version| version.to_string());
        let samples = embedded.get(index).map_or(0, |counts| counts.0);
        let _ = writeln!(
            table,
            "<tr><th scope=\"row\">{}</th><td><code>{}</code></td><td>{}</td><td class=\"num\">{version}</td>\
             <td>{}</td><td class=\"num\">{}</td><td class=\"num\">{} of {}</td><td class=\"num\">{samples}</td></tr>",
            isolated(&task.task),
            escape_html(&task.protocol_id),
            task.protocol.as_deref().map_or_else(|| "–".to_owned(), isolated),
            kind(task.output_type),
            task.num_fewshot,
            task.effective,
            task.original,
        );
    }
    table.push_str("</tbody>\n</table>\n");
    let mut body = wide("protocols", &table);
    body.push_str("<p class=\"note\">Scores with equal protocol ids are comparable.</p>\n");
    Section { id: "protocols", heading: "Protocols", body }
}

fn kind(output_type: OutputType) -> &'static str {
    match output_type {
        OutputType::MultipleChoice => "likelihood of choices",
        OutputType::MultipleContext => "likelihood after contexts",
        OutputType::Loglikelihood => "likelihood of the target",
        OutputType::LoglikelihoodRolling => "likelihood of a text",
        OutputType::GenerateUntil => "reply",
    }
}

/// The command, the models and the settings.
pub(super) fn reproduction(results: &Results, notes: &Notes) -> Section {
    let mut body = String::new();
    if !notes.command.is_empty() {
        let _ = writeln!(body, "<pre class=\"command\" dir=\"auto\">{}</pre>", escape_html(&notes.command));
    }

    let mut models = table_head(&[("model", ""), ("hash", ""), ("time", "num")]);
    for (index, model) in results.models.iter().enumerate() {
        let seconds = notes.elapsed_seconds.get(index).copied();
        let _ = writeln!(
            models,
            "<tr><th scope=\"row\">{}</th><td><code>{}</code></td><td class=\"num\">{}</td></tr>",
            isolated(&model.name),
            escape_html(&model.digest),
            seconds.map_or_else(|| "–".to_owned(), duration)
        );
    }
    models.push_str("</tbody>\n</table>\n");
    body.push_str(&wide("models", &models));

    let mut settings = table_head(&[("setting", ""), ("value", "")]);
    let mut pair = |name: &str, value: &str| {
        let (name, value) = (isolated(name), isolated(value));
        let _ = writeln!(settings, "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>");
    };
    pair("program", &results.program);
    if !notes.started.is_empty() {
        pair("started", &notes.started);
    }
    for (name, value) in results.settings.as_object().into_iter().flatten() {
        pair(name, &setting(value));
    }
    settings.push_str("</tbody>\n</table>\n");
    body.push_str(&wide("settings", &settings));
    Section { id: "reproduction", heading: "How to make it again", body }
}

/// A setting: strings unquoted, everything else as JSON.
fn setting(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The beginning of a table: headings with their classes.
fn table_head(columns: &[(&str, &str)]) -> String {
    let heading = |(text, class): &(&str, &str)| format!("<th scope=\"col\" class=\"{class}\">{text}</th>");
    let headings: String = columns.iter().map(heading).collect();
    format!("<table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n")
}

/// `9.4 s`, `2 min 40 s`, `1 h 03 min`.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 59.95 => format!("{seconds:.1} s"),
        0..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}
