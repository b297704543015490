//! Errors of the training stages.

use std::path::PathBuf;

use parallel::ErrorClass;

/// The error of any stage.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// A recorder cannot record an event.
    #[error("{0}")]
    Recorder(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The model in training could not be asked the tasks, which all ranks know. The run goes on.
    #[error("the evaluation on tasks failed: {0}")]
    Tasks(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A rank with a part of the model could not go on with the tasks, and the others wait for it.
    #[error(
        "the evaluation on tasks failed on a rank that holds a part of the model; to train without it, set [eval] \
         tasks = []"
    )]
    TasksOnPart(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Rank 0 could not start the run, and says why.
    #[error("rank 0 could not start the run")]
    RankZeroFailed,
    /// No reply of several iterations had a reward.
    #[error(
        "no reply of the last {} can be learned from: {reason}; see that the {} work",
        in_words(*.iterations),
        if *.has_environment { "[environment] and the [[reward]] entries" } else { "[[reward]] entries" }
    )]
    NoScores {
        /// The iterations in a row.
        iterations: u64,
        /// Why the last replies have none.
        reason: String,
        /// Whether something answers the policy between its turns.
        has_environment: bool,
    },
    /// An error of the optimizer step or the checkpoint.
    #[error(transparent)]
    Gemini(#[from] gemini::Error),
    /// An error of the parallel layer.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// An error of a model.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// An error of generation.
    #[error(transparent)]
    Inference(#[from] inference::Error),
    /// An error of the rows or the tokenizer.
    #[error(transparent)]
    Datasets(#[from] datasets::Error),
    /// An invalid setting.
    #[error("[{section}] {key} = {value}: {wanted}")]
    Setting {
        /// The section of the configuration.
        section: &'static str,
        key: &'static str,
        value: String,
        /// The bound, and how to fix the setting.
        wanted: String,
    },
    /// A data set without a usable row.
    #[error("{stage} has no rows: {fix}")]
    NoRows {
        stage: &'static str,
        /// How to fix it.
        fix: &'static str,
    },
    /// Models that must share a vocabulary but do not.
    #[error(
        "the {left} model has a vocabulary of {left_size} tokens and the {right} model of {right_size}: \
         the models of a stage must share one tokenizer; a reward model is trained from the same base as the policy"
    )]
    Vocabulary {
        /// The role of one model.
        left: &'static str,
        /// The size of its vocabulary.
        left_size: i64,
        /// The role of the other model.
        right: &'static str,
        /// The size of its vocabulary.
        right_size: i64,
    },
    /// A margin that is not finite.
    #[error("pair {pair} has the margin {margin}: give a finite number as `margin`, or leave the pair out")]
    Margin {
        /// The number of the pair among the pairs that were kept, from 1.
        pair: usize,
        margin: f64,
    },
    /// A file of the run folder that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A run folder that cannot be resumed or written to.
    #[error("{}: {problem}", path.display())]
    RunFolder {
        path: PathBuf,
        /// What is wrong with the folder, and how to fix it.
        problem: String,
    },
    /// The user interrupted the run.
    #[error("interrupted; {} is complete, and --resume continues from it", path.display())]
    Interrupted {
        /// The checkpoint that was saved before the run ended.
        path: PathBuf,
    },
    /// Tensors whose shapes must be equal but are not.
    #[error("{what}: the shape is {got:?} and must be {expected:?}; nothing is broadcast here")]
    Shape {
        /// The name of the tensor.
        what: &'static str,
        /// The expected shape.
        expected: Vec<i64>,
        /// The actual shape.
        got: Vec<i64>,
    },
    /// A number that is not finite.
    #[error(
        "{what}: entry {index} is {value}; the run has diverged, so lower the learning rate or raise the KL coefficient"
    )]
    NotFinite {
        /// The name of the quantity.
        what: &'static str,
        /// Its index in the flat vector.
        index: usize,
        value: f64,
    },
    /// Log-probabilities of the sampler that are not those of the trainer.
    #[error(
        "the sampler's log-probabilities differ from the trainer's by up to {difference:.1e}, and at most {most:.0e} is rounding: set [ppo] old_logprobs = \"trainer\""
    )]
    SamplerDiffers {
        /// The largest difference.
        difference: f32,
        /// The largest difference that counts as rounding.
        most: f32,
    },
    /// A reply without a token to whose reward its score could be added.
    #[error(
        "reply {row} has no token of the policy, so its score has no reward to be added to; drop it before the update"
    )]
    EmptyReply {
        /// The index of the reply in the rollout.
        row: usize,
    },
    /// A completion without tokens.
    #[error(
        "row {row} of those that were kept has a completion without tokens: leave it out, or raise [data] max_length"
    )]
    EmptyCompletion {
        /// The number of the row, from 1: the training rows first, then the held-out ones.
        row: usize,
    },
    /// Too few numbers for a statistic.
    #[error("{what} needs at least {needed} tokens and got {got}; use a larger batch")]
    TooFew {
        /// The name of the statistic.
        what: &'static str,
        /// The minimum count.
        needed: usize,
        /// The actual count.
        got: usize,
    },
}

impl Error {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Gemini(error) => error.class(),
            Self::Parallel(error) => error.class(),
            Self::Models(error) => error.class(),
            Self::Inference(error) => error.class(),
            Self::Datasets(error) => inference::class_of_rows(error.class()),
            Self::Recorder(_) | Self::Tasks(_) | Self::TasksOnPart(_) => ErrorClass::OfSource,
            Self::Setting { .. }
            | Self::Vocabulary { .. }
            | Self::TooFew { .. }
            | Self::SamplerDiffers { .. } => ErrorClass::Usage,
            Self::NoRows { .. }
            | Self::Margin { .. }
            | Self::EmptyCompletion { .. }
            | Self::RunFolder { .. } => ErrorClass::Data,
            Self::NotFinite { .. } => ErrorClass::Diverged,
            Self::Interrupted { .. } => ErrorClass::Interrupted,
            Self::Io { source, .. } => ErrorClass::of_io(source.kind()),
            Self::NoScores { .. } | Self::RankZeroFailed | Self::Shape { .. } | Self::EmptyReply { .. } => {
                ErrorClass::Failed
            }
        }
    }
}

fn in_words(iterations: u64) -> String {
    if iterations == 1 { "iteration".to_owned() } else { format!("{iterations} iterations") }
}
