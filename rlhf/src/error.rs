//! What can go wrong while a stage runs.

use std::path::PathBuf;

/// The error of every stage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The optimiser step or the checkpoint.
    #[error(transparent)]
    Gemini(#[from] gemini::Error),
    /// The training layer.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// The networks.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// The rows and the tokenizer.
    #[error(transparent)]
    Datasets(#[from] datasets::Error),
    /// A setting that cannot be.
    #[error("[{section}] {key} = {value}: {wanted}")]
    Setting {
        /// The section of the configuration.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The bound, and the fix.
        wanted: String,
    },
    /// A data set without a usable row.
    #[error("{stage} has no rows: {fix}")]
    NoRows {
        /// The stage.
        stage: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// Models that must share a vocabulary and do not.
    #[error(
        "the {left} model has a vocabulary of {left_size} tokens and the {right} model of {right_size}: \
         the four models of PPO must share one tokenizer; train the reward model from the same base as the policy"
    )]
    Vocabulary {
        /// One model's role.
        left: &'static str,
        /// Its vocabulary.
        left_size: i64,
        /// The other model's role.
        right: &'static str,
        /// Its vocabulary.
        right_size: i64,
    },
    /// A margin that no loss can be made of.
    #[error("pair {pair} has the margin {margin}: give a finite number as `margin`, or leave the pair out")]
    Margin {
        /// Its place among the pairs that are left, from 1.
        pair: usize,
        /// Its margin.
        margin: f64,
    },
    /// A file of the run folder.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A run folder that cannot be continued, or no longer be written to.
    #[error("{}: {problem}", path.display())]
    RunFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it, and the fix.
        problem: String,
    },
    /// A person ended the run.
    #[error("interrupted; {} is whole, and --resume goes on from it", path.display())]
    Interrupted {
        /// The checkpoint that was written on the way out.
        path: PathBuf,
    },
    /// Tensors that belong together and differ in shape.
    #[error("{what}: the shape is {got:?} and must be {expected:?}; nothing is broadcast here")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// The shape that fits the others.
        expected: Vec<i64>,
        /// Its shape.
        got: Vec<i64>,
    },
    /// A number that no loss can be made of.
    #[error(
        "{what}: entry {index} is {value}; the run has diverged, so lower the learning rate or raise the KL coefficient"
    )]
    NotFinite {
        /// The quantity.
        what: &'static str,
        /// The entry in the flat vector.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// A reply that has no place for its score.
    #[error("reply {row} has no token of the policy, so its score cannot be paid; drop it before the update")]
    EmptyReply {
        /// Which of the rollout.
        row: usize,
    },
    /// Fewer numbers than a statistic is made of.
    #[error("{what} needs at least {needed} tokens and got {got}; use a larger batch")]
    TooFew {
        /// The statistic.
        what: &'static str,
        /// The least.
        needed: usize,
        /// How many there are.
        got: usize,
    },
}
