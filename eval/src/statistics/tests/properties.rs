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
        let clustered = clustered_mean(&values, &clusters, Interval::StudentT).unwrap();
        let plain = estimate(&values, Interval::StudentT).unwrap();
        assert_close(clustered.standard_error, plain.standard_error, 1e-14);
        assert_close(clustered.low, plain.low, 1e-12);
    }
}

#[test]
fn a_group_of_one_task_is_the_task() {
    let mut inputs = Inputs::new();
    for _ in 0..CASES {
        let n = 2 + inputs.below(40);
        let task = estimate(&inputs.values(n), Interval::Normal).unwrap();
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
fn the_bootstrap_of_a_mean_is_that_of_a_paired_difference_from_zero() {
    let mut inputs = Inputs::new();
    let values = inputs.values(30);
    let mean = |values: &[f64]| Ok(values.iter().sum::<f64>() / values.len() as f64);
    let [first, second] = [(); 2].map(|()| bootstrap(&values, BOOTSTRAP_RESAMPLES, mean).unwrap());
    assert_eq!(first, second);
    let gain = paired_difference(&vec![0.0; 30], &values).unwrap();
    assert_eq!((gain.bootstrap_low, gain.bootstrap_high), (first.low, first.high));
    assert_close(first.standard_error, gain.normal.standard_error * (29.0_f64 / 30.0).sqrt(), 1e-3);
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
    bradley_terry(tallies, Anchor { model: anchor, rating: 1000.0 }, resamples).unwrap()
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
    for model in &ratings.models {
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
