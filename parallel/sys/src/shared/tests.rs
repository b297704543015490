//! Ranks as threads of one process.

use std::sync::mpsc;
use std::thread;

use tch::Kind;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

const NAME: &str = "colossal-chat-test";

fn create(size: usize, timeout: Duration) -> SharedMemory {
    SharedMemory::create(NAME, size, timeout).unwrap()
}

fn open(address: &str, rank_and_size: [usize; 2]) -> SharedMemory {
    SharedMemory::open(address, NAME, std::process::id(), rank_and_size, TIMEOUT).unwrap()
}

/// Runs `body` on `size` ranks, each a thread with a view of its own.
fn ranks(size: usize, body: impl Fn(usize, &mut SharedMemory) + Sync) {
    let mut first = create(size, TIMEOUT);
    let address = first.address();
    thread::scope(|scope| {
        for rank in 1..size {
            let (body, address) = (&body, &address);
            scope.spawn(move || {
                body(rank, &mut open(address, [rank, size]));
            });
        }
        body(0, &mut first);
    });
}

fn random(rank: usize, length: i64, kind: Kind) -> Tensor {
    let ramp = Tensor::arange(length, (Kind::Double, Device::Cpu));
    ((ramp * (rank as f64 + 1.3)).sin() * 100.0).to_kind(kind)
}

/// The sum over ranks in fp64, rounded once.
fn whole(size: usize, length: i64, kind: Kind) -> Tensor {
    let terms = (0..size).map(|rank| random(rank, length, kind).to_kind(Kind::Double));
    terms.reduce(|left, right| left + right).unwrap().to_kind(kind)
}

#[test]
fn sums_of_every_size_and_kind_equal_the_whole() {
    for size in [1, 2, 3, 4] {
        // Nothing, one number, a piece that is not full, several chunks and a rest.
        for length in [0, 1, 1000, 700_001] {
            ranks(size, |rank, memory| {
                for (kind, tolerance) in [(Kind::Float, 1e-4), (Kind::Double, 1e-9), (Kind::Int64, 0.0)] {
                    let tensor = random(rank, length, kind);
                    memory.all_reduce(&tensor, Reduction::Sum).unwrap();
                    let worst = (tensor - whole(size, length, kind)).abs().to_kind(Kind::Double);
                    assert!(length == 0 || worst.max().double_value(&[]) <= tolerance);
                }
            });
        }
    }
}

#[test]
fn bf16_is_summed_in_fp32() {
    ranks(4, |_, memory| {
        // 256 + 1 + 1 + 1: in bf16 each 1 would be lost, the sum of all rounds to 260 (spacing 2 above 256:
        // 259 to even).
        let tensor =
            Tensor::full([3], if memory.rank == 0 { 256.0 } else { 1.0 }, (Kind::BFloat16, Device::Cpu));
        memory.all_reduce(&tensor, Reduction::Sum).unwrap();
        assert_eq!(tensor.double_value(&[2]), 260.0);
    });
}

#[test]
fn largest_and_smallest() {
    ranks(3, |rank, memory| {
        for (reduction, wanted) in [(Reduction::Max, 2.0), (Reduction::Min, 0.0)] {
            let tensor = Tensor::full([5], rank as f64, (Kind::Float, Device::Cpu));
            memory.all_reduce(&tensor, reduction).unwrap();
            assert_eq!(tensor.double_value(&[4]), wanted);
        }
    });
}

#[test]
fn gather_and_scatter_are_one_anothers_reverse() {
    let (size, length) = (3, 200_003);
    ranks(size, |rank, memory| {
        let input = random(rank, length, Kind::Float);
        let all = Tensor::zeros([length * size as i64], (Kind::Float, Device::Cpu));
        memory.all_gather(&all, &input).unwrap();
        for other in 0..size {
            assert_eq!(all.narrow(0, other as i64 * length, length), random(other, length, Kind::Float));
        }
        let chunk = Tensor::zeros([length], (Kind::Float, Device::Cpu));
        memory.reduce_scatter(&chunk, &all).unwrap();
        assert!(chunk.allclose(&(input * 3.0), 1e-6, 1e-4, false));
    });
}

#[test]
fn uneven_parts_reach_their_rank() {
    let size = 3;
    // Rank r sends 100 000 (r + 1) numbers of value 10 r + d to rank d, and none to itself.
    let count = |from: usize, to: usize| if from == to { 0 } else { 100_000 * (from + 1) };
    ranks(size, |rank, memory| {
        let sent: Vec<usize> = (0..size).map(|to| count(rank, to) * 4).collect();
        let received: Vec<usize> = (0..size).map(|from| count(from, rank) * 4).collect();
        let concat_chunks = |counts: &[usize], value: &dyn Fn(usize) -> usize| {
            let chunks: Vec<Tensor> = (0..size)
                .map(|other| {
                    let options = (Kind::Float, Device::Cpu);
                    Tensor::full([(counts[other] / 4) as i64], value(other) as f64, options)
                })
                .collect();
            Tensor::cat(&chunks, 0)
        };
        let input = concat_chunks(&sent, &|to| 10 * rank + to);
        let output = concat_chunks(&received, &|_| 99);
        memory.all_to_all(&output, &input, [&received, &sent]).unwrap();
        assert_eq!(output, concat_chunks(&received, &|from| 10 * from + rank));
    });
}

#[test]
fn everyone_hears_the_root() {
    ranks(3, |rank, memory| {
        let tensor = random(rank, 300_000, Kind::Float);
        memory.broadcast(&tensor, 1).unwrap();
        assert_eq!(tensor, random(1, 300_000, Kind::Float));
    });
}

#[test]
fn one_after_another_nothing_is_overtaken() {
    ranks(4, |rank, memory| {
        for round in 0..500 {
            let tensor = Tensor::from_slice(&[(rank + round) as f32]);
            memory.all_reduce(&tensor, Reduction::Sum).unwrap();
            assert_eq!(tensor.double_value(&[0]), (4 * round + 6) as f64);
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let (tell, hear) = mpsc::channel();
    let mut first = create(2, Duration::from_millis(200));
    let address = first.address();
    let other = thread::spawn(move || {
        let _memory = open(&address, [1, 2]);
        hear.recv().unwrap();
    });
    let error = first.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 1 is missing") && error.contains("did not arrive within 200ms"), "{error}");
    tell.send(()).unwrap();
    other.join().unwrap();
}

#[test]
fn a_tensor_that_does_not_fit_is_refused() {
    let mut memory = create(1, TIMEOUT);
    let [short, long] = [2, 3].map(|length| Tensor::zeros([length], (Kind::Float, Device::Cpu)));
    let error = memory.all_gather(&short, &long).unwrap_err().to_string();
    assert!(error.contains("a tensor has 8 bytes and must have 12"), "{error}");
    let turned = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)).tr();
    assert!(memory.all_reduce(&turned, Reduction::Sum).is_err());
}

/// What two ranks hear that call different things; both hear it, and none waits for the other.
fn refused(
    first: impl Fn(&mut SharedMemory) -> Result<(), Error> + Sync,
    second: impl Fn(&mut SharedMemory) -> Result<(), Error> + Sync,
) -> [String; 2] {
    let heard = [const { std::sync::Mutex::new(String::new()) }; 2];
    ranks(2, |rank, memory| {
        // What was agreed on before stays agreed on.
        memory.barrier().unwrap();
        let outcome = if rank == 0 { first(memory) } else { second(memory) };
        *heard[rank].lock().unwrap() = outcome.unwrap_err().to_string();
    });
    heard.map(|text| text.into_inner().unwrap())
}

#[test]
fn ranks_that_pass_different_sizes_are_named() {
    let floats = |length: i64| Tensor::ones([length], (Kind::Float, Device::Cpu));
    // A piece and two, several chunks and none.
    for [short, long] in [[2, 3], [0, 1], [100_000, 900_000]] {
        let reduce =
            |length: i64| move |memory: &mut SharedMemory| memory.all_reduce(&floats(length), Reduction::Sum);
        let errors = refused(reduce(short), reduce(long));
        let wanted = format!(
            "all_reduce over shared memory: rank 1 of the group passes {} bytes, and rank 0 {}",
            long * 4,
            short * 4
        );
        assert_eq!(errors[0], wanted);
        assert!(
            errors[1].contains(&format!("rank 0 of the group passes {} bytes", short * 4)),
            "{}",
            errors[1]
        );
        let share = |length: i64| move |memory: &mut SharedMemory| memory.broadcast(&floats(length), 0);
        assert!(refused(share(short), share(long))[1].contains("rank 0 of the group passes"));
        let gather = |length: i64| {
            move |memory: &mut SharedMemory| memory.all_gather(&floats(2 * length), &floats(length))
        };
        assert!(refused(gather(short), gather(long))[0].contains("all_gather over shared memory: rank 1"));
        let scatter = |length: i64| {
            move |memory: &mut SharedMemory| memory.reduce_scatter(&floats(length), &floats(2 * length))
        };
        assert!(
            refused(scatter(short), scatter(long))[0].contains("reduce_scatter over shared memory: rank 1")
        );
    }
}

#[test]
fn ranks_that_call_different_collectives_are_named() {
    // As many bytes of either kind.
    let tensor = |kind: Kind| Tensor::ones([16 / kind.elt_size_in_bytes() as i64], (kind, Device::Cpu));
    let sum = |memory: &mut SharedMemory| memory.all_reduce(&tensor(Kind::Float), Reduction::Sum);
    let errors = refused(sum, SharedMemory::barrier);
    assert_eq!(
        errors[0],
        "all_reduce over shared memory: rank 1 of the group calls barrier, and rank 0 all_reduce"
    );
    let errors = refused(sum, |memory| memory.all_reduce(&tensor(Kind::Double), Reduction::Sum));
    assert!(errors[1].contains("rank 0 of the group uses another dtype"), "{}", errors[1]);
    assert!(
        refused(sum, |memory| memory.all_reduce(&tensor(Kind::Float), Reduction::Max))[0]
            .contains("reduction")
    );
}

#[test]
fn parts_that_are_not_expected_are_named() {
    let bytes = |length: usize| Tensor::ones([length as i64], (Kind::Uint8, Device::Cpu));
    // Rank 0 sends 5 bytes to rank 1, which expects 6.
    let errors = refused(
        |memory| memory.all_to_all(&bytes(3), &bytes(6), [&[1, 2], &[1, 5]]),
        |memory| memory.all_to_all(&bytes(7), &bytes(3), [&[6, 1], &[2, 1]]),
    );
    for error in errors {
        assert!(error.contains("rank 0 of the group sends 5 bytes to rank 1, which expects 6"), "{error}");
    }
}
