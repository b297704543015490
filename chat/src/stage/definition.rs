//! What a stage consists of. Every stage is one file of this folder with a `static STAGE: Stage`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use datasets::Names;
use parallel::{Mesh, ProcessGroups};
use tui::dashboard::Charts;

use super::context::{PlanRequest, RunMode, StageContext, chunk_manager};
use super::plan::Plan;
use super::preflight::Preflight;
use crate::config::{RunConfig, StageSchema};
use crate::display::Display;
use crate::folder::RunFolder;

/// A training stage: what the command line, the configuration, the pipeline and the reports know of it.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Its name, and the configuration keys that it reads.
    pub(crate) schema: StageSchema,
    /// Its subcommand. `None` if only `pipeline` runs the stage.
    pub(crate) command: Option<CommandHelp>,
    /// What `init` asks and writes. `None` if it writes no file for the stage.
    pub(crate) init: Option<InitSpec>,
    /// The metrics that the report plots.
    pub(crate) curves: &'static [&'static str],
    /// The charts of the dashboard.
    pub(crate) charts: Charts,
    /// Fills in the paths that the run file of a pipeline leaves out.
    pub(crate) set_pipeline_paths: fn(&mut RunConfig, &PipelineFolder<'_>),
    /// Checks the inputs without reading weights, and returns a summary line.
    pub(crate) preflight: fn(&mut Preflight<'_>, &RunConfig) -> anyhow::Result<String>,
    /// Loads the models and rows, and trains.
    pub(crate) run: fn(&RunConfig, &mut StageContext<'_>) -> anyhow::Result<()>,
}

impl Stage {
    /// Plans the stage in this process, for the ranks of `mesh`.
    pub(crate) fn plan(
        &'static self,
        request: &PlanRequest,
        config: &RunConfig,
        (groups, mesh): (&Arc<ProcessGroups>, &Mesh),
    ) -> anyhow::Result<Plan> {
        let mut ctx = StageContext {
            stage: &self.schema,
            groups,
            memory: chunk_manager(config, groups)?,
            mesh,
            recorder: &mut Display::new(self.schema.units.step),
            folder: &RunFolder::for_plan(&config.out),
            mode: RunMode::Plan(request),
            has_trained: false,
            plan: None,
        };
        (self.run)(config, &mut ctx)?;
        ctx.plan.context("a stage that is only planned leaves its plan")
    }
}

/// The help texts of a subcommand.
#[derive(Debug)]
pub(crate) struct CommandHelp {
    /// The line in the list of commands.
    pub(crate) about: &'static str,
    /// What the stage trains, for the list of stages.
    pub(crate) title: &'static str,
    /// Examples of its use.
    pub(crate) examples: &'static str,
}

/// What `init` knows of a stage.
#[derive(Debug)]
pub(crate) struct InitSpec {
    /// The rows that the stage learns from.
    pub(crate) rows: RowKind,
    /// The stage whose model it usually starts from, if there is one.
    pub(crate) after: Option<&'static str>,
    /// Whether a file for all stages runs it.
    pub(crate) is_in_all: bool,
    /// The model that it needs beside the one that it starts from.
    pub(crate) other_model: Option<OtherModel>,
    /// A learning rate to begin with, and the most that a small model takes.
    pub(crate) lr: [&'static str; 2],
    /// The keys of the section of the stage.
    pub(crate) keys: fn(&InitSizes) -> Vec<InitKey>,
}

/// A stage that `init` writes a run file for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitStage {
    pub(crate) stage: &'static Stage,
    pub(crate) init: &'static InitSpec,
}

impl InitStage {
    /// The name of the stage.
    pub(crate) fn name(self) -> &'static str {
        self.stage.schema.name
    }
}

/// The rows of a stage, as `init` asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKind {
    /// Conversations, or prompts with answers.
    Demonstrations,
    /// Pairs of a better and a worse answer.
    Pairs,
    /// Single answers, each marked as good or bad, or pairs.
    Rated,
    /// Prompts, which the model answers itself.
    Prompts,
}

impl RowKind {
    /// The flag of `init` that names files of such rows.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Demonstrations => "--data",
            Self::Pairs | Self::Rated => "--preferences",
            Self::Prompts => "--prompts",
        }
    }

    /// What the rows are, in a few words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Demonstrations => "demonstrations",
            Self::Pairs => "pairs (prompt, chosen, rejected)",
            Self::Rated => "answers with a label (prompt, completion, label) or of pairs",
            Self::Prompts => "prompts",
        }
    }

    /// The comment of the files in a run file.
    pub(crate) fn comment(self) -> &'static str {
        match self {
            Self::Demonstrations => "Demonstrations: conversations, or prompts with answers.",
            Self::Pairs => "Pairs of a better and a worse answer.",
            Self::Rated => "Answers that are marked as good or bad, or pairs of a better and a worse one.",
            Self::Prompts => "Prompts. The model answers them, and the reward model scores the answers.",
        }
    }
}

/// A model that a stage needs beside the one that it starts from.
#[derive(Debug)]
pub(crate) struct OtherModel {
    /// The flag of `init`.
    pub(crate) flag: &'static str,
    pub(crate) question: &'static str,
    /// The key in the section of the stage, or with another section before a point; and its comment.
    pub(crate) key: &'static str,
    pub(crate) comment: &'static str,
    pub(crate) is_reward_model: bool,
}

/// What the values of a run file depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitSizes {
    /// Whether the run is a few steps long.
    pub(crate) is_quick: bool,
    /// The longest reply that leaves room for prompts, in tokens.
    pub(crate) max_new_tokens: i64,
    /// Whether adapters are trained in place of the model.
    pub(crate) has_adapters: bool,
}

impl InitSizes {
    /// A learning rate: `whole` for a model that is trained whole, and ten times that for adapters (Schulman
    /// et al. 2025, "LoRA Without Regret").
    pub(crate) fn rate(&self, whole: &str) -> String {
        if !self.has_adapters {
            return whole.to_owned();
        }
        let (digits, power) = whole.split_once('e').expect("a stage writes its rate as 1e-5");
        let power: i32 = power.parse().expect("a power of ten is a whole number");
        format!("{digits}e{}", power + 1)
    }
}

/// A key of a run file with its comment and its value, TOML.
#[derive(Debug)]
pub(crate) struct InitKey {
    pub(crate) comment: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

impl InitKey {
    pub(super) fn new(comment: &'static str, key: &'static str, value: &str) -> Self {
        Self { comment, key, value: value.to_owned() }
    }
}

/// The folder of a pipeline, in which each part finds the results of earlier parts.
pub(crate) struct PipelineFolder<'a>(pub(crate) &'a Path);

impl PipelineFolder<'_> {
    /// Sets `path` to the result `name` of an earlier part, unless the run file sets it.
    pub(super) fn set_path(&self, path: &mut Option<String>, name: &str) {
        path.get_or_insert_with(|| self.path(name));
    }

    /// Sets `files` to the result `name` of an earlier part, unless the run file names files.
    pub(super) fn set_files(&self, files: &mut Names, name: &str) {
        if files.0.is_empty() {
            files.0.push(self.path(name));
        }
    }

    /// Sets the pairs to train on and those that are held out to the results of an earlier part, unless the
    /// run file names files.
    pub(super) fn set_preferences(&self, config: &mut RunConfig) {
        const HELD_OUT: &str = "data/heldout_preference.parquet";
        self.set_files(&mut config.data.train, "data/preference.parquet");
        if self.has(HELD_OUT) && config.data.eval_fraction == 0.0 {
            self.set_files(&mut config.data.eval, HELD_OUT);
        }
    }

    /// Whether an earlier part has written `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}
