//! Losses of the policy against hand-worked numbers, closed-form gradients and what must hold for any split.

use tch::Kind;

use super::*;
use crate::kl::{KlEstimator, KlGradient};

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

fn leaf(values: &[f64]) -> Tensor {
    vector(values).set_requires_grad(true)
}

fn number(tensor: &Tensor) -> f64 {
    tensor.double_value(&[])
}

/// Numbers without a pattern, the same on every machine.
fn noise(count: usize, seed: f64) -> Vec<f64> {
    (0..count).map(|index| ((index as f64 + seed) * 12.9898).sin()).collect()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (value, other) in got.iter().zip(expected) {
        assert!((value - other).abs() < 1e-12, "{got:?} {expected:?}");
    }
}

fn rule(kind: PolicyLossKind) -> PolicyRule {
    PolicyRule { kind, ..PolicyRule::default() }
}

fn clipped(clip: PolicyClip) -> PolicyRule {
    PolicyRule { clip, ..PolicyRule::default() }
}

const ALL: [PolicyLossKind; 8] = [
    PolicyLossKind::Clip,
    PolicyLossKind::Gspo,
    PolicyLossKind::Cispo,
    PolicyLossKind::Gmpo,
    PolicyLossKind::Sapo,
    PolicyLossKind::DppoTv,
    PolicyLossKind::DppoKl,
    PolicyLossKind::Gpg,
];

/// Tokens of replies; a test sets what it needs.
struct Tokens {
    logprobs: Tensor,
    old: Vec<f64>,
    advantages: Vec<f64>,
    weights: Vec<f64>,
    lengths: Vec<usize>,
}

impl Tokens {
    /// Tokens of the weight 1 in one reply.
    fn new(logprobs: &[f64], old: &[f64], advantages: &[f64]) -> Self {
        Self {
            logprobs: leaf(logprobs),
            old: old.to_vec(),
            advantages: advantages.to_vec(),
            weights: vec![1.0; logprobs.len()],
            lengths: vec![logprobs.len()],
        }
    }

    /// Tokens with these ratios to an old policy that gave each of them the probability 1.
    fn with_ratios(ratios: &[f64], advantages: &[f64]) -> Self {
        let logprobs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        Self::new(&logprobs, &vec![0.0; ratios.len()], advantages)
    }

    fn loss(&self, rule: &PolicyRule) -> PolicyLoss {
        let [old, advantages, weights] = [&self.old, &self.advantages, &self.weights].map(|v| vector(v));
        let sequence = rule.sequence_log_ratios(&self.logprobs, &old, &advantages, &self.lengths).unwrap();
        let tokens = PolicyTokens {
            logprobs: &self.logprobs,
            old: &old,
            advantages: &advantages,
            weights: &weights,
            correction: None,
            reference: None,
            entropy: None,
            sequence: sequence.as_ref(),
        };
        rule.loss(&tokens).unwrap()
    }

    /// The loss, its gradient and the statistics.
    fn all(&self, rule: &PolicyRule) -> (f64, Vec<f64>, PolicyStatistics) {
        let PolicyLoss { loss, statistics } = self.loss(rule);
        loss.backward();
        let gradient = check::to_f64_vec(&self.logprobs.grad());
        (number(&loss), gradient, PolicyStatistics::from(&statistics))
    }
}

#[test]
fn at_ratio_one_the_policy_gradient_is_minus_the_advantage() {
    let (old, advantages) = ([-0.5, -1.5, -3.0], [2.0, -1.0, 0.25]);
    for kind in ALL {
        let (_, gradient, statistics) = Tokens::new(&old, &old, &advantages).all(&rule(kind));
        assert_near(&gradient, &advantages.map(|advantage| -advantage));
        assert_eq!((statistics.tokens, statistics.clipped, statistics.ratio), (3.0, 0.0, 3.0), "{kind:?}");
        assert_eq!(statistics.approx_kl, 0.0);
    }
    let (loss, ..) = Tokens::new(&old, &old, &advantages).all(&rule(PolicyLossKind::Clip));
    assert!((loss + 1.25).abs() < 1e-15);
}

#[test]
fn a_clipped_ratio_has_no_gradient_where_it_would_gain() {
    let tokens = Tokens::with_ratios(&[1.5, 1.5, 0.5, 0.5], &[1.0, -1.0, 1.0, -1.0]);
    let (loss, gradient, statistics) = tokens.all(&PolicyRule::default());
    // Losses: -1.2 (clipped), 1.5, -0.5, 0.8 (clipped).
    assert!((loss - 0.6).abs() < 1e-12);
    assert_near(&gradient, &[0.0, 1.5, -0.5, 0.0]);
    let PolicyStatistics { clipped, clipped_low, clipped_high, .. } = statistics;
    assert_eq!((clipped, clipped_low, clipped_high), (2.0, 1.0, 1.0));
    assert!((statistics.ratio - 4.0).abs() < 1e-12);
    let expected = 1.5f64.ln().powi(2) + 0.5f64.ln().powi(2);
    assert!((statistics.approx_kl - expected).abs() < 1e-12);
}

#[test]
fn unequal_clips_bound_what_they_should() {
    let rule = clipped(PolicyClip { high: 0.28, ..PolicyClip::default() });
    let (loss, gradient, statistics) = Tokens::with_ratios(&[1.25, 5.0, 5.0], &[1.0, -1.0, 1.0]).all(&rule);
    // Losses: -1.25 (within 1.28), 5 (no bound above for a negative advantage), -1.28 (clipped).
    assert!((loss - 2.47).abs() < 1e-12);
    assert_near(&gradient, &[-1.25, 5.0, 0.0]);
    assert_eq!(statistics.clipped, 1.0);
}

#[test]
fn a_second_clip_bounds_what_a_negative_advantage_costs() {
    let rule = clipped(PolicyClip { dual: Some(3.0), ..PolicyClip::default() });
    let (loss, gradient, _) = Tokens::with_ratios(&[5.0, 2.0, 5.0], &[-1.0, -1.0, 1.0]).all(&rule);
    // Losses: 3 (5 without the second clip), 2 (within it), -1.2 (clipped; the advantage is positive).
    assert!((loss - 3.8).abs() < 1e-12);
    assert_near(&gradient, &[0.0, 2.0, 0.0]);
}

#[test]
fn weights_scale_the_loss_of_each_token() {
    let mut tokens = Tokens::new(&[-0.5, -1.5], &[-0.5, -1.5], &[2.0, -1.0]);
    tokens.weights = vec![0.25, 3.0];
    let (loss, gradient, _) = tokens.all(&PolicyRule::default());
    assert!((loss - 2.5).abs() < 1e-12);
    assert_near(&gradient, &[-0.5, 3.0]);
}

#[test]
fn gspo_has_one_ratio_for_each_reply() {
    // The means of the log-ratios are 0.2 and 0.4.
    let mut tokens = Tokens::new(&[0.1, 0.3, 0.5, 0.3], &[0.0; 4], &[1.0; 4]);
    tokens.lengths = vec![2, 2];
    tokens.weights = vec![0.5; 4];
    let clip = PolicyClip { high: 0.3, ..PolicyClip::default() };
    let (loss, gradient, statistics) = tokens.all(&PolicyRule { clip, ..rule(PolicyLossKind::Gspo) });
    // exp(0.2) = 1.2214 is within 1.3, and exp(0.4) = 1.4918 is not.
    let ratio = 0.2f64.exp();
    assert!((loss - (-ratio - 1.3)).abs() < 1e-12);
    assert_near(&gradient, &[-ratio / 2.0, -ratio / 2.0, 0.0, 0.0]);
    let PolicyStatistics { tokens, clipped, clipped_low, clipped_high, .. } = statistics;
    assert_eq!((tokens, clipped, clipped_low, clipped_high), (4.0, 2.0, 0.0, 2.0));
}

#[test]
fn gmpo_is_the_geometric_mean_of_ratios_that_are_clipped_on_one_side() {
    let by = |advantage: f64| {
        let mut tokens = Tokens::new(&[0.6, -0.9], &[0.0; 2], &[advantage; 2]);
        tokens.weights = vec![0.5; 2];
        let clip = PolicyClip { low: 0.4, high: 0.4, ..PolicyClip::default() };
        tokens.all(&PolicyRule { clip, ..rule(PolicyLossKind::Gmpo) })
    };
    // A positive advantage: the log-ratios are 0.4 (clipped) and -0.9, with the mean -0.25.
    let (loss, gradient, statistics) = by(2.0);
    let mean = (-0.25f64).exp();
    assert!((loss + 2.0 * mean).abs() < 1e-12);
    assert_near(&gradient, &[0.0, -mean]);
    assert_eq!((statistics.clipped_low, statistics.clipped_high), (0.0, 1.0));
    // A negative one: 0.6 and -0.4 (clipped), with the mean 0.1.
    let (loss, gradient, statistics) = by(-2.0);
    let mean = 0.1f64.exp();
    assert!((loss - 2.0 * mean).abs() < 1e-12);
    assert_near(&gradient, &[mean, 0.0]);
    assert_eq!((statistics.clipped_low, statistics.clipped_high), (1.0, 0.0));
}

#[test]
fn the_form_of_tokens_has_value_and_gradient_of_the_loss_of_replies() {
    // -A exp(mean of the log-ratios), differentiated by libtorch, with bounds that no ratio reaches.
    let (lengths, advantages) = ([3i64, 1, 4], [0.5, -1.5, 2.0]);
    let (new, old) = (noise(8, 0.3), noise(8, 0.8));
    let by_token: Vec<f64> =
        lengths.iter().zip(advantages).flat_map(|(&length, a)| vec![a; length as usize]).collect();
    let replies = leaf(&new);
    let parts = (&replies - vector(&old)).split_with_sizes(lengths, 0);
    let losses: Vec<Tensor> =
        parts.iter().zip(advantages).map(|(part, a)| part.mean(Kind::Double).exp() * -a / 3.0).collect();
    let expected = Tensor::stack(&losses, 0).sum(None);
    expected.backward();
    for kind in [PolicyLossKind::Gspo, PolicyLossKind::Gmpo] {
        let mut tokens = Tokens::new(&new, &old, &by_token);
        tokens.lengths = lengths.map(|length| length as usize).to_vec();
        tokens.weights =
            lengths.iter().flat_map(|&length| vec![1.0 / (3 * length) as f64; length as usize]).collect();
        let clip = PolicyClip { low: 9.0, high: 9.0, ..PolicyClip::default() };
        let (loss, gradient, statistics) = tokens.all(&PolicyRule { clip, ..rule(kind) });
        assert!((loss - number(&expected)).abs() < 1e-12, "{kind:?}");
        assert_near(&gradient, &check::to_f64_vec(&replies.grad()));
        assert_eq!(statistics.clipped, 0.0);
    }
}

#[test]
fn cispo_truncates_weights_and_stops_no_token() {
    // Ratios 1.5 and 0.5; probabilities exp(-0.3) and exp(-1).
    let old = [-0.3 - 1.5f64.ln(), -1.0 - 0.5f64.ln()];
    let (loss, gradient, statistics) =
        Tokens::new(&[-0.3, -1.0], &old, &[2.0, -1.0]).all(&rule(PolicyLossKind::Cispo));
    // -1.2 * 2 * -0.3 = 0.72, and 0.5 * 1 * -1 = -0.5.
    assert!((loss - 0.22).abs() < 1e-12);
    assert_near(&gradient, &[-2.4, 0.5]);
    assert_eq!((statistics.clipped, statistics.clipped_low, statistics.clipped_high), (1.0, 0.0, 1.0));
}

#[test]
fn sapo_has_a_soft_gate() {
    // sigmoid(ln 3) is 0.75, and its slope 0.1875. With the temperature 1, tau (rho - 1) = ln 3 for
    // rho = 1 + ln 3; with 2, for rho = 1 + ln 3 / 2.
    let ratios = [1.0 + 3f64.ln(), 1.0 + 3f64.ln() / 2.0];
    let rule = PolicyRule { sapo: [1.0, 2.0], ..rule(PolicyLossKind::Sapo) };
    let (loss, gradient, statistics) = Tokens::with_ratios(&ratios, &[1.0, -1.0]).all(&rule);
    // -4 * 0.75 + 2 * 0.75.
    assert!((loss + 1.5).abs() < 1e-12);
    assert_near(&gradient, &[-0.75 * ratios[0], 0.75 * ratios[1]]);
    assert_eq!(statistics.clipped, 0.0);
}

#[test]
fn dppo_has_a_trust_region_of_probabilities() {
    // From 0.5 to 0.8 and to 0.2: a distance of 0.3 and a KL divergence of
    // 0.5 ln(0.5 / 0.8) + 0.5 ln(0.5 / 0.2) = 0.22314, the same on both sides.
    let new = [0.8f64.ln(), 0.8f64.ln(), 0.2f64.ln(), 0.2f64.ln()];
    let by = |kind, bound: f64, dual| {
        let clip = PolicyClip { low: bound, high: bound, dual, ..PolicyClip::default() };
        Tokens::new(&new, &[0.5f64.ln(); 4], &[1.0, -1.0, 1.0, -1.0]).all(&PolicyRule { clip, ..rule(kind) })
    };
    for (kind, narrow, wide) in
        [(PolicyLossKind::DppoTv, 0.25, 0.35), (PolicyLossKind::DppoKl, 0.223, 0.2235)]
    {
        // The first and the last token would leave the region further.
        let (loss, gradient, statistics) = by(kind, narrow, None);
        assert!((loss - (1.6 * new[1] - 0.4 * new[2])).abs() < 1e-12, "{kind:?}");
        assert_near(&gradient, &[0.0, 1.6, -0.4, 0.0]);
        assert_eq!((statistics.clipped, statistics.clipped_low, statistics.clipped_high), (2.0, 1.0, 1.0));
        let (_, gradient, statistics) = by(kind, wide, None);
        assert_near(&gradient, &[-1.6, 1.6, -0.4, 0.4]);
        assert_eq!(statistics.clipped, 0.0);
        let (_, gradient, _) = by(kind, wide, Some(1.5));
        assert_near(&gradient, &[-1.5, 1.5, -0.4, 0.4]);
    }
}

#[test]
fn gpg_reads_no_ratio() {
    let tokens = Tokens::new(&[-0.5, -2.0], &[-9.0, 0.0], &[3.0, -0.25]);
    let (loss, gradient, _) = tokens.all(&rule(PolicyLossKind::Gpg));
    // 3 * 0.5 - 0.25 * 2.
    assert!((loss - 1.0).abs() < 1e-12);
    assert_near(&gradient, &[-3.0, 0.25]);
}

#[test]
fn divergence_and_entropy_are_terms_that_no_correction_weighs() {
    // One token inside the clip range: ratio 1, advantage 2, correction 0.5, weight 0.25; the policy gives it
    // twice the probability of the reference, so k3 = 1/2 - 1 + ln 2 with the slope 1/2; entropy 1.5.
    let (logprobs, entropy) = (leaf(&[0.5f64.ln()]), leaf(&[1.5]));
    let [old, reference] = [0.5f64, 0.25].map(|probability| vector(&[probability.ln()]));
    let [advantages, weights, correction] = [2.0, 0.25, 0.5].map(|value| vector(&[value]));
    let kl =
        KlLoss { estimator: KlEstimator::K3, clamp: 20.0, gradient: KlGradient::Direct, importance: false };
    let rule = PolicyRule { kl: Some((0.1, kl)), entropy_coef: 0.2, ..PolicyRule::default() };
    let PolicyLoss { loss, statistics } = rule
        .loss(&PolicyTokens {
            logprobs: &logprobs,
            old: &old,
            advantages: &advantages,
            weights: &weights,
            correction: Some(&correction),
            reference: Some(&reference),
            entropy: Some(&entropy),
            sequence: None,
        })
        .unwrap();
    let k3 = 2f64.ln() - 0.5;
    assert!((number(&loss) - 0.25 * (-0.5 * 2.0 + 0.1 * k3 - 0.2 * 1.5)).abs() < 1e-12);
    loss.backward();
    assert_near(&check::to_f64_vec(&logprobs.grad()), &[0.25 * (-1.0 + 0.1 * 0.5)]);
    assert_near(&check::to_f64_vec(&entropy.grad()), &[-0.2 * 0.25]);
    let statistics = PolicyStatistics::from(&statistics);
    assert_eq!((statistics.tokens, statistics.ratio), (1.0, 1.0));
    assert!((statistics.kl - k3).abs() < 1e-12);
}

#[test]
fn extreme_log_probabilities_stay_finite() {
    use PolicyLossKind::{Clip, Gmpo, Gspo, Sapo};
    for dtype in [Kind::Double, Kind::Float, Kind::BFloat16] {
        for kind in [Clip, Gspo, Gmpo, Sapo] {
            let mut tokens =
                Tokens::new(&[], &[-1e4, 0.0, -1.0, f64::NEG_INFINITY, -200.0], &[1.0, 1.0, -1.0, 1.0, 0.0]);
            tokens.logprobs =
                vector(&[0.0, -1e4, f64::NEG_INFINITY, -1.0, -1.0]).to_kind(dtype).set_requires_grad(true);
            tokens.weights = vec![1.0; 5];
            tokens.lengths = vec![2, 3];
            let (loss, gradient, statistics) = tokens.all(&rule(kind));
            assert!(loss.is_finite() && statistics.ratio.is_finite(), "{kind:?} {dtype:?}");
            assert!(gradient.iter().all(|value| value.is_finite()), "{kind:?} {dtype:?} {gradient:?}");
        }
    }
}

/// The loss over six replies, its gradient and statistics, computed in chunks of this many tokens.
fn in_chunks(rule: &PolicyRule, size: i64) -> (f64, Vec<f64>, PolicyStatistics) {
    let lengths = [3usize, 1, 4, 2, 5, 2];
    let total = 17i64;
    let parameter = leaf(&noise(17, 0.2).iter().map(|value| value - 1.0).collect::<Vec<_>>());
    let [old, advantages, reference, entropy, correction] =
        [0.5, 0.8, 0.9, 0.1, 0.6].map(|seed| vector(&noise(17, seed)));
    let old = old - 1.0;
    let weights = vector(&[1.0 / 17.0; 17]);
    let sequence = rule.sequence_log_ratios(&parameter, &old, &advantages, &lengths).unwrap();
    let (mut loss, mut statistics, mut start) = (0.0, PolicyStatistics::default(), 0);
    while start < total {
        let count = size.min(total - start);
        let part = |tensor: &Tensor| tensor.narrow(0, start, count);
        let [old, advantages, weights, reference, entropy, correction] =
            [&old, &advantages, &weights, &reference, &entropy, &correction].map(part);
        let found = rule
            .loss(&PolicyTokens {
                logprobs: &part(&parameter),
                old: &old,
                advantages: &advantages,
                weights: &weights,
                correction: Some(&correction),
                reference: Some(&reference),
                entropy: Some(&entropy),
                sequence: sequence.as_ref().map(part).as_ref(),
            })
            .unwrap();
        found.loss.backward();
        loss += number(&found.loss);
        statistics += PolicyStatistics::from(&found.statistics);
        start += count;
    }
    (loss, check::to_f64_vec(&parameter.grad()), statistics)
}

#[test]
fn any_split_into_chunks_gives_the_same_sums_and_gradients() {
    let kl = KlLoss {
        estimator: KlEstimator::K3,
        clamp: 20.0,
        gradient: KlGradient::StraightThrough,
        importance: true,
    };
    for kind in ALL {
        let rule = PolicyRule { kl: Some((0.1, kl)), entropy_coef: 0.01, ..rule(kind) };
        let (loss, gradient, statistics) = in_chunks(&rule, 17);
        for size in [1, 2, 5, 16] {
            let (split_loss, split_gradient, split_statistics) = in_chunks(&rule, size);
            assert!((loss - split_loss).abs() < 1e-12, "{kind:?} {size}");
            assert_near(&gradient, &split_gradient);
            assert_eq!((statistics.tokens, statistics.clipped), (17.0, split_statistics.clipped));
            assert!((statistics.ratio - split_statistics.ratio).abs() < 1e-12);
            assert!((statistics.kl - split_statistics.kl).abs() < 1e-12);
        }
    }
}

#[test]
fn no_tokens_make_no_loss() {
    let (loss, gradient, statistics) =
        Tokens { lengths: Vec::new(), ..Tokens::new(&[], &[], &[]) }.all(&rule(PolicyLossKind::Gmpo));
    assert_eq!((loss, gradient.len(), statistics), (0.0, 0, PolicyStatistics::default()));
}

#[test]
fn means_over_replies_are_computed_for_the_losses_that_read_them() {
    let (logprobs, zeros) = (leaf(&[0.1, 0.5, 2.0]), vector(&[0.0; 3]));
    let ratios = |kind| rule(kind).sequence_log_ratios(&logprobs, &zeros, &zeros, &[2, 1]).unwrap();
    assert!(ratios(PolicyLossKind::Clip).is_none());
    let gspo = ratios(PolicyLossKind::Gspo).unwrap();
    assert_near(&check::to_f64_vec(&gspo), &[0.3, 0.3, 2.0]);
    assert!(!gspo.requires_grad());
    let short = rule(PolicyLossKind::Gspo).sequence_log_ratios(&logprobs, &zeros, &zeros, &[2, 2]);
    assert!(matches!(short, Err(Error::Shape { .. })));
}

#[test]
fn shapes_that_would_broadcast_are_refused() {
    let (column, row) =
        (Tensor::zeros([3, 1], tch::kind::FLOAT_CPU), Tensor::zeros([3], tch::kind::FLOAT_CPU));
    let tokens = PolicyTokens {
        logprobs: &row,
        old: &row,
        advantages: &row,
        weights: &row,
        correction: None,
        reference: None,
        entropy: None,
        sequence: None,
    };
    let rule = PolicyRule::default();
    assert!(rule.loss(&tokens).is_ok());
    for broken in [
        PolicyTokens { logprobs: &column, ..tokens },
        PolicyTokens { old: &column, ..tokens },
        PolicyTokens { advantages: &column, ..tokens },
        PolicyTokens { weights: &column, ..tokens },
        PolicyTokens { correction: Some(&column), ..tokens },
        PolicyTokens { entropy: Some(&column), ..tokens },
    ] {
        assert!(matches!(rule.loss(&broken), Err(Error::Shape { .. })));
    }
}

#[test]
fn names_are_those_of_the_configuration() {
    let names = ALL.map(|kind| serde_json::to_string(&kind).unwrap());
    let expected = ["clip", "gspo", "cispo", "gmpo", "sapo", "dppo_tv", "dppo_kl", "gpg"];
    assert_eq!(names, expected.map(|name| format!("{name:?}")));
    assert!(ALL.into_iter().all(|kind| {
        rule(kind).needs_sequences() == matches!(kind, PolicyLossKind::Gspo | PolicyLossKind::Gmpo)
    }));
    let rule: PolicyRule = serde_json::from_str(r#"{"kind":"gspo","clip":{"low":0.0003}}"#).unwrap();
    assert_eq!((rule.kind, rule.clip.low, rule.clip.high), (PolicyLossKind::Gspo, 0.0003, 0.2));
    assert!(serde_json::from_str::<PolicyRule>(r#"{"kinds":"gspo"}"#).is_err());
}
