//! Adapters through the program: every stage trains them, on every mesh and under budgets, killed and
//! resumed, and every command takes their folders.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Outcome, Scratch, signal};
use crate::ranks::{equals_one_process_with, worst};
use crate::serve::Server;
use crate::training::{copied, copy, json, metrics};

/// Adapters of rank 4 on every linear layer.
const LORA: [&str; 2] = ["model.lora.r=4", "model.lora.lora_alpha=8"];

/// 5.6 M parameters: enough for a choice of chunk sizes, which differ for the frozen weights and the
/// adapters.
const LARGE: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 320,
    "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 128, "tie_word_embeddings": true}"#;

fn adapter(scratch: &Scratch, out: &str) -> PathBuf {
    scratch.path(&format!("{out}/final/adapter_model.safetensors"))
}

#[test]
fn every_stage_trains_adapters_on_several_processes_as_on_one() {
    let ways = [(2, "zero=1"), (2, "zero=3"), (4, "zero=2 tensor.size=2"), (4, "zero=3 pipeline.size=2")];
    equals_one_process_with("sft", &LORA, &["loss", "grad_norm", "tokens"], &ways);
    equals_one_process_with("rm", &LORA, &["loss", "grad_norm", "accuracy"], &ways[1..]);
    let dora = [&LORA[..], &["model.lora.use_dora=true"]].concat();
    equals_one_process_with("sft", &dora, &["loss", "grad_norm"], &[(4, "zero=3 tensor.size=2")]);
    let ppo = ["objective/scores", "objective/kl", "loss/value_avg", "grad_norm"];
    equals_one_process_with("ppo", &LORA, &ppo, &[(2, "zero=3"), (4, "tensor.size=2 pipeline.size=2")]);
}

fn large() -> Scratch {
    let scratch = copied();
    scratch.write("large.json", LARGE);
    scratch.run("model init large.json --tokenizer life/tokenizer --seed 3 --out large").succeeds();
    scratch
}

/// The command that trains adapters on the large model.
fn line(out: &str, more: &str) -> String {
    let sets = "--set model.path=large --set model.lora.r=4 --set train.steps=20 --set train.eps=1e-4 \
                --set train.micro_batch_size=2 --set train.gradient_accumulation_steps=4";
    let line = format!("sft --config life/sft/run.toml --set out={out} {sets} {more}");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_large_frozen_model_on_every_mesh_equals_one_process() {
    let scratch = large();
    for dtype in ["float32", "bfloat16"] {
        let run = |out: &str, processes: usize, settings: &str| {
            let settings = settings.split_whitespace().map(|setting| format!("--set {setting} "));
            let more =
                format!("--set model.dtype={dtype} --nproc {processes} {}", settings.collect::<String>());
            let out = format!("{dtype}-{out}");
            scratch.run(&line(&out, &more)).succeeds();
            adapter(&scratch, &out)
        };
        let alone = run("alone", 1, "");
        // In bf16, the order of a sum over ranks changes activations by a rounding of 2^-9.
        let allowed = if dtype == "float32" { 1e-5 } else { 2e-3 };
        for (index, (processes, settings)) in [
            (2, "parallel.zero=1"),
            (2, "parallel.zero=2"),
            (2, "parallel.zero=3"),
            (2, "parallel.zero=3 gemini.device_memory='30MiB'"),
            (4, "parallel.zero=3 parallel.tensor.size=2"),
            (4, "parallel.zero=3 parallel.pipeline.size=2"),
            (8, "parallel.zero=3 parallel.tensor.size=2 parallel.pipeline.size=2"),
        ]
        .into_iter()
        .enumerate()
        {
            let difference = worst(&alone, &run(&format!("way-{index}"), processes, settings));
            assert!(difference < allowed, "{dtype}, {settings}: adapters differ by {difference}");
        }
    }
}

/// Four steps that need little beside the weights.
const SMALL: &str = "--set model.lora.r=1 --set train.steps=4 --set train.micro_batch_size=1 \
                     --set train.gradient_accumulation_steps=8 --set train.activation_checkpointing=true";

/// The MiB that a run under a budget has read and written, from what it says at its end.
fn traffic(outcome: &Outcome) -> [u64; 2] {
    outcome.succeeds();
    let line = outcome.stderr.lines().find(|line| line.starts_with("memory of the models")).unwrap();
    [("; ", " MiB read"), ("pieces, ", " MiB written")].map(|(after, before)| {
        let number = line.split(after).nth(1).unwrap().split(before).next().unwrap();
        number.split_whitespace().next().unwrap().parse().unwrap()
    })
}

/// Under a budget that does not hold the model, its 22 MiB are read from its file again and again. What is
/// written belongs to the adapters: 26 k elements, of which each step writes at most 16 bytes.
#[test]
fn frozen_chunks_are_never_written() {
    let scratch = large();
    scratch.run(&line("whole", SMALL)).succeeds();
    for more in ["", "--nproc 2 --set parallel.zero=3"] {
        let out = format!("budget-{}", more.len());
        let budget = format!("{SMALL} --set gemini.device_memory='14MiB' {more}");
        let [read, written] = traffic(&scratch.run(&line(&out, &budget)));
        assert!(read > 30 && written <= 3, "{read} {written}");
        assert!(worst(&adapter(&scratch, "whole"), &adapter(&scratch, &out)) < 1e-5);
    }
}

/// The 16 MiB of codes leave memory and are divided over ranks as numbers are. Those of a folder are read
/// from it again; those that were made while the weights were read are written once. The adapters are 150 k
/// elements, of which each of two steps writes at most 16 bytes.
#[test]
fn codes_leave_memory_and_are_divided() {
    let scratch = copied();
    scratch.write("deep.json", &LARGE.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 24"));
    scratch.run("model init deep.json --tokenizer life/tokenizer --seed 3 --out deep").succeeds();
    scratch.run("model quantize deep --quantize nf4 --out codes").succeeds();
    let small = format!("{SMALL} --set train.gradient_accumulation_steps=1 --set train.steps=2");
    let line = |out: &str, more: &str| line(out, &format!("{small} {more}"));
    let made = "--set model.path=deep --set model.quantize=nf4";
    let stored = "--set model.path=codes";
    scratch.run(&line("whole", made)).succeeds();
    // Two ranks hold half of the codes each, and four ranks a quarter, which stays in memory.
    for (index, (more, least_read, written)) in [
        (stored.to_owned(), 20, 0..6),
        (made.to_owned(), 20, 10..24),
        (format!("{stored} --nproc 2 --set parallel.zero=3"), 5, 0..6),
        (format!("{stored} --nproc 4 --set parallel.zero=3 --set parallel.tensor.size=2"), 0, 0..6),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("budget-{index}");
        let budget = line(&out, &format!("--set gemini.device_memory='14MiB' {more}"));
        let [read, found] = traffic(&scratch.run(&budget));
        assert!(read >= least_read && written.contains(&found), "{more}: {read} read, {found} written");
        assert!(worst(&adapter(&scratch, "whole"), &adapter(&scratch, &out)) < 1e-5, "{more}");
    }
}

#[test]
fn a_killed_run_continues_with_the_same_bits() {
    let scratch = large();
    for processes in ["", " --nproc 2"] {
        let (whole, cut) = (format!("whole{}", processes.len()), format!("cut{}", processes.len()));
        let line = |out: &str, more: &str| line(out, &format!("--set checkpoint.every=2{processes} {more}"));
        scratch.run(&line(&whole, "")).succeeds();
        let mut child = scratch.command(&line(&cut, "").split(' ').collect::<Vec<_>>()).spawn().unwrap();
        scratch.wait_for_rows(&format!("{cut}/metrics.jsonl"), 5);
        signal("KILL", child.id());
        child.wait().unwrap();
        scratch.run(&line(&cut, "--resume")).succeeds();
        let bytes = |out: &str| std::fs::read(adapter(&scratch, out)).unwrap();
        assert!(bytes(&whole) == bytes(&cut), "{processes}");
        assert_eq!(metrics(&scratch, &whole), metrics(&scratch, &cut));
    }
}

#[test]
fn the_optimizer_has_eight_bytes_for_each_element_of_an_adapter() {
    let scratch = large();
    for dtype in ["float32", "bfloat16"] {
        let outcome =
            scratch.run(&format!("plan {} --json", line("out", &format!("--set model.dtype={dtype}"))));
        outcome.succeeds();
        let plan: Value = serde_json::from_str(&outcome.stdout).unwrap();
        // Rank 4 on q [320, 320], k and v [160, 320], o, gate and up [1024, 320], down, in four layers.
        let elements = 4 * 4 * (640 + 480 + 480 + 640 + 1344 + 1344 + 1344);
        assert_eq!(plan["memory"][0]["optimizer"], 8 * elements, "{dtype}");
        assert_eq!(plan["memory"][0]["gradients"], 4 * elements, "{dtype}");
    }
}

#[test]
fn every_command_takes_the_folder_of_an_adapter() {
    let scratch = copied();
    let lora = "--set model.lora.r=4 --set train.steps=3";
    scratch.run(&format!("sft --config life/sft/run.toml --set out=lora {lora}")).succeeds();
    let said = scratch.run("generate --model lora --prompt hello --temperature 0 --max-new-tokens 8");
    said.succeeds();
    let file = scratch.read("lora/final/adapter_config.json");
    let file: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(file["peft_type"], "LORA");
    assert!(Path::new(file["base_model_name_or_path"].as_str().unwrap()).is_absolute());
    scratch.run("model info lora/final").succeeds();
    // It returns when the model is loaded.
    drop(Server::start(&scratch, &["--model", "lora/final"]));

    // Another stage goes on from the adapter, which is its own reference.
    let rows = "--set data.train=life/data/preference.parquet --set train.steps=3";
    let dpo = format!("dpo --config life/sft/run.toml --set out=dpo --set model.path=lora/final {rows}");
    scratch.run(&dpo).succeeds();
    assert!(scratch.path("dpo/final/adapter_model.safetensors").exists());
    // A reward model begins with the adapter of the language model, and a new head.
    scratch
        .run("rm --config life/rm/run.toml --set model.path=lora/final --set train.steps=2 --set out=rm")
        .succeeds();
    scratch.write("said.jsonl", r#"{"prompt": "hello", "completion": "there"}"#);
    assert!(scratch.run("reward --model rm/final --input said.jsonl").rows()[0]["score"].is_f64());
    scratch
        .run(&format!("{dpo} --set out=other --set model.lora.r=2"))
        .fails(2, &["model.lora", "adapter already"]);

    // Without the model that it belongs to, the adapter is nothing.
    std::fs::rename(scratch.path("life/base"), scratch.path("life/moved")).unwrap();
    let words = ["lora/final: the model that this adapter belongs to is not found", "life/base/final"];
    scratch.run("generate --model lora --prompt hello").fails(2, &words);
}

#[test]
fn an_adapter_is_refused_on_other_weights_than_its_own() {
    let scratch = copied();
    let lora = "--set model.lora.r=4 --set train.steps=2";
    scratch.run(&format!("sft --config life/sft/run.toml --set out=lora {lora}")).succeeds();
    let init = "model init life/base/final/config.json --tokenizer life/tokenizer";
    scratch.run(&format!("{init} --seed 9 --out other")).succeeds();
    let belongs_to = |base: &str| {
        let mut file = json(&scratch, "lora/final/adapter_config.json");
        file["base_model_name_or_path"] = scratch.path(base).to_str().unwrap().into();
        scratch.write("lora/final/adapter_config.json", &file.to_string());
    };
    let generate = "generate --model lora --prompt hello --max-new-tokens 4";

    copy(&scratch.path("life/base/final"), &scratch.path("moved"));
    belongs_to("moved");
    scratch.run(generate).succeeds();
    // The hash is of the files, however they are held.
    let next = "sft --config life/sft/run.toml --set model.path=lora/final --set train.steps=2";
    let held = "--set model.dtype=bfloat16 --set model.quantize=nf4";
    scratch.run(&format!("{next} {held} --set out=next")).succeeds();
    let header = |path: &str| {
        let bytes = std::fs::read(adapter(&scratch, path)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        header["__metadata__"]["colossal_chat.base_hash"].clone()
    };
    let hash = header("lora");
    assert_eq!(hash.as_str().unwrap().len(), 64);
    assert_eq!(header("next"), hash);

    belongs_to("other");
    let file = scratch.path("lora/final/adapter_model.safetensors");
    let words = [
        "lora/final/adapter_model.safetensors",
        "other weights",
        hash.as_str().unwrap(),
        "base_model_name_or_path",
    ];
    for line in [generate, &format!("{next} --set out=no"), "model merge lora/final --out merged"] {
        scratch.run(line).fails(3, &words);
    }

    // An adapter of PEFT has no hash, and gets one when it is trained on.
    let text = std::fs::read(&file).unwrap();
    let at = text.windows(9).position(|word| word == b"base_hash").unwrap();
    std::fs::write(&file, [&text[..at], b"some_text", &text[at + 9..]].concat()).unwrap();
    scratch.run(generate).succeeds();
    scratch.run(&format!("{next} --set out=peft")).succeeds();
    assert!(header("peft").is_string() && header("peft") != hash);
}

/// Four models that are adapters of one folder share its weights; of two folders with the same files, they do
/// not. The numbers are the same.
#[test]
fn four_roles_on_one_trunk_score_as_four_copies() {
    let scratch = copied();
    let lora = "--set model.path=life/sft/final --set model.lora.r=4";
    scratch.run(&format!("rm --config life/rm/run.toml {lora} --set train.steps=3 --set out=rm")).succeeds();

    copy(&scratch.path("life/sft/final"), &scratch.path("sft-copy"));
    copy(&scratch.path("rm/final"), &scratch.path("rm-copy"));
    let mut file = json(&scratch, "rm-copy/adapter_config.json");
    file["base_model_name_or_path"] = scratch.path("sft-copy").to_str().unwrap().into();
    scratch.write("rm-copy/adapter_config.json", &file.to_string());

    let run = |out: &str, models: &str| {
        let line =
            format!("--config life/ppo/run.toml {lora} {models} --set ppo.iterations=3 --set out={out}");
        scratch.run(&format!("ppo {line}")).succeeds();
        let plan = scratch.run(&format!("plan ppo {line} --json"));
        let memory = plan.json()["memory"].as_array().unwrap().clone();
        memory.iter().map(|model| model["weights"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    let shared = run("shared", "--set ppo.reward_model=rm/final");
    let copies = run("copies", "--set ppo.reward_model=rm-copy --set ppo.reference_model=sft-copy");
    assert_eq!(metrics(&scratch, "shared"), metrics(&scratch, "copies"));
    let bytes = |out: &str| std::fs::read(adapter(&scratch, out)).unwrap();
    assert!(bytes("shared") == bytes("copies"));

    // The policy has the trunk, and the others have what they add to it: nothing, or an adapter and a head.
    let base = std::fs::metadata(scratch.path("life/sft/final/model.safetensors")).unwrap().len();
    let added = std::fs::metadata(scratch.path("rm/final/adapter_model.safetensors")).unwrap().len();
    let [policy, critic, reference, reward] = shared[..] else { panic!("{shared:?}") };
    assert!(policy > base - 8192 && policy < base + added, "{shared:?} {base} {added}");
    assert!(critic == reward && critic <= added && reference == 0, "{shared:?} {added}");
    let [_, critic_copy, reference_copy, reward_copy] = copies[..] else { panic!("{copies:?}") };
    assert_eq!([critic_copy, reward_copy], [critic + reference_copy; 2]);
    assert_eq!(policy - reference_copy, critic - 4 * 16, "the score head is a row of 16");

    // A reward model in fp32 does not share a trunk in bf16, and has no codes.
    let line = format!("ppo --config life/ppo/run.toml {lora} --set ppo.reward_model=rm/final");
    let plan =
        scratch.run(&format!("plan {line} --set model.dtype=bfloat16 --set model.quantize=nf4 --json"));
    assert_eq!(plan.json()["memory"][3]["weights"], reward_copy, "{plan:#?}");
}

/// Every mesh quantises the same whole matrices. A rounding of a weight is far larger than one of a sum, so
/// codes that differed would show.
#[test]
fn every_stage_trains_on_quantised_weights_on_several_processes_as_on_one() {
    let nf4 = [&LORA[..], &["model.quantize=nf4"]].concat();
    let ways =
        [(2, "zero=2"), (2, "zero=3"), (4, "zero=1 tensor.size=2"), (4, "tensor.size=2 pipeline.size=2")];
    equals_one_process_with("sft", &nf4, &["loss", "grad_norm", "tokens"], &ways);
    equals_one_process_with("rm", &nf4, &["loss", "grad_norm", "accuracy"], &[(2, "tensor.size=2")]);
    let int8 = [&LORA[..], &["model.quantize=int8"]].concat();
    let ppo = ["objective/scores", "objective/kl", "loss/value_avg", "grad_norm"];
    let ways = [(2, "zero=3"), (4, "tensor.size=2 pipeline.size=2")];
    equals_one_process_with("ppo", &int8, &ppo, &ways);
}

#[test]
fn a_quantised_run_is_planned_recorded_resumed_and_gone_on_from() {
    let scratch = large();
    let nf4 = "--set model.quantize=nf4 --set checkpoint.every=2";
    let plan = |more: &str| -> Value {
        let outcome = scratch.run(&format!("plan {} --json", line("out", more)));
        outcome.succeeds();
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let [quantised, dense] = [nf4, ""].map(|more| plan(more)["memory"][0].clone());
    assert_eq!(quantised["optimizer"], dense["optimizer"]);
    // In four layers: q, k, v and o, gate, up and down. A number has 4 bytes in fp32, and as a code half a
    // byte and its part of the scales, a little over 1/64 of a byte; and each matrix has what the codes of
    // its scales stand for.
    let numbers = 4 * (2 * 320 * 320 + 2 * 160 * 320 + 3 * 1024 * 320);
    let saved = dense["weights"].as_i64().unwrap() - quantised["weights"].as_i64().unwrap();
    let per_number = 4.0 - saved as f64 / f64::from(numbers);
    assert!((0.515..0.55).contains(&per_number), "{per_number}");

    scratch.run(&line("whole", nf4)).succeeds();
    assert!(scratch.read("whole/run.toml").contains("quantize = \"nf4\""));
    let mut child = scratch.command(&line("cut", nf4).split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("cut/metrics.jsonl", 5);
    signal("KILL", child.id());
    child.wait().unwrap();
    scratch.run(&line("cut", &format!("{nf4} --resume"))).succeeds();
    let bytes = |out: &str| std::fs::read(adapter(&scratch, out)).unwrap();
    assert!(bytes("whole") == bytes("cut"));
    assert_eq!(metrics(&scratch, "whole"), metrics(&scratch, "cut"));

    // Another stage goes on from the adapter; its reference is the adapter on the same codes.
    let rows = "--set data.train=life/data/preference.parquet --set train.steps=2";
    let dpo = format!("dpo --config life/sft/run.toml --set model.path=whole/final {rows}");
    for (out, quantize) in [("dpo", " --set model.quantize=int8"), ("dpo-dense", "")] {
        scratch.run(&format!("{dpo} --set out={out}{quantize}")).succeeds();
        let first = metrics(&scratch, out)[0]["loss"].as_f64().unwrap();
        assert!((first - 2f64.ln()).abs() < 1e-4, "{out}: the policy begins as its reference: {first}");
    }
    scratch.run("generate --model whole --prompt hello --temperature 0 --max-new-tokens 4").succeeds();
}

#[test]
fn what_does_not_go_with_quantised_weights_is_refused_by_name() {
    let scratch = copied();
    let sft = "sft --config life/sft/run.toml --set out=no --set model.quantize=nf4";
    scratch.run(sft).fails(2, &["model.quantize", "[model.lora]"]);
    scratch
        .run(&format!("{sft} --set model.lora.r=2 --set model.quantize=int4"))
        .fails(2, &["model.quantize", "nf4", "int8"]);
}
