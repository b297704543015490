//! Advantages against hand-worked numbers and against what must hold for any numbers.

use super::*;
use crate::Error;

/// Replies that all count, unless a test excludes one.
struct Case {
    lengths: Vec<usize>,
    groups: Vec<usize>,
    excluded: Vec<bool>,
}

impl Case {
    fn new(lengths: &[usize], groups: &[usize]) -> Self {
        Self { lengths: lengths.to_vec(), groups: groups.to_vec(), excluded: vec![false; lengths.len()] }
    }

    fn of_groups(groups: &[usize]) -> Self {
        Self::new(&vec![1; groups.len()], groups)
    }

    fn excluding(mut self, row: usize) -> Self {
        self.excluded[row] = true;
        self
    }

    fn replies(&self) -> Replies<'_> {
        Replies { lengths: &self.lengths, groups: &self.groups, excluded: &self.excluded }
    }

    fn rewards(&self, kl: &[f64], scores: &[f64], slot: ScoreSlot) -> Result<TokenRewards, Error> {
        token_rewards(kl, scores, &[], &self.replies(), 0.5, &vec![slot; scores.len()])
    }

    fn advantages(&self, totals: &[f64], rule: GroupRule) -> Vec<f64> {
        let greedy: Vec<f64> = totals.iter().map(|total| total / 2.0 + 1.0).collect();
        reply_advantages(totals, Some(&greedy), &self.replies(), &rule).unwrap()
    }
}

fn rule(estimator: AdvantageEstimator) -> GroupRule {
    GroupRule { estimator, scale: AdvantageScale::Group, epsilon: 0.0, pass_k: usize::MAX }
}

/// The estimators with one advantage for each reply.
const OF_REPLIES: [AdvantageEstimator; 7] = [
    AdvantageEstimator::Grpo,
    AdvantageEstimator::Rloo,
    AdvantageEstimator::ReinforcePlusPlusBaseline,
    AdvantageEstimator::Remax,
    AdvantageEstimator::Opo,
    AdvantageEstimator::Maxrl,
    AdvantageEstimator::PassAtK,
];

fn assert_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{got:?} {expected:?}");
    for (value, other) in got.iter().zip(expected) {
        assert!((value - other).abs() < tolerance, "{got:?} {expected:?}");
    }
}

fn assert_near(got: &[f64], expected: &[f64]) {
    assert_close(got, expected, 1e-12);
}

/// Rewards of replies without a slot after the end.
fn rewards_of(values: &[f64], lengths: &[usize]) -> TokenRewards {
    TokenRewards {
        rewards: values.to_vec(),
        lengths: lengths.to_vec(),
        token_slots: (0..values.len()).collect(),
    }
}

/// Numbers without a pattern, the same on every machine.
fn noise(count: usize, seed: f64) -> Vec<f64> {
    (0..count).map(|index| ((index as f64 + seed) * 12.9898).sin() * 3.0).collect()
}

#[test]
fn the_score_is_added_at_the_last_token_or_after_it() {
    let case = Case::new(&[2, 1], &[0, 1]);
    let (kl, scores) = ([1.0, 2.0, 3.0], [10.0, 20.0]);
    let eos = case.rewards(&kl, &scores, ScoreSlot::Eos).unwrap();
    assert_near(&eos.rewards, &[-0.5, 9.0, 18.5]);
    assert_eq!((&eos.lengths[..], &eos.token_slots[..]), (&[2, 1][..], &[0, 1, 2][..]));
    let after = case.rewards(&kl, &scores, ScoreSlot::AfterEos).unwrap();
    assert_near(&after.rewards, &[-0.5, -1.0, 10.0, -1.5, 20.0]);
    assert_eq!((&after.lengths[..], &after.token_slots[..]), (&[3, 2][..], &[0, 1, 3][..]));
    // The sums do not depend on the slot: 10 - 0.5 (1 + 2) and 20 - 0.5 * 3.
    assert_near(&eos.totals(), &[8.5, 18.5]);
    assert_near(&after.totals(), &[8.5, 18.5]);
}

#[test]
fn a_truncated_reply_has_its_score_at_its_last_token() {
    assert_eq!(ScoreSlot::AfterEos.of_replies(&[3, 4], 4), [ScoreSlot::AfterEos, ScoreSlot::Eos]);
    assert_eq!(ScoreSlot::Eos.of_replies(&[3, 4], 4), [ScoreSlot::Eos; 2]);
}

#[test]
fn the_reward_of_a_turn_is_added_at_its_last_token() {
    let case = Case::new(&[1, 3], &[0, 0]);
    let kl = [0.0, 2.0, 4.0, 6.0];
    let turns = [TurnReward { reply: 1, token: 1, reward: 0.25 }];
    let slots = |slot| token_rewards(&kl, &[0.0, 1.0], &turns, &case.replies(), 0.5, &[slot; 2]).unwrap();
    assert_near(&slots(ScoreSlot::Eos).rewards, &[0.0, -1.0, -1.75, -2.0]);
    // The first reply has a slot after its end, which moves those of the second.
    assert_near(&slots(ScoreSlot::AfterEos).rewards, &[0.0, 0.0, -1.0, -1.75, -3.0, 1.0]);
}

#[test]
fn an_excluded_reply_has_no_rewards() {
    let case = Case::new(&[2, 1], &[0, 0]).excluding(0);
    let turns = [TurnReward { reply: 0, token: 0, reward: 7.0 }];
    let slots = [ScoreSlot::AfterEos; 2];
    let got = token_rewards(&[1.0; 3], &[9.0, 4.0], &turns, &case.replies(), 0.5, &slots).unwrap();
    assert_near(&got.rewards, &[0.0, 0.0, 0.0, -0.5, 4.0]);
    assert_eq!((&got.lengths[..], &got.token_slots[..]), (&[3, 2][..], &[0, 1, 3][..]));
    assert_eq!(got.totals(), [0.0, 3.5]);
}

#[test]
#[should_panic(expected = "turn reward 0: reply 0 of 2 tokens has no token 2")]
fn the_reward_of_a_turn_belongs_to_a_token_of_its_reply() {
    let case = Case::new(&[2, 1], &[0, 0]);
    let turns = [TurnReward { reply: 0, token: 2, reward: 1.0 }];
    let _ = token_rewards(&[0.0; 3], &[0.0; 2], &turns, &case.replies(), 0.5, &[ScoreSlot::Eos; 2]);
}

/// Log-probabilities -1.2, -0.5, -2, -0.1 of the policy and -1, -0.7, -1.5, -0.3 of the reference, whose
/// differences are k1; score 1, KL coefficient 0.05, gamma 1, lambda 0.95.
#[test]
fn gae_by_hand() {
    let case = Case::new(&[4], &[0]);
    let kl = [-0.2, 0.2, -0.5, 0.2];
    let estimate = |slot, values: &[f64]| {
        let rewards = token_rewards(&kl, &[1.0], &[], &case.replies(), 0.05, &[slot]).unwrap();
        gae(&rewards, values, 1.0, 0.95, 0.95).unwrap()
    };
    // Rewards .01, -.01, .025, .99. From the end: .99 - .4 = .59; .025 + .4 - .3 + .95 * .59 = .6855;
    // -.01 + .3 - .2 + .95 * .6855 = .741225; .01 + .2 - .1 + .95 * .741225 = .81416375.
    let eos = estimate(ScoreSlot::Eos, &[0.1, 0.2, 0.3, 0.4]);
    assert_near(&eos.advantages, &[0.814_163_75, 0.741_225, 0.6855, 0.59]);
    assert_near(&eos.returns, &[0.914_163_75, 0.941_225, 0.9855, 0.99]);
    let after = estimate(ScoreSlot::AfterEos, &[0.1, 0.2, 0.3, 0.4, 0.5]);
    assert_close(&after.advantages, &[0.792_729_37, 0.718_662_5, 0.661_75, 0.565, 0.5], 6e-9);
    assert_close(&after.returns, &[0.892_729_37, 0.918_662_5, 0.961_75, 0.965, 1.0], 6e-9);
}

#[test]
fn gae_with_gamma_and_lambda_one_is_the_return_minus_the_value() {
    let (rewards, values) = (noise(7, 0.1), noise(7, 0.7));
    let got = gae(&rewards_of(&rewards, &[4, 3]), &values, 1.0, 1.0, 1.0).unwrap();
    let to_go = |slot: usize| rewards[slot..if slot < 4 { 4 } else { 7 }].iter().sum::<f64>();
    let expected: Vec<f64> = (0..7).map(|slot| to_go(slot) - values[slot]).collect();
    assert_near(&got.advantages, &expected);
    assert_near(&got.returns, &(0..7).map(to_go).collect::<Vec<_>>());
}

#[test]
fn with_lambda_zero_the_advantage_is_the_error_of_one_step() {
    let got = gae(&rewards_of(&[1.0, 2.0], &[2]), &[0.5, 0.25], 0.9, 0.0, 0.0).unwrap();
    assert_near(&got.advantages, &[1.0 + 0.9 * 0.25 - 0.5, 2.0 - 0.25]);
    assert_near(&got.returns, &[1.0 + 0.9 * 0.25, 2.0]);
}

#[test]
fn the_critic_may_have_a_lambda_of_its_own() {
    // With 1 it learns the discounted rewards to go, 1 + 0.9 * 2 and 2, and the advantages stay.
    let got = gae(&rewards_of(&[1.0, 2.0], &[2]), &[0.5, 0.25], 0.9, 0.0, 1.0).unwrap();
    assert_near(&got.advantages, &[0.725, 1.75]);
    assert_near(&got.returns, &[2.8, 2.0]);
}

#[test]
fn returns_to_go_by_hand() {
    // 4; 2 + 0.5 * 4 = 4; 1 + 0.5 * 4 = 3. The second reply begins anew.
    assert_eq!(returns_to_go(&rewards_of(&[1.0, 2.0, 4.0, 8.0], &[3, 1]), 0.5), [3.0, 4.0, 4.0, 8.0]);
}

#[test]
fn replies_do_not_see_one_another() {
    let (rewards, values) = (noise(6, 0.3), noise(6, 0.9));
    let both = gae(&rewards_of(&rewards, &[4, 2]), &values, 0.99, 0.95, 0.95).unwrap();
    let first = gae(&rewards_of(&rewards[..4], &[4]), &values[..4], 0.99, 0.95, 0.95).unwrap();
    let second = gae(&rewards_of(&rewards[4..], &[2]), &values[4..], 0.99, 0.95, 0.95).unwrap();
    assert_eq!(both.advantages, [first.advantages, second.advantages].concat());
}

#[test]
fn invalid_inputs_are_refused() {
    let rewards = |kl: &[f64], scores: &[f64], lengths: &[usize]| {
        Case::new(lengths, &vec![0; lengths.len()]).rewards(kl, scores, ScoreSlot::Eos).unwrap_err()
    };
    assert!(matches!(rewards(&[0.0], &[1.0], &[2]), Error::Shape { .. }));
    assert!(matches!(rewards(&[0.0, f64::NAN], &[1.0], &[2]), Error::NotFinite { index: 1, .. }));
    assert!(matches!(rewards(&[0.0; 2], &[1.0, f64::INFINITY], &[1, 1]), Error::NotFinite { index: 1, .. }));
    assert!(matches!(rewards(&[0.0], &[1.0, 1.0], &[1, 0]), Error::EmptyReply { row: 1 }));
    let error = gae(&rewards_of(&[0.0, 0.0], &[2]), &[1.0, f64::INFINITY], 1.0, 1.0, 1.0).unwrap_err();
    assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
    assert!(matches!(gae(&rewards_of(&[0.0], &[1]), &[], 1.0, 1.0, 1.0), Err(Error::Shape { .. })));

    let empty = Case::new(&[1, 0], &[0, 0]);
    let refused = empty.rewards(&[0.0], &[1.0; 2], ScoreSlot::AfterEos);
    assert!(matches!(refused, Err(Error::EmptyReply { row: 1 })));
    assert!(empty.excluding(1).rewards(&[0.0], &[1.0; 2], ScoreSlot::AfterEos).is_ok());
}

/// Eight replies to one prompt, of which the first and the fourth are right. GRPO: `torch.std` 0.46291005;
/// RLOO: 8 / 7 times the distance from the mean.
#[test]
fn replies_to_the_same_prompt_are_compared_with_one_another() {
    let scores = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    let case = Case::of_groups(&[4; 8]);
    let near = |estimator, epsilon, right: f64, wrong: f64| {
        let got = case.advantages(&scores, GroupRule { epsilon, ..rule(estimator) });
        assert_close(&got, &scores.map(|score| if score == 1.0 { right } else { wrong }), 1e-6);
    };
    near(AdvantageEstimator::Grpo, 1e-6, 1.620_182, -0.540_061);
    near(AdvantageEstimator::Grpo, 1e-4, 1.619_835, -0.539_945);
    near(AdvantageEstimator::Rloo, 0.0, 0.857_142_86, -0.285_714_29);
    near(AdvantageEstimator::ReinforcePlusPlusBaseline, 0.0, 0.75, -0.25);
    // The rate of success is a quarter.
    near(AdvantageEstimator::Maxrl, 0.0, 3.0, -1.0);
    near(AdvantageEstimator::Maxrl, 0.25, 1.5, -0.5);
}

#[test]
fn the_scale_is_of_the_group_or_of_the_batch_or_absent() {
    // Two groups, whose replies stand between one another: 0, 2 and 4, 6. The deviations from the mean of
    // all, 3, have the squares 9, 1, 1 and 9, so the unbiased variance is 20 / 3. The one of each group is 2.
    let (case, totals) = (Case::of_groups(&[8, 5, 8, 5]), [0.0, 4.0, 2.0, 6.0]);
    let by = |scale| case.advantages(&totals, GroupRule { scale, ..rule(AdvantageEstimator::Grpo) });
    let (group, batch) = (0.5f64.sqrt(), 0.15f64.sqrt());
    assert_near(&by(AdvantageScale::Group), &[-group, -group, group, group]);
    assert_near(&by(AdvantageScale::Batch), &[-batch, -batch, batch, batch]);
    assert_near(&by(AdvantageScale::None), &[-1.0, -1.0, 1.0, 1.0]);
}

#[test]
fn baselines_by_hand() {
    // The mean of 1, 0 and 4 with the lengths 1, 2 and 1 as weights is 5 / 4.
    let case = Case::new(&[1, 2, 1], &[0; 3]);
    assert_near(&case.advantages(&[1.0, 0.0, 4.0], rule(AdvantageEstimator::Opo)), &[-0.25, -1.25, 2.75]);
    // The mean of the others, with groups of two and of three replies.
    let case = Case::of_groups(&[0, 1, 0, 1, 1]);
    let got = case.advantages(&[1.0, 3.0, 5.0, 0.0, 9.0], rule(AdvantageEstimator::Rloo));
    assert_near(&got, &[-4.0, 3.0 - 4.5, 4.0, -6.0, 9.0 - 1.5]);
    // ReMax compares with the greedy reply, and needs no second one.
    let (case, greedy) = (Case::of_groups(&[0, 1]), [2.0, 2.5]);
    let remax = rule(AdvantageEstimator::Remax);
    let got = reply_advantages(&[1.0, 3.0], Some(&greedy), &case.replies(), &remax).unwrap();
    assert_eq!(got, [-1.0, 0.5]);
    // Without a success, MaxRL has no rate to divide by.
    let case = Case::of_groups(&[0, 0, 1, 1]);
    let got = case.advantages(&[-1.0, 0.0, -1.0, 1.0], rule(AdvantageEstimator::Maxrl));
    assert_eq!(got, [0.0; 4]);
}

#[test]
fn pass_at_k_by_hand() {
    let (case, totals) = (Case::of_groups(&[0; 4]), [1.0, 3.0, 2.0, 7.0]);
    let by = |pass_k, scale| {
        case.advantages(&totals, GroupRule { scale, pass_k, ..rule(AdvantageEstimator::PassAtK) })
    };
    // All four: only the best raises the best reward, from 3 to 7.
    assert_near(&by(4, AdvantageScale::None), &[0.0, 0.0, 0.0, 4.0]);
    assert_near(&by(100, AdvantageScale::None), &[0.0, 0.0, 0.0, 4.0]);
    // Three: the pairs of others are {1, 2}, {1, 7} and {2, 7} for 3, and {1, 3}, {1, 2} and {3, 2} for 7.
    assert_near(&by(3, AdvantageScale::None), &[0.0, 1.0 / 3.0, 0.0, 13.0 / 3.0]);
    // Two: the mean of what each is better by than one other.
    assert_near(&by(2, AdvantageScale::None), &[0.0, 1.0, 1.0 / 3.0, 5.0]);
    // The squared deviations from the mean, 3.25, add up to 20.75.
    assert_near(&by(4, AdvantageScale::Group), &[0.0, 0.0, 0.0, 4.0 / (20.75f64 / 3.0).sqrt()]);
    // Two replies that are equally good raise nothing.
    let tied = case.advantages(&[7.0, 3.0, 2.0, 7.0], rule(AdvantageEstimator::PassAtK));
    assert_eq!(tied, [0.0; 4]);

    for pass_k in [0, 1] {
        let rule = GroupRule { pass_k, ..rule(AdvantageEstimator::PassAtK) };
        let error = reply_advantages(&totals, None, &case.replies(), &rule).unwrap_err().to_string();
        assert!(error.starts_with(&format!("[ppo] pass_k = {pass_k}: must be at least 2")), "{error}");
    }
}

#[test]
fn pass_at_k_is_the_mean_over_all_choices_of_the_others() {
    let totals = noise(7, 0.2);
    let case = Case::of_groups(&[0; 7]);
    for k in 2..=7usize {
        let rule = GroupRule { pass_k: k, scale: AdvantageScale::None, ..rule(AdvantageEstimator::PassAtK) };
        let gain = |own: usize| {
            let choices = (0..1u32 << 7)
                .filter(|&choice| choice.count_ones() as usize == k - 1 && choice & (1u32 << own) == 0);
            let (sum, count) = choices.fold((0.0, 0.0), |(sum, count), choice| {
                let others = (0..7).filter(|other| choice & (1u32 << other) != 0).map(|other| totals[other]);
                (sum + (totals[own] - others.fold(f64::NEG_INFINITY, f64::max)).max(0.0), count + 1.0)
            });
            sum / count
        };
        assert_near(&case.advantages(&totals, rule), &(0..7).map(gain).collect::<Vec<_>>());
    }
}

#[test]
fn an_excluded_reply_changes_the_advantage_of_no_other_reply() {
    let groups = [0, 1, 0, 1, 0, 1, 1];
    let mut totals = noise(7, 0.8);
    let lengths = [1, 2, 3, 1, 2, 3, 1];
    for estimator in OF_REPLIES {
        for scale in [AdvantageScale::Group, AdvantageScale::Batch] {
            let rule = GroupRule { scale, ..rule(estimator) };
            for row in 0..7 {
                let without = |numbers: &[usize]| {
                    let mut numbers = numbers.to_vec();
                    numbers.remove(row);
                    numbers
                };
                let mut others = totals.clone();
                others.remove(row);
                let mut expected = Case::new(&without(&lengths), &without(&groups)).advantages(&others, rule);
                expected.insert(row, 0.0);

                let own = std::mem::replace(&mut totals[row], f64::NAN);
                let got = Case::new(&lengths, &groups).excluding(row).advantages(&totals, rule);
                totals[row] = own;
                assert_eq!(got, expected, "{estimator:?} {scale:?} {row}");
            }
        }
    }
}

#[test]
fn the_order_of_the_replies_and_the_numbers_of_the_groups_do_not_matter() {
    let (lengths, groups, totals) = ([1, 2, 3, 1, 2, 3], [0, 1, 2, 0, 1, 2], noise(6, 0.5));
    let order = [4, 2, 0, 5, 3, 1];
    for estimator in OF_REPLIES {
        for scale in [AdvantageScale::Group, AdvantageScale::Batch, AdvantageScale::None] {
            let rule = GroupRule { scale, pass_k: 2, ..rule(estimator) };
            let advantages = Case::new(&lengths, &groups).advantages(&totals, rule);
            let moved = Case::new(&order.map(|row| lengths[row]), &order.map(|row| 17 - 5 * groups[row]));
            let got = moved.advantages(&order.map(|row| totals[row]), rule);
            assert_near(&got, &order.map(|row| advantages[row]));
        }
    }
}

#[test]
fn what_cannot_be_compared_teaches_nothing() {
    // Group 3 has one reply, group 1 one counted reply, group 2 equal rewards whose mean rounds, group 0 two
    // rewards, and group 9 no counted reply.
    let mut case = Case::of_groups(&[3, 1, 1, 2, 2, 2, 0, 0, 9]);
    case.excluded[2] = true;
    case.excluded[8] = true;
    let totals = [5.0, 1.0, f64::NAN, 0.1, 0.1, 0.1, 1.0, 2.0, f64::NAN];
    assert_eq!(zero_variance_groups(&totals, &case.replies()), [1, 2, 3, 9]);
    for estimator in OF_REPLIES.into_iter().filter(|estimator| estimator.compares_replies()) {
        let got = case.advantages(&totals, rule(estimator));
        assert_eq!((&got[..6], got[8]), (&[0.0; 6][..], 0.0), "{estimator:?}");
        assert!(got[7] > 0.0, "{estimator:?}");
    }
    // Rewards that differ by rounding are equal, at any size; others are not.
    let differing = |size: f64, difference: f64| {
        let case = Case::of_groups(&[0, 0]);
        zero_variance_groups(&[size, size + difference], &case.replies()).is_empty()
    };
    assert!(!differing(0.5, 1e-13) && differing(0.5, 1e-11) && !differing(1e6, 1e-7) && differing(1e6, 1e-5));
}

#[test]
fn replies_that_cannot_be_read_are_refused() {
    let grpo = rule(AdvantageEstimator::Grpo);
    let refuse =
        |case: &Case, totals: &[f64]| reply_advantages(totals, None, &case.replies(), &grpo).unwrap_err();
    let case = Case::of_groups(&[0, 0, 0]);
    let error = refuse(&case, &[1.0, f64::NAN, 2.0]);
    assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
    assert!(matches!(refuse(&case, &[1.0, 2.0]), Error::Shape { .. }));
    let short = Case { groups: vec![0, 0], ..case };
    assert!(matches!(refuse(&short, &[1.0; 3]), Error::Shape { .. }));
    let empty = Case::new(&[1, 1, 0], &[0; 3]);
    assert!(matches!(refuse(&empty, &[1.0; 3]), Error::EmptyReply { row: 2 }));

    let case = Case::of_groups(&[0, 0]);
    let greedy = [0.0, f64::INFINITY];
    let remax = rule(AdvantageEstimator::Remax);
    let error = reply_advantages(&[1.0; 2], Some(&greedy), &case.replies(), &remax).unwrap_err();
    assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
}

#[test]
fn the_advantage_of_a_reply_is_that_of_each_of_its_tokens() {
    assert_eq!(spread(&[2.0, 5.0, -1.0], &[2, 0, 3]), [2.0, 2.0, -1.0, -1.0, -1.0]);
}

#[test]
fn estimators_say_what_they_need() {
    let names = [
        "gae",
        "grpo",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "opo",
        "maxrl",
        "pass_at_k",
    ];
    for name in names {
        let estimator: AdvantageEstimator = serde_json::from_str(&format!("{name:?}")).unwrap();
        let needs = [
            estimator.has_critic(),
            estimator.has_token_rewards(),
            estimator.has_greedy_baseline(),
            estimator.compares_replies(),
        ];
        let expected = match name {
            "gae" => [true, true, false, false],
            "reinforce_plus_plus" => [false, true, false, false],
            "remax" => [false, false, true, false],
            _ => [false, false, false, true],
        };
        assert_eq!(needs, expected, "{name}");
    }
    let scale: AdvantageScale = serde_json::from_str("\"none\"").unwrap();
    assert_eq!(scale, AdvantageScale::None);
    let text = r#"{"estimator":"rloo","scale":"group","epsilon":0.0,"pass_k":8,"groups":2}"#;
    assert!(serde_json::from_str::<GroupRule>(text).is_err());
}
