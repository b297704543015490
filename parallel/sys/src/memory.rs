//! The memory of this process: what it holds, and how the C library hands large buffers out.
//!
//! By default glibc maps every buffer over 32 MB afresh and returns it at once, so each large temporary costs a page fault for every
//! 4 KiB. [`keep_large_buffers`] lets the heap keep them.

use crate::Error;

/// Tells the C library to serve large buffers from the heap and to keep freed ones (`mallopt`: `M_MMAP_THRESHOLD`,
/// `M_TRIM_THRESHOLD`, `M_TOP_PAD`). Call first thing in `main`.
pub fn keep_large_buffers() -> Result<(), Error> {
    const GIB: i32 = 1 << 30;
    for (setting, code, value) in [
        ("M_MMAP_THRESHOLD", libc::M_MMAP_THRESHOLD, GIB),
        ("M_TRIM_THRESHOLD", libc::M_TRIM_THRESHOLD, GIB),
        ("M_TOP_PAD", libc::M_TOP_PAD, 64 << 20),
    ] {
        // SAFETY: `mallopt` takes two numbers and may be called at any time.
        if unsafe { libc::mallopt(code, value) } == 0 {
            return Err(Error::Malloc { setting, value });
        }
    }
    Ok(())
}

/// Gives the free part of the heap back to the system: between the stages of a pipeline.
pub fn release_free_heap() {
    // SAFETY: `malloc_trim` may be called at any time.
    unsafe { libc::malloc_trim(0) };
}

/// The most memory that this program ever held resident, in bytes. `getrusage` would count what its parent held before it started it.
pub fn peak_rss_bytes() -> u64 {
    read_bytes("/proc/self/status", "VmHWM:").unwrap_or(0)
}

/// The memory of this machine in bytes; `None` where the system does not tell.
pub fn total_bytes() -> Option<u64> {
    read_bytes("/proc/meminfo", "MemTotal:")
}

/// A field of a file of `/proc`, which is in KiB.
fn read_bytes(path: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_has_more_memory_than_a_process_held() {
        assert!(super::total_bytes().unwrap() > super::peak_rss_bytes());
    }

    #[test]
    fn the_peak_grows_with_what_is_held() {
        let before = super::peak_rss_bytes();
        assert!(before > 1 << 20);
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(super::peak_rss_bytes() >= before.max(64 << 20));
        drop(held);
        assert!(super::peak_rss_bytes() >= 64 << 20);
    }
}
