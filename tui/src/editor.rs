//! The multi-line editor of a message: text, caret, undo, history and, if the user wants it, vim's normal
//! mode.
//!
//! The editor counts in grapheme clusters (UAX 29) and in cells of the terminal, and it reports the cell of
//! the caret, because input methods show their candidates at the real cursor of the terminal. It has a buffer
//! of its own: `ratatui-textarea` moves and deletes by characters and adds up their widths, so one emoji
//! family counts as six cells there but is drawn in two, and the caret drifts; its layout cannot be replaced
//! from outside.
//!
//! The text holds no control characters but line feeds and tabs. Pasted and recalled text goes through
//! [`text::sanitize`], so what is drawn is what is sent. This module does not know
//! sending, files or the screen around it: keys that are not its own are [`Outcome::Ignored`].

mod document;
mod history;
mod layout;
mod motion;
mod plain;
#[cfg(test)]
mod tests;
mod vim;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind};
use ratatui::layout::{Position, Rect};
use ratatui::widgets::{Clear, Widget};

use crate::theme::Theme;

use document::{Document, clean};
pub use history::History;
use vim::Vim;

/// The width before the first drawing.
const COLUMNS: usize = 80;

/// A multi-line text field.
#[derive(Debug)]
pub struct Editor {
    document: Document,
    vim: Option<Vim>,
    /// The first visible row.
    top: usize,
}

/// What a key did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key does not belong to the editor.
    Ignored,
    /// The key belongs to the editor, and the text is as before.
    Moved,
    /// The text changed.
    Changed,
}

/// How keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Without vim.
    Plain,
    /// Vim: characters are text.
    Insert,
    /// Vim: characters are commands.
    Normal,
}

impl Default for Editor {
    fn default() -> Self {
        Self::new()
    }
}

impl Editor {
    /// An empty editor without vim.
    pub fn new() -> Self {
        Self { document: Document::new(COLUMNS), vim: None, top: 0 }
    }

    /// The text, with `\n` between lines.
    pub fn text(&self) -> String {
        self.document.text().to_owned()
    }

    /// Replaces the text as one step of undo and puts the caret at its end. Control characters become
    /// visible.
    pub fn set_text(&mut self, text: &str) {
        self.document.complete_step();
        self.document.replace(0..self.document.text().len(), &clean(text));
        self.document.move_to(self.document.text().len());
        self.settle();
    }

    /// Empties the text as one step of undo. With vim, the next message begins in insert mode.
    pub fn clear(&mut self) {
        self.set_text("");
        self.set_vim(self.vim.is_some());
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.document.text().is_empty()
    }

    /// Inserts text at the caret as one step of undo. `\r\n` and `\r` become `\n`; other control characters
    /// become visible.
    pub fn paste(&mut self, text: &str) {
        self.document.complete_step();
        let caret = self.document.caret();
        self.document.replace(caret..caret, &clean(text));
        self.document.complete_step();
        self.settle();
    }

    /// Handles a key. The release of a key is ignored.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.kind == KeyEventKind::Release {
            return Outcome::Ignored;
        }
        let changes = self.document.changes();
        let handled = match &mut self.vim {
            Some(vim) if vim.is_normal() => vim.key(&mut self.document, key),
            Some(vim) if key.code == KeyCode::Esc => {
                vim.leave_insert(&mut self.document);
                true
            }
            _ => plain::key(&mut self.document, key),
        };
        if !handled {
            Outcome::Ignored
        } else if self.document.changes() == changes {
            Outcome::Moved
        } else {
            Outcome::Changed
        }
    }

    /// Switches vim's keys on, beginning in insert mode, or off.
    pub fn set_vim(&mut self, on: bool) {
        self.document.complete_step();
        self.vim = on.then(Vim::default);
    }

    /// How keys are read now.
    pub fn mode(&self) -> Mode {
        match &self.vim {
            None => Mode::Plain,
            Some(vim) if vim.is_normal() => Mode::Normal,
            Some(_) => Mode::Insert,
        }
    }

    /// Whether no row is above the caret.
    pub fn is_on_first_row(&self) -> bool {
        self.caret_row() == 0
    }

    /// Whether no row is below the caret.
    pub fn is_on_last_row(&self) -> bool {
        self.caret_row() + 1 == self.document.layout().rows()
    }

    /// Rows needed at this width, at least 1. Later movements wrap at this width.
    pub fn height(&mut self, columns: u16) -> u16 {
        self.document.resize(columns.into());
        self.document.layout().rows().try_into().unwrap_or(u16::MAX)
    }

    /// Draws the part around the caret and returns the cell of the caret, which is inside `area` unless
    /// `area` is empty.
    pub fn draw(&mut self, area: Rect, buffer: &mut Buffer, theme: &Theme) -> Position {
        let area = area.intersection(buffer.area);
        if area.is_empty() {
            return area.as_position();
        }
        self.document.resize(area.width.into());
        Clear.render(area, buffer);
        buffer.set_style(area, theme.text);

        let (row, column) = self.document.layout().position(self.document.text(), self.document.caret());
        self.scroll_to(row, area.height.into());
        for (y, row) in area.rows().zip(self.top..self.document.layout().rows()) {
            self.draw_row(row, y, buffer);
        }
        Position::new(area.x + column as u16, area.y + (row - self.top) as u16)
    }

    fn draw_row(&self, row: usize, area: Rect, buffer: &mut Buffer) {
        for cluster in self.document.layout().clusters(self.document.text(), row) {
            cluster.draw(&mut buffer[(area.x + cluster.column as u16, area.y)]);
        }
    }

    /// Scrolls as little as possible to show the row, and shows no empty space below the text if there is
    /// text above.
    fn scroll_to(&mut self, row: usize, height: usize) {
        let last_top = self.document.layout().rows().saturating_sub(height);
        self.top = self.top.clamp((row + 1).saturating_sub(height), row).min(last_top);
    }

    fn caret_row(&self) -> usize {
        self.document.layout().row(self.document.caret())
    }

    /// Keeps the caret on a character in normal mode.
    fn settle(&mut self) {
        if let Some(vim) = &mut self.vim {
            vim.settle(&mut self.document);
        }
    }
}
