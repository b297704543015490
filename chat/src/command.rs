//! One file a subcommand, and the start that they share: threads and heap before the first tensor.

mod chat;
mod data;
mod demo;
mod doctor;
mod generate;
mod logprobs;
mod model;
mod pipeline;
mod plan;
mod reward;
mod train;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::CommandFactory;
use tui::text::sanitize;

use crate::args::{Cli, Command, LaunchArgs};
use crate::config::{ConfigError, Stage};
use crate::launch::{self, Job};

/// Runs one command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let threads = cli.threads;
    // What trains prepares itself: its file may say how many threads.
    match &cli.command {
        Command::Launch(arguments) => return launch(arguments, threads),
        Command::Completions { shell } => return completions(*shell),
        Command::Sft(arguments) => return train::run(Stage::Sft, arguments, threads),
        Command::Rm(arguments) => return train::run(Stage::Rm, arguments, threads),
        Command::Ppo(arguments) => return train::run(Stage::Ppo, arguments, threads),
        Command::Plan(arguments) => return plan::run(arguments, threads),
        Command::Pipeline(arguments) => return pipeline::run(arguments, threads),
        Command::Demo(arguments) => return demo::run(arguments, threads),
        _ => prepare(threads)?,
    }
    match cli.command {
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Logprobs(arguments) => logprobs::run(&arguments),
        Command::Reward(arguments) => reward::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Data(command) => data::run(&command),
        Command::Model(command) => model::run(&command),
        Command::Doctor(arguments) => doctor::run(&arguments),
        _ => unreachable!("returned above"),
    }
}

/// Starts the ranks of this machine, each with `threads`.
fn launch(arguments: &LaunchArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let LaunchArgs { nnodes, node_rank, nproc, master_addr, master_port, logs, command } = arguments;
    if *node_rank >= nnodes.get() {
        let problem = format!("machines are numbered from 0 to {}", nnodes.get() - 1);
        return Err(ConfigError::Argument { argument: format!("--node-rank {node_rank}"), problem }.into());
    }
    let address = (master_addr.clone(), *master_port);
    let job = Job::on_hosts(*nproc, [*node_rank, nnodes.get()], address, logs)?;
    let threads = threads.map(|threads| ["--threads".into(), threads.to_string().into()]);
    let command: Vec<OsString> = threads.into_iter().flatten().chain(command.iter().cloned()).collect();
    launch::run(&job, &command)
}

/// Listens for signals, and prepares this process for tensor operations.
fn prepare(threads: Option<usize>) -> anyhow::Result<()> {
    crate::interrupt::listen()?;
    // What the C library refuses, `doctor` tells.
    parallel::launch::init_process(threads, 1)?;
    Ok(())
}

/// Writes a line of data to stdout; see [`print_rows`].
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    print_rows(format!("{text}\n").as_bytes())
}

/// Writes data to stdout: to a terminal with every control character made visible, since the text may come
/// from anybody's files, and to anything else as it is.
pub(crate) fn print_rows(text: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        stdout.write_all(sanitize(&String::from_utf8_lossy(text)).as_bytes())?;
    } else {
        stdout.write_all(text)?;
    }
    stdout.flush()
}

/// Writes a line to stderr, with every control character made visible. When nobody reads that, the work goes
/// on.
///
/// Everything that this program says passes here or through the displays of `tui`, which do the same.
pub(crate) fn print_stderr(text: &str) {
    // In one write: a line of another process does not come between.
    let _ = std::io::stderr().write_all(format!("{}\n", sanitize(text)).as_bytes());
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "colossal-chat", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
