//! Renders Markdown for a terminal while it grows.
//!
//! A document is a sequence of blocks. `block` finds where a block is finished, which never changes
//! afterwards, and `render` turns one block into lines. The lines of finished blocks are kept, so a push
//! costs as much as the block that is still growing and not as much as the document. Each block is parsed
//! apart, also when a whole text is rendered at once: the lines do not depend on how the text was cut into
//! pieces.
//!
//! The lines are at most as wide as asked for, whatever the text is; only a single grapheme can be wider than
//! a very narrow terminal.
//!
//! This module knows no conversation and no screen, and it trusts its caller to sanitise the text.

mod block;
mod highlight;
mod look;
mod margin;
mod render;
mod styled;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;

use ratatui::text::Line;

use block::Splitter;
use highlight::Highlights;

pub use look::Look;
pub use render::CodeBlock;

/// A Markdown text that grows piece by piece, with the wrapped lines of its finished blocks cached.
///
/// Fenced code is highlighted as soon as its fence is closed. It stays plain if its language is not known, or
/// if it has more than 2 000 lines, 200 000 bytes, or 2 000 bytes in one line.
#[derive(Debug, Default)]
pub struct Document {
    text: String,
    splitter: Splitter,
    shown: Shown,
}

/// The lines of a document at one look.
#[derive(Debug, Default)]
struct Shown {
    look: Option<Look>,
    /// Bytes of the text that the lines show.
    length: usize,
    lines: Vec<Line<'static>>,
    /// How many finished blocks, lines and code blocks will not change any more.
    finished: Finished,
    highlights: Highlights,
    /// Whether code has its colours. Only the lines that somebody looks at need them.
    is_highlighted: bool,
    /// Bytes that were parsed, for tests that bound the work.
    #[cfg(test)]
    parsed: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Finished {
    blocks: usize,
    lines: usize,
    code_blocks: usize,
}

impl Document {
    /// Creates an empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends text, which the caller has sanitised.
    pub fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
        self.splitter.advance(&self.text);
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number of wrapped lines. Colours change none, so code that was never shown is not highlighted for
    /// this: a long conversation opens at once.
    pub fn height(&mut self, look: Look) -> usize {
        self.shown.update(&self.text, self.splitter.ends(), &look);
        self.shown.lines.len()
    }

    /// The wrapped lines. None is wider than `look.columns`, except for a single grapheme that is.
    pub fn lines(&mut self, look: Look) -> &[Line<'static>] {
        self.shown.highlight();
        self.shown.update(&self.text, self.splitter.ends(), &look);
        &self.shown.lines
    }

    /// The fenced and indented code blocks, in order. The last one may still be growing.
    pub fn code_blocks(&self) -> Vec<CodeBlock> {
        let ends = self.splitter.ends();
        let blocks = (0..=ends.len()).map(|index| &self.text[range(&self.text, ends, index)]);
        blocks.flat_map(render::code_blocks).collect()
    }
}

impl From<&str> for Document {
    fn from(text: &str) -> Self {
        let mut document = Self::new();
        document.push(text);
        document
    }
}

/// The part of the text that block number `index` takes. After the finished blocks comes the growing one.
fn range(text: &str, ends: &[usize], index: usize) -> Range<usize> {
    let start = if index == 0 { 0 } else { ends[index - 1] };
    start..ends.get(index).copied().unwrap_or(text.len())
}

impl Shown {
    /// From now on, code has its colours.
    fn highlight(&mut self) {
        if !std::mem::replace(&mut self.is_highlighted, true) && self.highlights.position() > 0 {
            // The lines so far have none.
            self.look = None;
        }
    }

    fn update(&mut self, text: &str, ends: &[usize], look: &Look) {
        if self.look.as_ref() != Some(look) {
            self.look = Some(*look);
            self.finished = Finished::default();
        } else if self.length == text.len() {
            return;
        }
        self.length = text.len();
        self.lines.truncate(self.finished.lines);
        self.highlights.rewind(self.finished.code_blocks);
        for index in self.finished.blocks..ends.len() {
            self.append(&text[range(text, ends, index)], look);
            self.finished = Finished {
                blocks: index + 1,
                lines: self.lines.len(),
                code_blocks: self.highlights.position(),
            };
        }
        self.append(&text[range(text, ends, ends.len())], look);
    }

    /// Renders one block, after an empty line.
    fn append(&mut self, source: &str, look: &Look) {
        #[cfg(test)]
        {
            self.parsed += source.len();
        }
        self.highlights.set_active(self.is_highlighted);
        let lines = render::render(source, look, &mut self.highlights);
        if !(self.lines.is_empty() || lines.is_empty()) {
            self.lines.push(Line::default());
        }
        self.lines.extend(lines);
    }
}
