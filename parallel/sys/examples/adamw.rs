//! Measures AdamW on the host against `aten::_fused_adamw_` and against a copy of memory, with 1 and 2
//! threads: `cargo run --release -p parallel-sys --example adamw -- [Mi elements] [rounds]`.
//!
//! The bytes are those that a step must move, per element: the gradient is read, the master weight and the
//! moments are read and written (28 bytes with fp32 moments), a copy in bfloat16 is written. aten with a
//! divisor also writes the gradient. A copy of memory reads and writes each byte once.

use std::time::Instant;

use parallel_sys::adamw::{AdamwStep, AdamwTensors, adamw};
use parallel_sys::dispatch::{Value, call};
use parallel_sys::elements::ElementNumbers;
use tch::{Device, Kind, Tensor};

const STEP: AdamwStep = AdamwStep {
    lr: 1e-5,
    betas: (0.9, 0.95),
    eps: 1e-8,
    weight_decay: 0.1,
    step: 3,
    grad_divisor: 1.0,
    seed: 1,
};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<i64>().expect("a number"));
    let count = arguments.next().unwrap_or(64) << 20;
    let rounds = arguments.next().unwrap_or(9);
    let normal = |scale: f64| Tensor::randn([count], (Kind::Float, Device::Cpu)) * scale;
    let (master, grad, exp_avg) = (normal(1.0), normal(0.01), normal(0.01));
    let exp_avg_sq = normal(0.01).square();
    let weight = master.to_kind(Kind::BFloat16);
    let halves = [&exp_avg, &exp_avg_sq].map(|moment| moment.to_kind(Kind::BFloat16));
    let target = grad.copy();
    let fp32 = AdamwTensors {
        master: &master,
        grad: &grad,
        exp_avg: &exp_avg,
        exp_avg_sq: &exp_avg_sq,
        weight: None,
    };
    let copied = AdamwTensors { weight: Some(&weight), ..fp32 };
    let bf16 = AdamwTensors { exp_avg: &halves[0], exp_avg_sq: &halves[1], ..copied };
    let (all, columns) =
        (ElementNumbers::starting_at(0), ElementNumbers::in_blocks(std::iter::once(0..512), 4096));
    let ours_of = |tensors: &AdamwTensors<'_>, elements: &ElementNumbers| {
        adamw(tensors, &STEP, elements).expect("tensors that fit");
    };
    let ours = |tensors: &AdamwTensors<'_>| ours_of(tensors, &all);

    let cases: [(&str, f64, &dyn Fn()); 7] = [
        ("ours, fp32", 28.0, &|| ours(&fp32)),
        ("aten, no divisor", 28.0, &|| aten(&fp32, false)),
        ("ours, fp32 and a bf16 copy", 30.0, &|| ours(&copied)),
        ("aten, divisor", 32.0, &|| aten(&fp32, true)),
        ("ours, bf16 moments and copy", 22.0, &|| ours(&bf16)),
        ("ours, of 512 columns of 4096", 22.0, &|| ours_of(&bf16, &columns)),
        ("copy of memory", 8.0, &|| target.shallow_clone().copy_(&grad)),
    ];

    for threads in [1, 2] {
        tch::set_num_threads(threads);
        let mut seconds = vec![Vec::new(); cases.len()];
        // The first round warms up.
        for round in 0..=rounds {
            for (times, (_, _, run)) in seconds.iter_mut().zip(&cases) {
                let started = Instant::now();
                run();
                times.extend((round > 0).then(|| started.elapsed().as_secs_f64()));
            }
        }
        println!("{threads} threads, {} Mi elements, median of {rounds}", count >> 20);
        for (times, (name, bytes, _)) in seconds.iter_mut().zip(&cases) {
            times.sort_by(f64::total_cmp);
            let median = f64::midpoint(times[(times.len() - 1) / 2], times[times.len() / 2]);
            let speed = bytes * count as f64 / median / 1e9;
            println!(
                "  {name:28} {:8.1} ms  {speed:6.1} GB/s  (best {:.1} ms)",
                median * 1e3,
                times[0] * 1e3
            );
        }
    }
}

/// `aten::_fused_adamw_` with the same arguments.
fn aten(tensors: &AdamwTensors<'_>, divide: bool) {
    let scalar = |value: f64| Tensor::full(&[] as &[i64], value, (Kind::Float, Device::Cpu));
    let (count, divisor) = (scalar(STEP.step as f64), scalar(STEP.grad_divisor));
    let arguments = [
        Value::Tensors(&[tensors.master]),
        Value::Tensors(&[tensors.grad]),
        Value::Tensors(&[tensors.exp_avg]),
        Value::Tensors(&[tensors.exp_avg_sq]),
        Value::Tensors(&[]),
        Value::Tensors(&[&count]),
        Value::Double(STEP.lr),
        Value::Double(STEP.betas.0),
        Value::Double(STEP.betas.1),
        Value::Double(STEP.weight_decay),
        Value::Double(STEP.eps),
        Value::Bool(false),
        Value::Bool(false),
        if divide { Value::Tensor(&divisor) } else { Value::None },
    ];
    tch::no_grad(|| call("aten::_fused_adamw_", "", &arguments)).expect("tensors that fit");
}
