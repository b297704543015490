//! `runs`: lists, shows, compares and plots run folders. Nothing in them is changed.

mod compare;
mod ls;
mod plot;
mod show;

use crate::args::RunsCommand;
use crate::interrupt;

/// Runs one of the commands.
pub(crate) fn run(command: &RunsCommand) -> anyhow::Result<()> {
    interrupt::listen()?;
    match command {
        RunsCommand::Ls(arguments) => ls::run(arguments),
        RunsCommand::Show(arguments) => show::run(arguments),
        RunsCommand::Compare(arguments) => compare::run(arguments),
        RunsCommand::Plot(arguments) => plot::run(arguments),
    }
}
