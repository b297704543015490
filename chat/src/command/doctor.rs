//! `doctor`: reports on libtorch and the processor, and runs each low-level libtorch call that training makes
//! without `tch` once.
//!
//! A check computes a value whose correct result is known, and compares the two. `--bench` also measures the
//! speeds from which `plan` predicts the time of a step.

mod bench;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use parallel::dispatch::{self, Value};
use parallel::{autograd, launch, memory, runtime};
use planner::Hardware;
use planner::hardware::DtypeSpeed;
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use text::number::counted;

use self::bench::ProcessorTime;
use crate::args::DoctorArgs;
use crate::config::{ConfigError, DeviceSetting};
use crate::console::{print, print_stderr};
use crate::device;
use crate::failure::Failure;
use crate::hardware;

/// The complete report.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    libc: Libc,
    libtorch: Libtorch,
    processor: Processor,
    memory: Memory,
    gpu: Gpu,
    checks: Vec<Check>,
    /// What `--bench` measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    hardware: Option<Hardware>,
}

#[derive(Serialize)]
struct Libc {
    glibc: String,
    /// The heap settings that the C library rejected, which costs speed.
    hints: Vec<String>,
}

#[derive(Serialize)]
struct Libtorch {
    /// The libtorch file that this process has loaded.
    path: Option<String>,
    /// The lines of libtorch's build configuration.
    configuration: Vec<String>,
}

#[derive(Serialize)]
struct Processor {
    model: String,
    cores: usize,
    threads: i32,
    /// The instruction sets that the kernels use, and whether the processor has them.
    features: BTreeMap<&'static str, bool>,
}

#[derive(Serialize)]
struct Memory {
    total_bytes: u64,
    available_bytes: u64,
}

#[derive(Serialize)]
struct Gpu {
    available: bool,
    count: i64,
    /// Why libtorch has no GPU support.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    milliseconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The outcome of one check. The error says what is wrong.
type Outcome = Result<(), String>;

/// The name of a check and its function.
type Named = (&'static str, fn() -> Outcome);

/// All checks.
const CHECKS: [Named; 8] = [
    ("dispatch by name", dispatch_by_name),
    ("fused AdamW", fused_adamw),
    ("gradient with a seed", gradient_with_seed),
    ("custom autograd node", custom_node),
    ("panic in a node becomes an error", panic_in_node),
    ("flush of denormal numbers", flush_denormal),
    ("file to tensor and back", safetensors_round_trip),
    ("operations on the program's threads", own_threads),
];

/// Runs every check and prints the report. Fails if a check fails.
pub(crate) fn run(arguments: &DoctorArgs) -> anyhow::Result<()> {
    // libtorch's CUDA library must be loaded before the first tensor is created.
    let gpu = gpu();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        libc: Libc {
            glibc: memory::glibc_version(),
            hints: memory::keep_large_buffers().iter().map(ToString::to_string).collect(),
        },
        libtorch: libtorch()?,
        processor: processor(),
        memory: memory_sizes(),
        gpu,
        checks: CHECKS.iter().map(|&(name, check)| run_check(name, check)).collect(),
        hardware: if arguments.bench { Some(measure_hardware(&arguments.disk_path)?) } else { None },
    };
    print(&if arguments.json { serde_json::to_string_pretty(&report)? } else { report.text() })?;

    let failed = report.checks.iter().filter(|check| !check.ok).count();
    if failed > 0 {
        return Err(Failure::Checks { failed, total: report.checks.len() }.into());
    }
    Ok(())
}

/// Speeds that were measured while others took more of the processor are doubtful.
const LARGEST_SHARE_OF_OTHERS: f64 = 0.1;

/// Measures this machine, and keeps the result for `plan`.
fn measure_hardware(folder: &Path) -> anyhow::Result<Hardware> {
    let path = hardware::path(usize::try_from(tch::get_num_threads()).unwrap_or(1));
    let Some(path) = path else {
        let problem = "there is no folder for the result: set HOME or XDG_CACHE_HOME".to_owned();
        return Err(ConfigError::Argument { argument: "--bench".to_owned(), problem }.into());
    };
    let before = ProcessorTime::now();
    let measured = bench::measure(folder)?;
    if let Some((after, before)) = ProcessorTime::now().zip(before)
        && after.share_of_others(before) > LARGEST_SHARE_OF_OTHERS
    {
        print_stderr(&format!(
            "warning: other processes took {:.0} % of the processor time: measure again when the machine is idle",
            100.0 * after.share_of_others(before)
        ));
    }
    hardware::write(&measured, &path)?;
    print_stderr(&format!("kept for `plan` in {}", path.display()));
    Ok(measured)
}

impl Report {
    fn text(&self) -> String {
        const GIB: f64 = (1u64 << 30) as f64;
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<12}{value}");
        };

        line("version", self.version);
        line("glibc", &self.libc.glibc);
        for hint in &self.libc.hints {
            line("", &format!("hint: {hint}"));
        }
        line("libtorch", self.libtorch.path.as_deref().unwrap_or("not found among this process' libraries"));
        for configuration in &self.libtorch.configuration {
            line("", configuration);
        }

        line("processor", &self.processor.model);
        line("", &format!("{} cores, {} threads in use", self.processor.cores, self.processor.threads));
        let features: Vec<String> = self
            .processor
            .features
            .iter()
            .map(|(name, there)| format!("{name} {}", if *there { "yes" } else { "no" }))
            .collect();
        line("", &features.join(", "));
        let (total, available) =
            (self.memory.total_bytes as f64 / GIB, self.memory.available_bytes as f64 / GIB);
        line("memory", &format!("{available:.1} GiB free of {total:.1} GiB"));
        if let Some(hardware) = &self.hardware {
            for (name, value) in speed_lines(hardware) {
                line(name, &value);
            }
        }

        let gpu = match &self.gpu {
            Gpu { available: true, count, .. } => format!("{count} with CUDA"),
            Gpu { problem: Some(problem), .. } => format!("none: {problem}"),
            Gpu { .. } => "none".to_owned(),
        };
        line("GPU", &gpu);

        line("checks", "");
        for check in &self.checks {
            let outcome = check
                .problem
                .as_deref()
                .map_or_else(|| "ok".to_owned(), |problem| format!("failed: {problem}"));
            let _ = writeln!(text, "  {:<36}{:>9.2} ms  {outcome}", check.name, check.milliseconds);
        }
        text.trim_end().to_owned()
    }
}

/// The speeds in words.
fn speed_lines(hardware: &Hardware) -> Vec<(&'static str, String)> {
    let Hardware { device, disk, links, .. } = hardware;
    let giga = |number: f64| number / 1e9;
    let threads = device.threads.unwrap_or(1);
    let mut lines = vec![("speed", format!("of {} with {}", device.name, counted(threads as u64, "thread")))];
    let dtypes = |speed: DtypeSpeed, digits: usize, unit: &str| {
        let (float32, bfloat16) = (giga(speed.float32), giga(speed.bfloat16));
        format!("{float32:.digits$} {unit} in fp32, {bfloat16:.digits$} in bf16")
    };
    lines.extend(device.matmul.iter().map(|speed| {
        ("", format!("matrix products of width {}: {}", speed.width, dtypes(speed.flops, 0, "Gflop/s")))
    }));
    lines.extend(device.decode.iter().map(|speed| {
        let rows = counted(speed.rows as u64, "row");
        ("", format!("of {rows} and width {}: {}", speed.width, dtypes(speed.flops, 0, "Gflop/s")))
    }));
    lines.push(("", format!("attention: {}", dtypes(device.attention, 0, "Gflop/s"))));
    lines.push(("", format!("activation functions: {}", dtypes(device.elementwise, 1, "GB/s"))));
    let [read, copy] = [device.memory_read, device.memory_copy].map(giga);
    lines.push(("", format!("memory: {read:.1} GB/s read, {copy:.1} GB/s copied (read and written)")));
    lines.extend(disk.iter().map(|disk| {
        let is_direct = disk.is_direct == Some(true);
        let through = if is_direct { "past the page cache" } else { "through the page cache" };
        let [read, write] = [disk.read, disk.write].map(giga);
        let folder = disk.folder.as_deref().unwrap_or(Path::new("?")).display();
        ("", format!("disk of {folder}: {read:.2} GB/s read, {write:.2} GB/s written, {through}"))
    }));
    lines.extend(links.iter().map(|link| {
        let (latency, bandwidth) = (1e6 * link.latency, giga(link.bandwidth));
        ("", format!("between two ranks of this machine: {bandwidth:.2} GB/s, {latency:.0} us a message"))
    }));
    lines
}

fn own_threads() -> Outcome {
    let problem =
        "libtorch takes libgomp's threads, which spin while they wait: build the program with chat/build.rs";
    runtime::has_own_threads().then_some(()).ok_or_else(|| problem.to_owned())
}

fn run_check(name: &'static str, check: fn() -> Outcome) -> Check {
    let started = Instant::now();
    let problem = check().err();
    Check { name, ok: problem.is_none(), milliseconds: started.elapsed().as_secs_f64() * 1e3, problem }
}

/// libtorch's build configuration, and the library file that the dynamic loader chose.
fn libtorch() -> anyhow::Result<Libtorch> {
    let path = runtime::libtorch_path().map(|path| path.display().to_string());
    let configuration = runtime::show_config()?
        .lines()
        .map(|line| line.trim().trim_start_matches("- ").to_owned())
        .filter(|line| !line.is_empty() && !line.starts_with("Build settings"))
        .collect();
    Ok(Libtorch { path, configuration })
}

/// Finds the GPUs, as a run with `device = "auto"` does. Call it before the first tensor is created.
fn gpu() -> Gpu {
    device::load([DeviceSetting::Auto]);
    let problem = device::cuda_problem().map(str::to_owned);
    Gpu { available: tch::Cuda::is_available(), count: tch::Cuda::device_count(), problem }
}

fn processor() -> Processor {
    let flags = hardware::cpuinfo_field("flags").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|other| other == flag);

    let features = [
        ("avx2", "avx2"),
        ("avx512", "avx512f"),
        ("avx512-vnni", "avx512_vnni"),
        ("avx512-bf16", "avx512_bf16"),
        ("amx", "amx_tile"),
        ("amx-bf16", "amx_bf16"),
    ];
    Processor {
        model: hardware::processor_name(),
        cores: launch::cores(),
        threads: tch::get_num_threads(),
        features: features.into_iter().map(|(name, flag)| (name, has(flag))).collect(),
    }
}

fn memory_sizes() -> Memory {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Memory {
        total_bytes: bytes("MemTotal:").unwrap_or(0),
        available_bytes: bytes("MemAvailable:").unwrap_or(0),
    }
}

fn leaf(numbers: &[f32]) -> Tensor {
    Tensor::from_slice(numbers).set_requires_grad(true)
}

fn expect(tensor: &Tensor, wanted: &[f64]) -> Outcome {
    let found = Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).map_err(|error| error.to_string())?;
    let close = found.len() == wanted.len()
        && found
            .iter()
            .zip(wanted)
            .all(|(found, wanted)| (found - wanted).abs() <= 1e-6 * wanted.abs().max(1.0));
    if close { Ok(()) } else { Err(format!("got {found:?}, wanted {wanted:?}")) }
}

fn dispatch_by_name() -> Outcome {
    let tensor = Tensor::from_slice(&[1.0f32, -2.0]);
    let doubled =
        dispatch::call_tensors("aten::mul", "Scalar", &[Value::Tensor(&tensor), Value::Double(2.0)])
            .map_err(|error| error.to_string())?;
    expect(&doubled[0], &[2.0, -4.0])
}

/// Takes one Adam step from zero moments with gradient 1. The first step of Adam has the size `lr`, whatever
/// the size of the gradient (Kingma and Ba 2015).
fn fused_adamw() -> Outcome {
    let scalar = |number: f32| Tensor::from_slice(&[number]);
    let (weight, grad, first, second) = (scalar(1.0), scalar(1.0), scalar(0.0), scalar(0.0));
    let step = Tensor::from(1f32);
    let arguments = [
        Value::Tensors(&[&weight]),
        Value::Tensors(&[&grad]),
        Value::Tensors(&[&first]),
        Value::Tensors(&[&second]),
        Value::Tensors(&[]),
        Value::Tensors(&[&step]),
        Value::Double(0.125),
        Value::Double(0.9),
        Value::Double(0.999),
        Value::Double(0.0),
        Value::Double(1e-12),
        Value::Bool(false),
        Value::Bool(false),
    ];
    dispatch::call("aten::_fused_adamw_", "", &arguments).map_err(|error| error.to_string())?;
    expect(&weight, &[0.875])
}

fn gradient_with_seed() -> Outcome {
    let x = leaf(&[1.0, 2.0]);
    let y = &x * &x;
    let seed = Tensor::from_slice(&[1.0f32, 10.0]);
    let grads = autograd::grad(&[&y], &[&seed], &[&x]).map_err(|error| error.to_string())?;
    // The derivative of x^2 is 2x, times the seed.
    expect(grads[0].as_ref().ok_or("no gradient arrived")?, &[2.0, 40.0])
}

fn custom_node() -> Outcome {
    let x = leaf(&[3.0]);
    let value = tch::no_grad(|| &x * 7.0);
    let backward: autograd::Backward = Box::new(|grads| Ok(vec![grads[0].as_ref().map(|grad| grad * 5.0)]));
    let outputs = autograd::with_backward(&[&value], &[&x], backward).map_err(|error| error.to_string())?;
    let grads =
        autograd::grad(&[&outputs[0]], &[&value.ones_like()], &[&x]).map_err(|error| error.to_string())?;
    expect(grads[0].as_ref().ok_or("no gradient arrived")?, &[5.0])
}

fn panic_in_node() -> Outcome {
    let x = leaf(&[1.0]);
    let value = tch::no_grad(|| &x * 1.0);
    let backward: autograd::Backward =
        Box::new(|_| std::panic::resume_unwind(Box::new("a panic on purpose")));
    let outputs = autograd::with_backward(&[&value], &[&x], backward).map_err(|error| error.to_string())?;
    match autograd::grad(&[&outputs[0]], &[&value.ones_like()], &[&x]) {
        Err(error) if error.to_string().contains("a panic on purpose") => Ok(()),
        Err(error) => Err(format!("the error says: {error}")),
        Ok(_) => Err("the panic was lost".to_owned()),
    }
}

/// Halves the smallest normal number, which gives a denormal number.
fn flush_denormal() -> Outcome {
    let half = || Tensor::from_slice(&[f32::MIN_POSITIVE]) * 0.5;
    let supported = runtime::set_flush_denormal(true).map_err(|error| error.to_string())?;
    let flushed = half().double_value(&[0]);
    runtime::set_flush_denormal(false).map_err(|error| error.to_string())?;
    match (supported, flushed == 0.0) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => Err("a denormal number survived".to_owned()),
        (false, true) => Err("the processor says that it cannot, and did".to_owned()),
    }
}

fn safetensors_round_trip() -> Outcome {
    let path = std::env::temp_dir().join(format!("colossal-chat-doctor-{}.safetensors", std::process::id()));
    let round_trip = || {
        let tensor = Tensor::arange(3, (Kind::Float, Device::Cpu));
        Tensor::write_safetensors(&[("x", &tensor)], &path).map_err(|error| error.to_string())?;
        let tensors = Tensor::read_safetensors(&path).map_err(|error| error.to_string())?;
        expect(&tensors[0].1, &[0.0, 1.0, 2.0])
    };
    let outcome = round_trip();
    let _ = std::fs::remove_file(&path);
    outcome
}
