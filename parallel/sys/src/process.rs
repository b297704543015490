//! Process functions that the standard library lacks: sending signals, checking for ignored signals, and
//! ending with the launcher.

use crate::Error;

/// Sends `signal` to the process `id`. It is not an error if the process has already ended.
pub fn send_signal(id: u32, signal: i32) {
    // SAFETY: a plain call with two numbers.
    let _ = unsafe { libc::kill(id.cast_signed(), signal) };
}

/// Whether this process ignores `signal`, as `nohup` makes it ignore SIGHUP.
pub fn is_signal_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Asks the system to kill this process when `parent`, which started it, ends.
pub fn die_with_parent(parent: u32) -> Result<(), Error> {
    // SAFETY: plain calls with numbers.
    let (asked, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
    // The parent may have ended before the call.
    if asked != 0 || now.cast_unsigned() != parent {
        let message = format!("the launcher {parent} is gone");
        return Err(Error::Torch { call: "prctl".to_owned(), message });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_what_is_ignored_is_ignored() {
        // The Rust runtime ignores SIGPIPE and no other signal.
        assert!(super::is_signal_ignored(libc::SIGPIPE));
        assert!(
            !super::is_signal_ignored(libc::SIGTERM)
                && !super::is_signal_ignored(0)
                && !super::is_signal_ignored(65)
        );
    }
}
