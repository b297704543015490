//! How large a difference a comparison can detect.
//!
//! A two-sided test at the 5 % level finds a true difference `delta` with probability [`POWER`] if
//!
//! ```text
//! delta = (z_0.975 + z_0.8) SE
//! ```
//!
//! where SE is the standard error of the estimated difference (Miller 2024, arXiv 2411.00640, section 5; the
//! probability of a significant result with the wrong sign, about 1e-6, is neglected). This file does not
//! know what was measured.

use super::distribution::normal_quantile;
use super::estimate::two_sided_normal;
use crate::Error;

/// The probability with which a difference of the stated size is found.
pub const POWER: f64 = 0.8;

/// The smallest true difference that a comparison whose difference has this standard error detects with
/// probability [`POWER`].
pub fn detectable_difference(standard_error: f64) -> Result<f64, Error> {
    if !(0.0..=f64::MAX).contains(&standard_error) {
        let fix = "give the standard error of the difference";
        let (field, got) = ("the standard error".into(), standard_error);
        return Err(Error::OutOfRange { field, got, low: 0.0, high: f64::INFINITY, fix });
    }
    Ok((two_sided_normal() + normal_quantile(POWER)?) * standard_error)
}
