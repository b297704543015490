//! `model`: describes a model folder, makes one with random weights, one of an adapter and its model or of
//! the two in one, one in codes or of codes, and one of a GGUF file, and writes such a file and adapters.

mod adapter;
mod gguf;
mod layers;
mod quantize;
mod stored;

use std::collections::BTreeMap;
use std::fs;

use datasets::Tokenizer;
use gemini::checkpoint;
use inference::session::{check_vocabulary, load_tokenizer};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::load::weight_specs;
use models::decoder::{DecoderSpec, HeadKind};
use models::quantize::Quantization;
use serde::Serialize;
use tch::{Device, Kind};

use crate::args::{ModelCommand, ModelInfoArgs, ModelInitArgs};
use crate::console::{print, print_stderr};
use crate::model_folder;
use crate::output;

/// The description of a model folder.
#[derive(Serialize)]
struct Info {
    folder: String,
    architectures: serde_json::Value,
    model_type: serde_json::Value,
    hidden_size: i64,
    num_hidden_layers: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: i64,
    vocab_size: i64,
    max_position_embeddings: i64,
    parameters: u64,
    /// How the weights of linear layers are held, if in codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantization: Option<Quantization>,
    bytes: u64,
    /// The number of stored values per data type.
    dtypes: BTreeMap<String, u64>,
    tokenizer: Option<TokenizerInfo>,
    layers: Vec<layers::Layers>,
}

#[derive(Serialize)]
struct TokenizerInfo {
    vocab_size: usize,
    bos_id: Option<i64>,
    eos_id: Option<i64>,
    pad_id: Option<i64>,
    stop_ids: Vec<i64>,
    chat_template: bool,
}

/// Runs one of the subcommands.
pub(crate) fn run(command: &ModelCommand) -> anyhow::Result<()> {
    match command {
        ModelCommand::Info(arguments) => info(arguments),
        ModelCommand::Init(arguments) => init(arguments),
        ModelCommand::Merge(arguments) => adapter::merge(arguments),
        ModelCommand::Unmerge(arguments) => adapter::unmerge(arguments),
        ModelCommand::InitAdapter(arguments) => adapter::init(arguments),
        ModelCommand::ConvertAdapter(arguments) => adapter::convert(arguments),
        ModelCommand::Quantize(arguments) => quantize::quantize(arguments),
        ModelCommand::Dequantize(arguments) => quantize::dequantize(arguments),
        ModelCommand::Export(arguments) => gguf::export(arguments),
        ModelCommand::Import(arguments) => gguf::import(arguments),
    }
}

fn info(arguments: &ModelInfoArgs) -> anyhow::Result<()> {
    let folder = model_folder::find(&arguments.model)?;
    let config = folder.config()?;
    let (dtypes, bytes) = stored::measure_weights(folder.path())?;
    let quantization = config.quantization().filter(|_| folder.base().is_none());
    let parameters: u64 = match quantization {
        None => dtypes.values().sum(),
        Some(_) => num_parameters(&config)?,
    };

    let value = |key: &str| config.value(key).cloned().unwrap_or_default();
    let info = Info {
        folder: folder.path().display().to_string(),
        architectures: value("architectures"),
        model_type: value("model_type"),
        hidden_size: config.hidden_size(),
        num_hidden_layers: config.num_layers(),
        num_attention_heads: config.num_heads(),
        num_key_value_heads: config.num_kv_heads(),
        head_dim: config.head_dim(),
        vocab_size: config.vocab_size(),
        max_position_embeddings: config.max_positions(),
        parameters,
        quantization,
        bytes,
        dtypes,
        tokenizer: match Tokenizer::from_folder(folder.tokenizer_path()) {
            Err(datasets::Error::TokenizerMissing { .. }) => None,
            other => Some(TokenizerInfo::new(&other?)),
        },
        layers: layers::of(&config)?,
    };

    let text = if arguments.json { serde_json::to_string_pretty(&info)? } else { listing(&info)? };
    Ok(print(&text)?)
}

/// The number of parameters of a model in codes, which its files do not have one by one.
fn num_parameters(config: &Config) -> Result<u64, models::Error> {
    let head = if config.is_sequence_classification() { HeadKind::Scalar } else { HeadKind::Vocabulary };
    let options = LoadOptions::frozen(Kind::Float, Device::Cpu);
    let specs = weight_specs(DecoderSpec::whole(config.clone(), head), &options)?;
    Ok(specs.iter().map(|spec| spec.shape.iter().product::<i64>() as u64).sum())
}

impl TokenizerInfo {
    fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            vocab_size: tokenizer.vocab_size(),
            bos_id: tokenizer.bos_id(),
            eos_id: tokenizer.eos_id(),
            pad_id: tokenizer.pad_id(),
            stop_ids: tokenizer.stop_ids().to_vec(),
            chat_template: tokenizer.chat_template().is_some(),
        }
    }
}

/// Formats the fields as text, one per line, and the layers as a table below them.
fn listing(info: &Info) -> anyhow::Result<String> {
    let serde_json::Value::Object(mut fields) = serde_json::to_value(info)? else {
        unreachable!("a struct is an object");
    };
    fields.remove("layers");
    let line = |(name, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{name:<26}{text}"),
        other => format!("{name:<26}{other}"),
    };
    let lines = fields.iter().map(line).collect::<Vec<_>>().join("\n");
    Ok(format!("{lines}\n{}", layers::table(&info.layers)))
}

fn init(arguments: &ModelInitArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;

    let text = fs::read_to_string(&arguments.config)
        .map_err(|source| models::Error::Io { path: arguments.config.clone(), source })?;
    let config = Config::from_json(&text, &arguments.config.display().to_string())?;
    let tokenizer = match &arguments.tokenizer {
        Some(name) => Some(load_tokenizer(model_folder::find(name)?.tokenizer_path(), None)?),
        None => None,
    };
    if let Some(tokenizer) = &tokenizer {
        check_vocabulary(tokenizer, &config)?;
    }

    let model =
        CausalLm::random(config, arguments.seed, &model_folder::frozen_options(Kind::Float, Device::Cpu))?;
    checkpoint::write_folder(&arguments.out, |folder| {
        model.save(folder)?;
        if let Some(tokenizer) = &tokenizer {
            model_folder::save_tokenizer(folder, tokenizer, model.config())?;
        }
        anyhow::Ok(())
    })?;

    print_stderr(&format!(
        "{} holds a model with random weights (seed {})",
        arguments.out.display(),
        arguments.seed
    ));
    Ok(())
}
