//! Escapes untrusted text for HTML, SVG, JSON in HTML, and Markdown. The forms for people also make control
//! characters visible and replace the bidirectional overrides that can reorder text on screen (Boucher and
//! Anderson 2021, arXiv 2111.00169).

use std::fmt::Write as _;

use serde::Serialize;

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

/// Replaces control characters by their Unicode pictures, and what [`is_hidden`] by the replacement
/// character. The script of the samples does the same.
fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\0'..='\u{1f}' => {
            char::from_u32(0x2400 + character as u32).expect("U+2400 to U+241F are characters")
        }
        '\u{7f}' => '␡',
        hidden if is_hidden(hidden) => '\u{fffd}',
        other => other,
    }
}

/// Whether a character is a control without a picture, a bidirectional control, or a line break that only
/// some programs know (U+2028 and U+2029).
fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}
