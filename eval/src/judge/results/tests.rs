//! The files of a judge's results, from judgements that were made up.

use serde_json::json;

use super::*;
use crate::judge::{AnswerSheet, Comparison, Question, Rewards, compare_rewards};
use crate::page::tests::check_page;

fn questions() -> Vec<Question> {
    let row = |number: usize| {
        let category = if number < 2 { "math" } else { "a|b <i>" };
        json!({"id": format!("q{number}"), "category": category, "prompt": format!("Why {number}? <script>x()</script>")})
    };
    (0..4).map(|number| Question::from_row(row(number).as_object().unwrap(), number).unwrap()).collect()
}

fn sheet(model: &str, text: &str) -> AnswerSheet {
    let replies = (0..4).map(|number| Ok(vec![format!("{text} {number}")])).collect();
    AnswerSheet { model: model.to_owned(), digest: model.to_owned(), replies, cut: 0 }
}

/// A reward model on two models.
fn compared(sheets: &[AnswerSheet], scores: [&[f64]; 2]) -> Comparison {
    let (rows, answers) = crate::judge::common(&sheets.iter().collect::<Vec<_>>());
    let questions: Vec<Question> = rows.iter().map(|&row| questions()[row].clone()).collect();
    let rewards = Rewards {
        judge: "rm",
        digest: "feed",
        system: &answers[0],
        system_scores: scores[0],
        baseline: &answers[1],
        baseline_scores: scores[1],
        is_training_reward: true,
        noise: 1e-6,
    };
    let mut comparison = compare_rewards(&questions, &rewards).unwrap();
    comparison.place_among(&rows);
    comparison
}

#[test]
fn pairs_by_category_standings_and_rows() {
    let mut sheets = [sheet("p<po", "long answer"), sheet("sft", "short")];
    sheets[0].replies[1] = Err("the server is gone".to_owned());
    sheets[1].cut = 2;
    let comparison = compared(&sheets, [&[1.0, 2.0, f64::NAN], &[0.0, 3.0, 0.0]]);
    let results = JudgeResults::new("rm", &sheets, Vec::new(), vec![comparison]).unwrap();

    let summary = results.summary().unwrap();
    let comparison = &summary["comparisons"][0];
    assert!(comparison.get("items").is_none());
    assert_eq!(
        (&comparison["wins"], &comparison["losses"], &comparison["failed"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(summary["models"][0]["unanswered"], 1);
    // One win and one loss: odds of 1, so both have the rating of the anchor.
    let ratings = &results.standings.as_ref().unwrap().models;
    assert!(ratings.iter().all(|rating| (rating.rating - 1000.0).abs() < 1e-9), "{ratings:?}");

    // The second question has no answer, so the rows are 0, 2 and 3.
    let rows = results.judgements().unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row["row"].as_u64().unwrap(), row["outcome"].as_str().unwrap())).collect();
    assert_eq!(found, [(0, "win"), (2, "loss"), (3, "failed")]);
    assert_eq!((&rows[0]["rewards"], rows[2].get("rewards")), (&json!([1.0, 0.0]), None));
    assert_eq!(results.failures()[0].1, 1);
    let warnings = results.all_warnings().join("\n");
    for words in
        ["1 questions have no answer of p<po", "--max-gen-toks", "the judge is the training reward: biased"]
    {
        assert!(warnings.contains(words), "{warnings}");
    }

    let markdown = results.markdown();
    assert!(markdown.contains("| p&lt;po | sft | 50.0 % |") && markdown.contains("a\\|b"), "{markdown}");
    let heads: Vec<String> = results.tables().into_iter().map(|table| table.title).collect();
    assert_eq!(heads.len(), 4, "{heads:?}");
}

#[test]
fn the_page_escapes_every_text_and_loads_nothing() {
    let sheets = [sheet("p<po", "<img src=x onerror=alert(1)>"), sheet("sft", "</pre></details>")];
    let results = JudgeResults::new(
        "<b>",
        &sheets,
        Vec::new(),
        vec![compared(&sheets, [&[1.0, 2.0, 0.0, 1.0], &[0.0; 4]])],
    );
    let page = html(&results.unwrap(), &questions(), &sheets, "eval judge --judge '<b>'");
    for hostile in ["<img", "<script", "<b>", "<i>", "</pre></details>", "p<po", "http://", "https://"] {
        assert!(!page.contains(hostile), "{hostile}");
    }
    assert!(page.contains("&lt;img src=x") && page.contains("default-src 'none'"));
    check_page(&page);
    assert_eq!(page.matches("<details>").count(), 4);
    assert!(page.contains("won (3)") && page.contains("tied (1)"), "{page}");
}

#[test]
fn a_model_that_wins_everything_has_no_standings() {
    let sheets = [sheet("a", "x"), sheet("b", "y")];
    let results =
        JudgeResults::new("rm", &sheets, Vec::new(), vec![compared(&sheets, [&[1.0; 4], &[0.0; 4]])])
            .unwrap();
    assert_eq!(results.standings, None);
    assert!(
        results.warnings.iter().any(|warning| warning.contains("there are no standings")),
        "{:?}",
        results.warnings
    );
}
