//! The memory that the tensors of a forward and backward pass take on the host, from the configuration alone.
//!
//! `h` hidden size, `q` heads * D, `k` key-value heads * D, `f` intermediate size, `a` heads, `e` 1 for
//! weights in fp32 and 2 otherwise: how many numbers one number in fp32 counts for.
//!
//! | what a block keeps for its backward pass | numbers per token |
//! |---|---|
//! | an RMS norm over `w`: its output and root | `w + e` |
//! | a layer norm: its output, mean and root | `w + 2e` |
//! | queries, keys, values, the output of attention, the log of the sum of exponentials | `2q + 2k + ae` |
//! | the sum behind the attention, and the output of the block | `h`, `h` |
//! | an MLP: the input and the output of the activation; gated: gate, up and their product | `2f`; `3f` |
//!
//! This module knows no loss but that of the vocabulary head, and no optimizer.

use planner::segment::Vocabulary;
use tch::{Device, Kind};

use crate::architecture::{Architecture, MoeConfig, NormKind};
use crate::head::chunk_limits;

/// Sizes of tensors of one model, in bytes. Under tensor parallelism, those of one rank.
#[derive(Clone, Copy, Debug)]
pub struct ActivationMemory<'a> {
    architecture: &'a Architecture,
    element_bytes: usize,
    tensor_ranks: usize,
}

impl<'a> ActivationMemory<'a> {
    /// Of a model whose weights have this dtype, split over `tensor_ranks` ranks.
    pub fn new(architecture: &'a Architecture, kind: Kind, tensor_ranks: usize) -> Self {
        Self { architecture, element_bytes: kind.elt_size_in_bytes(), tensor_ranks }
    }

    /// The bytes of the hidden states of `tokens` tokens.
    pub fn hidden(&self, tokens: usize) -> usize {
        tokens * size(self.architecture.hidden_size) * self.element_bytes
    }

    /// What the forward pass of block `layer` keeps for its backward pass, its output included, if all rows
    /// have the same length.
    pub fn block(&self, layer: usize, tokens: usize) -> usize {
        let architecture = self.architecture;
        let fp32 = self.fp32_numbers();
        let [query, key] = self.attention_widths();
        let mut numbers = 2 * query + 2 * key + self.split(architecture.num_heads) * fp32;
        if architecture.qk_norm {
            // The inputs and roots of these norms. Their outputs are rotated into new tensors, and not kept.
            let heads = self.split(architecture.num_heads) + self.split(architecture.num_kv_heads);
            numbers += query + key + heads * fp32;
        }
        numbers += match self.experts(layer) {
            Some(experts) => self.mixture(experts),
            None => self.mlp(architecture.intermediate_size, architecture.gated_mlp),
        };
        self.between_layers(tokens) + tokens * numbers * self.element_bytes
    }

    /// The part of it that lies between the tensor-parallel layers of a block: two norms and two sums.
    pub fn between_layers(&self, tokens: usize) -> usize {
        let hidden = size(self.architecture.hidden_size);
        tokens * 2 * (self.norm(hidden) + hidden) * self.element_bytes
    }

    /// What attention keeps in addition if rows of different lengths are padded: the output before and after
    /// the padding is removed, and the padding itself, of which a tenth is typical.
    pub fn padded_attention(&self, tokens: usize) -> usize {
        let [query, key] = self.attention_widths();
        tokens * (query + (2 * query + 2 * key) / 10) * self.element_bytes
    }

    /// What the backward pass of block `layer` takes at most beside that: the gradients of the inner
    /// activations and of the weights of the last matrix.
    pub fn block_backward(&self, layer: usize, tokens: usize) -> usize {
        let architecture = self.architecture;
        let hidden = size(architecture.hidden_size);
        let inner = self.split(architecture.intermediate_size);
        let numbers = match self.experts(layer) {
            // The experts run one after the other, each on a part of the tokens.
            Some(_) => 3 * hidden,
            None => inner,
        };
        (tokens * numbers + hidden * inner) * self.element_bytes
    }

    /// The bytes of the weights of a block as numbers, on average over the blocks.
    pub fn block_weights(&self) -> usize {
        let architecture = self.architecture;
        let numbers = architecture.num_parameters() - architecture.num_table_parameters();
        let numbers = numbers / (architecture.num_layers as f64 * self.tensor_ranks as f64);
        numbers as usize * self.element_bytes
    }

    /// What the norm after the last block keeps.
    pub fn final_norm(&self, tokens: usize) -> usize {
        let norm =
            if self.architecture.final_norm { self.norm(size(self.architecture.hidden_size)) } else { 0 };
        tokens * norm * self.element_bytes
    }

    /// The vocabulary head on the host, for the memory of its loss. A head that is not trained has no
    /// gradient.
    pub fn vocabulary(&self, is_trained: bool) -> Vocabulary {
        let (rows, elements) = chunk_limits(Device::Cpu);
        Vocabulary {
            size: self.architecture.vocab_size as f64,
            width: self.architecture.embedding_size as f64,
            is_trained,
            chunk_elements: elements as f64,
            chunk_rows: (*rows.start() as f64, *rows.end() as f64),
        }
    }

    /// What a step of generation takes at most beside weights and cache: the largest block on `tokens`
    /// tokens, and the logits of `outputs` of them.
    pub fn step(&self, tokens: usize, outputs: usize) -> usize {
        let blocks = (0..size(self.architecture.num_layers)).map(|layer| self.block(layer, tokens));
        self.hidden(tokens) + blocks.max().unwrap_or(0) + self.sampled_logits(outputs)
    }

    /// The logits of `outputs` tokens, of which the sampler works on copies in fp32.
    pub fn sampled_logits(&self, outputs: usize) -> usize {
        3 * outputs * size(self.architecture.vocab_size) * 4
    }

    /// The keys and values of one token in all layers of a KV cache.
    pub fn cached_token(&self) -> usize {
        let [_, key] = self.attention_widths();
        2 * key * size(self.architecture.num_layers) * self.element_bytes
    }

    fn experts(&self, layer: usize) -> Option<&'a MoeConfig> {
        self.architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer])
    }

    /// How many numbers of the dtype of the weights take the memory of one in fp32.
    fn fp32_numbers(&self) -> usize {
        4 / self.element_bytes
    }

    fn norm(&self, width: usize) -> usize {
        match self.architecture.norm {
            NormKind::Layer => width + 2 * self.fp32_numbers(),
            NormKind::Rms => width + self.fp32_numbers(),
        }
    }

    /// The widths of queries and of keys on this rank.
    fn attention_widths(&self) -> [usize; 2] {
        let Architecture { num_heads, num_kv_heads, head_dim, .. } = self.architecture;
        [num_heads, num_kv_heads].map(|heads| self.split(*heads) * size(*head_dim))
    }

    fn mlp(&self, inner: i64, gated: bool) -> usize {
        if gated { 3 * self.split(inner) } else { 2 * self.split(inner) }
    }

    /// The experts of a token with copies of its input and output, and the shared expert.
    fn mixture(&self, experts: &MoeConfig) -> usize {
        let chosen = size(experts.num_experts_per_tok);
        let shared = experts.shared_expert_intermediate_size.map_or(0, |inner| self.mlp(inner, true));
        let routed =
            chosen * (self.mlp(experts.intermediate_size, true) + 3 * size(self.architecture.hidden_size));
        routed + shared + 2 * size(experts.num_experts) * self.fp32_numbers()
    }

    /// The share of one tensor-parallel rank, at least one.
    fn split(&self, number: i64) -> usize {
        size(number).div_ceil(self.tensor_ranks)
    }
}

fn size(number: i64) -> usize {
    usize::try_from(number).expect("a size is not negative")
}
