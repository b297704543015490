//! The flags of commands that train or prepare it: a stage, `pipeline`, `plan`, `launch`, `demo`, `init`.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, Subcommand};

use super::count::{planned_processes, processes};
use crate::config::DeviceSetting;
use crate::stage::definition::{CommandHelp, InitStage};
use crate::stage::{self, Stage};

/// The subcommand of a stage. There is one for each stage of [`stage::ALL`] that has one.
#[derive(Debug)]
pub(crate) struct StageCommand {
    /// The stage.
    pub(crate) stage: &'static Stage,
    /// How it is run.
    pub(crate) arguments: TrainArgs,
}

/// The stages with a subcommand, and its help texts.
fn stage_commands() -> impl Iterator<Item = (&'static Stage, &'static CommandHelp)> {
    stage::ALL.into_iter().filter_map(|stage| Some((stage, stage.command.as_ref()?)))
}

impl Subcommand for StageCommand {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        stage_commands().fold(command, |command, (stage, help)| {
            let own = TrainArgs::augment_args(clap::Command::new(stage.schema.name));
            command.subcommand(own.about(help.about).after_help(help.examples))
        })
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        stage_commands().any(|(stage, _)| stage.schema.name == name)
    }
}

impl FromArgMatches for StageCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let unknown = || clap::Error::new(ErrorKind::InvalidSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(unknown)?;
        let stage = stage::find(name).ok_or_else(unknown)?;
        Ok(Self { stage, arguments: TrainArgs::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses the name of a stage that has a subcommand.
fn stage_parser() -> impl TypedValueParser<Value = &'static Stage> {
    let names = stage_commands().map(|(stage, help)| PossibleValue::new(stage.schema.name).help(help.title));
    PossibleValuesParser::new(names)
        .map(|name| stage::find(&name).expect("only names of stages are possible"))
}

/// How a stage is run.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// The run file, TOML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    /// Check everything, print what would be done, and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Continue from the newest checkpoint of the run folder; the run may become longer.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Processes on this machine, which share the rows of every step.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) nproc: usize,
    /// Train in a process of its own and show the dashboard; the run goes on when it is closed.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) ui: bool,
}

/// What the command line changes in a run file.
#[derive(Clone, Debug, Args)]
pub(crate) struct Overrides {
    /// Change one key of the run file; may be given again and again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Where the models compute: auto, cpu, cuda or cuda:N; short for `--set model.device=DEVICE`.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSetting>,
}

impl Overrides {
    /// Returns the changes as `KEY=VALUE`, the flag after the sets.
    pub(crate) fn sets(&self) -> Vec<String> {
        let device = self.device.map(|device| format!("model.device={device}"));
        self.sets.iter().cloned().chain(device).collect()
    }
}

/// What is planned.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The stage.
    #[arg(value_parser = stage_parser())]
    pub(crate) stage: &'static Stage,
    /// The run file, TOML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    /// Processes, on however many machines.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = planned_processes)]
    pub(crate) nproc: usize,
    /// Find the layouts of these processes in which a step is fastest: mesh, ZeRO, schedule, checkpointing
    /// and micro-batch.
    #[arg(long)]
    pub(crate) search: bool,
    /// Plan for the hardware of a file, or for `h100`, `a100` or `laptop` [default: this machine].
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) hardware: Option<String>,
    /// Write an optimizer step on a simulated clock: a trace of Chrome (`.json`) or a drawing (`.svg`).
    #[arg(long, value_name = "FILE", conflicts_with = "search")]
    pub(crate) trace: Option<PathBuf>,
    /// Replace the file of --trace if it exists.
    #[arg(long, requires = "trace")]
    pub(crate) force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A job on several machines.
#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// Machines.
    #[arg(long, value_name = "N")]
    pub(crate) nnodes: NonZeroUsize,
    /// This machine, from 0.
    #[arg(long, value_name = "I")]
    pub(crate) node_rank: usize,
    /// Ranks on each machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) nproc: usize,
    /// The machine 0, by name or address.
    #[arg(long, value_name = "HOST")]
    pub(crate) master_addr: String,
    /// A free port of machine 0.
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    pub(crate) master_port: u16,
    /// The folder for what the ranks say.
    #[arg(long, value_name = "DIR", default_value = "logs")]
    pub(crate) logs: PathBuf,
    /// What every rank runs: `sft`, `rm`, `ppo` or `pipeline` with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How the demo is run.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The folder of the demo.
    #[arg(long, value_name = "DIR", default_value = "colossal-demo")]
    pub(crate) out: PathBuf,
    /// Decides rows, initial values and draws.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    /// Continue where an earlier demo in the same folder stopped.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Processes on this machine, which share the rows of every step.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) nproc: usize,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The run file to write [default: run.toml, or run-2.toml and so on if that exists].
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// Replace --out if it exists.
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Ask nothing: what no flag answers is taken from what lies here.
    #[arg(long)]
    pub(crate) yes: bool,
    /// What to train.
    #[arg(long, value_name = "STAGE", value_parser = goal_parser())]
    pub(crate) stage: Option<Goal>,
    /// The model to start from: a folder, or a hub name `owner/name[@revision]`.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<String>,
    /// Train low-rank adapters in place of the whole model.
    #[arg(long)]
    pub(crate) lora: bool,
    /// The reward model of PPO.
    #[arg(long, value_name = "DIR")]
    pub(crate) reward_model: Option<String>,
    /// The teacher of a distillation.
    #[arg(long, value_name = "DIR")]
    pub(crate) teacher: Option<String>,
    /// Demonstrations; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<String>,
    /// Pairs of a better and a worse answer, or answers with a label; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) preferences: Vec<String>,
    /// Prompts; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Vec<String>,
    /// How long to train.
    #[arg(long, value_name = "LENGTH", value_enum)]
    pub(crate) length: Option<RunLength>,
}

/// What `init` writes a run file for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// A stage.
    Stage(InitStage),
    /// Several stages, one after the other.
    All,
}

impl Goal {
    /// Every goal, in the order of a pipeline.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        stage::with_init().map(Self::Stage).chain([Self::All])
    }

    /// The goal of the given name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::every().find(|goal| goal.name() == name)
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::All => "all",
        }
    }

    /// What is trained.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Stage(stage) => stage.stage.command.as_ref().map_or("", |help| help.about).to_owned(),
            Self::All => {
                let names: Vec<&str> = self.stages().iter().map(|stage| stage.name()).collect();
                format!("{}, one after the other", names.join(", "))
            }
        }
    }

    /// The stages that run, in this order.
    pub(crate) fn stages(self) -> Vec<InitStage> {
        match self {
            Self::Stage(stage) => vec![stage],
            Self::All => stage::with_init().filter(|stage| stage.init.is_in_all).collect(),
        }
    }

    /// Whether several stages run.
    pub(crate) fn is_all(self) -> bool {
        matches!(self, Self::All)
    }

    /// The command that reads the run file.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::All => "pipeline",
        }
    }
}

/// Parses the name of a goal.
fn goal_parser() -> impl TypedValueParser<Value = Goal> {
    let names = Goal::every().map(|goal| PossibleValue::new(goal.name()).help(goal.title()));
    PossibleValuesParser::new(names).map(|name| Goal::find(&name).expect("only names of goals are possible"))
}

/// How long the run of `init` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RunLength {
    /// A few steps, to see that everything works.
    Quick,
    /// Every row once.
    Normal,
}
