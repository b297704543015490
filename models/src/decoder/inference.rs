//! Forward passes without an autograd graph: the next tokens of sequences in the KV cache, and scoring of
//! complete rows.

use std::ops::Range;

use parallel::Segmented;
use parallel::pipeline::PendingSends;
use parallel::residency::ModelPart;
use parallel::segment::{forward_segment_by_segment, hold_weights};
use tch::{Tensor, no_grad};

use super::Decoder;
use crate::activations::ActivationMemory;
use crate::architecture::Position;
use crate::attention::Attention;
use crate::batch::Batch;
use crate::block::{AttentionFn, Block};
use crate::cache::{CacheShape, KvCache};
use crate::cached_batch::{CachedBatch, CachedRow};
use crate::forward_context::ForwardContext;
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
    /// The tokens with an output, int64 `[M]`; `None` for all.
    outputs: Option<&'a Tensor>,
    has_aux_loss: bool,
}

impl Decoder {
    /// Allocates a KV cache of `pages` pages for `page_size` tokens each.
    pub fn cache(&self, pages: usize, page_size: usize) -> KvCache {
        KvCache::new(self.cache_shape(pages as i64, page_size as i64), self.kind(), self.device())
    }

    /// The bytes of the keys and values of one token in all layers of this process.
    pub fn cache_bytes_per_token(&self) -> usize {
        let CacheShape { layers, kv_heads, head_dim, .. } = self.cache_shape(1, 1);
        2 * (layers * kv_heads * head_dim) as usize * self.kind().elt_size_in_bytes()
    }

    /// The pages of `page_size` tokens for which a budget of device memory leaves room beside a part of the
    /// weights and beside a step of `tokens` tokens, of which `outputs` get their logits. `None` without a
    /// budget. The ranks of a model agree on the smallest number.
    pub fn pages_within_budget(
        &self,
        page_size: usize,
        tokens: usize,
        outputs: usize,
    ) -> Result<Option<usize>, parallel::Error> {
        let room = self.memory.as_ref().and_then(|memory| memory.store.room_for_tensors(0));
        let Some(room) = room else { return Ok(None) };
        let shards = self.model_parallel().tensor_parallel.as_ref().map_or(1, |group| group.size());
        let step = ActivationMemory::new(self.architecture(), self.kind(), shards).step(tokens, outputs);
        let pages = room.saturating_sub(step) / (page_size * self.cache_bytes_per_token()).max(1);
        self.model_parallel().min_over_ranks(pages).map(Some)
    }

    fn cache_shape(&self, pages: i64, page_size: i64) -> CacheShape {
        let layers = (0..self.blocks.len()).filter(|&layer| self.owns_segment(layer + 1)).count() as i64;
        let attention = self.blocks.first().map(Block::attention);
        let (kv_heads, head_dim) =
            attention.map_or((1, 1), |attention| (attention.kv_heads(), attention.head_dim()));
        CacheShape { layers, pages, page_size, kv_heads, head_dim }
    }

    /// Runs the next tokens of several sequences, and writes their keys and values into the cache. Returns
    /// the final hidden states of the tokens that have an output, `[M, H]`, row after row, without an
    /// autograd graph.
    pub fn step(&self, rows: &[CachedRow<'_>], cache: &mut KvCache) -> Result<Tensor, parallel::Error> {
        let mut sends = PendingSends::default();
        let hidden = self.start_step(rows, cache, &mut sends)?;
        sends.wait()?;
        Ok(hidden)
    }

    /// Like [`Self::step`], but the messages to the next stages of a pipeline are added to `sends`, so that
    /// this rank can begin the step of other sequences meanwhile.
    pub fn start_step(
        &self,
        rows: &[CachedRow<'_>],
        cache: &mut KvCache,
        sends: &mut PendingSends,
    ) -> Result<Tensor, parallel::Error> {
        no_grad(|| {
            let batch = CachedBatch::new(rows, cache, self.device());
            let rotary = self.cached_rotary(&batch, cache);
            let inputs = Inputs {
                ids: &batch.input_ids,
                positions: &batch.positions,
                outputs: batch.outputs.as_ref(),
                has_aux_loss: false,
            };
            self.run(&inputs, rotary, sends, &mut |layer, attention, qkv| {
                cache.write(layer, &batch.cache_rows, &qkv[1], &qkv[2]);
                Ok(batch.attend(cache, layer, attention, qkv))
            })
        })
    }

    /// The final hidden states of batches whose rows are complete on every rank, `[N, H]` each, or of their
    /// outputs `[M, H]`, without an autograd graph. Without a pipeline, all batches run through one segment
    /// before the next.
    pub(super) fn forward_rows(&self, batches: &[&Batch]) -> Result<Vec<Tensor>, parallel::Error> {
        if self.pipeline.is_some() {
            let mut sends = PendingSends::default();
            let forward = |&batch: &&Batch| {
                let (inputs, rotary) = (self.inputs(batch), self.batch_rotary(batch));
                let mut attention_fn =
                    |_, attention: &Attention, qkv: &[Tensor; 3]| Ok(attend_batch(batch, attention, qkv));
                self.run(&inputs, rotary, &mut sends, &mut attention_fn)
            };
            let hidden = no_grad(|| batches.iter().map(forward).collect());
            sends.wait()?;
            return hidden;
        }

        let contexts: Vec<ForwardContext> =
            batches.iter().map(|batch| self.inference_context(self.batch_rotary(batch))).collect();
        forward_segment_by_segment(self, batches.len(), |segment, index, hidden| {
            let batch = batches[index];
            let mut attention_fn =
                |attention: &Attention, qkv: &[Tensor; 3]| Ok(attend_batch(batch, attention, qkv));
            self.run_segment(segment, hidden, &self.inputs(batch), &contexts[index], &mut attention_fn)
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
                let outputs = self.outputs_of_segment(segment, inputs.outputs, inputs.has_aux_loss);
                block.forward(hidden, outputs, ctx, attention_fn)?
            }
            (Some(hidden), None) => {
                let hidden = self.final_norm_and_project(hidden)?;
                self.select_outputs(hidden, inputs.outputs, inputs.has_aux_loss)
            }
            (None, _) => self.embed(inputs.ids, inputs.positions, &ctx.tp_region)?,
        })
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        Inputs {
            ids: &batch.input_ids,
            positions: &batch.positions,
            outputs: batch.outputs(),
            has_aux_loss: self.has_aux_loss(batch),
        }
    }

    /// Runs all segments of this rank, stage by stage if the model is pipelined. Ranks without the last stage
    /// return zeros. Messages to other ranks are added to `sends`.
    fn run(
        &self,
        inputs: &Inputs<'_>,
        rotary: Option<Rotary>,
        sends: &mut PendingSends,
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
        let shape = [tokens, self.architecture().hidden_size];
        let last = pipeline.run_stages(&shape, options, sends, run_segments)?;
        let rows = inputs.outputs.map_or(tokens, |outputs| outputs.size()[0]);
        let zeros = || Tensor::zeros([1], options).expand([rows, self.architecture().embedding_size], false);
        Ok(last.unwrap_or_else(zeros))
    }

    fn batch_rotary(&self, batch: &Batch) -> Option<Rotary> {
        match &self.architecture().position {
            Position::Rope(rope) => Some(batch.rotary(rope, self.kind(), None)),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }

    /// The rotary tables of the tokens of a step. They are rows of a table that the cache keeps, unless the
    /// frequencies depend on the lengths of the sequences.
    fn cached_rotary(&self, batch: &CachedBatch<'_>, cache: &mut KvCache) -> Option<Rotary> {
        let Position::Rope(rope) = &self.architecture().position else { return None };
        let (positions, kind) = (&batch.positions, self.kind());
        if rope.depends_on_length() {
            return Some(rope.rotary(positions, &batch.counts, &batch.lengths, kind));
        }
        let longest = batch.lengths.iter().copied().max().unwrap_or(0);
        let table = cache.rotary(longest, |positions| rope.rotary(positions, &[], &[], kind));
        Some(table.select(positions))
    }
}

fn attend_batch(batch: &Batch, attention: &Attention, [q, k, v]: &[Tensor; 3]) -> Tensor {
    batch.attend(q, k, v, attention.scale(), attention.mask())
}
