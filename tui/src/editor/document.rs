//! The message as it is written: its text, the caret, the steps of undo and the text that was cut last.
//!
//! Every change replaces one range of the text and is recorded with what it removed, so undo needs memory
//! only for what changed. The caret is always on a boundary of grapheme clusters: an edit may join what
//! stands beside it (a flag is two characters), and then the caret moves behind the new cluster. This module
//! does not know keys or modes.

use std::ops::Range;

use super::layout::Layout;
use super::motion;

/// How many steps can be undone.
const STEPS: usize = 1000;

/// A message while it is edited.
#[derive(Debug)]
pub(super) struct Document {
    text: String,
    caret: usize,
    /// The column that vertical movement aims for.
    goal: Option<usize>,
    layout: Layout,
    undo: Vec<Step>,
    redo: Vec<Step>,
    grouping: Grouping,
    changes: u64,
    cut: Cut,
}

/// The text that was cut or copied last.
#[derive(Clone, Debug, Default)]
pub(super) struct Cut {
    /// The text, without the last line feed if these are whole lines.
    pub(super) text: String,
    /// Whether these are whole lines.
    pub(super) lines: bool,
}

/// What one undo takes back.
#[derive(Debug)]
struct Step {
    edits: Vec<Edit>,
    /// The caret before the first edit.
    caret: usize,
}

#[derive(Debug)]
struct Edit {
    at: usize,
    removed: String,
    inserted: String,
}

/// Which edits belong to the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouping {
    /// The last step is complete.
    Single,
    /// The next typed characters, up to the end of the word.
    Word,
    /// All edits until the caret moves.
    Session,
}

impl Document {
    pub(super) fn new(columns: usize) -> Self {
        Self {
            text: String::new(),
            caret: 0,
            goal: None,
            layout: Layout::new(columns),
            undo: Vec::new(),
            redo: Vec::new(),
            grouping: Grouping::Single,
            changes: 0,
            cut: Cut::default(),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn caret(&self) -> usize {
        self.caret
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How often the text changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn last_cut(&self) -> &Cut {
        &self.cut
    }

    pub(super) fn resize(&mut self, columns: usize) {
        self.layout.resize(&self.text, columns);
    }

    /// Moves the caret to a boundary of clusters. This completes the step of undo.
    pub(super) fn move_to(&mut self, caret: usize) {
        self.complete_step();
        self.goal = None;
        self.caret = caret;
    }

    /// Puts the caret to a boundary of clusters within a command: neither the step of undo nor the column
    /// changes.
    pub(super) fn rest_at(&mut self, caret: usize) {
        self.caret = caret;
    }

    /// Moves the caret to the row above or below. Returns `false` if there is none.
    pub(super) fn move_row(&mut self, down: bool) -> bool {
        let (row, column) = self.layout.position(&self.text, self.caret);
        let target = if down { row + 1 } else { row.wrapping_sub(1) };
        if target >= self.layout.rows() {
            return false;
        }
        let goal = self.goal.unwrap_or(column);
        self.move_to(self.layout.offset(&self.text, target, goal));
        self.goal = Some(goal);
        true
    }

    /// Replaces a range and puts the caret behind the new text.
    pub(super) fn replace(&mut self, range: Range<usize>, new: &str) {
        if self.grouping == Grouping::Word {
            self.complete_step();
        }
        self.record(range, new);
    }

    /// Inserts at the caret what the user typed. The characters of one word are one step of undo.
    pub(super) fn insert(&mut self, typed: &str) {
        let after_blank = self.text[..self.caret].ends_with(char::is_whitespace);
        let new_word = after_blank && !typed.starts_with(char::is_whitespace);
        if self.grouping == Grouping::Word && new_word {
            self.complete_step();
        }
        if self.grouping == Grouping::Single {
            self.open_step(Grouping::Word);
        }
        self.record(self.caret..self.caret, typed);
    }

    /// Removes a range and keeps it for the next paste.
    pub(super) fn cut(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.copy(range.clone(), false);
            self.replace(range, "");
        }
    }

    /// Keeps a range for the next paste.
    pub(super) fn copy(&mut self, range: Range<usize>, lines: bool) {
        self.cut = Cut { text: self.text[range].to_owned(), lines };
    }

    /// Puts all edits until the caret moves into one step of undo.
    pub(super) fn begin_session(&mut self) {
        self.complete_step();
        self.open_step(Grouping::Session);
    }

    /// Ends the step of undo: the next edit begins another one.
    pub(super) fn complete_step(&mut self) {
        self.grouping = Grouping::Single;
        if self.undo.last().is_some_and(|step| step.edits.is_empty()) {
            self.undo.pop();
        }
    }

    /// Takes the last step back. Returns `false` if there is none.
    pub(super) fn undo(&mut self) -> bool {
        self.complete_step();
        let Some(step) = self.undo.pop() else { return false };
        for edit in step.edits.iter().rev() {
            self.apply(edit.at..edit.at + edit.inserted.len(), &edit.removed);
        }
        self.caret = step.caret;
        self.redo.push(step);
        true
    }

    /// Makes the step that was taken back last again. Returns `false` if there is none.
    pub(super) fn redo(&mut self) -> bool {
        self.complete_step();
        let Some(step) = self.redo.pop() else { return false };
        for edit in &step.edits {
            self.apply(edit.at..edit.at + edit.removed.len(), &edit.inserted);
        }
        self.undo.push(step);
        true
    }

    fn open_step(&mut self, grouping: Grouping) {
        if self.undo.len() == STEPS {
            self.undo.remove(0);
        }
        self.undo.push(Step { edits: Vec::new(), caret: self.caret });
        self.grouping = grouping;
    }

    /// Makes an edit and adds it to the open step, or makes it a step of its own.
    fn record(&mut self, range: Range<usize>, new: &str) {
        if self.text[range.clone()] == *new {
            return;
        }
        if self.grouping == Grouping::Single {
            self.open_step(Grouping::Single);
        }
        let step = self.undo.last_mut().expect("a step is open");
        step.add(range.start, &self.text[range.clone()], new);
        self.redo.clear();
        self.apply(range, new);
    }

    fn apply(&mut self, range: Range<usize>, new: &str) {
        self.text.replace_range(range.clone(), new);
        self.layout.edit(&self.text, range.start, range.len(), new.len());
        self.caret = motion::boundary(&self.text, range.start + new.len());
        self.goal = None;
        self.changes += 1;
    }
}

impl Step {
    /// Adds an edit. What is typed behind the last edit extends that edit.
    fn add(&mut self, at: usize, removed: &str, inserted: &str) {
        match self.edits.last_mut() {
            Some(last) if removed.is_empty() && last.at + last.inserted.len() == at => {
                last.inserted.push_str(inserted);
            }
            _ => self.edits.push(Edit { at, removed: removed.to_owned(), inserted: inserted.to_owned() }),
        }
    }
}

/// Prepares text from outside: all line ends become `\n`, other control characters visible.
pub(super) fn clean(text: &str) -> String {
    text::sanitize(&text.replace("\r\n", "\n").replace('\r', "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        let mut document = Document::new(20);
        document.replace(0..0, text);
        document
    }

    #[test]
    fn the_caret_moves_behind_a_cluster_that_an_edit_joins() {
        // F and R are a flag; with D before them, D and F are one (unknown) flag, and R is alone.
        let mut document = document("🇫🇷");
        document.move_to(0);
        document.insert("🇩");
        assert_eq!((document.text(), document.caret()), ("🇩🇫🇷", 8));
        document.undo();
        assert_eq!((document.text(), document.caret()), ("🇫🇷", 0));
        // Without the line feed the accent belongs to the letter before it.
        document.replace(0..8, "e\n\u{301}");
        document.replace(1..2, "");
        assert_eq!(document.caret(), 3);
    }

    #[test]
    fn words_are_typed_in_steps_and_a_session_is_one_step() {
        let mut document = document("");
        for character in "one two".chars() {
            document.insert(&character.to_string());
        }
        assert!(document.undo());
        assert_eq!(document.text(), "one ");
        document.begin_session();
        for word in ["a", " ", "b"] {
            document.insert(word);
        }
        document.replace(4..5, "");
        document.complete_step();
        assert_eq!(document.text(), "one  b");
        assert!(document.undo());
        assert_eq!(document.text(), "one ");
        assert!(document.undo());
        assert!(!document.undo());
        assert!(document.redo() && document.redo());
        assert_eq!(document.text(), "one  b");
        assert!(!document.redo());
    }

    #[test]
    fn vertical_movement_keeps_its_column_over_short_rows() {
        let mut document = document("abcdef\n星\nabcdef");
        document.move_to(4);
        // The wide character takes the columns 0 and 1, so column 4 is after it, at its line's end.
        assert!(document.move_row(true));
        assert_eq!(document.caret(), 10);
        assert!(document.move_row(true));
        assert_eq!(document.caret(), 15);
        assert!(!document.move_row(true));
        document.move_to(document.caret());
        assert!(document.move_row(false));
        document.move_to(7);
        assert!(document.move_row(false));
        assert_eq!(document.caret(), 0);
        assert!(!document.move_row(false));
    }

    #[test]
    fn a_change_to_the_same_text_is_no_step() {
        let mut document = document("abc");
        let changes = document.changes();
        document.replace(1..2, "b");
        document.begin_session();
        document.complete_step();
        assert_eq!(document.changes(), changes);
        assert!(document.undo());
        assert_eq!(document.text(), "");
    }
}
