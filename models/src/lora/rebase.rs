//! Moves the product `s B A` of adapters out of the weights that they belong to, and into them, in folders.
//!
//! ```text
//!   initialize   W            -> W - s B A, and a new adapter B, A
//!   convert      B, A         -> [B, -B0], [A; A0]: on W what B, A are on W - s B0 A0
//!   unmerge      W + s B A    -> W
//! ```
//! The second line is what `subtract_mutated_init` of PEFT does. Products and sums are computed in fp32 and
//! rounded once, to the dtype of the written weights. One matrix of a model is in memory at a time. DoRA is
//! refused: its weights are no sum.

use std::collections::BTreeMap;
use std::f64::consts::SQRT_2;
use std::path::Path;
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::residency::WeightSpec;
use parallel::{Parameter, Placement};
use tch::{Device, Kind, Tensor};

use super::config::AdapterFile;
use super::embedding_adapter::EMBEDDING_MATRICES;
use super::folder::{self, AdapterFolder, AdapterParameters, AdapterSettings};
use super::init::WeightInit;
use super::linear::LoraLinear;
use super::plan::{LoraPlan, LoraTarget};
use crate::Error;
use crate::config::Config;
use crate::decoder::load::{check_finite, own_weight_specs, weight_specs};
use crate::decoder::{DecoderSpec, HeadKind, LoadOptions};
use crate::quantize::settings;
use crate::stored_model::StoredModel;
use crate::weights::WeightFolder;

/// The folder of the changed model, in the folder of the adapter.
pub const CHANGED_MODEL: &str = "base";

const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";

/// Writes a new adapter of the language model in `model` to the folder `out`, and to [`CHANGED_MODEL`] in it
/// the model without what the adapter took, if `init` [changes the weights](WeightInit::changes_weights). Its
/// weights are written in `kind`. The settings of `plan` name the model that the adapter belongs to. Returns
/// an error if a rank is larger than a side of a weight.
pub fn initialize(
    model: &Path,
    plan: &Arc<LoraPlan>,
    init: WeightInit,
    kind: Kind,
    out: &Path,
) -> Result<(), Error> {
    let (mut base, model) = (model.to_owned(), StoredModel::open(model)?);
    if let WeightInit::Loftq(quantization) = init {
        if let Some(stored) = model.quantization() {
            return Err(Error::Unsupported {
                path: base.display().to_string(),
                key: settings::KEY.to_owned(),
                value: stored.name().to_owned(),
                fix: "loftq makes up for what quantisation takes away: give the model that these codes were made from"
                    .to_owned(),
            });
        }
        let options = LoadOptions { quantize: Some(quantization), ..frozen() };
        weight_specs(DecoderSpec::whole(model.config().clone(), HeadKind::Vocabulary), &options)?;
    }

    let layers = AdaptedLayers::of(model.config(), HeadKind::Vocabulary, plan)?;
    let mut config = model.config().clone();
    let mut parameters = Vec::new();
    let mut take_part = |module: &str, target: LoraTarget, weight: &Tensor| {
        check_rank(plan, module, target.r, weight)?;
        let [a, b] = init.factors(weight, target.r, target.scaling)?;
        parameters
            .extend([(A, &a), (B, &b)].map(|(end, x)| Parameter::replicated(format!("{module}{end}"), x)));
        Ok::<_, Error>([a, b])
    };
    if init.changes_weights() {
        config = config.for_causal_lm(kind);
        base = out.join(CHANGED_MODEL);
        model.save_changed(&base, &config, Some(kind), |name, values| {
            layers.subtract(name, values, &mut take_part)
        })?;
    } else {
        for module in layers.targets.keys() {
            let name = format!("{module}.weight");
            drop(layers.subtract(&name, model.values(&name)?, &mut take_part)?);
        }
    }
    let file = plan.saved_file(&layers.names(), config.architecture().names.layers);
    let file = AdapterFile { base_hash: Some(WeightFolder::open(&base)?.content_hash()?), ..file };
    save(out, (&config, HeadKind::Vocabulary), &file, &layers, &parameters)
}

/// Writes to the folder `out` an adapter of the model in `original` that is there what `trained` is on a
/// model that [`initialize`] has changed, or PEFT. `initial` is the adapter that `trained` began as. It has
/// twice the rank and the same factor of its output. Its file has `name` and `revision` for the original
/// model.
pub fn convert(
    trained: &mut AdapterFolder,
    initial: &mut AdapterFolder,
    (original, (name, revision)): (&Path, (String, Option<String>)),
    out: &Path,
) -> Result<(), Error> {
    let fix = "its weights have magnitudes, which are no sum: merge it into the model that it was trained on";
    trained.plan().refuse_dora(fix)?;
    let config = trained.config(original)?;
    let head = if config.is_sequence_classification() { HeadKind::Scalar } else { HeadKind::Vocabulary };
    let layers = AdaptedLayers::of(&config, head, trained.plan())?;
    check_same_layers(&layers, initial, &config)?;

    let mut parameters = Vec::new();
    for WeightSpec { parameter, shape, .. } in own_specs(&config, head, trained.plan())? {
        let values = read(trained, &parameter.name, &shape)?;
        let values = if parameter.name.ends_with(A) {
            Tensor::cat(&[values, read(initial, &parameter.name, &shape)?], 0)
        } else if parameter.name.ends_with(B) {
            Tensor::cat(&[values, -read(initial, &parameter.name, &shape)?], 1)
        } else {
            values
        };
        parameters.push(Parameter::replicated(parameter.name, &values));
    }
    trained.check_all_used(None)?;

    let file = trained.plan().saved_file(&layers.names(), config.architecture().names.layers);
    let base_hash = Some(WeightFolder::open(original)?.content_hash()?);
    let file = AdapterFile { base: Some(name), revision, base_hash, ..with_doubled_ranks(file) };
    file.plan(&out.display().to_string())?;
    save(out, (&config, head), &file, &layers, &parameters)
}

/// Writes to the folder `out` the language model in `merged` without `adapter`, which was merged into it, in
/// the dtypes of its files.
pub fn unmerge(merged: &Path, adapter: &mut AdapterFolder, out: &Path) -> Result<(), Error> {
    let plan = Arc::clone(adapter.plan());
    plan.refuse_dora(
        "the norms of the original rows are not in the merged weights: take the original model",
    )?;
    plan.refuse_trained_weights("the original values are in neither folder: take the original model")?;
    let model = StoredModel::open(merged)?;
    let layers = AdaptedLayers::of(model.config(), HeadKind::Vocabulary, &plan)?;
    let mut factors = |module: &str, target: LoraTarget, weight: &Tensor| {
        let [outer, inner] = sides(weight);
        let a = read(adapter, &format!("{module}{A}"), &[target.r, inner])?;
        Ok::<_, Error>([a, read(adapter, &format!("{module}{B}"), &[outer, target.r])?])
    };
    model.save_changed(out, model.config(), None, |name, values| {
        layers.subtract(name, values, &mut factors)
    })?;
    adapter.check_all_used(None)
}

/// Gives `A` and `B` of an adapted layer: its name, its adapter and its weight `[out, in]` in fp32.
type FactorsFn<'a> = dyn FnMut(&str, LoraTarget, &Tensor) -> Result<[Tensor; 2], Error> + 'a;

/// The linear layers of a model that have an adapter.
struct AdaptedLayers {
    targets: BTreeMap<String, LoraTarget>,
    /// Whether weights lie as `[in, out]`, but for that of the head.
    is_conv1d: bool,
    head: &'static str,
}

impl AdaptedLayers {
    fn of(config: &Config, head: HeadKind, plan: &Arc<LoraPlan>) -> Result<Self, Error> {
        let architecture = config.architecture();
        let mut targets = BTreeMap::new();
        for spec in own_specs(config, head, plan)? {
            if let Some(module) = spec.parameter.name.strip_suffix(EMBEDDING_MATRICES[0]) {
                let expected = "a module without an adapter, because those of linear layers alone are moved";
                return Err(plan.misfit(
                    module,
                    expected.to_owned(),
                    "an adapter of the embedding".to_owned(),
                ));
            }
            if let Some(module) = spec.parameter.name.strip_suffix(A) {
                let scaling = plan.scaling_of(module, architecture.names.layers)?;
                targets.insert(module.to_owned(), LoraTarget { r: spec.shape[0], scaling });
            }
        }
        Ok(Self { targets, is_conv1d: architecture.is_conv1d, head: architecture.names.head })
    }

    fn names(&self) -> Vec<String> {
        self.targets.keys().cloned().collect()
    }

    /// `W - s B A` in fp32 if `name` is the weight of an adapted layer, otherwise its values as they are.
    fn subtract(&self, name: &str, values: Tensor, factors: &mut FactorsFn<'_>) -> Result<Tensor, Error> {
        let layer = name.strip_suffix(".weight").and_then(|module| self.targets.get_key_value(module));
        let Some((module, &target)) = layer else { return Ok(values) };
        let is_conv1d = self.is_conv1d && module != self.head;
        let weight = if is_conv1d { values.tr() } else { values }.to_kind(Kind::Float);
        let [a, b] = factors(module, target, &weight)?;
        let difference = LoraLinear { a, b, scaling: -target.scaling, magnitude: None }.merged(&weight)?;
        Ok(if is_conv1d { difference.tr() } else { difference })
    }
}

fn frozen() -> LoadOptions {
    LoadOptions::frozen(Kind::Float, Device::Cpu)
}

/// What an adapter adds to a model.
fn own_specs(config: &Config, head: HeadKind, plan: &Arc<LoraPlan>) -> Result<Vec<WeightSpec>, Error> {
    own_weight_specs(DecoderSpec::on_trunk(config.clone(), head, Some(Arc::clone(plan))), &frozen())
}

/// The values of a parameter of an adapter in fp32, which are finite.
fn read(adapter: &mut AdapterFolder, name: &str, shape: &[i64]) -> Result<Tensor, Error> {
    let values = adapter.reader(name, shape, &Placement::Replicate)?.read()?;
    check_finite(adapter.path(), name, &values)?;
    Ok(values.to_kind(Kind::Float))
}

fn sides(weight: &Tensor) -> [i64; 2] {
    weight.size().try_into().expect("a weight is a matrix")
}

/// Returns an error for a rank that the weight `[out, in]` of `module` cannot have.
fn check_rank(plan: &LoraPlan, module: &str, r: i64, weight: &Tensor) -> Result<(), Error> {
    let least = sides(weight).into_iter().min().unwrap_or(0);
    if r <= least {
        return Ok(());
    }
    let expected = format!("given a rank of at most {least}, the smaller side of its weight, or no adapter");
    Err(plan.misfit(module, expected, r.to_string()))
}

/// Returns an error if `initial` adapts other layers than `layers`, or with another rank or factor.
fn check_same_layers(layers: &AdaptedLayers, initial: &AdapterFolder, config: &Config) -> Result<(), Error> {
    let plan = initial.plan();
    plan.refuse_dora(
        "an adapter that began with the weights of its model has none: give the one that it began as",
    )?;
    let first = AdaptedLayers::of(config, HeadKind::Vocabulary, plan)?;
    let modules = layers.targets.keys().chain(first.targets.keys());
    let target = |layers: &AdaptedLayers, module: &str| layers.targets.get(module).copied();
    let differs = |module: &&String| target(layers, module) != target(&first, module);
    let Some(module) = modules.into_iter().find(differs) else { return Ok(()) };
    let described = |target: Option<LoraTarget>| match target {
        Some(LoraTarget { r, scaling }) => format!("an adapter of rank {r} with the factor {scaling}"),
        None => "no adapter".to_owned(),
    };
    let wanted = described(target(layers, module));
    let expected = format!("given {wanted}, as in the trained adapter, which began as this one");
    Err(plan.misfit(module, expected, described(target(&first, module))))
}

/// The settings of an adapter with twice the ranks whose outputs have the same factors.
fn with_doubled_ranks(mut file: AdapterFile) -> AdapterFile {
    let lora = &mut file.lora;
    let factor = if lora.use_rslora { SQRT_2 } else { 2.0 };
    for r in std::iter::once(&mut lora.r).chain(lora.rank_pattern.values_mut()) {
        *r *= 2;
    }
    for alpha in std::iter::once(&mut lora.lora_alpha).chain(lora.alpha_pattern.values_mut()) {
        *alpha *= factor;
    }
    file
}

/// Writes an adapter of the layers `layers` to a folder.
fn save(
    out: &Path,
    (config, head): (&Config, HeadKind),
    file: &AdapterFile,
    layers: &AdaptedLayers,
    parameters: &[Parameter],
) -> Result<(), Error> {
    let text = file.to_json(head == HeadKind::Scalar, config.architecture().is_conv1d);
    let settings = AdapterSettings { config, text: &text, base_hash: file.base_hash.as_deref() };
    let (own, adapted) = ((0..parameters.len()).collect(), layers.names());
    let parameters = AdapterParameters { all: parameters, own, adapted: &adapted, residency: None };
    folder::save(out, &settings, parameters, 0, &ProcessGroup::single("pipeline-expert", 0))
}
