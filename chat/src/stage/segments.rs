//! The models and the mesh of a stage as the planner sees them: numbers in place of tensors.
//!
//! | a weight | who has it |
//! |---|---|
//! | matrices of attention and of MLPs; embedding and head | tensor ranks have a part each |
//! | matrices of experts | tensor ranks and expert ranks have a part each |
//! | keys and values of fewer heads than tensor ranks | every rank |
//! | norms, biases, routers, position embeddings, adapters | every rank |
//!
//! Ranks divide some biases and adapters, which are too small to matter.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use models::activations::ActivationMemory;
use models::architecture::Architecture;
use models::decoder::HeadKind;
use models::lora::LoraPlan;
use parallel::residency::WeightSpec;
use parallel::{Axis, Mesh};
use planner::hardware;
use planner::layout::{Divided, Layout, SequenceMode as PlannedSequence};
use planner::segment::{Model, Part, Partitions, Segment};
use tch::Kind;

use super::model_memory::{PlannedModel, full_specs};
use crate::config::RunConfig;
use crate::config::section::SequenceMode;

/// How the ranks of `mesh` divide the work of a run.
pub(super) fn layout(config: &RunConfig, mesh: &Mesh) -> Layout {
    let pipeline = &config.parallel.pipeline;
    let sequence = match config.parallel.sequence.mode {
        SequenceMode::None => PlannedSequence::None,
        SequenceMode::Megatron => PlannedSequence::Megatron,
        SequenceMode::Ulysses => PlannedSequence::Ulysses,
        SequenceMode::Ring => PlannedSequence::Ring,
    };
    Layout {
        mesh: mesh.clone(),
        sequence,
        zero: config.parallel.zero.into(),
        schedule: pipeline.schedule,
        chunks: pipeline.chunks,
        recomputes: config.train.activation_checkpointing,
    }
}

/// The dtype of the numbers that a model computes with.
fn dtype(kind: Kind) -> hardware::Dtype {
    if kind == Kind::Float { hardware::Dtype::Float32 } else { hardware::Dtype::BFloat16 }
}

/// The numbers of the models of a run, which are made once for all layouts that split the models alike.
pub(super) struct Numbers<'a> {
    config: &'a RunConfig,
    models: &'a [PlannedModel<'a>],
    made: RefCell<HashMap<Split, Rc<[Model]>>>,
}

/// What the numbers of a model depend on: the tensor ranks, and whether a rank has both ends of it.
type Split = (usize, bool);

impl<'a> Numbers<'a> {
    /// Of the `config`, only what says how weights and moments are held counts.
    pub(super) fn new(config: &'a RunConfig, models: &'a [PlannedModel<'a>]) -> Self {
        Self { config, models, made: RefCell::default() }
    }

    /// The numbers of each model.
    pub(super) fn of(&self, layout: &Layout) -> Result<Rc<[Model]>, models::Error> {
        let key = (layout.tensor_ranks(), has_both_ends(layout));
        if let Some(made) = self.made.borrow().get(&key) {
            return Ok(Rc::clone(made));
        }
        let made: Rc<[Model]> = self
            .models
            .iter()
            .map(|planned| model(planned, self.config, layout))
            .collect::<Result<_, _>>()?;
        self.made.borrow_mut().insert(key, Rc::clone(&made));
        Ok(made)
    }
}

/// The numbers of a model, segment by segment.
fn model(planned: &PlannedModel<'_>, config: &RunConfig, layout: &Layout) -> Result<Model, models::Error> {
    let architecture = planned.config.architecture();
    let mut model = without_weights(planned, config, layout);
    let segments = &mut model.segments;
    for spec in full_specs(config, planned)? {
        let index = segment_of(&spec.parameter.name, architecture);
        add_weight(&mut segments[index], &spec, config, (architecture, layout));
    }
    // The head of a model with tied weights reads the embedding, which a rank with both has once.
    if architecture.tie_word_embeddings && planned.head == HeadKind::Vocabulary {
        let (first, last) = (segments[0], segments.len() - 1);
        segments[last].weight_bytes = segments[last].weight_bytes + first.weight_bytes;
        segments[last].trained = segments[last].trained + first.trained;
        segments[last].optimizer_bytes = segments[last].optimizer_bytes + first.optimizer_bytes;
        if has_both_ends(layout) {
            let first = &mut segments[0];
            (first.weight_bytes, first.trained, first.optimizer_bytes) = <_>::default();
        } else {
            model.tied = first.trained;
        }
    }
    Ok(model)
}

/// Whether a rank has the first and the last stage.
fn has_both_ends(layout: &Layout) -> bool {
    let ranks = layout.size(Axis::Pipeline);
    let stages = ranks * layout.schedule.virtual_stages(layout.chunks);
    ranks == 1 || layout.schedule.rank_of_stage(stages - 1, ranks) == 0
}

/// The numbers that depend on the architecture alone: all but the weights, and the operations of adapters.
fn without_weights(planned: &PlannedModel<'_>, config: &RunConfig, layout: &Layout) -> Model {
    let architecture = planned.config.architecture();
    let memory = ActivationMemory::new(architecture, planned.kind, 1);
    let dense_weights = planned.quantization(config).map_or(0, |_| memory.block_weights());
    let blocks = (0..architecture.num_layers as usize).map(|layer| block(planned, layer, layout));
    let blocks = blocks.map(|block| {
        // A block makes numbers of the codes of its weights one after the other, and the heap keeps their
        // memory.
        Segment { scratch: block.scratch + Divided::tensor(dense_weights as f64), ..block }
    });
    let embedding = Segment::empty(Part::Embedding, architecture.embedding_size as f64);
    let mut segments: Vec<Segment> =
        std::iter::once(embedding).chain(blocks).chain([head(planned)]).collect();
    // The loss that balances experts is computed of all tokens.
    if planned.config.router_aux_loss_coef() == 0.0 {
        let last = segments.len() - 2;
        let all = segments[last].operations.total();
        let before = projections(architecture, layout).total() - out_projection(architecture).total();
        segments[last].selected_fraction = 1.0 - before / all;
    }
    if planned.is_trained && planned.lora.is_none() {
        for segment in &mut segments {
            segment.trained_operations = segment.operations;
        }
    }

    // Settings of adapters that cannot be followed were refused when the weights were counted.
    let names = &architecture.names;
    let trains_head = |lora: &Arc<LoraPlan>| lora.trains_whole(names.head, names.layers).unwrap_or(false);
    let is_trained = planned.lora.is_none_or(trains_head);
    let vocabulary = (planned.head == HeadKind::Vocabulary).then(|| memory.vocabulary(is_trained));
    Model {
        segments,
        hidden_bytes: memory.hidden(1) as f64,
        dtype: dtype(planned.kind),
        vocabulary,
        partitions: Partitions::default(),
        tied: Divided::default(),
    }
}

/// The head without its weights. A score has no operations to speak of.
fn head(planned: &PlannedModel<'_>) -> Segment {
    let architecture = planned.config.architecture();
    let width = architecture.embedding_size as f64;
    let (outputs, operations) = match planned.head {
        HeadKind::Vocabulary => {
            let outputs = architecture.vocab_size as f64;
            (outputs, Divided::tensor(2.0 * outputs * width))
        }
        HeadKind::Scalar => (1.0, Divided::default()),
    };
    let memory = ActivationMemory::new(architecture, planned.kind, 1);
    let activations = Divided::whole(per_token(|tokens| memory.final_norm(tokens)));
    Segment { operations, activations, stage_cost: outputs * width, ..Segment::empty(Part::Head, width) }
}

/// The bytes of a token, of those of a number of tokens.
fn per_token(bytes: impl Fn(usize) -> usize) -> f64 {
    // So many that no rounding matters.
    const TOKENS: usize = 1024;
    (bytes(TOKENS) - bytes(0)) as f64 / TOKENS as f64
}

/// The numbers of block `layer` without its weights.
fn block(planned: &PlannedModel<'_>, layer: usize, layout: &Layout) -> Segment {
    let architecture = planned.config.architecture();
    let hidden = architecture.hidden_size as f64;
    let [queries, keys] = [architecture.num_heads, architecture.num_kv_heads]
        .map(|heads| (heads * architecture.head_dim) as f64);
    let matrices = if architecture.gated_mlp { 3.0 } else { 2.0 };
    let of_mlp = |inner: i64| 2.0 * matrices * hidden * inner as f64;

    let mut routed = 0.0;
    let mlp = match architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer]) {
        None => Divided::tensor(of_mlp(architecture.intermediate_size)),
        Some(experts) => {
            let chosen = experts.num_experts_per_tok as f64;
            routed = chosen * hidden;
            Divided {
                whole: 2.0 * hidden * experts.num_experts as f64,
                tensor: of_mlp(experts.shared_expert_intermediate_size.unwrap_or(0)),
                expert: chosen * of_mlp(experts.intermediate_size),
            }
        }
    };

    let bytes = planned.kind.elt_size_in_bytes() as f64;
    let part =
        Part::Block { query_bytes: queries * bytes, key_bytes: keys * bytes, routed_bytes: routed * bytes };
    let memory = ActivationMemory::new(architecture, planned.kind, 1);
    let kept = per_token(|tokens| memory.block(layer, tokens));
    let between = per_token(|tokens| memory.between_layers(tokens));
    Segment {
        operations: projections(architecture, layout) + mlp,
        attention: 2.0 * queries,
        activations: Divided { whole: between, tensor: kept - between, expert: 0.0 },
        padding: Divided::tensor(per_token(|tokens| memory.padded_attention(tokens))),
        gradients: Divided::tensor(per_token(|tokens| memory.block_backward(layer, tokens))),
        scratch: Divided::tensor(memory.block_backward(layer, 0) as f64),
        stage_cost: 2.0 * hidden * (queries + keys) + 0.5 * (mlp.tensor + mlp.expert),
        ..Segment::empty(part, hidden)
    }
}

/// The operations of the four projections of attention.
fn projections(architecture: &Architecture, layout: &Layout) -> Divided {
    let keys = (architecture.num_kv_heads * architecture.head_dim) as f64;
    let of_keys = of_keys(4.0 * architecture.hidden_size as f64 * keys, architecture, layout);
    out_projection(architecture) * 2.0 + of_keys
}

/// The operations of the projection of attention's results; those of queries are as many.
fn out_projection(architecture: &Architecture) -> Divided {
    let queries = (architecture.num_heads * architecture.head_dim) as f64;
    Divided::tensor(2.0 * architecture.hidden_size as f64 * queries)
}

/// The operations of keys and values: divided by heads, or those of one head on each rank if there are fewer
/// heads than ranks.
fn of_keys(operations: f64, architecture: &Architecture, layout: &Layout) -> Divided {
    let heads = architecture.num_kv_heads as usize;
    if layout.tensor_ranks() <= heads {
        return Divided::tensor(operations);
    }
    Divided::whole(operations / heads as f64)
}

/// The index of the segment that a weight belongs to.
fn segment_of(name: &str, architecture: &Architecture) -> usize {
    let names = &architecture.names;
    let layers = architecture.num_layers as usize;
    let blocks = format!("{}.", names.layers);
    if let Some((_, rest)) = name.split_once(&blocks)
        && let Some(layer) = rest.split('.').next().and_then(|layer| layer.parse::<usize>().ok())
    {
        return 1 + layer.min(layers - 1);
    }
    let is_before =
        |part: &str| !part.is_empty() && name.split_once(part).is_some_and(|(_, rest)| rest.starts_with('.'));
    let before = [names.token_embedding, names.position_embedding, names.embedding_norm, names.project_in];
    if before.into_iter().any(is_before) { 0 } else { layers + 1 }
}

fn add_weight(
    segment: &mut Segment,
    spec: &WeightSpec,
    config: &RunConfig,
    (architecture, layout): (&Architecture, &Layout),
) {
    let weights = who_has(spec, architecture, layout);
    segment.weight_bytes = segment.weight_bytes + weights * spec.kind.elt_size_in_bytes() as f64;
    if spec.trainable {
        segment.trained = segment.trained + weights;
        let master = if spec.kind == Kind::Float { 0 } else { 4 };
        let moments = 2 * config.train.moments_dtype.kind().elt_size_in_bytes();
        segment.optimizer_bytes = segment.optimizer_bytes + weights * (master + moments) as f64;
    }
    if is_adapter(spec) {
        // Both products of an adapter come on top of the layer's.
        let operations = Divided::whole(2.0 * weights.total());
        segment.operations = segment.operations + operations;
        if spec.trainable {
            segment.trained_operations = segment.trained_operations + operations;
        }
    }
}

/// The elements of a weight, by the ranks that divide them.
fn who_has(spec: &WeightSpec, architecture: &Architecture, layout: &Layout) -> Divided {
    let name = &spec.parameter.name;
    let numel = spec.shape.iter().product::<i64>() as f64;
    let experts = architecture.experts.as_ref().map(|experts| &experts.names);
    let is_router = experts.is_some_and(|names| name.ends_with(&format!(".{}.weight", names.router)));
    let is_expert = experts.is_some_and(|names| name.contains(&format!(".{}.", names.experts)));
    let is_key = architecture.names.qkv[1..].iter().any(|key| !key.is_empty() && name.contains(key));
    let is_shared = is_key && layout.tensor_ranks() > architecture.num_kv_heads as usize;
    let position = architecture.names.position_embedding;
    let is_position = !position.is_empty() && name.contains(position);
    if is_expert && !is_adapter(spec) {
        Divided { expert: numel, ..Divided::default() }
    } else if spec.shape.len() < 2 || is_adapter(spec) || is_router || is_shared || is_position {
        Divided::whole(numel)
    } else {
        Divided::tensor(numel)
    }
}

fn is_adapter(spec: &WeightSpec) -> bool {
    spec.parameter.name.contains(".lora_")
}
