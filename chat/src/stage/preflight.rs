//! Checks the inputs of every stage before the first stage of a pipeline runs: a typo in the last stage must
//! not cost the time of the first ones.
//!
//! The inputs of a stage are model folders and rows. Inputs that exist are checked in the same way as the
//! stage itself checks them: `config.json`, the headers of the weight files, the tokenizer with its template,
//! every row, and whether lengths and token ids fit the models. A folder that an earlier stage will write is
//! described by the model that this stage starts from. The checks of a stage are in its own file; here is
//! what they share. Nothing here loads weights or writes files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use datasets::dataset::TrainingRow;
use datasets::{Names, Tokenizer};
use inference::model_folder::ModelFolder;
use inference::session::load_tokenizer;
use models::config::Config;
use parallel::Mesh;
use text::number::counted;

use super::{context, rows};
use crate::config::section::{DataSection, TokenizerSection};
use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::model_folder;

/// A model that exists or that an earlier stage will write.
#[derive(Clone)]
pub(super) struct ModelSpec {
    pub(super) config: Config,
    /// Whether the model has a score head instead of a vocabulary head.
    pub(super) is_reward_model: bool,
    /// The tokenizer. `None` if the pipeline itself will train it.
    pub(super) tokenizer: Option<TokenizerFiles>,
}

/// The location of the tokenizer of a model.
#[derive(Clone)]
pub(super) struct TokenizerFiles {
    pub(super) folder: PathBuf,
    /// The chat template that an earlier stage sets, as a name or Jinja source.
    pub(super) template: Option<String>,
    /// Whether supervised fine-tuning adds the tokens that the template needs.
    pub(super) adds_tokens: bool,
}

/// The state of the checks: the outputs of the stages before the one that is checked.
pub(crate) struct Preflight<'a> {
    /// The folder of the pipeline.
    out: PathBuf,
    /// The mesh of the ranks.
    pub(super) mesh: &'a Mesh,
    /// The row files that the pipeline generates.
    made_rows: BTreeSet<PathBuf>,
    /// The models that earlier stages will write, by run folder.
    made_models: BTreeMap<PathBuf, ModelSpec>,
}

impl<'a> Preflight<'a> {
    /// Creates the state before the first stage. `made_rows` are the row files that the pipeline generates.
    pub(crate) fn new(out: &Path, mesh: &'a Mesh, made_rows: impl IntoIterator<Item = PathBuf>) -> Self {
        let made_rows = made_rows.into_iter().map(|file| absolute(&file)).collect();
        Self { out: absolute(out), mesh, made_rows, made_models: BTreeMap::new() }
    }

    /// Whether all row files exist already.
    pub(super) fn have_rows(&self, config: &RunConfig) -> bool {
        let files = [&config.data.train, &config.data.eval, &config.data.ptx];
        !files.iter().flat_map(|files| &files.0).any(|file| self.will_generate(file))
    }

    /// Whether the pipeline will generate a row file that does not exist yet. A pattern may match such files.
    fn will_generate(&self, file: &str) -> bool {
        let path = absolute(Path::new(file));
        let is_pattern = file.contains(['*', '?']);
        let is_beside = || self.made_rows.iter().any(|made| made.parent() == path.parent() && !made.exists());
        (self.made_rows.contains(&path) && !path.exists()) || (is_pattern && is_beside())
    }

    /// Parses the existing rows without tokenizing them. Used when the tokenizer or some of the rows do not
    /// exist yet.
    pub(super) fn parse<T: TrainingRow>(&self, files: &Names, data: &DataSection) -> anyhow::Result<()> {
        let existing: Vec<&String> = files.0.iter().filter(|file| !self.will_generate(file)).collect();
        rows::parse::<T>(&existing, data)
    }

    /// Returns the summary line of a stage that trains on rows of type `T`: that of `read`, which reads them
    /// with the tokenizer. If an earlier part of the pipeline makes the tokenizer or some of the rows, the
    /// others are only parsed.
    pub(super) fn rows<T: TrainingRow>(
        &self,
        stage: &StageSchema,
        config: &RunConfig,
        tokenizer: Option<&Tokenizer>,
        read: impl FnOnce(&Tokenizer) -> anyhow::Result<String>,
    ) -> anyhow::Result<String> {
        if let Some(tokenizer) = tokenizer.filter(|_| self.have_rows(config)) {
            return read(tokenizer);
        }
        self.parse::<T>(&config.data.train, &config.data)?;
        self.parse::<T>(&config.data.eval, &config.data)?;
        Ok(deferred_line(stage))
    }

    /// Returns the model that the setting `key` names.
    pub(super) fn model(&self, key: &'static str, name: &str) -> anyhow::Result<ModelSpec> {
        let path = absolute(Path::new(name));
        // A run folder stands for its `final/`. The checkpoints of a run are models as well.
        let is_written = |run: &Path| {
            path == run || path == run.join("final") || path.parent() == Some(&run.join("checkpoints"))
        };
        if let Some((_, model)) = self.made_models.iter().find(|(run, _)| is_written(run)) {
            return Ok(model.clone());
        }
        if path.starts_with(&self.out) && !path.exists() {
            return Err(ConfigError::NotMade { key, path: name.into() }.into());
        }
        ModelSpec::of_folder(&model_folder::find(name)?)
    }

    pub(super) fn add_model(&mut self, config: &RunConfig, model: ModelSpec) {
        self.made_models.insert(absolute(&config.out), model);
    }
}

impl ModelSpec {
    /// Describes an existing model. Also reads the headers of its weight files.
    fn of_folder(folder: &ModelFolder) -> anyhow::Result<Self> {
        let config = folder.config()?;
        folder.check_weights()?;
        let is_reward_model = config.is_sequence_classification();
        let tokenizer = Some(TokenizerFiles::of(folder.tokenizer_path().to_owned()));
        Ok(Self { config, is_reward_model, tokenizer })
    }

    /// Returns the tokenizer of a stage that starts from this model. `adds_tokens` is whether the stage adds
    /// the tokens that its chat template needs.
    pub(super) fn tokenizer_of(
        &self,
        section: &TokenizerSection,
        adds_tokens: bool,
    ) -> anyhow::Result<Option<TokenizerFiles>> {
        let files = match &section.path {
            Some(path) => Some(TokenizerFiles::of(model_folder::find(path)?.tokenizer_path().to_owned())),
            None => self.tokenizer.clone(),
        };
        let own = |files: TokenizerFiles| TokenizerFiles {
            adds_tokens: files.adds_tokens || adds_tokens,
            template: section.template.clone().or(files.template),
            folder: files.folder,
        };
        Ok(files.map(own))
    }

    /// Loads the tokenizer. Returns `None` if the pipeline itself will train it.
    pub(super) fn load_tokenizer(&self) -> anyhow::Result<Option<Tokenizer>> {
        self.tokenizer.as_ref().map(TokenizerFiles::load).transpose()
    }

    /// Refuses a tokenizer that differs from `own`, that of the model in training. The stage itself warns of
    /// a folder without a tokenizer.
    pub(super) fn check_tokenizer(&self, role: &'static str, own: Option<&Tokenizer>) -> anyhow::Result<()> {
        let files = self.tokenizer.as_ref().filter(|files| files.folder.join("tokenizer.json").exists());
        match own.zip(files) {
            Some((own, files)) => Ok(context::check_tokenizer(own, role, &files.folder, &files.load()?)?),
            None => Ok(()),
        }
    }

    pub(super) fn refuse_reward_model(&self, key: &'static str) -> Result<(), ConfigError> {
        let message = "is a reward model, which has no vocabulary head: name a language model";
        self.check_head(key, false, message)
    }

    pub(super) fn need_reward_model(&self, key: &'static str) -> Result<(), ConfigError> {
        let message = "is a language model: name the folder of a reward model, such as the final/ of `rm`";
        self.check_head(key, true, message)
    }

    fn check_head(&self, key: &str, reward_model: bool, problem: &str) -> Result<(), ConfigError> {
        if self.is_reward_model == reward_model {
            return Ok(());
        }
        let message = format!("{} {problem}", self.config.origin());
        Err(ConfigError::Value { place: None, key: key.to_owned(), message })
    }
}

impl TokenizerFiles {
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { folder, template: None, adds_tokens: false }
    }

    pub(super) fn load(&self) -> anyhow::Result<Tokenizer> {
        let template = self.template.as_deref();
        if self.adds_tokens {
            return Ok(model_folder::tokenizer_to_train(&self.folder, template)?.tokenizer);
        }
        Ok(load_tokenizer(&self.folder, template)?)
    }
}

/// Makes a path comparable with others: absolute, without `.`. Links are not resolved, because the path may
/// not exist yet.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the summary line of a stage whose rows were read.
pub(super) fn describe<T>(stage: &StageSchema, rows: &rows::EncodedRows<T>, length: &str) -> String {
    let dropped = if rows.dropped > 0 { format!(" ({} left out)", rows.dropped) } else { String::new() };
    let count = counted(rows.rows.len() as u64, "row");
    format!("{}: {count}{dropped}, {}; {length}", stage.name, counted(rows.tokens as u64, "token"))
}

/// Returns the summary line of a stage whose rows or tokenizer an earlier part of the pipeline makes.
pub(super) fn deferred_line(stage: &StageSchema) -> String {
    format!("{}: reads what an earlier part of the pipeline makes", stage.name)
}

/// Describes the length of a stage that trains on `units` rows or bins.
pub(super) fn steps(config: &RunConfig, units: usize) -> String {
    let steps = config.train.total_steps(units);
    let warmup = config.long_warmup(steps).filter(|_| config.train.steps.is_none());
    let warmup = warmup.map(|problem| format!("; warning: `train.warmup_steps`: {problem}"));
    let batch = counted(config.train.batch_size() as u64, "row");
    format!("{} of {batch}{}", counted(steps, "step"), warmup.unwrap_or_default())
}
