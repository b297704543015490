//! The sections of the file that belong to no other crate. Each is documented for people in `docs/configuration.md`.

use std::fmt;

use datasets::Overlong;
use parallel::Transport;
use parallel::pipeline::ScheduleKind;
use serde::{Deserialize, Serialize};

use super::{ConfigError, Stage};

/// The `[model]` section: what a stage starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelSection {
    /// A model folder, or a hub name `owner/name[@revision]`.
    pub(crate) path: String,
    /// The numbers that the weights are held in.
    pub(crate) dtype: Dtype,
}

/// The type of the weights in memory.
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
    /// As libtorch calls it.
    pub(crate) fn kind(self) -> tch::Kind {
        match self {
            Self::Float32 => tch::Kind::Float,
            Self::Bfloat16 => tch::Kind::BFloat16,
        }
    }

    /// Bytes of a weight that is not trained.
    pub(crate) fn bytes(self) -> usize {
        self.kind().elt_size_in_bytes()
    }

    /// Bytes of a trained weight with its gradient and two moments in fp32, and its fp32 master if it is not fp32 itself.
    pub(crate) fn trained_bytes(self) -> usize {
        match self {
            Self::Float32 => 4 + 4 + 8,
            Self::Bfloat16 => 2 + 4 + 4 + 8,
        }
    }
}

/// The `[parallel]` section: how the processes of a job share the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ParallelSection {
    /// Replicas that see different rows; absent: as many as the processes make up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<usize>,
    /// How they share the layers of a model.
    pub(crate) pipeline: PipelineParallelSection,
    /// How they share the experts of a layer.
    pub(crate) expert: ExpertSection,
    /// Processes that share the weights of a model.
    pub(crate) tensor: TensorSection,
    /// How they share the tokens of a row.
    pub(crate) sequence: SequenceSection,
    /// What moves bytes between them.
    pub(crate) transport: Transport,
}

/// The `[parallel.pipeline]` section: how a model's layers are shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PipelineParallelSection {
    /// Processes with some layers each.
    pub(crate) size: usize,
    /// In which order micro-batches go through them.
    pub(crate) schedule: ScheduleKind,
    /// Runs of layers of each process, under the schedule `interleaved`.
    pub(crate) chunks: usize,
}

impl Default for PipelineParallelSection {
    fn default() -> Self {
        Self { size: 1, schedule: ScheduleKind::OneForwardOneBackward, chunks: 2 }
    }
}

/// The `[parallel.expert]` section: how the experts of a layer are shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExpertSection {
    /// Processes with different rows and some experts each.
    pub(crate) size: usize,
}

impl Default for ExpertSection {
    fn default() -> Self {
        Self { size: 1 }
    }
}

/// The `[parallel.tensor]` section: how a model's weights are split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TensorSection {
    /// The way.
    pub(crate) mode: TensorMode,
    /// Processes that share one model.
    pub(crate) size: usize,
    /// Grids of a box, for mode 2.5d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<usize>,
}

impl Default for TensorSection {
    fn default() -> Self {
        Self { mode: TensorMode::OneDimension, size: 1, depth: None }
    }
}

/// Along what weights are split. Only the first works; the others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TensorMode {
    /// By heads, inner columns and tokens of the vocabulary (Shoeybi et al. 2019).
    #[serde(rename = "1d")]
    OneDimension,
    /// By a grid (Xu et al. 2021, arXiv 2104.05343).
    #[serde(rename = "2d")]
    TwoDimensions,
    /// By a box of several grids (Wang et al. 2021, arXiv 2105.14500).
    #[serde(rename = "2.5d")]
    TwoAndAHalf,
    /// By a cube (Bian et al. 2021, arXiv 2105.14450).
    #[serde(rename = "3d")]
    ThreeDimensions,
}

/// The `[parallel.sequence]` section: how the tokens of a row are shared in training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SequenceSection {
    /// The way.
    pub(crate) mode: SequenceMode,
    /// Processes that share one row; those of `megatron` are those of `[parallel.tensor]`.
    pub(crate) size: usize,
}

impl Default for SequenceSection {
    fn default() -> Self {
        Self { mode: SequenceMode::None, size: 1 }
    }
}

/// Who has which tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SequenceMode {
    /// Every process all tokens of its rows.
    None,
    /// Some between the layers that the tensor ranks share (Korthikanti et al. 2022).
    Megatron,
    /// Some everywhere but in attention, where each has some heads (Jacobs et al. 2023).
    Ulysses,
    /// Some everywhere; keys and values go around (Liu et al. 2023).
    Ring,
}

/// The `[tokenizer]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenizerSection {
    /// A folder with a tokenizer; absent: the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// A built-in chat template, or Jinja source; absent: the tokenizer's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    /// Tokens of a tokenizer that `pipeline` trains.
    pub(crate) vocab_size: usize,
}

impl Default for TokenizerSection {
    fn default() -> Self {
        Self { path: None, template: None, vocab_size: 512 }
    }
}

/// Files or patterns: one text, or a list of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Files(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> serde::de::Visitor<'de> for OneOrMany {
            type Value = Files;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a file in quotes, or a list of files")
            }

            fn visit_str<E: serde::de::Error>(self, file: &str) -> Result<Files, E> {
                Ok(Files(vec![file.to_owned()]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Files, A::Error> {
                let mut files = Vec::new();
                while let Some(file) = list.next_element()? {
                    files.push(file);
                }
                Ok(Files(files))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

/// The `[data]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataSection {
    /// Rows to learn from.
    pub(crate) train: Files,
    /// Rows to look at now and then.
    pub(crate) eval: Files,
    /// The part of the training rows that is looked at and not learned from, where there is no `eval`.
    pub(crate) eval_fraction: f64,
    /// Rows of the language-modelling term of PPO.
    pub(crate) ptx: Files,
    /// Only so many rows of each list of files, from the first; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
    /// Columns and fields of turns that are left out, whatever they say.
    pub(crate) drop: Vec<String>,
    /// The folder of tokenised rows, `""` for none; absent: the user's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<String>,
    /// Tokens of the longest row.
    pub(crate) max_length: usize,
    /// Several rows share a bin of `max_length` tokens.
    pub(crate) packing: bool,
    /// The order changes from epoch to epoch.
    pub(crate) shuffle: bool,
    /// What becomes of longer rows: they are dropped or cut, and counted.
    pub(crate) overlong: Overlong,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            train: Files::default(),
            eval: Files::default(),
            eval_fraction: 0.0,
            ptx: Files::default(),
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
    /// Refuses what cannot be.
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
    /// Steps between two checkpoints; 0 writes none but `final/`.
    pub(crate) every: u64,
    /// Checkpoints that are kept.
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
    /// Steps between two rows of metrics.
    pub(crate) every: u64,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { every: 1 }
    }
}

/// The `[eval]` section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EvalSection {
    /// Steps between two looks at the held-out rows; 0 never looks.
    pub(crate) every: u64,
}

/// The `[base]` section: the network that `pipeline` trains from nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BaseSection {
    /// Width of the hidden states.
    pub(crate) hidden_size: i64,
    /// Width inside the feed-forward layers.
    pub(crate) intermediate_size: i64,
    /// Layers.
    pub(crate) num_hidden_layers: i64,
    /// Heads of the queries.
    pub(crate) num_attention_heads: i64,
    /// Heads of the keys and values.
    pub(crate) num_key_value_heads: i64,
    /// The longest sequence.
    pub(crate) max_position_embeddings: i64,
    /// The base of the rotary angles.
    pub(crate) rope_theta: f64,
    /// Input and output embeddings are one.
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

/// A part of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PipelineStep {
    /// Makes the rows.
    Data,
    /// Trains the tokenizer.
    Tokenizer,
    /// Trains the base model.
    Base,
    /// Supervised fine-tuning.
    Sft,
    /// The reward model.
    Rm,
    /// Proximal policy optimisation.
    Ppo,
    /// Measures every model and writes the page.
    Report,
}

impl PipelineStep {
    /// The stage that trains in this part.
    pub(crate) fn stage(self) -> Option<Stage> {
        match self {
            Self::Base => Some(Stage::Base),
            Self::Sft => Some(Stage::Sft),
            Self::Rm => Some(Stage::Rm),
            Self::Ppo => Some(Stage::Ppo),
            Self::Data | Self::Tokenizer | Self::Report => None,
        }
    }
}

/// The `[pipeline]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PipelineSection {
    /// What is done, in this order.
    pub(crate) stages: Vec<PipelineStep>,
}

impl Default for PipelineSection {
    fn default() -> Self {
        use PipelineStep::{Base, Data, Ppo, Report, Rm, Sft, Tokenizer};
        Self { stages: vec![Data, Tokenizer, Base, Sft, Rm, Ppo, Report] }
    }
}
