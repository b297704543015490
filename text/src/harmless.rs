//! Makes text from models and files harmless for a terminal and a page.
//!
//! A terminal obeys the control characters that it receives, so a reply may move the cursor, change the
//! window title or fill the clipboard (OSC 52). This module replaces every control character except line feed
//! and tab by its Unicode picture (U+2400 and following). C1 controls and bidirectional overrides (Boucher
//! and Anderson 2021, arXiv 2111.00169) become U+FFFD. Without its escape character, the rest of an escape
//! sequence is plain text. Nothing is silently dropped.

/// Sanitizes a stream of text piece by piece. A carriage return and its line feed may arrive in different
/// pieces.
#[derive(Debug, Default)]
pub struct Sanitizer {
    carriage_return: bool,
}

impl Sanitizer {
    /// Sanitizes the next piece. `\r\n` becomes `\n`; a lone `\r` becomes visible as soon as the next
    /// character is known.
    pub fn push(&mut self, piece: &str) -> String {
        let mut harmless = String::with_capacity(piece.len());
        for character in piece.chars() {
            if std::mem::take(&mut self.carriage_return) && character != '\n' {
                harmless.push('␍');
            }
            match character {
                '\r' => self.carriage_return = true,
                other => harmless.push(visible(other)),
            }
        }
        harmless
    }

    /// Returns the text that was held back, at the end of the stream.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.carriage_return) { "␍" } else { "" }
    }
}

/// Sanitizes a full text. Line feeds and tabs stay.
pub fn sanitize(text: &str) -> String {
    let mut sanitizer = Sanitizer::default();
    let harmless = sanitizer.push(text);
    harmless + sanitizer.finish()
}

/// Sanitizes a text and puts it on one line: line feeds become `↵`, tabs a space.
pub fn single_line(text: &str) -> String {
    sanitize(text).replace('\n', "↵").replace('\t', " ")
}

/// Replaces control characters by their Unicode pictures, and what [`is_hidden`] by the replacement
/// character. Line feeds and tabs stay.
pub fn visible(character: char) -> char {
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
pub fn is_hidden(character: char) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_escape_sequence_survives() {
        let attack = "\u{1b}[2J\u{1b}]52;c;cm0gLXJm\u{7}\u{9b}31mhi\u{8}\u{7f}\u{202e}";
        let harmless = sanitize(attack);
        assert_eq!(harmless, "␛[2J␛]52;c;cm0gLXJm␇\u{fffd}31mhi␈␡\u{fffd}");
        assert!(!harmless.chars().any(char::is_control));
        assert_eq!(sanitize("a\tb\n星期三 👩‍👩‍👧"), "a\tb\n星期三 👩‍👩‍👧");
    }

    #[test]
    fn pieces_equal_the_whole() {
        let text = "a\r\nb\rc\u{1b}[1m\r";
        let whole = sanitize(text);
        assert_eq!(whole, "a\nb␍c␛[1m␍");
        for cut in 0..=text.len() {
            let mut sanitizer = Sanitizer::default();
            let pieces = sanitizer.push(&text[..cut]) + &sanitizer.push(&text[cut..]);
            assert_eq!(pieces + sanitizer.finish(), whole, "cut at {cut}");
        }
    }
}
