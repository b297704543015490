//! Text for people: untrusted text made [`harmless`], its [`layout`] in the cells of a terminal, and
//! [`number`]s in words. This crate knows no terminal, no page and no file.

pub mod harmless;
pub mod layout;
pub mod number;

pub use harmless::{Sanitizer, is_hidden, sanitize, single_line, visible};
pub use layout::{cut_ranges, truncate, width, wrap, wrap_ranges};
