//! The base model of a pipeline: a LLaMA of the size given by `[base]`, trained from random weights on plain
//! text with the tokenizer that the pipeline trains.

use datasets::Tokenizer;
use models::causal_lm::CausalLm;
use models::config::Config;
use models::decoder::HeadKind;
use serde_json::json;

use super::context::{self, StageContext, trainable_options};
use super::definition::{PipelineFolder, Stage};
use super::model_memory::PlannedModel;
use super::preflight::{ModelSpec, Preflight, TokenizerFiles};
use super::sft;
use super::tasks::Tasks;
use crate::config::section::BaseSection;
use crate::config::stage::PTX;
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `base`, which only `pipeline` runs.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "base",
        units: Units::ROWS,
        has_rollouts: false,
        sections: &[],
        ignored_keys: &[
            ("model.path", "the base model starts from [base]"),
            ("model.lora", "a new model is trained whole"),
            ("model.quantize", "a new model is trained whole"),
            PTX,
        ],
        defaults: None,
    },
    command: None,
    init: None,
    curves: &["loss"],
    charts: sft::CHARTS,
    set_pipeline_paths,
    preflight,
    run,
};

/// The ids of the special tokens of a tokenizer.
#[derive(Default)]
struct SpecialIds {
    bos: Option<i64>,
    eos: Option<i64>,
    pad: Option<i64>,
}

fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_files(&mut config.data.train, "data/text.parquet");
}

/// A tokenizer that the pipeline has not trained yet is described by the size of its vocabulary.
fn preflight(preflight: &mut Preflight<'_>, config: &RunConfig) -> anyhow::Result<String> {
    let folder = &config.base.tokenizer;
    let files = folder.exists().then(|| TokenizerFiles::of(folder.clone()));
    let tokenizer = files.as_ref().map(TokenizerFiles::load).transpose()?;

    let architecture = match &tokenizer {
        Some(tokenizer) => architecture(&config.base.network, tokenizer)?,
        None => with_vocabulary(&config.base.network, config.base.vocab_size, &SpecialIds::default())?,
    };
    context::check_mesh(config, &[&architecture], preflight.mesh)?;
    let line = sft::preflight_rows(&STAGE.schema, preflight, config, &architecture, tokenizer.as_ref())?;
    preflight.add_model(config, ModelSpec { config: architecture, is_reward_model: false, tokenizer: files });
    Ok(line)
}

fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::from_folder(&config.base.tokenizer)?;
    let architecture = architecture(&config.base.network, &tokenizer)?;
    let inputs = sft::inputs(ctx.stage, config, &architecture, &tokenizer)?;
    let tasks = Tasks::prepare(config, ctx.groups)?;
    let replies = tasks.as_ref().and_then(|tasks| tasks.replies(&tokenizer));
    let (head, kind) = (HeadKind::Vocabulary, config.model.dtype.kind());
    let trained = PlannedModel::trained("model", &architecture, head, kind);
    let plan = sft::planned(config, ctx, &[trained], &inputs, replies)?;
    let model = if let Some(checkpoint) = ctx.folder.checkpoint() {
        CausalLm::load(checkpoint, &trainable_options(config, ctx)?)?
    } else {
        CausalLm::random(architecture, config.seed, &trainable_options(config, ctx)?)?
    };
    let objective = sft::objective(config, &model, &inputs)?;
    sft::train(config, &objective, plan, &tokenizer, tasks.as_ref(), ctx)
}

/// Builds the `config.json` of the network, with the vocabulary of `tokenizer`.
fn architecture(base: &BaseSection, tokenizer: &Tokenizer) -> anyhow::Result<Config> {
    let special = SpecialIds { bos: tokenizer.bos_id(), eos: tokenizer.eos_id(), pad: tokenizer.pad_id() };
    with_vocabulary(base, tokenizer.vocab_size(), &special)
}

/// Builds the `config.json` of the network from the vocabulary size and the special tokens.
fn with_vocabulary(base: &BaseSection, vocab_size: usize, special: &SpecialIds) -> anyhow::Result<Config> {
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
