//! What a stage consists of. Every stage is one file of this folder with a `static STAGE: Stage`.

use std::path::Path;

use rlhf::config::Names;

use super::context::StageContext;
use super::preflight::Preflight;
use crate::config::{RunConfig, StageSchema};

/// A training stage: what the command line, the configuration, the pipeline and the curves of the report know
/// of it. (The rest of the report compares the stages of the demo by name.)
#[derive(Debug)]
pub(crate) struct Stage {
    /// Its name, and the configuration keys that it reads.
    pub(crate) schema: StageSchema,
    /// Its subcommand. `None` if only `pipeline` runs the stage.
    pub(crate) command: Option<CommandHelp>,
    /// The metrics that the report plots.
    pub(crate) curves: &'static [&'static str],
    /// Fills in the paths that the run file of a pipeline leaves out.
    pub(crate) set_pipeline_paths: fn(&mut RunConfig, &PipelineFolder<'_>),
    /// Checks the inputs without reading weights, and returns a summary line.
    pub(crate) preflight: fn(&mut Preflight<'_>, &RunConfig) -> anyhow::Result<String>,
    /// Loads the models and rows, and trains.
    pub(crate) run: fn(&RunConfig, &mut StageContext<'_>) -> anyhow::Result<()>,
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
