//! The reward of each token: a KL penalty, the score of the full reply in one slot, and the rewards of turns
//! before the last. The parent module gives formula and papers.

use serde::{Deserialize, Serialize};

use super::replies::{Replies, ranges};
use crate::{Error, check};

/// The slot to whose reward the score of a reply is added (the terminal or EOS reward). A slot is a position
/// with a value and a reward: each token of the reply, and perhaps one more after it. (Not a slot of the KV
/// cache.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreSlot {
    /// At the last token of the reply: OpenRLHF, verl, DeepSpeed-Chat, `NeMo` RL.
    #[default]
    Eos,
    /// In a separate slot after the reply, which has a value but no token: `OpenAI`, TRL.
    AfterEos,
}

impl ScoreSlot {
    /// Returns the slot of each reply. A reply of `max_new_tokens` tokens has no slot after its end, as in
    /// TRL, where that slot is the first padding token.
    pub fn of_replies(self, lengths: &[usize], max_new_tokens: usize) -> Vec<Self> {
        let score_slot = |&length: &usize| if length < max_new_tokens { self } else { Self::Eos };
        lengths.iter().map(score_slot).collect()
    }
}

/// A reward inside a reply: the reward of a turn before the last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnReward {
    /// The index of the reply in the rollout.
    pub reply: usize,
    /// The index, within the tokens of the reply, of the last token of that turn.
    pub token: usize,
    /// The reward.
    pub reward: f64,
}

/// The rewards of all slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRewards {
    /// Reward of each slot, `[S]`; 0 in all slots of an excluded reply.
    pub rewards: Vec<f64>,
    /// Number of slots of each reply, `[B]`.
    pub lengths: Vec<usize>,
    /// The slot of each token, `[N]`.
    pub token_slots: Vec<usize>,
}

impl TokenRewards {
    /// The sum of the rewards of each reply, `[B]`; 0 for an excluded reply.
    pub fn totals(&self) -> Vec<f64> {
        ranges(&self.lengths).into_iter().map(|range| self.rewards[range].iter().sum()).collect()
    }
}

/// Combines the KL penalty of the tokens, the scores of the full replies and the rewards of earlier turns
/// into one reward per slot.
///
/// `kl` is `[N]`, `scores` and `score_slots` are `[B]`. The score of an excluded reply may be any finite
/// number. Refuses numbers that are not finite, and replies without a token unless they are excluded, because
/// their score has no token to be added to.
/// verl: `apply_kl_penalty`, `token_level_rewards`; OpenRLHF: `compute_reward`.
pub fn token_rewards(
    kl: &[f64],
    scores: &[f64],
    turn_rewards: &[TurnReward],
    replies: &Replies<'_>,
    kl_coef: f64,
    score_slots: &[ScoreSlot],
) -> Result<TokenRewards, Error> {
    replies.check()?;
    check::length("the scores", scores.len(), replies.lengths.len())?;
    check::length("the score slots", score_slots.len(), replies.lengths.len())?;
    check::length("the KL of the tokens", kl.len(), replies.lengths.iter().sum())?;
    check::finite("the scores", scores)?;
    check::finite("the KL of the tokens", kl)?;

    let mut slots = TokenRewards::default();
    for (row, range) in replies.ranges().into_iter().enumerate() {
        let start = slots.rewards.len();
        slots.token_slots.extend(start..start + range.len());
        slots.rewards.extend(kl[range.clone()].iter().map(|kl| -kl_coef * kl));
        slots.rewards.extend((score_slots[row] == ScoreSlot::AfterEos).then_some(0.0));
        slots.lengths.push(slots.rewards.len() - start);
        let of_reply = &mut slots.rewards[start..];
        if replies.excluded[row] {
            of_reply.fill(0.0);
        } else if range.is_empty() {
            return Err(Error::EmptyReply { row });
        } else {
            // The slot of the score is the last one of the reply, be it of a token or after the end.
            of_reply[of_reply.len() - 1] += scores[row];
        }
    }
    add_turn_rewards(turn_rewards, replies, &mut slots)?;
    Ok(slots)
}

fn add_turn_rewards(
    turn_rewards: &[TurnReward],
    replies: &Replies<'_>,
    slots: &mut TokenRewards,
) -> Result<(), Error> {
    let reply_ranges = replies.ranges();
    for (index, turn) in turn_rewards.iter().enumerate() {
        if !turn.reward.is_finite() {
            return Err(Error::NotFinite { what: "the rewards of turns", index, value: turn.reward });
        }
        let range = &reply_ranges[turn.reply];
        let token = range.start + turn.token;
        assert!(
            range.contains(&token),
            "turn reward {index}: reply {} of {} tokens has no token {}",
            turn.reply,
            range.len(),
            turn.token
        );
        if !replies.excluded[turn.reply] {
            slots.rewards[slots.token_slots[token]] += turn.reward;
        }
    }
    Ok(())
}
