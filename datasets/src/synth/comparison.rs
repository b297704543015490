//! Compares two numbers: which one is larger or smaller, and whether they are the same.
//!
//! The order of the numbers in the text is not part of the problem. In "same or different", numbers that
//! differ do so in exactly one digit.

use super::conversion::number_words;
use super::dice::SynthRng;
use super::task::{Language, Task};

/// The question about two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Larger,
    Smaller,
    Same,
}

/// Two numbers and the question about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    relation: Relation,
    left: u32,
    right: u32,
}

impl Comparison {
    pub(super) fn draw(relation: Relation, dice: &mut SynthRng) -> Self {
        if relation == Relation::Same {
            let left = dice.between(100, 999);
            let right = if dice.chance(0.5) { left } else { change_one_digit(left, dice) };
            return Self { relation, left, right };
        }
        let pair = dice.distinct(2, 10, 99);
        Self { relation, left: pair[0], right: pair[1] }
    }

    fn ordered(&self) -> (u32, u32) {
        (self.left.min(self.right), self.left.max(self.right))
    }

    fn write(&self, right_way: bool, language: Language) -> String {
        let (low, high) = self.ordered();
        match self.relation {
            Relation::Same => sameness((low == high) == right_way, language).to_owned(),
            Relation::Larger => (if right_way { high } else { low }).to_string(),
            Relation::Smaller => (if right_way { low } else { high }).to_string(),
        }
    }
}

fn sameness(same: bool, language: Language) -> &'static str {
    match (same, language) {
        (true, Language::English) => "same",
        (false, Language::English) => "different",
        (true, Language::Chinese) => "相同",
        (false, Language::Chinese) => "不同",
    }
}

/// A three-digit number that differs from `number` in one digit.
fn change_one_digit(number: u32, dice: &mut SynthRng) -> u32 {
    let unit = *dice.pick(&[1, 10, 100]);
    let old = number / unit % 10;
    let lowest = u32::from(unit == 100);
    let choices: Vec<u32> = (lowest..10).filter(|&digit| digit != old).collect();
    number - old * unit + dice.pick(&choices) * unit
}

impl Task for Comparison {
    fn family(&self) -> &'static str {
        "comparison"
    }

    fn name(&self) -> &'static str {
        match self.relation {
            Relation::Larger => "larger",
            Relation::Smaller => "smaller",
            Relation::Same => "same",
        }
    }

    fn key(&self) -> String {
        let (low, high) = self.ordered();
        format!("{}:{low},{high}", self.name())
    }

    fn slots(&self, _: Language) -> Vec<String> {
        vec![self.left.to_string(), self.right.to_string()]
    }

    fn answer(&self, language: Language) -> String {
        self.write(true, language)
    }

    fn near_miss(&self, language: Language, _: &mut SynthRng) -> String {
        self.write(false, language)
    }

    fn other_form(&self, language: Language) -> Option<String> {
        let (low, high) = self.ordered();
        match self.relation {
            Relation::Larger => number_words(high, language),
            Relation::Smaller => number_words(low, language),
            Relation::Same => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_keys() {
        let problem = |relation, left, right| Comparison { relation, left, right };
        assert_eq!(problem(Relation::Larger, 37, 45).answer(Language::English), "45");
        assert_eq!(problem(Relation::Smaller, 37, 45).answer(Language::Chinese), "37");
        assert_eq!(problem(Relation::Same, 417, 417).answer(Language::English), "same");
        assert_eq!(problem(Relation::Same, 417, 427).answer(Language::Chinese), "不同");
        assert_eq!(problem(Relation::Larger, 45, 37).key(), problem(Relation::Larger, 37, 45).key());
    }

    #[test]
    fn one_digit_changes() {
        let mut dice = SynthRng::new(2, 0);
        for number in 100..1000 {
            let other = change_one_digit(number, &mut dice);
            let changed =
                [1, 10, 100].iter().filter(|&&unit| number / unit % 10 != other / unit % 10).count();
            assert_eq!(changed, 1, "{number} {other}");
            assert!((100..1000).contains(&other));
        }
    }
}
