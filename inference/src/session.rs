//! A loaded model with its tokenizer, and what a model folder says of the two together: which tokens end a
//! reply, and whether the vocabularies fit.
//!
//! It loads from a folder on this machine. Which folder and which device, the caller has decided.

use std::path::{Path, PathBuf};

use datasets::Tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::scalar_model::ScalarModel;

use crate::Error;
use crate::model_folder::{ModelFolder, Trunk};

/// A loaded model with its tokenizer.
pub struct Session<M> {
    /// The model.
    pub model: M,
    /// The tokenizer with its chat template. It is `None` if the folder has no tokenizer; input rows of token
    /// ids do not need one.
    tokenizer: Option<Tokenizer>,
    folder: PathBuf,
}

impl<M> Session<M> {
    /// Returns the tokenizer, or an error if the model folder has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, datasets::Error> {
        let missing = || datasets::Error::TokenizerMissing { folder: self.folder.clone() };
        self.tokenizer.as_ref().ok_or_else(missing)
    }

    /// Decodes token ids to text. Returns `None` without a tokenizer.
    pub fn text(&self, ids: &[i64]) -> Result<Option<String>, datasets::Error> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids, true)).transpose()
    }

    /// The model and its tokenizer. Returns an error if the model folder has no tokenizer.
    pub fn into_parts(self) -> Result<(M, Tokenizer), datasets::Error> {
        let Self { model, tokenizer, folder } = self;
        Ok((model, tokenizer.ok_or(datasets::Error::TokenizerMissing { folder })?))
    }

    fn load(
        (folder, template): (&ModelFolder, Option<&str>),
        load: impl FnOnce() -> Result<M, models::Error>,
        config: impl FnOnce(&M) -> &Config,
    ) -> Result<Self, Error> {
        let path = folder.tokenizer_path();
        let has_tokenizer = template.is_some() || path.join("tokenizer.json").exists();
        let tokenizer = has_tokenizer.then(|| load_tokenizer(path, template)).transpose()?;
        let model = load()?;
        if let Some(tokenizer) = &tokenizer {
            check_vocabulary(tokenizer, config(&model))?;
        }
        Ok(Self { model, tokenizer, folder: path.to_owned() })
    }
}

impl Session<CausalLm> {
    /// Loads the language model of a folder. `template` is a chat template as [`load_tokenizer`] takes it.
    /// Fails if the model or its tokenizer cannot be read, or if their vocabularies do not fit.
    pub fn causal_lm(
        folder: &ModelFolder,
        template: Option<&str>,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        Self::load((folder, template), || folder.causal_lm(options), CausalLm::config)
    }

    /// Like [`causal_lm`](Self::causal_lm), on weights to which the folder belongs.
    pub fn causal_lm_on(trunk: &Trunk, folder: &ModelFolder, template: Option<&str>) -> Result<Self, Error> {
        Self::load((folder, template), || trunk.causal_lm(folder, false), CausalLm::config)
    }

    /// Uses another chat template: a built-in name, or Jinja source.
    pub fn set_template(&mut self, template: &str) -> Result<(), datasets::Error> {
        self.tokenizer = Some(load_tokenizer(&self.folder, Some(template))?);
        Ok(())
    }

    /// The ids of the tokens that end a reply.
    pub fn stop_ids(&self) -> Vec<i64> {
        let config = self.model.config();
        self.tokenizer
            .as_ref()
            .map_or_else(|| config.eos_token_ids(), |tokenizer| stop_ids(tokenizer, config))
    }
}

impl Session<ScalarModel> {
    /// Loads the reward model of a folder. `template` is a chat template as [`load_tokenizer`] takes it.
    /// Fails if the model or its tokenizer cannot be read, or if their vocabularies do not fit.
    pub fn scalar_model(
        folder: &ModelFolder,
        template: Option<&str>,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        Self::load((folder, template), || folder.scalar_model(options), ScalarModel::config)
    }

    /// Like [`scalar_model`](Self::scalar_model), on weights to which the adapter of the folder belongs.
    pub fn scalar_model_on(
        trunk: &Trunk,
        folder: &ModelFolder,
        template: Option<&str>,
    ) -> Result<Self, Error> {
        Self::load((folder, template), || trunk.scalar_model(folder, None, false), ScalarModel::config)
    }
}

/// Loads the tokenizer of a folder. `template` is the name of a built-in chat template or Jinja source. If
/// absent, the tokenizer keeps its own template.
pub fn load_tokenizer(folder: &Path, template: Option<&str>) -> Result<Tokenizer, datasets::Error> {
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    match template {
        Some(source) if source.contains('{') => tokenizer.set_chat_template(source)?,
        Some(name) => tokenizer.set_built_in_template(name)?,
        None => {}
    }
    Ok(tokenizer)
}

/// The ids of the tokens that end a reply, as defined by the tokenizer, its chat template and the model:
/// ascending, and each once.
pub fn stop_ids(tokenizer: &Tokenizer, config: &Config) -> Vec<i64> {
    let mut ids = tokenizer.stop_ids().to_vec();
    ids.extend(config.eos_token_ids());
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Refuses a tokenizer whose vocabulary is larger than the model's.
pub fn check_vocabulary(tokenizer: &Tokenizer, config: &Config) -> Result<(), models::Error> {
    config.check_vocabulary("its tokenizer", tokenizer.vocab_size() as i64)
}
