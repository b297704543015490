//! The length-controlled win rate: would the judge prefer this system if its replies were as long as the
//! baseline's?
//!
//! Judges prefer longer replies. With y the preference for the system (1 for a win, 0 for a loss, 1/2 for a
//! tie, or a probability) and d the length of its reply minus that of the baseline, logistic regression fits
//!
//! ```text
//! P(y = 1) = sigmoid(a + b tanh(d / s))
//! ```
//!
//! where s is the standard deviation of d (with n - 1), and the win rate is the prediction at d = 0,
//! `sigmoid(a)`. This is the model of `AlpacaEval` 2 (Dubois et al. 2024, arXiv 2404.04475, section 3)
//! without its term for the difficulty of each instruction and without regularization, so the two agree in
//! meaning and not in digits. d is scaled and not centered: centered, `d = 0` would mean "longer by the usual
//! amount".
//!
//! The standard error is robust (White 1982, Econometrica 50, p. 1, with the factor n / (n - 2)), because y
//! may be a probability. The interval is computed on the scale of a, so it stays within 0 and 1.
//!
//! If on every item the lengths are equal, or all preferences are the same, there is nothing to control for:
//! the result is then the raw win rate with Wilson's interval. This file does not know how a length is
//! measured.

use serde::{Deserialize, Serialize};

use super::estimate::{Estimate, two_sided_normal, wilson_interval};
use super::newton::{LogLikelihood, log_sigmoid, maximize, sigmoid, solve};
use crate::Error;

/// One judgement of a reply against the baseline's reply to the same prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// From 0, the baseline's reply is better, to 1, the system's is.
    pub preference: f64,
    /// Length of the system's reply, in any unit.
    pub length: usize,
    /// Length of the baseline's reply, in the same unit.
    pub baseline_length: usize,
}

/// A length-controlled win rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthControlled {
    /// The win rate at equal lengths, with a 95 % interval.
    pub win_rate: Estimate,
    /// The mean preference.
    pub raw: f64,
    /// The coefficient b: above 0 if longer replies are preferred. `None` if there was nothing to control
    /// for.
    pub length_coefficient: Option<f64>,
}

/// The length-controlled win rate of at least three judgements.
pub fn length_controlled(judgements: &[Judgement]) -> Result<LengthControlled, Error> {
    check(judgements)?;
    let preferences: Vec<f64> = judgements.iter().map(|judgement| judgement.preference).collect();
    let raw = preferences.iter().sum::<f64>() / preferences.len() as f64;
    let is_constant = preferences.iter().all(|preference| preference == &preferences[0]);
    let lengths =
        judgements.iter().map(|judgement| judgement.length as f64 - judgement.baseline_length as f64);
    let lengths: Vec<f64> = lengths.collect();
    if is_constant || lengths.iter().all(|&difference| difference == 0.0) {
        let win_rate = uncontrolled(&preferences, raw);
        return Ok(LengthControlled { win_rate, raw, length_coefficient: None });
    }

    let features = standardized(&lengths);
    check_overlap(&features, &preferences)?;
    let fit = maximize("a length-controlled win rate", vec![0.0; 2], |coefficients| {
        log_likelihood(&features, &preferences, coefficients)
    })?;
    let standard_error = intercept_error(&features, &preferences, &fit).ok_or(Error::LengthsDecide)?;

    let (intercept, half) = (fit[0], two_sided_normal() * standard_error);
    let mean = sigmoid(intercept);
    let win_rate = Estimate {
        mean,
        standard_error: mean * (1.0 - mean) * standard_error,
        low: sigmoid(intercept - half),
        high: sigmoid(intercept + half),
        n: preferences.len(),
    };
    Ok(LengthControlled { win_rate, raw, length_coefficient: Some(fit[1]) })
}

fn check(judgements: &[Judgement]) -> Result<(), Error> {
    if judgements.len() < 3 {
        let got = judgements.len();
        return Err(Error::TooFew { what: "a length-controlled win rate", needed: 3, got });
    }
    for (item, judgement) in judgements.iter().enumerate() {
        if !(0.0..=1.0).contains(&judgement.preference) {
            let field = format!("the preference of item {item}");
            let fix = "give 1 for a win, 0 for a loss, 0.5 for a tie, or a probability of winning";
            return Err(Error::OutOfRange { field, got: judgement.preference, low: 0.0, high: 1.0, fix });
        }
    }
    Ok(())
}

/// The mean preference with its standard error and Wilson's interval.
fn uncontrolled(preferences: &[f64], mean: f64) -> Estimate {
    let n = preferences.len() as f64;
    let squares: f64 = preferences.iter().map(|preference| (preference - mean).powi(2)).sum();
    let (low, high) = wilson_interval(mean, n);
    let standard_error = (squares / (n - 1.0) / n).sqrt();
    Estimate { mean, standard_error, low, high, n: preferences.len() }
}

/// tanh(d / s). If all differences are equal, s is 0 and each is as far from 0 as it can be.
fn standardized(differences: &[f64]) -> Vec<f64> {
    let n = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
    let deviation = (squares / (n - 1.0)).sqrt();
    differences.iter().map(|difference| (difference / deviation).tanh()).collect()
}

/// Refuses data whose likelihood has no finite maximum (Silvapulle 1981, JRSS B 43, p. 310): all wins are at
/// least as long as all losses, or at most as long. A preference strictly between 0 and 1 is both.
fn check_overlap(features: &[f64], preferences: &[f64]) -> Result<(), Error> {
    let range = |is_in: fn(f64) -> bool| {
        let chosen = features.iter().zip(preferences).filter(|(_, preference)| is_in(**preference));
        chosen.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (x, _)| (low.min(*x), high.max(*x)))
    };
    let (shortest_win, longest_win) = range(|preference| preference > 0.0);
    let (shortest_loss, longest_loss) = range(|preference| preference < 1.0);
    if shortest_win < longest_loss && shortest_loss < longest_win {
        return Ok(());
    }
    Err(Error::LengthsDecide)
}

fn log_likelihood(features: &[f64], preferences: &[f64], coefficients: &[f64]) -> LogLikelihood {
    let (mut value, mut gradient, mut hessian) = (0.0, vec![0.0; 2], vec![0.0; 4]);
    for (&x, &y) in features.iter().zip(preferences) {
        let logit = coefficients[0] + coefficients[1] * x;
        let (win, loss) = (sigmoid(logit), sigmoid(-logit));
        value += y * log_sigmoid(logit) + (1.0 - y) * log_sigmoid(-logit);
        let residual = y * loss - (1.0 - y) * win;
        gradient[0] += residual;
        gradient[1] += residual * x;
        let weight = win * loss;
        for (entry, product) in hessian.iter_mut().zip([1.0, x, x, x * x]) {
            *entry += weight * product;
        }
    }
    LogLikelihood { value, gradient, negative_hessian: hessian }
}

/// The robust standard error of the intercept: the corner of `H^-1 (sum r² x x') H^-1 n / (n - 2)`, which is
/// the sum of `(r h' x)²` with h the first row of `H^-1`. `None` if H cannot be inverted.
fn intercept_error(features: &[f64], preferences: &[f64], fit: &[f64]) -> Option<f64> {
    let hessian = log_likelihood(features, preferences, fit).negative_hessian;
    let row = solve(&hessian, &[1.0, 0.0])?;
    let squares = features.iter().zip(preferences).map(|(&x, &y)| {
        let residual = y - sigmoid(fit[0] + fit[1] * x);
        (residual * (row[0] + row[1] * x)).powi(2)
    });
    let n = features.len() as f64;
    Some((squares.sum::<f64>() * n / (n - 2.0)).sqrt())
}
