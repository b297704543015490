//! What a command that runs a model needs: a process that is ready for tensor operations, and the model with
//! its tokenizer if its folder has one.

use std::path::{Path, PathBuf};

use datasets::Tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::scalar_model::ScalarModel;
use parallel::LocalRank;

use crate::config::DeviceSetting;
use crate::config::section::Dtype;
use crate::{device, interrupt, model_folder};

/// Installs the signal handlers, and initializes this process for tensor operations.
pub(crate) fn prepare(threads: Option<usize>) -> anyhow::Result<()> {
    interrupt::listen()?;
    // `doctor` reports the settings that the C library rejects.
    parallel::launch::init_process(threads, 1)?;
    Ok(())
}

/// Which model is loaded, and how it is held.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    /// A model folder, or a hub name `owner/name[@revision]`.
    pub(crate) model: String,
    /// The type of the weights in memory.
    pub(crate) dtype: Dtype,
    /// Where the model computes.
    pub(crate) device: DeviceSetting,
    /// A built-in chat template, or Jinja source. If absent, the model's own.
    pub(crate) template: Option<String>,
}

/// How the next tokens of replies are guessed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speculation {
    /// The tokens that are guessed in a step.
    pub(crate) tokens: usize,
    /// The model that guesses. If absent, what a reply repeats is the guess.
    pub(crate) draft: Option<ModelSource>,
}

impl Speculation {
    /// Loads the model that guesses, if there is one.
    pub(crate) fn load_draft(&self) -> anyhow::Result<Option<CausalLm>> {
        self.draft.as_ref().map(|draft| Ok(Session::causal_lm(draft)?.model)).transpose()
    }
}

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

    /// The model and its tokenizer. Returns an error if the model folder has no tokenizer.
    pub(crate) fn into_parts(self) -> Result<(M, Tokenizer), datasets::Error> {
        let Self { model, tokenizer, folder } = self;
        Ok((model, tokenizer.ok_or(datasets::Error::TokenizerMissing { folder })?))
    }

    fn load(
        source: &ModelSource,
        local: LocalRank,
        load: impl FnOnce(&Path, &LoadOptions) -> Result<M, models::Error>,
        config: impl FnOnce(&M) -> &Config,
    ) -> anyhow::Result<Self> {
        let folder = model_folder::find(&source.model)?;
        device::load([source.device]);
        let device = device::resolve(source.device, local)?;
        let template = source.template.as_deref();
        let has_tokenizer = template.is_some() || folder.join("tokenizer.json").exists();
        let tokenizer = has_tokenizer.then(|| model_folder::tokenizer(&folder, template)).transpose()?;
        let model = load(&folder, &model_folder::frozen_options(source.dtype.kind(), device))?;
        if let Some(tokenizer) = &tokenizer {
            model_folder::check_vocabulary(tokenizer, config(&model))?;
        }
        Ok(Self { model, tokenizer, folder })
    }
}

impl Session<CausalLm> {
    /// Loads the language model of a source.
    pub(crate) fn causal_lm(source: &ModelSource) -> anyhow::Result<Self> {
        Self::causal_lm_on(source, LocalRank::SINGLE)
    }

    /// Loads the language model in one of several processes of this machine.
    pub(crate) fn causal_lm_on(source: &ModelSource, local: LocalRank) -> anyhow::Result<Self> {
        Self::load(source, local, CausalLm::load, CausalLm::config)
    }

    /// Uses another chat template: a built-in name, or Jinja source.
    pub(crate) fn set_template(&mut self, template: &str) -> anyhow::Result<()> {
        self.tokenizer = Some(model_folder::tokenizer(&self.folder, Some(template))?);
        Ok(())
    }

    /// The ids of the tokens that end a reply.
    pub(crate) fn stop_ids(&self) -> Vec<i64> {
        let config = self.model.config();
        self.tokenizer
            .as_ref()
            .map_or_else(|| config.eos_token_ids(), |tokenizer| model_folder::stop_ids(tokenizer, config))
    }
}

impl Session<ScalarModel> {
    /// Loads the reward model of a source.
    pub(crate) fn scalar_model(source: &ModelSource) -> anyhow::Result<Self> {
        Self::load(source, LocalRank::SINGLE, ScalarModel::load, ScalarModel::config)
    }
}
