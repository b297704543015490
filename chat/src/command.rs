//! The subcommands, one file per subcommand, and their common initialization: threads and heap are configured
//! before the first tensor is created.

mod auto_layout;
mod chat;
mod data;
mod demo;
mod doctor;
mod eval;
mod generate;
mod init;
mod logprobs;
mod model;
mod pipeline;
mod plan;
mod reject;
mod report;
mod reward;
pub(crate) mod runs;
mod serve;
mod train;
mod train_ui;
mod watch;
pub(crate) mod welcome;

use std::ffi::OsString;
use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, Command, LaunchArgs, StageCommand};
use crate::config::ConfigError;
use crate::launch::{self, Job};
use crate::session;

/// Runs one command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let threads = cli.threads;
    // Training commands initialize the process themselves, because their configuration file may set the
    // number of threads.
    match &cli.command {
        Command::Launch(arguments) => return launch(arguments, threads),
        Command::Completions { shell } => return completions(*shell),
        Command::Train(StageCommand { stage, arguments }) => return train::run(stage, arguments, threads),
        Command::Plan(arguments) => return plan::run(arguments, threads),
        Command::Pipeline(arguments) => return pipeline::run(arguments, threads),
        Command::Demo(arguments) => return demo::run(arguments, threads),
        Command::Reject(arguments) => return reject::run(arguments, threads),
        Command::Init(arguments) => return init::run(arguments),
        // These read run folders, and compute nothing.
        Command::Watch(arguments) => return watch::run(arguments),
        Command::Runs(command) => return runs::run(command),
        Command::Report(arguments) => return report::run(arguments),
        Command::Eval(arguments) => return eval::run(arguments, threads),
        _ => session::prepare(threads)?,
    }

    match cli.command {
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Logprobs(arguments) => logprobs::run(&arguments),
        Command::Reward(arguments) => reward::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Data(command) => data::run(&command),
        Command::Model(command) => model::run(&command),
        Command::Doctor(arguments) => doctor::run(&arguments),
        _ => unreachable!("returned above"),
    }
}

/// Starts the ranks of this machine, each with `threads` threads.
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

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "colossal-chat", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
