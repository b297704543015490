//! Evaluation: scores of replies, their statistical confidence, and the final report of a run.
//!
//! Three modules are pure: [`metric`] scores a reply, [`statistics`] turns scores into means with intervals
//! and paired comparisons, [`report`] writes them for people (Markdown, one HTML file) and for programs
//! (JSON). None of them knows how a model is run; only [`replies`] runs one, to answer questions.

mod error;
pub mod metric;
pub mod replies;
pub mod report;
pub mod statistics;

pub use error::Error;
