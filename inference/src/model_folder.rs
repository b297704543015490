//! The folder of a model: a whole model, or an adapter with the model that it belongs to.

use std::path::{Path, PathBuf};

use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::lora::AdapterFolder;
use models::lora::folder::ADAPTER_WEIGHTS;
use models::scalar_model::ScalarModel;
use models::weights::WeightFolder;

use crate::Error;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolder {
    path: PathBuf,
    base: Option<PathBuf>,
}

impl ModelFolder {
    /// The model of a folder. If it holds an adapter, the model that its `adapter_config.json` names is found
    /// too: a folder, or a hub name, which is downloaded if needed.
    pub fn open(path: PathBuf) -> Result<Self, Error> {
        if !AdapterFolder::is_one(&path) {
            return Ok(Self { path, base: None });
        }
        let adapter = AdapterFolder::open(&path)?;
        let refuse = |value: String, fix: &str| models::Error::Unsupported {
            path: path.join("adapter_config.json").display().to_string(),
            key: "base_model_name_or_path".to_owned(),
            value,
            fix: fix.to_owned(),
        };
        let Some(name) = &adapter.file().base else {
            let fix = "name the folder or the hub name of the model that the adapter was trained on";
            return Err(refuse("nothing".to_owned(), fix).into());
        };
        let named = match &adapter.file().revision {
            Some(revision) if !Path::new(name).is_dir() => format!("{name}@{revision}"),
            _ => name.clone(),
        };
        let base = datasets::hub::resolve(&named)
            .map_err(|source| Error::AdapterBase { adapter: path.clone(), source })?;
        if AdapterFolder::is_one(&base) {
            let fix = "this is an adapter itself: merge it into its model, and name that one";
            return Err(refuse(format!("{name:?}"), fix).into());
        }
        Ok(Self { path, base: Some(base) })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the model that the adapter belongs to; `None` for a whole model.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// The configuration of the model.
    pub fn config(&self) -> Result<Config, models::Error> {
        match &self.base {
            None => Config::from_folder(&self.path),
            Some(base) => AdapterFolder::open(&self.path)?.config(base),
        }
    }

    /// The folder that has the tokenizer: that of an adapter may have none of its own.
    pub fn tokenizer_path(&self) -> &Path {
        match &self.base {
            Some(base) if !self.path.join("tokenizer.json").exists() => base,
            _ => &self.path,
        }
    }

    /// The files with the weights.
    pub fn weight_paths(&self) -> Result<Vec<PathBuf>, models::Error> {
        let Some(base) = &self.base else { return WeightFolder::paths(&self.path) };
        let mut paths = WeightFolder::paths(base)?;
        paths.push(self.path.join(ADAPTER_WEIGHTS));
        Ok(paths)
    }

    /// Checks the headers of the weight files.
    pub fn check_weights(&self) -> Result<(), models::Error> {
        let Some(base) = &self.base else { return WeightFolder::open(&self.path).map(drop) };
        WeightFolder::open(base)?;
        AdapterFolder::open(&self.path).map(drop)
    }

    /// Loads the language model. Of an adapter, `options` say whether it is trained; its base is frozen.
    pub fn causal_lm(&self, options: &LoadOptions) -> Result<CausalLm, models::Error> {
        let Some(base) = &self.base else { return CausalLm::load(&self.path, options) };
        self.trunk(base, options)?.with_adapter(&mut AdapterFolder::open(&self.path)?, options.trainable)
    }

    /// Loads the reward model, as [`causal_lm`](Self::causal_lm) loads a language model.
    pub fn scalar_model(&self, options: &LoadOptions) -> Result<ScalarModel, models::Error> {
        let Some(base) = &self.base else { return ScalarModel::load(&self.path, options) };
        let mut adapter = AdapterFolder::open(&self.path)?;
        ScalarModel::with_adapter(&self.trunk(base, options)?, &mut adapter, None, options.trainable)
    }

    /// The model that the adapter belongs to, with the vocabulary that the adapter was trained with.
    fn trunk(&self, base: &Path, options: &LoadOptions) -> Result<CausalLm, models::Error> {
        let vocab_size = self.config()?.vocab_size();
        CausalLm::load_resized(base, vocab_size, &LoadOptions { trainable: false, ..options.clone() })
    }
}
