//! Asynchronous transfers between files and arenas, past the page cache where the file system allows it.
//!
//! ```text
//!   DiskQueue::read, write -> Transfer     split into requests of at most REQUEST_BYTES
//!     first in, first out                  what exceeds QUEUE_DEPTH requests waits here
//!     io_uring, or a pool of threads       up to QUEUE_DEPTH requests in flight
//!   DiskQueue::is_done, wait               settle what is complete and start what waits
//! ```
//! A queue has no thread of its own that starts waiting requests: it does so in each of its calls. While more
//! than `QUEUE_DEPTH * REQUEST_BYTES` bytes (64 MiB) are asked for, call [`DiskQueue::is_done`] now and then
//! to keep the disk busy.
//!
//! Every request owns a reference to its file and its arena until the system has finished it, so dropping a
//! [`Transfer`], a file or an arena never leaves a request with memory that is gone. The order of requests is
//! not defined: a transfer that needs the result of another must be asked for after the wait for that one.
//!
//! Direct I/O (`O_DIRECT`) leaves the memory of the machine to the program, and needs offsets, lengths and
//! addresses that are multiples of [`BLOCK_BYTES`]. These modules do not know what the bytes mean.

mod file;
mod queue;
mod request;
mod threads;
mod uring;

pub use file::{BLOCK_BYTES, DiskFile, REQUEST_BYTES, free_bytes};
pub use queue::{DiskQueue, Transfer};
pub use uring::QUEUE_DEPTH;

#[cfg(test)]
mod tests;
