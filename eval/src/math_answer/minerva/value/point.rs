//! The values of expressions at a point, in complex floating point.

use super::super::expression::{BINOMIAL, Decimal, Expression, Function};
use super::complex::Complex;
use super::hash::{PRIME, hash};

/// The largest whole exponent, and the largest number with a factorial.
const LARGEST: f64 = 100_000.0;

/// A value with the size of the largest terms that made it, of which its rounding errors are a part.
#[derive(Clone, Copy)]
pub(super) struct Computed {
    pub(super) value: Complex,
    pub(super) scale: f64,
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
pub(super) struct Point(pub(super) u64);

impl Point {
    /// The value of an expression; `None` if it has none, as 1/0.
    pub(super) fn value(self, expression: &Expression) -> Option<Computed> {
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
        let share = |salt: u64| hash(&(name, self.0, salt)) as f64 / PRIME as f64;
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

impl Decimal {
    pub(super) fn float(&self) -> Option<f64> {
        let (whole, fraction) = self.digits.split_at(self.digits.len() - self.places);
        format!("{whole}.{fraction}0").parse().ok()
    }
}

/// The value of an expression without symbols, if it is a whole number of at most [`LARGEST`].
pub(super) fn small_integer(expression: &Expression) -> Option<i32> {
    if expression.has_symbols() {
        return None;
    }
    let Complex { re, im } = Point(0).value(expression)?.value;
    (im == 0.0 && re.fract() == 0.0 && re.abs() <= LARGEST).then_some(re as i32)
}
