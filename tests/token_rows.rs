//! Rows of single tokens beside adapters, through the program: on every mesh, for the tokens that a template
//! adds, in a merged model, and what is refused.

use std::path::PathBuf;

use serde_json::json;

use crate::harness::{Scratch, signal};
use crate::ranks::equals_one_process_with;
use crate::training::{copied, json as read_json, metrics};

/// A model that does not tie its head, and has rows for 520 tokens.
const SPARE: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 520,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": false}"#;

const RUN: &str =
    "[data]\ntrain = 'rows.jsonl'\n[train]\nmicro_batch_size = 1\nlr = 1e-2\n[log]\nevery = 1\n";

/// A model that ties its head, with a tokenizer of 512 tokens that has none of `ChatML`. `None` if it is not
/// there, which is said.
fn stories() -> Option<String> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/models/stories260k"));
    let found = folder.canonicalize().ok().map(|folder| folder.display().to_string());
    if found.is_none() {
        eprintln!("skipped: there is no shared/models/stories260k beside the repository");
    }
    found
}

/// A scratch folder with rows, and the models `stories` and `spare` with one tokenizer.
fn models(stories: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", "{\"prompt\": \"hi\", \"completion\": \"Hello there.\"}\n");
    scratch.write("ids.jsonl", "{\"ids\": [1, 512, 400, 513, 9, 512]}\n");
    scratch.write("run.toml", RUN);
    scratch.write("spare.json", SPARE);
    scratch.run(&format!("model init spare.json --tokenizer {stories} --seed 3 --out spare")).succeeds();
    scratch
}

/// The command that trains on the rows.
fn sft(model: &str, out: &str, more: &str) -> String {
    format!("sft --config run.toml --set model.path={model} --set out={out} {more}")
}

fn logprobs(scratch: &Scratch, model: &str) -> Vec<f64> {
    let rows = scratch.run(&format!("logprobs --model {model} --input ids.jsonl")).rows();
    let numbers = rows[0]["logprobs"].as_array().unwrap()[1..].iter();
    numbers.map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn rows_are_trained_on_several_processes_as_on_one() {
    let rows = ["model.lora.r=4", "model.lora.trainable_token_indices=[5,299,0,40]"];
    let ways = [
        (2, "zero=1"),
        (2, "zero=3"),
        (4, "zero=2 pipeline.size=2"),
        (4, "zero=3 tensor.size=2"),
        (4, "tensor.size=2 pipeline.size=2"),
    ];
    equals_one_process_with("sft", &rows, &["loss", "grad_norm", "tokens"], &ways);
    equals_one_process_with("rm", &rows, &["loss", "grad_norm", "accuracy"], &ways[3..]);
    let ppo = ["objective/scores", "objective/kl", "loss/value_avg", "grad_norm"];
    equals_one_process_with("ppo", &rows, &ppo, &[(2, "zero=3"), (4, "tensor.size=2 pipeline.size=2")]);
}

#[test]
fn a_template_that_adds_tokens_trains_their_rows() {
    let Some(stories) = stories() else { return };
    let scratch = models(&stories);
    let tied = json!({"embed_tokens": [512, 513]});
    let untied = json!({"embed_tokens": [512, 513], "lm_head": [512, 513]});
    for (model, said, vocab_size, rows) in [
        (stories.as_str(), "the embeddings grow from 512 to 514 rows", 514, tied),
        ("spare", "the embeddings have 520 rows, which is enough", 520, untied),
    ] {
        let out = format!("out-{vocab_size}");
        let chatml = "--set tokenizer.template=chatml --set model.lora.r=2 --set train.steps=3";
        let outcome = scratch.run(&sft(model, &out, chatml));
        outcome.succeeds();
        for words in [said, "the rows of these tokens are trained with the adapter"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:#?}");
        }
        assert_eq!(
            read_json(&scratch, &format!("{out}/final/adapter_config.json"))["trainable_token_indices"],
            rows
        );
        assert_eq!(read_json(&scratch, &format!("{out}/final/config.json"))["vocab_size"], vocab_size);
        // Generation, another stage and a merged model have the rows.
        assert_eq!(
            scratch.run(&format!("generate --model {out} --prompt hi --max-new-tokens 3")).rows().len(),
            1
        );
        scratch.run(&format!("model merge {out}/final --out merged-{vocab_size}")).succeeds();
        let pairs =
            logprobs(&scratch, &out).into_iter().zip(logprobs(&scratch, &format!("merged-{vocab_size}")));
        let worst = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-5, "{model}: {worst}");
        let next =
            scratch.run(&sft(&format!("{out}/final"), &format!("next-{vocab_size}"), "--set train.steps=2"));
        next.succeeds();
        assert_eq!(
            read_json(&scratch, &format!("next-{vocab_size}/final/config.json"))["vocab_size"],
            vocab_size
        );

        let unmerge = format!("model unmerge merged-{vocab_size} --adapter {out}/final --out no");
        scratch.run(&unmerge).fails(3, &["trainable_token_indices", "take the original model"]);
    }
}

#[test]
fn a_killed_run_with_new_rows_continues_with_the_same_bits() {
    let Some(stories) = stories() else { return };
    let scratch = models(&stories);
    let line = |out: &str, more: &str| {
        let chatml = "--set tokenizer.template=chatml --set model.lora.r=2 --set checkpoint.every=2";
        sft(&stories, out, &format!("{chatml} --set train.steps=60{more}"))
    };
    scratch.run(&line("whole", "")).succeeds();
    let mut child = scratch.command(&line("cut", "").split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("cut/metrics.jsonl", 5);
    signal("KILL", child.id());
    child.wait().unwrap();
    scratch.run(&line("cut", " --resume")).succeeds();
    let bytes =
        |out: &str| std::fs::read(scratch.path(&format!("{out}/final/adapter_model.safetensors"))).unwrap();
    assert!(bytes("whole") == bytes("cut"));
    assert_eq!(metrics(&scratch, "whole"), metrics(&scratch, "cut"));
}

#[test]
fn what_a_model_or_an_adapter_does_not_have_is_refused() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set out=no --set model.lora.r=2";
    for (value, words) in [
        ("[300]", ["= 300 is not supported", "the tokens 0 to 299"]),
        ("[5,5]", ["= 5 is not supported", "named twice"]),
        ("{lm_head=[5]}", ["= \"lm_head\" is not supported", "ties its head"]),
        ("{q_proj=[5]}", ["= \"q_proj\" is not supported", "`model.embed_tokens`"]),
    ] {
        let words = [&["[model.lora]: `trainable_token_indices`"][..], &words[..]].concat();
        let sets = format!("--set model.lora.trainable_token_indices={value}");
        scratch.run(&format!("{line} {sets}")).fails(3, &words);
    }

    let Some(stories) = stories() else { return };
    let scratch = models(&stories);
    let plain = "--set tokenizer.template=plain --set model.lora.r=2 --set train.steps=2";
    scratch.run(&sft("spare", "plain", plain)).succeeds();
    let chatml = sft("plain/final", "no", "--set tokenizer.template=chatml --set train.steps=2");
    let words = ["tokenizer.template", "<|im_start|> and <|im_end|>", "merge the adapter into its model"];
    scratch.run(&chatml).fails(2, &words);
}
