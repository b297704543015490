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

/// The most memory that this process ever held resident, in bytes.
pub fn peak_rss_bytes() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `getrusage` fills the structure, which is valid when zeroed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_holds_memory() {
        assert!(super::peak_rss_bytes() > 1 << 20);
    }
}
