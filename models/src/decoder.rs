//! The decoder of all families: embeddings, blocks and a final norm. This file holds the struct and the
//! training forward pass, segment by segment. [`build`] constructs the decoder, `load` gives its parameters
//! their values, [`inference`] runs it with a KV cache.
//!
//! Segment 0 embeds the tokens into hidden states `[N, H]`, segments `1..=L` are the blocks, and segment
//! `L + 1` is the final norm (in OPT-350m also a projection). The weight of the head is a parameter of the
//! decoder; the loss applies it.

pub mod build;
pub mod inference;
pub mod load;
pub(crate) mod role;

use std::path::Path;
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::residency::{ModelPart, WeightAllocator, WeightStore};
use parallel::{Parameter, PipelineStages, Segmented};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{Architecture, Position};
use crate::attention::Attention;
use crate::batch::{Batch, gather_rows};
use crate::block::Block;
use crate::builder::{ParameterPart, ParameterRequest};
use crate::config::Config;
use crate::forward_context::ForwardContext;
use crate::linear::Linear;
use crate::lora::folder::{self, AdapterParameters, AdapterSettings};
use crate::lora::{HeadAdapter, LoraPlan};
use crate::model_parallel::ModelParallel;
use crate::norm::Norm;
use crate::quantize::{Quantization, QuantizedLayers, QuantizedMatrix, QuantizedWeights};
use crate::rope::Rotary;
use crate::tensor_parallel_region::TensorParallelRegion;
use crate::vocab_parallel::{VocabParallelEmbedding, VocabShard};
use crate::weights;

/// How a model's parameters are loaded: dtype, device, trainable or frozen, and how they are split over
/// ranks.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The dtype of the parameters; the scalar head and adapters are always fp32.
    pub kind: Kind,
    /// The device of the parameters.
    pub device: Device,
    /// Whether the parameters require gradients; of a model with adapters, those beside the trunk.
    pub trainable: bool,
    /// How the model is split over ranks.
    pub model_parallel: ModelParallel,
    /// Reserves the memory of the parameters. `None` allocates each of them on its own.
    pub memory: Option<Arc<dyn WeightAllocator>>,
    /// How the weights of linear layers are held, if not as numbers of `kind`. Loading from a folder reads
    /// this field, and refuses it for a model that is trained itself; a new model ignores it. Codes in the
    /// files of a folder stay as they are, and another field than theirs is refused.
    pub quantize: Option<Quantization>,
}

/// What a decoder is built from, beside the values of its parameters.
#[derive(Clone, Debug)]
pub struct DecoderSpec {
    /// The configuration of the model.
    pub config: Config,
    /// The head.
    pub head: HeadKind,
    /// The adapters of its linear layers, if they have any.
    pub lora: Option<Arc<LoraPlan>>,
    /// Which of its linear layers are held in codes, if any.
    pub quantize: Option<QuantizedLayers>,
    /// Whether the decoder is a trunk, or shares one. Its layers are then divided over the ranks of a
    /// pipeline as those of a model with a vocabulary head are, whatever head it has itself.
    pub is_on_trunk: bool,
}

impl DecoderSpec {
    /// A decoder of its own, without adapters.
    pub fn whole(config: Config, head: HeadKind) -> Self {
        Self { config, head, lora: None, quantize: None, is_on_trunk: false }
    }

    /// The head of the model whose division into pipeline stages this one has.
    fn stages_of(&self) -> HeadKind {
        if self.is_on_trunk { HeadKind::Vocabulary } else { self.head }
    }

    /// A decoder that shares the weights of a trunk, with adapters if `lora` is given.
    pub fn on_trunk(config: Config, head: HeadKind, lora: Option<Arc<LoraPlan>>) -> Self {
        Self { config, head, lora, quantize: None, is_on_trunk: true }
    }
}

impl LoadOptions {
    /// A whole model in one process, which is not trained.
    pub const fn frozen(kind: Kind, device: Device) -> Self {
        let model_parallel = ModelParallel::NONE;
        Self { kind, device, trainable: false, model_parallel, memory: None, quantize: None }
    }

    /// An empty tensor in place of a parameter that another rank holds.
    pub(crate) fn placeholder(&self) -> Tensor {
        Tensor::empty([0], (self.kind, self.device))
    }

    fn kind_of(&self, request: &ParameterRequest<'_>) -> Kind {
        match request.part {
            _ if request.codes.is_some() => Kind::Uint8,
            ParameterPart::Adapter | ParameterPart::ScalarHead => Kind::Float,
            ParameterPart::Trunk | ParameterPart::TrunkCopy => self.kind,
        }
    }

    /// Moves a parameter to the requested device and dtype. Its memory is contiguous: the optimizer's kernel
    /// walks weight and gradient in memory order, and gradients are contiguous.
    pub(crate) fn materialize(&self, request: &ParameterRequest<'_>, tensor: &Tensor) -> Tensor {
        let converted = tensor.to_device(self.device).to_kind(self.kind_of(request));
        no_grad(|| converted.contiguous())
    }

    /// Whether a parameter is trained. The trunk of a model with adapters is frozen, and so are codes.
    pub(crate) fn trains(&self, request: &ParameterRequest<'_>, has_adapter: bool) -> bool {
        self.trainable && request.codes.is_none() && (request.part.is_own() || !has_adapter)
    }
}

/// The head that reads the final hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// One logit per token of the vocabulary. The weight is the token embedding if tied, otherwise a separate
    /// matrix.
    Vocabulary,
    /// One scalar per token.
    Scalar,
}

/// The trunk of a language model, together with the weight of its head.
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
    /// The adapter of `head`.
    head_adapter: Option<HeadAdapter>,
    parameters: Vec<Parameter>,
    /// The part of the model that each parameter belongs to.
    parts: Vec<ParameterPart>,
    lora: Option<LoraModel>,
    /// Which linear layers are held in codes, if any.
    quantize: Option<QuantizedLayers>,
    /// The codes of this rank.
    quantized: QuantizedWeights,
    is_on_trunk: bool,
    model_parallel: ModelParallel,
    pipeline: Option<PipelineStages>,
    /// The index of each segment's first parameter; the last entry is the end of the last segment.
    segment_offsets: Vec<usize>,
    head_parameters: Vec<usize>,
    /// The memory of the parameters; `None` if each of them was allocated on its own.
    memory: Option<ModelMemory>,
}

/// The adapters of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct LoraModel {
    pub(crate) plan: Arc<LoraPlan>,
    /// The linear layers that have an adapter, on whichever rank.
    pub(crate) adapted: Vec<String>,
    /// Whether biases are trained beside them, on whichever rank.
    pub(crate) trains_bias: bool,
}

/// The memory of the parameters of a decoder.
#[derive(Clone, Debug)]
struct ModelMemory {
    allocator: Arc<dyn WeightAllocator>,
    store: Arc<dyn WeightStore>,
}

impl Decoder {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What another decoder with the same modules and this head is built from.
    fn spec(&self, head: HeadKind) -> DecoderSpec {
        let lora = self.lora.as_ref().map(|lora| Arc::clone(&lora.plan));
        let quantize = self.quantize.clone();
        DecoderSpec { config: self.config.clone(), head, lora, quantize, is_on_trunk: self.is_on_trunk }
    }

    /// The weights of linear layers that are held in codes, by the names of their layers.
    pub fn quantized_weights(&self) -> &QuantizedWeights {
        &self.quantized
    }

    /// How the weights of linear layers are held, if in codes.
    pub fn quantization(&self) -> Option<Quantization> {
        self.quantized.values().next().map(QuantizedMatrix::quantization)
    }

    /// The indices of the parameters of each part that is held at a time.
    fn weights_of_parts(&self) -> Vec<(ModelPart, Vec<usize>)> {
        let segments =
            (0..self.num_segments()).map(|index| (ModelPart::Segment(index), self.segment_parameters(index)));
        segments.chain([(ModelPart::Head, self.head_parameters())]).collect()
    }

    /// The index of the parameter that is called `name`.
    fn index_of(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|parameter| parameter.name == name)
    }

    /// The weight of the head: `[V, H]` (this rank's rows if the vocabulary is sharded), or `[1, H]` for a
    /// scalar head.
    pub fn head_weight(&self) -> &Tensor {
        &self.head
    }

    /// The adapter of the head, if it has one.
    pub fn head_adapter(&self) -> Option<&HeadAdapter> {
        self.head_adapter.as_ref()
    }

    /// This rank's shard of the vocabulary; `None` if the rank holds the full vocabulary.
    pub fn vocabulary(&self) -> Option<&VocabShard> {
        self.token_embedding.vocabulary.as_ref()
    }

    /// How the model is split over ranks.
    pub fn model_parallel(&self) -> &ModelParallel {
        &self.model_parallel
    }

    /// Writes `config` and the parameters of all ranks, or of the adapter if there is one. The ranks of other
    /// replicas only take part in gathering sharded weights.
    pub(crate) fn save(&self, folder: &Path, head: HeadKind, config: &Config) -> Result<(), Error> {
        let alone = ProcessGroup::single("pipeline-expert", 0);
        let pipeline_expert_group = self.model_parallel.pipeline_expert_group.as_deref().unwrap_or(&alone);
        let replica = self.model_parallel.replica;
        let Some(lora) = &self.lora else {
            if let Some(layer) = self.quantized.keys().next() {
                let (setting, fix) = ("saving the model", "save an adapter of it");
                let [layer, setting, fix] = [layer, setting, fix].map(str::to_owned);
                return Err(Error::Quantized { layer, setting, fix });
            }
            let residency = self.residency();
            return weights::save(
                folder,
                config,
                &self.parameters,
                residency,
                replica,
                pipeline_expert_group,
            );
        };

        let architecture = self.architecture();
        let mut file = lora.plan.saved_file(&lora.adapted, architecture.names.layers);
        if head == HeadKind::Scalar {
            file.lora.leave_out_rows(architecture.names.head);
        }
        let text = file.to_json(head == HeadKind::Scalar, architecture.is_conv1d);
        let own = (0..self.parts.len()).filter(|&index| self.parts[index].is_own()).collect();
        let parameters = AdapterParameters {
            all: &self.parameters,
            own,
            adapted: &lora.adapted,
            residency: self.residency(),
        };
        let settings = AdapterSettings { config, text: &text, base_hash: file.base_hash.as_deref() };
        folder::save(folder, &settings, parameters, replica, pipeline_expert_group)
    }

    /// The dtype of the hidden states.
    pub fn kind(&self) -> Kind {
        self.token_embedding.weight.kind()
    }

    /// The device of the model.
    pub fn device(&self) -> Device {
        self.token_embedding.weight.device()
    }

    /// Whether this rank's pipeline stage runs the segment.
    fn owns_segment(&self, segment: usize) -> bool {
        self.pipeline.as_ref().is_none_or(|pipeline| pipeline.owns_segment(segment))
    }

    /// Computes the first hidden states. `positions` are the positions of the tokens that stay on this rank.
    fn embed(
        &self,
        input_ids: &Tensor,
        positions: &Tensor,
        tp_region: &TensorParallelRegion,
    ) -> Result<Tensor, parallel::Error> {
        let mut hidden = self.token_embedding.forward(input_ids, tp_region)?;
        if let Some(project) = &self.project_in {
            hidden = project.forward(&hidden)?;
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

    fn final_norm_and_project(&self, hidden: &Tensor) -> Result<Tensor, parallel::Error> {
        let normed = match &self.final_norm {
            Some(norm) => norm.forward(hidden),
            None => hidden.shallow_clone(),
        };
        match &self.project_out {
            Some(project) => project.forward(&normed),
            None => Ok(normed),
        }
    }

    /// Whether rows that continue a prefix have the numbers of whole rows. Ring attention and Ulysses split
    /// whole rows over ranks; frequencies that follow the length of a row, and the auxiliary loss of experts,
    /// see whole rows.
    pub fn can_share_prefixes(&self) -> bool {
        self.model_parallel.sequence_group().is_none()
            && self.can_continue_rows()
            && self.config.router_aux_loss_coef() == 0.0
    }

    /// Whether the keys and values of a row stay the same when the row goes on. Frequencies that follow the
    /// length of a row change them.
    pub fn can_continue_rows(&self) -> bool {
        !matches!(&self.architecture().position, Position::Rope(rope) if rope.depends_on_length())
    }

    /// The tokens that have an output in `segment`, of those that have one at the end; `None` for all tokens.
    /// The last block drops the tokens whose final hidden states nobody wants, unless another part needs
    /// them: the next stage of a pipeline and ranks that split the tokens, which expect all of them, and the
    /// auxiliary loss of experts.
    fn outputs_of_segment<'b>(
        &self,
        segment: usize,
        outputs: Option<&'b Tensor>,
        has_aux_loss: bool,
    ) -> Option<&'b Tensor> {
        let needs_all =
            self.pipeline.is_some() || self.model_parallel.sequence_shard().is_some() || has_aux_loss;
        // Layers are not made for no tokens at all.
        outputs.filter(|outputs| segment == self.blocks.len() && !needs_all && outputs.numel() > 0)
    }

    /// The wanted rows of the final hidden states, where the last block has not dropped the others.
    fn select_outputs(&self, hidden: Tensor, outputs: Option<&Tensor>, has_aux_loss: bool) -> Tensor {
        match (outputs, self.outputs_of_segment(self.blocks.len(), outputs, has_aux_loss)) {
            (Some(outputs), None) => gather_rows(&hidden, outputs),
            _ => hidden,
        }
    }

    fn has_aux_loss(&self, batch: &Batch) -> bool {
        batch.has_load_balancing_loss(self.config.router_aux_loss_coef())
    }

    fn architecture(&self) -> &Architecture {
        self.config.architecture()
    }

    /// The tensor-parallel region of a training pass.
    fn tp_region(&self, batch: &Batch) -> TensorParallelRegion {
        let group = self.model_parallel.tensor_parallel.as_ref();
        if self.model_parallel.is_megatron_sp() {
            TensorParallelRegion::with_sequence_parallel(group, batch.num_tokens())
        } else {
            TensorParallelRegion::new(group)
        }
    }

    /// The rotary tables of the tokens that attention sees on this rank in training. With Megatron sequence
    /// parallelism attention runs inside the tensor-parallel region, which holds all tokens.
    fn training_rotary(&self, batch: &Batch) -> Option<Rotary> {
        let sequence_shard =
            self.model_parallel.sequence_shard().filter(|_| !self.model_parallel.is_megatron_sp());
        match &self.architecture().position {
            Position::Rope(rope) => Some(batch.rotary(rope, self.kind(), sequence_shard)),
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
        let local_batch =
            self.model_parallel.sequence_shard().map(|sequence_shard| batch.local(sequence_shard));
        let local_batch = local_batch.as_deref();

        // Without hidden states this is segment 0. With Megatron sequence parallelism the embedding takes the
        // ids of all tokens, because its reduce-scatter is what splits the tokens over the ranks.
        let Some(hidden) = hidden else {
            let positions = local_batch.map_or(&batch.positions, |local_batch| &local_batch.positions);
            let ids = local_batch
                .filter(|_| !self.model_parallel.is_megatron_sp())
                .map_or(&batch.input_ids, |local_batch| &local_batch.input_ids);
            return self.embed(ids, positions, &self.tp_region(batch));
        };

        let Some(block) = self.blocks.get(index - 1) else {
            let hidden = self.final_norm_and_project(hidden)?;
            let hidden = self.model_parallel.gather_hidden(&hidden, local_batch)?;
            return Ok(self.select_outputs(hidden, batch.outputs(), self.has_aux_loss(batch)));
        };
        let ctx = ForwardContext {
            tp_region: self.tp_region(batch),
            rotary: self.training_rotary(batch),
            aux_loss: self.model_parallel.load_balancing_loss(
                self.config.router_aux_loss_coef(),
                batch,
                local_batch,
            ),
            tokens_differ_per_expert_rank: true,
        };
        let mut attention_fn = |attention: &Attention, qkv: &[Tensor; 3]| {
            self.model_parallel.attend(batch, local_batch, attention, qkv)
        };
        let outputs = self.outputs_of_segment(index, batch.outputs(), self.has_aux_loss(batch));
        block.forward(hidden, outputs, &ctx, &mut attention_fn)
    }

    fn pipeline(&self) -> Option<&PipelineStages> {
        self.pipeline.as_ref()
    }

    fn weight_store(&self) -> Option<&Arc<dyn WeightStore>> {
        self.memory.as_ref().map(|memory| &memory.store)
    }

    fn hidden_spec(&self, batch: &Batch) -> (Vec<i64>, (Kind, Device)) {
        let sequence_shard = self.model_parallel.sequence_shard();
        let tokens = sequence_shard
            .map_or_else(|| batch.num_tokens(), |sequence_shard| sequence_shard.local_len(&batch.lengths));
        (vec![tokens, self.architecture().hidden_size], (self.kind(), self.device()))
    }

    /// Every rank computes complete rows, so sequence parallelism is not used.
    fn forward_all_no_grad(&self, batches: &[&Batch]) -> Result<Vec<Tensor>, parallel::Error> {
        self.forward_rows(batches)
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
