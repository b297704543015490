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
    let mean = clustered_mean(&values, &["a", "a", "a", "b", "b", "b"]).unwrap();
    assert_eq!((mean.mean, mean.n), (0.5, 2));
    assert_close(mean.standard_error, (4.8_f64 / 36.0).sqrt(), 1e-15);
    assert!(mean.standard_error > 1.6 * estimate(&values).unwrap().standard_error);
}

#[test]
fn a_clustered_mean_needs_two_clusters_and_one_per_item() {
    let one = clustered_mean(&[0.0, 1.0], &[7, 7]);
    assert!(matches!(one, Err(Error::TooFewClusters { got: 1 })));
    let none: [u8; 0] = [];
    assert!(matches!(clustered_mean(&[], &none), Err(Error::TooFewClusters { got: 0 })));
    let short = clustered_mean(&[0.0, 1.0], &[7]);
    assert!(matches!(short, Err(Error::Lengths { left: 2, right: 1, .. })));
    let infinite = clustered_mean(&[0.0, f64::INFINITY], &[7, 8]);
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

fn tally(first: &str, second: &str, wins: u64, ties: u64, losses: u64) -> Tally {
    Tally { first: first.into(), second: second.into(), wins, ties, losses }
}

const A: Anchor = Anchor { model: "a", rating: 1000.0 };

/// The ratings where every tally is a cluster of its own.
fn rated(tallies: &[Tally], anchor: Anchor, resamples: usize) -> Result<Ratings, Error> {
    bradley_terry(&tallies.iter().map(|tally| vec![tally.clone()]).collect::<Vec<_>>(), anchor, resamples)
}

#[test]
fn ten_to_one_is_400_points_and_ties_are_half_a_point() {
    let ratings = rated(&[tally("a", "b", 1, 0, 10)], A, 0).unwrap();
    assert_eq!(ratings.models[0].model, "b");
    assert_close(ratings.models[0].rating, 1400.0, 1e-9);
    assert_eq!(ratings.models[0].comparisons, 11);
    // 10 wins and 2 ties are 11 points to 1.
    let ratings = rated(&[tally("b", "a", 10, 2, 0)], A, 0).unwrap();
    assert_close(ratings.models[0].rating, 1000.0 + 400.0 * 11.0_f64.log10(), 1e-9);
}

#[test]
fn infinite_ratings_name_the_models() {
    let error = |tallies: &[Tally]| rated(tallies, A, 0).unwrap_err().to_string();
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
    assert!(rated(&[tally("a", "b", 4, 1, 0), both], A, 0).is_ok());
}

#[test]
fn long_lists_of_names_are_cut() {
    let tallies: Vec<Tally> = (10..30).map(|model| tally("a", &format!("m{model}"), 1, 0, 0)).collect();
    let error = rated(&tallies, A, 0).unwrap_err().to_string();
    assert!(error.contains("\"m17\" and 12 more took a point from any of \"a\""), "{error}");
}

#[test]
fn ratings_refuse_what_they_cannot_use() {
    let unknown = rated(&[tally("b", "c", 1, 1, 1)], A, 0).unwrap_err().to_string();
    assert_eq!(unknown, "the anchor \"a\" is in no comparison; choose one of \"b\", \"c\"");
    let itself = rated(&[tally("a", "a", 1, 1, 1)], A, 0);
    assert!(matches!(itself, Err(Error::SelfComparison { model }) if model == "a"));
    assert!(matches!(rated(&[], A, 0), Err(Error::UnknownAnchor { .. })));
    let anchor = Anchor { model: "a", rating: f64::NAN };
    assert!(matches!(rated(&[tally("a", "b", 1, 1, 1)], anchor, 0), Err(Error::NotFinite { .. })));
    let endless = [tally("a", "b", u64::MAX, 1, u64::MAX)];
    assert!(matches!(rated(&endless, A, 0), Err(Error::OutOfRange { .. })));
    let long = rated(&vec![tally("a", "b", 1, 0, 1); 10_000], A, 1_000_000).unwrap_err().to_string();
    assert!(long.contains("times the number of resamples is 20000000000"), "{long}");
    let many: Vec<Tally> = (0..1000).map(|model| tally("a", &model.to_string(), 1, 1, 1)).collect();
    assert!(matches!(rated(&many, A, 0), Err(Error::OutOfRange { got: 1001.0, .. })));
}

#[test]
fn uneven_counts_converge() {
    // A chain in which each model loses once in a thousand million: by hand, 400 * 9 points a step.
    let chain: Vec<Tally> =
        ["ab", "bc", "cd", "de"].map(|pair| tally(&pair[..1], &pair[1..], 1, 0, 1_000_000_000)).into();
    let ratings = rated(&chain, A, 0).unwrap();
    assert_eq!(ratings.models[0].model, "e");
    assert_close(ratings.models[0].rating, 1000.0 + 4.0 * 3600.0, 1e-3);
}

#[test]
fn rare_losses_give_no_interval_rather_than_a_narrow_one() {
    // Without the only loss, which a resample misses with probability 1/e, the rating of a is infinite.
    let won = vec![tally("a", "b", 1, 0, 0); 20];
    let ratings = rated(&[won, vec![tally("a", "b", 0, 0, 1)]].concat(), A, 300).unwrap();
    assert!((80..140).contains(&ratings.undetermined), "{}", ratings.undetermined);
    assert!(ratings.models.iter().all(|model| model.interval.is_none()));
}

#[test]
fn copies_of_a_vote_on_one_question_add_no_evidence() {
    // Ten questions, six won: one vote each, or seven votes each that agree.
    let questions = |votes: u64| -> Vec<Vec<Tally>> {
        let of = |question: u64| {
            let (wins, losses) = if question < 6 { (votes, 0) } else { (0, votes) };
            vec![tally("b", "a", wins, 0, losses)]
        };
        (0..10).map(of).collect()
    };
    let [one, seven] = [1, 7].map(|votes| bradley_terry(&questions(votes), A, 500).unwrap());
    let interval =
        |ratings: &Ratings| ratings.models.iter().find(|model| model.model == "b").unwrap().interval;
    let ((low, high), (other_low, other_high)) = (interval(&one).unwrap(), interval(&seven).unwrap());
    assert_close(low, other_low, 1e-6);
    assert_close(high, other_high, 1e-6);
    // As independent votes they would claim an interval of about 1 / sqrt(7) of the width.
    let apart = rated(&vec![questions(1).concat(); 7].concat(), A, 500).unwrap();
    let (apart_low, apart_high) = interval(&apart).unwrap();
    let ratio = (apart_high - apart_low) / (high - low);
    assert!((0.25..0.5).contains(&ratio), "{ratio}");
    // Where all questions are alike, no resample differs, and nothing is known of other questions.
    let ties = rated(&vec![tally("a", "b", 0, 1, 0); 5], A, 100).unwrap();
    assert!(ties.models.iter().all(|model| model.interval.is_none()), "{ties:?}");
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
fn intervals_of_paired_rates_have_width_where_systems_agree() {
    // By hand: Wilson's interval of 0 of 100 ends at 3.841459 / 103.841459 = 0.036993, whatever is right.
    for counts in [[50, 0, 0, 50], [100, 0, 0, 0]] {
        let [both, first_only, second_only, neither] = counts;
        let (low, high) = paired(both, first_only, second_only, neither);
        assert_close(low, -0.036_993, 1e-6);
        assert_close(high, 0.036_993, 1e-6);
    }
    // Fewer independent items: the same table, scaled down to 10 of each.
    let counts = PairedCounts { both: 50, neither: 50, ..PairedCounts::default() };
    assert_eq!(paired_rates(counts, 20).unwrap(), paired(10, 0, 0, 10));
    // Opposite on every item. By hand: theta is 1 from 2 * 0.025^(1/30) - 1 = 0.768590 on, and rho 1 from 30
    // / 33.841459 = 0.886487 on, so r = 0.128048 and D = 0.953450 t1 (2 - t1) / (1 + sqrt((1 - t1)² + r² t1
    // (2 - t1))).
    let (low, high) = paired(0, 0, 30, 0);
    let (t, r): (f64, f64) = (2.0 * 0.025_f64.powf(1.0 / 30.0) - 1.0, 3.841_458_8 / 30.0);
    let product = t * (2.0 - t);
    assert_close(low, product / (1.0 + ((1.0 - t).powi(2) + r * r * product).sqrt()), 1e-8);
    assert_eq!(high, 1.0);
    assert!(matches!(paired_rates(counts, 0), Err(Error::TooFew { .. })));
}

#[test]
fn the_difference_of_independent_rates_is_that_of_newcombe() {
    // Newcombe 1998, Statistics in Medicine 17, p. 873, table II, method 10: 56/70 - 48/80, 9/10 - 3/10,
    // 10/10 - 0/10.
    for ((first, n1), (second, n2), low, high) in [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ] {
        let [first, second] = [wilson(first, n1), wilson(second, n2)].map(Result::unwrap);
        let of = |rate: Estimate| (rate.mean, (rate.low, rate.high));
        let (from, to) = independent_difference(of(first), of(second));
        assert_close(from, low, 0.000_051);
        assert_close(to, high, 0.000_051);
    }
}

fn votes(rows: &[(f64, f64, usize)]) -> Vec<Vote<usize>> {
    rows.iter().map(|&(value, weight, cluster)| Vote { value, weight, cluster }).collect()
}

#[test]
fn unequal_votes_that_were_all_won_are_no_proof() {
    // By hand: questions with 6, 2 and 2 votes are worth 10² / 44 = 2.2727 equal ones, and Wilson's interval
    // of n of n begins at n / (n + 3.841459) = 0.371714.
    let won = [(1.0, 3.0, 0), (1.0, 3.0, 0), (1.0, 1.0, 1), (1.0, 1.0, 1), (1.0, 1.0, 2), (1.0, 1.0, 2)];
    let rate = weighted_rate(&votes(&won)).unwrap();
    assert_eq!((rate.mean, rate.high, rate.standard_error, rate.n), (1.0, 1.0, 0.0, 3));
    assert_close(rate.low, 0.371_714, 1e-6);
    // One question says as much as one item, however many votes it has; and ties are no proof either.
    let one = weighted_rate(&votes(&won[..2])).unwrap();
    assert_close(one.low, wilson(1, 1).unwrap().low, 1e-15);
    let ties = weighted_rate(&votes(&[(0.5, 1.0, 0), (0.5, 3.0, 1)])).unwrap();
    assert!(ties.low < 0.2 && ties.high > 0.8);
    assert!(matches!(weighted_rate::<u8>(&[]), Err(Error::TooFew { got: 0, .. })));
    for bad in [(1.5, 1.0, 0), (1.0, 0.0, 0), (f64::NAN, 1.0, 0)] {
        assert!(matches!(weighted_rate(&votes(&[bad])), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn rates_of_subsets_that_are_all_right_are_no_proof() {
    // By hand: weights 3 and 1 on 10 and 20 items are worth 16 / (9/10 + 1/20) = 16.842105 items.
    let [first, second] = [10, 20].map(|n| wilson(n, n).unwrap());
    let rate = stratified_rate(&[(first, 3.0), (second, 1.0)]).unwrap();
    assert_close(rate.low, 16.842_105 / (16.842_105 + 3.841_459), 1e-6);
    assert_eq!((rate.mean, rate.high, rate.n), (1.0, 1.0, 30));
    // Equal weights for items: the rate of all of them together.
    let [first, second] = [wilson(6, 10), wilson(12, 20)].map(Result::unwrap);
    let rate = stratified_rate(&[(first, 10.0), (second, 20.0)]).unwrap();
    assert_close(rate.low, wilson(18, 30).unwrap().low, 1e-12);
    assert!(stratified_rate(&[]).is_err() && stratified_rate(&[(first, 0.0)]).is_err());
}

#[test]
fn differences_in_clusters_by_hand() {
    // Differences 1, 1 | 0, 0 | 0, -1 with mean 1/6. Sums of deviations in clusters: 5/3, -1/3, -4/3, with
    // squares 14/3 in all; squares of deviations: 17/6. SE² = (14/3 + 17/6/5) / 36 = 157/1080.
    let (before, after) = ([0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let clusters = ["a", "a", "b", "b", "c", "c"];
    let gain = clustered_difference(&before, &after, &clusters).unwrap();
    let error = (157.0_f64 / 1080.0).sqrt();
    assert_close(gain.estimate.standard_error, error, 1e-14);
    assert_eq!(gain.estimate.n, 3);
    assert_close(gain.estimate.high - gain.estimate.mean, 4.302_652_73 * error, 1e-7);
    // With 2 degrees of freedom, P(|T| >= t) = 1 - t / sqrt(t² + 2).
    let t = 1.0 / 6.0 / error;
    assert_close(gain.p_value().unwrap(), 1.0 - t / (t * t + 2.0).sqrt(), 1e-10);

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
