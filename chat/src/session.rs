//! Resolves the name of a model to its folder, and loads its tokenizer and weights for the commands.

use std::path::{Path, PathBuf};

use datasets::Tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::model_parallel::ModelParallel;
use models::scalar_model::ScalarModel;
use parallel::LocalRank;
use serde_json::json;
use tch::{Device, Kind};

use crate::args::ModelArgs;
use crate::config::{ConfigError, Stage};
use crate::console::print_stderr;
use crate::{device, output};

/// A loaded model with its tokenizer.
pub(crate) struct Session<M> {
    /// The model.
    pub(crate) model: M,
    /// The tokenizer with its chat template. It is `None` if the folder has no tokenizer; input rows of token
    /// ids do not need one.
    tokenizer: Option<Tokenizer>,
    folder: PathBuf,
}

impl<M> Session<M> {
    /// Returns the tokenizer, or an error if the model folder has none.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, datasets::Error> {
        let missing = || datasets::Error::TokenizerMissing { folder: self.folder.clone() };
        self.tokenizer.as_ref().ok_or_else(missing)
    }

    /// Decodes token ids to text. Returns `None` without a tokenizer.
    pub(crate) fn text(&self, ids: &[i64]) -> Result<Option<String>, datasets::Error> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids, true)).transpose()
    }

    fn load(
        arguments: &ModelArgs,
        load: impl FnOnce(&Path, &LoadOptions) -> Result<M, models::Error>,
        config: impl FnOnce(&M) -> &Config,
    ) -> anyhow::Result<Self> {
        let folder = folder(&arguments.model)?;
        device::load([arguments.device]);
        let device = device::resolve(arguments.device, LocalRank::SINGLE)?;
        let template = arguments.template.as_deref();
        let has_tokenizer = template.is_some() || folder.join("tokenizer.json").exists();
        let tokenizer = has_tokenizer.then(|| tokenizer(&folder, template)).transpose()?;
        let model = load(&folder, &frozen_options(arguments.dtype.kind(), device))?;
        if let Some(tokenizer) = &tokenizer {
            check_vocabulary(tokenizer, config(&model))?;
        }
        Ok(Self { model, tokenizer, folder })
    }
}

impl Session<CausalLm> {
    /// Loads the language model that the arguments specify.
    pub(crate) fn causal_lm(arguments: &ModelArgs) -> anyhow::Result<Self> {
        Self::load(arguments, CausalLm::load, CausalLm::config)
    }

    /// The ids of the tokens that end a reply.
    pub(crate) fn stop_ids(&self) -> Vec<i64> {
        let config = self.model.config();
        self.tokenizer
            .as_ref()
            .map_or_else(|| config.eos_token_ids(), |tokenizer| stop_ids(tokenizer, config))
    }
}

/// The ids of the tokens that end a reply, as defined by the tokenizer, its chat template and the model.
pub(crate) fn stop_ids(tokenizer: &Tokenizer, config: &Config) -> Vec<i64> {
    let mut ids = tokenizer.stop_ids().to_vec();
    ids.extend(config.eos_token_ids());
    ids.sort_unstable();
    ids.dedup();
    ids
}

impl Session<ScalarModel> {
    /// Loads the reward model that the arguments specify.
    pub(crate) fn scalar_model(arguments: &ModelArgs) -> anyhow::Result<Self> {
        Self::load(arguments, ScalarModel::load, ScalarModel::config)
    }
}

/// The folder of a model: a local folder, or the cached copy of a hub model, which is downloaded if needed.
/// For the folder of a run, this is the folder of its trained model, `final/`.
pub(crate) fn folder(model: &str) -> anyhow::Result<PathBuf> {
    let folder = datasets::hub::resolve(model)?;
    if folder.join("config.json").exists() || !folder.join("run.toml").exists() {
        return Ok(folder);
    }
    let made = folder.join("final");
    if !made.is_dir() {
        let argument = folder.display().to_string();
        return Err(ConfigError::Argument { argument, problem: no_model_message(&folder) }.into());
    }
    print_stderr(&format!("{}: the folder of a run; its model is {}", folder.display(), made.display()));
    Ok(made)
}

/// The error message for the folder of a run or pipeline that has no model of its own. It names the folders
/// to use instead.
fn no_model_message(folder: &Path) -> String {
    let made = Stage::ALL.iter().map(|stage| folder.join(stage.name()).join("final"));
    let made: Vec<String> =
        made.filter(|made| made.is_dir()).map(|made| made.display().to_string()).collect();
    if made.is_empty() {
        return "this is the folder of a run that has not finished: continue it with --resume, or give one of \
                its checkpoints"
            .to_owned();
    }
    format!("this is the folder of a pipeline: give one of its models, {}", made.join(", "))
}

/// Loads the tokenizer of a folder. `template` is the name of a built-in chat template or Jinja source. If
/// absent, the tokenizer keeps its own template.
pub(crate) fn tokenizer(folder: &Path, template: Option<&str>) -> anyhow::Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    match template {
        Some(source) if source.contains('{') => tokenizer.set_chat_template(source)?,
        Some(name) => tokenizer.set_built_in_template(name)?,
        None => {}
    }
    Ok(tokenizer)
}

/// A tokenizer for a model that is about to be trained.
pub(crate) struct TokenizerToTrain {
    /// The tokenizer.
    pub(crate) tokenizer: Tokenizer,
    /// The tokens that were added to the tokenizer. The model needs embeddings for them.
    pub(crate) added: Vec<&'static str>,
}

/// Like [`tokenizer`], for supervised fine-tuning: the template `chatml` adds its turn tokens if they are
/// missing.
pub(crate) fn tokenizer_to_train(folder: &Path, template: Option<&str>) -> anyhow::Result<TokenizerToTrain> {
    if template != Some("chatml") {
        return Ok(TokenizerToTrain { tokenizer: tokenizer(folder, template)?, added: Vec::new() });
    }
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    let added = tokenizer.add_turn_tokens();
    tokenizer.set_built_in_template("chatml")?;
    Ok(TokenizerToTrain { tokenizer, added })
}

/// Refuses a tokenizer whose vocabulary is larger than the model's.
pub(crate) fn check_vocabulary(tokenizer: &Tokenizer, config: &Config) -> anyhow::Result<()> {
    Ok(config.check_vocabulary("its tokenizer", tokenizer.vocab_size() as i64)?)
}

/// Writes the files that accompany a language model: the tokenizer, and a `generation_config.json` with which
/// `transformers` ends a reply at the same token ids as this program.
pub(crate) fn save_tokenizer(
    folder: &Path,
    tokenizer: &Tokenizer,
    config: &Config,
) -> Result<(), rlhf::Error> {
    tokenizer.save(folder)?;
    let generation = json!({
        "bos_token_id": tokenizer.bos_id(),
        "eos_token_id": stop_ids(tokenizer, config),
        "pad_token_id": tokenizer.pad_id(),
    });
    output::write_atomically(&folder.join("generation_config.json"), format!("{generation:#}\n").as_bytes())
}

/// The options for loading frozen weights.
pub(crate) fn frozen_options(kind: Kind, device: Device) -> LoadOptions {
    LoadOptions { kind, device, trainable: false, model_parallel: ModelParallel::NONE }
}
