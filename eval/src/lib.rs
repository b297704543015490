//! Evaluation: what a reply is worth, how sure we may be of it, and the closing report of a run.
//!
//! Three modules are pure: [`metric`] turns replies and log-probabilities into numbers, [`statistics`] turns numbers into
//! means with intervals and paired comparisons, [`report`] writes them for people (Markdown, one HTML file) and for
//! programs (JSON). None of them knows how a model is run; [`replies`] alone runs one, to ask it questions.

mod error;
pub mod metric;
pub mod replies;
pub mod report;
pub mod statistics;

pub use error::Error;
