//! Whether the difference of two expressions is zero, as lm-evaluation-harness asks sympy's `simplify`.
//!
//! Nothing is simplified here; the expressions are computed. Where they are made of numbers, symbols and
//! whole exponents, they are computed exactly, in the integers modulo the prime `2^61 - 1` at a point that
//! the names of the symbols choose: two different rational functions agree there with a probability of about
//! their degree in `2^61` (Schwartz 1980, Journal of the ACM 27, p. 701). Roots and functions are computed in
//! complex floating point at three points, on their principal branches as in sympy; there, what agrees to 13
//! digits is equal.
//!
//! sympy computes with numbers that have a decimal point in floating point: `0.1 * 3` is not 0.3, and neither
//! is it here.

mod complex;
mod hash;
mod modular;
mod point;

use super::expression::{Decimal, Expression, Function};
use complex::Complex;
use point::{Point, small_integer};

/// The points at which expressions with symbols are compared.
const POINTS: u64 = 3;
/// The relative difference of equal numbers, which is that of rounding.
const ROUNDING: f64 = 1e-13;
/// The most digits of a number with a decimal point that is told apart from every other one beside roots.
const LONGEST_FLOAT: usize = 12;

/// Whether both expressions have one value. What cannot be computed has none.
pub(super) fn equal(left: &Expression, right: &Expression) -> bool {
    let sides = [left, right];
    let floats = sides.map(floats);
    if floats.iter().any(|floats| !floats.is_empty()) {
        if let [Some(rounded), Some(other)] = sides.map(in_floats) {
            // 1/3 is no number of 16 digits, though both round to the same.
            return rounded == other && modular::value(left) == modular::value(right);
        }
        // The order in which sympy rounds is not known here, and it keeps floats under a root apart.
        if floats.iter().any(|floats| floats.len() > 1)
            || sides.iter().any(|side| has_float_within(side, false))
        {
            return false;
        }
    }
    match sides.map(modular::value) {
        [Some(left), Some(right)] => left == right,
        // A number of more digits can differ by less than what is told apart here.
        _ if floats.iter().flatten().any(|number| number.digits.len() > LONGEST_FLOAT) => false,
        _ => (0..POINTS).all(|point| agree(left, right, point)),
    }
}

/// The numbers with a decimal point.
fn floats(expression: &Expression) -> Vec<&Decimal> {
    match expression {
        Expression::Number(number) => {
            if number.is_float {
                vec![number]
            } else {
                Vec::new()
            }
        }
        Expression::Symbol(_) => Vec::new(),
        Expression::Sum(left, right)
        | Expression::Product(left, right)
        | Expression::Power(left, right)
        | Expression::Logarithm(left, right) => [floats(left), floats(right)].concat(),
        Expression::Call(_, argument) => floats(argument),
        Expression::Unknown(_, arguments) => arguments.iter().flat_map(floats).collect(),
    }
}

/// Whether a number with a decimal point stands in a power that is not whole, or in a function.
fn has_float_within(expression: &Expression, is_within: bool) -> bool {
    let both =
        |left, right, is_within| has_float_within(left, is_within) || has_float_within(right, is_within);
    match expression {
        Expression::Number(number) => is_within && number.is_float,
        Expression::Symbol(_) => false,
        Expression::Sum(left, right) | Expression::Product(left, right) => both(left, right, is_within),
        Expression::Power(base, exponent) => {
            both(base, exponent, is_within || small_integer(exponent).is_none())
        }
        Expression::Logarithm(value, base) => both(value, base, true),
        Expression::Call(Function::Negative | Function::Floor | Function::Ceiling, value) => {
            has_float_within(value, is_within)
        }
        Expression::Call(_, argument) => has_float_within(argument, true),
        Expression::Unknown(_, arguments) => {
            arguments.iter().any(|argument| has_float_within(argument, true))
        }
    }
}

/// The value of sums, products, quotients and whole powers of numbers, rounded at every step.
fn in_floats(expression: &Expression) -> Option<f64> {
    match expression {
        Expression::Number(number) => number.float(),
        Expression::Sum(left, right) => Some(in_floats(left)? + in_floats(right)?),
        // A quotient is a product with a power of -1.
        Expression::Product(left, right) => match right.as_ref() {
            Expression::Power(base, exponent) if in_floats(exponent) == Some(-1.0) => {
                Some(in_floats(left)? / in_floats(base)?)
            }
            _ => Some(in_floats(left)? * in_floats(right)?),
        },
        Expression::Power(base, exponent) => {
            let exponent = in_floats(exponent).filter(|exponent| exponent.fract() == 0.0)?;
            Some(in_floats(base)?.powf(exponent))
        }
        Expression::Call(Function::Negative, value) => Some(-in_floats(value)?),
        _ => None,
    }
}

/// Whether both expressions agree at a point.
fn agree(left: &Expression, right: &Expression, point: u64) -> bool {
    let values = [left, right].map(|side| Point(point).value(side));
    let [Some(left), Some(right)] = values else { return false };
    let difference = left.value.plus(right.value.times(Complex::real(-1.0))).size();
    let scale = left.scale + right.scale;
    scale.is_finite() && difference <= ROUNDING * scale
}
