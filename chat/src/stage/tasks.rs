//! The tasks of `[eval]` that a model in training is asked at each evaluation.
//!
//! The replicas of the model share the requests, and every rank computes the same scores from all answers.

use std::cell::RefCell;
use std::sync::Arc;

use datasets::Tokenizer;
use eval::evaluation::{Evaluation, Score};
use eval::request::{LanguageModel, OnResponses, Request, Response};
use eval::response_cache::ResponseCache;
use gemini::ZeroStage;
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use parallel::comm::ProcessGroup;
use rlhf::event::Metrics;

use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::evaluation::share::Share;
use crate::evaluation::{Engine, job};

/// The tasks of a run, if it has any: the requests, and no model yet.
pub(super) fn prepare(config: &RunConfig) -> anyhow::Result<Option<Evaluation>> {
    if !has_tasks(config) {
        return Ok(None);
    }
    check_mesh(config)?;
    Ok(Some(job::prepare(&config.eval)?))
}

/// Checks the tasks of a stage of a pipeline before the first part runs: their rows too, unless the pipeline
/// makes them.
pub(crate) fn preflight(config: &RunConfig, stage: &StageSchema, makes_rows: bool) -> anyhow::Result<()> {
    if !has_tasks(config) || !stage.reads("eval.tasks") {
        return Ok(());
    }
    check_mesh(config)?;
    if makes_rows { job::select(&config.eval).map(drop) } else { job::prepare(&config.eval).map(drop) }
}

fn has_tasks(config: &RunConfig) -> bool {
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

/// Asks `model` the tasks after `step` steps. Returns the metrics `eval/TASK/METRIC`.
pub(super) fn evaluate(
    evaluation: &Evaluation,
    (model, tokenizer): (&CausalLm, &Tokenizer),
    groups: &ProcessGroups,
    step: u64,
) -> Result<Metrics, rlhf::Error> {
    let mut replica = Replica {
        engine: Engine::new(model, tokenizer, format!("step {step}"), None),
        group: Arc::clone(groups.model_replicas()),
    };
    let run = evaluation
        .run(&mut replica, &mut ResponseCache::in_memory(), &mut |_| {})
        .map_err(|error| rlhf::Error::Tasks(error.into()))?;
    let mut metrics = Metrics::default();
    for score in run.groups.iter().chain(&run.scores) {
        metrics.push(&metric_name(score), score.aggregated.value);
    }
    Ok(metrics)
}

fn metric_name(score: &Score) -> String {
    let name = format!("eval/{}/{}", score.task, score.metric);
    if score.filter == "none" { name } else { format!("{name}/{}", score.filter) }
}

/// One of the replicas of a model. Each answers a share of the requests.
struct Replica<'a> {
    engine: Engine<'a>,
    group: Arc<ProcessGroup>,
}

impl LanguageModel for Replica<'_> {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn digest(&self) -> &str {
        self.engine.digest()
    }

    fn respond(
        &mut self,
        requests: &[Request],
        _: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let (own, places) = Share { rank: self.group.rank(), size: self.group.size() }.of(requests);
        let answers: RefCell<Vec<(usize, Response)>> = RefCell::default();
        self.engine.respond(&own, &vec![false; own.len()], &mut |batch| {
            answers.borrow_mut().extend(batch.into_iter().map(|(index, response)| (places[index], response)));
            Ok(())
        })?;
        let name = self.engine.name().to_owned();
        let all = self.group.all_gather_object(answers.into_inner());
        on_responses(all.map_err(|error| eval::Error::Model { name, source: error.into() })?)
    }
}
