//! What stands before each line: the bars of quotes and the markers and hanging indents of list items.
//!
//! Containers can nest deeper than a terminal has columns. The margin takes at most what leaves room for
//! text; deeper containers get none, and the caller shows the markers of their items in the text.

use ratatui::text::Span;

use super::styled::{Spans, cells};

/// The fewest columns that the margin leaves for text, if there are as many.
const MIN_TEXT: usize = 12;

/// What one container puts before its lines.
#[derive(Debug)]
struct Level {
    first: Span<'static>,
    rest: Span<'static>,
    /// Whether the first line is still to come.
    pending: bool,
    width: usize,
}

/// The containers that are open, from the outermost.
#[derive(Debug)]
pub(super) struct Margin {
    levels: Vec<Level>,
    /// Number of open containers that got no room.
    hidden: usize,
    width: usize,
    columns: usize,
}

impl Margin {
    pub(super) fn new(columns: usize) -> Self {
        Self { levels: Vec::new(), hidden: 0, width: 0, columns }
    }

    /// The columns that are left for text.
    pub(super) fn room(&self) -> usize {
        (self.columns - self.width).max(1)
    }

    /// The number of containers with room.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Opens a container that puts `first` before its first line and `rest`, of the same width, before the
    /// others. Returns whether there is room for it.
    pub(super) fn open(&mut self, first: Span<'static>, rest: Span<'static>) -> bool {
        let width = cells(&first.content);
        let reserved = MIN_TEXT.max(self.columns / 2);
        if self.hidden > 0 || self.width + width + reserved > self.columns {
            self.hidden += 1;
            return false;
        }
        self.width += width;
        self.levels.push(Level { first, rest, pending: true, width });
        true
    }

    /// Closes the innermost container.
    pub(super) fn close(&mut self) {
        if self.hidden > 0 {
            self.hidden -= 1;
        } else if let Some(level) = self.levels.pop() {
            self.width -= level.width;
        }
    }

    /// Whether the first line of the innermost container is still to come.
    pub(super) fn pending(&self) -> bool {
        self.hidden == 0 && self.levels.last().is_some_and(|level| level.pending)
    }

    /// What stands before the next line.
    pub(super) fn next(&mut self) -> Spans {
        let next = |level: &mut Level| {
            if std::mem::take(&mut level.pending) { level.first.clone() } else { level.rest.clone() }
        };
        self.levels.iter_mut().map(next).collect()
    }

    /// What stands before an empty line in the outermost `depth` containers.
    pub(super) fn blank(&self, depth: usize) -> Spans {
        let mut spans: Spans = self.levels[..depth].iter().map(|level| level.rest.clone()).collect();
        trim_end(&mut spans);
        spans
    }
}

/// Removes the white space at the end of a line.
pub(super) fn trim_end(spans: &mut Spans) {
    while let Some(last) = spans.last_mut() {
        let kept = last.content.trim_end_matches(' ');
        if !kept.is_empty() {
            last.content = kept.to_owned().into();
            return;
        }
        spans.pop();
    }
}
