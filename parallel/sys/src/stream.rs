//! CUDA streams beside the one on which torch computes.
//!
//! A collective over NCCL occupies its stream until every rank has joined it. On torch's current stream it
//! would block computation, and two ranks that both send before they receive would deadlock. A collective
//! therefore runs on a side stream: after the operations that torch had queued when it was started, and
//! before the operations that torch queues after the wait. The host blocks for neither.
//!
//! The streams come from torch's pool of 32; a process opens one for each of its groups.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::raw::{ShimEvent, ShimStream};
use crate::{Error, check, raw};

/// A CUDA stream.
#[derive(Debug)]
pub struct SideStream {
    pointer: NonNull<ShimStream>,
    device: usize,
}

// SAFETY: a stream of torch's pool may be used on any thread; the caller is responsible for the order of
// calls.
unsafe impl Send for SideStream {}

impl SideStream {
    /// Opens a stream of the GPU `device`, which becomes the current device of this thread.
    pub fn open(device: usize) -> Result<Self, Error> {
        let number = libc::c_int::try_from(device).expect("few GPUs");
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` receives a stream that belongs to the caller.
        check("getStreamFromGlobalPool", unsafe { raw::shim_stream_open(number, &raw mut pointer) })?;
        Ok(Self { pointer: NonNull::new(pointer).expect("a stream that was opened"), device })
    }

    /// The index of the GPU.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Calls `queue` with the handle of the CUDA stream, after making the stream wait for all operations that
    /// torch has queued so far. Returns an event that is recorded after the work of `queue`.
    pub(crate) fn run(&self, queue: impl FnOnce(*mut c_void) -> Result<(), Error>) -> Result<Event, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live stream and a place for its handle.
        check("Stream::wait", unsafe {
            raw::shim_stream_wait_current(self.pointer.as_ptr(), &raw mut handle)
        })?;
        queue(handle)?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a live stream, and `event` receives an event that belongs to the caller.
        check("Event::record", unsafe {
            raw::shim_stream_record_event(self.pointer.as_ptr(), &raw mut event)
        })?;
        Ok(Event { pointer: NonNull::new(event).expect("an event that was recorded") })
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and dropped once.
        unsafe { raw::shim_stream_close(self.pointer.as_ptr()) };
    }
}

/// A recorded point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    pointer: NonNull<ShimEvent>,
}

// SAFETY: an event may be waited for on any thread.
unsafe impl Send for Event {}

impl Event {
    /// Makes torch operations that are queued from now on wait for this event.
    pub(crate) fn block(&self) -> Result<(), Error> {
        // SAFETY: a live event.
        check("Event::block", unsafe { raw::shim_event_block(self.pointer.as_ptr()) })
    }

    /// Whether the stream has reached this event.
    pub(crate) fn query(&self) -> Result<bool, Error> {
        let mut done = false;
        // SAFETY: a live event, and a place for the answer.
        check("Event::query", unsafe { raw::shim_event_query(self.pointer.as_ptr(), &raw mut done) })?;
        Ok(done)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and dropped once.
        unsafe { raw::shim_event_free(self.pointer.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::SideStream;

    #[test]
    fn without_a_gpu_there_is_no_queue_of_one() {
        if tch::Cuda::is_available() {
            return;
        }
        let error = SideStream::open(0).unwrap_err().to_string();
        assert!(error.starts_with("getStreamFromGlobalPool: "), "{error}");
        assert!(error.to_lowercase().contains("cuda"), "{error}");
    }
}
