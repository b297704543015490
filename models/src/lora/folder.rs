//! Adapters on disk, as PEFT writes and reads them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A tensor is called `base_model.model.` and then what the module is called in the model's own checkpoint:
//! `...q_proj.lora_A.weight` `[r, in]`, `...q_proj.lora_B.weight` `[out, r]`,
//! `...q_proj.lora_magnitude_vector` `[out]`, and `....weight` of a module that was trained whole. A trained
//! bias is called `...q_proj.base_layer.bias` if its layer has an adapter, otherwise `....bias`. The rows of
//! single tokens are called `...embed_tokens.token_adapter.trainable_tokens_delta` `[n, H]`, the matrices of
//! an adapter of the embedding `...embed_tokens.lora_embedding_A` `[r, V]` and `....lora_embedding_B`
//! `[H, r]`. The metadata of the file have the hash of the weights that the adapter was trained on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::residency::Residency;
use parallel::safetensors_file::{self, NamedTensor, WriteRole};
use parallel::{Parameter, Placement};
use tch::Kind;

use super::config::{ADAPTER_CONFIG, AdapterFile};
use super::plan::LoraPlan;
use crate::Error;
use crate::builder::SCORE_WEIGHT;
use crate::config::Config;
use crate::weights::{TensorReader, WeightFolder};

/// The file of the weights in an adapter folder.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the names of modules.
const PREFIX: &str = "base_model.model.";

/// The key of the metadata that has the hash of the base's weights.
const BASE_HASH: &str = "colossal_chat.base_hash";

/// A folder with an adapter.
#[derive(Debug)]
pub struct AdapterFolder {
    path: PathBuf,
    plan: Arc<LoraPlan>,
    weights: WeightFolder,
}

impl AdapterFolder {
    /// Opens a folder and checks its settings and the header of its weights.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = AdapterFile::from_folder(path)?;
        let weights = WeightFolder::open_file(path, ADAPTER_WEIGHTS)?;
        let file = AdapterFile { base_hash: weights.metadata(BASE_HASH).map(str::to_owned), ..file };
        let plan = Arc::new(file.plan(&path.join(ADAPTER_CONFIG).display().to_string())?);
        Ok(Self { path: path.to_owned(), plan, weights })
    }

    /// Opens a folder with an adapter of the model in the folder `base`. An adapter that PEFT has written
    /// does not say which weights it belongs to; what is saved of it from here on does.
    pub fn open_on(path: &Path, base: &Path) -> Result<Self, Error> {
        let mut folder = Self::open(path)?;
        let got = WeightFolder::open(base)?.content_hash()?;
        if let Some(expected) = folder.file().base_hash.clone().filter(|expected| *expected != got) {
            let (path, base) = (path.join(ADAPTER_WEIGHTS), base.to_owned());
            return Err(Error::OtherBase { path, base, expected, got });
        }
        Arc::make_mut(&mut folder.plan).set_base_hash(got);
        Ok(folder)
    }

    /// Whether a folder holds an adapter, and not a model.
    pub fn is_one(path: &Path) -> bool {
        path.join(ADAPTER_CONFIG).is_file()
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The settings.
    pub fn file(&self) -> &AdapterFile {
        self.plan.file()
    }

    /// The compiled settings.
    pub fn plan(&self) -> &Arc<LoraPlan> {
        &self.plan
    }

    /// The configuration of the model with this adapter: the folder's own, or that of its base with the head
    /// that the adapter has. How weights are held, that of the base says.
    pub fn config(&self, base: &Path) -> Result<Config, Error> {
        let base = Config::from_folder(base)?;
        let own = if self.path.join("config.json").exists() {
            Config::from_folder(&self.path)?
        } else if self.has(SCORE_WEIGHT) {
            base.for_sequence_classification(Kind::Float)
        } else {
            return Ok(base);
        };
        Ok(own.held_as(&base))
    }

    /// Whether the folder has values for a parameter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{PREFIX}{name}"))
    }

    /// A reader of this rank's shard of a parameter, whose full shape is `shape`.
    pub(crate) fn reader(
        &mut self,
        name: &str,
        shape: &[i64],
        placement: &Placement,
    ) -> Result<TensorReader, Error> {
        self.weights.reader(&spellings(name), shape, placement)
    }

    /// Checks that the folder has values for a parameter, which another rank holds.
    pub(crate) fn mark_remote(&mut self, name: &str) -> Result<(), Error> {
        self.weights.mark_remote(&spellings(name))
    }

    /// Returns an error for a tensor that belongs to no module of the model. `unused_head` is the vocabulary
    /// head of the language model that the adapter was trained on, if this model does not have it.
    pub(crate) fn check_all_used(&self, unused_head: Option<&str>) -> Result<(), Error> {
        // With `bias = "all"`, PEFT adds the biases in the two modules in which it wraps one of
        // `modules_to_save`.
        const WRAPPED: [&str; 2] = ["original_module", "modules_to_save"];
        let is_wrapped = |name: &str| {
            let module = name.strip_suffix(".bias");
            module.is_some_and(|module| module.split('.').any(|part| WRAPPED.contains(&part)))
        };
        let is_of_head = |name: &str| {
            let module = name.strip_prefix(PREFIX).zip(unused_head);
            module.is_some_and(|(module, head)| module.starts_with(&format!("{head}.")))
        };
        self.weights.check_all_used(|name| is_of_head(name) || is_wrapped(name))
    }
}

/// The settings of an adapter that is saved.
pub(crate) struct AdapterSettings<'a> {
    /// The configuration of the model.
    pub(crate) config: &'a Config,
    /// The text of `adapter_config.json`.
    pub(crate) text: &'a str,
    /// The hash of the weights that the adapter was trained on.
    pub(crate) base_hash: Option<&'a str>,
}

/// The parameters of a model with an adapter.
pub(crate) struct AdapterParameters<'a> {
    /// All of this rank's parameters.
    pub(crate) all: &'a [Parameter],
    /// The indices of those that belong to the adapter.
    pub(crate) own: Vec<usize>,
    /// The linear layers that have an adapter, on whichever rank.
    pub(crate) adapted: &'a [String],
    pub(crate) residency: Option<&'a dyn Residency>,
}

/// Writes an adapter, and of its trunk only the configuration. Every rank of `pipeline_expert_group`, which
/// together holds all parameters, calls it; its first rank writes, in replica 0 of the model.
pub(crate) fn save(
    folder: &Path,
    settings: &AdapterSettings<'_>,
    AdapterParameters { all, own, adapted, residency }: AdapterParameters<'_>,
    replica: usize,
    pipeline_expert_group: &ProcessGroup,
) -> Result<(), Error> {
    let names: Vec<String> = own.iter().map(|&index| name_in_file(&all[index].name, adapted)).collect();
    let tensors: Vec<NamedTensor<'_>> = own
        .iter()
        .zip(&names)
        .map(|(&index, name)| NamedTensor {
            name,
            ..NamedTensor::of(&all[index], residency.map(|residency| (residency, index)))
        })
        .collect();

    let placements = all.iter().map(|parameter| &parameter.placement);
    let role = safetensors_file::write_role(placements, replica, pipeline_expert_group)?;
    let writes = role == WriteRole::Writes && pipeline_expert_group.rank() == 0;
    if writes {
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    }
    let metadata: Vec<(&str, &str)> = settings.base_hash.iter().map(|hash| (BASE_HASH, *hash)).collect();
    let path = folder.join(ADAPTER_WEIGHTS);
    safetensors_file::write(&path, &tensors, &metadata, role, pipeline_expert_group)?;
    if writes {
        safetensors_file::write_bytes(&folder.join("config.json"), settings.config.to_json().as_bytes())?;
        safetensors_file::write_bytes(&folder.join(ADAPTER_CONFIG), settings.text.as_bytes())?;
    }
    Ok(())
}

/// The names that a file may give to a parameter.
fn spellings(name: &str) -> Vec<String> {
    std::iter::once(format!("{PREFIX}{name}")).chain(name.strip_suffix(".bias").map(base_bias)).collect()
}

/// The name of a parameter in the file of a model whose linear layers `adapted` have an adapter.
fn name_in_file(name: &str, adapted: &[String]) -> String {
    let module = name.strip_suffix(".bias").filter(|module| adapted.iter().any(|other| other == module));
    module.map_or_else(|| format!("{PREFIX}{name}"), base_bias)
}

/// The name of the bias of an adapted layer, in which PEFT wraps the layer of the model.
fn base_bias(module: &str) -> String {
    format!("{PREFIX}{module}.base_layer.bias")
}
