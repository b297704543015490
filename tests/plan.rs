//! `plan` for other hardware, and its search for the fastest layouts.

use serde_json::Value;

use crate::gemini::{line, with_large_model};
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
