//! The rendezvous of a job: the processes meet at a store that rank 0 or a launcher serves, and that the
//! others reach over TCP.
//!
//! The store of a job on one host listens on loopback only. The store of a job on several hosts listens on
//! every interface, because any host may connect to it. In both cases a value is valid only with a tag made
//! with the secret of the job (`parallel_sys::c10d`). The process that serves the store first writes a marker
//! value. A rank that finds no marker, or a marker with a tag from another secret, has reached the store of
//! another job.
//!
//! libtorch waits for any listener at the address, so a rank first checks by itself that a store answers
//! (`wait_for_store`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parallel_sys::c10d::Store;

use crate::world::RankInfo;
use crate::{Error, SysError};

pub use crate::world::{JOB_SECRET, secret_from_environment};

/// How long a host, or the program that listens on it, may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The key of the marker value, which is the first value of every store.
const STORE_MARKER_KEY: &str = "job";

/// Serves the store of a job if `rank_info` says that this process hosts it, and connects to it otherwise. An
/// unreachable host, and a listener that is not the store of this job, are reported within ten seconds. If
/// nothing listens on the host yet, the function retries until `timeout`.
pub fn open_store(rank_info: &RankInfo, timeout: Duration) -> Result<Store, Error> {
    let RankInfo { address: host, port, secret, .. } = rank_info;
    let address = || format!("{host}:{port}");
    let secret = secret.as_ref().ok_or(Error::NoSecret { rank: rank_info.rank, size: rank_info.size })?;
    let failed = |cause| Error::Rendezvous { address: address(), cause };

    if rank_info.hosts_store() {
        let listener = listen(host, *port).map_err(|cause| Error::Port { address: address(), cause })?;
        let store = Store::serve(host, listener, secret, timeout).map_err(failed)?;
        store.set(STORE_MARKER_KEY, b"colossal-chat").map_err(failed)?;
        return Ok(store);
    }

    wait_for_store(host, *port, timeout)?;
    let store = Store::connect(host, *port, secret, timeout).map_err(failed)?;

    // The store of torchrun's agent has no marker.
    if rank_info.restart_count.is_empty() {
        store.get(STORE_MARKER_KEY, PROBE_TIMEOUT).map_err(|cause| Error::NotAStore {
            address: address(),
            problem: match cause {
                SysError::InvalidTag { .. } => "belongs to a job with another secret",
                _ => "is a store, but not one that this program serves",
            },
        })?;
    }
    Ok(store)
}

/// Binds the port: on loopback if all ranks are on this host, otherwise on every interface.
fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    if is_loopback(host) {
        return TcpListener::bind((host, port));
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        other => other,
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The result of one attempt to reach a store.
enum ProbeResult {
    Store,
    /// Nothing listens yet.
    NotListening,
    /// The listener has closed the connection.
    Closed,
}

/// Blocks until a store answers at the address.
fn wait_for_store(host: &str, port: u16, timeout: Duration) -> Result<(), Error> {
    let until = Instant::now() + timeout;
    let mut closed: Option<Instant> = None;
    loop {
        match probe(host, port)? {
            ProbeResult::Store => return Ok(()),
            ProbeResult::NotListening if Instant::now() < until => closed = None,
            ProbeResult::NotListening => {
                let cause = ErrorKind::ConnectionRefused.into();
                return Err(Error::Unreachable { address: format!("{host}:{port}"), cause });
            }
            // A store that is shutting down also closes connections, so retry for a while.
            ProbeResult::Closed if closed.get_or_insert_with(Instant::now).elapsed() < PROBE_TIMEOUT => {}
            ProbeResult::Closed => {
                let problem = "closes every connection";
                return Err(Error::NotAStore { address: format!("{host}:{port}"), problem });
            }
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Checks whether the listener at the address is a store, with the first messages of libtorch's store
/// protocol.
fn probe(host: &str, port: u16) -> Result<ProbeResult, Error> {
    const VALIDATE: u8 = 0;
    const MAGIC: u32 = 0x3C85_F7CE;
    const PING: u8 = 13;

    let until = Instant::now() + PROBE_TIMEOUT;
    let address = format!("{host}:{port}");
    let mut stream = match connect(host, port, until) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(ProbeResult::NotListening),
        other => other.map_err(|cause| Error::Unreachable { address: address.clone(), cause })?,
    };

    // A store answers a ping with the nonce of the ping.
    let nonce = std::process::id().to_ne_bytes();
    let words = [&[VALIDATE][..], &MAGIC.to_ne_bytes(), &[PING], &nonce].concat();
    let mut answer = [0; 4];
    let asked = stream
        .set_read_timeout(Some(time_left(until)))
        .and_then(|()| stream.write_all(&words))
        .and_then(|()| stream.read_exact(&mut answer));

    let problem = match asked {
        Ok(()) if answer == nonce => return Ok(ProbeResult::Store),
        Ok(()) => "answers, but not as a store does",
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            "does not answer"
        }
        Err(_) => return Ok(ProbeResult::Closed),
    };
    Err(Error::NotAStore { address, problem })
}

/// Connects to the first address of the host that answers before `until`.
fn connect(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "no such host");
    for address in resolve(host, port, time_left(until))? {
        match TcpStream::connect_timeout(&address, time_left(until)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Resolves the addresses of a host, for at most `timeout` in case the name server does not answer.
fn resolve(host: &str, port: u16, timeout: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let (found, answer) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new().spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs();
        // The receiver is gone after the timeout.
        let _ = found.send(addresses.map(Iterator::collect));
    })?;
    answer.recv_timeout(timeout).unwrap_or_else(|_| {
        let message = format!("its host name was not resolved within {} s", PROBE_TIMEOUT.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, message))
    })
}

/// The time left until `until`, at least 10 ms: a timeout of zero would mean to wait forever.
fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use parallel_sys::c10d::Secret;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// The rank info of rank 1 of a job whose store should be at this port.
    fn rank_info(port: u16, secret: &Secret) -> RankInfo {
        RankInfo { rank: 1, size: 2, port, secret: Some(secret.clone()), ..RankInfo::single() }
    }

    /// Returns the error of rank 1 for a listener that applies `act` to every connection, and the time until
    /// the error.
    fn told_of(act: impl Fn(TcpStream) -> Option<TcpStream> + Send + 'static) -> (String, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut open = Vec::new();
            listener.incoming().map_while(Result::ok).for_each(|stream| open.extend(act(stream)));
        });
        let started = Instant::now();
        let error =
            open_store(&rank_info(port, &Secret::random().unwrap()), TIMEOUT).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
        (error, started.elapsed())
    }

    #[test]
    fn what_listens_and_is_no_store_is_named_within_ten_seconds() {
        let http = |mut stream: TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            Some(stream)
        };
        thread::scope(|scope| {
            let silent = scope.spawn(|| told_of(Some));
            let closing = scope.spawn(|| told_of(|_| None));
            let http = scope.spawn(move || told_of(http));
            for (ended, wanted) in [
                (silent, "does not answer"),
                (closing, "closes every connection"),
                (http, "answers, but not as a store does"),
            ] {
                let (error, took) = ended.join().unwrap();
                assert!(error.contains(wanted), "{error}");
                assert!(took < Duration::from_secs(10), "{took:?}");
            }
        });
    }

    #[test]
    fn a_host_that_takes_no_connection_is_named_within_ten_seconds() {
        // A listener with a full queue drops new connections, as a host behind a firewall does.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waiting: Vec<TcpStream> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok())
                .take(10_000)
                .collect();
        assert!(waiting.len() < 10_000, "the queue is never full");
        let started = Instant::now();
        let rank_info = rank_info(address.port(), &Secret::random().unwrap());
        let error = open_store(&rank_info, TIMEOUT).unwrap_err().to_string();
        assert!(error.contains(&format!("{address} cannot be reached: ")), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[test]
    fn the_store_of_another_job_is_named() {
        let secret = Secret::random().unwrap();
        let serving = RankInfo { rank: 0, ..rank_info(0, &secret) };
        let store = open_store(&serving, TIMEOUT).unwrap();
        open_store(&rank_info(store.port(), &secret), TIMEOUT).unwrap();
        let other = rank_info(store.port(), &Secret::random().unwrap());
        let error = open_store(&other, TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("belongs to a job with another secret"), "{error}");
        // A c10d store without the marker of this program.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let foreign = Store::serve("127.0.0.1", listener, &secret, TIMEOUT).unwrap();
        let error = open_store(&rank_info(foreign.port(), &secret), TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("not one that this program serves"), "{error}");
    }

    #[test]
    fn the_store_of_one_host_listens_on_loopback_alone() {
        let serving = RankInfo { rank: 0, ..rank_info(0, &Secret::random().unwrap()) };
        let store = open_store(&serving, TIMEOUT).unwrap();
        let port = format!(":{:04X}", store.port());
        let listening: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .flat_map(|table| {
                std::fs::read_to_string(table)
                    .unwrap_or_default()
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                (fields.get(3) == Some(&"0A")).then(|| fields[1].to_owned())
            })
            .filter(|address| address.ends_with(&port))
            .collect();
        assert_eq!(listening, [format!("0100007F{port}")]);
    }

    #[test]
    fn a_job_without_a_secret_is_refused() {
        let without = RankInfo { secret: None, ..rank_info(1, &Secret::random().unwrap()) };
        let error = open_store(&without, TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("COLOSSAL_JOB_SECRET is not set"), "{error}");
    }

    #[test]
    fn only_this_host_is_loopback() {
        assert!(["localhost", "127.0.0.1", "127.8.0.1", "::1"].into_iter().all(is_loopback));
        assert!(!["node1", "10.0.0.1", "::", "0.0.0.0"].into_iter().any(is_loopback));
    }
}
