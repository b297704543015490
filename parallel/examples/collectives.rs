//! Bandwidth of the collectives over shared memory and over Gloo, beside a copy of memory, as JSON rows.
//!
//!     cargo run --release -p parallel --example collectives -- [RANKS]
//!
//! Each rank is a process. Both transports must give the same numbers first. Then they take turns; a figure
//! is the median of several rounds. Bandwidth is that of the bus: bytes that a rank must send by the optimal
//! algorithm, a second. The copy moves as many bytes from one buffer to another in one process.

use std::process::Command;
use std::time::{Duration, Instant};

use parallel::c10d::Secret;
use parallel::comm::{ProcessGroup, Reduction};
use parallel::rendezvous::{JOB_SECRET, open_store};
use parallel::world::RankInfo;
use parallel::{Transport, World, launch};
use tch::{Device, Kind, Tensor};

const BYTES: [usize; 9] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];
const ROUNDS: usize = 7;
const TIMEOUT: Duration = Duration::from_secs(60);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    if std::env::var_os("RANK").is_some() {
        return rank();
    }
    let size: usize = std::env::args().nth(1).map_or(Ok(2), |text| text.parse())?;
    let secret = Secret::random()?;
    let store = open_store(&RankInfo { secret: Some(secret.clone()), ..RankInfo::single() }, TIMEOUT)?;
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", size.to_string())])
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", store.port().to_string())])
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .env(JOB_SECRET, secret.expose())
            .spawn()
    };
    let ranks = (0..size).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut rank in ranks {
        assert!(rank.wait()?.success(), "a rank failed");
    }
    Ok(())
}

fn rank() -> Result<(), Failure> {
    let rank_info = RankInfo::from_environment()?;
    launch::init_process(Some(1), rank_info.size)?;
    let everyone: Vec<usize> = (0..rank_info.size).collect();
    let shared = World::join(rank_info.clone(), Transport::Shared, TIMEOUT)?.group("shared", &everyone)?;
    let gloo_world = World::join(rank_info, Transport::Gloo, TIMEOUT)?;
    let gloo = gloo_world.group("gloo", &everyone)?;
    for bytes in BYTES {
        prove_equal(&[&shared, &gloo], bytes)?;
        let (copy, reduce, gather) =
            (copy(bytes), all_reduce(&[&shared, &gloo], bytes)?, all_gather(&[&shared, &gloo], bytes)?);
        if gloo.rank() == 0 {
            for (collective, [shared, gloo]) in [("all_reduce", reduce), ("all_gather", gather)] {
                println!(
                    "{{\"collective\": \"{collective}\", \"ranks\": {}, \"bytes\": {bytes}, \"shared_gb_s\": {shared:.3}, \"gloo_gb_s\": {gloo:.3}, \"ratio\": {:.1}, \"copy_gb_s\": {copy:.3}}}",
                    everyone.len(),
                    shared / gloo,
                );
            }
        }
    }
    gloo.barrier()?;
    Ok(())
}

/// Refuses to time transports that disagree.
fn prove_equal(groups: &[&ProcessGroup; 2], bytes: usize) -> Result<(), Failure> {
    let input =
        (Tensor::arange((bytes / 4) as i64, (Kind::Float, Device::Cpu)) + groups[0].rank() as f64).sin();
    let sums = groups.map(|group| {
        let sum = input.copy();
        group.all_reduce(&sum, Reduction::Sum).map(|()| sum)
    });
    let gathered = groups.map(|group| group.all_gather(&input));
    let ([left, right], [first, second]) = (sums, gathered);
    // Gloo adds up in another order.
    if left?.allclose(&right?, 1e-6, 1e-6, false) && first? == second? {
        return Ok(());
    }
    Err(format!("shared memory and Gloo disagree at {bytes} bytes").into())
}

/// Gigabytes a second of a plain copy.
fn copy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    let times = repeats(bytes);
    let round = || {
        let started = Instant::now();
        for _ in 0..times {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        started.elapsed().as_secs_f64() / times as f64
    };
    bytes as f64 / median(std::iter::repeat_with(round).take(ROUNDS)) / 1e9
}

fn all_reduce(groups: &[&ProcessGroup; 2], bytes: usize) -> Result<[f64; 2], Failure> {
    let tensor = Tensor::ones([(bytes / 4) as i64], (Kind::Float, Device::Cpu));
    let size = groups[0].size() as f64;
    let sent = 2.0 * bytes as f64 * (size - 1.0) / size;
    measure(groups, bytes, sent, |group| Ok(group.all_reduce(&tensor, Reduction::Max)?))
}

/// `bytes` are those of the output.
fn all_gather(groups: &[&ProcessGroup; 2], bytes: usize) -> Result<[f64; 2], Failure> {
    let size = groups[0].size();
    let tensor = Tensor::ones([(bytes / 4 / size) as i64], (Kind::Float, Device::Cpu));
    let output = Tensor::zeros([tensor.numel() as i64 * size as i64], (Kind::Float, Device::Cpu));
    let sent = bytes as f64 * (size as f64 - 1.0) / size as f64;
    measure(groups, bytes, sent, |group| Ok(group.all_gather_into(&output, &tensor)?))
}

/// Gigabytes a second of both groups, in turns.
fn measure(
    groups: &[&ProcessGroup; 2],
    bytes: usize,
    sent: f64,
    mut collective: impl FnMut(&ProcessGroup) -> Result<(), Failure>,
) -> Result<[f64; 2], Failure> {
    let times = repeats(bytes);
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (group, seconds) in groups.iter().zip(&mut seconds) {
            group.barrier()?;
            let started = Instant::now();
            for _ in 0..times {
                collective(group)?;
            }
            seconds.push(started.elapsed().as_secs_f64() / times as f64);
        }
    }
    Ok(seconds.map(|seconds| sent / median(seconds.into_iter()) / 1e9))
}

/// Repetitions of one round: about 64 MiB in all, and no more than 200.
fn repeats(bytes: usize) -> usize {
    ((64 << 20) / bytes).clamp(1, 200)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}
