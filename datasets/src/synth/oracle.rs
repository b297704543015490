//! An independent solver for the tests: it reads the text of a prompt like a person and knows nothing of the
//! generator.
//!
//! It shares no table and no function with the tasks: it cuts numbers and words from the text, and keywords
//! decide what the question is. A two-turn conversation is solved as the text of the last turn applied to the
//! last reply.

use super::question::{KINDS, Question, QuestionPlan};
use super::task::Language;
use super::{SynthData, SynthRng};
use crate::conversation::Message;
use crate::synth::SynthOptions;

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<i64> {
    text.split(|sign: char| !sign.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The words of ASCII letters in a text.
fn latin(text: &str) -> Vec<&str> {
    text.split(|sign: char| !sign.is_ascii_alphabetic()).filter(|part| !part.is_empty()).collect()
}

fn arithmetic(text: &str, before: Option<&str>) -> String {
    let mut operands: Vec<i64> = before.map(|reply| reply.parse().unwrap()).into_iter().collect();
    operands.extend(numbers(text));
    let [left, right] = operands[..] else { panic!("two operands wanted: {text}") };
    let result = if has(text, &["*", "times", "multiply", "product", "乘", "积"]) {
        left * right
    } else if has(text, &["+", "plus", "add", "sum", "加", "和"]) {
        left + right
    } else if has(text, &["take"]) && before.is_none() {
        right - left
    } else {
        assert!(has(text, &["-", "minus", "take", "减", "差"]), "{text}");
        left - right
    };
    result.to_string()
}

/// The items of the list: the words that remain after the request is removed.
fn items(text: &str) -> Vec<String> {
    let body = text.split([':', '：']).nth(1).unwrap_or(text);
    let cuts = ["the largest of", "the smallest of", "how many words are in", " is?"];
    let mut body = cuts.iter().fold(body.to_owned(), |body, cut| body.replace(cut, " "));
    for cut in ["中最大的是", "中最小的是", "中第", "中有", "有几个词"] {
        body = body.split(cut).next().unwrap().to_owned();
    }
    let trimmed = body.trim_matches(|sign: char| " ?？。.".contains(sign));
    trimmed.split_whitespace().map(str::to_owned).collect()
}

fn list(text: &str, before: Option<&str>) -> String {
    let mut items = before.map_or_else(|| items(text), |reply| reply.split(' ').map(str::to_owned).collect());
    let value = |item: &String| item.parse::<i64>().unwrap();
    if has(text, &["largest", "最大"]) {
        items.iter().map(value).max().unwrap().to_string()
    } else if has(text, &["smallest", "最小"]) {
        items.iter().map(value).min().unwrap().to_string()
    } else if has(text, &["how many", "count", "number of", "几", "多少个", "数一下"]) {
        items.len().to_string()
    } else if has(text, &["word", "第"]) {
        items[numbers(text)[0] as usize - 1].clone()
    } else if has(text, &["reverse", "last to first", "倒", "从后到前"]) {
        items.reverse();
        items.join(" ")
    } else {
        assert!(has(text, &["sort", "order", "small to large", "排序", "从小到大"]), "{text}");
        items.sort_by_key(value);
        items.join(" ")
    }
}

const REQUEST: [&str; 23] = [
    "how",
    "many",
    "are",
    "in",
    "count",
    "the",
    "letter",
    "letters",
    "times",
    "is",
    "find",
    "number",
    "of",
    "first",
    "last",
    "what",
    "give",
    "which",
    "spell",
    "word",
    "write",
    "backwards",
    "s",
];

fn letter(text: &str, language: Language) -> String {
    let mut words = latin(text);
    if language == Language::English {
        let single = words.iter().filter(|word| word.len() == 1).count();
        words.retain(|word| (word.len() == 1 && single == 1) || !REQUEST.contains(word));
    }
    let word = *words.iter().find(|word| 1 < word.len()).unwrap();
    let wanted = words.iter().find(|word| word.len() == 1);
    let spaced = |letters: Vec<String>| letters.join(" ");
    if let Some(wanted) = wanted {
        word.matches(wanted).count().to_string()
    } else if has(text, &["backwards", "倒"]) {
        word.chars().rev().collect()
    } else if has(text, &["first", "第一个", "最前"]) {
        word[..1].to_owned()
    } else if has(text, &["last", "最后"]) {
        word[word.len() - 1..].to_owned()
    } else {
        assert!(has(text, &["spell", "letters", "字母"]), "{text}");
        spaced(word.chars().map(String::from).collect())
    }
}

fn comparison(text: &str, language: Language) -> String {
    let [left, right] = numbers(text)[..] else { panic!("two numbers wanted: {text}") };
    if has(text, &["same", "相同"]) {
        return match (left == right, language) {
            (true, Language::English) => "same",
            (false, Language::English) => "different",
            (true, Language::Chinese) => "相同",
            (false, Language::Chinese) => "不同",
        }
        .to_owned();
    }
    (if has(text, &["larger", "大"]) { left.max(right) } else { left.min(right) }).to_string()
}

/// Converts an amount to smaller units; `None` for number words, which are not read.
fn conversion(text: &str) -> Option<String> {
    let amount = numbers(text)[0];
    let factor = if has(text, &["centimetres", "厘米"]) {
        100
    } else if has(text, &["minutes", "分钟"]) {
        60
    } else if has(text, &["grams", "克"]) {
        1000
    } else {
        return None;
    };
    Some((amount * factor).to_string())
}

fn date(text: &str, before: Option<&str>, language: Language) -> Option<String> {
    const ENGLISH: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    const CHINESE: [&str; 7] = ["星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"];
    let days = if language == Language::English { ENGLISH } else { CHINESE };
    let start = days.iter().position(|day| before.unwrap_or(text).contains(day))?;
    let mut day = start;
    for _ in 0..numbers(text)[0] {
        day = if has(text, &["before", "ago", "天前", "前"]) { (day + 6) % 7 } else { (day + 1) % 7 };
    }
    Some(days[day].to_owned())
}

/// The answer, or `None` if this solver cannot read the question (number words, months).
fn solve(messages: &[Message], family: &str, language: Language) -> Option<String> {
    let text = messages.last()?.content.as_str();
    let before = (1 < messages.len()).then(|| messages[1].content.as_str());
    match family {
        "arithmetic" => Some(arithmetic(text, before)),
        "list" => Some(list(text, before)),
        "letter" => Some(letter(text, language)),
        "comparison" => Some(comparison(text, language)),
        "conversion" => conversion(text),
        "date" => date(text, before, language),
        _ => panic!("unknown family {family}"),
    }
}

fn check(question: &Question) -> bool {
    let solved = solve(&question.messages, question.family, question.language);
    if let Some(solved) = &solved {
        assert_eq!(solved, &question.answer, "{:?}", question.messages);
    }
    if question.messages.len() == 3 {
        let first = solve(&question.messages[..1], question.family, question.language);
        assert_eq!(first.as_deref(), Some(question.messages[1].content.as_str()), "{:?}", question.messages);
    }
    solved.is_some()
}

#[test]
fn an_independent_solver_agrees_in_every_kind() {
    let mut dice = SynthRng::new(9, 0);
    for (kind, _) in KINDS {
        let mut read = 0;
        for round in 0..600 {
            let language = if round % 2 == 0 { Language::English } else { Language::Chinese };
            let question = QuestionPlan::draw(kind, round % 3 == 0, &mut dice).ask(language, &mut dice);
            read += usize::from(check(&question));
        }
        assert!(read == 600 || read == 0, "{kind:?}: read {read} of 600");
    }
}

#[test]
fn an_independent_solver_agrees_on_the_held_out_questions() {
    let sizes = SynthOptions { seed: 3, heldout: 800, prompts: 2000, ..empty() };
    let world = SynthData::generate(&sizes).unwrap();
    let read = world.heldout.iter().chain(&world.prompts).filter(|question| check(question)).count();
    assert!(2500 < read, "{read}");
}

fn empty() -> SynthOptions {
    SynthOptions {
        pretraining: 0,
        train: 0,
        preferences: 0,
        heldout_preferences: 0,
        ..SynthOptions::default()
    }
}
