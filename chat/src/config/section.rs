//! The sections of the run file that belong to no other crate. `docs/configuration.md` documents each of them
//! for users.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use datasets::{Names, Overlong};
use gemini::ZeroStage;
use models::lora::LoraConfig;
use models::quantize::Quantization;
use parallel::Transport;
use parallel::pipeline::ScheduleKind;
use serde::{Deserialize, Serialize};

use super::device::DeviceSetting;
use super::error::ConfigError;
use super::stage::StageSchema;

/// The `[model]` section: the model that a stage starts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelSection {
    /// Required, except by `base`. A model folder, or a hub name `owner/name[@revision]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The type of the weights in memory: `float32` or `bfloat16`, which reads the file in bf16 and keeps
    /// fp32 master weights from there on in the optimizer.
    pub(crate) dtype: Dtype,
    /// The device that the stage computes on: `cpu`, `cuda` (each process of a machine gets a GPU of its
    /// own), `cuda:1` (this GPU), or `auto`: an NVIDIA GPU if there is one, else the CPU.
    pub(crate) device: DeviceSetting,
    /// Holds the weights of the frozen model's linear layers in codes: `nf4` (four bits and a scale for 64
    /// numbers, as QLoRA does) or `int8` (eight bits and a scale for each output). Only with adapters, and on
    /// the CPU. If absent, as codes if the model's files hold them, else as numbers of `dtype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quantize: Option<Quantization>,
    /// Trains low-rank adapters on the model, whose own weights stay frozen ([`[model.lora]`](#modellora)
    /// has the keys). If absent, the whole model is trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lora: Option<LoraConfig>,
}

/// A type for the weights in memory. There is no fp16, and therefore no loss scaling (torch: `GradScaler`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dtype {
    /// 32 bits.
    #[default]
    Float32,
    /// 16 bits with the exponent of 32.
    Bfloat16,
}

impl Dtype {
    /// The type that this one is not.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Float32 => Self::Bfloat16,
            Self::Bfloat16 => Self::Float32,
        }
    }

    /// The name in a run file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        }
    }

    /// The libtorch kind of this type.
    pub(crate) fn kind(self) -> tch::Kind {
        match self {
            Self::Float32 => tch::Kind::Float,
            Self::Bfloat16 => tch::Kind::BFloat16,
        }
    }

    /// The same type for a plan.
    pub(crate) fn planned(self) -> planner::hardware::Dtype {
        match self {
            Self::Float32 => planner::hardware::Dtype::Float32,
            Self::Bfloat16 => planner::hardware::Dtype::BFloat16,
        }
    }

    /// By how much two scorings of one conversation in this type can differ, relative to the typical score.
    /// Other conversations in a batch change the order of sums. Measured on 2 to 16 layers, in batches of 1,
    /// 3 and 16: up to 61 roundings of 2^-24, and up to 3 of 2^-9, where few differ at all; allowed are 256
    /// and 8.
    pub(crate) fn score_noise(self) -> f64 {
        match self {
            Self::Float32 => 2.0_f64.powi(-16),
            Self::Bfloat16 => 2.0_f64.powi(-6),
        }
    }
}

/// A name of [`Quantization`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum QuantizeType {
    /// Four bits.
    Nf4,
    /// Eight bits.
    Int8,
}

impl QuantizeType {
    /// The kind of codes with this name.
    pub(crate) fn quantization(self) -> Quantization {
        match self {
            Self::Nf4 => Quantization::Nf4,
            Self::Int8 => Quantization::Int8,
        }
    }
}

/// The `[parallel]` section: how a job distributes the work among its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ParallelSection {
    /// Chooses the layout when the run starts: every other key of `[parallel]` but `transport`, the
    /// micro-batch, and whether activations are computed again. What it chooses is the fastest layout that
    /// `plan --search` finds. A run that is resumed keeps its layout.
    pub(crate) auto: bool,
    /// The hardware that `auto` plans for: `h100`, `a100`, `laptop` or a hardware file. If absent, this
    /// machine, as `doctor --bench` has measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hardware: Option<String>,
    /// The data-parallel size: the number of replicas that train on different rows. If absent, the number of
    /// processes divided by the sizes of the other axes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<usize>,
    /// Pipeline parallelism.
    pub(crate) pipeline: PipelineParallelSection,
    /// Expert parallelism.
    pub(crate) expert: ExpertSection,
    /// Tensor parallelism.
    pub(crate) tensor: TensorSection,
    /// Sequence parallelism.
    pub(crate) sequence: SequenceSection,
    /// What the processes that hold the same weights (along `data`, `expert` and `sequence`) divide among
    /// themselves instead of each holding all of it: 0 nothing, 1 the state of the optimizer, 2 also
    /// gradients, 3 also weights.
    pub(crate) zero: ZeroStage,
    /// How bytes are sent: `auto` is shared memory within a machine and Gloo between machines; also `gloo`
    /// and `shared`.
    pub(crate) transport: Transport,
}

impl ParallelSection {
    /// The same section without a layout.
    pub(crate) fn undivided(&self) -> Self {
        let Self { auto, transport, .. } = *self;
        Self { auto, transport, hardware: self.hardware.clone(), ..Self::default() }
    }

    /// The section of a run whose layout is searched.
    pub(crate) fn open(&self) -> Self {
        Self { auto: false, ..self.undivided() }
    }
}

/// The `[parallel.pipeline]` section: how the layers of a model are distributed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PipelineParallelSection {
    /// The number of processes that the layers of every model are split across.
    pub(crate) size: usize,
    /// The order in which micro-batches pass through the processes: `gpipe`, `1f1b`, `interleaved`, `zb-h1`
    /// or `zb-v`.
    pub(crate) schedule: ScheduleKind,
    /// The number of layer ranges (model chunks) per process, under the schedule `interleaved`.
    pub(crate) chunks: usize,
}

impl Default for PipelineParallelSection {
    fn default() -> Self {
        Self { size: 1, schedule: ScheduleKind::OneForwardOneBackward, chunks: 2 }
    }
}

/// The `[parallel.expert]` section: how the experts of a layer are distributed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExpertSection {
    /// The number of processes that the experts of every mixture-of-experts layer are split across. Each of
    /// them trains on different rows.
    pub(crate) size: usize,
}

impl Default for ExpertSection {
    fn default() -> Self {
        Self { size: 1 }
    }
}

/// The `[parallel.tensor]` section: how the weights of a model are sharded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TensorSection {
    /// The sharding scheme: by heads, inner columns and tokens of the vocabulary. `2d`, `2.5d` and `3d` are
    /// not implemented yet and are refused.
    pub(crate) mode: TensorMode,
    /// The number of processes that the weights of every model are sharded across.
    pub(crate) size: usize,
    /// The depth of the process grid in mode `2.5d`: the number of 2D grids. Required by that mode alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<usize>,
}

impl Default for TensorSection {
    fn default() -> Self {
        Self { mode: TensorMode::OneDimension, size: 1, depth: None }
    }
}

/// How weights are sharded. Only `1d` is implemented; the other modes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TensorMode {
    /// By attention heads, feed-forward columns and vocabulary entries (Shoeybi et al. 2019).
    #[serde(rename = "1d")]
    OneDimension,
    /// On a 2D process grid (Xu et al. 2021, arXiv 2104.05343).
    #[serde(rename = "2d")]
    TwoDimensions,
    /// On several stacked 2D process grids (Wang et al. 2021, arXiv 2105.14500).
    #[serde(rename = "2.5d")]
    TwoAndAHalf,
    /// On a cube of processes (Bian et al. 2021, arXiv 2105.14450).
    #[serde(rename = "3d")]
    ThreeDimensions,
}

/// The `[parallel.sequence]` section: how the tokens of a row are distributed in training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SequenceSection {
    /// How the tokens of a row are split in training: `none`, `megatron` (across the processes of `tensor`),
    /// `ulysses` or `ring`.
    pub(crate) mode: SequenceMode,
    /// The number of processes that the tokens are split across, for `ulysses` and `ring`.
    pub(crate) size: usize,
}

impl Default for SequenceSection {
    fn default() -> Self {
        Self { mode: SequenceMode::None, size: 1 }
    }
}

/// Which process holds which tokens of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SequenceMode {
    /// Every process holds all tokens of its rows.
    None,
    /// The activations outside the tensor-parallel regions are sharded by tokens across the tensor-parallel
    /// ranks (Korthikanti et al. 2022).
    Megatron,
    /// Every process holds a shard of the tokens, except in attention, where it holds all tokens of some
    /// heads (Jacobs et al. 2023).
    Ulysses,
    /// Every process holds a shard of the tokens; keys and values circulate around a ring (Liu et al. 2023).
    Ring,
}

/// The `[reference]` section: the model that an offline algorithm compares the policy with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReferenceSection {
    /// The model whose log-probabilities the policy is compared with: a model folder, or a hub name
    /// `owner/name[@revision]`, with the same tokenizer. If absent, the model that the stage starts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
}

/// The `[tokenizer]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenizerSection {
    /// A folder with a tokenizer. If absent, the tokenizer of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The name of a built-in chat template, `chatml` or `plain`, or Jinja source. In `sft`, `chatml` adds
    /// its tokens to a base model that has none. If absent, the template of the tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    /// The vocabulary size of the tokenizer that `pipeline` trains.
    pub(crate) vocab_size: usize,
}

impl Default for TokenizerSection {
    fn default() -> Self {
        Self { path: None, template: None, vocab_size: 512 }
    }
}

/// The `[data]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataSection {
    /// Required. The training rows: a file, or a list of files or patterns.
    pub(crate) train: Names,
    /// The held-out rows of `eval.every`.
    pub(crate) eval: Names,
    /// Instead of `eval`: the fraction of the training rows that is held out, from 0 to below 1.
    pub(crate) eval_fraction: f64,
    /// The rows for the language-modelling (ptx) term of PPO. A pipeline uses `data/sft.parquet` when
    /// `ppo.ptx_coef` is above 0.
    pub(crate) ptx: Names,
    /// The number of rows to take from the start of each list of files. If absent, all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
    /// Columns and fields of turns that are left out, whatever they contain.
    pub(crate) drop: Vec<String>,
    /// The folder where tokenized rows are kept; `""` keeps none. If absent, `~/.cache/colossal-chat/rows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<String>,
    /// The length of the longest row in tokens, at least 2. For a pair the longer side counts, in PPO only
    /// the prompt.
    pub(crate) max_length: usize,
    /// Whether several rows are packed into one sequence of `max_length` tokens. Only for SFT.
    pub(crate) packing: bool,
    /// Whether the rows are shuffled in every epoch, PPO's prompts and `ptx` rows included.
    pub(crate) shuffle: bool,
    /// What happens to rows longer than `max_length`: `drop` or `truncate`. They are counted and reported in
    /// both cases.
    pub(crate) overlong: Overlong,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            train: Names::default(),
            eval: Names::default(),
            eval_fraction: 0.0,
            ptx: Names::default(),
            limit: None,
            drop: Vec::new(),
            cache: None,
            max_length: 1024,
            packing: false,
            shuffle: true,
            overlong: Overlong::Drop,
        }
    }
}

impl DataSection {
    /// Refuses values that are out of range or contradict each other.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, message: String| {
            Err(ConfigError::Value { place: None, key: format!("data.{key}"), message })
        };

        if self.max_length < 2 {
            return refuse("max_length", format!("{}: must be at least 2", self.max_length));
        }
        if self.limit == Some(0) {
            return refuse("limit", "0: must be at least 1; leave it out for all rows".to_owned());
        }

        let fraction = self.eval_fraction;
        if !(0.0..1.0).contains(&fraction) {
            return refuse("eval_fraction", format!("{fraction}: must be at least 0 and below 1"));
        }
        if fraction > 0.0 && !self.eval.0.is_empty() {
            let message =
                format!("{fraction}: [data] eval names held-out rows already; leave one of the two out");
            return refuse("eval_fraction", message);
        }
        Ok(())
    }
}

/// The `[checkpoint]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckpointSection {
    /// The number of steps (PPO: iterations) between two checkpoints; the last step has one, too. 0 writes
    /// only `final/`, and then only a run that a signal ended can be resumed.
    pub(crate) every: u64,
    /// The number of checkpoints to keep.
    pub(crate) keep: usize,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self { every: 0, keep: 2 }
    }
}

/// The `[log]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogSection {
    /// The number of steps (PPO: iterations) between two rows of metrics. The last step always has a row.
    pub(crate) every: u64,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { every: 1 }
    }
}

/// The `[eval]` section. `colossal-chat eval` has the keys after `every` as flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EvalSection {
    /// The number of steps (PPO: iterations) between two evaluations: of the rows of `data.eval`, and on
    /// `tasks`, which are also asked after the last step. 0 turns them off. PPO evaluates on tasks only, `rm`
    /// on rows only.
    pub(crate) every: u64,
    /// The tasks and groups that the model is asked: at each evaluation of a run, whose scores are the
    /// metrics `eval/TASK/METRIC`, and in the part `eval` of a pipeline. During a run this needs
    /// `parallel.zero` below 3 and no pipeline parallelism. A pipeline with the parts `data` and `eval` has
    /// the tasks `world`, `world_sampled` and `world_preference` if the file names none.
    pub(crate) tasks: Names,
    /// The folder of the rows of tasks. A pipeline with the part `data` finds them in its folder `out`,
    /// unless the file names another one.
    pub(crate) data: PathBuf,
    /// Task files, or folders of them, in addition to the built-in ones.
    pub(crate) include_path: Names,
    /// The number of first rows of each task that are evaluated. If absent, all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<NonZeroUsize>,
    /// The number of examples in each prompt. If absent, the task's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) num_fewshot: Option<usize>,
    /// Whether the model's chat template renders the prompts.
    pub(crate) apply_chat_template: bool,
    /// With a chat template: whether all examples are one user turn.
    pub(crate) fewshot_in_one_turn: bool,
    /// The most tokens of a reply. If absent, the task's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_gen_toks: Option<NonZeroUsize>,
    /// Whether programs that models write (HumanEval, MBPP and the like) are run, each in a sandbox without
    /// network.
    pub(crate) allow_code_execution: bool,
    /// A text before every prompt; with a chat template, the system message. If absent, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_instruction: Option<String>,
}

impl Default for EvalSection {
    fn default() -> Self {
        Self {
            every: 0,
            tasks: Names::default(),
            data: PathBuf::from("eval-data"),
            include_path: Names::default(),
            limit: None,
            num_fewshot: None,
            apply_chat_template: false,
            fewshot_in_one_turn: false,
            max_gen_toks: None,
            allow_code_execution: false,
            system_instruction: None,
        }
    }
}

impl EvalSection {
    /// Refuses settings that contradict each other.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.fewshot_in_one_turn && !self.apply_chat_template {
            let message = "true: needs [eval] apply_chat_template = true".to_owned();
            let key = "eval.fewshot_in_one_turn".to_owned();
            return Err(ConfigError::Value { place: None, key, message });
        }
        Ok(())
    }
}

/// The `[base]` section: the network that `pipeline` trains from scratch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BaseSection {
    /// The width of the hidden states.
    pub(crate) hidden_size: i64,
    /// The inner width of the feed-forward layers.
    pub(crate) intermediate_size: i64,
    /// The number of decoder layers.
    pub(crate) num_hidden_layers: i64,
    /// The number of query heads.
    pub(crate) num_attention_heads: i64,
    /// The number of key and value heads, which divides the number of query heads.
    pub(crate) num_key_value_heads: i64,
    /// The maximum sequence length in tokens.
    pub(crate) max_position_embeddings: i64,
    /// The base of the rotary position embedding.
    pub(crate) rope_theta: f64,
    /// Whether the input and output embeddings share one weight.
    pub(crate) tie_word_embeddings: bool,
}

impl Default for BaseSection {
    fn default() -> Self {
        Self {
            hidden_size: 128,
            intermediate_size: 384,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            max_position_embeddings: 512,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
        }
    }
}

/// One part of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipelineStep {
    /// Generates the data.
    Data,
    /// Trains the tokenizer.
    Tokenizer,
    /// Runs the training stage of this name.
    Stage(&'static str),
    /// Evaluates every model on the tasks of `[eval]`.
    Eval,
    /// Writes the report.
    Report,
}

impl PipelineStep {
    /// Returns the part of the given name, or else the names of all parts.
    pub(super) fn of(name: &str, stages: &[&'static StageSchema]) -> Result<Self, Vec<&'static str>> {
        let trained = stages.iter().map(|stage| Self::Stage(stage.name));
        let parts: Vec<Self> = [Self::Data, Self::Tokenizer]
            .into_iter()
            .chain(trained)
            .chain([Self::Eval, Self::Report])
            .collect();
        let found = parts.iter().find(|part| part.name() == name);
        found.copied().ok_or_else(|| parts.iter().map(|part| part.name()).collect())
    }

    /// Returns the name in `[pipeline] stages`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Tokenizer => "tokenizer",
            Self::Stage(name) => name,
            Self::Eval => "eval",
            Self::Report => "report",
        }
    }
}

/// The `[pipeline]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PipelineSection {
    /// The parts to run, in this order.
    pub(crate) stages: Vec<String>,
}

impl Default for PipelineSection {
    fn default() -> Self {
        const PARTS: [&str; 8] = ["data", "tokenizer", "base", "sft", "rm", "ppo", "eval", "report"];
        Self { stages: PARTS.map(str::to_owned).into() }
    }
}
