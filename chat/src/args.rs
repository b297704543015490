//! The command line. Knows its words and their bounds, and does nothing.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use datasets::synth::SynthOptions;
use parallel::launch;
use tui::chat::event::ContextPolicy;
use tui::theme::ThemeName;

use crate::config::DeviceSetting;
use crate::config::section::Dtype;
use crate::feedback::timestamp::Timestamp;
use crate::stage::definition::CommandHelp;
use crate::stage::{self, Stage};

/// Trains a language model by supervised fine-tuning, a reward model and PPO, and talks with the result.
#[derive(Debug, Parser)]
#[command(
    name = "colossal-chat",
    version,
    about,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100,
    after_help = "\
Data goes to stdout, progress and errors to stderr.
Exit codes: 0 done, 1 the run failed, 2 usage or configuration, 3 data, 4 device or memory, 5 diverged, 130 ended by a signal."
)]
pub(crate) struct Cli {
    /// Threads of one operation [default: one a core, or `threads` of the run file].
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train one stage.
    #[command(flatten)]
    Train(StageCommand),
    /// Do every stage of one file: rows, tokenizer, base, sft, rm, ppo, report.
    #[command(after_help = "\
Examples:
  colossal-chat pipeline --config life.toml
  colossal-chat pipeline --config life.toml --set stage.sft.train.lr=1e-3 --resume")]
    Pipeline(TrainArgs),
    /// Train a small bilingual chat model from nothing, on rows that it makes itself.
    #[command(after_help = "\
Examples:
  colossal-chat demo
  colossal-chat demo --out /tmp/demo --seed 7")]
    Demo(DemoArgs),
    /// Write a run file with comments for your own model and rows, after at most five questions.
    #[command(after_help = "\
A flag answers its question; off a terminal, flags or --yes answer all of them.

Examples:
  colossal-chat init
  colossal-chat init --stage rm --model runs/sft/final --preferences pairs.parquet --yes")]
    Init(InitArgs),
    /// Write replies to prompts.
    #[command(after_help = "\
Input rows have `prompt`, `messages`, `text` or `ids`; output rows have `ids` (the new tokens), `text` and `finish_reason`.

Examples:
  colossal-chat generate --model runs/sft/final --prompt 'What is 3 + 4?'
  colossal-chat generate --model runs/sft/final --input prompts.jsonl --output replies.jsonl --temperature 0")]
    Generate(GenerateArgs),
    /// Write the log-probability of every token of given texts.
    #[command(after_help = "\
Input rows have `text`, `ids`, `prompt` or `messages`. Output rows have `ids` and `logprobs`: entry i is log p(ids[i] | ids[..i]),
entry 0 is null. A row with `chosen` and `rejected` gives both under these names.

Example:
  colossal-chat logprobs --model runs/sft/final --input texts.jsonl")]
    Logprobs(BatchArgs),
    /// Write the score that a reward model gives to each conversation.
    #[command(after_help = "\
Input rows have `messages`, `prompt` and `completion`, `text` or `ids`; output rows have `score`. A row with `chosen` and
`rejected` gives `chosen_score` and `rejected_score`.

Example:
  colossal-chat reward --model runs/rm/final --input conversations.jsonl")]
    Reward(BatchArgs),
    /// Talk with a model. In a pipe, only the answer is printed.
    #[command(after_help = "\
Examples:
  colossal-chat chat --model runs/ppo/final
  colossal-chat chat --model runs/ppo/final --system 'Answer in one word.' --temperature 0
  colossal-chat chat --model runs/ppo/final --compare runs/sft/final --blind --reward-model runs/rm/final
  colossal-chat chat --model http://127.0.0.1:8000/v1
  echo 'What is 3 + 4?' | colossal-chat chat --model runs/ppo/final")]
    Chat(ChatArgs),
    /// Watch a running or finished run: curves, samples, processes, hints; pause it, save, stop it.
    #[command(after_help = "\
Closing the dashboard leaves the run alone. The key ? lists the keys. Off a terminal, every row is one line.

Examples:
  colossal-chat watch runs/ppo
  colossal-chat watch runs/ppo --once --json")]
    Watch(WatchArgs),
    /// List, show, compare and plot run folders.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Write a page about runs: curves over one another, settings, numbers, samples.
    #[command(after_help = "\
Writes report.html, report.md and report.json. The page needs no network and no script.

Example:
  colossal-chat report runs/ppo-a runs/ppo-b --out report")]
    Report(ReportArgs),
    /// Make, convert and check rows.
    #[command(subcommand)]
    Data(DataCommand),
    /// Look at a model folder, or make one with random weights.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Start the ranks of one machine of a job that runs on several.
    #[command(after_help = "\
Run it once on every machine, with the same --nnodes, --nproc, --master-addr and --master-port. torchrun, SLURM and Open MPI start
ranks by themselves: give them the command without `launch`, and set MASTER_ADDR and MASTER_PORT under SLURM and Open MPI.

Example:
  colossal-chat launch --nnodes 2 --node-rank 0 --nproc 4 --master-addr node1 -- sft --config run.toml")]
    Launch(LaunchArgs),
    /// Say what a stage would do, and where each process would stand.
    #[command(after_help = "\
Examples:
  colossal-chat plan sft --config run.toml
  colossal-chat plan ppo --config run.toml --nproc 8 --set parallel.tensor.size=2 --set parallel.pipeline.size=2 --json")]
    Plan(PlanArgs),
    /// Check libtorch, the processor and every call that training makes below tch.
    #[command(after_help = "\
Ends with code 4 when a check fails.

Examples:
  colossal-chat doctor
  colossal-chat doctor --bench --disk-path /fast-disk/tmp")]
    Doctor(DoctorArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "\
Example:
  colossal-chat completions bash > ~/.local/share/bash-completion/completions/colossal-chat")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

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
    #[arg(long, value_name = "STAGE", value_enum)]
    pub(crate) stage: Option<Goal>,
    /// The model to start from: a folder, or a hub name `owner/name[@revision]`.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<String>,
    /// The reward model of PPO.
    #[arg(long, value_name = "DIR")]
    pub(crate) reward_model: Option<String>,
    /// Demonstrations for SFT; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<String>,
    /// Pairs of a better and a worse answer for the reward model; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) preferences: Vec<String>,
    /// Prompts for PPO; may be given again and again.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Vec<String>,
    /// How long to train.
    #[arg(long, value_name = "LENGTH", value_enum)]
    pub(crate) length: Option<RunLength>,
}

/// What `init` writes a run file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Goal {
    /// Teach a model to answer by example.
    Sft,
    /// Train a reward model on pairs of answers.
    Rm,
    /// Improve a model by its rewards.
    Ppo,
    /// All three, one after the other.
    All,
}

/// How long the run of `init` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RunLength {
    /// A few steps, to see that everything works.
    Quick,
    /// Every row once.
    Normal,
}

/// Which model, and how it is held.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// A model folder, or a hub name `owner/name[@revision]`; for `chat` also http://HOST:PORT/v1[#NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) model: String,
    /// The numbers that the weights are held in.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Dtype::Float32)]
    pub(crate) dtype: Dtype,
    /// Where the model computes: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSetting::Auto)]
    pub(crate) device: DeviceSetting,
    /// A built-in chat template, or Jinja source [default: the model's own].
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
}

/// How replies are drawn.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// The longest reply, in tokens.
    #[arg(long, value_name = "N", default_value = "128")]
    pub(crate) max_new_tokens: NonZeroUsize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Draw from the K most likely tokens; 0 draws from all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Draw from the most likely tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f64,
    /// Chooses the draws.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run every reply to --max-new-tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

/// `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) source: PromptSource,
    /// Where the rows go [default: stdout].
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) output: Option<PathBuf>,
    /// Replace --output if it exists.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Take --prompt and `text` as they are, without a chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Replies that are in work at once.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) batch_size: NonZeroUsize,
}

/// Where prompts come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptSource {
    /// One prompt.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A file of prompts, one JSON object a line.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) input: Option<PathBuf>,
}

/// `logprobs` and `reward`.
#[derive(Debug, Args)]
pub(crate) struct BatchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The rows, one JSON object a line.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) input: PathBuf,
    /// Where the rows go [default: stdout].
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) output: Option<PathBuf>,
    /// Replace --output if it exists.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Rows that are run at once.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) batch_size: NonZeroUsize,
}

/// `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Instructions for the whole conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// What happens when the context is full: the oldest messages are left out, they are summarized by the model, or
    /// the message is refused [default: drop].
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) context: Option<FullContext>,
    #[command(flatten)]
    pub(crate) others: OtherModels,
    #[command(flatten)]
    pub(crate) kept: KeptArgs,
    /// The colours: dark, light or plain.
    #[arg(long, value_name = "NAME", value_parser = theme)]
    pub(crate) theme: Option<ThemeName>,
    /// Chat by lines instead of on a full screen.
    #[arg(long)]
    pub(crate) inline: bool,
    /// Read one message from stdin, and print the answer with its numbers as one JSON object.
    #[arg(long, conflicts_with = "inline")]
    pub(crate) json: bool,
}

/// The models beside the one that answers.
#[derive(Debug, Args)]
pub(crate) struct OtherModels {
    /// Another model that answers side by side; may be given again and again.
    #[arg(long, value_name = "DIR")]
    pub(crate) compare: Vec<String>,
    /// Hide which model wrote which answer.
    #[arg(long, requires = "compare")]
    pub(crate) blind: bool,
    /// The reward model of /reward.
    #[arg(long, value_name = "DIR")]
    pub(crate) reward_model: Option<String>,
    /// The reference of /kl.
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<String>,
}

/// What the chat keeps.
#[derive(Debug, Args)]
pub(crate) struct KeptArgs {
    /// Where judgements are written [default: feedback/ in the data folder of the user].
    #[arg(long, value_name = "DIR")]
    pub(crate) feedback: Option<PathBuf>,
    /// Go on with the newest session.
    #[arg(long = "continue", conflicts_with = "session")]
    pub(crate) continue_newest: bool,
    /// Go on with this session.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Keep neither sessions nor messages.
    #[arg(long, conflicts_with_all = ["session", "continue_newest"])]
    pub(crate) no_save: bool,
}

/// What happens when a conversation no longer fits into the context of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FullContext {
    /// The model no longer sees the oldest messages.
    Drop,
    /// The model sees a summary of the oldest messages.
    Summarize,
    /// The message is refused.
    Stop,
}

impl From<FullContext> for ContextPolicy {
    fn from(context: FullContext) -> Self {
        match context {
            FullContext::Drop => Self::Drop,
            FullContext::Summarize => Self::Summarize,
            FullContext::Stop => Self::Stop,
        }
    }
}

/// The name of a theme.
fn theme(name: &str) -> Result<ThemeName, String> {
    ThemeName::find(name).ok_or_else(|| "the themes are dark, light and plain".to_owned())
}

/// `watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The run folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Print how the run is now, and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON: with --once one object, otherwise one object for every row.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `runs`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List the runs below a folder.
    #[command(after_help = "\
Example:
  colossal-chat runs ls runs")]
    Ls(RunsLsArgs),
    /// Show a run: settings that differ from the defaults, numbers, checkpoints, the newest sample.
    #[command(after_help = "\
Example:
  colossal-chat runs show runs/ppo")]
    Show(RunsShowArgs),
    /// Show the settings in which runs differ, and their numbers side by side.
    #[command(after_help = "\
Example:
  colossal-chat runs compare runs/ppo-a runs/ppo-b")]
    Compare(RunsCompareArgs),
    /// Draw a metric of runs as text, or as an SVG file.
    #[command(after_help = "\
Examples:
  colossal-chat runs plot runs/ppo --metric objective/kl
  colossal-chat runs plot runs/sft-a runs/sft-b --log --svg loss.svg")]
    Plot(RunsPlotArgs),
}

/// `runs ls`.
#[derive(Debug, Args)]
pub(crate) struct RunsLsArgs {
    /// Where to look.
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) folder: PathBuf,
    /// Folders below it, in levels.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) depth: usize,
    /// Print one JSON list.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `runs show`.
#[derive(Debug, Args)]
pub(crate) struct RunsShowArgs {
    /// The run folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `runs compare`.
#[derive(Debug, Args)]
pub(crate) struct RunsCompareArgs {
    /// The run folders.
    #[arg(value_name = "RUN", required = true, num_args = 2..)]
    pub(crate) runs: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `runs plot`.
#[derive(Debug, Args)]
pub(crate) struct RunsPlotArgs {
    /// The run folders.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The metric [default: objective/scores of ppo, loss of the other stages].
    #[arg(long, value_name = "NAME")]
    pub(crate) metric: Option<String>,
    /// Draw logarithms. Values without one are left out.
    #[arg(long, conflicts_with = "svg")]
    pub(crate) log: bool,
    /// Write an SVG file instead.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// Replace --svg if it exists.
    #[arg(long, requires = "svg")]
    pub(crate) force: bool,
}

/// `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The run folders.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The folder for the report.
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Replace a report in --out.
    #[arg(long)]
    pub(crate) force: bool,
}

/// `data`.
#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Make rows of a small bilingual world: demonstrations, pairs, prompts, held-out rows, text.
    #[command(after_help = "\
Writes sft.parquet, preference.parquet, prompts.parquet, heldout.parquet, heldout_preference.parquet and text.parquet.

Example:
  colossal-chat data synth --out data --train 20000 --seed 7")]
    Synth(SynthArgs),
    /// Turn JSONL, JSON, CSV or foreign Parquet into Parquet rows.
    #[command(after_help = "\
Examples:
  colossal-chat data convert alpaca.json --output sft.parquet
  colossal-chat data convert chats.jsonl --output sft.parquet --map messages=dialogue --map bot=assistant --drop tools")]
    Convert(ConvertArgs),
    /// Read every row of a file, and tell what is in it or what is wrong with it.
    #[command(
        visible_alias = "inspect",
        after_help = "\
Example:
  colossal-chat data check sft.parquet --tokenizer runs/base/final --json"
    )]
    Check(CheckArgs),
    /// Train a byte-level BPE tokenizer with a chat template.
    #[command(after_help = "\
Example:
  colossal-chat data tokenizer text.parquet --vocab-size 4096 --out tokenizer")]
    Tokenizer(TokenizerArgs),
    /// Turn judgements that were made in `chat` into rows to train on.
    #[command(after_help = "\
Examples:
  colossal-chat data import-feedback --preference pairs.parquet
  colossal-chat data import-feedback feedback/2026-03.jsonl --preference pairs.parquet --unpaired thumbs.parquet")]
    ImportFeedback(ImportFeedbackArgs),
}

/// `data synth`.
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// The folder for the files.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Decides every row.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Demonstrations.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().train)]
    pub(crate) train: usize,
    /// Pairs of a better and a worse answer.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().preferences)]
    pub(crate) preferences: usize,
    /// Prompts for PPO.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().prompts)]
    pub(crate) prompts: usize,
    /// Rows of text for a base model.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().pretraining)]
    pub(crate) pretraining: usize,
    /// Questions to measure with.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().heldout)]
    pub(crate) heldout: usize,
    /// Pairs to measure with.
    #[arg(long, value_name = "N", default_value_t = SynthOptions::default().heldout_preferences)]
    pub(crate) heldout_preferences: usize,
    /// The part of the demonstrations that is wrong on purpose.
    #[arg(long, value_name = "SHARE", default_value_t = SynthOptions::default().spoilt_share)]
    pub(crate) spoilt_share: f64,
}

/// `data convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The file to read.
    #[arg(value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// The file to write.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) output: PathBuf,
    /// Replace --output if it exists.
    #[arg(long)]
    pub(crate) force: bool,
    /// Rename a column (WANTED=FOUND) or a role (ALIAS=ROLE); may be given again and again.
    #[arg(long = "map", value_name = "A=B")]
    pub(crate) maps: Vec<String>,
    /// The layout of the file [default: told by its columns].
    #[arg(long, value_name = "NAME")]
    pub(crate) layout: Option<String>,
    /// Leave out these columns and fields of turns, whatever they say; separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) drop: Vec<String>,
}

/// `data check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The file to read.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Encode each row with the tokenizer of this folder, as training would, and count tokens.
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<String>,
    /// A built-in chat template, or Jinja source [default: the tokenizer's own].
    #[arg(long, value_name = "NAME", requires = "tokenizer")]
    pub(crate) template: Option<String>,
    /// The layout of the file [default: told by its columns].
    #[arg(long, value_name = "NAME")]
    pub(crate) layout: Option<String>,
    /// Leave out these columns and fields of turns, as `data.drop` does; separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) drop: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `data tokenizer`.
#[derive(Debug, Args)]
pub(crate) struct TokenizerArgs {
    /// Files of training rows.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Tokens, the 256 bytes and the special ones included.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) vocab_size: usize,
    /// The folder for the tokenizer.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `data import-feedback`.
#[derive(Debug, Args)]
pub(crate) struct ImportFeedbackArgs {
    /// Files of feedback, or folders of them [default: what `chat` has written for this user].
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) outputs: FeedbackOutputs,
    /// Two ratings that lie this far apart make a pair.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) min_rating_gap: u8,
    /// Take the rows of this session alone.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Take rows from this day or moment on, in UTC: 2026-03-01 or 2026-03-01T12:30:00Z.
    #[arg(long, value_name = "DATE")]
    pub(crate) since: Option<Timestamp>,
    /// Replace files that exist.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the rows of feedback go.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct FeedbackOutputs {
    /// Write pairs of a better and a worse answer, which `rm` trains on.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) preference: Option<PathBuf>,
    /// Write single answers that are good or bad.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) unpaired: Option<PathBuf>,
}

/// `model`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Print what a model folder holds: family, sizes, parameters, memory.
    Info(ModelInfoArgs),
    /// Make a model folder with random weights.
    #[command(after_help = "\
Example:
  colossal-chat model init config.json --tokenizer tokenizer --seed 7 --out base")]
    Init(ModelInitArgs),
}

/// `model info`.
#[derive(Debug, Args)]
pub(crate) struct ModelInfoArgs {
    /// A model folder, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `model init`.
#[derive(Debug, Args)]
pub(crate) struct ModelInitArgs {
    /// The architecture, as in HF model folders.
    #[arg(value_name = "CONFIG.json")]
    pub(crate) config: PathBuf,
    /// The folder for the model.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Decides the weights.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Copy the tokenizer of this folder into the model.
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<String>,
}

/// Threads of one operation. How many there may be depends on the processes of the job.
fn threads(text: &str) -> Result<usize, String> {
    within(text, usize::MAX)
}

/// Processes that this machine would run.
fn processes(text: &str) -> Result<usize, String> {
    let number = within(text, usize::MAX)?;
    launch::check_processes(number).map(|()| number).map_err(|error| error.to_string())
}

/// Processes that a plan lays out and nobody runs.
fn planned_processes(text: &str) -> Result<usize, String> {
    within(text, 1 << 16)
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

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also measure the processor, memory and disk for some 10 seconds, and keep the speeds for `plan`.
    #[arg(long)]
    pub(crate) bench: bool,
    /// A folder on the disk that is measured.
    #[arg(long, value_name = "DIR", default_value = ".", requires = "bench")]
    pub(crate) disk_path: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The help of `command` and of every command below it.
    fn help(command: &mut clap::Command, path: &str, text: &mut String) {
        let rendered = command.clone().term_width(100).render_long_help();
        text.extend(["===== ", path, "\n", &rendered.to_string(), "\n"]);
        for below in command.get_subcommands_mut() {
            if below.get_name() != "help" {
                let path = format!("{path} {}", below.get_name());
                help(below, &path, text);
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts() {
        let mut text = String::new();
        help(&mut Cli::command(), "colossal-chat", &mut text);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn prompt_and_input_exclude_each_other_and_one_is_needed() {
        let parse = |extra: &[&str]| {
            let words = ["colossal-chat", "generate", "--model", "m"];
            Cli::try_parse_from(words.iter().chain(extra)).is_ok()
        };
        assert!(parse(&["--prompt", "x"]) && parse(&["--input", "x.jsonl"]));
        assert!(!parse(&[]) && !parse(&["--prompt", "x", "--input", "y"]));
        assert!(!parse(&["--prompt", "x", "--max-new-tokens", "0"]));
    }
}
