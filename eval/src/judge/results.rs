//! What a judge said about the answers of models: `judge.json`, `judgements.jsonl` and tables.
//!
//! Nothing here depends on the time: judging that was broken off and continued ends with the same files.

mod definition;
mod html;
mod tables;
#[cfg(test)]
mod tests;

pub use definition::{FORMAT, JudgeResults, JudgedModel};
pub use html::html;
