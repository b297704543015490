//! What holds after any sequence of keys, pastes and resizes: the drawing equals one that is computed the
//! slow way.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratatui::buffer::Cell;
use unicode_segmentation::UnicodeSegmentation;

use super::*;

/// The cells of each boundary of clusters, and the symbol of the cluster after it, found the slow way: the
/// longest beginning of the line that fits, cut at the last place where a row may break.
fn cells(text: &str, columns: usize) -> BTreeMap<usize, (usize, usize, String)> {
    let mut cells = BTreeMap::new();
    let (mut row, mut offset) = (0, 0);
    for line in text.split('\n') {
        let mut rest: Vec<&str> = line.graphemes(true).collect();
        loop {
            let fitting = (1..=rest.len()).rev().find(|count| fits(&rest[..*count], columns)).unwrap_or(0);
            let breakable = |count: &usize| {
                is_blank(rest[count - 1])
                    || is_wide(rest[count - 1], columns)
                    || is_wide(rest[*count], columns)
            };
            let cut = match rest.get(fitting) {
                Some(next) if !is_blank(next) => (1..=fitting).rev().find(breakable).unwrap_or(fitting),
                _ => fitting,
            };
            let mut column = 0;
            for grapheme in rest.drain(..cut) {
                let width = cluster_width(grapheme, column, columns);
                cells.insert(offset, (row, column, expected_symbol(grapheme, columns)));
                offset += grapheme.len();
                column += width;
            }
            row += 1;
            if rest.is_empty() {
                let end = if column < columns { (row - 1, column) } else { (row, 0) };
                cells.insert(offset, (end.0, end.1, " ".to_owned()));
                row = end.0 + 1;
                break;
            }
        }
        offset += 1;
    }
    cells
}

fn fits(graphemes: &[&str], columns: usize) -> bool {
    let mut column = 0;
    graphemes.iter().all(|grapheme| {
        let first = column == 0;
        column += cluster_width(grapheme, column, columns);
        first || column <= if is_blank(grapheme) { columns } else { columns - 1 }
    })
}

fn is_blank(grapheme: &str) -> bool {
    grapheme == " " || grapheme == "\t"
}

fn is_wide(grapheme: &str, columns: usize) -> bool {
    !is_blank(grapheme) && cluster_width(grapheme, 0, columns) > 1
}

fn cluster_width(grapheme: &str, column: usize, columns: usize) -> usize {
    match grapheme {
        "\t" => (4 - column % 4).min((columns - 1).saturating_sub(column)).max(1),
        "\u{2028}" => 1,
        _ if text::width(grapheme) > columns => 1,
        _ => text::width(grapheme).max(1),
    }
}

fn expected_symbol(grapheme: &str, columns: usize) -> String {
    match grapheme {
        "\t" => " ".to_owned(),
        "\u{2028}" => "\u{fffd}".to_owned(),
        _ if (1..=columns).contains(&text::width(grapheme)) => grapheme.to_owned(),
        _ => "\u{fffd}".to_owned(),
    }
}

/// Draws the editor and compares every cell and the caret with the slow layout.
fn check(editor: &mut Editor, columns: u16, rows: u16) {
    let mut buffer = Buffer::filled(Rect::new(0, 0, columns + 3, rows + 2), Cell::new("#"));
    let area = Rect::new(2, 1, columns, rows);
    let caret = editor.draw(area, &mut buffer, &theme());
    assert!(area.contains(caret), "{caret:?} is outside {area:?}");

    let cells = cells(editor.document.text(), columns.into());
    let (row, column, _) = &cells[&editor.document.caret()];
    assert_eq!(usize::from(caret.x - area.x), *column);
    let top = row - usize::from(caret.y - area.y);
    let last = cells.values().next_back().expect("the end has a cell").0;
    assert_eq!(usize::from(editor.height(columns)), last + 1);
    assert_eq!((editor.is_on_first_row(), editor.is_on_last_row()), (*row == 0, *row == last));

    let mut expected = Buffer::filled(buffer.area, Cell::new("#"));
    Clear.render(area, &mut expected);
    for (row, column, symbol) in cells.values() {
        if (top..top + usize::from(rows)).contains(row) {
            expected[(area.x + *column as u16, area.y + (row - top) as u16)].set_symbol(symbol);
        }
    }
    let symbols = |buffer: &Buffer| buffer.content.iter().map(|cell| cell.symbol().to_owned()).collect();
    let (found, wanted): (Vec<String>, Vec<String>) = (symbols(&buffer), symbols(&expected));
    assert_eq!(found, wanted);
}

#[derive(Clone, Debug)]
enum Action {
    Key(KeyEvent),
    Paste(String),
    SetText(String),
    Clear,
    Resize(u16, u16),
    Vim(bool),
}

fn snippet() -> impl Strategy<Value = String> {
    let pieces = [
        "a",
        "Bc",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\r",
        "words",
        "_-.",
        "星",
        "期三",
        "é",
        "e\u{301}",
        "\u{301}",
        "👩‍👩‍👧",
        "👍🏽",
        "❤️",
        "🇩",
        "🇪🇫",
        "\u{200d}",
        "\u{200b}",
        "\u{2028}",
        "ｶ\u{ff9e}",
        "\u{ff9e}",
        "क्ष",
        "ᄀ",
        "각",
        "\u{1b}[2J",
        "\u{202e}",
        "ß",
        "\u{fe0f}",
        "م",
    ];
    prop::sample::select(pieces.to_vec()).prop_map(str::to_owned)
}

fn snippets() -> impl Strategy<Value = String> {
    prop::collection::vec(snippet(), 0..12).prop_map(|pieces| pieces.concat())
}

fn key_event() -> impl Strategy<Value = KeyEvent> {
    let codes = vec![
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Backspace,
        KeyCode::Delete,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
    ];
    let text = snippet().prop_map(|text| KeyCode::Char(text.chars().next().expect("no snippet is empty")));
    let letter = prop::char::range(' ', '~').prop_map(KeyCode::Char);
    let code = prop_oneof![2 => prop::sample::select(codes), 2 => text, 3 => letter];
    let modifiers = prop_oneof![
        6 => Just(KeyModifiers::NONE),
        1 => Just(CONTROL),
        1 => Just(ALT),
        1 => Just(SHIFT),
        1 => Just(CONTROL | ALT),
    ];
    (code, modifiers).prop_map(|(code, modifiers)| KeyEvent::new(code, modifiers))
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => key_event().prop_map(Action::Key),
        3 => snippets().prop_map(Action::Paste),
        1 => snippets().prop_map(Action::SetText),
        1 => Just(Action::Clear),
        2 => (1..14_u16, 1..5_u16).prop_map(|(columns, rows)| Action::Resize(columns, rows)),
        1 => any::<bool>().prop_map(Action::Vim),
    ]
}

fn act(editor: &mut Editor, size: &mut (u16, u16), action: Action) {
    match action {
        Action::Key(key) => {
            let before = editor.text();
            let outcome = editor.key(key);
            assert!(outcome == Outcome::Changed || editor.text() == before, "{outcome:?}");
        }
        Action::Paste(text) => editor.paste(&text),
        Action::SetText(text) => editor.set_text(&text),
        Action::Clear => editor.clear(),
        Action::Resize(columns, rows) => *size = (columns, rows),
        Action::Vim(on) => editor.set_vim(on),
    }
}

proptest! {
    #![proptest_config(crate::testing::cases(100))]

    #[test]
    fn no_sequence_of_actions_breaks_the_drawing_or_the_caret(
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let mut editor = Editor::new();
        let mut size = (10, 4);
        for action in actions {
            act(&mut editor, &mut size, action);
            check(&mut editor, size.0, size.1);
            let (text, caret) = (editor.text(), editor.document.caret());
            let mut boundaries = text.grapheme_indices(true).map(|(offset, _)| offset);
            prop_assert!(caret == text.len() || boundaries.any(|offset| offset == caret), "{caret} in {text:?}");
            prop_assert!(!text.replace(['\n', '\t'], "").contains(char::is_control), "{text:?}");
            if editor.mode() == Mode::Normal {
                let line_end = text[caret..].is_empty() || text[caret..].starts_with('\n');
                let line_start = text[..caret].is_empty() || text[..caret].ends_with('\n');
                prop_assert!(!line_end || line_start, "behind the line at {caret} in {text:?}");
            }
        }
    }

    #[test]
    fn undo_returns_the_original_and_redo_the_result(
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let mut editor = Editor::new();
        let mut size = (10, 4);
        let undoing = |key: &KeyEvent| match key.code {
            KeyCode::Char('u' | 'U') => !key.modifiers.intersects(CONTROL | ALT),
            KeyCode::Char('z' | 'Z' | '_' | '7' | 'r') => !key.modifiers.is_empty(),
            _ => false,
        };
        let kept = |action: &Action| !matches!(action, Action::Key(key) if undoing(key));
        let actions: Vec<Action> = actions.into_iter().filter(kept).collect();
        let count = actions.len();
        for action in actions {
            act(&mut editor, &mut size, action);
        }
        editor.set_vim(false);
        let result = editor.text();
        for _ in 0..count {
            control(&mut editor, 'z');
        }
        prop_assert_eq!(editor.text(), "");
        prop_assert_eq!(editor.document.caret(), 0);
        for _ in 0..count {
            alt(&mut editor, 'z');
        }
        prop_assert_eq!(editor.text(), result);
    }
}
