//! A decoder as plain data: the content of a `config.json` after all defaults, aliases and spellings are
//! resolved.
//!
//! A family (see [`crate::family`]) is a function that fills in this data. No later code depends on the
//! family's name.

use crate::rope::Rope;

/// Everything that determines a model's shapes and computation.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own that config.json names")]
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Rows of the token embedding.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the token embedding and of the head's input. Differs from `hidden_size` only in OPT-350m.
    pub embedding_size: i64,
    /// Width of the MLP's intermediate activations.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Number of query heads.
    pub num_heads: i64,
    /// Number of key-value heads.
    pub num_kv_heads: i64,
    /// Width of one head.
    pub head_dim: i64,
    /// The number of positions that the model was trained for.
    pub max_positions: i64,
    /// The position encoding.
    pub position: Position,
    /// The kind of all norms.
    pub norm: NormKind,
    /// The epsilon that norms add to the variance.
    pub norm_eps: f64,
    /// Whether norms have weights (and, for a layer norm, biases).
    pub norm_affine: bool,
    /// The order of norms and residual connections in a block.
    pub residual: ResidualOrder,
    /// The layout of queries, keys and values in the weights.
    pub qkv: Qkv,
    /// Whether queries and keys are normalized per head by separate RMS norms (Qwen3).
    pub qk_norm: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub out_bias: bool,
    /// Whether the MLP has biases.
    pub mlp_bias: bool,
    /// Whether the MLP is gated: `down(act(gate(x)) * up(x))` instead of `down(act(up(x)))`.
    pub gated_mlp: bool,
    /// The activation function of the MLP.
    pub activation: Activation,
    /// The mixture of experts that replaces the MLP in some layers.
    pub experts: Option<MoeConfig>,
    /// Whether weight matrices are stored `[in, out]` (GPT-2's `Conv1D`) instead of `[out, in]`.
    pub is_conv1d: bool,
    /// For each layer the size of the sliding window, which includes the query's own token; `None` for full
    /// attention.
    pub sliding_windows: Vec<Option<i64>>,
    /// For each layer the factor of the attention scores.
    pub attention_scales: Vec<f64>,
    /// Whether the embeddings are normalized (BLOOM).
    pub embedding_norm: bool,
    /// Whether there is a norm after the last block.
    pub final_norm: bool,
    /// Whether the vocabulary head is the token embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of new weights.
    pub initializer_range: f64,
    /// Standard deviation of new projections back into the residual stream (smaller in GPT-2).
    pub residual_initializer_range: f64,
    /// The names of the modules in a checkpoint.
    pub names: Names,
}

/// A mixture of experts: several MLPs in place of one, where each token is routed to a few of them (Shazeer
/// et al. 2017, arXiv 1701.06538).
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// The number of experts per layer.
    pub num_experts: i64,
    /// The number of experts per token.
    pub num_experts_per_tok: i64,
    /// Whether the router probabilities of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// Intermediate width of each expert.
    pub intermediate_size: i64,
    /// Intermediate width of the shared expert, a gated MLP that every token runs through; `None` without
    /// one.
    pub shared_expert_intermediate_size: Option<i64>,
    /// For each layer, whether it has experts.
    pub is_moe_layer: Vec<bool>,
    /// The coefficient of the load-balancing auxiliary loss in training; 0 without that loss.
    pub router_aux_loss_coef: f64,
    /// The names of the modules in a checkpoint, relative to the block's name.
    pub names: ExpertNames,
}

/// The names of the modules of a layer with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The router.
    pub router: &'static str,
    /// The list of experts.
    pub experts: &'static str,
    /// The gate, up and down matrices of one expert.
    pub matrices: [&'static str; 3],
    /// The shared expert and its gate. The matrices of the shared expert have the usual names of an MLP.
    pub shared: [&'static str; 2],
}

/// The position encoding of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    /// Queries and keys are rotated (Su et al. 2021, arXiv 2104.09864).
    Rope(Rope),
    /// A learned vector is added to the token embedding: row `offset + position` of the table.
    Learned {
        /// The number of unused rows at the start of the table: 2 in OPT.
        offset: i64,
    },
    /// A penalty on the attention scores, linear in the distance (Press et al. 2021, arXiv 2108.12409).
    Alibi,
}

/// The kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight`, in fp32 (Zhang and Sennrich 2019, arXiv 1910.07467).
    Rms,
    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    Layer,
}

/// The order of norms and residual connections in a block; `n1` and `n2` are the block's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualOrder {
    /// `a = x + attn(n1(x)); a + mlp(n2(a))`.
    PreNorm,
    /// `a = n1(x + attn(x)); n2(a + mlp(a))` (OPT-350m).
    PostNorm,
    /// `x + attn(n1(x)) + mlp(n2(x))` (GPT-NeoX).
    Parallel,
    /// `n = n1(x); a = n + attn(n); m = n2(a); m + mlp(m)` (BLOOM's
    /// `apply_residual_connection_post_layernorm`).
    NormedResidual,
}

/// The layout of queries, keys and values in the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Three matrices.
    Separate,
    /// One matrix: all queries, all keys, all values (GPT-2).
    Fused,
    /// One matrix: for each head its query, key and value (BLOOM, GPT-NeoX).
    InterleavedByHead,
}

/// The activation function of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, computed with the error function.
    Gelu,
    /// The tanh approximation of `Gelu`. HF calls it `gelu_new`, `gelu_fast` and `gelu_pytorch_tanh`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// The names of modules in a checkpoint. Those below `layers` are relative to `{layers}.{index}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The part of the transformers class name before `ForSequenceClassification`.
    pub class: &'static str,
    /// The part after `class` in the name of the transformers class with a vocabulary head.
    pub causal_suffix: &'static str,
    /// The prefix of the trunk's modules. Checkpoints of the bare trunk omit it.
    pub prefix: &'static str,
    /// The token embedding.
    pub token_embedding: &'static str,
    /// The position embedding, where there is one.
    pub position_embedding: &'static str,
    /// The norm of the embeddings, where there is one.
    pub embedding_norm: &'static str,
    /// The projection from the embedding to the residual stream, where there is one.
    pub project_in: &'static str,
    /// The list of blocks.
    pub layers: &'static str,
    /// The block's first norm.
    pub first_norm: &'static str,
    /// The query, key and value projections; the first one alone if they are fused.
    pub qkv: [&'static str; 3],
    /// The attention's output projection.
    pub out: &'static str,
    /// The block's second norm.
    pub second_norm: &'static str,
    /// The gate of the MLP, where there is one.
    pub gate: &'static str,
    /// The MLP's up projection.
    pub up: &'static str,
    /// The MLP's down projection.
    pub down: &'static str,
    /// The norm after the last block, where there is one.
    pub final_norm: &'static str,
    /// The projection from the residual stream to the input of the head, where there is one.
    pub project_out: &'static str,
    /// The vocabulary head.
    pub head: &'static str,
}

impl Names {
    /// The names that the files of a model may give to the parameter `name`, the usual one first.
    pub(crate) fn spellings(&self, name: &str) -> Vec<String> {
        let mut spellings = vec![name.to_owned()];
        spellings.extend(name.strip_prefix(self.prefix).map(str::to_owned));
        if name == format!("{}.weight", self.head) {
            spellings.push("lm_head.weight".to_owned());
        }
        spellings
    }
}

impl Architecture {
    /// The number of query heads that share one key-value head.
    pub fn heads_per_kv(&self) -> i64 {
        self.num_heads / self.num_kv_heads
    }

    /// The maximum number of tokens per row: the rows of the position embedding, or the positions that rotary
    /// embeddings were trained for. ALiBi has no limit.
    pub fn position_limit(&self) -> Option<i64> {
        match &self.position {
            Position::Learned { .. } => Some(self.max_positions),
            Position::Rope(rope) => Some(rope.max_positions(self.max_positions)),
            Position::Alibi => None,
        }
    }

    /// The number of parameters in all matrices of a model with a vocabulary head, without norms and biases.
    pub fn num_parameters(&self) -> f64 {
        let hidden = self.hidden_size as f64;
        let heads = (2 * (self.num_heads + self.num_kv_heads) * self.head_dim) as f64;
        let matrices = if self.gated_mlp { 3.0 } else { 2.0 };
        let mlp = |inner: i64| matrices * hidden * inner as f64;

        let layer = |index: usize| match self.experts.as_ref().filter(|experts| experts.is_moe_layer[index]) {
            None => mlp(self.intermediate_size),
            Some(experts) => {
                let each = hidden + mlp(experts.intermediate_size);
                experts.num_experts as f64 * each + mlp(experts.shared_expert_intermediate_size.unwrap_or(0))
            }
        };

        let layers: f64 = (0..self.num_layers as usize).map(|index| hidden * heads + layer(index)).sum();
        self.num_table_parameters() + layers
    }

    /// The number of parameters of embeddings and of the head of a language model.
    pub fn num_table_parameters(&self) -> f64 {
        let [hidden, vocab, width] =
            [self.hidden_size, self.vocab_size, self.embedding_size].map(|size| size as f64);
        let tables = if self.tie_word_embeddings { 1.0 } else { 2.0 };
        let positions = match self.position {
            Position::Learned { .. } => hidden * self.max_positions as f64,
            Position::Rope(_) | Position::Alibi => 0.0,
        };
        tables * vocab * width + positions
    }

    /// Whether the model has projections from the embedding to the residual stream and from the residual
    /// stream to the head.
    pub fn has_embedding_projection(&self) -> bool {
        self.embedding_size != self.hidden_size
    }
}
