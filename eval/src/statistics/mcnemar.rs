//! `McNemar`'s exact test: do two systems answer the same items correctly equally often?
//!
//! Only the items on which the systems disagree say anything (`McNemar` 1947, Psychometrika 12, p. 153). Let
//! b items be right for the first system alone and c for the second alone. If both systems are equally good,
//! the smaller of b and c is at most k with probability `P(X <= k)`, X binomial with `n = b + c` trials of
//! probability 1/2. The two-sided p-value is `min(1, 2 P(X <= min(b, c)))`.
//!
//! This file does not know how an answer is judged.

use super::check::total;
use crate::Error;

/// The exact two-sided p-value for `first_only` items that only the first system has right and `second_only`
/// items that only the second has right. Without disagreements it is 1; below about 1e-300 it is 0.
pub fn mcnemar(first_only: u64, second_only: u64) -> Result<f64, Error> {
    let n = total("items on which two systems disagree", &[first_only, second_only])?;
    let observed = first_only.min(second_only);

    // Binomial coefficients relative to the middle one, from the middle down: none overflows, and the few
    // that underflow are negligible. Their number is about 40 sqrt(n).
    let middle = n / 2;
    let (mut term, mut half, mut tail) = (1.0_f64, 0.0, 0.0);
    for k in (0..=middle).rev() {
        half += term;
        if k <= observed {
            tail += term;
        }
        term *= k as f64 / (n - k + 1) as f64;
        // Below the normal numbers a factor close to 1 is rounded to 1, and the terms would never end.
        if term < f64::MIN_POSITIVE {
            break;
        }
    }

    // The middle of an even number of trials has no mirror image.
    let all = if n.is_multiple_of(2) { 2.0 * half - 1.0 } else { 2.0 * half };
    Ok((2.0 * tail / all).min(1.0))
}
