//! What `eval` prints: the list of tasks, the prompts of a task, tables of results.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use eval::contamination::Contamination;
use eval::document::PromptOptions;
use eval::evaluation::{Evaluation, Score};
use eval::request::{Prompt, Request};
use eval::results::{Comparison, ModelResults, Results};
use serde_json::json;
use tui::number::counted;

use crate::args::{EvalListArgs, EvalShowArgs};
use crate::command::runs::table;
use crate::console::print;
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
        let _ = writeln!(text, "rows in the training data\n{}", contamination_table(&results.contamination));
    }
    text.trim_end().to_owned()
}

/// The tasks of which the training data holds rows, and how many tasks have none of their rows in it.
fn contamination_table(found: &[Contamination]) -> String {
    let head = [
        "task",
        "model",
        "metric",
        "in the training data",
        "not examined",
        "clean rows",
        "rows in the training data",
        "difference",
        "95 % interval",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut clean: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in found {
        if row.contaminated == 0 {
            clean.insert(&row.task, (row.checked, row.unexamined));
            continue;
        }
        let score = |score: Option<f64>| score.map_or("–".to_owned(), eval::results::number);
        rows.push(vec![
            row.task.clone(),
            row.model.clone(),
            row.metric.clone(),
            format!("{} of {}", row.contaminated, row.checked),
            row.unexamined.to_string(),
            score(row.clean_score),
            score(row.dirty_score),
            row.difference().map_or("–".to_owned(), |difference| format!("{difference:+.4}")),
            eval::results::signed_interval(row.difference_interval),
        ]);
    }
    let mut text = if rows.len() > 1 { table(&rows, 3) } else { String::new() };
    if !clean.is_empty() {
        let (checked, unexamined) =
            clean.values().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
        let _ = writeln!(
            text,
            "none of the {checked} examined rows of {}; {unexamined} rows could not be examined",
            counted(clean.len() as u64, if rows.len() > 1 { "other task" } else { "task" })
        );
    }
    text
}

fn score_table(results: &Results, model: &ModelResults) -> String {
    let head = ["task", "version", "filter", "n-shot", "metric", "", "value", "stderr", "95 % interval", "n"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let notes = |score: &Score| {
        let mut notes = Vec::new();
        if score.unparsed > 0 {
            notes.push(format!("{} unparsed", score.unparsed));
        }
        if score.failed > 0 {
            notes.push(format!("{} failed", score.failed));
        }
        notes.join(", ")
    };
    for score in model.all() {
        let info = results.task(&score.task);
        let interval = score.aggregated.interval;
        rows.push(vec![
            score.task.clone(),
            info.and_then(|info| info.version).map_or(String::new(), |version| version.to_string()),
            score.filter.clone(),
            info.map_or(String::new(), |info| info.num_fewshot.to_string()),
            score.metric.clone(),
            if score.higher_is_better { "↑" } else { "↓" }.to_owned(),
            eval::results::number(score.aggregated.value),
            score.aggregated.standard_error.map_or("N/A".to_owned(), eval::results::number),
            interval.map_or(String::new(), |(low, high)| {
                format!("{} to {}", eval::results::number(low), eval::results::number(high))
            }),
            score.n.to_string(),
            notes(score),
        ]);
    }
    table(&rows, 5)
}

pub(super) fn comparison_table(comparisons: &[Comparison]) -> String {
    let head = [
        "models",
        "task",
        "metric",
        "difference",
        "95 % interval",
        "more/equal/less",
        "p (Holm)",
        "detectable",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for comparison in comparisons {
        rows.push(vec![
            format!("{} - {}", comparison.model, comparison.baseline),
            comparison.task.clone(),
            format!("{},{}", comparison.metric, comparison.filter),
            format!("{:+.4}", comparison.difference.estimate.mean),
            eval::results::signed_interval(comparison.interval()),
            format!("{}/{}/{}", comparison.more, comparison.equal, comparison.less),
            eval::results::p_value(comparison.p_value_holm),
            eval::results::number(comparison.detectable),
        ]);
    }
    table(&rows, 3)
}
