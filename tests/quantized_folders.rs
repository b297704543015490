//! Model folders whose linear layers are codes, through the program: made, trained on, run, merged, made
//! numbers again, and what is refused.

use crate::harness::Scratch;
use crate::ranks::worst;
use crate::training::{copied, json, metrics};

/// Rows whose log-probabilities are compared.
const ROWS: &str = "{\"ids\": [5, 9, 41, 147, 0, 7, 7, 260]}\n{\"ids\": [1, 2, 3, 46]}\n";

/// A scratch folder with the model of a finished pipeline in codes, in the folders `nf4` and `int8`.
fn quantized() -> Scratch {
    let scratch = copied();
    scratch.write("rows.jsonl", ROWS);
    for name in ["nf4", "int8"] {
        let line = format!("model quantize life/sft/final --quantize {name} --out {name}");
        scratch.run(&line).succeeds();
    }
    scratch
}

/// The command that trains adapters on the model in the folder `model`.
fn line(model: &str, out: &str, more: &str) -> String {
    let sets = "--set model.lora.r=4 --set train.steps=6 --set train.eps=1e-4 --set train.micro_batch_size=2 \
                --set train.gradient_accumulation_steps=4";
    let line =
        format!("sft --config life/sft/run.toml --set model.path={model} --set out={out} {sets} {more}");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn logprobs(scratch: &Scratch, model: &str) -> Vec<f64> {
    let rows = scratch.run(&format!("logprobs --model {model} --input rows.jsonl")).rows();
    let of_row = |row: &serde_json::Value| row["logprobs"].as_array().unwrap()[1..].to_vec();
    rows.iter().flat_map(of_row).map(|number| number.as_f64().unwrap()).collect()
}

fn difference(scratch: &Scratch, one: &str, other: &str) -> f64 {
    let pairs = logprobs(scratch, one).into_iter().zip(logprobs(scratch, other));
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

/// The numbers of an adapter, without the header, which names other weights.
fn numbers(scratch: &Scratch, out: &str) -> Vec<u8> {
    let bytes = std::fs::read(scratch.path(&format!("{out}/final/adapter_model.safetensors"))).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + length..].to_vec()
}

/// An adapter on codes in files is, bit for bit, the one on codes that are made while numbers are read.
#[test]
fn adapters_are_trained_on_codes_in_files_as_on_those_of_reading() {
    let scratch = quantized();
    for name in ["nf4", "int8"] {
        let [stored, read] = [format!("stored-{name}"), format!("read-{name}")];
        scratch.run(&line(name, &stored, "")).succeeds();
        let quantize = format!("--set model.quantize={name}");
        scratch.run(&line("life/sft/final", &read, &quantize)).succeeds();
        assert_eq!(metrics(&scratch, &stored), metrics(&scratch, &read), "{name}");
        assert!(numbers(&scratch, &stored) == numbers(&scratch, &read), "{name}");
        // The setting may say what the files say.
        let same = format!("same-{name}");
        scratch.run(&line(name, &same, &quantize)).succeeds();
        assert!(numbers(&scratch, &stored) == numbers(&scratch, &same), "{name}");

        let file = |out: &str| scratch.path(&format!("{out}/final/adapter_model.safetensors"));
        for (index, ranks) in ["tensor.size=2", "pipeline.size=2", "zero=2"].into_iter().enumerate() {
            let out = format!("ranks-{name}-{index}");
            scratch.run(&line(name, &out, &format!("--nproc 2 --set parallel.{ranks}"))).succeeds();
            let far = worst(&file(&stored), &file(&out));
            assert!(far < 1e-5, "{name}, {ranks}: {far}");
        }
    }
    let plans = ["nf4", "life/sft/final"].map(|model| {
        let more = "--set model.quantize=nf4 --json";
        scratch.run(&format!("plan {}", line(model, "plan", more))).json()["memory"].clone()
    });
    assert_eq!(plans[0], plans[1]);
    // An adapter does not say how its base is held, and its base does.
    let on = "sft --config life/sft/run.toml --set model.path=stored-nf4/final --set out=plan";
    let plan = scratch.run(&format!("plan {on} --json")).json();
    assert_eq!(plan["memory"][0]["weights"], plans[0][0]["weights"]);
}

#[test]
fn a_folder_of_codes_is_run_merged_exported_and_made_numbers_again() {
    let scratch = quantized();
    for name in ["nf4", "int8"] {
        let dense = format!("dense-{name}");
        scratch.run(&format!("model dequantize {name} --out {dense}")).succeeds();
        assert!(difference(&scratch, name, &dense) < 1e-5, "{name}");
        assert!(difference(&scratch, name, "life/sft/final") > 0.0, "{name}: codes are not the numbers");
        let reply = |model: &str| {
            let line = format!("generate --model {model} --prompt hello --temperature 0 --max-new-tokens 8");
            scratch.run(&line).succeeds().to_owned()
        };
        assert_eq!(reply(name), reply(&dense), "{name}");
        let info = |model: &str| scratch.run(&format!("model info {model} --json")).json();
        assert_eq!(info(name)["parameters"], info(&dense)["parameters"]);
        assert_eq!((&info(name)["quantization"], info(&dense).get("quantization")), (&name.into(), None));
        for file in ["tokenizer.json", "chat_template.jinja", "generation_config.json"] {
            assert!(
                scratch.read(&format!("{name}/{file}")) == scratch.read(&format!("life/sft/final/{file}"))
            );
        }

        let adapter = format!("adapter-{name}");
        scratch.run(&line(name, &adapter, "")).succeeds();
        scratch.run(&format!("model merge {adapter} --out merged-{name}")).succeeds();
        assert!(difference(&scratch, &adapter, &format!("merged-{name}")) < 1e-4, "{name}");
        for folder in [dense, format!("merged-{name}"), format!("{adapter}/final")] {
            let config = json(&scratch, &format!("{folder}/config.json"));
            assert_eq!(config.get("quantization_config"), None, "{folder}");
        }
        let next =
            format!("sft --config life/sft/run.toml --set model.path={adapter}/final --set train.steps=2");
        scratch.run(&format!("{next} --set out=next-{name}")).succeeds();
        scratch.run(&format!("model export {name} --gguf {name}.gguf")).succeeds();
        scratch.run(&format!("model import {name}.gguf --out again-{name}")).succeeds();
        let weights =
            |folder: &str| std::fs::read(scratch.path(&format!("{folder}/model.safetensors"))).unwrap();
        assert!(weights(&format!("again-{name}")) == weights(&format!("dense-{name}")), "{name}");
    }
}

#[test]
fn what_codes_in_files_cannot_do_is_refused_by_name() {
    let scratch = quantized();
    let whole = "sft --config life/sft/run.toml --set model.path=nf4 --set out=no";
    scratch.run(whole).fails(2, &["model.path", "nf4 codes", "[model.lora]", "model dequantize"]);
    let other = line("nf4", "no", "--set model.quantize=int8");
    scratch.run(&other).fails(3, &["config.json: `quantize` = int8", "nf4 codes already"]);

    let quantize = |model: &str| scratch.run(&format!("model quantize {model} --quantize nf4 --out no"));
    quantize("int8").fails(3, &["int8", "codes already"]);
    scratch
        .run("model dequantize life/sft/final --out no")
        .fails(3, &["life/sft/final", "`quantization_config` must be", "numbers already"]);
    quantize("life/rm/final").fails(3, &["reward model"]);
    scratch
        .run("model init-adapter nf4 --init loftq --quantize nf4 --rank 4 --out no")
        .fails(3, &["quantization_config", "loftq"]);
    assert!(!scratch.path("no").exists());

    let text = scratch.read("nf4/config.json").replace("\"nf4\"", "\"fp4\"");
    scratch.write("nf4/config.json", &text);
    let words = ["nf4/config.json: `quantization_config.bnb_4bit_quant_type` = \"fp4\"", "model quantize"];
    scratch.run("generate --model nf4 --prompt hello").fails(3, &words);
}
