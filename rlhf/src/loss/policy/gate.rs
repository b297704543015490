//! SAPO: a soft gate in place of the clip.
//!
//! ```text
//!   L = -A (4 / tau) sigmoid(tau (rho - 1));    tau of positive advantages, or of all others
//! ```
//! Gao et al. 2025 (arXiv 2511.20347). At rho = 1 the gradient is `-A d(log p)`, as in PPO, and it falls on
//! both sides. There is no bound that a token could be stopped by.

use tch::Tensor;

use super::clip::{Ratios, TokenLosses};

/// The gated loss of each token. `temperatures` are those of positive advantages and of all others.
pub(super) fn sapo(ratios: &Ratios, temperatures: [f64; 2]) -> TokenLosses {
    let gate = |temperature: f64| -> Tensor {
        ((&ratios.ratio - 1.0) * temperature).sigmoid() * (4.0 / temperature)
    };
    let [positive, others] = temperatures.map(gate);
    let gates = positive.where_self(&ratios.advantages.gt(0.0), &others);
    TokenLosses::without_bounds(-(gates * &ratios.advantages), ratios)
}
