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
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = field.and_then(|field| field.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
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
