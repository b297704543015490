//! Losses against hand-worked numbers, closed-form gradients and what must hold for any split.

use tch::Kind;

use super::*;

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

fn leaf(values: &[f64]) -> Tensor {
    vector(values).set_requires_grad(true)
}

fn gradient(loss: &Tensor, leaf: &Tensor) -> Vec<f64> {
    loss.backward();
    check::to_f64_vec(&leaf.grad())
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
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-12, "{got} {expected}");
    }
}

#[test]
fn at_ratio_one_the_policy_gradient_is_minus_the_advantage() {
    let (old, advantages) = (vector(&[-0.5, -1.5, -3.0]), [2.0, -1.0, 0.25]);
    let logprobs = old.copy().set_requires_grad(true);
    let result = policy_loss(&logprobs, &old, &vector(&advantages), None, &PolicyClip::default()).unwrap();
    assert_near(&gradient(&result.loss, &logprobs), &advantages.map(|advantage| -advantage));
    assert!((number(&result.loss) + 1.25).abs() < 1e-15);
    let statistics = PolicyStatistics::from(&result.statistics);
    assert_eq!((statistics.tokens, statistics.clipped, statistics.ratio), (3.0, 0.0, 3.0));
    assert_eq!(statistics.approx_kl, 0.0);
}

#[test]
fn a_clipped_ratio_has_no_gradient_where_it_would_gain() {
    // ratio:       1.5 up   1.5 up   0.5 down   0.5 down
    let log_ratios = [1.5f64.ln(), 1.5f64.ln(), 0.5f64.ln(), 0.5f64.ln()];
    let logprobs = leaf(&log_ratios);
    let result = policy_loss(
        &logprobs,
        &vector(&[0.0; 4]),
        &vector(&[1.0, -1.0, 1.0, -1.0]),
        None,
        &PolicyClip::default(),
    )
    .unwrap();
    // Losses: -1.2 (clipped), 1.5, -0.5, 0.8 (clipped).
    assert!((number(&result.loss) - 0.6).abs() < 1e-12);
    assert_near(&gradient(&result.loss, &logprobs), &[0.0, 1.5, -0.5, 0.0]);
    assert_eq!(PolicyStatistics::from(&result.statistics).clipped, 2.0);
}

#[test]
fn unequal_clips_bound_what_they_should() {
    let logprobs = leaf(&[1.25f64.ln(), 5f64.ln(), 5f64.ln()]);
    let clip = PolicyClip { high: 0.28, ..PolicyClip::default() };
    let result = policy_loss(&logprobs, &vector(&[0.0; 3]), &vector(&[1.0, -1.0, 1.0]), None, &clip).unwrap();
    // Losses: -1.25 (within 1.28), 5 (no bound above for a negative advantage), -1.28 (clipped).
    assert!((number(&result.loss) - 2.47).abs() < 1e-12);
    assert_near(&gradient(&result.loss, &logprobs), &[-1.25, 5.0, 0.0]);
    assert_eq!(PolicyStatistics::from(&result.statistics).clipped, 1.0);
}

#[test]
fn a_second_clip_bounds_what_a_negative_advantage_costs() {
    let logprobs = leaf(&[5f64.ln(), 2f64.ln(), 5f64.ln()]);
    let clip = PolicyClip { dual: Some(3.0), ..PolicyClip::default() };
    let result =
        policy_loss(&logprobs, &vector(&[0.0; 3]), &vector(&[-1.0, -1.0, 1.0]), None, &clip).unwrap();
    // Losses: 3 (5 without the second clip), 2 (within it), -1.2 (clipped; the advantage is positive).
    assert!((number(&result.loss) - 3.8).abs() < 1e-12);
    assert_near(&gradient(&result.loss, &logprobs), &[0.0, 2.0, 0.0]);
}

#[test]
fn weights_scale_the_loss_of_each_token() {
    let (old, advantages, weights) = (vector(&[-0.5, -1.5]), vector(&[2.0, -1.0]), vector(&[0.25, 3.0]));
    let logprobs = old.copy().set_requires_grad(true);
    let result = policy_loss(&logprobs, &old, &advantages, Some(&weights), &PolicyClip::default()).unwrap();
    assert!((number(&result.loss) - 2.5).abs() < 1e-12);
    assert_near(&gradient(&result.loss, &logprobs), &[-0.5, 3.0]);
}

#[test]
fn reductions_by_hand() {
    // Replies of 1 and 3 tokens, of at most 8, with a loss of 2 and of 1 for each token.
    let mean = |mode: LossAggMode| {
        let sum: f64 = [(1usize, 2.0), (3, 1.0)]
            .iter()
            .map(|&(length, loss)| length as f64 * loss * mode.token_weight(length).unwrap_or(1.0))
            .sum();
        sum / mode.divisor(4, 2, 8)
    };
    assert_eq!(mean(LossAggMode::TokenMean), 1.25);
    assert_eq!(mean(LossAggMode::SeqMeanTokenMean), 1.5);
    assert_eq!(mean(LossAggMode::SeqMeanTokenSum), 2.5);
    assert_eq!(mean(LossAggMode::SeqMeanTokenSumNorm), 2.5 / 8.0);
}

#[test]
fn extreme_log_probabilities_stay_finite() {
    for kind in [Kind::Double, Kind::Float, Kind::BFloat16] {
        let logprobs =
            vector(&[0.0, -1e4, f64::NEG_INFINITY, -1.0, -1.0]).to_kind(kind).set_requires_grad(true);
        let old = vector(&[-1e4, 0.0, -1.0, f64::NEG_INFINITY, -200.0]).to_kind(kind);
        let advantages = vector(&[1.0, 1.0, -1.0, 1.0, 0.0]).to_kind(kind);
        let result = policy_loss(&logprobs, &old, &advantages, None, &PolicyClip::default()).unwrap();
        assert!(number(&result.loss).is_finite());
        assert!(gradient(&result.loss, &logprobs).iter().all(|value| value.is_finite()));
        assert!(PolicyStatistics::from(&result.statistics).ratio.is_finite());
    }
}

#[test]
fn the_value_loss_takes_the_larger_square() {
    // Old 0, clip 0.2. New 0.5: clipped to 0.2. Returns 1 (clip is farther), 0 (free is farther); inside the
    // range both agree.
    let values = leaf(&[0.5, 0.5, 0.1]);
    let result = value_loss(&values, &vector(&[0.0; 3]), &vector(&[1.0, 0.0, 0.4]), Some(0.2)).unwrap();
    assert!((number(&result.loss) - 0.5 * (0.64 + 0.25 + 0.09)).abs() < 1e-12);
    assert_near(&gradient(&result.loss, &values), &[0.0, 0.5, -0.3]);
    assert_eq!(result.statistics.clipped, 1.0);
    assert!((result.statistics.loss - number(&result.loss)).abs() < 1e-12);
}

#[test]
fn explained_variance_is_one_for_a_perfect_critic_and_none_without_variance() {
    let returns = vector(&[1.0, 2.0, 4.0]);
    let statistics =
        |values: &[f64]| value_loss(&vector(values), &returns, &returns, None).unwrap().statistics;
    assert!((statistics(&[1.0, 2.0, 4.0]).explained_variance().unwrap() - 1.0).abs() < 1e-12);
    assert!(statistics(&[7.0, 7.0, 7.0]).explained_variance().unwrap().abs() < 1e-12);
    // The squares of 0.1 add up to a little more or less than three times the square of their mean.
    for size in [2.0, 0.1, 1e5 + 0.1] {
        let (flat, guess) = (vector(&[size; 3]), vector(&[0.7; 3]));
        for kind in [Kind::Double, Kind::Float] {
            let [guess, flat] = [&guess, &flat].map(|numbers| numbers.to_kind(kind));
            let found = value_loss(&guess, &flat, &flat, None).unwrap().statistics;
            assert_eq!(found.explained_variance(), None, "{size} {kind:?}");
        }
    }
}

/// Gradients of policy plus value loss over six replies, computed in the given micro-batches.
fn split_gradients(splits: &[usize]) -> (f64, Vec<f64>, PolicyStatistics) {
    let lengths = [3i64, 1, 4, 2, 5, 2];
    let total = 17;
    let parameter = leaf(&noise(total, 0.2));
    let [old, advantages, returns] = [0.5, 0.8, 0.9].map(|seed| vector(&noise(total, seed)));
    let (mut loss, mut statistics, mut row, mut token) = (0.0, PolicyStatistics::default(), 0, 0);
    for &rows in splits {
        let count = lengths[row..row + rows].iter().sum::<i64>();
        let narrow_to = |tensor: &Tensor| tensor.narrow(0, token, count);
        let new = narrow_to(&parameter);
        let policy =
            policy_loss(&new, &narrow_to(&old), &narrow_to(&advantages), None, &PolicyClip::default())
                .unwrap();
        let value = value_loss(&new, &narrow_to(&old), &narrow_to(&returns), Some(0.2)).unwrap();
        let scaled = (policy.loss + value.loss) / total as f64;
        scaled.backward();
        loss += number(&scaled);
        statistics += PolicyStatistics::from(&policy.statistics);
        (row, token) = (row + rows, token + count);
    }
    (loss, check::to_f64_vec(&parameter.grad()), statistics)
}

#[test]
fn any_split_into_micro_batches_gives_the_same_gradient() {
    let (loss, gradient, statistics) = split_gradients(&[6]);
    for splits in [[1usize; 6].as_slice(), &[2, 4], &[5, 1], &[3, 1, 2]] {
        let (split_loss, split_gradient, split_statistics) = split_gradients(splits);
        assert!((loss - split_loss).abs() < 1e-12, "{splits:?}");
        assert_eq!(gradient, split_gradient, "{splits:?}");
        assert_eq!(statistics.clipped, split_statistics.clipped);
        assert!((statistics.ratio - split_statistics.ratio).abs() < 1e-12);
    }
}

#[test]
fn no_tokens_make_no_loss() {
    let none = vector(&[]);
    let result = policy_loss(&none, &none, &none, None, &PolicyClip::default()).unwrap();
    assert_eq!((number(&result.loss), PolicyStatistics::from(&result.statistics).tokens), (0.0, 0.0));
}

#[test]
fn the_reward_loss_refuses_what_would_broadcast() {
    let (column, row) =
        (Tensor::zeros([3, 1], tch::kind::FLOAT_CPU), Tensor::zeros([3], tch::kind::FLOAT_CPU));
    assert!(pairwise_reward_loss(&column, &row, None, 0.0).is_err());
    assert!(pairwise_reward_loss(&row, &row, Some(&column), 0.0).is_err());
    assert!(policy_loss(&row, &column, &row, None, &PolicyClip::default()).is_err());
    assert!(value_loss(&row, &row, &column, None).is_err());
}

#[test]
fn the_reward_loss_is_stable_and_its_gradient_is_a_probability() {
    let chosen = leaf(&[1e4, -1e4, 0.3]);
    let loss = pairwise_reward_loss(&chosen, &vector(&[-1e4, 1e4, 0.3]), None, 0.0).unwrap();
    assert!((number(&loss) - (2e4 + 2f64.ln())).abs() < 1e-8);
    assert_near(&gradient(&loss, &chosen), &[0.0, -1.0, -0.5]);
}
