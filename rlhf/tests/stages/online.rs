//! Online DPO and on-policy distillation on a model of a few thousand parameters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::rows::IGNORE_INDEX;
use datasets::{PromptRow, SftRow};
use gemini::{ChunkManager, TrainConfig};
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use rlhf::config::{DistillConfig, DpoConfig, PpoConfig};
use rlhf::distill::Distill;
use rlhf::loss::preference::PreferenceLoss;
use rlhf::on_policy::Data;
use rlhf::online::Settings;
use rlhf::online::distill::Gkd;
use rlhf::online::dpo::OnlineDpo;
use rlhf::reward_function::{RewardFunction, Scorer};
use rlhf::rollout::RolloutModels;
use rlhf::sft::Sft;
use rlhf::{Error, trainer};

use super::rollouts::{EqualForHalf, EvenTokens, gain, prompts, term};
use super::{Memory, STOP, config, in_run, language_model, options, train, weights, worst};

/// A run with its optimizer, its folder, and the checkpoint that it goes on from.
struct Place<'a> {
    train: TrainConfig,
    out: &'a Path,
    resume: Option<PathBuf>,
}

impl<'a> Place<'a> {
    fn new(out: &'a Path) -> Self {
        Self { train: TrainConfig { lr: 5e-3, ..train() }, out, resume: None }
    }

    /// The model that the run begins with.
    fn policy(&self) -> CausalLm {
        match &self.resume {
            Some(folder) => CausalLm::load(folder, &options(true)).unwrap(),
            None => language_model(1),
        }
    }

    /// The same run from step 3 of this one, in another folder.
    fn resumed<'b>(&self, out: &'b Path) -> Place<'b> {
        let resume = Some(self.out.join("checkpoints/step-3"));
        Place { train: self.train.clone(), out, resume }
    }
}

/// With a large eps, an update of `AdamW` is nearly proportional to the gradient, so weights tell of
/// gradients.
fn proportional(micro_batch_size: usize) -> TrainConfig {
    TrainConfig { micro_batch_size, eps: 1.0, lr: 0.1, max_grad_norm: 1e9, ..train() }
}

fn rollouts() -> PpoConfig {
    let settings = PpoConfig {
        iterations: 6,
        rollout_batch_size: 8,
        samples_per_prompt: 4,
        epochs: 1,
        mini_batch_size: 16,
        max_new_tokens: 6,
        ..PpoConfig::default()
    };
    settings.rollout_settings()
}

/// The text of ids, which can be read back.
fn as_text(ids: &[i64]) -> String {
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
}

fn data(prompts: &[PromptRow], rewards: RewardFunction) -> Data<'_> {
    Data { prompts, shuffle: true, ptx: &[], stop_ids: &[STOP], decode: &as_text, rewards, turns: None }
}

/// A rollout without any other model.
fn policy_alone<'a>(policy: &'a CausalLm, memory: &'a Arc<ChunkManager>) -> RolloutModels<'a> {
    RolloutModels { policy, reference: None, critic: None, reward_models: Vec::new(), memory }
}

fn online_dpo(
    settings: &PpoConfig,
    dpo: &str,
    scorer: impl Scorer + 'static,
    place: &Place<'_>,
) -> (Memory, Vec<f32>) {
    let dpo: DpoConfig = serde_json::from_str(dpo).unwrap();
    let (policy, reference, prompts) = (place.policy(), language_model(1), prompts());
    let manager = ChunkManager::unlimited();
    let models = RolloutModels {
        reference: dpo.has_reference().then_some(&reference),
        ..policy_alone(&policy, &manager)
    };
    let rewards = RewardFunction::new(vec![term("even")], vec![Box::new(scorer)]);
    let settings = Settings { rollouts: settings, algorithm: &dpo, train: &place.train, seed: 3 };
    let groups = Arc::new(ProcessGroups::single());
    let data = data(&prompts, rewards);
    let mut stage = OnlineDpo::new(models, data, &settings, &groups).unwrap();
    let (memory, outcome) = in_run(place.out, place.resume.clone(), |run| stage.train(run));
    outcome.unwrap();
    drop(stage);
    (memory, weights(&policy))
}

fn teacher() -> CausalLm {
    CausalLm::random(config(), 2, &options(false)).unwrap()
}

fn gkd(settings: &PpoConfig, distill: &str, place: &Place<'_>) -> (Memory, Vec<f32>) {
    let (distill, settings): (DistillConfig, _) =
        (serde_json::from_str(distill).unwrap(), settings.clone().without_rewards());
    let (policy, teacher, prompts) = (place.policy(), teacher(), prompts());
    let manager = ChunkManager::unlimited();
    let models = policy_alone(&policy, &manager);
    let groups = Arc::new(ProcessGroups::single());
    let data = data(&prompts, RewardFunction::new(Vec::new(), Vec::new()));
    let settings = Settings { rollouts: &settings, algorithm: &distill, train: &place.train, seed: 3 };
    let mut stage = Gkd::new(models, &teacher, data, &settings, &groups).unwrap();
    let (memory, outcome) = in_run(place.out, place.resume.clone(), |run| stage.train(run));
    outcome.unwrap();
    drop(stage);
    (memory, weights(&policy))
}

#[test]
fn online_dpo_raises_the_score_of_a_scorer() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig { iterations: 40, epochs: 2, ..rollouts() };
    for (number, dpo) in
        ["{}", r#"{"loss": "ipo", "beta": 0.5}"#, r#"{"reference_free": true}"#].into_iter().enumerate()
    {
        let out = folder.path().join(number.to_string());
        let (memory, _) = online_dpo(&settings, dpo, EvenTokens, &Place::new(&out));
        assert!(gain(&memory) > 0.05, "{dpo}: {:?}", memory.all("objective/scores"));
        // Eight prompts, of which most have replies that differ at first.
        assert!(memory.all("pairs/count")[0] > 4.0, "{dpo}: {:?}", memory.all("pairs/count"));
    }
}

#[test]
fn the_first_step_of_a_policy_that_is_its_own_reference_is_known() {
    let folder = tempfile::tempdir().unwrap();
    for temperature in [1.0, 0.7] {
        let settings = PpoConfig { iterations: 1, mini_batch_size: 32, temperature, ..rollouts() };
        let out = folder.path().join(temperature.to_string());
        let (memory, _) = online_dpo(&settings, "{}", EvenTokens, &Place::new(&out));
        let of = |name: &str| memory.all(name)[0];
        // The log-ratios are zero up to rounding: a loss of ln 2, and no distance at any temperature.
        assert!((of("loss") - std::f64::consts::LN_2).abs() < 1e-5, "{}", of("loss"));
        assert!(of("rewards/margins").abs() < 1e-5 && of("objective/kl").abs() < 1e-4);
        assert!(of("objective/scores_margin") > 0.0);
        // One pass of the reference, and no other model scores.
        assert!(of("units/score") <= 1.0 + 1e-9, "{}", of("units/score"));
    }
}

#[test]
fn prompts_whose_replies_have_one_reward_make_no_pair() {
    let folder = tempfile::tempdir().unwrap();
    // All eight prompts, of which four have equal rewards. The other four differ as a rule.
    let settings = PpoConfig { iterations: 1, ..rollouts() };
    let (memory, _) = online_dpo(&settings, "{}", EqualForHalf, &Place::new(folder.path()));
    let missing = memory.all("pairs/missing")[0];
    assert!((0.5..1.0).contains(&missing), "{missing}");
    assert!((memory.all("pairs/count")[0] - 8.0 * (1.0 - missing)).abs() < 1e-9);
    assert!((memory.all("groups/zero_variance")[0] - missing).abs() < 1e-9);
}

#[test]
fn no_split_into_micro_batches_changes_a_step_on_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let start = weights(&language_model(1));
    // One rollout, and several steps on it.
    let settings = PpoConfig { iterations: 1, epochs: 2, ..rollouts() };
    for (number, dpo) in ["{}", r#"{"loss": "aot"}"#, r#"{"use_weighting": true}"#, r#"{"ld_alpha": 0.3}"#]
        .into_iter()
        .enumerate()
    {
        let of_split = |size: usize| {
            let out = folder.path().join(format!("{number}-{size}"));
            let place = Place { train: proportional(size), ..Place::new(&out) };
            online_dpo(&settings, dpo, EvenTokens, &place)
        };
        let (whole, all) = of_split(4);
        for size in [3, 1] {
            let (split, weights) = of_split(size);
            let difference = worst(&all, &weights) / worst(&all, &start);
            assert!(difference < 1e-4, "{dpo}, {size}: {difference}");
            for name in ["loss", "grad_norm", "rewards/margins"] {
                let (left, right) = (whole.all(name)[0], split.all(name)[0]);
                assert!((left - right).abs() < 1e-5, "{dpo}, {size}, {name}: {left} {right}");
            }
        }
    }
}

#[test]
fn a_resumed_online_dpo_equals_the_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = PpoConfig { staleness: 1, ..rollouts() };
    let refilled = PpoConfig { dynamic_sampling: true, ..ahead.clone() };
    for (number, settings) in [rollouts(), ahead, refilled].iter().enumerate() {
        let (out, again) =
            (folder.path().join(number.to_string()), folder.path().join(format!("{number}-b")));
        let place = Place::new(&out);
        let (whole, weights) = online_dpo(settings, "{}", EqualForHalf, &place);
        let (resumed, resumed_weights) = online_dpo(settings, "{}", EqualForHalf, &place.resumed(&again));
        assert_eq!(weights, resumed_weights, "case {number}");
        assert_eq!(whole.all("objective/scores")[3..], resumed.all("objective/scores"), "case {number}");
        assert_eq!(whole.all("objective/kl")[3..], resumed.all("objective/kl"), "case {number}");
    }
}

#[test]
fn a_student_comes_nearer_to_its_teacher_on_its_own_replies() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig { iterations: 80, samples_per_prompt: 1, mini_batch_size: 8, ..rollouts() };
    for (number, distill) in
        [r#"{"divergence": "reverse_kl"}"#, r#"{"divergence": "forward_kl"}"#, r#"{"divergence": "jsd"}"#]
            .into_iter()
            .enumerate()
    {
        let out = folder.path().join(number.to_string());
        let place = Place { train: TrainConfig { lr: 1e-2, ..train() }, ..Place::new(&out) };
        let (memory, _) = gkd(&settings, distill, &place);
        let losses = memory.all("loss");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[75..]) < 0.6 * mean(&losses[..5]), "{distill}: {losses:?}");
    }
}

#[test]
fn an_algorithm_without_rewards_has_no_metrics_of_scores() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig { iterations: 1, ..rollouts() };
    let (memory, _) = gkd(&settings, "{}", &Place::new(folder.path()));
    let metrics = &memory.steps[0];
    for (name, number) in &metrics.0 {
        let is_of_scores =
            ["scores", "reward", "zero_variance", "correlation"].iter().any(|word| name.contains(word));
        assert!(!is_of_scores && number.is_finite(), "{name}: {number}");
    }
    assert!(metrics.get("response_length/mean").is_some() && metrics.get("objective/entropy").is_some());
    // No model but the teacher runs beside the student, and the teacher runs in the steps.
    assert_eq!(metrics.get("units/score"), Some(0.0));
    assert!(memory.samples.len() == 3 && memory.samples.iter().all(|(.., score)| score.is_nan()));
}

#[test]
fn a_step_on_own_replies_is_the_step_of_distillation_on_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let train = TrainConfig { steps: Some(1), ..proportional(3) };
    let start = weights(&language_model(1));
    let settings = PpoConfig {
        iterations: 1,
        rollout_batch_size: 3,
        samples_per_prompt: 1,
        mini_batch_size: 3,
        ..rollouts()
    };
    for (number, text) in
        [r#"{"divergence": "reverse_kl"}"#, r#"{"top_k": 4, "temperature": 2, "nll_coef": 0.5}"#]
            .into_iter()
            .enumerate()
    {
        let [online, offline] = ["a", "b"].map(|name| folder.path().join(format!("{number}-{name}")));
        let place = Place { train: train.clone(), ..Place::new(&online) };
        let (memory, on_policy) = gkd(&settings, text, &place);

        // All three replies are logged.
        let ids =
            |text: &String| -> Vec<i64> { text.split_whitespace().map(|id| id.parse().unwrap()).collect() };
        let row = |(prompt, reply, _): &(String, String, f64)| {
            let (prompt, reply) = (ids(prompt), ids(reply));
            let labels = [vec![IGNORE_INDEX; prompt.len()], reply.clone()].concat();
            SftRow { input_ids: [prompt, reply].concat(), labels }
        };
        let rows: Vec<SftRow> = memory.samples.iter().map(row).collect();
        assert_eq!(rows.len(), 3);
        let (student, teacher) = (language_model(1), teacher());
        let distill: DistillConfig = serde_json::from_str(text).unwrap();
        let sft = Sft::new(&student, &rows, &[], None).unwrap();
        let objective = Distill::new(sft, &teacher, &distill).unwrap();
        let (given, outcome) = in_run(&offline, None, |run| trainer::train(&objective, false, &train, run));
        outcome.unwrap();
        // The rows of a step stand in another order, which costs rounding.
        for name in ["loss", "grad_norm"] {
            let (left, right) = (memory.all(name)[0], given.all(name)[0]);
            assert!((left - right).abs() < 1e-6 * right, "{text}, {name}: {left} {right}");
        }
        let difference = worst(&on_policy, &weights(&student)) / worst(&on_policy, &start);
        assert!(difference < 1e-5, "{text}: {difference}");
    }
}

#[test]
fn no_split_into_micro_batches_changes_a_step_on_own_replies() {
    let folder = tempfile::tempdir().unwrap();
    let start = weights(&language_model(1));
    let settings = PpoConfig { iterations: 1, epochs: 2, ..rollouts() };
    for (number, distill) in
        ["{}", r#"{"divergence": "jsd", "beta": 0.2, "top_k": 3}"#].into_iter().enumerate()
    {
        let of_split = |size: usize| {
            let out = folder.path().join(format!("{number}-{size}"));
            gkd(&settings, distill, &Place { train: proportional(size), ..Place::new(&out) })
        };
        let (whole, all) = of_split(16);
        for size in [5, 1] {
            let (split, weights) = of_split(size);
            let difference = worst(&all, &weights) / worst(&all, &start);
            assert!(difference < 1e-4, "{distill}, {size}: {difference}");
            let (left, right) = (whole.all("loss")[0], split.all("loss")[0]);
            assert!((left - right).abs() < 1e-5, "{distill}, {size}: {left} {right}");
        }
    }
}

#[test]
fn a_resumed_distillation_equals_the_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (number, settings) in [rollouts(), PpoConfig { staleness: 1, ..rollouts() }].iter().enumerate() {
        let (out, again) =
            (folder.path().join(number.to_string()), folder.path().join(format!("{number}-b")));
        let place = Place::new(&out);
        let (whole, weights) = gkd(settings, "{}", &place);
        let (resumed, resumed_weights) = gkd(settings, "{}", &place.resumed(&again));
        assert_eq!(weights, resumed_weights, "case {number}");
        assert_eq!(whole.all("loss")[3..], resumed.all("loss"), "case {number}");
    }
}

#[test]
fn a_teacher_that_does_not_fit_is_refused() {
    let refusal = |teacher: &CausalLm, distill: &DistillConfig| -> Error {
        let (policy, prompts, manager) = (language_model(1), prompts(), ChunkManager::unlimited());
        let models = policy_alone(&policy, &manager);
        let rollouts = rollouts().without_rewards();
        let settings = Settings { rollouts: &rollouts, algorithm: distill, train: &train(), seed: 3 };
        let groups = Arc::new(ProcessGroups::single());
        let data = data(&prompts, RewardFunction::new(Vec::new(), Vec::new()));
        Gkd::new(models, teacher, data, &settings, &groups).err().unwrap()
    };
    let mut other = config();
    other.set("vocab_size", 25.into()).unwrap();
    let other = CausalLm::random(other, 2, &options(false)).unwrap();
    let message = refusal(&other, &DistillConfig::default()).to_string();
    assert!(message.contains("24") && message.contains("25") && message.contains("teacher"), "{message}");
    let all = DistillConfig { top_k: Some(24), ..DistillConfig::default() };
    let message = refusal(&teacher(), &all).to_string();
    assert!(message.contains("[distill] top_k = 24: must be below the 24 tokens"), "{message}");
}
