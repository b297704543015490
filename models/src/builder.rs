//! The builder of linear layers, norms and tables: it requests, places and registers every parameter of a
//! model.

mod tables;

use std::sync::{Arc, OnceLock};

use parallel::comm::ProcessGroup;
use parallel::{Parameter, Placement};
use tch::Tensor;

use crate::Error;
use crate::architecture::{Architecture, NormKind};
use crate::initialize::Initial;
use crate::linear::Linear;
use crate::lora::linear::Magnitude;
use crate::lora::plan::block_of;
use crate::lora::{Init, LoraLinear, LoraPlan, LoraTarget};
use crate::model_parallel::{ModelParallel, WeightPlacement};
use crate::norm::Norm;
use crate::quantize::{CodesLayout, QuantizedLayers, QuantizedMatrix, QuantizedWeights};

/// The name of the scalar head's weight in sequence-classification checkpoints.
pub const SCORE_WEIGHT: &str = "score.weight";

/// A parameter that a model requests from its source.
#[derive(Clone, Copy, Debug)]
pub struct ParameterRequest<'a> {
    /// The name in the checkpoint.
    pub name: &'a str,
    /// The shape of the full parameter.
    pub shape: &'a [i64],
    /// How the parameter is placed on the ranks.
    pub placement: &'a Placement,
    /// The distribution of its values in a new model.
    pub initial: Initial,
    /// Whether this rank holds the parameter or a shard of it. If not, the source only checks that the
    /// checkpoint contains it.
    pub is_local: bool,
    /// The part of the model that the parameter belongs to.
    pub part: ParameterPart,
    /// How the weight of a linear layer lies that is held in codes: the parameter is a row of bytes then.
    pub codes: Option<&'a CodesLayout>,
}

/// The part of a model that a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPart {
    /// The weights that models with different adapters and heads share.
    Trunk,
    /// A module or a bias of the trunk that the model trains, a copy of its own.
    TrunkCopy,
    /// A matrix or magnitudes of an adapter, or rows of single tokens, in fp32.
    Adapter,
    /// The scalar head, in fp32.
    ScalarHead,
}

impl ParameterPart {
    /// Whether the parameter has this model's values, also where the trunk is shared.
    pub fn is_own(self) -> bool {
        self != Self::Trunk
    }
}

/// The parameters of the modules that a builder has built.
#[derive(Debug)]
pub struct BuiltParameters {
    /// This rank's parameters, in order of use.
    pub parameters: Vec<Parameter>,
    /// The part of the model that each of them belongs to.
    pub parts: Vec<ParameterPart>,
    /// The linear layers that have an adapter, on whichever rank.
    pub adapted: Vec<String>,
    /// Whether a bias is trained beside the adapters, on whichever rank.
    pub trains_bias: bool,
    /// This rank's quantised weights.
    pub quantized: QuantizedWeights,
}

/// A linear layer that is about to be built.
struct LinearSpec<'a> {
    name: &'a str,
    /// The number of inputs and of outputs.
    sizes: [i64; 2],
    /// What `placement` shards, if it shards anything.
    sharded: Side,
    placement: &'a WeightPlacement,
}

/// A side of a linear layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Inputs,
    Outputs,
}

/// The source of a model's parameters: a checkpoint or an initializer.
pub type ParameterSource<'a> = dyn FnMut(&ParameterRequest<'_>) -> Result<Tensor, Error> + 'a;

/// Builds layers and keeps the list of their parameters in order of use.
pub struct ModuleBuilder<'a> {
    architecture: &'a Architecture,
    source: &'a mut ParameterSource<'a>,
    model_parallel: &'a ModelParallel,
    lora: Option<&'a LoraPlan>,
    quantize: Option<&'a QuantizedLayers>,
    is_local: bool,
    is_expert: bool,
    parameters: Vec<Parameter>,
    parts: Vec<ParameterPart>,
    /// The linear layers that got an adapter, on whichever rank.
    adapted: Vec<String>,
    /// Whether a bias is trained beside the adapters, on whichever rank.
    trains_bias: bool,
    quantized: QuantizedWeights,
}

impl<'a> ModuleBuilder<'a> {
    /// Starts with no parameters, for a model of this architecture whose linear layers get the adapters of
    /// `lora`, and whose weights are held in codes as `quantize` says.
    pub fn new(
        architecture: &'a Architecture,
        model_parallel: &'a ModelParallel,
        lora: Option<&'a LoraPlan>,
        quantize: Option<&'a QuantizedLayers>,
        source: &'a mut ParameterSource<'a>,
    ) -> Self {
        Self {
            architecture,
            source,
            model_parallel,
            lora,
            quantize,
            is_local: true,
            is_expert: false,
            parameters: Vec::new(),
            parts: Vec::new(),
            adapted: Vec::new(),
            trains_bias: false,
            quantized: QuantizedWeights::new(),
        }
    }

    /// The tensor-parallel group; `None` without tensor parallelism.
    pub fn group(&self) -> Option<&'a Arc<ProcessGroup>> {
        self.model_parallel.tensor_parallel.as_ref()
    }

    /// How the model is split over ranks.
    pub fn model_parallel(&self) -> &'a ModelParallel {
        self.model_parallel
    }

    /// Sets whether this rank holds the layers that are built next. Layers of other ranks get no values and
    /// register no parameters.
    pub fn set_local(&mut self, is_local: bool) {
        self.is_local = is_local;
    }

    /// Builds one expert with `build_expert`; `is_local_expert` says whether this rank of the expert-parallel
    /// group holds it.
    pub fn expert_scope<T>(&mut self, is_local_expert: bool, build_expert: impl FnOnce(&mut Self) -> T) -> T {
        let is_local = self.is_local;
        self.is_local &= is_local_expert;
        self.is_expert = self.model_parallel.expert_parallel.is_some();
        let expert = build_expert(self);
        (self.is_local, self.is_expert) = (is_local, false);
        expert
    }

    /// Marks parameter `index` as tied to a copy on the other ranks of `tied_group`.
    pub fn tie_parameter(&mut self, index: usize, tied_group: &Arc<ProcessGroup>) {
        self.parameters[index].tied_group = Some(Arc::clone(tied_group));
    }

    /// The number of parameters so far.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether no parameter has been registered yet.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// What was built. Returns an error if there should be adapters and no layer has one.
    pub fn finish(self) -> Result<BuiltParameters, Error> {
        let Self { lora, parameters, parts, adapted, trains_bias, quantized, .. } = self;
        lora.map_or(Ok(()), |lora| lora.check_matched(&adapted))?;
        Ok(BuiltParameters { parameters, parts, adapted, trains_bias, quantized })
    }

    /// Requests a parameter of the trunk. Registers it if this rank holds it.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        placement: &WeightPlacement,
    ) -> Result<Tensor, Error> {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let is_copy = self.trains_whole(module)?;
        self.parameter_of(trunk_part(is_copy), name, shape, initial, placement)
    }

    /// Requests the bias of a module, which has an adapter or has none.
    fn bias(
        &mut self,
        module: &str,
        size: i64,
        placement: &WeightPlacement,
        is_adapted: bool,
    ) -> Result<Tensor, Error> {
        let is_trained = self.lora.is_some_and(|lora| lora.trains_bias(is_adapted));
        self.trains_bias |= is_trained;
        let part = trunk_part(is_trained || self.trains_whole(module)?);
        self.parameter_of(part, &format!("{module}.bias"), &[size], Initial::Zeros, placement)
    }

    /// Whether the module `module` of the trunk is trained whole beside the adapters.
    fn trains_whole(&self, module: &str) -> Result<bool, Error> {
        let layers = self.architecture.names.layers;
        self.lora.map_or(Ok(false), |lora| lora.trains_whole(module, layers))
    }

    /// Requests a parameter of a part of the model. Registers it if this rank holds it.
    pub fn parameter_of(
        &mut self,
        part: ParameterPart,
        name: &str,
        shape: &[i64],
        initial: Initial,
        placement: &WeightPlacement,
    ) -> Result<Tensor, Error> {
        let partial_grad = matches!(placement, WeightPlacement::ReplicatePartialGrad);
        let placement = &self.placement_of(placement);
        let is_local = self.is_local;
        let request = ParameterRequest { name, shape, placement, initial, is_local, part, codes: None };
        self.request(&request, partial_grad)
    }

    /// Requests a parameter, and registers it if this rank holds it.
    fn request(&mut self, request: &ParameterRequest<'_>, partial_grad: bool) -> Result<Tensor, Error> {
        let tensor = (self.source)(request)?;
        if request.is_local {
            self.parameters.push(Parameter {
                partial_grad,
                is_expert: self.is_expert,
                ..Parameter::with_placement(request.name, &tensor, request.placement.clone())
            });
            self.parts.push(request.part);
        }
        Ok(tensor)
    }

    fn placement_of(&self, placement: &WeightPlacement) -> Placement {
        match (placement, self.group()) {
            (WeightPlacement::Shard(spec), Some(group)) => {
                Placement::Shard { spec: spec.clone(), group: Arc::clone(group) }
            }
            _ => Placement::Replicate,
        }
    }

    /// Requests the table `{name}.weight` `[rows, width]` of an embedding or a head, sharded by rows.
    pub fn table(
        &mut self,
        name: &str,
        rows: i64,
        width: i64,
        placement: &WeightPlacement,
    ) -> Result<Tensor, Error> {
        let initial = Initial::Normal(self.architecture.initializer_range);
        self.parameter(&format!("{name}.weight"), &[rows, width], initial, placement)
    }

    /// Builds a linear layer that is not tensor-parallel and has no bias: every rank holds the full weight.
    /// vLLM: `ReplicatedLinear`.
    pub fn replicated_linear(&mut self, name: &str, sizes: [i64; 2]) -> Result<Linear, Error> {
        let placement = &self.model_parallel.non_parallel_placement();
        let layer = LinearSpec { name, sizes, sharded: Side::Outputs, placement };
        self.linear(&layer, self.architecture.initializer_range, None)
    }

    /// Builds a linear layer whose output dimension is sharded.
    /// Megatron: `ColumnParallelLinear`.
    pub fn column_parallel_linear(
        &mut self,
        name: &str,
        sizes: [i64; 2],
        bias: bool,
        placement: &WeightPlacement,
    ) -> Result<Linear, Error> {
        let layer = LinearSpec { name, sizes, sharded: Side::Outputs, placement };
        self.linear(&layer, self.architecture.initializer_range, bias.then_some(placement))
    }

    /// Builds a linear layer back into the residual stream whose input dimension is sharded: the full output
    /// is the sum of the ranks' partial outputs.
    /// Megatron: `RowParallelLinear`.
    pub fn row_parallel_linear(
        &mut self,
        name: &str,
        sizes: [i64; 2],
        bias: bool,
        placement: &WeightPlacement,
    ) -> Result<Linear, Error> {
        let layer = LinearSpec { name, sizes, sharded: Side::Inputs, placement };
        let bias_placement = self.model_parallel.non_parallel_placement();
        let deviation = self.architecture.residual_initializer_range;
        self.linear(&layer, deviation, bias.then_some(&bias_placement))
    }

    /// Builds a linear layer: its weight, its bias if that has a placement, and its adapter.
    fn linear(
        &mut self,
        layer: &LinearSpec<'_>,
        deviation: f64,
        bias: Option<&WeightPlacement>,
    ) -> Result<Linear, Error> {
        let (name, [_, outer]) = (layer.name, layer.sizes);
        let quantized = self.quantized(layer, deviation)?;
        let weight = match &quantized {
            Some(_) => QuantizedMatrix::no_numbers(),
            None => self.matrix(layer, deviation)?,
        };
        // A quantised weight lies as `[out, in]` in every family.
        let is_conv1d = self.architecture.is_conv1d && quantized.is_none();
        let block = block_of(name, self.architecture.names.layers);
        let target = match self.lora {
            Some(lora) => lora.target(name, block, self.is_router(name))?,
            None => None,
        };
        let bias = bias.map(|placement| self.bias(name, outer, placement, target.is_some())).transpose()?;
        let lora = match target {
            Some(target) => Some(Box::new(self.lora(layer, target)?)),
            None => None,
        };
        Ok(Linear { weight, quantized, bias, is_conv1d, lora })
    }

    /// Requests the weight of a linear layer.
    fn matrix(&mut self, layer: &LinearSpec<'_>, deviation: f64) -> Result<Tensor, Error> {
        let [inner, outer] = layer.sizes;
        let in_out = self.architecture.is_conv1d;
        let shape = if in_out { [inner, outer] } else { [outer, inner] };
        let placement = matrix_placement(layer, in_out);
        self.parameter(&format!("{}.weight", layer.name), &shape, Initial::Normal(deviation), &placement)
    }

    /// The weight of a linear layer in codes, if this rank holds it and the model is quantised. A router
    /// keeps its numbers: it is small, and a wrong choice of experts is a large error.
    fn quantized(
        &mut self,
        layer: &LinearSpec<'_>,
        deviation: f64,
    ) -> Result<Option<QuantizedMatrix>, Error> {
        let quantize = self.quantize.filter(|_| self.is_local && !self.is_router(layer.name));
        let Some(format) = quantize.and_then(|quantize| quantize.format_of(layer.name)) else {
            return Ok(None);
        };
        let refused = |setting: &str, fix: &str| Error::Quantized {
            layer: layer.name.to_owned(),
            setting: setting.to_owned(),
            fix: fix.to_owned(),
        };
        if self.trains_whole(layer.name)? {
            return Err(refused("`modules_to_save`", "leave the layer out, and give it an adapter"));
        }

        let [inner, outer] = layer.sizes;
        let placement = self.placement_of(&matrix_placement(layer, false));
        let layout = CodesLayout::new(format, [outer, inner], &placement).ok_or_else(|| {
            let fix = "set another [parallel.tensor] size";
            refused("a tensor-parallel split of its inputs in several pieces", fix)
        })?;
        let request = ParameterRequest {
            name: &format!("{}.weight", layer.name),
            shape: &layout.placement().global_shape(&[layout.num_bytes() as i64]),
            placement: layout.placement(),
            initial: Initial::Normal(deviation),
            is_local: true,
            part: ParameterPart::Trunk,
            codes: Some(&layout),
        };
        let bytes = self.request(&request, false)?;
        let matrix = QuantizedMatrix::over(bytes, layout, &placement);
        self.quantized.insert(layer.name.to_owned(), matrix.clone());
        Ok(Some(matrix))
    }

    /// Builds the adapter of a linear layer.
    fn lora(&mut self, layer: &LinearSpec<'_>, target: LoraTarget) -> Result<LoraLinear, Error> {
        let LinearSpec { name, sizes: [inner, outer], sharded, placement } = *layer;
        let LoraTarget { r, scaling } = target;
        let config = self.lora.expect("a layer has a target").config();
        let (init, use_dora) = (config.init_lora_weights, config.use_dora);
        let sharded_along = |side: Side, dim: usize| match placement {
            WeightPlacement::Shard(spec) if sharded == side => WeightPlacement::Shard(spec.with_dim(dim)),
            // Each rank uses the matrix for its own outputs, or on its own inputs.
            WeightPlacement::Shard(_) => WeightPlacement::ReplicatePartialGrad,
            other => other.clone(),
        };
        let (a_placement, b_placement) = (sharded_along(Side::Inputs, 1), sharded_along(Side::Outputs, 0));
        let initial = match init {
            Init::Default => Initial::Uniform((inner as f64).sqrt().recip()),
            Init::Gaussian => Initial::Normal((r as f64).recip()),
        };
        self.adapted.push(name.to_owned());

        let mut request = |end: &str, shape: &[i64], initial: Initial, placement: &WeightPlacement| {
            self.parameter_of(ParameterPart::Adapter, &format!("{name}.{end}"), shape, initial, placement)
        };
        let a = request("lora_A.weight", &[r, inner], initial, &a_placement)?;
        let b = request("lora_B.weight", &[outer, r], Initial::Zeros, &b_placement)?;
        let magnitude = if use_dora {
            let values = request("lora_magnitude_vector", &[outer], Initial::Ones, &b_placement)?;
            let is_input_sharded = matches!(placement, WeightPlacement::Shard(_)) && sharded == Side::Inputs;
            let input_group = self.group().filter(|_| is_input_sharded).cloned();
            Some(Magnitude { values, input_group, factors: OnceLock::new() })
        } else {
            None
        };
        Ok(LoraLinear { a, b, scaling, magnitude })
    }

    /// Whether the linear layer `name` chooses experts, or weighs the shared one.
    fn is_router(&self, name: &str) -> bool {
        let Some(experts) = &self.architecture.experts else { return false };
        let is_named = |router: &str| name.strip_suffix(router).is_some_and(|rest| rest.ends_with('.'));
        [experts.names.router, experts.names.shared[1]].into_iter().any(is_named)
    }

    /// Builds a norm over the last dimension, of the architecture's kind. An RMS norm has no bias.
    pub fn norm(&mut self, name: &str, size: i64) -> Result<Norm, Error> {
        self.norm_with_placement(name, size, &self.model_parallel.non_parallel_placement())
    }

    /// Like [`norm`](Self::norm), with an explicit placement.
    pub fn norm_with_placement(
        &mut self,
        name: &str,
        size: i64,
        placement: &WeightPlacement,
    ) -> Result<Norm, Error> {
        let (kind, eps) = (self.architecture.norm, self.architecture.norm_eps);

        let (mut weight, mut bias) = (None, None);
        if self.architecture.norm_affine {
            weight = Some(self.parameter(&format!("{name}.weight"), &[size], Initial::Ones, placement)?);
            if kind == NormKind::Layer {
                bias = Some(self.bias(name, size, placement, false)?);
            }
        }
        Ok(Norm { kind, eps, size, weight, bias })
    }
}

/// The part of a parameter of the trunk, of which the model trains a copy or does not.
fn trunk_part(is_copy: bool) -> ParameterPart {
    if is_copy { ParameterPart::TrunkCopy } else { ParameterPart::Trunk }
}

/// How the matrix of a linear layer is placed: `[in, out]` if `in_out` says so, otherwise `[out, in]`.
fn matrix_placement(layer: &LinearSpec<'_>, in_out: bool) -> WeightPlacement {
    match layer.placement {
        WeightPlacement::Shard(spec) => {
            WeightPlacement::Shard(spec.with_dim(usize::from((layer.sharded == Side::Inputs) != in_out)))
        }
        other => other.clone(),
    }
}
