//! The answers of Minerva (Lewkowycz et al. 2022, arXiv 2206.14858, appendix D; `get_unnormalized_answer` and
//! `normalize_final_answer` in `tasks/minerva_math/utils.py` of lm-evaluation-harness 0.4.13).
//!
//! The harness calls two normalized answers equal if their texts are equal, or else if sympy reads both as
//! formulas and simplifies their difference to zero. `expression` reads as sympy does, and `value` decides
//! about the difference. What sympy makes of integrals, sums and limits is left out: there, only equal texts
//! are equal.

mod expression;
mod markup;
mod value;

use std::sync::LazyLock;

use fancy_regex::Regex;

use crate::python_text::{is_word, strip};
use expression::Expression;

/// The answer of a reply without one.
pub const INVALID_ANSWER: &str = "[invalidanswer]";

/// Words of units, and markup that means nothing. Words come away on their own first, then wherever they
/// stand.
const REMOVED: [&str; 42] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "ft",
    "hours",
    "km",
    "units",
    r"\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    r"\text{s}",
    r"\text{.}",
    "\\text{\ns}",
    r"\text{}^2",
    r"\text{}^3",
    "\\text{\n}",
    r"\text{}",
    r"\mathrm{th}",
    r"^\circ",
    r"^{\circ}",
    r"\;",
    r",\!",
    "{,}",
    "\"",
    r"\dots",
];

const REPLACED: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
];

/// What stands between "Final Answer: The final answer is" and the character before " I hope it is correct"
/// on the same line. A reply that ends after the answer counts as if the second sentence followed.
pub fn answer(reply: &str) -> Option<String> {
    const BEFORE: &str = "Final Answer: The final answer is";
    const AFTER: &str = " I hope it is correct";
    let text = format!("{reply}I hope it is correct.");
    let mut rest = text.as_str();
    loop {
        let line = &rest[rest.find(BEFORE)? + BEFORE.len()..];
        let (line, following) = line.split_once('\n').unwrap_or((line, ""));
        // One character must stand on each side of AFTER. What stands before it is not part of the answer.
        let closing =
            line.match_indices(AFTER).find(|&(place, _)| place > 0 && place + AFTER.len() < line.len());
        if let Some((place, _)) = closing {
            let last = line[..place].chars().next_back().map_or(0, char::len_utf8);
            return Some(strip(&line[..place - last]).to_owned());
        }
        rest = following;
    }
}

/// `is_equiv`: whether two normalized answers are the same text, or formulas of one value. Two empty ones are
/// not.
pub fn equal(left: &str, right: &str) -> bool {
    if left == right {
        return !left.is_empty();
    }
    let [left, right] = [left, right].map(Expression::read);
    left.zip(right).is_some_and(|(left, right)| value::equal(&left, &right))
}

/// `normalize_final_answer`: the answer without units and markup.
pub fn normalized(answer: &str) -> String {
    let right_side = answer.rsplit('=').next().unwrap_or(answer);
    let words = REMOVED.iter().filter(|text| is_unit_word(text));
    let text = words.fold(right_side.to_owned(), |text, word| without_word(&text, word));
    let text = REPLACED.iter().fold(text, |text, (old, new)| text.replace(old, new));
    let text = REMOVED.iter().fold(text, |text, removed| match removed {
        word if is_unit_word(word) => without_word_parts(&text, word),
        markup => text.replace(markup, ""),
    });

    let text = markup::without_wrapping(&text);
    let text = markup::with_braces(&text).replace('$', "");
    if has_thousands(&text) { text.replace(',', "") } else { text }
}

fn is_unit_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// `text` without `word` where it stands as a word of its own that is no LaTeX command.
fn without_word(text: &str, word: &str) -> String {
    let (mut kept, mut end) = (String::with_capacity(text.len()), 0);
    for (place, _) in text.match_indices(word) {
        let before = text[..place].chars().next_back();
        let after = text[place + word.len()..].chars().next();
        if before.is_some_and(|c| c == '\\' || is_word(c)) || after.is_some_and(is_word) {
            continue;
        }
        kept.push_str(&text[end..place]);
        end = place + word.len();
    }
    kept.push_str(&text[end..]);
    kept
}

/// `text` without `word`, also within other words, but not within LaTeX commands.
fn without_word_parts(text: &str, word: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find('\\') {
        let (before, command) = rest.split_at(place);
        let letters = command[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
        // A backslash without a name belongs to the text around it, which can then not hold the word.
        kept.push_str(&before.replace(word, ""));
        kept.push_str(&command[..=letters]);
        rest = &command[1 + letters..];
    }
    kept.push_str(&rest.replace(word, ""));
    kept
}

/// Whether the whole text is a number with commas between its thousands.
fn has_thousands(text: &str) -> bool {
    static THOUSANDS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\A-?\d{1,3}(?:,\d{3})+\z").expect("the pattern is a constant that a test compiles")
    });
    // The pattern has no look-around, so the search cannot fail.
    THOUSANDS.is_match(text).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    #[test]
    fn the_answer_stands_between_two_sentences() {
        let found = |reply: &str| answer(reply);
        let final_answer = "Final Answer: The final answer is";
        assert_eq!(found(&format!("x\n{final_answer} $5$. I hope it is correct.")).as_deref(), Some("$5$"));
        assert_eq!(found(&format!("{final_answer} $5$. ")).as_deref(), Some("$5$"));
        // Without the space, the sentence that is added does not match.
        assert_eq!(found(&format!("{final_answer} $5$.")), None);
        assert_eq!(found(&format!("{final_answer}\n$5$. I hope it is correct.")), None);
        assert_eq!(
            found(&format!("{final_answer} 1\n{final_answer} 2! I hope it is correct!")).as_deref(),
            Some("2")
        );
        assert_eq!(found("5"), None);
        assert_eq!(found(&format!("{final_answer} é I hope it is correct?")).as_deref(), Some(""));
    }

    /// What `normalize_final_answer` of the harness returns.
    const NORMALIZED: [(&str, &str); 48] = [
        ("x = 5", "5"),
        (r"2\pi cm", r"2\pi"),
        (r"\left(3,4\right)", r"\left(3,4\right)"),
        ("5 ft", "5"),
        ("5ft", "5"),
        (r"\text{Tuesday}", "Tuesday"),
        (r"\mbox{ab}", "ab"),
        ("$5$ or $6$", "5"),
        (r"\boxed{5}", "5"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1{23}", r"\frac{1}{{}23}"),
        (r"\frac{1}2", r"\frac{1}2"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"\sqrt[3]8", r"\sqrt[3]{8}"),
        (r"\sqrt[3]{8}", r"\sqrt[3]{8}"),
        (r"\sqrt{2}", r"\sqrt{2}"),
        ("10,000", "10000"),
        ("0,1", "0,1"),
        ("1,234,567", "1234567"),
        ("-1,234", "-1234"),
        ("1,2345", "1,2345"),
        (r"12\%", r"12\%"),
        (r"\$32", "32"),
        (r"45^\circ", "45"),
        ("45 degrees", "45"),
        ("a square", ""),
        ("an apple", "apple"),
        (r"5\text{ cm}", "5"),
        (r"5\text{ cm}^2", "5"),
        (r"10,\!000", "10000"),
        ("10{,}000", "10000"),
        (r"2\text{ and }3", "2,3"),
        (r"\textbf{(A)}", "(A)"),
        (r"\overline{AB}", "AB"),
        ("footsteps", "footsteps"),
        ("12 square feet", "12"),
        ("3.$", "3"),
        (r"\ldots", ""),
        (r"\dots", ""),
        ("", ""),
        ("=", ""),
        ("fracab", "frac{a}{b}"),
        ("sqrtfrac123", "sqrt{f}rac{1}{2}3"),
        (r"\text{m}", ""),
        (r"5\;m", "5m"),
        (r"\picm", r"\picm"),
        ("unitsunits", ""),
        ("a $b$ c", "b"),
    ];

    #[test]
    fn answers_are_normalized_as_in_the_harness() {
        for (text, expected) in NORMALIZED {
            assert_eq!(normalized(text), expected, "{text}");
        }
    }

    #[test]
    fn empty_answers_are_not_equal() {
        assert!(equal("5", "5") && !equal("", "") && !equal("5", "6"));
    }

    #[test]
    fn hostile_texts_end() {
        for text in hostile_texts() {
            let _ = (answer(&text), normalized(&text));
        }
    }
}
