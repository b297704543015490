//! The mathematics of the algorithms on groups of replies, against two producers that know nothing of one
//! another: `groups_paper.py` computes the papers' formulas in plain Python, and `groups_peers.py` calls verl
//! 0.9.1, TRL 1.16.0 and OpenRLHF 0.11.2, with gradients by autograd. `groups_peers.py` says which of our
//! settings are whose, and what they do differently.

use rlhf::advantage::{
    self, GroupRule, Replies, ScoreSlot, TurnReward, gae, reply_advantages, returns_to_go, spread,
    zero_variance_groups,
};
use rlhf::correction::{Correction, correct};
use rlhf::kl::{KlEstimator, KlGradient, KlLoss};
use rlhf::loss::{
    Counts, EntropyController, LossAggMode, PolicyClip, PolicyLossKind, PolicyRule, PolicyStatistics,
    PolicyTokens,
};
use rlhf::score::{OverlongPenalty, ScoreShaping};
use rlhf::whiten::{Variance, Whitening, whiten};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Kind, Tensor};

use super::{Values, golden, json, number, worst};

const PRODUCERS: [&str; 2] = ["groups_paper.json", "groups_peers.json"];
const REDUCTIONS: [&str; 4] =
    ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"];
/// The losses whose stopped tokens are counted.
const STOPPING: [&str; 9] =
    ["clip", "clip_higher", "clip_dual", "gspo", "cispo", "cispo_tight", "gmpo", "dppo_tv", "dppo_kl"];

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Zeros and ones.
fn flags(numbers: Vec<u8>) -> Vec<bool> {
    numbers.into_iter().map(|number| number == 1).collect()
}

fn keep<T: Clone>(values: &[T], kept: &[bool]) -> Vec<T> {
    assert_eq!(values.len(), kept.len());
    values.iter().zip(kept).filter(|(_, kept)| **kept).map(|(value, _)| value.clone()).collect()
}

/// Whether the policy wrote each stored token of each reply.
fn written(case: &Value) -> Vec<Vec<bool>> {
    read::<Vec<Vec<u8>>>(&case["mask"]).into_iter().map(flags).collect()
}

/// Which replies of a case have a score.
fn scored(case: &Value) -> Vec<bool> {
    flags(read(&case["excluded"])).into_iter().map(|excluded| !excluded).collect()
}

/// Whether the policy wrote each stored token, and the reply has a score.
fn written_and_scored(case: &Value) -> Vec<Vec<bool>> {
    let rows = written(case).into_iter().zip(scored(case));
    rows.map(|(row, scored)| row.into_iter().map(|written| written && scored).collect()).collect()
}

/// The replies of a case, as our functions are given them.
///
/// The producers read the tokens of tools too, and a mask over them. A rollout of ours has the tokens that
/// the policy wrote and no others. Both are the same mathematics, because estimators carry values and
/// advantages across gaps, and every sum and mean is over the tokens of the policy. So the masked tokens are
/// dropped here, and [`expected`] drops their entries from the golden vectors.
struct Rows {
    /// Which of the stored tokens of each reply are kept.
    kept: Vec<Vec<bool>>,
    lengths: Vec<usize>,
    groups: Vec<usize>,
    excluded: Vec<bool>,
}

impl Rows {
    /// All replies of a rollout.
    fn new(case: &Value) -> Self {
        let kept = written(case);
        let lengths: Vec<usize> =
            kept.iter().map(|row| row.iter().filter(|&&written| written).count()).collect();
        let groups = case.get("groups").map_or_else(|| vec![0; lengths.len()], read::<Vec<usize>>);
        Self { kept, lengths, groups, excluded: flags(read(&case["excluded"])) }
    }

    /// The replies of a mini-batch, which has no excluded reply.
    fn of_mini_batch(case: &Value) -> Self {
        let (Self { lengths, groups, excluded, .. }, scored) = (Self::new(case), scored(case));
        Self {
            kept: written_and_scored(case),
            lengths: keep(&lengths, &scored),
            groups: keep(&groups, &scored),
            excluded: keep(&excluded, &scored),
        }
    }

    fn replies(&self) -> Replies<'_> {
        Replies { lengths: &self.lengths, groups: &self.groups, excluded: &self.excluded }
    }

    /// The kept numbers of each stored reply.
    fn rows<T: DeserializeOwned + Clone>(&self, case: &Value, key: &str) -> Vec<Vec<T>> {
        let rows: Vec<Vec<T>> = read(&case[key]);
        assert_eq!(rows.len(), self.kept.len(), "{key}");
        rows.iter().zip(&self.kept).map(|(row, kept)| keep(row, kept)).collect()
    }

    /// The same, one reply after another.
    fn flat<T: DeserializeOwned + Clone>(&self, case: &Value, key: &str) -> Vec<T> {
        self.rows(case, key).concat()
    }

    /// For each of so many numbers of each reply, whether the reply has a score.
    fn counted(&self, lengths: &[usize]) -> Vec<bool> {
        let replies = self.excluded.iter().zip(lengths);
        replies.flat_map(|(excluded, &length)| vec![!excluded; length]).collect()
    }

    /// The weights of the tokens of the first replies of the mini-batch.
    fn weights(&self, reduction: &str, replies: usize, norm: usize) -> Vec<f64> {
        let mode: LossAggMode = read(&Value::from(reduction));
        mode.token_weights(&self.lengths[..replies], norm, &Counts::of_replies(&self.lengths))
    }
}

/// The golden values without the entries of tokens that our functions are not given.
fn expected(producer: &str) -> Values {
    let inputs = json("groups_inputs.json");
    let rollout = &inputs["rollout"];
    let slots = written_and_scored(rollout);
    // A reply of all tokens that it may have has no slot after its end.
    let has_slot = |row: &[bool]| row.len() < rollout["max_new_tokens"].as_u64().unwrap() as usize;
    let after_end: Vec<Vec<bool>> = slots
        .iter()
        .zip(scored(rollout))
        .map(|(row, scored)| row.iter().copied().chain(has_slot(row).then_some(scored)).collect())
        .collect();
    let (slots, after_end, tokens) = (slots.concat(), after_end.concat(), written(rollout).concat());
    let mini_batch = written_and_scored(&inputs["policy"]).concat();
    let corrected = written(&inputs["correction"]).concat();

    let mut values = golden(producer);
    for (name, numbers) in &mut values {
        let parts: Vec<&str> = name.split('/').collect();
        let kept = match parts[..] {
            ["slots", "eos", _] | ["whitened", _] => &slots,
            ["slots", "after_eos", _] => &after_end,
            ["tokens", _] => &tokens,
            ["weights", ..] | ["policy", .., "gradient" | "entropy_gradient"] => &mini_batch,
            ["correction", _, "weights"] => &corrected,
            _ => continue,
        };
        // The weights of a part of the mini-batch are those of its first tokens.
        *numbers = keep(numbers, &kept[..numbers.len()]);
    }
    values
}

/// The rule of a policy loss, with the settings of a case.
fn policy_rule(settings: &Value) -> PolicyRule {
    let default = PolicyRule::default();
    PolicyRule {
        kind: read::<PolicyLossKind>(&settings["kind"]),
        clip: PolicyClip {
            low: number(settings, "low"),
            high: number(settings, "high"),
            dual: settings["dual"].as_f64(),
            ..default.clip
        },
        sapo: settings.get("sapo").map_or(default.sapo, read),
        ..default
    }
}

/// The tensors of a policy batch, in one kind of number.
struct PolicyBatch {
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    entropy: Tensor,
}

/// A loss, its gradient, and its sums.
struct Found {
    loss: Tensor,
    gradient: Tensor,
    statistics: PolicyStatistics,
}

impl PolicyBatch {
    /// The loss of the replies with the weights of tokens and perhaps a correction and a reference.
    fn loss(
        &self,
        rule: &PolicyRule,
        lengths: &[usize],
        weights: &Tensor,
        correction: Option<&Tensor>,
        reference: Option<&Tensor>,
    ) -> Found {
        let logprobs = self.logprobs.detach().copy().set_requires_grad(true);
        let sequence = rule.sequence_log_ratios(&logprobs, &self.old, &self.advantages, lengths).unwrap();
        let tokens = PolicyTokens {
            logprobs: &logprobs,
            old: &self.old,
            advantages: &self.advantages,
            weights,
            correction,
            reference,
            entropy: (rule.entropy_coef != 0.0).then_some(&self.entropy),
            sequence: sequence.as_ref(),
        };
        let found = rule.loss(&tokens).unwrap();
        found.loss.backward();
        Found {
            gradient: logprobs.grad(),
            statistics: PolicyStatistics::from(&found.statistics),
            loss: found.loss,
        }
    }
}

/// Our values for the stored inputs, computed in one kind of number where they are computed with tensors.
struct Ours {
    kind: Kind,
    values: Values,
}

impl Ours {
    fn compute(kind: Kind) -> Values {
        let inputs = json("groups_inputs.json");
        let mut ours = Self { kind, values: Values::new() };
        ours.slots("eos", ScoreSlot::Eos, &inputs["rollout"]);
        ours.slots("after_eos", ScoreSlot::AfterEos, &inputs["rollout"]);
        ours.replies(&inputs["rollout"], &inputs["group_rules"]);
        ours.policy(&inputs["policy"]);
        ours.corrected_and_combined(&inputs["policy"]);
        ours.extreme(&inputs["extreme"]);
        ours.kl("kl", &inputs["kl"], number(&inputs["kl"], "clamp"));
        ours.kl("kl_beyond", &inputs["kl"]["beyond"], number(&inputs["kl"], "clamp"));
        ours.corrections(&inputs["correction"]);
        ours.overlong(&inputs["overlong"]);
        ours.entropy(&inputs["entropy"]);
        ours.values
    }

    fn tensor(&self, numbers: &[f64]) -> Tensor {
        Tensor::from_slice(numbers).to_kind(self.kind)
    }

    fn put(&mut self, name: &str, numbers: &[f64]) {
        self.values.insert(name.to_owned(), numbers.to_vec());
    }

    fn put_tensor(&mut self, name: &str, numbers: &Tensor) {
        let numbers = Vec::<f64>::try_from(numbers.detach().flatten(0, -1).to_kind(Kind::Double)).unwrap();
        self.values.insert(name.to_owned(), numbers);
    }

    fn slots(&mut self, name: &str, slot: ScoreSlot, case: &Value) {
        let rows = Rows::new(case);
        // The producers count the tokens of tools among those that a reply may have.
        let score_slots = slot.of_replies(
            &read::<Vec<usize>>(&case["lengths"]),
            case["max_new_tokens"].as_u64().unwrap() as usize,
        );
        let mut turns: Vec<TurnReward> = read(&case["turn_rewards"]);
        for turn in &mut turns {
            let before = &rows.kept[turn.reply][..turn.token];
            turn.token = before.iter().filter(|&&written| written).count();
        }
        let (kl, scores) = (rows.flat::<f64>(case, "kl"), read::<Vec<f64>>(&case["scores"]));
        let kl_coef = number(case, "kl_coef");
        let rewards =
            advantage::token_rewards(&kl, &scores, &turns, &rows.replies(), kl_coef, &score_slots).unwrap();

        let after_end: Vec<f64> = read(&case["values_after_end"]);
        let mut values = rows.rows::<f64>(case, "values");
        for (row, own) in values.iter_mut().enumerate() {
            own.extend((score_slots[row] == ScoreSlot::AfterEos).then_some(after_end[row]));
        }
        let values = values.concat();
        let [gamma, lambda, critic] = ["gamma", "lambda", "critic_lambda"].map(|key| number(case, key));
        let one = gae(&rewards, &values, gamma, lambda, lambda).unwrap();
        let two = gae(&rewards, &values, gamma, lambda, critic).unwrap();
        assert_eq!(one.advantages, two.advantages, "{name}: the critic's lambda changes no advantage");

        let to_go = returns_to_go(&rewards, gamma);
        // What is computed for excluded replies is not read, and the golden values have 0 for some of it.
        let counted = rows.counted(&rewards.lengths);
        for (key, numbers) in [
            ("rewards", &rewards.rewards),
            ("advantages", &one.advantages),
            ("returns", &one.returns),
            ("critic_returns", &two.returns),
            ("to_go", &to_go),
        ] {
            self.put(&format!("slots/{name}/{key}"), &keep(numbers, &counted));
        }
        if slot == ScoreSlot::Eos {
            self.whitened(&to_go, &counted);
        }
    }

    fn whitened(&mut self, to_go: &[f64], counted: &[bool]) {
        let openrlhf = Whitening { variance: Variance::Biased, epsilon: 0.0 };
        for (name, whitening) in [("verl", Whitening::default()), ("openrlhf", openrlhf)] {
            let whitened = whiten(to_go, Some(counted), true, whitening).unwrap();
            self.put(&format!("whitened/{name}"), &keep(&whitened, counted));
        }
    }

    fn replies(&mut self, case: &Value, rules: &Value) {
        let rows = Rows::new(case);
        let greedy: Vec<f64> = read(&case["greedy"]);
        for (name, settings) in rules.as_object().unwrap() {
            let rule = GroupRule {
                estimator: read(&settings["estimator"]),
                scale: read(&settings["scale"]),
                epsilon: number(settings, "epsilon"),
                pass_k: settings.get("pass_k").map_or(2, read),
            };
            let totals: Vec<f64> = read(&case[settings["totals"].as_str().unwrap()]);
            let found = reply_advantages(&totals, Some(&greedy), &rows.replies(), &rule).unwrap();
            self.put(&format!("replies/{name}"), &found);
        }
        let tokens = |name: &str| spread(&self.values[&format!("replies/{name}")], &rows.lengths);
        let (grpo, distances) = (tokens("grpo_trl"), tokens("reinforce_plus_plus_baseline"));
        self.put("tokens/grpo", &grpo);
        let counted = rows.counted(&rows.lengths);
        let whitened = whiten(&distances, Some(&counted), true, Whitening::default()).unwrap();
        self.put("tokens/reinforce_plus_plus_baseline", &whitened);
        let equal = zero_variance_groups(&read::<Vec<f64>>(&case["scores"]), &rows.replies());
        let equal: Vec<f64> = equal.into_iter().map(|group| group as f64).collect();
        self.put("groups/zero_variance", &equal);
    }

    fn policy_batch(&self, case: &Value, rows: &Rows) -> PolicyBatch {
        let rows_of = |key: &str| self.tensor(&rows.flat::<f64>(case, key));
        let by_reply = keep(&read::<Vec<f64>>(&case["advantages"]), &scored(case));
        let advantages = spread(&by_reply, &rows.lengths);
        PolicyBatch {
            logprobs: rows_of("logprobs"),
            old: rows_of("old"),
            advantages: self.tensor(&advantages),
            entropy: rows_of("entropy"),
        }
    }

    fn policy(&mut self, case: &Value) {
        let rows = Rows::of_mini_batch(case);
        let batch = self.policy_batch(case, &rows);
        let [part, norm] = ["part", "norm"].map(|key| case[key].as_u64().unwrap() as usize);
        for reduction in REDUCTIONS {
            let weights = rows.weights(reduction, rows.lengths.len(), norm);
            self.put(&format!("weights/{reduction}/whole"), &weights);
            self.put(&format!("weights/{reduction}/part"), &rows.weights(reduction, part, norm));
            let weights = self.tensor(&weights);
            for (name, settings) in case["rules"].as_object().unwrap() {
                let found = batch.loss(&policy_rule(settings), &rows.lengths, &weights, None, None);
                self.put_tensor(&format!("policy/{name}/{reduction}/loss"), &found.loss);
                self.put_tensor(&format!("policy/{name}/{reduction}/gradient"), &found.gradient);
            }
        }

        let weights = self.tensor(&rows.weights("token_mean", rows.lengths.len(), norm));
        for name in STOPPING {
            let rule = policy_rule(&case["rules"][name]);
            let sums = batch.loss(&rule, &rows.lengths, &weights, None, None).statistics;
            self.put(&format!("clipped/{name}/both"), &[sums.clipped]);
            if matches!(rule.kind, PolicyLossKind::Clip | PolicyLossKind::Gmpo) {
                self.put(&format!("clipped/{name}/low"), &[sums.clipped_low]);
                self.put(&format!("clipped/{name}/high"), &[sums.clipped_high]);
            }
        }
    }

    fn corrected_and_combined(&mut self, case: &Value) {
        let rows = Rows::of_mini_batch(case);
        let mut batch = self.policy_batch(case, &rows);
        let norm = case["norm"].as_u64().unwrap() as usize;
        let weights = self.tensor(&rows.weights("token_mean", rows.lengths.len(), norm));
        let [correction, reference] =
            ["correction", "reference"].map(|key| self.tensor(&rows.flat::<f64>(case, key)));
        let mut rule = policy_rule(&case["rules"]["clip"]);
        let found = batch.loss(&rule, &rows.lengths, &weights, Some(&correction), None);
        self.put_tensor("policy/clip_corrected/loss", &found.loss);
        self.put_tensor("policy/clip_corrected/gradient", &found.gradient);

        let kl = KlLoss {
            estimator: KlEstimator::K3,
            clamp: 20.0,
            gradient: KlGradient::StraightThrough,
            importance: false,
        };
        rule.kl = Some((number(&case["combined"], "kl_coef"), kl));
        rule.entropy_coef = number(&case["combined"], "entropy_coef");
        batch.entropy = batch.entropy.set_requires_grad(true);
        let found = batch.loss(&rule, &rows.lengths, &weights, Some(&correction), Some(&reference));
        self.put_tensor("policy/combined/loss", &found.loss);
        self.put_tensor("policy/combined/gradient", &found.gradient);
        self.put_tensor("policy/combined/entropy_gradient", &batch.entropy.grad());
        let sums = found.statistics;
        self.put("policy/combined/mean_kl", &[sums.kl / sums.tokens]);
    }

    /// Each token is a batch of its own.
    fn extreme(&mut self, case: &Value) {
        let [logprobs, old, advantages] =
            ["logprobs", "old", "advantages"].map(|key| read::<Vec<f64>>(&case[key]));
        for (name, settings) in case["rules"].as_object().unwrap() {
            let (mut losses, mut gradients) = (Vec::new(), Vec::new());
            for token in 0..logprobs.len() {
                let one = |numbers: &[f64]| self.tensor(&numbers[token..=token]);
                let batch = PolicyBatch {
                    logprobs: one(&logprobs),
                    old: one(&old),
                    advantages: one(&advantages),
                    entropy: one(&old),
                };
                let found = batch.loss(&policy_rule(settings), &[1], &self.tensor(&[1.0]), None, None);
                losses.push(found.loss.double_value(&[]));
                gradients.push(found.gradient.double_value(&[0]));
            }
            self.put(&format!("extreme/{name}/loss"), &losses);
            self.put(&format!("extreme/{name}/gradient"), &gradients);
        }
    }

    fn kl(&mut self, place: &str, case: &Value, clamp: f64) {
        let [reference, old] = ["reference", "old"].map(|key| self.tensor(&read::<Vec<f64>>(&case[key])));
        for estimator in ["k1", "k2", "k3", "abs"] {
            for (name, gradient, importance) in [
                ("direct", KlGradient::Direct, false),
                ("direct_importance", KlGradient::Direct, true),
                ("straight_through", KlGradient::StraightThrough, false),
                ("straight_through_importance", KlGradient::StraightThrough, true),
            ] {
                let rule = KlLoss { estimator: read(&Value::from(estimator)), clamp, gradient, importance };
                let logprobs = self.tensor(&read::<Vec<f64>>(&case["logprobs"])).set_requires_grad(true);
                let values = rule.of_tokens(&logprobs, &reference, &old).unwrap();
                values.sum(None).backward();
                self.put_tensor(&format!("{place}/{estimator}/{name}/values"), &values);
                self.put_tensor(&format!("{place}/{estimator}/{name}/gradient"), &logprobs.grad());
            }
        }
    }

    fn corrections(&mut self, case: &Value) {
        let rows = Rows::new(case);
        let [current, sampler] = ["current", "sampler"].map(|key| rows.flat::<f32>(case, key));
        for (name, settings) in case["rules"].as_object().unwrap() {
            let rule: Correction = read(settings);
            let found = correct(&current, &sampler, &rows.replies(), rule).unwrap();
            let sums = found.statistics;
            self.put(&format!("correction/{name}/weights"), &found.weights);
            for (key, sum) in [
                ("tokens", sums.tokens),
                ("cut", sums.cut),
                ("replies_cut", sums.replies_cut),
                ("ratio", sums.ratio),
                ("ratio_max", sums.ratio_max),
                ("kl", sums.kl),
            ] {
                self.put(&format!("correction/{name}/{key}"), &[sum]);
            }
        }
    }

    fn overlong(&mut self, case: &Value) {
        let [max_new_tokens, buffer] =
            ["max_new_tokens", "buffer"].map(|key| case[key].as_u64().unwrap() as usize);
        let overlong = Some(OverlongPenalty { max_new_tokens, buffer, penalty: number(case, "penalty") });
        let lengths: Vec<usize> = read(&case["lengths"]);
        let (scores, has_eos) = (vec![Some(0.0); lengths.len()], vec![true; lengths.len()]);
        let shaped = ScoreShaping { overlong, ..ScoreShaping::default() }.apply(&scores, &has_eos, &lengths);
        let penalties: Vec<f64> = shaped.into_iter().map(Option::unwrap).collect();
        self.put("overlong/penalty", &penalties);
    }

    fn entropy(&mut self, case: &Value) {
        let [coefficient, target, delta] = ["coefficient", "target", "delta"].map(|key| number(case, key));
        let mut controller = EntropyController::new(coefficient, target, delta);
        let (mut coefficients, mut applied) = (Vec::new(), Vec::new());
        for measured in read::<Vec<f64>>(&case["measured"]) {
            controller.update(measured).unwrap();
            coefficients.push(controller.coefficient);
            applied.push(controller.applied());
        }
        self.put("entropy/coefficient", &coefficients);
        self.put("entropy/applied", &applied);
    }
}

#[test]
fn the_golden_values_of_the_papers_and_of_the_peers_agree() {
    let [paper, peers] = PRODUCERS.map(golden);
    let (error, name) = worst(&paper, &peers);
    assert!(error < 1e-12, "{name} differs by {error:e}");
}

#[test]
fn fp64_agrees_with_the_papers_and_with_the_peers() {
    let ours = Ours::compute(Kind::Double);
    for producer in PRODUCERS {
        let (error, name) = worst(&ours, &expected(producer));
        assert!(error < 1e-10, "{producer}: {name} differs by {error:e}");
    }
}

#[test]
fn fp32_agrees_with_the_papers_and_with_the_peers() {
    let ours = Ours::compute(Kind::Float);
    for producer in PRODUCERS {
        let (error, name) = worst(&ours, &expected(producer));
        assert!(error < 1e-6, "{producer}: {name} differs by {error:e}");
    }
}

/// Every kind of loss, reduction and estimate must be in the files, and every value must name who made it.
#[test]
fn the_golden_values_are_complete_and_signed() {
    let peers = json("groups_peers.json");
    let made_by = peers["made_by"].as_object().unwrap();
    let values = golden("groups_peers.json");
    assert_eq!(values.keys().collect::<std::collections::BTreeSet<_>>(), made_by.keys().collect());
    assert!(made_by.values().all(|names| !names.as_array().unwrap().is_empty()));
    for producer in ["torch", "transformers", "trl", "verl", "openrlhf"] {
        assert!(peers["versions"][producer].is_string(), "{producer}");
    }
    let rules = json("groups_inputs.json")["policy"]["rules"].clone();
    let kinds: Vec<PolicyLossKind> =
        rules.as_object().unwrap().values().map(|rule| policy_rule(rule).kind).collect();
    let expected = [
        PolicyLossKind::Clip,
        PolicyLossKind::Gspo,
        PolicyLossKind::Cispo,
        PolicyLossKind::Gmpo,
        PolicyLossKind::Sapo,
        PolicyLossKind::DppoTv,
        PolicyLossKind::DppoKl,
        PolicyLossKind::Gpg,
    ];
    assert!(expected.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}
