//! From the name of a model to its folder, its tokenizer and its weights: the one place where commands load something.

use std::path::{Path, PathBuf};

use datasets::Tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::model_parallel::ModelParallel;
use models::scalar_model::ScalarModel;
use serde_json::json;
use tch::{Device, Kind};

use crate::args::ModelArgs;
use crate::command::print_stderr;
use crate::config::{ConfigError, Stage};
use crate::output;

/// A model, and the tokenizer that belongs to it.
pub(crate) struct Session<M> {
    /// The model.
    pub(crate) model: M,
    /// The tokenizer with its chat template; `None` where the folder has none, which is enough for rows of
    /// ids.
    tokenizer: Option<Tokenizer>,
    folder: PathBuf,
}

impl<M> Session<M> {
    /// The tokenizer, which text needs.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, datasets::Error> {
        let missing = || datasets::Error::TokenizerMissing { folder: self.folder.clone() };
        self.tokenizer.as_ref().ok_or_else(missing)
    }

    /// The text of ids; `None` without a tokenizer.
    pub(crate) fn text(&self, ids: &[i64]) -> Result<Option<String>, datasets::Error> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids, true)).transpose()
    }

    fn load(
        arguments: &ModelArgs,
        load: impl FnOnce(&Path) -> Result<M, models::Error>,
        config: impl FnOnce(&M) -> &Config,
    ) -> anyhow::Result<Self> {
        let folder = folder(&arguments.model)?;
        let template = arguments.template.as_deref();
        let has_tokenizer = template.is_some() || folder.join("tokenizer.json").exists();
        let tokenizer = has_tokenizer.then(|| tokenizer(&folder, template)).transpose()?;
        let model = load(&folder)?;
        if let Some(tokenizer) = &tokenizer {
            check_vocabulary(tokenizer, config(&model))?;
        }
        Ok(Self { model, tokenizer, folder })
    }
}

impl Session<CausalLm> {
    /// Loads a language model as the arguments say.
    pub(crate) fn causal_lm(arguments: &ModelArgs) -> anyhow::Result<Self> {
        let load = |folder: &Path| CausalLm::load(folder, &frozen_options(arguments.dtype.kind()));
        Self::load(arguments, load, CausalLm::config)
    }

    /// The tokens that end a reply.
    pub(crate) fn stop_ids(&self) -> Vec<i64> {
        let config = self.model.config();
        self.tokenizer
            .as_ref()
            .map_or_else(|| config.eos_token_ids(), |tokenizer| stop_ids(tokenizer, config))
    }
}

/// The tokens that end a reply: those of the tokenizer and of its template, and those of the model.
pub(crate) fn stop_ids(tokenizer: &Tokenizer, config: &Config) -> Vec<i64> {
    let mut ids = tokenizer.stop_ids().to_vec();
    ids.extend(config.eos_token_ids());
    ids.sort_unstable();
    ids.dedup();
    ids
}

impl Session<ScalarModel> {
    /// Loads a reward model as the arguments say.
    pub(crate) fn scalar_model(arguments: &ModelArgs) -> anyhow::Result<Self> {
        let load = |folder: &Path| ScalarModel::load(folder, &frozen_options(arguments.dtype.kind()));
        Self::load(arguments, load, ScalarModel::config)
    }
}

/// The folder of a model: a local one, or one of the hub, fetched into the cache if need be. The folder of a
/// run stands for the model that it made, `final/`.
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

/// Why the folder of a run or of a pipeline stands for no model, and which folder to give instead.
fn no_model_message(folder: &Path) -> String {
    let made = Stage::ALL.iter().map(|stage| folder.join(stage.name()).join("final"));
    let made: Vec<String> =
        made.filter(|made| made.is_dir()).map(|made| made.display().to_string()).collect();
    if made.is_empty() {
        return "this is the folder of a run that has not finished: go on with --resume, or give one of its \
                checkpoints"
            .to_owned();
    }
    format!("this is the folder of a pipeline: give one of its models, {}", made.join(", "))
}

/// The tokenizer of a folder. `template` is the name of a built-in chat template, or Jinja source; absent: the folder's own.
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
    /// Tokens that were added to it, for which the model needs embeddings.
    pub(crate) added: Vec<&'static str>,
}

/// As [`tokenizer`], for supervised fine-tuning: the template `chatml` adds its tokens where they are
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

/// Refuses a tokenizer that has more ids than the model.
pub(crate) fn check_vocabulary(tokenizer: &Tokenizer, config: &Config) -> anyhow::Result<()> {
    Ok(config.check_vocabulary("its tokenizer", tokenizer.vocab_size() as i64)?)
}

/// Writes what a language model's folder holds beside the model: the tokenizer, and the ids at which `transformers` ends a
/// reply as this program does.
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

/// Weights on the CPU without gradients.
pub(crate) fn frozen_options(kind: Kind) -> LoadOptions {
    LoadOptions { kind, device: Device::Cpu, trainable: false, model_parallel: ModelParallel::NONE }
}
