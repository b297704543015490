//! The last number of a text, as a reader sees it, in one pass over the text.
//!
//! Read are decimals with or without commas (or thin spaces) between groups of three digits, signs, powers of
//! ten (`1.5e-3`, `3 \times 10^{8}`), fractions (`3/4`, `\frac{3}{4}`) and mixed fractions (`2 1/2`,
//! `2\frac12`). A currency sign may stand between a sign and its number. A number right behind a Latin letter
//! is part of a name, as in H2O. A minus behind a letter, a digit or a closing bracket is a difference or a
//! dash, as in 2020-05. Units and percent signs are not read: `50%` is 50.
//!
//! If a text has no digits, [`of`] reads its last number words in English.

use eval::number_words;

/// A number of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Number {
    /// Its digits with sign and point, without separators; a fraction as it was written.
    pub(crate) text: String,
    /// Its value. It may be infinite, and is NaN for a fraction by 0.
    pub(crate) value: f64,
}

/// The value of the last number of a text, or of its last number words if it has no digits. `None` if it is
/// not finite, or if there is none.
pub(crate) fn of(text: &str) -> Option<f64> {
    let value = last(text).map(|number| number.value).or_else(|| in_words(text));
    value.filter(|value| value.is_finite())
}

/// The last number of a text.
pub(crate) fn last(text: &str) -> Option<Number> {
    let plain = plain(text);
    let bytes = plain.as_bytes();
    let (mut place, mut found) = (0, None);
    while place < bytes.len() {
        // A number begins in these bytes only.
        if !matches!(bytes[place], b'0'..=b'9' | b'.' | b'\\') {
            place += 1;
            continue;
        }
        match (Reader { text: &plain }).number(place) {
            Some((number, end)) => {
                found = Some(signed(number, &plain[..place]));
                place = end;
            }
            None => place += 1,
        }
    }
    found
}

/// The text with ASCII digits and signs, and without what LaTeX puts between digits.
fn plain(text: &str) -> String {
    const MARKS: [(&str, &str); 6] = [
        ("{,}", ","),
        (r"\,", SEPARATOR),
        (r"\!", ""),
        (r"\$", "$"),
        (r"\dfrac", r"\frac"),
        (r"\tfrac", r"\frac"),
    ];
    let ascii = |c: char| match c {
        '０'..='９' => char::from(b'0' + (c as u32 - '０' as u32) as u8),
        '−' | '－' | '﹣' => '-',
        '\u{a0}' | '\u{2009}' | '\u{202f}' => THIN_SPACE,
        other => other,
    };
    let plain: String = text.chars().map(ascii).collect();
    MARKS
        .iter()
        .fold(plain, |text, (old, new)| if text.contains(old) { text.replace(old, new) } else { text })
}

/// Stands for every space that separates thousands. It is no ASCII, so it is never taken for another byte.
const THIN_SPACE: char = '\u{202f}';
const SEPARATOR: &str = "\u{202f}";

/// The number with the sign that stands at the end of `before`.
fn signed(number: Number, before: &str) -> Number {
    let before = before.trim_end_matches(['$', '€', '£', '¥']);
    let Some(before) = before.strip_suffix('-') else { return number };
    let is_difference = |c: char| c.is_alphanumeric() || [')', ']', '}', '%', '-'].contains(&c);
    if before.ends_with(is_difference) {
        return number;
    }
    Number { text: format!("-{}", number.text), value: -number.value }
}

/// Reads what begins at a place.
struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    /// A number without its sign, and its end.
    fn number(&self, start: usize) -> Option<(Number, usize)> {
        if let Some((value, end)) = self.frac(start) {
            return Some((self.whole_text(start, end, value), end));
        }
        if self.text[..start].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return None;
        }
        let (digits, end) = self.decimal(start)?;
        let value: f64 = digits.parse().ok()?;

        // A whole number before a fraction makes a mixed one.
        let is_whole = !digits.contains('.');
        if is_whole && let Some((part, end)) = self.frac(end).or_else(|| self.fraction_behind_space(end)) {
            return Some((self.whole_text(start, end, value + part), end));
        }
        // The second slash of a date is no fraction either.
        if let Some((below, end)) = self.over(end).filter(|_| !self.text[..start].ends_with('/')) {
            return Some((self.whole_text(start, end, value / below), end));
        }
        if let Some((exponent, end)) = self.exponent(end).or_else(|| self.power_of_ten(end)) {
            let text = format!("{digits}e{exponent}");
            let value = text.parse().ok()?;
            return Some((Number { text, value }, end));
        }
        Some((Number { text: digits, value }, end))
    }

    fn whole_text(&self, start: usize, end: usize, value: f64) -> Number {
        Number { text: self.text[start..end].to_owned(), value }
    }

    /// Digits with at most one point, without their separators.
    fn decimal(&self, start: usize) -> Option<(String, usize)> {
        let (mut digits, mut end) = self.digits(start);
        if (1..=3).contains(&digits.len()) {
            while let Some((group, after)) = self.group(end) {
                digits.push_str(group);
                end = after;
            }
        }
        if let Some(rest) = self.text[end..].strip_prefix('.')
            && rest.starts_with(|c: char| c.is_ascii_digit())
        {
            let (decimals, after) = self.digits(end + 1);
            digits.push('.');
            digits.push_str(&decimals);
            end = after;
        }
        (!digits.is_empty()).then_some((digits, end))
    }

    /// The digits from a place on.
    fn digits(&self, start: usize) -> (String, usize) {
        let rest = &self.text[start..];
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        (rest[..length].to_owned(), start + length)
    }

    /// A separator and exactly three digits.
    fn group(&self, start: usize) -> Option<(&str, usize)> {
        let rest = self.text[start..].strip_prefix([',', THIN_SPACE])?;
        let begin = self.text.len() - rest.len();
        let digits = rest.bytes().take(4).take_while(u8::is_ascii_digit).count();
        (digits == 3).then(|| (&rest[..3], begin + 3))
    }

    /// `/4`, unless another slash follows, as in a date.
    fn over(&self, start: usize) -> Option<(f64, usize)> {
        self.text[start..].strip_prefix('/')?;
        let (below, end) = self.decimal(start + 1)?;
        (!self.text[end..].starts_with('/')).then_some((below.parse().ok()?, end))
    }

    /// ` 1/2`
    fn fraction_behind_space(&self, start: usize) -> Option<(f64, usize)> {
        self.text[start..].strip_prefix(' ')?;
        let (above, end) = self.decimal(start + 1)?;
        let (below, end) = self.over(end)?;
        let above: f64 = above.parse().ok()?;
        (above < below).then_some((above / below, end))
    }

    /// `e-3`, as far as no letter follows.
    fn exponent(&self, start: usize) -> Option<(String, usize)> {
        let rest = self.text[start..].strip_prefix(['e', 'E'])?;
        let sign = if rest.starts_with('-') { "-" } else { "" };
        let begin = start + 1 + usize::from(rest.starts_with(['-', '+']));
        self.power(sign, begin)
            .filter(|(_, end)| !self.text[*end..].starts_with(|c: char| c.is_ascii_alphabetic()))
    }

    /// ` \times 10^{8}`
    fn power_of_ten(&self, start: usize) -> Option<(String, usize)> {
        let rest = self.text[start..].trim_start_matches(' ');
        let rest = [r"\times", r"\cdot", "×", "*", "x"].iter().find_map(|sign| rest.strip_prefix(sign))?;
        let rest = rest.trim_start_matches(' ').strip_prefix("10^")?;
        let (rest, closing) = rest.strip_prefix('{').map_or((rest, ""), |rest| (rest, "}"));
        let (rest, sign) = rest.strip_prefix('-').map_or((rest, ""), |rest| (rest, "-"));
        let (power, end) = self.power(sign, self.text.len() - rest.len())?;
        self.text[end..].starts_with(closing).then_some((power, end + closing.len()))
    }

    /// The digits of an exponent. More than four of them are none.
    fn power(&self, sign: &str, start: usize) -> Option<(String, usize)> {
        let (digits, end) = self.digits(start);
        (1..=4).contains(&digits.len()).then(|| (format!("{sign}{digits}"), end))
    }

    /// `\frac{3}{4}` or `\frac34`
    fn frac(&self, start: usize) -> Option<(f64, usize)> {
        self.text[start..].strip_prefix(r"\frac")?;
        let (above, end) = self.argument(start + r"\frac".len())?;
        let (below, end) = self.argument(end)?;
        Some((above / below, end))
    }

    /// A decimal in braces, perhaps with a sign, or one digit.
    fn argument(&self, start: usize) -> Option<(f64, usize)> {
        let rest = &self.text[start..];
        let Some(inside) = rest.strip_prefix('{') else {
            let digit = rest.chars().next()?.to_digit(10)?;
            return Some((f64::from(digit), start + 1));
        };
        let sign = if inside.starts_with('-') { -1.0 } else { 1.0 };
        let (digits, end) = self.decimal(start + 1 + usize::from(sign < 0.0))?;
        self.text[end..].strip_prefix('}')?;
        Some((sign * digits.parse::<f64>().ok()?, end + 1))
    }
}

/// The value of the last number words of a text. The words of a number follow one another, perhaps with "and"
/// between them.
fn in_words(text: &str) -> Option<f64> {
    /// Words of a number: nine hundred ninety-nine billion, nine hundred ninety-nine million, and so on.
    const MOST_WORDS: usize = 32;
    let mut words: Vec<&str> = Vec::new();
    for word in text.rsplit(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let is_number = number_words::value(word).is_some();
        match (is_number, words.is_empty()) {
            (true, _) if words.len() < MOST_WORDS => words.push(word),
            (false, true) => {}
            (false, false) if word.eq_ignore_ascii_case("and") => words.push(word),
            _ => {
                let sign = ["minus", "negative"].iter().any(|sign| word.eq_ignore_ascii_case(sign));
                return value_of(&words).map(|value| if sign { -value } else { value });
            }
        }
    }
    value_of(&words)
}

/// The value of number words from the last one to the first.
fn value_of(words: &[&str]) -> Option<f64> {
    let forwards: Vec<&str> = words.iter().rev().copied().collect();
    number_words::value(&forwards.join(" ")).map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    #[test]
    fn the_last_number_is_found() {
        for (text, digits, value) in [
            ("It is 42.", "42", 42.0),
            ("3 and 4, so 7 apples", "7", 7.0),
            ("#### 1,234,567.50", "1234567.50", 1_234_567.5),
            ("$1,000", "1000", 1000.0),
            ("答案是４２。", "42", 42.0),
            ("1 234\u{202f}567 km", "234567", 234_567.0),
            ("about 12\u{a0}500 €", "12500", 12_500.0),
            (r"\boxed{10{,}000}", "10000", 10_000.0),
            (r"10\,000\text{ cm}", "10000", 10_000.0),
            ("1,2,3", "3", 3.0),
            ("12,34", "34", 34.0),
            ("1234,567", "567", 567.0),
            ("1,2345", "2345", 2345.0),
            ("50%", "50", 50.0),
            (".5", ".5", 0.5),
            ("0.50", "0.50", 0.5),
            ("1.2.3", "3", 3.0),
            ("18 grams of H2O", "18", 18.0),
            ("x2 = 9", "9", 9.0),
            ("5kg", "5", 5.0),
            ("10:30", "30", 30.0),
            ("007", "007", 7.0),
        ] {
            assert_eq!(last(text), Some(Number { text: digits.to_owned(), value }), "{text}");
        }
        for text in ["", "none", "H2O", "v_1", ".", "-", "\\", "\\frac", "٣"] {
            assert_eq!(last(text), None, "{text}");
        }
    }

    #[test]
    fn signs_are_told_from_dashes() {
        for (text, value) in [
            ("-5", -5.0),
            ("it is −3.5", -3.5),
            ("x=-7", -7.0),
            ("(-2)", -2.0),
            ("-$5.00", -5.0),
            ("$-5.00", -5.0),
            ("3-5", 5.0),
            ("2020-05-03", 3.0),
            ("x-1", 1.0),
            (")-4", 4.0),
            ("--4", 4.0),
            ("- 4", 4.0),
            (r"-\frac{1}{2}", -0.5),
            (r"\frac{-1}{2}", -0.5),
            ("-1/2", -0.5),
            ("-2 1/2", -2.5),
            ("+6", 6.0),
        ] {
            assert_eq!(of(text), Some(value), "{text}");
        }
    }

    #[test]
    fn fractions_and_powers_have_their_value() {
        for (text, value) in [
            ("3/4", 0.75),
            ("2 1/2 cups", 2.5),
            ("12 13/2", 6.5),
            (r"2\frac{1}{2}", 2.5),
            (r"\dfrac34", 0.75),
            (r"\frac{1,000}{4}", 250.0),
            ("12/05/2020", 2020.0),
            ("1/2/3/4", 4.0),
            ("1e5", 100_000.0),
            ("2.5E-3", 0.0025),
            ("1e5x", 1.0),
            ("3 × 10^8", 3e8),
            (r"6.02 \times 10^{23}", 6.02e23),
            ("1.5*10^-3 m", 0.0015),
            ("2 x 10^{-2}", 0.02),
            (r"4\cdot10^{2", 2.0),
        ] {
            assert_eq!(of(text), Some(value), "{text}");
        }
        // By 0, too large, and too small.
        assert!(last("1/0").is_some() && of("1/0").is_none() && of("0/0").is_none());
        assert!(of("1e999").is_none() && of(&"9".repeat(400)).is_none());
        assert_eq!(of("1e-999"), Some(0.0));
    }

    #[test]
    fn number_words_count_if_there_are_no_digits() {
        for (text, value) in [
            ("The answer is seven.", Some(7.0)),
            ("Three, no: FORTY-TWO apples", Some(42.0)),
            ("two hundred and five", Some(205.0)),
            ("minus twelve", Some(-12.0)),
            ("negative one thousand two hundred", Some(-1200.0)),
            ("five is 5", Some(5.0)),
            ("one and done", Some(1.0)),
            ("and", None),
            ("none", None),
            ("thousand thousand", None),
        ] {
            assert_eq!(of(text), value, "{text}");
        }
        assert_eq!(of(&"nine ".repeat(100_000)), of(&"nine ".repeat(32)));
    }

    #[test]
    fn odd_texts_end() {
        let pieces = [r"\frac{", r"\frac{1}{", "1 ", "1,", "1/", "1 1/", "1e", "1 x 10^", "1.", "-", "$"];
        let long = pieces.map(|piece| piece.repeat(100_000));
        for text in hostile_texts().iter().chain(&long) {
            let _ = of(text);
        }
    }
}
