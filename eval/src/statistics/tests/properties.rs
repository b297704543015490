//! What must hold for any input, checked on a few hundred inputs from a fixed seed.

use super::super::bootstrap::Draws;
use super::*;

const CASES: usize = 200;

/// Inputs of random size from a fixed seed.
struct Inputs(Draws);

impl Inputs {
    fn new() -> Self {
        Self(Draws::new())
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.index(n)
    }

    /// Between 0 and 1, on a grid, so that values tie.
    fn value(&mut self) -> f64 {
        self.below(21) as f64 / 20.0
    }

    fn values(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.value()).collect()
    }
}

#[test]
fn a_cluster_per_item_gives_the_plain_error() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 2 + inputs.below(40);
        let values = inputs.values(n);
        let clusters: Vec<usize> = (0..values.len()).rev().collect();
        let clustered = clustered_mean(&values, &clusters).unwrap();
        let plain = estimate(&values).unwrap();
        assert_close(clustered.standard_error, plain.standard_error, 1e-14);
        // Equal values have no known scale, and so no interval.
        assert_eq!(clustered.low.is_nan(), plain.low.is_nan());
        if !plain.low.is_nan() {
            assert_close(clustered.low, plain.low, 1e-12);
        }
    }
}

#[test]
fn a_group_of_one_task_is_the_task() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 2 + inputs.below(40);
        let task = estimate(&inputs.values(n)).unwrap();
        for group in [
            group_mean(&[task], Weighting::BySize),
            group_mean(&[task], Weighting::Equal),
            macro_mean(&[task]),
        ] {
            let group = group.unwrap();
            assert_close(group.mean, task.mean, 1e-14);
            assert_close(group.standard_error, task.standard_error, 1e-14);
        }
    }
}

#[test]
fn mcnemar_is_symmetric_and_falls_with_the_imbalance() {
    for n in 0..60 {
        let of = |b: u64| mcnemar(b, n - b).unwrap();
        for b in 0..=n {
            assert_eq!(of(b), of(n - b));
            assert!((0.0..=1.0).contains(&of(b)));
            assert!(b == 0 || b > n / 2 || of(b - 1) < of(b), "{b} of {n}");
        }
    }
}

#[test]
fn holm_keeps_the_order_and_lies_between_the_p_value_and_bonferroni() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 1 + inputs.below(12);
        let p_values = inputs.values(n);
        let adjusted = holm(&p_values).unwrap();
        for (p, adjusted_p) in p_values.iter().zip(&adjusted) {
            assert!(p <= adjusted_p && *adjusted_p <= (p * n as f64).min(1.0));
            for (other, adjusted_other) in p_values.iter().zip(&adjusted) {
                assert!(p > other || adjusted_p <= adjusted_other);
            }
        }
    }
}

#[test]
fn an_interval_of_a_difference_excludes_zero_exactly_where_its_p_value_is_below_5_percent() {
    let mut inputs = Inputs::new();
    let excludes_zero = |(low, high): (f64, f64)| low > 0.0 || high < 0.0;
    let mut shown = 0;
    for _ in 0..5 * CASES {
        let n = 2 + inputs.below(12);
        let shift = inputs.value();
        let before = inputs.values(n);
        let after: Vec<f64> = inputs.values(n).iter().map(|value| value + shift).collect();
        let clusters: Vec<usize> = (0..n).map(|_| inputs.below(n)).collect();
        for found in [paired_difference(&before, &after), clustered_difference(&before, &after, &clusters)] {
            let Ok(found) = found else { continue };
            let Some(interval) = found.estimate.interval() else { continue };
            assert_eq!(excludes_zero(interval), found.p_value().unwrap() < 0.05, "{found:?}");
            shown += usize::from(excludes_zero(interval));
        }
    }
    assert!(shown > CASES, "{shown}");
}

#[test]
fn an_interval_of_paired_rates_excludes_zero_exactly_where_mcnemar_is_below_5_percent() {
    for n in [1, 2, 5, 6, 11, 40, 60] {
        for first_only in 0..=n {
            for second_only in 0..=n - first_only {
                let neither = n - first_only - second_only;
                let counts = PairedCounts { both: 0, first_only, second_only, neither };
                let (low, high) = paired_rates(counts, n as usize).unwrap();
                let difference = (second_only as f64 - first_only as f64) / n as f64;
                assert!(-1.0 - 1e-12 <= low && low <= difference + 1e-12, "{counts:?} {low}");
                assert!(difference - 1e-12 <= high && high <= 1.0 + 1e-12, "{counts:?} {high}");
                assert!(high - low > 1e-3, "{counts:?}: no width");
                let is_shown = mcnemar(first_only, second_only).unwrap() < 0.05;
                assert_eq!(low > 0.0 || high < 0.0, is_shown, "{counts:?} {low} {high}");
                let swapped = PairedCounts { first_only: second_only, second_only: first_only, ..counts };
                let mirrored = paired_rates(swapped, n as usize).unwrap();
                assert_close(mirrored.0, -high, 1e-12);
                assert_close(mirrored.1, -low, 1e-12);
            }
        }
    }
}

#[test]
fn weighted_rates_have_a_width_and_are_wilsons_for_single_equal_votes() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 1 + inputs.below(20);
        let vote = |cluster: usize, inputs: &mut Inputs| Vote {
            value: inputs.below(3) as f64 / 2.0,
            weight: 1.0 + inputs.below(3) as f64,
            cluster: cluster / 2,
        };
        let votes: Vec<Vote<usize>> = (0..n).map(|cluster| vote(cluster, &mut inputs)).collect();
        let rate = weighted_rate(&votes).unwrap();
        assert!(0.0 <= rate.low && rate.low <= rate.mean && rate.mean <= rate.high && rate.high <= 1.0);
        assert!(rate.high - rate.low > 0.01, "{votes:?} {rate:?}");

        let won = inputs.below(n + 1);
        let single =
            |item: usize| Vote { value: f64::from(u8::from(item < won)), weight: 3.0, cluster: item };
        let rate = weighted_rate(&(0..n).map(single).collect::<Vec<_>>()).unwrap();
        let expected = wilson(won as u64, n as u64).unwrap();
        assert_close(rate.low, expected.low, 1e-12);
        assert_close(rate.high, expected.high, 1e-12);
    }
}

/// The tallies as comparisons that are independent of one another.
fn apart(tallies: &[Tally]) -> Vec<Vec<Tally>> {
    let single = |tally: &Tally| {
        let of = |wins, ties, losses| vec![Tally { wins, ties, losses, ..tally.clone() }];
        let outcomes = [(of(1, 0, 0), tally.wins), (of(0, 1, 0), tally.ties), (of(0, 0, 1), tally.losses)];
        outcomes.into_iter().flat_map(|(outcome, count)| vec![outcome; count as usize])
    };
    tallies.iter().flat_map(single).collect()
}

/// Random tallies of `models` models, all of which met and took points from each other.
fn random_tallies(inputs: &mut Inputs, models: usize) -> Vec<Tally> {
    let mut tallies = Vec::new();
    for second in 0..models {
        for first in 0..second {
            let [wins, ties, losses] = [9, 4, 9].map(|most| 1 + inputs.below(most) as u64);
            let [first, second] = [first, second].map(|model| format!("m{model}"));
            tallies.push(Tally { first, second, wins, ties, losses });
        }
    }
    tallies
}

fn rate(tallies: &[Tally], anchor: &str, resamples: usize) -> Ratings {
    bradley_terry(&apart(tallies), Anchor { model: anchor, rating: 1000.0 }, resamples).unwrap()
}

#[test]
fn ratings_expect_the_points_that_were_won() {
    // The gradient of the likelihood is zero: each model's points are those that its ratings predict.
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let models = 2 + inputs.below(6);
        let tallies = random_tallies(&mut inputs, models);
        let ratings = rate(&tallies, "m1", 0);
        let of = |name: &str| ratings.models.iter().find(|rating| rating.model == name).unwrap();
        for Rating { model, rating, .. } in &ratings.models {
            let mut surplus = 0.0;
            for tally in tallies.iter().filter(|tally| [&tally.first, &tally.second].contains(&model)) {
                let is_first = tally.first == *model;
                let (won, other) =
                    if is_first { (tally.wins, &tally.second) } else { (tally.losses, &tally.first) };
                let n = (tally.wins + tally.ties + tally.losses) as f64;
                let expected = n / (1.0 + 10.0_f64.powf((of(other).rating - rating) / 400.0));
                surplus += won as f64 + 0.5 * tally.ties as f64 - expected;
            }
            assert_close(surplus, 0.0, 1e-7);
        }
        assert_close(of("m1").rating, 1000.0, 1e-12);
    }
}

#[test]
fn ratings_do_not_depend_on_the_sides_the_order_or_the_anchor() {
    let mut inputs = Inputs::new();
    let mut tallies = random_tallies(&mut inputs, 5);
    let first = rate(&tallies, "m0", 0);
    tallies.reverse();
    for tally in &mut tallies {
        std::mem::swap(&mut tally.first, &mut tally.second);
        std::mem::swap(&mut tally.wins, &mut tally.losses);
    }
    let second = rate(&tallies, "m3", 0);
    let shift = first.models[0].rating - second.models[0].rating;
    for (one, other) in first.models.iter().zip(&second.models) {
        assert_eq!((&one.model, one.comparisons), (&other.model, other.comparisons));
        assert_close(one.rating - other.rating, shift, 1e-8);
    }
}

#[test]
fn intervals_of_ratings_contain_them_and_repeat_to_the_bit() {
    let mut inputs = Inputs::new();
    let tallies = random_tallies(&mut inputs, 4);
    let ratings = rate(&tallies, "m0", 200);
    assert_eq!(ratings, rate(&tallies, "m0", 200));
    for model in ratings.models.iter().filter(|model| model.model != "m0") {
        let (low, high) = model.interval.unwrap();
        assert!(low <= model.rating && model.rating <= high);
    }
    // Ten times the comparisons narrow the interval by about sqrt(10).
    let width = |ratings: &Ratings| {
        ratings.models.iter().map(|model| model.interval.map_or(0.0, |(low, high)| high - low)).sum::<f64>()
    };
    let more: Vec<Tally> = tallies
        .iter()
        .map(|tally| Tally {
            wins: 10 * tally.wins,
            ties: 10 * tally.ties,
            losses: 10 * tally.losses,
            ..tally.clone()
        })
        .collect();
    let ratio = width(&ratings) / width(&rate(&more, "m0", 200));
    assert!((2.4..4.2).contains(&ratio), "{ratio}");
}

#[test]
fn length_control_mirrors_when_the_sides_are_swapped() {
    let mut inputs = Inputs::new();
    let mut fitted = 0;
    for _ in 0..CASES {
        let n = 12 + inputs.below(30);
        let mut judgements = Vec::new();
        for _ in 0..n {
            let [length, baseline_length] = [(); 2].map(|()| 10 + inputs.below(90));
            judgements.push(Judgement { preference: inputs.value(), length, baseline_length });
        }
        let ours = length_controlled(&judgements).unwrap();
        for judgement in &mut judgements {
            judgement.preference = 1.0 - judgement.preference;
            std::mem::swap(&mut judgement.length, &mut judgement.baseline_length);
        }
        let mirrored = length_controlled(&judgements).unwrap();
        assert_close(ours.win_rate.mean + mirrored.win_rate.mean, 1.0, 1e-9);
        assert_close(ours.win_rate.low + mirrored.win_rate.high, 1.0, 1e-9);
        assert!(ours.win_rate.low < ours.win_rate.mean && ours.win_rate.mean < ours.win_rate.high);
        fitted += usize::from(ours.length_coefficient.is_some());
    }
    assert_eq!(fitted, CASES);
}

#[test]
fn pass_at_k_rises_with_k_and_starts_at_the_rate() {
    for n in 1..25 {
        for correct in 0..=n {
            let of = |k: u64| pass_at_k(n, correct, k).unwrap();
            assert_close(of(1), correct as f64 / n as f64, 1e-14);
            assert_eq!(of(n), f64::from(u8::from(correct > 0)));
            assert!((2..=n).all(|k| of(k) >= of(k - 1) - 1e-15));
        }
    }
}

#[test]
fn correlations_are_symmetric_and_keep_under_rising_maps() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 3 + inputs.below(30);
        let (left, right) = (inputs.values(n), inputs.values(n));
        let (Ok(line), Ok(ranks)) = (pearson(&left, &right), spearman(&left, &right)) else { continue };
        assert_close(pearson(&right, &left).unwrap(), line, 1e-14);
        let moved: Vec<f64> = left.iter().map(|x| 3.0 * x - 7.0).collect();
        assert_close(pearson(&moved, &right).unwrap(), line, 1e-12);
        let bent: Vec<f64> = left.iter().map(|x| x.exp()).collect();
        assert_eq!(spearman(&bent, &right).unwrap(), ranks);
        assert_close(spearman(&left, &left).unwrap(), 1.0, 1e-15);
    }
}
