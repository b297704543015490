//! Checks the inputs of every stage before the first stage of a pipeline runs: a typo in the last stage must
//! not cost the time of the first ones.
//!
//! The inputs of a stage are model folders and rows. Inputs that exist are checked in the same way as the
//! stage itself checks them: `config.json`, the headers of the weight files, the tokenizer with its template,
//! every row, and whether lengths and token ids fit the models. A folder that an earlier stage will write is
//! described by the model that this stage starts from. This module reads no weights and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use datasets::dataset::TrainingRow;
use datasets::{PreferenceRow, PromptRow, SftRow, Tokenizer};
use models::config::Config;
use models::weights::WeightFolder;
use parallel::Mesh;
use rlhf::config::Names;
use tui::number::counted;

use super::base::{BaseModelSpec, SpecialIds};
use super::ppo::PerRole;
use super::{context, ppo, rm, rows, sft};
use crate::config::section::DataSection;
use crate::config::{ConfigError, RunConfig, Stage};
use crate::session;

/// A model that exists or that an earlier stage will write.
#[derive(Clone)]
struct ModelSpec {
    config: Config,
    /// Whether the model has a score head instead of a vocabulary head.
    is_reward_model: bool,
    /// The tokenizer. `None` if the pipeline itself will train it.
    tokenizer: Option<TokenizerFiles>,
}

/// The location of the tokenizer of a model.
#[derive(Clone)]
struct TokenizerFiles {
    folder: PathBuf,
    /// The chat template that an earlier stage sets, as a name or Jinja source.
    template: Option<String>,
    /// Whether supervised fine-tuning adds the tokens that the template needs.
    adds_tokens: bool,
}

/// The state of the checks: the outputs of the stages before the one that is checked.
pub(crate) struct Preflight<'a> {
    /// The folder of the pipeline.
    out: PathBuf,
    /// The mesh of the ranks.
    mesh: &'a Mesh,
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

    /// Checks the base model. `vocab_size` replaces the vocabulary of a tokenizer that the pipeline has not
    /// trained yet. Returns a summary line.
    pub(crate) fn base(
        &mut self,
        config: &RunConfig,
        network: &BaseModelSpec<'_>,
        vocab_size: usize,
    ) -> anyhow::Result<String> {
        config.check(Stage::Base)?;
        let folder = network.tokenizer.to_owned();
        let files = folder.exists().then_some(TokenizerFiles::of(folder));
        let tokenizer = files.as_ref().map(TokenizerFiles::load).transpose()?;

        let architecture = match &tokenizer {
            Some(tokenizer) => network.config(tokenizer)?,
            None => network.with_vocabulary(vocab_size, &SpecialIds::default())?,
        };
        context::check_mesh(config, &[&architecture], self.mesh)?;
        let line = self.demonstrations(Stage::Base, config, &architecture, tokenizer.as_ref())?;
        self.add_model(config, ModelSpec { config: architecture, is_reward_model: false, tokenizer: files });
        Ok(line)
    }

    /// Checks a stage that starts from a model folder. Returns a summary line.
    pub(crate) fn stage(&mut self, stage: Stage, config: &RunConfig) -> anyhow::Result<String> {
        config.check(stage)?;
        let mut model = self.model("model.path", config.model_path(stage)?)?;
        model.tokenizer = model.tokenizer_of(stage, config)?;
        let tokenizer = model.tokenizer.as_ref().map(TokenizerFiles::load).transpose()?;
        if stage == Stage::Ppo {
            let line = self.ppo(config, tokenizer.as_ref())?;
            self.add_model(config, model);
            return Ok(line);
        }

        context::check_mesh(config, &[&model.config], self.mesh)?;
        let line = if stage == Stage::Rm {
            model.is_reward_model = true;
            self.pairs(config, &model.config, tokenizer.as_ref())?
        } else {
            model.refuse_reward_model("model.path")?;
            model.grow()?;
            self.demonstrations(stage, config, &model.config, tokenizer.as_ref())?
        };
        self.add_model(config, model);
        Ok(line)
    }

    fn ppo(&self, config: &RunConfig, tokenizer: Option<&Tokenizer>) -> anyhow::Result<String> {
        let models = PerRole::find(config, |key, name| self.model(key, name))?;
        models.policy.refuse_reward_model("model.path")?;
        models.reference.refuse_reward_model("ppo.reference_model")?;
        models.rewards.iter().try_for_each(|model| model.need_reward_model("ppo.reward_model"))?;
        if let Some(tokenizer) = tokenizer {
            models.others().iter().try_for_each(|(role, model)| model.check_tokenizer(role, tokenizer))?;
        }
        let configs = models.map(|model| Ok(model.config.clone()))?;
        context::check_mesh(config, &configs.all(), self.mesh)?;

        let Some(tokenizer) = tokenizer.filter(|_| self.have_rows(config)) else {
            self.parse::<PromptRow>(&config.data.train, &config.data)?;
            self.parse::<SftRow>(&config.data.ptx, &config.data)?;
            return Ok(deferred_line(Stage::Ppo));
        };
        let inputs = ppo::inputs(config, &configs, tokenizer)?;
        Ok(describe(Stage::Ppo, &inputs.prompts, &iterations(config)?))
    }

    fn demonstrations(
        &self,
        stage: Stage,
        config: &RunConfig,
        model: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> anyhow::Result<String> {
        let Some(tokenizer) = tokenizer.filter(|_| self.have_rows(config)) else {
            self.parse::<SftRow>(&config.data.train, &config.data)?;
            self.parse::<SftRow>(&config.data.eval, &config.data)?;
            return Ok(deferred_line(stage));
        };
        let inputs = sft::inputs(stage, config, model, tokenizer)?;
        let units = rlhf::sft::bins(&inputs.train.rows, sft::packing(config))?.len();
        Ok(describe(stage, &inputs.train, &steps(config, units)))
    }

    fn pairs(
        &self,
        config: &RunConfig,
        model: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> anyhow::Result<String> {
        let Some(tokenizer) = tokenizer.filter(|_| self.have_rows(config)) else {
            self.parse::<PreferenceRow>(&config.data.train, &config.data)?;
            self.parse::<PreferenceRow>(&config.data.eval, &config.data)?;
            return Ok(deferred_line(Stage::Rm));
        };
        let train = rm::inputs(config, model, tokenizer)?.train;
        Ok(describe(Stage::Rm, &train, &steps(config, train.rows.len())))
    }

    /// Whether all row files exist already.
    fn have_rows(&self, config: &RunConfig) -> bool {
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

    /// Parses the existing rows without tokenising them. Used when the tokenizer or some of the rows do not
    /// exist yet.
    fn parse<T: TrainingRow>(&self, files: &Names, data: &DataSection) -> anyhow::Result<()> {
        let existing: Vec<&String> = files.0.iter().filter(|file| !self.will_generate(file)).collect();
        rows::parse::<T>(&existing, data)
    }

    /// Returns the model that the setting `key` names.
    fn model(&self, key: &'static str, name: &str) -> anyhow::Result<ModelSpec> {
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
        ModelSpec::of_folder(session::folder(name)?)
    }

    fn add_model(&mut self, config: &RunConfig, model: ModelSpec) {
        self.made_models.insert(absolute(&config.out), model);
    }
}

impl ModelSpec {
    /// Describes an existing model. Also reads the headers of its weight files.
    fn of_folder(folder: PathBuf) -> anyhow::Result<Self> {
        let config = Config::from_folder(&folder)?;
        WeightFolder::open(&folder)?;
        let is_reward_model = config.is_sequence_classification();
        Ok(Self { config, is_reward_model, tokenizer: Some(TokenizerFiles::of(folder)) })
    }

    /// Returns the tokenizer of a stage that starts from this model.
    fn tokenizer_of(&self, stage: Stage, config: &RunConfig) -> anyhow::Result<Option<TokenizerFiles>> {
        let section = &config.tokenizer;
        let files = match &section.path {
            Some(path) => Some(TokenizerFiles::of(session::folder(path)?)),
            None => self.tokenizer.clone(),
        };
        let own = |files: TokenizerFiles| TokenizerFiles {
            adds_tokens: files.adds_tokens || stage == Stage::Sft,
            template: section.template.clone().or(files.template),
            folder: files.folder,
        };
        Ok(files.map(own))
    }

    /// Grows the vocabulary of the model for the tokens that the stage adds to its tokenizer.
    fn grow(&mut self) -> anyhow::Result<()> {
        let Some(files) = self.tokenizer.as_ref().filter(|files| files.adds_tokens) else { return Ok(()) };
        let prepared = session::tokenizer_to_train(&files.folder, files.template.as_deref())?;
        sft::grow(&mut self.config, &prepared.tokenizer, &prepared.added)
    }

    /// Refuses a model whose tokenizer differs from `own`, the tokenizer of the policy.
    fn check_tokenizer(&self, role: &'static str, own: &Tokenizer) -> anyhow::Result<()> {
        let Some(files) = &self.tokenizer else { return Ok(()) };
        if !files.folder.join("tokenizer.json").exists() {
            return Ok(());
        }
        Ok(ppo::check_tokenizer(own, role, &files.folder, &files.load()?)?)
    }

    fn refuse_reward_model(&self, key: &'static str) -> Result<(), ConfigError> {
        let message = "is a reward model, which has no vocabulary head: name a language model";
        self.check_head(key, false, message)
    }

    fn need_reward_model(&self, key: &'static str) -> Result<(), ConfigError> {
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
    fn of(folder: PathBuf) -> Self {
        Self { folder, template: None, adds_tokens: false }
    }

    fn load(&self) -> anyhow::Result<Tokenizer> {
        let template = self.template.as_deref();
        if self.adds_tokens {
            return Ok(session::tokenizer_to_train(&self.folder, template)?.tokenizer);
        }
        session::tokenizer(&self.folder, template)
    }
}

/// Makes a path comparable with others: absolute, without `.`. Links are not resolved, because the path may
/// not exist yet.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the summary line of a stage whose rows were read.
fn describe<T>(stage: Stage, rows: &rows::EncodedRows<T>, length: &str) -> String {
    let dropped = if rows.dropped > 0 { format!(" ({} left out)", rows.dropped) } else { String::new() };
    let count = counted(rows.rows.len() as u64, "row");
    format!("{}: {count}{dropped}, {}; {length}", stage.name(), counted(rows.tokens as u64, "token"))
}

/// Returns the summary line of a stage whose rows or tokenizer an earlier part of the pipeline makes.
fn deferred_line(stage: Stage) -> String {
    format!("{}: reads what an earlier part of the pipeline makes", stage.name())
}

fn steps(config: &RunConfig, units: usize) -> String {
    let steps = counted(config.train.total_steps(units), "step");
    format!("{steps} of {}", counted(config.train.batch_size() as u64, "row"))
}

fn iterations(config: &RunConfig) -> anyhow::Result<String> {
    let replies = counted(config.ppo.replies()? as u64, "reply");
    Ok(format!("{} of {replies}", counted(config.ppo.iterations, "iteration")))
}
