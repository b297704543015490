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
    is_in_mask("self", "SigIgn:", signal)
}

/// Whether `process` has installed a handler for `signal`. False for a process that does not exist.
pub fn is_signal_handled(process: u32, signal: i32) -> bool {
    is_in_mask(&process.to_string(), "SigCgt:", signal)
}

/// Whether a signal such as SIGSTOP, or a debugger, has stopped `process`. False for a process that does not
/// exist.
pub fn is_stopped(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

/// Whether `signal` is in one of the signal masks of `/proc/PROCESS/status`.
fn is_in_mask(process: &str, name: &str, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
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

    #[test]
    fn only_signals_with_a_handler_are_handled() {
        // The Rust runtime handles SIGSEGV, to report stack overflows, and not SIGUSR1.
        let own_process = std::process::id();
        assert!(super::is_signal_handled(own_process, libc::SIGSEGV));
        assert!(!super::is_signal_handled(own_process, libc::SIGUSR1));
        assert!(!super::is_signal_handled(0, libc::SIGSEGV));
    }
}
