//! What can go wrong between a model folder and a running model.

use std::path::PathBuf;

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
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
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A setting that changes the numbers and that this crate does not implement.
    #[error("{path}: `{key}` = {value} is not supported: {fix}")]
    Unsupported {
        /// Where the configuration came from.
        path: String,
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// What to do.
        fix: String,
    },
    /// Sizes that make more parameters than any machine holds.
    #[error(
        "{path}: its sizes make {parameters:.1e} parameters ({num_layers} layers of width {hidden_size}, \
         {experts} experts, {vocab_size} tokens): correct `num_hidden_layers`, `hidden_size`, `vocab_size` and \
         what goes with them"
    )]
    TooManyParameters {
        /// Where the configuration came from.
        path: String,
        /// As its sizes make them.
        parameters: f64,
        /// Its layers.
        num_layers: i64,
        /// Its width.
        hidden_size: i64,
        /// Its tokens.
        vocab_size: i64,
        /// Experts of a layer; 0 without experts.
        experts: i64,
    },
    /// A model that this machine cannot hold.
    #[error(
        "{path}: its sizes make {parameters:.1e} parameters, which take {needed:.1} GiB, and this machine has \
         {there:.1} GiB of memory: correct the sizes, take a smaller model or dtype, or share it among machines"
    )]
    TooLarge {
        /// Where the configuration came from.
        path: String,
        /// As its sizes make them.
        parameters: f64,
        /// The memory of this process' part, in GiB.
        needed: f64,
        /// The memory of the machine, in GiB.
        there: f64,
    },
    /// A weight that is no number.
    #[error(
        "{}: the tensor `{name}` holds {found}: the weights are damaged, or the run that made them diverged; \
         take an earlier checkpoint or download them again",
        path.display()
    )]
    WeightNotFinite {
        /// The folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// NaN or infinity.
        found: &'static str,
    },
    /// A head of its own in a folder whose configuration says that the embedding is the head.
    #[error(
        "{}: the tensor `{name}` differs from the embedding, and config.json says `tie_word_embeddings`: set it to false to use \
         this head, or remove the tensor",
        path.display()
    )]
    UntiedHead {
        /// The folder.
        path: PathBuf,
        /// The head.
        name: String,
    },
    /// The weights lack a tensor.
    #[error("{}: the tensor `{name}` is missing: the weights do not belong to this config.json", path.display())]
    MissingTensor {
        /// The folder or file of the weights.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// The weights hold a tensor that nothing uses.
    #[error("{}: nothing in this architecture uses the tensor `{name}`: check `model_type`, or merge the adapter first", path.display())]
    UnexpectedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A file of weights.
    #[error(transparent)]
    File(#[from] parallel::safetensors_file::Error),
    /// Two vocabularies that must match do not.
    #[error(
        "{origin}: the model knows {model} tokens and {what} needs {needed}: use the tokenizer that came with the model"
    )]
    VocabMismatch {
        /// The model.
        origin: String,
        /// Rows of its embedding.
        model: i64,
        /// Who asks.
        what: String,
        /// Tokens needed.
        needed: i64,
    },
    /// A row that is longer than the model's positions.
    #[error("{origin}: the model has {limit} positions and {what} has {length} tokens: {fix}")]
    TooManyTokens {
        /// The model.
        origin: String,
        /// Rows of its table, or the positions that its rotations were trained for.
        limit: i64,
        /// Whose tokens.
        what: String,
        /// How many.
        length: usize,
        /// What to do.
        fix: String,
    },
    /// A folder that holds a model for another purpose.
    #[error("{}: {found}; {fix}", path.display())]
    WrongModelKind {
        /// The folder.
        path: PathBuf,
        /// What it holds, and what says so.
        found: String,
        /// What to do.
        fix: &'static str,
    },
    /// More ranks than a layer can be split among.
    #[error("[parallel.{axis}] size = {ranks}: {what} cannot be shared so; choose another size or mode")]
    Indivisible {
        /// The section of the configuration.
        axis: &'static str,
        /// The ranks.
        ranks: usize,
        /// What they should share.
        what: String,
    },
    /// The training layer failed.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
    /// A sampling setting that cannot be.
    #[error("{key} = {value}: {wanted}")]
    Sampling {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The bound.
        wanted: &'static str,
    },
    /// A prompt without a token.
    #[error("prompt {} has no tokens: give it at least one", index + 1)]
    EmptyPrompt {
        /// Its place among the prompts, from 0.
        index: usize,
    },
    /// A prompt that leaves no room for a reply.
    #[error(
        "prompt {} has {length} tokens, and this model takes at most {longest} with the reply: shorten it",
        index + 1
    )]
    LongPrompt {
        /// Its place among the prompts.
        index: usize,
        /// Its tokens.
        length: usize,
        /// The longest sequence of the model.
        longest: i64,
    },
    /// Logits or scores that make no finite number.
    #[error(
        "what the model makes of row {} is not finite (NaN or infinity), though its weights are: numbers \
         overflow in this dtype; use --dtype float32, or look at the run that made the model",
        index + 1
    )]
    LogitsNotFinite {
        /// Its place among the prompts.
        index: usize,
    },
    /// Ranks that share a model and drew different tokens.
    #[error(
        "the {ranks} ranks that share this model drew different tokens; they must run the same program on the same kind of machine"
    )]
    RanksDiverged {
        /// The ranks.
        ranks: usize,
    },
    /// A token that the model has no embedding for.
    #[error(
        "prompt {} holds the token {id}, and the model's vocabulary ends before {vocab_size}: \
         use the tokenizer that belongs to this model",
        index + 1
    )]
    TokenOutsideVocabulary {
        /// Its place among the prompts.
        index: usize,
        /// The token.
        id: i64,
        /// The size of the vocabulary.
        vocab_size: i64,
    },
}
