//! Files of PEFT, patterns, and what is refused by name.

use serde_json::{Map, Value};

use super::*;

const FILE: &str = r#"{"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "bias": "none",
    "target_modules": ["q_proj", "mlp.up_proj"], "exclude_modules": null, "rank_pattern": {"layers.1.*q_proj": 4},
    "alpha_pattern": {}, "use_rslora": true, "init_lora_weights": true, "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "some/base", "revision": "main", "loftq_config": {}, "layer_replication": null}"#;

fn target(plan: &LoraPlan, module: &str) -> Option<LoraTarget> {
    plan.target(module, block_of(module, "model.layers"), false).unwrap()
}

#[test]
fn a_file_of_peft_says_which_layers_have_which_adapter() {
    let file = AdapterFile::from_json(FILE, "a.json").unwrap();
    assert_eq!((file.base.as_deref(), file.revision.as_deref()), (Some("some/base"), Some("main")));
    let plan = file.plan("a.json").unwrap();
    let rank16 = Some(LoraTarget { r: 16, scaling: 8.0 });
    assert_eq!(target(&plan, "model.layers.0.self_attn.q_proj"), rank16);
    assert_eq!(target(&plan, "model.layers.0.mlp.up_proj"), rank16);
    // 32 / sqrt(4).
    assert_eq!(target(&plan, "model.layers.1.self_attn.q_proj"), Some(LoraTarget { r: 4, scaling: 16.0 }));
    for other in ["model.layers.0.self_attn.k_proj", "model.layers.0.xq_proj", "up_proj"] {
        assert_eq!(target(&plan, other), None, "{other}");
    }
}

#[test]
fn names_may_be_a_pattern_and_blocks_may_be_listed() {
    let lora = LoraConfig {
        target_modules: Names::One(r".*\.(q|v)_proj".to_owned()),
        exclude_modules: Some(Names::Several(vec!["layers.2.self_attn.v_proj".to_owned()])),
        layers_to_transform: Some(vec![1, 2]),
        ..LoraConfig::default()
    };
    let plan = AdapterFile { lora, base: None, revision: None, base_hash: None }.plan("run.toml").unwrap();
    let has = |module: &str| target(&plan, module).is_some();
    assert!(has("model.layers.1.self_attn.v_proj") && has("model.layers.2.self_attn.q_proj"));
    assert!(!has("model.layers.0.self_attn.q_proj"), "of another block");
    assert!(!has("model.layers.2.self_attn.v_proj"), "excluded");
    assert!(!has("model.layers.1.self_attn.k_proj") && !has("q_proj"));
}

#[test]
fn what_changes_results_and_is_not_known_is_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut map: Map<String, Value> = serde_json::from_str(FILE).unwrap();
        map.insert(key.to_owned(), value);
        let file = AdapterFile::from_json(&Value::Object(map).to_string(), "a.json");
        file.and_then(|file| file.plan("a.json")).unwrap_err().to_string()
    };
    for (key, value, words) in [
        ("peft_type", "IA3".into(), "a.json: `peft_type` = \"IA3\" is not supported"),
        ("bias", "some".into(), "unknown variant `some`, expected one of `none`, `all`, `lora_only`"),
        ("use_qalora", true.into(), "a.json: `use_qalora` = true is not supported"),
        (
            "layer_replication",
            vec![vec![0, 2]].into(),
            "a.json: `layer_replication` = [[0,2]] is not supported",
        ),
        ("trainable_token_indices", "all".into(), "a.json is no valid JSON: data did not match any variant"),
        ("init_lora_weights", "orthogonal".into(), "`init_lora_weights` must be true or \"gaussian\""),
        (
            "init_lora_weights",
            "pissa_niter_4".into(),
            "a.json: `init_lora_weights` = \"pissa_niter_4\" is not supported: the adapter belongs to weights that \
             PEFT has changed: save it with `path_initial_model_for_weight_conversion`",
        ),
        (
            "init_lora_weights",
            "loftq".into(),
            "`init_lora_weights` = \"loftq\" is not supported: the adapter belongs to weights that PEFT has quantised",
        ),
        ("r", 0.into(), "a.json: `r` must be a whole number from 1 to 65536, got 0"),
        ("r", (-3).into(), "`r` must be a whole number from 1"),
        ("r", "8".into(), "a.json is no valid JSON: invalid type"),
        ("lora_alpha", 0.into(), "`lora_alpha` must be a finite number above zero"),
        ("target_modules", "(".into(), "a.json: `target_modules` must be a pattern"),
    ] {
        let error = with(key, value);
        assert!(error.contains(words), "{key}: {error}");
    }
}

/// PEFT writes the settings of EVA beside the ranks that it found. The weights of the model stay as they are.
#[test]
fn an_adapter_of_peft_that_began_with_eva_is_like_any_other() {
    let file = FILE.replace(
        "\"init_lora_weights\": true",
        "\"init_lora_weights\": \"eva\", \"eva_config\": {\"rho\": 2.0}",
    );
    assert!(file.contains("eva_config"));
    let [eva, plain] = [file.as_str(), FILE].map(|text| AdapterFile::from_json(text, "a.json").unwrap().lora);
    assert_eq!(eva, plain);
}

#[test]
fn a_module_that_two_patterns_match_is_refused() {
    let rank_pattern = [("q_proj".to_owned(), 4), (".*_proj".to_owned(), 2)].into();
    let lora = LoraConfig { rank_pattern, ..LoraConfig::default() };
    let plan = AdapterFile { lora, base: None, revision: None, base_hash: None }.plan("run.toml").unwrap();
    let module = "model.layers.0.self_attn.q_proj";
    let error = plan.target(module, Some(0), false).unwrap_err().to_string();
    assert!(
        error.contains("`rank_pattern` must be one pattern at most") && error.contains(module),
        "{error}"
    );
}

#[test]
fn what_is_written_is_read_again() {
    let file = AdapterFile::from_json(FILE, "a.json").unwrap();
    let again = AdapterFile::from_json(&file.to_json(false, true), "b.json").unwrap();
    assert_eq!(again.lora, file.lora);
    assert_eq!((again.base, again.revision), (file.base, file.revision));
}
