//! The base model of a pipeline: a LLaMA of the size given by `[base]`, trained from random weights on plain
//! text.

use std::path::Path;

use datasets::Tokenizer;
use models::causal_lm::CausalLm;
use models::config::Config;
use serde_json::json;

use super::context::{StageContext, trainable_options};
use super::sft;
use crate::config::section::BaseSection;
use crate::config::{RunConfig, Stage};

/// The specification of a new base model.
pub(crate) struct BaseModelSpec<'a> {
    /// The sizes of the network.
    pub(crate) base: &'a BaseSection,
    /// The folder of the tokenizer.
    pub(crate) tokenizer: &'a Path,
}

/// The ids of the special tokens of a tokenizer.
#[derive(Default)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<i64>,
    pub(super) eos: Option<i64>,
    pub(super) pad: Option<i64>,
}

pub(super) fn run(
    config: &RunConfig,
    network: &BaseModelSpec<'_>,
    ctx: &mut StageContext<'_>,
) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::from_folder(network.tokenizer)?;
    let architecture = network.config(&tokenizer)?;
    let inputs = sft::inputs(Stage::Base, config, &architecture, &tokenizer)?;
    let model = if let Some(checkpoint) = ctx.folder.checkpoint() {
        CausalLm::load(checkpoint, &trainable_options(config, ctx.groups)?)?
    } else {
        CausalLm::random(architecture, config.seed, &trainable_options(config, ctx.groups)?)?
    };
    sft::train_on(Stage::Base, config, &model, &inputs, &tokenizer, ctx)
}

impl BaseModelSpec<'_> {
    /// Builds the `config.json` of the network, with the vocabulary of `tokenizer`.
    pub(super) fn config(&self, tokenizer: &Tokenizer) -> anyhow::Result<Config> {
        self.with_vocabulary(
            tokenizer.vocab_size(),
            &SpecialIds { bos: tokenizer.bos_id(), eos: tokenizer.eos_id(), pad: tokenizer.pad_id() },
        )
    }

    /// Builds the `config.json` of the network from the vocabulary size and the special tokens.
    pub(super) fn with_vocabulary(&self, vocab_size: usize, special: &SpecialIds) -> anyhow::Result<Config> {
        let base = self.base;
        let config = json!({
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab_size,
            "hidden_size": base.hidden_size,
            "intermediate_size": base.intermediate_size,
            "num_hidden_layers": base.num_hidden_layers,
            "num_attention_heads": base.num_attention_heads,
            "num_key_value_heads": base.num_key_value_heads,
            "max_position_embeddings": base.max_position_embeddings,
            "rope_theta": base.rope_theta,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "mlp_bias": false,
            "initializer_range": 0.02,
            "tie_word_embeddings": base.tie_word_embeddings,
            "bos_token_id": special.bos,
            "eos_token_id": special.eos,
            "pad_token_id": special.pad,
        });
        Ok(Config::from_json(&config.to_string(), "[base]")?)
    }
}
