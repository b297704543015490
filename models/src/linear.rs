//! A linear layer `x W^T + b`, with a low-rank adapter or without.

use std::ops::Range;

use parallel::kernels::linear;
use parallel::{autograd, weight_grad_store};
use tch::{Tensor, no_grad};

use crate::lora::LoraLinear;
use crate::quantize::QuantizedMatrix;

/// Computes `x W^T + b` from `x` `[N, in]` and `weight` `[out, in]`, without an autograd graph. `None` where
/// no way is known that is faster than libtorch's own.
pub(crate) fn few_rows_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
    if x.requires_grad() {
        return None;
    }
    let product = linear::forward(x, weight)?;
    Some(bias.map_or_else(|| product.shallow_clone(), |bias| &product + bias))
}

/// A linear layer. Passes with and without a graph compute the same bits, so that activation checkpointing
/// repeats a pass exactly.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` as stored by GPT-2; empty if the weight is quantised.
    pub(crate) weight: Tensor,
    /// The weight in codes, which are frozen.
    pub(crate) quantized: Option<QuantizedMatrix>,
    pub(crate) bias: Option<Tensor>,
    pub(crate) is_conv1d: bool,
    /// The adapter, if the layer has one. The weight is frozen then.
    pub(crate) lora: Option<Box<LoraLinear>>,
}

impl Linear {
    /// Computes `[N, out]` from `x` `[N, in]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        if self.lora.is_some() || self.quantized.is_some() {
            return Ok(self.with_bias(self.matmul(x)?));
        }
        if let Some(product) = self.few_rows(x) {
            return Ok(self.with_bias(product?));
        }
        if let Some(product) = self.matmul_deferring_weight_grad(x) {
            return Ok(self.with_bias(product?));
        }
        Ok(match (&self.bias, self.is_conv1d) {
            (bias, false) => x.linear(&self.weight, bias.as_ref()),
            (Some(bias), true) => bias.addmm(x, &self.weight),
            (None, true) => x.matmul(&self.weight),
        })
    }

    /// [`forward`](Self::forward) without the bias.
    pub fn matmul(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        if let Some(matrix) = &self.quantized {
            return quantized_matmul(x, matrix, self.lora.as_deref());
        }
        if let Some(lora) = &self.lora {
            let weight = self.weight_out_in();
            return lora.forward(
                x,
                move |_| weight.detach(),
                |x| self.few_rows(x).unwrap_or_else(|| Ok(self.libtorch_matmul(x))),
            );
        }
        let product = self.few_rows(x).or_else(|| self.matmul_deferring_weight_grad(x));
        product.unwrap_or_else(|| Ok(self.libtorch_matmul(x)))
    }

    fn libtorch_matmul(&self, x: &Tensor) -> Tensor {
        if self.is_conv1d { x.matmul(&self.weight) } else { x.linear(&self.weight, None::<&Tensor>) }
    }

    /// The weight as `[out, in]`.
    fn weight_out_in(&self) -> Tensor {
        if self.is_conv1d { self.weight.tr() } else { self.weight.shallow_clone() }
    }

    /// The product of a layer that is not trained with few rows, see [`few_rows_linear`].
    fn few_rows(&self, x: &Tensor) -> Option<Result<Tensor, parallel::Error>> {
        if self.weight.requires_grad() {
            return None;
        }
        let weight = self.weight_out_in();
        let product = no_grad(|| few_rows_linear(&x.detach(), &weight, None))?;
        let node = autograd::node(product, &[x], move |grad| vec![Some(grad.matmul(&weight))]);
        Some(node.map_err(parallel::Error::from))
    }

    /// The product, if the computation of the weight's gradient is deferred; otherwise `None`.
    fn matmul_deferring_weight_grad(&self, x: &Tensor) -> Option<Result<Tensor, parallel::Error>> {
        weight_grad_store::linear_deferring_weight_grad(x, &self.weight, self.is_conv1d)
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
            weight: match &self.quantized {
                Some(_) => self.weight.shallow_clone(),
                None => narrow_to(&self.weight, i64::from(self.is_conv1d)),
            },
            quantized: self.quantized.as_ref().map(|matrix| matrix.select_outputs(columns)),
            bias: self.bias.as_ref().map(|bias| narrow_to(bias, 0)),
            is_conv1d: self.is_conv1d,
            lora: self.lora.as_ref().map(|lora| Box::new(lora.select_outputs(columns))),
        }
    }

    /// [`forward`](Self::forward) plus `residual` `[N, out]`, in one operation if there is no bias.
    pub fn forward_add(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, parallel::Error> {
        let Some(residual) = residual else { return self.forward(x) };
        let is_frozen = self.lora.is_some() || self.quantized.is_some();
        if is_frozen || self.bias.is_some() || weight_grad_store::is_deferring() {
            return Ok(self.forward(x)? + residual);
        }
        if let Some(product) = self.few_rows(x) {
            return Ok(product? + residual);
        }
        Ok(residual.addmm(x, &self.weight_out_in().tr()))
    }
}

/// The product of `x` `[N, in]` with a quantised weight, and the output of its adapter. The weight is made of
/// its codes when it is needed, and once more in the backward pass: no graph keeps it.
fn quantized_matmul(
    x: &Tensor,
    matrix: &QuantizedMatrix,
    lora: Option<&LoraLinear>,
) -> Result<Tensor, parallel::Error> {
    let multiply =
        |x: &Tensor| matrix.product(x).unwrap_or_else(|| x.linear(&matrix.dense(x.kind()), None::<&Tensor>));
    let weight = matrix.clone();
    if let Some(lora) = lora {
        return lora.forward(x, move |kind| weight.dense(kind), |x| Ok(multiply(x)));
    }
    let product = no_grad(|| multiply(&x.detach()));
    let node = autograd::node(product, &[x], move |grad| vec![Some(grad.matmul(&weight.dense(grad.kind())))]);
    Ok(node?)
}

#[cfg(test)]
mod tests {
    use parallel::Placement;
    use tch::{Device, Kind};

    use crate::quantize::Quantization;

    use super::*;

    #[test]
    fn a_layer_computes_the_same_bits_without_a_graph() {
        tch::manual_seed(4);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        for (is_conv1d, is_trained) in [(false, false), (false, true), (true, false), (true, true)] {
            let weight = random(&[520, 520]).set_requires_grad(is_trained);
            let layer = Linear { weight, quantized: None, bias: None, is_conv1d, lora: None };
            for rows in [1, 33] {
                let x = random(&[rows, 520]);
                let with_graph = layer.forward(&x.copy().set_requires_grad(true)).unwrap().detach();
                assert_eq!(
                    no_grad(|| layer.forward(&x)).unwrap(),
                    with_graph,
                    "{rows} rows, {is_conv1d} {is_trained}"
                );
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
                quantized: None,
                bias: Some(bias.shallow_clone()),
                is_conv1d,
                lora: None,
            };
            assert!(rows < 300 || few_rows_linear(&x, &weight, None).is_none(), "300 rows are many");
            let exact = x.to_kind(Kind::Double).matmul(&weight.to_kind(Kind::Double).tr()) + &bias;
            let conv1d = weight.tr().contiguous();
            for layer in [linear(&weight, false), linear(&conv1d, true)] {
                let error = (layer.forward(&x).unwrap() - &exact).abs().max().double_value(&[]);
                assert!(error < 1e-4, "{rows} rows: {error}");
                let residual = random(&[rows, 520]);
                let error = layer.forward_add(&x, Some(&residual)).unwrap() - (&exact + &residual);
                assert!(error.abs().max().double_value(&[]) < 1e-4, "{rows} rows with a residual");
            }
        }
    }

    /// Few rows and many, with an adapter and without, fp32 and bf16: outputs and gradients are those of the
    /// layer with the numbers that the codes stand for.
    #[test]
    fn a_quantised_layer_is_the_layer_of_its_numbers() {
        tch::manual_seed(9);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let full = random(&[72, 100]);
        let matrix = QuantizedMatrix::new(Quantization::Nf4, &full, &Placement::Replicate).unwrap();
        let (a, b) = (random(&[4, 100]), random(&[72, 4]));
        let adapter = || {
            let [a, b] = [&a, &b].map(|x| x.copy().set_requires_grad(true));
            Box::new(LoraLinear { a, b, scaling: 0.5, magnitude: None })
        };
        for (rows, has_adapter, kind) in [
            (3, true, Kind::Float),
            (300, true, Kind::Float),
            (300, false, Kind::Float),
            (300, true, Kind::BFloat16),
        ] {
            let dense = matrix.dense(kind);
            let x = random(&[rows, 100]).to_kind(kind);
            let run = |quantized: Option<QuantizedMatrix>| {
                let weight =
                    if quantized.is_some() { Tensor::empty([0], (kind, Device::Cpu)) } else { dense.copy() };
                let lora = has_adapter.then(adapter);
                let layer = Linear { weight, quantized, bias: None, is_conv1d: false, lora };
                let x = x.copy().set_requires_grad(true);
                let output = layer.forward(&x).unwrap();
                let adapter: Vec<&Tensor> = layer.lora.iter().flat_map(|lora| [&lora.a, &lora.b]).collect();
                let inputs = [vec![&x], adapter].concat();
                let mut all =
                    Tensor::run_backward(&[output.square().sum(Kind::Float)], &inputs, false, false);
                all.push(output.detach());
                all
            };
            assert_eq!(run(Some(matrix.clone())), run(None), "{rows} rows, {has_adapter}, {kind:?}");
            let narrow = |quantized: Option<QuantizedMatrix>| {
                let weight = dense.copy();
                let layer = Linear {
                    weight,
                    quantized,
                    bias: None,
                    is_conv1d: false,
                    lora: has_adapter.then(adapter),
                };
                no_grad(|| layer.select_columns(&(8..40)).forward(&x)).unwrap()
            };
            assert_eq!(narrow(Some(matrix.clone())), narrow(None));
        }
    }
}
