//! The terminal: the live display of a training stage, and the line chat.
//!
//! [`progress`] shows how far a stage is, [`mod@line`] streams the replies of a model, [`text`] makes untrusted text harmless and
//! measures it in cells, [`number`] writes figures for people, [`terminal`] decides what the terminal at hand can do.
//! All of them write to sinks that they are given and can be tested without a terminal. Nothing here knows tensors, models
//! or data. Every failure is the sink's own [`std::io::Error`].

pub mod line;
pub mod number;
pub mod progress;
pub mod terminal;
pub mod text;
