//! The `[train]` section: the settings of an optimizer step. `[gemini]` is in [`memory`].

pub mod memory;

use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::Error;

/// The learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Constant after the warm-up.
    Constant,
    /// Linear decay to zero.
    Linear,
    /// Half a cosine, down to zero.
    /// transformers: `get_cosine_schedule_with_warmup`.
    Cosine,
    /// A power of what is left of the run, down to zero.
    /// transformers: `get_polynomial_decay_schedule_with_warmup`.
    Polynomial,
    /// Divided by the root of the steps; the run may go on without an end.
    /// transformers: `get_inverse_sqrt_schedule`.
    InverseSqrt,
    /// Constant, and at the end half a cosine down to zero.
    /// transformers: `get_wsd_schedule`; Colossal-AI: `FlatAnnealingWarmupLR`.
    WarmupStableDecay,
    /// Multiplied by the same factor in each step, down to `min_lr_ratio`. torch: `ExponentialLR`.
    Exponential,
    /// Multiplied by `gamma` at each milestone. torch: `MultiStepLR`.
    Multistep,
    /// Half a cosine up from a 25th, and half a cosine down to almost nothing (Smith and Topin 2017, arXiv
    /// 1708.07120). torch: `OneCycleLR` without a cycle of the betas.
    OneCycle,
}

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101).
    Adamw,
}

/// The dtype of the two moments of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentsDtype {
    /// 8 bytes per parameter.
    Float32,
    /// 4 bytes per parameter, rounded at random, because the nearest value would mostly be the old one.
    Bfloat16,
}

impl MomentsDtype {
    /// The dtype in libtorch.
    pub fn kind(self) -> Kind {
        match self {
            Self::Float32 => Kind::Float,
            Self::Bfloat16 => Kind::BFloat16,
        }
    }
}

/// The largest number of rows in one optimizer step.
pub const LARGEST_BATCH: usize = 1 << 24;

/// The largest number of passes over the rows.
const LARGEST_EPOCHS: u64 = 1_000_000_000;

/// The `[train]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// The number of optimizer steps. If absent, it follows from `epochs`.
    pub steps: Option<u64>,
    /// Passes over the training rows. Refused beside `steps`.
    pub epochs: u64,
    /// Rows (packed sequences, pairs, replies) per micro-batch: one forward pass.
    pub micro_batch_size: usize,
    /// Micro-batches per optimizer step.
    pub gradient_accumulation_steps: usize,
    /// The highest learning rate, 0 or more.
    pub lr: f64,
    /// The learning-rate schedule after the warm-up: `constant`; `linear`, `cosine`, `polynomial` and
    /// `exponential`, which end at `min_lr_ratio`; `warmup_stable_decay`, which stays at the highest rate
    /// before it does; `inverse_sqrt`; `multistep`; or `one_cycle`, whose first half is its warm-up.
    pub scheduler: Scheduler,
    /// With `polynomial`, the exponent of the decay.
    pub decay_power: f64,
    /// With `warmup_stable_decay`, the part of all steps that decay, rounded up.
    pub decay_ratio: f64,
    /// With `multistep`, when the rate falls: ascending parts of all steps, each between 0 and 1.
    pub milestones: Vec<f64>,
    /// With `multistep`, the factor at each milestone.
    pub gamma: f64,
    /// Optimizer steps of linear warm-up from zero, at most the length of the run. In PPO for policy and
    /// critic.
    pub warmup_steps: u64,
    /// With `warmup_steps = 0`, the part of all steps that warm up, rounded up.
    /// verl: `lr_warmup_steps_ratio`.
    pub warmup_ratio: f64,
    /// The rate at the end of a decay, as a part of the highest one.
    /// transformers: `min_lr_rate` of `cosine_with_min_lr`.
    pub min_lr_ratio: f64,
    /// The update rule: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
    pub optimizer: Optimizer,
    /// The dtype of the two moments of AdamW. `bfloat16` takes 4 bytes per parameter less and rounds at
    /// random.
    /// Megatron: `--exp-avg-dtype`, `--exp-avg-sq-dtype`.
    pub moments_dtype: MomentsDtype,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Weight decay of matrices and embeddings. Norms and biases have none.
    pub weight_decay: f64,
    /// The largest norm of the gradient; larger gradients are scaled down. 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Whether to keep only the inputs of segments, and to run each segment again in the backward pass.
    /// transformers: `gradient_checkpointing`; Megatron: `--recompute-granularity full`.
    pub activation_checkpointing: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: 1,
            micro_batch_size: 8,
            gradient_accumulation_steps: 1,
            lr: 1e-5,
            scheduler: Scheduler::Cosine,
            decay_power: 1.0,
            decay_ratio: 0.1,
            milestones: vec![0.5, 0.75],
            gamma: 0.1,
            warmup_steps: 0,
            warmup_ratio: 0.0,
            min_lr_ratio: 0.0,
            optimizer: Optimizer::Adamw,
            moments_dtype: MomentsDtype::Float32,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            activation_checkpointing: false,
        }
    }
}

impl TrainConfig {
    /// Returns an error for invalid settings.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, wanted| Err(Error::Setting { key, value, wanted });
        if self.micro_batch_size == 0 {
            return refuse("micro_batch_size", "0".into(), "must be at least 1");
        }
        if self.gradient_accumulation_steps == 0 {
            return refuse("gradient_accumulation_steps", "0".into(), "must be at least 1");
        }

        if !(self.lr.is_finite() && self.lr >= 0.0) {
            return refuse("lr", self.lr.to_string(), "must be a number, 0 or more");
        }

        let rows = self.micro_batch_size.checked_mul(self.gradient_accumulation_steps);
        if rows.is_none_or(|rows| rows > LARGEST_BATCH) {
            let value = format!("{} x {}", self.micro_batch_size, self.gradient_accumulation_steps);
            let wanted = "one step has at most 16777216 rows";
            return refuse("micro_batch_size x gradient_accumulation_steps", value, wanted);
        }

        if self.epochs > LARGEST_EPOCHS {
            return refuse("epochs", self.epochs.to_string(), "must be at most 1000000000");
        }

        let (beta1, beta2) = self.betas;
        if !((0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2)) {
            return refuse("betas", format!("{:?}", self.betas), "each must be at least 0 and less than 1");
        }
        if !(self.eps.is_finite() && self.eps > 0.0) {
            return refuse("eps", self.eps.to_string(), "must be more than 0");
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return refuse("weight_decay", self.weight_decay.to_string(), "must be 0 or more");
        }
        self.check_schedule()?;
        if !(self.max_grad_norm.is_finite() && self.max_grad_norm >= 0.0) {
            return refuse("max_grad_norm", self.max_grad_norm.to_string(), "must be 0 (off) or more");
        }

        if self.steps == Some(0) || (self.steps.is_none() && self.epochs == 0) {
            return refuse("steps", "0".into(), "give at least one step or epoch");
        }
        Ok(())
    }

    /// Returns an error for a schedule of the learning rate that cannot be.
    fn check_schedule(&self) -> Result<(), Error> {
        let refuse = |key, value: String, wanted| Err(Error::Setting { key, value, wanted });
        for (key, value) in [
            ("warmup_ratio", self.warmup_ratio),
            ("min_lr_ratio", self.min_lr_ratio),
            ("decay_ratio", self.decay_ratio),
            ("gamma", self.gamma),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return refuse(key, value.to_string(), "must be between 0 and 1");
            }
        }
        if !(self.decay_power.is_finite() && self.decay_power > 0.0) {
            return refuse("decay_power", self.decay_power.to_string(), "must be more than 0");
        }
        let are_parts = self.milestones.iter().all(|part| (0.0..=1.0).contains(part));
        if !are_parts || !self.milestones.is_sorted() {
            return refuse(
                "milestones",
                format!("{:?}", self.milestones),
                "must be ascending parts of 0 to 1",
            );
        }
        if self.scheduler == Scheduler::Multistep && self.milestones.is_empty() {
            return refuse("milestones", "[]".into(), "give at least one with scheduler = \"multistep\"");
        }
        if self.scheduler == Scheduler::Exponential && self.min_lr_ratio == 0.0 {
            return refuse("min_lr_ratio", "0".into(), "must be above 0 with scheduler = \"exponential\"");
        }
        Ok(())
    }

    /// The steps of warm-up in a run of `total` steps.
    pub fn warmup(&self, total: u64) -> u64 {
        if self.warmup_steps > 0 {
            self.warmup_steps
        } else {
            (self.warmup_ratio * total as f64).ceil() as u64
        }
    }

    /// Rows per optimizer step.
    pub fn batch_size(&self) -> usize {
        self.micro_batch_size * self.gradient_accumulation_steps
    }

    /// Optimizer steps over `rows` training rows: `steps`, or the number of full batches that cover `epochs`
    /// passes. The last batch may take rows of the next pass.
    pub fn total_steps(&self, rows: usize) -> u64 {
        self.steps
            .unwrap_or_else(|| (rows as u64).saturating_mul(self.epochs).div_ceil(self.batch_size() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_from_epochs_round_up() {
        let config = TrainConfig {
            epochs: 3,
            micro_batch_size: 4,
            gradient_accumulation_steps: 2,
            ..TrainConfig::default()
        };
        // 3 x 9 rows in batches of 8: 27 / 8 = 3.375.
        assert_eq!(config.total_steps(9), 4);
    }

    #[test]
    fn batches_that_overflow_are_refused_by_name() {
        for (micro_batch_size, gradient_accumulation_steps) in
            [(usize::MAX, 2), (1 << 33, 1 << 33), (1 << 24, 2)]
        {
            let config =
                TrainConfig { micro_batch_size, gradient_accumulation_steps, ..TrainConfig::default() };
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("micro_batch_size x gradient_accumulation_steps"), "{error}");
        }
        let config = TrainConfig { epochs: u64::MAX, ..TrainConfig::default() };
        assert!(config.check().unwrap_err().to_string().starts_with("[train] epochs = 18446744073709551615"));
    }

    #[test]
    fn schedules_that_cannot_be_are_named() {
        let of = |scheduler| TrainConfig { scheduler, ..TrainConfig::default() };
        for (config, words) in [
            (
                TrainConfig { milestones: vec![0.75, 0.5], ..of(Scheduler::Multistep) },
                "milestones = [0.75, 0.5]",
            ),
            (TrainConfig { milestones: vec![], ..of(Scheduler::Multistep) }, "milestones = []"),
            (TrainConfig { decay_power: 0.0, ..of(Scheduler::Polynomial) }, "decay_power = 0"),
            (TrainConfig { decay_ratio: 1.5, ..of(Scheduler::WarmupStableDecay) }, "decay_ratio = 1.5"),
            (of(Scheduler::Exponential), "min_lr_ratio = 0: must be above 0"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn invalid_settings_are_named() {
        let config = TrainConfig { betas: (0.9, 1.0), ..TrainConfig::default() };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "[train] betas = (0.9, 1.0): each must be at least 0 and less than 1"
        );
    }
}
