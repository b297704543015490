//! The bounds of flags that count threads and processes.

use parallel::launch;

/// Threads of one operation. How many there may be depends on the processes of the job.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    within(text, usize::MAX)
}

/// A whole number from 1 to `most`.
fn within(text: &str, most: usize) -> Result<usize, String> {
    match text.parse::<usize>() {
        Err(error) => Err(format!("{error}; give a whole number from 1 up")),
        Ok(0) => Err("there must be at least 1; leave it out for the default".to_owned()),
        Ok(number) if number > most => Err(format!("give at most {most}")),
        Ok(number) => Ok(number),
    }
}

/// Processes that this machine would run.
pub(super) fn processes(text: &str) -> Result<usize, String> {
    let number = within(text, usize::MAX)?;
    launch::check_processes(number).map(|()| number).map_err(|error| error.to_string())
}

/// Processes that a plan lays out and nobody runs.
pub(super) fn planned_processes(text: &str) -> Result<usize, String> {
    within(text, 1 << 16)
}
