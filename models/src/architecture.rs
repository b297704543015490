//! A decoder as plain data: what a `config.json` says once every default, alias and spelling is resolved.
//!
//! A family (see [`crate::family`]) is a function that fills this in; nothing after it asks for the family's name.

use crate::rope::Rope;

/// Everything that decides shapes and numbers.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own that config.json names")]
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Rows of the token embedding.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the token embedding and of what the head reads; differs from `hidden_size` in OPT-350m alone.
    pub embedding_size: i64,
    /// Width between the two halves of the MLP.
    pub intermediate_size: i64,
    /// Blocks.
    pub num_layers: i64,
    /// Query heads.
    pub num_heads: i64,
    /// Key and value heads.
    pub num_kv_heads: i64,
    /// Width of one head.
    pub head_dim: i64,
    /// Positions that the model was made for.
    pub max_positions: i64,
    /// How positions enter.
    pub position: Position,
    /// The normalisation.
    pub norm: NormKind,
    /// Added to the variance.
    pub norm_eps: f64,
    /// Whether norms have weights (and, for a layer norm, biases).
    pub norm_affine: bool,
    /// How norms and residuals are arranged in a block.
    pub residual: ResidualOrder,
    /// How queries, keys and values lie in the weights.
    pub qkv: Qkv,
    /// Whether queries and keys pass an RMS norm of their own, per head (Qwen3).
    pub qk_norm: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub out_bias: bool,
    /// Whether the MLP has biases.
    pub mlp_bias: bool,
    /// Whether the MLP is gated: `down(act(gate(x)) * up(x))` instead of `down(act(up(x)))`.
    pub gated_mlp: bool,
    /// The MLP's non-linearity.
    pub activation: Activation,
    /// What some layers have in place of their MLP.
    pub experts: Option<MoeConfig>,
    /// Whether weight matrices are stored `[in, out]` (GPT-2's `Conv1D`) instead of `[out, in]`.
    pub is_conv1d: bool,
    /// For each layer the number of latest tokens that one attends to, itself included; `None` for all.
    pub sliding_windows: Vec<Option<i64>>,
    /// For each layer the factor of the attention scores.
    pub attention_scales: Vec<f64>,
    /// Whether the embeddings are normalised (BLOOM).
    pub embedding_norm: bool,
    /// Whether there is a norm after the last block.
    pub final_norm: bool,
    /// Whether the vocabulary head is the token embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of new weights.
    pub initializer_range: f64,
    /// Standard deviation of the new projections back into the residual stream (smaller in GPT-2).
    pub residual_initializer_range: f64,
    /// The checkpoint's names.
    pub names: Names,
}

/// Several MLPs in place of one, of which each token takes a few (Shazeer et al. 2017, arXiv 1701.06538).
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// MLPs of a layer.
    pub num_experts: i64,
    /// Those that a token takes.
    pub num_experts_per_tok: i64,
    /// Whether the shares of those are divided by their sum.
    pub norm_topk_prob: bool,
    /// Width inside each.
    pub intermediate_size: i64,
    /// Width inside one more MLP that every token takes, with a gate of its own.
    pub shared_expert_intermediate_size: Option<i64>,
    /// Whether each layer has experts.
    pub is_moe_layer: Vec<bool>,
    /// The weight of the term that keeps experts equally busy, in training; 0 without it.
    pub router_aux_loss_coef: f64,
    /// The checkpoint's names, relative to a block's.
    pub names: ExpertNames,
}

/// The names of the modules of a layer with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The matrix that chooses.
    pub router: &'static str,
    /// The list of experts.
    pub experts: &'static str,
    /// Gate, first and last matrix of one.
    pub matrices: [&'static str; 3],
    /// The MLP that every token takes, and its gate; its parts have the names of an MLP.
    pub shared: [&'static str; 2],
}

/// How positions enter the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    /// Queries and keys are rotated (Su et al. 2021, arXiv 2104.09864).
    Rope(Rope),
    /// A learned vector is added to the embedding; row `offset + position` of the table.
    Learned {
        /// Rows at the top that no position uses: 2 in OPT.
        offset: i64,
    },
    /// A penalty on the attention scores, linear in the distance (Press et al. 2021, arXiv 2108.12409).
    Alibi,
}

/// The normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight`, in fp32 (Zhang and Sennrich 2019, arXiv 1910.07467).
    Rms,
    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    Layer,
}

/// How norms and residuals are arranged; `n1` and `n2` are the block's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualOrder {
    /// `a = x + attn(n1(x)); a + mlp(n2(a))`.
    PreNorm,
    /// `a = n1(x + attn(x)); n2(a + mlp(a))` (OPT-350m).
    PostNorm,
    /// `x + attn(n1(x)) + mlp(n2(x))` (GPT-NeoX).
    Parallel,
    /// `n = n1(x); a = n + attn(n); m = n2(a); m + mlp(m)` (BLOOM's `apply_residual_connection_post_layernorm`).
    NormedResidual,
}

/// How queries, keys and values lie in the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Three matrices.
    Separate,
    /// One matrix: all queries, all keys, all values (GPT-2).
    Fused,
    /// One matrix: for each head its query, key and value (BLOOM, GPT-NeoX).
    InterleavedByHead,
}

/// The MLP's non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)` by the error function.
    Gelu,
    /// The same by the tanh approximation; HF calls it `gelu_new`, `gelu_fast` and `gelu_pytorch_tanh`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// The names of modules in a checkpoint. Those below `layers` are relative to `{layers}.{index}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// What comes before `ForSequenceClassification` in a class name of transformers.
    pub class: &'static str,
    /// What comes behind it in the name of the class with a vocabulary head.
    pub causal_suffix: &'static str,
    /// The prefix of the trunk, which checkpoints of the bare trunk leave off.
    pub prefix: &'static str,
    /// The token embedding.
    pub token_embedding: &'static str,
    /// The position embedding, where there is one.
    pub position_embedding: &'static str,
    /// The norm of the embeddings, where there is one.
    pub embedding_norm: &'static str,
    /// The projection from the embedding to the stream, where there is one.
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
    /// The MLP's first matrix.
    pub up: &'static str,
    /// The MLP's last matrix.
    pub down: &'static str,
    /// The norm after the last block, where there is one.
    pub final_norm: &'static str,
    /// The projection from the stream to what the head reads, where there is one.
    pub project_out: &'static str,
    /// The vocabulary head.
    pub head: &'static str,
}

impl Architecture {
    /// Query heads that share one key-value head.
    pub fn heads_per_kv(&self) -> i64 {
        self.num_heads / self.num_kv_heads
    }

    /// The most tokens of a row: rows of the table of positions, or as far as rotations were trained. Linear
    /// biases have no end.
    pub fn position_limit(&self) -> Option<i64> {
        match &self.position {
            Position::Learned { .. } => Some(self.max_positions),
            Position::Rope(rope) => Some(rope.max_positions(self.max_positions)),
            Position::Alibi => None,
        }
    }

    /// The numbers of all matrices of a model with a vocabulary head; norms and biases are left out.
    pub fn num_parameters(&self) -> f64 {
        let [hidden, width, vocab] =
            [self.hidden_size, self.embedding_size, self.vocab_size].map(|size| size as f64);
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
        let tables = if self.tie_word_embeddings { 1.0 } else { 2.0 };
        let positions = match self.position {
            Position::Learned { .. } => hidden * self.max_positions as f64,
            Position::Rope(_) | Position::Alibi => 0.0,
        };
        tables * vocab * width + positions + layers
    }

    /// Whether a projection lies between embedding and stream, and between stream and head.
    pub fn has_embedding_projection(&self) -> bool {
        self.embedding_size != self.hidden_size
    }
}
