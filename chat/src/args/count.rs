//! The bounds of flags that count.

use std::any::TypeId;
use std::num::{IntErrorKind, NonZeroU64, NonZeroUsize, ParseIntError};
use std::str::FromStr;

use clap::{Arg, Command};
use parallel::launch;

/// Lets every argument of a command, and of all commands below it, that must not be zero say so in plain
/// words. Such an argument is known by its type.
pub(super) fn explain(command: Command) -> Command {
    command.mut_args(explain_argument).mut_subcommands(explain)
}

fn explain_argument(argument: Arg) -> Arg {
    let kind = argument.get_value_parser().type_id();
    if kind == TypeId::of::<NonZeroUsize>() {
        argument.value_parser(at_least_one::<NonZeroUsize>)
    } else if kind == TypeId::of::<NonZeroU64>() {
        argument.value_parser(at_least_one::<NonZeroU64>)
    } else {
        argument
    }
}

/// A whole number from 1 up.
fn at_least_one<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| {
        let problem = match error.kind() {
            IntErrorKind::Zero => "there must be at least 1",
            IntErrorKind::PosOverflow => "the number is too large",
            _ => "give a whole number from 1 up",
        };
        problem.to_owned()
    })
}

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

/// Replies to one prompt, all of which are in memory until the last one has ended.
pub(super) fn samples(text: &str) -> Result<usize, String> {
    within(text, 65_536)
}

/// Rows of a file that is written. There may be very many, but a file without rows cannot be read.
pub(super) fn rows(text: &str) -> Result<usize, String> {
    within(text, usize::MAX)
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
