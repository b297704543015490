//! The `colossal-chat` command: parse, wire, run. What it does is in `command`, and what that needs is in the crates below.

mod args;
mod command;
mod config;
mod display;
mod exit;
mod input;
mod interrupt;
mod launch;
mod record;
mod report;
mod session;
mod stage;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use args::Cli;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap writes them to stdout.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return code.into();
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| command::run(cli)));
    let code = match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if exit::is_broken_pipe(&error) => 0,
        Ok(Err(error)) if exit::is_told(&error) => exit::code(&error),
        Ok(Err(error)) => {
            tell(&format!("error: {}", exit::text(&error)));
            exit::code(&error)
        }
        Err(panic) => {
            let constant = || panic.downcast_ref::<&str>().copied();
            let message = panic.downcast_ref().map(String::as_str).or_else(constant).unwrap_or_default();
            if exit::is_out_of_memory(message) {
                tell("error: the memory does not suffice: lower micro_batch_size, batch size or max_length");
            } else {
                tell(&format!("error: a panic, which is a defect of this program: {message}"));
            }
            exit::of_panic(message)
        }
    };
    code.into()
}

/// Writes a line to stderr. When nobody reads that either, there is nobody left to tell.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
