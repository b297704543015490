//! Programs for tests, written for the shell.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::entry::CommandConfig;
use crate::program::ProgramLog;

/// What every script begins with: `field NAME` sets `value` to the number that follows the first `"NAME":` in
/// `line`.
const FUNCTIONS: &str = r#"
field() { value=${line#*'"'$1'":'}; value=${value%%[!0-9]*}; }
"#;

/// The settings of a program that runs `script` with `$1` being `file`.
pub(crate) fn script(script: &str, file: &Path) -> CommandConfig {
    let script = format!("{FUNCTIONS}{script}");
    let command = ["sh", "-c", &script, "sh", &file.to_string_lossy()].map(str::to_owned).into();
    CommandConfig { command, batch_size: 2, timeout: 60.0, max_restarts: 3, concurrency: 1 }
}

/// A log that nobody reads.
pub(crate) fn no_log() -> ProgramLog {
    ProgramLog::File("/dev/null".into())
}

/// The lines of a file, none if it does not exist.
pub(crate) fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Waits until something holds, and fails the test if it does not.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs. A dead one that nobody has waited for does not.
pub(crate) fn is_alive(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}
