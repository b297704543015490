//! The memory of this process: what it holds, and how the C library hands large buffers out.
//!
//! By default glibc maps every buffer over 32 MB afresh and returns it at once, so each large temporary costs a page fault for every
//! 4 KiB. [`keep_large_buffers`] lets the heap keep them.

use std::ffi::CStr;
use std::fmt;

/// A setting that the C library did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedSetting {
    /// Its name.
    pub setting: &'static str,
    /// What was asked for.
    pub value: i32,
    /// What is set instead.
    pub fallback: Option<i32>,
}

impl fmt::Display for RejectedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value, fallback } = self;
        write!(f, "glibc {} refuses {setting} = {value}", glibc_version())?;
        match fallback {
            Some(instead) => write!(f, " and works with {instead}"),
            None => write!(f, " and keeps its own"),
        }?;
        write!(
            f,
            ": large tensors are mapped anew each time, which costs some speed; glibc 2.35 and newer take it"
        )
    }
}

/// Tells the C library to serve large buffers from the heap and to keep freed ones (`mallopt`: `M_MMAP_THRESHOLD`,
/// `M_TRIM_THRESHOLD`, `M_TOP_PAD`). Call first thing in `main`. What it refuses costs speed and nothing
/// else.
pub fn keep_large_buffers() -> Vec<RejectedSetting> {
    // SAFETY: `mallopt` takes two numbers and may be called at any time.
    set(|code, value| unsafe { libc::mallopt(code, value) } != 0)
}

fn set(mut mallopt: impl FnMut(i32, i32) -> bool) -> Vec<RejectedSetting> {
    const GIB: i32 = 1 << 30;
    // What glibc before 2.35 takes at most: half of the largest heap of a thread.
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

/// The version of the C library that runs, such as `2.36`.
pub fn glibc_version() -> String {
    // SAFETY: a constant text of the C library.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned()
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
    use super::*;

    #[test]
    fn a_refused_setting_is_a_hint() {
        assert_eq!(keep_large_buffers(), []);
        // As glibc 2.31 of Debian 11 and glibc 2.28 and 2.34 of RHEL 8 and 9 do.
        let mut taken = Vec::new();
        let refused = set(|code, value| {
            let fits = code != libc::M_MMAP_THRESHOLD || value <= 32 << 20;
            taken.extend(fits.then_some((code, value)));
            fits
        });
        let [only] = refused.as_slice() else { panic!("{refused:?}") };
        assert_eq!(taken[0], (libc::M_MMAP_THRESHOLD, 32 << 20));
        assert_eq!(taken.len(), 3);
        let told = only.to_string();
        assert!(told.contains("refuses M_MMAP_THRESHOLD = 1073741824 and works with 33554432"), "{told}");
        // A library that takes nothing at all.
        let refused = set(|_, _| false);
        assert!(refused.len() == 3 && refused[2].to_string().contains("and keeps its own"));
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
    fn the_peak_grows_with_what_is_held() {
        let before = peak_rss_bytes();
        assert!(before > 1 << 20);
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(peak_rss_bytes() >= before.max(64 << 20));
        drop(held);
        assert!(peak_rss_bytes() >= 64 << 20);
    }
}
