//! The look of a document: its width, styles and symbols.

use crate::theme::{Symbols, Theme};

/// How a document is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// The width of the lines, in cells.
    pub columns: usize,
    /// The styles.
    pub theme: Theme,
    /// The characters for bars, bullets and rules.
    pub symbols: Symbols,
}
