//! The losses of pairs of a chosen and a rejected completion, one number for each pair.
//!
//! ```text
//!   u = log p(y_w) - log q(y_w)   the log-ratio of the chosen completion; q is the reference
//!   v = log p(y_l) - log q(y_l)   the log-ratio of the rejected completion
//!   h = f(u) - f(v)               f is the identity, or the derivative of another f-divergence
//!   e                             label_smoothing, the probability that a label is wrong
//!   S = log sigmoid
//! ```
//! | `[dpo] loss` | loss of a pair | source |
//! |---|---|---|
//! | `sigmoid` | `-S(b h)` | Rafailov et al. 2023, arXiv 2305.18290, equation 7 |
//! | `cdpo` | `-(1-e) S(b h) - e S(-b h)` | Mitchell 2023, a note on DPO with noisy preferences |
//! | `robust` | `(-(1-e) S(b h) + e S(-b h)) / (1 - 2e)` | Chowdhury et al. 2024, arXiv 2403.00409 (10) |
//! | `hinge` | `max(0, 1 - b h)` | Zhao et al. 2023, arXiv 2305.10425 |
//! | `ipo` | `(h' - 1/(2b))^2`, h' with each side over its tokens | Azar et al. 2023, arXiv 2310.12036 (17) |
//! | `sigmoid_norm` | `-S(b h')` | Meng et al. 2024, arXiv 2405.14734, with a reference |
//! | `exo` | `KL((s(bh), s(-bh)) \|\| (1-e, e))` | Ji et al. 2024, arXiv 2402.00856, equation 16 |
//! | `nca` | `-S(bu) - S(-bu)/2 - S(-bv)/2` | Chen et al. 2024, arXiv 2402.05369 |
//! | `bco` | `-S(bu) - S(-bv)`, without a moving threshold | Jung et al. 2024, arXiv 2404.04656 |
//! | `sppo_hard` | `(u - 1/(2b))^2 + (v + 1/(2b))^2` | Wu et al. 2024, arXiv 2405.00675, equation 4.7 |
//! | `aot` | `cdpo` of both margins, each sorted over the step | Melnyk et al. 2024, arXiv 2406.05882 |
//! | `aot_unpaired` | `cdpo` of u and v, each sorted over the step | the same |
//! | `apo_zero` | `1 - s(bu) + s(bv)` | D'Oosterlinck et al. 2024, arXiv 2408.06266, equation 7 |
//! | `apo_down` | `s(bu) + 1 - s(b(u - v))` | the same, equation 8 |
//! | `dpop` | `-S(b (h - l max(0, -u)))`, `l = dpop_lambda` | Pal et al. 2024, arXiv 2402.13228, equation 3 |
//! | `discopop` | `-S(bh) (1-m) + exp(-bh) m`, `m = s(bh / tau)` | Lu et al. 2024, arXiv 2406.08414 (5) |
//!
//! `sft` in the list of `[dpo] loss` adds the cross-entropy of the chosen completion (Pang et al. 2024, arXiv
//! 2404.19733). Without a reference:
//!
//! | algorithm | loss of a pair | source |
//! |---|---|---|
//! | ORPO | `-b S(log odds(w) - log odds(l))` | Hong et al. 2024, arXiv 2403.07691, equation 7 |
//! | `SimPO` | `-S(b (m_w - m_l) - gamma)` | Meng et al. 2024, arXiv 2405.14734, equation 6 |
//! | CPO | `-S(b (log p(y_w) - log p(y_l)))` | Xu et al. 2024, arXiv 2401.08417, equation 3 |
//!
//! m is the mean log-probability of a token, and `log odds = m - log(1 - exp m)`. A number in brackets is that
//! of an equation. ORPO and CPO add the cross-entropy of the chosen completion. Tensors are `[B]` over pairs, in fp64.

use datasets::OneOrMany;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::Error;
use crate::setting::{not_negative, positive, refuse};

/// The pairs of a micro-batch, as their loss sees them. Tensors are `[B]`.
#[derive(Debug)]
pub struct Pairs {
    /// The chosen completions.
    pub chosen: Side,
    /// The rejected completions.
    pub rejected: Side,
    /// The constants of [`PreferenceLoss::constants`].
    pub constants: Vec<Tensor>,
}

/// One completion of each pair.
#[derive(Debug)]
pub struct Side {
    /// `log p(y|x)` under the policy, with a gradient.
    pub logprobs: Tensor,
    /// The same under the reference; zeros without a reference.
    pub reference: Tensor,
    /// The number of tokens.
    pub lengths: Tensor,
    /// The mean of `log p(y_t) - log sum_v p_v^2` over the tokens, if the loss reads it.
    pub alignment: Option<Tensor>,
}

impl Side {
    fn log_ratios(&self) -> Tensor {
        &self.logprobs - &self.reference
    }

    fn means(&self) -> Tensor {
        &self.logprobs / &self.lengths
    }
}

/// The cross-entropy of the chosen completions, as a term of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NllTerm {
    /// Its weight.
    pub weight: f64,
    /// Whether the tokens of the prompt count as well.
    pub reads_prompt: bool,
}

/// A loss of pairs.
pub trait PreferenceLoss {
    /// The loss of each pair, `[B]`.
    fn losses(&self, pairs: &Pairs) -> Tensor;

    /// The rewards that the policy implies for the chosen and the rejected completions, for metrics.
    fn rewards(&self, pairs: &Pairs) -> [Tensor; 2];

    /// Whether there is a reference model.
    fn has_reference(&self) -> bool {
        false
    }

    /// The cross-entropy term, if there is one. It is the mean over the tokens of the step.
    fn nll(&self) -> Option<NllTerm> {
        None
    }

    /// The weight of the tokens that only the longer completion of a pair has.
    fn tail_weight(&self) -> Option<f64> {
        None
    }

    /// Whether [`Side::alignment`] is read.
    fn reads_alignment(&self) -> bool {
        false
    }

    /// Whether the loss of a pair depends on the other pairs of its step, by [`constants`](Self::constants).
    fn compares_pairs(&self) -> bool {
        false
    }

    /// For each pair of a step, constants of its loss, from the log-probabilities of all pairs of the step:
    /// chosen and rejected in turn.
    fn constants(&self, _policy: &[f64], _reference: &[f64]) -> Vec<Vec<f64>> {
        Vec::new()
    }

    /// Refuses settings out of bounds.
    fn check(&self) -> Result<(), Error>;
}

/// A loss of the family of DPO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the table of the module has their formulas")]
pub enum DpoLoss {
    Sigmoid,
    Hinge,
    Ipo,
    Robust,
    Cdpo,
    #[serde(alias = "exo_pair")]
    Exo,
    #[serde(alias = "nca_pair")]
    Nca,
    #[serde(alias = "bco_pair")]
    Bco,
    SppoHard,
    Aot,
    AotUnpaired,
    ApoZero,
    ApoDown,
    Discopop,
    Dpop,
    SigmoidNorm,
    Sft,
}

impl DpoLoss {
    /// Whether the loss reads `f(u)` and `f(v)`, and not the log-ratios themselves.
    fn reads_divergence(self) -> bool {
        use DpoLoss::{Cdpo, Discopop, Exo, Hinge, Ipo, Robust, Sigmoid, SigmoidNorm};
        matches!(self, Sigmoid | Hinge | Ipo | Robust | Cdpo | Exo | Discopop | SigmoidNorm)
    }

    fn reads_smoothing(self) -> bool {
        matches!(self, Self::Robust | Self::Cdpo | Self::Exo | Self::Aot | Self::AotUnpaired)
    }

    fn compares_pairs(self) -> bool {
        matches!(self, Self::Aot | Self::AotUnpaired)
    }
}

/// The divergence from the reference that DPO constrains (Wang et al. 2023, arXiv 2309.16240).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name says it")]
pub enum FDivergence {
    #[default]
    ReverseKl,
    ForwardKl,
    JsDivergence,
    AlphaDivergence,
}

/// What `ipo` divides the log-ratios by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpoReduction {
    /// The number of tokens: TRL, as the authors use it.
    #[default]
    Mean,
    /// Nothing: `OpenRLHF`.
    Sum,
}

/// The `[dpo]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DpoConfig {
    /// The strength of the tie to the reference.
    pub beta: f64,
    /// The loss, or a list of losses that are added.
    /// TRL: `loss_type`.
    pub loss: OneOrMany<DpoLoss>,
    /// The weight of each loss of the list. Empty: 1 each.
    pub loss_weights: Vec<f64>,
    /// The probability that a label is wrong, which `cdpo`, `robust`, `exo` and `aot` take into account.
    pub label_smoothing: f64,
    /// The divergence from the reference: `reverse_kl`, `forward_kl`, `js_divergence`, or `alpha_divergence`
    /// of the order `f_alpha`.
    /// TRL: `f_divergence_type`.
    pub f_divergence: FDivergence,
    /// The order of `alpha_divergence`.
    pub f_alpha: f64,
    /// Whether `ipo` divides a log-ratio by the number of its tokens (`mean`) or not (`sum`).
    pub ipo_reduction: IpoReduction,
    /// The temperature of `discopop`.
    pub discopop_tau: f64,
    /// How much `dpop` counts a chosen completion that has become less likely than under the reference.
    pub dpop_lambda: f64,
    /// Whether a pair is weighted by how likely the policy is to write it (WPO; Zhou et al. 2024, arXiv
    /// 2406.11827, equation 2).
    pub use_weighting: bool,
    /// The weight of the tokens that only the longer completion of a pair has (LD-DPO; Liu et al. 2024, arXiv
    /// 2409.06411). If absent, 1.
    pub ld_alpha: Option<f64>,
    /// Whether the reference is taken to give every completion the same probability, so that none is loaded.
    pub reference_free: bool,
}

impl Default for DpoConfig {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss: OneOrMany(vec![DpoLoss::Sigmoid]),
            loss_weights: Vec::new(),
            label_smoothing: 0.0,
            f_divergence: FDivergence::ReverseKl,
            f_alpha: 0.5,
            ipo_reduction: IpoReduction::Mean,
            discopop_tau: 0.05,
            dpop_lambda: 50.0,
            use_weighting: false,
            ld_alpha: None,
            reference_free: false,
        }
    }
}

impl DpoConfig {
    /// The losses with their weights.
    fn weighted(&self) -> impl Iterator<Item = (DpoLoss, f64)> {
        let weights = self.loss_weights.iter().copied().chain(std::iter::repeat(1.0));
        self.loss.0.iter().copied().zip(weights)
    }

    fn any(&self, property: fn(DpoLoss) -> bool) -> bool {
        self.loss.0.iter().any(|&loss| property(loss))
    }

    /// `f(u)`: the derivative of the divergence at the ratio `exp u`, up to a constant.
    fn divergence(&self, log_ratios: &Tensor) -> Tensor {
        // Beyond this, exp has no finite value in fp32.
        const MOST: f64 = 80.0;
        let order = self.f_alpha - 1.0;
        match self.f_divergence {
            FDivergence::ForwardKl => 1.0 - (-log_ratios).exp(),
            FDivergence::JsDivergence => log_ratios.log_sigmoid() + std::f64::consts::LN_2,
            FDivergence::AlphaDivergence if order.abs() >= 1e-6 => {
                ((log_ratios * order).clamp_max(MOST).exp() - 1.0) / order
            }
            FDivergence::ReverseKl | FDivergence::AlphaDivergence => log_ratios.shallow_clone(),
        }
    }

    /// The loss of each pair under one loss of the family.
    fn losses_of(&self, loss: DpoLoss, pairs: &Pairs) -> Tensor {
        let beta = self.beta;
        let Pairs { chosen, rejected, constants } = pairs;
        let (u, v) = (chosen.log_ratios(), rejected.log_ratios());
        let [score_w, score_l] = [&u, &v].map(|log_ratios| self.divergence(log_ratios));
        let bh = (&score_w - &score_l) * beta;
        let normalized = || &score_w / &chosen.lengths - &score_l / &rejected.lengths;
        let smoothing = self.label_smoothing;
        let smoothed = |x: &Tensor| -(x.log_sigmoid() * (1.0 - smoothing)) - (-x).log_sigmoid() * smoothing;
        match loss {
            DpoLoss::Sigmoid => -bh.log_sigmoid(),
            DpoLoss::Cdpo => smoothed(&bh),
            DpoLoss::Robust => {
                (-(bh.log_sigmoid() * (1.0 - smoothing)) + (-&bh).log_sigmoid() * smoothing)
                    / (1.0 - 2.0 * smoothing)
            }
            DpoLoss::Hinge => (-bh + 1.0).relu(),
            DpoLoss::Ipo => {
                let h = match self.ipo_reduction {
                    IpoReduction::Mean => normalized(),
                    IpoReduction::Sum => &score_w - &score_l,
                };
                (h - 0.5 / beta).square()
            }
            DpoLoss::SigmoidNorm => -(normalized() * beta).log_sigmoid(),
            DpoLoss::Exo => {
                let term = |x: &Tensor, target: f64| x.sigmoid() * (x.log_sigmoid() - target.ln());
                term(&bh, 1.0 - smoothing) + term(&-&bh, smoothing)
            }
            DpoLoss::Nca => {
                let (u, v) = (u * beta, v * beta);
                -u.log_sigmoid() - ((-&u).log_sigmoid() + (-v).log_sigmoid()) * 0.5
            }
            DpoLoss::Bco => -(u * beta).log_sigmoid() - (v * -beta).log_sigmoid(),
            DpoLoss::SppoHard => (u - 0.5 / beta).square() + (v + 0.5 / beta).square(),
            DpoLoss::Aot => smoothed(&((&chosen.logprobs - &rejected.logprobs - &constants[0]) * beta)),
            DpoLoss::AotUnpaired => {
                let of_chosen = smoothed(&((u - &constants[1]) * beta));
                let of_rejected = smoothed(&((&constants[2] - v) * beta));
                // Both sides of a sorted pair have its gradient, and one of them its value.
                let value = of_rejected.detach();
                of_chosen + of_rejected - value
            }
            DpoLoss::ApoZero => 1.0 - (u * beta).sigmoid() + (v * beta).sigmoid(),
            DpoLoss::ApoDown => (&u * beta).sigmoid() + 1.0 - ((u - v) * beta).sigmoid(),
            DpoLoss::Discopop => {
                let mixture = (&bh / self.discopop_tau).sigmoid();
                let logistic: Tensor = 1.0 - &mixture;
                (-&bh).exp() * mixture - bh.log_sigmoid() * logistic
            }
            DpoLoss::Dpop => -((&u - v - (-u).relu() * self.dpop_lambda) * beta).log_sigmoid(),
            DpoLoss::Sft => u.zeros_like(),
        }
    }
}

impl PreferenceLoss for DpoConfig {
    fn losses(&self, pairs: &Pairs) -> Tensor {
        let mut losses = pairs.chosen.logprobs.zeros_like();
        for (loss, weight) in self.weighted() {
            losses += self.losses_of(loss, pairs) * weight;
        }
        match (&pairs.chosen.alignment, &pairs.rejected.alignment) {
            (Some(chosen), Some(rejected)) => losses * (chosen + rejected).exp(),
            _ => losses,
        }
    }

    fn rewards(&self, pairs: &Pairs) -> [Tensor; 2] {
        [&pairs.chosen, &pairs.rejected].map(|side| side.log_ratios() * self.beta)
    }

    fn has_reference(&self) -> bool {
        !self.reference_free
    }

    fn nll(&self) -> Option<NllTerm> {
        let weight: f64 =
            self.weighted().filter(|(loss, _)| *loss == DpoLoss::Sft).map(|(_, weight)| weight).sum();
        (weight != 0.0).then_some(NllTerm { weight, reads_prompt: false })
    }

    fn tail_weight(&self) -> Option<f64> {
        self.ld_alpha
    }

    fn reads_alignment(&self) -> bool {
        self.use_weighting
    }

    fn compares_pairs(&self) -> bool {
        self.any(DpoLoss::compares_pairs)
    }

    /// Optimal transport of sorted numbers: the number that each number of a pair is compared with.
    fn constants(&self, policy: &[f64], reference: &[f64]) -> Vec<Vec<f64>> {
        let of_pairs = |number: &dyn Fn(&[f64], &[f64]) -> f64| -> Vec<f64> {
            policy
                .chunks(2)
                .zip(reference.chunks(2))
                .map(|(policy, reference)| number(policy, reference))
                .collect()
        };
        let margins = of_pairs(&|policy, _| policy[0] - policy[1]);
        let reference_margins = of_pairs(&|_, reference| reference[0] - reference[1]);
        let chosen = of_pairs(&|policy, reference| policy[0] - reference[0]);
        let rejected = of_pairs(&|policy, reference| policy[1] - reference[1]);
        let partners = [(&margins, &reference_margins), (&chosen, &rejected), (&rejected, &chosen)]
            .map(|(numbers, others)| partners(numbers, others));
        (0..margins.len()).map(|pair| partners.iter().map(|numbers| numbers[pair]).collect()).collect()
    }

    fn check(&self) -> Result<(), Error> {
        let refused = |key, value: &dyn std::fmt::Display, wanted: &str| refuse("dpo", key, value, wanted);
        positive("dpo", "beta", self.beta)?;
        positive("dpo", "discopop_tau", self.discopop_tau)?;
        not_negative("dpo", "dpop_lambda", self.dpop_lambda)?;
        if self.loss.0.is_empty() {
            return refused("loss", &"[]", "must name at least one loss");
        }
        if !self.loss_weights.is_empty() && self.loss_weights.len() != self.loss.0.len() {
            let wanted = format!("must have one weight for each of the {} losses", self.loss.0.len());
            return refused("loss_weights", &format!("{:?}", self.loss_weights), &wanted);
        }
        if let Some(weight) = self.loss_weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return refused("loss_weights", weight, "must be 0 or more");
        }
        let has_smoothing = self.any(DpoLoss::reads_smoothing);
        let smoothing = self.label_smoothing;
        if !(0.0..0.5).contains(&smoothing) {
            return refused("label_smoothing", &smoothing, "must be at least 0 and below 0.5");
        }
        if smoothing > 0.0 && !has_smoothing {
            let wanted = "has no effect on this loss: take \"cdpo\", \"robust\", \"exo\" or \"aot\"";
            return refused("label_smoothing", &smoothing, wanted);
        }
        if smoothing == 0.0 && self.loss.0.contains(&DpoLoss::Exo) {
            let wanted = "must be above 0 for loss = \"exo\", which divides by it: 1e-3 is usual";
            return refused("label_smoothing", &smoothing, wanted);
        }
        if self.f_divergence != FDivergence::ReverseKl && !self.any(DpoLoss::reads_divergence) {
            return refused("f_divergence", &"set", "has no effect on this loss, which reads the log-ratios");
        }
        if !self.f_alpha.is_finite() {
            return refused("f_alpha", &self.f_alpha, "must be a finite number");
        }
        if let Some(alpha) = self.ld_alpha.filter(|alpha| !(0.0..=1.0).contains(alpha)) {
            return refused("ld_alpha", &alpha, "must be between 0 and 1");
        }
        Ok(())
    }
}

/// For each of `numbers`, the one of `others` that has the same rank.
fn partners(numbers: &[f64], others: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&left, &right| numbers[left].total_cmp(&numbers[right]));
    let mut sorted = others.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut partners = vec![0.0; numbers.len()];
    for (rank, index) in order.into_iter().enumerate() {
        partners[index] = sorted[rank];
    }
    partners
}

/// Which tokens the cross-entropy of ORPO covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NllTokens {
    /// The tokens of the chosen completion: the paper.
    #[default]
    Completion,
    /// The tokens of the prompt as well: TRL, and the authors' program.
    All,
}

/// The `[orpo]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrpoConfig {
    /// The weight of the odds ratio beside the cross-entropy; lambda in the paper.
    pub beta: f64,
    /// The tokens that the cross-entropy covers: those of the chosen completion (`completion`), or `all` with
    /// the prompt.
    pub nll_tokens: NllTokens,
}

impl Default for OrpoConfig {
    fn default() -> Self {
        Self { beta: 0.1, nll_tokens: NllTokens::Completion }
    }
}

impl PreferenceLoss for OrpoConfig {
    fn losses(&self, pairs: &Pairs) -> Tensor {
        // A completion that is certain has infinite odds. Its gradient is zero from here on.
        const MOST: f64 = -1e-12;
        let log_odds = |side: &Side| {
            let mean = side.means().clamp_max(MOST);
            &mean - (-mean.expm1()).log()
        };
        (log_odds(&pairs.chosen) - log_odds(&pairs.rejected)).log_sigmoid() * -self.beta
    }

    fn rewards(&self, pairs: &Pairs) -> [Tensor; 2] {
        [&pairs.chosen, &pairs.rejected].map(|side| side.means() * self.beta)
    }

    fn nll(&self) -> Option<NllTerm> {
        Some(NllTerm { weight: 1.0, reads_prompt: self.nll_tokens == NllTokens::All })
    }

    fn check(&self) -> Result<(), Error> {
        positive("orpo", "beta", self.beta)
    }
}

/// The `[simpo]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimpoConfig {
    /// The factor of the mean log-probabilities.
    pub beta: f64,
    /// The margin by which the chosen completion has to win.
    pub gamma: f64,
    /// The weight of the cross-entropy of the chosen completion.
    /// TRL: `cpo_alpha`.
    pub nll_coef: f64,
}

impl Default for SimpoConfig {
    fn default() -> Self {
        Self { beta: 2.0, gamma: 1.0, nll_coef: 0.0 }
    }
}

impl PreferenceLoss for SimpoConfig {
    fn losses(&self, pairs: &Pairs) -> Tensor {
        -((pairs.chosen.means() - pairs.rejected.means()) * self.beta - self.gamma).log_sigmoid()
    }

    fn rewards(&self, pairs: &Pairs) -> [Tensor; 2] {
        [&pairs.chosen, &pairs.rejected].map(|side| side.means() * self.beta)
    }

    fn nll(&self) -> Option<NllTerm> {
        nll_of_completion(self.nll_coef)
    }

    fn check(&self) -> Result<(), Error> {
        positive("simpo", "beta", self.beta)?;
        not_negative("simpo", "gamma", self.gamma)?;
        not_negative("simpo", "nll_coef", self.nll_coef)
    }
}

/// The loss of CPO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpoLoss {
    /// `-S(b (log p(y_w) - log p(y_l)))`.
    #[default]
    Sigmoid,
    /// `max(0, 1 - b (log p(y_w) - log p(y_l)))`.
    Hinge,
    /// `(m_w - m_l - 1/(2b))^2` of the mean log-probabilities.
    Ipo,
}

/// The `[cpo]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CpoConfig {
    /// The factor of the log-probabilities.
    pub beta: f64,
    /// The loss: `sigmoid`, `hinge` or `ipo`.
    pub loss: CpoLoss,
    /// The probability that a label is wrong, under `sigmoid`.
    pub label_smoothing: f64,
    /// The weight of the cross-entropy of the chosen completion.
    /// TRL: `cpo_alpha`.
    pub nll_coef: f64,
}

impl Default for CpoConfig {
    fn default() -> Self {
        Self { beta: 0.1, loss: CpoLoss::Sigmoid, label_smoothing: 0.0, nll_coef: 1.0 }
    }
}

impl PreferenceLoss for CpoConfig {
    fn losses(&self, pairs: &Pairs) -> Tensor {
        let Pairs { chosen, rejected, .. } = pairs;
        let margins = (&chosen.logprobs - &rejected.logprobs) * self.beta;
        match self.loss {
            CpoLoss::Sigmoid => {
                -(margins.log_sigmoid() * (1.0 - self.label_smoothing))
                    - (-margins).log_sigmoid() * self.label_smoothing
            }
            CpoLoss::Hinge => (-margins + 1.0).relu(),
            CpoLoss::Ipo => (chosen.means() - rejected.means() - 0.5 / self.beta).square(),
        }
    }

    fn rewards(&self, pairs: &Pairs) -> [Tensor; 2] {
        [&pairs.chosen, &pairs.rejected].map(|side| &side.logprobs * self.beta)
    }

    fn nll(&self) -> Option<NllTerm> {
        nll_of_completion(self.nll_coef)
    }

    fn check(&self) -> Result<(), Error> {
        positive("cpo", "beta", self.beta)?;
        not_negative("cpo", "nll_coef", self.nll_coef)?;
        if !(0.0..0.5).contains(&self.label_smoothing) {
            return refuse(
                "cpo",
                "label_smoothing",
                &self.label_smoothing,
                "must be at least 0 and below 0.5",
            );
        }
        if self.label_smoothing > 0.0 && self.loss != CpoLoss::Sigmoid {
            return refuse("cpo", "label_smoothing", &self.label_smoothing, "needs loss = \"sigmoid\"");
        }
        Ok(())
    }
}

fn nll_of_completion(weight: f64) -> Option<NllTerm> {
    (weight > 0.0).then_some(NllTerm { weight, reads_prompt: false })
}
