//! The `colossal-chat` program. It parses the command line, runs the command, and turns errors into exit
//! codes. The commands are in `command`.

mod args;
mod command;
mod config;
mod console;
mod device;
mod display;
mod exit;
mod folder;
mod input;
mod interrupt;
mod launch;
mod machine_speed;
mod model_folder;
mod output;
mod record;
mod report;
mod session;
mod stage;
mod user_cache;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use console::print_stderr;

fn main() -> ExitCode {
    show_panics_harmlessly();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors; clap writes them to stdout.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            // An argument may be a file name from an untrusted source, inserted by a shell pattern or a
            // script.
            let is_plain = |argument: OsString| !argument.to_string_lossy().contains(char::is_control);
            if std::env::args_os().all(is_plain) {
                let _ = error.print();
            } else {
                print_stderr(&error.render().to_string());
            }
            return code.into();
        }
    };

    let outcome = catch_unwind(AssertUnwindSafe(|| command::run(cli)));
    let code = match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if exit::is_broken_pipe(&error) => 0,
        Ok(Err(error)) if exit::is_already_reported(&error) => exit::code(&error),
        Ok(Err(error)) => {
            print_stderr(&format!("error: {}", exit::text(&error)));
            exit::code(&error)
        }
        Err(panic) => {
            let constant = || panic.downcast_ref::<&str>().copied();
            let message = panic.downcast_ref().map(String::as_str).or_else(constant).unwrap_or_default();
            if let Some(text) = exit::over_budget(message) {
                print_stderr(&format!("error: {text}"));
            } else if exit::is_out_of_memory(message) {
                print_stderr(
                    "error: out of memory: lower train.micro_batch_size, --batch-size or data.max_length",
                );
            } else {
                print_stderr(&format!("error: this program panicked, which is a bug in it: {message}"));
            }
            exit::of_panic(message)
        }
    };
    code.into()
}

/// Installs a panic hook that sanitises messages for the terminal, since a panic message may quote a file.
/// The default hook with its backtrace is kept for messages without control characters.
fn show_panics_harmlessly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if datasets::untrusted::is_decoding() {
            return;
        }
        let message = panic.to_string();
        // The program ends with the text of the memory manager, which is no bug.
        if exit::over_budget(&message).is_some() {
            return;
        }
        if tui::text::sanitize(&message) == message { usual(panic) } else { print_stderr(&message) }
    }));
}
