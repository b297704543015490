//! Forward passes without an autograd graph: prefill into the KV cache, single decoding steps, and scoring of
//! complete rows.

use std::ops::Range;

use parallel::residency::ModelPart;
use parallel::segment::{forward_segment_by_segment, hold_weights};
use parallel::{Segmented, upload};
use tch::{Tensor, no_grad};

use super::Decoder;
use crate::architecture::Position;
use crate::attention::{Attention, scaled_dot_product};
use crate::batch::Batch;
use crate::block::{AttentionFn, Block};
use crate::cache::{CacheShape, KvCache};
use crate::forward_context::ForwardContext;
use crate::mask::MaskKind;
use crate::rope::Rotary;
use crate::tensor_parallel_region::TensorParallelRegion;

/// Computes a layer's attention from its queries, keys and values.
type LayerAttentionFn<'a> =
    dyn FnMut(usize, &Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

/// The tokens of a pass.
struct Inputs<'a> {
    /// int64 `[N]`.
    ids: &'a Tensor,
    /// int64 `[N]`.
    positions: &'a Tensor,
    /// The batch of the tokens; `None` in a decoding step.
    batch: Option<&'a Batch>,
}

impl<'a> Inputs<'a> {
    fn of(batch: &'a Batch) -> Self {
        Self { ids: &batch.input_ids, positions: &batch.positions, batch: Some(batch) }
    }
}

impl Decoder {
    /// Allocates a KV cache with `slots` empty slots for sequences of up to `capacity` tokens.
    pub fn cache(&self, slots: i64, capacity: i64) -> KvCache {
        KvCache::new(self.cache_shape(slots, capacity), self.kind(), self.device())
    }

    /// The bytes of the keys and values of one token in all layers of this process.
    pub fn cache_bytes_per_token(&self) -> usize {
        let CacheShape { layers, kv_heads, head_dim, .. } = self.cache_shape(1, 1);
        2 * (layers * kv_heads * head_dim) as usize * self.kind().elt_size_in_bytes()
    }

    fn cache_shape(&self, slots: i64, capacity: i64) -> CacheShape {
        let layers = (0..self.blocks.len()).filter(|&layer| self.owns_segment(layer + 1)).count() as i64;
        let attention = self.blocks.first().map(Block::attention);
        let (kv_heads, head_dim) =
            attention.map_or((1, 1), |attention| (attention.kv_heads(), attention.head_dim()));
        CacheShape { layers, slots, kv_heads, capacity, head_dim }
    }

    /// Runs row `r` of the batch, which has no prefix, and appends its keys and values to slot `slots[r]` of
    /// the cache. Returns the final hidden states of the new tokens `[N, H]`, or of the outputs of the batch
    /// `[M, H]`, without an autograd graph.
    pub fn prefill(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        slots: &[i64],
    ) -> Result<Tensor, parallel::Error> {
        assert_eq!(batch.lengths.len(), slots.len(), "one slot for each row");
        assert!(!batch.has_prefixes(), "a slot of the cache holds a whole sequence");
        let past_lengths: Vec<i64> = slots.iter().map(|&slot| cache.lengths()[slot as usize]).collect();
        let slot_mapping = cache.slot_mapping(slots, &batch.lengths, self.device());

        let hidden = no_grad(|| {
            // Empty slots need only the keys and values of this batch, so attention does not read the cache.
            if past_lengths.iter().all(|&length| length == 0) {
                return self.run_batch(batch, &mut |layer, attention, qkv| {
                    cache.write(layer, &slot_mapping, &qkv[1], &qkv[2]);
                    Ok(attend_batch(batch, attention, qkv))
                });
            }

            let cached_prefill = CachedPrefill::new(batch, slots, &past_lengths);
            let rotary = self.rotary(&cached_prefill.positions, &batch.lengths, &cached_prefill.lengths);
            let inputs =
                Inputs { ids: &batch.input_ids, positions: &cached_prefill.positions, batch: Some(batch) };
            self.run(&inputs, rotary, &mut |layer, attention, qkv| {
                cache.write(layer, &slot_mapping, &qkv[1], &qkv[2]);
                Ok(cached_prefill.attend(cache, layer, attention, &qkv[0]))
            })
        })?;

        cache.advance(slots, &batch.lengths);
        Ok(hidden)
    }

    /// Runs one new token, `input_ids` int64 `[B]`, for each of the first `B` slots. Returns their final
    /// hidden states `[B, H]`, without an autograd graph.
    pub fn decode(&self, input_ids: &Tensor, cache: &mut KvCache) -> Result<Tensor, parallel::Error> {
        let rows = input_ids.size()[0];
        let hidden = no_grad(|| {
            let positions = cache.device_lengths(rows);
            let lengths: Vec<i64> =
                cache.lengths()[..rows as usize].iter().map(|length| length + 1).collect();
            let slot_mapping = cache.next_token_mapping(&positions);
            let rotary = self.decoding_rotary(&positions, &lengths, cache);

            // Layers with the same kind of mask share one mask tensor.
            let mut masks: Vec<(MaskKind, Option<Tensor>)> = Vec::new();
            let inputs = Inputs { ids: input_ids, positions: &positions, batch: None };
            self.run(&inputs, rotary, &mut |layer, attention, [q, k, v]| {
                cache.write(layer, &slot_mapping, k, v);
                if let Some(attended) = cache.attend_own_tokens(layer, q, attention) {
                    return Ok(attended);
                }
                let [keys, values] = cache.read(layer, 0, rows, lengths.iter().copied().max().unwrap_or(1));
                if !masks.iter().any(|(kind, _)| kind == attention.mask()) {
                    let mask = cache.decoding_mask(&positions, attention.mask(), q.kind());
                    masks.push((attention.mask().clone(), mask));
                }
                let mask = masks
                    .iter()
                    .find(|(kind, _)| kind == attention.mask())
                    .and_then(|(_, mask)| mask.as_ref());
                Ok(attend_decode(attention, q, &keys, &values, mask))
            })
        })?;

        cache.advance_by_one(rows);
        Ok(hidden)
    }

    /// The final hidden states of batches whose rows are complete on every rank, `[N, H]` each, or of their
    /// outputs `[M, H]`, without an autograd graph. Without a pipeline, all batches run through one segment
    /// before the next.
    pub(super) fn forward_rows(&self, batches: &[&Batch]) -> Result<Vec<Tensor>, parallel::Error> {
        if self.pipeline.is_some() {
            let forward = |&batch: &&Batch| {
                self.run_batch(batch, &mut |_, attention, qkv| Ok(attend_batch(batch, attention, qkv)))
            };
            return no_grad(|| batches.iter().map(forward).collect());
        }

        let contexts: Vec<ForwardContext> =
            batches.iter().map(|batch| self.inference_context(self.batch_rotary(batch))).collect();
        forward_segment_by_segment(self, batches.len(), |segment, index, hidden| {
            let batch = batches[index];
            let mut attention_fn =
                |attention: &Attention, qkv: &[Tensor; 3]| Ok(attend_batch(batch, attention, qkv));
            self.run_segment(segment, hidden, &Inputs::of(batch), &contexts[index], &mut attention_fn)
        })
    }

    /// The context of a pass without gradients.
    fn inference_context(&self, rotary: Option<Rotary>) -> ForwardContext {
        let tp_region = TensorParallelRegion::new(self.model_parallel.tensor_parallel.as_ref());
        ForwardContext { tp_region, rotary, aux_loss: None, tokens_differ_per_expert_rank: false }
    }

    /// Runs one segment on hidden states, or on ids and positions if it is the first.
    fn run_segment(
        &self,
        segment: usize,
        hidden: Option<&Tensor>,
        inputs: &Inputs<'_>,
        ctx: &ForwardContext,
        attention_fn: &mut AttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        Ok(match (hidden, self.blocks.get(segment.wrapping_sub(1))) {
            (Some(hidden), Some(block)) => {
                let outputs = inputs.batch.and_then(|batch| self.outputs_of_segment(segment, batch));
                block.forward(hidden, outputs, ctx, attention_fn)?
            }
            (Some(hidden), None) => {
                let hidden = self.final_norm_and_project(hidden);
                match inputs.batch {
                    Some(batch) => self.select_outputs(hidden, batch),
                    None => hidden,
                }
            }
            (None, _) => self.embed(inputs.ids, inputs.positions, &ctx.tp_region)?,
        })
    }

    fn run_batch(
        &self,
        batch: &Batch,
        attention_fn: &mut LayerAttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        self.run(&Inputs::of(batch), self.batch_rotary(batch), attention_fn)
    }

    /// Runs all segments of this rank, stage by stage if the model is pipelined. Ranks without the last stage
    /// return zeros.
    fn run(
        &self,
        inputs: &Inputs<'_>,
        rotary: Option<Rotary>,
        attention_fn: &mut LayerAttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        let ctx = self.inference_context(rotary);
        let mut layers = 0..;
        let mut run_segments = |segments: Range<usize>, mut hidden: Option<Tensor>| {
            for segment in segments {
                let _weights = hold_weights(self, ModelPart::Segment(segment))?;
                let mut attention_fn = |attention: &Attention, qkv: &[Tensor; 3]| {
                    let layer = layers.next().expect("the range of layer indices is unbounded");
                    attention_fn(layer, attention, qkv)
                };
                hidden = Some(self.run_segment(segment, hidden.as_ref(), inputs, &ctx, &mut attention_fn)?);
            }
            Ok(hidden.expect("a stage has a segment"))
        };

        let Some(pipeline) = &self.pipeline else { return run_segments(0..self.num_segments(), None) };
        let (tokens, options) = (inputs.ids.size()[0], (self.kind(), self.device()));
        let last = pipeline.run_stages(&[tokens, self.architecture().hidden_size], options, run_segments)?;
        let rows = inputs.batch.and_then(Batch::outputs).map_or(tokens, |outputs| outputs.size()[0]);
        let zeros = || Tensor::zeros([1], options).expand([rows, self.architecture().embedding_size], false);
        Ok(last.unwrap_or_else(zeros))
    }

    fn batch_rotary(&self, batch: &Batch) -> Option<Rotary> {
        match &self.architecture().position {
            Position::Rope(rope) => Some(batch.rotary(rope, self.kind(), None)),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }

    /// The rotary tables of the next tokens, at `positions` `[B]` of sequences that then have these lengths.
    /// They are rows of a table that the cache keeps, unless the frequencies depend on the length.
    fn decoding_rotary(&self, positions: &Tensor, lengths: &[i64], cache: &mut KvCache) -> Option<Rotary> {
        let Position::Rope(rope) = &self.architecture().position else { return None };
        if rope.depends_on_length() {
            return Some(rope.rotary(positions, &vec![1; lengths.len()], lengths, self.kind()));
        }
        Some(cache.rotary(|positions| rope.rotary(positions, &[], &[], self.kind())).select(positions))
    }

    fn rotary(&self, positions: &Tensor, counts: &[i64], lengths: &[i64]) -> Option<Rotary> {
        match &self.architecture().position {
            Position::Rope(rope) => Some(rope.rotary(positions, counts, lengths, self.kind())),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }
}

/// A prefill whose rows continue sequences that are already in the cache.
struct CachedPrefill<'a> {
    slots: &'a [i64],
    past: &'a [i64],
    counts: &'a [i64],
    lengths: Vec<i64>,
    positions: Tensor,
}

impl<'a> CachedPrefill<'a> {
    fn new(batch: &'a Batch, slots: &'a [i64], past: &'a [i64]) -> Self {
        let counts = batch.lengths.as_slice();
        let lengths = counts.iter().zip(past).map(|(count, past)| count + past).collect();
        let positions: Vec<i64> =
            counts.iter().zip(past).flat_map(|(&count, &past)| past..past + count).collect();
        let positions = upload(&positions, batch.input_ids.device());
        Self { slots, past, counts, lengths, positions }
    }

    /// Attends one row at a time: such prefills are chat turns, and there are few of them.
    fn attend(&self, cache: &KvCache, layer: usize, attention: &Attention, q: &Tensor) -> Tensor {
        let mut start = 0;
        let mut rows = Vec::new();
        for ((&slot, &past), &count) in self.slots.iter().zip(self.past).zip(self.counts) {
            let [keys, values] = cache.read(layer, slot, 1, past + count);
            let mask = attention.mask().attention_bias(past, count, q.kind(), q.device());
            let row = q.narrow(0, start, count).unsqueeze(0).transpose(1, 2);
            let attended = scaled_dot_product(&row, &keys, &values, Some(&mask), attention.scale());
            rows.push(attended.squeeze_dim(0).transpose(0, 1).reshape([count, -1]));
            start += count;
        }
        Tensor::cat(&rows, 0)
    }
}

fn attend_batch(batch: &Batch, attention: &Attention, [q, k, v]: &[Tensor; 3]) -> Tensor {
    batch.attend(q, k, v, attention.scale(), attention.mask())
}

/// Attention of one token per row: queries `[B, heads, D]` over keys and values `[B, kv_heads, T, D]`, with a
/// mask `[B, 1 or heads, 1, T]` that is added to the scores.
///
/// The query heads that share a key-value head become the query positions of this head. No key is masked by
/// the order of the positions, so this is the same attention, and every kernel of libtorch computes it
/// without repeating keys and values. (libtorch's kernels for CUDA have no grouped-query attention with a
/// mask.)
fn attend_decode(
    attention: &Attention,
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    mask: Option<&Tensor>,
) -> Tensor {
    let (rows, heads, kv_heads) = (q.size()[0], q.size()[1], keys.size()[1]);
    let by_kv_head = |x: &Tensor| x.reshape([rows, kv_heads, heads / kv_heads, -1]);
    let of_each_head = mask.filter(|mask| mask.size()[1] > 1).map(by_kv_head);
    let mask = of_each_head.as_ref().or(mask);
    let scale = attention.scale();
    Tensor::scaled_dot_product_attention(&by_kv_head(q), keys, values, mask, 0.0, false, scale, false)
        .reshape([rows, -1])
}
