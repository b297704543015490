//! The order in which the epochs of an iteration go through a rollout. Every order has a seed of its own,
//! derived from the seed of the run, so a resumed run has the same orders.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::config::{PpoConfig, Shuffle};
use crate::rollout::data::Rollout;
use crate::rollout_sampler;

/// The replies of each optimizer step of an iteration: `epochs` passes over the rollout, each in a new order.
pub(crate) fn mini_batches(
    config: &PpoConfig,
    rollout: &Rollout,
    seed: u64,
    iteration: u64,
) -> Vec<Vec<usize>> {
    let group_size = match config.shuffle {
        Shuffle::Replies => 1,
        Shuffle::Prompts => config.samples_per_prompt,
    };
    let replies_of = |groups: Vec<usize>| -> Vec<usize> {
        groups.into_iter().flat_map(|group| group * group_size..(group + 1) * group_size).collect()
    };
    orders(rollout.len() / group_size, config.epochs, seed, iteration)
        .into_iter()
        .map(replies_of)
        .flat_map(|order| order.chunks(config.mini_batch_size).map(<[usize]>::to_vec).collect::<Vec<_>>())
        .map(|mut replies| {
            // The order within a mini-batch does not change its loss. Replies to the same prompt stand
            // together, so that they share its tokens.
            if config.samples_per_prompt > 1 {
                replies.sort_by_key(|&reply| rollout.groups[reply]);
            }
            replies
        })
        .collect()
}

/// The order of `count` things in each epoch of an iteration. Each epoch shuffles the order of the previous
/// epoch.
pub(crate) fn orders(count: usize, epochs: usize, seed: u64, iteration: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..count).collect();
    let shuffled = |epoch: usize| {
        let seed = rollout_sampler::shuffle_seed(seed, iteration, epoch);
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        order.clone()
    };
    (0..epochs).map(shuffled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::Reply;

    fn rollout(prompts: usize, samples: usize) -> Rollout {
        let mut rollout = Rollout::default();
        for group in (0..prompts).flat_map(|group| std::iter::repeat_n(group, samples)) {
            rollout.push(Reply { group, ids: vec![1], prompt_length: 1, ..Reply::default() });
        }
        rollout
    }

    #[test]
    fn each_epoch_has_every_reply_once_and_another_order() {
        let config =
            PpoConfig { samples_per_prompt: 2, epochs: 3, mini_batch_size: 4, ..PpoConfig::default() };
        let rollout = rollout(8, 2);
        let all = mini_batches(&config, &rollout, 1, 1);
        assert_eq!(all.len(), 3 * 4);
        let epochs: Vec<Vec<usize>> = all.chunks(4).map(<[Vec<usize>]>::concat).collect();
        assert_ne!(epochs[0], epochs[1]);
        for mut epoch in epochs {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..16).collect::<Vec<_>>());
        }
        assert_eq!(all, mini_batches(&config, &rollout, 1, 1));
        assert_ne!(all, mini_batches(&config, &rollout, 1, 2));
        assert_ne!(all, mini_batches(&config, &rollout, 2, 1));
    }

    #[test]
    fn shuffled_prompts_keep_their_replies() {
        let shuffle = Shuffle::Prompts;
        let config = PpoConfig {
            samples_per_prompt: 2,
            epochs: 1,
            mini_batch_size: 4,
            shuffle,
            ..PpoConfig::default()
        };
        for replies in mini_batches(&config, &rollout(8, 2), 1, 1) {
            assert!(
                replies.chunks(2).all(|pair| pair[0] / 2 == pair[1] / 2 && pair[0] < pair[1]),
                "{replies:?}"
            );
        }
    }
}
