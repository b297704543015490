//! Advantages against hand-worked numbers and against what must hold for any numbers.

use super::*;

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

fn assert_near(got: &Tensor, expected: &[f64]) {
    let got = check::to_f64_vec(got);
    assert_eq!(got.len(), expected.len(), "{got:?} {expected:?}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-12, "{got} {expected}");
    }
}

fn rewards_of(values: &[f64], lengths: &[i64]) -> TokenRewards {
    let tokens = Tensor::arange(values.len() as i64, tch::kind::INT64_CPU);
    TokenRewards { rewards: vector(values), lengths: lengths.to_vec(), token_slots: tokens }
}

/// Numbers without a pattern, the same on every machine.
fn noise(count: usize, seed: f64) -> Vec<f64> {
    (0..count).map(|index| ((index as f64 + seed) * 12.9898).sin() * 3.0).collect()
}

#[test]
fn the_score_is_added_at_the_last_token_or_after_it() {
    let (kl, scores) = (vector(&[1.0, 2.0, 3.0]), vector(&[10.0, 20.0]));
    let eos = token_rewards(&kl, &scores, &[2, 1], 0.5, &[ScoreSlot::Eos; 2]).unwrap();
    assert_near(&eos.rewards, &[-0.5, 9.0, 18.5]);
    let after = token_rewards(&kl, &scores, &[2, 1], 0.5, &[ScoreSlot::AfterEos; 2]).unwrap();
    assert_near(&after.rewards, &[-0.5, -1.0, 10.0, -1.5, 20.0]);
    assert_eq!(after.lengths, [3, 2]);
    assert_near(&after.token_slots, &[0.0, 1.0, 3.0]);
}

#[test]
fn a_truncated_reply_has_its_score_at_its_last_token() {
    assert_eq!(ScoreSlot::AfterEos.of_replies(&[3, 4], 4), [ScoreSlot::AfterEos, ScoreSlot::Eos]);
    assert_eq!(ScoreSlot::Eos.of_replies(&[3, 4], 4), [ScoreSlot::Eos; 2]);
}

#[test]
fn gae_with_gamma_and_lambda_one_is_the_return_minus_the_value() {
    let (rewards, values) = (noise(7, 0.1), noise(7, 0.7));
    let got = gae(&rewards_of(&rewards, &[4, 3]), &vector(&values), 1.0, 1.0).unwrap();
    let to_go = |slot: usize| rewards[slot..if slot < 4 { 4 } else { 7 }].iter().sum::<f64>();
    let expected: Vec<f64> = (0..7).map(|slot| to_go(slot) - values[slot]).collect();
    assert_near(&got.advantages, &expected);
    assert_near(&got.returns, &(0..7).map(to_go).collect::<Vec<_>>());
}

#[test]
fn with_lambda_zero_the_advantage_is_the_error_of_one_step() {
    let got = gae(&rewards_of(&[1.0, 2.0], &[2]), &vector(&[0.5, 0.25]), 0.9, 0.0).unwrap();
    assert_near(&got.advantages, &[1.0 + 0.9 * 0.25 - 0.5, 2.0 - 0.25]);
}

#[test]
fn replies_do_not_see_one_another() {
    let (rewards, values) = (noise(6, 0.3), noise(6, 0.9));
    let both = gae(&rewards_of(&rewards, &[4, 2]), &vector(&values), 0.99, 0.95).unwrap();
    let first = gae(&rewards_of(&rewards[..4], &[4]), &vector(&values[..4]), 0.99, 0.95).unwrap();
    let second = gae(&rewards_of(&rewards[4..], &[2]), &vector(&values[4..]), 0.99, 0.95).unwrap();
    assert_eq!(both.advantages, Tensor::cat(&[first.advantages, second.advantages], 0));
}

#[test]
fn invalid_inputs_are_refused() {
    let rewards = |kl: &[f64], scores: &[f64], lengths: &[i64]| {
        let slots = vec![ScoreSlot::Eos; lengths.len()];
        token_rewards(&vector(kl), &vector(scores), lengths, 0.1, &slots).unwrap_err()
    };
    assert!(matches!(rewards(&[0.0], &[1.0], &[2]), Error::Shape { .. }));
    assert!(matches!(rewards(&[0.0, f64::NAN], &[1.0], &[2]), Error::NotFinite { index: 1, .. }));
    assert!(matches!(rewards(&[0.0], &[1.0, 1.0], &[1, 0]), Error::EmptyReply { row: 1 }));
    let values = vector(&[1.0, f64::INFINITY]);
    let error = gae(&rewards_of(&[0.0, 0.0], &[2]), &values, 1.0, 1.0).unwrap_err();
    assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
}

#[test]
fn narrow_kinds_come_back_as_fp32() {
    let values = vector(&[0.5, 0.25]).to_kind(tch::Kind::BFloat16);
    let got = gae(&rewards_of(&[1.0, 2.0], &[2]), &values, 1.0, 1.0).unwrap();
    assert_eq!(got.advantages.kind(), tch::Kind::Float);
}

/// Eight replies to one prompt, of which the first and the fourth are right. GRPO: `torch.std` 0.46291005;
/// RLOO: 8 / 7 times the distance from the mean.
#[test]
fn replies_to_the_same_prompt_are_compared_with_one_another() {
    let scores = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    let rewards = rewards_of(&scores, &[1; 8]);
    let near = |estimator, right: f64, wrong: f64| {
        let got = check::to_f64_vec(&group_relative_advantages(&rewards, 8, estimator, 1e-6).unwrap());
        for (got, score) in got.iter().zip(scores) {
            let expected = if score == 1.0 { right } else { wrong };
            assert!((got - expected).abs() < 1e-6, "{estimator:?}: {got} {expected}");
        }
    };
    near(AdvantageEstimator::Grpo, 1.620_182, -0.540_061);
    near(AdvantageEstimator::Rloo, 0.857_142_86, -0.285_714_29);
}

#[test]
fn the_advantage_of_a_reply_is_that_of_each_of_its_tokens() {
    // Two prompts with two replies each. The second reply has its score after its end, in a slot without a
    // token.
    let kl = vector(&[1.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
    let scores = vector(&[3.0, 4.0, 5.0, 5.0]);
    let slots = [ScoreSlot::Eos, ScoreSlot::AfterEos, ScoreSlot::Eos, ScoreSlot::Eos];
    let rewards = token_rewards(&kl, &scores, &[2, 1, 2, 1], 0.5, &slots).unwrap();
    // Totals: 3 - 0.5 (1 + 1) = 2, 4 - 0.5 * 2 = 3, 5, 5.
    let got = group_relative_advantages(&rewards, 2, AdvantageEstimator::Rloo, 1e-6).unwrap();
    assert_near(&got, &[-1.0, -1.0, 1.0, 0.0, 0.0, 0.0]);
    // Equal replies teach nothing, and nothing is divided by 0.
    let got =
        check::to_f64_vec(&group_relative_advantages(&rewards, 2, AdvantageEstimator::Grpo, 1e-6).unwrap());
    assert_eq!(got[3..], [0.0; 3]);
}

#[test]
fn replies_without_a_second_one_cannot_be_compared() {
    let rewards = rewards_of(&[1.0, 2.0, 3.0], &[1, 1, 1]);
    for group_size in [0, 1, 2] {
        let error =
            group_relative_advantages(&rewards, group_size, AdvantageEstimator::Rloo, 1e-6).unwrap_err();
        assert!(matches!(error, Error::Groups { num_replies: 3, .. }), "{error}");
    }
}
