//! Generation: requests in, replies out, as token ids.
//!
//! ```text
//! requests ──> Scheduler ──plan──> Decoder::step ──logits──> SamplingParams ──tokens──> events
//!                 ^   └─ PageTable                                              │
//!                 └─────────────────────────────────────────────────────────────┘
//! ```
//! The [`scheduler`] decides which tokens a step computes, and into which [`pages`] of the KV cache their
//! keys and values go. The [`engine`] runs the plan on a model and draws the tokens. A
//! [`Generator`](generate::Generator) runs engines until a batch of prompts has its replies. [`remote`] asks
//! a server for the replies of its model instead. The engine knows token ids alone, and no part of this crate
//! knows losses.
//!
//! A [`session`] is a model with its tokenizer, several of which may have [`shared_weights`], [`stop_text`]
//! ends text at a stop string, and a [`language_model`] answers the requests of an evaluation.

mod adjust;
mod draft;
mod draw;
pub mod engine;
pub mod error;
pub mod generate;
pub mod language_model;
mod logprobs;
pub mod model_folder;
mod ngram;
pub mod pages;
mod ranks;
pub mod remote;
pub mod request;
pub mod sample;
pub mod scheduler;
pub mod session;
pub mod shared_weights;
pub mod stop_text;
#[cfg(test)]
mod test_http;

pub use error::{Error, class_of_rows};
