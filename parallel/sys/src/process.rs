//! What the standard library does not do with processes: signals to others, and not outliving one's launcher.

use crate::Error;

/// Sends `signal` to the process `id`. One that is gone already is no error.
pub fn send_signal(id: u32, signal: i32) {
    // SAFETY: a plain call with two numbers.
    let _ = unsafe { libc::kill(id.cast_signed(), signal) };
}

/// Asks the system to end this process when `parent`, which started it, ends.
pub fn end_with(parent: u32) -> Result<(), Error> {
    // SAFETY: plain calls with numbers.
    let (asked, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
    // It may have ended before the question was put.
    if asked != 0 || now.cast_unsigned() != parent {
        let message = format!("the launcher {parent} is gone");
        return Err(Error::Torch { call: "prctl".to_owned(), message });
    }
    Ok(())
}
