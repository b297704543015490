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
mod modular;

use super::expression::{BINOMIAL, Decimal, Expression, Function};
use complex::Complex;

/// The points at which expressions with symbols are compared.
const POINTS: u64 = 3;
/// The relative difference of equal numbers, which is that of rounding.
const ROUNDING: f64 = 1e-13;
/// The most digits of a number with a decimal point that is told apart from every other one beside roots.
const LONGEST_FLOAT: usize = 12;
/// The largest whole exponent, and the largest number with a factorial.
const LARGEST: f64 = 100_000.0;

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

impl Decimal {
    fn float(&self) -> Option<f64> {
        let (whole, fraction) = self.digits.split_at(self.digits.len() - self.places);
        format!("{whole}.{fraction}0").parse().ok()
    }
}

/// The value of an expression without symbols, if it is a whole number of at most [`LARGEST`].
fn small_integer(expression: &Expression) -> Option<i32> {
    if expression.has_symbols() {
        return None;
    }
    let Complex { re, im } = Point(0).value(expression)?.value;
    (im == 0.0 && re.fract() == 0.0 && re.abs() <= LARGEST).then_some(re as i32)
}

/// Whether both expressions agree at a point.
fn agree(left: &Expression, right: &Expression, point: u64) -> bool {
    let values = [left, right].map(|side| Point(point).value(side));
    let [Some(left), Some(right)] = values else { return false };
    let difference = left.value.plus(right.value.times(Complex::real(-1.0))).size();
    let scale = left.scale + right.scale;
    scale.is_finite() && difference <= ROUNDING * scale
}

/// A value with the size of the largest terms that made it, of which its rounding errors are a part.
#[derive(Clone, Copy)]
struct Computed {
    value: Complex,
    scale: f64,
}

impl Computed {
    fn of(value: Complex) -> Self {
        Self { value, scale: value.size() }
    }

    /// A function of this value, with its relative error.
    fn map(self, value: Complex) -> Self {
        let relative = if self.value.size() > 0.0 { self.scale / self.value.size() } else { 1.0 };
        Self { value, scale: value.size().max(f64::MIN_POSITIVE) * relative.max(1.0) }
    }
}

/// The number of a point at which expressions are computed.
#[derive(Clone, Copy)]
struct Point(u64);

impl Point {
    fn value(self, expression: &Expression) -> Option<Computed> {
        match expression {
            Expression::Number(number) => number.float().map(|value| Computed::of(Complex::real(value))),
            Expression::Symbol(name) => Some(Computed::of(self.symbol(name))),
            Expression::Sum(left, right) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                Some(Computed { value: left.value.plus(right.value), scale: left.scale + right.scale })
            }
            Expression::Product(left, right) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                Some(Computed { value: left.value.times(right.value), scale: left.scale * right.scale })
            }
            Expression::Power(base, exponent) => {
                let (base, power) = (self.value(base)?, self.value(exponent)?);
                Some(base.map(base.value.power(power.value)?))
            }
            Expression::Logarithm(value, base) => {
                let (value, base) = (self.value(value)?, self.value(base)?);
                Some(value.map(value.value.logarithm()?.over(base.value.logarithm()?)?))
            }
            Expression::Call(function, argument) => self.call(*function, argument),
            Expression::Unknown(name, arguments) => {
                binomial(name, arguments).map(|value| Computed::of(Complex::real(value)))
            }
        }
    }

    /// A point on a ring around 0 that the name and the number choose.
    fn symbol(self, name: &str) -> Complex {
        let share = |salt: u64| modular::hash(&(name, self.0, salt)) as f64 / modular::PRIME as f64;
        let (size, angle) = (0.5 + share(0), std::f64::consts::TAU * share(1));
        Complex { re: size * angle.cos(), im: size * angle.sin() }
    }

    fn call(self, function: Function, argument: &Expression) -> Option<Computed> {
        let computed = self.value(argument)?;
        let z = computed.value;
        let real = |value: Option<f64>| value.map(Complex::real);
        let constant = (!argument.has_symbols() && z.im == 0.0).then_some(z.re);
        let value = match function {
            Function::Negative => Some(z.times(Complex::real(-1.0))),
            Function::Absolute => Some(Complex::real(z.size())),
            Function::Conjugate => Some(Complex { im: -z.im, ..z }),
            Function::Factorial => real(small_integer(argument).and_then(factorial)),
            Function::Floor => real(constant.map(f64::floor)),
            Function::Ceiling => real(constant.map(f64::ceil)),
            Function::Logarithm10 => z.logarithm()?.over(Complex::real(std::f64::consts::LN_10)),
            _ => z.function(function),
        };
        Some(computed.map(value?))
    }
}

fn factorial(n: i32) -> Option<f64> {
    (n >= 0).then(|| (1..=n).map(f64::from).product())
}

/// The binomial coefficient `C(n, k)` of small whole numbers. `None` for every other function.
fn binomial(name: &str, arguments: &[Expression]) -> Option<f64> {
    let [n, k] = arguments else { return None };
    if name != BINOMIAL {
        return None;
    }
    let (n, k) = (small_integer(n)?, small_integer(k)?);
    if n < 0 || k < 0 {
        return None;
    }
    let step = |value: f64, i: i32| (value * f64::from(n - i) / f64::from(i + 1)).round();
    Some((0..k).fold(1.0, step))
}
