//! Vim's normal mode, as far as a message needs it: counts, operators with motions, and the common single
//! commands.
//!
//! A command is `[count] [operator [count]] motion`, or `[count] command`, as in vim's manual (`:help
//! normal`). The differences: `j`, `k` and the arrows move by wrapped rows, though an operator with `j` or
//! `k` takes whole lines; the clipboard is one unnamed register, shared with the keys of insert mode; a
//! command that does not exist does nothing. This module does not know the screen: modified keys and keys
//! without a character are left to it.

mod operator;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::document::{Document, clean};
use super::{motion, plain};
use operator::{Operator, Target};

/// No command needs more, and a paste with a large count would fill the memory.
const MAX_COUNT: usize = 999;

/// The state between two keys.
#[derive(Debug, Default)]
pub(super) struct Vim {
    normal: bool,
    pending: Pending,
}

/// The part of a command typed so far.
#[derive(Debug, Default)]
struct Pending {
    count: Option<usize>,
    operator: Option<(Operator, Option<usize>)>,
    prefix: Option<Prefix>,
}

/// A command of two characters of which the first was typed.
#[derive(Clone, Copy, Debug)]
enum Prefix {
    Go,
    Replace,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.count.is_none() && self.operator.is_none() && self.prefix.is_none()
    }

    /// The counts before and after the operator multiply; `None` if neither was typed.
    fn total(&self) -> Option<usize> {
        let outer = self.operator.and_then(|(_, count)| count);
        let product = |count: usize| count.saturating_mul(outer.unwrap_or(1)).min(MAX_COUNT);
        self.count.map(product).or(outer)
    }
}

impl Vim {
    pub(super) fn is_normal(&self) -> bool {
        self.normal
    }

    /// Leaves insert mode: the caret goes back onto the last character that was typed.
    pub(super) fn leave_insert(&mut self, document: &mut Document) {
        self.normal = true;
        let caret = document.caret();
        let at_start = caret == motion::line_start(document.text(), caret);
        let target = if at_start { caret } else { motion::previous(document.text(), caret) };
        document.move_to(target);
    }

    /// In normal mode the caret is on a character: not behind the last one, unless the line is empty.
    pub(super) fn settle(&mut self, document: &mut Document) {
        let (text, caret) = (document.text(), document.caret());
        let behind = caret == motion::line_end(text, caret) && caret > motion::line_start(text, caret);
        if self.normal && behind {
            document.rest_at(motion::previous(text, caret));
        }
    }

    /// Handles a key in normal mode. Returns `false` if the key does not belong to the editor.
    pub(super) fn key(&mut self, document: &mut Document, key: KeyEvent) -> bool {
        let handled = match key.code {
            KeyCode::Char('r') if key.modifiers == KeyModifiers::CONTROL => {
                repeat(self.take_count(), || document.redo());
                true
            }
            KeyCode::Enter if matches!(self.pending.prefix, Some(Prefix::Replace)) => {
                self.command(document, '\n')
            }
            KeyCode::Esc => !std::mem::take(&mut self.pending).is_empty(),
            KeyCode::Backspace if key.modifiers.is_empty() => self.command(document, 'h'),
            KeyCode::Delete if key.modifiers.is_empty() => self.command(document, 'x'),
            _ => match plain::typed(key) {
                Some(character) => self.command(document, character),
                None => self.unmapped(document, key),
            },
        };
        self.settle(document);
        handled
    }

    /// The arrows, Home and End move as in insert mode. All other keys are left to the screen.
    fn unmapped(&mut self, document: &mut Document, key: KeyEvent) -> bool {
        self.pending = Pending::default();
        let arrows = [KeyCode::Left, KeyCode::Right, KeyCode::Up, KeyCode::Down, KeyCode::Home, KeyCode::End];
        arrows.contains(&key.code) && plain::key(document, key)
    }

    /// Reads one character of a command. All characters belong to the editor.
    fn command(&mut self, document: &mut Document, character: char) -> bool {
        match (self.pending.prefix.take(), character) {
            (Some(Prefix::Replace), _) => self.replace(document, character),
            (Some(Prefix::Go), 'g') => self.motion(document, 'g'),
            (Some(Prefix::Go), _) => self.pending = Pending::default(),
            (None, '1'..='9') => self.digit(character),
            (None, '0') if self.pending.count.is_some() => self.digit(character),
            (None, 'g') => self.pending.prefix = Some(Prefix::Go),
            (None, 'd' | 'c' | 'y') => self.operator(document, character),
            (None, _) if Target::is_motion(character) => self.motion(document, character),
            (None, _) if self.pending.operator.is_some() => self.pending = Pending::default(),
            (None, 'r') => self.pending.prefix = Some(Prefix::Replace),
            (None, _) => self.single(document, character),
        }
        true
    }

    fn digit(&mut self, character: char) {
        let digit = character.to_digit(10).expect("the caller passes digits") as usize;
        let count = self.pending.count.unwrap_or(0).saturating_mul(10).saturating_add(digit);
        self.pending.count = Some(count.min(MAX_COUNT));
    }

    fn operator(&mut self, document: &mut Document, character: char) {
        let operator = Operator::from(character);
        match self.pending.operator {
            None => self.pending.operator = Some((operator, self.pending.count.take())),
            Some((first, _)) if first == operator => {
                let count = self.take_count();
                let range = operator::lines(document.text(), document.caret(), count - 1);
                self.normal = operator.apply(document, &Target { range, lines: true });
            }
            Some(_) => self.pending = Pending::default(),
        }
    }

    fn motion(&mut self, document: &mut Document, character: char) {
        let pending = std::mem::take(&mut self.pending);
        let count = pending.total();
        match pending.operator {
            Some((operator, _)) => {
                if let Some(target) = Target::of(document, operator, character, count) {
                    self.normal = operator.apply(document, &target);
                }
            }
            None if matches!(character, 'j' | 'k') => {
                repeat(count.unwrap_or(1), || document.move_row(character == 'j'));
            }
            None => {
                let offset = operator::destination(document.text(), document.caret(), character, count);
                document.move_to(offset);
            }
        }
    }

    /// The commands without an operator or a motion.
    fn single(&mut self, document: &mut Document, character: char) {
        let count = self.take_count();
        let (text, caret) = (document.text(), document.caret());
        let (start, end) = (motion::line_start(text, caret), motion::line_end(text, caret));
        match character {
            'x' => document.cut(caret..motion::ahead(text, caret, count)),
            'X' => document.cut(motion::behind(text, caret, count)..caret),
            'D' => document.cut(caret..end),
            'C' => {
                document.begin_session();
                document.cut(caret..end);
                self.normal = false;
            }
            'i' => self.insert_at(document, caret),
            'a' => self.insert_at(document, motion::ahead(text, caret, 1)),
            'I' => self.insert_at(document, motion::first_non_blank(text, caret)),
            'A' => self.insert_at(document, end),
            'o' => self.open_line(document, end, false),
            'O' => self.open_line(document, start, true),
            'p' | 'P' => operator::put(document, character == 'p', count),
            'u' => repeat(count, || document.undo()),
            '~' => toggle_case(document, count),
            'J' => join(document, count),
            _ => {}
        }
    }

    fn insert_at(&mut self, document: &mut Document, offset: usize) {
        document.move_to(offset);
        document.begin_session();
        self.normal = false;
    }

    fn open_line(&mut self, document: &mut Document, offset: usize, above: bool) {
        document.begin_session();
        document.replace(offset..offset, "\n");
        if above {
            document.rest_at(offset);
        }
        self.normal = false;
    }

    /// Replaces as many clusters as the count says by one character each, or none if the line has fewer.
    fn replace(&mut self, document: &mut Document, character: char) {
        let count = self.take_count();
        let (text, caret) = (document.text(), document.caret());
        let end = motion::ahead(text, caret, count);
        if motion::clusters(&text[caret..end]).count() == count {
            let new = clean(&character.to_string()).repeat(count);
            document.replace(caret..end, &new);
            document.rest_at(motion::previous(document.text(), document.caret()));
        }
    }

    fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.pending).total().unwrap_or(1)
    }
}

/// Repeats a step until it reports that there is nothing left to do.
fn repeat(count: usize, mut step: impl FnMut() -> bool) {
    for _ in 0..count {
        if !step() {
            break;
        }
    }
}

fn toggle_case(document: &mut Document, count: usize) {
    let (text, caret) = (document.text(), document.caret());
    let range = caret..motion::ahead(text, caret, count);
    let mut toggled = String::new();
    for character in text[range.clone()].chars() {
        if character.is_lowercase() {
            toggled.extend(character.to_uppercase());
        } else {
            toggled.extend(character.to_lowercase());
        }
    }
    let end = range.start + toggled.len();
    document.replace(range, &toggled);
    document.move_to(motion::boundary(document.text(), end));
}

/// Joins lines with one space between them, without the blanks at the start of the later line.
fn join(document: &mut Document, count: usize) {
    let (text, caret) = (document.text(), document.caret());
    let start = motion::line_end(text, caret);
    let mut end = start;
    let mut joined = String::new();
    let mut last_gap = 0;
    for _ in 0..count.max(2) - 1 {
        if end == text.len() {
            break;
        }
        let line = &text[end + 1..motion::line_end(text, end + 1)];
        let words = line.trim_start();
        let before = if joined.is_empty() { &text[..start] } else { &joined };
        last_gap = joined.len();
        if !words.is_empty() && !before.ends_with(char::is_whitespace) && !before.is_empty() {
            joined.push(' ');
        }
        joined.push_str(words);
        end += 1 + line.len();
    }
    if end == start {
        return;
    }
    document.replace(start..end, &joined);
    document.move_to(motion::boundary(document.text(), start + last_gap));
}
