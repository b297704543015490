//! GGUF files through the program: there and back, over what is there, and wrong input.

use std::fs;

use crate::harness::Scratch;

const CONFIG: &str = r#"{"model_type": "MODEL", "architectures": ["XForCausalLM"], "vocab_size": 320, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "initializer_range": 0.2}"#;

/// A folder with the model `base` of a family, and the rows that its tokenizer comes from.
fn with_model(family: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("config.json", &CONFIG.replace("MODEL", family));
    let counts = "--preferences 5 --prompts 5 --pretraining 20 --heldout 5 --heldout-preferences 5";
    scratch.run(&format!("data synth --out world --train 20 {counts}")).succeeds();
    scratch.run("data tokenizer world/text.parquet --vocab-size 300 --out tokenizer").succeeds();
    scratch.run("model init config.json --tokenizer tokenizer --out base").succeeds();
    scratch
}

#[test]
fn a_model_comes_back_with_its_replies() {
    for family in ["llama", "qwen2"] {
        let scratch = with_model(family);
        let said = scratch.run("model export base --gguf base.gguf");
        assert!(said.stderr.contains("base.gguf holds the model as F32"), "{}", said.stderr);
        assert!(said.stderr.contains("do not begin with BOS"), "{}", said.stderr);
        scratch.run("model import base.gguf --out again").succeeds();
        let weights = |folder: &str| fs::read(scratch.path(&format!("{folder}/model.safetensors"))).unwrap();
        assert_eq!(weights("again"), weights("base"));
        for command in [
            "generate --prompt hello --temperature 0 --max-new-tokens 12",
            "generate --raw --prompt hello --seed 3 --max-new-tokens 12",
        ] {
            let reply =
                |model: &str| scratch.run(&format!("{command} --model {model}")).succeeds().to_owned();
            assert_eq!(reply("again"), reply("base"), "{command}");
        }
        let ends = |folder: &str| scratch.read(&format!("{folder}/generation_config.json"));
        assert_eq!(ends("again"), ends("base"));
        let template = |folder: &str| scratch.read(&format!("{folder}/chat_template.jinja"));
        assert_eq!(template("again"), template("base"));
    }
}

#[test]
fn an_adapter_is_merged_into_its_file() {
    let scratch = with_model("llama");
    let sets =
        "--set out=lora --set model.path=base --set model.lora.r=2 --set train.steps=3 --set train.lr=1e-2";
    scratch.write("run.toml", "[data]\ntrain = \"world/sft.parquet\"\n");
    scratch.run(&format!("sft --config run.toml {sets}")).succeeds();
    scratch.run("model export lora/final --gguf lora.gguf").succeeds();
    scratch.run("model import lora.gguf --out again").succeeds();
    scratch.run("model merge lora/final --out merged").succeeds();
    let weights = |folder: &str| fs::read(scratch.path(&format!("{folder}/model.safetensors"))).unwrap();
    assert_eq!(weights("again"), weights("merged"));
}

#[test]
fn nothing_is_replaced_and_nothing_half_written() {
    let scratch = with_model("llama");
    scratch.run("model export base --gguf x.gguf --dtype q8_0").succeeds();
    let first = fs::read(scratch.path("x.gguf")).unwrap();
    for (code, line, words) in [
        (2, "model export base --gguf x.gguf", "--gguf x.gguf: this file exists already"),
        (2, "model export base --gguf base/model.safetensors --force", "the input itself"),
        (2, "model export base --gguf base/tokenizer.json --force", "the input itself"),
        (2, "model export base --gguf y.gguf --dtype q4_0", "[possible values: f32, f16, bf16, q8_0]"),
        (2, "model import x.gguf --out base", "--out base: it exists already"),
        (3, "model import missing.gguf --out y", "missing.gguf"),
        (3, "model import config.json --out y", "config.json is not a whole GGUF file"),
    ] {
        let said = scratch.run(line);
        assert_eq!(said.code, code, "{line}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{line}: {}", said.stderr);
    }
    assert_eq!(fs::read(scratch.path("x.gguf")).unwrap(), first);
    scratch.run("model export base --gguf x.gguf --force").succeeds();
    assert_ne!(fs::read(scratch.path("x.gguf")).unwrap(), first);

    // A model that a file cannot hold, and a file that is cut off.
    let window =
        "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 0, \"vocab_size\"";
    let config = CONFIG.replace("MODEL", "qwen2").replace("\"vocab_size\"", window);
    scratch.write("config.json", &config);
    scratch.run("model init config.json --tokenizer tokenizer --out windowed").succeeds();
    let said = scratch.run("model export windowed --gguf y.gguf");
    assert!(said.code == 3 && said.stderr.contains("`sliding_window`"), "{}", said.stderr);
    fs::write(scratch.path("cut.gguf"), &first[..first.len() - 5000]).unwrap();
    let said = scratch.run("model import cut.gguf --out y");
    assert!(said.code == 3 && said.stderr.contains("ends at byte"), "{}", said.stderr);
    let names = scratch.names();
    assert!(names.iter().all(|name| !name.starts_with('y') && !name.contains("tmp")), "{names:?}");
}
