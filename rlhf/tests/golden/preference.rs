//! The losses of offline algorithms, and their gradients, against two producers that know nothing of one
//! another: `preference_paper.py` computes the papers' formulas in plain Python, with central
//! differences, and `preference_trl.py` runs TRL 1.16.0 with autograd.

use rlhf::config::{CpoConfig, DpoConfig, KtoConfig, OrpoConfig, SimpoConfig};
use rlhf::loss::preference::{Pairs, PreferenceLoss, Side};
use rlhf::offline::{OfflineLoss, Sequence, kto::Kto};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Kind, Tensor};

use super::{Values, json, worst};

/// The most that the producers and we may differ by: TRL computes one divergence and the odds of ORPO in
/// fp32.
const TOLERANCE: f64 = 1e-6;
/// A micro-batch that holds every stored pair.
const WHOLE: usize = 1 << 20;

fn numbers<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn sums(sides: &[Vec<f64>]) -> Vec<f64> {
    sides.iter().map(|side| side.iter().sum()).collect()
}

fn vector(tensors: &[Tensor]) -> Tensor {
    Tensor::stack(tensors, 0)
}

/// The log-probabilities of tokens of completions, with gradients.
struct Leaves(Vec<Tensor>);

impl Leaves {
    fn new(sides: &[Vec<f64>]) -> Self {
        Self(sides.iter().map(|side| Tensor::from_slice(side).set_requires_grad(true)).collect())
    }

    fn gradient(&self) -> Vec<f64> {
        self.0.iter().flat_map(|leaf| Vec::<f64>::try_from(leaf.grad()).unwrap()).collect()
    }
}

/// Some neighbouring pairs of a batch.
fn part(pairs: &Pairs, start: i64, length: i64) -> Pairs {
    let narrow = |tensor: &Tensor| tensor.narrow(0, start, length);
    let side = |side: &Side| Side {
        logprobs: narrow(&side.logprobs),
        reference: narrow(&side.reference),
        lengths: narrow(&side.lengths),
        alignment: side.alignment.as_ref().map(narrow),
    };
    let constants = pairs.constants.iter().map(narrow).collect();
    Pairs { chosen: side(&pairs.chosen), rejected: side(&pairs.rejected), constants }
}

/// The mean loss of `count` pairs, added up over parts of them.
fn mean_in_parts(loss: &dyn PreferenceLoss, pairs: &Pairs, count: usize, size: usize) -> Tensor {
    let shares = (0..count).step_by(size).map(|start| {
        let length = size.min(count - start);
        loss.losses(&part(pairs, start as i64, length as i64)).sum(Kind::Double) / count as f64
    });
    Tensor::stack(&shares.collect::<Vec<_>>(), 0).sum(Kind::Double)
}

/// The loss of the stored pairs and its gradient, with the settings of a case, in micro-batches of
/// `micro_batch_size` pairs.
fn of_pairs(data: &Value, loss: &dyn PreferenceLoss, micro_batch_size: usize) -> Vec<f64> {
    let policy: Vec<[Vec<f64>; 2]> = numbers(&data["policy"]);
    let reference: Vec<[Vec<f64>; 2]> = numbers(&data["reference"]);
    let squares: Vec<[Vec<f64>; 2]> = numbers(&data["log_sum_squares"]);
    let leaves = Leaves::new(&policy.concat());

    // The log-probability of a completion is that of its sequence, a prompt of one token before it.
    let of_completions = |tokens: &[Tensor]| -> Vec<Tensor> {
        let sequence = |index: usize| {
            let [length, other] = [index, index ^ 1].map(|index| leaves.0[index].size()[0] as usize);
            let tail = loss.tail_weight().map(|weight| (length.min(other), weight));
            let ids = vec![0; length + 1];
            Sequence { tail, ..Sequence::new(&ids, 1) }.completion_logprob(&tokens[index])
        };
        (0..tokens.len()).map(sequence).collect()
    };
    let own = of_completions(&leaves.0);
    let other: Vec<Tensor> = reference.concat().iter().map(|side| Tensor::from_slice(side)).collect();
    let other = of_completions(&other);

    let constants = if loss.compares_pairs() {
        let [own, other] =
            [&own, &other].map(|all| -> Vec<f64> { all.iter().map(|x| x.double_value(&[])).collect() });
        let rows = loss.constants(&own, &other);
        (0..rows[0].len())
            .map(|index| Tensor::from_slice(&rows.iter().map(|row| row[index]).collect::<Vec<_>>()))
            .collect()
    } else {
        Vec::new()
    };
    let side = |first: usize| {
        let pick = |all: &[Tensor]| -> Vec<Tensor> {
            all.iter().skip(first).step_by(2).map(Tensor::shallow_clone).collect()
        };
        let lengths: Vec<f64> = policy.iter().map(|pair| pair[first].len() as f64).collect();
        let means: Vec<f64> = policy
            .iter()
            .zip(&squares)
            .map(|(pair, squares)| {
                let differences = pair[first].iter().zip(&squares[first]).map(|(x, y)| x - y);
                differences.sum::<f64>() / pair[first].len() as f64
            })
            .collect();
        Side {
            logprobs: vector(&pick(&own)),
            reference: if loss.has_reference() {
                vector(&pick(&other))
            } else {
                Tensor::from_slice(&vec![0.0; policy.len()])
            },
            lengths: Tensor::from_slice(&lengths),
            alignment: loss.reads_alignment().then(|| Tensor::from_slice(&means)),
        }
    };
    let pairs = Pairs { chosen: side(0), rejected: side(1), constants };
    let mut total = mean_in_parts(loss, &pairs, policy.len(), micro_batch_size);
    if let Some(nll) = loss.nll() {
        let chosen: Vec<Tensor> = leaves.0.iter().step_by(2).map(Tensor::shallow_clone).collect();
        total -= Tensor::cat(&chosen, 0).mean(Kind::Double) * nll.weight;
    }
    total.backward();
    [vec![total.double_value(&[])], leaves.gradient()].concat()
}

fn of_unpaired(data: &Value, config: &KtoConfig) -> Vec<f64> {
    let data = &data["unpaired"];
    let of = |key: &str| sums(&numbers::<Vec<Vec<f64>>>(&data[key]));
    let labels: Vec<bool> = numbers(&data["labels"]);
    let leaves = Leaves::new(&numbers::<Vec<Vec<f64>>>(&data["policy"]));
    let own: Vec<Tensor> = leaves.0.iter().map(|leaf| leaf.sum(Kind::Double)).collect();
    let log_ratios = vector(&own) - Tensor::from_slice(&of("reference"));
    let constants = Kto(config.clone()).constants(&of("policy_mismatched"), &of("reference_mismatched"));
    let baseline = Tensor::from_slice(&constants.concat());
    let loss = config.losses(&log_ratios, &baseline, &labels).mean(Kind::Double);
    loss.backward();
    [vec![loss.double_value(&[])], leaves.gradient()].concat()
}

/// The losses of all cases, in micro-batches of a number of pairs.
fn ours(size: usize) -> Values {
    let data = json("preference_inputs.json");
    let mut values = Values::new();
    for (algorithm, cases) in data["cases"].as_object().unwrap() {
        for (name, settings) in cases.as_object().unwrap() {
            let found = match algorithm.as_str() {
                "dpo" | "own_dpo" => of_pairs(&data, &numbers::<DpoConfig>(settings), size),
                "cpo" => of_pairs(&data, &numbers::<CpoConfig>(settings), size),
                "simpo" => of_pairs(&data, &numbers::<SimpoConfig>(settings), size),
                "orpo" => of_pairs(&data, &numbers::<OrpoConfig>(settings), size),
                "kto" => of_unpaired(&data, &numbers::<KtoConfig>(settings)),
                other => panic!("{other} has no loss here"),
            };
            values.insert(format!("{algorithm}/{name}"), found);
        }
    }
    values
}

#[test]
fn losses_and_gradients_agree_with_the_papers_and_with_trl() {
    let [paper, trl] =
        ["preference_paper.json", "preference_trl.json"].map(|name| numbers::<Values>(&json(name)["values"]));
    let ours = ours(WHOLE);
    assert_eq!(ours.keys().collect::<Vec<_>>(), paper.keys().collect::<Vec<_>>());
    for (left, right, what) in [
        (&paper, &trl, "the producers"),
        (&ours, &paper, "ours and the papers"),
        (&ours, &trl, "ours and TRL"),
    ] {
        // TRL lacks three of our losses.
        let mut left = left.clone();
        left.retain(|name, _| right.contains_key(name));
        let (error, name) = worst(&left, right);
        println!("{what} differ by at most {error:.1e} ({name})");
        assert!(error < TOLERANCE, "{what}: {name} differs by {error}");
    }
    // Three losses of ours are no losses of TRL.
    assert_eq!(paper.len() - trl.len(), 3);
}

#[test]
fn no_split_into_micro_batches_changes_a_loss_or_its_gradient_in_fp64() {
    let whole = ours(WHOLE);
    for size in [1, 2, 3] {
        let (error, name) = worst(&ours(size), &whole);
        assert!(error < 1e-10, "micro-batches of {size}: {name} differs by {error}");
    }
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let refused = |text: &str| {
        let config: DpoConfig = serde_json::from_str(text).unwrap();
        config.check().unwrap_err().to_string()
    };
    for (text, words) in [
        (r#"{"beta": 0}"#, "beta = 0: must be more than 0"),
        (r#"{"loss": "exo"}"#, "label_smoothing = 0: must be above 0"),
        (r#"{"label_smoothing": 0.1}"#, "label_smoothing = 0.1: has no effect"),
        (r#"{"loss": "robust", "label_smoothing": 0.5}"#, "below 0.5"),
        (r#"{"loss": []}"#, "at least one loss"),
        (r#"{"loss": ["ipo", "sft"], "loss_weights": [1]}"#, "one weight for each of the 2"),
        (r#"{"loss": "nca", "f_divergence": "forward_kl"}"#, "f_divergence"),
        (r#"{"ld_alpha": 1.5}"#, "between 0 and 1"),
    ] {
        let error = refused(text);
        assert!(error.contains(words), "{text}: {error}");
    }
    assert!(serde_json::from_str::<DpoConfig>(r#"{"loss": "exo_pair"}"#).is_ok());
    let error = serde_json::from_str::<DpoConfig>(r#"{"loss": "sigmoids"}"#).unwrap_err().to_string();
    assert!(error.contains("sigmoids"), "{error}");
}

#[test]
fn a_certain_completion_has_finite_odds() {
    let side = |logprob: f64| Side {
        logprobs: Tensor::from_slice(&[logprob]).set_requires_grad(true),
        reference: Tensor::from_slice(&[0.0]),
        lengths: Tensor::from_slice(&[2.0]),
        alignment: None,
    };
    let pairs = Pairs { chosen: side(0.0), rejected: side(-3.0), constants: Vec::new() };
    let loss = OrpoConfig::default().losses(&pairs).sum(Kind::Double);
    loss.backward();
    assert!(loss.double_value(&[]).is_finite());
    assert!(pairs.chosen.logprobs.grad().double_value(&[0]).is_finite());
    assert!(pairs.rejected.logprobs.grad().double_value(&[0]).is_finite());
}
