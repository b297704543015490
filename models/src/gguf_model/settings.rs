//! The keys of a model in the metadata of a GGUF file, and the `config.json` that means the same.
//!
//! A key of the model's own section that is not known here is refused when a file is read, because it may
//! change the numbers.

use gguf::{GgufFile, Metadata, Value};
use serde_json::{Map, Value as Json, json};

use super::rope::{self, rope_of};
use super::{FAMILIES, Family};
use crate::Error;
use crate::architecture::{Activation, Architecture};
use crate::config::Config;

/// The key of the family.
const ARCHITECTURE: &str = "general.architecture";

/// The keys of a model's own section that are read here, or change nothing.
const KNOWN: [&str; 17] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
];

/// The family of llama.cpp that computes what the model computes. Returns an error that names the first
/// setting for which there is none.
pub(super) fn family(config: &Config) -> Result<Family, Error> {
    let model_type = config.value("model_type").and_then(Json::as_str).unwrap_or_default();
    let refuse = |key, value: &str, fix| {
        Err(Error::NoGguf { origin: config.origin().to_owned(), key, value: value.to_owned(), fix })
    };
    let family = match model_type {
        // Mistral without a sliding window is LLaMA, as in llama.cpp.
        "llama" | "mistral" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let fix =
                "llama, mistral without a window, qwen2 and qwen3 can be: convert others with llama.cpp";
            return refuse("model_type", other, fix);
        }
    };
    let architecture = config.architecture();
    if config.is_sequence_classification() {
        return refuse("architectures", "a reward model", "export a language model");
    }
    if architecture.sliding_windows.iter().any(Option::is_some) {
        let fix = "llama.cpp computes full attention in this family: set sliding_window to null if the model was \
                   trained so";
        return refuse("sliding_window", "a number", fix);
    }
    if architecture.activation != Activation::Silu {
        return refuse("hidden_act", &format!("{:?}", architecture.activation), "llama.cpp has silu here");
    }
    if family != Family::Llama && (architecture.out_bias || architecture.mlp_bias) {
        return refuse("attention_bias", "true", "llama.cpp has no bias behind the attention of this family");
    }
    let width = architecture.num_heads * architecture.head_dim;
    if family == Family::Qwen2 && width != architecture.hidden_size {
        let fix = "llama.cpp has heads of hidden_size / num_attention_heads numbers in qwen2";
        return refuse("head_dim", &architecture.head_dim.to_string(), fix);
    }
    rope::check(config, family)?;
    Ok(family)
}

/// Adds the keys of the model.
pub(super) fn describe(config: &Config, family: Family, metadata: &mut Metadata) {
    let Architecture { head_dim, .. } = *config.architecture();
    metadata.set(ARCHITECTURE, Value::text(family.name()));
    metadata.set("general.type", Value::text("model"));
    let key = |key: &str| format!("{}.{key}", family.name());
    for (name, value) in [
        ("context_length", config.max_positions()),
        ("embedding_length", config.hidden_size()),
        ("block_count", config.num_layers()),
        ("feed_forward_length", config.architecture().intermediate_size),
        ("attention.head_count", config.num_heads()),
        ("attention.head_count_kv", config.num_kv_heads()),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("vocab_size", config.vocab_size()),
    ] {
        metadata.set(key(name), Value::u32(value as u32));
    }
    let epsilon = config.architecture().norm_eps as f32;
    metadata.set(key("attention.layer_norm_rms_epsilon"), Value::f32(epsilon));
    rope::describe(config, family, metadata);
}

/// The family and the configuration of a file, without the divisors of its frequencies.
pub(super) fn read(file: &GgufFile) -> Result<(Family, Config), Error> {
    let metadata = file.metadata();
    let name = metadata.text(ARCHITECTURE)?;
    let Some((family, _)) = FAMILIES.iter().find(|(_, known)| *known == name) else {
        let fix = "llama, qwen2 and qwen3 can be imported: take the HF folder of another model";
        return Err(metadata.unsupported(ARCHITECTURE, fix).into());
    };
    let prefix = format!("{name}.");
    let unknown = |key: &&str| key.strip_prefix(&prefix).is_some_and(|key| !KNOWN.contains(&key));
    if let Some(key) = metadata.keys().find(unknown) {
        let fix = "this key may change what the model computes: take the model's HF folder";
        return Err(metadata.unsupported(key, fix).into());
    }

    let keys = keys(file, *family)?;
    let text = serde_json::to_string(&keys).expect("a JSON map has only text keys");
    let config = Config::from_json(&text, &file.path().display().to_string())?;
    check_heads(&config, metadata, *family)?;
    Ok((*family, config))
}

/// The keys of `config.json`.
fn keys(file: &GgufFile, family: Family) -> Result<Map<String, Json>, Error> {
    let metadata = file.metadata();
    let key = |key: &str| format!("{}.{key}", family.name());
    let [hidden, heads] =
        [metadata.integer(&key("embedding_length"))?, metadata.integer(&key("attention.head_count"))?];
    let head_dim = match metadata.optional_integer(&key("attention.key_length"))? {
        Some(given) => given,
        None if heads > 0 => hidden / heads,
        None => return Err(metadata.wrong(&key("attention.head_count"), "a number above zero").into()),
    };
    let missing =
        || gguf::Error::MissingTensor { path: file.path().to_owned(), name: "token_embd.weight".to_owned() };
    let vocab_size = file.tensor("token_embd.weight").ok_or_else(missing)?.shape[0];
    let has = |name: &str| file.tensor(name).is_some();

    let values = json!({
        "model_type": family.name(),
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": metadata.integer(&key("feed_forward_length"))?,
        "num_hidden_layers": metadata.integer(&key("block_count"))?,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.optional_integer(&key("attention.head_count_kv"))?.unwrap_or(heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.integer(&key("context_length"))?,
        "rms_norm_eps": metadata.number(&key("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": metadata.optional_number(&key("rope.freq_base"))?.unwrap_or(1e4),
        "rope_scaling": rope::scaling(metadata, family)?,
        "tie_word_embeddings": !has("output.weight"),
    });

    let Json::Object(mut keys) = values else { unreachable!("the value is an object") };
    if family != Family::Qwen2 {
        keys.insert("attention_bias".to_owned(), json!(has("blk.0.attn_q.bias")));
    }
    if family == Family::Llama {
        keys.insert("mlp_bias".to_owned(), json!(has("blk.0.ffn_gate.bias")));
    }
    for (own, theirs) in [
        ("bos_token_id", "bos_token_id"),
        ("eos_token_id", "eos_token_id"),
        ("pad_token_id", "padding_token_id"),
    ] {
        if let Some(id) = metadata.optional_integer(&format!("tokenizer.ggml.{theirs}"))? {
            keys.insert(own.to_owned(), json!(id));
        }
    }
    Ok(keys)
}

/// Returns an error if keys that repeat the size of a head differ from it.
fn check_heads(config: &Config, metadata: &Metadata, family: Family) -> Result<(), Error> {
    let key = |key: &str| format!("{}.{key}", family.name());
    for (name, expected) in
        [("attention.value_length", config.head_dim()), ("rope.dimension_count", rope_of(config).dim)]
    {
        if metadata.optional_integer(&key(name))?.is_some_and(|given| given != expected) {
            let fix = "heads whose keys, values and rotations have different widths are not implemented";
            return Err(metadata.unsupported(&key(name), fix).into());
        }
    }
    Ok(())
}
