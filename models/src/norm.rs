//! Norms over the last dimension of `x` `[.., H]`.

use parallel::autograd;
use parallel::dispatch::{self, Value};
use parallel::kernels::rms_norm;
use tch::{Kind, Tensor, no_grad};

use crate::architecture::NormKind;

/// A norm over the last dimension.
#[derive(Debug)]
pub struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f64,
    pub(crate) size: i64,
    pub(crate) weight: Option<Tensor>,
    pub(crate) bias: Option<Tensor>,
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
}
