//! Quantised weights in every command that runs a model.

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::serve::Server;
use crate::training::copied;

/// The smaller side of each weight is 64, so an adapter of rank 64 can make up for all that quantisation
/// takes.
const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 128, "tie_word_embeddings": true, "initializer_range": 0.3}"#;

const ROWS: &str = "{\"ids\": [5, 9, 41, 147, 0, 7, 7, 260]}\n{\"ids\": [1, 2, 3, 46]}\n";

/// A scratch folder with a model.
fn made() -> Scratch {
    let scratch = copied();
    scratch.write("config.json", CONFIG);
    scratch.write("rows.jsonl", ROWS);
    scratch.run("model init config.json --tokenizer life/tokenizer --seed 3 --out model").succeeds();
    scratch
}

fn logprobs(scratch: &Scratch, flags: &str) -> Vec<f64> {
    let rows = scratch.run(&format!("logprobs --input rows.jsonl {flags}")).rows();
    let of_row = |row: &Value| row["logprobs"].as_array().unwrap()[1..].to_vec();
    rows.iter().flat_map(of_row).map(|number| number.as_f64().unwrap()).collect()
}

fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

#[test]
fn a_model_computes_with_the_numbers_of_its_codes() {
    let scratch = made();
    let dense = logprobs(&scratch, "--model model");
    let off = |flags: &str| largest_difference(&dense, &logprobs(&scratch, flags));
    let [nf4, int8] = ["nf4", "int8"].map(|kind| off(&format!("--model model --quantize {kind}")));
    assert!((1e-4..0.2).contains(&int8), "{int8}");
    assert!(nf4 > 4.0 * int8, "four bits are coarser than eight: {nf4} {int8}");

    // The adapter is what quantisation takes from each weight, so on codes it gives the model back.
    let init = "model init-adapter model --init loftq --quantize nf4 --rank 64 --out loftq";
    scratch.run(init).succeeds();
    assert!(off("--model loftq --quantize nf4") < 1e-3);
    assert!(off("--model model --adapter loftq --quantize nf4") < 1e-3);
    assert!(off("--model loftq") > 1e-3);
}

#[test]
fn replies_are_the_same_in_every_command() {
    let scratch = made();
    let generated = |flags: &str| {
        let line = format!(
            "generate --model model --raw --prompt hello --max-new-tokens 12 --temperature 0 --ignore-eos {flags}"
        );
        scratch.run(line.trim_end()).json()["text"].as_str().unwrap().to_owned()
    };
    let text = generated("--quantize nf4");
    assert_ne!(text, generated(""), "the prompt does not tell the models apart");
    assert_eq!(text, generated("--quantize nf4 --speculative-tokens 3 --draft-model model"));

    let server = Server::start(&scratch, &["--model", "model", "--quantize", "nf4"]);
    let ask =
        json!({"model": "model", "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &ask).json()["choices"][0]["text"], text.as_str());

    // A chat with a model behind an endpoint does not hold its weights.
    let line = "chat --model http://127.0.0.1:9/v1#model --quantize nf4";
    scratch.run(line).fails(2, &["--quantize", "the server of --model"]);
}

#[test]
fn results_of_other_numbers_are_kept_apart() {
    let scratch = made();
    let eval = "eval --model life/ppo/final --tasks world --data life --limit 4 --output out";
    scratch.run(eval).succeeds();
    scratch.run(&format!("{eval} --quantize int8")).fails(2, &["other dtype", "--force"]);
    let quantised = eval.strip_suffix("out").unwrap();
    scratch.run(&format!("{quantised}other --quantize int8")).succeeds();
    let digest = |out: &str| scratch.read(&format!("{out}/results.json"));
    assert_ne!(digest("out"), digest("other"));

    let rm = "eval rm --model life/rm/final --data life/data/preference.parquet --limit 4";
    let accuracy = |out: &str, flags: &str| {
        scratch.run(format!("{rm} --output {out} {flags}").trim_end()).succeeds();
        scratch.read(&format!("{out}/samples.jsonl"))
    };
    assert_ne!(accuracy("rm", ""), accuracy("rm-int8", "--quantize int8"));
    scratch.run(&format!("{rm} --output rm --quantize int8")).fails(2, &["other dtype", "--force"]);
}
