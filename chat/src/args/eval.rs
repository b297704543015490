//! The flags of `eval`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use eval::results::requirement::Requirement;

use super::count::processes;
use super::model::ModelHostArgs;
use crate::session::WeightSettings;

/// `eval`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    pub(crate) command: Option<EvalCommand>,
    #[command(flatten)]
    pub(crate) run: EvalRunArgs,
}

/// What is evaluated, and how.
#[derive(Debug, Args)]
pub(crate) struct EvalRunArgs {
    /// Model folders, run folders, hub names or http://HOST:PORT/v1#NAME, with commas. The others are
    /// compared with the first.
    #[arg(long, value_name = "DIR[,DIR...]", value_delimiter = ',', required = true)]
    pub(crate) model: Vec<String>,
    /// An adapter of a model of --model, which is evaluated behind it on the same weights; may be given again
    /// and again.
    #[arg(long, value_name = "[NAME=]DIR", value_delimiter = ',')]
    pub(crate) adapter: Vec<String>,
    #[command(flatten)]
    pub(crate) tasks: TaskArgs,
    /// The first N rows of each task.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
    /// Training files, folders and patterns such as 'data/*.parquet': report which rows of the tasks they
    /// hold, and the scores with and without these.
    #[arg(long, value_name = "FILE[,FILE...]", value_delimiter = ',')]
    pub(crate) train_data: Vec<String>,
    /// The folder of the results; the same command goes on there after a break [default: eval-results/...].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Replace the results of another evaluation in that folder; with the same command, ask endpoints again.
    #[arg(long)]
    pub(crate) force: bool,
    /// Run the programs that models write (humaneval, mbpp), each in a sandbox without network.
    #[arg(long)]
    pub(crate) allow_code_execution: bool,
    /// End with code 1 if a score of the last model misses a bound, such as gsm8k>=0.4.
    #[arg(long, value_name = "TASK[:METRIC]>=X")]
    pub(crate) require: Vec<Requirement>,
    #[command(flatten)]
    pub(crate) host: ModelHostArgs,
    /// Processes on this machine, which share the requests.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) nproc: usize,
    /// Print the results as JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which tasks, and how their prompts are made.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// Tasks and groups, with commas; `*` stands for any text. `eval list` names them.
    #[arg(long, value_name = "TASK[,TASK...]", value_delimiter = ',', required = true)]
    pub(crate) tasks: Vec<String>,
    /// The folder of the rows: one folder for each task, as on the hub.
    #[arg(long, value_name = "DIR", default_value = "eval-data")]
    pub(crate) data: PathBuf,
    /// A task file, or a folder of them, in addition to the built-in ones.
    #[arg(long, value_name = "PATH")]
    pub(crate) include_path: Vec<PathBuf>,
    /// Examples in each prompt [default: the task's own number].
    #[arg(long, value_name = "K")]
    pub(crate) num_fewshot: Option<usize>,
    /// Render prompts with the model's chat template.
    #[arg(long)]
    pub(crate) apply_chat_template: bool,
    /// With a chat template: put all examples into one user turn.
    #[arg(long, requires = "apply_chat_template")]
    pub(crate) fewshot_in_one_turn: bool,
    /// The most tokens of a reply [default: the task's own number].
    #[arg(long, value_name = "N")]
    pub(crate) max_gen_toks: Option<NonZeroUsize>,
    /// A text before every prompt; with a chat template, the system message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_instruction: Option<String>,
}

/// What else `eval` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// List the tasks and groups.
    #[command(after_help = "\
Example:
  colossal-chat eval list --include-path my-tasks")]
    List(EvalListArgs),
    /// Print what a model would be asked, without a model.
    #[command(after_help = "\
Example:
  colossal-chat eval show arc_easy --data eval-data --num-fewshot 2 --rows 1")]
    Show(EvalShowArgs),
    /// Download the rows of tasks from the Hugging Face hub.
    #[command(after_help = "\
Example:
  colossal-chat eval fetch --tasks arc_easy,gsm8k --data eval-data")]
    Fetch(EvalFetchArgs),
    /// Compare two evaluations document by document.
    #[command(after_help = "\
Example:
  colossal-chat eval diff eval-results/sft eval-results/ppo")]
    Diff(EvalDiffArgs),
    /// Have a judge rate the answers of models, or compare them.
    #[command(after_help = "\
A judge is a model behind an endpoint, a model folder, or a reward model folder. The same command
again continues what was broken off, and asks again what failed.

Examples:
  colossal-chat eval judge --model runs/sft/final,runs/ppo/final --questions prompts.jsonl --judge http://127.0.0.1:8000/v1#NAME
  colossal-chat eval judge --model runs/ppo/final --questions mt_bench --data eval-data --judge http://127.0.0.1:8000/v1#NAME
  colossal-chat eval judge --model runs/sft/final,runs/ppo/final --questions prompts.jsonl --judge runs/rm/final
  colossal-chat eval judge --answers a.jsonl,b.jsonl --questions arena_hard --judge http://127.0.0.1:8000/v1#NAME")]
    Judge(Box<EvalJudgeArgs>),
    /// Report how well a reward model tells better replies from worse ones.
    #[command(after_help = "\
Rows are preference pairs, RewardBench, RewardBench 2, HHH alignment, or replies with gold values; their columns tell which.
Writes rm.json, samples.jsonl, summary.md and report.html.

Examples:
  colossal-chat eval rm --model runs/rm/final --data heldout.parquet,reward-bench/data/filtered-00000-of-00001.parquet
  colossal-chat eval rm --model runs/rm/final --data replies.jsonl --run runs/ppo --gold gold.jsonl")]
    Rm(EvalRmArgs),
}

/// `eval judge`.
#[derive(Debug, Args)]
pub(crate) struct EvalJudgeArgs {
    #[command(flatten)]
    pub(crate) answers: AnswerArgs,
    /// `mt_bench` or `arena_hard` below --data, or a file of rows with `prompt`, `turns` or `messages`.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) questions: String,
    /// The folder of `mt_bench` and `arena_hard`.
    #[arg(long, value_name = "DIR", default_value = "eval-data")]
    pub(crate) data: PathBuf,
    /// Reference answers by question: rows with `question_id`, and `choices` or `references`.
    #[arg(long, value_name = "FILE")]
    pub(crate) references: Option<PathBuf>,
    /// The first N questions.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
    /// The judge: http://HOST:PORT/v1#NAME, a model folder, or a reward model folder.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) judge: String,
    /// Rate single answers, or compare pairs [default: single for `mt_bench` and one model, else pairwise].
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) mode: Option<JudgeMode>,
    /// The model that the others are compared with [default: the first].
    #[arg(long, value_name = "MODEL")]
    pub(crate) baseline: Option<String>,
    /// What the judge is asked: `mt_bench_single`, `mt_bench_pair`, `five_way`, or a TOML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) host: ModelHostArgs,
    /// The folder of the results, where judging that was broken off goes on [default:
    /// eval-results/judge-...].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Replace the results of another evaluation in that folder; with the same command, ask endpoints again.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print judge.json instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the answers come from.
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The models that answer: model folders, run folders, hub names or http://HOST:PORT/v1#NAME, with
    /// commas.
    #[arg(long, value_name = "DIR[,DIR...]", value_delimiter = ',', required_unless_present = "answers")]
    pub(crate) model: Vec<String>,
    /// An adapter of a model of --model, which answers behind it on the same weights; may be given again and
    /// again.
    #[arg(long, value_name = "[NAME=]DIR", value_delimiter = ',', requires = "model")]
    pub(crate) adapter: Vec<String>,
    /// Files of answers that were given before, one for each model, with commas.
    #[arg(long, value_name = "FILE[,FILE...]", value_delimiter = ',')]
    pub(crate) answers: Vec<PathBuf>,
    /// The most tokens of an answer [default: 1024].
    #[arg(long, value_name = "N", requires = "model")]
    pub(crate) max_gen_toks: Option<NonZeroUsize>,
    /// The temperature of the answers [default: for `mt_bench` that of the category, else 0].
    #[arg(long, value_name = "T", requires = "model")]
    pub(crate) temperature: Option<f64>,
}

/// What a judge does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JudgeMode {
    /// Rates each answer from 1 to 10.
    Single,
    /// Compares two answers, in both orders.
    Pairwise,
}

/// `eval rm`.
#[derive(Debug, Args)]
pub(crate) struct EvalRmArgs {
    /// The reward model: a folder, a run folder or a hub name.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: String,
    /// The adapter of --model that is the reward model, in place of --model itself.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub(crate) adapter: Option<String>,
    /// Files of rows, folders of them, or patterns, with commas.
    #[arg(long, value_name = "FILE[,FILE...]", value_delimiter = ',', required = true)]
    pub(crate) data: Vec<String>,
    /// The column whose values split pairs into parts [default: subset, source or category].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) split_by: Option<String>,
    /// The first N rows of each file.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
    /// A PPO run whose KL and reward are drawn over one another.
    #[arg(long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
    /// Gold values of that run's policies: rows with `gold`, and `step` or `checkpoint`.
    #[arg(long, value_name = "FILE", requires = "run")]
    pub(crate) gold: Option<PathBuf>,
    /// The folder of the report [default: eval-results/rm-...].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Replace another report in that folder.
    #[arg(long)]
    pub(crate) force: bool,
    /// Conversations that are scored at once.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) batch_size: NonZeroUsize,
    /// The most tokens of a conversation, below what the model allows; longer ones lose tokens on the left.
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) weights: WeightSettings,
    /// A built-in chat template, or Jinja source [default: the model's own].
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Print the report as JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `eval list`.
#[derive(Debug, Args)]
pub(crate) struct EvalListArgs {
    /// A task file, or a folder of them, in addition to the built-in ones.
    #[arg(long, value_name = "PATH")]
    pub(crate) include_path: Vec<PathBuf>,
    /// Only names that this pattern fits; `*` stands for any text.
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// Print one JSON list.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `eval show`.
#[derive(Debug, Args)]
pub(crate) struct EvalShowArgs {
    /// The task.
    #[arg(value_name = "TASK")]
    pub(crate) task: String,
    /// The folder of the rows.
    #[arg(long, value_name = "DIR", default_value = "eval-data")]
    pub(crate) data: PathBuf,
    /// A task file, or a folder of them.
    #[arg(long, value_name = "PATH")]
    pub(crate) include_path: Vec<PathBuf>,
    /// Examples in each prompt.
    #[arg(long, value_name = "K")]
    pub(crate) num_fewshot: Option<usize>,
    /// How many first rows.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) rows: NonZeroUsize,
    /// Print one JSON object for each row.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `eval fetch`.
#[derive(Debug, Args)]
pub(crate) struct EvalFetchArgs {
    /// Tasks and groups, with commas; `*` stands for any text.
    #[arg(long, value_name = "TASK[,TASK...]", value_delimiter = ',', required = true)]
    pub(crate) tasks: Vec<String>,
    /// The folder that gets the rows; rows that are there already are kept.
    #[arg(long, value_name = "DIR", default_value = "eval-data")]
    pub(crate) data: PathBuf,
    /// A task file, or a folder of them, in addition to the built-in ones.
    #[arg(long, value_name = "PATH")]
    pub(crate) include_path: Vec<PathBuf>,
}

/// `eval diff`.
#[derive(Debug, Args)]
pub(crate) struct EvalDiffArgs {
    /// The results of the baseline.
    #[arg(value_name = "DIR")]
    pub(crate) before: PathBuf,
    /// The results that are compared with it.
    #[arg(value_name = "DIR")]
    pub(crate) after: PathBuf,
    /// Compare tasks whose prompts differ as well.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON list.
    #[arg(long)]
    pub(crate) json: bool,
}
