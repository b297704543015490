//! Scored pairs against `tests/golden/reward_model.json`, which `reward_model.py` beside it made with numpy,
//! scipy and scikit-learn; and the three forms of a report.

use std::path::Path;

use datasets::{Message, RowLocation};
use serde_json::{Value, json};

use super::data::{DataFile, Entry, Facts, FileKind};
use super::*;
use crate::page::tests::check_page;
use crate::statistics::Estimate;

#[track_caller]
fn assert_close(got: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    assert!((got - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "got {got}, expected {expected}");
}

#[track_caller]
fn assert_rate(got: Option<Estimate>, expected: &Value) {
    let got = got.unwrap();
    assert_close(got.mean, &expected[0]);
    assert_eq!(got.n as u64, expected[1].as_u64().unwrap());
}

#[test]
fn pairs_have_the_numbers_of_scipy_and_scikit_learn() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/reward_model.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for case in golden["pairs"].as_array().unwrap() {
        let scores: Vec<[f64; 2]> = serde_json::from_value(case["scores"].clone()).unwrap();
        let lengths: Vec<[usize; 2]> = serde_json::from_value(case["lengths"].clone()).unwrap();
        let pair = |(scores, lengths): (&[f64; 2], &[usize; 2])| ScoredPair {
            group: "",
            chosen: scores[0],
            rejected: scores[1],
            chosen_length: lengths[0],
            rejected_length: lengths[1],
        };
        let pairs: Vec<ScoredPair<'_>> = scores.iter().zip(&lengths).map(pair).collect();
        let found = pairs::pair_report(&pairs).unwrap();

        assert_close(found.accuracy.mean, &case["accuracy"]);
        assert_eq!(found.ties as u64, case["ties"].as_u64().unwrap());
        assert_close(found.accuracy_with_half_ties.mean, &case["half"]);
        assert_close(found.loss, &case["loss"]);
        let spreads =
            [("margin", &found.margin), ("chosen", &found.chosen_score), ("rejected", &found.rejected_score)];
        for (name, spread) in spreads {
            assert_close(spread.mean, &case[name][0]);
            assert_close(spread.standard_deviation.unwrap(), &case[name][1]);
        }
        for ((_, value), expected) in found.margin.quantiles.iter().zip(case["quantiles"].as_array().unwrap())
        {
            assert_close(*value, expected);
        }

        let calibration = found.calibration.unwrap();
        assert_close(calibration.error, &case["ece"]);
        let filled: Vec<_> = calibration.bins.iter().filter(|bin| bin.n > 0).collect();
        assert_eq!(filled.len(), case["reliability"][0].as_array().unwrap().len());
        for (index, bin) in filled.into_iter().enumerate() {
            assert_close(bin.accuracy.unwrap(), &case["reliability"][0][index]);
            assert_close(bin.confidence.unwrap(), &case["reliability"][1][index]);
        }

        let length = found.length;
        assert_close(length.score_pearson.unwrap(), &case["score_pearson"]);
        assert_close(length.score_spearman.unwrap(), &case["score_spearman"]);
        assert_close(length.margin_pearson.unwrap(), &case["margin_pearson"]);
        assert_close(length.margin_spearman.unwrap(), &case["margin_spearman"]);
        assert_rate(length.chosen_longer, &case["chosen_longer"]);
        assert_rate(length.chosen_shorter, &case["chosen_shorter"]);
        assert_rate(length.equal_length, &case["equal_length"]);
        assert_rate(length.longer_scored_higher, &case["longer_scored_higher"]);
        assert_rate(length.longer_is_chosen, &case["longer_is_chosen"]);
    }
}

#[test]
fn pairs_that_are_all_ties_have_numbers_too() {
    let tie = ScoredPair { group: "", chosen: 0.5, rejected: 0.5, chosen_length: 3, rejected_length: 3 };
    let found = pairs::pair_report(&[tie]).unwrap();
    assert_eq!((found.accuracy.mean, found.tie_share, found.accuracy_with_half_ties.mean), (0.0, 1.0, 0.5));
    assert_eq!((found.calibration, found.length.chosen_longer), (None, None));
    assert_eq!(found.length.margin_pearson, None);
    assert!((found.loss - 2.0_f64.ln()).abs() < 1e-15);
    // Margins that exp would overflow on.
    let far = |chosen: f64| ScoredPair { chosen, rejected: -chosen, ..tie };
    let found = pairs::pair_report(&[far(1e30), far(-1e30)]).unwrap();
    assert_eq!(found.loss, 1e30);
}

fn entry(row: usize, group: &str, replies: &[&str], facts: Facts) -> Entry {
    Entry {
        at: RowLocation { path: "pairs.jsonl".into(), row },
        group: group.to_owned(),
        prompt: vec![Message::user("<script>alert(1)</script>\u{1b}[2J")],
        replies: replies.iter().map(|&reply| reply.to_owned()).collect(),
        facts,
    }
}

fn file(name: &str, kind: FileKind, entries: Vec<Entry>, scores: Vec<Vec<f64>>) -> ScoredFile {
    let split_by = (kind == FileKind::Preference).then(|| "source".to_owned());
    let data = DataFile { name: name.to_owned(), kind, split_by, entries, skipped: 1 };
    ScoredFile { data, scores, cut: 2 }
}

fn files() -> Vec<ScoredFile> {
    let pair = |row, group, replies: &[&str]| entry(row, group, replies, Facts::Pair);
    let pairs = vec![
        pair(1, "web|site", &["<b>good</b>", "bad"]),
        pair(2, "web|site", &["a", "much longer"]),
        pair(3, "\u{202e}evil", &["same", "same"]),
    ];
    let gold = |row, gold: [f64; 3]| entry(row, "", &["x", "y", "z"], Facts::Gold(gold.to_vec()));
    let replies = vec![gold(1, [0.0, 1.0, 0.5]), gold(2, [1.0, 0.0, 0.0])];
    vec![
        file(
            "pairs.jsonl",
            FileKind::Preference,
            pairs,
            vec![vec![1.0, 0.0], vec![-1.0, 2.0], vec![0.5, 0.5]],
        ),
        file("more.jsonl", FileKind::Preference, vec![pair(1, "", &["yes", "no"])], vec![vec![2.0, 1.0]]),
        file("replies.jsonl", FileKind::BestOfN, replies, vec![vec![0.0, 2.0, 1.0], vec![3.0, 1.0, 2.0]]),
    ]
}

fn report() -> RewardModelReport {
    let model = ModelInfo { name: "rm<1>".to_owned(), digest: "abc".to_owned() };
    let gold = [GoldValue { at: RowLocation { path: "gold.jsonl".into(), row: 1 }, step: 2, gold: 0.5 }];
    let kl = [(1.0, 0.5), (2.0, 2.0)];
    let curve = over_optimization("runs/ppo".to_owned(), &kl, &[(1.0, 0.0), (2.0, 1.0)], &gold).unwrap();
    let settings = serde_json::json!({"limit": null, "model": "rm<1>"});
    RewardModelReport::new("colossal-chat 1".to_owned(), model, settings, &files(), Some(curve)).unwrap()
}

#[test]
fn a_report_has_the_numbers_of_each_file_and_of_all_pairs() {
    let report = report();
    let json = serde_json::to_value(&report).unwrap();
    // By hand: of four pairs, the first and the last are right, and the third is a tie.
    assert_eq!(json["all_pairs"]["accuracy"]["mean"], 0.5);
    assert_eq!(
        (&json["all_pairs"]["ties"], &json["all_pairs"]["margin"]["mean"]),
        (&json!(1), &json!(-0.25))
    );
    assert_eq!(json["files"][0]["groups"][0]["accuracy"]["mean"], 0.5);
    assert_eq!(json["files"][0]["groups"][1]["ties"], 1);
    assert_eq!(json["files"][0]["kind"], "preference");
    // Both prompts have the reply of the highest gold value first.
    assert_eq!(json["files"][2]["best_of_n"]["points"][2]["gold"]["mean"], 1.0);
    assert_eq!(json["over_optimization"]["peak"]["gold"], 0.5);

    let rows: Vec<Value> = files().iter().flat_map(ScoredFile::sample_rows).collect();
    assert_eq!(
        (rows.len(), &rows[1]["margin"], &rows[5]["scores"]),
        (6, &json!(-3.0), &json!([3.0, 1.0, 2.0]))
    );
}

#[test]
fn all_forms_show_untrusted_text_as_text() {
    let page =
        html(&report(), &files(), &Notes { command: "colossal-chat eval rm".into(), finished: "now".into() });
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    assert!(page.contains("&lt;b&gt;good&lt;/b&gt;") && page.contains("Reward model rm&lt;1&gt;"));
    for heading in
        ["Margins of", "Reliability of", "Best of n,", "Proxy reward,", "Gold reward,", "Pairs by margin"]
    {
        assert!(page.contains(heading), "{heading}");
    }
    check_page(&page);
    let text = markdown(&report());
    assert!(
        text.contains(r"web\|site")
            && !text.contains('\u{202e}')
            && text.contains("# Reward model rm&lt;1&gt;")
    );

    for table in tables(&report()) {
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()), "{table:?}");
        assert!(table.words <= table.head.len());
    }
}
