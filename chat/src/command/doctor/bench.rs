//! Measures the speeds of this machine that the prediction of a step's time uses, in some ten seconds.
//!
//! | speed | measured by |
//! |---|---|
//! | matrix products | `x W^T`, `dy W` and `dy^T x` of a linear layer, as its forward and backward pass compute them |
//! | attention | causal attention of 4 sequences of 128 tokens, forward and backward |
//! | activations | `silu` of the output of a layer |
//! | memory | the sum over a large tensor; a copy of it |
//! | disk | direct transfers of a scratch file with 64 requests in flight |
//!
//! Products and memory: the median of several repetitions after one that warms up. The disk: all bytes over
//! the whole time.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parallel::arena::Arena;
use parallel::disk::{DiskFile, DiskQueue, QUEUE_DEPTH, REQUEST_BYTES};
use parallel::{SysError, autograd};
use tch::{Device, Kind, Tensor, no_grad};

use crate::machine_speed::{DiskSpeed, DtypeSpeed, Machine, MachineSpeed, MatmulSpeed, MemorySpeed};

/// The widths of layers of small, medium and large models.
const WIDTHS: [usize; 4] = [128, 384, 1024, 2048];
/// The rows of a product: the tokens of a micro-batch.
const ROWS: i64 = 512;
/// The outputs of a layer for each input: between those of attention (1) and of an MLP (3 to 4).
const OUTPUTS: i64 = 2;
const REPETITIONS: usize = 9;
/// A repetition runs an operation again and again until so much time is over.
const LEAST_TIME: Duration = Duration::from_millis(40);
/// More than caches hold.
const MEMORY_BYTES: i64 = 256 << 20;
/// The scratch file, and how long it is written and read at most.
const DISK_BYTES: u64 = 512 << 20;
const DISK_TIME: Duration = Duration::from_millis(1500);

/// Measures this machine with the threads of this process, and the disk of `folder`.
pub(super) fn measure(folder: &Path) -> anyhow::Result<MachineSpeed> {
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
    let disk = disk(folder)?;
    Ok(no_grad(|| MachineSpeed {
        machine: Machine::here(threads),
        matmul: WIDTHS.map(matmul).to_vec(),
        attention: in_each_dtype(attention),
        elementwise: in_each_dtype(elementwise),
        memory: memory(),
        disk,
    }))
}

fn matmul(width: usize) -> MatmulSpeed {
    let inputs = width as i64;
    let outputs = OUTPUTS * inputs;
    let operations = 3.0 * 2.0 * (ROWS * inputs * outputs) as f64;
    let flops = |kind| {
        let random = |shape: [i64; 2]| Tensor::rand(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
        let (x, weight, grad) = (random([ROWS, inputs]), random([outputs, inputs]), random([ROWS, outputs]));
        let products = || {
            let output = x.linear(&weight, None::<&Tensor>);
            drop((output, grad.matmul(&weight), grad.tr().matmul(&x)));
        };
        operations / median_seconds(products)
    };
    MatmulSpeed { width, flops: in_each_dtype(flops) }
}

fn in_each_dtype(speed: impl Fn(Kind) -> f64) -> DtypeSpeed {
    DtypeSpeed { float32: speed(Kind::Float), bfloat16: speed(Kind::BFloat16) }
}

fn attention(kind: Kind) -> f64 {
    let [sequences, heads, tokens, width] = [4, 8, 128, 64];
    let random = || {
        let values = Tensor::rand([sequences, heads, tokens, width], (Kind::Float, Device::Cpu));
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
    let values = Tensor::rand([ROWS, 1024], (Kind::Float, Device::Cpu)).to_kind(kind);
    let bytes = 2 * kind.elt_size_in_bytes() * values.numel();
    bytes as f64 / median_seconds(|| drop(values.silu()))
}

fn memory() -> MemorySpeed {
    let source = Tensor::ones([MEMORY_BYTES / 4], (Kind::Float, Device::Cpu));
    let mut target = source.zeros_like();
    let bytes = MEMORY_BYTES as f64;
    MemorySpeed {
        read: bytes / median_seconds(|| drop(source.sum(Kind::Float))),
        copy: 2.0 * bytes / median_seconds(|| target.copy_(&source)),
    }
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
    let mut seconds: Vec<f64> = (0..REPETITIONS).map(|_| repetition()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPETITIONS / 2]
}

fn disk(folder: &Path) -> Result<DiskSpeed, SysError> {
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
    Ok(DiskSpeed { folder, is_direct: file.is_direct(), read, write })
}
