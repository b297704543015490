//! Rendezvous over TCP and collectives over Gloo: libtorch's c10d.
//!
//! Collectives start at once and are waited for; the tensors of a collective are contiguous, on the CPU, and live as long as
//! its [`Work`]. Calls on one group are made in the same order on every rank, or the ranks wait for one another until the
//! time-out of the group.

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

/// A table of bytes that one process serves and all ranks read and write.
///
/// Whoever reaches its port can write to it, so a value counts only if it carries a tag that was made with
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
    /// Serves a store on a socket that is bound already, and connects to it as `host`.
    pub fn serve(
        host: &str,
        listener: TcpListener,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let port = listener.local_addr().map_or(0, |address| address.port());
        // The store takes the socket over.
        Self::open(host, port, listener.into_raw_fd(), secret, timeout)
    }

    /// Connects to the store at `host`. What listens there must answer as a store does: libtorch waits for it
    /// without an end.
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
        // SAFETY: the text lives during the call; the seal belongs to the store from now on, and `pointer`
        // receives a store that belongs to us.
        let code = unsafe {
            let (milliseconds, seal) = (milliseconds(timeout), secret.clone().into_signer());
            raw::shim_store_open(host.as_ptr(), port, listener, milliseconds, seal, &raw mut pointer)
        };
        check("TCPStore", code)?;
        let pointer = NonNull::new(pointer).expect("a store that was opened");
        Ok(Self { pointer, secret: secret.clone() })
    }

    /// Sixteen hexadecimal digits for `subject`, which nobody outside the job can guess.
    pub fn token(&self, subject: &str) -> String {
        let tag = self.secret.tag(b"token", subject.as_bytes());
        secret::to_hex(&tag[..8])
    }

    /// The port that it is served on.
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

    /// The bytes that a rank of the job has written under `key`, once they are there. [`Error::InvalidTag`] where
    /// a stranger wrote them.
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

    /// Whether something is under `key`, by whomever.
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
        // SAFETY: ours, and dropped once.
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

/// How numbers of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum = 0,
    /// The largest.
    Max = 1,
    /// The smallest.
    Min = 2,
}

/// Ranks that talk over TCP.
#[derive(Debug)]
pub struct Gloo {
    pointer: NonNull<ShimGroup>,
}

// SAFETY: c10d locks its queue of work; the order of calls is the caller's business.
unsafe impl Send for Gloo {}
// SAFETY: as above.
unsafe impl Sync for Gloo {}

impl Gloo {
    /// Joins the group `name` as `rank` of `size`; returns once all have. `interface` is a network interface such as `eth0`, or
    /// empty for the one that the host's name resolves to.
    pub fn join(
        store: &Store,
        name: &str,
        interface: &str,
        [rank, size]: [usize; 2],
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (name, interface) = (text(name), text(interface));
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the texts live during the call, and `pointer` receives a group that belongs to us.
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

    /// Every rank's `tensor` becomes the reduction of all.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Work, Error> {
        self.start("all_reduce", &[tensor], |group, work| {
            // SAFETY: (here and below) a live group, live tensors, which the work keeps alive, and a place for the work.
            unsafe { raw::shim_all_reduce(group, tensor.as_ptr(), reduction as i32, work) }
        })
    }

    /// `output` becomes the inputs of all ranks, end to end.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start("all_gather", &[output, input], |group, work| {
            // SAFETY: as above.
            unsafe { raw::shim_all_gather(group, output.as_ptr(), input.as_ptr(), work) }
        })
    }

    /// Rank `i` receives the `i`-th part of every input. Counts are in rows of the first dimension, one a rank.
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

    /// Every rank's `tensor` becomes that of `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Work, Error> {
        self.start("broadcast", &[tensor], |group, work| {
            // SAFETY: as above.
            unsafe { raw::shim_broadcast(group, tensor.as_ptr(), narrow(root), work) }
        })
    }

    /// Returns once every rank has called it.
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
        // SAFETY: ours, and dropped once.
        unsafe { raw::shim_gloo_close(self.pointer.as_ptr()) };
    }
}

/// A collective under way.
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
    /// Returns once the tensors hold the result, or with what went wrong.
    pub fn wait(self) -> Result<(), Error> {
        // SAFETY: a live work.
        check(self.call, unsafe { raw::shim_work_wait(self.pointer.as_ptr()) })
    }

    /// Whether waiting would return at once.
    pub fn is_done(&self) -> Result<bool, Error> {
        let mut done = false;
        // SAFETY: a live work and a place for the answer.
        let code = unsafe { raw::shim_work_is_done(self.pointer.as_ptr(), &raw mut done) };
        check(self.call, code).map(|()| done)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
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
