//! The adapter of one linear layer.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parallel::autograd;
use parallel::comm::{ProcessGroup, Reduction};
use tch::{Kind, Tensor, no_grad};

use super::inputs;

/// The two matrices of one adapted layer, fp32, of this tensor-parallel rank.
#[derive(Debug)]
pub struct LoraLinear {
    /// `[r, in]`.
    pub(crate) a: Tensor,
    /// `[out, r]`.
    pub(crate) b: Tensor,
    /// The factor of the product.
    pub(crate) scaling: f64,
    /// The magnitudes of DoRA.
    pub(crate) magnitude: Option<Magnitude>,
}

/// What DoRA scales the outputs by.
#[derive(Debug)]
pub(crate) struct Magnitude {
    /// `[out]`, fp32.
    pub(crate) values: Tensor,
    /// The ranks over which the inputs are sharded, each of which knows a part of the norm of a row.
    pub(crate) input_group: Option<Arc<ProcessGroup>>,
    /// The factors of a model that is not trained.
    pub(crate) factors: OnceLock<Tensor>,
}

impl LoraLinear {
    /// The output `[N, out]` of the adapted layer without its bias, from `x` `[N, in]`. `weight` returns the
    /// frozen weight `[out, in]`, in the kind that it is asked for if it is made for the call, and `multiply`
    /// computes the product of its argument with it.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        weight: impl Fn(Kind) -> Tensor + Send + 'static,
        multiply: impl FnOnce(&Tensor) -> Result<Tensor, parallel::Error>,
    ) -> Result<Tensor, parallel::Error> {
        inputs::observe(&self.a, x);
        let product = no_grad(|| multiply(&x.detach()))?;
        let Some(magnitude) = &self.magnitude else { return self.add_to(&product, x, weight) };
        let kind = product.kind();
        let factors = magnitude.factors(self, || weight(kind))?;
        let sum = self.add_to(&product.to_kind(Kind::Float), x, weight)?;
        Ok((sum * factors).to_kind(kind))
    }

    /// Adds the adapter's output to `product` `[N, out]`, which is `x W^T`, as one node of the graph: it
    /// keeps `x` and the `r` numbers of each row between the two matrices.
    fn add_to(
        &self,
        product: &Tensor,
        x: &Tensor,
        weight: impl Fn(Kind) -> Tensor + Send + 'static,
    ) -> Result<Tensor, parallel::Error> {
        let (kind, scaling) = (product.kind(), self.scaling);
        let [a, b, x_value] = [&self.a, &self.b, x].map(Tensor::detach);
        let (output, low) = no_grad(|| {
            let low = x_value.to_kind(Kind::Float).matmul(&a.tr());
            // The product belongs to this call alone, so the sum may take its memory.
            let mut sum = product.to_kind(Kind::Float);
            let _ = sum.addmm_(&(&low * scaling), &b.tr());
            (sum.to_kind(kind), low)
        });

        let needs_x_grad = x.requires_grad();
        let node = autograd::node(output, &[x, &self.a, &self.b], move |grad| {
            let full = grad.to_kind(Kind::Float);
            let low_grad = full.matmul(&b) * scaling;
            let x_grad = needs_x_grad.then(|| input_grad(grad, &weight(x_value.kind()), &low_grad, &a));
            let a_grad = low_grad.tr().matmul(&x_value.to_kind(Kind::Float));
            let b_grad = full.tr().matmul(&(low * scaling));
            vec![x_grad, Some(a_grad), Some(b_grad)]
        });
        Ok(node?)
    }

    /// The adapter of the outputs `outputs` alone.
    #[must_use]
    pub(crate) fn select_outputs(&self, outputs: &Range<i64>) -> Self {
        let narrow = |x: &Tensor| x.narrow(0, outputs.start, outputs.end - outputs.start);
        Self {
            a: self.a.shallow_clone(),
            b: narrow(&self.b),
            scaling: self.scaling,
            magnitude: self.magnitude.as_ref().map(|magnitude| Magnitude {
                values: narrow(&magnitude.values),
                input_group: magnitude.input_group.clone(),
                factors: magnitude.factors.get().map(narrow).map_or_else(OnceLock::new, OnceLock::from),
            }),
        }
    }

    /// `W + s B A`, or with magnitudes its rows scaled by their factors: the weight of a layer without an
    /// adapter that computes the same, `[out, in]` in fp32.
    pub(crate) fn merged(&self, weight: &Tensor) -> Result<Tensor, parallel::Error> {
        let factors = self.magnitude.as_ref();
        let factors = factors.map(|magnitude| magnitude.factors(self, || weight.detach())).transpose()?;
        Ok(no_grad(|| {
            let sum = weight.to_kind(Kind::Float) + self.b.matmul(&self.a) * self.scaling;
            factors.map_or_else(|| sum.shallow_clone(), |factors| &sum * factors.unsqueeze(1))
        }))
    }

    /// The norms `|W + s B A|` of the rows of the adapted weight, `[out]`, from `|w|^2 + 2 s (W A^T) . B +
    /// s^2 (B A A^T) . B`, which needs no second matrix of the size of `W`.
    fn row_norms(
        &self,
        weight: &Tensor,
        input_group: Option<&ProcessGroup>,
    ) -> Result<Tensor, parallel::Error> {
        let squares = no_grad(|| {
            let (weight, a, b) = (weight.to_kind(Kind::Float), self.a.detach(), self.b.detach());
            let sum = |x: &Tensor| x.sum_dim_intlist(-1, false, Kind::Float);
            let mixed = weight.matmul(&a.tr()) * (2.0 * self.scaling);
            let own = b.matmul(&a.matmul(&a.tr())) * self.scaling.powi(2);
            sum(&weight.square()) + sum(&((mixed + own) * b))
        });
        if let Some(group) = input_group {
            group.all_reduce(&squares, Reduction::Sum)?;
        }
        Ok(no_grad(|| squares.clamp_min(0.0).sqrt()))
    }
}

/// The gradient `grad W + low_grad A` of the input, in the kind of the weight; `low_grad` is that of `x A^T`.
fn input_grad(grad: &Tensor, weight: &Tensor, low_grad: &Tensor, a: &Tensor) -> Tensor {
    let kind = weight.kind();
    let mut product = grad.to_kind(kind).matmul(weight);
    if kind == Kind::Float {
        return product.addmm_(low_grad, a);
    }
    (product.to_kind(Kind::Float) + low_grad.matmul(a)).to_kind(kind)
}

impl Magnitude {
    /// `m / |W + s B A|`, `[out]`. The norm has no gradient.
    fn factors(&self, lora: &LoraLinear, weight: impl Fn() -> Tensor) -> Result<Tensor, parallel::Error> {
        let compute = || Ok(&self.values / lora.row_norms(&weight(), self.input_group.as_deref())?);
        if self.values.requires_grad() {
            return compute();
        }
        if let Some(factors) = self.factors.get() {
            return Ok(factors.shallow_clone());
        }
        let factors = compute()?;
        Ok(self.factors.get_or_init(|| factors).shallow_clone())
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    struct Layer {
        x: Tensor,
        weight: Tensor,
        a: Tensor,
        b: Tensor,
        magnitudes: Tensor,
    }

    impl Layer {
        /// Five rows, six inputs, seven outputs, rank two.
        fn random() -> Self {
            tch::manual_seed(11);
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
            let [x, weight, a, b] = [[5, 6], [7, 6], [2, 6], [7, 2]].map(|shape| random(&shape));
            Self { x, weight, a, b, magnitudes: random(&[7]).abs() + 0.5 }
        }

        /// The output and the gradients of `x`, `A`, `B` and the magnitudes, for an output gradient.
        fn gradients(&self, kind: Kind, is_dora: bool, output: &dyn Fn(&Self) -> Tensor) -> Vec<Tensor> {
            let leaf = |x: &Tensor| x.to_kind(kind).detach().set_requires_grad(true);
            let leaves = Self {
                x: leaf(&self.x),
                weight: self.weight.to_kind(kind),
                a: leaf(&self.a),
                b: leaf(&self.b),
                magnitudes: leaf(&self.magnitudes),
            };
            let found = output(&leaves);
            let seed = Tensor::arange(35, (Kind::Double, Device::Cpu)).sin().view([5, 7]).to_kind(kind);
            let mut wanted = vec![&leaves.x, &leaves.a, &leaves.b];
            wanted.extend(is_dora.then_some(&leaves.magnitudes));
            let mut all = Tensor::run_backward(&[(&found * seed).sum(kind)], &wanted, false, false);
            all.push(found.detach());
            all
        }
    }

    #[test]
    fn outputs_and_gradients_are_those_of_the_formula() {
        let layer = Layer::random();
        for is_dora in [false, true] {
            let exact = layer.gradients(Kind::Double, is_dora, &|Layer { x, weight, a, b, magnitudes }| {
                let sum = x.matmul(&weight.tr()) + x.matmul(&a.tr()).matmul(&b.tr()) * 1.5;
                let merged = (weight + b.matmul(a) * 1.5).detach();
                let norms = merged.square().sum_dim_intlist(1, false, Kind::Double).sqrt();
                if is_dora { sum * (magnitudes / norms) } else { sum }
            });
            let found = layer.gradients(Kind::Float, is_dora, &|Layer { x, weight, a, b, magnitudes }| {
                let magnitude = is_dora.then(|| Magnitude {
                    values: magnitudes.shallow_clone(),
                    input_group: None,
                    factors: OnceLock::new(),
                });
                let lora = LoraLinear { a: a.shallow_clone(), b: b.shallow_clone(), scaling: 1.5, magnitude };
                let frozen = weight.shallow_clone();
                lora.forward(x, move |_| frozen.detach(), |x| Ok(x.matmul(&weight.tr()))).unwrap()
            });
            for (index, (exact, found)) in exact.iter().zip(found).enumerate() {
                let error = (exact - found).abs().max().double_value(&[]);
                assert!(error < 1e-5, "{is_dora}, {index}: {error}");
            }
        }
    }

    #[test]
    fn some_outputs_are_those_of_the_whole_layer() {
        let Layer { x, weight, a, b, magnitudes } = Layer::random();
        let [x, weight, a, b, values] = [x, weight, a, b, magnitudes].map(|x| x.to_kind(Kind::Float));
        let magnitude = Magnitude { values, input_group: None, factors: OnceLock::new() };
        let lora = LoraLinear { a, b, scaling: 0.5, magnitude: Some(magnitude) };
        let output = |lora: &LoraLinear, weight: &Tensor| {
            let frozen = weight.shallow_clone();
            lora.forward(&x, move |_| frozen.detach(), |x| Ok(x.matmul(&weight.tr()))).unwrap()
        };
        let selected = output(&lora.select_outputs(&(2..5)), &weight.narrow(0, 2, 3));
        let whole = output(&lora, &weight).narrow(1, 2, 3);
        assert!((selected - whole).abs().max().double_value(&[]) < 1e-6);
    }
}
