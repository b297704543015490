//! The replies of a rollout in flat arrays, one reply after another and without padding.
//!
//! ```text
//!   B sequences   a prompt and what follows it: what the policy wrote, and, with several turns, what an
//!                 environment answered
//!   N tokens      what the policy wrote, reply after reply; the numbers of models have one entry each
//!   S slots       places with a value and a reward: the N tokens, and one more after each reply whose score
//!                 is added there
//! ```
//! Which tokens the policy wrote is recorded while they are generated, and never inferred from the ids. The
//! tokens of an environment are read by every model and take part in no formula: to the policy they are no
//! action, so an estimator carries values and advantages across them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::advantage::{self, ScoreSlot, TurnReward};

/// The replies of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// The ids of all sequences.
    pub ids: Vec<i64>,
    /// For each of `ids`, whether the policy wrote it.
    pub is_written: Vec<bool>,
    /// The number of ids of each sequence, `[B]`.
    pub sequence_lengths: Vec<usize>,
    /// The number of ids of the first prompt of each sequence, `[B]`.
    pub prompt_lengths: Vec<usize>,
    /// The number of tokens that the policy wrote, `[B]`.
    pub lengths: Vec<usize>,
    /// The row of each prompt in the training data, `[B]`.
    pub prompts: Vec<usize>,
    /// The group of each reply, `[B]`: the replies to one drawn prompt have one number.
    pub groups: Vec<usize>,
    /// Whether each reply ended by itself, `[B]`: with a stop token, or because its environment was done.
    pub stopped: Vec<bool>,
    /// The number of turns that the policy wrote, `[B]`.
    pub turns: Vec<usize>,
    /// Whether the environment of a reply has failed, `[B]`: such a reply takes part in nothing.
    pub failed: Vec<bool>,
    /// The rewards that an environment gave for turns.
    pub turn_rewards: Vec<TurnReward>,
    /// The slot to whose reward the score is added, `[B]`.
    pub score_slots: Vec<ScoreSlot>,
    /// The log-probability of each token when it was sampled, `[N]`.
    pub sampler_logprobs: Vec<f32>,
    /// The entropy before each token when it was sampled, `[N]`.
    pub sampler_entropy: Vec<f32>,
    /// The log-probability of each token under the policy before the update, `[N]`.
    pub logprobs: Vec<f32>,
    /// The entropy of the policy before each token, `[N]`.
    pub entropy: Vec<f32>,
    /// The log-probability of each token under the reference, `[N]`; empty without a reference.
    pub reference_logprobs: Vec<f32>,
    /// The value before each slot, `[S]`; empty without a critic.
    pub values: Vec<f32>,
}

/// One reply with what its generation has told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The row of the prompt in the training data.
    pub prompt: usize,
    /// The group.
    pub group: usize,
    /// The ids of the prompt and all that follows.
    pub ids: Vec<i64>,
    /// The number of ids of the prompt.
    pub prompt_length: usize,
    /// The parts of `ids` that the policy wrote, in their order: one for each turn.
    pub written: Vec<Range<usize>>,
    /// The log-probability of each token that the policy wrote.
    pub logprobs: Vec<f32>,
    /// The entropy before each of these tokens.
    pub entropy: Vec<f32>,
    /// Whether the reply ended by itself.
    pub stopped: bool,
    /// Whether the environment has failed.
    pub failed: bool,
    /// The reward of each turn that an environment rewarded: the number of the turn and the reward.
    pub turn_rewards: Vec<(usize, f64)>,
    /// The slot to whose reward the score is added.
    pub score_slot: ScoreSlot,
}

impl Rollout {
    /// The number of replies.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is no reply.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Appends a reply, whose numbers of other models are filled in later.
    pub fn push(&mut self, reply: Reply) {
        let index = self.len();
        let mut written = vec![false; reply.ids.len()];
        reply.written.iter().for_each(|turn| written[turn.clone()].fill(true));
        // A reward belongs to the last token of its turn.
        let ends = reply.written.iter().scan(0, |tokens, turn| {
            *tokens += turn.len();
            Some(*tokens)
        });
        let ends: Vec<usize> = ends.collect();
        self.turn_rewards.extend(
            reply.turn_rewards.iter().filter(|(turn, _)| ends[*turn] > 0).map(|&(turn, reward)| TurnReward {
                reply: index,
                token: ends[turn] - 1,
                reward,
            }),
        );

        self.lengths.push(reply.logprobs.len());
        self.sequence_lengths.push(reply.ids.len());
        self.prompt_lengths.push(reply.prompt_length);
        self.prompts.push(reply.prompt);
        self.groups.push(reply.group);
        self.stopped.push(reply.stopped);
        self.turns.push(reply.written.len());
        self.failed.push(reply.failed);
        self.score_slots.push(reply.score_slot);
        self.ids.extend(reply.ids);
        self.is_written.extend(written);
        self.sampler_logprobs.extend(reply.logprobs);
        self.sampler_entropy.extend(reply.entropy);
    }

    /// Appends the replies of another rollout, which has the numbers of the same models.
    pub fn append(&mut self, other: Self) {
        let offset = self.len();
        let moved = |reward: TurnReward| TurnReward { reply: reward.reply + offset, ..reward };
        self.turn_rewards.extend(other.turn_rewards.into_iter().map(moved));
        self.ids.extend(other.ids);
        self.is_written.extend(other.is_written);
        self.sequence_lengths.extend(other.sequence_lengths);
        self.prompt_lengths.extend(other.prompt_lengths);
        self.lengths.extend(other.lengths);
        self.prompts.extend(other.prompts);
        self.groups.extend(other.groups);
        self.stopped.extend(other.stopped);
        self.turns.extend(other.turns);
        self.failed.extend(other.failed);
        self.score_slots.extend(other.score_slots);
        self.sampler_logprobs.extend(other.sampler_logprobs);
        self.sampler_entropy.extend(other.sampler_entropy);
        self.logprobs.extend(other.logprobs);
        self.entropy.extend(other.entropy);
        self.reference_logprobs.extend(other.reference_logprobs);
        self.values.extend(other.values);
    }

    /// The replies with these indices, in their order.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        let layout = self.layout();
        let of_replies = |values: &[usize]| indices.iter().map(|&index| values[index]).collect();
        let flags = |values: &[bool]| indices.iter().map(|&index| values[index]).collect();
        let tokens = |values: &[f32]| layout.gather(values, &layout.tokens, indices);
        let moved = |(new, &old): (usize, &usize)| {
            let of_reply = self.turn_rewards.iter().filter(move |reward| reward.reply == old);
            of_reply.map(move |reward| TurnReward { reply: new, ..*reward })
        };
        Self {
            ids: layout.gather(&self.ids, &layout.sequences, indices),
            is_written: layout.gather(&self.is_written, &layout.sequences, indices),
            sequence_lengths: of_replies(&self.sequence_lengths),
            prompt_lengths: of_replies(&self.prompt_lengths),
            lengths: of_replies(&self.lengths),
            prompts: of_replies(&self.prompts),
            groups: of_replies(&self.groups),
            stopped: flags(&self.stopped),
            turns: of_replies(&self.turns),
            failed: flags(&self.failed),
            turn_rewards: indices.iter().enumerate().flat_map(moved).collect(),
            score_slots: indices.iter().map(|&index| self.score_slots[index]).collect(),
            sampler_logprobs: tokens(&self.sampler_logprobs),
            sampler_entropy: tokens(&self.sampler_entropy),
            logprobs: tokens(&self.logprobs),
            entropy: tokens(&self.entropy),
            reference_logprobs: tokens(&self.reference_logprobs),
            values: layout.gather(&self.values, &layout.slots, indices),
        }
    }

    /// The number of slots of a reply.
    pub fn num_slots(&self, reply: usize) -> usize {
        self.lengths[reply] + usize::from(self.score_slots[reply] == ScoreSlot::AfterEos)
    }

    /// Where each reply lies in the flat arrays.
    pub fn layout(&self) -> Layout {
        let slots: Vec<usize> = (0..self.len()).map(|reply| self.num_slots(reply)).collect();
        Layout {
            sequences: advantage::ranges(&self.sequence_lengths),
            tokens: advantage::ranges(&self.lengths),
            slots: advantage::ranges(&slots),
        }
    }
}

/// The ranges of the replies in the flat arrays, `[B]` each.
#[derive(Clone, Debug)]
pub struct Layout {
    /// In [`Rollout::ids`].
    pub sequences: Vec<Range<usize>>,
    /// In arrays over the tokens that the policy wrote.
    pub tokens: Vec<Range<usize>>,
    /// In arrays over the slots.
    pub slots: Vec<Range<usize>>,
}

impl Layout {
    /// The `values` of some replies; an array without values has none.
    pub fn gather<T: Copy>(&self, values: &[T], ranges: &[Range<usize>], indices: &[usize]) -> Vec<T> {
        if values.is_empty() {
            return Vec::new();
        }
        indices.iter().flat_map(|&index| &values[ranges[index].clone()]).copied().collect()
    }

    /// The `values` of the tokens of some replies.
    pub fn of_tokens<T: Copy>(&self, values: &[T], indices: &[usize]) -> Vec<T> {
        self.gather(values, &self.tokens, indices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two turns of 2 and 1 tokens around two tokens of an environment.
    fn reply(group: usize, ids: [i64; 7]) -> Reply {
        Reply {
            prompt: 4,
            group,
            ids: ids.to_vec(),
            prompt_length: 2,
            written: vec![2..4, 6..7],
            logprobs: vec![-0.1, -0.2, -0.3],
            entropy: vec![1.0, 2.0, 3.0],
            stopped: true,
            turn_rewards: vec![(0, 0.5)],
            ..Reply::default()
        }
    }

    #[test]
    fn a_reward_belongs_to_the_last_token_of_its_turn() {
        let mut rollout = Rollout::default();
        rollout.push(Reply { turn_rewards: Vec::new(), ..reply(0, [1, 2, 3, 4, 5, 6, 7]) });
        rollout.push(reply(1, [1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(rollout.turn_rewards, [TurnReward { reply: 1, token: 1, reward: 0.5 }]);
        assert_eq!(rollout.is_written[..7], [false, false, true, true, false, false, true]);
        assert_eq!((rollout.lengths[0], rollout.turns[0]), (3, 2));
    }

    #[test]
    fn selected_replies_are_those_that_were_pushed() {
        let [first, second] = [reply(0, [1, 2, 3, 4, 5, 6, 7]), reply(1, [9, 8, 7, 6, 5, 4, 3])];
        let mut both = Rollout::default();
        both.push(first.clone());
        both.push(second.clone());
        let mut turned = Rollout::default();
        turned.push(second);
        turned.push(first);
        assert_eq!(both.select(&[1, 0]), turned);
        // Selected one after another, they are appended to the same rollout.
        let mut appended = both.select(&[1]);
        appended.append(both.select(&[0]));
        assert_eq!(appended, turned);
    }
}
