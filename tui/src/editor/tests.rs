//! Tests of the editor as a whole: keys in, text and cells out.

mod properties;

use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::KeyModifiers;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::*;
use crate::theme::ThemeName;

const CONTROL: KeyModifiers = KeyModifiers::CONTROL;
const ALT: KeyModifiers = KeyModifiers::ALT;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

fn theme() -> Theme {
    Theme::new(ThemeName::Plain)
}

/// Presses a key without modifiers for each character; `⎋` stands for Escape.
fn press(editor: &mut Editor, keys: &str) -> Vec<Outcome> {
    let code = |character| if character == '⎋' { KeyCode::Esc } else { KeyCode::Char(character) };
    keys.chars().map(|character| editor.key(code(character).into())).collect()
}

fn modified(editor: &mut Editor, code: KeyCode, modifiers: KeyModifiers) -> Outcome {
    editor.key(KeyEvent::new(code, modifiers))
}

fn control(editor: &mut Editor, character: char) -> Outcome {
    modified(editor, KeyCode::Char(character), CONTROL)
}

fn alt(editor: &mut Editor, character: char) -> Outcome {
    modified(editor, KeyCode::Char(character), ALT)
}

/// An editor whose caret is where `|` is.
fn editor(marked: &str) -> Editor {
    let mut editor = Editor::new();
    editor.set_text(&marked.replacen('|', "", 1));
    editor.document.move_to(marked.find('|').expect("a caret is marked"));
    editor
}

/// The text with `|` at the caret.
fn marked(editor: &Editor) -> String {
    let mut text = editor.text();
    text.insert(editor.document.caret(), '|');
    text
}

/// An editor in normal mode after the commands.
fn vim(text: &str, keys: &str) -> String {
    let mut editor = editor(text);
    let caret = editor.document.caret();
    editor.set_vim(true);
    press(&mut editor, "⎋");
    editor.document.move_to(caret);
    press(&mut editor, keys);
    marked(&editor)
}

/// The rows as they are drawn, and the cell of the caret.
fn drawn(editor: &mut Editor, columns: u16, rows: u16) -> (Vec<String>, (u16, u16)) {
    let area = Rect::new(0, 0, columns, rows);
    let mut buffer = Buffer::empty(area);
    let caret = editor.draw(area, &mut buffer, &theme());
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    ((0..rows).map(|y| row(y).trim_end().to_owned()).collect(), (caret.x, caret.y))
}

#[test]
fn typed_text_is_what_the_keys_say() {
    let mut editor = Editor::new();
    assert!(editor.is_empty());
    assert_eq!(press(&mut editor, "hi!"), [Outcome::Changed; 3]);
    // AltGr arrives as Control and Alt with the character that it makes.
    assert_eq!(modified(&mut editor, KeyCode::Char('@'), CONTROL | ALT), Outcome::Changed);
    assert_eq!(modified(&mut editor, KeyCode::Char('a'), CONTROL | ALT), Outcome::Ignored);
    assert_eq!(modified(&mut editor, KeyCode::Char('X'), SHIFT), Outcome::Changed);
    assert_eq!(modified(&mut editor, KeyCode::Char('x'), KeyModifiers::SUPER), Outcome::Ignored);
    for (code, modifiers) in [(KeyCode::Enter, ALT), (KeyCode::Enter, SHIFT), (KeyCode::Char('j'), CONTROL)] {
        assert_eq!(modified(&mut editor, code, modifiers), Outcome::Changed);
    }
    assert_eq!(marked(&editor), "hi!@X\n\n\n|");
    let mut release = KeyEvent::new(KeyCode::Char('x'), KeyModifiers::NONE);
    release.kind = KeyEventKind::Release;
    assert_eq!(editor.key(release), Outcome::Ignored);
}

#[test]
fn the_keys_of_the_screen_are_ignored() {
    let mut editor = editor("one|");
    let codes =
        [KeyCode::Enter, KeyCode::Esc, KeyCode::Tab, KeyCode::BackTab, KeyCode::PageUp, KeyCode::PageDown];
    for code in codes.into_iter().chain([KeyCode::F(1), KeyCode::Up, KeyCode::Down]) {
        assert_eq!(editor.key(code.into()), Outcome::Ignored, "{code:?}");
    }
    for character in "cdrfgnply".chars() {
        assert_eq!(control(&mut editor, character), Outcome::Ignored, "Ctrl-{character}");
    }
    assert_eq!(marked(&editor), "one|");
}

#[test]
fn deletion_takes_whole_clusters() {
    let mut editor = editor("a👩‍👩‍👧|e\u{301}🇩🇪b");
    editor.key(KeyCode::Backspace.into());
    editor.key(KeyCode::Delete.into());
    editor.key(KeyCode::Delete.into());
    assert_eq!(marked(&editor), "a|b");
    editor.key(KeyCode::Backspace.into());
    assert_eq!(editor.key(KeyCode::Backspace.into()), Outcome::Moved);
    assert_eq!(marked(&editor), "|b");
}

#[test]
fn words_lines_and_the_last_cut() {
    let mut editor = editor("one two 星期|\nthree");
    control(&mut editor, 'w');
    assert_eq!(marked(&editor), "one two 星|\nthree");
    alt(&mut editor, 'b');
    modified(&mut editor, KeyCode::Left, CONTROL);
    assert_eq!(marked(&editor), "one |two 星\nthree");
    alt(&mut editor, 'd');
    assert_eq!(marked(&editor), "one | 星\nthree");
    control(&mut editor, 'k');
    control(&mut editor, 'u');
    assert_eq!(marked(&editor), "|\nthree");
    modified(&mut editor, KeyCode::Right, CONTROL);
    // The last cut was the start of the line.
    assert_eq!(alt(&mut editor, 'y'), Outcome::Changed);
    assert_eq!(marked(&editor), "\nthreeone |");
    control(&mut editor, 'a');
    assert_eq!(marked(&editor), "\n|threeone ");
    alt(&mut editor, 'f');
    modified(&mut editor, KeyCode::Backspace, ALT);
    assert_eq!(marked(&editor), "\n| ");
    control(&mut editor, 'e');
    assert_eq!(marked(&editor), "\n |");
    // A cut of nothing keeps the last cut.
    control(&mut editor, 'k');
    alt(&mut editor, 'y');
    assert_eq!(marked(&editor), "\n threeone|");
}

#[test]
fn pasted_text_is_harmless_and_one_step() {
    let mut editor = editor("a|b");
    editor.paste("1\r\n2\r3\n\t\u{1b}[31m\u{202e}");
    assert_eq!(marked(&editor), "a1\n2\n3\n\t␛[31m\u{fffd}|b");
    press(&mut editor, "x");
    control(&mut editor, 'z');
    control(&mut editor, '7');
    assert_eq!(marked(&editor), "a|b");
    alt(&mut editor, 'z');
    assert_eq!(modified(&mut editor, KeyCode::Char('z'), CONTROL | SHIFT), Outcome::Changed);
    assert_eq!(alt(&mut editor, 'z'), Outcome::Moved);
    assert!(editor.text().ends_with("\u{fffd}xb"));
}

#[test]
fn replaced_and_cleared_text_comes_back_by_undo() {
    let mut editor = Editor::new();
    press(&mut editor, "draft");
    editor.set_text("recalled");
    assert_eq!(marked(&editor), "recalled|");
    editor.clear();
    assert!(editor.is_empty());
    control(&mut editor, 'z');
    assert_eq!(editor.text(), "recalled");
    control(&mut editor, '_');
    assert_eq!(editor.text(), "draft");
}

#[test]
fn the_caret_is_in_the_cell_of_its_cluster() {
    // Wide characters, a family, a flag and a tab before the caret: 2 + 2 + 2 cells, then the tab to the stop
    // at 8.
    let mut editor = editor("星👩‍👩‍👧🇩🇪\t|e\u{301}x");
    assert_eq!(drawn(&mut editor, 20, 1), (vec!["星 👩‍👩‍👧 🇩🇪   e\u{301}x".to_owned()], (8, 0)));
    editor.key(KeyCode::Right.into());
    assert_eq!(drawn(&mut editor, 20, 1).1, (9, 0));
    editor.key(KeyCode::Home.into());
    editor.key(KeyCode::Right.into());
    assert_eq!(drawn(&mut editor, 20, 1).1, (2, 0));
}

#[test]
fn at_a_break_the_caret_stands_before_the_later_row() {
    let mut editor = editor("one two |three");
    assert_eq!(editor.height(9), 2);
    assert_eq!(drawn(&mut editor, 9, 2), (vec!["one two".to_owned(), "three".to_owned()], (0, 1)));
    editor.key(KeyCode::Left.into());
    assert_eq!(drawn(&mut editor, 9, 2).1, (7, 0));
    // Column 7 of the later row is behind its end.
    editor.key(KeyCode::Down.into());
    assert_eq!(drawn(&mut editor, 9, 2).1, (5, 1));
    editor.key(KeyCode::Up.into());
    assert_eq!(drawn(&mut editor, 9, 2).1, (7, 0));
}

#[test]
fn history_begins_at_the_first_and_last_wrapped_row() {
    let mut editor = editor("one two |three");
    assert!(editor.is_on_first_row() && editor.is_on_last_row());
    editor.height(9);
    assert!(!editor.is_on_first_row() && editor.is_on_last_row());
    assert_eq!(editor.key(KeyCode::Down.into()), Outcome::Ignored);
    assert_eq!(editor.key(KeyCode::Up.into()), Outcome::Moved);
    assert!(editor.is_on_first_row() && !editor.is_on_last_row());
    assert_eq!(editor.key(KeyCode::Up.into()), Outcome::Ignored);
}

#[test]
fn the_drawing_scrolls_with_the_caret() {
    let mut editor = editor("1\n2\n3\n4\n5|");
    assert_eq!(drawn(&mut editor, 9, 2), (vec!["4".to_owned(), "5".to_owned()], (1, 1)));
    editor.key(KeyCode::Up.into());
    assert_eq!(drawn(&mut editor, 9, 2).0, ["4", "5"]);
    editor.key(KeyCode::Up.into());
    assert_eq!(drawn(&mut editor, 9, 2).0, ["3", "4"]);
    assert_eq!(drawn(&mut editor, 9, 4).0, ["2", "3", "4", "5"]);
    editor.clear();
    assert_eq!(drawn(&mut editor, 9, 2), (vec![String::new(); 2], (0, 0)));
    assert_eq!(editor.height(9), 1);
}

#[test]
fn an_area_without_cells_is_no_reason_to_panic() {
    let mut editor = editor("one|");
    let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
    for area in [Rect::new(3, 1, 0, 1), Rect::new(3, 1, 1, 0), Rect::new(20, 9, 5, 5)] {
        editor.draw(area, &mut buffer, &theme());
    }
    assert_eq!(editor.height(0), 4);
}

#[test]
fn a_terminal_shows_the_cluster_after_half_width_kana() {
    let area = Rect::new(0, 0, 10, 1);
    let options = TerminalOptions { viewport: Viewport::Fixed(area) };
    let mut bytes = Vec::new();
    let mut terminal = Terminal::with_options(CrosstermBackend::new(&mut bytes), options).unwrap();
    let mut editor = editor("ｶ\u{ff9e}x|");
    terminal
        .draw(|frame| {
            let caret = editor.draw(frame.area(), frame.buffer_mut(), &theme());
            frame.set_cursor_position(caret);
        })
        .unwrap();
    drop(terminal);
    let mut parser = vt100::Parser::new(1, 10, 0);
    parser.process(&bytes);
    assert_eq!(parser.screen().contents().trim_end(), "ｶ\u{ff9e}x");
    assert_eq!(parser.screen().cursor_position(), (0, 3));
}

#[test]
fn vim_moves() {
    assert_eq!(vim("on|e two", "h"), "o|ne two");
    assert_eq!(vim("|one two", "2l"), "on|e two");
    assert_eq!(vim("|one two", "9l"), "one tw|o");
    assert_eq!(vim("|one, two", "w"), "one|, two");
    assert_eq!(vim("|one, two", "2w"), "one, |two");
    assert_eq!(vim("one tw|o", "2b"), "|one two");
    assert_eq!(vim("|one two", "e"), "on|e two");
    assert_eq!(vim("|one two", "2e"), "one tw|o");
    assert_eq!(vim("|one\n", "e"), "on|e\n");
    assert_eq!(vim("on|e\n", "e"), "on|e\n");
    assert_eq!(vim("  on|e", "0"), "|  one");
    assert_eq!(vim("  on|e", "^"), "  |one");
    assert_eq!(vim("|one", "$"), "on|e");
    assert_eq!(vim("a\n  |b\nc", "gg"), "|a\n  b\nc");
    assert_eq!(vim("|a\nb\n  c", "G"), "a\nb\n  |c");
    assert_eq!(vim("|a\n b\nc", "2G"), "a\n |b\nc");
    assert_eq!(vim("|abc\nd\nefg", "$jj"), "abc\nd\nef|g");
    assert_eq!(vim("a\nb\n|c", "2k"), "|a\nb\nc");
    assert_eq!(vim("|星期三", "w"), "星|期三");
}

#[test]
fn vim_deletes() {
    assert_eq!(vim("o|ne", "x"), "o|e");
    assert_eq!(vim("o|ne\ntwo", "9x"), "|o\ntwo");
    assert_eq!(vim("on|e", "X"), "o|e");
    assert_eq!(vim("o|ne two\nx", "D"), "|o\nx");
    assert_eq!(vim("|one two three four", "3dw"), "|four");
    assert_eq!(vim("|one two three four five", "2d2w"), "|five");
    assert_eq!(vim("one |two\n  three", "dw"), "one| \n  three");
    assert_eq!(vim("one two| three", "db"), "one | three");
    assert_eq!(vim("|one two", "de"), "| two");
    assert_eq!(vim("one |two\nx", "d$"), "one| \nx");
    assert_eq!(vim("one t|wo", "d0"), "|wo");
    assert_eq!(vim("a\n|b\nc\nd", "2dd"), "a\n|d");
    assert_eq!(vim("a\n  b\n|c", "dd"), "a\n  |b");
    assert_eq!(vim("|a", "dd"), "|");
    assert_eq!(vim("a\n|b\nc\nd", "dj"), "a\n|d");
    assert_eq!(vim("a\n|b\nc\nd", "dk"), "|c\nd");
    assert_eq!(vim("a\n|b\nc", "dG"), "|a");
    assert_eq!(vim("a\n|b\nc", "dgg"), "|c");
    assert_eq!(vim("|a", "dj"), "|a");
    assert_eq!(vim("|\na", "dw"), "|\na");
}

#[test]
fn vim_changes_and_copies() {
    assert_eq!(vim("|one two", "cw1⎋"), "|1 two");
    assert_eq!(vim("|a two", "cwb⎋"), "|b two");
    assert_eq!(vim("one| two", "cw-⎋"), "one|-two");
    assert_eq!(vim("a\n|bc\nd", "ccx⎋"), "a\n|x\nd");
    assert_eq!(vim("a|bc\nd", "Cx⎋"), "a|x\nd");
    assert_eq!(vim("|a\nb", "yyp"), "a\n|a\nb");
    assert_eq!(vim("|a\nb", "yyjP"), "a\n|a\nb");
    assert_eq!(vim("|a\n b", "2yyG2p"), "a\n b\n|a\n b\na\n b");
    assert_eq!(vim("|ab", "xp"), "b|a");
    assert_eq!(vim("|one two", "ywP"), "one| one two");
    assert_eq!(vim("|ab", "y$$3p"), "abababa|b");
    assert_eq!(vim("|abc", "2rx"), "x|xc");
    assert_eq!(vim("a|bc", "3rx"), "a|bc");
    assert_eq!(vim("|aBß", "9~"), "AbS|S");
    assert_eq!(vim("|one\n  two\nthree", "J"), "one| two\nthree");
    assert_eq!(vim("|one\n  two\nthree", "3J"), "one two| three");
    assert_eq!(vim("|one", "J"), "|one");
    assert_eq!(vim("|one\n\ntwo", "3J"), "one| two");
}

#[test]
fn vim_inserts() {
    assert_eq!(vim("  a|b", "ix⎋"), "  a|xb");
    assert_eq!(vim("  a|b", "ax⎋"), "  ab|x");
    assert_eq!(vim("  a|b", "Ix⎋"), "  |xab");
    assert_eq!(vim("  |ab", "Ax⎋"), "  ab|x");
    assert_eq!(vim("|a\nb", "ox⎋"), "a\n|x\nb");
    assert_eq!(vim("a\n|b", "Ox⎋"), "a\n|x\nb");
    assert_eq!(vim("|", "ax⎋"), "|x");
}

#[test]
fn vim_undoes_a_whole_insertion_and_repeats_it() {
    assert_eq!(vim("|one two", "cwa b c⎋u"), "|one two");
    assert_eq!(vim("|one two three", "dwdw2u"), "|one two three");
    let mut editor = editor("|ab");
    editor.set_vim(true);
    assert_eq!(control(&mut editor, 'r'), Outcome::Ignored);
    press(&mut editor, "⎋xxuu");
    assert_eq!(modified(&mut editor, KeyCode::Char('r'), CONTROL), Outcome::Changed);
    assert_eq!(marked(&editor), "|b");
    press(&mut editor, "9");
    assert_eq!(control(&mut editor, 'r'), Outcome::Changed);
    assert_eq!(control(&mut editor, 'r'), Outcome::Moved);
    assert_eq!(editor.text(), "");
}

#[test]
fn normal_mode_never_types_and_leaves_other_keys_to_the_screen() {
    let mut editor = editor("one|");
    assert_eq!(editor.mode(), Mode::Plain);
    editor.set_vim(true);
    assert_eq!(editor.mode(), Mode::Insert);
    assert_eq!(press(&mut editor, "⎋⎋"), [Outcome::Moved, Outcome::Ignored]);
    assert_eq!(editor.mode(), Mode::Normal);
    assert_eq!(press(&mut editor, "qzZ?:é星dzgx5"), [Outcome::Moved; 12]);
    assert_eq!(marked(&editor), "on|e");
    // Escape first drops the count.
    assert_eq!(press(&mut editor, "⎋⎋"), [Outcome::Moved, Outcome::Ignored]);
    for code in [KeyCode::Enter, KeyCode::Tab, KeyCode::PageUp, KeyCode::F(1), KeyCode::Up] {
        assert_eq!(editor.key(code.into()), Outcome::Ignored, "{code:?}");
    }
    assert_eq!(modified(&mut editor, KeyCode::Enter, ALT), Outcome::Ignored);
    assert_eq!(control(&mut editor, 'c'), Outcome::Ignored);
    press(&mut editor, "r");
    assert_eq!(editor.key(KeyCode::Enter.into()), Outcome::Changed);
    assert_eq!(editor.text(), "on\n");
    editor.clear();
    assert_eq!(editor.mode(), Mode::Insert);
    editor.set_vim(false);
    assert_eq!(editor.mode(), Mode::Plain);
}

#[test]
fn a_megabyte_is_laid_out_once_and_then_edited_at_ease() {
    let line = "All work and no play 星期三 makes Jack a dull boy.\n";
    let many_lines = line.repeat(20_000);
    let one_line = many_lines.replace('\n', " ");
    for text in [many_lines, one_line] {
        let begin = Instant::now();
        let mut editor = Editor::new();
        editor.height(80);
        editor.paste(&text);
        drawn(&mut editor, 80, 10);
        assert_eq!(editor.text().len(), text.len());
        let pasted = begin.elapsed();
        assert!(pasted < Duration::from_secs(60), "the paste took {pasted:?}");
    }

    let mut editor = Editor::new();
    editor.paste(&line.repeat(20_000));
    let begin = Instant::now();
    for _ in 0..200 {
        editor.key(KeyCode::Up.into());
        press(&mut editor, "x");
        drawn(&mut editor, 80, 10);
    }
    let typed = begin.elapsed();
    assert!(typed < Duration::from_secs(60), "200 keys took {typed:?}");
}
