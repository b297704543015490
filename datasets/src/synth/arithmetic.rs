//! Sums, differences and small products.
//!
//! `37 + 45` and `45 + 37` are the same problem. One factor of a product is 2, 3, 5 or 10. The digits of such
//! products follow from the other factor, so a model can find a product that it has never seen.

use super::conversion::number_words;
use super::dice::SynthRng;
use super::task::{Language, Task, near_number};

/// The operation on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Sum,
    Difference,
    Product,
}

/// Two numbers and an operation. In a difference, `right` is at most `left`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arithmetic {
    operation: Operation,
    left: u32,
    right: u32,
}

impl Arithmetic {
    pub(super) fn draw(operation: Operation, dice: &mut SynthRng) -> Self {
        let (left, right) = match operation {
            Operation::Sum => (dice.between(2, 99), dice.between(2, 99)),
            Operation::Difference => {
                let (one, other) = (dice.between(2, 99), dice.between(2, 99));
                (one.max(other), one.min(other))
            }
            Operation::Product => {
                let (one, other) = (dice.between(2, 30), *dice.pick(&[2, 3, 5, 10]));
                if dice.chance(0.5) { (one, other) } else { (other, one) }
            }
        };
        Self { operation, left, right }
    }

    /// The follow-up problem: a small number is added to the result or subtracted from it.
    pub(super) fn follow_up(&self, dice: &mut SynthRng) -> Self {
        let (left, right) = (self.result(), dice.between(2, 9));
        let subtract = right <= left && dice.chance(0.5);
        let operation = if subtract { Operation::Difference } else { Operation::Sum };
        Self { operation, left, right }
    }

    fn result(&self) -> u32 {
        match self.operation {
            Operation::Sum => self.left + self.right,
            Operation::Difference => self.left - self.right,
            Operation::Product => self.left * self.right,
        }
    }
}

impl Task for Arithmetic {
    fn family(&self) -> &'static str {
        "arithmetic"
    }

    fn name(&self) -> &'static str {
        match self.operation {
            Operation::Sum => "sum",
            Operation::Difference => "difference",
            Operation::Product => "product",
        }
    }

    fn key(&self) -> String {
        let (low, high) = (self.left.min(self.right), self.left.max(self.right));
        match self.operation {
            Operation::Sum => format!("sum:{low}+{high}"),
            Operation::Difference => format!("difference:{}-{}", self.left, self.right),
            Operation::Product => format!("product:{low}*{high}"),
        }
    }

    fn slots(&self, _: Language) -> Vec<String> {
        vec![self.left.to_string(), self.right.to_string()]
    }

    fn answer(&self, _: Language) -> String {
        self.result().to_string()
    }

    fn near_miss(&self, _: Language, dice: &mut SynthRng) -> String {
        near_number(self.result(), dice).to_string()
    }

    fn other_form(&self, language: Language) -> Option<String> {
        number_words(self.result(), language)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(operation: Operation, left: u32, right: u32) -> Arithmetic {
        Arithmetic { operation, left, right }
    }

    #[test]
    fn results_and_keys() {
        let english = Language::English;
        assert_eq!(problem(Operation::Sum, 45, 37).answer(english), "82");
        assert_eq!(problem(Operation::Difference, 45, 37).answer(english), "8");
        assert_eq!(problem(Operation::Product, 14, 3).answer(english), "42");
        assert_eq!(problem(Operation::Sum, 45, 37).key(), "sum:37+45");
        assert_eq!(problem(Operation::Sum, 37, 45).key(), "sum:37+45");
        assert_eq!(problem(Operation::Product, 3, 14).key(), problem(Operation::Product, 14, 3).key());
    }
}
