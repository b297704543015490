//! The command line. Knows its words and their bounds, and does nothing.

mod chat;
mod count;
mod data;
mod eval;
mod home;
mod model;
mod reject;
mod runs;
mod serve;
mod train;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use chat::{ChatArgs, OtherModels};
use count::threads;
pub(crate) use data::{
    CheckArgs, ConvertArgs, DataCommand, FeedbackOutputs, ImportFeedbackArgs, SynthArgs, TokenizerArgs,
};
pub(crate) use eval::{
    EvalArgs, EvalCommand, EvalDiffArgs, EvalFetchArgs, EvalJudgeArgs, EvalListArgs, EvalRmArgs, EvalRunArgs,
    EvalShowArgs, JudgeMode,
};
pub(crate) use model::{
    AdapterInit, BatchArgs, GenerateArgs, GgufDtype, ModelArgs, ModelCommand, ModelConvertAdapterArgs,
    ModelDequantizeArgs, ModelExportArgs, ModelImportArgs, ModelInfoArgs, ModelInitAdapterArgs,
    ModelInitArgs, ModelMergeArgs, ModelQuantizeArgs, ModelUnmergeArgs, SampleArgs, SamplingArgs,
    SpeculationArgs,
};
pub(crate) use reject::RejectArgs;
pub(crate) use runs::{
    ReportArgs, RunsCommand, RunsCompareArgs, RunsLsArgs, RunsPlotArgs, RunsShowArgs, WatchArgs,
};
pub(crate) use serve::ServeArgs;
pub(crate) use train::{DemoArgs, Goal, InitArgs, LaunchArgs, PlanArgs, RunLength, StageCommand, TrainArgs};

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

impl Cli {
    /// Reads the command line of this process. `~` in a path is the home folder.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        Self::read_from(std::env::args_os())
    }

    fn read_from<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Self, clap::Error> {
        let matches = home::expand(count::explain(Self::command())).try_get_matches_from(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::command()))
    }
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
There is one output row for each input row. With --n it has `samples`, a list of such replies; with --best-of the reply
with the highest score, and `sample`, `score`, `scores` and `unscored`.

Examples:
  colossal-chat generate --model runs/sft/final --prompt 'What is 3 + 4?'
  colossal-chat generate --model runs/sft/final --input prompts.jsonl --output replies.jsonl --temperature 0
  colossal-chat generate --model runs/sft/final --input prompts.jsonl --n 4 --seed 7
  colossal-chat generate --model runs/sft/final --input prompts.jsonl --best-of 8 --reward-model runs/rm/final")]
    Generate(GenerateArgs),
    /// Sample replies to prompts, and keep those with high rewards as rows to train on (rejection sampling).
    #[command(after_help = "\
Reads [model], [data] train, the rewards, [ppo] samples_per_prompt, max_new_tokens and temperature, and [reject]. Writes
OUT/rows.parquet with `messages` and `score`, which `sft` reads, and OUT/summary.json.

Examples:
  colossal-chat reject --config run.toml --set out=runs/best
  colossal-chat reject --config run.toml --set reject.keep=above --set reject.threshold=1.0 --set ppo.samples_per_prompt=16")]
    Reject(RejectArgs),
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
    /// Ask models the questions of benchmarks, and report how well they answer.
    #[command(after_help = "\
Writes tables, CSV, JSON and one HTML page. The same command again continues an evaluation that was broken off.

Examples:
  colossal-chat eval --model runs/sft/final --tasks arc_easy,hellaswag --data eval-data --limit 100
  colossal-chat eval --model runs/sft/final,runs/ppo/final --tasks gsm8k --data eval-data
  colossal-chat eval list 'mmlu*'
  colossal-chat eval show arc_easy --data eval-data
  colossal-chat eval diff eval-results/sft eval-results/ppo
  colossal-chat eval judge --model runs/ppo/final --questions prompts.jsonl --judge http://127.0.0.1:8000/v1#NAME
  colossal-chat eval rm --model runs/rm/final --data pairs.parquet")]
    Eval(Box<EvalArgs>),
    /// Talk with a model. In a pipe, only the answer is printed.
    #[command(after_help = "\
Examples:
  colossal-chat chat --model runs/ppo/final
  colossal-chat chat --model runs/ppo/final --system 'Answer in one word.' --temperature 0
  colossal-chat chat --model runs/ppo/final --compare runs/sft/final --blind --reward-model runs/rm/final
  colossal-chat chat --model http://127.0.0.1:8000/v1
  echo 'What is 3 + 4?' | colossal-chat chat --model runs/ppo/final")]
    Chat(ChatArgs),
    /// Answer requests over HTTP, in the form of OpenAI's API, and show a chat page.
    #[command(after_help = "\
Only this machine can reach the server, unless --host says otherwise, which needs a key. The page is at http://127.0.0.1:8000/.

Examples:
  colossal-chat serve --model runs/ppo/final
  colossal-chat serve --model base=runs/sft/final,better=runs/ppo/final --port 8001
  colossal-chat serve --model runs/ppo/final --host 0.0.0.0 --api-key-file keys.txt")]
    Serve(ServeArgs),
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
    /// Look at a model folder, or make one: with random weights, of an adapter, of a GGUF file.
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

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also measure the processor, memory, disk and what ranks exchange, for some 20 seconds, and keep the
    /// speeds for `plan`.
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

    /// A shell leaves `~` alone behind `=` and behind a comma. What is no path stays as it is.
    #[test]
    fn the_home_folder_is_written_out_in_paths() {
        let home = std::env::var("HOME").unwrap();
        let read = |words: &str| Cli::read_from(words.split(' ')).map(|cli| cli.command);
        let Ok(Command::Demo(demo)) = read("x demo --out=~/demo") else { panic!("no demo") };
        assert_eq!(demo.out, PathBuf::from(&home).join("demo"));
        let Ok(Command::Eval(eval)) = read("x eval --model=a,~/b --tasks ~/c --data ~ --output ./~/d") else {
            panic!("no evaluation")
        };
        assert_eq!(eval.run.model, ["a".to_owned(), format!("{home}/b")]);
        assert_eq!(eval.run.tasks.tasks, ["~/c"]);
        assert_eq!(eval.run.tasks.data, PathBuf::from(&home));
        assert_eq!(eval.run.output, Some(PathBuf::from("./~/d")));
        let Ok(Command::Generate(generate)) = read("x generate --model=~/m --prompt ~/x") else {
            panic!("no replies")
        };
        assert_eq!(
            (generate.model.model, generate.source.prompt),
            (format!("{home}/m"), Some("~/x".to_owned()))
        );
        let error = read("x demo --out=~nobody/demo").unwrap_err().to_string();
        assert!(error.contains("--out <DIR>") && error.contains("./~nobody/demo"), "{error}");
    }

    #[test]
    fn a_wrong_count_is_explained_in_plain_words() {
        for words in [
            "chat --model m --max-new-tokens",
            "serve --model m --max-requests",
            "eval --model m --tasks t --data d --endpoint-timeout",
            "eval rm --model m --data d --limit",
        ] {
            let wrong = |value: &str| {
                let words = words.split(' ').chain([value]);
                Cli::read_from(["x"].into_iter().chain(words)).unwrap_err().to_string()
            };
            assert!(wrong("0").contains(": there must be at least 1\n"), "{}", wrong("0"));
            assert!(wrong("two").contains(": give a whole number from 1 up\n"), "{}", wrong("two"));
            let large = "99999999999999999999";
            assert!(wrong(large).contains(": the number is too large\n"), "{}", wrong(large));
        }
    }

    #[test]
    fn a_host_that_is_no_address_is_answered_with_what_to_give() {
        let wrong = |host: &str| {
            Cli::read_from(["x", "serve", "--model", "m", "--host", host]).unwrap_err().to_string()
        };
        assert!(wrong("localhost:80").contains("the port is a flag of its own, --port 80"));
        assert!(wrong("127.0.0.1:80").contains("the port is a flag of its own, --port 80"));
        for host in ["0.0.0.0/0", "gpu-machine", "", "localhost:http"] {
            assert!(wrong(host).contains("0.0.0.0 for all of them"), "{}", wrong(host));
        }
        assert!(Cli::read_from(["x", "serve", "--model", "m", "--host", "::"]).is_ok());
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
            Cli::read_from(words.iter().chain(extra)).is_ok()
        };
        assert!(parse(&["--prompt", "x"]) && parse(&["--input", "x.jsonl"]));
        assert!(!parse(&[]) && !parse(&["--prompt", "x", "--input", "y"]));
        assert!(!parse(&["--prompt", "x", "--max-new-tokens", "0"]));
    }
}
