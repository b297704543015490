//! Quantiles of the normal and of Student's t distribution, found by bisection on the cumulative distribution
//! function.
//!
//! Student's t uses the regularized incomplete beta function `I_x(a, b)` (Abramowitz and Stegun 1964, 26.5.1
//! and 26.7.1) with its continued fraction (26.5.8). The normal distribution uses the incomplete gamma
//! function of order 1/2, by series (6.5.29) or continued fraction (6.5.31). Continued fractions are
//! evaluated by Lentz's method (Lentz 1976, Applied Optics 15, p. 668). Bisection costs a few hundred
//! evaluations of a cheap function and always converges.
//!
//! This module knows no samples and no intervals.

use std::f64::consts::{PI, SQRT_2};

use crate::Error;

/// Steps of a continued fraction: enough for counts up to about 10^11.
const MOST_STEPS: u32 = 1_000_000;

/// Lentz's method replaces smaller divisors by this number.
const TINY: f64 = 1e-300;

/// The x for which a standard normal variable is below x with `probability`. Accurate to about 1e-12.
pub fn normal_quantile(probability: f64) -> Result<f64, Error> {
    check_probability(probability)?;
    Ok(invert(probability, normal_cdf))
}

/// The x for which Student's t with `degrees` degrees of freedom is below x with `probability`. Accurate to
/// about 1e-10.
pub fn student_t_quantile(probability: f64, degrees: f64) -> Result<f64, Error> {
    check_probability(probability)?;
    if !(degrees > 0.0 && degrees.is_finite()) {
        return Err(Error::NotFinite { field: "degrees of freedom".into(), got: degrees });
    }
    Ok(invert(probability, |x| student_t_cdf(x, degrees)))
}

fn check_probability(got: f64) -> Result<(), Error> {
    if got > 0.0 && got < 1.0 {
        return Ok(());
    }
    Err(Error::NotAProbability { what: "the probability of a quantile", got })
}

/// Inverts, by bisection, the increasing distribution function of a variable that is symmetric about zero.
fn invert(probability: f64, cdf: impl Fn(f64) -> f64) -> f64 {
    if probability < 0.5 {
        // By symmetry, the mirrored problem in the upper tail has the same solution with the other sign.
        return -invert(1.0 - probability, cdf);
    }
    let (mut low, mut high) = (0.0, 1.0);
    while cdf(high) < probability && high < f64::MAX / 4.0 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        if cdf(middle) < probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Probability that a standard normal variable is below `x`.
fn normal_cdf(x: f64) -> f64 {
    let half_tail = 0.5 * upper_gamma_half(x / SQRT_2);
    if x < 0.0 { half_tail } else { 1.0 - half_tail }
}

/// The complementary error function of |x|, that is Q(1/2, x²).
fn upper_gamma_half(x: f64) -> f64 {
    let square = x * x;
    if square == 0.0 {
        return 1.0;
    }

    let scale = (-square).exp() * x.abs() / PI.sqrt();
    if square < 1.5 {
        // Series: P(1/2, y) = scale * sum over k of y^k / ((1/2)(3/2)...(k + 1/2)).
        let (mut term, mut sum, mut k) = (2.0, 2.0, 0.5);
        while term > sum * f64::EPSILON {
            k += 1.0;
            term *= square / k;
            sum += term;
        }
        return 1.0 - scale * sum;
    }

    // Larger arguments: the continued fraction, by Lentz's method.
    let mut b = square + 0.5;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut fraction = d;

    for i in 1..500 {
        let i = f64::from(i);
        let a = -i * (i - 0.5);
        b += 2.0;
        d = 1.0 / away_from_zero(a * d + b);
        c = away_from_zero(b + a / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < f64::EPSILON {
            break;
        }
    }

    scale * fraction
}

/// Probability that Student's t with `degrees` degrees of freedom is below `x`: `1 - I_y(v/2, 1/2) / 2` with
/// `y = v / (v + x²)` for x > 0 (Abramowitz and Stegun 26.7.1).
fn student_t_cdf(x: f64, degrees: f64) -> f64 {
    let half_tail = 0.5 * student_t_two_sided(x, degrees);
    if x < 0.0 { half_tail } else { 1.0 - half_tail }
}

/// Probability that Student's t with `degrees` degrees of freedom is at least as far from zero as `t`.
pub(super) fn student_t_two_sided(t: f64, degrees: f64) -> f64 {
    regularized_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// `I_x(a, b)`, the regularized incomplete beta function.
pub(super) fn regularized_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    }
}

/// The continued fraction of `I_x(a, b)`, which converges for x below (a + 1) / (a + b + 2) in about
/// `sqrt(max(a, b))` steps.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let (mut c, mut d) = (1.0, 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..MOST_STEPS {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    fraction
}

fn away_from_zero(value: f64) -> f64 {
    if value.abs() < TINY { TINY } else { value }
}

/// ln Γ(x) for x > 0: the recurrence up to 10, then Stirling's series (Abramowitz and Stegun 6.1.41).
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y * (1.0 / 1680.0 - y / 1188.0)))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series - shift
}
