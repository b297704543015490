//! Where each grapheme cluster of the message stands: the rows into which a text wraps, and the cells in a
//! row.
//!
//! A cluster (UAX 29) takes the cells that [`text::width`] counts for it. A row breaks after spaces and tabs,
//! on both sides of wide clusters, and within a word only if the word is longer than a row. Every cluster
//! keeps a cell of its own: the blank at a break is not dropped, so the caret can stand before it. The last
//! column is left free for the caret; only a blank at a break may take it. If a line still ends behind the
//! last column, the caret gets an empty row after it.
//!
//! The layout keeps the offset of each row. An edit computes the rows of the touched lines again and moves
//! the offsets of the rows after them, so a key press in a long message costs little. This module does not
//! know the caret, the scroll position or the styles.

use std::num::NonZeroU16;
use std::ops::Range;

use ratatui::buffer::{Cell, CellDiffOption, CellWidth};

use super::motion;

/// The distance of the tab stops, in cells.
const TAB: usize = 4;

/// Longer clusters, such as a letter with hundreds of marks, are drawn as the stand-in.
const MAX_CLUSTER_BYTES: usize = 256;

/// What is drawn for a cluster that no cell can show.
const STAND_IN: &str = "\u{fffd}";

/// The wrapped rows of a text.
#[derive(Debug)]
pub(super) struct Layout {
    columns: usize,
    /// The byte offset at which each row begins, ascending and without repetition; never empty.
    starts: Vec<usize>,
}

/// One grapheme cluster on its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cluster<'a> {
    /// The byte offset in the row.
    pub(super) offset: usize,
    /// The cluster as it is in the text.
    pub(super) grapheme: &'a str,
    /// The first cell.
    pub(super) column: usize,
    /// The number of cells.
    pub(super) width: usize,
}

impl Cluster<'_> {
    /// Writes the cluster into its first cell; the cells after it must be blank.
    pub(super) fn draw(&self, cell: &mut Cell) {
        if self.grapheme == "\t" {
            return;
        }
        let shown = is_drawable(self.grapheme) && text::width(self.grapheme) == self.width;
        cell.set_symbol(if shown { self.grapheme } else { STAND_IN });
        // ratatui counts the half-width sound marks of kana twice, and then it would skip the cell after
        // them.
        let width = self.width as u16;
        if cell.cell_width() != width {
            let width = NonZeroU16::new(width).expect("every cluster has a cell");
            cell.set_diff_option(CellDiffOption::ForcedWidth(width));
        }
    }
}

impl Layout {
    /// Lays out the empty text.
    pub(super) fn new(columns: usize) -> Self {
        Self { columns: columns.max(1), starts: vec![0] }
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Lays the text out again if the width differs.
    pub(super) fn resize(&mut self, text: &str, columns: usize) {
        let columns = columns.max(1);
        if columns != self.columns {
            self.columns = columns;
            self.starts = self.wrap(text, 0);
        }
    }

    /// Follows an edit: at `at`, `removed` bytes gave way to `inserted` bytes, which made `text`.
    pub(super) fn edit(&mut self, text: &str, at: usize, removed: usize, inserted: usize) {
        let begin = motion::line_start(text, at);
        let end = motion::line_end(text, at + inserted);
        let old_end = end - inserted + removed;
        let first = self.starts.partition_point(|start| *start < begin);
        let after = self.starts.partition_point(|start| *start <= old_end);
        for start in &mut self.starts[after..] {
            *start = *start - removed + inserted;
        }
        let rows = self.wrap(&text[begin..end], begin);
        self.starts.splice(first..after, rows);
    }

    /// The bytes of a row, without its line feed.
    pub(super) fn range(&self, text: &str, row: usize) -> Range<usize> {
        let start = self.starts[row];
        match self.starts.get(row + 1) {
            Some(next) if text.as_bytes()[next - 1] == b'\n' => start..next - 1,
            Some(next) => start..*next,
            None => start..text.len(),
        }
    }

    /// The clusters of a row from left to right.
    pub(super) fn clusters<'a>(&self, text: &'a str, row: usize) -> impl Iterator<Item = Cluster<'a>> {
        let columns = self.columns;
        let mut column = 0;
        motion::clusters(&text[self.range(text, row)]).map(move |(offset, grapheme)| {
            let cluster = Cluster { offset, grapheme, column, width: width(grapheme, column, columns) };
            column += cluster.width;
            cluster
        })
    }

    /// The row and the column of the caret at `offset`. At a break it is at the start of the later row.
    pub(super) fn position(&self, text: &str, offset: usize) -> (usize, usize) {
        let row = self.row(offset);
        let before = offset - self.starts[row];
        let column = self
            .clusters(text, row)
            .take_while(|cluster| cluster.offset < before)
            .last()
            .map_or(0, |cluster| cluster.column + cluster.width);
        (row, column)
    }

    /// The row of the caret at `offset`.
    pub(super) fn row(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset) - 1
    }

    /// The offset of the cluster at a cell, or the last place for the caret on a row that is shorter.
    pub(super) fn offset(&self, text: &str, row: usize, column: usize) -> usize {
        let range = self.range(text, row);
        let breaks = self.starts.get(row + 1) == Some(&range.end);
        let mut last = range.start;
        for cluster in self.clusters(text, row) {
            last = range.start + cluster.offset;
            if column < cluster.column + cluster.width {
                return last;
            }
        }
        if breaks { last } else { range.end }
    }

    /// The offsets of the rows of `text`, which begins at the offset `base`.
    fn wrap(&self, text: &str, base: usize) -> Vec<usize> {
        let mut starts = Vec::new();
        let mut begin = base;
        for line in text.split('\n') {
            wrap_line(line, begin, self.columns, &mut starts);
            begin += line.len() + 1;
        }
        starts
    }
}

fn wrap_line(line: &str, base: usize, columns: usize, starts: &mut Vec<usize>) {
    starts.push(base);
    let mut row = 0;
    let mut column = 0;
    // The offset and the column of the last place where the row may break.
    let mut breakable = (0, 0);

    for (offset, grapheme) in motion::clusters(line) {
        let blank = matches!(grapheme, " " | "\t");
        let cells = width(grapheme, column, columns);
        let wide = !blank && cells > 1;
        if blank || wide {
            breakable = (offset, column);
        }
        let room = if blank { columns } else { text_columns(columns) };
        if column > 0 && column + cells > room {
            let (cut, cut_column) = if breakable.0 > row { breakable } else { (offset, column) };
            starts.push(base + cut);
            row = cut;
            column -= cut_column;
        }
        column += width(grapheme, column, columns);
        if blank || wide {
            breakable = (offset + grapheme.len(), column);
        }
    }

    if column >= columns {
        starts.push(base + line.len());
    }
}

/// The columns for text other than the blank at a break.
fn text_columns(columns: usize) -> usize {
    columns.saturating_sub(1).max(1)
}

/// The cells that a cluster takes at a column.
fn width(grapheme: &str, column: usize, columns: usize) -> usize {
    if grapheme == "\t" {
        let free = text_columns(columns).saturating_sub(column);
        return (TAB - column % TAB).min(free).max(1);
    }
    // Most text is ASCII, and its width needs no table.
    if grapheme.len() == 1 {
        return 1;
    }
    let cells = if is_drawable(grapheme) { text::width(grapheme) } else { 0 };
    if (1..=columns).contains(&cells) { cells } else { 1 }
}

/// Terminals disagree on the separators U+2028 and U+2029, and control characters have no cell.
fn is_drawable(grapheme: &str) -> bool {
    let hidden = |character: char| character.is_control() || matches!(character, '\u{2028}' | '\u{2029}');
    grapheme.len() <= MAX_CLUSTER_BYTES && !grapheme.contains(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, columns: usize) -> Vec<&str> {
        let mut layout = Layout::new(columns);
        layout.edit(text, 0, 0, text.len());
        (0..layout.rows()).map(|row| &text[layout.range(text, row)]).collect()
    }

    #[test]
    fn rows_break_after_blanks_and_beside_wide_characters() {
        // Nine of ten columns are for text; the blank at the break takes the tenth.
        assert_eq!(rows("the quick brown fox", 10), ["the quick ", "brown fox"]);
        assert_eq!(rows("今天是星期三", 5), ["今天", "是星", "期三"]);
        assert_eq!(rows("on 星期三 ok", 8), ["on 星期", "三 ok"]);
        assert_eq!(rows("abcdefgh", 4), ["abc", "def", "gh"]);
        assert_eq!(rows("one\n\n two", 10), ["one", "", " two"]);
        assert_eq!(rows("", 10), [""]);
    }

    #[test]
    fn a_wide_character_never_straddles_the_edge() {
        // Three of four columns are for text: the second character would need the columns 2 and 3.
        assert_eq!(rows("星期", 4), ["星", "期"]);
        assert_eq!(rows("a星期", 4), ["a星", "期"]);
        assert_eq!(rows("ab星", 4), ["ab", "星"]);
    }

    #[test]
    fn the_caret_after_a_full_row_gets_a_row_of_its_own() {
        assert_eq!(rows("abc", 4), ["abc"]);
        assert_eq!(rows("abc ", 4), ["abc ", ""]);
        assert_eq!(rows("abc  ", 4), ["abc ", " "]);
        assert_eq!(rows("abc \nd", 4), ["abc ", "", "d"]);
        assert_eq!(rows("星", 2), ["星", ""]);
        assert_eq!(rows("ab", 1), ["a", "b", ""]);
    }

    #[test]
    fn columns_count_cells() {
        let text = "a\té👩‍👩‍👧🇩🇪e\u{301}ｶ\u{ff9e}x";
        let mut layout = Layout::new(40);
        layout.edit(text, 0, 0, text.len());
        let columns: Vec<usize> = layout.clusters(text, 0).map(|cluster| cluster.column).collect();
        // The tab reaches to the stop at 4; the family and the flag take two cells each, and so does the
        // half-width kana with its sound mark.
        assert_eq!(columns, [0, 1, 4, 5, 7, 9, 10, 12]);
    }

    #[test]
    fn clusters_that_no_cell_can_show_become_a_visible_stand_in() {
        let long = "e".to_owned() + &"\u{301}".repeat(200);
        let text = format!("\u{200b}\u{2028}\u{301}{long}x");
        let mut layout = Layout::new(40);
        layout.edit(&text, 0, 0, text.len());
        let symbol = |cluster: Cluster| {
            let mut cell = Cell::default();
            cluster.draw(&mut cell);
            cell.symbol().to_owned()
        };
        let symbols: Vec<String> = layout.clusters(&text, 0).map(symbol).collect();
        assert_eq!(symbols, ["\u{fffd}", "\u{fffd}", "\u{fffd}", "\u{fffd}", "x"]);
        // One column cannot hold a wide character.
        let mut narrow = Layout::new(1);
        narrow.edit("星", 0, 0, 3);
        assert_eq!(narrow.clusters("星", 0).next().map(|cluster| cluster.width), Some(1));
    }

    #[test]
    fn an_edit_lays_out_the_same_rows_as_a_fresh_start() {
        let mut text = "one two three\nfour five\n\nsix seven eight".to_owned();
        let mut layout = Layout::new(8);
        layout.edit(&text, 0, 0, text.len());
        for (at, removed, inserted) in [(4, 3, "2"), (3, 9, "\n\n"), (0, 0, "zero "), (6, 8, ""), (0, 3, "")]
        {
            text.replace_range(at..at + removed, inserted);
            layout.edit(&text, at, removed, inserted.len());
            let fresh: Vec<&str> = rows(&text, 8);
            let kept: Vec<&str> = (0..layout.rows()).map(|row| &text[layout.range(&text, row)]).collect();
            assert_eq!(kept, fresh, "{text:?}");
        }
    }
}
