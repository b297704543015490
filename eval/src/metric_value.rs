//! The value of a metric for one document.

use serde::{Deserialize, Serialize};

use crate::bbq::Bias;

/// What one metric says about one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// One number.
    Number(f64),
    /// A total and what it is divided by in the end, such as a log-likelihood and a number of words.
    Weighted {
        /// The total.
        total: f64,
        /// What it counts.
        weight: f64,
    },
    /// Several numbers that count the same in the end.
    Several(Vec<f64>),
    /// What an answer says about bias.
    Bias(Bias),
}
