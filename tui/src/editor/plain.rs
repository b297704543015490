//! The keys of the editor outside vim's normal mode: those of the terminal's own line editors (readline).
//!
//! Alt is the key that terminals send as Escape. `AltGr` arrives as Control and Alt together with the
//! character that it makes, so such a character is text unless it is a letter of ASCII. This module does not
//! know sending, history or the keys of the screen: it answers `false` to every key that is not its own.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::document::{Document, clean};
use super::motion;

/// Handles a key. Returns `false` if the key does not belong to the editor.
pub(super) fn key(document: &mut Document, key: KeyEvent) -> bool {
    let shift_free = key.modifiers - KeyModifiers::SHIFT;
    let by_word = shift_free == KeyModifiers::CONTROL || shift_free == KeyModifiers::ALT;
    if !by_word && !shift_free.is_empty() {
        return typed(key).is_some_and(|character| insert(document, character));
    }
    match key.code {
        KeyCode::Char(character) if shift_free == KeyModifiers::CONTROL => control(document, key, character),
        KeyCode::Char(character) if shift_free == KeyModifiers::ALT => alt(document, character),
        KeyCode::Char(character) => insert(document, character),
        KeyCode::Enter if shift_free == KeyModifiers::ALT || key.modifiers == KeyModifiers::SHIFT => {
            insert(document, '\n')
        }
        KeyCode::Left | KeyCode::Right if by_word => word(document, key.code == KeyCode::Right),
        KeyCode::Backspace if by_word => cut_word_back(document),
        KeyCode::Delete if by_word => cut_word(document),
        _ if by_word => false,
        code => unmodified(document, code),
    }
}

/// The character that a key types, if it types one.
pub(super) fn typed(key: KeyEvent) -> Option<char> {
    let KeyCode::Char(character) = key.code else { return None };
    let modifiers = key.modifiers - KeyModifiers::SHIFT;
    let alt_gr = modifiers == KeyModifiers::CONTROL | KeyModifiers::ALT && !character.is_ascii_alphabetic();
    (modifiers.is_empty() || alt_gr).then_some(character)
}

fn insert(document: &mut Document, character: char) -> bool {
    document.insert(&clean(character.encode_utf8(&mut [0; 4])));
    true
}

fn unmodified(document: &mut Document, code: KeyCode) -> bool {
    let (text, caret) = (document.text(), document.caret());
    match code {
        KeyCode::Left => document.move_to(motion::previous(text, caret)),
        KeyCode::Right => document.move_to(motion::next(text, caret)),
        KeyCode::Home => document.move_to(motion::line_start(text, caret)),
        KeyCode::End => document.move_to(motion::line_end(text, caret)),
        KeyCode::Up | KeyCode::Down => return document.move_row(code == KeyCode::Down),
        KeyCode::Backspace => document.replace(motion::previous(text, caret)..caret, ""),
        KeyCode::Delete => document.replace(caret..motion::next(text, caret), ""),
        _ => return false,
    }
    true
}

/// Terminals without the newer keyboard protocols send Ctrl-_ as the control character 31, which crossterm
/// calls Ctrl-7, and some of them send Backspace as Ctrl-H.
fn control(document: &mut Document, key: KeyEvent, character: char) -> bool {
    let (text, caret) = (document.text(), document.caret());
    match character.to_ascii_lowercase() {
        'a' => unmodified(document, KeyCode::Home),
        'e' => unmodified(document, KeyCode::End),
        'h' => unmodified(document, KeyCode::Backspace),
        'j' => insert(document, '\n'),
        'w' => cut_word_back(document),
        'u' => {
            document.cut(motion::line_start(text, caret)..caret);
            true
        }
        'k' => {
            document.cut(caret..motion::line_end(text, caret));
            true
        }
        'z' if key.modifiers.contains(KeyModifiers::SHIFT) || character == 'Z' => {
            document.redo();
            true
        }
        'z' | '_' | '7' => {
            document.undo();
            true
        }
        _ => false,
    }
}

fn alt(document: &mut Document, character: char) -> bool {
    match character.to_ascii_lowercase() {
        'b' => word(document, false),
        'f' => word(document, true),
        'd' => cut_word(document),
        'y' => {
            let cut = document.last_cut().text.clone();
            let caret = document.caret();
            document.replace(caret..caret, &cut);
            true
        }
        'z' => {
            document.redo();
            true
        }
        _ => false,
    }
}

fn word(document: &mut Document, forward: bool) -> bool {
    let target = if forward { motion::word_end } else { motion::word_start };
    document.move_to(target(document.text(), document.caret()));
    true
}

fn cut_word(document: &mut Document) -> bool {
    let caret = document.caret();
    document.cut(caret..motion::word_end(document.text(), caret));
    true
}

fn cut_word_back(document: &mut Document) -> bool {
    let caret = document.caret();
    document.cut(motion::word_start(document.text(), caret)..caret);
    true
}
