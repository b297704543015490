//! Adapters on disk, as PEFT writes and reads them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A tensor is called `base_model.model.` and then what the module is called in the model's own checkpoint:
//! `...q_proj.lora_A.weight` `[r, in]`, `...q_proj.lora_B.weight` `[out, r]`,
//! `...q_proj.lora_magnitude_vector` `[out]`, and `....weight` of a module that was trained whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::Segmented;
use parallel::comm::ProcessGroup;
use parallel::safetensors_file::{self, NamedTensor, WriteRole};
use tch::{Kind, Tensor};

use super::LoraPlan;
use super::config::{ADAPTER_CONFIG, AdapterFile};
use crate::Error;
use crate::builder::ParameterRequest;
use crate::decoder::load::Values;
use crate::decoder::{Decoder, HeadKind, LoraModel};
use crate::weights::WeightFolder;

/// The file of the weights in an adapter folder.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the names of modules.
const PREFIX: &str = "base_model.model.";

/// A folder with an adapter.
#[derive(Debug)]
pub struct AdapterFolder {
    path: PathBuf,
    file: AdapterFile,
    plan: Arc<LoraPlan>,
    weights: WeightFolder,
}

impl AdapterFolder {
    /// Opens a folder and checks its settings and the header of its weights.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = AdapterFile::from_folder(path)?;
        let plan = Arc::new(file.plan(&path.join(ADAPTER_CONFIG).display().to_string())?);
        let weights = WeightFolder::open_file(path, ADAPTER_WEIGHTS)?;
        Ok(Self { path: path.to_owned(), file, plan, weights })
    }

    /// Whether a folder holds an adapter, and not a model.
    pub fn is_one(path: &Path) -> bool {
        path.join(ADAPTER_CONFIG).is_file()
    }

    /// The settings.
    pub fn file(&self) -> &AdapterFile {
        &self.file
    }

    /// The compiled settings.
    pub fn plan(&self) -> &Arc<LoraPlan> {
        &self.plan
    }

    /// Whether the folder has values for a parameter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.has(&format!("{PREFIX}{name}"))
    }

    /// The values of a requested parameter.
    pub(crate) fn values(&mut self, request: &ParameterRequest<'_>) -> Result<Values, Error> {
        let names = [format!("{PREFIX}{}", request.name)];
        if !request.is_local {
            self.weights.mark_remote(&names)?;
            return Ok(Values::Tensor(Tensor::empty([0], (Kind::Float, tch::Device::Cpu))));
        }
        let reader = self.weights.reader(&names, request.shape, request.placement)?;
        Ok(Values::file(reader, &self.path, request))
    }

    /// Returns an error for a tensor that belongs to no module of the model.
    pub(crate) fn check_all_used(&self) -> Result<(), Error> {
        self.weights.check_all_used(|_| false)
    }
}

/// Writes the adapter of a decoder, and nothing of its trunk. Every rank that holds a shard of the model calls
/// it.
pub(crate) fn save(folder: &Path, decoder: &Decoder, head: HeadKind, lora: &LoraModel) -> Result<(), Error> {
    let own = decoder.own_parameters();
    let names: Vec<String> =
        own.iter().map(|&index| format!("{PREFIX}{}", decoder.parameters()[index].name)).collect();
    let residency = decoder.residency();
    let tensors: Vec<NamedTensor<'_>> = own
        .iter()
        .zip(&names)
        .map(|(&index, name)| NamedTensor {
            name,
            ..NamedTensor::of(&decoder.parameters()[index], residency.map(|residency| (residency, index)))
        })
        .collect();

    let alone = ProcessGroup::single("pipeline-expert", 0);
    let model_parallel = decoder.model_parallel();
    let group = model_parallel.pipeline_expert_group.as_deref().unwrap_or(&alone);
    let placements = decoder.parameters().iter().map(|parameter| &parameter.placement);
    let role = safetensors_file::write_role(placements, model_parallel.replica, group)?;
    let writes = role == WriteRole::Writes && group.rank() == 0;
    if writes {
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    }
    safetensors_file::write(&folder.join(ADAPTER_WEIGHTS), &tensors, role, group)?;
    if writes {
        let architecture = decoder.config().architecture();
        let file = lora.plan.file(&lora.adapted, architecture.names.layers);
        let text = file.to_json(head == HeadKind::Scalar, architecture.is_conv1d);
        safetensors_file::write_bytes(&folder.join(ADAPTER_CONFIG), text.as_bytes())?;
    }
    Ok(())
}
