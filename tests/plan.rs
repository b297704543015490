//! `plan` for other hardware, and its search for the fastest layouts.

use serde_json::Value;

use crate::gemini::{line, same_bits, with_large_model};
use crate::harness::Scratch;

/// Two ranks of two threads on four cores.
const HARDWARE: &str = r#"
source = "round numbers"

[device]
name = "round"
threads = 2
cores = 4
memory = 17_179_869_184
memory_read = 2e10
memory_copy = 1e10
attention = { float32 = 2e10, bfloat16 = 1e10 }
elementwise = { float32 = 5e9, bfloat16 = 2.5e9 }
matmul = [{ width = 128, flops = { float32 = 1e11, bfloat16 = 5e10 } }]

[[link]]
ranks = 8
latency = 1e-6
bandwidth = 1e9
"#;

fn scratch() -> Scratch {
    let scratch = with_large_model();
    scratch.write("round.toml", HARDWARE);
    scratch
}

/// What both predict of a layout.
fn predictions(plan: &Value) -> [f64; 2] {
    [&plan["step_time"]["seconds"], &plan["peak_memory"]["total"]].map(|value| value.as_f64().unwrap())
}

#[test]
fn what_a_search_finds_is_what_plan_predicts_of_it() {
    let scratch = scratch();
    for (stage, sets) in [("sft", ""), ("ppo", "--set ppo.reward_model=life/rm/final")] {
        let plan = format!("plan {} --json --hardware round.toml --nproc 4", line(stage, "planned", sets));
        let found = scratch.run(&format!("{plan} --search")).json()["search"].clone();
        assert_eq!((&found["ranks"], &found["available"]), (&4.into(), &(8_u64 << 30).into()), "{found:#}");
        let fastest = found["fastest"].as_array().unwrap();
        assert!(fastest.len() == 5 && found["layouts"].as_u64().unwrap() > 100, "{found:#}");
        assert!(fastest.is_sorted_by_key(|layout| predictions(layout)[0].to_bits()), "{found:#}");
        for layout in fastest {
            let settings = layout["settings"].as_object().unwrap();
            let sets = settings.iter().map(|(key, value)| format!("--set {key}={}", value.as_str().unwrap()));
            let sets: Vec<String> = sets.collect();
            let planned = scratch.run(&format!("{plan} {}", sets.join(" "))).json();
            let [found, planned] = [layout, &planned].map(predictions);
            // Parts of weights are rounded up.
            assert!((found[0] / planned[0] - 1.0).abs() < 1e-3, "{sets:?}: {found:?}, {planned:?}");
            assert!((found[1] / planned[1] - 1.0).abs() < 1e-2, "{sets:?}: {found:?}, {planned:?}");
        }
    }
    assert!(!scratch.path("planned").exists());
}

#[test]
fn a_plan_for_other_hardware_loads_no_model_and_has_its_limits() {
    let scratch = scratch();
    let plan = format!("plan {} --nproc 2", line("sft", "planned", ""));
    // A model of which only the configuration is there.
    std::fs::remove_file(scratch.path("large/model.safetensors")).unwrap();
    let text = scratch.run(&format!("{plan} --hardware h100"));
    assert!(text.succeeds().contains("step time: about "), "{text:#?}");
    let text = scratch.run(&format!("{plan} --search --hardware a100"));
    assert!(text.succeeds().contains("ranks on NVIDIA A100 SXM 80 GB that fit into 81062 MiB:"), "{text:#?}");

    // ZeRO on a GPU needs a budget, and `sft` would refuse a layout without one.
    let found = scratch.run(&format!("{plan} --search --hardware h100 --json")).json()["search"].clone();
    let settings = found["fastest"].as_array().unwrap().iter().map(|layout| &layout["settings"]);
    let (zero, other): (Vec<_>, Vec<_>) = settings.partition(|settings| !settings["parallel.zero"].is_null());
    assert!(!zero.is_empty(), "{found:#}");
    assert!(zero.iter().all(|settings| !settings["gemini.device_memory"].is_null()), "{found:#}");
    assert!(other.iter().all(|settings| settings["gemini.device_memory"].is_null()), "{found:#}");

    let given = format!("{plan} --search --hardware h100 --set parallel.tensor.size=2");
    let outcome = scratch.run(&given);
    outcome.succeeds();
    assert!(outcome.stderr.contains("--search chooses the keys of [parallel]"), "{outcome:#?}");

    let small = HARDWARE.replace("memory = 17_179_869_184", "memory = 209_715_200");
    scratch.write("small.toml", &small);
    let text = scratch.run(&format!("{plan} --search --hardware small.toml"));
    assert!(text.succeeds().contains("there are none that fit into 100 MiB: take more ranks"), "{text:#?}");
    let text = scratch.run(&format!("{plan} --hardware small.toml"));
    assert!(text.succeeds().contains("this cannot fit"), "{text:#?}");

    let text = scratch.run(&format!("{plan} --search"));
    text.fails(2, &["--search", "doctor --bench", "--hardware"]);
    let text = scratch
        .run(&format!("plan {} --search --nproc 16 --hardware round.toml", line("sft", "planned", "")));
    text.fails(2, &["no link that joins", "`[[link]]`"]);
    scratch.run(&format!("{plan} --hardware h200")).fails(3, &["h200", "h100, a100, laptop"]);
    scratch.write("broken.toml", &HARDWARE.replace("cores = 4", "cores = many"));
    scratch.run(&format!("{plan} --hardware broken.toml")).fails(3, &["broken.toml", "docs/formats.md"]);
}

/// A run of two ranks whose layout is chosen for `round.toml`.
fn auto(out: &str, sets: &str) -> String {
    let auto = "--nproc 2 --threads 1 --set parallel.auto=true --set parallel.hardware=round.toml";
    let chosen = " --set train.activation_checkpointing=true";
    let line = format!("{} {auto} {sets}", line("sft", out, "").replace(chosen, ""));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_run_with_auto_is_the_run_that_a_search_names_first() {
    let scratch = scratch();
    let plan = format!("plan {} --json --hardware round.toml --nproc 2", line("sft", "planned", ""));
    let found = scratch.run(&format!("{plan} --search")).json()["search"].clone();
    let settings = found["fastest"][0]["settings"].as_object().unwrap();
    let sets = settings.iter().map(|(key, value)| format!("--set {key}={}", value.as_str().unwrap()));
    let sets = sets.collect::<Vec<_>>().join(" ");

    let outcome = scratch.run(&auto("auto", ""));
    outcome.succeeds();
    assert!(outcome.stderr.contains("[parallel] auto: the fastest of "), "{outcome:#?}");
    let by_hand = format!("{} --nproc 2 --threads 1 {sets}", line("sft", "by-hand", ""));
    scratch.run(&by_hand).succeeds();
    same_bits(&scratch, "auto", "by-hand");

    // The chosen layout is saved, with its origin, and stays when the run goes on.
    let saved = std::fs::read_to_string(scratch.path("auto/run.toml")).unwrap();
    for line in ["auto = false  # [parallel] auto", "micro_batch_size = 4  # [parallel] auto"] {
        assert!(saved.contains(line), "{line}: {saved}");
    }
    let longer = "--resume --set train.steps=6";
    let outcome = scratch.run(&format!("{} {longer}", auto("auto", "")));
    outcome.succeeds();
    assert!(
        outcome.stderr.contains("[parallel] auto: the run keeps the layout in its run.toml"),
        "{outcome:#?}"
    );
    scratch.run(&format!("{by_hand} {longer}")).succeeds();
    same_bits(&scratch, "auto", "by-hand");

    // Another number of ranks has another mesh, and the same micro-batches.
    let kept = |text: &str| -> Vec<String> {
        let keys = ["micro_batch_size = ", "gradient_accumulation_steps = ", "activation_checkpointing = "];
        let lines = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
        lines.map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
    };
    let alone = auto("auto", "--resume --set train.steps=8").replace("--nproc 2", "--nproc 1");
    let outcome = scratch.run(&alone);
    outcome.succeeds();
    assert!(outcome.stderr.contains("of 1 rank: "), "{outcome:#?}");
    let resumed = std::fs::read_to_string(scratch.path("auto/run.toml")).unwrap();
    assert_eq!(kept(&resumed), kept(&saved), "{resumed}");
    assert!(resumed.contains("data = 1") && kept(&saved).len() == 3, "{resumed}");

    // Rows of a step are no part of the layout, and a folder with a run needs --resume.
    let more = "--resume --set train.steps=8 --set train.gradient_accumulation_steps=8";
    scratch.run(&auto("auto", more)).fails(2, &["gradient_accumulation_steps", "4", "16"]);
    scratch.run(&auto("auto", "")).fails(2, &["auto", "--resume"]);
}

#[test]
fn auto_and_what_it_cannot_choose_are_refused() {
    let scratch = scratch();
    let refused = |sets: &str, said: &[&str]| {
        let outcome = scratch.run(&auto("refused", sets));
        outcome.fails(2, said);
        assert!(!scratch.path("refused/run.toml").exists());
    };
    refused("--set parallel.tensor.size=2", &["parallel.auto", "leave out the other keys"]);
    refused("--set parallel.auto=false", &["parallel.hardware", "only [parallel] auto"]);
    refused(
        "--set train.activation_checkpointing=true",
        &["activation_checkpointing", "[parallel] auto chooses it"],
    );
    refused("--set parallel.hardware=h100", &["parallel.hardware", "this run computes on the CPU"]);
    let unknown = auto("refused", "").replace(" --set parallel.hardware=round.toml", "");
    scratch.run(&unknown).fails(2, &["parallel.auto", "with 1 thread are not known", "doctor --bench"]);

    let small = HARDWARE.replace("memory = 17_179_869_184", "memory = 209_715_200");
    scratch.write("round.toml", &small);
    scratch
        .run(&auto("refused", ""))
        .fails(4, &["[parallel] auto", "there are none that fit", "take more ranks"]);

    let pipeline = "pipeline --config life.toml --set out=refused --set parallel.auto=true";
    scratch.run(pipeline).fails(2, &["parallel.auto", "plan STAGE --search"]);
}

#[test]
fn a_trace_has_the_step_of_the_plan() {
    let scratch = scratch();
    let slow = format!("{HARDWARE}\n[[straggler]]\nrank = 1\nslowdown = 2.0\n");
    scratch.write("slow.toml", &slow);
    let plan = format!("plan {} --json --nproc 2 --set parallel.pipeline.size=2", line("sft", "planned", ""));
    let mut lengths = Vec::new();
    for hardware in ["round.toml", "slow.toml"] {
        let trace = format!("--hardware {hardware} --trace {hardware}.json");
        let seconds = predictions(&scratch.run(&format!("{plan} {trace}")).json())[0];
        let text = std::fs::read_to_string(scratch.path(&format!("{hardware}.json"))).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        let events: Vec<&Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
        // Two micro-batches forward and backward on each rank, and the update.
        assert_eq!(events.iter().filter(|event| event["name"] == "backward").count(), 4, "{text}");
        let end = |event: &&Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
        let last = events.iter().map(end).fold(0.0, f64::max) / 1e6;
        assert!((last / seconds - 1.0).abs() < 0.02, "{hardware}: {last} and {seconds}");
        lengths.push(last);
    }
    assert!(lengths[1] > 1.3 * lengths[0], "{lengths:?}");

    let again = format!("{plan} --hardware round.toml --trace round.toml.json");
    scratch.run(&again).fails(2, &["exists already", "--force"]);
    scratch.run(&format!("{again} --force")).succeeds();
    scratch.run(&format!("{plan} --hardware round.toml --trace step.svg")).succeeds();
    assert!(std::fs::read_to_string(scratch.path("step.svg")).unwrap().starts_with("<svg"));
    scratch.run(&format!("{plan} --trace step.png")).fails(2, &["step.png", ".json", ".svg"]);
    scratch.run(&format!("{plan} --trace new.json")).fails(2, &["--trace", "doctor --bench"]);
}
