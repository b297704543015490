//! `eval`: asks models the questions of benchmarks, scores the answers, and writes reports.
//!
//! Everything that can be known is checked before a model is loaded: names of tasks, task files, rows, the
//! output folder. What is asked and how it is scored is in the crate `eval`; here models are run, and files
//! are written.

mod diff;
mod fetch;
mod judge;
mod list;
mod rm;

use std::path::{Path, PathBuf};

use datasets::OneOrMany;
use eval::results::Results;
use eval::results::requirement::Requirement;
use eval::task::Selection;
use inference::remote::KeyPlan;
use parallel::RankInfo;

use crate::args::{EvalArgs, EvalCommand, EvalRunArgs};
use crate::config::ConfigError;
use crate::config::section::{EvalSection, ParallelSection};
use crate::console::{print, print_stderr};
use crate::evaluation::held::Held;
use crate::evaluation::job::{self, EvalJob, Outcome};
use crate::evaluation::{Candidate, model};
use crate::failure::Failure;
use crate::launch::{self, Job, StartupSpec};
use crate::{interrupt, session, shell};

/// Runs one of the commands.
pub(crate) fn run(arguments: &EvalArgs, threads: Option<usize>) -> anyhow::Result<()> {
    match &arguments.command {
        Some(EvalCommand::List(arguments)) => list::list(arguments),
        Some(EvalCommand::Show(arguments)) => list::show(arguments),
        Some(EvalCommand::Fetch(arguments)) => fetch::run(arguments),
        Some(EvalCommand::Diff(arguments)) => diff::run(arguments),
        Some(EvalCommand::Judge(arguments)) => {
            session::prepare(threads)?;
            judge::run(arguments)
        }
        Some(EvalCommand::Rm(arguments)) => {
            session::prepare(threads)?;
            rm::run(arguments)
        }
        None => evaluate(&arguments.run, threads),
    }
}

fn evaluate(arguments: &EvalRunArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let keys = KeyPlan::new(&arguments.model, None)?;
    let mut candidates = Candidate::find_all(&arguments.model, &arguments.host.host(), &keys)?;
    Candidate::add_adapters(&mut candidates, &arguments.adapter)?;
    let output = output_path(arguments, &candidates);
    let command = shell::own_command();
    let Asked { candidates, section, train_data, judged, note } = asked(arguments, candidates, &output)?;
    check_requirements(&arguments.require, &section)?;
    model::check_folder_flags(
        &arguments.host.host(),
        candidates.iter().any(|model| model.folder().is_some()),
    )?;
    for candidate in &candidates {
        candidate.check_answers("--model", section.apply_chat_template)?;
    }
    let job = EvalJob {
        candidates,
        section: &section,
        train_data,
        host: arguments.host.host(),
        output: &output,
        force: arguments.force,
        command: &command,
    };

    if launch::is_launcher(arguments.nproc)? {
        job.start()?;
        return launch::run(&Job::on_this_host(arguments.nproc, &output)?, &launch::own_arguments());
    }

    let is_rank = arguments.nproc > 1 || RankInfo::from_environment()?.size > 1;
    let groups = if is_rank {
        interrupt::listen()?;
        let models = [&arguments.model[..], &arguments.adapter].concat();
        let settings = format!("models = {models:?}\n{}", toml::to_string(&section)?);
        let start = StartupSpec { command: "eval", resume: false, settings: &settings };
        Some(launch::join(threads, &ParallelSection::default(), &start)?)
    } else {
        session::prepare(threads)?;
        None
    };

    if let Some(note) = note.filter(|_| groups.as_ref().is_none_or(|groups| groups.is_rank_zero())) {
        print_stderr(&note);
    }
    let Some(outcome) = job.run(groups.as_deref())? else { return Ok(()) };
    show(arguments, &outcome)?;
    conclude(arguments, outcome, judged.as_deref())
}

/// What a command asks, together with what the folder of its results holds.
struct Asked {
    candidates: Vec<Candidate>,
    section: EvalSection,
    train_data: Vec<String>,
    /// The name of the model whose scores have bounds: the last one that the command names.
    judged: Option<String>,
    /// What the folder brings, if it is more than the command names.
    note: Option<String>,
}

fn asked(arguments: &EvalRunArgs, named: Vec<Candidate>, output: &Path) -> anyhow::Result<Asked> {
    let (mut section, mut train_data) = (section(arguments), arguments.train_data.clone());
    let held = if arguments.force { None } else { Held::read(output)? };
    let Some(held) = held else {
        let judged = named.last().map(|model| model.name.clone());
        return Ok(Asked { candidates: named, section, train_data, judged, note: None });
    };
    let last = named.last().map(Candidate::place);
    let note = (!held.is_within(&named, &section)).then(|| held.note());
    held.add_to(&mut section, &mut train_data);
    let candidates = held.with_models(named)?;
    let judged = candidates.iter().find(|model| Some(model.place()) == last).map(|model| model.name.clone());
    Ok(Asked { candidates, section, train_data, judged, note })
}

/// Refuses bounds on scores that the selected tasks cannot have. The names of a task's metrics may depend on
/// its rows, so they are not checked.
fn check_requirements(requirements: &[Requirement], section: &EvalSection) -> anyhow::Result<()> {
    const MOST_NAMES: usize = 8;
    if requirements.is_empty() {
        return Ok(());
    }

    let Selection { tasks, groups } = job::select(section)?;
    for required in requirements {
        let group = groups.iter().map(|(group, _)| group).find(|group| group.group == required.task);
        let problem = match group {
            None if tasks.iter().any(|task| task.task == required.task) => continue,
            None => {
                let names = groups.iter().map(|(group, _)| &group.group);
                let names = names.chain(tasks.iter().map(|task| &task.task)).map(String::as_str);
                let some: Vec<&str> = names.take(MOST_NAMES).collect();
                format!("no task or group of --tasks has this name: give one such as {}", some.join(", "))
            }
            Some(group) if group.metrics.is_empty() => {
                "this group has no score of its own: name one of its tasks".to_owned()
            }
            Some(group) if required.metric.as_ref().is_none_or(|metric| group.metrics.contains(metric)) => {
                continue;
            }
            Some(group) => format!("the scores of this group are {}: name one", group.metrics.join(", ")),
        };
        return Err(ConfigError::Argument { argument: format!("--require {required}"), problem }.into());
    }
    Ok(())
}

/// Prints the results: the tables, or JSON.
fn show(arguments: &EvalRunArgs, outcome: &Outcome) -> anyhow::Result<()> {
    if arguments.json {
        return Ok(print(&serde_json::to_string_pretty(&outcome.results)?)?);
    }
    print(&list::tables(&outcome.results))?;
    print_stderr(&format!("the report is {}", outcome.report.display()));
    Ok(())
}

/// Fails if a model left documents unanswered, or the model called `judged` misses a bound.
fn conclude(arguments: &EvalRunArgs, outcome: Outcome, judged: Option<&str>) -> anyhow::Result<()> {
    let Outcome { results, mut problems, .. } = outcome;
    if let Some(model) = results.models.iter().find(|model| Some(model.name.as_str()) == judged) {
        problems.extend(arguments.require.iter().filter_map(|required| required.check(model).err()));
    }
    if problems.is_empty() {
        return Ok(());
    }
    for problem in problems {
        print_stderr(&format!("error: {problem}"));
    }
    Err(Failure::AlreadyReported { code: crate::exit::FAILED }.into())
}

/// The main results, as lines.
pub(crate) fn summary(results: &Results) -> String {
    list::tables(results)
}

/// The flags as the section of a run file.
fn section(arguments: &EvalRunArgs) -> EvalSection {
    let tasks = &arguments.tasks;
    let include_path = tasks.include_path.iter().map(|path| path.display().to_string());
    EvalSection {
        every: 0,
        tasks: OneOrMany(tasks.tasks.clone()),
        data: tasks.data.clone(),
        include_path: OneOrMany(include_path.collect()),
        limit: arguments.limit,
        num_fewshot: tasks.num_fewshot,
        apply_chat_template: tasks.apply_chat_template,
        fewshot_in_one_turn: tasks.fewshot_in_one_turn,
        max_gen_toks: tasks.max_gen_toks,
        allow_code_execution: arguments.allow_code_execution,
        system_instruction: tasks.system_instruction.clone(),
    }
}

/// The folder of the results if none is given.
fn output_path(arguments: &EvalRunArgs, candidates: &[Candidate]) -> PathBuf {
    let names: Vec<String> = candidates.iter().map(Candidate::file_name).collect();
    arguments.output.clone().unwrap_or_else(|| Path::new("eval-results").join(names.join("-")))
}
