//! The lines of the conversation: which of them are on the screen, and what is drawn there.
//!
//! Every turn has a Markdown document that keeps its wrapped lines, so a frame costs only what is visible and
//! what is still being written. The view says in each frame which blocks there are; a block is a label, one
//! document or several side by side, and an empty line.

use std::collections::HashMap;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::conversation::TurnId;
use crate::markdown::{Document, Look};
use crate::theme::{Symbols, Theme};
use text::{Sanitizer, sanitize};

/// The narrowest column of a comparison. Answers that would be narrower stand below one another.
const COLUMN: usize = 24;

/// The cells that the text of a turn is indented by.
const INDENT: usize = 2;

/// The text of a turn, or of the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TextId {
    System,
    Turn(TurnId),
}

/// One part of the conversation.
pub(super) struct Block {
    /// The texts side by side, each with its label.
    pub(super) columns: Vec<(TextId, Line<'static>)>,
    /// Whether commands are about it.
    pub(super) is_selected: bool,
}

/// Where a document lies.
#[derive(Clone, Copy)]
struct Placed {
    text: TextId,
    /// The line of the label, counted from the beginning of the conversation.
    top: usize,
    /// The number of lines of the document.
    height: usize,
    left: usize,
    columns: usize,
}

struct Text {
    document: Document,
    sanitizer: Sanitizer,
}

/// The state of the view of a conversation.
#[derive(Default)]
pub(super) struct Transcript {
    texts: HashMap<TextId, Text>,
    placed: Vec<Placed>,
    total: usize,
    page: usize,
    /// The first line on the screen; `None` follows the end.
    top: Option<usize>,
    look: Option<Look>,
    /// The line of the last match.
    found: Option<usize>,
}

impl Transcript {
    /// Appends text to a turn that is being written.
    pub(super) fn push(&mut self, turn: TurnId, piece: &str) {
        // A turn that was not drawn yet is taken whole when it is.
        if let Some(text) = self.texts.get_mut(&TextId::Turn(turn)) {
            let piece = text.sanitizer.push(piece);
            text.document.push(&piece);
        }
    }

    /// Ends a turn that was written.
    pub(super) fn finish(&mut self, turn: TurnId) {
        if let Some(text) = self.texts.get_mut(&TextId::Turn(turn)) {
            let piece = text.sanitizer.finish();
            text.document.push(piece);
        }
    }

    /// Takes the text of a turn anew at the next frame.
    pub(super) fn forget(&mut self, turn: TurnId) {
        self.texts.remove(&TextId::Turn(turn));
    }

    /// Takes the text of the instructions anew at the next frame.
    pub(super) fn forget_system(&mut self) {
        self.texts.remove(&TextId::System);
    }

    /// The lines that a page scrolls by. One line stays, so that the reader finds the place.
    pub(super) fn page(&self) -> usize {
        self.page.saturating_sub(1).max(1)
    }

    /// Shows the end, also when it grows.
    pub(super) fn follow(&mut self) {
        self.top = None;
    }

    /// Shows the beginning.
    pub(super) fn go_to_top(&mut self) {
        self.top = Some(0);
    }

    /// Scrolls by `lines`, downwards if positive.
    pub(super) fn scroll(&mut self, lines: isize) {
        let last = self.last_top();
        let top = self.top.unwrap_or(last).min(last).saturating_add_signed(lines);
        self.top = (top < last).then_some(top);
    }

    /// Whether the end is not on the screen.
    pub(super) fn is_scrolled(&self) -> bool {
        self.top.is_some_and(|top| top < self.last_top())
    }

    /// Scrolls so that a turn is on the screen.
    pub(super) fn show(&mut self, turn: TurnId) {
        let place = self.placed.iter().find(|placed| placed.text == TextId::Turn(turn));
        if let Some(&Placed { top, height, .. }) = place {
            let first = self.first();
            if top < first || top + height + 1 > first + self.page {
                self.show_line(top);
            }
        }
    }

    fn show_line(&mut self, line: usize) {
        self.top = Some(line).filter(|&top| top < self.last_top());
    }

    fn last_top(&self) -> usize {
        self.total.saturating_sub(self.page)
    }

    fn first(&self) -> usize {
        self.top.unwrap_or(usize::MAX).min(self.last_top())
    }

    /// Scrolls to a line that contains `query`, whatever its case: the last one, or with a direction the one
    /// after the last match. Returns whether there is one.
    pub(super) fn find(&mut self, query: &str, downwards: Option<bool>) -> bool {
        let lines = self.matches(query);
        let from = self.found.filter(|_| downwards.is_some());
        self.found = match (from, downwards) {
            (Some(from), Some(true)) => lines.iter().find(|&&line| line > from).or(lines.first()),
            (Some(from), _) => lines.iter().rev().find(|&&line| line < from).or(lines.last()),
            (None, _) => lines.last(),
        }
        .copied();
        if let Some(line) = self.found {
            self.show_line(line.saturating_sub(self.page / 2));
        }
        self.found.is_some()
    }

    /// Whether the last search found something.
    pub(super) fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// The lines that contain `query`, from the beginning of the conversation.
    fn matches(&mut self, query: &str) -> Vec<usize> {
        let query = query.to_lowercase();
        let Some(look) = self.look.filter(|_| !query.is_empty()) else { return Vec::new() };
        let mut found = Vec::new();
        for placed in &self.placed {
            let Some(text) = self.texts.get_mut(&placed.text) else { continue };
            let look = Look { columns: placed.columns, ..look };
            let lines = text.document.lines(look).iter().enumerate();
            let matching = lines.filter(|(_, line)| contents(line).to_lowercase().contains(&query));
            found.extend(matching.map(|(line, _)| placed.top + 1 + line));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Draws the visible part of `blocks` into `area`. `source` gives the text of a turn that is not known
    /// yet.
    pub(super) fn draw(
        &mut self,
        blocks: &[Block],
        source: impl Fn(TextId) -> String,
        (theme, symbols): (&Theme, &Symbols),
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let look = Look { columns: usize::from(area.width).max(1), theme: *theme, symbols: *symbols };
        self.look = Some(look);
        self.page = usize::from(area.height);
        let labels = self.place(blocks, source, &look);
        let first = self.first();
        let visible = first..first + self.page;
        for (placed, (label, is_selected)) in self.placed.iter().zip(labels) {
            let end = placed.top + 1 + placed.height;
            if end <= visible.start || placed.top >= visible.end {
                continue;
            }
            let row = |line: usize| visible.contains(&line).then(|| area.y + (line - first) as u16);
            let left = area.x + placed.left as u16;
            let width = (placed.columns + INDENT) as u16;
            if let Some(row) = row(placed.top) {
                buffer.set_line(left, row, label, width);
                if is_selected {
                    buffer.set_style(Rect { x: left, y: row, width, height: 1 }, theme.selected);
                }
            }
            let Some(text) = self.texts.get_mut(&placed.text) else { continue };
            let lines = text.document.lines(Look { columns: placed.columns, ..look });
            for (offset, line) in lines.iter().enumerate().skip(visible.start.saturating_sub(placed.top + 1))
            {
                let Some(row) = row(placed.top + 1 + offset) else { break };
                buffer.set_line(left + INDENT as u16, row, line, placed.columns as u16);
            }
        }
    }

    /// Places all blocks, one below the other, and returns the label of each text.
    fn place<'a>(
        &mut self,
        blocks: &'a [Block],
        source: impl Fn(TextId) -> String,
        look: &Look,
    ) -> Vec<(&'a Line<'static>, bool)> {
        self.placed.clear();
        let mut labels = Vec::with_capacity(blocks.len());
        let mut top = 0;
        for block in blocks {
            let count = block.columns.len().max(1);
            let side_by_side = (look.columns + 1) / count > COLUMN;
            let width = if side_by_side { (look.columns + 1) / count - 1 } else { look.columns };
            let mut tallest = 0;
            for (column, (id, label)) in block.columns.iter().enumerate() {
                let columns = width.saturating_sub(INDENT).max(1);
                let text = self.texts.entry(*id).or_insert_with(|| Text {
                    document: Document::from(sanitize(&source(*id)).as_str()),
                    sanitizer: Sanitizer::default(),
                });
                let height = text.document.height(Look { columns, ..*look });
                let left = if side_by_side { column * (width + 1) } else { 0 };
                self.placed.push(Placed { text: *id, top, height, left, columns });
                labels.push((label, block.is_selected));
                tallest = tallest.max(height);
                if !side_by_side {
                    top += height + 2;
                }
            }
            if side_by_side {
                top += tallest + 2;
            }
        }
        self.total = top.saturating_sub(1);
        labels
    }

    /// Marks what is searched for in the cells of `area`.
    pub(super) fn mark(query: &str, theme: &Theme, area: Rect, buffer: &mut Buffer) {
        let query = query.to_lowercase();
        if query.is_empty() {
            return;
        }
        for y in area.top()..area.bottom() {
            // The text of the row, and the cell of each of its bytes.
            let (mut text, mut cells) = (String::new(), Vec::new());
            for x in area.left()..area.right() {
                let symbol = buffer[(x, y)].symbol().to_lowercase();
                cells.extend(std::iter::repeat_n(x, symbol.len()));
                text.push_str(&symbol);
            }
            for (start, found) in text.match_indices(&query) {
                for x in cells[start]..=cells[start + found.len() - 1] {
                    buffer[(x, y)].set_style(theme.selected);
                }
            }
        }
    }
}

fn contents(line: &Line<'_>) -> String {
    line.spans.iter().map(|span| span.content.as_ref()).collect()
}
