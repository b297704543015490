//! The seconds in which a policy generates replies.
//!
//! ```text
//!   prefill   a pass over the prompts, with logits at their last positions
//!   decode    for each token: max(operations / speed, (weights + cache) / speed of reading), what the tensor
//!             ranks exchange, and six passes of the sampler over the logits
//! ```
//! With `p` stages of a pipeline, the replies of a rank are `p` groups, each in another stage: a token of all
//! takes `p` times as long as the slowest stage with a group. Replies are taken to be of full length.

use crate::Error;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::segment::{Model, Part, RowTokens, Segment};
use crate::step::{self, Batch, exchange_seconds, stages};
use crate::traffic::Traffic;

/// How often the sampler reads or writes the logits of a token.
const SAMPLER_PASSES: f64 = 6.0;
/// It works on them in fp32.
const LOGIT_BYTES: f64 = 4.0;

/// The replies of a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollout {
    /// The mean prompt.
    pub prompt: RowTokens,
    /// The number of replies, on all ranks.
    pub replies: f64,
    /// The most replies that a rank generates at the same time.
    pub concurrent: usize,
    /// The tokens of a reply.
    pub new_tokens: f64,
    /// The size of the vocabulary.
    pub vocab_size: f64,
}

/// The seconds of a rollout.
pub fn seconds(model: &Model, rollout: Rollout, layout: &Layout, hardware: &Hardware) -> Result<f64, Error> {
    let own = (rollout.replies / layout.replicas() as f64).ceil();
    let at_once = own.min(rollout.concurrent as f64);
    let prompts = Batch {
        row: RowTokens { predicted: 1.0, ..rollout.prompt },
        count: rollout.replies,
        micro_batch_size: at_once as usize,
    };
    let prefill = step::inference(model, prompts, layout, hardware)?;

    let stages = stages(model, layout);
    let groups = stages.len().min(at_once as usize).max(1) as f64;
    let token =
        Token { replies: at_once / groups, context: rollout.prompt.tokens + rollout.new_tokens / 2.0 };
    let rows = RowTokens { tokens: token.replies, squares: token.replies, predicted: token.replies };
    let traffic = Traffic { model, layout, rows };
    let message = traffic.message().seconds(hardware)?;
    let mut slowest = 0.0_f64;
    for segments in &stages {
        let computed = token.seconds(segments, model, (layout, hardware));
        let mut seconds = computed * hardware.largest_slowdown() + message;
        for segment in *segments {
            seconds += exchange_seconds(traffic.inference(segment), hardware)?.values().sum::<f64>();
        }
        slowest = slowest.max(seconds);
    }
    let sampler = SAMPLER_PASSES * LOGIT_BYTES * at_once * rollout.vocab_size / hardware.device.memory_copy;
    let decode = stages.len() as f64 * slowest + sampler;
    Ok(prefill + rollout.new_tokens * (own / at_once).ceil() * decode)
}

/// The next token of some replies.
struct Token {
    replies: f64,
    /// The mean number of tokens in the cache of a reply.
    context: f64,
}

impl Token {
    /// The seconds of a stage, without what it exchanges.
    fn seconds(&self, segments: &[Segment], model: &Model, (layout, hardware): (&Layout, &Hardware)) -> f64 {
        let device = &hardware.device;
        let (mut operations, mut bytes) = (0.0, 0.0);
        for segment in segments {
            let products = layout.inference_share(segment.operations) * self.replies;
            operations += products / device.decode_flops(self.replies, segment.width, model.dtype);
            // Of the embedding, single rows are read.
            if segment.part != Part::Embedding {
                bytes += layout.weight_share(segment.weight_bytes);
            }
            if let Part::Block { key_bytes, .. } = segment.part {
                let cached = 2.0 * key_bytes / layout.tensor_ranks() as f64;
                bytes += self.replies * self.context * cached;
            }
        }
        operations.max(bytes / device.memory_read)
    }
}

#[cfg(test)]
mod tests {
    use parallel::{Axis, Mesh};

    use super::*;
    use crate::hardware::{Dtype, round_numbers};
    use crate::layout::Divided;
    use crate::segment::Partitions;

    /// A block with 1e6 weights in fp32 and keys of 50 bytes, and a head of 32 tokens.
    fn model() -> Model {
        let segment = |part, weights: f64| Segment {
            weight_bytes: Divided::tensor(4.0 * weights),
            operations: Divided::tensor(2.0 * weights),
            stage_cost: weights,
            ..Segment::empty(part, 128.0)
        };
        let block = Part::Block { query_bytes: 100.0, key_bytes: 50.0, routed_bytes: 0.0 };
        Model {
            segments: vec![segment(block, 1e6), segment(Part::Head, 1e6)],
            hidden_bytes: 100.0,
            dtype: Dtype::Float32,
            vocabulary: None,
            partitions: Partitions::default(),
            tied: Divided::default(),
        }
    }

    /// Four replies of 3 tokens to prompts of 5, two at a time.
    const ROLLOUT: Rollout = Rollout {
        prompt: RowTokens { tokens: 5.0, squares: 25.0, predicted: 5.0 },
        replies: 4.0,
        concurrent: 2,
        new_tokens: 3.0,
        vocab_size: 32.0,
    };

    #[track_caller]
    fn same(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-9 * wanted.abs(), "{found:e}, wanted {wanted:e}");
    }

    #[test]
    fn a_rollout_by_hand() {
        // 2e6 operations of each of 20 tokens, and of the last positions of 4 prompts.
        let prefill = 2e6 * (20.0 + 4.0) / 1e11;
        // Weights and 6.5 tokens of the cache of two replies are read in more time than 8e6 operations take.
        let token = (8e6 + 2.0 * 6.5 * 100.0) / 2e10 + 6.0 * 4.0 * 2.0 * 32.0 / 1e10;
        let found = seconds(&model(), ROLLOUT, &Layout::single(), &round_numbers()).unwrap();
        same(found, prefill + 2.0 * 3.0 * token);
    }

    #[test]
    fn ranks_with_the_same_weights_divide_the_replies_and_stages_pass_them_on() {
        let with = |axis| {
            let layout = Layout { mesh: Mesh::new(&[(axis, 2)], 0, 2).unwrap(), ..Layout::single() };
            seconds(&model(), ROLLOUT, &layout, &round_numbers()).unwrap()
        };
        let alone = seconds(&model(), ROLLOUT, &Layout::single(), &round_numbers()).unwrap();
        same(with(Axis::Data), alone / 2.0);
        // Sequence ranks generate replies of their own; expert ranks all have the same.
        same(with(Axis::Sequence), alone / 2.0);
        same(with(Axis::Expert), alone);
        // Each of two stages reads its half of the weights for each of two groups: nothing is gained.
        assert!(with(Axis::Pipeline) > 0.9 * alone);
    }
}
