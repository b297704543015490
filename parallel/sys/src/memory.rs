//! The memory of this process: statistics, and how the C library allocates large buffers.
//!
//! How libtorch allocates tensors is in [`crate::allocator`].
//!
//! By default, glibc maps every buffer over 32 MB with a new `mmap` and unmaps it when it is freed, so each
//! large temporary costs one page fault per 4 KiB. [`keep_large_buffers`] makes the heap keep such buffers.

mod available;
mod field;

use std::ffi::CStr;
use std::fmt;
use std::io;

pub use available::available_bytes;

use field::read_bytes;

/// A setting that the C library rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedSetting {
    /// The name of the setting.
    pub setting: &'static str,
    /// The requested value.
    pub value: i32,
    /// The value that was set instead, if any.
    pub fallback: Option<i32>,
}

impl fmt::Display for RejectedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value, fallback } = self;
        write!(f, "glibc {} refuses {setting} = {value}", glibc_version())?;
        match fallback {
            Some(instead) => write!(f, " and works with {instead}"),
            None => write!(f, " and keeps its default"),
        }?;
        write!(
            f,
            ": large tensors are mapped again at each allocation, which is slower; glibc 2.35 and newer accept it"
        )
    }
}

/// Configures the C library to allocate large buffers on the heap and to keep freed ones (`mallopt`:
/// `M_MMAP_THRESHOLD`, `M_TRIM_THRESHOLD`, `M_TOP_PAD`). Call it first in `main`. Returns the rejected
/// settings, which only cost speed.
pub fn keep_large_buffers() -> Vec<RejectedSetting> {
    // SAFETY: `mallopt` takes two numbers and may be called at any time.
    set(|code, value| unsafe { libc::mallopt(code, value) } != 0)
}

fn set(mut mallopt: impl FnMut(i32, i32) -> bool) -> Vec<RejectedSetting> {
    const GIB: i32 = 1 << 30;
    // The maximum that glibc before 2.35 accepts: half of the largest heap of a thread.
    const OLD_LIMIT: i32 = 32 << 20;
    let settings = [
        ("M_MMAP_THRESHOLD", libc::M_MMAP_THRESHOLD, GIB),
        ("M_TRIM_THRESHOLD", libc::M_TRIM_THRESHOLD, GIB),
        ("M_TOP_PAD", libc::M_TOP_PAD, 64 << 20),
    ];
    let mut refused = Vec::new();
    for (setting, code, value) in settings {
        if !mallopt(code, value) {
            let fallback = mallopt(code, OLD_LIMIT).then_some(OLD_LIMIT);
            refused.push(RejectedSetting { setting, value, fallback });
        }
    }
    refused
}

/// The version of the C library in use, such as `2.36`.
pub fn glibc_version() -> String {
    // SAFETY: a constant text of the C library.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned()
}

/// Returns the free part of the heap to the system, for use between the stages of a training pipeline.
pub fn release_free_heap() {
    // SAFETY: `malloc_trim` may be called at any time.
    unsafe { libc::malloc_trim(0) };
}

/// The peak resident memory of this program in bytes, since it started or since [`reset_peak_rss`].
/// `getrusage` would include the memory of the parent process before it started this program.
pub fn peak_rss_bytes() -> u64 {
    read_bytes("/proc/self/status", "VmHWM:").unwrap_or(0)
}

/// Starts the peak of [`peak_rss_bytes`] anew at the current resident memory, so that a part of a run has a
/// peak of its own. Fails where the system does not let a process write `/proc/self/clear_refs`.
pub fn reset_peak_rss() -> io::Result<()> {
    // 5 is the code of the kernel for the peak alone.
    std::fs::write("/proc/self/clear_refs", "5")
}

/// The resident memory of this process in bytes, with the pages of files and of shared memory that it has
/// touched; 0 if the system does not report it. The kernel adds up the counts of its processors late, so the
/// figure may be off by some hundred KiB.
pub fn rss_bytes() -> u64 {
    read_bytes("/proc/self/status", "VmRSS:").unwrap_or(0)
}

/// The part of [`rss_bytes`] that belongs to no file: the heap, the stacks and private mappings.
pub fn anonymous_rss_bytes() -> u64 {
    read_bytes("/proc/self/status", "RssAnon:").unwrap_or(0)
}

/// The memory of this machine in bytes; `None` if the system does not report it.
pub fn total_bytes() -> Option<u64> {
    read_bytes("/proc/meminfo", "MemTotal:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_setting_is_a_hint() {
        assert_eq!(keep_large_buffers(), []);
        // The behaviour of glibc 2.31 of Debian 11 and glibc 2.28 and 2.34 of RHEL 8 and 9.
        let mut taken = Vec::new();
        let refused = set(|code, value| {
            let fits = code != libc::M_MMAP_THRESHOLD || value <= 32 << 20;
            taken.extend(fits.then_some((code, value)));
            fits
        });
        let [only] = refused.as_slice() else { panic!("{refused:?}") };
        assert_eq!(taken[0], (libc::M_MMAP_THRESHOLD, 32 << 20));
        assert_eq!(taken.len(), 3);
        let message = only.to_string();
        assert!(
            message.contains("refuses M_MMAP_THRESHOLD = 1073741824 and works with 33554432"),
            "{message}"
        );
        // A library that rejects every setting.
        let refused = set(|_, _| false);
        assert!(refused.len() == 3 && refused[2].to_string().contains("and keeps its default"));
    }

    #[test]
    fn the_c_library_has_a_version() {
        let version = glibc_version();
        let (major, minor) = version.split_once('.').unwrap();
        assert!(major == "2" && minor.parse::<u32>().unwrap() >= 28, "{version}");
    }

    #[test]
    fn a_machine_has_more_memory_than_a_process_held() {
        assert!(super::total_bytes().unwrap() > super::peak_rss_bytes());
    }

    #[test]
    fn anonymous_memory_is_a_part_of_the_resident_memory() {
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let anonymous = anonymous_rss_bytes();
        assert!(anonymous >= 64 << 20, "{anonymous}");
        // Other tests free memory between the two readings.
        assert!(rss_bytes() + (256 << 20) > anonymous);
        drop(held);
    }

    #[test]
    fn the_peak_grows_with_what_is_held() {
        let before = peak_rss_bytes();
        assert!(before > 1 << 20);
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(peak_rss_bytes() >= before.max(64 << 20));
        drop(held);
        assert!(peak_rss_bytes() >= 64 << 20);
    }
}
