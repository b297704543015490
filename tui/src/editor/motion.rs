//! Where a movement of the caret ends: pure functions from a text and an offset to an offset.
//!
//! All offsets are bytes on boundaries of grapheme clusters (UAX 29). A word is a run of letters, digits and
//! underscores, a run of other marks, or a single wide character such as a Chinese one, because Chinese is
//! written without spaces. This module does not know rows, keys or the clipboard.

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};
use unicode_width::UnicodeWidthChar;

/// The classes of clusters of which words consist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blank,
    Letter,
    Mark,
    Wide,
}

impl Kind {
    fn of(grapheme: &str) -> Self {
        match grapheme.chars().next() {
            None => Self::Blank,
            Some(first) if first.is_whitespace() => Self::Blank,
            Some(first) if first.width() == Some(2) => Self::Wide,
            Some(first) if first.is_alphanumeric() || first == '_' => Self::Letter,
            Some(_) => Self::Mark,
        }
    }
}

/// The start of the cluster before `offset`, or the start of the text.
pub(super) fn previous(text: &str, offset: usize) -> usize {
    cursor(text, offset).prev_boundary(text, 0).expect("the chunk is the full text").unwrap_or(0)
}

/// The end of the cluster at `offset`, or the end of the text.
pub(super) fn next(text: &str, offset: usize) -> usize {
    cursor(text, offset).next_boundary(text, 0).expect("the chunk is the full text").unwrap_or(text.len())
}

/// The first boundary of clusters at or after `offset`.
pub(super) fn boundary(text: &str, offset: usize) -> usize {
    let at_boundary = cursor(text, offset).is_boundary(text, 0).expect("the chunk is the full text");
    if at_boundary { offset } else { next(text, offset) }
}

fn cursor(text: &str, offset: usize) -> GraphemeCursor {
    GraphemeCursor::new(offset, text.len(), true)
}

/// The offset `count` clusters after the caret, at most the end of the line.
pub(super) fn ahead(text: &str, caret: usize, count: usize) -> usize {
    let end = line_end(text, caret);
    (0..count).fold(caret, |offset, _| if offset < end { next(text, offset) } else { end })
}

/// The offset `count` clusters before the caret, at least the start of the line.
pub(super) fn behind(text: &str, caret: usize, count: usize) -> usize {
    let start = line_start(text, caret);
    (0..count).fold(caret, |offset, _| if offset > start { previous(text, offset) } else { start })
}

/// The start of the line of `offset`.
pub(super) fn line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |feed| feed + 1)
}

/// The end of the line of `offset`, before its line feed.
pub(super) fn line_end(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |feed| offset + feed)
}

/// The first cluster on the line of `offset` that is not blank, or the end of the line.
pub(super) fn first_non_blank(text: &str, offset: usize) -> usize {
    let start = line_start(text, offset);
    let line = &text[start..line_end(text, offset)];
    let blanks = line.graphemes(true).take_while(|grapheme| Kind::of(grapheme) == Kind::Blank);
    start + blanks.map(str::len).sum::<usize>()
}

/// The end of the word at `offset` or of the next one.
pub(super) fn word_end(text: &str, offset: usize) -> usize {
    offset + word_length(text[offset..].graphemes(true))
}

/// The start of the word that ends at `offset` or of the previous one.
pub(super) fn word_start(text: &str, offset: usize) -> usize {
    offset - word_length(text[..offset].graphemes(true).rev())
}

/// The start of the next word. An empty line counts as a word.
pub(super) fn next_word(text: &str, offset: usize) -> usize {
    let on_blank = text[offset..].graphemes(true).next().is_none_or(|first| Kind::of(first) == Kind::Blank);
    let mut end = if on_blank { offset } else { word_end(text, offset) };
    for grapheme in text[end..].graphemes(true).take_while(|grapheme| Kind::of(grapheme) == Kind::Blank) {
        end += grapheme.len();
        if grapheme == "\n" && text[end..].starts_with('\n') {
            break;
        }
    }
    end
}

/// The last cluster of the word at `offset`, or of the next word if `offset` is already there.
/// Without a next word, `offset` itself.
pub(super) fn word_last(text: &str, offset: usize) -> usize {
    let last = previous(text, word_end(text, next(text, offset)));
    if is_blank(text, last) { offset } else { last }
}

/// Whether a blank begins at `offset`, or the text ends there.
pub(super) fn is_blank(text: &str, offset: usize) -> bool {
    text[offset..].chars().next().is_none_or(char::is_whitespace)
}

/// The clusters of a text with their offsets.
///
/// Most text is ASCII. A character of ASCII before another one is a cluster of its own (there is no `\r`), so
/// only the rest needs the tables of Unicode.
pub(super) fn clusters(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = &text[offset..];
        let grapheme = match rest.as_bytes() {
            [first, second, ..] if first.is_ascii() && second.is_ascii() => &rest[..1],
            _ => rest.graphemes(true).next()?,
        };
        let start = offset;
        offset += grapheme.len();
        Some((start, grapheme))
    })
}

/// The bytes of leading blanks and of the word after them.
fn word_length<'a>(graphemes: impl Iterator<Item = &'a str>) -> usize {
    let mut length = 0;
    let mut word = None;
    for grapheme in graphemes {
        let kind = Kind::of(grapheme);
        match word {
            None if kind == Kind::Blank => {}
            None => word = Some(kind),
            Some(found) if found == kind && kind != Kind::Wide => {}
            Some(_) => break,
        }
        length += grapheme.len();
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every place that a movement visits, starting at `offset`.
    fn visits(text: &str, mut offset: usize, step: fn(&str, usize) -> usize) -> Vec<usize> {
        let mut offsets = Vec::new();
        while step(text, offset) != offset {
            offset = step(text, offset);
            offsets.push(offset);
        }
        offsets
    }

    #[test]
    fn one_step_is_one_cluster() {
        // e and its mark take 3 bytes, the family 18, a flag 8, a Chinese character 3.
        let text = "e\u{301}👩‍👩‍👧🇩🇪🇫🇷星\n";
        assert_eq!(visits(text, 0, next), [3, 21, 29, 37, 40, 41]);
        assert_eq!(visits(text, 41, previous), [40, 37, 29, 21, 3, 0]);
        assert_eq!(boundary(text, 1), 3);
        assert_eq!(boundary(text, 25), 29);
        assert_eq!(boundary(text, 40), 40);
    }

    #[test]
    fn clusters_are_those_of_unicode() {
        let text = "ab\u{301}\n\u{301}c 🇩🇪🇫🇷🇩x👩‍👩‍👧👍🏽1\u{fe0f}\u{20e3}क्षि\u{600}a";
        assert!(clusters(text).eq(text.grapheme_indices(true)));
    }

    #[test]
    fn words_are_runs_of_one_kind_and_wide_characters_stand_alone() {
        let text = "let x_1 += 星期; ";
        assert_eq!(visits(text, 0, word_end), [3, 7, 10, 14, 17, 18, 19]);
        assert_eq!(visits(text, 19, word_start), [17, 14, 11, 8, 4, 0]);
        assert_eq!(visits(text, 0, next_word), [4, 8, 11, 14, 17, 19]);
        assert_eq!(visits("ab c", 0, word_last), [1, 3]);
    }

    #[test]
    fn an_empty_line_is_a_word_on_the_way_forward() {
        assert_eq!(visits("a\n\n  b", 0, next_word), [2, 5, 6]);
    }

    #[test]
    fn lines_end_before_their_line_feed() {
        let text = "ab\n  cd\n";
        assert_eq!([0, 2, 3, 7, 8].map(|offset| line_start(text, offset)), [0, 0, 3, 3, 8]);
        assert_eq!([0, 2, 3, 7, 8].map(|offset| line_end(text, offset)), [2, 2, 7, 7, 8]);
        assert_eq!([0, 4, 8].map(|offset| first_non_blank(text, offset)), [0, 5, 8]);
        assert_eq!(first_non_blank("   ", 1), 3);
    }
}
