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

const MODES: [LossAggMode; 4] = [
    LossAggMode::TokenMean,
    LossAggMode::SeqMeanTokenMean,
    LossAggMode::SeqMeanTokenSum,
    LossAggMode::SeqMeanTokenSumNorm,
];

#[test]
fn reductions_by_hand() {
    // Replies of 1 and 3 tokens, of at most 8, with a loss of 2 and of 1 for each token.
    let lengths = [1, 3];
    let counts = Counts::of_replies(&lengths);
    assert_eq!(counts, Counts { tokens: 4, replies: 2 });
    let means = MODES.map(|mode| {
        let weights = mode.token_weights(&lengths, 8, &counts);
        weights.iter().zip([2.0, 1.0, 1.0, 1.0]).map(|(weight, loss)| weight * loss).sum::<f64>()
    });
    assert_near(&means, &[1.25, 1.5, 2.5, 2.5 / 8.0]);
    // The counts of two ranks add up.
    let mut sum = Counts::of_replies(&lengths[..1]);
    sum += Counts::of_replies(&lengths[1..]);
    assert_eq!(sum, counts);
}

#[test]
fn a_reduction_changes_what_a_token_counts() {
    // Ten tokens with the loss 0.5 and two with 2: 9 / 12, and the mean of 0.5 and 2.
    let lengths = [10, 2];
    let counts = Counts::of_replies(&lengths);
    let mean = |mode: LossAggMode| {
        let weights = mode.token_weights(&lengths, 1, &counts);
        0.5 * weights[..10].iter().sum::<f64>() + 2.0 * weights[10..].iter().sum::<f64>()
    };
    assert_near(&[mean(LossAggMode::TokenMean), mean(LossAggMode::SeqMeanTokenMean)], &[0.75, 1.25]);
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
fn split_gradients(mode: LossAggMode, splits: &[usize]) -> (f64, Vec<f64>, PolicyStatistics) {
    let lengths = [3usize, 1, 4, 2, 5, 2];
    let mini_batch = Counts::of_replies(&lengths);
    let parameter = leaf(&noise(17, 0.2));
    let [old, advantages, returns] = [0.5, 0.8, 0.9].map(|seed| vector(&noise(17, seed)));
    let (mut loss, mut statistics, mut row, mut token) = (0.0, PolicyStatistics::default(), 0, 0);
    for &rows in splits {
        let lengths = &lengths[row..row + rows];
        let count = lengths.iter().sum::<usize>();
        let weights = mode.token_weights(lengths, 8, &mini_batch);
        let narrow_to = |tensor: &Tensor| tensor.narrow(0, token as i64, count as i64);
        let new = narrow_to(&parameter);
        let tokens = PolicyTokens {
            logprobs: &new,
            old: &narrow_to(&old),
            advantages: &narrow_to(&advantages),
            weights: &vector(&weights),
            correction: None,
            reference: None,
            entropy: None,
            sequence: None,
        };
        let policy = PolicyRule::default().loss(&tokens).unwrap();
        let value = value_loss(&new, &narrow_to(&old), &narrow_to(&returns), Some(0.2)).unwrap();
        let scaled = policy.loss + value.loss / 17.0;
        scaled.backward();
        loss += number(&scaled);
        statistics += PolicyStatistics::from(&policy.statistics);
        (row, token) = (row + rows, token + count);
    }
    (loss, check::to_f64_vec(&parameter.grad()), statistics)
}

#[test]
fn any_split_into_micro_batches_gives_the_same_gradient() {
    for mode in MODES {
        let (loss, gradient, statistics) = split_gradients(mode, &[6]);
        assert_eq!(statistics.tokens, 17.0);
        for splits in [[1usize; 6].as_slice(), &[2, 4], &[5, 1], &[3, 1, 2]] {
            let (split_loss, split_gradient, split_statistics) = split_gradients(mode, splits);
            assert!((loss - split_loss).abs() < 1e-12, "{mode:?} {splits:?}");
            assert_eq!(gradient, split_gradient, "{mode:?} {splits:?}");
            assert_eq!(statistics.clipped, split_statistics.clipped);
            assert!((statistics.ratio - split_statistics.ratio).abs() < 1e-12);
        }
    }
}

#[test]
fn the_reward_loss_refuses_what_would_broadcast() {
    let (column, row) =
        (Tensor::zeros([3, 1], tch::kind::FLOAT_CPU), Tensor::zeros([3], tch::kind::FLOAT_CPU));
    assert!(pairwise_reward_loss(&column, &row, None, 0.0).is_err());
    assert!(pairwise_reward_loss(&row, &row, Some(&column), 0.0).is_err());
    assert!(value_loss(&row, &row, &column, None).is_err());
}

#[test]
fn the_reward_loss_is_stable_and_its_gradient_is_a_probability() {
    let chosen = leaf(&[1e4, -1e4, 0.3]);
    let loss = pairwise_reward_loss(&chosen, &vector(&[-1e4, 1e4, 0.3]), None, 0.0).unwrap();
    assert!((number(&loss) - (2e4 + 2f64.ln())).abs() < 1e-8);
    assert_near(&gradient(&loss, &chosen), &[0.0, -1.0, -0.5]);
}
