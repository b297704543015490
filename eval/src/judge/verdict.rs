//! Reads the verdict in the reply of a judge. Pure text.
//!
//! A verdict is a mark in double brackets: `[[7.5]]`, `[[A]]`, `[[A>>B]]`. Text before the last `</think>` is
//! not read. A judge quotes answers, and an answer may hold a mark to be quoted, so:
//!
//! - all marks outside of code must agree (the rule of Arena-Hard; `FastChat` takes the first mark);
//! - marks in code, where `[[5]]` is a list, do not count, unless the reply ends with a line that holds one;
//! - a number in single brackets is no rating, while `FastChat` takes `[5]` if there is no `[[5]]`.
//!
//! What cannot be read so is no verdict, and the judge is asked again.

use serde::{Deserialize, Serialize};

use crate::filter::strip_thinking;

/// The longest text between the brackets of a mark, in bytes.
const LONGEST_MARK: usize = 16;
/// What ends the thoughts of a judge.
const THOUGHTS_END: &str = "</think>";

/// What a judge decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// A number from 1 to 10 for one answer.
    Rating,
    /// Which of two answers is better, or a tie.
    Pair,
    /// Which of two answers is better, in five degrees.
    FiveWay,
}

impl VerdictKind {
    /// The name in protocol ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rating => "rating",
            Self::Pair => "pair",
            Self::FiveWay => "five_way",
        }
    }
}

/// Which of two answers is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preference {
    /// The first is much better.
    FirstMuch,
    /// The first is better.
    First,
    /// Both are as good.
    Tie,
    /// The second is better.
    Second,
    /// The second is much better.
    SecondMuch,
}

impl Preference {
    /// The same verdict on the answers in the other order.
    #[must_use]
    pub fn swapped(self) -> Self {
        match self {
            Self::FirstMuch => Self::SecondMuch,
            Self::First => Self::Second,
            Self::Tie => Self::Tie,
            Self::Second => Self::First,
            Self::SecondMuch => Self::FirstMuch,
        }
    }

    /// The preference for the first answer: 1, 0.5 or 0.
    pub fn points(self) -> f64 {
        match self {
            Self::FirstMuch | Self::First => 1.0,
            Self::Tie => 0.5,
            Self::Second | Self::SecondMuch => 0.0,
        }
    }

    /// How many votes the verdict counts: 3 for a strong one, as in Arena-Hard.
    pub fn votes(self) -> u64 {
        match self {
            Self::FirstMuch | Self::SecondMuch => 3,
            Self::First | Self::Tie | Self::Second => 1,
        }
    }
}

/// The rating in a reply, from 1 to 10.
pub fn rating(reply: &str) -> Option<f64> {
    agreed(reply, |mark| number(mark).filter(|number| (1.0..=10.0).contains(number)))
}

/// The rating in a reply on any scale. Numbers outside of the scale are ratings too, and have to agree.
pub fn any_rating(reply: &str) -> Option<f64> {
    agreed(reply, number)
}

/// The preference in a reply: the first answer is A.
pub fn preference(reply: &str, kind: VerdictKind) -> Option<Preference> {
    let read = match kind {
        VerdictKind::Rating => return None,
        VerdictKind::Pair => of_three,
        VerdictKind::FiveWay => of_five,
    };
    agreed(reply, read)
}

/// A decimal number without an exponent.
fn number(mark: &str) -> Option<f64> {
    let digits = mark.strip_prefix('-').unwrap_or(mark);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.ends_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    mark.parse().ok().filter(|_| is_number)
}

fn of_three(mark: &str) -> Option<Preference> {
    Some(match mark {
        "A" => Preference::First,
        "B" => Preference::Second,
        "C" => Preference::Tie,
        _ => return None,
    })
}

fn of_five(mark: &str) -> Option<Preference> {
    let mark: String = mark.chars().filter(|c| !c.is_whitespace()).collect();
    Some(match mark.as_str() {
        "A>>B" | "B<<A" => Preference::FirstMuch,
        "A>B" | "B<A" => Preference::First,
        "A=B" | "B=A" => Preference::Tie,
        "B>A" | "A<B" => Preference::Second,
        "B>>A" | "A<<B" => Preference::SecondMuch,
        _ => return None,
    })
}

/// The one verdict of a reply.
fn agreed<T: PartialEq>(reply: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let said = strip_thinking(reply, THOUGHTS_END);
    // Thoughts that never ended are no verdict.
    if said.trim_start().starts_with("<think>") {
        return None;
    }
    let mut verdicts: Vec<T> = plain_marks(said).into_iter().filter_map(&read).collect();
    if verdicts.is_empty() {
        let is_text = |line: &&str| !line.trim().is_empty() && !is_fence(line);
        let last = said.lines().rev().find(is_text).unwrap_or_default();
        verdicts = marks(last).into_iter().filter_map(|(_, mark)| read(mark)).collect();
    }
    let first = verdicts.pop()?;
    verdicts.iter().all(|other| *other == first).then_some(first)
}

/// The marks outside of fenced blocks and of spans between backticks.
fn plain_marks(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if is_fence(line) {
            in_block = !in_block;
        } else if !in_block {
            let (mut in_span, mut seen) = (false, 0);
            for (at, mark) in marks(line) {
                in_span ^= line[seen..at].matches('`').count() % 2 == 1;
                seen = at;
                if !in_span {
                    found.push(mark);
                }
            }
        }
    }
    found
}

fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("```") || line.starts_with("~~~")
}

/// The texts in double brackets on a line, without spaces around them, each with its place.
fn marks(line: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('[') {
        let Some(inner) = line[at..].strip_prefix("[[") else { continue };
        let near = &inner.as_bytes()[..inner.len().min(LONGEST_MARK + 2)];
        let Some(end) = near.windows(2).position(|pair| pair == b"]]") else { continue };
        let mark = inner[..end].trim();
        if !mark.is_empty() && !mark.contains(['[', ']']) {
            found.push((at, mark));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(reply: &str) -> Option<Preference> {
        preference(reply, VerdictKind::Pair)
    }

    #[test]
    fn ratings_are_numbers_from_1_to_10_in_double_brackets() {
        for (reply, wanted) in [
            ("Good.\n\nRating: [[7]]", Some(7.0)),
            ("**Rating: [[ 7.5 ]]**", Some(7.5)),
            ("Rating: [[10]]. So [[10]] it is.", Some(10.0)),
            ("[[[9]]]", Some(9.0)),
            ("评分：[[8]]。", Some(8.0)),
            ("Rating: [[0]]", None),
            ("Rating: [[11]]", None),
            ("Rating: [[-5]]", None),
            ("Rating: [[1e1]]", None),
            ("Rating: [[inf]] [[NaN]] [[+5]] [[5.]] [[.5]] [[5.5.5]]", None),
            ("Rating: [[5/10]]", None),
            ("Rating: [[rating]]", None),
            ("Rating: [5]", None),
            ("[[5]", None),
            ("[[\n5]]", None),
            ("", None),
            ("[[", None),
            ("[[]]", None),
        ] {
            assert_eq!(rating(reply), wanted, "{reply}");
        }
    }

    #[test]
    fn ratings_on_any_scale_are_decimal_numbers() {
        for (reply, wanted) in [
            ("[[0]]", Some(0.0)),
            ("[[ -2.5 ]]", Some(-2.5)),
            ("[[100]] and so [[100]]", Some(100.0)),
            ("[[11]] of [[5]]", None),
            ("[[1e3]] [[--1]] [[-]] [[-.5]] [[inf]] [[NaN]]", None),
        ] {
            assert_eq!(any_rating(reply), wanted, "{reply}");
        }
    }

    #[test]
    fn several_verdicts_must_agree() {
        assert_eq!(pair("[[A]] because ... [[A]]"), Some(Preference::First));
        assert_eq!(pair("The answer demands [[A]]. My verdict: [[B]]"), None);
        assert_eq!(pair("[[A]][[B]][[C]]"), None);
        assert_eq!(rating("I first thought [[3]], now [[8]]"), None);
        assert_eq!(rating("It claims [[10]] of itself.\n[[10]]"), Some(10.0));
        // Words in brackets are no verdicts, and do not disagree.
        assert_eq!(pair("I use [[rating]] and [[x]]: [[C]]"), Some(Preference::Tie));
    }

    #[test]
    fn code_holds_no_verdict_unless_the_reply_ends_with_it() {
        assert_eq!(rating("```python\nx = [[5]]\n```\nRating: [[2]]"), Some(2.0));
        assert_eq!(rating("The result `[[5]]` is right.\nRating: [[9]]"), Some(9.0));
        assert_eq!(rating("```python\nx = [[5]]\n```\nThis is wrong."), None);
        assert_eq!(rating("It prints `[[5]]`.\nI like it."), None);
        assert_eq!(rating("Fine.\n```\nRating: [[9]]\n```\n"), Some(9.0));
        assert_eq!(pair("Verdict: `[[B]]`"), Some(Preference::Second));
        assert_eq!(pair("~~~\n[[A]]\n~~~\n`[[A]] or [[B]]`"), None);
        // A block that is never closed reaches to the end.
        assert_eq!(pair("```\n[[A]]\n\nI am undecided"), None);
    }

    #[test]
    fn thoughts_are_not_read() {
        assert_eq!(pair("<think>[[A]]? No.</think>\n[[B]]"), Some(Preference::Second));
        assert_eq!(pair("<think>surely [[A]]"), None);
        assert_eq!(pair("[[A]] </think> hm </think> I do not know"), None);
    }

    #[test]
    fn the_degrees_of_five_verdicts() {
        let five = |reply| preference(reply, VerdictKind::FiveWay);
        assert_eq!(five("My final verdict: [[A>>B]]"), Some(Preference::FirstMuch));
        assert_eq!(five("[[ B > A ]]"), Some(Preference::Second));
        assert_eq!(five("[[A<<B]] and so [[B>>A]]"), Some(Preference::SecondMuch));
        assert_eq!(five("[[A>>B]] or [[A>B]]"), None);
        assert_eq!((five("[[A]]"), five("[[A>>>B]]"), five("[[>>]]")), (None, None, None));
        assert_eq!((pair("[[A>B]]"), pair("[[a]]"), pair("[[AB]]")), (None, None, None));
        assert_eq!(preference("[[A]]", VerdictKind::Rating), None);
    }

    #[test]
    fn no_reply_makes_it_panic_or_slow() {
        let fragments =
            ["[", "]", "[[", "]]", "A", "7", "`", "```", "\n", "é", "中", "<think>", "</think>", ">", " "];
        let mut state = 11_u64;
        for _ in 0..3000 {
            let mut reply = String::new();
            for _ in 0..24 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                reply.push_str(fragments[(state >> 33) as usize % fragments.len()]);
            }
            let _ = (rating(&reply), pair(&reply), preference(&reply, VerdictKind::FiveWay));
        }
        assert_eq!(rating(&"[".repeat(1 << 20)), None);
        assert_eq!(rating(&"`[[7]]`[[8]]".repeat(1 << 17)), Some(8.0));
    }
}
