//! A model from nothing: rows, tokenizer, random weights; and the commands that run it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::harness::{Scratch, names};

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 96, "rms_norm_eps": 1e-5, "vocab_size": 320, "tie_word_embeddings": true,
  "rope_theta": 10000.0, "initializer_range": 0.02
}"#;

/// One model for all tests of this file.
pub(crate) fn world() -> &'static Scratch {
    static WORLD: OnceLock<Scratch> = OnceLock::new();
    WORLD.get_or_init(|| {
        let scratch = Scratch::new();
        let sizes = "--train 40 --preferences 20 --prompts 10 --pretraining 200 --heldout 10 --heldout-preferences 10";
        scratch.run(&format!("data synth --out data --seed 3 {sizes}")).succeeds();
        scratch.run("data tokenizer data/text.parquet --vocab-size 320 --out tokenizer").succeeds();
        scratch.write("config.json", CONFIG);
        scratch.run("model init config.json --tokenizer tokenizer --seed 5 --out model").succeeds();
        add_score(&scratch.path("model"), &scratch.path("judge"));
        scratch
    })
}

/// Copies a model folder and gives it a score weight of ones.
fn add_score(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in names(from) {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
    let weights = to.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut data = bytes[8 + length..].to_vec();
    let range = [data.len(), data.len() + 32 * 4];
    header["score.weight"] = serde_json::json!({"dtype": "F32", "shape": [1, 32], "data_offsets": range});
    data.extend([1f32; 32].iter().flat_map(|number| number.to_le_bytes()));
    let header = header.to_string();
    let text = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(&weights, text).unwrap();
    let config = CONFIG.replace("LlamaForCausalLM", "LlamaForSequenceClassification");
    std::fs::write(to.join("config.json"), config.replacen('{', "{\"num_labels\": 1, ", 1)).unwrap();
}

#[test]
fn synthetic_rows_pass_the_check() {
    for (file, layout, rows) in [
        ("sft", "messages", 40),
        ("preference", "preference", 20),
        ("prompts", "prompt", 10),
        ("heldout", "prompt", 10),
        ("heldout_preference", "preference", 10),
        ("text", "text", 200),
    ] {
        let outcome = world().run(&format!("data check data/{file}.parquet --tokenizer tokenizer --json"));
        let report: serde_json::Value = serde_json::from_str(outcome.succeeds()).unwrap();
        assert_eq!((&report["layout"], &report["rows"]), (&layout.into(), &rows.into()), "{file}");
        assert!(report["tokens"]["longest"].as_u64().unwrap() > 3, "{report:#}");
    }
}

#[test]
fn the_same_seed_makes_the_same_folder() {
    let scratch = world();
    scratch.run("model init config.json --tokenizer tokenizer --seed 5 --out again").succeeds();
    let bytes = |folder: &str| std::fs::read(scratch.path(folder).join("model.safetensors")).unwrap();
    assert!(bytes("model") == bytes("again"));
    scratch.run("model init config.json --out again").fails(2, &["exists already"]);
}

#[test]
fn model_info_counts_the_parameters() {
    let info = |folder: &str| -> serde_json::Value {
        serde_json::from_str(world().run(&format!("model info {folder} --json")).succeeds()).unwrap()
    };
    // Embedding 320 x 32; a layer: q 32 x 32, k and v 16 x 32, o 32 x 32, three of 64 x 32, two norms; last
    // norm.
    let layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32 + 2 * 32;
    let (parameters, float32) = (320 * 32 + 2 * layer + 32, info("model"));
    assert_eq!(float32["parameters"], parameters);
    assert_eq!(float32["bytes"], 4 * parameters);
    assert_eq!(float32["tokenizer"]["chat_template"], true);
    // The names that settings of adapters match: once for the two blocks, then those outside.
    let layers = float32["layers"].as_array().unwrap();
    for (name, weight, count, in_blocks) in [
        ("self_attn.k_proj", [16, 32], 2, true),
        ("mlp.down_proj", [32, 64], 2, true),
        ("model.embed_tokens", [320, 32], 1, false),
    ] {
        let layer =
            serde_json::json!({"name": name, "weight": weight, "count": count, "in_blocks": in_blocks});
        assert!(layers.contains(&layer), "{layer} in {layers:#?}");
    }
    let text = world().run("model info model");
    for words in ["  self_attn.k_proj ", " [16, 32] ", "layers outside of blocks\n  model.embed_tokens "] {
        assert!(text.succeeds().contains(words), "{words}: {text:#?}");
    }

    // Three integers of eight bytes: the bytes are those of the file, whatever the dtype.
    let header = r#"{"ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}}"#;
    let length = char::from(u8::try_from(header.len()).unwrap());
    std::fs::create_dir(world().path("integers")).unwrap();
    world().write("integers/config.json", CONFIG);
    let text = format!("{length}{}{header}{}", "\0".repeat(7), "\0".repeat(24));
    world().write("integers/model.safetensors", &text);
    assert_eq!((&info("integers")["parameters"], &info("integers")["bytes"]), (&3.into(), &24.into()));
}

#[test]
fn guesses_change_no_reply() {
    let scratch = world();
    let prompts = "{\"text\": \"one two one two one\"}\n{\"ids\": [7, 8, 9, 7, 8, 9, 7]}\n";
    scratch.write("repeats.jsonl", prompts);
    for temperature in ["0", "1"] {
        let line = format!(
            "generate --model model --input repeats.jsonl --raw --max-new-tokens 24 --ignore-eos --temperature {temperature}"
        );
        let plain = scratch.run(&line).rows();
        assert_eq!(scratch.run(&format!("{line} --speculative-tokens 4")).rows(), plain);
        assert_eq!(scratch.run(&format!("{line} --speculative-tokens 4 --draft-model model")).rows(), plain);
    }

    let line = "generate --model model --prompt x --raw";
    scratch.run(&format!("{line} --draft-model model")).fails(2, &["--speculative-tokens"]);
    scratch
        .run(&format!("{line} --speculative-tokens 0"))
        .fails(2, &["'--speculative-tokens <N>'", "0 is not in"]);
    scratch.write(
        "short.json",
        &CONFIG.replace("\"max_position_embeddings\": 96", "\"max_position_embeddings\": 64"),
    );
    scratch.run("model init short.json --tokenizer tokenizer --out short").succeeds();
    scratch
        .run(&format!("{line} --speculative-tokens 2 --draft-model short"))
        .fails(2, &["the draft model takes rows of 64 tokens", "at least 96"]);
    scratch.run(&format!("{line} --speculative-tokens 2 --draft-model judge")).fails(3, &["reward model"]);
}

#[test]
fn replies_are_rows_and_depend_on_the_seed_alone() {
    let scratch = world();
    scratch.write("prompts.jsonl", "{\"text\": \"2 + 2?\"}\n{\"ids\": [7, 8, 9]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    let line = "generate --model model --input prompts.jsonl --max-new-tokens 6 --ignore-eos --seed 4";
    let first = scratch.run(line);
    let rows = first.rows();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert_eq!(row["ids"].as_array().unwrap().len(), 6);
        assert_eq!(row["finish_reason"], "length");
        assert!(row["text"].is_string());
    }
    assert_eq!(scratch.run(&format!("{line} --batch-size 1")).stdout, first.stdout);
    assert_ne!(scratch.run(&line.replace("--seed 4", "--seed 5")).stdout, first.stdout);
    scratch.run(&format!("{line} --output replies.jsonl")).succeeds();
    assert_eq!(scratch.read("replies.jsonl"), first.stdout);
}

#[test]
fn logprobs_have_as_many_entries_as_ids_and_the_first_is_null() {
    let scratch = world();
    scratch.write("texts.jsonl", "{\"ids\": [7, 8, 9, 10]}\n{\"ids\": [7]}\n{\"ids\": [7, 8]}\n");
    let rows = scratch.run("logprobs --model model --input texts.jsonl --batch-size 2").rows();
    let numbers = |row: usize| rows[row]["logprobs"].as_array().unwrap().clone();
    assert_eq!([numbers(0).len(), numbers(1).len(), numbers(2).len()], [4, 1, 2]);
    assert!(rows.iter().all(|row| row["logprobs"][0].is_null()));
    // Small random weights: every token is about as likely, ln 320 = 5.77.
    assert!(numbers(0)[1..].iter().all(|number| (number.as_f64().unwrap() + 5.77).abs() < 1.0), "{rows:?}");
    // What comes after does not change what was before.
    assert!((numbers(0)[1].as_f64().unwrap() - numbers(2)[1].as_f64().unwrap()).abs() < 1e-5);
}

#[test]
fn a_score_for_each_row() {
    let scratch = world();
    scratch.write("said.jsonl", "{\"ids\": [7, 8]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    let rows = scratch.run("reward --model judge --input said.jsonl").rows();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["score"].as_f64().unwrap().is_finite()), "{rows:?}");
    scratch.run("reward --model model --input said.jsonl").fails(3, &["score.weight"]);
}

#[test]
fn in_a_pipe_chat_prints_the_answer_and_nothing_else() {
    let scratch = world();
    let words = ["chat", "--model", "model", "--max-new-tokens", "5", "--ignore-eos", "--temperature", "0"];
    let outcome = scratch.run_with(&words, "hi\n");
    assert!(outcome.succeeds().ends_with('\n') && outcome.stderr.is_empty(), "{outcome:#?}");
    assert_eq!(scratch.run_with(&words, "hi\n").stdout, outcome.stdout);
    scratch.run_with(&words, "").fails(2, &["stdin"]);
}

#[test]
fn rows_and_folders_that_do_not_fit_the_model_are_refused() {
    let scratch = world();
    scratch.write("bad.jsonl", "{\"ids\": [1]}\n{\"ids\": [320]}\n");
    let outcome = scratch.run("logprobs --model model --input bad.jsonl --output bad.out.jsonl");
    outcome.fails(3, &["bad.jsonl line 2", "token id 320 is outside the vocabulary of 320"]);
    assert!(!scratch.path("bad.out.jsonl").exists());
    scratch.write("none.jsonl", "{\"words\": \"x\"}\n");
    scratch
        .run("generate --model model --input none.jsonl")
        .fails(3, &["none.jsonl line 1", "prompt, messages, text or ids"]);
    scratch.run("generate --model nowhere --prompt x").fails(2, &["nowhere: there is no such folder"]);
    scratch.run("generate --model model --prompt x --temperature -1").fails(2, &["temperature"]);
}

#[test]
fn a_prompt_is_a_text_or_turns_and_may_come_from_stdin() {
    let scratch = world();
    let rows = "{\"prompt\": \"hi\", \"chosen\": \"x\"}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n\
                {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n";
    let words = "generate --model model --input - --max-new-tokens 4 --ignore-eos --temperature 0";
    let words: Vec<&str> = words.split(' ').collect();
    let replies = scratch.run_with(&words, rows).rows();
    assert_eq!(replies.len(), 3);
    assert!(replies.iter().all(|reply| reply == &replies[0]), "{replies:?}");
    scratch.run_with(&words, "").fails(3, &["stdin", "no rows"]);
    scratch.run_with(&words, "{\"prompt\": \"hi\"}\n{\n").fails(3, &["stdin"]);
}

#[test]
fn both_answers_of_a_preference_are_scored() {
    let scratch = world();
    let talk = |answer: &str| {
        format!(
            "[{{\"role\": \"user\", \"content\": \"q\"}}, {{\"role\": \"assistant\", \"content\": \"{answer}\"}}]"
        )
    };
    let (a, b) = (talk("a"), talk("b"));
    let lines = [
        "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}".to_owned(),
        format!("{{\"chosen\": {a}, \"rejected\": {b}}}"),
        format!("{{\"messages\": {a}}}"),
        "{\"prompt\": \"q\", \"response\": \"b\"}".to_owned(),
    ];
    scratch.write("pairs.jsonl", &lines.join("\n"));
    let rows = scratch.run("reward --model judge --input pairs.jsonl --batch-size 3").rows();
    let number = |row: usize, field: &str| rows[row][field].as_f64().unwrap();
    let (chosen, rejected) = (number(2, "score"), number(3, "score"));
    for row in [0, 1] {
        assert!((number(row, "chosen_score") - chosen).abs() < 1e-5, "{rows:?}");
        assert!((number(row, "rejected_score") - rejected).abs() < 1e-5, "{rows:?}");
    }
    assert!((chosen - rejected).abs() > 1e-6);
    let rows = scratch.run("logprobs --model model --input pairs.jsonl").rows();
    assert_eq!(rows[0]["chosen"]["ids"], rows[2]["ids"]);
    assert_eq!(rows[1]["rejected"]["ids"], rows[3]["ids"]);
    assert_eq!(rows[0]["rejected"]["logprobs"][0], serde_json::Value::Null);
    scratch.write("prompt.jsonl", "{\"prompt\": \"q\"}\n");
    scratch
        .run("reward --model judge --input prompt.jsonl")
        .fails(3, &["prompt.jsonl line 1", "prompt with completion"]);
}

#[test]
fn rows_of_ids_need_no_tokenizer() {
    let scratch = Scratch::new();
    for (from, to) in [("model", "model"), ("judge", "judge")] {
        std::fs::create_dir(scratch.path(to)).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(world().path(from).join(name), scratch.path(to).join(name)).unwrap();
        }
    }
    scratch.write("ids.jsonl", "{\"ids\": [7, 8, 9]}\n");
    let rows = scratch.run("generate --model model --input ids.jsonl --max-new-tokens 3 --ignore-eos").rows();
    assert_eq!(rows[0]["ids"].as_array().unwrap().len(), 3);
    assert!(rows[0].get("text").is_none());
    assert_eq!(scratch.run("logprobs --model model --input ids.jsonl").rows().len(), 1);
    assert!(scratch.run("reward --model judge --input ids.jsonl").rows()[0]["score"].is_f64());
    scratch.run("generate --model model --prompt x").fails(3, &["has no tokenizer.json"]);
    scratch.run_with(&["chat", "--model", "model"], "hi").fails(3, &["has no tokenizer.json"]);
}

#[test]
fn the_folder_of_a_run_stands_for_the_model_that_it_made() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("run")).unwrap();
    scratch.write("run/run.toml", "");
    scratch.run("generate --model run --prompt x").fails(2, &["has not finished"]);
    let made = scratch.path("run").join("final");
    std::os::unix::fs::symlink(world().path("model"), made).unwrap();
    let outcome = scratch.run("generate --model run --prompt x --max-new-tokens 2");
    assert_eq!(outcome.rows().len(), 1);
    assert!(outcome.stderr.contains("its model is run/final"), "{outcome:#?}");
}

#[test]
fn a_row_longer_than_the_model_is_named() {
    let scratch = world();
    let ids = |count: usize| vec!["7"; count].join(", ");
    scratch.write("long.jsonl", &format!("{{\"ids\": [7]}}\n{{\"ids\": [{}]}}\n", ids(97)));
    for (command, model) in [("generate", "model"), ("logprobs", "model"), ("reward", "judge")] {
        let outcome = scratch.run(&format!("{command} --model {model} --input long.jsonl"));
        outcome.fails(3, &["long.jsonl line 2", "97 tokens", "shorten the row, or remove it"]);
    }
}

#[test]
fn a_mistyped_folder_is_no_name_of_the_hub() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("runs/sft-1")).unwrap();
    scratch.write("file", "");
    scratch
        .run("generate --model runs/stf-1 --prompt x")
        .fails(2, &["did you mean \"runs/sft-1\"?", "runs/stf-1@main"]);
    scratch.run("chat --model runs/sft-1/final").fails(2, &["runs/sft-1/final: there is no such folder"]);
    scratch.run("generate --model file --prompt x").fails(2, &["file: is a file"]);
    scratch
        .run("generate --model owner/name --prompt x")
        .fails(2, &["owner/name: config.json is not in the cache"]);
    scratch.run("generate --model runs/sft-1@main --prompt x").fails(2, &["is not in the cache"]);
}

#[test]
fn a_broken_config_is_not_called_a_tokenizer() {
    let scratch = Scratch::new();
    add_score(&world().path("model"), &scratch.path("model"));
    scratch.write("model/config.json", "{");
    let outcome = scratch.run("generate --model model --prompt x");
    outcome.fails(3, &["model/config.json"]);
    assert!(!outcome.stderr.contains("tokenizer"), "{outcome:#?}");
}

#[test]
fn an_index_that_leads_out_of_a_local_folder_is_refused() {
    let scratch = Scratch::new();
    add_score(&world().path("model"), &scratch.path("model"));
    std::fs::rename(scratch.path("model/model.safetensors"), scratch.path("outside.safetensors")).unwrap();
    let index = "{\"weight_map\": {\"x\": \"../outside.safetensors\"}}";
    scratch.write("model/model.safetensors.index.json", index);
    scratch
        .run("generate --model model --prompt x")
        .fails(3, &["weight_map names \"../outside.safetensors\""]);
}

#[test]
fn chatml_works_on_a_base_model_without_its_tokens() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/models/stories260k"));
    let Ok(folder) = folder.canonicalize() else {
        eprintln!("skipped: there is no shared/models/stories260k beside the repository");
        return;
    };
    let scratch = Scratch::new();
    let folder = folder.display().to_string();
    scratch
        .run_with(&["generate", "--model", &folder, "--prompt", "x", "--template", "chatml"], "")
        .fails(2, &["<|im_start|>"]);
    scratch.write("rows.jsonl", "{\"prompt\": \"hi\", \"completion\": \"Hello there.\"}\n");
    let toml = format!(
        "out = 'run'\n[model]\npath = '{folder}'\n[tokenizer]\ntemplate = 'chatml'\n[data]\ntrain = 'rows.jsonl'\n[train]\n\
         steps = 2\nmicro_batch_size = 1\n"
    );
    scratch.write("run.toml", &toml);
    let outcome = scratch.run("sft --config run.toml");
    outcome.succeeds();
    assert!(outcome.stderr.contains("<|im_start|> and <|im_end|>"), "{outcome:#?}");
    assert!(outcome.stderr.contains("from 512 to 514 rows"), "{outcome:#?}");
    let config: serde_json::Value = serde_json::from_str(&scratch.read("run/final/config.json")).unwrap();
    assert_eq!(config["vocab_size"], 514);
    let rows = scratch.run("generate --model run --prompt hi --max-new-tokens 3").rows();
    assert_eq!(rows.len(), 1);
    // What was resized once needs it no more.
    scratch.write(
        "again.toml",
        &toml.replace(&format!("'{folder}'"), "'run/final'").replace("'run'", "'again'"),
    );
    let outcome = scratch.run("sft --config again.toml");
    outcome.succeeds();
    assert!(!outcome.stderr.contains("embeddings"), "{outcome:#?}");
}

#[test]
fn truncated_weights_are_named() {
    let scratch = Scratch::new();
    add_score(&world().path("model"), &scratch.path("model"));
    let weights = scratch.path("model").join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 9]).unwrap();
    scratch.write("said.jsonl", "{\"ids\": [7, 8]}\n");
    scratch
        .run("reward --model model --input said.jsonl")
        .fails(3, &["model.safetensors is truncated", "copy it again"]);
}

#[test]
fn a_reward_model_talks_to_nobody() {
    let scratch = world();
    scratch.write("told.jsonl", "{\"ids\": [7, 8]}\n");
    for line in [
        "generate --model judge --prompt x",
        "chat --model judge",
        "logprobs --model judge --input told.jsonl",
    ] {
        scratch.run(line).fails(3, &["judge: this is a reward model", "give a language model here"]);
    }
}

/// Copies a model folder and changes single values, given by tensor and index.
fn with_values(from: &str, to: &str, values: &[(&str, usize, f32)]) {
    let scratch = world();
    std::fs::create_dir(scratch.path(to)).unwrap();
    for name in names(&scratch.path(from)) {
        std::fs::copy(scratch.path(from).join(&name), scratch.path(to).join(&name)).unwrap();
    }
    let weights = scratch.path(to).join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    for &(tensor, index, value) in values {
        let offset = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 4 * index;
        bytes[8 + length + offset..][..4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(&weights, bytes).unwrap();
}

#[test]
fn weights_that_are_no_numbers_make_no_rows() {
    let scratch = world();
    scratch.write("zero.jsonl", "{\"ids\": [0, 8]}\n");
    with_values("model", "model-nan", &[("model.embed_tokens.weight", 0, f32::NAN)]);
    with_values("judge", "judge-nan", &[("model.embed_tokens.weight", 0, f32::INFINITY)]);
    for (line, word) in [
        ("logprobs --model model-nan --input zero.jsonl --output zero.out.jsonl", "holds NaN"),
        ("generate --model model-nan --prompt x", "holds NaN"),
        ("reward --model judge-nan --input zero.jsonl --output zero.out.jsonl", "holds infinity"),
    ] {
        scratch.run(line).fails(3, &["the tensor `model.embed_tokens.weight`", word]);
    }
    assert!(!scratch.path("zero.out.jsonl").exists());
}

/// The first value of a token's embedding outweighs the other 31, so that the last norm makes it about
/// sqrt(32); times a weight of 3e38 it is beyond float32.
#[test]
fn finite_weights_that_overflow_make_no_rows() {
    let scratch = world();
    scratch.write("large.jsonl", "{\"ids\": [0, 0, 0]}\n");
    let large = [("model.embed_tokens.weight", 0, 100.0), ("model.norm.weight", 0, 3e38)];
    with_values("model", "model-large", &large);
    with_values("judge", "judge-large", &large);
    for line in [
        "logprobs --model model-large --input large.jsonl --output large.out.jsonl",
        "reward --model judge-large --input large.jsonl --output large.out.jsonl",
    ] {
        scratch.run(line).fails(5, &["large.jsonl line 1", "its weights hold NaN or infinity, or overflow"]);
    }
    scratch
        .run("generate --model model-large --input large.jsonl --max-new-tokens 2")
        .fails(5, &["row 1 is not finite"]);
    assert!(!scratch.path("large.out.jsonl").exists());
}

#[test]
fn absurd_configurations_are_refused_before_anything_is_made() {
    let scratch = world();
    for (from, to, code, word) in [
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000000", 3, "`num_hidden_layers`"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4611686018427387904", 3, "`num_hidden_layers`"),
        ("\"vocab_size\": 320", "\"vocab_size\": 1099511627776", 3, "`vocab_size`"),
        ("\"hidden_size\": 32", "\"hidden_size\": 0", 3, "`hidden_size`"),
        ("1e-5", "NaN", 3, "is no valid JSON"),
        ("\"hidden_size\": 32", "\"hidden_size\": 1048576", 4, "GiB of memory"),
    ] {
        let text = CONFIG.replacen(from, to, 1);
        scratch.write("absurd.json", &text);
        scratch.run("model init absurd.json --seed 1 --out absurd").fails(code, &["absurd.json", word]);
        assert!(!scratch.path("absurd").exists());
    }
}

#[test]
fn a_real_model_tells_its_story() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/models/stories260k"));
    let Ok(folder) = folder.canonicalize() else {
        eprintln!("skipped: there is no shared/models/stories260k beside the repository");
        return;
    };
    let scratch = Scratch::new();
    scratch.write("begin.jsonl", "{\"ids\": [1]}\n");
    let folder = folder.display().to_string();
    let words = [
        "generate",
        "--model",
        &folder,
        "--input",
        "begin.jsonl",
        "--raw",
        "--temperature",
        "0",
        "--max-new-tokens",
        "60",
    ];
    let rows = scratch.run_with(&words, "").rows();
    let text = rows[0]["text"].as_str().unwrap().trim_start();
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a";
    assert!(text.starts_with(story), "{text}");
    scratch
        .run_with(&["generate", "--model", &folder, "--prompt", "x"], "")
        .fails(3, &["no chat template", "--raw"]);
}
