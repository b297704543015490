//! What a process sets before its first tensor operation: heap policy and threads.
//!
//! More threads than cores make every operation wait for a scheduler slice, so `ranks x threads <= cores` is a rule and not
//! advice. The environment of a launcher is read here and nowhere else.

use parallel_sys::{memory, runtime};

use crate::Error;

/// Prepares one of `processes` processes of this host. `threads` is the number of threads of one operation, or `None` for a fair
/// share of the cores, and at least one.
///
/// Returns the number set. Call first thing in `main`.
pub fn prepare(threads: Option<usize>, processes: usize) -> Result<usize, Error> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = threads.unwrap_or((cores / processes).max(1));
    if threads == 0 || (threads > 1 && threads * processes > cores) {
        return Err(Error::Threads { threads, processes, cores });
    }
    memory::keep_large_buffers()?;
    runtime::set_threads(threads);
    Ok(threads)
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_threads_than_cores_are_refused() {
        let error = super::prepare(Some(100_000), 1).unwrap_err().to_string();
        assert!(error.starts_with("100000 threads in each of 1 processes"), "{error}");
    }
}
