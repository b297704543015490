//! The wordings of all tasks, in both languages: as a question, as a follow-up question, and as a statement.
//!
//! `{0}`, `{1}`, `{2}` stand for the slots of a task and `{=}` for its answer. English is lower case. Both
//! languages use few different words and characters, so that a vocabulary of 512 tokens covers them well.
//! Statements are for the corpus, and none of them is a question. This module knows no numbers, lists or
//! dates.

use super::dice::SynthRng;
use super::task::{Language, Task};

/// The wordings of one task in one language.
struct Wording {
    ask: [&'static str; 4],
    state: [&'static str; 2],
}

/// The wordings of one task.
struct Phrases {
    name: &'static str,
    english: Wording,
    chinese: Wording,
}

/// The wordings of a second turn that builds on the first answer.
struct Further {
    name: &'static str,
    english: [&'static str; 4],
    chinese: [&'static str; 4],
}

/// Writes the problem as a request.
pub(super) fn ask(task: &dyn Task, language: Language, dice: &mut SynthRng) -> String {
    fill(dice.pick::<&str>(&wording(task, language).ask), task, language)
}

/// Writes the problem as a second turn. The first slot is the previous answer and is not repeated.
pub(super) fn ask_further(task: &dyn Task, language: Language, dice: &mut SynthRng) -> String {
    let further = FURTHER.iter().find(|further| further.name == task.name());
    let further = further.expect("every task that follows has wordings");
    let choices = if language == Language::English { &further.english } else { &further.chinese };
    fill(dice.pick::<&str>(choices), task, language)
}

/// Writes the problem and its answer as a statement.
pub(super) fn state(task: &dyn Task, language: Language, dice: &mut SynthRng) -> String {
    fill(dice.pick::<&str>(&wording(task, language).state), task, language)
}

fn wording(task: &dyn Task, language: Language) -> &'static Wording {
    let phrases = PHRASES.iter().find(|phrases| phrases.name == task.name());
    let phrases = phrases.expect("every task has wordings");
    if language == Language::English { &phrases.english } else { &phrases.chinese }
}

fn fill(template: &str, task: &dyn Task, language: Language) -> String {
    let mut text = template.replace("{=}", &task.answer(language));
    for (index, slot) in task.slots(language).iter().enumerate() {
        text = text.replace(&format!("{{{index}}}"), slot);
    }
    text
}

const fn phrases(
    name: &'static str,
    english: ([&'static str; 4], [&'static str; 2]),
    chinese: ([&'static str; 4], [&'static str; 2]),
) -> Phrases {
    Phrases {
        name,
        english: Wording { ask: english.0, state: english.1 },
        chinese: Wording { ask: chinese.0, state: chinese.1 },
    }
}

#[rustfmt::skip]
static PHRASES: [Phrases; 24] = [
    phrases("sum",
        (["what is {0} + {1}?", "{0} plus {1} is?", "add {0} and {1}.", "find the sum of {0} and {1}."],
         ["{0} + {1} = {=}", "{0} plus {1} is {=}."]),
        (["{0}+{1}等于多少？", "{0}加{1}是多少？", "求{0}与{1}的和。", "算一下{0}+{1}。"],
         ["{0}+{1}={=}", "{0}加{1}等于{=}。"])),
    phrases("difference",
        (["what is {0} - {1}?", "{0} minus {1} is?", "take {1} from {0}.", "find {0} - {1}."],
         ["{0} - {1} = {=}", "{0} minus {1} is {=}."]),
        (["{0}-{1}等于多少？", "{0}减{1}是多少？", "求{0}与{1}的差。", "算一下{0}-{1}。"],
         ["{0}-{1}={=}", "{0}减{1}等于{=}。"])),
    phrases("product",
        (["what is {0} * {1}?", "{0} times {1} is?", "multiply {0} by {1}.", "find the product of {0} and {1}."],
         ["{0} * {1} = {=}", "{0} times {1} is {=}."]),
        (["{0}*{1}等于多少？", "{0}乘{1}是多少？", "求{0}与{1}的积。", "算一下{0}*{1}。"],
         ["{0}*{1}={=}", "{0}乘{1}等于{=}。"])),
    phrases("reverse",
        (["reverse: {0}", "reverse the list: {0}", "give in reverse: {0}", "from last to first: {0}"],
         ["{0} in reverse is {=}", "from last to first, {0} is {=}"]),
        (["倒序：{0}", "倒着写：{0}", "从后到前：{0}", "从后到前写：{0}"],
         ["{0}倒序是{=}", "{0}从后到前是{=}"])),
    phrases("sort",
        (["sort: {0}", "sort the list: {0}", "from small to large: {0}", "put in order: {0}"],
         ["{0} in order is {=}", "from small to large, {0} is {=}"]),
        (["排序：{0}", "从小到大：{0}", "从小到大写：{0}", "从小到大排序：{0}"],
         ["{0}排序是{=}", "{0}从小到大是{=}"])),
    phrases("largest",
        (["find the largest: {0}", "which is the largest: {0}?", "the largest of {0} is?", "give the largest: {0}"],
         ["the largest of {0} is {=}", "of {0} the largest is {=}"]),
        (["最大的数：{0}", "哪个数最大：{0}？", "{0}中最大的是？", "求最大的数：{0}"],
         ["{0}中最大的是{=}", "{0}中最大的数是{=}"])),
    phrases("smallest",
        (["find the smallest: {0}", "which is the smallest: {0}?", "the smallest of {0} is?",
          "give the smallest: {0}"],
         ["the smallest of {0} is {=}", "of {0} the smallest is {=}"]),
        (["最小的数：{0}", "哪个数最小：{0}？", "{0}中最小的是？", "求最小的数：{0}"],
         ["{0}中最小的是{=}", "{0}中最小的数是{=}"])),
    phrases("nth",
        (["word {1} of: {0}", "give word {1}: {0}", "which is word {1}: {0}?", "find word {1} of: {0}"],
         ["word {1} of {0} is {=}", "of {0}, word {1} is {=}"]),
        (["第{1}个词：{0}", "写第{1}个词：{0}", "{0}中第{1}个词是？", "求第{1}个词：{0}"],
         ["{0}中第{1}个词是{=}", "{0}的第{1}个词是{=}"])),
    phrases("length",
        (["how many words: {0}?", "count the words: {0}", "how many words are in {0}?",
          "find the number of words: {0}"],
         ["the number of words in {0} is {=}", "words in {0}: {=}"]),
        (["有几个词：{0}？", "{0}有几个词？", "数一下词：{0}", "{0}中有多少个词？"],
         ["{0}有{=}个词。", "{0}中有{=}个词。"])),
    phrases("count",
        (["how many {1} are in {0}?", "count the letter {1} in {0}.", "how many times is {1} in {0}?",
          "find the number of {1} in {0}."],
         ["the number of {1} in {0} is {=}", "{1} is in {0} {=} times."]),
        (["{0}里有几个{1}？", "数一下{0}里的{1}。", "{1}在{0}里有几个？", "{0}中有多少个{1}？"],
         ["{0}里有{=}个{1}。", "{0}中有{=}个{1}。"])),
    phrases("first",
        (["first letter of {0}?", "what is the first letter of {0}?", "give the first letter of {0}.",
          "which letter is first in {0}?"],
         ["the first letter of {0} is {=}", "{0} has {=} as first letter."]),
        (["{0}的第一个字母是？", "写{0}的第一个字母。", "{0}里哪个字母在最前？", "求{0}的第一个字母。"],
         ["{0}的第一个字母是{=}", "{0}里最前的字母是{=}"])),
    phrases("last",
        (["last letter of {0}?", "what is the last letter of {0}?", "give the last letter of {0}.",
          "which letter is last in {0}?"],
         ["the last letter of {0} is {=}", "{0} has {=} as last letter."]),
        (["{0}的最后一个字母是？", "写{0}的最后一个字母。", "{0}里哪个字母在最后？", "求{0}的最后一个字母。"],
         ["{0}的最后一个字母是{=}", "{0}里最后的字母是{=}"])),
    phrases("spelled",
        (["spell {0}.", "spell the word {0}.", "give the letters of {0}.", "write the letters of {0}."],
         ["the letters of {0} are {=}", "{0} has the letters {=}"]),
        (["写{0}的字母。", "一个一个写{0}的字母。", "{0}的字母是？", "求{0}的字母。"],
         ["{0}的字母是{=}", "{0}有字母{=}"])),
    phrases("backwards",
        (["what is {0} backwards?", "give {0} backwards.", "write {0} backwards.", "{0} backwards is?"],
         ["{0} backwards is {=}", "the word {0} backwards is {=}"]),
        (["倒写{0}。", "{0}倒写是？", "把{0}倒写。", "倒着写{0}。"],
         ["{0}倒写是{=}", "把{0}倒写是{=}"])),
    phrases("larger",
        (["which is larger, {0} or {1}?", "larger: {0} or {1}?", "give the larger of {0} and {1}.",
          "is {0} or {1} larger?"],
         ["of {0} and {1} the larger is {=}", "the larger of {0} and {1} is {=}"]),
        (["{0}和{1}哪个大？", "哪个大，{0}和{1}？", "{0}与{1}中大的是？", "写大的数：{0}和{1}"],
         ["{0}和{1}中大的是{=}", "{0}与{1}中大的数是{=}"])),
    phrases("smaller",
        (["which is smaller, {0} or {1}?", "smaller: {0} or {1}?", "give the smaller of {0} and {1}.",
          "is {0} or {1} smaller?"],
         ["of {0} and {1} the smaller is {=}", "the smaller of {0} and {1} is {=}"]),
        (["{0}和{1}哪个小？", "哪个小，{0}和{1}？", "{0}与{1}中小的是？", "写小的数：{0}和{1}"],
         ["{0}和{1}中小的是{=}", "{0}与{1}中小的数是{=}"])),
    phrases("same",
        (["same or different: {0} and {1}?", "are {0} and {1} same or different?",
          "{0} and {1}: same or different?", "is {0} the same as {1} or different?"],
         ["{0} and {1} are {=}", "the numbers {0} and {1} are {=}"]),
        (["{0}和{1}相同还是不同？", "相同还是不同：{0}和{1}？", "{0}与{1}相同还是不同？", "{0}和{1}是不同还是相同？"],
         ["{0}和{1}{=}。", "{0}与{1}是{=}的。"])),
    phrases("centimetres",
        (["how many {2} are {0} {1}?", "{0} {1} in {2}?", "turn {0} {1} into {2}.", "give {0} {1} in {2}."],
         ["{0} {1} are {=} {2}.", "{0} {1} = {=} {2}"]),
        (["{0}{1}是多少{2}？", "{0}{1}等于多少{2}？", "把{0}{1}写成{2}。", "{0}{1}有多少{2}？"],
         ["{0}{1}是{=}{2}。", "{0}{1}={=}{2}"])),
    phrases("minutes",
        (["how many {2} are {0} {1}?", "{0} {1} in {2}?", "turn {0} {1} into {2}.", "give {0} {1} in {2}."],
         ["{0} {1} are {=} {2}.", "{0} {1} = {=} {2}"]),
        (["{0}{1}是多少{2}？", "{0}{1}等于多少{2}？", "把{0}{1}写成{2}。", "{0}{1}有多少{2}？"],
         ["{0}{1}是{=}{2}。", "{0}{1}={=}{2}"])),
    phrases("grams",
        (["how many {2} are {0} {1}?", "{0} {1} in {2}?", "turn {0} {1} into {2}.", "give {0} {1} in {2}."],
         ["{0} {1} are {=} {2}.", "{0} {1} = {=} {2}"]),
        (["{0}{1}是多少{2}？", "{0}{1}等于多少{2}？", "把{0}{1}写成{2}。", "{0}{1}有多少{2}？"],
         ["{0}{1}是{=}{2}。", "{0}{1}={=}{2}"])),
    phrases("words",
        (["write {0} in words.", "what is {0} in words?", "give {0} in words.", "{0} in words is?"],
         ["{0} in words is {=}", "the number {0} is {=} in words."]),
        (["把{0}写成汉字。", "{0}的汉字是？", "用汉字写{0}。", "写{0}的汉字。"],
         ["{0}的汉字是{=}", "{0}写成汉字是{=}"])),
    phrases("after",
        (["{1} days after {0}?", "what day is {1} days after {0}?", "which day comes {1} days after {0}?",
          "it is {0}. what day is it in {1} days?"],
         ["{1} days after {0} comes {=}.", "the day {1} days after {0} is {=}."]),
        (["{0}的{1}天后是星期几？", "{0}后{1}天是星期几？", "今天{0}，{1}天后是星期几？", "从{0}到{1}天后是？"],
         ["{0}的{1}天后是{=}。", "{0}后{1}天是{=}。"])),
    phrases("before",
        (["{1} days before {0}?", "what day is {1} days before {0}?", "which day comes {1} days before {0}?",
          "it is {0}. what day was it {1} days ago?"],
         ["{1} days before {0} comes {=}.", "the day {1} days before {0} is {=}."]),
        (["{0}的{1}天前是星期几？", "{0}前{1}天是星期几？", "今天{0}，{1}天前是星期几？", "从{0}到{1}天前是？"],
         ["{0}的{1}天前是{=}。", "{0}前{1}天是{=}。"])),
    phrases("earlier",
        (["which comes first, {0} or {1}?", "earlier: {0} or {1}?", "give the earlier of {0} and {1}.",
          "is {0} or {1} earlier?"],
         ["of {0} and {1}, {=} comes first.", "the earlier of {0} and {1} is {=}."]),
        (["{0}和{1}哪个在前？", "哪个在前，{0}和{1}？", "{0}与{1}中在前的是？", "写在前的月：{0}和{1}"],
         ["{0}和{1}中在前的是{=}。", "{0}与{1}中{=}在前。"])),
];

#[rustfmt::skip]
static FURTHER: [Further; 4] = [
    Further {
        name: "sum",
        english: ["and now add {1} to it.", "then add {1}.", "plus {1} more?", "now add {1}, what is it?"],
        chinese: ["再加{1}呢？", "那再加{1}呢？", "再加{1}是多少？", "再加{1}等于多少？"],
    },
    Further {
        name: "difference",
        english: ["and now take {1} from it.", "then take away {1}.", "minus {1}?", "now take {1} away, what is it?"],
        chinese: ["再减{1}呢？", "那再减去{1}呢？", "再减{1}是多少？", "再减{1}等于多少？"],
    },
    Further {
        name: "reverse",
        english: ["and now reverse it.", "and in reverse?", "then from last to first?", "now give it in reverse."],
        chinese: ["再倒序呢？", "那从后到前呢？", "再倒着写呢？", "那倒序呢？"],
    },
    Further {
        name: "after",
        english: ["and {1} days after that?", "then {1} days later?", "and {1} more days?", "and {1} days later?"],
        chinese: ["再{1}天后呢？", "那{1}天后呢？", "那再{1}天后呢？", "再{1}天后是星期几？"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::question::KINDS;

    #[test]
    fn every_task_has_different_wordings_without_open_slots() {
        let mut dice = SynthRng::new(0, 0);
        for (kind, _) in KINDS {
            let problem = kind.draw(&mut dice);
            for language in [Language::English, Language::Chinese] {
                let wording = wording(problem.task(), language);
                let texts: Vec<String> = wording
                    .ask
                    .iter()
                    .chain(&wording.state)
                    .map(|text| fill(text, problem.task(), language))
                    .collect();
                assert!(texts.iter().all(|text| !text.contains(['{', '}'])), "{texts:?}");
                assert!(texts.iter().all(|text| *text == text.to_lowercase()), "{texts:?}");
                let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
                assert_eq!(distinct.len(), 6, "{texts:?}");
            }
        }
    }

    #[test]
    fn fills_slots_and_answer() {
        let mut dice = SynthRng::new(0, 0);
        let problem = KINDS[0].0.draw(&mut dice);
        let slots = problem.task().slots(Language::English);
        let text = fill("{1}|{0}|{=}", problem.task(), Language::English);
        let sum: u32 = slots.iter().map(|slot| slot.parse::<u32>().unwrap()).sum();
        assert_eq!(text, format!("{}|{}|{sum}", slots[1], slots[0]));
    }
}
