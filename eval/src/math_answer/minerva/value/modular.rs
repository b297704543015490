//! Expressions of numbers, symbols and whole exponents modulo the prime `2^61 - 1`. A symbol, and an unknown
//! function of known arguments, is the number that its name chooses.

use super::super::expression::{BINOMIAL, Decimal, Expression, Function};
use super::hash::{PRIME, hash};
use super::point::small_integer;

/// The value of an expression. `None` with a root or a function that has no value here, and for 1/0.
pub(super) fn value(expression: &Expression) -> Option<u64> {
    match expression {
        Expression::Number(number) => number_value(number),
        Expression::Symbol(name) => Some(hash(name)),
        Expression::Sum(left, right) => Some((value(left)? + value(right)?) % PRIME),
        Expression::Product(left, right) => Some(product(value(left)?, value(right)?)),
        Expression::Power(base, exponent) => power(value(base)?, small_integer(exponent)?),
        Expression::Call(Function::Negative, argument) => Some(negative(value(argument)?)),
        Expression::Call(Function::Factorial, argument) => {
            let n = u64::try_from(small_integer(argument)?).ok()?;
            Some((1..=n).fold(1, product))
        }
        Expression::Unknown(name, arguments) if name != BINOMIAL => {
            let arguments: Option<Vec<u64>> = arguments.iter().map(value).collect();
            Some(hash(&(name, arguments?)))
        }
        _ => None,
    }
}

fn number_value(number: &Decimal) -> Option<u64> {
    let add = |value: u64, digit: u8| (product(value, 10) + u64::from(digit - b'0')) % PRIME;
    let digits = number.digits.bytes().fold(0, add);
    let scale = power(10, -i32::try_from(number.places).ok()?)?;
    Some(product(digits, scale))
}

fn negative(value: u64) -> u64 {
    (PRIME - value) % PRIME
}

fn product(left: u64, right: u64) -> u64 {
    (u128::from(left) * u128::from(right) % u128::from(PRIME)) as u64
}

fn power(base: u64, exponent: i32) -> Option<u64> {
    if exponent < 0 {
        // By Fermat's little theorem; 0 has no inverse.
        let inverse = raised(base, PRIME - 2);
        return (base != 0).then(|| raised(inverse, u64::from(exponent.unsigned_abs())));
    }
    Some(raised(base, u64::from(exponent.unsigned_abs())))
}

fn raised(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(result, base);
        }
        base = product(base, base);
        exponent >>= 1;
    }
    result
}
