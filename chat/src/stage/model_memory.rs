//! What the models of a stage need in each process, from their configurations alone: before anything is
//! loaded, and for any number of processes.

use std::sync::Arc;

use gemini::StateBytes;
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::decoder::load::{own_weight_specs, weight_specs};
use models::decoder::{DecoderSpec, HeadKind};
use models::lora::LoraPlan;
use models::model_parallel::ModelParallel;
use models::quantize::Quantization;
use parallel::residency::WeightSpec;
use parallel::{Axis, Mesh, ProcessGroups};
use serde::Serialize;
use tch::{Device, Kind};

use super::model_parallel::model_parallel;
use crate::config::RunConfig;

/// A model of a stage.
#[derive(Clone, Copy)]
pub(crate) struct PlannedModel<'a> {
    pub(crate) role: &'static str,
    /// The adapters that are trained in place of the model.
    pub(crate) lora: Option<&'a Arc<LoraPlan>>,
    /// Whether its frozen weights are held as `[model] quantize` says, if its files do not hold codes.
    pub(crate) is_quantized: bool,
    /// Whether another of the models holds the weights that the adapters belong to.
    pub(crate) shares_trunk: bool,
    pub(crate) config: &'a Config,
    pub(crate) head: HeadKind,
    pub(crate) kind: Kind,
    pub(crate) is_trained: bool,
}

impl<'a> PlannedModel<'a> {
    /// A model that is trained whole.
    pub(crate) fn trained(role: &'static str, config: &'a Config, head: HeadKind, kind: Kind) -> Self {
        Self {
            role,
            lora: None,
            is_quantized: false,
            shares_trunk: false,
            config,
            head,
            kind,
            is_trained: true,
        }
    }

    /// The same model with adapters that are trained in its place, if there are any.
    pub(crate) fn with_adapter(self, lora: Option<&'a Arc<LoraPlan>>) -> Self {
        Self { lora, is_quantized: lora.is_some(), ..self }
    }

    /// How its frozen weights are held, if in codes: as in its files, or as `[model] quantize` says.
    pub(super) fn quantization(&self, config: &RunConfig) -> Option<Quantization> {
        let wanted = config.model.quantize.filter(|_| self.is_quantized);
        self.config.quantization().or(wanted)
    }

    fn spec(&self) -> DecoderSpec {
        let (config, lora) = (self.config.clone(), self.lora.cloned());
        let is_on_trunk = lora.is_some() || self.shares_trunk;
        DecoderSpec { config, head: self.head, is_on_trunk, lora, quantize: None }
    }

    fn load_options(&self, model_parallel: ModelParallel) -> LoadOptions {
        let trainable = self.is_trained;
        LoadOptions { trainable, model_parallel, ..LoadOptions::frozen(self.kind, Device::Cpu) }
    }
}

/// The memory of one model in one process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelBytes {
    /// What the model is for.
    pub(crate) role: &'static str,
    #[serde(flatten)]
    pub(crate) bytes: StateBytes,
}

/// The memory of the models in the process that needs most.
pub(super) fn of_fullest_process(
    config: &RunConfig,
    mesh: &Mesh,
    models: &[PlannedModel<'_>],
) -> anyhow::Result<Vec<ModelBytes>> {
    let of_place = |place: Mesh| -> Result<Vec<ModelBytes>, models::Error> {
        let groups = ProcessGroups::fake(&place);
        models.iter().map(|model| bytes_of(config, &groups, model)).collect()
    };
    let places = places_in_model(mesh).into_iter().map(of_place).collect::<Result<Vec<_>, _>>()?;
    let total = |models: &Vec<ModelBytes>| models.iter().map(|model| model.bytes.total()).sum::<usize>();
    Ok(places.into_iter().max_by_key(total).unwrap_or_default())
}

/// The mesh as one rank of each place in a model sees it: ranks that differ along no other axis than data and
/// sequence hold the same parameters.
pub(super) fn places_in_model(mesh: &Mesh) -> Vec<Mesh> {
    const COPIES: [Axis; 2] = [Axis::Data, Axis::Sequence];
    let ranks = (0..mesh.world_size()).map(|rank| mesh.for_rank(rank));
    ranks.filter(|place| COPIES.iter().all(|&axis| place.coordinate(axis) == 0)).collect()
}

/// The numbers of parameters of a full model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterCounts {
    pub(crate) all: usize,
    pub(crate) trained: usize,
    /// What is trained in place of the model; `None` for a model without adapters.
    pub(crate) adapters: Option<AdapterCounts>,
}

/// The adapters of a model that are trained, and what is trained beside them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct AdapterCounts {
    /// The layers that have an adapter.
    pub(crate) layers: usize,
    /// The lowest and the highest of their ranks.
    pub(crate) ranks: [i64; 2],
    /// Biases, rows of single tokens, the tensors of modules that are trained whole, and a new head.
    pub(crate) other_tensors: usize,
}

impl AdapterCounts {
    /// Counts what is trained among the parameters of a full model.
    fn of(specs: &[WeightSpec]) -> Option<Self> {
        const FIRST_MATRICES: [&str; 2] = [".lora_A.weight", ".lora_embedding_A"];
        let trained = || specs.iter().filter(|spec| spec.trainable);
        let ranks = || {
            let is_first =
                |spec: &&WeightSpec| FIRST_MATRICES.iter().any(|end| spec.parameter.name.ends_with(end));
            trained().filter(is_first).map(|spec| spec.shape[0])
        };
        let others = trained().filter(|spec| !spec.parameter.name.contains(".lora_"));
        Some(Self {
            layers: ranks().count(),
            ranks: [ranks().min()?, ranks().max()?],
            other_tensors: others.count(),
        })
    }
}

/// The parameters of a full model, with those that it shares.
pub(super) fn num_parameters(model: &PlannedModel<'_>) -> Result<ParameterCounts, models::Error> {
    let specs = weight_specs(model.spec(), &model.load_options(ModelParallel::NONE))?;
    let sum = |specs: &mut dyn Iterator<Item = &WeightSpec>| {
        specs.map(|spec| spec.shape.iter().product::<i64>() as usize).sum()
    };
    let (all, trained) = (sum(&mut specs.iter()), sum(&mut specs.iter().filter(|spec| spec.trainable)));
    Ok(ParameterCounts { all, trained, adapters: AdapterCounts::of(&specs) })
}

fn bytes_of(
    config: &RunConfig,
    groups: &ProcessGroups,
    model: &PlannedModel<'_>,
) -> Result<ModelBytes, models::Error> {
    let specs = specs_of(config, model, model_parallel(config, groups))?;
    let (stage, moments) = (config.parallel.zero, config.train.moments_dtype);
    Ok(ModelBytes { role: model.role, bytes: StateBytes::of(&specs, stage, groups, moments) })
}

/// The weights of a full model in memory: with those of a trunk, unless another model has them.
pub(super) fn full_specs(
    config: &RunConfig,
    model: &PlannedModel<'_>,
) -> Result<Vec<WeightSpec>, models::Error> {
    specs_of(config, model, ModelParallel::NONE)
}

fn specs_of(
    config: &RunConfig,
    model: &PlannedModel<'_>,
    model_parallel: ModelParallel,
) -> Result<Vec<WeightSpec>, models::Error> {
    let quantize = model.quantization(config);
    let options = LoadOptions { quantize, ..model.load_options(model_parallel) };
    Ok(match model.lora {
        _ if model.shares_trunk => own_weight_specs(model.spec(), &options)?,
        None => weight_specs(model.spec(), &options)?,
        // The trunk is a language model with its head, also below a score head.
        Some(_) => {
            let trunk = DecoderSpec::on_trunk(model.config.clone(), HeadKind::Vocabulary, None);
            let frozen = LoadOptions { trainable: false, ..options.clone() };
            [weight_specs(trunk, &frozen)?, own_weight_specs(model.spec(), &options)?].concat()
        }
    })
}
