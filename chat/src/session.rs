//! From the name of a model to its folder, its tokenizer and its weights: the one place where commands load something.

use std::path::{Path, PathBuf};

use datasets::Tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::scalar_model::ScalarModel;
use models::split::Split;
use serde_json::json;
use tch::{Device, Kind};

use crate::args::ModelArgs;
use crate::output;

/// A tokenizer and the model that it belongs to.
pub(crate) struct Session<M> {
    /// The tokenizer with its chat template.
    pub(crate) tokenizer: Tokenizer,
    /// The model.
    pub(crate) model: M,
}

impl Session<CausalLm> {
    /// Loads a language model as the arguments say.
    pub(crate) fn causal_lm(arguments: &ModelArgs) -> anyhow::Result<Self> {
        let folder = folder(&arguments.model)?;
        let tokenizer = tokenizer(&folder, arguments.template.as_deref())?;
        let model = CausalLm::load(&folder, &frozen(arguments.dtype.kind()))?;
        check_vocabulary(&tokenizer, model.config())?;
        Ok(Self { tokenizer, model })
    }

    /// The tokens that end a reply.
    pub(crate) fn stop_ids(&self) -> Vec<i64> {
        stop_ids(&self.tokenizer, self.model.config())
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
        let folder = folder(&arguments.model)?;
        let tokenizer = tokenizer(&folder, arguments.template.as_deref())?;
        let model = ScalarModel::load(&folder, &frozen(arguments.dtype.kind()))?;
        check_vocabulary(&tokenizer, model.config())?;
        Ok(Self { tokenizer, model })
    }
}

/// The folder of a model: a local one, or one of the hub, fetched into the cache if need be.
pub(crate) fn folder(model: &str) -> anyhow::Result<PathBuf> {
    Ok(datasets::hub::resolve(model)?)
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

/// Refuses a tokenizer that has more ids than the model.
pub(crate) fn check_vocabulary(tokenizer: &Tokenizer, config: &Config) -> anyhow::Result<()> {
    Ok(config.check_vocabulary("its tokenizer", tokenizer.vocab_size() as i64)?)
}

/// Writes what a language model's folder holds beside the model: the tokenizer, and the ids at which `transformers` ends a
/// reply as this program does.
pub(crate) fn save_companions(
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
    output::write_whole(&folder.join("generation_config.json"), format!("{generation:#}\n").as_bytes())
}

/// Weights on the CPU without gradients.
pub(crate) fn frozen(kind: Kind) -> LoadOptions {
    LoadOptions { kind, device: Device::Cpu, trainable: false, split: Split::WHOLE }
}
