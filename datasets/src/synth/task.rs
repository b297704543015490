//! What all tasks have in common: their interface, the language of their questions, and how a right answer is
//! made a wrong one.

use serde::{Deserialize, Serialize};

use super::dice::SynthRng;

/// The language of a question and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English, lower case.
    English,
    /// Simplified Chinese.
    Chinese,
}

/// The names of the families.
pub const FAMILIES: [&str; 6] = ["arithmetic", "list", "letter", "comparison", "conversion", "date"];

/// The interface of a problem, implemented by each family.
pub(super) trait Task {
    /// One of [`FAMILIES`].
    fn family(&self) -> &'static str;
    /// The name of its wordings in `phrase`.
    fn name(&self) -> &'static str;
    /// The key of the problem. Problems that have the same answer by symmetry share a key.
    fn key(&self) -> String;
    /// The values of the slots in the wordings.
    fn slots(&self, language: Language) -> Vec<String>;
    /// The right answer.
    fn answer(&self, language: Language) -> String;
    /// A wrong answer of the right form, close to the right one.
    fn near_miss(&self, language: Language, dice: &mut SynthRng) -> String;
    /// The right answer in another form (words for digits, commas for spaces), if there is one.
    fn other_form(&self, language: Language) -> Option<String>;
}

/// A wrong number near `number`: off by one, off by ten, or with its last two digits swapped.
pub(super) fn near_number(number: u32, dice: &mut SynthRng) -> u32 {
    let mut choices = vec![number + 1];
    if 0 < number {
        choices.push(number - 1);
    }
    if 10 <= number {
        choices.extend([number + 10, number - 10]);
        let (tens, ones) = (number / 10 % 10, number % 10);
        let swapped = number / 100 * 100 + ones * 10 + tens;
        if swapped != number && (ones != 0 || 100 <= number) {
            choices.push(swapped);
        }
    }
    *dice.pick(&choices)
}

/// Swaps two neighbours that differ.
pub(super) fn swap_neighbours<T: PartialEq>(items: &mut [T], dice: &mut SynthRng) {
    let places: Vec<usize> = (1..items.len()).filter(|&place| items[place - 1] != items[place]).collect();
    assert!(!places.is_empty(), "lists of the world hold at least two different items");
    let place = *dice.pick(&places);
    items.swap(place - 1, place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_numbers_are_near_and_wrong() {
        let mut dice = SynthRng::new(0, 0);
        for number in 0..300 {
            for _ in 0..20 {
                let near = near_number(number, &mut dice);
                assert_ne!(near, number);
                assert!(near.abs_diff(number) <= 81 && (number < 100 || 90 <= near));
            }
        }
        let seen: std::collections::BTreeSet<u32> = (0..100).map(|_| near_number(82, &mut dice)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [28, 72, 81, 83, 92]);
    }
}
