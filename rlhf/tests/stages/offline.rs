//! Offline algorithms on a model of a few thousand parameters: what must not change a gradient, and what must
//! be learnt.

use std::path::{Path, PathBuf};

use datasets::{PreferenceRow, UnpairedRow};
use gemini::TrainConfig;
use gemini::config::Scheduler;
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use rlhf::config::{CpoConfig, DpoConfig, KtoConfig, OrpoConfig, SimpoConfig};
use rlhf::offline::kto::{Kto, KtoRow};
use rlhf::offline::pairs::Pairwise;
use rlhf::offline::{self, Offline, OfflineLoss, Rows};
use rlhf::trainer;

use super::{Memory, STOP, config, in_run_every, options, weights, worst};

fn model(seed: u64, trainable: bool) -> CausalLm {
    CausalLm::random(config(), seed, &options(trainable)).unwrap()
}

/// Runs `stage`, with an evaluation every two steps.
fn in_run(
    out: &Path,
    resume: Option<PathBuf>,
    stage: impl FnOnce(&mut rlhf::run::StageRun<'_>) -> Result<(), rlhf::Error>,
) -> Memory {
    let (memory, outcome) = in_run_every(2, out, resume, None, stage);
    outcome.unwrap();
    memory
}

/// The largest difference of two sets of weights, relative to the largest way that one has gone from `start`.
fn relative_difference(left: &[f32], right: &[f32], start: &[f32]) -> f32 {
    worst(left, right) / worst(left, start)
}

/// Replies of different lengths; the chosen one ends with an even token.
fn pairs() -> Vec<PreferenceRow> {
    (0..8)
        .map(|pair| {
            let prompt: Vec<i64> = (0..2 + pair % 3).map(|at| 3 + (pair + at) % 8).collect();
            let chosen = [&prompt[..], &vec![10; 1 + pair as usize % 2], &[12, STOP]].concat();
            let rejected = [&prompt[..], &vec![11; 1 + pair as usize % 4], &[13, STOP]].concat();
            PreferenceRow { chosen, rejected, prompt_length: prompt.len(), margin: None }
        })
        .collect()
}

fn unpaired() -> Vec<KtoRow> {
    let both = |pair: PreferenceRow| {
        let row = |input_ids, label| UnpairedRow { input_ids, prompt_length: pair.prompt_length, label };
        [row(pair.chosen.clone(), true), row(pair.rejected.clone(), false)]
    };
    KtoRow::of_rows(pairs().into_iter().take(4).flat_map(both).collect(), 32)
}

/// With a large eps, an update of `AdamW` is nearly proportional to the gradient, so weights tell of
/// gradients.
fn train(micro_batch_size: usize, steps: u64) -> TrainConfig {
    TrainConfig {
        steps: Some(steps),
        micro_batch_size,
        gradient_accumulation_steps: 8 / micro_batch_size,
        lr: 0.1,
        eps: 1.0,
        max_grad_norm: 1e9,
        scheduler: Scheduler::Constant,
        ..TrainConfig::default()
    }
}

/// Trains a policy whose reference is another model. Returns its weights and the metrics.
fn run<L: OfflineLoss + Clone>(
    loss: &L,
    rows: &[L::Row],
    train: &TrainConfig,
    (out, resume): (&Path, Option<PathBuf>),
) -> (Vec<f32>, Memory) {
    let policy = match &resume {
        Some(folder) => CausalLm::load(folder, &options(true)).unwrap(),
        None => model(1, true),
    };
    let of_reference = || {
        let groups = ProcessGroups::single();
        let scored = loss
            .has_reference()
            .then(|| offline::reference_logprobs(loss, rows, &model(2, false), 3, &groups).unwrap());
        scored.unwrap_or_default()
    };
    let (train_rows, eval_rows) = (Rows::new(rows, of_reference()), Rows::new(rows, of_reference()));
    let objective = Offline::new(&policy, loss.clone(), train_rows, eval_rows).unwrap();
    let memory = in_run(out, resume, |run| trainer::train(&objective, true, train, run));
    (weights(&policy), memory)
}

fn no_split_changes_the_gradient<L: OfflineLoss + Clone>(name: &str, loss: &L, rows: &[L::Row]) {
    let folder = tempfile::tempdir().unwrap();
    let start = weights(&model(1, false));
    let of_split =
        |size: usize| run(loss, rows, &train(size, 2), (&folder.path().join(size.to_string()), None));
    let (whole, whole_memory) = of_split(8);
    for size in [4, 2, 1] {
        let (split, memory) = of_split(size);
        let difference = relative_difference(&whole, &split, &start);
        assert!(difference < 1e-4, "{name}: split into {size} changes the weights by {difference}");
        for (left, right) in whole_memory.steps.iter().zip(&memory.steps) {
            for (metric, value) in left.0.iter().filter(|(metric, _)| metric != "seconds") {
                let other = right.get(metric).unwrap();
                let difference = (value - other).abs() / value.abs().max(1.0);
                assert!(difference < 1e-5, "{name} {metric}, split into {size}: {value} {other}");
            }
        }
    }
}

fn dpo(text: &str) -> Pairwise<DpoConfig> {
    Pairwise(serde_json::from_str(text).unwrap())
}

#[test]
fn no_split_into_micro_batches_changes_the_gradient_of_pairs() {
    let pairs = pairs();
    for text in [
        "{}",
        r#"{"loss": "ipo"}"#,
        r#"{"loss": ["sigmoid", "sft"], "loss_weights": [1, 0.5]}"#,
        r#"{"loss": "aot"}"#,
        r#"{"loss": "aot_unpaired"}"#,
        r#"{"use_weighting": true}"#,
        r#"{"ld_alpha": 0.3}"#,
        r#"{"reference_free": true, "f_divergence": "js_divergence"}"#,
    ] {
        no_split_changes_the_gradient(text, &dpo(text), &pairs);
    }
    no_split_changes_the_gradient("simpo", &Pairwise(SimpoConfig::default()), &pairs);
    no_split_changes_the_gradient("cpo", &Pairwise(CpoConfig::default()), &pairs);
    let orpo: OrpoConfig = serde_json::from_str(r#"{"nll_tokens": "all"}"#).unwrap();
    no_split_changes_the_gradient("orpo", &Pairwise(orpo), &pairs);
}

#[test]
fn no_split_into_micro_batches_changes_the_gradient_of_single_completions() {
    no_split_changes_the_gradient("kto", &Kto(KtoConfig::default()), &unpaired());
}

#[test]
fn the_first_step_of_a_policy_that_is_its_own_reference_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, loss) = (pairs(), dpo("{}"));
    let policy = model(1, true);
    let scored = || {
        let groups = ProcessGroups::single();
        Rows::new(&pairs, offline::reference_logprobs(&loss, &pairs, &policy, 8, &groups).unwrap())
    };
    let objective = Offline::new(&policy, loss.clone(), scored(), scored()).unwrap();
    let memory = in_run(folder.path(), None, |run| trainer::train(&objective, false, &train(8, 1), run));
    let first = &memory.steps[0];
    // The log-ratios are zero: a loss of ln 2, and draws.
    assert!((first.get("loss").unwrap() - std::f64::consts::LN_2).abs() < 1e-12, "{first:?}");
    assert_eq!(first.get("rewards/accuracies"), Some(0.5));
    assert_eq!(first.get("rewards/margins"), Some(0.0));
}

#[test]
fn every_algorithm_prefers_what_it_is_taught_and_resumes_bit_for_bit() {
    fn check<L: OfflineLoss + Clone>(name: &str, loss: &L, rows: &[L::Row]) {
        let folder = tempfile::tempdir().unwrap();
        let train = TrainConfig { lr: 1e-2, eps: 1e-8, ..train(4, 12) };
        let (whole, memory) = run(loss, rows, &train, (folder.path(), None));
        let (_, last) = memory.evaluations.last().unwrap();
        let margin = last.get("eval/rewards/chosen").unwrap() - last.get("eval/rewards/rejected").unwrap();
        let (_, first) = &memory.evaluations[0];
        assert!(margin > 0.0, "{name}: {last:?}");
        assert!(last.get("eval/loss") < first.get("eval/loss"), "{name}: {first:?} {last:?}");

        let halfway = folder.path().join("checkpoints/step-6");
        let (resumed, again) = run(loss, rows, &train, (&folder.path().join("again"), Some(halfway)));
        assert_eq!(whole, resumed, "{name}");
        let losses = |memory: &Memory| -> Vec<f64> {
            memory.steps.iter().map(|metrics| metrics.get("loss").unwrap()).collect()
        };
        assert_eq!(losses(&memory)[6..], losses(&again), "{name}");
    }
    let pairs = pairs();
    check("dpo", &dpo("{}"), &pairs);
    check("aot", &dpo(r#"{"loss": "aot"}"#), &pairs);
    check("simpo", &Pairwise(SimpoConfig::default()), &pairs);
    check("cpo", &Pairwise(CpoConfig::default()), &pairs);
    check("orpo", &Pairwise(OrpoConfig::default()), &pairs);
    check("kto", &Kto(KtoConfig::default()), &unpaired());
}

#[test]
fn a_completion_without_tokens_is_refused_by_its_number() {
    let mut pairs = pairs();
    let prompt = pairs[2].prompt_length;
    pairs[2].rejected.truncate(prompt);
    let policy = model(1, true);
    let objective = Offline::new(
        &policy,
        Pairwise(SimpoConfig::default()),
        Rows::new(&pairs, Vec::new()),
        Rows::new(&[], Vec::new()),
    );
    let error = objective.err().unwrap().to_string();
    assert!(error.contains("row 3"), "{error}");
}
