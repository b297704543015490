//! The folder of a model: a whole model, or an adapter with the model that it belongs to. In memory, a model
//! is a trunk, with an adapter on it or without one, and all models on one trunk share its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::lora::folder::ADAPTER_WEIGHTS;
use models::lora::{AdapterFolder, LoraPlan};
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
    /// too: a folder, or a hub name, which is downloaded if needed. It has to have the weights that the
    /// adapter was trained on.
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
        // Other weights than its own are refused here, before any of them are read.
        AdapterFolder::open_on(&path, &base)?;
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

    /// The whole path of the folder with the weights that an adapter leaves as they are: that of its base, or
    /// of a whole model itself. Two names of one folder have the same.
    pub fn trunk_path(&self) -> PathBuf {
        let folder = self.base().unwrap_or(&self.path);
        folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
    }

    /// Whether this is an adapter of the whole model `base`.
    pub fn is_adapter_of(&self, base: &Self) -> bool {
        self.base.is_some() && base.base.is_none() && self.trunk_path() == base.trunk_path()
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
        if self.base.is_none() {
            return CausalLm::load(&self.path, options);
        }
        Trunk::load(self, options)?.causal_lm(self, options.trainable)
    }

    /// Loads the reward model, as [`causal_lm`](Self::causal_lm) loads a language model.
    pub fn scalar_model(&self, options: &LoadOptions) -> Result<ScalarModel, models::Error> {
        if self.base.is_none() {
            return ScalarModel::load(&self.path, options);
        }
        Trunk::load(self, options)?.scalar_model(self, None, options.trainable)
    }

    /// Loads a language model as a reward model whose scalar head is new. The values of the head depend only
    /// on the seed.
    pub fn new_scalar_model(&self, seed: u64, options: &LoadOptions) -> Result<ScalarModel, models::Error> {
        if self.base.is_none() {
            return ScalarModel::from_causal_lm(&self.path, seed, options);
        }
        Trunk::load(self, options)?.scalar_model(self, Some(seed), options.trainable)
    }
}

/// The frozen weights of a language model in memory, which it shares with the adapters of it.
#[derive(Debug)]
pub struct Trunk {
    path: PathBuf,
    model: CausalLm,
}

impl Trunk {
    /// Loads the weights of a folder: of an adapter those of its base, with the vocabulary that the adapter
    /// was trained with.
    pub fn load(folder: &ModelFolder, options: &LoadOptions) -> Result<Self, models::Error> {
        let options = LoadOptions { trainable: false, ..options.clone() };
        let model = match folder.base() {
            None => CausalLm::load(&folder.path, &options)?,
            Some(base) => CausalLm::load_resized(base, folder.config()?.vocab_size(), &options)?,
        };
        Ok(Self { path: folder.trunk_path(), model })
    }

    /// Whether the model of `folder` is made of these weights: it is this model or an adapter of it, with the
    /// same vocabulary.
    pub fn holds(&self, folder: &ModelFolder) -> Result<bool, models::Error> {
        Ok(folder.trunk_path() == self.path
            && folder.config()?.vocab_size() == self.model.config().vocab_size())
    }

    /// The language model of a folder that belongs to these weights: they themselves, or with its adapter.
    pub fn causal_lm(&self, folder: &ModelFolder, trainable: bool) -> Result<CausalLm, models::Error> {
        if folder.base.is_none() {
            return self.model.share();
        }
        self.model.with_adapter(&mut AdapterFolder::open_on(&folder.path, &self.path)?, trainable)
    }

    /// The reward model of an adapter folder that belongs to these weights. With `score_seed`, its scalar
    /// head is new, and its values depend only on the seed.
    pub fn scalar_model(
        &self,
        folder: &ModelFolder,
        score_seed: Option<u64>,
        trainable: bool,
    ) -> Result<ScalarModel, models::Error> {
        let mut adapter = AdapterFolder::open_on(&folder.path, &self.path)?;
        ScalarModel::with_adapter(&self.model, &mut adapter, score_seed, trainable)
    }

    /// A new adapter on these weights, as [`CausalLm::with_new_adapter`] makes it.
    pub fn with_new_adapter(&self, lora: &Arc<LoraPlan>, seed: u64) -> Result<CausalLm, models::Error> {
        self.model.with_new_adapter(lora, seed, true)
    }
}
