//! A text in several styles, and its lines at a width.
//!
//! Everything that is shown passes through [`Styled::push`], which makes it harmless: Markdown can name any
//! character by its number (`&#27;`), so the parsed text may hold control characters that the text itself
//! does not. Widths are the sum of the widths of the graphemes, because a terminal is filled grapheme by
//! grapheme.

use std::ops::Range;

use ratatui::style::Style;
use ratatui::text::Span;
use unicode_segmentation::UnicodeSegmentation;

/// The pieces of one line.
pub(super) type Spans = Vec<Span<'static>>;

/// A text in several styles. Line feeds end its lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Styled {
    text: String,
    /// Where each style ends, in bytes, without gaps.
    runs: Vec<(usize, Style)>,
}

impl Styled {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Appends text. A tab becomes four spaces, a control character its picture.
    pub(super) fn push(&mut self, piece: &str, style: Style) {
        if piece.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')) {
            self.text.push_str(piece);
        } else {
            self.text.push_str(&text::sanitize(piece).replace('\t', "    "));
        }
        match self.runs.last_mut() {
            Some((end, last)) if *last == style => *end = self.text.len(),
            _ if piece.is_empty() => {}
            _ => self.runs.push((self.text.len(), style)),
        }
    }

    /// Appends another text.
    pub(super) fn append(&mut self, other: &Self) {
        let offset = self.text.len();
        self.text.push_str(&other.text);
        self.runs.extend(other.runs.iter().map(|(end, style)| (offset + end, *style)));
    }

    /// Removes a line feed at the end.
    pub(super) fn trim_line_feed(&mut self) {
        if self.text.ends_with('\n') {
            self.text.pop();
        }
    }

    /// The lines, broken between words to fit into `columns`.
    pub(super) fn wrap(&self, columns: usize) -> Vec<Spans> {
        self.lines(|line| text::wrap_ranges(line, columns))
    }

    /// The lines, broken at the last column; every space is kept.
    pub(super) fn cut(&self, columns: usize) -> Vec<Spans> {
        self.lines(|line| text::cut_ranges(line, columns))
    }

    /// The cells of the widest line.
    pub(super) fn width(&self) -> usize {
        self.text.split('\n').map(cells).max().unwrap_or(0)
    }

    fn lines(&self, ranges: impl Fn(&str) -> Vec<Range<usize>>) -> Vec<Spans> {
        let mut lines = Vec::new();
        let mut start = 0;
        let mut run = 0;
        for line in self.text.split('\n') {
            for range in ranges(line) {
                lines.push(self.spans(start + range.start..start + range.end, &mut run));
            }
            start += line.len() + 1;
        }
        lines
    }

    /// The pieces of a part of the text. `run` is the first style that may reach into it; the parts follow
    /// one another.
    fn spans(&self, part: Range<usize>, run: &mut usize) -> Spans {
        let mut spans = Spans::new();
        let mut start = part.start;
        while start < part.end {
            let (end, style) = self.runs[*run];
            if end <= start {
                *run += 1;
                continue;
            }
            let stop = end.min(part.end);
            spans.push(Span::styled(self.text[start..stop].to_owned(), style));
            start = stop;
        }
        spans
    }
}

/// The cells that a text takes on one line.
pub(super) fn cells(text: &str) -> usize {
    text.graphemes(true).map(text::width).sum()
}

/// The cells that the pieces of a line take.
pub(super) fn spans_cells(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| cells(&span.content)).sum()
}
