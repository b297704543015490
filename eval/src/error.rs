//! The error type of this crate. Variants hold the offending values, and messages end with a suggested fix.

use std::path::PathBuf;

/// Everything that can go wrong in evaluation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model could not reply.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// A statistic was requested for too few items.
    #[error("{what} needs at least {needed} items, got {got}; evaluate on more prompts")]
    TooFew {
        /// The statistic.
        what: &'static str,
        /// The smallest number of items for which it is defined.
        needed: usize,
        /// The number of items that were given.
        got: usize,
    },
    /// An item has no samples, so its average is undefined.
    #[error("item {item} has no samples; draw at least one reply per prompt")]
    EmptyItem {
        /// Index of the item.
        item: usize,
    },
    /// Two systems were compared on different numbers of items.
    #[error(
        "a paired comparison needs the same items on both sides, got {left} and {right}; score both on one prompt list"
    )]
    Unpaired {
        /// Items of the first system.
        left: usize,
        /// Items of the second system.
        right: usize,
    },
    /// More correct answers than answers.
    #[error("{successes} of {n} is not a rate; count each item once")]
    NotARate {
        /// Successes counted.
        successes: u64,
        /// Trials counted.
        n: u64,
    },
    /// A probability outside the open interval from 0 to 1.
    #[error("{what} is {got}, which is not strictly between 0 and 1; 0.95 and 0.8 are the usual choices")]
    NotAProbability {
        /// The setting.
        what: &'static str,
        /// Its value.
        got: f64,
    },
    /// A number that should be finite is not.
    #[error("{field} is {got}; find the item or step that produced it before reporting")]
    NotFinite {
        /// The field that holds the number.
        field: String,
        /// The number.
        got: f64,
    },
    /// An interval that does not contain its own mean.
    #[error(
        "{field}: mean {mean} lies outside its interval {low} to {high}; recompute the interval from the same items"
    )]
    Interval {
        /// The field that holds the score.
        field: String,
        /// The mean.
        mean: f64,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// A file of the report could not be written.
    #[error("cannot write {path}; check that the folder exists, is writable and has room")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The report could not be turned into JSON.
    #[error("cannot encode report.json; settings must be plain JSON values")]
    Json(#[from] serde_json::Error),
}
