//! Every statistic against `tests/golden/statistics.json`, which `statistics.py` beside it made with scipy,
//! statsmodels, scikit-learn and exact fractions.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::super::distribution::student_t_two_sided;
use super::*;

fn cases(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/statistics.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = golden["values"][name].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(float).collect()
}

#[track_caller]
fn assert_relative(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance * expected.abs(), "got {got}, expected {expected}");
}

#[test]
fn group_means_are_those_of_a_regression_on_the_tasks() {
    for case in cases("group") {
        let (means, errors) = (floats(&case["means"]), floats(&case["standard_errors"]));
        let task = |((mean, standard_error), n): ((&f64, &f64), &Value)| {
            let (mean, standard_error, n) = (*mean, *standard_error, count(n) as usize);
            Estimate { mean, standard_error, low: mean, high: mean, n }
        };
        let tasks: Vec<Estimate> =
            means.iter().zip(&errors).zip(case["sizes"].as_array().unwrap()).map(task).collect();

        let by_size = group_mean(&tasks, Weighting::BySize).unwrap();
        assert_close(by_size.mean, float(&case["by_size"]), 1e-14);
        assert_close(by_size.standard_error, float(&case["standard_error"]), 1e-14);
        let equal = group_mean(&tasks, Weighting::Equal).unwrap();
        assert_close(equal.mean, float(&case["equal"]), 1e-14);
        assert_eq!(equal.standard_error, by_size.standard_error);
        let own = macro_mean(&tasks).unwrap();
        assert_eq!((own.mean, own.n), (equal.mean, by_size.n));
        assert_close(own.standard_error, float(&case["macro_standard_error"]), 1e-14);
        assert_close(own.high - own.mean, 1.959_963_984_540_054 * own.standard_error, 1e-12);
    }
}

#[test]
fn clustered_errors_are_the_triple_sum_of_the_paper() {
    for case in cases("cluster") {
        let values = floats(&case["values"]);
        let clusters: Vec<u64> = case["clusters"].as_array().unwrap().iter().map(count).collect();
        let mean = clustered_mean(&values, &clusters).unwrap();
        assert_close(mean.mean, float(&case["mean"]), 1e-14);
        assert_close(mean.standard_error, float(&case["standard_error"]), 1e-13);
        assert_close(mean.low, float(&case["student_low"]), 1e-9);
        assert_eq!(mean.n as u64, clusters.iter().max().unwrap() + 1);
    }
}

#[test]
fn mcnemar_agrees_with_exact_fractions_and_scipy() {
    for case in cases("mcnemar_test") {
        let (b, c) = (count(&case["b"]), count(&case["c"]));
        assert_relative(mcnemar(b, c).unwrap(), float(&case["p"]), 1e-9);
    }
}

#[test]
fn holm_agrees_with_statsmodels() {
    for case in cases("holm") {
        let adjusted = holm(&floats(&case["p"])).unwrap();
        let expected = floats(&case["adjusted"]);
        assert_eq!(adjusted.len(), expected.len());
        adjusted.iter().zip(expected).for_each(|(got, expected)| assert_close(*got, expected, 1e-15));
    }
}

#[test]
fn power_agrees_with_statsmodels() {
    for case in cases("power") {
        let (n, deviation) = (float(&case["n"]), float(&case["standard_deviation"]));
        let difference = detectable_difference(deviation / n.sqrt()).unwrap();
        // statsmodels also counts significant results with the wrong sign.
        assert_relative(difference, float(&case["difference"]), 1e-5);
    }
}

#[test]
fn intervals_of_paired_rates_solve_the_equations_of_mover_r() {
    for case in cases("paired_rates") {
        let [both, first_only, second_only, neither] =
            ["both", "b", "c", "neither"].map(|field| count(&case[field]));
        let counts = PairedCounts { both, first_only, second_only, neither };
        let n = both + first_only + second_only + neither;
        let (low, high) = paired_rates(counts, n as usize).unwrap();
        assert_close(low, float(&case["low"]), 1e-8);
        assert_close(high, float(&case["high"]), 1e-8);
    }
}

#[test]
fn weighted_rates_agree_with_the_sandwich_of_statsmodels() {
    for case in cases("weighted_rate") {
        let (values, weights) = (floats(&case["values"]), floats(&case["weights"]));
        let clusters = case["clusters"].as_array().unwrap().iter().map(count);
        let rows = values.into_iter().zip(weights).zip(clusters);
        let votes: Vec<Vote<u64>> =
            rows.map(|((value, weight), cluster)| Vote { value, weight, cluster }).collect();
        let rate = weighted_rate(&votes).unwrap();
        let got = [rate.mean, rate.standard_error, rate.low, rate.high];
        for (got, field) in got.into_iter().zip(["mean", "standard_error", "low", "high"]) {
            assert_close(got, float(&case[field]), 1e-9);
        }
    }
}

/// The tallies of a case: of clusters, or each a cluster of its own.
fn clusters(case: &Value) -> Vec<Vec<Tally>> {
    let tally = |row: &Value| Tally {
        first: row[0].as_str().unwrap().into(),
        second: row[1].as_str().unwrap().into(),
        wins: count(&row[2]),
        ties: count(&row[3]),
        losses: count(&row[4]),
    };
    let of_cluster = |rows: &Value| rows.as_array().unwrap().iter().map(tally).collect();
    match case.get("clusters") {
        Some(clusters) => clusters.as_array().unwrap().iter().map(of_cluster).collect(),
        None => vec![of_cluster(&case["tallies"])],
    }
}

fn rate(case: &Value, resamples: usize) -> Ratings {
    let anchor = Anchor { model: case["anchor"].as_str().unwrap(), rating: 1000.0 };
    bradley_terry(&clusters(case), anchor, resamples).unwrap()
}

#[test]
fn ratings_agree_with_the_logistic_regression_of_statsmodels() {
    for case in cases("bradley_terry") {
        let ratings = rate(&case, 0);
        let expected = case["ratings"].as_object().unwrap();
        assert_eq!(ratings.models.len(), expected.len());
        for model in &ratings.models {
            assert_close(model.rating, float(&expected[&model.model]), 1e-6);
            assert_eq!(model.interval, None);
        }
        assert!(ratings.models.is_sorted_by(|left, right| left.rating >= right.rating));
    }
}

#[test]
fn intervals_of_ratings_agree_with_a_bootstrap_of_clusters_by_statsmodels() {
    for case in cases("bradley_terry_bootstrap") {
        let ratings = rate(&case, 4000);
        assert_eq!((ratings.resamples, ratings.undetermined), (4000, 0));
        let intervals: BTreeMap<&str, Option<(f64, f64)>> =
            ratings.models.iter().map(|model| (model.model.as_str(), model.interval)).collect();
        for (model, expected) in case["intervals"].as_object().unwrap() {
            let (low, high) = (float(&expected[0]), float(&expected[1]));
            // Two bootstraps of 4000 draws: an end varies by about 1.5 % of the width, and that of 60 questions
            // moves in steps of about 7 %.
            let tolerance = 0.08 * (high - low);
            let (from, to) = intervals[model.as_str()].unwrap();
            assert_close(from, low, tolerance);
            assert_close(to, high, tolerance);
        }
        assert_eq!(intervals["b"], None, "the rating of the anchor is given");
    }
}

#[test]
fn length_control_agrees_with_the_logistic_regression_of_statsmodels() {
    for case in cases("length_controlled") {
        let (lengths, baselines) = (floats(&case["length"]), floats(&case["baseline_length"]));
        let judgement = |((preference, length), baseline_length): ((f64, &f64), &f64)| Judgement {
            preference,
            length: *length as usize,
            baseline_length: *baseline_length as usize,
        };
        let judgements: Vec<Judgement> =
            floats(&case["preference"]).into_iter().zip(&lengths).zip(&baselines).map(judgement).collect();
        let ours = length_controlled(&judgements).unwrap();
        assert_close(ours.raw, float(&case["raw"]), 1e-14);
        assert_close(ours.length_coefficient.unwrap(), float(&case["length_coefficient"]), 1e-9);
        let rate = ours.win_rate;
        let got = [rate.mean, rate.standard_error, rate.low, rate.high];
        for (got, field) in got.into_iter().zip(["win_rate", "standard_error", "low", "high"]) {
            assert_close(got, float(&case[field]), 1e-9);
        }
        assert_eq!(rate.n, judgements.len());
    }
}

#[test]
fn win_rates_invert_the_score_test() {
    for case in cases("win_rate") {
        let [wins, ties, losses] = ["wins", "ties", "losses"].map(|field| count(&case[field]));
        let rate = win_rate(wins, ties, losses).unwrap();
        let got = [rate.mean, rate.standard_error, rate.low, rate.high];
        for (got, field) in got.into_iter().zip(["mean", "standard_error", "low", "high"]) {
            assert_close(got, float(&case[field]), 1e-12);
        }
        assert_eq!(rate.n as u64, wins + ties + losses);
    }
}

#[test]
fn pass_at_k_agrees_with_exact_fractions() {
    for case in cases("pass_at_k") {
        let got = pass_at_k(count(&case["n"]), count(&case["c"]), count(&case["k"])).unwrap();
        assert_close(got, float(&case["pass"]), 1e-14);
    }
}

#[test]
fn correlations_agree_with_scipy() {
    for case in cases("correlation") {
        let (left, right) = (floats(&case["left"]), floats(&case["right"]));
        assert_close(pearson(&left, &right).unwrap(), float(&case["pearson"]), 1e-9);
        assert_close(spearman(&left, &right).unwrap(), float(&case["spearman"]), 1e-14);
    }
}

#[test]
fn calibration_agrees_with_scikit_learn() {
    for case in cases("calibration") {
        let correct: Vec<bool> =
            case["correct"].as_array().unwrap().iter().map(|correct| correct.as_bool().unwrap()).collect();
        let bins = count(&case["bins"]) as usize;
        let ours = calibration(&floats(&case["probabilities"]), &correct, bins).unwrap();
        assert_close(ours.error, float(&case["error"]), 1e-14);
        let counts: Vec<f64> = ours.bins.iter().map(|bin| bin.n as f64).collect();
        assert_eq!(counts, floats(&case["counts"]));
        let filled = |of: fn(&Bin) -> Option<f64>| -> Vec<f64> { ours.bins.iter().filter_map(of).collect() };
        for (got, field) in
            [(filled(|bin| bin.confidence), "confidence"), (filled(|bin| bin.accuracy), "accuracy")]
        {
            let expected = floats(&case[field]);
            assert_eq!(got.len(), expected.len());
            got.iter().zip(expected).for_each(|(got, expected)| assert_close(*got, expected, 1e-14));
        }
    }
}

#[test]
fn paired_tests_agree_with_scipy() {
    for case in cases("paired") {
        let (before, after) = (floats(&case["before"]), floats(&case["after"]));
        let difference = paired_difference(&before, &after).unwrap();
        assert_relative(difference.p_value().unwrap(), float(&case["t_p"]), 1e-10);
        assert_close(difference.estimate.low, float(&case["t_low"]), 1e-9);
        assert_close(difference.estimate.high, float(&case["t_high"]), 1e-9);
    }
}

#[test]
fn p_values_of_student_t_agree_with_scipy() {
    for case in cases("student_t") {
        let got = student_t_two_sided(float(&case["t"]), float(&case["degrees"]));
        assert_relative(got, float(&case["p"]), 1e-7);
    }
}
