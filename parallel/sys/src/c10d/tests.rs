//! Ranks as threads of one process.

use std::thread;

use tch::Kind;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `body` on `size` ranks, each a thread with a group of its own.
fn ranks(size: usize, body: impl Fn(usize, &Gloo) + Sync) {
    let server = Store::open("127.0.0.1", 0, true, TIMEOUT).unwrap();
    let port = server.port();
    thread::scope(|scope| {
        for rank in 0..size {
            let body = &body;
            scope.spawn(move || {
                let store = Store::open("127.0.0.1", port, false, TIMEOUT).unwrap();
                let gloo = Gloo::join(&store, "test", "lo", [rank, size], TIMEOUT).unwrap();
                body(rank, &gloo);
                gloo.barrier().unwrap();
            });
        }
    });
}

fn row(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn three_ranks_exchange_by_hand_computed_numbers() {
    ranks(3, |rank, gloo| {
        let own = rank as f32;
        let tensor = row(&[own, 10.0 * own]);
        gloo.all_reduce(&tensor, Reduction::Sum).unwrap().wait().unwrap();
        assert_eq!(values(&tensor), [3.0, 30.0]);

        let gathered = Tensor::zeros([3], (Kind::Float, tch::Device::Cpu));
        gloo.all_gather(&gathered, &row(&[own + 1.0])).unwrap().wait().unwrap();
        assert_eq!(values(&gathered), [1.0, 2.0, 3.0]);

        // Rank r sends r + 1 numbers to rank 0 and none to the others.
        let sent: [i64; 3] = [rank as i64 + 1, 0, 0];
        let received: [i64; 3] = if rank == 0 { [1, 2, 3] } else { [0, 0, 0] };
        let output = Tensor::zeros([received.iter().sum()], (Kind::Float, tch::Device::Cpu));
        let input = Tensor::full([rank as i64 + 1], f64::from(own), (Kind::Float, tch::Device::Cpu));
        gloo.all_to_all(&output, &input, [&received, &sent]).unwrap().wait().unwrap();
        assert_eq!(values(&output), if rank == 0 { vec![0.0, 1.0, 1.0, 2.0, 2.0, 2.0] } else { vec![] });

        let told = row(&[own]);
        gloo.broadcast(&told, 2).unwrap().wait().unwrap();
        assert_eq!(values(&told), [2.0]);
    });
}

#[test]
fn a_store_counts_keeps_and_times_out() {
    let store = Store::open("127.0.0.1", 0, true, TIMEOUT).unwrap();
    store.set("a", b"x\0y").unwrap();
    assert_eq!(store.get("a", TIMEOUT).unwrap(), b"x\0y");
    assert_eq!((store.add("n", 2).unwrap(), store.add("n", 3).unwrap()), (2, 5));
    assert!(store.has("a").unwrap() && !store.has("b").unwrap());
    assert!(store.get("b", Duration::from_millis(50)).is_err());
}

#[test]
fn a_rank_that_goes_away_ends_the_collective() {
    let server = Store::open("127.0.0.1", 0, true, TIMEOUT).unwrap();
    let port = server.port();
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let store = Store::open("127.0.0.1", port, false, TIMEOUT).unwrap();
                let gloo = Gloo::join(&store, "gone", "lo", [rank, 2], TIMEOUT).unwrap();
                if rank == 1 {
                    // It goes once the other has joined.
                    store.get("joined", TIMEOUT).unwrap();
                } else {
                    store.set("joined", b"").unwrap();
                    let error = gloo.all_reduce(&row(&[1.0]), Reduction::Sum).unwrap().wait().unwrap_err();
                    assert!(error.to_string().starts_with("all_reduce: "), "{error}");
                }
            });
        }
    });
}
