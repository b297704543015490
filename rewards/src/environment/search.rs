//! A search: `? friday` in the last line of a turn is answered with what is known about it.
//!
//! The facts are those that the questions of the synthetic data ask for: units, days, months and numbers in
//! words, in English and Chinese. A query is one name or number; what has no fact has the answer `nothing`.
//!
//! | query | answer |
//! |---|---|
//! | `hours`, `小时` | `1 hour = 60 minutes`, `1小时=60分钟` |
//! | `friday`, `星期五` | the seven days from there on |
//! | `april`, `四月` | `april is month 4`, `四月是第4个月` |
//! | `82` | `eighty two, 八十二` |

use super::tool::call;

/// The answer to a query without a fact.
const NOTHING: &str = "nothing";
/// The longest query, in bytes.
const LONGEST: usize = 64;

const UNITS: [(&[&str], &str); 6] = [
    (&["metre", "metres", "centimetre", "centimetres"], "1 metre = 100 centimetres"),
    (&["hour", "hours", "minute", "minutes"], "1 hour = 60 minutes"),
    (&["kilogram", "kilograms", "gram", "grams"], "1 kilogram = 1000 grams"),
    (&["米", "厘米"], "1米=100厘米"),
    (&["小时", "分钟"], "1小时=60分钟"),
    (&["千克", "克"], "1千克=1000克"),
];
const DAYS: [[&str; 7]; 2] = [
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"],
    ["星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"],
];
const MONTHS: [[&str; 12]; 2] = [
    [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ],
    ["一月", "二月", "三月", "四月", "五月", "六月", "七月", "八月", "九月", "十月", "十一月", "十二月"],
];
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
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const DIGITS: [&str; 10] = ["零", "一", "二", "三", "四", "五", "六", "七", "八", "九"];

/// The answer to the query in a turn, if there is one.
pub(super) fn search(turn: &str) -> Option<String> {
    let query = call(turn, "?")?;
    let fact = if query.len() <= LONGEST { fact(&query.to_lowercase()) } else { None };
    Some(fact.unwrap_or_else(|| NOTHING.to_owned()))
}

fn fact(query: &str) -> Option<String> {
    if let Some((_, unit)) = UNITS.iter().find(|(names, _)| names.contains(&query)) {
        return Some((*unit).to_owned());
    }
    if let Some((days, first)) = DAYS.iter().find_map(|days| Some((days, place(days, query)?))) {
        let days: Vec<&str> = days.iter().cycle().skip(first).take(7).copied().collect();
        return Some(days.join(" "));
    }
    if let Some(month) = place(&MONTHS[0], query) {
        return Some(format!("{query} is month {}", month + 1));
    }
    if let Some(month) = place(&MONTHS[1], query) {
        return Some(format!("{query}是第{}个月", month + 1));
    }
    let is_number = query.bytes().all(|byte| byte.is_ascii_digit());
    let number = query.parse().ok().filter(|number| is_number && *number < 100)?;
    Some(format!("{}, {}", english(number), chinese(number)))
}

fn place(names: &[&str], query: &str) -> Option<usize> {
    names.iter().position(|name| *name == query)
}

/// A number below 100 in English words.
fn english(number: usize) -> String {
    match (number / 10, number % 10) {
        (0 | 1, _) => SMALL[number].to_owned(),
        (tens, 0) => TENS[tens - 2].to_owned(),
        (tens, ones) => format!("{} {}", TENS[tens - 2], SMALL[ones]),
    }
}

/// A number below 100 in Chinese characters.
fn chinese(number: usize) -> String {
    match (number / 10, number % 10) {
        (0, ones) => DIGITS[ones].to_owned(),
        (tens, ones) => {
            let tens = if tens == 1 { "" } else { DIGITS[tens] };
            format!("{tens}十{}", if ones == 0 { "" } else { DIGITS[ones] })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_by_name() {
        for (query, fact) in [
            ("hours", "1 hour = 60 minutes"),
            ("Grams", "1 kilogram = 1000 grams"),
            ("厘米", "1米=100厘米"),
            ("friday", "friday saturday sunday monday tuesday wednesday thursday"),
            ("星期日", "星期日 星期一 星期二 星期三 星期四 星期五 星期六"),
            ("april", "april is month 4"),
            ("十二月", "十二月是第12个月"),
            ("0", "zero, 零"),
            ("7", "seven, 七"),
            ("10", "ten, 十"),
            ("13", "thirteen, 十三"),
            ("20", "twenty, 二十"),
            ("82", "eighty two, 八十二"),
            ("99", "ninety nine, 九十九"),
        ] {
            assert_eq!(search(&format!("?{query}")).as_deref(), Some(fact), "{query}");
            assert_eq!(search(&format!("thinking\n? {query} \n")).as_deref(), Some(fact), "{query}");
        }
    }

    #[test]
    fn what_has_no_fact_has_the_answer_nothing() {
        let long = "9".repeat(1000);
        for query in ["", "100", "-1", "+7", "7.0", "fri", "friday saturday", "day", "月", &long] {
            assert_eq!(search(&format!("? {query}")).as_deref(), Some(NOTHING), "{query}");
        }
        for answer in ["friday", "what day?", ""] {
            assert_eq!(search(answer), None, "{answer}");
        }
    }
}
