//! The errors of loading, running and saving a model.

use std::path::PathBuf;

use parallel::ErrorClass;

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file that should be JSON is not.
    #[error("{path} is no valid JSON: {source}")]
    Json {
        /// Where the text came from.
        path: String,
        /// The parser's message with line and column.
        source: serde_json::Error,
    },
    /// A setting is missing or of the wrong kind.
    #[error("{path}: `{key}` must be {expected}, got {got}")]
    Field {
        /// Where the configuration came from.
        path: String,
        /// The setting.
        key: String,
        /// A description of valid values.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// A setting changes the model's results and is not implemented in this crate.
    #[error("{path}: `{key}` = {value} is not supported: {fix}")]
    Unsupported {
        /// Where the configuration came from.
        path: String,
        /// The setting.
        key: String,
        value: String,
        /// What to do.
        fix: String,
    },
    /// The sizes give more parameters than any machine can hold.
    #[error(
        "{path}: its sizes make {parameters:.1e} parameters ({num_layers} layers of width {hidden_size}, \
         {experts} experts, {vocab_size} tokens): correct `num_hidden_layers`, `hidden_size`, `vocab_size` and \
         what goes with them"
    )]
    TooManyParameters {
        /// Where the configuration came from.
        path: String,
        parameters: f64,
        num_layers: i64,
        hidden_size: i64,
        /// The size of the vocabulary.
        vocab_size: i64,
        /// The number of experts per layer; 0 without experts.
        experts: i64,
    },
    /// The model does not fit into the memory of this machine.
    #[error(
        "{path}: its sizes make {parameters:.1e} parameters, which take {needed:.1} GiB, and this machine has \
         {available:.1} GiB of memory: correct the sizes, take a smaller model or dtype, or split it over several machines"
    )]
    TooLarge {
        /// Where the configuration came from.
        path: String,
        parameters: f64,
        /// The memory that this process needs for its share of the model, in GiB.
        needed: f64,
        /// The memory of the machine, in GiB.
        available: f64,
    },
    /// A layer with a quantised weight cannot do what a setting asks for.
    #[error("the weight of `{layer}` is quantised, which does not go with {setting}: {fix}")]
    Quantized {
        /// The linear layer.
        layer: String,
        setting: String,
        /// What to do.
        fix: String,
    },
    /// An adapter was trained on other weights than those that it is put on.
    #[error(
        "{}: the adapter was trained on other weights than those of {}: their hash is {expected}, and here it is {got}; \
         let `base_model_name_or_path` in its adapter_config.json name the model that it was trained on, or train it \
         again",
        path.display(), base.display()
    )]
    OtherBase {
        /// The file of the adapter.
        path: PathBuf,
        /// The folder of the model.
        base: PathBuf,
        /// The hash that the adapter names.
        expected: String,
        /// The hash of the weights in the folder.
        got: String,
    },
    /// A weight is not finite.
    #[error(
        "{}: the tensor `{name}` holds {found}: the weights are damaged, or the run that produced them diverged; \
         take an earlier checkpoint or download them again",
        path.display()
    )]
    WeightNotFinite {
        path: PathBuf,
        /// The tensor.
        name: String,
        /// NaN or infinity.
        found: &'static str,
    },
    /// The weights contain a separate head, but the configuration ties the head to the embedding.
    #[error(
        "{}: the tensor `{name}` differs from the embedding, and config.json says `tie_word_embeddings`: set it to false to use \
         this head, or remove the tensor",
        path.display()
    )]
    UntiedHead {
        path: PathBuf,
        /// The head.
        name: String,
    },
    /// The weights do not contain a required tensor.
    #[error("{}: the tensor `{name}` is missing: the weights do not belong to this config.json", path.display())]
    MissingTensor {
        /// The folder or file of the weights.
        path: PathBuf,
        /// The requested name.
        name: String,
    },
    /// The weights contain a tensor that the architecture does not use.
    #[error("{}: nothing in this architecture uses the tensor `{name}`: check `model_type`, or merge the adapter first", path.display())]
    UnexpectedTensor {
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A weight file is invalid.
    #[error(transparent)]
    File(#[from] parallel::safetensors_file::Error),
    /// A GGUF file could not be read or written.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// A model has something that a GGUF file cannot say.
    #[error("{origin}: `{key}` = {value} cannot be written as GGUF: {fix}")]
    NoGguf {
        /// The model.
        origin: String,
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        fix: &'static str,
    },
    /// A weight is too large for the type that is written.
    #[error("the tensor `{name}` holds {value}, which {dtype} cannot hold: choose --dtype bf16 or f32")]
    WeightTooLarge {
        /// The tensor.
        name: String,
        /// The largest number.
        value: f64,
        /// The type that is written.
        dtype: &'static str,
    },
    /// A GGUF file holds a tensor of another shape than its metadata say.
    #[error(
        "{}: the tensor `{name}` has shape {got:?}, and the metadata make it {expected:?}: convert the model again",
        path.display()
    )]
    GgufShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape that the metadata make.
        expected: Vec<i64>,
        /// The shape in the file.
        got: Vec<u64>,
    },
    /// A tokenizer or data set needs more tokens than the model has.
    #[error(
        "{origin}: the model has embeddings for {model} tokens and {what} needs {needed}: use the tokenizer that came with the model"
    )]
    VocabMismatch {
        /// The model.
        origin: String,
        /// The number of rows of its embedding.
        model: i64,
        /// What needs the tokens.
        what: String,
        /// The number of tokens needed.
        needed: i64,
    },
    /// A row is longer than the model's positions.
    #[error("{origin}: the model has {limit} positions and {what} has {length} tokens: {fix}")]
    TooManyTokens {
        /// The model.
        origin: String,
        /// The rows of its position embedding, or the positions that its rotary embeddings were trained for.
        limit: i64,
        /// What has too many tokens.
        what: String,
        /// The number of tokens.
        length: usize,
        /// What to do.
        fix: String,
    },
    /// The folder holds another kind of model.
    #[error("{}: {found}; {fix}", path.display())]
    WrongModelKind {
        path: PathBuf,
        /// What the folder holds, and how this was recognized.
        found: String,
        /// What to do.
        fix: &'static str,
    },
    /// The model cannot be split over this number of ranks.
    #[error("[parallel.{axis}] size = {ranks}: {what} cannot be split this way; choose another size or mode")]
    Indivisible {
        /// The section of the configuration.
        axis: &'static str,
        ranks: usize,
        /// What should be split.
        what: String,
    },
    /// An error of the crate `parallel`.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// An error of libtorch.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// The class of this error. Most errors are about a file.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Parallel(error) => error.class(),
            Self::Torch(error) => ErrorClass::of_torch(error),
            Self::File(error) => error.class(),
            Self::TooManyTokens { .. } | Self::Indivisible { .. } => ErrorClass::Usage,
            Self::TooLarge { .. } => ErrorClass::Device,
            _ => ErrorClass::Data,
        }
    }
}
