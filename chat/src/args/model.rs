//! The flags of commands that run or look at one model: `generate`, `logprobs`, `reward`, `model`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::count;
use crate::config::section::{Dtype, QuantizeType};
use crate::evaluation::model::ModelHost;
use crate::session::{ModelSource, Speculation, WeightSettings};

/// Which model, and how it is held.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// A model folder, or a hub name `owner/name[@revision]`; for `chat` also http://HOST:PORT/v1[#NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) weights: WeightSettings,
    /// A built-in chat template, or Jinja source [default: the model's own].
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
}

impl ModelArgs {
    /// The model that the flags name.
    pub(crate) fn source(&self) -> ModelSource {
        let Self { model, weights, template } = self.clone();
        ModelSource { model, weights, template }
    }
}

/// How models are run here, and asked behind an endpoint.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelHostArgs {
    #[command(flatten)]
    pub(crate) weights: WeightSettings,
    /// The most tokens of a row, below what the model allows.
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<NonZeroUsize>,
    /// The requests that are under way at an endpoint at once [default: 4].
    #[arg(long, value_name = "N")]
    pub(crate) endpoint_concurrency: Option<NonZeroUsize>,
    /// The most seconds for a reply of an endpoint [default: 600].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) endpoint_timeout: Option<NonZeroU64>,
}

impl ModelHostArgs {
    /// What the flags say.
    pub(crate) fn host(&self) -> ModelHost {
        let Self { weights, max_length, endpoint_concurrency, endpoint_timeout } = *self;
        ModelHost { weights, max_length, endpoint_concurrency, endpoint_timeout }
    }
}

/// How the next tokens of replies are guessed.
#[derive(Debug, Args)]
pub(crate) struct SpeculationArgs {
    /// Guess the next N tokens, from what a reply repeats or by --draft-model, and check them in one step.
    /// Replies stay the same [default: no guesses].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) speculative_tokens: Option<u8>,
    /// A smaller model with the same tokenizer, which guesses.
    #[arg(long, value_name = "DIR", requires = "speculative_tokens")]
    pub(crate) draft_model: Option<String>,
}

impl SpeculationArgs {
    /// The number of tokens that are guessed in a step.
    pub(crate) fn tokens(&self) -> usize {
        self.speculative_tokens.map_or(0, usize::from)
    }

    /// What the flags say. A draft is held like the model of `source`.
    pub(crate) fn speculation(&self, source: &ModelSource) -> Speculation {
        let draft = self.draft_model.clone();
        Speculation {
            tokens: self.tokens(),
            draft: draft.map(|model| ModelSource { model, template: None, ..source.clone() }),
        }
    }
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
    /// The adapter of --model that is run, in place of --model itself.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub(crate) adapter: Option<String>,
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
    #[command(flatten)]
    pub(crate) samples: SampleArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// Replies that are in work at once.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) batch_size: NonZeroUsize,
}

/// How many replies to a prompt are drawn, and what becomes of them.
#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    /// Draw N replies to each prompt, and write them as the list `samples` [default: one reply, and no list].
    #[arg(long, value_name = "N", conflicts_with = "best_of", value_parser = count::samples)]
    pub(crate) n: Option<usize>,
    /// Draw N replies to each prompt, and write the one with the highest score.
    #[arg(long, value_name = "N", value_parser = count::samples)]
    pub(crate) best_of: Option<usize>,
    /// A reward model that scores the replies of --best-of; may be given again and again, and the scores are
    /// added.
    #[arg(long, value_name = "DIR", requires = "best_of")]
    pub(crate) reward_model: Vec<String>,
    /// A run file whose rewards score the replies of --best-of: `[[reward]]` and `[ppo] reward_model`.
    #[arg(long, value_name = "FILE", requires = "best_of")]
    pub(crate) config: Option<PathBuf>,
}

impl SampleArgs {
    /// The replies that are drawn to each prompt.
    pub(crate) fn count(&self) -> usize {
        self.n.or(self.best_of).unwrap_or(1)
    }
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
    /// The adapter of --model that is run, in place of --model itself.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub(crate) adapter: Option<String>,
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
    /// Make a whole model of an adapter and the model that it belongs to.
    #[command(after_help = "\
Example:
  colossal-chat model merge runs/sft/final --out merged")]
    Merge(ModelMergeArgs),
    /// Take an adapter that was merged into a model out of it again.
    #[command(after_help = "\
Example:
  colossal-chat model unmerge merged --adapter runs/sft/final --out base")]
    Unmerge(ModelUnmergeArgs),
    /// Make an adapter that begins with a part of its model's weights: PiSSA, OLoRA or LoftQ.
    #[command(after_help = "\
With pissa and olora, OUT/base is the model that the adapter belongs to: what the adapter took is not in its weights.
Train with the folder as [model] path, and without [model.lora].

Examples:
  colossal-chat model init-adapter base --init pissa --rank 16 --out pissa
  colossal-chat model init-adapter base --init loftq --quantize nf4 --rank 16 --out loftq
  colossal-chat model init-adapter base --init eva --data rows.parquet --rank 16 --out eva")]
    InitAdapter(ModelInitAdapterArgs),
    /// Make an adapter of the original model of one that was trained from `init-adapter` with pissa or olora.
    #[command(after_help = "\
Example:
  colossal-chat model convert-adapter runs/sft/final --initial pissa --base base --out lora")]
    ConvertAdapter(ModelConvertAdapterArgs),
    /// Write a language model with the weights of its linear layers in codes, as bitsandbytes holds them.
    #[command(after_help = "\
transformers loads the folder with bitsandbytes, and every command here takes it. Train adapters on it with [model.lora].

Examples:
  colossal-chat model quantize base --quantize nf4 --out base-nf4
  colossal-chat sft --config run.toml --set model.path=base-nf4 --set model.lora.r=16 --set out=lora")]
    Quantize(ModelQuantizeArgs),
    /// Make numbers of the codes of a language model.
    #[command(after_help = "\
Example:
  colossal-chat model dequantize base-nf4 --dtype bfloat16 --out base")]
    Dequantize(ModelDequantizeArgs),
    /// Write a language model as a GGUF file, which llama.cpp reads.
    #[command(after_help = "\
The file has the tokenizer, the end tokens and the chat template. LLaMA, Qwen2 and Qwen3 can be written.

Examples:
  colossal-chat model export runs/sft/final --gguf sft.gguf
  colossal-chat model export runs/sft/final --gguf sft-q8.gguf --dtype q8_0")]
    Export(ModelExportArgs),
    /// Make a model folder of a GGUF file.
    #[command(after_help = "\
Example:
  colossal-chat model import model.gguf --out base")]
    Import(ModelImportArgs),
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

/// `model merge`.
#[derive(Debug, Args)]
pub(crate) struct ModelMergeArgs {
    /// The folder of the adapter, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// The folder for the whole model.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The numbers of the written weights. The sums are computed in fp32 and rounded once.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Dtype::Float32)]
    pub(crate) dtype: Dtype,
}

/// `model unmerge`.
#[derive(Debug, Args)]
pub(crate) struct ModelUnmergeArgs {
    /// The folder of the whole model, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// The folder of the adapter in its weights, or a hub name `owner/name[@revision]`.
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: String,
    /// The folder for the model without it. The differences are computed in fp32, and stored as in the model.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `model init-adapter`.
#[derive(Debug, Args)]
pub(crate) struct ModelInitAdapterArgs {
    /// The folder of a whole model, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// What the adapter begins with.
    #[arg(long, value_name = "INIT", value_enum)]
    pub(crate) init: AdapterInit,
    /// The rank: the number of rows of `A`.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) rank: i64,
    /// The numerator of the factor of the adapter's output, whose denominator is the rank [default: the
    /// rank].
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    pub(crate) alpha: Option<f64>,
    /// The adapted layers, by name or end of name [default: every linear layer but the head and the routers
    /// of experts].
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',')]
    pub(crate) target: Vec<String>,
    /// Take the square root of the rank as the denominator (rsLoRA).
    #[arg(long)]
    pub(crate) rslora: bool,
    /// For loftq: how training holds the weights of the model, `model.quantize`.
    #[arg(long, value_name = "TYPE", value_enum, required_if_eq("init", "loftq"))]
    pub(crate) quantize: Option<QuantizeType>,
    /// For pissa and olora: the numbers of the changed weights. The differences are computed in fp32 and
    /// rounded once [default: float32].
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) dtype: Option<Dtype>,
    /// For eva: training rows, in files, folders or patterns. The inputs at their tokens with a label count.
    #[arg(long, value_name = "FILE[,FILE...]", value_delimiter = ',', required_if_eq("init", "eva"))]
    pub(crate) data: Vec<String>,
    /// For eva: the most rows that are read, counted from the first [default: all].
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// For eva: the longest row in tokens. Longer ones are left out [default: 1024, or all positions of the
    /// model].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_length: Option<u64>,
    /// For eva: the largest rank of a layer, in units of --rank. Ranks move to the layers where they explain
    /// most; with 1, none moves [default: 2].
    #[arg(long, value_name = "RHO")]
    pub(crate) rho: Option<f64>,
    /// The folder for the adapter. It stays where it is: the adapter names its model by the whole path.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// What an adapter begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdapterInit {
    /// The largest singular values of each weight, with their vectors.
    Pissa,
    /// The first columns of the QR decomposition of each weight.
    Olora,
    /// The largest part of what quantisation takes from each weight.
    Loftq,
    /// The directions in which the inputs of each layer vary the most.
    Eva,
}

/// `model convert-adapter`.
#[derive(Debug, Args)]
pub(crate) struct ModelConvertAdapterArgs {
    /// The folder of the trained adapter, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) trained: String,
    /// The folder of the adapter that the training began with.
    #[arg(long, value_name = "DIR")]
    pub(crate) initial: String,
    /// The model that the initial adapter was made of, or a hub name `owner/name[@revision]`.
    #[arg(long, value_name = "DIR")]
    pub(crate) base: String,
    /// The folder for the adapter of --base, of twice the rank.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `model quantize`.
#[derive(Debug, Args)]
pub(crate) struct ModelQuantizeArgs {
    /// The folder of a whole model, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// How the weights of linear layers are held. The other parameters stay as they are.
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) quantize: QuantizeType,
    /// The folder for the model in codes.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `model dequantize`.
#[derive(Debug, Args)]
pub(crate) struct ModelDequantizeArgs {
    /// The folder of a whole model in codes, or a hub name `owner/name[@revision]`.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// The folder for the model in numbers.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The numbers of the written weights. They are computed in fp32 and rounded once.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Dtype::Float32)]
    pub(crate) dtype: Dtype,
}

/// `model export`.
#[derive(Debug, Args)]
pub(crate) struct ModelExportArgs {
    /// A model folder, or a hub name `owner/name[@revision]`. An adapter is merged into its model.
    #[arg(value_name = "DIR")]
    pub(crate) model: String,
    /// The file to write.
    #[arg(long, value_name = "FILE.gguf")]
    pub(crate) gguf: PathBuf,
    /// The numbers of the matrices [default: as they are stored; f32 for an adapter and for codes].
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) dtype: Option<GgufDtype>,
    /// Replace --gguf if it exists.
    #[arg(long)]
    pub(crate) force: bool,
}

/// The numbers of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GgufDtype {
    /// 32 bits.
    F32,
    /// 16 bits, at most 65504.
    F16,
    /// The upper 16 bits of f32.
    Bf16,
    /// 8 bits with a scale for each 32 numbers.
    #[value(name = "q8_0")]
    Q8_0,
}

/// `model import`.
#[derive(Debug, Args)]
pub(crate) struct ModelImportArgs {
    /// The GGUF file.
    #[arg(value_name = "FILE.gguf")]
    pub(crate) file: PathBuf,
    /// The folder for the model.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
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
