//! Answers of mathematics against the recordings of lm-evaluation-harness, by hand, and on hostile text.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::golden_scores::cases;
use crate::hostile_text::hostile_texts;

fn score(equal: bool) -> f64 {
    f64::from(u8::from(equal))
}

#[test]
fn hendrycks_math_is_scored_as_in_the_harness() {
    for case in cases("hendrycks_math") {
        let gold = boxed::last_content(case.column("solution")).unwrap();
        for scored in &case.replies {
            let equal = hendrycks::equal(hendrycks::answer(&scored.0), gold);
            assert_eq!(score(equal), scored.metric("none", "exact_match"), "{gold} {:?}", scored.0);
        }
    }
}

#[test]
fn aime_is_scored_as_in_the_harness() {
    for case in cases("aime24") {
        let gold = case.doc["Answer"].as_u64().unwrap().to_string();
        for scored in &case.replies {
            let equal = hendrycks::equal(hendrycks::aime_answer(&scored.0), &gold);
            assert_eq!(score(equal), scored.metric("none", "exact_match"), "{gold} {:?}", scored.0);
        }
    }
}

#[test]
fn agieval_is_scored_as_in_the_harness() {
    let all = cases("agieval_math").into_iter().chain(cases("agieval_gaokao_mathcloze"));
    for case in all {
        let gold = case.column("answer");
        for scored in &case.replies {
            assert_eq!(
                score(agieval::equal(&scored.0, gold)),
                scored.metric("none", "acc"),
                "{gold} {:?}",
                scored.0
            );
        }
    }
}

#[test]
fn minerva_is_scored_as_in_the_harness() {
    for case in cases("minerva_math") {
        let gold = minerva::normalized(boxed::last_content(case.column("solution")).unwrap());
        assert_eq!(gold, case.column("answer"));
        for scored in &case.replies {
            let found = minerva::answer(&scored.0).unwrap_or_else(|| minerva::INVALID_ANSWER.to_owned());
            let equal = minerva::equal(&minerva::normalized(&found), &gold);
            assert_eq!(score(equal), scored.metric("none", "exact_match"), "{gold} {:?}", scored.0);
        }
    }
}

#[test]
fn formulas_are_equal_where_sympy_simplifies_their_difference_to_zero() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/minerva_equality.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut pairs, mut wrong) = (0, Vec::new());
    for group in golden["groups"].as_array().unwrap() {
        let texts: Vec<String> = serde_json::from_value(group["texts"].clone()).unwrap();
        let equal: BTreeSet<(usize, usize)> = serde_json::from_value(group["equal"].clone()).unwrap();
        for (left, right) in (0..texts.len()).flat_map(|left| (0..left).map(move |right| (right, left))) {
            let found = minerva::equal(&texts[left], &texts[right]);
            assert_eq!(
                found,
                minerva::equal(&texts[right], &texts[left]),
                "{} {}",
                texts[left],
                texts[right]
            );
            if found != equal.contains(&(left, right)) {
                wrong.push((texts[left].clone(), texts[right].clone(), found));
            }
            pairs += 1;
        }
    }
    assert!(pairs > 5000 && wrong.is_empty(), "{pairs} pairs, wrong: {wrong:#?}");
}

#[test]
fn an_open_question_is_answered_in_a_box_a_sentence_or_dollars() {
    assert_eq!(
        answer(r"$1$. Final Answer: The final answer is $2$. I hope it is correct. \boxed{3}").as_deref(),
        Some("3")
    );
    assert_eq!(
        answer("$1$. Final Answer: The final answer is $2$. I hope it is correct.").as_deref(),
        Some("$2$")
    );
    assert_eq!(answer("$1$ or $2$\nso 3").as_deref(), Some("1$ or $2"));
    assert_eq!(answer("It is 3, for $5."), None);
}

#[test]
fn math_norm_em_tells_unparsed_from_wrong() {
    assert_eq!(math_norm_em(r"\boxed{0.5}", r"\frac{1}{2}"), Verdict::Right);
    assert_eq!(math_norm_em(r"\boxed{0.4}", r"\frac{1}{2}"), Verdict::Wrong);
    assert_eq!(math_norm_em("0.5", r"\frac{1}{2}"), Verdict::Unparsed);
}

#[test]
fn hostile_texts_end() {
    for text in hostile_texts() {
        let _ = math_norm_em(&text, &text);
    }
}
