//! The weight file of a small model whose linear layers are codes: `model.safetensors` beside a `config.json`
//! that says so, with codes of four and of eight bits.

#![no_main]

use std::fs;

use models::causal_lm::{CausalLm, LoadOptions};
use tch::{Device, Kind};

/// The model of `run.sh`, up to its `quantization_config`.
const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "quantization_config":"#;

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    fs::write(folder.path().join("model.safetensors"), bytes).expect("a file in memory");
    for codes in [r#"{"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}"#, r#"{"load_in_8bit": true}"#] {
        fs::write(folder.path().join("config.json"), format!("{CONFIG} {codes}}}")).expect("a file in memory");
        let _ = CausalLm::load(folder.path(), &LoadOptions::frozen(Kind::Float, Device::Cpu));
    }
});
