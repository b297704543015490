//! The decoder that all families are: embeddings, blocks, a last norm; as segments, as prefill and as a decoding step.
//!
//! Segment 0 makes `[N, H]` from tokens, segments `1..=L` are the blocks, segment `L + 1` is the last norm (and, in
//! OPT-350m, a projection). The head that reads the result is kept here as one more parameter and applied by the loss.

use std::ops::Range;
use std::path::Path;

use parallel::comm::ProcessGroup;
use parallel::{Parameter, PipelineStages, Segmented};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{Architecture, Position};
use crate::attention::{Attention, mask_for_layer, scaled_dot_product};
use crate::batch::{Batch, MaskKind};
use crate::block::{Block, ForwardContext};
use crate::cache::KvCache;
use crate::config::Config;
use crate::initialize::Initial;
use crate::layer::{Linear, ModuleBuilder, Norm, ParameterSource, Request, to_column_major};
use crate::model_parallel::{
    self, HeadPartition, ModelParallel, PipelineParallel, TensorParallelRegion, VocabParallelEmbedding,
    VocabShard, WeightPlacement,
};
use crate::moe::ExpertPlacement;
use crate::rope::Rotary;
use crate::weights;

/// The name of a score's weight in sequence-classification checkpoints.
pub const SCORE: &str = "score.weight";

/// Kind, device, purpose and owners of the parameters of a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The numbers' kind; a score is fp32 always.
    pub kind: Kind,
    /// Where they live.
    pub device: Device,
    /// Whether they have gradients.
    pub trainable: bool,
    /// Who shares them.
    pub model_parallel: ModelParallel,
}

impl LoadOptions {
    /// What stands for a parameter of another rank.
    pub(crate) fn placeholder(&self) -> Tensor {
        Tensor::empty([0], (self.kind, self.device))
    }

    /// A parameter as these options want it. What is only run, on a processor, is laid out for it.
    pub(crate) fn materialize(&self, request: &Request<'_>, tensor: &Tensor) -> Tensor {
        let kind = if request.name == SCORE { Kind::Float } else { self.kind };
        let placed = tensor.to_device(self.device).to_kind(kind);
        let runs_on_processor = !self.trainable && self.device == Device::Cpu;
        if request.is_linear_weight && runs_on_processor {
            return no_grad(|| to_column_major(&placed));
        }
        // The optimiser's kernel walks the memory of weight and gradient side by side, and gradients are row-major.
        no_grad(|| placed.contiguous()).set_requires_grad(self.trainable)
    }
}

/// What reads the last hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// A logit for each token of the vocabulary: the token embedding if tied, otherwise a matrix of its own.
    Vocabulary,
    /// One score.
    Scalar,
}

/// The trunk of a language model with the weight of its head.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    token_embedding: VocabParallelEmbedding,
    position_embedding: Option<Tensor>,
    project_in: Option<Linear>,
    embedding_norm: Option<Norm>,
    blocks: Vec<Block>,
    final_norm: Option<Norm>,
    project_out: Option<Linear>,
    head: Tensor,
    parameters: Vec<Parameter>,
    model_parallel: ModelParallel,
    pipeline: Option<PipelineStages>,
    /// The first parameter of each segment, and of what comes after the last.
    segment_offsets: Vec<usize>,
    head_parameters: Vec<usize>,
}

/// The attention of a layer over its queries, keys and values.
type LayerAttentionFn<'a> =
    dyn FnMut(usize, &Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

impl Decoder {
    /// Builds this rank's part of a model that is shared as `model_parallel` says; its parameters come from `source`, asked for in order of use.
    pub fn build(
        config: Config,
        head: HeadKind,
        split: &ModelParallel,
        source: &mut ParameterSource<'_>,
    ) -> Result<Self, Error> {
        let group = split.tensor_parallel.as_ref();
        let architecture = config.architecture().clone();
        let names = &architecture.names;
        let (hidden, width) = (architecture.hidden_size, architecture.embedding_size);
        let pipeline = build_pipeline(&architecture, head, split)?;
        let has = |segment: usize| pipeline.as_ref().is_none_or(|pipeline| pipeline.owns_segment(segment));
        let mut registry = ModuleBuilder::new(&architecture, split, source);
        registry.set_local(has(0));
        let mut segment_offsets = vec![0];
        let tokens = model_parallel::shard_evenly(architecture.vocab_size, "tokens of a vocabulary", group)?;
        let vocabulary = VocabShard::new(&tokens, group);
        let weight = registry.embedding(names.token_embedding, architecture.vocab_size, width, &tokens)?;
        let token_embedding = VocabParallelEmbedding { weight, vocabulary };
        let outside = &split.non_parallel_placement();
        let project_in = optional(architecture.has_embedding_projection(), || {
            registry.column_parallel_linear(names.project_in, [width, hidden], false, outside)
        })?;
        let position_embedding = position_embedding(&mut registry, &architecture)?;
        let embedding_norm =
            optional(architecture.embedding_norm, || registry.norm(names.embedding_norm, hidden))?;
        let mut blocks = Vec::new();
        for layer in 0..architecture.num_layers as usize {
            segment_offsets.push(registry.len());
            registry.set_local(has(layer + 1));
            blocks.push(Block::new(&mut registry, &architecture, layer)?);
        }
        segment_offsets.push(registry.len());
        let last = blocks.len() + 1;
        registry.set_local(has(last));
        let final_norm = optional(architecture.final_norm, || registry.norm(names.final_norm, hidden))?;
        let project_out = optional(architecture.has_embedding_projection(), || {
            registry.column_parallel_linear(names.project_out, [hidden, width], false, outside)
        })?;
        segment_offsets.push(registry.len());
        let (head, head_parameters) = head_weight(
            &mut registry,
            &architecture,
            head,
            &token_embedding.weight,
            &tokens,
            [has(0), has(last)],
        )?;
        let parameters = registry.into_parameters();
        Ok(Self {
            config,
            token_embedding,
            position_embedding,
            project_in,
            embedding_norm,
            blocks,
            final_norm,
            project_out,
            head,
            parameters,
            model_parallel: split.clone(),
            pipeline,
            segment_offsets,
            head_parameters,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weight of the head: `[V, H]`, of which this rank may have some rows, or `[1, H]`.
    pub fn head_weight(&self) -> &Tensor {
        &self.head
    }

    /// The tokens of this rank; `None` if it has all.
    pub fn vocabulary(&self) -> Option<&VocabShard> {
        self.token_embedding.vocabulary.as_ref()
    }

    /// How ranks share it.
    pub fn model_parallel(&self) -> &ModelParallel {
        &self.model_parallel
    }

    /// Writes the parameters of all ranks, and `config`.
    pub(crate) fn save(&self, folder: &Path, config: &Config) -> Result<(), Error> {
        let alone = ProcessGroup::single("model-parallel", 0);
        let model_parallel_group = self.model_parallel.model_parallel_group.as_deref().unwrap_or(&alone);
        weights::save(folder, config, &self.parameters, model_parallel_group)
    }

    /// Empty slots for texts of up to `capacity` tokens.
    pub fn cache(&self, slots: i64, capacity: i64) -> KvCache {
        let [layers, kv_heads, dim] = self.blocks.first().map_or([0, 1, 1], |block| {
            let attention = block.attention();
            let layers = (0..self.blocks.len()).filter(|&layer| self.owns_segment(layer + 1)).count();
            [layers as i64, attention.kv_heads(), attention.head_dim()]
        });
        KvCache::new([layers, kv_heads, dim], slots, capacity, self.kind(), self.device())
    }

    /// The kind of the hidden states.
    pub fn kind(&self) -> Kind {
        self.token_embedding.weight.kind()
    }

    /// Where the model is.
    pub fn device(&self) -> Device {
        self.token_embedding.weight.device()
    }

    /// Runs row `r` of the batch into slot `slots[r]` of the cache, behind what it holds already; the last hidden states
    /// `[N, H]` of the new tokens, without a graph.
    pub fn prefill(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        slots: &[i64],
    ) -> Result<Tensor, parallel::Error> {
        assert_eq!(batch.lengths.len(), slots.len(), "one slot for each row");
        let past: Vec<i64> = slots.iter().map(|&slot| cache.lengths()[slot as usize]).collect();
        let places = cache.slot_mapping(slots, &batch.lengths, self.device());
        let last = no_grad(|| {
            if past.iter().all(|&length| length == 0) {
                let rotary = self.batch_rotary(batch);
                return self.run(&batch.input_ids, &batch.positions, rotary, &mut |layer, attention, qkv| {
                    cache.write(layer, &places, &qkv[1], &qkv[2]);
                    Ok(attend_batch(batch, attention, qkv))
                });
            }
            let continued = CachedPrefill::new(batch, slots, &past);
            let rotary = self.rotary(&continued.positions, &batch.lengths, &continued.lengths);
            self.run(&batch.input_ids, &continued.positions, rotary, &mut |layer, attention, qkv| {
                cache.write(layer, &places, &qkv[1], &qkv[2]);
                Ok(continued.attend(cache, layer, attention, &qkv[0]))
            })
        })?;
        cache.advance(slots, &batch.lengths);
        Ok(last)
    }

    /// One more token, `input_ids` int64 `[B]`, for each of the first `B` slots; their last hidden states `[B, H]`,
    /// without a graph.
    pub fn decode(&self, input_ids: &Tensor, cache: &mut KvCache) -> Result<Tensor, parallel::Error> {
        let rows = input_ids.size()[0];
        let slots: Vec<i64> = (0..rows).collect();
        let ones = vec![1; rows as usize];
        let last = no_grad(|| {
            let held = &cache.lengths()[..rows as usize];
            let longest = held.iter().copied().max().unwrap_or(0) + 1;
            let positions = Tensor::from_slice(held).to_device(self.device());
            let lengths: Vec<i64> = held.iter().map(|length| length + 1).collect();
            let places = cache.slot_mapping(&slots, &ones, self.device());
            let rotary = self.rotary(&positions, &ones, &lengths);
            let mut masks: Vec<(MaskKind, Option<Tensor>)> = Vec::new();
            self.run(input_ids, &positions, rotary, &mut |layer, attention, [q, k, v]| {
                cache.write(layer, &places, k, v);
                let [keys, values] = cache.read(layer, 0, rows, longest);
                if !masks.iter().any(|(kind, _)| kind == attention.mask()) {
                    let mask = cache.decoding_mask(rows, attention.mask(), q.kind(), q.device());
                    masks.push((attention.mask().clone(), mask));
                }
                let mask = masks
                    .iter()
                    .find(|(kind, _)| kind == attention.mask())
                    .and_then(|(_, mask)| mask.as_ref());
                Ok(attend_decode(attention, q, &keys, &values, mask))
            })
        })?;
        cache.advance(&slots, &ones);
        Ok(last)
    }

    fn run(
        &self,
        input_ids: &Tensor,
        positions: &Tensor,
        rotary: Option<Rotary>,
        attention_fn: &mut LayerAttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        let tp_region = TensorParallelRegion::new(self.model_parallel.tensor_parallel.as_ref());
        let ctx = ForwardContext { tp_region, rotary, aux_loss: None, distinct_rows_per_rank: false };
        let mut layer = 0..;
        let mut run = |segments: Range<usize>, mut hidden: Option<Tensor>| {
            for segment in segments {
                hidden = Some(match (hidden, self.blocks.get(segment.wrapping_sub(1))) {
                    (Some(hidden), Some(block)) => {
                        let layer = layer.next().expect("there is no last number");
                        block.forward(&hidden, &ctx, &mut |attention, qkv| {
                            attention_fn(layer, attention, qkv)
                        })?
                    }
                    (Some(hidden), None) => self.final_layer(&hidden),
                    (None, _) => self.embed(input_ids, positions, &ctx.tp_region)?,
                });
            }
            Ok(hidden.expect("a stage has a segment"))
        };
        let Some(pipeline) = &self.pipeline else { return run(0..self.num_segments(), None) };
        let (rows, options) = (input_ids.size()[0], (self.kind(), self.device()));
        let last = pipeline.run_stages(&[rows, self.architecture().hidden_size], options, run)?;
        let nothing =
            || Tensor::zeros([1], options).expand([rows, self.architecture().embedding_size], false);
        Ok(last.unwrap_or_else(nothing))
    }

    /// Whether this rank has a segment.
    fn owns_segment(&self, segment: usize) -> bool {
        self.pipeline.as_ref().is_none_or(|pipeline| pipeline.owns_segment(segment))
    }

    /// The first hidden states. `positions` are those of the tokens that this rank keeps.
    fn embed(
        &self,
        input_ids: &Tensor,
        positions: &Tensor,
        tp_region: &TensorParallelRegion,
    ) -> Result<Tensor, parallel::Error> {
        let mut hidden = self.token_embedding.forward(input_ids, tp_region)?;
        if let Some(project) = &self.project_in {
            hidden = project.forward(&hidden);
        }
        if let (Some(table), Position::Learned { offset }) =
            (&self.position_embedding, &self.architecture().position)
        {
            let rows = if *offset == 0 { positions.shallow_clone() } else { positions + *offset };
            hidden += Tensor::embedding(table, &rows, -1, false, false);
        }
        Ok(match &self.embedding_norm {
            Some(norm) => norm.forward(&hidden),
            None => hidden,
        })
    }

    fn final_layer(&self, hidden: &Tensor) -> Tensor {
        let normed = match &self.final_norm {
            Some(norm) => norm.forward(hidden),
            None => hidden.shallow_clone(),
        };
        match &self.project_out {
            Some(project) => project.forward(&normed),
            None => normed,
        }
    }

    fn architecture(&self) -> &Architecture {
        self.config.architecture()
    }

    fn batch_rotary(&self, batch: &Batch) -> Option<Rotary> {
        match &self.architecture().position {
            Position::Rope(rope) => Some(batch.rotary(rope, self.kind(), None)),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }

    /// The border in training.
    fn tp_region(&self, batch: &Batch) -> TensorParallelRegion {
        let group = self.model_parallel.tensor_parallel.as_ref();
        if self.model_parallel.is_megatron_sp() {
            TensorParallelRegion::with_sequence_parallel(group, batch.num_tokens())
        } else {
            TensorParallelRegion::new(group)
        }
    }

    /// The angles of the tokens that attention sees on this rank in training: inside a border they are all there.
    fn training_rotary(&self, batch: &Batch) -> Option<Rotary> {
        let layout = self.model_parallel.sequence_shard().filter(|_| !self.model_parallel.is_megatron_sp());
        match &self.architecture().position {
            Position::Rope(rope) => Some(batch.rotary(rope, self.kind(), layout)),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }

    fn rotary(&self, positions: &Tensor, counts: &[i64], lengths: &[i64]) -> Option<Rotary> {
        match &self.architecture().position {
            Position::Rope(rope) => Some(rope.rotary(positions, counts, lengths, self.kind())),
            Position::Learned { .. } | Position::Alibi => None,
        }
    }
}

impl Segmented for Decoder {
    type Context = Batch;

    fn num_segments(&self) -> usize {
        self.blocks.len() + 2
    }

    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        batch: &Batch,
    ) -> Result<Tensor, parallel::Error> {
        let part = self.model_parallel.sequence_shard().map(|layout| batch.local(layout));
        let part = part.as_deref();
        let Some(hidden) = hidden else {
            let positions = part.map_or(&batch.positions, |part| &part.positions);
            let ids = part
                .filter(|_| !self.model_parallel.is_megatron_sp())
                .map_or(&batch.input_ids, |part| &part.input_ids);
            return self.embed(ids, positions, &self.tp_region(batch));
        };
        match self.blocks.get(index - 1) {
            Some(block) => {
                let ctx = ForwardContext {
                    tp_region: self.tp_region(batch),
                    rotary: self.training_rotary(batch),
                    aux_loss: self.model_parallel.load_balancing_loss(batch, part),
                    distinct_rows_per_rank: true,
                };
                let mut attention_fn = |attention: &Attention, qkv: &[Tensor; 3]| {
                    self.model_parallel.attend(batch, part, attention, qkv)
                };
                block.forward(hidden, &ctx, &mut attention_fn)
            }
            None => self.model_parallel.gather_hidden(&self.final_layer(hidden), part),
        }
    }

    fn pipeline(&self) -> Option<&PipelineStages> {
        self.pipeline.as_ref()
    }

    fn hidden_spec(&self, batch: &Batch) -> (Vec<i64>, (Kind, Device)) {
        let layout = self.model_parallel.sequence_shard();
        let tokens = layout.map_or_else(|| batch.num_tokens(), |layout| layout.local_len(&batch.lengths));
        (vec![tokens, self.architecture().hidden_size], (self.kind(), self.device()))
    }

    /// Whole rows on every rank.
    fn forward_no_grad(&self, batch: &Batch) -> Result<Tensor, parallel::Error> {
        no_grad(|| {
            let mut attention_fn =
                |_, attention: &Attention, qkv: &[Tensor; 3]| Ok(attend_batch(batch, attention, qkv));
            self.run(&batch.input_ids, &batch.positions, self.batch_rotary(batch), &mut attention_fn)
        })
    }

    fn segment_parameters(&self, index: usize) -> Vec<usize> {
        (self.segment_offsets[index]..self.segment_offsets[index + 1]).collect()
    }

    fn head_parameters(&self) -> Vec<usize> {
        self.head_parameters.clone()
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
}

/// Rows that go on behind what the cache holds of them.
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
        let positions = Tensor::from_slice(&positions).to_device(batch.input_ids.device());
        Self { slots, past, counts, lengths, positions }
    }

    /// One row at a time: such prefills are the turns of a chat, and few.
    fn attend(&self, cache: &KvCache, layer: usize, attention: &Attention, q: &Tensor) -> Tensor {
        let mut start = 0;
        let mut rows = Vec::new();
        for ((&slot, &past), &count) in self.slots.iter().zip(self.past).zip(self.counts) {
            let [keys, values] = cache.read(layer, slot, 1, past + count);
            let mask = attention.mask().attention_bias(past, count, q.kind(), q.device());
            let row = q.narrow(0, start, count).unsqueeze(0).transpose(1, 2);
            let mixed = scaled_dot_product(&row, &keys, &values, Some(&mask), attention.scale());
            rows.push(mixed.squeeze_dim(0).transpose(0, 1).reshape([count, -1]));
            start += count;
        }
        Tensor::cat(&rows, 0)
    }
}

fn attend_batch(batch: &Batch, attention: &Attention, [q, k, v]: &[Tensor; 3]) -> Tensor {
    batch.attend(q, k, v, attention.scale(), attention.mask())
}

/// One query a row. Query heads that share a key-value head are left to the kernel, which repeats nothing.
fn attend_decode(
    attention: &Attention,
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    mask: Option<&Tensor>,
) -> Tensor {
    let (q, grouped) = (q.unsqueeze(2), q.size()[1] != keys.size()[1]);
    Tensor::scaled_dot_product_attention(&q, keys, values, mask, 0.0, false, attention.scale(), grouped)
        .reshape([q.size()[0], -1])
}

/// The table of learned positions, where positions are learned.
fn position_embedding(
    registry: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
) -> Result<Option<Tensor>, Error> {
    let Position::Learned { offset } = architecture.position else { return Ok(None) };
    let (rows, share) = (architecture.max_positions + offset, registry.split().non_parallel_placement());
    let name = architecture.names.position_embedding;
    registry.embedding(name, rows, architecture.hidden_size, &share).map(Some)
}

/// Refuses a split that loading would refuse, from the configuration of a model alone.
pub fn check_model_parallel(config: &Config, split: &ModelParallel) -> Result<(), Error> {
    let architecture = config.architecture();
    let heads = HeadPartition::new(architecture, split.tensor_parallel.as_ref())?;
    for layer in 0..architecture.num_layers as usize {
        split.check_attention(&heads.query_heads, &mask_for_layer(architecture, layer, &heads))?;
    }
    if let Some(experts) = &architecture.experts {
        ExpertPlacement::new(experts.num_experts, split.expert_parallel.as_ref())?;
    }
    build_pipeline(architecture, HeadKind::Vocabulary, split).map(drop)
}

/// Which layers are where, by what their matrices cost.
fn build_pipeline(
    architecture: &Architecture,
    head: HeadKind,
    split: &ModelParallel,
) -> Result<Option<PipelineStages>, Error> {
    let Some(PipelineParallel { group, schedule_kind, virtual_stages, .. }) = &split.pipeline_parallel else {
        return Ok(None);
    };
    let hidden = architecture.hidden_size;
    let attention = 2 * (architecture.num_heads + architecture.num_kv_heads) * architecture.head_dim;
    let matrices = if architecture.gated_mlp { 3 } else { 2 };
    let dense = matrices * architecture.intermediate_size;
    let work = |layer: usize| {
        let experts = architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer]);
        experts.map_or(dense, |experts| {
            matrices
                * (experts.num_experts_per_tok * experts.intermediate_size
                    + experts.shared_expert_intermediate_size.unwrap_or(0))
        })
    };
    let blocks =
        (0..architecture.num_layers as usize).map(|layer| (hidden * (attention + work(layer))) as f64);
    let vocab = if head == HeadKind::Vocabulary { architecture.vocab_size } else { 1 };
    let head = (vocab * architecture.embedding_size) as f64;
    let costs: Vec<f64> = std::iter::once(0.0).chain(blocks).chain([head]).collect();
    let pipeline = PipelineStages::new(group, *schedule_kind, *virtual_stages, &costs);
    let too_few = || {
        let (stages, layers) =
            (group.size() * schedule_kind.virtual_stages(*virtual_stages), architecture.num_layers);
        let what = format!("{layers} layers with an embedding and a head in {stages} stages");
        Error::Indivisible { axis: "pipeline", ranks: group.size(), what }
    };
    pipeline.map(Some).ok_or_else(too_few)
}

fn head_weight(
    registry: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
    head: HeadKind,
    token_embedding: &Tensor,
    tokens: &WeightPlacement,
    [is_first, is_last]: [bool; 2],
) -> Result<(Tensor, Vec<usize>), Error> {
    let index = registry.len();
    let width = architecture.embedding_size;
    match head {
        HeadKind::Vocabulary if architecture.tie_word_embeddings => {
            let embedding_group =
                registry.split().pipeline_parallel.as_ref().and_then(|layers| layers.embedding_group.clone());
            match embedding_group.filter(|_| is_first != is_last) {
                // The first rank embeds with it, the last one makes logits.
                Some(embedding_group) if is_first => registry.tie_parameter(0, &embedding_group),
                Some(embedding_group) => {
                    let name = architecture.names.token_embedding;
                    let weight = registry.embedding(name, architecture.vocab_size, width, tokens)?;
                    registry.tie_parameter(index, &embedding_group);
                    return Ok((weight, vec![index]));
                }
                None => {}
            }
            Ok((token_embedding.shallow_clone(), if is_last { vec![0] } else { Vec::new() }))
        }
        HeadKind::Vocabulary => {
            let weight = registry.head(architecture.names.head, architecture.vocab_size, width, tokens)?;
            Ok((weight, if is_last { vec![index] } else { Vec::new() }))
        }
        HeadKind::Scalar => {
            let initial = Initial::Normal(((width + 1) as f64).sqrt().recip());
            let shared = registry.split().tensor_parallel.is_some();
            let share = if shared { WeightPlacement::Partial } else { WeightPlacement::Replicate };
            let weight = registry.parameter(SCORE, &[1, width], initial, &share)?;
            Ok((weight, if is_last { vec![index] } else { Vec::new() }))
        }
    }
}

fn optional<T>(wanted: bool, make: impl FnOnce() -> Result<T, Error>) -> Result<Option<T>, Error> {
    if wanted { make().map(Some) } else { Ok(None) }
}
