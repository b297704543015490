//! Rendezvous over TCP and collectives over Gloo, both from libtorch's c10d.
//!
//! A collective returns a [`Work`] at once, and the caller waits for it later. The tensors of a collective
//! are contiguous and on the CPU, and the [`Work`] keeps them alive. Every rank makes the calls on one group
//! in the same order; otherwise the ranks wait for one another until the timeout of the group.

mod secret;

use std::ffi::{CString, c_void};
use std::net::TcpListener;
use std::os::fd::{IntoRawFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use tch::Tensor;

use crate::raw::{ShimGroup, ShimStore, ShimValue, ShimWork};
use crate::{Error, check, raw};

pub use secret::Secret;

/// A key-value store that one process serves and that all ranks read and write.
///
/// Anyone who can connect to its port can write to it, so a value is valid only with a tag that was made with
/// the secret of the job.
#[derive(Debug)]
pub struct Store {
    pointer: NonNull<ShimStore>,
    secret: Secret,
}

// SAFETY: the store locks inside each call.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store on a socket that is already bound, and connects to it as `host`.
    pub fn serve(
        host: &str,
        listener: TcpListener,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let port = listener.local_addr().map_or(0, |address| address.port());
        // The store takes ownership of the socket.
        Self::open(host, port, listener.into_raw_fd(), secret, timeout)
    }

    /// Connects to the store at `host`. The listener there must be a store: libtorch waits for its answer
    /// without a timeout.
    pub fn connect(host: &str, port: u16, secret: &Secret, timeout: Duration) -> Result<Self, Error> {
        Self::open(host, port, -1, secret, timeout)
    }

    fn open(
        host: &str,
        port: u16,
        listener: RawFd,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let host = text(host);
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the text lives during the call; the store takes ownership of the signer, and `pointer`
        // receives a store that belongs to the caller.
        let code = unsafe {
            let (milliseconds, seal) = (milliseconds(timeout), secret.clone().into_signer());
            raw::shim_store_open(host.as_ptr(), port, listener, milliseconds, seal, &raw mut pointer)
        };
        check("TCPStore", code)?;
        let pointer = NonNull::new(pointer).expect("a store that was opened");
        Ok(Self { pointer, secret: secret.clone() })
    }

    /// Returns sixteen hexadecimal digits for `subject` that cannot be guessed without the secret.
    pub fn token(&self, subject: &str) -> String {
        let tag = self.secret.tag(b"token", subject.as_bytes());
        secret::to_hex(&tag[..8])
    }

    /// The port of the store.
    pub fn port(&self) -> u16 {
        // SAFETY: a live store.
        unsafe { raw::shim_store_port(self.pointer.as_ptr()) }
    }

    /// Writes `bytes` under `key`.
    pub fn set(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let name = text(key);
        // SAFETY: key and bytes live during the call.
        let code =
            unsafe { raw::shim_store_set(self.pointer.as_ptr(), name.as_ptr(), bytes.as_ptr(), bytes.len()) };
        check("TCPStore::set", code)
    }

    /// Waits for the bytes that a rank of the job writes under `key` and returns them. Fails with
    /// [`Error::InvalidTag`] if they were not written by a rank of the job.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        let name = text(key);
        let mut bytes: Vec<u8> = Vec::new();
        // SAFETY: `copy` is only called during the call, with `bytes` as its context.
        let code = unsafe {
            raw::shim_store_get(
                self.pointer.as_ptr(),
                name.as_ptr(),
                milliseconds(timeout),
                copy,
                (&raw mut bytes).cast(),
            )
        };
        if code == 2 {
            return Err(Error::InvalidTag { key: key.to_owned() });
        }
        check("TCPStore::get", code)?;
        Ok(bytes)
    }

    /// Whether there is a value under `key`. Its tag is not checked.
    pub fn check(&self, key: &str) -> Result<bool, Error> {
        let name = text(key);
        let mut there = false;
        // SAFETY: key and answer live during the call.
        check("TCPStore::check", unsafe {
            raw::shim_store_has(self.pointer.as_ptr(), name.as_ptr(), &raw mut there)
        })?;
        Ok(there)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and dropped once.
        unsafe { raw::shim_store_close(self.pointer.as_ptr()) };
    }
}

extern "C" fn copy(context: *mut c_void, value: *const ShimValue) {
    // SAFETY: `get` passes a live vector, and the shim bytes that live during the call.
    unsafe {
        let value = &*value;
        if value.length > 0 {
            let bytes = std::slice::from_raw_parts(value.data.cast::<u8>(), value.length);
            (*context.cast::<Vec<u8>>()).extend_from_slice(bytes);
        }
    }
}

/// The operation of a reduction over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum = 0,
    /// The maximum.
    Max = 1,
    /// The minimum.
    Min = 2,
}

/// A process group of c10d over Gloo.
#[derive(Debug)]
pub struct Gloo {
    pointer: NonNull<ShimGroup>,
}

// SAFETY: c10d locks its work queue; the caller is responsible for the order of calls.
unsafe impl Send for Gloo {}
// SAFETY: as above.
unsafe impl Sync for Gloo {}

impl Gloo {
    /// Joins the group `name` as `rank` of `size`, and blocks until all ranks have joined. `interface` is a
    /// network interface such as `eth0`; if it is empty, Gloo takes the one that the host name resolves to.
    pub fn join(
        store: &Store,
        name: &str,
        interface: &str,
        [rank, size]: [usize; 2],
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (name, interface) = (text(name), text(interface));
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the texts live during the call, and `pointer` receives a group that belongs to the caller.
        let code = unsafe {
            raw::shim_gloo_open(
                store.pointer.as_ptr(),
                name.as_ptr(),
                interface.as_ptr(),
                narrow(rank),
                narrow(size),
                milliseconds(timeout),
                &raw mut pointer,
            )
        };
        check("ProcessGroupGloo", code)?;
        Ok(Self { pointer: NonNull::new(pointer).expect("a group that was opened") })
    }

    /// Replaces every rank's `tensor` by the reduction over all ranks.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Work, Error> {
        self.start("all_reduce", &[tensor], |group, work| {
            // SAFETY: (here and below) a live group, live tensors that the work keeps alive, and a place for
            // the work.
            unsafe { raw::shim_all_reduce(group, tensor.as_ptr(), reduction as i32, work) }
        })
    }

    /// Writes the concatenated inputs of all ranks to `output`.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start("all_gather", &[output, input], |group, work| {
            // SAFETY: as above.
            unsafe { raw::shim_all_gather(group, output.as_ptr(), input.as_ptr(), work) }
        })
    }

    /// Sends the `i`-th chunk of every input to rank `i`. Counts are rows of the first dimension, one count
    /// per rank.
    pub fn all_to_all(
        &self,
        output: &Tensor,
        input: &Tensor,
        [received, sent]: [&[i64]; 2],
    ) -> Result<Work, Error> {
        assert_eq!(received.len(), sent.len(), "one count for each rank");
        self.start("all_to_all", &[output, input], |group, work| {
            // SAFETY: as above; the counts are copied during the call.
            unsafe {
                raw::shim_all_to_all(
                    group,
                    output.as_ptr(),
                    input.as_ptr(),
                    received.as_ptr(),
                    sent.as_ptr(),
                    sent.len(),
                    work,
                )
            }
        })
    }

    /// Copies the `tensor` of rank `root` to every rank, in place.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Work, Error> {
        self.start("broadcast", &[tensor], |group, work| {
            // SAFETY: as above.
            unsafe { raw::shim_broadcast(group, tensor.as_ptr(), narrow(root), work) }
        })
    }

    /// Blocks until every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        let start = |group, work| {
            // SAFETY: as above.
            unsafe { raw::shim_barrier(group, work) }
        };
        self.start("barrier", &[], start)?.wait()
    }

    fn start(
        &self,
        call: &'static str,
        tensors: &[&Tensor],
        start: impl FnOnce(*mut ShimGroup, *mut *mut ShimWork) -> libc::c_int,
    ) -> Result<Work, Error> {
        let mut pointer = std::ptr::null_mut();
        check(call, start(self.pointer.as_ptr(), &raw mut pointer))?;
        let pointer = NonNull::new(pointer).expect("work that was started");
        Ok(Work { call, pointer, _tensors: tensors.iter().map(|tensor| tensor.shallow_clone()).collect() })
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and dropped once.
        unsafe { raw::shim_gloo_close(self.pointer.as_ptr()) };
    }
}

/// A started collective.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub struct Work {
    call: &'static str,
    pointer: NonNull<ShimWork>,
    _tensors: Vec<Tensor>,
}

// SAFETY: c10d's work may be waited for on any thread.
unsafe impl Send for Work {}

impl Work {
    /// Blocks until the tensors hold the result, or returns the error.
    pub fn wait(self) -> Result<(), Error> {
        // SAFETY: a live work.
        check(self.call, unsafe { raw::shim_work_wait(self.pointer.as_ptr()) })
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> Result<bool, Error> {
        let mut done = false;
        // SAFETY: a live work and a place for the answer.
        let code = unsafe { raw::shim_work_is_done(self.pointer.as_ptr(), &raw mut done) };
        check(self.call, code).map(|()| done)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and dropped once.
        unsafe { raw::shim_work_free(self.pointer.as_ptr()) };
    }
}

fn text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no NUL is left")
}

fn narrow(number: usize) -> libc::c_int {
    libc::c_int::try_from(number).expect("ranks are few")
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
