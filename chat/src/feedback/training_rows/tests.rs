//! Tests of the rules by which judgements become training rows.

use super::*;
use crate::feedback::Source;

/// A row of the minute `minute`.
fn row(source: Source, minute: usize, prompt: &str) -> FeedbackRow {
    let mut row = FeedbackRow::new(source, "s", vec![Message::system("be kind"), Message::user(prompt)]);
    row.time = format!("2026-03-01T00:{minute:02}:00Z");
    row.id = format!("row-{minute}");
    row
}

fn pair(source: Source, minute: usize, chosen: &str, rejected: &str) -> FeedbackRow {
    let (chosen, rejected) = (Some(chosen.to_owned()), Some(rejected.to_owned()));
    FeedbackRow { chosen, rejected, ..row(source, minute, "q") }
}

fn tie(minute: usize) -> FeedbackRow {
    FeedbackRow { tie: true, ..pair(Source::Compare, minute, "a", "b") }
}

fn thumb(minute: usize, answer: &str, good: bool) -> FeedbackRow {
    FeedbackRow { completion: Some(answer.into()), label: Some(good), ..row(Source::Thumb, minute, "q") }
}

fn rating(minute: usize, answer: &str, points: u8) -> FeedbackRow {
    FeedbackRow { completion: Some(answer.into()), rating: Some(points), ..row(Source::Rating, minute, "q") }
}

/// What was made of rows, and what was left out.
type Made<T> = (Vec<T>, Vec<(Reason, usize)>);

/// The pairs as `chosen > rejected`, with the margin, and what was left out.
fn pairs(rows: &[FeedbackRow]) -> Made<(String, Option<f64>)> {
    assert!(rows.iter().all(|row| row.check().is_ok()));
    let made = preferences(rows, 2);
    let text = |made: &Preference| match made {
        Preference::Messages { prompt, chosen, rejected, margin, .. } => {
            assert_eq!(prompt, &rows[0].prompt);
            (format!("{} > {}", chosen[0].content, rejected[0].content), *margin)
        }
        Preference::Tokens { .. } => unreachable!("feedback has no tokens"),
    };
    (made.rows.iter().map(text).collect(), made.left_out.into_iter().collect())
}

fn labels(rows: &[FeedbackRow]) -> Made<(String, bool)> {
    let made = unpaired(rows);
    let text = |made: &Unpaired| (made.completion[0].content.clone(), made.label);
    (made.rows.iter().map(text).collect(), made.left_out.into_iter().collect())
}

fn order(text: &str) -> (String, Option<f64>) {
    (text.to_owned(), None)
}

#[test]
fn comparisons_siblings_and_edits_are_pairs() {
    let rows = [
        pair(Source::Compare, 1, "a", "b"),
        pair(Source::Sibling, 2, "c", "b"),
        pair(Source::Edit, 3, "d", "b"),
    ];
    assert_eq!(pairs(&rows), (vec![order("a > b"), order("c > b"), order("d > b")], vec![]));
    assert_eq!(labels(&rows), (vec![], vec![(Reason::Comparison, 3)]));
}

#[test]
fn the_last_of_contradicting_pairs_counts() {
    let rows = [pair(Source::Compare, 5, "a", "b"), pair(Source::Sibling, 1, "b", "a")];
    assert_eq!(pairs(&rows), (vec![order("a > b")], vec![(Reason::Contradicted, 1)]));
    assert_eq!(preferences(&rows, 2).contradicted, ["row-1"]);
    let again = [pair(Source::Compare, 1, "a", "b"), pair(Source::Edit, 2, "a", "b")];
    assert_eq!(pairs(&again), (vec![order("a > b")], vec![(Reason::SamePair, 1)]));
    // Two rows of one moment: the one that was read later is later.
    let same_time = [pair(Source::Compare, 1, "a", "b"), pair(Source::Compare, 1, "b", "a")];
    assert_eq!(pairs(&same_time), (vec![order("b > a")], vec![(Reason::Contradicted, 1)]));
}

#[test]
fn a_tie_gives_no_pair_and_takes_back_an_earlier_one() {
    assert_eq!(pairs(&[tie(1)]), (vec![], vec![(Reason::Tie, 1)]));
    let earlier = [tie(1), pair(Source::Compare, 2, "a", "b")];
    assert_eq!(pairs(&earlier), (vec![order("a > b")], vec![(Reason::Tie, 1)]));
    let later = [pair(Source::Compare, 1, "a", "b"), tie(2)];
    assert_eq!(pairs(&later), (vec![], vec![(Reason::Tie, 1), (Reason::Contradicted, 1)]));
}

#[test]
fn good_and_bad_answers_to_one_prompt_pair_up() {
    let rows = [thumb(1, "a", true), thumb(2, "b", false), thumb(3, "c", false), thumb(4, "d", true)];
    let all = ["a > b", "a > c", "d > b", "d > c"].map(order).to_vec();
    assert_eq!(pairs(&rows), (all, vec![]));
    // The same words to another prompt are another answer.
    let mut elsewhere = thumb(2, "b", false);
    elsewhere.prompt = vec![Message::user("q")];
    assert_eq!(pairs(&[thumb(1, "a", true), elsewhere]), (vec![], vec![(Reason::NoPartner, 2)]));
}

#[test]
fn ratings_pair_up_by_their_points() {
    let rows = [rating(1, "a", 5), rating(2, "b", 3), rating(3, "c", 2)];
    let found = vec![("a > b".to_owned(), Some(2.0)), ("a > c".to_owned(), Some(3.0))];
    assert_eq!(pairs(&rows), (found, vec![]));
    // Below the gap, 4 and 3 are no pair. A rating of 4 is good beside a thumb that is down.
    assert_eq!(pairs(&[rating(1, "a", 4), rating(2, "b", 3)]).1, [(Reason::NoPartner, 2)]);
    assert_eq!(pairs(&[rating(1, "a", 4), thumb(2, "b", false)]).0, [order("a > b")]);
    assert_eq!(pairs(&[rating(1, "a", 3), thumb(2, "b", false)]).1, [(Reason::NoPartner, 2)]);
}

#[test]
fn a_pair_of_thumbs_has_the_time_of_the_later_one() {
    let compared = |minute| pair(Source::Compare, minute, "b", "a");
    let thumbs = [thumb(1, "a", true), thumb(3, "b", false)];
    let with = |compared: FeedbackRow| [thumbs.to_vec(), vec![compared]].concat();
    assert_eq!(pairs(&with(compared(2))), (vec![order("a > b")], vec![(Reason::Contradicted, 1)]));
    assert_eq!(pairs(&with(compared(4))), (vec![order("b > a")], vec![(Reason::Contradicted, 1)]));
}

#[test]
fn the_last_judgement_on_an_answer_counts() {
    let rows = [rating(4, "a", 1), thumb(2, "a", true), thumb(3, "b", true), rating(1, "c", 3)];
    let found = vec![("b".to_owned(), true), ("a".to_owned(), false)];
    assert_eq!(labels(&rows), (found, vec![(Reason::JudgedAgain, 1), (Reason::NeitherGoodNorBad, 1)]));
    assert_eq!(pairs(&rows).0, [("c > a".to_owned(), Some(2.0)), order("b > a")]);
}

#[test]
fn empty_and_equal_answers_are_left_out() {
    let rows = [pair(Source::Compare, 1, "a", "a"), pair(Source::Edit, 2, " \n", "b"), thumb(3, "", false)];
    let left = vec![(Reason::EqualAnswers, 1), (Reason::EmptyAnswer, 2)];
    assert_eq!(pairs(&rows), (vec![], left));
    assert_eq!(labels(&rows).1, [(Reason::EmptyAnswer, 1), (Reason::Comparison, 2)]);
}
