//! Days of the week some days later or earlier, and the earlier of two months in the year.
//!
//! Counts of days begin at 2. A count of 1 would be too easy, because the corpus contains the list of days in
//! order.

use super::dice::SynthRng;
use super::task::{Language, Task};

/// The days in English and Chinese, from Monday.
pub(super) const DAYS: [(&str, &str); 7] = [
    ("monday", "星期一"),
    ("tuesday", "星期二"),
    ("wednesday", "星期三"),
    ("thursday", "星期四"),
    ("friday", "星期五"),
    ("saturday", "星期六"),
    ("sunday", "星期日"),
];

/// The months in English and Chinese.
pub(super) const MONTHS: [(&str, &str); 12] = [
    ("january", "一月"),
    ("february", "二月"),
    ("march", "三月"),
    ("april", "四月"),
    ("may", "五月"),
    ("june", "六月"),
    ("july", "七月"),
    ("august", "八月"),
    ("september", "九月"),
    ("october", "十月"),
    ("november", "十一月"),
    ("december", "十二月"),
];

/// The question about a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    After,
    Before,
    Earlier,
}

/// A day and a number of days, or two months. Days and months are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Date {
    direction: Direction,
    start: usize,
    /// The number of days, or the other month.
    other: usize,
}

impl Date {
    pub(super) fn draw(direction: Direction, dice: &mut SynthRng) -> Self {
        if direction == Direction::Earlier {
            let months = dice.distinct(2, 0, 11);
            return Self { direction, start: months[0] as usize, other: months[1] as usize };
        }
        Self { direction, start: dice.below(7), other: dice.between(2, 9) as usize }
    }

    /// The follow-up problem: some days after the answer of an `After` problem.
    pub(super) fn follow_up(&self, dice: &mut SynthRng) -> Option<Self> {
        if self.direction != Direction::After {
            return None;
        }
        Some(Self { direction: Direction::After, start: self.result(), other: dice.between(2, 9) as usize })
    }

    fn result(&self) -> usize {
        match self.direction {
            Direction::After => (self.start + self.other) % 7,
            Direction::Before => (self.start + 14 - self.other) % 7,
            Direction::Earlier => self.start.min(self.other),
        }
    }
}

fn write(name: (&str, &str), language: Language) -> String {
    let (english, chinese) = name;
    (if language == Language::English { english } else { chinese }).to_owned()
}

impl Task for Date {
    fn family(&self) -> &'static str {
        "date"
    }

    fn name(&self) -> &'static str {
        match self.direction {
            Direction::After => "after",
            Direction::Before => "before",
            Direction::Earlier => "earlier",
        }
    }

    fn key(&self) -> String {
        let (start, other) = (self.start, self.other);
        match self.direction {
            Direction::After => format!("after:{}+{other}", DAYS[start].0),
            Direction::Before => format!("before:{}-{other}", DAYS[start].0),
            Direction::Earlier => {
                format!("earlier:{},{}", MONTHS[start.min(other)].0, MONTHS[start.max(other)].0)
            }
        }
    }

    fn slots(&self, language: Language) -> Vec<String> {
        match self.direction {
            Direction::Earlier => {
                vec![write(MONTHS[self.start], language), write(MONTHS[self.other], language)]
            }
            _ => vec![write(DAYS[self.start], language), self.other.to_string()],
        }
    }

    fn answer(&self, language: Language) -> String {
        match self.direction {
            Direction::Earlier => write(MONTHS[self.result()], language),
            _ => write(DAYS[self.result()], language),
        }
    }

    fn near_miss(&self, language: Language, dice: &mut SynthRng) -> String {
        match self.direction {
            Direction::Earlier => write(MONTHS[self.start.max(self.other)], language),
            _ => write(DAYS[(self.result() + dice.pick(&[1, 6])) % 7], language),
        }
    }

    fn other_form(&self, language: Language) -> Option<String> {
        match (self.direction, language) {
            (Direction::Earlier, _) | (_, Language::Chinese) => None,
            // The usual abbreviation: tue for tuesday.
            _ => Some(DAYS[self.result()].0[..3].to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_wrap_around() {
        let date = |direction, start, other| Date { direction, start, other }.answer(Language::English);
        assert_eq!(date(Direction::After, 4, 3), "monday");
        assert_eq!(date(Direction::After, 0, 9), "wednesday");
        assert_eq!(date(Direction::Before, 1, 3), "saturday");
        assert_eq!(date(Direction::Before, 0, 9), "saturday");
        assert_eq!(date(Direction::Earlier, 8, 3), "april");
    }

    #[test]
    fn the_order_of_months_is_no_part_of_the_problem() {
        let key = |start, other| Date { direction: Direction::Earlier, start, other }.key();
        assert_eq!(key(8, 3), "earlier:april,september");
        assert_eq!(key(8, 3), key(3, 8));
    }
}
