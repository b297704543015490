//! Time of tensor operations with libtorch's allocator or with the counting one.
//!
//!     cargo run --release -p parallel-sys --example allocator_speed -- libtorch|counting
//!
//! One process measures one allocator, since it stays installed: run them in turns. Both start from the
//! settings of the program, `memory::keep_large_buffers`. A figure is the best of several rounds.

use std::time::Instant;

use parallel_sys::{allocator, memory};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_default();
    memory::keep_large_buffers();
    match name.as_str() {
        "libtorch" => {}
        "counting" => allocator::install()?,
        _ => return Err("which allocator: libtorch or counting?".into()),
    }

    let square = Tensor::randn([1024, 1024], FLOAT);
    let small = Tensor::randn([16], FLOAT);
    let weight = (Tensor::randn([1024, 1024], FLOAT) / 32.0).set_requires_grad(true);
    measure(&name, "fill 64 MiB, 200 times", || {
        for _ in 0..200 {
            drop(Tensor::empty([16 << 20], FLOAT).fill_(1.0));
        }
    });
    measure(&name, "relu of 1024 x 1024, 1000 in a chain", || chain(&square, 1000, Tensor::relu));
    measure(&name, "relu of 16, 100000 in a chain", || chain(&small, 100_000, Tensor::relu));
    measure(&name, "clone of 256 KiB, 20000 times", || {
        let tensor = square.narrow(0, 0, 64);
        (0..20_000).for_each(|_| drop(tensor.copy()));
    });
    measure(&name, "8 layers of 1024 x 1024, forward and backward, 5 times", || {
        for _ in 0..5 {
            let mut hidden = square.shallow_clone();
            for _ in 0..8 {
                hidden = hidden.matmul(&weight).gelu("none");
            }
            hidden.mean(Kind::Float).backward();
        }
    });
    println!(
        "{name:9} {:9.1} MiB peak resident memory",
        memory::peak_rss_bytes() as f64 / f64::from(1 << 20)
    );
    Ok(())
}

fn chain(start: &Tensor, length: usize, operation: impl Fn(&Tensor) -> Tensor) {
    let mut tensor = start.shallow_clone();
    for _ in 0..length {
        tensor = operation(&tensor);
    }
}

fn measure(name: &str, what: &str, mut round: impl FnMut()) {
    let time = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64() * 1e3
    };
    let best = (0..ROUNDS).map(time).fold(f64::INFINITY, f64::min);
    println!("{name:9} {best:9.1} ms {what}");
}
