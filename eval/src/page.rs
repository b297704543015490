//! The kit of all pages for people: the frame with its style, sections, tiles, tables, charts, numbers, and
//! the escaping of text.
//!
//! A page is one file without network access: inline SVG, light and dark by `prefers-color-scheme`,
//! printable. Its content security policy forbids loading anything, and any script but the one that it names
//! by its hash. Names, prompts and replies are untrusted: [`Table`]s, blocks of text and the charts escape
//! their texts, and the functions whose arguments are HTML say so.
//!
//! This module does not know what a report says.

mod axis;
pub(crate) mod chart;
pub(crate) mod curve;
mod escape;
pub mod number;
pub(crate) mod plane;
pub(crate) mod strip;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

pub(crate) use escape::{escape_html, escape_markdown, isolated, safe_json};
pub use table::{Column, Table};
pub(crate) use table::{html_table, note, wide};

const STYLE: &str = include_str!("page/style.css");

/// A page.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// Its title.
    pub(crate) title: &'a str,
    /// The class by which the style sheet knows pages of its kind.
    pub(crate) kind: &'a str,
    /// What stands under the title, as HTML.
    pub(crate) body: String,
    /// The elements that hold data for the script, as HTML, and the script.
    pub(crate) script: Option<(&'a str, &'a str)>,
}

impl Page<'_> {
    pub(crate) fn html(&self) -> String {
        let Self { title, kind, body, script } = self;
        let title = escape_html(title);
        let (mut policy, mut scripts) = (String::new(), String::new());
        if let Some((data, script)) = script {
            let hash = STANDARD.encode(Sha256::digest(script.as_bytes()));
            policy = format!(" script-src 'sha256-{hash}';");
            scripts = format!("{data}<script>{script}</script>\n");
        }
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';\
             {policy} base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main class=\"{kind}\">\n<h1 dir=\"auto\">{title}</h1>\n\
             {body}</main>\n{scripts}</body>\n</html>\n"
        )
    }
}

/// A section. `heading` and `body` are HTML.
pub(crate) fn section(heading: &str, body: &str) -> String {
    format!("<section>\n<h2>{heading}</h2>\n{body}</section>\n")
}

/// The main figures, each with what it is and a note. All parts are HTML; nothing without any.
pub(crate) fn tiles(tiles: &[[String; 3]]) -> String {
    if tiles.is_empty() {
        return String::new();
    }
    let tile = |[what, figure, note]: &[String; 3]| {
        format!(
            "<div class=\"tile\"><div class=\"what\">{what}</div><div class=\"figure\">{figure}</div>\
             <div class=\"note\">{note}</div></div>\n"
        )
    };
    let tiles: String = tiles.iter().map(tile).collect();
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

/// What speaks against the numbers. `lines` are HTML; nothing without any.
pub(crate) fn warnings(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let item = |line: &String| format!("<li>{line}</li>\n");
    let items: String = lines.iter().map(item).collect();
    format!("<ul class=\"warnings\" aria-label=\"warnings\">\n{items}</ul>\n")
}

/// A drawing with its title and a note, which are HTML; nothing without a drawing.
pub(crate) fn figure(title: &str, note: &str, drawing: Option<String>) -> String {
    drawing.map_or_else(String::new, |drawing| {
        format!(
            "<figure><figcaption><b>{title}</b> <span class=\"note\">{note}</span></figcaption>{drawing}</figure>\n"
        )
    })
}

/// A section of drawings beside each other; nothing without any.
pub(crate) fn curves(heading: &str, figures: &str) -> String {
    if figures.is_empty() {
        return String::new();
    }
    section(heading, &format!("<div class=\"curves\">\n{figures}</div>\n"))
}

/// Untrusted text as a block of a class, `prompt` or `reply`, under what it is, which is HTML. Beyond `most`
/// characters the text is cut.
pub(crate) fn block(class: &str, what: &str, text: &str, most: usize) -> String {
    let left = text.chars().count().saturating_sub(most);
    let shown: String = text.chars().take(most).collect();
    let mut content = match shown.as_str() {
        "" => note("(empty)"),
        _ => format!("<pre dir=\"auto\">{}</pre>", escape_html(&shown)),
    };
    if left > 0 {
        content.push_str(&note(&format!("{left} more characters, in the files beside this page")));
    }
    format!("<div class=\"{class}\"><span class=\"what\">{what}</span><div>{content}</div></div>\n")
}

/// Radio buttons that show what has a class: elements of a class and a label, and how many there are. The
/// style sheet hides the others by the sibling selector of `show-CLASS`, so what they filter follows them.
pub(crate) fn filters(name: &str, kinds: &[(&str, &str)], count: impl Fn(&str) -> usize) -> String {
    let mut buttons = String::new();
    for (kind, label) in kinds {
        let checked = if *kind == "all" { " checked" } else { "" };
        let _ = writeln!(
            buttons,
            "<input type=\"radio\" name=\"{name}\" id=\"{name}-{kind}\" class=\"show-{kind}\"{checked}>\
             <label for=\"{name}-{kind}\">{label} ({})</label>",
            count(kind)
        );
    }
    buttons
}

/// The command that makes a page again; nothing if there is none.
pub(crate) fn command(command: &str) -> String {
    if command.is_empty() {
        return String::new();
    }
    format!("<pre class=\"command\" dir=\"auto\">{}</pre>\n", escape_html(command))
}

/// Names with their values, without headings; nothing without any.
pub(crate) fn facts(caption: &str, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let row = |(name, value): &(String, String)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", isolated(name), isolated(value))
    };
    let rows: String = rows.iter().map(row).collect();
    let caption = if caption.is_empty() { String::new() } else { format!("<caption>{caption}</caption>") };
    format!("<table>{caption}\n<tbody>\n{rows}</tbody>\n</table>\n")
}

/// The settings of an object: strings unquoted, everything else as JSON.
pub(crate) fn settings(object: &Map<String, Value>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    object.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}
