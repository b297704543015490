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

use eval::results::Results;
use parallel::RankInfo;
use rlhf::config::Names;

use crate::args::{EvalArgs, EvalCommand, EvalRunArgs};
use crate::command::prepare;
use crate::config::section::{EvalSection, ParallelSection};
use crate::console::{print, print_stderr};
use crate::evaluation::Candidate;
use crate::evaluation::job::{EvalJob, Outcome};
use crate::exit::Failure;
use crate::launch::{self, Job, StartupSpec};
use crate::{interrupt, shell};

/// Runs one of the commands.
pub(crate) fn run(arguments: &EvalArgs, threads: Option<usize>) -> anyhow::Result<()> {
    match &arguments.command {
        Some(EvalCommand::List(arguments)) => list::list(arguments),
        Some(EvalCommand::Show(arguments)) => list::show(arguments),
        Some(EvalCommand::Fetch(arguments)) => fetch::run(arguments),
        Some(EvalCommand::Diff(arguments)) => diff::run(arguments),
        Some(EvalCommand::Judge(arguments)) => {
            prepare(threads)?;
            judge::run(arguments)
        }
        Some(EvalCommand::Rm(arguments)) => {
            prepare(threads)?;
            rm::run(arguments)
        }
        None => evaluate(&arguments.run, threads),
    }
}

fn evaluate(arguments: &EvalRunArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let candidates = Candidate::find_all(&arguments.model, &arguments.host)?;
    let output = output_path(arguments, &candidates);
    let command = shell::own_command();
    let section = section(arguments);
    let job = EvalJob {
        candidates,
        section: &section,
        train_data: arguments.train_data.clone(),
        host: arguments.host.clone(),
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
        let settings = format!("models = {:?}\n{}", arguments.model, toml::to_string(&section)?);
        let start = StartupSpec { command: "eval", resume: false, settings: &settings };
        Some(launch::join(threads, &ParallelSection::default(), &start)?)
    } else {
        prepare(threads)?;
        None
    };

    let Some(outcome) = job.run(groups.as_deref())? else { return Ok(()) };
    show(arguments, &outcome)?;
    conclude(arguments, outcome)
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

/// Fails if a model left documents unanswered, or a bound is missed.
fn conclude(arguments: &EvalRunArgs, outcome: Outcome) -> anyhow::Result<()> {
    let Outcome { results, mut problems, .. } = outcome;
    if let Some(model) = results.models.last() {
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
        tasks: Names(tasks.tasks.clone()),
        data: tasks.data.clone(),
        include_path: Names(include_path.collect()),
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
