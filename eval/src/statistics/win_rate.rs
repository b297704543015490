//! The win rate of pairwise judgements: a tie counts as half a win.
//!
//! With w wins, t ties and l losses, `n = w + t + l` and `p = (w + t/2) / n`; the standard error is that of
//! scores of 1, 1/2 and 0, `sqrt((p (1 - p) - t / 4n) / n)`. The interval is Wilson's for the fraction p of
//! n. Ties make scores vary less, so this interval is somewhat wider than needed if there are ties. In
//! exchange it has a width even if all judgements were ties. This file does not know who judged.

use super::check::total;
use super::estimate::{Estimate, wilson_interval};
use crate::Error;

/// The win rate with its standard error and a 95 % interval.
pub fn win_rate(wins: u64, ties: u64, losses: u64) -> Result<Estimate, Error> {
    let n = total("judgements of a win rate", &[wins, ties, losses])?;
    if n == 0 {
        return Err(Error::TooFew { what: "a win rate", needed: 1, got: 0 });
    }
    let count = n as f64;
    let mean = (wins as f64 + 0.5 * ties as f64) / count;
    // Rounding must not make the variance negative when there are only ties.
    let variance = (mean * (1.0 - mean) - 0.25 * ties as f64 / count).max(0.0) / count;
    let (low, high) = wilson_interval(mean, count);
    Ok(Estimate { mean, standard_error: variance.sqrt(), low, high, n: n as usize })
}
