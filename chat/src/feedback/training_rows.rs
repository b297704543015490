//! Turns judgements into training rows: pairs of a better and a worse answer, and single answers that are
//! good or bad.
//!
//! 1. Of several thumbs and ratings of one answer to one prompt, the last counts.
//! 2. A comparison, a preferred sibling and an edit are a pair. So are two answers to one prompt if one is
//!    good and the other bad, or if both have ratings that lie at least `min_rating_gap` apart; then the
//!    margin of the pair is the difference. A pair that is made of two judgements has the time of the later.
//! 3. Of several judgements on the same two answers to one prompt, the last counts. If it is a tie, there is
//!    no pair.
//! 4. A single answer is good if its thumb is up or its rating 4 or 5, and bad if its thumb is down or its
//!    rating 1 or 2.
//!
//! Answers that are empty, and pairs of equal answers, teach nothing and are left out. Every row that is left
//! out is counted. Rows come in the order in which the judgements were made. This file reads and writes no
//! files.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use datasets::{Message, Preference, Unpaired};
use serde::Serialize;

use super::FeedbackRow;
use super::timestamp::Timestamp;

/// Reasons why rows were left out, with their number.
pub(crate) type LeftOut = BTreeMap<Reason, usize>;

/// Why a row was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The same answer was judged again later.
    JudgedAgain,
    /// A tie has no better answer.
    Tie,
    /// Both answers of a pair are equal.
    EqualAnswers,
    EmptyAnswer,
    /// A later judgement on the same two answers says the same.
    SamePair,
    /// A later judgement on the same two answers says something else.
    Contradicted,
    /// No other answer to the same prompt was judged differently enough.
    NoPartner,
    /// A rating of 3 is neither good nor bad.
    NeitherGoodNorBad,
    /// The row compares two answers, and says of neither that it is good.
    Comparison,
}

impl Reason {
    /// The reason as the end of a sentence that begins with the number of rows.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::JudgedAgain => "thumbs and ratings of an answer that was judged again later",
            Self::Tie => "ties",
            Self::EqualAnswers => "pairs of equal answers",
            Self::EmptyAnswer => "rows with an empty answer",
            Self::SamePair => "pairs that a later judgement repeats",
            Self::Contradicted => "pairs that a later judgement contradicts",
            Self::NoPartner => "thumbs and ratings without an answer to the same prompt to pair with",
            Self::NeitherGoodNorBad => "ratings of 3, which are neither good nor bad",
            Self::Comparison => "comparisons of two answers, which are rows of --preference",
        }
    }
}

/// Training rows of one kind.
#[derive(Debug)]
pub(crate) struct TrainingRows<R> {
    pub(crate) rows: Vec<R>,
    /// What was left out. A thumb or a rating that is part of some pair is not.
    pub(crate) left_out: LeftOut,
    /// The ids of the contradicted rows; of a pair that two judgements make, the id of the later one.
    pub(crate) contradicted: Vec<String>,
}

/// A position in time. Of two judgements with the same time, the one that was read later is later.
type Moment = (Timestamp, usize);

/// The last thumb or rating of an answer.
struct Mark<'a> {
    at: Moment,
    row: &'a FeedbackRow,
}

impl<'a> Mark<'a> {
    /// Whether the answer is good; `None` if it is neither good nor bad.
    fn is_good(&self) -> Option<bool> {
        match self.row.rating {
            Some(rating @ (1 | 2 | 4 | 5)) => Some(rating > 3),
            Some(_) => None,
            None => self.row.label,
        }
    }

    fn answer(&self) -> &'a str {
        self.row.completion.as_deref().unwrap_or_default()
    }
}

/// A judgement on two answers.
struct Verdict<'a> {
    at: Moment,
    row: &'a FeedbackRow,
    chosen: &'a str,
    rejected: &'a str,
    margin: Option<f64>,
}

/// The pairs in `rows`.
pub(crate) fn preferences(rows: &[FeedbackRow], min_rating_gap: u8) -> TrainingRows<Preference> {
    let mut left_out = LeftOut::new();
    let mut verdicts = direct_verdicts(rows, &mut left_out);
    let marks = last_marks(rows, &mut left_out);
    for answers in by_prompt(&marks).values() {
        let derived = derived_verdicts(answers, min_rating_gap);
        let is_used = |mark: &Mark<'_>| {
            derived.iter().any(|pair| [pair.chosen, pair.rejected].contains(&mark.answer()))
        };
        let alone = answers.iter().filter(|mark| !is_used(mark)).count();
        count(&mut left_out, Reason::NoPartner, alone);
        verdicts.extend(derived);
    }
    verdicts.sort_by_key(|verdict| verdict.at);
    last_verdicts(&verdicts, left_out)
}

/// The single answers in `rows` that are good or bad.
pub(crate) fn unpaired(rows: &[FeedbackRow]) -> TrainingRows<Unpaired> {
    let mut left_out = LeftOut::new();
    count(&mut left_out, Reason::Comparison, rows.iter().filter(|row| row.source.is_pair()).count());
    let mut marks = last_marks(rows, &mut left_out);
    marks.sort_by_key(|mark| mark.at);
    let mut found = Vec::new();
    for mark in &marks {
        match mark.is_good() {
            Some(label) => {
                let completion = vec![Message::assistant(mark.answer())];
                let prompt = mark.row.prompt.clone();
                found.push(Unpaired { prompt, completion, tools: None, label });
            }
            None => count(&mut left_out, Reason::NeitherGoodNorBad, 1),
        }
    }
    TrainingRows { rows: found, left_out, contradicted: Vec::new() }
}

fn count(left_out: &mut LeftOut, reason: Reason, rows: usize) {
    if rows > 0 {
        *left_out.entry(reason).or_default() += rows;
    }
}

fn moment(row: &FeedbackRow, index: usize) -> Moment {
    (row.moment().expect("rows are checked when they are read"), index)
}

/// Two prompts are the same if all of their turns are.
fn prompt_key(row: &FeedbackRow) -> String {
    serde_json::to_string(&row.prompt).expect("turns can be written as JSON")
}

fn is_empty(answer: &str) -> bool {
    answer.trim().is_empty()
}

/// The rows that compare two answers, ties included.
fn direct_verdicts<'a>(rows: &'a [FeedbackRow], left_out: &mut LeftOut) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let (Some(chosen), Some(rejected)) = (&row.chosen, &row.rejected) else { continue };
        if is_empty(chosen) || is_empty(rejected) {
            count(left_out, Reason::EmptyAnswer, 1);
        } else if chosen == rejected {
            count(left_out, Reason::EqualAnswers, 1);
        } else {
            verdicts.push(Verdict { at: moment(row, index), row, chosen, rejected, margin: None });
        }
    }
    verdicts
}

/// The last thumb or rating of every answer to every prompt.
fn last_marks<'a>(rows: &'a [FeedbackRow], left_out: &mut LeftOut) -> Vec<Mark<'a>> {
    let mut marks: HashMap<(String, &str), Mark<'a>> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(answer) = row.completion.as_deref() else { continue };
        if is_empty(answer) {
            count(left_out, Reason::EmptyAnswer, 1);
            continue;
        }
        let mark = Mark { at: moment(row, index), row };
        match marks.entry((prompt_key(row), answer)) {
            Entry::Vacant(place) => {
                place.insert(mark);
            }
            Entry::Occupied(mut kept) => {
                count(left_out, Reason::JudgedAgain, 1);
                if kept.get().at < mark.at {
                    kept.insert(mark);
                }
            }
        }
    }
    marks.into_values().collect()
}

/// Groups marks by prompt, each group in the order of time.
fn by_prompt<'a, 'm>(marks: &'m [Mark<'a>]) -> BTreeMap<String, Vec<&'m Mark<'a>>> {
    let mut groups: BTreeMap<String, Vec<&Mark<'_>>> = BTreeMap::new();
    for mark in marks {
        groups.entry(prompt_key(mark.row)).or_default().push(mark);
    }
    for group in groups.values_mut() {
        group.sort_by_key(|mark| mark.at);
    }
    groups
}

/// The pairs of answers to one prompt of which one was judged better.
fn derived_verdicts<'a>(marks: &[&Mark<'a>], min_rating_gap: u8) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for better in marks {
        for worse in marks {
            if is_better(better, worse, min_rating_gap) {
                let later = if better.at < worse.at { worse } else { better };
                let (chosen, rejected, margin) = (better.answer(), worse.answer(), margin(better, worse));
                verdicts.push(Verdict { at: later.at, row: later.row, chosen, rejected, margin });
            }
        }
    }
    verdicts
}

/// Whether one answer was judged better than another. Two ratings are compared by their points, and anything
/// else by good and bad.
fn is_better(better: &Mark<'_>, worse: &Mark<'_>, min_rating_gap: u8) -> bool {
    match (better.row.rating, worse.row.rating) {
        (Some(more), Some(less)) => less < more && min_rating_gap <= more - less,
        _ => better.is_good() == Some(true) && worse.is_good() == Some(false),
    }
}

/// By how many points two ratings differ; `None` if one of the answers has no rating.
fn margin(better: &Mark<'_>, worse: &Mark<'_>) -> Option<f64> {
    Some(f64::from(better.row.rating?) - f64::from(worse.row.rating?))
}

/// The last verdict on every two answers. `verdicts` are in the order of time.
fn last_verdicts(verdicts: &[Verdict<'_>], mut left_out: LeftOut) -> TrainingRows<Preference> {
    let key = |verdict: &Verdict<'_>| {
        let mut answers = [verdict.chosen.to_owned(), verdict.rejected.to_owned()];
        answers.sort();
        (prompt_key(verdict.row), answers)
    };
    let last: HashMap<_, usize> =
        verdicts.iter().enumerate().map(|(index, verdict)| (key(verdict), index)).collect();

    let (mut rows, mut contradicted) = (Vec::new(), Vec::new());
    for (index, verdict) in verdicts.iter().enumerate() {
        let decides = last[&key(verdict)];
        let decisive = &verdicts[decides];
        if verdict.row.tie {
            count(&mut left_out, Reason::Tie, 1);
        } else if decides == index {
            rows.push(Preference::Messages {
                prompt: verdict.row.prompt.clone(),
                chosen: vec![Message::assistant(verdict.chosen)],
                rejected: vec![Message::assistant(verdict.rejected)],
                tools: None,
                margin: verdict.margin,
            });
        } else if decisive.chosen == verdict.chosen && !decisive.row.tie {
            count(&mut left_out, Reason::SamePair, 1);
        } else {
            count(&mut left_out, Reason::Contradicted, 1);
            contradicted.push(verdict.row.id.clone());
        }
    }
    TrainingRows { rows, left_out, contradicted }
}

#[cfg(test)]
mod tests;
