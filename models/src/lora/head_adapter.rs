//! What an adapter adds to the logits of a vocabulary head: rows of single tokens, or a low-rank product.
//!
//! ```text
//!   rows      z_v = W[v] h + (R[i] - W[v]) h     for the i-th of the trained tokens, v
//!   product   z = W h + s B A h                  dA = s (B^T dz) h^T     dB = s dz (A h)^T
//!                                                dh = W^T dz + s A^T B^T dz
//! ```
//! `W` `[V, H]` and `B` `[V, r]` have the tokens of this tensor-parallel rank, `A` is `[r, H]`. The caller
//! knows what the table itself brings to logits and gradients. Logits are rounded to the dtype of the model,
//! in training as in generation.

use tch::{Kind, Tensor};

use super::linear::LoraLinear;
use super::token_rows::{RowDifferences, TokenRows};

/// The adapter of a head.
#[derive(Debug)]
pub enum HeadAdapter {
    /// Rows that take the place of those of the table.
    Rows(TokenRows),
    /// A low-rank product beside the table, without magnitudes.
    Product(LoraLinear),
}

impl HeadAdapter {
    /// The trained tensors.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Self::Rows(rows) => vec![rows.values()],
            Self::Product(lora) => vec![&lora.a, &lora.b],
        }
    }

    /// What the adapter adds to the products with `table` `[V, H]`; `None` if it adds nothing on this rank.
    pub(crate) fn addition(&self, table: &Tensor) -> Option<Addition> {
        match self {
            Self::Rows(rows) => rows.differences(table).map(Addition::Rows),
            Self::Product(LoraLinear { a, b, scaling, .. }) => {
                Some(Addition::Product { a: a.shallow_clone(), b: b.shallow_clone(), scaling: *scaling })
            }
        }
    }
}

/// What an adapter adds to the logits of a table.
pub(crate) enum Addition {
    /// The differences of rows.
    Rows(RowDifferences),
    /// The product `s B A`.
    Product {
        /// `[r, H]`.
        a: Tensor,
        /// `[V, r]`.
        b: Tensor,
        /// The factor of the product.
        scaling: f64,
    },
}

impl Addition {
    /// The logits `[N, V]` of hidden states `[N, H]` from those of the table, `logits`, whose memory they may
    /// take.
    pub(crate) fn add_to(&self, logits: Tensor, hidden: &Tensor) -> Tensor {
        match self {
            Self::Rows(rows) => rows.add_to(logits, hidden),
            Self::Product { a, b, scaling } => {
                let low = hidden.to_kind(Kind::Float).matmul(&a.tr()) * *scaling;
                (logits.to_kind(Kind::Float) + low.matmul(&b.tr())).to_kind(logits.kind())
            }
        }
    }

    /// The gradient of hidden states `[N, H]` from that of the logits `[N, V]`, and from the part of it that
    /// the table has, `of_table`.
    pub(crate) fn hidden_grad(&self, of_table: &Tensor, grad_logits: &Tensor) -> Tensor {
        let own = match self {
            Self::Rows(rows) => rows.hidden_grad(grad_logits),
            Self::Product { a, b, scaling } => {
                (grad_logits.to_kind(Kind::Float).matmul(b) * *scaling).matmul(a)
            }
        };
        (of_table.to_kind(Kind::Float) + own).to_kind(of_table.kind())
    }

    /// Adds the gradients of the [trained tensors](HeadAdapter::tensors) to `sums`, fp32. The caller runs it
    /// without a graph.
    pub(crate) fn add_grads(&self, sums: &mut [&mut Tensor], hidden: &Tensor, grad_logits: &Tensor) {
        match (self, sums) {
            (Self::Rows(rows), [sum]) => rows.add_grad(sum, hidden, grad_logits),
            (Self::Product { a, b, scaling }, [of_a, of_b]) => {
                let hidden = hidden.to_kind(Kind::Float);
                let grad = grad_logits.to_kind(Kind::Float) * *scaling;
                let _ = of_a.addmm_(&grad.matmul(b).tr(), &hidden);
                let _ = of_b.addmm_(&grad.tr(), &hidden.matmul(&a.tr()));
            }
            _ => unreachable!("there is a sum for each trained tensor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn a_product_has_the_logits_and_gradients_of_autograd() {
        tch::manual_seed(15);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (table, hidden, grad_logits) = (random(&[7, 5]), random(&[4, 5]), random(&[4, 7]));
        let (a, b) = (random(&[2, 5]), random(&[7, 2]));
        let leaves = [&hidden, &a, &b].map(|x| x.copy().set_requires_grad(true));
        let [x, leaf_a, leaf_b] = &leaves;
        let exact = x.matmul(&table.tr()) + x.matmul(&leaf_a.tr()).matmul(&leaf_b.tr()) * 0.5;
        let loss = (&exact * &grad_logits).sum(Kind::Float);
        let grads = Tensor::run_backward(&[loss], &[x, leaf_a, leaf_b], false, false);

        let lora = LoraLinear { a, b, scaling: 0.5, magnitude: None };
        let addition = HeadAdapter::Product(lora).addition(&table).unwrap();
        let logits = addition.add_to(hidden.matmul(&table.tr()), &hidden);
        let hidden_grad = addition.hidden_grad(&grad_logits.matmul(&table), &grad_logits);
        let mut sums = [&leaves[1], &leaves[2]].map(|x| x.detach().zeros_like());
        let [of_a, of_b] = &mut sums;
        addition.add_grads(&mut [of_a, of_b], &hidden, &grad_logits);
        let found = [&logits, &hidden_grad, &sums[0], &sums[1]];
        let expected = [&exact, &grads[0], &grads[1], &grads[2]];
        for (index, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let error = (found - expected.detach()).abs().max().double_value(&[]);
            assert!(error < 1e-5, "{index}: {error}");
        }
    }
}
