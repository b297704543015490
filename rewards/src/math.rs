//! `kind = "math"`: the answer that the reply marks has the value of the row's answer.
//!
//! The answer of a reply is what [`answer`] of the crate `eval` finds: the content of the last `\boxed{}`, or
//! what follows "Final Answer: The final answer is", or what stands between dollars in the last line that has
//! two. A reply without any of them is wrong. The answer of the row may be a solution with a `\boxed{}`, too.
//!
//! Two answers are equal
//!
//! - if their values are: exact fractions, tuples, intervals, sets and lists ([`value`]);
//! - or if both are formulas of one value, as `x+1` and `1+x` ([`minerva`]).
//!
//! Both forgive what stands behind a value: [`minerva`] reads a formula from the left as far as it can, so
//! that `2, 3` is 2, and `2 \text{ or } 3` is 2 with a unit. A policy that is paid for either would learn to
//! name several answers. So a formula is compared in parentheses, which close only behind all of it, and a
//! text in front of which a value stands must be a unit.

use std::borrow::Cow;

use eval::math_answer::{answer, boxed, minerva, value};

use crate::answer::right_answers;
use crate::entry::MathConfig;
use crate::score::{Reply, ScoreError};

/// The longest answer that is compared, in bytes. A longer one is wrong.
const LONGEST_ANSWER: usize = 2000;

/// Compares mathematical answers.
#[derive(Debug)]
pub(crate) struct Math {
    any_of: bool,
}

impl Math {
    pub(crate) fn new(config: &MathConfig) -> Self {
        Self { any_of: config.any_of }
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let right = self.right(reply.answer)?;
        let Some(found) = answer(reply.text).filter(|found| !found.trim().is_empty()) else { return Ok(0.0) };
        let is_right = right.iter().any(|right| {
            let right = boxed::last_content(right).unwrap_or(right);
            found.len().max(right.len()) <= LONGEST_ANSWER && equal(&found, right)
        });
        Ok(f64::from(is_right))
    }

    /// The right answers in the answer of a row.
    pub(crate) fn right<'a>(&self, answer: Option<&'a str>) -> Result<Vec<Cow<'a, str>>, ScoreError> {
        right_answers(answer, self.any_of)
    }
}

/// Whether two answers are the same.
fn equal(left: &str, right: &str) -> bool {
    if names_more(left) || names_more(right) {
        return squeezed(left) == squeezed(right);
    }
    // The rules of MATH take `\text{ ` for the beginning of a unit, even where nothing stands before it.
    let [left, right] = [left, right].map(|text| text.trim().replacen(r"\text{ ", r"\text{", 1));
    let (left, right) = (left.as_str(), right.as_str());
    value::equal(left, right)
        || formula(left).zip(formula(right)).is_some_and(|(l, r)| minerva::equal(&l, &r))
}

/// Whether something else than a unit follows a value: a text with digits or with "or", or one that more
/// follows.
fn names_more(text: &str) -> bool {
    const UNITS: [&str; 3] = [r"\text{", r"\mbox{", r"\mathrm{"];
    let unit = UNITS.iter().filter_map(|open| Some((text.find(open)?, open.len()))).min();
    let Some((place, length)) = unit else { return false };
    if text[..place].trim().is_empty() {
        return false;
    }
    let Some((unit, rest)) = text[place + length..].split_once('}') else { return true };
    let is_connective =
        |word: &str| ["or", "and", "或", "和"].iter().any(|other| word.eq_ignore_ascii_case(other));
    let is_unit = !unit.contains(|c: char| c.is_numeric()) && !unit.split_whitespace().any(is_connective);
    let power = rest.trim().trim_start_matches('^').trim_matches(['{', '}', '.', '$', ' ']);
    !is_unit || !(power.is_empty() || ["2", "3"].contains(&power))
}

/// A text without white space.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// A formula in parentheses. `None` if a parenthesis inside would close them, and for equations but `x =
/// ...`.
fn formula(text: &str) -> Option<String> {
    let text = match text.split_once('=') {
        Some((left, right)) if !right.contains('=') && left.trim().chars().nth(2).is_none() => right,
        Some(_) => return None,
        None => text,
    };
    let plain = minerva::normalized(text);
    let mut open = 0_usize;
    for c in plain.chars() {
        match c {
            '(' => open += 1,
            ')' => open = open.checked_sub(1)?,
            _ => {}
        }
    }
    (open == 0 && !plain.is_empty()).then(|| format!("({plain})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn score(text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer, tokens: 0, stopped: true };
        Math::new(&MathConfig::default()).score(&reply)
    }

    fn boxed(text: &str, answer: &str) -> f64 {
        score(&format!("So it is $\\boxed{{{text}}}$."), Some(answer)).unwrap()
    }

    #[test]
    fn equal_values_are_right() {
        for (text, answer) in [
            (r"\frac{1}{2}", "0.5"),
            (r"\dfrac12", r"\frac{1}{2}"),
            (r"50\%", "1/2"),
            ("1,234,567", "1234567"),
            (r"10{,}000", "10000"),
            ("-7", r"$-7$"),
            ("x = 5", "5"),
            (r"5\text{ cm}", "5"),
            (r"5\text{ cm}^2", "5"),
            (r"2 \text{ or } 3", r"2\text{ or }3"),
            (r"\left(1, 2\right]", "(1,2]"),
            ("3, -2", "-2,3"),
            (r"\text{Tuesday}", "Tuesday"),
            ("1+x", "x+1"),
            (r"2\sqrt{3}", r"\sqrt{12}"),
            (r"(x+1)^2", "x^2+2x+1"),
            ("42", r"We add. The sum is \boxed{42}."),
        ] {
            assert_eq!(boxed(text, answer), 1.0, "{text} {answer}");
        }
    }

    #[test]
    fn other_values_are_wrong() {
        for (text, answer) in [
            ("7", "-7"),
            ("0.33", "1/3"),
            ("12", "1,2"),
            ("2, 3", "2"),
            (r"2 \text{ or } 3", "2"),
            (r"2\text{ or }3", r"2\text{ or }4"),
            (r"2 \mbox{ or 3}", "2"),
            (r"2\text{ cm},3", "2"),
            (r"\text{ Tuesday}", r"\text{ Monday}"),
            ("2;3", "2"),
            ("x=1, x=2", "2"),
            ("2=3", "4"),
            ("2),(3", "2"),
            ("(1,2)", "(2,1)"),
            ("x^-1", "x"),
            ("2x", "x"),
            ("", "0"),
            ("Tuesday", "Monday"),
        ] {
            assert_eq!(boxed(text, answer), 0.0, "{text} {answer}");
        }
    }

    #[test]
    fn the_last_mark_counts_and_there_must_be_one() {
        assert_eq!(score(r"\boxed{1}, no: \boxed{2}", Some("2")), Ok(1.0));
        assert_eq!(score(r"\boxed{2}, no: \boxed{1}", Some("2")), Ok(0.0));
        assert_eq!(score("Final Answer: The final answer is $2$. I hope it is correct.", Some("2")), Ok(1.0));
        assert_eq!(score("it is $2$", Some("2")), Ok(1.0));
        assert_eq!(score("it is 2", Some("2")), Ok(0.0));
        assert_eq!(score(r"\boxed{2", Some("2")), Ok(0.0));
        assert_eq!(score(r"\boxed{2}", None), Err(ScoreError::NoAnswer));
        assert_eq!(score(r"\boxed{2}", Some(" ")), Err(ScoreError::NoAnswer));
    }

    #[test]
    fn several_answers_may_be_right() {
        let reply =
            |text, answer| Reply { prompt: &[], text, answer: Some(answer), tokens: 0, stopped: true };
        let math = Math::new(&MathConfig { any_of: true });
        assert_eq!(math.score(&reply(r"\boxed{\frac{3}{2}}", r#"["1", "1.5"]"#)), Ok(1.0));
        assert_eq!(math.score(&reply(r"\boxed{2}", r#"["1", "1.5"]"#)), Ok(0.0));
        assert_eq!(math.score(&reply(r"\boxed{2}", "2")).unwrap_err().name(), "unreadable_answer");
    }

    #[test]
    fn odd_texts_have_a_score() {
        for text in hostile_texts() {
            assert_eq!(score(&text, Some("an answer of its own")), Ok(0.0), "{text:?}");
            let in_box = format!("\\boxed{{{text}}}");
            for answer in ["7", &text] {
                assert!(score(&in_box, Some(answer)).is_ok() || answer.trim().is_empty(), "{text:?}");
            }
        }
    }
}
