//! Models there and back, the order of rows, and what is refused.

use std::path::Path;

use gguf::{GgufFile, Metadata, TensorType, Value};
use serde_json::{Value as Json, json};
use tch::{Device, Kind, Tensor};

use super::export::{ExportSource, GgufExport};
use super::import::GgufImport;
use super::*;
use crate::Error;
use crate::causal_lm::CausalLm;
use crate::decoder::LoadOptions;
use parallel::Segmented;

/// A small configuration with some keys replaced.
fn config(model_type: &str, changes: &Json) -> Result<Config, Error> {
    let mut keys = json!({
        "model_type": model_type, "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": false
    });
    let changes = changes.as_object().unwrap().clone();
    keys.as_object_mut().unwrap().extend(changes);
    Config::from_json(&keys.to_string(), "dir/config.json")
}

/// A random model, also in its biases and norms.
fn random(config: Config, kind: Kind) -> CausalLm {
    let model = CausalLm::random(config, 3, &LoadOptions::frozen(kind, Device::Cpu)).unwrap();
    for (index, parameter) in model.parameters().iter().enumerate() {
        if parameter.tensor.dim() == 1 {
            let numel = parameter.tensor.numel() as i64;
            let values = (Tensor::arange(numel, (Kind::Float, Device::Cpu)) + index as i64).sin();
            tch::no_grad(|| parameter.tensor.shallow_clone().copy_(&values));
        }
    }
    model
}

/// Writes a folder as a file.
fn export(folder: &Path, path: &Path, tensor_type: TensorType) -> Result<(), Error> {
    let export = GgufExport::new(Config::from_folder(folder)?, tensor_type)?;
    let mut metadata = Metadata::new(path);
    export.describe(&mut metadata);
    export.write(std::fs::File::create(path).unwrap(), ExportSource::Folder(folder), &metadata)
}

fn equal(left: &CausalLm, right: &CausalLm) {
    assert_eq!(left.parameters().len(), right.parameters().len());
    for (left, right) in left.parameters().iter().zip(right.parameters()) {
        assert_eq!(left.name, right.name);
        assert!(left.tensor.equal(&right.tensor), "{}", left.name);
    }
}

#[test]
fn folders_come_back_bit_for_bit() {
    let scaled = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    for (family, changes) in [
        ("llama", json!({})),
        ("llama", json!({"tie_word_embeddings": true, "head_dim": 6, "num_attention_heads": 6})),
        ("llama", json!({"attention_bias": true, "mlp_bias": true, "rms_norm_eps": 1e-6})),
        ("llama", json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5})),
        ("llama", json!({"rope_scaling": scaled, "rope_theta": 5e5, "head_dim": 64})),
        ("qwen2", json!({"tie_word_embeddings": true, "rope_theta": 1e6})),
        ("qwen3", json!({"head_dim": 16})),
    ] {
        for (kind, tensor_type) in [
            (Kind::Float, TensorType::F32),
            (Kind::BFloat16, TensorType::BF16),
            (Kind::Half, TensorType::F16),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
            let model = random(config(family, &changes).unwrap(), kind);
            model.save(&first).unwrap();
            let path = folder.path().join("x.gguf");
            export(&first, &path, tensor_type).unwrap();
            GgufImport::open(&path).unwrap().save(&second).unwrap();

            let again = CausalLm::load(&second, &LoadOptions::frozen(kind, Device::Cpu)).unwrap();
            equal(&again, &CausalLm::load(&first, &LoadOptions::frozen(kind, Device::Cpu)).unwrap());
            assert_eq!(again.config().architecture(), model.config().architecture(), "{family} {changes}");
            let weights = |folder: &Path| std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
            assert_eq!(weights(&first), weights(&second), "every tensor keeps its type");
        }
    }
}

/// Rows 0 to 7 of two heads of four rows: with halves 0, 1 and 2, 3 of a head, the rows of a file are 0, 2,
/// 1, 3.
#[test]
fn rows_of_queries_are_neighbours_in_a_file_of_llama() {
    let rows = Tensor::arange(8, (Kind::Float, Device::Cpu)).unsqueeze(1);
    let file = interleave(&rows, 2);
    assert_eq!(Vec::<f32>::try_from(file.squeeze()).unwrap(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert!(separate(&file, 2).equal(&rows));
    let llama = config("llama", &json!({})).unwrap();
    let heads = |family: Family, name| family.interleaved_heads(name, &llama);
    assert_eq!(heads(Family::Llama, "model.layers.0.self_attn.q_proj.weight"), Some(4));
    assert_eq!(heads(Family::Llama, "model.layers.0.self_attn.k_proj.bias"), Some(2));
    assert_eq!(heads(Family::Llama, "model.layers.0.self_attn.v_proj.weight"), None);
    assert_eq!(heads(Family::Qwen2, "model.layers.0.self_attn.q_proj.weight"), None);
}

/// The rows of `down_proj` have 48 numbers, which is no multiple of 32.
#[test]
fn eight_bits_come_back_within_half_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let model = random(config("llama", &json!({})).unwrap(), Kind::Float);
    model.save(&first).unwrap();
    let path = folder.path().join("x.gguf");
    export(&first, &path, TensorType::Q8_0).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tensor("blk.0.ffn_down.weight").unwrap().tensor_type, TensorType::F32);
    assert_eq!(file.tensor("blk.0.attn_norm.weight").unwrap().tensor_type, TensorType::F32);
    assert_eq!(file.tensor("output.weight").unwrap().tensor_type, TensorType::Q8_0);
    let plan = GgufExport::new(model.config().clone(), TensorType::Q8_0).unwrap();
    let kept: Vec<&str> = plan.unquantized().collect();
    assert_eq!(kept, ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"]);

    GgufImport::open(&path).unwrap().save(&second).unwrap();
    let again = CausalLm::load(&second, &LoadOptions::frozen(Kind::Float, Device::Cpu)).unwrap();
    for (old, new) in model.parameters().iter().zip(again.parameters()) {
        let most = old.tensor.abs().max().double_value(&[]);
        let off = (&old.tensor - &new.tensor).abs().max().double_value(&[]);
        let is_exact = old.tensor.dim() == 1 || old.name.contains("down_proj");
        assert!(
            if is_exact { off == 0.0 } else { off <= most * (0.501 / 127.0 + 1.0 / 2048.0) },
            "{}",
            old.name
        );
    }
}

#[test]
fn what_a_file_cannot_say_is_refused_by_name() {
    let window = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0});
    let scaled = |kind: &str| json!({"rope_scaling": {"rope_type": kind, "factor": 2.0}});
    let llama3 = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}});
    for (family, changes, words) in [
        ("qwen2", window, "`sliding_window` = a number cannot"),
        ("mistral", json!({}), "`sliding_window` = a number cannot"),
        ("mixtral", json!({"num_local_experts": 2}), "`model_type` = mixtral cannot"),
        ("llama", scaled("dynamic"), "`rope_scaling` = dynamic cannot"),
        ("llama", scaled("yarn"), "`rope_scaling` = yarn cannot"),
        ("qwen3", llama3, "`rope_scaling` = llama3 in a family other than llama cannot"),
        ("llama", json!({"hidden_act": "gelu"}), "`hidden_act` = Gelu cannot"),
        ("qwen3", json!({"attention_bias": true}), "`attention_bias` = true cannot"),
        ("qwen2", json!({"head_dim": 16}), "`head_dim` = 16 cannot"),
        ("llama", json!({"architectures": ["LlamaForSequenceClassification"]}), "a reward model cannot"),
    ] {
        let error =
            GgufExport::new(config(family, &changes).unwrap(), TensorType::F32).unwrap_err().to_string();
        assert!(error.starts_with("dir/config.json: ") && error.contains(words), "{error}");
    }
    GgufExport::new(config("mistral", &json!({"sliding_window": null})).unwrap(), TensorType::F32).unwrap();
}

#[test]
fn a_number_that_sixteen_bits_cannot_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = random(config("llama", &json!({})).unwrap(), Kind::Float);
    let tensor = &model.parameters()[2].tensor;
    let _ = tch::no_grad(|| tensor.get(0).get(0).fill_(-7e4));
    model.save(&folder.path().join("model")).unwrap();
    let path = folder.path().join("x.gguf");
    let error = export(&folder.path().join("model"), &path, TensorType::F16).unwrap_err().to_string();
    assert!(error.contains("attn_q.weight") && error.contains("70000, which f16 cannot hold"), "{error}");
    export(&folder.path().join("model"), &path, TensorType::BF16).unwrap();
}

/// A file of a small model, with its metadata and its tensors changed.
fn changed(change: impl FnOnce(&mut Metadata, &mut Vec<gguf::TensorInfo>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let export = GgufExport::new(config("llama", &json!({})).unwrap(), TensorType::F32).unwrap();
    let mut metadata = Metadata::new(&path);
    export.describe(&mut metadata);
    let mut infos = export.infos();
    change(&mut metadata, &mut infos);
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = gguf::GgufWriter::new(file, &metadata, &infos).unwrap();
    for info in &infos {
        writer.append(&vec![0; info.num_bytes().unwrap() as usize]).unwrap();
    }
    writer.finish().unwrap();
    match GgufImport::open(&path) {
        Err(error) => error.to_string(),
        Ok(import) => {
            import.save(&folder.path().join("out")).map_or_else(|error| error.to_string(), |()| String::new())
        }
    }
}

#[test]
fn a_file_that_promises_what_it_has_not_is_refused_by_name() {
    let set = |key: &'static str, value: Value| changed(|metadata, _| drop(metadata.set(key, value)));
    assert_eq!(changed(|_, _| {}), "");
    for (error, words) in [
        (
            set("general.architecture", Value::text("gemma")),
            "`general.architecture` = \"gemma\" is not supported",
        ),
        (set("llama.block_count", Value::u32(3)), "the tensor `blk.2."),
        (set("llama.block_count", Value::u32(1)), "`blk.1."),
        (set("llama.block_count", Value::u32(u32::MAX)), "`num_hidden_layers`"),
        (set("llama.embedding_length", Value::u32(16)), "`token_embd.weight` has shape [40, 32]"),
        (set("llama.attention.head_count", Value::u32(0)), "`num_attention_heads`"),
        (set("llama.attention.head_count", Value::i32s(&[4, 4])), "`llama.attention.head_count` must be"),
        (set("llama.attention.head_count_kv", Value::u32(3)), "`num_key_value_heads`"),
        (set("llama.attention.value_length", Value::u32(4)), "`llama.attention.value_length` = 4"),
        (set("llama.rope.dimension_count", Value::u32(4)), "`llama.rope.dimension_count` = 4"),
        (set("llama.rope.scaling.type", Value::text("yarn")), "`llama.rope.scaling.type` = \"yarn\""),
        (set("llama.rope.freq_base", Value::f32(f32::NAN)), "rope_theta"),
        (set("llama.attention.layer_norm_rms_epsilon", Value::f32(0.0)), "`rms_norm_eps`"),
        (set("llama.logit_scale", Value::f32(0.5)), "`llama.logit_scale` = 0.5 is not supported"),
        (changed(|_, infos| infos[1].name = "blk.0.other.weight".to_owned()), "is missing"),
        (
            changed(|_, infos| {
                let info = gguf::TensorInfo { name: "rope_freqs.weight".to_owned(), ..infos[1].clone() };
                infos.push(gguf::TensorInfo { shape: vec![4], ..info });
            }),
            "the tensor `rope_freqs.weight` is not supported",
        ),
        (
            changed(|_, infos| {
                let info = gguf::TensorInfo { name: "blk.0.extra".to_owned(), ..infos[1].clone() };
                infos.push(info);
            }),
            "`blk.0.extra`",
        ),
    ] {
        assert!(error.contains("x.gguf") && error.contains(words), "{error}");
    }
}
