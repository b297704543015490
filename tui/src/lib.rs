//! The terminal: the full-screen chat, the dashboard of runs, the progress display of a training stage, and
//! the line chat.
//!
//! [`chat`] and [`dashboard`] are state machines that draw themselves, from [`editor`], [`markdown`] and
//! [`theme`]. [`screen`] takes the terminal and gives it back. [`progress`] shows the progress of a stage,
//! [`mod@line`] streams the replies of a model, [`terminal`] detects the capabilities of the terminal. All
//! but [`screen`] draw on buffers or write to sinks that the caller passes, so they can be tested without a
//! terminal. No module here knows tensors, models or data. Every error is the sink's own [`std::io::Error`].

pub mod chat;
pub mod dashboard;
pub mod editor;
pub mod line;
pub mod markdown;
pub mod plot;
pub mod progress;
pub mod screen;
pub mod terminal;
#[cfg(test)]
mod testing;
pub mod theme;
