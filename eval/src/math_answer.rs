//! Answers to questions of mathematics: where they stand in a reply, and when two of them are equal.
//!
//! - [`boxed`]: the content of the last `\boxed`.
//! - [`hendrycks`]: the text equality of MATH, which `hendrycks_math` and `aime` use.
//! - [`minerva`]: the normalization and equality of `minerva_math`, for which it reads formulas as sympy
//!   does.
//! - [`agieval`]: the reading and equality of `agieval_math` and `agieval_gaokao_mathcloze`.
//! - [`value`] and [`math_norm_em`]: an equality of this program's own, which compares exact rational
//!   numbers.
//!
//! The first four follow lm-evaluation-harness 0.4.13 and give its scores. There is no computer algebra here:
//! no module expands, simplifies or solves anything. [`minerva`] compares formulas by computing them.

pub mod agieval;
pub mod boxed;
pub mod hendrycks;
pub mod minerva;
pub mod value;

use crate::exact_match::Verdict;

/// The answer in a reply to an open question, for [`math_norm_em`]: the content of the last box; or the
/// answer in Minerva's sentence; or what stands between the outer dollars of the last line that has two.
/// `None` without any of them.
pub fn answer(reply: &str) -> Option<String> {
    let in_dollars =
        |line: &str| line.split_once('$')?.1.rsplit_once('$').map(|(inside, _)| inside.to_owned());
    let boxed = boxed::last_content(reply).map(str::to_owned);
    boxed.or_else(|| minerva::answer(reply)).or_else(|| reply.split('\n').rev().find_map(in_dollars))
}

/// Whether the [`answer`] of a reply equals the gold answer, as [`value::equal`] compares them.
///
/// This is NOT `math_verify`, and no counterpart of sympy: both know algebra, and this compares rational
/// numbers, decimals, percentages, mixed fractions, tuples, intervals and sets of them, and any other text by
/// its spelling. Its numbers are not comparable with those of the harness's `math_verify`.
pub fn math_norm_em(reply: &str, gold: &str) -> Verdict {
    match answer(reply) {
        None => Verdict::Unparsed,
        Some(answer) if value::equal(&answer, gold) => Verdict::Right,
        Some(_) => Verdict::Wrong,
    }
}

#[cfg(test)]
mod tests;
