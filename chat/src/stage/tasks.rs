//! The tasks of `[eval]` that a model in training is asked at each evaluation.
//!
//! The replicas of the model share the requests, and every rank computes the same scores from all answers.
//! Programs that a model writes run on rank 0 alone: on a machine that several ranks share, the time limits
//! of programs would strike at random.
//!
//! A failure is known to all ranks ([`rlhf::Error::Tasks`]) and costs the scores alone. Only a rank that
//! holds a part of the model cannot tell the others, which wait for it in the middle of a forward pass.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use datasets::{OneOrMany, Tokenizer};
use eval::code_execution::{CodeRunner, Program, RunnerError, Verdict};
use eval::evaluation::{Evaluation, Sample, Score};
use eval::request::{LanguageModel, OnResponses, Prompt, Request, Response};
use eval::response_cache::ResponseCache;
use eval::task::Task;
use gemini::ZeroStage;
use inference::language_model::{LocalModel, MAX_NUM_SEQS};
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use rlhf::event::Metrics;
use rlhf::run::TaskScores;

use super::lengths::TaskReplies;
use crate::config::section::EvalSection;
use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::evaluation::share::Share;
use crate::evaluation::{job, most_memory};
use crate::interrupt;

/// How long ranks wait in one collective for the verdicts of rank 0. A collective has a limit; the programs
/// of a task together have none.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The tasks of a run: the requests, and no model yet.
pub(super) struct Tasks {
    evaluation: Evaluation,
    groups: Arc<ProcessGroups>,
    /// The tasks whose unanswered documents the user knows of.
    told: RefCell<BTreeSet<String>>,
}

impl Tasks {
    /// Reads the tasks and their rows, if the run has any.
    pub(super) fn prepare(config: &RunConfig, groups: &Arc<ProcessGroups>) -> anyhow::Result<Option<Self>> {
        if !has_tasks(config) {
            return Ok(None);
        }
        check_mesh(config)?;
        let mut evaluation = job::prepare(&config.eval)?;
        if groups.world().size() > 1 {
            let runner = evaluation.code_runner.take();
            let shared = |runner| Box::new(SharedRunner { runner, groups: Arc::clone(groups) }) as _;
            evaluation.code_runner = runner.map(shared);
        }
        Ok(Some(Self { evaluation, groups: Arc::clone(groups), told: RefCell::default() }))
    }

    /// The replies that a process generates at once, for the prediction of its memory. `None` if no task asks
    /// for replies.
    pub(super) fn replies(&self, tokenizer: &Tokenizer) -> Option<TaskReplies> {
        let documents = self.evaluation.tasks.iter().flat_map(|prepared| &prepared.documents.documents);
        let asked = documents.flat_map(|document| &document.requests).filter_map(|request| match request {
            Request::GenerateUntil { context, max_gen_toks, .. } => Some((context, *max_gen_toks)),
            _ => None,
        });
        let asked: Vec<(&Prompt, usize)> = asked.collect();
        let (longest, _) = asked.iter().max_by_key(|(context, _)| context.len())?;
        let new = asked.iter().map(|(_, max_gen_toks)| max_gen_toks).max()?;
        let count = asked.len().div_ceil(self.groups.model_replicas().size()).min(MAX_NUM_SEQS);
        let programs = if self.evaluation.runs_code() { most_memory() as usize } else { 0 };
        Some(TaskReplies { count, capacity: num_tokens(tokenizer, longest) + new, programs })
    }

    /// Asks a model the tasks after `step` steps.
    pub(super) fn evaluate(
        &self,
        (model, tokenizer): (&CausalLm, &Tokenizer),
        step: u64,
    ) -> Result<TaskScores, rlhf::Error> {
        let name = format!("the model after step {step}");
        let model = LocalModel::new(model, tokenizer, name, None);
        let mut replica = Replica { model, groups: &self.groups, fatal: None };
        let run = self.evaluation.run(&mut replica, &mut ResponseCache::in_memory(), &mut |_| {});
        if let Some(error) = replica.fatal {
            return Err(error);
        }
        let run = run.map_err(|error| rlhf::Error::Tasks(with_causes(error).into()))?;
        let mut metrics = Metrics::default();
        for score in run.groups.iter().chain(&run.scores) {
            metrics.push(&metric_name(score), score.aggregated.value);
        }
        Ok(TaskScores { metrics, warnings: self.unanswered(&run.samples) })
    }

    /// Says of each task, once in a run, how many of its documents have no answer.
    fn unanswered(&self, samples: &[Vec<Sample>]) -> Vec<String> {
        let mut told = self.told.borrow_mut();
        let mut warnings = Vec::new();
        for (prepared, samples) in self.evaluation.tasks.iter().zip(samples) {
            let task = &prepared.task.task;
            let problems: Vec<&String> =
                samples.iter().filter_map(|sample| sample.problem.as_ref()).collect();
            let Some(first) = problems.first().filter(|_| told.insert(task.clone())) else { continue };
            warnings.push(format!(
                "the task {task} of [eval] has {} of {} documents without an answer, the first because {first}; they do \
                 not count, and this is not told again",
                problems.len(),
                samples.len()
            ));
        }
        warnings
    }
}

/// The number of tokens of a prompt, about.
fn num_tokens(tokenizer: &Tokenizer, prompt: &Prompt) -> usize {
    let text = match prompt {
        Prompt::Text(text) => Some(text.clone()),
        Prompt::Chat(messages) => tokenizer.render(messages, true).ok().map(|rendered| rendered.text),
    };
    let ids = text.and_then(|text| tokenizer.encode(&text, true).ok());
    // A prompt that has no tokens here is refused when it is asked.
    ids.map_or(0, |ids| ids.len())
}

/// Checks the tasks of a stage of a pipeline before the first part runs. See [`check`].
pub(crate) fn preflight(
    config: &RunConfig,
    stage: &StageSchema,
    is_made: &dyn Fn(&Task) -> bool,
) -> anyhow::Result<()> {
    if !has_tasks(config) || !stage.reads("eval.tasks") {
        return Ok(());
    }
    check_mesh(config)?;
    check(&config.eval, is_made).map(drop)
}

/// Checks the tasks of a section, and the rows of those for which `is_made` is false: of the others, the
/// pipeline makes the rows first. Returns what is asked on the rows that exist, if anything.
pub(crate) fn check(
    section: &EvalSection,
    is_made: &dyn Fn(&Task) -> bool,
) -> anyhow::Result<Option<Evaluation>> {
    let tasks = job::select(section)?.tasks;
    let names = tasks.into_iter().filter(|task| !is_made(task)).map(|task| task.task);
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return Ok(None);
    }
    Ok(Some(job::prepare(&EvalSection { tasks: OneOrMany(names), ..section.clone() })?))
}

/// Whether tasks are asked during the run.
pub(super) fn has_tasks(config: &RunConfig) -> bool {
    config.eval.every > 0 && !config.eval.tasks.0.is_empty()
}

/// Refuses meshes on which the ranks would have to score texts in step.
fn check_mesh(config: &RunConfig) -> Result<(), ConfigError> {
    let parallel = &config.parallel;
    let refused = if parallel.pipeline.size > 1 {
        "[parallel.pipeline] size above 1"
    } else if parallel.zero == ZeroStage::Weights {
        "[parallel] zero = 3"
    } else {
        return Ok(());
    };
    let message = format!(
        "tasks cannot be asked during a run with {refused}: evaluate the checkpoints with `colossal-chat eval`, and \
         leave this key out"
    );
    Err(ConfigError::Value { place: None, key: "eval.tasks".to_owned(), message })
}

fn metric_name(score: &Score) -> String {
    let name = format!("eval/{}/{}", score.task, score.metric);
    if score.filter == "none" { name } else { format!("{name}/{}", score.filter) }
}

/// An error with its causes, in one line.
fn with_causes(error: eval::Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Why a model gave no answer, without its name.
fn reason(error: eval::Error) -> String {
    match error {
        eval::Error::Model { source, .. } => format!("{:#}", anyhow::Error::from_boxed(source)),
        error => with_causes(error),
    }
}

/// One of the replicas of a model. Each answers a share of the requests.
struct Replica<'a> {
    model: LocalModel<'a>,
    groups: &'a ProcessGroups,
    /// What ends the run.
    fatal: Option<rlhf::Error>,
}

/// What a replica answered, and why it stopped before the end.
type Answers = (Vec<(usize, Response)>, Option<String>);

impl Replica<'_> {
    /// Answers the share of this replica. A signal stops it between two answers.
    fn answer_share(&mut self, requests: &[Request]) -> Result<Answers, rlhf::Error> {
        let (groups, replicas) = (self.groups, self.groups.model_replicas());
        let (own, places) = Share { rank: replicas.rank(), size: replicas.size() }.of(requests);
        let (name, mut answers, mut is_stopped) = (self.name().to_owned(), Vec::new(), Ok(false));
        let asked = self.model.respond(&own, &vec![false; own.len()], &mut |batch| {
            answers.extend(batch.into_iter().map(|(index, response)| (places[index], response)));
            is_stopped = is_stop_requested(groups);
            match is_stopped {
                Ok(false) => Ok(()),
                _ => Err(eval::Error::Model { name: name.clone(), source: "the run is interrupted".into() }),
            }
        });
        let is_part = groups.world().size() > replicas.size() && !is_stopped?;
        match asked {
            Err(error) if is_part => Err(rlhf::Error::TasksOnPart(reason(error).into())),
            asked => Ok((answers, asked.err().map(reason))),
        }
    }

    /// The answers of all replicas, in which every rank sees the same problems.
    fn answer_all(&mut self, requests: &[Request]) -> Result<Answers, rlhf::Error> {
        let own = self.answer_share(requests)?;
        let (mut all, mut problem) = (Vec::new(), None);
        for (answers, other) in self.groups.model_replicas().all_gather_object(vec![own])? {
            all.extend(answers);
            problem = problem.or(other);
        }
        Ok((all, problem))
    }
}

impl LanguageModel for Replica<'_> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn digest(&self) -> &str {
        self.model.digest()
    }

    fn respond(
        &mut self,
        requests: &[Request],
        _: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let name = self.name().to_owned();
        let problem = match self.answer_all(requests) {
            Ok((answers, None)) => return on_responses(answers),
            Ok((_, Some(problem))) => problem,
            Err(error) => {
                let problem = error.to_string();
                self.fatal = Some(error);
                problem
            }
        };
        Err(eval::Error::Model { name, source: problem.into() })
    }
}

/// Whether a signal has reached any rank with a part of this replica. Their answers come in the same order,
/// so all of them call this.
fn is_stop_requested(groups: &ProcessGroups) -> Result<bool, parallel::Error> {
    let mut requested = [f64::from(u8::from(interrupt::is_stop_requested()))];
    for parts in [groups.tensor_parallel(), groups.expert_parallel()] {
        requested = parts.all_reduce_max(requested)?;
    }
    Ok(requested[0] > 0.0)
}

/// The verdicts on programs, or why there are none.
type Outcome = Result<Vec<Verdict>, String>;

/// Runs programs on rank 0 alone. All ranks get the verdicts.
#[derive(Debug)]
struct SharedRunner {
    runner: Box<dyn CodeRunner>,
    groups: Arc<ProcessGroups>,
}

impl CodeRunner for SharedRunner {
    fn interpreter(&self) -> String {
        self.runner.interpreter()
    }

    fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError> {
        let run = || self.runner.run(programs).map_err(|error| error.to_string());
        let exchange = |own| self.groups.world().all_gather_object(own);
        Ok(run_with_heartbeat(self.groups.is_rank_zero().then_some(run), HEARTBEAT, exchange)??)
    }
}

/// Runs programs on the rank that has `run`, which is one, and exchanges verdicts at every heartbeat until
/// they are there. Every rank returns them.
fn run_with_heartbeat(
    run: Option<impl FnOnce() -> Outcome + Send>,
    heartbeat: Duration,
    exchange: impl Fn(Vec<Option<Outcome>>) -> Result<Vec<Option<Outcome>>, parallel::Error>,
) -> Result<Outcome, parallel::Error> {
    thread::scope(|scope| {
        let (sender, verdicts) = mpsc::channel();
        let is_runner = run.is_some();
        if let Some(run) = run {
            scope.spawn(move || sender.send(run()));
        }
        loop {
            let own = is_runner.then(|| match verdicts.recv_timeout(heartbeat) {
                Ok(outcome) => Some(outcome),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err("the programs could not be run".to_owned())),
            });
            if let Some(outcome) = exchange(own.into_iter().collect())?.into_iter().flatten().next() {
                return Ok(outcome);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn ranks_hear_of_rank_0_while_programs_run() {
        // Rank 0: its programs end when the ranks have exchanged three times.
        let (go, wait) = mpsc::channel();
        let run = move || {
            wait.recv().unwrap();
            Ok(vec![Verdict::Passed])
        };
        let exchanges = Cell::new(0);
        let exchange = |own: Vec<Option<Outcome>>| {
            assert_eq!(own.len(), 1);
            exchanges.set(exchanges.get() + 1);
            if exchanges.get() == 3 {
                go.send(()).unwrap();
            }
            Ok(own)
        };
        let outcome = run_with_heartbeat(Some(run), Duration::from_millis(1), exchange).unwrap();
        assert_eq!(outcome, Ok(vec![Verdict::Passed]));
        assert!(exchanges.get() >= 4, "{exchanges:?}");

        // Another rank has nothing to say and waits for what rank 0 says: not yet, not yet, no.
        let said = RefCell::new(vec![Some(Err("no sandbox".to_owned())), None, None]);
        let exchange = |own: Vec<Option<Outcome>>| {
            assert_eq!(own, []);
            Ok(vec![said.borrow_mut().pop().unwrap()])
        };
        let none: Option<fn() -> Outcome> = None;
        let outcome = run_with_heartbeat(none, Duration::from_secs(1000), exchange).unwrap();
        assert_eq!(outcome, Err("no sandbox".to_owned()));
        assert!(said.borrow().is_empty());
    }
}
