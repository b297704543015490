//! Vim's operators: which part of the text a motion covers, and what `d`, `c`, `y`, `p` and `P` do with it.
//!
//! Ranges follow vim's manual: `e` and the other inclusive motions take the character under their end, `j`,
//! `k`, `gg` and `G` take whole lines, `dw` does not join lines (`:help w`), and `cw` on a word changes no
//! blanks (`:help cw`). This module does not know keys or counts that are still being typed.

use std::ops::Range;

use super::super::document::Document;
use super::super::motion::{self, ahead, behind};

/// What to do with a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Delete,
    Change,
    Yank,
}

/// The part of the text that a motion covers.
#[derive(Debug)]
pub(super) struct Target {
    /// The bytes, without the last line feed of whole lines.
    pub(super) range: Range<usize>,
    /// Whether these are whole lines.
    pub(super) lines: bool,
}

impl Operator {
    /// The operator of a character; the caller has checked that it is one.
    pub(super) fn from(character: char) -> Self {
        match character {
            'd' => Self::Delete,
            'c' => Self::Change,
            _ => Self::Yank,
        }
    }

    /// Applies the operator. Returns whether normal mode stays.
    pub(super) fn apply(self, document: &mut Document, target: &Target) -> bool {
        let range = target.range.clone();
        if self == Self::Change {
            document.begin_session();
        }
        if target.lines || !range.is_empty() {
            document.copy(range.clone(), target.lines);
        }
        match self {
            Self::Delete if target.lines => delete_lines(document, range),
            Self::Delete | Self::Change => {
                document.replace(range.clone(), "");
                document.rest_at(motion::boundary(document.text(), range.start));
            }
            Self::Yank if !target.lines => document.move_to(range.start),
            Self::Yank => {}
        }
        self != Self::Change
    }
}

/// Removes whole lines with one of the line feeds beside them.
fn delete_lines(document: &mut Document, range: Range<usize>) {
    let Range { start, end } = range;
    if end < document.text().len() {
        document.replace(start..end + 1, "");
    } else {
        document.replace(start.saturating_sub(1)..end, "");
    }
    document.move_to(motion::first_non_blank(document.text(), document.caret()));
}

impl Target {
    /// Whether a character is a motion.
    pub(super) fn is_motion(character: char) -> bool {
        matches!(character, 'h' | 'j' | 'k' | 'l' | 'w' | 'b' | 'e' | '0' | '^' | '$' | 'G')
    }

    /// What an operator takes with a motion, or `None` if the motion cannot be made.
    pub(super) fn of(
        document: &Document,
        operator: Operator,
        character: char,
        count: Option<usize>,
    ) -> Option<Self> {
        let (text, caret) = (document.text(), document.caret());
        let times = count.unwrap_or(1);
        let end = match character {
            'j' => {
                let range = lines(text, caret, times);
                let fits = range.end > motion::line_end(text, caret);
                return fits.then_some(Self { range, lines: true });
            }
            'k' => {
                let start = lines_above(text, caret, times);
                let fits = start < motion::line_start(text, caret);
                let range = start..motion::line_end(text, caret);
                return fits.then_some(Self { range, lines: true });
            }
            'g' | 'G' => {
                let other = destination(text, caret, character, count);
                let start = motion::line_start(text, caret.min(other));
                return Some(Self { range: start..motion::line_end(text, caret.max(other)), lines: true });
            }
            'w' if operator == Operator::Change && !motion::is_blank(text, caret) => {
                (0..times).fold(caret, |offset, _| motion::word_end(text, offset))
            }
            'w' => before_line_end(text, caret, destination(text, caret, character, count)),
            'e' => motion::next(text, destination(text, caret, character, count)),
            _ => destination(text, caret, character, count),
        };
        Some(Self { range: caret.min(end)..caret.max(end), lines: false })
    }
}

/// Where a motion other than `j` and `k` ends.
pub(super) fn destination(text: &str, caret: usize, character: char, count: Option<usize>) -> usize {
    let times = count.unwrap_or(1);
    let repeat = |step: fn(&str, usize) -> usize| (0..times).fold(caret, |offset, _| step(text, offset));
    match character {
        'h' => behind(text, caret, times),
        'l' => ahead(text, caret, times),
        'w' => repeat(motion::next_word),
        'b' => repeat(motion::word_start),
        'e' => repeat(motion::word_last),
        '0' => motion::line_start(text, caret),
        '^' => motion::first_non_blank(text, caret),
        '$' => lines(text, caret, times - 1).end,
        'G' if count.is_none() => motion::first_non_blank(text, text.len()),
        'g' | 'G' => motion::first_non_blank(text, lines(text, 0, times - 1).end),
        _ => caret,
    }
}

/// The line of `offset` and up to `more` lines below it.
pub(super) fn lines(text: &str, offset: usize, more: usize) -> Range<usize> {
    let mut end = motion::line_end(text, offset);
    for _ in 0..more {
        if end < text.len() {
            end = motion::line_end(text, end + 1);
        }
    }
    motion::line_start(text, offset)..end
}

/// The start of the line that is up to `more` lines above the line of `offset`.
fn lines_above(text: &str, offset: usize, more: usize) -> usize {
    let mut start = motion::line_start(text, offset);
    for _ in 0..more {
        start = motion::line_start(text, start.saturating_sub(1));
    }
    start
}

/// If the last word that `w` moved over is the last one of its line, the operator stops at the end of that
/// line.
fn before_line_end(text: &str, caret: usize, destination: usize) -> usize {
    let covered = &text[caret..destination];
    let words = covered.trim_end().len();
    covered[words..].find('\n').map_or(destination, |feed| caret + words + feed)
}

/// Inserts what was cut or copied last, after or before the caret or its line.
pub(super) fn put(document: &mut Document, after: bool, count: usize) {
    let cut = document.last_cut().clone();
    let (text, caret) = (document.text(), document.caret());
    if cut.lines {
        let lines = vec![cut.text.as_str(); count].join("\n");
        let (at, new) = if after {
            (motion::line_end(text, caret), format!("\n{lines}"))
        } else {
            (motion::line_start(text, caret), format!("{lines}\n"))
        };
        document.replace(at..at, &new);
        let first = at + usize::from(after);
        document.move_to(motion::first_non_blank(document.text(), first));
    } else if !cut.text.is_empty() {
        let at = if after { ahead(text, caret, 1) } else { caret };
        document.replace(at..at, &cut.text.repeat(count));
        document.move_to(motion::previous(document.text(), document.caret()));
    }
}
