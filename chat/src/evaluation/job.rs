//! An evaluation, from its settings to the files of its results: what the command `eval` and the part `eval`
//! of a pipeline share.
//!
//! Everything that can be known is checked before a model is loaded: names of tasks, task files, rows, the
//! output folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use datasets::table;
use eval::contamination::Overlaps;
use eval::document::PromptOptions;
use eval::evaluation::{Answers, Evaluation, ModelRun};
use eval::request::LanguageModel;
use eval::response_cache::ResponseCache;
use eval::results::Results;
use eval::task::{OutputType, Registry, Selection, Task};
use inference::shared_weights::SharedWeights;
use parallel::comm::ProcessGroup;
use parallel::{LocalRank, ProcessGroups, regular_file};
use serde_json::{Value, json};
use text::number::counted;

use super::marks::{Mark, remove_marks};
use super::model::{self, Candidate, ModelHost};
use super::output::{self, OutputFolder, RunNotes};
use super::progress::RequestProgress;
use super::sandbox::Sandbox;
use super::share::{Share, SharedModel};
use crate::config::ConfigError;
use crate::config::section::EvalSection;
use crate::console::print_stderr;
use crate::feedback::timestamp::Timestamp;
use crate::own_file::io_error;
use crate::own_folder::FolderKind;

/// What is evaluated, and how.
pub(crate) struct EvalJob<'a> {
    /// The models. The others are compared with the first.
    pub(crate) candidates: Vec<Candidate>,
    /// The tasks, and how their prompts are made.
    pub(crate) section: &'a EvalSection,
    /// Files, folders and patterns of training rows that are searched for the rows of the tasks.
    pub(crate) train_data: Vec<String>,
    /// How the models are run here, and asked behind an endpoint.
    pub(crate) host: ModelHost,
    /// The folder of the results.
    pub(crate) output: &'a Path,
    /// Whether the results of another evaluation in that folder are replaced.
    pub(crate) force: bool,
    /// The command line that the report shows.
    pub(crate) command: &'a str,
}

/// What an evaluation found.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The scores.
    pub(crate) results: Results,
    /// Documents that a model left without an answer, a line for each such model.
    pub(crate) problems: Vec<String>,
    pub(crate) report: PathBuf,
}

impl EvalJob<'_> {
    /// Asks every model everything, and writes the folder of the results. With several processes, each
    /// answers a share of the requests, and the first one alone returns the outcome.
    pub(crate) fn run(&self, groups: Option<&ProcessGroups>) -> anyhow::Result<Option<Outcome>> {
        let (started, began) = (Instant::now(), Timestamp::now().to_string());
        let world = groups.map(ProcessGroups::world);
        let share = world
            .map_or(Share { rank: 0, size: 1 }, |world| Share { rank: world.rank(), size: world.size() });
        let barrier = || world.map_or(Ok(()), ProcessGroup::barrier);
        let evaluation = self.prepare()?;
        let train_data = table::expand(&self.train_data)?;
        if share.rank > 0 {
            barrier()?;
            OutputFolder::check_shared(self.output, share.rank)?;
            let mark = Mark::start(self.output, share)?;
            self.ask_all(&evaluation, share, groups)?;
            mark.wait_for_all()?;
            barrier()?;
            return Ok(None);
        }

        let settings = self.settings(&evaluation);
        let folder = OutputFolder::open(self.output, FolderKind::Eval, &settings, self.force)?;
        print_stderr(&format!(
            "{}, {} for each of {}; results go to {}",
            counted(evaluation.tasks.len() as u64, "task"),
            counted(evaluation.num_requests() as u64, "request"),
            counted(self.candidates.len() as u64, "model"),
            folder.path().display()
        ));
        remove_marks(self.output)?;
        barrier()?;
        let mark = Mark::start(self.output, share)?;
        let overlaps = match train_data.as_slice() {
            [] => None,
            files => Some(Overlaps::find(&evaluation, files)?),
        };
        let mut answers = self.ask_all(&evaluation, share, groups)?;
        mark.wait_for_all()?;
        barrier()?;
        if share.size > 1 {
            remove_marks(self.output)?;
            let cache = self.responses(0)?;
            answers = answers.into_iter().map(|answers| evaluation.collect(answers, &cache)).collect();
        }
        let runs = answers.into_iter().map(|answers| evaluation.score(answers));
        let runs = runs.collect::<Result<Vec<ModelRun>, _>>()?;

        runs.iter().flat_map(cut_prompts).for_each(|line| print_stderr(&line));
        let program = format!("colossal-chat {}", env!("CARGO_PKG_VERSION"));
        let mut results = Results::new(&evaluation, &runs, program, settings)?;
        if let Some(overlaps) = overlaps {
            results.contamination = overlaps.scores(&evaluation, &runs)?;
        }
        let notes = RunNotes { started: began, command: self.command, elapsed: started.elapsed() };
        folder.write(&evaluation, &runs, &results, &notes)?;
        let report = folder.path().join("report.html");
        Ok(Some(Outcome { results, problems: runs.iter().filter_map(unanswered).collect(), report }))
    }

    /// Checks the tasks and their rows, and marks the folder of the results, before the processes of the
    /// evaluation are started.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let evaluation = self.prepare()?;
        table::expand(&self.train_data)?;
        OutputFolder::start(self.output, &self.settings(&evaluation), self.force)
    }

    fn prepare(&self) -> anyhow::Result<Evaluation> {
        let evaluation = prepare(self.section)?;
        self.check_endpoints(&evaluation)?;
        Ok(evaluation)
    }

    /// Refuses tasks that the models behind endpoints cannot answer, and flags of endpoints without one.
    fn check_endpoints(&self, evaluation: &Evaluation) -> anyhow::Result<()> {
        let endpoint = self.candidates.iter().find(|candidate| candidate.folder().is_none());
        model::check_endpoint_flags(&self.host, endpoint.is_some())?;
        let Some(endpoint) = endpoint else { return Ok(()) };
        let scores_texts = |output_type| output_type != OutputType::GenerateUntil;
        let wrong = evaluation.tasks.iter().find(|prepared| scores_texts(prepared.task.output_type));
        let problem = match wrong {
            Some(prepared) => format!(
                "an endpoint does not give the log-probabilities of given texts, which the task {} asks for: choose \
                 tasks that generate, such as gsm8k, or name a model folder",
                prepared.task.task
            ),
            None if !self.section.apply_chat_template => {
                "an endpoint takes conversations alone: add --apply-chat-template".to_owned()
            }
            None => return Ok(()),
        };
        Err(ConfigError::Argument { argument: format!("--model {}", endpoint.argument), problem }.into())
    }

    /// Asks every model the requests of this process.
    fn ask_all(
        &self,
        evaluation: &Evaluation,
        share: Share,
        groups: Option<&ProcessGroups>,
    ) -> anyhow::Result<Vec<Answers>> {
        evaluation.check_code_runner()?;
        let mut cache = self.responses(share.rank)?;
        let local = groups.map_or(LocalRank::SINGLE, ProcessGroups::local_rank);
        let mut weights = SharedWeights::default();
        let open_and_ask = |candidate: &Candidate| {
            let mut model = candidate.open(&self.host, local, &mut weights)?;
            ask(candidate, model.as_mut(), (evaluation, share), &mut cache)
        };
        self.candidates.iter().map(open_and_ask).collect()
    }

    /// The answers so far: the file of a process, and what the files of the others hold.
    fn responses(&self, rank: usize) -> anyhow::Result<ResponseCache> {
        let own = self.output.join(responses_file(rank));
        let mut cache = output::open_responses(&own)?;
        // Also those of an earlier run with more processes.
        for other in output::response_files(self.output)?.into_iter().filter(|path| *path != own) {
            let file = regular_file::open(&other, File::options().read(true));
            cache.read_also(&other, &file.map_err(io_error(&other))?)?;
        }
        Ok(cache)
    }

    /// What decides the results. A folder holds the results of one such evaluation.
    fn settings(&self, evaluation: &Evaluation) -> Value {
        let section = self.section;
        let runner = evaluation.code_runner.as_ref();
        json!({
            "models": self.candidates.iter().map(|candidate| &candidate.name).collect::<Vec<_>>(),
            "places": self.candidates.iter().map(Candidate::place).collect::<Vec<_>>(),
            "tasks": section.tasks,
            "data": section.data,
            "include_path": section.include_path,
            "limit": section.limit,
            "num_fewshot": section.num_fewshot,
            "apply_chat_template": section.apply_chat_template,
            "fewshot_in_one_turn": section.fewshot_in_one_turn,
            "system_instruction": section.system_instruction,
            "max_gen_toks": section.max_gen_toks,
            "python": runner.map(|runner| runner.interpreter()),
            "train_data": self.train_data,
            "dtype": self.host.weights.numbers(),
            "max_length": self.host.max_length,
        })
    }
}

/// Asks a model the requests of this process.
fn ask(
    candidate: &Candidate,
    model: &mut dyn LanguageModel,
    (evaluation, share): (&Evaluation, Share),
    cache: &mut ResponseCache,
) -> anyhow::Result<Answers> {
    let mut model = SharedModel { model, share };
    let mut progress = (share.rank == 0).then(RequestProgress::new);
    let answers = evaluation.ask(&mut model, cache, &mut |state| {
        // The progress of one process stands for all.
        if let Some(progress) = &mut progress {
            progress.show(&candidate.name, state);
        }
    });
    if let Some(progress) = progress {
        progress.end(&answers);
    }
    Ok(answers?)
}

/// The file of the answers of one process.
fn responses_file(rank: usize) -> String {
    if rank == 0 { "responses.jsonl".to_owned() } else { format!("responses-{rank}.jsonl") }
}

/// Reads the task files and the rows, and makes the requests. Loads no model.
pub(crate) fn prepare(section: &EvalSection) -> anyhow::Result<Evaluation> {
    let options = prompt_options(section);
    let selection = select(section)?;
    tell_unused(section, &selection.tasks);
    let mut evaluation = Evaluation::prepare(selection, &section.data, options)?;
    if section.allow_code_execution && evaluation.runs_code() {
        evaluation.code_runner = Some(Box::new(Sandbox::open()?));
    }
    evaluation.check_code_runner()?;
    Ok(evaluation)
}

/// Finds the tasks that `section` names, and refuses those that run code without leave. Reads the task files,
/// and no rows.
pub(crate) fn select(section: &EvalSection) -> anyhow::Result<Selection> {
    let selection = registry(&section.include_path.0)?.select(&section.tasks.0)?;
    let code_task = selection.tasks.iter().find(|task| task.code_execution.is_some());
    if let Some(task) = code_task.filter(|_| !section.allow_code_execution) {
        return Err(eval::Error::CodeNotAllowed { task: task.task.clone() }.into());
    }
    Ok(selection)
}

/// Tells of settings that none of the tasks uses.
fn tell_unused(section: &EvalSection, tasks: &[Task]) {
    let runs_code = tasks.iter().any(|task| task.code_execution.is_some());
    let generates = tasks.iter().any(|task| task.output_type == OutputType::GenerateUntil);
    let takes_examples = tasks.iter().any(|task| !task.fewshot.fixed);
    for (is_unused, setting, reason) in [
        (section.allow_code_execution && !runs_code, "allow_code_execution", "runs code"),
        (section.max_gen_toks.is_some() && !generates, "max_gen_toks", "asks for a reply"),
        (
            section.num_fewshot.is_some() && !takes_examples,
            "num_fewshot",
            "leaves the number of examples open",
        ),
    ] {
        if is_unused {
            print_stderr(&format!("note: {setting} has no effect: none of the tasks {reason}"));
        }
    }
}

/// The tasks in the program and in the given files and folders.
pub(crate) fn registry(include_path: &[impl AsRef<Path>]) -> anyhow::Result<Registry> {
    let mut registry = Registry::embedded()?;
    for path in include_path {
        registry.add_path(path.as_ref())?;
    }
    Ok(registry)
}

fn prompt_options(section: &EvalSection) -> PromptOptions {
    PromptOptions {
        num_fewshot: section.num_fewshot,
        apply_chat_template: section.apply_chat_template,
        fewshot_as_multiturn: !section.fewshot_in_one_turn,
        system_instruction: section.system_instruction.clone(),
        max_gen_toks: section.max_gen_toks.map(usize::from),
        limit: section.limit.map(usize::from),
    }
}

/// Says for each task how many prompts a model did not see as a whole.
fn cut_prompts(run: &ModelRun) -> Vec<String> {
    let mut tasks: Vec<(&str, usize)> = run
        .scores
        .iter()
        .filter(|score| score.cut > 0)
        .map(|score| (score.task.as_str(), score.cut))
        .collect();
    tasks.dedup();
    let line = |(task, cut): (&str, usize)| {
        let prompts = counted(cut as u64, "prompt");
        format!("warning: {prompts} of {task} are longer than {} takes and lost their beginning", run.name)
    };
    tasks.into_iter().map(line).collect()
}

/// Says how many documents a model left without an answer.
fn unanswered(run: &ModelRun) -> Option<String> {
    let problem = run.samples.iter().flatten().find_map(|sample| sample.problem.as_ref())?;
    Some(format!(
        "{} left {} documents without an answer, the first because {problem}; they do not count, and the same \
         command asks them again",
        run.name,
        run.failed()
    ))
}
