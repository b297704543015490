//! The load-balancing auxiliary loss of mixture-of-experts layers (Fedus et al. 2021, arXiv 2101.03961,
//! equation 4).
//!
//! It is computed per row, so it does not depend on the other rows of the batch. For a row of `T` tokens and
//! `E` experts it is `E sum_e (C_e / T) (S_e / T)`, where `C_e` tokens chose expert `e` and `S_e` is the sum
//! of its router probabilities. The rows are weighted by their numbers of tokens, and the layers are
//! averaged.

use std::sync::Arc;

use parallel::comm::{ProcessGroup, Reduction};
use parallel::mappings;
use tch::{Kind, Tensor, no_grad};

/// The load-balancing loss of a batch: the inputs that all its layers share.
/// transformers: `load_balancing_loss_func`; per row, Megatron's `seq_aux_loss`.
#[derive(Debug)]
pub struct LoadBalancingLoss {
    /// The row of each of this rank's tokens, int64 `[n]`.
    pub(crate) row_index: Tensor,
    /// The number of tokens of each row, fp32 `[R]`.
    pub(crate) lengths: Tensor,
    /// 1 for each of this rank's tokens that counts and 0 for the others, fp32 `[n]`; `None` if all tokens
    /// count.
    pub(crate) unique_mask: Option<Tensor>,
    /// The weight of one token: the model's coefficient divided by the number of tokens in the optimizer
    /// step.
    pub(crate) coef: f64,
    /// The ranks that hold other tokens of the same rows.
    pub(crate) group: Option<Arc<ProcessGroup>>,
}

impl LoadBalancingLoss {
    /// The loss of one layer, a scalar, from the router probabilities `[n, E]` and the chosen experts
    /// `[n, k]`.
    pub(crate) fn layer_loss(
        &self,
        router_probs: &Tensor,
        topk_indices: &Tensor,
    ) -> Result<Tensor, parallel::Error> {
        let sums = |x: &Tensor| {
            let x =
                self.unique_mask.as_ref().map_or_else(|| x.shallow_clone(), |counts| x * counts.unsqueeze(1));
            let zeros =
                Tensor::zeros([self.lengths.size()[0], router_probs.size()[1]], (Kind::Float, x.device()));
            zeros.index_add(0, &self.row_index, &x)
        };

        let tokens_per_expert =
            no_grad(|| sums(&router_probs.zeros_like().scatter_value(1, topk_indices, 1.0)));
        let mut router_prob_sums = sums(router_probs);

        if let Some(group) = &self.group {
            group.all_reduce(&tokens_per_expert, Reduction::Sum)?;
            router_prob_sums = mappings::reduce_from_region(&router_prob_sums, group)?;
        }

        let factor = self.coef * router_probs.size()[1] as f64;
        Ok((tokens_per_expert * router_prob_sums / self.lengths.unsqueeze(1)).sum(Kind::Float) * factor)
    }
}
