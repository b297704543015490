//! Ranks as threads of one process.

use std::thread;

use tch::Kind;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

fn serve(secret: &Secret) -> Store {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Store::serve("127.0.0.1", listener, secret, TIMEOUT).unwrap()
}

fn connect(port: u16, secret: &Secret) -> Store {
    Store::connect("127.0.0.1", port, secret, TIMEOUT).unwrap()
}

/// Runs `body` on `size` ranks, each a thread with a group of its own.
fn ranks(size: usize, body: impl Fn(usize, &Gloo) + Sync) {
    let secret = Secret::random().unwrap();
    let server = serve(&secret);
    let port = server.port();
    thread::scope(|scope| {
        for rank in 0..size {
            let (body, secret) = (&body, &secret);
            scope.spawn(move || {
                let store = connect(port, secret);
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
        let value = rank as f32;
        let tensor = row(&[value, 10.0 * value]);
        gloo.all_reduce(&tensor, Reduction::Sum).unwrap().wait().unwrap();
        assert_eq!(values(&tensor), [3.0, 30.0]);

        let gathered = Tensor::zeros([3], (Kind::Float, tch::Device::Cpu));
        gloo.all_gather(&gathered, &row(&[value + 1.0])).unwrap().wait().unwrap();
        assert_eq!(values(&gathered), [1.0, 2.0, 3.0]);

        // Rank r sends r + 1 numbers to rank 0 and none to the others.
        let sent: [i64; 3] = [rank as i64 + 1, 0, 0];
        let received: [i64; 3] = if rank == 0 { [1, 2, 3] } else { [0, 0, 0] };
        let output = Tensor::zeros([received.iter().sum()], (Kind::Float, tch::Device::Cpu));
        let input = Tensor::full([rank as i64 + 1], f64::from(value), (Kind::Float, tch::Device::Cpu));
        gloo.all_to_all(&output, &input, [&received, &sent]).unwrap().wait().unwrap();
        assert_eq!(values(&output), if rank == 0 { vec![0.0, 1.0, 1.0, 2.0, 2.0, 2.0] } else { vec![] });

        let received = row(&[value]);
        gloo.broadcast(&received, 2).unwrap().wait().unwrap();
        assert_eq!(values(&received), [2.0]);
    });
}

#[test]
fn a_store_keeps_and_times_out() {
    let store = serve(&Secret::random().unwrap());
    store.set("a", b"x\0y").unwrap();
    store.set("nothing", b"").unwrap();
    assert_eq!(store.get("a", TIMEOUT).unwrap(), b"x\0y");
    assert_eq!(store.get("nothing", TIMEOUT).unwrap(), b"");
    assert!(store.check("a").unwrap() && !store.check("b").unwrap());
    assert!(store.get("b", Duration::from_millis(50)).is_err());
}

#[test]
fn a_value_of_a_stranger_is_refused_by_its_key() {
    let secret = Secret::random().unwrap();
    let server = serve(&secret);
    let stranger = connect(server.port(), &Secret::random().unwrap());
    stranger.set("host", b"mine").unwrap();
    let error = server.get("host", TIMEOUT).unwrap_err();
    assert!(matches!(&error, Error::InvalidTag { key } if key == "host"), "{error}");
    // What a rank writes after it counts.
    connect(server.port(), &secret).set("host", b"ours").unwrap();
    assert_eq!(server.get("host", TIMEOUT).unwrap(), b"ours");
    assert!(stranger.get("host", TIMEOUT).is_err());
}

#[test]
fn gloo_believes_no_address_of_a_stranger() {
    let secret = Secret::random().unwrap();
    let server = serve(&secret);
    let stranger = connect(server.port(), &Secret::random().unwrap());
    // The key under which Gloo leaves the addresses of rank 1, who is the stranger.
    stranger.set("test/0/1", b"127.0.0.1").unwrap();
    let error = Gloo::join(&server, "test", "lo", [0, 2], TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("was not written by a rank of this job"), "{error}");
}

#[test]
fn a_rank_that_goes_away_ends_the_collective() {
    let secret = &Secret::random().unwrap();
    let server = serve(secret);
    let port = server.port();
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let store = connect(port, secret);
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

#[test]
fn sizes_that_differ_over_gloo_end_the_job() {
    let secret = Secret::random().unwrap();
    let server = serve(&secret);
    let port = server.port();
    let errors: Vec<String> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let secret = &secret;
                scope.spawn(move || {
                    let store = connect(port, secret);
                    let gloo = Gloo::join(&store, "sizes", "lo", [rank, 2], Duration::from_secs(5)).unwrap();
                    let tensor = Tensor::ones([2 + rank as i64], (Kind::Float, tch::Device::Cpu));
                    let outcome = gloo.all_reduce(&tensor, Reduction::Sum).unwrap().wait();
                    outcome.map_or_else(|error| error.to_string(), |()| String::new())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // Gloo tells the rank that passes more, and maybe the other; one rank that fails ends the job.
    assert!(errors.iter().any(|error| error.starts_with("all_reduce: ")), "{errors:?}");
}
