//! A calculator: `= 12*7+3` in the last line of a turn is answered with `87`.
//!
//! ```text
//!   sum     = product { ("+" | "-") product }
//!   product = factor { ("*" | "/") factor }
//!   factor  = "-" factor | "(" sum ")" | digits
//! ```
//! with spaces anywhere between numbers and signs. The numbers are integers and the result is exact. What is
//! no such formula, overflows 64 bits, or divides by 0 or with a remainder has the answer `error`. The call
//! is one sign before a formula as it stands in the synthetic data, so that a model of a million parameters
//! can learn it.

use super::tool::call;

/// The answer to a call that cannot be computed.
const ERROR: &str = "error";
/// The longest formula, in bytes.
const LONGEST: usize = 200;
/// How deep brackets and signs may be nested.
const DEEPEST: usize = 50;

/// The answer to the call in a turn, if there is one.
pub(super) fn calculate(turn: &str) -> Option<String> {
    let formula = call(turn, "=")?;
    Some(value(formula).map_or_else(|| ERROR.to_owned(), |value| value.to_string()))
}

/// The value of a formula.
fn value(formula: &str) -> Option<i64> {
    if formula.len() > LONGEST {
        return None;
    }
    let mut rest = Formula { rest: formula, depth: 0 };
    let value = rest.sum()?;
    rest.rest.trim_start().is_empty().then_some(value)
}

/// The part of a formula that is not read yet.
struct Formula<'a> {
    rest: &'a str,
    depth: usize,
}

impl Formula<'_> {
    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product()?;
        loop {
            value = match self.sign("+-") {
                Some('+') => value.checked_add(self.product()?)?,
                Some(_) => value.checked_sub(self.product()?)?,
                None => return Some(value),
            };
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.factor()?;
        loop {
            value = match self.sign("*/") {
                Some('*') => value.checked_mul(self.factor()?)?,
                Some(_) => {
                    let divisor = self.factor()?;
                    // None if the divisor is 0, or if the quotient overflows.
                    if value.checked_rem(divisor)? != 0 {
                        return None;
                    }
                    value.checked_div(divisor)?
                }
                None => return Some(value),
            };
        }
    }

    fn factor(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let value = match self.sign("-(") {
            Some('-') => self.factor()?.checked_neg()?,
            Some(_) => {
                let value = self.sum()?;
                self.sign(")")?;
                value
            }
            None => self.number()?,
        };
        self.depth -= 1;
        Some(value)
    }

    fn number(&mut self) -> Option<i64> {
        let end = self.rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().ok()
    }

    /// Takes the next character if it is one of `signs`.
    fn sign(&mut self, signs: &str) -> Option<char> {
        self.rest = self.rest.trim_start();
        let sign = self.rest.chars().next().filter(|sign| signs.contains(*sign))?;
        self.rest = &self.rest[sign.len_utf8()..];
        Some(sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(formula: &str) -> String {
        calculate(&format!("= {formula}")).unwrap()
    }

    #[test]
    fn formulas_have_the_usual_order() {
        for (formula, value) in [
            ("12*7+3", "87"),
            ("37 + 45", "82"),
            ("2+3*4", "14"),
            ("(2+3)*4", "20"),
            ("10-4-3", "3"),
            ("24/4/2", "3"),
            ("-3 * -(2 - 7)", "-15"),
            ("2--3", "5"),
            ("- -3", "3"),
            ("7/7*7", "7"),
            ("-8/4", "-2"),
            ("0007", "7"),
            (" ( ( 1 ) ) ", "1"),
            ("0*9", "0"),
        ] {
            assert_eq!(answer(formula), value, "{formula}");
        }
    }

    #[test]
    fn what_has_no_exact_value_is_an_error() {
        for formula in [
            "", "+", "1+", "1 2", "(1", "1)", "()", "1+*2", "+1", "2(3)", "1.5", "1e3", "2**3", "7%2", "x",
            "３+４", "1,000", "7/2", "-7/2", "1/0", "0/0", "1/(3-3)", "= 1",
        ] {
            assert_eq!(answer(formula), ERROR, "{formula}");
        }
    }

    #[test]
    fn overflow_is_an_error_at_every_operation() {
        // i64::MAX = 9223372036854775807.
        assert_eq!(answer("9223372036854775806+1"), "9223372036854775807");
        assert_eq!(answer("-9223372036854775807-1"), "-9223372036854775808");
        for formula in [
            "9223372036854775807+1",
            "9223372036854775808",
            "-9223372036854775807-2",
            "3037000500*3037000500",
            "-(-9223372036854775807-1)",
            "(-9223372036854775807-1)/-1",
            "99999999999999999999999999",
        ] {
            assert_eq!(answer(formula), ERROR, "{formula}");
        }
    }

    #[test]
    fn long_and_deep_formulas_are_errors() {
        let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(answer(&nested(DEEPEST - 1)), "1");
        assert_eq!(answer(&nested(DEEPEST)), ERROR);
        assert_eq!(answer(&format!("{}1", "-".repeat(DEEPEST))), ERROR);
        // 100 ones with 99 signs are 199 characters. Depth is not the number of terms.
        assert_eq!(answer(&vec!["1"; 100].join("+")), "100");
        assert_eq!(answer(&vec!["1"; 101].join("+")), ERROR);
        assert_eq!(answer(&"(".repeat(1_000_000)), ERROR);
    }

    #[test]
    fn a_turn_without_a_call_is_an_answer() {
        for turn in ["82", "37 + 45 = 82", "", "= 1\nso 82"] {
            assert_eq!(calculate(turn), None, "{turn}");
        }
        assert_eq!(calculate("37 and 45:\n=37+45\n").as_deref(), Some("82"));
    }
}
