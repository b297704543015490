//! Adapters that begin with a part of the weights of their model, through the program: made, trained,
//! resumed, converted, taken out of a merged model, and what is refused.

use crate::harness::{Scratch, signal};
use crate::ranks::worst;
use crate::training::{copied, json, metrics};

/// Rows whose log-probabilities are compared.
const ROWS: &str = "{\"ids\": [5, 9, 41, 147, 0, 7, 7, 260]}\n{\"ids\": [1, 2, 3, 46]}\n";

/// A scratch folder with an adapter of each kind.
fn initialized() -> Scratch {
    let scratch = copied();
    scratch.write("rows.jsonl", ROWS);
    for (init, more) in [("pissa", ""), ("olora", " --rslora"), ("loftq", " --quantize nf4 --alpha 8")] {
        let line = format!("model init-adapter life/sft/final --init {init} --rank 4 --out {init}{more}");
        scratch.run(&line).succeeds();
    }
    scratch
}

/// A scratch folder with an adapter that was made of rows.
fn made_of_rows(more: &str) -> Scratch {
    let scratch = copied();
    scratch.write("rows.jsonl", ROWS);
    let flags = "--init eva --data life/data/sft.parquet --rank 4 --out eva";
    scratch.run(format!("model init-adapter life/sft/final {flags} {more}").trim()).succeeds();
    scratch
}

/// The command that trains the adapter in the folder `model`.
fn line(model: &str, out: &str, more: &str) -> String {
    let sets = "--set train.steps=20 --set train.eps=1e-4";
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

#[test]
fn a_folder_has_an_adapter_and_the_model_that_it_belongs_to() {
    let scratch = initialized();
    for init in ["pissa", "olora"] {
        assert!(difference(&scratch, "life/sft/final", init) < 1e-5, "{init}");
        assert!(difference(&scratch, "life/sft/final", &format!("{init}/base")) > 1e-3, "{init}");
        let file = json(&scratch, &format!("{init}/adapter_config.json"));
        let base = scratch.path(init).join("base");
        assert_eq!(file["base_model_name_or_path"], base.to_str().unwrap());
        assert_eq!((&file["init_lora_weights"], &file["lora_alpha"]), (&true.into(), &4.0.into()));
        assert_eq!(file["use_rslora"], init == "olora");
        for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"] {
            for folder in [init.to_owned(), format!("{init}/base")] {
                let (one, other) = (
                    scratch.read(&format!("{folder}/{name}")),
                    scratch.read(&format!("life/sft/final/{name}")),
                );
                assert!(one == other, "{folder}/{name}: {one} {other}");
            }
        }
    }
    let file = json(&scratch, "loftq/adapter_config.json");
    let base = scratch.path("life/sft/final");
    assert_eq!(file["base_model_name_or_path"], base.to_str().unwrap());
    assert!(!scratch.path("loftq/base").exists());
}

/// The adapter belongs to the model as it is, which the B of zeros leaves so; some ranks have moved.
#[test]
fn an_adapter_that_was_made_of_rows_changes_nothing_until_it_is_trained() {
    let scratch = made_of_rows("");
    assert!(difference(&scratch, "life/sft/final", "eva") < 1e-5);
    let file = json(&scratch, "eva/adapter_config.json");
    assert_eq!(file["base_model_name_or_path"], scratch.path("life/sft/final").to_str().unwrap());
    assert_eq!((&file["init_lora_weights"], &file["r"]), (&true.into(), &4.into()));
    let ranks = file["rank_pattern"].as_object().unwrap();
    assert!(ranks.values().all(|rank| (1..=8).contains(&rank.as_i64().unwrap())), "{file:#}");
    assert!(ranks.values().any(|rank| rank != 4), "{file:#}");
    for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"] {
        let [one, other] = ["eva", "life/sft/final"].map(|folder| scratch.read(&format!("{folder}/{name}")));
        assert!(one == other, "{name}: {one} {other}");
    }
    scratch.run(&line("eva", "run", "")).succeeds();
    assert!(difference(&scratch, "life/sft/final", "run") > 1e-3);
    let trained = json(&scratch, "run/final/adapter_config.json");
    assert_eq!(
        (&trained["rank_pattern"], &trained["alpha_pattern"]),
        (&file["rank_pattern"], &file["alpha_pattern"])
    );
}

/// The same rows give the same bits, and other ones do not; with rho 1, no rank moves.
#[test]
fn the_rows_decide_what_the_adapter_begins_with() {
    let scratch = made_of_rows("--rho 1");
    assert!(json(&scratch, "eva/adapter_config.json").get("rank_pattern").is_none());
    let make = |more: &str, out: &str| {
        let flags = "--init eva --data life/data/sft.parquet --rank 4 --rho 1";
        scratch.run(&format!("model init-adapter life/sft/final {flags} {more} --out {out}")).succeeds();
        std::fs::read(scratch.path(out).join("adapter_model.safetensors")).unwrap()
    };
    let first = std::fs::read(scratch.path("eva/adapter_model.safetensors")).unwrap();
    assert!(first == make("--limit 1000000", "again"));
    assert!(first != make("--limit 20", "few"));
}

#[test]
fn a_killed_run_from_an_initialised_adapter_continues_with_the_same_bits() {
    let scratch = initialized();
    for (model, more) in [("pissa", ""), ("loftq", "--set model.quantize=nf4")] {
        let more = format!("{more} --set checkpoint.every=2");
        let (whole, cut) = (format!("whole-{model}"), format!("cut-{model}"));
        scratch.run(&line(model, &whole, &more)).succeeds();
        let mut child =
            scratch.command(&line(model, &cut, &more).split(' ').collect::<Vec<_>>()).spawn().unwrap();
        scratch.wait_for_rows(&format!("{cut}/metrics.jsonl"), 5);
        signal("KILL", child.id());
        child.wait().unwrap();
        scratch.run(&line(model, &cut, &format!("{more} --resume"))).succeeds();
        let bytes =
            |out: &str| std::fs::read(scratch.path(out).join("final/adapter_model.safetensors")).unwrap();
        assert!(bytes(&whole) == bytes(&cut), "{model}");
        assert_eq!(metrics(&scratch, &whole), metrics(&scratch, &cut));
    }
}

/// The base of the trained adapters is the changed model, on every mesh.
#[test]
fn several_processes_train_it_as_one() {
    let scratch = initialized();
    scratch.run(&line("pissa", "alone", "")).succeeds();
    let adapter = |out: &str| scratch.path(out).join("final/adapter_model.safetensors");
    for (index, more) in
        ["zero=3 --nproc 2", "tensor.size=2 --set parallel.zero=1 --nproc 4"].iter().enumerate()
    {
        let out = format!("way-{index}");
        scratch.run(&line("pissa", &out, &format!("--set parallel.{more}"))).succeeds();
        let found = worst(&adapter("alone"), &adapter(&out));
        assert!(found < 1e-5, "{more}: {found}");
    }
}

#[test]
fn a_trained_adapter_is_converted_to_one_of_the_original_model() {
    let scratch = initialized();
    for init in ["pissa", "olora"] {
        scratch.run(&line(init, "run", "")).succeeds();
        let convert =
            format!("model convert-adapter run --initial {init} --base life/sft/final --out {init}-lora");
        scratch.run(&convert).succeeds();
        let found = difference(&scratch, "run", &format!("{init}-lora"));
        assert!(found < 1e-5, "{init}: {found}");
        assert!(difference(&scratch, "life/sft/final", "run") > 1e-3, "{init}");
        let file = json(&scratch, &format!("{init}-lora/adapter_config.json"));
        assert_eq!(
            (&file["r"], &file["base_model_name_or_path"]),
            (&8.into(), &scratch.path("life/sft/final").to_str().unwrap().into())
        );
        std::fs::remove_dir_all(scratch.path("run")).unwrap();
    }

    // A reward model that began with the adapter keeps its score, and is converted with it.
    let rm = "rm --config life/rm/run.toml --set model.path=pissa --set out=rm --set train.steps=3";
    scratch.run(rm).succeeds();
    scratch.run("model convert-adapter rm --initial pissa --base life/sft/final --out rm-lora").succeeds();
    let score = |model: &str| -> Vec<f64> {
        let rows = scratch.run(&format!("reward --model {model} --input rows.jsonl")).rows();
        rows.iter().map(|row| row["score"].as_f64().unwrap()).collect()
    };
    for (one, other) in score("rm").into_iter().zip(score("rm-lora")) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
}

#[test]
fn an_adapter_is_taken_out_of_the_model_that_it_was_merged_into() {
    let scratch = copied();
    scratch.write("rows.jsonl", ROWS);
    let more = "--set model.lora.r=4 --set model.lora.use_rslora=true";
    scratch.run(&line("life/sft/final", "run", more)).succeeds();
    scratch.run("model merge run --out merged").succeeds();
    // The original is not needed.
    std::fs::rename(scratch.path("life/sft"), scratch.path("moved")).unwrap();
    scratch.run("model unmerge merged --adapter run --out original").succeeds();
    let weights = |folder: &str| scratch.path(folder).join("model.safetensors");
    let found = worst(&weights("moved/final"), &weights("original"));
    assert!(found < 1e-6, "{found}");
    assert!(worst(&weights("merged"), &weights("original")) > 1e-3);
    assert!(difference(&scratch, "moved/final", "original") < 1e-5);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let scratch = initialized();
    let init = |more: &str| scratch.run(&format!("model init-adapter {more} --out no"));
    init("life/sft/final --init pissa --rank 4 --quantize nf4").fails(2, &["--quantize", "only loftq"]);
    init("life/sft/final --init loftq --rank 4").fails(2, &["--quantize"]);
    init("life/sft/final --init loftq --quantize int8 --rank 4 --dtype float32")
        .fails(2, &["--dtype", "loftq"]);
    init("life/sft/final --init pissa --rank 0").fails(2, &["--rank"]);
    init("life/sft/final --init eva --rank 4").fails(2, &["--data"]);
    init("life/sft/final --init pissa --rank 4 --data rows.jsonl").fails(2, &["--data", "only eva"]);
    init("life/sft/final --init olora --rank 4 --rho 2").fails(2, &["--rho", "only eva"]);
    let eva = |more: &str| init(&format!("life/sft/final --init eva --data life/data/sft.parquet {more}"));
    eva("--rank 4 --rho 0.5").fails(2, &["--rho 0.5", "at least 1"]);
    eva("--rank 4 --dtype float32").fails(2, &["--dtype", "eva do not write"]);
    eva("--rank 4 --quantize nf4").fails(2, &["--quantize", "only loftq"]);
    eva("--rank 4 --max-length 1").fails(2, &["--data", "left out"]);
    eva("--rank 4000").fails(3, &["rank of at most", "got 4000"]);
    init("life/sft/final --init eva --data absent.parquet --rank 4").fails(3, &["absent.parquet"]);
    init("life/rm/final --init eva --data life/data/sft.parquet --rank 4").fails(3, &["reward model"]);
    init("life/sft/final --init pissa --rank 4 --alpha -1").fails(2, &["--alpha -1", "above zero"]);
    init("life/sft/final --init pissa --rank 9").fails(3, &["k_proj", "at most 8", "got 9"]);
    init("life/sft/final --init pissa --rank 4 --target x_proj").fails(3, &["target_modules", "x_proj"]);
    init("life/rm/final --init pissa --rank 4").fails(3, &["reward model"]);
    init("pissa --init pissa --rank 4").fails(2, &["pissa", "this is an adapter", "model merge"]);
    assert!(!scratch.path("no").exists());

    let set = "--set model.lora.init_lora_weights=pissa --set model.lora.r=4";
    scratch
        .run(&line("life/sft/final", "no", set))
        .fails(2, &["init_lora_weights", "model init-adapter --init pissa"]);
    let mut file = json(&scratch, "pissa/adapter_config.json");
    file["init_lora_weights"] = "pissa".into();
    std::fs::create_dir(scratch.path("peft")).unwrap();
    scratch.write("peft/adapter_config.json", &file.to_string());
    let words = [
        "peft/adapter_config.json",
        "`init_lora_weights` = \"pissa\"",
        "path_initial_model_for_weight_conversion",
    ];
    scratch.run("model merge peft --out no").fails(3, &words);

    let convert = |more: &str| scratch.run(&format!("model convert-adapter {more} --out no"));
    convert("life/sft/final --initial pissa --base life/sft/final")
        .fails(2, &["life/sft/final", "no adapter"]);
    convert("loftq --initial loftq --base life/sft/final")
        .fails(2, &["--base", "belongs to this model already"]);
    convert("pissa --initial olora --base life/sft/final").fails(3, &["factor 1", "factor 2"]);
    convert("pissa --initial pissa --base olora").fails(2, &["olora", "this is an adapter"]);
    scratch.run("model unmerge pissa --adapter olora --out no").fails(2, &["pissa", "this is an adapter"]);
    scratch.run("model unmerge life/sft/final --adapter life --out no").fails(2, &["life"]);
}
