//! pass@k: the probability that at least one of k samples is correct.
//!
//! From n samples of which c are correct, the unbiased estimate is the share of subsets of k samples that
//! hold a correct one (Chen et al. 2021, arXiv 2107.03374, equation 1 and figure 3):
//!
//! ```text
//! 1 - C(n - c, k) / C(n, k) = 1 - product for i = n - c + 1 .. n of (1 - k / i)
//! ```
//!
//! `1 - (1 - c/n)^k`, which is often used instead, is too small. The estimates of several tasks are averaged
//! with [`super::estimate()`]. This file does not know what makes a sample correct.

use crate::Error;

/// The estimate of pass@k for one task, from `correct` of `samples`. It is exactly 0 if no sample is correct,
/// and exactly 1 if fewer than k are wrong.
pub fn pass_at_k(samples: u64, correct: u64, k: u64) -> Result<f64, Error> {
    if correct > samples {
        return Err(Error::NotARate { successes: correct, n: samples });
    }
    if k == 0 || k > samples {
        return Err(Error::TooFewSamples { k, samples });
    }
    let wrong = samples - correct;
    if wrong < k {
        return Ok(1.0);
    }

    // C(n - c, k) / C(n, k) is symmetric in c and k, so the product has as many factors as the smaller of
    // them.
    let (factors, other) = (correct.min(k), correct.max(k));
    let first = samples - factors + 1;
    let none_correct: f64 = (first..=samples).map(|i| 1.0 - other as f64 / i as f64).product();
    Ok(1.0 - none_correct)
}
