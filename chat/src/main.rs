//! The `colossal-chat` program. It parses the command line, runs the command, and turns errors into exit
//! codes. The commands are in `command`.

mod adapters;
mod args;
mod command;
mod config;
mod console;
mod device;
mod display;
mod evaluation;
mod exit;
mod failure;
mod feedback;
mod folder;
mod hardware;
mod input;
mod interrupt;
mod launch;
mod live;
mod model_folder;
mod nearby;
mod output;
mod own_file;
mod own_folder;
mod record;
#[cfg(test)]
mod reference_pages;
mod report;
mod reward_list;
mod reward_models;
mod run_data;
mod run_reader;
mod session;
mod shell;
mod stage;
mod user_folders;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::error::ErrorKind;

use args::Cli;
use console::print_stderr;

#[global_allocator]
static HEAP: parallel::heap::Heap = parallel::heap::Heap::new(exit::DEVICE);

fn main() -> ExitCode {
    parallel::heap::before_exit(tui::screen::restore_without_waiting);
    datasets::hub::measure_disks_with(parallel::disk::free_bytes);
    show_panics_harmlessly();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        // Without arguments, a person gets a place to start from, and a script the help.
        Err(error) if is_bare(&error) && std::io::stdout().is_terminal() => {
            return run(command::welcome::run);
        }
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

    run(|| command::run(cli))
}

/// Whether the program was started without arguments.
fn is_bare(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && std::env::args_os().len() == 1
}

/// Runs a command, reports its error, and returns the exit code.
fn run(command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let outcome = catch_unwind(AssertUnwindSafe(command));
    let code = match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if exit::is_broken_pipe(&error) => 0,
        Ok(Err(error)) if exit::is_already_reported(&error) => exit::code(&error),
        Ok(Err(error)) => {
            print_stderr(&format!("error: {}", exit::text(&error)));
            exit::code(&error)
        }
        Err(panic) => {
            let message = exit::panic_message(panic.as_ref());
            print_stderr(&format!("error: {}", exit::panic_text(message)));
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
        // The thread of a full screen shows the panics of other threads itself.
        if tui::screen::is_active() && std::thread::current().name() != Some("main") {
            return;
        }
        tui::screen::restore();
        let message = panic.to_string();
        // The program ends with the text of the memory manager, which is no bug.
        if parallel::error_class::refusal(&message).is_some() {
            return;
        }
        if text::sanitize(&message) == message { usual(panic) } else { print_stderr(&message) }
    }));
}
