//! Process settings to make before the first tensor operation: heap policy and threads.
//!
//! With more threads than cores, every operation waits for the scheduler, so `ranks x threads <= cores` is
//! enforced. The exception is one thread per rank with a few more ranks than cores, for trying out a layout.

use parallel_sys::memory::{self, RejectedSetting};
use parallel_sys::runtime;

use crate::Error;

/// The maximum number of processes per core.
const PROCESSES_PER_CORE: usize = 4;

/// The number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The most processes of a job on this host.
pub fn max_processes() -> usize {
    cores() * PROCESSES_PER_CORE
}

/// Checks the number of processes on this host. Returns an error if it is zero, or so large that the
/// processes would mostly wait for one another.
pub fn check_processes(processes: usize) -> Result<(), Error> {
    if processes == 0 || processes > max_processes() {
        return Err(Error::Processes { processes, cores: cores(), most: max_processes() });
    }
    Ok(())
}

/// Initializes one of `processes` processes on this host. `threads` is the number of threads per operation;
/// `None` means an equal share of the cores, at least one thread.
///
/// Returns the settings that the C library rejected, which is not an error. Call it first in `main`.
pub fn init_process(threads: Option<usize>, processes: usize) -> Result<Vec<RejectedSetting>, Error> {
    check_processes(processes)?;
    let cores = cores();
    let threads = threads.unwrap_or((cores / processes).max(1));
    if threads == 0 || (threads > 1 && threads * processes > cores) {
        return Err(Error::Threads { threads, processes, cores });
    }
    let refused = memory::keep_large_buffers();
    runtime::set_threads(threads);
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_and_none_are_refused() {
        let error = init_process(Some(100_000), 1).unwrap_err().to_string();
        assert!(error.starts_with("100000 threads in each of 1 processes"), "{error}");
        assert!(error.contains("--threads") && error.contains(&format!("at most {}", cores())), "{error}");
        let error = init_process(Some(0), 1).unwrap_err().to_string();
        assert!(error.contains("0 threads") && error.contains("at least 1"), "{error}");
    }

    #[test]
    fn processes_that_only_wait_for_one_another_are_refused() {
        let cores = cores();
        assert!(check_processes(1).is_ok() && check_processes(4 * cores).is_ok());
        let error = check_processes(4 * cores + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("use --nproc {cores}, or at most {}", 4 * cores)), "{error}");
        assert!(check_processes(0).is_err());
    }
}
