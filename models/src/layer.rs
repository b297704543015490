//! Linear layers and norms, and the builder that creates and registers every parameter of a model.
//!
//! Legend: `N` tokens, `H` width.

use std::ops::Range;
use std::sync::Arc;

use parallel::autograd;
use parallel::comm::ProcessGroup;
use parallel::dispatch::{self, Value};
use parallel::kernels::{linear, rms_norm};
use parallel::{Parameter, Placement, weight_grad_store};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{Architecture, NormKind};
use crate::initialize::Initial;
use crate::model_parallel::{ModelParallel, WeightPlacement};

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
}

/// The source of a model's parameters: a checkpoint or an initializer.
pub type ParameterSource<'a> = dyn FnMut(&ParameterRequest<'_>) -> Result<Tensor, Error> + 'a;

/// Builds layers and keeps the list of their parameters in order of use.
pub struct ModuleBuilder<'a> {
    architecture: &'a Architecture,
    source: &'a mut ParameterSource<'a>,
    model_parallel: &'a ModelParallel,
    is_local: bool,
    is_expert: bool,
    parameters: Vec<Parameter>,
}

impl<'a> ModuleBuilder<'a> {
    /// Starts with no parameters, for a model of this architecture.
    pub fn new(
        architecture: &'a Architecture,
        model_parallel: &'a ModelParallel,
        source: &'a mut ParameterSource<'a>,
    ) -> Self {
        Self {
            architecture,
            source,
            model_parallel,
            is_local: true,
            is_expert: false,
            parameters: Vec::new(),
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

    /// All parameters, in order of use.
    pub fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    /// Requests a parameter. Registers it if this rank holds it.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        placement: &WeightPlacement,
    ) -> Result<Tensor, Error> {
        let partial_grad = matches!(placement, WeightPlacement::ReplicatePartialGrad);
        let placement = match (placement, self.group()) {
            (WeightPlacement::Shard(spec), Some(group)) => {
                Placement::Shard { spec: spec.clone(), group: Arc::clone(group) }
            }
            _ => Placement::Replicate,
        };

        let tensor = (self.source)(&ParameterRequest {
            name,
            shape,
            placement: &placement,
            initial,
            is_local: self.is_local,
        })?;
        if !self.is_local {
            return Ok(tensor);
        }

        self.parameters.push(Parameter {
            partial_grad,
            is_expert: self.is_expert,
            ..Parameter::with_placement(name, &tensor, placement)
        });
        Ok(tensor)
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
        let placement = self.model_parallel.non_parallel_placement();
        let weight = self.matrix(name, sizes, 1, self.architecture.initializer_range, &placement)?;
        Ok(Linear { weight, bias: None, is_conv1d: self.architecture.is_conv1d })
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
        let weight = self.matrix(name, sizes, 1, self.architecture.initializer_range, placement)?;
        self.with_bias(name, weight, bias.then_some(sizes[1]), placement)
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
        let weight = self.matrix(name, sizes, 0, self.architecture.residual_initializer_range, placement)?;
        self.with_bias(name, weight, bias.then_some(sizes[1]), &self.model_parallel.non_parallel_placement())
    }

    /// Requests the weight of a linear layer from `inner` to `outer`. `side` selects the sharded dimension: 0
    /// for `inner`, 1 for `outer`.
    fn matrix(
        &mut self,
        name: &str,
        [inner, outer]: [i64; 2],
        side: usize,
        deviation: f64,
        placement: &WeightPlacement,
    ) -> Result<Tensor, Error> {
        let in_out = self.architecture.is_conv1d;
        let (shape, dim) = if in_out { ([inner, outer], side) } else { ([outer, inner], 1 - side) };
        let placement = match placement {
            WeightPlacement::Shard(spec) => WeightPlacement::Shard(spec.with_dim(dim)),
            other => other.clone(),
        };
        self.parameter(&format!("{name}.weight"), &shape, Initial::Normal(deviation), &placement)
    }

    fn with_bias(
        &mut self,
        name: &str,
        weight: Tensor,
        bias: Option<i64>,
        placement: &WeightPlacement,
    ) -> Result<Linear, Error> {
        let bias = match bias {
            Some(size) => {
                Some(self.parameter(&format!("{name}.bias"), &[size], Initial::Zeros, placement)?)
            }
            None => None,
        };
        Ok(Linear { weight, bias, is_conv1d: self.architecture.is_conv1d })
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
                bias = Some(self.parameter(&format!("{name}.bias"), &[size], Initial::Zeros, placement)?);
            }
        }
        Ok(Norm { kind, eps, size, weight, bias })
    }
}

/// Computes `x W^T + b` from `x` `[N, in]` and `weight` `[out, in]`, without an autograd graph. `None` where
/// no way is known that is faster than libtorch's own.
pub(crate) fn few_rows_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
    if x.requires_grad() {
        return None;
    }
    let product = linear::forward(x, weight)?;
    Some(bias.map_or_else(|| product.shallow_clone(), |bias| &product + bias))
}

/// A linear layer `x W + b`.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` as stored by GPT-2.
    weight: Tensor,
    bias: Option<Tensor>,
    is_conv1d: bool,
}

impl Linear {
    /// Computes `[N, out]` from `x` `[N, in]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if let Some(output) = self.few_rows(x, self.bias.as_ref()) {
            return output;
        }
        if let Some(product) = self.matmul_deferring_weight_grad(x) {
            return self.with_bias(product);
        }
        match (&self.bias, self.is_conv1d) {
            (bias, false) => x.linear(&self.weight, bias.as_ref()),
            (Some(bias), true) => bias.addmm(x, &self.weight),
            (None, true) => x.matmul(&self.weight),
        }
    }

    /// [`forward`](Self::forward) without the bias.
    pub fn matmul(&self, x: &Tensor) -> Tensor {
        if let Some(product) = self.few_rows(x, None).or_else(|| self.matmul_deferring_weight_grad(x)) {
            return product;
        }
        if self.is_conv1d { x.matmul(&self.weight) } else { x.linear(&self.weight, None::<&Tensor>) }
    }

    /// The output of a layer that is not trained, see [`few_rows_linear`]. A layer that is trained computes
    /// the same bits with and without a graph, so that activation checkpointing repeats a pass exactly.
    fn few_rows(&self, x: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
        if self.weight.requires_grad() {
            return None;
        }
        let transposed = self.is_conv1d.then(|| self.weight.tr());
        few_rows_linear(x, transposed.as_ref().unwrap_or(&self.weight), bias)
    }

    /// The product, if the computation of the weight's gradient is deferred; otherwise `None`.
    fn matmul_deferring_weight_grad(&self, x: &Tensor) -> Option<Tensor> {
        let product = weight_grad_store::linear_deferring_weight_grad(x, &self.weight, self.is_conv1d)?;
        Some(product.expect("the backward node can be attached to the product"))
    }

    /// Adds the bias to `x` `[N, out]`.
    pub fn with_bias(&self, x: Tensor) -> Tensor {
        match &self.bias {
            Some(bias) => x + bias,
            None => x,
        }
    }

    /// The layer restricted to the output columns `columns`.
    #[must_use]
    pub fn select_columns(&self, columns: &Range<i64>) -> Self {
        let narrow_to = |x: &Tensor, dim: i64| x.narrow(dim, columns.start, columns.end - columns.start);
        Self {
            weight: narrow_to(&self.weight, i64::from(self.is_conv1d)),
            bias: self.bias.as_ref().map(|bias| narrow_to(bias, 0)),
            is_conv1d: self.is_conv1d,
        }
    }

    /// [`forward`](Self::forward) plus `residual` `[N, out]`, in one operation if there is no bias.
    pub fn forward_add(&self, x: &Tensor, residual: Option<&Tensor>) -> Tensor {
        let Some(residual) = residual else { return self.forward(x) };
        if let Some(output) = self.few_rows(x, self.bias.as_ref()) {
            return output + residual;
        }
        if self.bias.is_some() || weight_grad_store::is_deferring() {
            self.forward(x) + residual
        } else if self.is_conv1d {
            residual.addmm(x, &self.weight)
        } else {
            residual.addmm(x, &self.weight.tr())
        }
    }
}

/// A norm over the last dimension.
#[derive(Debug)]
pub struct Norm {
    kind: NormKind,
    eps: f64,
    size: i64,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Norm {
    /// Normalizes `x` in fp32, and returns the result in the dtype of `x`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self.kind {
            NormKind::Layer => {
                x.layer_norm([self.size], self.weight.as_ref(), self.bias.as_ref(), self.eps, false)
            }
            NormKind::Rms => self.rms(x),
        }
    }

    /// RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) `x / rms(x) * weight` as one node of the graph.
    /// The node keeps the input and the roots; autograd would keep every tensor in between.
    fn rms(&self, x: &Tensor) -> Tensor {
        let detached = x.detach();
        let weight = self.weight.as_ref().map(|weight| (weight.detach(), weight.requires_grad()));
        let fused = || rms_norm::forward(&detached, weight.as_ref().map(|(weight, _)| weight), self.eps);
        let (normed, root) = no_grad(|| fused().unwrap_or_else(|| self.rms_with_root(&detached)));
        let inputs: Vec<&Tensor> = std::iter::once(x).chain(&self.weight).collect();
        autograd::node(normed, &inputs, move |grad| rms_backward(grad, &detached, &root, weight.as_ref()))
            .expect("a node can be attached to the norm")
    }

    /// The norm of `x` `[.., size]`, and `1 / rms(x)` in fp32, `[.., 1]`, of libtorch's operations.
    fn rms_with_root(&self, x: &Tensor) -> (Tensor, Tensor) {
        let (mut normed, root) = if x.device().is_cuda() {
            // The weight would be multiplied before the norm is rounded, and not after it as in transformers.
            x.internal_fused_rms_norm([self.size], None::<&Tensor>, self.eps)
        } else {
            let full = x.to_kind(Kind::Float);
            let root = (full.square().mean_dim(-1, true, Kind::Float) + self.eps).rsqrt();
            ((full * &root).to_kind(x.kind()), root)
        };
        if let Some(weight) = &self.weight {
            let _ = normed.g_mul_(weight);
        }
        (normed, root)
    }
}

/// The gradients of an RMS norm with respect to `x` `[.., H]` and, if it has one, to its weight `[H]`, which
/// comes with whether its gradient is needed. With `n = x root`: `dx = root (g w - n mean(g w n))` and
/// `dw = sum g n`.
fn rms_backward(
    grad: &Tensor,
    x: &Tensor,
    root: &Tensor,
    weight: Option<&(Tensor, bool)>,
) -> Vec<Option<Tensor>> {
    let is_trained = weight.is_some_and(|(_, is_trained)| *is_trained);
    let fused = rms_norm::backward(grad, x, root, weight.map(|(weight, _)| weight), is_trained);
    if let Some((x_grad, weight_grad)) = fused {
        return std::iter::once(Some(x_grad)).chain(weight.map(|_| weight_grad)).collect();
    }
    let size = x.size().last().copied().unwrap_or(1);
    if x.device().is_cuda() {
        let arguments = [
            Value::Tensor(grad),
            Value::Tensor(x),
            Value::Ints(&[size]),
            Value::Tensor(root),
            weight.map_or(Value::None, |(weight, _)| Value::Tensor(weight)),
            Value::Bools(&[true, is_trained]),
        ];
        return dispatch::call_tensors("aten::_fused_rms_norm_backward", "", &arguments)
            .expect("libtorch has the gradient of its norm")
            .into_iter()
            .take(1 + usize::from(weight.is_some()))
            .map(|grad| grad.defined().then_some(grad))
            .collect();
    }
    let grad = grad.to_kind(Kind::Float);
    let mut normed = x.to_kind(Kind::Float) * root;
    let product = &grad * &normed;

    let (mut x_grad, sum, weight_grad) = match weight {
        None => (grad.copy(), product.sum_dim_intlist(-1, true, Kind::Float), None),
        Some((weight, is_trained)) => {
            let full = weight.to_kind(Kind::Float);
            let rows = || product.view([-1, size]).sum_dim_intlist(0, false, Kind::Float);
            let weight_grad = is_trained.then(|| rows().to_kind(weight.kind()));
            (&grad * &full, product.matmul(&full).unsqueeze(-1), Some(weight_grad))
        }
    };
    let _ = normed.g_mul_(&(sum / size as f64));
    let _ = x_grad.g_sub_(&normed).g_mul_(root);
    std::iter::once(Some(x_grad.to_kind(x.kind()))).chain(weight_grad).collect()
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// The RMS norm as plain operations, whose graph autograd makes.
    fn composite_rms(x: &Tensor, weight: Option<&Tensor>, eps: f64) -> Tensor {
        let root = (x.square().mean_dim(-1, true, x.kind()) + eps).rsqrt();
        let normed = x * root;
        weight.map_or_else(|| normed.shallow_clone(), |weight| &normed * weight)
    }

    #[test]
    fn the_gradients_of_an_rms_norm_are_those_of_its_formula() {
        tch::manual_seed(3);
        for shape in [vec![40, 64], vec![5, 4, 16]] {
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
            let size = *shape.last().unwrap();
            let (x, weight, seed) = (random(&shape) * 3.0, random(&[size]), random(&shape));
            for is_affine in [true, false] {
                let gradients = |kind: Kind, forward: &dyn Fn(&Tensor, Option<&Tensor>) -> Tensor| {
                    let leaf = |x: &Tensor| x.to_kind(kind).detach().set_requires_grad(true);
                    let (x, weight) = (leaf(&x), is_affine.then(|| leaf(&weight)));
                    let output = forward(&x, weight.as_ref());
                    let leaves: Vec<&Tensor> = std::iter::once(&x).chain(&weight).collect();
                    let loss = (&output * seed.to_kind(kind)).sum(kind);
                    let mut found = Tensor::run_backward(&[loss], &leaves, false, false);
                    found.push(output.detach());
                    found
                };
                let exact = gradients(Kind::Double, &|x, weight| composite_rms(x, weight, 1e-6));
                let composite = gradients(Kind::Float, &|x, weight| composite_rms(x, weight, 1e-6));
                let ours = gradients(Kind::Float, &|x, weight| {
                    let weight = weight.map(Tensor::shallow_clone);
                    Norm { kind: NormKind::Rms, eps: 1e-6, size, weight, bias: None }.forward(x)
                });
                for ((exact, composite), ours) in exact.iter().zip(composite).zip(ours) {
                    let error = |found: Tensor| (exact - found).abs().max().double_value(&[]);
                    let (ours, theirs) = (error(ours), error(composite));
                    assert!(ours < 2.0 * theirs, "{ours} against {theirs}");
                }
            }
        }
    }

    #[test]
    fn a_trained_layer_computes_the_same_bits_without_a_graph() {
        tch::manual_seed(4);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        for is_conv1d in [false, true] {
            let weight = random(&[520, 520]).set_requires_grad(true);
            let layer = Linear { weight, bias: None, is_conv1d };
            for rows in [1, 33] {
                let x = random(&[rows, 520]);
                let with_graph = layer.forward(&x.copy().set_requires_grad(true)).detach();
                assert_eq!(no_grad(|| layer.forward(&x)), with_graph, "{rows} rows, {is_conv1d}");
            }
        }
    }

    #[test]
    fn few_rows_are_the_same_product() {
        tch::manual_seed(3);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (weight, bias) = (random(&[520, 264]), random(&[520]));
        for rows in [1, 2, 16, 33, 300] {
            // Columns of a wider tensor: rows need not be contiguous.
            let x = random(&[rows, 300]).narrow(1, 5, 264);
            let linear = |weight: &Tensor, is_conv1d| Linear {
                weight: weight.shallow_clone(),
                bias: Some(bias.shallow_clone()),
                is_conv1d,
            };
            assert!(rows < 300 || few_rows_linear(&x, &weight, None).is_none(), "300 rows are many");
            let exact = x.to_kind(Kind::Double).matmul(&weight.to_kind(Kind::Double).tr()) + &bias;
            let conv1d = weight.tr().contiguous();
            for layer in [linear(&weight, false), linear(&conv1d, true)] {
                let error = (layer.forward(&x) - &exact).abs().max().double_value(&[]);
                assert!(error < 1e-4, "{rows} rows: {error}");
                let residual = random(&[rows, 520]);
                let error = layer.forward_add(&x, Some(&residual)) - (&exact + &residual);
                assert!(error.abs().max().double_value(&[]) < 1e-4, "{rows} rows with a residual");
            }
        }
    }
}
