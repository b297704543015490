//! Builds a decoder from its architecture: the modules in order of use, and the segments that this rank
//! holds.

use parallel::PipelineStages;
use tch::Tensor;

use super::{Decoder, DecoderSpec, HeadKind, LoraModel};
use crate::Error;
use crate::architecture::{Architecture, Position};
use crate::attention::mask_for_layer;
use crate::block::Block;
use crate::builder::{BuiltParameters, ModuleBuilder, ParameterPart, ParameterSource, SCORE_WEIGHT};
use crate::config::Config;
use crate::initialize::Initial;
use crate::lora::{EmbeddingAdapter, HeadAdapter};
use crate::model_parallel::{self, HeadPartition, ModelParallel, PipelineParallel, WeightPlacement};
use crate::moe::ExpertPlacement;
use crate::vocab_parallel::{VocabParallelEmbedding, VocabShard};

impl Decoder {
    /// Builds this rank's shard of a model that is split over ranks as described by `model_parallel`. The
    /// parameters come from `source` and are requested in order of use.
    pub fn build(
        spec: DecoderSpec,
        model_parallel: &ModelParallel,
        source: &mut ParameterSource<'_>,
    ) -> Result<Self, Error> {
        check_tables(&spec)?;
        let (head, architecture) = (spec.head, spec.config.architecture().clone());
        let names = &architecture.names;
        let (hidden, width) = (architecture.hidden_size, architecture.embedding_size);
        let pipeline = build_pipeline(&architecture, spec.stages_of(), model_parallel)?;
        let owns_segment =
            |segment: usize| pipeline.as_ref().is_none_or(|pipeline| pipeline.owns_segment(segment));

        let (lora, quantize) = (spec.lora.as_deref(), spec.quantize.as_ref());
        let mut builder = ModuleBuilder::new(&architecture, model_parallel, lora, quantize, source);
        builder.set_local(owns_segment(0));
        let mut segment_offsets = vec![0];

        let (token_embedding, vocab_placement) = token_embedding(&mut builder, &architecture)?;
        let project_in = optional(architecture.has_embedding_projection(), || {
            builder.replicated_linear(names.project_in, [width, hidden])
        })?;
        let position_embedding = position_embedding(&mut builder, &architecture)?;
        let embedding_norm =
            optional(architecture.embedding_norm, || builder.norm(names.embedding_norm, hidden))?;

        let blocks = blocks(&mut builder, &architecture, &owns_segment, &mut segment_offsets)?;
        segment_offsets.push(builder.len());

        let last = blocks.len() + 1;
        builder.set_local(owns_segment(last));
        let final_norm = optional(architecture.final_norm, || builder.norm(names.final_norm, hidden))?;
        let project_out = optional(architecture.has_embedding_projection(), || {
            builder.replicated_linear(names.project_out, [hidden, width])
        })?;
        segment_offsets.push(builder.len());

        let head = head_weight(
            &mut builder,
            &architecture,
            head,
            &token_embedding,
            &vocab_placement,
            [owns_segment(0), owns_segment(last)],
        )?;

        let BuiltParameters { parameters, parts, adapted, trains_bias, quantized } = builder.finish()?;
        Ok(Self {
            config: spec.config,
            token_embedding,
            position_embedding,
            project_in,
            embedding_norm,
            blocks,
            final_norm,
            project_out,
            head: head.weight,
            head_adapter: head.adapter,
            parameters,
            parts,
            lora: spec.lora.map(|plan| LoraModel { plan, adapted, trains_bias }),
            quantize: spec.quantize,
            quantized,
            is_on_trunk: spec.is_on_trunk,
            model_parallel: model_parallel.clone(),
            pipeline,
            segment_offsets,
            head_parameters: head.parameters,
            memory: None,
        })
    }
}

/// The blocks. Where the parameters of each begin is added to `segment_offsets`.
fn blocks(
    builder: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
    owns_segment: &dyn Fn(usize) -> bool,
    segment_offsets: &mut Vec<usize>,
) -> Result<Vec<Block>, Error> {
    let block = |layer: usize| {
        segment_offsets.push(builder.len());
        builder.set_local(owns_segment(layer + 1));
        Block::new(builder, architecture, layer)
    };
    (0..architecture.num_layers as usize).map(block).collect()
}

/// Checks from the configuration alone whether a model can be split over ranks this way, and returns the
/// error that loading would return.
pub fn check_model_parallel(config: &Config, model_parallel: &ModelParallel) -> Result<(), Error> {
    let architecture = config.architecture();
    let heads = HeadPartition::new(architecture, model_parallel.tensor_parallel.as_ref())?;
    for layer in 0..architecture.num_layers as usize {
        model_parallel.check_attention(&heads.query_heads, &mask_for_layer(architecture, layer, &heads))?;
    }
    if let Some(experts) = &architecture.experts {
        ExpertPlacement::new(experts.num_experts, model_parallel.expert_parallel.as_ref())?;
    }
    build_pipeline(architecture, HeadKind::Vocabulary, model_parallel).map(drop)
}

/// Returns an error for what an adapter cannot train of the embedding and the head of its model.
fn check_tables(spec: &DecoderSpec) -> Result<(), Error> {
    check_copies(spec)?;
    let Some(lora) = &spec.lora else { return Ok(()) };
    let architecture = spec.config.architecture();
    lora.check_token_rows(architecture)?;
    lora.check_table_targets(architecture, spec.head == HeadKind::Vocabulary)
}

/// Returns an error if a module that is trained whole is tied to one that is not.
fn check_copies(spec: &DecoderSpec) -> Result<(), Error> {
    let architecture = spec.config.architecture();
    let is_tied = architecture.tie_word_embeddings && spec.head == HeadKind::Vocabulary;
    let Some(lora) = spec.lora.as_ref().filter(|_| is_tied) else { return Ok(()) };
    let names = &architecture.names;
    for module in [names.token_embedding, names.head] {
        if lora.trains_whole(module, names.layers)? {
            return Err(lora.refused_copy(module));
        }
    }
    Ok(())
}

/// The token embedding, and how its rows are distributed over the tensor-parallel ranks.
fn token_embedding(
    builder: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
) -> Result<(VocabParallelEmbedding, WeightPlacement), Error> {
    let (vocab, width, group) = (architecture.vocab_size, architecture.embedding_size, builder.group());
    let placement = model_parallel::shard_evenly(vocab, "tokens of a vocabulary", group)?;
    let vocabulary = VocabShard::new(&placement, group);
    let weight = builder.table(architecture.names.token_embedding, vocab, width, &placement)?;
    let (name, sizes) = (architecture.names.token_embedding, [vocab, width]);
    let adapter = builder.embedding_adapter(name, sizes, &placement, vocabulary.as_ref())?;
    Ok((VocabParallelEmbedding { weight, vocabulary, adapter }, placement))
}

/// The position embedding, for architectures with learned positions.
fn position_embedding(
    builder: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
) -> Result<Option<Tensor>, Error> {
    let Position::Learned { offset } = architecture.position else { return Ok(None) };
    let (rows, placement) =
        (architecture.max_positions + offset, builder.model_parallel().non_parallel_placement());
    let name = architecture.names.position_embedding;
    builder.table(name, rows, architecture.hidden_size, &placement).map(Some)
}

/// Assigns layers to pipeline stages by the cost of their matrix products.
fn build_pipeline(
    architecture: &Architecture,
    head: HeadKind,
    model_parallel: &ModelParallel,
) -> Result<Option<PipelineStages>, Error> {
    let Some(PipelineParallel { group, schedule_kind, virtual_stages, .. }) =
        &model_parallel.pipeline_parallel
    else {
        return Ok(None);
    };

    let hidden = architecture.hidden_size;
    let attention = 2 * (architecture.num_heads + architecture.num_kv_heads) * architecture.head_dim;
    let matrices = if architecture.gated_mlp { 3 } else { 2 };
    let dense = matrices * architecture.intermediate_size;
    let mlp_cost = |layer: usize| {
        let experts = architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer]);
        experts.map_or(dense, |experts| {
            matrices
                * (experts.num_experts_per_tok * experts.intermediate_size
                    + experts.shared_expert_intermediate_size.unwrap_or(0))
        })
    };

    let blocks =
        (0..architecture.num_layers as usize).map(|layer| (hidden * (attention + mlp_cost(layer))) as f64);
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

/// The head of a decoder on this rank.
struct HeadWeight {
    weight: Tensor,
    adapter: Option<HeadAdapter>,
    /// The indices of the head's parameters.
    parameters: Vec<usize>,
}

/// Creates the head's weight, or shares the token embedding if tied.
fn head_weight(
    builder: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
    head: HeadKind,
    embedding: &VocabParallelEmbedding,
    vocab_placement: &WeightPlacement,
    [is_first, is_last]: [bool; 2],
) -> Result<HeadWeight, Error> {
    let (index, names) = (builder.len(), &architecture.names);
    let (vocab, width) = (architecture.vocab_size, architecture.embedding_size);
    let (weight, adapter) = match head {
        HeadKind::Vocabulary if architecture.tie_word_embeddings => {
            return tied_head(builder, architecture, embedding, vocab_placement, [is_first, is_last]);
        }
        HeadKind::Vocabulary => {
            let weight = builder.table(names.head, vocab, width, vocab_placement)?;
            let vocabulary = embedding.vocabulary.as_ref();
            (weight, builder.head_adapter(names.head, [width, vocab], vocab_placement, vocabulary)?)
        }
        HeadKind::Scalar => {
            let initial = Initial::Normal(((width + 1) as f64).sqrt().recip());
            let shared = builder.model_parallel().tensor_parallel.is_some();
            let placement =
                if shared { WeightPlacement::ReplicatePartialGrad } else { WeightPlacement::Replicate };
            let part = ParameterPart::ScalarHead;
            (builder.parameter_of(part, SCORE_WEIGHT, &[1, width], initial, &placement)?, None)
        }
    };

    // They are registered on ranks with the last stage alone.
    Ok(HeadWeight { weight, adapter, parameters: (index..builder.len()).collect() })
}

/// The head that is the token embedding. If the first and the last stage of a pipeline are on different
/// ranks, each has the table, and the two are tied.
fn tied_head(
    builder: &mut ModuleBuilder<'_>,
    architecture: &Architecture,
    embedding: &VocabParallelEmbedding,
    vocab_placement: &WeightPlacement,
    [is_first, is_last]: [bool; 2],
) -> Result<HeadWeight, Error> {
    let (index, name) = (builder.len(), architecture.names.token_embedding);
    let layers = builder.model_parallel().pipeline_parallel.as_ref();
    let embedding_group = layers.and_then(|layers| layers.embedding_group.clone());
    let embedding_group = embedding_group.filter(|_| is_first != is_last);
    // An adapter of a tied table is one tensor of rows.
    let of_embedding = 0..1 + usize::from(embedding.adapter.is_some());

    // The first stage uses the weight as embedding, the last stage computes logits with it.
    if let Some(embedding_group) = embedding_group {
        if !is_first {
            let (vocab, width) = (architecture.vocab_size, architecture.embedding_size);
            let weight = builder.table(name, vocab, width, vocab_placement)?;
            let rows = builder.token_rows(name, width, embedding.vocabulary.as_ref())?;
            let parameters: Vec<usize> = (index..builder.len()).collect();
            for &index in &parameters {
                builder.tie_parameter(index, &embedding_group);
            }
            return Ok(HeadWeight { weight, adapter: rows.map(HeadAdapter::Rows), parameters });
        }
        for index in of_embedding.clone() {
            builder.tie_parameter(index, &embedding_group);
        }
    }

    let weight = embedding.weight.shallow_clone();
    let rows = embedding.adapter.as_ref().and_then(EmbeddingAdapter::rows);
    let adapter = rows.map(|rows| HeadAdapter::Rows(rows.share()));
    let parameters = if is_last { of_embedding.collect() } else { Vec::new() };
    Ok(HeadWeight { weight, adapter, parameters })
}

fn optional<T>(wanted: bool, make: impl FnOnce() -> Result<T, Error>) -> Result<Option<T>, Error> {
    if wanted { make().map(Some) } else { Ok(None) }
}
