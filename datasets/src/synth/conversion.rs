//! Converts units into smaller units, and digits into number words.
//!
//! 1 metre = 100 centimetres, 1 hour = 60 minutes, 1 kilogram = 1000 grams.

use super::dice::SynthRng;
use super::task::{Language, Task, near_number};

/// The target of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Centimetres,
    Minutes,
    Grams,
    Words,
}

/// An amount in the larger unit, or a number of 20 to 99 to be written in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    target: Target,
    amount: u32,
}

impl Conversion {
    pub(super) fn draw(target: Target, dice: &mut SynthRng) -> Self {
        let (low, high) = match target {
            Target::Centimetres | Target::Grams => (2, 99),
            Target::Minutes => (2, 30),
            Target::Words => (20, 99),
        };
        Self { target, amount: dice.between(low, high) }
    }

    /// The key of the problem of writing `number` in words.
    pub(super) fn words_key(number: u32) -> String {
        Self { target: Target::Words, amount: number }.key()
    }

    /// How many smaller units make one larger unit.
    fn factor(&self) -> u32 {
        match self.target {
            Target::Centimetres => 100,
            Target::Minutes => 60,
            Target::Grams => 1000,
            Target::Words => 1,
        }
    }
}

/// The number in words, for 0 to 99.
pub(super) fn number_words(number: u32, language: Language) -> Option<String> {
    if 99 < number {
        return None;
    }
    Some(match language {
        Language::English => english_words(number),
        Language::Chinese => chinese_words(number),
    })
}

fn english_words(number: u32) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] =
        ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

    let (tens, ones) = ((number / 10) as usize, (number % 10) as usize);
    match (tens, ones) {
        (0 | 1, _) => SMALL[number as usize].to_owned(),
        (_, 0) => TENS[tens].to_owned(),
        _ => format!("{} {}", TENS[tens], SMALL[ones]),
    }
}

fn chinese_words(number: u32) -> String {
    const DIGITS: [&str; 10] = ["零", "一", "二", "三", "四", "五", "六", "七", "八", "九"];
    let (tens, ones) = (DIGITS[(number / 10) as usize], DIGITS[(number % 10) as usize]);
    match (number / 10, number % 10) {
        (0, _) => ones.to_owned(),
        (1, 0) => "十".to_owned(),
        (1, _) => format!("十{ones}"),
        (_, 0) => format!("{tens}十"),
        _ => format!("{tens}十{ones}"),
    }
}

impl Task for Conversion {
    fn family(&self) -> &'static str {
        "conversion"
    }

    fn name(&self) -> &'static str {
        match self.target {
            Target::Centimetres => "centimetres",
            Target::Minutes => "minutes",
            Target::Grams => "grams",
            Target::Words => "words",
        }
    }

    fn key(&self) -> String {
        format!("{}:{}", self.name(), self.amount)
    }

    fn slots(&self, language: Language) -> Vec<String> {
        let (from, to) = match (self.target, language) {
            (Target::Centimetres, Language::English) => ("metres", "centimetres"),
            (Target::Centimetres, Language::Chinese) => ("米", "厘米"),
            (Target::Minutes, Language::English) => ("hours", "minutes"),
            (Target::Minutes, Language::Chinese) => ("小时", "分钟"),
            (Target::Grams, Language::English) => ("kilograms", "grams"),
            (Target::Grams, Language::Chinese) => ("千克", "克"),
            (Target::Words, _) => ("", ""),
        };
        vec![self.amount.to_string(), from.to_owned(), to.to_owned()]
    }

    fn answer(&self, language: Language) -> String {
        match self.target {
            Target::Words => number_words(self.amount, language).expect("amounts in words are below 100"),
            _ => (self.amount * self.factor()).to_string(),
        }
    }

    fn near_miss(&self, language: Language, dice: &mut SynthRng) -> String {
        let (amount, factor) = (self.amount, self.factor());
        if self.target == Target::Words {
            let draws: Vec<u32> = (0..8).map(|_| near_number(amount, dice)).collect();
            let near = draws.into_iter().find(|near| (20..100).contains(near));
            let near = near.unwrap_or(if amount == 99 { 98 } else { amount + 1 });
            return number_words(near, language).expect("the near numbers kept are below 100");
        }
        // One zero too few, one zero too many, or one unit too much or too little.
        let choices =
            [amount * factor / 10, amount * factor * 10, (amount + 1) * factor, (amount - 1) * factor];
        dice.pick(&choices).to_string()
    }

    fn other_form(&self, language: Language) -> Option<String> {
        match (self.target, language) {
            (Target::Words, _) => Some(self.amount.to_string()),
            (_, Language::English) => Some(format!("{} {}", self.answer(language), self.slots(language)[2])),
            (_, Language::Chinese) => Some(format!("{}{}", self.answer(language), self.slots(language)[2])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_words_of_both_languages() {
        let table = [
            (0, "zero", "零"),
            (10, "ten", "十"),
            (13, "thirteen", "十三"),
            (20, "twenty", "二十"),
            (82, "eighty two", "八十二"),
        ];
        for (number, english, chinese) in table {
            assert_eq!(number_words(number, Language::English).unwrap(), english);
            assert_eq!(number_words(number, Language::Chinese).unwrap(), chinese);
        }
        assert_eq!(number_words(100, Language::English), None);
    }

    #[test]
    fn units() {
        let answer = |target| Conversion { target, amount: 7 }.answer(Language::English);
        assert_eq!(answer(Target::Centimetres), "700");
        assert_eq!(answer(Target::Minutes), "420");
        assert_eq!(answer(Target::Grams), "7000");
    }
}
