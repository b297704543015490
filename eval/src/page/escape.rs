//! Escapes untrusted text for HTML, SVG, JSON in HTML, and Markdown. The forms for people also make control
//! characters visible and replace the bidirectional overrides that can reorder text on screen (Boucher and
//! Anderson 2021, arXiv 2111.00169).

use std::fmt::Write as _;

use serde::Serialize;
use text::{is_hidden, visible};

use crate::Error;

/// Escapes text for HTML or SVG, as content or within a quoted attribute.
pub(crate) fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars().map(visible) {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Escapes text within a line of HTML and keeps it from changing the direction of what stands around it.
pub(crate) fn isolated(text: &str) -> String {
    format!("<bdi>{}</bdi>", escape_html(text))
}

/// Escapes text for one line or one table cell of Markdown: no character keeps a Markdown meaning, and a line
/// break becomes `↵`.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars().map(visible) {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\n' => escaped.push_str(" ↵ "),
            '\\' | '`' | '*' | '_' | '[' | ']' | '(' | ')' | '|' | '~' | '#' | '!' | '$' => {
                escaped.push('\\');
                escaped.push(character);
            }
            // GitHub would turn `http://x` and `www.x` into links.
            ':' => escaped.push_str("&#58;"),
            '.' if ends_with_www(&escaped) => escaped.push_str("&#46;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn ends_with_www(text: &str) -> bool {
    text.as_bytes().last_chunk().is_some_and(|end: &[u8; 3]| end.eq_ignore_ascii_case(b"www"))
}

/// JSON that may stand in an element of a page: what could end the element or reorder text is escaped.
pub(crate) fn safe_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    let json = serde_json::to_string(value)?;
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        if matches!(character, '<' | '>' | '&' | '\u{7f}' | '\u{feff}') || is_hidden(character) {
            let _ = write!(safe, "\\u{:04x}", character as u32);
        } else {
            safe.push(character);
        }
    }
    Ok(safe)
}
