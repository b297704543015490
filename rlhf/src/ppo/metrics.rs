//! The metrics that PPO adds to those of a rollout, under the names of TRL. `docs/grpo.md` explains them.

use parallel::ProcessGroups;

use crate::Error;
use crate::event::Metrics;
use crate::loss::{PolicyStatistics, ValueStatistics};
use crate::on_policy;
use crate::rollout::data::Rollout;
use crate::rollout::score;

/// Sums over the optimizer steps of one iteration.
#[derive(Default)]
pub(super) struct UpdateStats {
    pub(super) steps: f64,
    /// The tokens that went forward and backward through policy and critic.
    pub(super) tokens: f64,
    pub(super) policy_loss: f64,
    pub(super) value_loss: f64,
    pub(super) ptx_loss: f64,
    pub(super) policy: PolicyStatistics,
    pub(super) value: ValueStatistics,
    pub(super) grad_norm: f64,
    pub(super) critic_grad_norm: f64,
    pub(super) lr: f64,
}

impl UpdateStats {
    /// Sums the losses and statistics over all ranks of the loss group.
    pub(super) fn all_reduce(&mut self, groups: &ProcessGroups) -> Result<(), Error> {
        let sums = [self.policy_loss, self.value_loss, self.ptx_loss, self.tokens];
        [self.policy_loss, self.value_loss, self.ptx_loss, self.tokens] =
            groups.loss_group().all_reduce_sum(sums)?;
        let all = groups.loss_group().all_gather_object(vec![(self.policy, self.value)])?;
        (self.policy, self.value) = Default::default();
        for (policy, value) in all {
            self.policy += policy;
            self.value += value;
        }
        Ok(())
    }

    /// Adds the means over the optimizer steps, tokens and slots of the iteration.
    pub(super) fn push_metrics(&self, has_critic: bool, has_kl_loss: bool, metrics: &mut Metrics) {
        let (steps, tokens, num_slots) =
            (self.steps.max(1.0), self.policy.tokens.max(1.0), self.value.slots.max(1.0));
        metrics.push("loss", self.policy_loss / steps);
        metrics.push("loss/policy_avg", self.policy_loss / steps);
        metrics.push("loss/ptx_avg", self.ptx_loss / steps);
        metrics.push("policy/approxkl_avg", self.policy.approx_kl / tokens);
        if has_kl_loss {
            metrics.push("loss/kl_avg", self.policy.kl / tokens);
        }
        metrics.push("policy/clipfrac_avg", self.policy.clipped / tokens);
        metrics.push("policy/clipfrac_low_avg", self.policy.clipped_low / tokens);
        metrics.push("policy/clipfrac_high_avg", self.policy.clipped_high / tokens);
        metrics.push("val/ratio", self.policy.ratio / tokens);
        metrics.push("grad_norm", self.grad_norm / steps);
        if has_critic {
            metrics.push("loss/value_avg", self.value_loss / steps);
            metrics.push("val/clipfrac_avg", self.value.clipped / num_slots);
            metrics.push("val/explained_variance", self.value.explained_variance().unwrap_or(f64::NAN));
            metrics.push("critic_grad_norm", self.critic_grad_norm / steps);
        }
        metrics.push("lr", self.lr);
    }
}

/// Adds the entropy of the policy, and the largest difference between the log-probabilities of the sampler
/// and the trainer.
pub(super) fn push_model_metrics(rollout: &Rollout, metrics: &mut Metrics) {
    on_policy::push_entropy(&rollout.entropy, metrics);
    let mismatch = score::largest_difference(&rollout.logprobs, &rollout.sampler_logprobs);
    metrics.push("sampling/logp_difference/max", f64::from(mismatch));
}
