//! The parts of the page that are tables of facts: tiles, warnings, contamination, protocols, and how to make
//! the results again.

use std::cmp::Reverse;

use super::differences::{Verdict, pairs};
use super::scores::{Row, has_many_unparsed};
use super::section::{Notes, Section};
use crate::contamination::Contamination;
use crate::evaluation::{Evaluation, Score};
use crate::page::number::{
    NOTHING, count, interval, number, optional, or_nothing, percent_of, seconds, signed, signed_interval,
};
use crate::page::{self, Column, escape_html, html_table, isolated, note};
use crate::results::{Comparison, ModelResults, Results, TaskInfo};
use crate::task::OutputType;

/// The most scores that get a tile, unless a single task has more models.
const MOST_TILES: usize = 8;
/// The most warnings in full.
const MOST_WARNINGS: usize = 8;

/// The main figures, as tiles.
pub(super) fn tiles(results: &Results, evaluation: &Evaluation, rows: &[Row<'_>], notes: &Notes) -> String {
    let documents: usize = results.tasks.iter().map(|task| task.effective).sum();
    let models = count(results.models.len(), "model", "models");
    let sizes = format!("{}, {models}", count(documents, "document", "documents"));
    let tasks = if results.tasks.len() == 1 { "task" } else { "tasks" };
    let mut tiles = vec![[tasks.to_owned(), results.tasks.len().to_string(), sizes]];

    tiles.extend(main_figures(results, rows, &headline_names(results, evaluation)));
    let total: f64 = notes.elapsed_seconds.iter().sum();
    if total > 0.0 {
        tiles.push(["time".into(), seconds(total), "for the requests of this run".into()]);
    }
    page::tiles(&tiles)
}

/// The first scores of the tasks and groups `names`, and what the comparisons show, as tiles.
pub(super) fn main_figures(results: &Results, rows: &[Row<'_>], names: &[&str]) -> Vec<[String; 3]> {
    let first = |name: &&str| rows.iter().find(|row| row.task == *name);
    // A task whose tiles leave out a model would hide the model that was trained last.
    let tasks = (MOST_TILES / results.models.len().max(1)).max(1);
    let scores = names.iter().filter_map(first).take(tasks).flat_map(|row| {
        row.scores.iter().zip(&results.models).filter_map(move |(score, model)| Some((row, model, (*score)?)))
    });
    let score = |(row, model, score): (&Row<'_>, &ModelResults, &Score)| {
        let what = format!("{}, {}", isolated(&model.name), isolated(row.task));
        [what, short(score.aggregated.value), score_note(score)]
    };
    scores.map(score).chain(pairs(results).map(verdicts)).collect()
}

/// A number that fits into a tile.
fn short(value: f64) -> String {
    if (100.0..10_000.0).contains(&value.abs()) { format!("{value:.1}") } else { number(value) }
}

fn score_note(score: &Score) -> String {
    let ends =
        score.aggregated.interval.map_or_else(String::new, |ends| format!(", {}", interval(Some(ends))));
    format!("{}{ends}, n = {}", isolated(&score.metric), score.n)
}

/// How many comparisons of a pair of models show something.
fn verdicts(pair: &[Comparison]) -> [String; 3] {
    let number_of = |wanted| pair.iter().filter(|comparison| Verdict::of(comparison) == wanted).count();
    let [better, worse, open] = [Verdict::Better, Verdict::Worse, Verdict::Open].map(number_of);
    let what = format!("{} against {}", isolated(&pair[0].model), isolated(&pair[0].baseline));
    let note = format!("{worse} worse, {open} without a difference shown");
    [what, format!("{better} better"), note]
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
                let share = percent_of(score.unparsed, score.n);
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

    let rest = lines.len().saturating_sub(MOST_WARNINGS);
    lines.truncate(MOST_WARNINGS);
    if rest > 0 {
        lines.push(format!("{rest} more: see the table of scores."));
    }
    let lines: Vec<String> = lines.iter().map(|line| format!("⚠ {line}")).collect();
    page::warnings(&lines)
}

/// Which tasks the training data holds rows of. `None` if nobody looked.
pub(super) fn contamination(rows: &[Contamination]) -> Option<Section> {
    if rows.is_empty() {
        return None;
    }
    let found = |row: &Contamination| {
        let share = percent_of(row.contaminated, row.checked);
        let text = format!("{} of {} ({share})", row.contaminated, row.checked);
        if row.contaminated > 0 { format!("<span class=\"warning\">{text}</span>") } else { text }
    };
    let columns: [Column<'_, Contamination>; 9] = [
        ("task", &|row| isolated(&row.task)),
        ("model", &|row| isolated(&row.model)),
        ("metric", &|row| isolated(&row.metric)),
        ("#rows in the training data", &found),
        ("#rows not examined", &|row| row.unexamined.to_string()),
        ("#score of the clean rows", &|row| optional(row.clean_score)),
        ("#score of the rows in the training data", &|row| optional(row.dirty_score)),
        ("#difference", &|row| or_nothing(row.difference(), signed)),
        ("#95 % interval", &|row| signed_interval(row.difference_interval)),
    ];

    let remark = note(
        "A row stands in the training data if 13 words of one of its texts follow one another there, or 20 characters \
         of a script without spaces, or the whole of a shorter text of at least 8 words or 12 characters. Texts \
         count that are asked or that are the answer, without what more than 10 rows of the task share. A row \
         without such a text was not examined and is in neither score.",
    );
    let body = html_table("contamination", rows, &columns) + &remark;
    Some(Section { id: "contamination", heading: "Contamination", body })
}

/// What identifies the scores of each task, and how many of its samples are in the page.
pub(super) fn protocols(results: &Results, embedded: &[(usize, usize)]) -> Section {
    let tasks: Vec<(&TaskInfo, usize)> =
        results.tasks.iter().zip(embedded).map(|(task, counts)| (task, counts.0)).collect();
    let columns: [Column<'_, (&TaskInfo, usize)>; 8] = [
        ("task", &|(task, _)| isolated(&task.task)),
        ("protocol id", &|(task, _)| format!("<code>{}</code>", escape_html(&task.protocol_id))),
        ("same numbers as", &|(task, _)| or_nothing(task.protocol.as_deref(), isolated)),
        ("#version", &|(task, _)| or_nothing(task.version, |version| version.to_string())),
        ("asked for", &|(task, _)| kind(task.output_type).to_owned()),
        ("#shots", &|(task, _)| task.num_fewshot.to_string()),
        ("#rows", &|(task, _)| format!("{} of {}", task.effective, task.original)),
        ("#samples here", &|(_, samples)| samples.to_string()),
    ];
    let remark = note("Scores with equal protocol ids are comparable.");
    let body = html_table("protocols", &tasks, &columns) + &remark;
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
    let times = notes.elapsed_seconds.iter().map(|&elapsed| seconds(elapsed));
    let times = times.chain(std::iter::repeat(NOTHING.to_owned()));
    let models: Vec<(&ModelResults, String)> = results.models.iter().zip(times).collect();
    let columns: [Column<'_, (&ModelResults, String)>; 3] = [
        ("model", &|(model, _)| isolated(&model.name)),
        ("hash", &|(model, _)| format!("<code>{}</code>", escape_html(&model.digest))),
        ("#time", &|(_, time)| time.clone()),
    ];
    let mut settings = vec![("program".to_owned(), results.program.clone())];
    if !notes.started.is_empty() {
        settings.push(("started".to_owned(), notes.started.clone()));
    }
    settings.extend(results.settings.as_object().map(page::settings).unwrap_or_default());
    let pairs: [Column<'_, (String, String)>; 2] =
        [("setting", &|(name, _)| isolated(name)), ("value", &|(_, value)| isolated(value))];
    let body = [
        page::command(&notes.command),
        html_table("models", &models, &columns),
        html_table("settings", &settings, &pairs),
    ];
    Section { id: "reproduction", heading: "How to make it again", body: body.concat() }
}
