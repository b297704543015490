//! Plain pretraining text about the same tasks for the base model: statements, without requests and without
//! chat format.
//!
//! A row has [`LINES`] lines. A line is a statement of a training problem with its answer, or a run of things
//! that come in an order (numbers, letters, days, months) or in pairs (nouns in both languages). A model
//! trained on this text has the skills but has never seen a question.

use super::date::{DAYS, MONTHS};
use super::dice::SynthRng;
use super::list::NOUNS;
use super::phrase;
use super::question::Problem;
use super::task::Language;

/// Lines per row.
pub const LINES: usize = 3;

/// The share of lines that are runs.
pub const RUN_SHARE: f64 = 0.12;

/// Writes a problem and its answer as one line.
pub(super) fn statement(problem: &Problem, language: Language, dice: &mut SynthRng) -> String {
    phrase::state(problem.task(), language, dice)
}

/// Writes a few things in their order.
pub(super) fn run(language: Language, dice: &mut SynthRng) -> String {
    let name =
        |pair: &(&'static str, &'static str)| if language == Language::English { pair.0 } else { pair.1 };
    let separator = if language == Language::English { ", " } else { "，" };

    match dice.below(5) {
        0 => {
            let first = dice.between(0, 94);
            (first..first + 6).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
        }
        1 => {
            let first = dice.below(20) as u8 + b'a';
            (first..first + 6).map(|letter| char::from(letter).to_string()).collect::<Vec<_>>().join(" ")
        }
        2 => {
            let first = dice.below(7);
            (first..first + 4).map(|day| name(&DAYS[day % 7])).collect::<Vec<_>>().join(separator)
        }
        3 => {
            let first = dice.below(9);
            MONTHS[first..first + 4].iter().map(name).collect::<Vec<_>>().join(separator)
        }
        _ => {
            let (english, chinese) = dice.pick(&NOUNS);
            if language == Language::English {
                format!("{english}: {chinese}")
            } else {
                format!("{chinese}：{english}")
            }
        }
    }
}
