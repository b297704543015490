//! The mathematics of this crate against two producers that know nothing of it or of one another.
//!
//! `golden/paper.py` computes from the papers' formulas in plain Python, `golden/peers.py` with TRL and
//! torch; both read `golden/inputs.json`, and their outputs are stored with the versions that made them.
//! First the two must agree, then ours must agree with each: to 1e-10 in fp64 and to 1e-6 in fp32.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

mod distill;
mod groups;
mod preference;

use std::collections::BTreeMap;
use std::path::Path;

use rlhf::advantage::{self, Advantages, Replies, ScoreSlot, TokenRewards};
use rlhf::kl::{KlController, KlEstimator};
use rlhf::loss::{self, PolicyClip, PolicyRule, PolicyStatistics, PolicyTokens};
use rlhf::score::ScoreShaping;
use rlhf::whiten::{Whitening, whiten};
use serde_json::Value;
use tch::{Kind, Tensor};

type Values = BTreeMap<String, Vec<f64>>;

fn json(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn golden(name: &str) -> Values {
    serde_json::from_value(json(name)["values"].clone()).unwrap()
}

/// Largest `|a - b| / max(1, |b|)`, with the name of the value.
fn worst(left: &Values, right: &Values) -> (f64, String) {
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    let mut worst = (0.0, String::new());
    for (name, values) in left {
        let others = &right[name];
        assert_eq!(values.len(), others.len(), "{name}");
        for (value, other) in values.iter().zip(others) {
            let error = (value - other).abs() / other.abs().max(1.0);
            assert!(error.is_finite(), "{name}: {value} {other}");
            if error > worst.0 {
                worst = (error, name.clone());
            }
        }
    }
    worst
}

/// Our values for the stored inputs, computed in one kind of number.
struct Ours {
    kind: Kind,
    values: Values,
}

impl Ours {
    fn compute(kind: Kind) -> Values {
        let inputs = json("inputs.json");
        let mut ours = Self { kind, values: Values::new() };
        ours.kl(&inputs["worked"]);
        for name in ["worked", "ragged"] {
            ours.advantages(name, "eos", ScoreSlot::Eos, &inputs[name]);
            ours.advantages(name, "after_eos", ScoreSlot::AfterEos, &inputs[name]);
        }
        ours.whiten(&inputs);
        ours.controller(&inputs["controller"]);
        ours.policy(&inputs["policy"]);
        ours.value(&inputs["value"]);
        ours.reward(&inputs["reward"]);
        ours.score(&inputs["score"]);
        ours.values
    }

    fn tensor(&self, case: &Value, key: &str) -> Tensor {
        Tensor::from_slice(&floats(case, key)).to_kind(self.kind)
    }

    fn put(&mut self, name: &str, values: &Tensor) {
        let values = Vec::<f64>::try_from(values.detach().flatten(0, -1).to_kind(Kind::Double)).unwrap();
        self.values.insert(name.to_owned(), values);
    }

    fn put_numbers(&mut self, name: &str, values: &[f64]) {
        self.values.insert(name.to_owned(), values.to_vec());
    }

    fn kl(&mut self, case: &Value) {
        let (logprobs, reference) = (self.tensor(case, "logprobs"), self.tensor(case, "reference_logprobs"));
        for name in ["k1", "k2", "k3", "abs"] {
            let estimator: KlEstimator = serde_json::from_value(Value::from(name)).unwrap();
            self.put(&format!("kl/{name}"), &estimator.estimate(&logprobs, &reference, 20.0).unwrap());
        }
    }

    fn advantages(&mut self, name: &str, convention: &str, slot: ScoreSlot, case: &Value) {
        let (rewards, advantages) = estimate(case, slot);
        let prefix = format!("{name}/{convention}");
        self.put_numbers(&format!("{prefix}/rewards"), &rewards.rewards);
        self.put_numbers(&format!("{prefix}/advantages"), &advantages.advantages);
        self.put_numbers(&format!("{prefix}/returns"), &advantages.returns);
    }

    fn whiten(&mut self, inputs: &Value) {
        let values = floats(&inputs["whiten"], "values");
        let worked = estimate(&inputs["worked"], ScoreSlot::Eos).1.advantages;
        for (name, values, shift_mean) in
            [("shifted", &values, true), ("scaled", &values, false), ("worked", &worked, true)]
        {
            let whitened = whiten(values, None, shift_mean, Whitening::default()).unwrap();
            self.put_numbers(&format!("whiten/{name}"), &whitened);
        }
    }

    fn controller(&mut self, case: &Value) {
        let after = |kl: f64| {
            let (target, horizon) = (number(case, "target"), number(case, "horizon"));
            let mut controller = KlController::new(number(case, "coefficient"), Some(target), horizon);
            controller.update(kl, case["sequences"].as_u64().unwrap() as usize).unwrap();
            controller.coefficient()
        };
        let coefficients: Vec<f64> = floats(case, "kl").into_iter().map(after).collect();
        self.put_numbers("controller", &coefficients);
    }

    fn policy(&mut self, case: &Value) {
        let [old, advantages] = ["old_logprobs", "advantages"].map(|key| self.tensor(case, key));
        for (name, clip) in case["rules"].as_object().unwrap() {
            let clip: PolicyClip = serde_json::from_value(clip.clone()).unwrap();
            let logprobs = self.tensor(case, "logprobs").set_requires_grad(true);
            let tokens = PolicyTokens {
                logprobs: &logprobs,
                old: &old,
                advantages: &advantages,
                weights: &advantages.ones_like(),
                correction: None,
                reference: None,
                entropy: None,
                sequence: None,
            };
            let got = PolicyRule { clip, ..PolicyRule::default() }.loss(&tokens).unwrap();
            got.loss.backward();
            self.put(&format!("policy/{name}/loss"), &got.loss);
            self.put(&format!("policy/{name}/gradient"), &logprobs.grad());
            let sums = PolicyStatistics::from(&got.statistics);
            for (key, sum) in
                [("clipped", sums.clipped), ("approx_kl", sums.approx_kl), ("ratio", sums.ratio)]
            {
                self.put_numbers(&format!("policy/{name}/{key}"), &[sum / sums.tokens]);
            }
        }
    }

    fn value(&mut self, case: &Value) {
        let [old, returns] = ["old_values", "returns"].map(|key| self.tensor(case, key));
        for (name, clip) in case["clips"].as_object().unwrap() {
            let values = self.tensor(case, "values").set_requires_grad(true);
            let got = loss::value_loss(&values, &old, &returns, clip.as_f64()).unwrap();
            got.loss.backward();
            self.put(&format!("value/{name}/loss"), &got.loss);
            self.put(&format!("value/{name}/gradient"), &values.grad());
            let clipped = got.statistics.clipped / got.statistics.slots;
            self.put_numbers(&format!("value/{name}/clipped"), &[clipped]);
        }
    }

    fn reward(&mut self, case: &Value) {
        let (rejected, margins) = (self.tensor(case, "rejected"), self.tensor(case, "margins"));
        let centering = number(case, "centering");
        for (name, margins, centering) in
            [("plain", None, 0.0), ("margin", Some(&margins), 0.0), ("centered", None, centering)]
        {
            let chosen = self.tensor(case, "chosen").set_requires_grad(true);
            let got = loss::pairwise_reward_loss(&chosen, &rejected, margins, centering).unwrap();
            got.backward();
            self.put(&format!("reward/{name}/loss"), &got);
            self.put(&format!("reward/{name}/gradient"), &chosen.grad());
            let first = |scores: &Tensor| scores.narrow(0, 0, 1);
            let margin = margins.map(first);
            let worked =
                loss::pairwise_reward_loss(&first(&chosen), &first(&rejected), margin.as_ref(), centering)
                    .unwrap();
            self.put(&format!("reward/worked_{name}"), &worked);
        }
    }

    fn score(&mut self, case: &Value) {
        let scores: Vec<Option<f64>> = floats(case, "scores").into_iter().map(Some).collect();
        let ended: Vec<bool> = serde_json::from_value(case["ended"].clone()).unwrap();
        let [clip, penalty] = ["clip", "penalty"].map(|key| Some(number(case, key)));
        for (name, shaping) in [
            ("clipped", ScoreShaping { clip, ..ScoreShaping::default() }),
            ("subtracted", ScoreShaping { missing_eos_penalty: penalty, ..ScoreShaping::default() }),
        ] {
            let shaped = shaping.apply(&scores, &ended, &vec![1; scores.len()]);
            let shaped: Vec<f64> = shaped.into_iter().map(Option::unwrap).collect();
            self.put_numbers(&format!("score/{name}"), &shaped);
        }
    }
}

/// The rewards of the tokens of a case, and what GAE makes of them. Both are computed in f64.
fn estimate(case: &Value, slot: ScoreSlot) -> (TokenRewards, Advantages) {
    let lengths: Vec<usize> = serde_json::from_value(case["lengths"].clone()).unwrap();
    let slots = slot.of_replies(&lengths, case["max_new_tokens"].as_u64().unwrap() as usize);
    let (logprobs, reference) = (floats(case, "logprobs"), floats(case, "reference_logprobs"));
    let kl = KlEstimator::K1.estimate_f64(&logprobs, &reference, 20.0).unwrap();
    let replies =
        Replies { lengths: &lengths, groups: &vec![0; lengths.len()], excluded: &vec![false; lengths.len()] };
    let scores = floats(case, "scores");
    let rewards =
        advantage::token_rewards(&kl, &scores, &[], &replies, number(case, "kl_coef"), &slots).unwrap();

    let (values, after_end) = (floats(case, "values"), floats(case, "values_after_end"));
    let (mut slot_values, mut start) = (Vec::new(), 0);
    for (row, &length) in lengths.iter().enumerate() {
        slot_values.extend_from_slice(&values[start..start + length]);
        start += length;
        if slots[row] == ScoreSlot::AfterEos {
            slot_values.push(after_end[row]);
        }
    }
    let (gamma, lambda) = (number(case, "gamma"), number(case, "lambda"));
    let advantages = advantage::gae(&rewards, &slot_values, gamma, lambda, lambda).unwrap();
    (rewards, advantages)
}

fn floats(case: &Value, key: &str) -> Vec<f64> {
    serde_json::from_value(case[key].clone()).unwrap()
}

fn number(case: &Value, key: &str) -> f64 {
    case[key].as_f64().unwrap()
}

#[test]
fn the_golden_values_of_paper_and_trl_agree() {
    let (error, name) = worst(&golden("paper.json"), &golden("peers.json"));
    assert!(error < 1e-12, "{name} differs by {error:e}");
}

#[test]
fn fp64_agrees_with_both_producers() {
    let ours = Ours::compute(Kind::Double);
    for producer in ["paper.json", "peers.json"] {
        let (error, name) = worst(&ours, &golden(producer));
        assert!(error < 1e-10, "{producer}: {name} differs by {error:e}");
    }
}

#[test]
fn fp32_agrees_with_both_producers() {
    let ours = Ours::compute(Kind::Float);
    for producer in ["paper.json", "peers.json"] {
        let (error, name) = worst(&ours, &golden(producer));
        assert!(error < 1e-6, "{producer}: {name} differs by {error:e}");
    }
}

/// The numbers of the project's study of its peers, as printed there.
#[test]
fn the_published_examples_come_out() {
    let ours = Ours::compute(Kind::Double);
    let expected: [(&str, &[f64], f64); 10] = [
        ("kl/k2", &[0.02, 0.02, 0.125, 0.02], 1e-12),
        ("kl/k3", &[0.021_402_76, 0.018_730_75, 0.148_721_27, 0.018_730_75], 6e-9),
        ("worked/eos/advantages", &[0.814_163_75, 0.741_225, 0.6855, 0.59], 1e-12),
        ("worked/eos/returns", &[0.914_163_75, 0.941_225, 0.9855, 0.99], 1e-12),
        ("worked/after_eos/advantages", &[0.792_729_37, 0.718_662_5, 0.661_75, 0.565, 0.5], 6e-9),
        ("worked/after_eos/returns", &[0.892_729_37, 0.918_662_5, 0.961_75, 0.965, 1.0], 6e-9),
        ("whiten/worked", &[1.126_074, 0.354_435, -0.235_095, -1.245_415], 6e-7),
        ("reward/worked_plain", &[0.341_153_87], 6e-9),
        ("reward/worked_margin", &[0.513_015_25], 6e-9),
        ("reward/worked_centered", &[0.363_653_87], 6e-9),
    ];
    for (name, values, tolerance) in expected {
        assert_eq!(ours[name].len(), values.len(), "{name}");
        for (got, value) in ours[name].iter().zip(values) {
            assert!((got - value).abs() < tolerance, "{name}: {got} {value}");
        }
    }
    assert!((ours["controller"][0] - 0.151_536).abs() < 1e-12);
    assert!((ours["controller"][1] - 0.149_232).abs() < 1e-12);
}
