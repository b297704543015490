//! The replies of a rollout with their advantages and returns, and their flat batches.

use models::decoder::Decoder;

use crate::rollout::{Experience, ExperienceBatch, Reads};

/// One reply with its advantages and returns.
/// OpenRLHF: `Experience` once `advantages` and `returns` are filled in.
pub(super) struct Trajectory<'a> {
    pub(super) experience: &'a Experience,
    /// One per token. Whitened if `whiten_advantages` is set.
    pub(super) advantages: Vec<f32>,
    /// One per slot. Empty without a critic.
    pub(super) returns: Vec<f32>,
}

/// Splits flat advantages (one per token) and returns (one per slot) by reply.
pub(super) fn trajectories<'a>(
    experiences: &'a [Experience],
    advantages: &[f64],
    returns: &[f64],
) -> Vec<Trajectory<'a>> {
    let (mut token_advantages, mut slot_returns) = (advantages.iter(), returns.iter());
    let narrow = |values: &mut std::slice::Iter<'_, f64>, count| {
        values.take(count).map(|&value| value as f32).collect()
    };
    experiences
        .iter()
        .map(|experience| Trajectory {
            experience,
            advantages: narrow(&mut token_advantages, experience.reply().len()),
            returns: narrow(&mut slot_returns, experience.num_slots()),
        })
        .collect()
}

/// Returns the number of tokens of all prompts and replies, at least 1.
pub(super) fn num_tokens(trajectories: &[&Trajectory<'_>]) -> usize {
    trajectories.iter().map(|trajectory| trajectory.experience.ids.len()).sum::<usize>().max(1)
}

/// Builds the flat batch of each micro-batch of an optimizer step that has `step_tokens` tokens, for a model
/// with this trunk.
pub(super) fn collate(
    micro_batches: &[&[&Trajectory<'_>]],
    step_tokens: usize,
    reads: Reads,
    trunk: &Decoder,
) -> Vec<ExperienceBatch> {
    let batch = |micro_batch: &&[&Trajectory<'_>]| {
        let experiences: Vec<&Experience> =
            micro_batch.iter().map(|trajectory| trajectory.experience).collect();
        let mut experience_batch = ExperienceBatch::new(&experiences, reads, trunk);
        experience_batch.batch.aux_loss_divisor = step_tokens as f64;
        experience_batch
    };
    micro_batches.iter().map(batch).collect()
}

/// Concatenates `field` of every item.
pub(super) fn flatten<T>(items: impl IntoIterator<Item = T>, field: impl Fn(&T) -> &Vec<f32>) -> Vec<f32> {
    let mut flat: Vec<f32> = Vec::new();
    for item in items {
        flat.extend_from_slice(field(&item));
    }
    flat
}
