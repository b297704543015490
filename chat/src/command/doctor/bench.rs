//! Measures the speeds of this machine that the prediction of a step's time uses, in some twenty seconds.
//!
//! | speed | measured by |
//! |---|---|
//! | matrix products | `x W^T`, `dy W` and `dy^T x`: the forward and backward pass of a linear layer |
//! | decoding | `x W^T` of few rows, by the kernel that decoding has |
//! | attention | causal attention of 4 sequences of 128 tokens, forward and backward |
//! | activations | `silu` of the output of a layer |
//! | memory | the sum over a large tensor; a copy of it |
//! | disk | direct transfers of a scratch file with 64 requests in flight |
//! | program | the memory of this process, when all of the above has run and no tensor is left |
//! | link | all-reduces of few and of many bytes by two ranks of this process, over shared memory |
//!
//! Products and memory: the median of several repetitions after one that warms up. The disk: all bytes over
//! the whole time. A processor without instructions for bfloat16 computes its products some hundred times
//! slower than those in float32, so what takes long is measured on fewer rows and repeated less often.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parallel::arena::Arena;
use parallel::c10d::Secret;
use parallel::comm::{ProcessGroup, Reduction};
use parallel::disk::{DiskFile, DiskQueue, QUEUE_DEPTH, REQUEST_BYTES};
use parallel::kernels::linear;
use parallel::rendezvous::open_store;
use parallel::{RankInfo, SysError, Transport, World, autograd, launch, memory};
use planner::Hardware;
use planner::hardware::{DecodeSpeed, Device, Disk, DtypeSpeed, Link, MATMUL_ROWS, MatmulSpeed};
use tch::{Kind, Tensor, no_grad};
use text::number::median;

use crate::hardware::processor_name;

/// The widths of layers of small, medium and large models.
const WIDTHS: [usize; 4] = [128, 384, 1024, 2048];
/// The rows of a product: the tokens of a micro-batch.
const ROWS: i64 = MATMUL_ROWS as i64;
/// The rows of a product in decoding: the replies that are generated at the same time.
const DECODE_ROWS: [usize; 3] = [1, 8, 64];
/// The rows that a slow product is first tried with, and the factor by which they grow up to [`ROWS`].
const FEW_ROWS: i64 = 8;
/// The outputs of a layer for each input: in attention, and in an MLP.
const OUTPUTS: [i64; 2] = [1, 3];
const REPETITIONS: usize = 7;
/// A repetition runs an operation again and again until so much time is over.
const LEAST_TIME: Duration = Duration::from_millis(30);
/// No repetition begins after so much time.
const MOST_TIME: Duration = Duration::from_secs(1);
/// More than caches hold.
const MEMORY_BYTES: i64 = 256 << 20;
/// The scratch file, and how long it is written and read at most.
const DISK_BYTES: u64 = 512 << 20;
const DISK_TIME: Duration = Duration::from_millis(1500);
/// A bucket of gradients, and how long two ranks may take to find each other.
const LINK_BYTES: usize = 4 << 20;
const LINK_TIMEOUT: Duration = Duration::from_secs(20);

/// Measures this machine with the threads of this process, and the disk of `folder`.
pub(super) fn measure(folder: &Path) -> anyhow::Result<Hardware> {
    let (disk, link) = (disk(folder)?, link()?);
    let [memory_read, memory_copy] = memory_speeds();
    let mut device = no_grad(|| Device {
        name: processor_name(),
        threads: Some(usize::try_from(tch::get_num_threads()).unwrap_or(1)),
        cores: Some(launch::cores()),
        memory: memory::total_bytes().unwrap_or(0),
        program: None,
        memory_read,
        memory_copy,
        attention: in_each_dtype(attention),
        elementwise: in_each_dtype(elementwise),
        matmul: WIDTHS.map(matmul).to_vec(),
        decode: DECODE_ROWS.iter().flat_map(|&rows| WIDTHS.map(|width| decode(rows, width))).collect(),
    });
    // What is there after all kernels have run, and no tensor is left.
    memory::release_free_heap();
    device.program = Some(memory::rss_bytes()).filter(|&bytes| bytes > 0);
    let source = format!("measured by colossal-chat {} with `doctor --bench`", env!("CARGO_PKG_VERSION"));
    Ok(Hardware { source, device, host: None, disk: Some(disk), links: vec![link], stragglers: Vec::new() })
}

/// The processor time since the machine started, in ticks of the kernel.
#[derive(Clone, Copy)]
pub(super) struct ProcessorTime {
    /// Of all processes.
    all: u64,
    /// Of this process.
    own: u64,
}

impl ProcessorTime {
    /// That until now; `None` if the system does not tell it.
    pub(super) fn now() -> Option<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
        };
        // cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ..., see proc_stat(5)
        let all = numbers(std::fs::read_to_string("/proc/stat").ok()?.lines().next()?);
        // PID (NAME) STATE ...: the 12th and 13th after the name are the times of user and system.
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let own = numbers(own.rsplit_once(')')?.1);
        let all = [1, 2, 3, 6, 7, 8].iter().map(|&field| all.get(field).copied().unwrap_or(0)).sum();
        Some(Self { all, own: own.get(11)? + own.get(12)? })
    }

    /// The part of the processor time since `before` that other processes took.
    pub(super) fn share_of_others(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        let own = self.own.saturating_sub(before.own).min(all);
        (all - own) as f64 / all as f64
    }
}

fn matmul(width: usize) -> MatmulSpeed {
    let inputs = width as i64;
    let flops = |kind| {
        let (mut operations, mut seconds) = (0.0, 0.0);
        for outputs in OUTPUTS.map(|outputs| outputs * inputs) {
            operations += 3.0 * 2.0 * (ROWS * inputs * outputs) as f64;
            seconds += linear_seconds([inputs, outputs], kind);
        }
        operations / seconds
    };
    MatmulSpeed { width, flops: in_each_dtype(flops) }
}

/// The seconds of the three products of a linear layer with [`ROWS`] rows.
fn linear_seconds(layer: [i64; 2], kind: Kind) -> f64 {
    // A slow product takes the same time for each row, so a few rows tell its speed.
    let mut rows = FEW_ROWS;
    while rows < ROWS {
        let mut operation = products(layer, rows, kind);
        let started = Instant::now();
        operation();
        let seconds = started.elapsed();
        if seconds * FEW_ROWS as u32 > MOST_TIME {
            return seconds.as_secs_f64() * (ROWS / rows) as f64;
        }
        rows *= FEW_ROWS;
    }
    median_seconds(products(layer, ROWS, kind))
}

fn products([inputs, outputs]: [i64; 2], rows: i64, kind: Kind) -> impl FnMut() {
    let random = |shape: [i64; 2]| Tensor::rand(shape, (Kind::Float, tch::Device::Cpu)).to_kind(kind);
    let (x, weight, grad) = (random([rows, inputs]), random([outputs, inputs]), random([rows, outputs]));
    move || {
        let output = x.linear(&weight, None::<&Tensor>);
        drop((output, grad.matmul(&weight), grad.tr().matmul(&x)));
    }
}

/// A product with few rows, as decoding computes it.
fn decode(rows: usize, width: usize) -> DecodeSpeed {
    let (outputs, shape) = (3 * width as i64, [rows as i64, width as i64]);
    let flops = |kind| {
        let random = |shape: [i64; 2]| Tensor::rand(shape, (Kind::Float, tch::Device::Cpu)).to_kind(kind);
        let (x, weight) = (random(shape), random([outputs, shape[1]]));
        let product = || linear::forward(&x, &weight).unwrap_or_else(|| x.linear(&weight, None::<&Tensor>));
        2.0 * (shape[0] * shape[1] * outputs) as f64 / median_seconds(|| drop(product()))
    };
    DecodeSpeed { rows, width, flops: in_each_dtype(flops) }
}

fn in_each_dtype(speed: impl Fn(Kind) -> f64) -> DtypeSpeed {
    DtypeSpeed { float32: speed(Kind::Float), bfloat16: speed(Kind::BFloat16) }
}

fn attention(kind: Kind) -> f64 {
    let [sequences, heads, tokens, width] = [4, 8, 128, 64];
    let random = || {
        let values = Tensor::rand([sequences, heads, tokens, width], (Kind::Float, tch::Device::Cpu));
        values.to_kind(kind).set_requires_grad(true)
    };
    let (query, key, value) = (random(), random(), random());
    let seed = value.ones_like();
    let passes = || {
        let attend = || {
            Tensor::scaled_dot_product_attention(
                &query,
                &key,
                &value,
                None::<&Tensor>,
                0.0,
                true,
                None,
                false,
            )
        };
        let output = tch::with_grad(attend);
        let inputs = [&query, &key, &value];
        autograd::grad(&[&output], &[&seed], &inputs).expect("every input has a gradient");
    };
    // As many operations as `plan` counts: half of the scores are masked.
    let forward = 2 * sequences * heads * width * tokens * tokens;
    3.0 * forward as f64 / median_seconds(passes)
}

fn elementwise(kind: Kind) -> f64 {
    let values = Tensor::rand([ROWS, 1024], (Kind::Float, tch::Device::Cpu)).to_kind(kind);
    let bytes = 2 * kind.elt_size_in_bytes() * values.numel();
    bytes as f64 / median_seconds(|| drop(values.silu()))
}

/// The bytes per second of reading and of copying.
fn memory_speeds() -> [f64; 2] {
    let source = Tensor::ones([MEMORY_BYTES / 4], (Kind::Float, tch::Device::Cpu));
    let mut target = source.zeros_like();
    let bytes = MEMORY_BYTES as f64;
    [
        bytes / median_seconds(|| drop(source.sum(Kind::Float))),
        2.0 * bytes / median_seconds(|| target.copy_(&source)),
    ]
}

/// The median time of an operation.
fn median_seconds(mut operation: impl FnMut()) -> f64 {
    let mut repetition = || {
        let started = Instant::now();
        let mut count = 0.0;
        while started.elapsed() < LEAST_TIME {
            operation();
            count += 1.0;
        }
        started.elapsed().as_secs_f64() / count
    };
    repetition();

    let started = Instant::now();
    let mut seconds = vec![repetition()];
    while seconds.len() < REPETITIONS && started.elapsed() < MOST_TIME {
        seconds.push(repetition());
    }
    median(seconds).expect("there are repetitions")
}

fn disk(folder: &Path) -> Result<Disk, SysError> {
    let file = Arc::new(DiskFile::scratch(folder, DISK_BYTES)?);
    let part = QUEUE_DEPTH * REQUEST_BYTES;
    let arena = Arena::reserve(part)?;
    // A file system may store zeros in another way.
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    arena.write_bytes(0, &(0..part).map(|_| random()).collect::<Vec<u8>>())?;

    let mut queue = DiskQueue::open()?;
    let mut written = 0;
    let started = Instant::now();
    while written < DISK_BYTES && started.elapsed() < DISK_TIME {
        let transfer = queue.write(&file, written, &arena, 0..part)?;
        queue.wait(transfer)?;
        written += part as u64;
    }
    let write = written as f64 / started.elapsed().as_secs_f64();

    let mut read = 0;
    let started = Instant::now();
    while read < written && started.elapsed() < DISK_TIME {
        let transfer = queue.read(&file, read, &arena, 0..part)?;
        queue.wait(transfer)?;
        read += part as u64;
    }
    let read = read as f64 / started.elapsed().as_secs_f64();
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    Ok(Disk { folder: Some(folder), is_direct: Some(file.is_direct()), read, write })
}

/// Measures two ranks of this machine. Each is a thread, and they exchange bytes as two processes do.
fn link() -> anyhow::Result<Link> {
    let rank_info = RankInfo { secret: Some(Secret::random()?), ..RankInfo::single() };
    let store = open_store(&rank_info, LINK_TIMEOUT)?;
    let meeting = RankInfo { size: 2, port: store.port(), uses_agent_store: true, ..rank_info };
    let all_reduces = |rank| {
        let world = World::join(RankInfo { rank, ..meeting.clone() }, Transport::Auto, LINK_TIMEOUT)?;
        let group = world.group("link", &[0, 1])?;
        let few = all_reduce_seconds(&group, 8)?;
        let many = all_reduce_seconds(&group, LINK_BYTES)?;
        // Nobody leaves while the other may still read.
        group.barrier()?;
        Ok::<_, parallel::Error>((few, many))
    };
    let (few, many) = thread::scope(|scope| {
        let other = scope.spawn(|| all_reduces(1));
        let own = all_reduces(0);
        other.join().expect("the second rank returns its errors").and(own)
    })?;
    // An all-reduce of two ranks is two messages, and each rank sends as many bytes as it has.
    Ok(Link {
        ranks: launch::max_processes(),
        latency: few / 2.0,
        bandwidth: LINK_BYTES as f64 / (many - few),
    })
}

/// The median seconds of an all-reduce. Both ranks call it.
fn all_reduce_seconds(group: &ProcessGroup, bytes: usize) -> Result<f64, parallel::Error> {
    let tensor = Tensor::zeros([bytes as i64 / 4], (Kind::Float, tch::Device::Cpu));
    let times = (LINK_BYTES / bytes).clamp(4, 200);
    let mut seconds = Vec::new();
    for _ in 0..REPETITIONS {
        group.barrier()?;
        let started = Instant::now();
        for _ in 0..times {
            group.all_reduce(&tensor, Reduction::Sum)?;
        }
        seconds.push(started.elapsed().as_secs_f64() / times as f64);
    }
    Ok(median(seconds).expect("there are repetitions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_took_is_the_rest() {
        let before = ProcessorTime { all: 100, own: 10 };
        let after = ProcessorTime { all: 300, own: 160 };
        assert!((after.share_of_others(before) - 0.25).abs() < 1e-12);
        // The two times are not read at the same moment.
        assert!(ProcessorTime { all: 100, own: 11 }.share_of_others(before) < 1e-12);
        assert!(ProcessorTime::now().unwrap().all > 0);
    }

    #[test]
    fn the_median_is_of_single_operations() {
        let seconds = median_seconds(|| std::thread::sleep(Duration::from_millis(5)));
        assert!((0.005..0.05).contains(&seconds), "{seconds}");
    }
}
