//! Everything that computes, on a device that is not the CPU: the accelerator of `tests/accelerator`, which
//! refuses operations on tensors of different devices and counts the copies between host and device, or the
//! GPU that `COLOSSAL_TEST_DEVICE` names, such as `cuda:0`.
//!
//! A GPU adds in another order than the CPU, and not always in the same: where the accelerator must give the
//! same bits, a GPU may differ by [`Device::tolerance`]. Ranks share the one GPU, so their tensors go through
//! the host.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::gemini::{line, same_bits, with_large_model};
use crate::harness::{Outcome, Scratch, signal};
use crate::ranks::worst;
use crate::training::{copied, copy, metrics};

/// The device of these tests.
struct Device {
    /// Its name in `--device`.
    name: String,
}

/// The device that the environment names, or the accelerator.
fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let name = std::env::var("COLOSSAL_TEST_DEVICE").unwrap_or_else(|_| "mps".to_owned());
        Device { name }
    })
}

impl Device {
    /// Whether it is the accelerator of `tests/accelerator`.
    fn is_stand_in(&self) -> bool {
        self.name == "mps"
    }

    /// How far metrics and weights may differ from those of the CPU after a few steps.
    fn tolerance(&self) -> f64 {
        if self.is_stand_in() { 2e-6 } else { 2e-4 }
    }

    /// `sets` with budgets for this device. Memory of a GPU comes in pieces of 2 MiB, and its libraries take
    /// some for themselves: it gets four times as much.
    fn budgets(&self, sets: &str) -> String {
        // A chunk of a GPU is a multiple of 2 MiB, and static placement keeps all of them.
        let factor = if sets.contains("'static'") { 8 } else { 4 };
        let scale = |word: &str| match word.strip_suffix("MiB") {
            Some(number) if !self.is_stand_in() => {
                format!("{}MiB", number.parse::<u64>().unwrap() * factor)
            }
            _ => word.to_owned(),
        };
        sets.split('\'').map(scale).collect::<Vec<_>>().join("'")
    }

    /// The setting that lets several ranks use the device, if `mesh` has none.
    fn transport(&self, mesh: &str) -> &'static str {
        if self.is_stand_in() || mesh.contains("transport=") { "" } else { " transport='gloo'" }
    }

    /// Whether a test ends here, which needs what only the accelerator has: `what`.
    fn lacks(&self, what: &str) -> bool {
        if !self.is_stand_in() {
            println!("skipped: {} has no {what}", self.name);
        }
        !self.is_stand_in()
    }
}

/// The command for `line`, in which `DEVICE` stands for the device.
fn command(scratch: &Scratch, line: &str) -> Command {
    let line = line.replace("DEVICE", &device().name);
    let mut command = scratch.command(&line.split_whitespace().collect::<Vec<_>>());
    if device().is_stand_in() {
        command.env("LD_PRELOAD", accelerator::LIBRARY);
    } else {
        // By default the products take 32 MiB of the budget, more than the models.
        command.env("CUBLAS_WORKSPACE_CONFIG", ":16:8").env("CUBLASLT_WORKSPACE_SIZE", "128");
    }
    command
}

/// Runs the binary on the device. If `report` is given, every process of the accelerator appends its counts
/// to that file.
fn run(scratch: &Scratch, line: &str, report: Option<&str>) -> Outcome {
    let mut command = command(scratch, line);
    if let Some(report) = report {
        command.env("ACCELERATOR_REPORT", scratch.path(report));
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Checks that two runs on the device give the same numbers: the same bits on the accelerator.
#[track_caller]
fn same_numbers(scratch: &Scratch, out: &str, whole: &str) {
    if device().is_stand_in() {
        return same_bits(scratch, out, whole);
    }
    nearly_the_same_numbers(scratch, out, whole);
}

/// Checks that two runs differ by rounding only.
#[track_caller]
fn nearly_the_same_numbers(scratch: &Scratch, out: &str, whole: &str) {
    let file = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    let of_weights = f64::from(worst(&file(out), &file(whole)));
    let difference = of_weights.max(worst_metric(&metrics(scratch, out), &metrics(scratch, whole)));
    println!("{out} and {whole} differ by {difference:.1e}");
    assert!(difference < 5.0 * device().tolerance(), "{out} and {whole} differ by {difference}");
}

/// The largest difference of a metric, relative to its size if that is above 1.
fn worst_metric(left: &[Value], right: &[Value]) -> f64 {
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().zip(right).flat_map(|(left, right)| {
        let keys = left.as_object().unwrap().keys();
        keys.filter_map(|key| Some((left[key].as_f64()?, right[key].as_f64()?))).collect::<Vec<_>>()
    });
    pairs.map(|(left, right)| (left - right).abs() / left.abs().max(1.0)).fold(0.0, f64::max)
}

/// The settings of `mesh` for a number of processes on the device.
fn parallel_sets(processes: usize, mesh: &str) -> String {
    let transport = if processes > 1 { device().transport(mesh) } else { "" };
    let mesh = format!("{mesh}{transport}");
    mesh.split_whitespace().map(|setting| format!(" --set parallel.{setting}")).collect::<Vec<_>>().concat()
}

/// Runs `stage` on the CPU and on the device and compares metrics and weights.
fn equals_the_cpu(stage: &str, processes: usize, mesh: &str) {
    let scratch = copied();
    let sets = parallel_sets(processes, mesh);
    for (out, name) in [("cpu", "cpu"), ("device", "DEVICE")] {
        let line = format!(
            "{stage} --config life/{stage}/run.toml --set out={out} --device {name} --nproc {processes}{sets} \
             --set train.eps=1e-4"
        );
        run(&scratch, &line, None).succeeds();
    }
    let difference = worst_metric(&metrics(&scratch, "cpu"), &metrics(&scratch, "device"));
    println!("{stage} {mesh}: metrics differ by {difference:.1e}");
    assert!(difference < device().tolerance(), "{stage} {mesh}: metrics differ by {difference}");
    let file = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    let difference = f64::from(worst(&file("cpu"), &file("device")));
    assert!(difference < device().tolerance() / 2.0, "{stage} {mesh}: weights differ by {difference}");
}

#[test]
fn every_stage_runs_on_the_device() {
    for stage in ["sft", "rm", "ppo"] {
        equals_the_cpu(stage, 1, "");
    }
}

#[test]
fn ranks_share_a_model_on_the_device() {
    for mesh in [
        "",
        "transport='gloo'",
        "tensor.size=2",
        "tensor.size=2 sequence.mode='megatron'",
        "sequence.mode='ulysses' sequence.size=2",
        "sequence.mode='ring' sequence.size=2",
        "pipeline.size=2",
        "pipeline.size=2 pipeline.schedule='zb-v'",
    ] {
        equals_the_cpu("sft", 2, mesh);
    }
}

#[test]
fn ranks_share_the_models_of_ppo_on_the_device() {
    for mesh in ["", "tensor.size=2", "pipeline.size=2"] {
        equals_the_cpu("ppo", 2, mesh);
    }
}

/// The counts that the runs of a report file have written.
fn counts(scratch: &Scratch, report: &str) -> Vec<Value> {
    scratch.read(report).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Chunks that leave the device go to memory of the host, and from there to the disk. The accelerator stops a
/// run that uses memory before it is there or gives it away too soon, and counts what a run takes.
#[test]
fn every_budget_of_the_device_gives_the_same_bits() {
    const BUDGETS: [(&str, Option<u64>); 8] = [
        ("gemini.device_memory='200MiB'", Some(0)),
        ("gemini.device_memory='24MiB'", None),
        ("gemini.device_memory='12MiB'", None),
        ("gemini.device_memory='12MiB' --set gemini.host_memory='8MiB'", Some(8 << 20)),
        ("gemini.device_memory='12MiB' --set gemini.placement='cpu'", None),
        // Less than what is on its way to the host and back.
        ("gemini.device_memory='16MiB' --set gemini.host_memory='1MiB'", Some(1 << 20)),
        ("gemini.device_memory='12MiB' --set gemini.placement='disk'", Some(12 << 20)),
        (
            "gemini.device_memory='48MiB' --set gemini.placement='static' --set gemini.host_memory='4MiB'",
            Some(4 << 20),
        ),
    ];
    let scratch = with_large_model();
    for stage in ["sft", "rm", "ppo"] {
        let whole = format!("{stage}-whole");
        run(&scratch, &format!("{} --device DEVICE", line(stage, &whole, "")), None).succeeds();
        for (number, (budget, host_bytes)) in BUDGETS.into_iter().enumerate() {
            let out = format!("{stage}-{number}");
            let budget = device().budgets(budget);
            let words = format!("{} --device DEVICE", line(stage, &out, &format!("--set {budget}")));
            run(&scratch, &words, Some(&format!("{out}.json"))).succeeds();
            same_numbers(&scratch, &out, &whole);

            if !device().is_stand_in() {
                continue;
            }
            let counts = counts(&scratch, &format!("{out}.json"));
            let device_bytes = budget.split('\'').nth(1).unwrap().strip_suffix("MiB").unwrap();
            let device_bytes = device_bytes.parse::<u64>().unwrap() << 20;
            let most = |key: &str| counts[0][key].as_u64().unwrap();
            assert!(most("device_peak_bytes") <= device_bytes, "{stage} {budget}: {counts:?}");
            if let Some(host_bytes) = host_bytes {
                assert!(most("pinned_peak_bytes") <= host_bytes, "{stage} {budget}: {counts:?}");
            }
        }
    }
}

#[test]
fn ranks_that_share_a_model_have_a_budget_each_on_the_device() {
    let scratch = with_large_model();
    for (number, mesh) in ["", "tensor.size=2", "pipeline.size=2"].into_iter().enumerate() {
        let mesh = format!("--nproc 2 --device DEVICE{}", parallel_sets(2, mesh));
        let [whole, out] = ["whole", "small"].map(|name| format!("{name}-{number}"));
        run(&scratch, &format!("{} {mesh}", line("sft", &whole, "")), None).succeeds();
        let budget = device().budgets("--set gemini.device_memory='12MiB' --set gemini.host_memory='16MiB'");
        run(&scratch, &format!("{} {mesh}", line("sft", &out, &budget)), Some(&format!("{out}.json")))
            .succeeds();
        same_numbers(&scratch, &out, &whole);
        let reports =
            if device().is_stand_in() { counts(&scratch, &format!("{out}.json")) } else { Vec::new() };
        for counts in reports {
            assert!(counts["device_peak_bytes"].as_u64().unwrap() <= 12 << 20, "{mesh}: {counts:?}");
        }
    }
}

/// The shards of the ranks are whole pieces of memory, which come and go on their own.
#[test]
fn zero_divides_state_within_a_budget_of_the_device() {
    let scratch = with_large_model();
    for stage in ["sft", "ppo"] {
        if stage == "ppo" {
            run(&scratch, &format!("{} --device DEVICE", line("rm", "rm-whole", "")), None).succeeds();
        }
        let mesh = format!("--nproc 2 --device DEVICE{}", parallel_sets(2, ""));
        let whole = format!("{stage}-whole");
        run(&scratch, &format!("{} {mesh}", line(stage, &whole, "--set train.eps=1e-4")), None).succeeds();
        for zero in [1, 2, 3] {
            let [large, small] = [200, 16].map(|mebibytes| {
                let out = format!("{stage}-{zero}-{mebibytes}");
                let budget = device().budgets(&format!("--set gemini.device_memory='{mebibytes}MiB'"));
                let sets = format!("{budget} --set parallel.zero={zero} --set train.eps=1e-4");
                let words = format!("{} {mesh}", line(stage, &out, &sets));
                run(&scratch, &words, Some(&format!("{out}.json"))).succeeds();
                out
            });
            nearly_the_same_numbers(&scratch, &large, &whole);
            same_numbers(&scratch, &small, &large);
            if device().is_stand_in() {
                for counts in counts(&scratch, &format!("{small}.json")) {
                    assert!(counts["device_peak_bytes"].as_u64().unwrap() <= 16 << 20, "{zero}: {counts:?}");
                }
            }
        }
    }
}

/// Memory of a GPU comes in pieces of 2 MiB.
#[test]
fn chunks_that_are_smaller_than_a_piece_of_memory_take_a_whole_one() {
    if device().lacks("smaller pieces") {
        return;
    }
    let scratch = with_large_model();
    run(&scratch, &format!("{} --device DEVICE", line("sft", "whole", "")), None).succeeds();
    let budget = "--set gemini.device_memory='48MiB' --set gemini.host_memory='32MiB'";
    let mut command = command(&scratch, &format!("{} --device DEVICE", line("sft", "out", budget)));
    command.env("ACCELERATOR_GRANULARITY", (2 << 20).to_string());
    let output = command.env("ACCELERATOR_REPORT", scratch.path("out.json")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    same_numbers(&scratch, "out", "whole");
    let counts = counts(&scratch, "out.json");
    assert!(counts[0]["device_peak_bytes"].as_u64().unwrap() <= 48 << 20, "{counts:?}");
}

/// libtorch's allocator keeps the memory of freed tensors, until the device has none left for a chunk.
#[test]
fn memory_of_freed_tensors_is_given_back_where_a_chunk_needs_it() {
    if device().lacks("limit of its memory that a test can set") {
        return;
    }
    let scratch = with_large_model();
    run(&scratch, &format!("{} --device DEVICE", line("sft", "whole", "")), None).succeeds();
    let words = line("sft", "out", "--set gemini.device_memory='14MiB'");
    let mut command = command(&scratch, &format!("{words} --device DEVICE"));
    command.env("ACCELERATOR_CACHES", "1").env("ACCELERATOR_MEMORY", (15 << 20).to_string());
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    // What libtorch keeps is no memory of other processes.
    assert!(!told.contains("other processes"), "{told}");
    same_numbers(&scratch, "out", "whole");
}

/// Another process takes memory of the device during the run, which notices that before the next step and
/// gets along with what is left.
#[test]
fn a_run_shares_the_device_with_other_processes() {
    if device().lacks("processes that take memory at a certain moment") {
        return;
    }
    let scratch = with_large_model();
    run(&scratch, &format!("{} --device DEVICE", line("sft", "alone", "")), None).succeeds();

    // Of 16 MiB another process wants 5: then 11 MiB are left of the 14 MiB of the budget.
    scratch.write("taken", &(5 << 20).to_string());
    let words = line("sft", "shared", "--set gemini.device_memory='14MiB' --set checkpoint.every=0");
    let mut command = command(&scratch, &format!("{words} --device DEVICE"));
    command.env("ACCELERATOR_MEMORY", (16 << 20).to_string()).env("ACCELERATOR_TAKEN", scratch.path("taken"));
    // From the third time on that the process asks, which it does before each step.
    command.env("ACCELERATOR_TAKEN_AFTER", "2");
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("other processes use the device: from here on 10 of 14 MiB are left"), "{told}");
    same_numbers(&scratch, "shared", "alone");
}

/// A run that was stopped on the device continues there, bit for bit; on the CPU, it continues up to
/// rounding.
#[test]
fn a_checkpoint_belongs_to_no_device() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set train.steps=40 --set checkpoint.every=0";
    run(&scratch, &format!("{line} --set out=whole --device DEVICE"), None).succeeds();

    let mut child = command(&scratch, &format!("{line} --set out=stopped --device DEVICE")).spawn().unwrap();
    scratch.wait_for_rows("stopped/metrics.jsonl", 3);
    signal("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    copy(&scratch.path("stopped"), &scratch.path("on-cpu"));

    run(&scratch, &format!("{line} --set out=stopped --device DEVICE --resume"), None).succeeds();
    run(&scratch, &format!("{line} --set out=on-cpu --device cpu --resume"), None).succeeds();
    same_numbers(&scratch, "stopped", "whole");
    let file = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    assert!(f64::from(worst(&file("on-cpu"), &file("whole"))) < 5.0 * device().tolerance());
}

#[test]
fn replies_are_generated_and_scored_on_the_device() {
    let tolerance = device().tolerance();
    let scratch = copied();
    scratch.write("prompts.jsonl", &"{\"prompt\": \"what is 1 + 1?\"}\n".repeat(5));
    scratch
        .write("texts.jsonl", "{\"text\": \"1 + 1 is 2\"}\n{\"text\": \"a longer text than the first\"}\n");
    for line in [
        "generate --model life/ppo/final --input prompts.jsonl --temperature 0 --max-new-tokens 12",
        "generate --model life/ppo/final --input prompts.jsonl --temperature 1 --max-new-tokens 12 --seed 3",
        "generate --model life/ppo/final --input prompts.jsonl --temperature 0.8 --top-p 0.9 --top-k 20",
    ] {
        let [cpu, device] =
            ["cpu", "DEVICE"].map(|name| run(&scratch, &format!("{line} --device {name}"), None));
        assert_eq!(cpu.succeeds(), device.succeeds(), "{line}");
    }
    for line in [
        "logprobs --model life/sft/final --input texts.jsonl",
        "reward --model life/rm/final --input texts.jsonl",
    ] {
        let [cpu, device] =
            ["cpu", "DEVICE"].map(|name| run(&scratch, &format!("{line} --device {name}"), None).rows());
        for (cpu, device) in cpu.iter().zip(&device) {
            for (cpu, device) in numbers(cpu).iter().zip(numbers(device)) {
                assert!((cpu - device).abs() < 5.0 * tolerance, "{line}: {cpu} {device}");
            }
        }
    }
}

/// All numbers in a row.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Number(number) => vec![number.as_f64().unwrap()],
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::Object(fields) => fields.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

/// The copies that the commands of `line`, with `count` and twice `count` in place of `N`, differ by, per
/// count: to the device, to the host (numbers that are read one by one included), and the bytes to the host.
fn copies_per(scratch: &Scratch, line: &str, count: usize) -> [f64; 3] {
    let counts = |count: usize| {
        let report = format!("report-{count}");
        let line = line.replace('N', &count.to_string()).replace("OUT", &format!("out-{count}"));
        run(scratch, &line, Some(&report)).succeeds();
        let text = scratch.read(&report);
        std::fs::remove_file(scratch.path(&report)).unwrap();
        let _ = std::fs::remove_dir_all(scratch.path(&format!("out-{count}")));
        let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let field = |name: &str| report[name].as_f64().unwrap();
        [field("to_device"), field("to_host") + field("scalar_reads"), field("to_host_bytes")]
    };
    let (once, twice) = (counts(count), counts(2 * count));
    [0, 1, 2].map(|index| (twice[index] - once[index]) / count as f64)
}

/// The limits are today's numbers. A new copy must be worth its line here.
#[test]
fn copies_between_host_and_device_are_few() {
    if device().lacks("count of copies") {
        return;
    }
    let scratch = copied();
    let per_token =
        "generate --model life/ppo/final --prompt hello --device DEVICE --ignore-eos --max-new-tokens N";
    let [to_device, to_host, bytes] = copies_per(&scratch, per_token, 16);
    // The token goes in with its position, its place in the cache and its pages, and later the random number of
    // the next one; the id, its log-probability and the entropy come out.
    assert!(to_device <= 2.0 && to_host <= 1.0 && bytes <= 24.0, "{to_device} {to_host} {bytes}");

    let stage = |stage: &str, length: &str| {
        format!(
            "{stage} --config life/{stage}/run.toml --device DEVICE --set out=OUT --set checkpoint.every=0 {length}"
        )
    };
    let [to_device, to_host, _] = copies_per(&scratch, &stage("sft", "--set train.steps=N"), 6);
    assert!(to_device <= 9.0 && to_host <= 2.0, "sft: {to_device} {to_host}");
    let [to_device, to_host, _] = copies_per(&scratch, &stage("rm", "--set train.steps=N"), 6);
    assert!(to_device <= 9.0 && to_host <= 4.0, "rm: {to_device} {to_host}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let scratch = copied();
    let line = "generate --model life/ppo/final --prompt hello --device";
    // Without the accelerator, this is a device that libtorch does not have.
    scratch.run(&format!("{line} mps")).fails(4, &["device mps", "use cpu, cuda or auto"]);
    scratch.run(&format!("{line} gpu")).fails(2, &["no device \"gpu\"", "cuda:N"]);
    let line = "sft --config life/sft/run.toml --set out=x --set model.device";
    scratch.run(&format!("{line}=tpu")).fails(2, &["model.device", "no device \"tpu\""]);
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        scratch.run("sft --config life/sft/run.toml --set out=x --device cuda").fails(4, &["device cuda"]);
        scratch
            .run("sft --config life/sft/run.toml --set out=x --device cuda:1")
            .fails(4, &["device cuda:1"]);
    }
    assert!(!scratch.path("x").exists());
}

#[test]
fn settings_of_memory_that_a_device_cannot_have_are_refused() {
    let refused = |sets: &str, words: &[&str]| {
        let line = format!("sft --config life/sft/run.toml --set out=out {sets}");
        run(&copied(), &line, None).fails(2, words);
    };
    refused("--device DEVICE --set parallel.zero=1", &["parallel.zero", "gemini", "device_memory"]);
    refused("--device DEVICE --set gemini.host_memory='1GiB'", &["gemini.host_memory", "device_memory"]);
    let budget = "--device cpu --set gemini.device_memory='1GiB'";
    refused(&format!("{budget} --set gemini.host_memory='1GiB'"), &["gemini.host_memory", "CPU"]);
    refused(&format!("{budget} --set gemini.placement='cpu'"), &["gemini.placement", "CPU", "auto"]);
}

/// A plan is made for any machine, and by one without a GPU.
#[test]
fn a_run_for_a_gpu_is_planned_anywhere() {
    for placement in ["auto", "cpu"] {
        let memory = "--set gemini.device_memory='64GiB' --set gemini.host_memory='64GiB'";
        let line = format!(
            "plan sft --config life/sft/run.toml --set model.device=cuda --set gemini.placement={placement} {memory}"
        );
        copied().run(&line).succeeds();
    }
}

/// Where what leaves the device has no place, the run ends with the numbers.
#[test]
fn a_host_that_is_too_small_ends_the_run_with_the_numbers() {
    let scratch = with_large_model();
    let budget = &device().budgets("--set gemini.device_memory='12MiB' --set gemini.host_memory='64KiB'");
    run(&scratch, &format!("{} --device DEVICE", line("sft", "out", budget)), None)
        .fails(4, &["memory of the host", "host_memory is 0 MiB"]);
}

#[test]
fn auto_plans_for_the_hardware_that_the_run_file_names() {
    let scratch = with_large_model();
    let file = |memory: u64| {
        format!(
            "source = \"round numbers\"\n[device]\nname = \"round\"\nmemory = {memory}\nmemory_read = 1e12\n\
             memory_copy = 1e12\nattention = {{ float32 = 1e12, bfloat16 = 1e12 }}\n\
             elementwise = {{ float32 = 1e12, bfloat16 = 1e12 }}\n\
             matmul = [{{ width = 128, flops = {{ float32 = 1e13, bfloat16 = 1e13 }} }}]\n"
        )
    };
    scratch.write("gpu.toml", &file(1 << 34));
    scratch.write("small.toml", &file(1 << 24));
    let chosen = " --set train.activation_checkpointing=true";
    let auto = |out: &str, sets: &str| {
        let sets = format!("--device DEVICE --set parallel.auto=true {sets}");
        line("sft", out, &sets).replace(chosen, "")
    };

    let outcome = run(&scratch, &auto("auto", "--set parallel.hardware=gpu.toml"), None);
    outcome.succeeds();
    assert!(outcome.stderr.contains("[parallel] auto: the fastest of"), "{outcome:#?}");
    // The speeds of a GPU are not measured, and the file of a processor is no GPU.
    run(&scratch, &auto("none", ""), None).fails(2, &["parallel.auto", "name its hardware"]);
    let other = auto("none", "--set parallel.hardware=laptop");
    run(&scratch, &other, None).fails(2, &["parallel.hardware", "this run computes on GPUs"]);
    let small = auto("none", "--set parallel.hardware=small.toml");
    run(&scratch, &small, None).fails(4, &["none that fit", "no `[host]`"]);
}
