//! The data of `results.json`: the scores of each model, and the comparisons.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::comparison::{self, Comparison};
use crate::Error;
use crate::contamination::Contamination;
use crate::evaluation::{Evaluation, ModelRun, Score};
use crate::task::OutputType;

/// The version of `results.json`.
pub const FORMAT: u32 = 1;

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The program and its version.
    pub program: String,
    /// The settings, as the command line or the run file gave them.
    pub settings: Value,
    /// What was asked.
    pub tasks: Vec<TaskInfo>,
    /// What each model scored. The first one is the baseline.
    pub models: Vec<ModelResults>,
    /// Every other model against the first one and against the one before it, paired by document.
    pub comparisons: Vec<Comparison>,
    /// How many documents the training data holds, if it was looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contamination: Vec<Contamination>,
}

/// What identifies the scores of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskInfo {
    /// The name.
    pub task: String,
    /// The protocol id: scores with equal ids are comparable.
    pub protocol_id: String,
    /// Who else computes the same numbers.
    pub protocol: Option<String>,
    /// The version of the rules.
    pub version: Option<f64>,
    /// What is asked of the model.
    pub output_type: OutputType,
    /// The examples in a prompt.
    pub num_fewshot: usize,
    /// The rows of the split.
    pub original: usize,
    /// The rows that were evaluated.
    pub effective: usize,
    /// The hash of all requests.
    pub prompt_hash: String,
}

/// What one model scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResults {
    /// The name.
    pub name: String,
    /// The hash of the model.
    pub digest: String,
    /// The scores of tasks.
    pub scores: Vec<Score>,
    /// The scores of groups, each with the names of its tasks.
    pub groups: Vec<Score>,
}

impl Results {
    /// The results of models on one evaluation.
    pub fn new(
        evaluation: &Evaluation,
        runs: &[ModelRun],
        program: String,
        settings: Value,
    ) -> Result<Self, Error> {
        let tasks = evaluation.tasks.iter().map(|prepared| TaskInfo {
            task: prepared.task.task.clone(),
            protocol_id: prepared.protocol_id(),
            protocol: prepared.task.protocol.clone(),
            version: prepared.task.version,
            output_type: prepared.task.output_type,
            num_fewshot: prepared.documents.shots,
            original: prepared.documents.original,
            effective: prepared.documents.documents.len(),
            prompt_hash: prepared.documents.prompt_hash.clone(),
        });
        let models = runs.iter().map(|run| ModelResults {
            name: run.name.clone(),
            digest: run.digest.clone(),
            scores: run.scores.clone(),
            groups: run.groups.clone(),
        });

        Ok(Self {
            format: FORMAT,
            program,
            settings,
            tasks: tasks.collect(),
            models: models.collect(),
            comparisons: comparison::of_runs(evaluation, runs)?,
            contamination: Vec::new(),
        })
    }

    /// The task of a name.
    pub fn task(&self, name: &str) -> Option<&TaskInfo> {
        self.tasks.iter().find(|task| task.task == name)
    }
}

impl ModelResults {
    /// The scores of groups, then those of tasks.
    pub fn all(&self) -> impl Iterator<Item = &Score> {
        self.groups.iter().chain(&self.scores)
    }
}
