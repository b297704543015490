//! Reads a task file: its base, its subsets, its groups.
//!
//! A file comes from outside: every key is known or refused, every template and pattern is compiled, and
//! every contradiction is an error that names the file, the task and the key, before a model is loaded.

use std::path::{Path, PathBuf};

use datasets::hub::{is_dataset_name, plain_file_name};
use datasets::{RowTemplate, TemplateRow};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::definition::{Choices, Group, MetricConfig, OutputType, Task};
use crate::Error;
use crate::few_shot::Sampler;
use crate::filter::Pipeline;
use crate::longbench::Measure;
use crate::text_filters::TEXT_FILTERS;

/// The largest task file, in bytes. The largest of ours has 100 KB.
const LARGEST_FILE: u64 = 16 << 20;
/// The longest name of a task, in characters: names become file names.
const LONGEST_NAME: usize = 120;
/// The most examples in a prompt, and the most tokens and replies of a row.
const MOST: usize = 1_000_000;

/// The tasks and groups of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFile {
    /// The tasks, in the order of the file.
    pub tasks: Vec<Task>,
    /// The groups.
    pub groups: Vec<Group>,
}

impl TaskFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let size = std::fs::metadata(path).map_err(failed)?;
        if !size.is_file() || size.len() > LARGEST_FILE {
            let problem = format!("it is no file of at most {} MiB", LARGEST_FILE >> 20);
            return Err(wrong_file(path, problem, "give a TOML file with one task or one family of tasks"));
        }
        parse(&std::fs::read_to_string(path).map_err(failed)?, path)
    }
}

/// Parses the text of a task file. `path` is for error messages.
pub fn parse(text: &str, path: &Path) -> Result<TaskFile, Error> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        wrong_file(path, error.to_string().trim().to_owned(), "correct the TOML")
    })?;
    let mut base = json_table(table, path)?;
    let subsets = list(base.remove("subset"), "subset", path)?;
    let groups = list(base.remove("group"), "group", path)?;

    let mut found = TaskFile::default();
    if subsets.is_empty() {
        // A file may hold groups alone.
        if !base.is_empty() || groups.is_empty() {
            found.tasks.push(task(base, path)?);
        }
    } else {
        for subset in subsets {
            found.tasks.push(subset_task(&base, subset, path)?);
        }
    }
    for group in groups {
        let name = group.get("group").and_then(Value::as_str).unwrap_or("?").to_owned();
        let group: Group = read(group, path, &format!("[[group]] {name}"))?;
        check_name(&group.group, path)?;
        found.groups.push(group);
    }
    Ok(found)
}

/// A task of a family: the keys of the base, replaced by those of the subset.
fn subset_task(
    base: &Map<String, Value>,
    mut subset: Map<String, Value>,
    path: &Path,
) -> Result<Task, Error> {
    let Some(Value::String(name)) = subset.remove("name") else {
        return Err(wrong_file(path, "a [[subset]] has no name".to_owned(), "add name = \"...\""));
    };
    let mut merged = base.clone();
    merge(&mut merged, subset);
    merged.insert("subset".to_owned(), Value::String(name));
    task(merged, path)
}

/// Replaces values of `base`; tables are merged key by key.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => merge(inner, value),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

fn task(keys: Map<String, Value>, path: &Path) -> Result<Task, Error> {
    let name = keys.get("task").and_then(Value::as_str).unwrap_or("without a name").to_owned();
    let mut task: Task = read(keys, path, &format!("task {name}"))?;
    fill_in_subset(&mut task, path)?;
    check(&task, path)?;
    Ok(task)
}

/// Reads the keys of `what`. An error names the key.
fn read<T: DeserializeOwned>(keys: Map<String, Value>, path: &Path, what: &str) -> Result<T, Error> {
    serde_path_to_error::deserialize(Value::Object(keys)).map_err(|error| {
        let key = match error.path().to_string() {
            top if top == "." => String::new(),
            key => format!("{key}: "),
        };
        wrong_file(path, format!("{what}: {key}{}", error.inner()), "docs/tasks.md lists the keys")
    })
}

/// Renders what may depend on the name of the subset.
fn fill_in_subset(task: &mut Task, path: &Path) -> Result<(), Error> {
    let Some(subset) = task.subset.clone() else { return Ok(()) };
    let row = Map::from_iter([("subset".to_owned(), Value::String(subset))]);
    let row = TemplateRow::new(&row);
    let mut texts = vec![
        ("task", &mut task.task),
        ("dataset.folder", &mut task.dataset.folder),
        ("description", &mut task.description),
    ];
    texts.extend(task.dataset.config.as_mut().map(|config| ("dataset.config", config)));
    for (key, text) in texts {
        let rendered = RowTemplate::new(key, text, &[]).and_then(|template| template.text(&row));
        *text = rendered
            .map_err(|error| wrong_file(path, format!("{key}: {error}"), "it may use {{ subset }} alone"))?;
    }
    Ok(())
}

/// An error at a key of a task.
fn wrong<T>(task: &Task, path: &Path, (key, problem): (&str, &str), fix: &'static str) -> Result<T, Error> {
    Err(wrong_file(path, format!("task {}: {key} {problem}", task.task), fix))
}

fn check(task: &Task, path: &Path) -> Result<(), Error> {
    check_name(&task.task, path)?;
    check_dataset(task, path)?;
    check_metrics(task, path)?;
    check_generation(task, path)?;
    check_fewshot(task, path)?;
    check_code_execution(task, path)?;
    check_templates(task, path)
}

fn check_dataset(task: &Task, path: &Path) -> Result<(), Error> {
    let wrong = |key, problem, fix| wrong(task, path, (key, problem), fix);
    // A folder is joined to the data folder, so it must stay in it.
    let folder = Path::new(&task.dataset.folder);
    let ordinary = |part| matches!(part, std::path::Component::Normal(_));
    if task.dataset.folder.is_empty() || !folder.components().all(ordinary) {
        return wrong(
            "dataset.folder",
            "does not lie within the data folder",
            "give a relative path without ..",
        );
    }
    // So must the folders of a repository, and what is in them.
    if task.dataset.hub.as_deref().is_some_and(|hub| !is_dataset_name(hub)) {
        return wrong("dataset.hub", "is no name of a dataset", "give owner/name");
    }
    if task.dataset.config.as_deref().is_some_and(|config| !plain_file_name(config)) {
        return wrong("dataset.config", "is no name", "give the name of a configuration, such as main");
    }
    if task.dataset.config_column.is_some() && task.dataset.config.is_none() {
        return wrong("dataset.config_column", "has no effect without dataset.config", "leave it out");
    }
    let splits = [Some(&task.dataset.split), task.fewshot.split.as_ref()];
    if splits.into_iter().flatten().any(|split| !plain_file_name(split)) {
        return wrong("a split", "is no name", "give the name of a split, such as test");
    }
    Ok(())
}

/// What is asked, what is computed from it, and what is missing for that.
fn check_metrics(task: &Task, path: &Path) -> Result<(), Error> {
    let wrong = |key, problem: &str, fix| wrong(task, path, (key, problem), fix);
    match task.output_type {
        OutputType::MultipleChoice | OutputType::MultipleContext if task.doc_to_choice.is_none() => {
            return wrong("doc_to_choice", "is missing", "give the choices of a row");
        }
        OutputType::MultipleContext if task.doc_to_continuation.is_none() => {
            return wrong("doc_to_continuation", "is missing", "give the text after each context");
        }
        _ => {}
    }
    if task.metric_list.is_empty() {
        return wrong("metric_list", "is empty", "name a metric, such as { metric = \"acc\" }");
    }
    // Results of equal names would become one number.
    if let Some(name) = twice(&task.metric_names()) {
        let problem = format!("gives two results called {name}");
        return wrong(
            "metric_list",
            &problem,
            "keep one of these metrics, or make a task of its own for the other",
        );
    }
    if let Some(name) = twice(&task.filter_names()) {
        return wrong(
            "filter_list",
            &format!("has two filters called {name}"),
            "give each a name of its own",
        );
    }
    if let Some(metric) = task.metric_list.iter().find(|metric| !metric.fits(task.output_type)) {
        let problem = format!("has {}, which {:?} does not give", metric.name(), task.output_type);
        return wrong("metric_list", &problem, "docs/tasks.md lists the metrics of each output_type");
    }
    let names_classes = |metric: &MetricConfig| {
        matches!(metric, MetricConfig::Longbench { measure: Measure::Classification })
    };
    if task.doc_to_choice.is_none() && task.metric_list.iter().any(names_classes) {
        return wrong("doc_to_choice", "is missing", "give the classes of a row");
    }
    if task.output_type != OutputType::GenerateUntil && !task.filter_list.is_empty() {
        return wrong("filter_list", "needs replies", "leave it out, or use generate_until");
    }
    Ok(())
}

fn check_generation(task: &Task, path: &Path) -> Result<(), Error> {
    let wrong = |key, problem, fix| wrong(task, path, (key, problem), fix);
    let kwargs = &task.generation_kwargs;
    if !(1..=MOST).contains(&kwargs.max_gen_toks) || !(1..=MOST).contains(&kwargs.repeats) {
        return wrong("generation_kwargs", "asks for no token or no reply", "give numbers from 1 up");
    }
    if !(kwargs.temperature >= 0.0 && kwargs.temperature.is_finite()) {
        return wrong("generation_kwargs.temperature", "is no temperature", "give 0 or more");
    }
    if kwargs.repeats > 1 && kwargs.temperature == 0.0 {
        return wrong("generation_kwargs.repeats", "asks for equal replies", "give a temperature above 0");
    }
    Ok(())
}

fn check_fewshot(task: &Task, path: &Path) -> Result<(), Error> {
    let wrong = |key, problem, fix| wrong(task, path, (key, problem), fix);
    if task.fewshot.num_fewshot > MOST {
        return wrong("fewshot.num_fewshot", "is too large", "give a number of examples");
    }
    let samples = task.fewshot.samples.as_ref().map(Vec::len);
    if samples.is_some_and(|held| held < task.fewshot.num_fewshot) {
        return wrong("fewshot.samples", "are fewer than num_fewshot", "add examples, or ask for fewer");
    }
    if let (Sampler::Fixed(rows), shots) = (&task.fewshot.sampler, task.fewshot.num_fewshot)
        && rows.len() < shots
    {
        return wrong("fewshot.sampler", "has fewer rows than num_fewshot", "name more rows");
    }
    Ok(())
}

/// The first name that occurs a second time.
fn twice(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)).map(|(_, name)| name)
}

/// pass@k needs a program for each reply, and k replies after every filter.
fn check_code_execution(task: &Task, path: &Path) -> Result<(), Error> {
    /// The longest time limit of a program, in seconds.
    const LONGEST: f64 = 600.0;
    let wrong = |key, problem: &str, fix| wrong(task, path, (key, problem), fix);
    let metrics: Vec<_> = task.metric_list.iter().filter(|metric| metric.runs_code()).collect();
    let execution = match (&task.code_execution, metrics.first()) {
        (None, None) => return Ok(()),
        (None, Some(metric)) => {
            let problem = format!("is missing, and {} needs it", metric.name());
            return wrong("[code_execution]", &problem, "give the program that tests a reply");
        }
        (Some(_), None) => {
            let fix = "add { metric = \"pass_at_k\", k = [1] }, or leave the table out";
            return wrong("[code_execution]", "has no effect without pass_at_k", fix);
        }
        (Some(execution), Some(_)) => execution,
    };
    if !(execution.timeout > 0.0 && execution.timeout <= LONGEST) {
        return wrong("code_execution.timeout", "is no time limit", "give seconds, above 0 and up to 600");
    }

    if metrics.iter().any(|metric| metric.pass_at().is_empty() || metric.pass_at().contains(&0)) {
        return wrong("metric_list", "has pass_at_k without a k, or with k = 0", "give k = [1]");
    }
    let largest = metrics.iter().flat_map(|metric| metric.pass_at()).copied().max().unwrap_or(1);
    let repeats = task.generation_kwargs.repeats;
    let without = [Pipeline::none()];
    let pipelines = if task.filter_list.is_empty() { &without[..] } else { &task.filter_list };
    for pipeline in pipelines {
        let replies = pipeline.num_replies(repeats);
        if (replies as u64) < largest {
            let problem = format!(
                "asks for pass@{largest}, and the filter {} keeps {replies} of {repeats} replies",
                pipeline.name
            );
            let fix = "raise generation_kwargs.repeats, name a filter that keeps all, or choose a smaller k";
            return wrong("metric_list", &problem, fix);
        }
    }
    Ok(())
}

/// Compiles every template once.
fn check_templates(task: &Task, path: &Path) -> Result<(), Error> {
    let mut templates = vec![
        ("doc_to_text", Some(task.doc_to_text.as_str())),
        ("doc_to_target", Some(&task.doc_to_target)),
        ("doc_to_continuation", task.doc_to_continuation.as_deref()),
        ("doc_to_input", task.doc_to_input.as_deref()),
        ("doc_to_cluster", task.doc_to_cluster.as_deref()),
        ("dataset.keep_if", task.dataset.keep_if.as_deref()),
        ("fewshot.doc_to_text", task.fewshot.doc_to_text.as_deref()),
        ("fewshot.doc_to_target", task.fewshot.doc_to_target.as_deref()),
        ("code_execution.program", task.code_execution.as_ref().map(|execution| execution.program.as_str())),
    ];
    match &task.doc_to_choice {
        Some(Choices::List(list)) => templates.push(("doc_to_choice", Some(list))),
        Some(Choices::Each(each)) => {
            templates.extend(each.iter().map(|choice| ("doc_to_choice", Some(choice.as_str()))));
        }
        None => {}
    }

    for (key, template) in templates {
        let compiled = template.map(|template| RowTemplate::new(key, template, TEXT_FILTERS)).transpose();
        compiled.map_err(|error| {
            wrong_file(path, format!("task {}: {error}", task.task), "correct the template")
        })?;
    }
    Ok(())
}

/// Names become file names and parts of keys.
fn check_name(name: &str, path: &Path) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let problem = format!("{:?} is no name of a task", name.chars().take(80).collect::<String>());
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.chars().all(good) {
        return Err(wrong_file(path, problem, "use letters, digits, - and _"));
    }
    Ok(())
}

/// A TOML table as JSON, so that merging and reading need one kind of value.
fn json_table(table: toml::Table, path: &Path) -> Result<Map<String, Value>, Error> {
    let value = serde_json::to_value(table)
        .map_err(|error| wrong_file(path, error.to_string(), "use texts, numbers, lists and tables alone"))?;
    match value {
        Value::Object(map) => Ok(map),
        _ => unreachable!("a TOML document is a table"),
    }
}

fn list(value: Option<Value>, key: &str, path: &Path) -> Result<Vec<Map<String, Value>>, Error> {
    let tables = match value {
        None => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => vec![Value::Null],
    };
    let table = |item| match item {
        Value::Object(map) => Ok(map),
        _ => Err(wrong_file(path, format!("{key} is no table"), "write it as [[subset]] or [[group]]")),
    };
    tables.into_iter().map(table).collect()
}

pub(super) fn wrong_file(path: &Path, problem: String, fix: &'static str) -> Error {
    Error::TaskFile { path: PathBuf::from(path), problem, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_with(dataset: &str) -> Result<TaskFile, Error> {
        let text = format!(
            "task = 't'\noutput_type = 'generate_until'\ndoc_to_target = 'a'\nmetric_list = [{{ metric = 'exact_match' }}]\n\
             [dataset]\n{dataset}"
        );
        parse(&text, Path::new("t.toml"))
    }

    #[test]
    fn every_sampled_reply_to_a_question_of_the_world_counts() {
        let registry = crate::task::Registry::embedded().unwrap();
        let task = &registry.select(&["world_sampled"]).unwrap().tasks[0];
        let repeats = task.generation_kwargs.repeats;
        let kept: Vec<usize> =
            task.filter_list.iter().map(|pipeline| pipeline.num_replies(repeats)).collect();
        assert_eq!((repeats, kept), (4, vec![4]));
    }

    /// What a task file says of its rows becomes a path below the data folder.
    #[test]
    fn no_name_of_a_task_file_leads_out_of_the_data_folder() {
        let place = "folder = 'f'\nsplit = 'test'\n";
        assert!(task_with(&format!("{place}hub = 'owner/name'\nconfig = 'main-1.0'\n")).is_ok());
        assert!(task_with(&format!("{place}hub = 'owner/name@refs/convert/parquet'\n")).is_ok());
        for (key, names) in [
            ("hub", &["/abs", "../..", "a/..", "/abs/x", "a/b/c", "a", "", "a/.b", "a\\\\b/c"][..]),
            ("hub = 'a/b'\nconfig", &["/abs", "..", "a/b", "../b", "", ".hidden", "a\\u0007b", "a\\\\b"]),
            ("fewshot_split", &["/abs", "..", "a/b", "", ".", ".hidden", "a\\u0007"]),
            ("split", &["/abs", "..", "a/b", "", ".", ".hidden", "a\\u0007"]),
            ("folder", &["/abs", "..", "a/../..", ""]),
        ] {
            for name in names {
                let dataset = match key {
                    "folder" => format!("folder = \"{name}\"\nsplit = 'test'\n"),
                    "split" => format!("folder = 'f'\nsplit = \"{name}\"\n"),
                    "fewshot_split" => format!("{place}[fewshot]\nsplit = \"{name}\"\n"),
                    key => format!("{place}{key} = \"{name}\"\n"),
                };
                let error = task_with(&dataset).unwrap_err().to_string();
                assert!(error.starts_with("t.toml: task t: "), "{key} {name:?}: {error}");
            }
        }
        let error = task_with(&format!("{place}config_column = 'subject'\n")).unwrap_err().to_string();
        assert!(error.contains("dataset.config_column has no effect"), "{error}");
    }
}
