//! Prepares text from models and files for a terminal: sanitizes it, measures it in cells, truncates and
//! wraps it.
//!
//! A terminal obeys the control characters that it receives, so a reply may move the cursor, change the
//! window title or fill the clipboard (OSC 52). This module replaces every control character except line feed
//! and tab by its Unicode picture (U+2400 and following). C1 controls and bidirectional overrides (Boucher
//! and Anderson 2021, arXiv 2111.00169) become U+FFFD. Without its escape character, the rest of an escape
//! sequence is plain text. Nothing is silently dropped.
//!
//! Widths are computed by `unicode-width` (UAX 11). Text is cut only between grapheme clusters (UAX 29).

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Sanitizes a stream of text piece by piece. A carriage return and its line feed may arrive in different
/// pieces.
#[derive(Debug, Default)]
pub struct Sanitizer {
    carriage_return: bool,
}

impl Sanitizer {
    /// Sanitizes the next piece. `\r\n` becomes `\n`; a lone `\r` becomes visible as soon as the next
    /// character is known.
    pub fn push(&mut self, piece: &str) -> String {
        let mut harmless = String::with_capacity(piece.len());
        for character in piece.chars() {
            if std::mem::take(&mut self.carriage_return) && character != '\n' {
                harmless.push('␍');
            }
            match character {
                '\r' => self.carriage_return = true,
                other => harmless.push(visible(other)),
            }
        }
        harmless
    }

    /// Returns the text that was held back, at the end of the stream.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.carriage_return) { "␍" } else { "" }
    }
}

/// Sanitizes a full text. Line feeds and tabs stay.
pub fn sanitize(text: &str) -> String {
    let mut sanitizer = Sanitizer::default();
    let harmless = sanitizer.push(text);
    harmless + sanitizer.finish()
}

/// Sanitizes a text and puts it on one line: line feeds become `↵`, tabs a space.
pub fn single_line(text: &str) -> String {
    sanitize(text).replace('\n', "↵").replace('\t', " ")
}

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

fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\0'..='\u{1f}' => {
            char::from_u32(0x2400 + character as u32).expect("U+2400 to U+241F are characters")
        }
        '\u{7f}' => '␡',
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_escape_sequence_survives() {
        let attack = "\u{1b}[2J\u{1b}]52;c;cm0gLXJm\u{7}\u{9b}31mhi\u{8}\u{7f}\u{202e}";
        let harmless = sanitize(attack);
        assert_eq!(harmless, "␛[2J␛]52;c;cm0gLXJm␇\u{fffd}31mhi␈␡\u{fffd}");
        assert!(!harmless.chars().any(char::is_control));
        assert_eq!(sanitize("a\tb\n星期三 👩‍👩‍👧"), "a\tb\n星期三 👩‍👩‍👧");
    }

    #[test]
    fn pieces_equal_the_whole() {
        let text = "a\r\nb\rc\u{1b}[1m\r";
        let whole = sanitize(text);
        assert_eq!(whole, "a\nb␍c␛[1m␍");
        for cut in 0..=text.len() {
            let mut sanitizer = Sanitizer::default();
            let pieces = sanitizer.push(&text[..cut]) + &sanitizer.push(&text[cut..]);
            assert_eq!(pieces + sanitizer.finish(), whole, "cut at {cut}");
        }
    }

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
