//! Extremes, and what each statistic refuses. Expected numbers are worked by hand.

use super::*;

fn task(mean: f64, n: usize) -> Estimate {
    Estimate { mean, standard_error: 0.1, low: mean, high: mean, n }
}

#[test]
fn a_group_needs_a_task_with_two_items() {
    assert!(matches!(group_mean(&[], Weighting::Equal), Err(Error::TooFew { got: 0, .. })));
    assert!(matches!(group_mean(&[task(0.5, 1); 3], Weighting::BySize), Err(Error::TooFew { got: 1, .. })));
    assert!(matches!(macro_mean(&[task(0.5, 4), task(0.5, 1)]), Err(Error::TooFew { got: 1, .. })));
    let error = macro_mean(&[Estimate { standard_error: -0.1, ..task(0.5, 4) }]).unwrap_err();
    assert!(error.to_string().starts_with("the standard error of task 0 is -0.1"), "{error}");
    let error = macro_mean(&[task(f64::NAN, 4)]).unwrap_err();
    assert!(error.to_string().starts_with("the mean of task 0 is NaN"));
}

#[test]
fn items_of_one_cluster_are_little_more_than_one_item() {
    // By hand: 2 clusters of 3 equal items, deviations ±1/2: (2 (3/2)² + 6/4 / 5) / 36 = 4.8 / 36.
    let values = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    let mean = clustered_mean(&values, &["a", "a", "a", "b", "b", "b"], Interval::Normal).unwrap();
    assert_eq!((mean.mean, mean.n), (0.5, 2));
    assert_close(mean.standard_error, (4.8_f64 / 36.0).sqrt(), 1e-15);
    assert!(mean.standard_error > 1.6 * estimate(&values, Interval::Normal).unwrap().standard_error);
}

#[test]
fn a_clustered_mean_needs_two_clusters_and_one_per_item() {
    let one = clustered_mean(&[0.0, 1.0], &[7, 7], Interval::Normal);
    assert!(matches!(one, Err(Error::TooFewClusters { got: 1 })));
    let none: [u8; 0] = [];
    assert!(matches!(clustered_mean(&[], &none, Interval::Normal), Err(Error::TooFewClusters { got: 0 })));
    let short = clustered_mean(&[0.0, 1.0], &[7], Interval::Normal);
    assert!(matches!(short, Err(Error::Lengths { left: 2, right: 1, .. })));
    let infinite = clustered_mean(&[0.0, f64::INFINITY], &[7, 8], Interval::Normal);
    assert!(matches!(infinite, Err(Error::NotFinite { .. })));
}

#[test]
fn mcnemar_neither_overflows_nor_runs_forever() {
    assert_eq!(mcnemar(1_000_000, 0).unwrap(), 0.0);
    assert_eq!(mcnemar(500_000_000_000, 500_000_000_000).unwrap(), 1.0);
    for (b, c) in [(u64::MAX, u64::MAX), (1_000_000_000_000, 1)] {
        let error = mcnemar(b, c).unwrap_err().to_string();
        assert!(error.contains("from 0 to 1000000000000"), "{error}");
    }
}

#[test]
fn holm_refuses_what_is_no_p_value() {
    assert!(holm(&[]).unwrap().is_empty());
    for bad in [-0.1, 1.5, f64::NAN] {
        let error = holm(&[0.5, bad]).unwrap_err().to_string();
        assert!(error.starts_with("p-value 1 is"), "{error}");
    }
}

#[test]
fn a_thousand_paired_items_detect_about_three_points_of_a_rate() {
    // Miller 2024, section 5: about 1000 items for 3 points. By hand with a deviation of 1/3 per item, the
    // 969 items of (2.80158 / 3 / 0.03)² detect 0.03.
    assert_close(detectable_difference(1.0 / 3.0 / 969_f64.sqrt()).unwrap(), 0.03, 1e-6);
    assert_eq!(detectable_difference(0.0).unwrap(), 0.0);
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(detectable_difference(bad), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_bootstrap_names_the_resample_on_which_the_statistic_fails() {
    let items = [1.0, 2.0, 3.0];
    let mean = |values: &[f64]| Ok(values.iter().sum::<f64>() / values.len() as f64);
    assert!(matches!(bootstrap(&items[..1], 100, mean), Err(Error::TooFew { got: 1, .. })));
    for resamples in [0, 1, 1_000_001] {
        assert!(matches!(bootstrap(&items, resamples, mean), Err(Error::OutOfRange { .. })));
    }

    // Undefined as soon as the 3 is not drawn.
    let needs_three = |values: &[f64]| Ok(if values.contains(&3.0) { 1.0 } else { f64::NAN });
    let error = bootstrap(&items, 100, needs_three).unwrap_err().to_string();
    assert!(error.starts_with("the statistic of bootstrap resample "), "{error}");
    let constant = |values: &[f64]| pearson(values, values);
    assert!(matches!(bootstrap(&items, 100, constant), Err(Error::NoSpread { .. })));
}

fn tally(first: &str, second: &str, wins: u64, ties: u64, losses: u64) -> Tally {
    Tally { first: first.into(), second: second.into(), wins, ties, losses }
}

const A: Anchor = Anchor { model: "a", rating: 1000.0 };

#[test]
fn ten_to_one_is_400_points_and_ties_are_half_a_point() {
    let ratings = bradley_terry(&[tally("a", "b", 1, 0, 10)], A, 0).unwrap();
    assert_eq!(ratings.models[0].model, "b");
    assert_close(ratings.models[0].rating, 1400.0, 1e-9);
    assert_eq!(ratings.models[0].comparisons, 11);
    // 10 wins and 2 ties are 11 points to 1.
    let ratings = bradley_terry(&[tally("b", "a", 10, 2, 0)], A, 0).unwrap();
    assert_close(ratings.models[0].rating, 1000.0 + 400.0 * 11.0_f64.log10(), 1e-9);
}

#[test]
fn infinite_ratings_name_the_models() {
    let error = |tallies: &[Tally]| bradley_terry(tallies, A, 0).unwrap_err().to_string();
    let message = |others: &str, unbeaten: &str| {
        format!(
            "ratings are not finite: none of {others} took a point from any of {unbeaten}; \
             compare these groups more often, or rate them apart"
        )
    };
    let both = tally("b", "c", 3, 0, 2);
    assert_eq!(
        error(&[tally("a", "b", 4, 0, 0), both.clone()]),
        message("\"b\", \"c\"", "\"a\""),
        "the anchor is unbeaten"
    );
    assert_eq!(
        error(&[tally("a", "b", 0, 0, 1), both.clone()]),
        message("\"a\"", "\"b\", \"c\""),
        "the anchor never won"
    );
    assert_eq!(
        error(&[tally("a", "d", 1, 0, 1), both.clone()]),
        message("\"a\", \"d\"", "\"b\", \"c\""),
        "two groups that never met"
    );
    // A tally without comparisons connects nothing.
    assert_eq!(error(&[tally("a", "b", 0, 0, 0), both.clone()]), message("\"a\"", "\"b\", \"c\""));
    // One tie is enough.
    assert!(bradley_terry(&[tally("a", "b", 4, 1, 0), both], A, 0).is_ok());
}

#[test]
fn long_lists_of_names_are_cut() {
    let tallies: Vec<Tally> = (10..30).map(|model| tally("a", &format!("m{model}"), 1, 0, 0)).collect();
    let error = bradley_terry(&tallies, A, 0).unwrap_err().to_string();
    assert!(error.contains("\"m17\" and 12 more took a point from any of \"a\""), "{error}");
}

#[test]
fn ratings_refuse_what_they_cannot_use() {
    let unknown = bradley_terry(&[tally("b", "c", 1, 1, 1)], A, 0).unwrap_err().to_string();
    assert_eq!(unknown, "the anchor \"a\" is in no comparison; choose one of \"b\", \"c\"");
    let itself = bradley_terry(&[tally("a", "a", 1, 1, 1)], A, 0);
    assert!(matches!(itself, Err(Error::SelfComparison { model }) if model == "a"));
    assert!(matches!(bradley_terry(&[], A, 0), Err(Error::UnknownAnchor { .. })));
    let anchor = Anchor { model: "a", rating: f64::NAN };
    assert!(matches!(bradley_terry(&[tally("a", "b", 1, 1, 1)], anchor, 0), Err(Error::NotFinite { .. })));
    let endless = [tally("a", "b", u64::MAX, 1, u64::MAX)];
    assert!(matches!(bradley_terry(&endless, A, 0), Err(Error::OutOfRange { .. })));
    let long = bradley_terry(&[tally("a", "b", 100_000_000, 1, 1)], A, 1000).unwrap_err().to_string();
    assert!(long.contains("times the number of resamples is 100000002000"), "{long}");
    let many: Vec<Tally> = (0..1000).map(|model| tally("a", &model.to_string(), 1, 1, 1)).collect();
    assert!(matches!(bradley_terry(&many, A, 0), Err(Error::OutOfRange { got: 1001.0, .. })));
}

#[test]
fn uneven_counts_converge() {
    // A chain in which each model loses once in a thousand million: by hand, 400 * 9 points a step.
    let chain: Vec<Tally> =
        ["ab", "bc", "cd", "de"].map(|pair| tally(&pair[..1], &pair[1..], 1, 0, 1_000_000_000)).into();
    let ratings = bradley_terry(&chain, A, 0).unwrap();
    assert_eq!(ratings.models[0].model, "e");
    assert_close(ratings.models[0].rating, 1000.0 + 4.0 * 3600.0, 1e-3);
}

#[test]
fn rare_losses_give_no_interval_rather_than_a_narrow_one() {
    // Without the only loss, which a resample misses with probability 1/e, the rating of a is infinite.
    let ratings = bradley_terry(&[tally("a", "b", 20, 0, 1)], A, 300).unwrap();
    assert!((80..140).contains(&ratings.undetermined), "{}", ratings.undetermined);
    assert!(ratings.models.iter().all(|model| model.interval.is_none()));
}

#[test]
fn judgements_of_one_kind_still_have_an_interval() {
    let ties = win_rate(0, 3, 0).unwrap();
    assert_eq!((ties.mean, ties.standard_error), (0.5, 0.0));
    assert!(ties.low < 0.2 && ties.high > 0.8);
    assert_eq!(win_rate(8, 0, 2).unwrap(), wilson(8, 10).unwrap());
    assert!(matches!(win_rate(0, 0, 0), Err(Error::TooFew { .. })));
    assert!(matches!(win_rate(u64::MAX, 1, 1), Err(Error::OutOfRange { .. })));
}

fn judged(rows: &[(f64, usize, usize)]) -> Result<LengthControlled, Error> {
    let judgement =
        |&(preference, length, baseline_length)| Judgement { preference, length, baseline_length };
    length_controlled(&rows.iter().map(judgement).collect::<Vec<_>>())
}

#[test]
fn at_equal_lengths_the_controlled_rate_is_the_raw_one() {
    let equal = judged(&[(1.0, 30, 30), (0.0, 5, 5), (0.5, 70, 70), (1.0, 0, 0)]).unwrap();
    assert_eq!((equal.win_rate.mean, equal.raw, equal.length_coefficient), (0.625, 0.625, None));
    assert!(equal.win_rate.low < 0.625 && 0.625 < equal.win_rate.high);
    // All ties: a regression would fit them exactly and state no error.
    let ties = judged(&[(0.5, 30, 3), (0.5, 5, 50), (0.5, 70, 70)]).unwrap();
    let expected = win_rate(0, 3, 0).unwrap();
    assert_eq!((ties.win_rate, ties.length_coefficient), (expected, None));
    // All won, whatever the length.
    let won = judged(&[(1.0, 30, 3), (1.0, 5, 50), (1.0, 70, 70)]).unwrap();
    assert_eq!((won.win_rate.mean, won.win_rate.high, won.length_coefficient), (1.0, 1.0, None));
}

#[test]
fn length_control_removes_what_length_explains() {
    // By hand, with two lengths ±d: the fit is exact in both groups, 3 of 4 and 1 of 4, so the intercept is
    // the mean of two logits that cancel.
    let long = [1.0, 1.0, 1.0, 0.0].map(|won| (won, 90, 40));
    let short = [0.0, 0.0, 0.0, 1.0].map(|won| (won, 40, 90));
    let fair = judged(&[long, short].concat()).unwrap();
    assert_close(fair.win_rate.mean, 0.5, 1e-12);
    // Twice as many long replies win more often; at equal lengths they would not.
    let more = judged(&[long, long, short].concat()).unwrap();
    assert_close(more.raw, 7.0 / 12.0, 1e-15);
    assert!(more.win_rate.mean < more.raw && more.length_coefficient.unwrap() > 0.0);
}

#[test]
fn length_control_refuses_lengths_that_decide() {
    let message = "the length-controlled win rate is not determined";
    for rows in [
        vec![(1.0, 90, 40), (1.0, 80, 40), (0.0, 30, 40)],
        vec![(0.0, 90, 40), (1.0, 30, 40), (1.0, 20, 40)],
        // Separated but for items at the boundary.
        vec![(1.0, 90, 40), (1.0, 80, 40), (0.0, 80, 40), (0.0, 30, 40)],
        // Always longer by the same amount.
        vec![(1.0, 90, 40), (0.0, 80, 30), (1.0, 70, 20)],
    ] {
        let error = judged(&rows).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    let error = judged(&[(1.0, 1, 2), (1.5, 1, 2), (0.0, 1, 2)]).unwrap_err().to_string();
    assert!(error.starts_with("the preference of item 1 is 1.5"), "{error}");
    assert!(matches!(judged(&[(1.0, 1, 2), (0.0, 3, 2)]), Err(Error::TooFew { needed: 3, got: 2, .. })));
}

#[test]
fn pass_at_k_is_exact_at_its_ends() {
    assert_eq!(pass_at_k(7, 0, 3).unwrap(), 0.0);
    assert_eq!(pass_at_k(7, 5, 3).unwrap(), 1.0);
    // By hand: 1 - C(4, 2) / C(6, 2) = 1 - 6/15.
    assert_close(pass_at_k(6, 2, 2).unwrap(), 0.6, 1e-15);
    assert!(matches!(pass_at_k(3, 4, 1), Err(Error::NotARate { successes: 4, n: 3 })));
    for k in [0, 4] {
        assert!(matches!(pass_at_k(3, 1, k), Err(Error::TooFewSamples { samples: 3, .. })));
    }
}

#[test]
fn correlations_refuse_what_does_not_vary() {
    let rising = [1.0, 2.0, 3.0];
    let error = spearman(&rising, &[0.1; 3]).unwrap_err().to_string();
    assert!(error.starts_with("a correlation is undefined: one side is 0.1 on every item"), "{error}");
    assert!(matches!(pearson(&rising, &rising[1..]), Err(Error::Lengths { left: 3, right: 2, .. })));
    assert!(matches!(pearson(&[1.0], &[1.0]), Err(Error::TooFew { .. })));
    assert!(matches!(pearson(&rising, &[0.0, f64::NAN, 1.0]), Err(Error::NotFinite { .. })));
}

#[test]
fn probabilities_on_the_edge_belong_to_the_bin_below() {
    // 0.7 * 10 is 7.000000000000001 in some roundings; 0 has no bin below.
    let probabilities = [0.0, 0.1, 0.3, 0.7, 0.700_1, 1.0];
    let calibration = calibration(&probabilities, &[true; 6], 10).unwrap();
    let filled: Vec<usize> = (0..10).filter(|&bin| calibration.bins[bin].n > 0).collect();
    assert_eq!(filled, [0, 2, 6, 7, 9]);
    assert_eq!(calibration.bins[0].n, 2);
    assert_close(calibration.error, (6.0 - 2.8001) / 6.0, 1e-15);
    assert_eq!(calibration.bins[1].accuracy, None);
}

#[test]
fn calibration_refuses_what_is_no_probability() {
    let error = calibration(&[0.5, 50.0], &[true; 2], 10).unwrap_err().to_string();
    assert!(error.starts_with("the probability of item 1 is 50"), "{error}");
    assert!(matches!(calibration(&[0.5], &[], 10), Err(Error::Lengths { .. })));
    assert!(matches!(calibration(&[], &[], 10), Err(Error::TooFew { .. })));
    for bins in [0, 10_001] {
        assert!(matches!(calibration(&[0.5], &[true], bins), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn equal_differences_have_no_t() {
    let before = [0.1, 0.2, 0.3, 0.4, 0.5];
    let same = paired_difference(&before, &before).unwrap();
    assert!(same.p_value().unwrap() == 1.0 && !same.varies());
    // In floating point the differences are not all equal.
    let after = before.map(|value| value + 0.1);
    let gain = paired_difference(&before, &after).unwrap();
    assert!(matches!(gain.p_value(), Err(Error::EqualDifferences { .. })) && !gain.varies());
}

fn paired(both: u64, first_only: u64, second_only: u64, neither: u64) -> (f64, f64) {
    let n = both + first_only + second_only + neither;
    paired_rates(PairedCounts { both, first_only, second_only, neither }, n as usize).unwrap()
}

#[test]
fn intervals_of_paired_rates_are_those_of_newcombe() {
    // Published, as the first minus the second: Newcombe 1998, Statistics in Medicine 17, p. 2635; Altman et
    // al. 2000, "Statistics with Confidence", p. 52; Fagerland et al. 2014, Statistics in Medicine 33, p.
    // 2850.
    for (counts, low, high, digits) in [
        ([36, 12, 2, 0], 0.0569, 0.3404, 4),
        ([14, 5, 0, 22], 0.011, 0.226, 3),
        ([1, 1, 7, 12], -0.507, -0.026, 3),
    ] {
        let [both, first_only, second_only, neither] = counts;
        let (from, to) = paired(both, second_only, first_only, neither);
        let tolerance = 0.51 * 10_f64.powi(-digits);
        assert_close(from, low, tolerance);
        assert_close(to, high, tolerance);
    }
}

#[test]
fn intervals_of_paired_rates_have_width_where_systems_agree() {
    // By hand: Wilson's interval of 50 of 100 is 0.5 ± 0.096168, phi = 1 - 100 / (2 * 50 * 50) = 0.98, and
    // 0.096168 sqrt(2 - 2 * 0.98) = 0.019234.
    let (low, high) = paired(50, 0, 0, 50);
    assert_close(low, -0.019_234, 1e-6);
    assert_close(high, 0.019_234, 1e-6);
    // All right: without a spread there is no correlation. Wilson's interval of 54 of 54 ends 1.959964² / (54
    // + 1.959964²) = 0.066414 below 1.
    let (low, high) = paired(54, 0, 0, 0);
    assert_close(low, -0.066_414, 1e-6);
    assert_close(high, 0.066_414, 1e-6);
    // Fewer independent items: the same table, scaled down to 10 of each.
    let counts = PairedCounts { both: 50, first_only: 0, second_only: 0, neither: 50 };
    assert_eq!(paired_rates(counts, 20).unwrap(), paired(10, 0, 0, 10));
    // Opposite on every item: the ends are those of the scale.
    let (low, high) = paired(0, 0, 30, 0);
    assert!((0.8..0.9).contains(&low) && high == 1.0);
    assert!(matches!(paired_rates(counts, 0), Err(Error::TooFew { .. })));
}

#[test]
fn differences_in_clusters_by_hand() {
    // Differences 1, 1 | 0, 0 | 0, -1 with mean 1/6. Sums of deviations in clusters: 5/3, -1/3, -4/3, with
    // squares 14/3 in all; squares of deviations: 17/6. SE² = (14/3 + 17/6/5) / 36 = 157/1080.
    let (before, after) = ([0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let clusters = ["a", "a", "b", "b", "c", "c"];
    let gain = clustered_difference(&before, &after, &clusters).unwrap();
    let error = (157.0_f64 / 1080.0).sqrt();
    assert_close(gain.normal.standard_error, error, 1e-14);
    assert_eq!(gain.normal.n, 3);
    assert_close(gain.normal.high - gain.normal.mean, 4.302_652_73 * error, 1e-7);
    // With 2 degrees of freedom, P(|T| >= t) = 1 - t / sqrt(t² + 2).
    let t = 1.0 / 6.0 / error;
    assert_close(gain.p_value().unwrap(), 1.0 - t / (t * t + 2.0).sqrt(), 1e-10);
    // Of three clusters drawn from three, the same one comes three times with 1/27 > 2.5 %.
    assert_eq!((gain.bootstrap_low, gain.bootstrap_high), (-0.5, 1.0));

    let single = clustered_difference(&before, &after, &[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(single, paired_difference(&before, &after).unwrap());
    let one = clustered_difference(&before, &after, &["a"; 6]);
    assert!(matches!(one, Err(Error::TooFewClusters { got: 1 })));
}

#[test]
fn effective_items_of_a_rate_in_clusters_by_hand() {
    // 40 items in 20 clusters of two equal items, 10 clusters right: deviations ±1/2, sums ±1. SE² = (20 + 10
    // / 39) / 1600 = 0.0126603, p (1 - p) / SE² = 19.7468; t with 39 and 19 degrees of freedom are 2.0226909
    // and 2.0930241, so 18.4420 items. Wilson: half = 1.959964 sqrt(0.25 / n + 3.8414588 / 4n²) / (1 +
    // 3.8414588 / n).
    let values: Vec<f64> = (0..40).map(|item| f64::from(u8::from(item < 20))).collect();
    let clusters: Vec<usize> = (0..40).map(|item| item / 2).collect();
    let rate = clustered_rate(&values, &clusters).unwrap();
    let n: f64 = 18.4420;
    let half = 1.959_964 * (0.25 / n + 3.841_458_8 / (4.0 * n * n)).sqrt() / (1.0 + 3.841_458_8 / n);
    assert_close(rate.high - 0.5, half, 1e-5);
    assert_close(0.5 - rate.low, half, 1e-5);
    assert_eq!(rate.n, 20);
    // Right and wrong in each cluster: they tell more than as many independent items, and count as those.
    let mixed: Vec<f64> = (0..40).map(|item| f64::from(item % 2)).collect();
    let rate = clustered_rate(&mixed, &clusters).unwrap();
    assert_close(rate.low, wilson(20, 40).unwrap().low, 1e-12);
}
