//! Evaluation: what is asked of a model, how its answers are scored, how sure the scores are, and reports.
//!
//! An [`evaluation`] reads [`task`] files and their [`rows`], makes a [`document`] of each row, sends its
//! [`request`]s to a model, and turns the answers into scores ([`score`]) and those into numbers with
//! intervals ([`mod@aggregate`], [`statistics`]). Nothing here knows how a model is run: requests go out
//! through the trait [`request::LanguageModel`], and programs that a model writes through
//! [`code_execution::CodeRunner`].
//!
//! Pure helpers: [`few_shot`] chooses the examples of a prompt; [`filter`] takes the answer out of a reply;
//! [`exact_match`], [`math_answer`], [`ifeval`] and [`longbench`] score it. Where scores must equal those of
//! lm-evaluation-harness, [`python_random`], [`python_regex`] and [`number_words`] follow the rules of Python
//! and of the packages that it uses.

pub mod aggregate;
pub mod bbq;
pub mod code_execution;
pub mod contamination;
pub mod document;
mod error;
pub mod evaluation;
pub mod exact_match;
pub mod few_shot;
pub mod filter;
#[cfg(test)]
mod golden_scores;
#[cfg(test)]
mod hostile_text;
pub mod ifeval;
pub mod judge;
pub mod longbench;
pub mod math_answer;
mod metric_value;
mod nan_as_null;
pub mod number_words;
pub mod page;
pub mod python_random;
pub mod python_regex;
mod python_text;
pub mod report;
pub mod request;
pub mod request_set;
pub mod response_cache;
pub mod results;
pub mod reward_model;
pub mod rows;
pub mod score;
pub mod statistics;
pub mod task;
mod text_filters;

pub use error::Error;
