//! The flags of `data`: make, convert and check rows.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use datasets::synth::SynthOptions;
use datasets::synth::calculator::CalculatorOptions;

use super::count;
use crate::feedback::timestamp::Timestamp;

/// `data`.
#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Make rows of a small bilingual world: demonstrations, pairs, prompts, held-out rows, text.
    #[command(after_help = "\
Writes sft.parquet, preference.parquet, prompts.parquet, heldout.parquet, heldout_preference.parquet and text.parquet.

Example:
  colossal-chat data synth --out data --train 20000 --seed 7")]
    Synth(SynthArgs),
    /// Make rows of arithmetic that need a calculator: replies that call it, prompts, held-out questions.
    #[command(after_help = "\
Writes sft.parquet, prompts.parquet and heldout.parquet. A reply that begins with = calls the calculator.

Example:
  colossal-chat data calculator --out calculator --rows 20000 --seed 7")]
    Calculator(CalculatorArgs),
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

/// `data calculator`.
#[derive(Debug, Args)]
pub(crate) struct CalculatorArgs {
    /// The folder for the files.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Decides every row.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Demonstrations, and as many prompts.
    #[arg(long, value_name = "N", default_value_t = CalculatorOptions::default().rows, value_parser = count::rows)]
    pub(crate) rows: usize,
    /// Questions to measure with.
    #[arg(long, value_name = "N", default_value_t = CalculatorOptions::default().heldout, value_parser = count::rows)]
    pub(crate) heldout: usize,
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
