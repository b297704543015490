//! The errors of generation.

use parallel::ErrorClass;

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// A sampling setting is out of range.
    #[error("{key} = {value}: {wanted}")]
    Sampling {
        /// The setting.
        key: &'static str,
        value: f64,
        /// The valid range.
        wanted: &'static str,
    },
    /// A prompt has no tokens.
    #[error("prompt {} has no tokens: give it at least one", index + 1)]
    EmptyPrompt {
        /// The index of the prompt, from 0.
        index: usize,
    },
    /// A prompt leaves no room for a reply.
    #[error(
        "prompt {} has {length} tokens, and this model takes at most {longest} with the reply: shorten it",
        index + 1
    )]
    LongPrompt {
        /// The index of the prompt, from 0.
        index: usize,
        /// The number of tokens of the prompt.
        length: usize,
        /// The maximum sequence length of the model.
        longest: i64,
    },
    /// A prompt contains a token outside the model's vocabulary.
    #[error(
        "prompt {} holds the token {id}, and the model's vocabulary ends before {vocab_size}: \
         use the tokenizer that belongs to this model",
        index + 1
    )]
    TokenOutsideVocabulary {
        /// The index of the prompt, from 0.
        index: usize,
        /// The token.
        id: i64,
        /// The size of the vocabulary.
        vocab_size: i64,
    },
    /// A bias is for a token outside the model's vocabulary.
    #[error("logit_bias: the token {id} is not in the model's vocabulary, which ends before {vocab_size}")]
    BiasOutsideVocabulary {
        /// The token.
        id: i64,
        /// The size of the vocabulary.
        vocab_size: i64,
    },
    /// A draft model cannot read what the model reads.
    #[error(
        "the draft model {what} {draft} tokens, and this model needs {wanted} {model}: \
         take a smaller model of the same family"
    )]
    Draft {
        /// What is different.
        what: &'static str,
        draft: i64,
        wanted: &'static str,
        model: i64,
    },
    /// The rows of a draft model cannot be continued.
    #[error(
        "the rotary frequencies of the draft model depend on the length of the row (`rope_scaling` of type \
         `dynamic`), so it cannot go on where it was: take another draft model"
    )]
    DraftRecomputesRows,
    /// A draft model guesses for a model of several ranks.
    #[error(
        "the model is split over ranks, and a draft model guesses for a whole model alone: leave the draft out, and \
         tokens are guessed from what a reply repeats"
    )]
    DraftOfSplitModel,
    /// Logits are not finite.
    #[error(
        "the output of the model for row {} is not finite (NaN or infinity), although its weights are: values \
         overflow in this dtype; use --dtype float32, or check the run that trained the model",
        index + 1
    )]
    LogitsNotFinite {
        /// The index of the prompt, from 0.
        index: usize,
    },
    /// The cache has no room for a single reply.
    #[error(
        "prompt {} with its reply needs {needed} pages of the KV cache, and the budget leaves room for {pages}: raise \
         [gemini] device_memory, or lower the longest reply",
        index + 1
    )]
    NoRoom {
        /// The index of the prompt, from 0.
        index: usize,
        /// The pages that the reply needs.
        needed: usize,
        /// The pages that there are.
        pages: usize,
    },
    /// The cache is larger than the memory of the machine.
    #[error(
        "a KV cache of {tokens} tokens takes {gib:.1} GiB, and this machine has {memory_gib:.1} GiB: lower the number of \
         tokens (of `serve`: --kv-cache-tokens)"
    )]
    LargeCache {
        /// The number of tokens.
        tokens: usize,
        /// The size of the cache.
        gib: f64,
        /// The size of the memory.
        memory_gib: f64,
    },
    /// An error of the model.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// An error of the crate `parallel`.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// An error of the tokenizer.
    #[error(transparent)]
    Datasets(#[from] datasets::Error),
    /// The model that an adapter belongs to was not found.
    #[error(
        "{}: the model that this adapter belongs to is not found: {source}; correct `base_model_name_or_path` in its \
         adapter_config.json if the model has moved",
        adapter.display()
    )]
    AdapterBase {
        /// The folder of the adapter.
        adapter: std::path::PathBuf,
        source: datasets::Error,
    },
    /// A file of a model folder could not be read for its hash.
    #[error(transparent)]
    ModelFiles(std::io::Error),
}

impl Error {
    /// The class of this error. Most errors are about a prompt.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Models(error) => error.class(),
            Self::Parallel(error) => error.class(),
            Self::Datasets(error) | Self::AdapterBase { source: error, .. } => class_of_rows(error.class()),
            Self::ModelFiles(error) => ErrorClass::of_io(error.kind()),
            Self::Sampling { .. }
            | Self::BiasOutsideVocabulary { .. }
            | Self::Draft { .. }
            | Self::LargeCache { .. }
            | Self::DraftRecomputesRows
            | Self::DraftOfSplitModel => ErrorClass::Usage,
            Self::LogitsNotFinite { .. } => ErrorClass::Diverged,
            Self::NoRoom { .. } => ErrorClass::Device,
            Self::EmptyPrompt { .. } | Self::LongPrompt { .. } | Self::TokenOutsideVocabulary { .. } => {
                ErrorClass::Data
            }
        }
    }
}

/// The class of an error of rows or of an evaluation, whose crates do not know torch.
pub fn class_of_rows(class: datasets::ErrorClass) -> ErrorClass {
    match class {
        datasets::ErrorClass::Failed => ErrorClass::Failed,
        datasets::ErrorClass::Usage => ErrorClass::Usage,
        datasets::ErrorClass::Data => ErrorClass::Data,
        datasets::ErrorClass::Io(kind) => ErrorClass::of_io(kind),
        datasets::ErrorClass::OfSource => ErrorClass::OfSource,
    }
}
