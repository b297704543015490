//! What `eval` prints: the list of tasks, the prompts of a task, tables of results.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use eval::contamination::Contamination;
use eval::document::PromptOptions;
use eval::evaluation::{Evaluation, Score};
use eval::page::Table;
use eval::page::number::{number, p_value, plain_signed, plain_signed_interval};
use eval::request::{Prompt, Request};
use eval::results::{Comparison, ModelResults, Results, contamination_table, interval_or_empty};
use serde_json::json;
use text::number::counted;

use crate::args::{EvalListArgs, EvalShowArgs};
use crate::console::{print, table};
use crate::evaluation::job;

/// `eval list`.
pub(super) fn list(arguments: &EvalListArgs) -> anyhow::Result<()> {
    let registry = job::registry(&arguments.include_path)?;
    let pattern = arguments.pattern.as_deref().unwrap_or("*");
    let mut rows = Vec::new();
    let mut objects = Vec::new();
    for name in registry.names().iter().filter(|name| eval::task::matches(pattern, name)) {
        let (kind, detail, source) = if let Some(task) = registry.task(name) {
            let metrics: Vec<&str> = task.metric_list.iter().map(eval::task::MetricConfig::name).collect();
            let source = task.dataset.hub.clone().unwrap_or_else(|| task.dataset.folder.clone());
            ("task", metrics.join(", "), source)
        } else {
            let tasks = registry.group(name).map_or(0, |group| group.tasks.len());
            ("group", format!("{tasks} members"), String::new())
        };
        objects.push(json!({"name": name, "kind": kind, "detail": detail, "source": source}));
        rows.push(vec![name.clone(), kind.to_owned(), detail, source]);
    }
    if arguments.json {
        return Ok(print(&serde_json::to_string_pretty(&objects)?)?);
    }
    rows.insert(0, ["name", "kind", "metrics", "rows"].map(str::to_owned).to_vec());
    Ok(print(table(&rows, 4).trim_end())?)
}

/// `eval show`.
pub(super) fn show(arguments: &EvalShowArgs) -> anyhow::Result<()> {
    let registry = job::registry(&arguments.include_path)?;
    let selection = registry.select(&[&arguments.task])?;
    let options = PromptOptions {
        num_fewshot: arguments.num_fewshot,
        limit: Some(arguments.rows.get()),
        ..PromptOptions::default()
    };
    let evaluation = Evaluation::prepare(selection, &arguments.data, options)?;

    for prepared in &evaluation.tasks {
        for document in &prepared.documents.documents {
            if arguments.json {
                let object = json!({
                    "task": prepared.task.task,
                    "protocol_id": prepared.protocol_id(),
                    "doc_id": document.doc_id,
                    "target": document.target,
                    "fewshot_rows": document.fewshot_rows,
                    "requests": document.requests,
                });
                print(&object.to_string())?;
                continue;
            }
            print(&format!(
                "── {} row {} · {}",
                prepared.task.task,
                document.doc_id,
                prepared.protocol_id()
            ))?;
            for (index, request) in document.requests.iter().enumerate() {
                print(&shown(index, request))?;
            }
            print(&format!("target: {}", json!(document.target)))?;
        }
    }
    Ok(())
}

/// A request as text. The context that all requests of a document share is printed once.
fn shown(index: usize, request: &Request) -> String {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Chat(messages) => {
            let line = |message: &datasets::Message| format!("[{:?}] {}", message.role, message.content);
            messages.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    };
    match request {
        Request::Loglikelihood { context, continuation } => {
            let context = if index == 0 { format!("{}\n", text(context)) } else { String::new() };
            format!("{context}{}) {continuation:?}", index + 1)
        }
        Request::LoglikelihoodRolling { text } => text.clone(),
        Request::GenerateUntil { context, until, max_gen_toks, temperature, .. } => format!(
            "{}\n── until {until:?}, at most {max_gen_toks} tokens, temperature {temperature}",
            text(context)
        ),
    }
}

/// The results as tables for a terminal.
pub(super) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for model in &results.models {
        let _ = writeln!(text, "{}\n{}", model.name, score_table(results, model));
    }
    if !results.comparisons.is_empty() {
        let table = comparison_table(&results.comparisons);
        let _ = writeln!(text, "differences, paired by document\n{table}");
    }
    if !results.contamination.is_empty() {
        let _ = writeln!(text, "rows in the training data\n{}", contamination(&results.contamination));
    }
    text.trim_end().to_owned()
}

/// The tasks of which the training data holds rows, and how many tasks have none of their rows in it.
fn contamination(found: &[Contamination]) -> String {
    let (dirty, clean): (Vec<Contamination>, Vec<Contamination>) =
        found.iter().cloned().partition(|row| row.contaminated > 0);
    let mut text = String::new();
    if !dirty.is_empty() {
        text = terminal(&contamination_table(&dirty)) + "\n";
    }
    let clean: BTreeMap<&str, (usize, usize)> =
        clean.iter().map(|row| (row.task.as_str(), (row.checked, row.unexamined))).collect();
    if !clean.is_empty() {
        let (checked, unexamined) =
            clean.values().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
        let _ = writeln!(
            text,
            "none of the {checked} examined rows of {}; {unexamined} rows could not be examined",
            counted(clean.len() as u64, if dirty.is_empty() { "task" } else { "other task" })
        );
    }
    text
}

fn score_table(results: &Results, model: &ModelResults) -> String {
    let scores: Vec<&Score> = model.all().collect();
    let notes = |score: &Score| {
        let counts = [(score.unparsed, "unparsed"), (score.failed, "failed")];
        let notes = counts.into_iter().filter(|(count, _)| *count > 0);
        notes.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    };

    terminal(&Table::of(
        "",
        5,
        &scores,
        &[
            ("task", &|score| score.task.clone()),
            ("version", &|score| results.version_and_shots(score)[0].clone()),
            ("filter", &|score| score.filter.clone()),
            ("n-shot", &|score| results.version_and_shots(score)[1].clone()),
            ("metric", &|score| score.metric.clone()),
            ("", &|score| if score.higher_is_better { "↑" } else { "↓" }.to_owned()),
            ("value", &|score| number(score.aggregated.value)),
            ("stderr", &|score| score.aggregated.standard_error.map_or("N/A".to_owned(), number)),
            ("95 % interval", &|score| interval_or_empty(score)),
            ("n", &|score| score.n.to_string()),
            ("", &|score| notes(score)),
        ],
    ))
}

pub(super) fn comparison_table(comparisons: &[Comparison]) -> String {
    terminal(&Table::of(
        "",
        3,
        comparisons,
        &[
            ("models", &|row| format!("{} - {}", row.model, row.baseline)),
            ("task", &|row| row.task.clone()),
            ("metric", &|row| format!("{},{}", row.metric, row.filter)),
            ("difference", &|row| plain_signed(row.difference.estimate.mean)),
            ("95 % interval", &|row| plain_signed_interval(row.interval())),
            ("more/equal/less", &|row| format!("{}/{}/{}", row.more, row.equal, row.less)),
            ("p (Holm)", &|row| p_value(row.p_value_holm)),
            ("detectable", &|row| number(row.detectable)),
        ],
    ))
}

/// A table as columns of a terminal.
fn terminal(found: &Table) -> String {
    table(&found.lines(), found.words)
}
