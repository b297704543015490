//! Measures harmless text in the cells of a terminal, truncates and wraps it.
//!
//! Widths are computed by `unicode-width` (UAX 11). Text is cut only between grapheme clusters (UAX 29).

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// The width of one line of sanitized text, in cells.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns `text` if it fits into `columns` cells, otherwise its beginning followed by `…`.
pub fn truncate(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1;
    for grapheme in text.graphemes(true) {
        used += width(grapheme);
        if used > columns {
            break;
        }
        kept.push_str(grapheme);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Wraps `text` into lines of at most `columns` cells. Lines break at spaces, next to wide characters
/// (Chinese, Japanese, Korean), and within a word only if the word is longer than a line. Line feeds are
/// kept; the space at a break is dropped. Only a single character wider than `columns` can exceed the width.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let wrap_line = |line: &str| {
        let line = line.replace('\t', "    ");
        wrap_ranges(&line, columns).into_iter().map(|range| line[range].to_owned()).collect::<Vec<_>>()
    };
    text.split('\n').flat_map(wrap_line).collect()
}

/// The lines of [`wrap`] as byte ranges of `line`, which has no line feeds and no tabs. What lies between two
/// ranges are the dropped spaces.
pub fn wrap_ranges(line: &str, columns: usize) -> Vec<Range<usize>> {
    let trimmed = |start: usize, end: usize| start..start + line[start..end].trim_end_matches(' ').len();
    let mut ranges = Vec::new();
    let mut start = 0;
    let mut used = 0;
    // The last position where the line may be broken, and the cells before it.
    let mut breakable = (0, 0);

    for (position, grapheme) in line.grapheme_indices(true) {
        let cells = width(grapheme);
        if cells > 1 {
            breakable = (position, used);
        }
        while position > start && used + cells > columns.max(1) && grapheme != " " {
            let (cut, before) = if breakable.0 > start { breakable } else { (position, used) };
            ranges.push(trimmed(start, cut));
            start = cut;
            used -= before;
        }
        used += cells;
        if cells > 1 || grapheme == " " {
            breakable = (position + grapheme.len(), used);
        }
    }

    // Spaces past the last column are dropped here.
    ranges.push(if used > columns.max(1) { trimmed(start, line.len()) } else { start..line.len() });
    ranges
}

/// Cuts `line` into byte ranges of at most `columns` cells, between any two graphemes. Nothing is dropped.
pub fn cut_ranges(line: &str, columns: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    let mut used = 0;
    for (position, grapheme) in line.grapheme_indices(true) {
        let cells = width(grapheme);
        if position > start && used + cells > columns.max(1) {
            ranges.push(start..position);
            (start, used) = (position, 0);
        }
        used += cells;
    }
    ranges.push(start..line.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_counts_cells() {
        assert_eq!(truncate("abcdef", 6), "abcdef");
        assert_eq!(truncate("abcdef", 5), "abcd…");
        // Each character takes two cells: three take six cells, and two with the ellipsis take five.
        assert_eq!(truncate("星期三", 6), "星期三");
        assert_eq!(truncate("星期三", 5), "星期…");
        assert_eq!(truncate("星期三", 4), "星…");
        assert_eq!(truncate("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!(truncate("abc", 0), "");
    }

    #[test]
    fn wrapping_breaks_at_spaces_and_between_wide_characters() {
        assert_eq!(wrap("the quick brown fox", 10), ["the quick", "brown fox"]);
        assert_eq!(wrap("今天是星期三", 5), ["今天", "是星", "期三"]);
        assert_eq!(wrap("on 星期三 ok", 7), ["on 星期", "三 ok"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("ab  cd", 2), ["ab", "cd"]);
        assert_eq!(wrap("one\n\n two", 10), ["one", "", " two"]);
        assert_eq!(wrap("", 10), [""]);
    }

    #[test]
    fn no_wrapped_line_is_too_wide_and_nothing_but_spaces_is_lost() {
        let text = "A reply in 中文 and English, with averyveryverylongword and 👩‍👩‍👧 in it.";
        for columns in 2..60 {
            let lines = wrap(text, columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
            assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        }
    }
}
