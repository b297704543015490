//! The losses of reinforcement learning from human feedback, as sums over tokens or pairs.
//!
//! ```text
//!   policy   rho_t = exp(log p_t - log p_old_t)
//!            sum_t w_t max(-A_t rho_t, -A_t clip(rho_t, 1 - low, 1 + high))        and, with a dual clip c, for A_t < 0
//!            no more than -c A_t
//!   value    sum_t w_t 0.5 max((V_t - R_t)^2, (clip(V_t, Vold_t - e, Vold_t + e) - R_t)^2)
//!   entropy  -coefficient sum_t w_t H_t
//!   reward   sum_i -log sigmoid(c_i - r_i - margin_i) + centering (c_i + r_i)^2
//! ```
//! Policy: Schulman et al. 2017 (arXiv 1707.06347), equation 7; unequal clips: Yu et al. 2025 (arXiv 2503.14476), equation 10;
//! dual clip: Ye et al. 2020 (arXiv 1912.09729), equation 5. Value: `openai/baselines` ppo2, with the factor 0.5 inside.
//! Reward: Ouyang et al. 2022 (arXiv 2203.02155), equation 1; margin: Touvron et al. 2023 (arXiv 2307.09288), equation 2;
//! centering: Eisenstein et al. 2023 (arXiv 2312.09244).
//!
//! Every loss is a *sum*: the caller divides by a count over the whole optimiser step ([`crate::reduction`]), so micro-batches change
//! nothing. `w` are weights of that module, 1 without them; at weight 0 the other inputs may be anything, NaN included, and
//! counts leave the token out. Everything is computed in fp32 at least. Shape `[N]`: tokens, `[B]`: pairs; what would
//! broadcast is refused. Knows no model.

mod policy;
mod value;

pub use policy::{PolicyClip, PolicyLoss, PolicyStatistics, policy};
pub use value::{ValueLoss, ValueStatistics, value};

use tch::{Kind, Tensor};

use crate::{Error, check};

/// What a pair's preferred reply must beat the other by, and its sum over pairs.
///
/// `chosen` and `rejected` `[B]`, `margin` `[B]`; `centering` weighs the squared sum of the two scores (0.01 is usual, 0 is off).
/// Finite for any finite scores: the stable form of log sigmoid is linear for large differences.
pub fn reward(
    chosen: &Tensor,
    rejected: &Tensor,
    margin: Option<&Tensor>,
    centering: f64,
) -> Result<Tensor, Error> {
    let shape = chosen.size();
    check::shape("the rejected scores", rejected, &shape)?;
    let (chosen, rejected) = (check::widen(chosen), check::widen(rejected));
    let mut difference = &chosen - &rejected;
    if let Some(margin) = margin {
        check::shape("the margins", margin, &shape)?;
        difference -= check::widen(margin);
    }
    let loss = -difference.log_sigmoid().sum(None);
    if centering == 0.0 {
        return Ok(loss);
    }
    Ok(loss + (chosen + rejected).square().sum(None) * centering)
}

/// The entropy bonus as a loss: `-coefficient sum_t w_t H_t` over the entropies `[N]` of the policy before each token.
pub fn entropy_bonus(
    entropies: &Tensor,
    weights: Option<&Tensor>,
    coefficient: f64,
) -> Result<Tensor, Error> {
    let tokens = Tokens::new(entropies, weights)?;
    Ok(tokens.sum(&tokens.keep(check::widen(entropies))) * -coefficient)
}

/// The tokens of one call: how much each counts, and which do not.
struct Tokens<'a> {
    shape: Vec<i64>,
    weights: Option<&'a Tensor>,
    left_out: Option<Tensor>,
}

impl<'a> Tokens<'a> {
    fn new(like: &Tensor, weights: Option<&'a Tensor>) -> Result<Self, Error> {
        let shape = like.size();
        if let Some(weights) = weights {
            check::shape("the weights of the tokens", weights, &shape)?;
        }
        Ok(Self { shape, weights, left_out: weights.map(|weights| weights.eq(0.0)) })
    }

    /// A constant of the loss in fp32 at least, zero at tokens that are left out.
    fn constant(&self, what: &'static str, values: &Tensor) -> Result<Tensor, Error> {
        check::shape(what, values, &self.shape)?;
        Ok(self.keep(check::widen(&values.detach())))
    }

    /// Zero, with gradient zero, at tokens that are left out.
    fn keep(&self, values: Tensor) -> Tensor {
        match &self.left_out {
            Some(left_out) => values.masked_fill(left_out, 0.0),
            None => values,
        }
    }

    /// The weighted sum.
    fn sum(&self, losses: &Tensor) -> Tensor {
        match self.weights {
            Some(weights) => (losses * weights).sum(None),
            None => losses.sum(None),
        }
    }

    /// Sums of several quantities over the tokens that are not left out, in one transfer from the device.
    fn statistics<const K: usize>(&self, quantities: [Tensor; K]) -> [f64; K] {
        let quantities = quantities.map(|quantity| self.keep(quantity.detach().to_kind(Kind::Double)));
        let sums = Tensor::stack(&quantities, 0).flatten(1, -1).sum_dim_intlist(1, false, Kind::Double);
        check::read(&sums).try_into().expect("one sum for each quantity")
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests;
