//! What a sandbox may take, and how many run at a time.
//!
//! ```text
//!   memory of a sandbox <= address space of the program        MEMORY
//!                        + its page tables                     8 KiB for each mapping
//!                        + /tmp                                TMP_SIZE
//!                        + process 1, pipes, sockets, inodes   OVERHEAD
//! ```
//! The sum holds by construction: the filter of system calls ([`parallel::syscall_filter`]) lets a program
//! start threads and no processes, and refuses memory that neither its address space nor `/tmp` counts. A
//! mapping takes a page table of its own and a table above that at most.

use std::time::Duration;

use parallel::memory;

/// The address space of a process, in bytes.
pub(super) const MEMORY: u64 = 1 << 30;
/// The largest file, in bytes.
pub(super) const FILE_SIZE: u64 = 16 << 20;
/// The size of `/tmp`, in bytes.
pub(super) const TMP_SIZE: u64 = 64 << 20;
/// The files and folders in `/tmp`. The kernel takes about 1 KiB for each beside its content.
pub(super) const TMP_FILES: u64 = 4096;
/// The threads of a program, and the processes of the sandbox with them.
pub(super) const THREADS: u64 = 16;
/// The open files of a process.
pub(super) const OPEN_FILES: u64 = 64;
/// What process 1, full pipes and sockets, and the kernel's records of files take, in bytes.
const OVERHEAD: u64 = 128 << 20;
/// How long the start of a sandbox may take on a busy machine.
pub(super) const START: Duration = Duration::from_secs(30);
/// How much later than the time limit the verdict may come on a busy machine.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// The most sandboxes at a time.
pub(super) const MOST_WORKERS: usize = 64;

/// The most memory that a sandbox takes, in bytes.
pub(crate) fn most_memory() -> u64 {
    const PAGE: u64 = 4096;
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let mappings = mappings.and_then(|count| count.trim().parse().ok()).unwrap_or(u64::MAX);
    MEMORY + 2 * PAGE * mappings.min(MEMORY / PAGE) + TMP_SIZE + OVERHEAD
}

/// The sandboxes that run at a time: one for each processor, and all together at most half of the memory
/// that is free now. One always runs; if memory runs out, the kernel ends it before other processes.
pub(super) fn at_a_time() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
    memory::available_bytes().map_or(cores, |free| fitting(free, most_memory()).clamp(1, cores))
}

fn fitting(free: u64, of_one: u64) -> usize {
    (free / 2 / of_one) as usize
}

/// The arguments of `prlimit` for a program with a time limit.
pub(super) fn of_process(timeout: Duration) -> [String; 6] {
    let seconds = timeout.as_secs() + 2;
    [
        format!("--as={MEMORY}"),
        format!("--cpu={seconds}"),
        format!("--fsize={FILE_SIZE}"),
        format!("--nproc={THREADS}"),
        format!("--nofile={OPEN_FILES}"),
        "--core=0".to_owned(),
    ]
}

/// The limits that the probe tries to exceed, as Python.
pub(super) fn of_probe() -> String {
    format!(
        "MEMORY, FILE_SIZE, THREADS = {MEMORY}, {FILE_SIZE}, {THREADS}\nTMP_SIZE, TMP_FILES = {TMP_SIZE}, {TMP_FILES}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_share_half_of_the_free_memory() {
        const GIB: u64 = 1 << 30;
        assert_eq!(fitting(100 * GIB, 2 * GIB), 25);
        assert_eq!(fitting(7 * GIB, 2 * GIB), 1);
        assert_eq!(fitting(3 * GIB, 2 * GIB), 0);
        // The address space, /tmp and the rest are counted always, and page tables for 65,530 mappings as Linux
        // has them by default (512 MiB) or for a page each (2 GiB).
        let counted = most_memory() - (1024 + 64 + 128) * (1 << 20);
        assert!(counted > 0 && counted <= 2 * GIB, "{counted}");
    }
}
