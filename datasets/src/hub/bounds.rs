//! Bounds a download by the free space of the disk and by its time.
//!
//! A server chooses the sizes that it announces and the speed at which it sends, so both have a limit: what
//! is missing of all files must fit on the disk before the first byte is asked for, and again while bytes
//! come; the headers of an answer must be complete within [`grace`], after which a transfer must have
//! [`BYTES_PER_SECOND`] on average. A file of 1 GB may thus take 17 hours and not forever. This module does
//! not use the network.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The most files of a repository that are fetched.
pub(super) const FILES: usize = 10_000;
/// What a transfer must reach on average.
const BYTES_PER_SECOND: u64 = 16 << 10;
/// The grace in multiples of the time for which a server may be silent.
const GRACE: u32 = 3;
/// The bytes that stay free on a disk.
const KEPT_FREE: u64 = 64 << 20;

/// Returns the bytes that this user may still write to the disk of a file; `None` if it does not tell.
type FreeBytes = fn(&File) -> io::Result<Option<u64>>;

static FREE_BYTES: OnceLock<FreeBytes> = OnceLock::new();

/// Sets how free space is measured, which takes a system call. Without it no download is refused for its
/// size.
pub fn measure_disks_with(free_bytes: FreeBytes) {
    let _ = FREE_BYTES.set(free_bytes);
}

/// The bytes that are free for downloads on the disk of a folder, if the wanted bytes do not fit there.
pub(super) fn too_little_space(folder: &Path, missing: u64) -> Option<u64> {
    let free_bytes = FREE_BYTES.get()?;
    // The folder may not be there yet; one above it is on the same disk.
    let folder = folder.ancestors().find(|folder| folder.is_dir())?;
    let free = File::open(folder).and_then(|folder| free_bytes(&folder)).ok()??;
    let free = free.saturating_sub(KEPT_FREE);
    (missing > free).then_some(free)
}

/// The time in which a server that may be silent for `timeout` must have begun to send at a reasonable speed.
pub(super) fn grace(timeout: Duration) -> Duration {
    timeout.saturating_mul(GRACE)
}

/// The time of a transfer.
pub(super) struct Pace {
    started: Instant,
    grace: Duration,
}

impl Pace {
    /// Starts a transfer from a server that may be silent for `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { started: Instant::now(), grace: grace(timeout) }
    }

    /// Returns what is wrong with a transfer that has brought a number of bytes.
    pub(super) fn check(&self, bytes: u64) -> Result<(), String> {
        self.check_at(self.started.elapsed(), bytes)
    }

    fn check_at(&self, elapsed: Duration, bytes: u64) -> Result<(), String> {
        let late = elapsed.saturating_sub(self.grace);
        if bytes >= BYTES_PER_SECOND.saturating_mul(late.as_secs()) {
            return Ok(());
        }
        Err(format!(
            "the server sent {bytes} bytes in {} s; a transfer must have {} KiB a second on average",
            elapsed.as_secs(),
            BYTES_PER_SECOND >> 10
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_has_its_grace_and_then_a_least_speed() {
        let pace = Pace::new(Duration::from_secs(10));
        let after = |seconds, bytes| pace.check_at(Duration::from_secs(seconds), bytes);
        assert_eq!(after(30, 0), Ok(()));
        assert_eq!(after(40, 10 * 16384), Ok(()));
        let error = after(40, 10 * 16384 - 1).unwrap_err();
        assert_eq!(
            error,
            "the server sent 163839 bytes in 40 s; a transfer must have 16 KiB a second on average"
        );
    }
}
