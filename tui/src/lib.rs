//! The terminal: the live progress display of a training stage, and the line chat.
//!
//! [`progress`] shows the progress of a stage, [`mod@line`] streams the replies of a model, [`text`]
//! sanitizes untrusted text and measures its width in cells, [`number`] formats numbers for people,
//! [`terminal`] detects the capabilities of the terminal. All of them write to sinks passed by the caller, so
//! they can be tested without a terminal. No module here knows tensors, models or data. Every error is the
//! sink's own [`std::io::Error`].

pub mod line;
pub mod number;
pub mod progress;
pub mod terminal;
pub mod text;
