//! What a `config.json` means: the defaults of transformers 5.23 (`configuration_*.py`) where it is silent,
//! and refusals by name of what it must not say.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use models::architecture::{Architecture, Position};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::model_parallel::ModelParallel;
use serde_json::{Map, Value, json};
use tch::{Device, Kind};

/// The smallest file of a family, with `keys` laid over it.
fn file(family: &str, keys: &Value) -> String {
    let mut file: Map<String, Value> = serde_json::from_value(match family {
        "gpt2" => json!({"vocab_size": 8, "n_embd": 64, "n_layer": 3, "n_head": 32}),
        "bloom" => json!({"vocab_size": 8, "hidden_size": 64, "n_layer": 3, "n_head": 32}),
        "opt" => {
            json!({"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 32, "ffn_dim": 8})
        }
        _ => json!({"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 32,
            "intermediate_size": 8}),
    })
    .unwrap();
    file.insert("model_type".to_owned(), json!(family));
    file.extend(keys.as_object().unwrap().clone());
    Value::Object(file).to_string()
}

fn read(family: &str, keys: &Value) -> Architecture {
    Config::from_json(&file(family, keys), "dir")
        .unwrap_or_else(|error| panic!("{error}"))
        .architecture()
        .clone()
}

#[track_caller]
fn refused(family: &str, keys: &Value, word: &str) {
    let error = Config::from_json(&file(family, keys), "dir/config.json").unwrap_err().to_string();
    assert!(error.starts_with("dir/config.json: ") && error.contains(word), "{keys}: {error}");
}

fn theta(architecture: &Architecture) -> f64 {
    let Position::Rope(rope) = &architecture.position else { panic!("no rotations") };
    rope.theta
}

#[test]
fn a_silent_file_means_what_it_means_in_transformers() {
    // num_key_value_heads, head_dim, rope_theta, rms_norm_eps, max_position_embeddings.
    for (family, kv_heads, head_dim, base, eps, positions) in [
        ("llama", 32, 2, 1e4, 1e-6, 2048),
        ("mistral", 8, 2, 1e4, 1e-6, 131_072),
        ("mixtral", 8, 2, 1e6, 1e-5, 131_072),
        ("qwen2", 32, 2, 1e4, 1e-6, 32_768),
        ("qwen3", 32, 128, 1e4, 1e-6, 32_768),
        ("qwen2_moe", 16, 2, 1e4, 1e-6, 32_768),
        ("qwen3_moe", 4, 2, 1e4, 1e-6, 32_768),
    ] {
        let config = read(family, &json!({}));
        let found =
            (config.num_kv_heads, config.head_dim, theta(&config), config.norm_eps, config.max_positions);
        assert_eq!(found, (kv_heads, head_dim, base, eps, positions), "{family}");
    }
    let windows = |family, keys: Value| read(family, &keys).sliding_windows;
    assert_eq!(windows("mistral", json!({})), [Some(4096); 3]);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [None; 3]);
    assert_eq!(windows("mixtral", json!({})), [None; 3]);
    assert_eq!(windows("llama", json!({"sliding_window": 4})), [None; 3]);
}

#[test]
fn windows_are_those_of_each_qwen() {
    let windows = |family, keys: Value| {
        let mut with = json!({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1});
        with.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        read(family, &with).sliding_windows
    };
    let some = Some(4);
    for family in ["qwen2", "qwen3"] {
        assert_eq!(windows(family, json!({})), [None, some, some], "{family}");
        assert_eq!(windows(family, json!({"sliding_window": null})), [None; 3], "{family}");
    }
    assert_eq!(windows("qwen2_moe", json!({})), [some, None, None]);
    assert_eq!(windows("qwen2_moe", json!({"max_window_layers": 28})), [some, None, some]);
    assert_eq!(windows("qwen3_moe", json!({})), [some; 3]);
    assert_eq!(windows("qwen3_moe", json!({"use_sliding_window": false})), [None; 3]);
    refused("qwen3_moe", &json!({"layer_types": vec!["sliding_attention"; 3]}), "`layer_types`");
}

#[test]
fn null_is_a_value_of_its_own() {
    for family in ["llama", "mistral", "mixtral", "qwen2", "qwen3"] {
        assert_eq!(read(family, &json!({"num_key_value_heads": null})).num_kv_heads, 32, "{family}");
        for key in ["rms_norm_eps", "hidden_act", "rope_theta", "tie_word_embeddings", "hidden_size"] {
            refused(family, &json!({key: null}), &format!("`{key}` must be"));
        }
    }
    refused("qwen2", &json!({"head_dim": null}), "`head_dim` must be a whole number above zero, got null");
    assert_eq!(read("llama", &json!({"head_dim": null})).head_dim, 2);
}

#[test]
fn keys_of_other_families_and_spellings_that_differ_are_refused() {
    refused(
        "gpt_neox",
        &json!({"rope_theta": 100.0}),
        "`rope_theta` = 100.0 is not supported: this family reads `rotary_emb_base`",
    );
    assert_eq!(theta(&read("llama", &json!({"rotary_emb_base": 7.0}))), 1e4);
    refused(
        "mixtral",
        &json!({"num_local_experts": 4, "num_experts": 8}),
        "`num_experts` must be the same as `num_local_experts`",
    );
    assert_eq!(read("qwen2_moe", &json!({"num_local_experts": 4})).experts.unwrap().num_experts, 60);
    refused("gpt2", &json!({"hidden_size": 32}), "`hidden_size` must be the same as `n_embd`");
    refused("bloom", &json!({"pretraining_tp": 2, "slow_but_exact": true}), "`slow_but_exact`");
    refused("llama", &json!({"per_layer_config": {"0": {"rms_norm_eps": 0.5}}}), "`per_layer_config`");
}

#[test]
fn absurd_sizes_are_refused_by_name() {
    let sizes = [
        json!(1e12),
        json!(1_000_000_000_000_i64),
        json!(1_i64 << 62),
        json!(u64::MAX),
        json!(1e300),
        json!(0),
        json!(-1),
        json!(2.5),
        json!("4"),
        json!([4]),
        json!(true),
    ];
    for size in &sizes {
        for key in [
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "vocab_size",
            "intermediate_size",
            "head_dim",
        ] {
            refused("llama", &json!({key: size}), &format!("`{key}`"));
        }
        for key in ["max_position_embeddings", "num_key_value_heads", "sliding_window"] {
            refused("mistral", &json!({key: size}), &format!("`{key}`"));
        }
        for key in ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"] {
            refused("qwen2_moe", &json!({key: size}), &format!("`{key}`"));
        }
        for key in ["n_embd", "n_layer", "n_head", "n_inner", "n_positions"] {
            refused("gpt2", &json!({key: size}), &format!("`{key}`"));
        }
    }
    refused("llama", &json!({"num_key_value_heads": 5}), "a divisor of the 32 attention heads");
    refused("llama", &json!({"head_dim": 3}), "`head_dim` must be an even number");
    refused("qwen2_moe", &json!({"max_window_layers": -1}), "`max_window_layers`");
}

#[test]
fn sizes_that_are_too_much_together_are_refused() {
    let wide = json!({"num_hidden_layers": 4096, "hidden_size": 1 << 24, "intermediate_size": 1 << 24});
    refused("llama", &wide, "its sizes make");
    let experts = json!({"num_experts": 16_384, "moe_intermediate_size": 1 << 24, "hidden_size": 1 << 20});
    refused("qwen3_moe", &experts, "its sizes make");
    refused("llama", &json!({"vocab_size": i32::MAX, "hidden_size": 1 << 20}), "its sizes make");
}

#[test]
fn numbers_that_cannot_be_are_refused_by_name() {
    for (key, values) in [
        ("rope_theta", [json!(0), json!(-1.0), json!(1.0), json!(1e300), json!("1e4")]),
        ("rms_norm_eps", [json!(0), json!(-1e-6), json!("1e-6"), json!(null), json!([])]),
        ("initializer_range", [json!(-0.02), json!(1e9), json!("x"), json!(null), json!({})]),
    ] {
        for value in values {
            refused("llama", &json!({key: value}), &format!("`{key}`"));
        }
    }
    for (rope, word) in [
        (
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}),
            "original_max_position_embeddings",
        ),
        (json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": -1.0}), "beta_fast"),
        (json!({"rope_type": "linear", "factor": 1e300}), "factor"),
        (json!({"rope_type": "linear", "factor": 2.0, "rope_theta": null}), "rope_scaling.rope_theta"),
        (json!({"rope_type": null, "factor": 2.0}), "rope_scaling.rope_type"),
    ] {
        refused("llama", &json!({"rope_scaling": rope}), word);
    }
}

#[test]
fn a_model_that_no_memory_holds_is_refused_before_it_is_made() {
    // 2^16 x 2^24 numbers in each table of 3 layers: 4 TB a matrix.
    let keys = json!({"hidden_size": 1 << 20, "intermediate_size": 1 << 20, "vocab_size": 1 << 20});
    let config = Config::from_json(&file("llama", &keys), "dir/config.json").unwrap();
    let options = LoadOptions {
        kind: Kind::Float,
        device: Device::Cpu,
        trainable: false,
        model_parallel: ModelParallel::NONE,
        memory: None,
        quantize: None,
    };
    let error = CausalLm::random(config, 1, &options).unwrap_err().to_string();
    assert!(error.contains("parameters, which take") && error.contains("GiB of memory"), "{error}");
}
