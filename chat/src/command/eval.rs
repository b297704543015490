//! `eval`: asks models the questions of benchmarks, scores the answers, and writes reports.
//!
//! Everything that can be known is checked before a model is loaded: names of tasks, task files, rows, the
//! output folder. What is asked and how it is scored is in the crate `eval`; here models are run, and files
//! are written.

mod diff;
mod engine;
mod list;
mod output;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use eval::document::PromptOptions;
use eval::evaluation::{Evaluation, ModelRun};
use eval::response_cache::ResponseCache;
use eval::results::Results;
use eval::task::Registry;
use serde_json::{Value, json};
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

use crate::args::{EvalArgs, EvalCommand, EvalRunArgs, ModelArgs, TaskArgs};
use crate::config::ConfigError;
use crate::console::{print, print_stderr};
use crate::exit::Failure;
use crate::model_folder;
use crate::session::Session;
use engine::Engine;
use output::OutputFolder;

/// Runs one of the commands.
pub(crate) fn run(arguments: &EvalArgs) -> anyhow::Result<()> {
    match &arguments.command {
        Some(EvalCommand::List(arguments)) => list::list(arguments),
        Some(EvalCommand::Show(arguments)) => list::show(arguments),
        Some(EvalCommand::Diff(arguments)) => diff::run(arguments),
        None => evaluate(&arguments.run),
    }
}

/// A model to evaluate: its folder and the name that reports show.
struct Candidate {
    folder: PathBuf,
    name: String,
}

fn evaluate(arguments: &EvalRunArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let candidates = candidates(&arguments.model)?;
    let registry = registry(&arguments.tasks.include_path)?;
    let selection = registry.select(&arguments.tasks.tasks)?;
    let options = prompt_options(&arguments.tasks, arguments.limit.map(usize::from));
    let evaluation = Evaluation::prepare(selection, &arguments.tasks.data, options)?;
    let settings = settings(arguments, &candidates);
    let folder = OutputFolder::open(&output_path(arguments, &candidates), &settings, arguments.force)?;
    print_stderr(&format!(
        "{} tasks, {} requests for each of {} models; results go to {}",
        evaluation.tasks.len(),
        evaluation.num_requests(),
        candidates.len(),
        folder.path().display()
    ));

    let mut cache = ResponseCache::open(&folder.path().join("responses.jsonl"))?;
    let mut runs = Vec::with_capacity(candidates.len());
    for candidate in &candidates {
        runs.push(ask(candidate, arguments, &evaluation, &mut cache)?);
    }

    let program = format!("colossal-chat {}", env!("CARGO_PKG_VERSION"));
    let results = Results::new(&evaluation, &runs, program, settings)?;
    folder.write(&evaluation, &runs, &results, started.elapsed())?;
    show(arguments, &results, &folder)?;
    conclude(arguments, &runs, &results)
}

/// Loads a model and asks it everything.
fn ask(
    candidate: &Candidate,
    arguments: &EvalRunArgs,
    evaluation: &Evaluation,
    cache: &mut ResponseCache,
) -> anyhow::Result<ModelRun> {
    let model = ModelArgs {
        model: candidate.folder.display().to_string(),
        dtype: arguments.dtype,
        device: arguments.device,
        template: None,
    };
    let session = Session::causal_lm(&model)?;
    let max_length = arguments.max_length.map(usize::from);
    let mut engine = Engine::new(session, candidate.name.clone(), &candidate.folder, max_length)?;

    let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
    let mut progress = Progress::new(std::io::stderr(), mode);
    progress.call_steps("request");
    let mut begun = false;
    let run = evaluation.run(&mut engine, cache, &mut |state| {
        // A closed stderr does not stop the work.
        if begun {
            let _ = progress.update(state.done as u64, &[("share", state.share)]);
        } else {
            begun = true;
            let _ = progress.start_at(&candidate.name, state.total as u64, state.done as u64);
        }
    });
    let _ = match &run {
        Ok(_) => progress.finish(),
        Err(error) => progress.fail(&error.to_string()),
    };
    Ok(run?)
}

/// Prints the results: the tables, or JSON.
fn show(arguments: &EvalRunArgs, results: &Results, folder: &OutputFolder) -> anyhow::Result<()> {
    if arguments.json {
        return Ok(print(&serde_json::to_string_pretty(results)?)?);
    }
    print(&list::tables(results))?;
    print_stderr(&format!("the report is {}", folder.path().join("report.html").display()));
    Ok(())
}

/// Fails if a model left documents unanswered, or a bound is missed.
fn conclude(arguments: &EvalRunArgs, runs: &[ModelRun], results: &Results) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for run in runs {
        let first = run.samples.iter().flatten().find_map(|sample| sample.problem.as_ref());
        if let Some(problem) = first {
            problems.push(format!(
                "{} left {} documents without an answer, the first because {problem}; they do not count, and the \
                 same command asks them again",
                run.name,
                run.failed()
            ));
        }
    }
    if let Some(model) = results.models.last() {
        problems.extend(arguments.require.iter().filter_map(|required| required.check(model).err()));
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.iter().for_each(|problem| print_stderr(&format!("error: {problem}")));
    Err(Failure::AlreadyReported { code: crate::exit::FAILED }.into())
}

/// The tasks in the program and in the given files and folders.
fn registry(include_path: &[PathBuf]) -> anyhow::Result<Registry> {
    let mut registry = Registry::embedded()?;
    for path in include_path {
        registry.add_path(path)?;
    }
    Ok(registry)
}

fn prompt_options(arguments: &TaskArgs, limit: Option<usize>) -> PromptOptions {
    PromptOptions {
        num_fewshot: arguments.num_fewshot,
        apply_chat_template: arguments.apply_chat_template,
        fewshot_as_multiturn: !arguments.fewshot_in_one_turn,
        system_instruction: arguments.system_instruction.clone(),
        max_gen_toks: arguments.max_gen_toks.map(usize::from),
        limit,
    }
}

/// The folders of the models, with names that differ.
fn candidates(models: &[String]) -> anyhow::Result<Vec<Candidate>> {
    let mut candidates: Vec<Candidate> = Vec::with_capacity(models.len());
    for model in models {
        let folder = model_folder::find(model)?;
        let short = short_name(Path::new(model));
        let taken = |name: &str| candidates.iter().any(|other| other.name == name);
        let name = if taken(&short) { model.clone() } else { short };
        if taken(&name) {
            let problem = "this model is named twice: name each once".to_owned();
            return Err(ConfigError::Argument { argument: format!("--model {model}"), problem }.into());
        }
        candidates.push(Candidate { folder, name });
    }
    Ok(candidates)
}

/// The last part of a path that tells models apart: `final` and the steps of checkpoints do not.
fn short_name(path: &Path) -> String {
    let parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let telling = |part: &&String| !matches!(part.as_str(), "final" | "checkpoints" | "." | "/" | "..");
    let last = parts.iter().rev().find(telling).cloned();
    last.unwrap_or_else(|| path.display().to_string())
}

/// The folder of the results if none is given.
fn output_path(arguments: &EvalRunArgs, candidates: &[Candidate]) -> PathBuf {
    let names: Vec<String> = candidates.iter().map(|candidate| output::file_name(&candidate.name)).collect();
    arguments.output.clone().unwrap_or_else(|| Path::new("eval-results").join(names.join("-")))
}

/// What decides the results. A folder holds the results of one such evaluation.
fn settings(arguments: &EvalRunArgs, candidates: &[Candidate]) -> Value {
    let tasks = &arguments.tasks;
    json!({
        "models": candidates.iter().map(|candidate| &candidate.name).collect::<Vec<_>>(),
        "tasks": tasks.tasks,
        "data": tasks.data,
        "include_path": tasks.include_path,
        "limit": arguments.limit,
        "num_fewshot": tasks.num_fewshot,
        "apply_chat_template": tasks.apply_chat_template,
        "fewshot_in_one_turn": tasks.fewshot_in_one_turn,
        "system_instruction": tasks.system_instruction,
        "max_gen_toks": tasks.max_gen_toks,
        "dtype": arguments.dtype,
        "max_length": arguments.max_length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_telling_part_of_a_path() {
        for (path, name) in [
            ("demo/sft/final", "sft"),
            ("runs/ppo/checkpoints/step-20", "step-20"),
            ("./base/", "base"),
            ("owner/name", "name"),
            (".", "."),
        ] {
            assert_eq!(short_name(Path::new(path)), name);
        }
    }
}
