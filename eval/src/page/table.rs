//! Tables: one form for the terminal, Markdown and HTML, so that they never differ; and tables of HTML alone.

use super::{escape_html, escape_markdown, isolated};

/// The heading of a column, and what of an item stands in it.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
    /// The number of first columns that hold words; the others hold numbers, which are never foreign text.
    pub words: usize,
    /// What must be known to read it.
    pub note: String,
    /// Whether a terminal leaves it out.
    pub is_detail: bool,
}

impl Table {
    /// A table with a row for each item.
    pub fn of<T>(title: impl Into<String>, words: usize, items: &[T], columns: &[Column<'_, T>]) -> Self {
        let row = |item| columns.iter().map(|(_, cell)| cell(item)).collect();
        Self {
            title: title.into(),
            head: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: items.iter().map(row).collect(),
            words,
            ..Self::default()
        }
    }

    /// The same table with what must be known to read it.
    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// The head and the rows.
    pub fn lines(&self) -> Vec<Vec<String>> {
        [std::slice::from_ref(&self.head), &self.rows].concat()
    }

    /// The table alone as Markdown; nothing without rows.
    pub(crate) fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let cell = |(at, cell): (usize, &String)| {
            if at < self.words { escape_markdown(cell) } else { cell.clone() }
        };
        let head = line(self.head.iter().map(|name| escape_markdown(name)).collect());
        let rule = |at| if at < self.words { "---|" } else { "---:|" };
        let rules: String = (0..self.head.len()).map(rule).collect();
        let rows = self.rows.iter().map(|row| line(row.iter().enumerate().map(cell).collect()));
        format!("{head}|{rules}\n{}", rows.collect::<String>())
    }

    /// The table alone as HTML, with its note; nothing without rows. With `has_names`, the first column holds
    /// the names of the rows.
    pub(crate) fn html(&self, has_names: bool) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let class = |at| if at < self.words { "" } else { " class=\"num\"" };
        let heading =
            |(at, name): (usize, &String)| format!("<th scope=\"col\"{}>{}</th>", class(at), isolated(name));
        let cell = |(at, cell): (usize, &String)| match at {
            0 if has_names => format!("<th scope=\"row\">{}</th>", isolated(cell)),
            _ => format!("<td{}>{}</td>", class(at), isolated(cell)),
        };
        let head: String = self.head.iter().enumerate().map(heading).collect();
        let rows = self.rows.iter().map(|row| row.iter().enumerate().map(cell).collect());
        let note = if self.note.is_empty() { String::new() } else { note(&isolated(&self.note)) };
        wide(&escape_html(&self.title), &whole_table(&head, rows)) + &note
    }
}

/// A table whose headings and cells are HTML, with a row for each item. The first column holds the names of
/// the rows. The heading of a column of numbers begins with `#`. `label` says what the table shows.
pub(crate) fn html_table<T>(label: &str, items: &[T], columns: &[Column<'_, T>]) -> String {
    let class = |name: &str| if name.starts_with('#') { " class=\"num\"" } else { "" };
    let heading = |(name, _): &Column<'_, T>| {
        format!("<th scope=\"col\"{}>{}</th>", class(name), name.trim_start_matches('#'))
    };
    let row = |item| {
        let cell = |(at, (name, cell)): (usize, &Column<'_, T>)| match at {
            0 => format!("<th scope=\"row\">{}</th>", cell(item)),
            _ => format!("<td{}>{}</td>", class(name), cell(item)),
        };
        columns.iter().enumerate().map(cell).collect()
    };
    let head: String = columns.iter().map(heading).collect();
    wide(label, &whole_table(&head, items.iter().map(row)))
}

/// A table alone. `head` and `rows` are the cells of a row each, as HTML.
fn whole_table(head: &str, rows: impl Iterator<Item = String>) -> String {
    let line = |row: String| format!("<tr>{row}</tr>\n");
    let rows: String = rows.map(line).collect();
    format!("<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

/// A table that scrolls sideways where it is too wide. `label` says what it shows; it and `table` are HTML.
pub(crate) fn wide(label: &str, table: &str) -> String {
    format!("<div class=\"wide\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\">\n{table}</div>\n")
}

/// A remark. `text` is HTML.
pub(crate) fn note(text: &str) -> String {
    format!("<p class=\"note\">{text}</p>\n")
}
