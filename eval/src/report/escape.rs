//! Escapes untrusted text for HTML, SVG and Markdown. Both forms also make control characters visible and
//! replace the bidirectional overrides that can reorder text on screen (Boucher and Anderson 2021, arXiv
//! 2111.00169).

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

/// Replaces control characters by their Unicode pictures; bidirectional controls, and line breaks that only
/// some programs know, by the replacement character.
fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\0'..='\u{1f}' => {
            char::from_u32(0x2400 + character as u32).expect("U+2400 to U+241F are characters")
        }
        '\u{7f}' => '␡',
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        other => other,
    }
}
