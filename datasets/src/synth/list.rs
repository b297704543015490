//! Short lists: reverse, sort, largest, smallest, n-th word, number of words.
//!
//! Items are single letters, single digits, numbers below 100, or nouns. The vocabulary has sixteen nouns,
//! each of one character in Chinese. If the answer does not depend on the order of the list, the key does not
//! depend on it either.

use super::conversion::number_words;
use super::dice::SynthRng;
use super::task::{Language, Task, swap_neighbours};

/// The nouns in English and Chinese.
pub(super) const NOUNS: [(&str, &str); 16] = [
    ("dog", "狗"),
    ("cat", "猫"),
    ("fish", "鱼"),
    ("bird", "鸟"),
    ("sun", "日"),
    ("moon", "月"),
    ("hill", "山"),
    ("lake", "水"),
    ("fire", "火"),
    ("tree", "木"),
    ("boy", "人"),
    ("hand", "手"),
    ("book", "书"),
    ("rose", "花"),
    ("tea", "茶"),
    ("rice", "米"),
];

/// The question about a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Reverse,
    Sort,
    Largest,
    Smallest,
    Nth,
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Number(u32),
    Letter(char),
    Noun(usize),
}

/// A list and the question about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListProblem {
    wanted: Wanted,
    items: Vec<Item>,
    /// The index of the requested item, from 0; 0 for other questions.
    place: usize,
}

impl ListProblem {
    pub(super) fn draw(wanted: Wanted, dice: &mut SynthRng) -> Self {
        let items: Vec<Item> = match wanted {
            Wanted::Reverse if dice.chance(0.5) => {
                let count = dice.between(3, 5) as usize;
                let letter = |index| Item::Letter(char::from(b'a' + index as u8));
                dice.distinct(count, 0, 25).into_iter().map(letter).collect()
            }
            Wanted::Reverse | Wanted::Sort => numbers(dice, (3, 5), (0, 9)),
            Wanted::Largest | Wanted::Smallest => numbers(dice, (3, 3), (1, 99)),
            Wanted::Nth => nouns(dice, 3, 5),
            Wanted::Length => nouns(dice, 2, 6),
        };
        let place = if wanted == Wanted::Nth { dice.below(items.len()) } else { 0 };
        Self { wanted, items, place }
    }

    /// The follow-up problem: a sorted list is reversed.
    pub(super) fn follow_up(&self) -> Option<Self> {
        if self.wanted != Wanted::Sort {
            return None;
        }
        let mut items = self.items.clone();
        items.sort_unstable();
        Some(Self { wanted: Wanted::Reverse, items, place: 0 })
    }

    fn result(&self) -> Vec<Item> {
        let mut items = self.items.clone();
        match self.wanted {
            Wanted::Reverse => items.reverse(),
            Wanted::Sort => items.sort_unstable(),
            Wanted::Largest => items = items.into_iter().max().into_iter().collect(),
            Wanted::Smallest => items = items.into_iter().min().into_iter().collect(),
            Wanted::Nth => items = vec![items[self.place]],
            Wanted::Length => items = vec![Item::Number(items.len() as u32)],
        }
        items
    }
}

fn numbers(dice: &mut SynthRng, count: (u32, u32), range: (u32, u32)) -> Vec<Item> {
    let count = dice.between(count.0, count.1) as usize;
    dice.distinct(count, range.0, range.1).into_iter().map(Item::Number).collect()
}

fn nouns(dice: &mut SynthRng, fewest: u32, most: u32) -> Vec<Item> {
    let count = dice.between(fewest, most) as usize;
    let last = NOUNS.len() as u32 - 1;
    dice.distinct(count, 0, last).into_iter().map(|index| Item::Noun(index as usize)).collect()
}

fn write(items: &[Item], separator: &str, language: Language) -> String {
    let words: Vec<String> = items
        .iter()
        .map(|item| match (item, language) {
            (Item::Number(number), _) => number.to_string(),
            (Item::Letter(letter), _) => letter.to_string(),
            (&Item::Noun(index), Language::English) => NOUNS[index].0.to_owned(),
            (&Item::Noun(index), Language::Chinese) => NOUNS[index].1.to_owned(),
        })
        .collect();
    words.join(separator)
}

impl Task for ListProblem {
    fn family(&self) -> &'static str {
        "list"
    }

    fn name(&self) -> &'static str {
        match self.wanted {
            Wanted::Reverse => "reverse",
            Wanted::Sort => "sort",
            Wanted::Largest => "largest",
            Wanted::Smallest => "smallest",
            Wanted::Nth => "nth",
            Wanted::Length => "length",
        }
    }

    fn key(&self) -> String {
        let mut items = self.items.clone();
        if !matches!(self.wanted, Wanted::Reverse | Wanted::Nth) {
            items.sort_unstable();
        }
        let place =
            if self.wanted == Wanted::Nth { format!("{} of ", self.place + 1) } else { String::new() };
        format!("{}:{place}{}", self.name(), write(&items, " ", Language::English))
    }

    fn slots(&self, language: Language) -> Vec<String> {
        vec![write(&self.items, " ", language), (self.place + 1).to_string()]
    }

    fn answer(&self, language: Language) -> String {
        write(&self.result(), " ", language)
    }

    fn near_miss(&self, language: Language, dice: &mut SynthRng) -> String {
        let mut result = self.result();
        match self.wanted {
            Wanted::Reverse | Wanted::Sort => swap_neighbours(&mut result, dice),
            Wanted::Length => {
                let length = self.items.len() as u32;
                result = vec![Item::Number(*dice.pick(&[length - 1, length + 1]))];
            }
            Wanted::Largest | Wanted::Smallest | Wanted::Nth => {
                let others: Vec<Item> =
                    self.items.iter().copied().filter(|item| *item != result[0]).collect();
                result = vec![*dice.pick(&others)];
            }
        }
        write(&result, " ", language)
    }

    fn other_form(&self, language: Language) -> Option<String> {
        let result = self.result();
        match result[..] {
            [Item::Number(number)] => number_words(number, language),
            [_] => None,
            _ => Some(write(&result, if language == Language::English { ", " } else { "，" }, language)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_keys() {
        let items = [7, 2, 9].map(Item::Number).to_vec();
        let problem = |wanted| ListProblem { wanted, items: items.clone(), place: 0 };
        let answer = |wanted| problem(wanted).answer(Language::English);
        assert_eq!(answer(Wanted::Reverse), "9 2 7");
        assert_eq!(answer(Wanted::Sort), "2 7 9");
        assert_eq!(answer(Wanted::Largest), "9");
        assert_eq!(answer(Wanted::Smallest), "2");
        assert_eq!(answer(Wanted::Length), "3");
        assert_eq!(problem(Wanted::Reverse).key(), "reverse:7 2 9");
        assert_eq!(problem(Wanted::Sort).key(), "sort:2 7 9");
        assert_eq!(problem(Wanted::Sort).follow_up().unwrap().answer(Language::English), "9 7 2");
    }

    #[test]
    fn nouns_speak_two_languages_under_one_key() {
        let items = vec![Item::Noun(0), Item::Noun(4), Item::Noun(14)];
        let problem = ListProblem { wanted: Wanted::Nth, items, place: 1 };
        assert_eq!(problem.key(), "nth:2 of dog sun tea");
        assert_eq!(problem.answer(Language::English), "sun");
        assert_eq!(problem.answer(Language::Chinese), "日");
    }
}
