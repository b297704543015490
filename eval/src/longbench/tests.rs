//! Every subset of LongBench as lm-evaluation-harness asks and scores it (`tests/golden/lm_eval/scores`).

use serde_json::{Value, json};

use super::*;
use crate::document::{PromptOptions, build};
use crate::golden_scores::{Case, cases};
use crate::request::{Prompt, Request, Response};
use crate::score::{MetricValue, score};
use crate::task::Registry;

/// The document of a case, by the task file.
fn document(case: &Case, registry: &Registry) -> (crate::task::Task, crate::document::Document) {
    let mut selection = registry.select(&[case.task.as_str()]).unwrap();
    let task = selection.tasks.remove(0);
    let row = case.doc.as_object().unwrap().clone();
    let mut documents = build(&task, vec![row], None, &PromptOptions::default()).unwrap().documents;
    (task, documents.remove(0))
}

#[test]
fn every_subset_is_asked_and_scored_as_in_the_harness() {
    let registry = Registry::embedded().unwrap();
    let (mut subsets, mut replies) = (std::collections::BTreeSet::new(), 0);
    for case in cases("longbench_") {
        let (task, document) = document(&case, &registry);
        let [
            Request::GenerateUntil {
                context: Prompt::Text(context), until, max_gen_toks, temperature, ..
            },
        ] = &document.requests[..]
        else {
            panic!("{} asks for one reply", case.task);
        };
        let recorded = &case.requests[0];
        assert_eq!(context.as_str(), recorded["context"], "{}", case.task);
        assert_eq!(json!(until), recorded["until"], "{}", case.task);
        assert_eq!(json!(max_gen_toks), recorded["gen_kwargs"]["max_gen_toks"], "{}", case.task);
        assert_eq!((*temperature, &recorded["gen_kwargs"]["do_sample"]), (0.0, &Value::Bool(false)));

        for reply in &case.replies {
            let response = Response::Reply { text: reply.0.clone(), tokens: 1, ended: true, cut: 0 };
            let scored = score(&task, &document, &[response], &[]).unwrap();
            assert_eq!(scored[0].metrics.len(), reply.2["none"].len(), "{}", case.task);
            for metric in &scored[0].metrics {
                let MetricValue::Number(number) = metric.value else {
                    panic!("{} is no number", metric.name)
                };
                let wanted = reply.metric("none", &metric.name);
                assert!(
                    (number - wanted).abs() < 1e-12,
                    "{}, {:?}: {number}, not {wanted}",
                    case.task,
                    reply.0
                );
            }
            replies += 1;
        }
        subsets.insert(case.task);
    }
    assert_eq!((subsets.len(), replies), (34, 552));
}

#[test]
fn a_reply_without_number_or_class_has_no_answer() {
    let classes = ["Food".to_owned(), "Date".to_owned()];
    let parsed = |measure: Measure, reply, answer| measure.score(reply, answer, &classes).unwrap().1;
    assert!(!parsed(Measure::Count, "seven", "7") && parsed(Measure::Count, "8", "7"));
    assert!(!parsed(Measure::Retrieval, "none", "Paragraph 2"));
    assert!(
        !parsed(Measure::Classification, "meal", "Food") && parsed(Measure::Classification, "Date", "Food")
    );
    assert!(parsed(Measure::QaF1, "", "x"));
}

#[test]
fn an_answer_that_names_no_paragraph_is_refused() {
    let error = Measure::Retrieval.score("3", "the third", &[]).unwrap_err().to_string();
    assert!(error.contains("the third") && error.contains("Paragraph"), "{error}");
}

#[test]
fn texts_that_are_too_long_for_rouge_are_refused() {
    let long = "w ".repeat(40_000);
    let error = Measure::Rouge.score(&long, &long, &[]).unwrap_err().to_string();
    assert!(error.contains("40000 words"), "{error}");
}
