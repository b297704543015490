//! Expected numbers are worked by hand where a line says so; all others were printed by `oracle.py` beside
//! this file under numpy 2.4.6, scipy 1.17.1 and statsmodels 0.15.0.

mod golden;
mod limits;
mod properties;

use super::*;
use crate::Error;

#[track_caller]
fn assert_close(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "got {got}, expected {expected}");
}

#[test]
fn wilson_agrees_with_statsmodels() {
    let cases = [
        (8, 10, 0.490_162_471_536_641_83, 0.943_317_848_545_624_7),
        (0, 20, 0.0, 0.161_125_158_052_819_4),
        (20, 20, 0.838_874_841_947_180_4, 1.0),
        (1, 1, 0.206_549_314_377_237_4, 1.0),
        (450, 1000, 0.419_415_384_074_296_8, 0.480_967_291_774_258_8),
    ];
    for (successes, n, low, high) in cases {
        let rate = wilson(successes, n).unwrap();
        assert_close(rate.low, low, 1e-12);
        assert_close(rate.high, high, 1e-12);
        assert!(rate.low <= rate.mean && rate.mean <= rate.high);
    }
    // By hand: sqrt(0.8 * 0.2 / 10).
    assert_close(wilson(8, 10).unwrap().standard_error, 0.016_f64.sqrt(), 1e-15);
}

#[test]
fn a_rate_needs_trials_and_no_more_successes_than_trials() {
    assert!(matches!(wilson(0, 0), Err(Error::TooFew { needed: 1, got: 0, .. })));
    let error = wilson(3, 2).unwrap_err();
    assert_eq!(error.to_string(), "3 of 2 is not a rate; count each item once");
}

#[test]
fn quantiles_agree_with_scipy() {
    let student = [
        (0.975, 1.0, 12.706_204_736_174_694),
        (0.975, 4.0, 2.776_445_105_197_793_4),
        (0.975, 30.0, 2.042_272_456_301_237_8),
        (0.9, 2.5, 1.730_250_928_807_176_6),
        (0.995, 1000.0, 2.580_754_698_065_951),
        (0.025, 7.0, -2.364_624_251_592_784_3),
    ];
    for (probability, degrees, expected) in student {
        assert_close(student_t_quantile(probability, degrees).unwrap(), expected, 1e-9);
    }
    let normal = [
        (0.5, 0.0),
        (0.8, 0.841_621_233_572_914_3),
        (0.9, 1.281_551_565_544_600_4),
        (0.975, 1.959_963_984_540_054),
        (0.9999, 3.719_016_485_455_709),
        (0.01, -2.326_347_874_040_840_8),
    ];
    for (probability, expected) in normal {
        assert_close(normal_quantile(probability).unwrap(), expected, 1e-10);
    }
    assert!(normal_quantile(1.0).is_err());
    assert!(student_t_quantile(0.5, 0.0).is_err());
}

#[test]
fn samples_are_averaged_within_their_item_first() {
    // Item means 0, 1/4, 1/2, 1, 3/4; by hand: mean 1/2, squares 2 (1/16 + 1/4) = 5/8, s² = 5/32, SE =
    // sqrt(1/32).
    let items =
        [vec![0.0, 0.0], vec![0.0, 0.0, 0.0, 1.0], vec![1.0, 0.0], vec![1.0], vec![1.0, 1.0, 0.0, 1.0]];
    let mean = mean_of_items(&items).unwrap();
    assert_eq!((mean.mean, mean.n), (0.5, 5));
    assert_close(mean.standard_error, (1.0_f64 / 32.0).sqrt(), 1e-15);
    assert_close(mean.low, 0.009_189_209_630_610_706, 1e-10);
    assert_close(mean.high, 0.990_810_790_369_389_2, 1e-10);
}

#[test]
fn copies_of_a_sample_add_no_evidence() {
    let once = [vec![0.0], vec![1.0], vec![1.0]];
    let often = [vec![0.0; 50], vec![1.0; 50], vec![1.0; 50]];
    let [once, often] = [&once, &often].map(|items| mean_of_items(items).unwrap());
    assert_eq!(once, often);
}

#[test]
fn equal_values_on_a_scale_have_the_interval_of_values_that_were_not_seen() {
    // By hand: 20 ratings of 10. At most z² / (20 + z²) = 3.841459 / 23.841459 = 0.161125 of all ratings are
    // others, each at least 1: 10 - 0.161125 * 9 = 8.549875.
    let tens = estimate(&[10.0; 20]).unwrap();
    assert_eq!(tens.interval(), None);
    let (low, high) = tens.within(1.0, 10.0).interval().unwrap();
    assert_close(low, 8.549_875, 1e-5);
    assert_eq!(high, 10.0);
    // On the scale of a rate it is Wilson's interval.
    let all = wilson(20, 20).unwrap();
    assert_close(estimate(&[1.0; 20]).unwrap().within(0.0, 1.0).low, all.low, 1e-15);
    // Values that vary keep Student's interval up to the ends of the scale.
    let varied = estimate(&[10.0, 10.0, 7.0]).unwrap();
    let within = varied.within(1.0, 10.0);
    assert_eq!((within.low, within.high), (varied.low, 10.0));
}

#[test]
fn a_mean_refuses_what_it_cannot_use() {
    assert!(matches!(mean_of_items(&[vec![1.0], vec![]]), Err(Error::EmptyItem { item: 1 })));
    assert!(matches!(estimate(&[1.0]), Err(Error::TooFew { got: 1, .. })));
    assert!(matches!(estimate(&[1.0, f64::NAN]), Err(Error::NotFinite { .. })));
}

/// The scores of `oracle.py`: ten items, four times over.
fn paired_scores() -> (Vec<f64>, Vec<f64>) {
    let before = [0.0, 0.0, 1.0, 1.0, 0.0, 0.5, 0.25, 1.0, 0.0, 0.75].repeat(4);
    let after = [1.0, 0.0, 1.0, 0.5, 1.0, 0.5, 0.5, 1.0, 0.25, 0.5].repeat(4);
    (before, after)
}

#[test]
fn paired_difference_agrees_with_scipy() {
    let (before, after) = paired_scores();
    let gain = paired_difference(&before, &after).unwrap();
    assert_close(gain.estimate.mean, 0.175, 1e-15);
    assert_close(gain.estimate.standard_error, 0.073_923_904_048_308_95, 1e-14);
    assert_close(gain.estimate.low, 0.025_474_790_507_816_73, 1e-10);
    assert_close(gain.estimate.high, 0.324_525_209_492_183_2, 1e-10);
    assert_close(gain.p_value().unwrap(), 0.022_975_447_885_771_983, 1e-10);
    let swapped = paired_difference(&after, &before).unwrap();
    assert_close(swapped.estimate.low, -gain.estimate.high, 1e-15);
}

#[test]
fn three_gains_of_one_sign_are_no_proof() {
    // scipy's ttest_rel of 0.1, 0.2 and 0.3 against 0, and its confidence interval.
    let gain = paired_difference(&[0.0; 3], &[0.1, 0.2, 0.3]).unwrap();
    assert_close(gain.p_value().unwrap(), 0.074_179_900_227_448_5, 1e-12);
    assert_close(gain.estimate.low, -0.048_413_771_175_032_93, 1e-10);
    assert_close(gain.estimate.high, 0.448_413_771_175_033, 1e-10);
}

#[test]
fn pairing_removes_what_both_systems_share() {
    // Items differ wildly, the difference not at all: by hand d = 1/4 everywhere, so no interval.
    let before: Vec<f64> = (0..8).map(f64::from).collect();
    let after: Vec<f64> = before.iter().map(|value| value + 0.25).collect();
    let gain = paired_difference(&before, &after).unwrap();
    assert_eq!((gain.estimate.mean, gain.estimate.standard_error), (0.25, 0.0));
    assert_eq!(gain.estimate.interval(), None);
    let text = serde_json::to_string(&gain).unwrap();
    assert!(text.contains(r#""low":null,"high":null"#), "{text}");
    assert_eq!(serde_json::from_str::<PairedDifference>(&text).unwrap().estimate.interval(), None);
    assert!(matches!(paired_difference(&before, &after[1..]), Err(Error::Unpaired { left: 8, right: 7 })));
}
