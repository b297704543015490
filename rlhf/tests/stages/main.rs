//! Whole stages on a model of a few thousand parameters: what must not change the result, and what must.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

mod distill;
mod offline;
mod online;
mod rollouts;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datasets::{PreferenceRow, PromptRow, SftRow};
use gemini::ChunkManager;
use gemini::TrainConfig;
use gemini::config::Scheduler;
use models::causal_lm::CausalLm;
use models::config::Config;
use models::decoder::LoadOptions;
use models::model_parallel::ModelParallel;
use models::scalar_model::ScalarModel;
use parallel::{ProcessGroups, Segmented};
use rlhf::config::{AdvantageEstimator, OldLogprobs, PpoConfig, RmConfig, Shuffle};
use rlhf::event::{Event, Metrics, Recorder};
use rlhf::reward::Reward;
use rlhf::reward_function::{Normalization, RewardFunction, Term};
use rlhf::rollout::RolloutModels;
use rlhf::run::{StageRun, StepIntervals, TaskEvaluationFn, TaskScores};
use rlhf::sft::Sft;
use rlhf::trainer::Objective;
use rlhf::{Error, on_policy, ppo, reward, sft, trainer};
use tch::{Device, Kind, Tensor};

const VOCABULARY: i64 = 24;
const STOP: i64 = 2;

fn config() -> Config {
    let json = r#"{"model_type": "llama", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "initializer_range": 0.2}"#;
    Config::from_json(json, "config.json").unwrap()
}

fn options(trainable: bool) -> LoadOptions {
    LoadOptions {
        kind: Kind::Float,
        device: Device::Cpu,
        trainable,
        model_parallel: ModelParallel::NONE,
        memory: None,
        quantize: None,
    }
}

fn language_model(seed: u64) -> CausalLm {
    CausalLm::random(config(), seed, &options(true)).unwrap()
}

/// Remembers every row of metrics, the messages, and the samples: prompt, reply and score.
#[derive(Default)]
struct Memory {
    steps: Vec<Metrics>,
    evaluations: Vec<(u64, Metrics)>,
    messages: Vec<String>,
    samples: Vec<(String, String, f64)>,
}

impl Recorder for Memory {
    fn record(&mut self, event: &Event<'_>) -> Result<(), Error> {
        match event {
            Event::Step { metrics, .. } => self.steps.push((*metrics).clone()),
            Event::Evaluated { step, metrics } => self.evaluations.push((*step, (*metrics).clone())),
            Event::Message(text) => self.messages.push((*text).to_owned()),
            Event::Sample { prompt, reply, score, .. } => {
                self.samples.push(((*prompt).to_owned(), (*reply).to_owned(), *score));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Memory {
    fn all(&self, name: &str) -> Vec<f64> {
        self.steps.iter().map(|metrics| metrics.get(name).unwrap()).collect()
    }
}

/// Runs `stage` in `out`, with a checkpoint every three steps, from `resume` if given.
fn in_run(
    out: &Path,
    resume: Option<PathBuf>,
    stage: impl FnOnce(&mut StageRun<'_>) -> Result<(), Error>,
) -> (Memory, Result<(), Error>) {
    in_run_with_tasks(out, resume, None, stage)
}

fn in_run_with_tasks(
    out: &Path,
    resume: Option<PathBuf>,
    evaluate_tasks: Option<&TaskEvaluationFn<'_>>,
    stage: impl FnOnce(&mut StageRun<'_>) -> Result<(), Error>,
) -> (Memory, Result<(), Error>) {
    let eval_steps = if evaluate_tasks.is_some() { 3 } else { 0 };
    in_run_every(eval_steps, out, resume, evaluate_tasks, stage)
}

fn in_run_every(
    eval_steps: u64,
    out: &Path,
    resume: Option<PathBuf>,
    evaluate_tasks: Option<&TaskEvaluationFn<'_>>,
    stage: impl FnOnce(&mut StageRun<'_>) -> Result<(), Error>,
) -> (Memory, Result<(), Error>) {
    std::fs::create_dir_all(out).unwrap();
    let mut memory = Memory::default();
    let (interrupted, save_requested) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut run = StageRun {
        stage: "test",
        out,
        groups: Arc::new(ProcessGroups::single()),
        memory: ChunkManager::unlimited(),
        seed: 5,
        intervals: StepIntervals { save_steps: 3, save_total_limit: 9, logging_steps: 1, eval_steps },
        resume,
        interrupted: &interrupted,
        save_requested: &save_requested,
        paused: &AtomicBool::new(false),
        progress: &|_, _| {},
        recorder: &mut memory,
        save_tokenizer: &|_| Ok(()),
        evaluate_tasks,
    };
    let outcome = stage(&mut run);
    (memory, outcome)
}

/// Rows that count upwards; the first token has no loss.
fn rows() -> Vec<SftRow> {
    (0..10)
        .map(|row| {
            let input_ids: Vec<i64> = (0..4 + row % 5).map(|position| 3 + (row + position) % 20).collect();
            let mut labels = input_ids.clone();
            labels[1] = -100;
            SftRow { input_ids, labels }
        })
        .collect()
}

fn train() -> TrainConfig {
    TrainConfig {
        steps: Some(6),
        micro_batch_size: 4,
        lr: 1e-2,
        scheduler: Scheduler::Constant,
        ..TrainConfig::default()
    }
}

fn weights(model: &impl Segmented) -> Vec<f32> {
    let flat: Vec<Tensor> =
        model.parameters().iter().map(|parameter| parameter.tensor.detach().flatten(0, -1)).collect();
    Vec::<f32>::try_from(Tensor::cat(&flat, 0)).unwrap()
}

fn worst(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

fn run_sft(train: &TrainConfig, out: &Path, resume: Option<PathBuf>) -> (Vec<f32>, Memory) {
    let rows = rows();
    let model = match &resume {
        Some(folder) => CausalLm::load(folder, &options(true)).unwrap(),
        None => language_model(1),
    };
    let objective = Sft::new(&model, &rows, &[], None).unwrap();
    let (memory, outcome) = in_run(out, resume, |run| trainer::train(&objective, true, train, run));
    outcome.unwrap();
    (weights(&model), memory)
}

#[test]
fn sft_learns_and_any_split_into_micro_batches_gives_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let long = TrainConfig { steps: Some(40), ..train() };
    let (full, memory) = run_sft(&long, &folder.path().join("a"), None);
    let losses = memory.all("loss");
    // Ten rows can be learnt by heart; at the start a guess costs about ln 24 = 3.2.
    assert!(losses[0] > 2.0 && losses[39] < 0.7, "{losses:?}");
    for (micro_batch_size, gradient_accumulation_steps) in [(1, 4), (2, 2)] {
        let train = TrainConfig { micro_batch_size, gradient_accumulation_steps, ..long.clone() };
        let (accumulated, _) = run_sft(&train, &folder.path().join(micro_batch_size.to_string()), None);
        // Adam turns a rounding error into a step where a gradient is almost zero: a hundredth of the way
        // moved is allowed.
        assert!(worst(&full, &accumulated) < 4e-3, "{}", worst(&full, &accumulated));
    }
}

#[test]
fn checkpointed_activations_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, _) = run_sft(&train(), &folder.path().join("a"), None);
    let checkpointing = TrainConfig { activation_checkpointing: true, ..train() };
    let (recomputed, _) = run_sft(&checkpointing, &folder.path().join("b"), None);
    assert_eq!(plain, recomputed);
}

#[test]
fn a_resumed_sft_equals_the_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, whole_memory) = run_sft(&train(), folder.path(), None);
    let halfway = folder.path().join("checkpoints/step-3");
    let (resumed, resumed_memory) = run_sft(&train(), &folder.path().join("again"), Some(halfway));
    assert_eq!(whole, resumed);
    assert_eq!(whole_memory.all("loss")[3..], resumed_memory.all("loss"));
}

#[test]
fn packing_changes_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows();
    let first_loss = |packing, name: &str| {
        let model = language_model(1);
        let objective = Sft::new(&model, &rows, &[], packing).unwrap();
        // All ten rows in one step, packed or not.
        let train = TrainConfig { steps: Some(1), micro_batch_size: objective.num_examples(), ..train() };
        let (memory, outcome) =
            in_run(&folder.path().join(name), None, |run| trainer::train(&objective, false, &train, run));
        outcome.unwrap();
        (memory.all("loss")[0], memory.all("grad_norm")[0])
    };
    let (plain, packed) = (first_loss(None, "a"), first_loss(Some(16), "b"));
    assert!((plain.0 - packed.0).abs() < 1e-6 && (plain.1 - packed.1).abs() < 1e-5, "{plain:?} {packed:?}");
}

/// Replies that end in an even token are preferred.
fn pairs() -> Vec<PreferenceRow> {
    (0..12)
        .map(|pair| {
            let prompt = [3 + pair, 4 + pair % 7];
            PreferenceRow {
                chosen: [&prompt[..], &[10, STOP]].concat(),
                rejected: [&prompt[..], &[11, STOP]].concat(),
                prompt_length: 2,
                margin: None,
            }
        })
        .collect()
}

fn run_reward(out: &Path, resume: Option<PathBuf>) -> (ScalarModel, Vec<f32>) {
    let pairs = pairs();
    let model = match &resume {
        Some(folder) => ScalarModel::load(folder, &options(true)).unwrap(),
        None => ScalarModel::random(config(), 2, &options(true)).unwrap(),
    };
    let settings = RmConfig { center_rewards_coefficient: 0.01 };
    let objective = Reward::new(&model, &pairs, &[], &settings).unwrap();
    let (_, outcome) = in_run(out, resume, |run| trainer::train(&objective, true, &train(), run));
    outcome.unwrap();
    let weights = weights(&model);
    (model, weights)
}

#[test]
fn a_reward_model_learns_its_pairs_and_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (model, whole) = run_reward(folder.path(), None);
    let rights = reward::evaluate(&model, &pairs(), 5, &ProcessGroups::single()).unwrap().correct();
    assert_eq!(rights.iter().sum::<f64>(), 12.0);
    let halfway = folder.path().join("checkpoints/step-3");
    let (_, resumed) = run_reward(&folder.path().join("again"), Some(halfway));
    assert_eq!(whole, resumed);
}

#[test]
fn scores_do_not_depend_on_the_batch() {
    let model = ScalarModel::random(config(), 2, &options(false)).unwrap();
    let rows: Vec<Vec<i64>> =
        (1..6).map(|length| (0..length).map(|position| 3 + position).collect()).collect();
    let all: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let together = Vec::<f32>::try_from(reward::score(&model, &all).unwrap()).unwrap();
    for (row, &score) in all.iter().zip(&together) {
        let alone = reward::score(&model, &[row]).unwrap().double_value(&[0]) as f32;
        assert!((alone - score).abs() < 1e-6, "{alone} {score}");
    }
}

/// The reward of one reward model.
fn rewards_of_a_model() -> RewardFunction {
    let term =
        Term { name: "reward".to_owned(), weight: 1.0, clip: None, normalization: Normalization::None };
    RewardFunction::new(vec![term], Vec::new())
}

fn run_ppo(
    settings: &PpoConfig,
    train: &TrainConfig,
    out: &Path,
    reward_model: &ScalarModel,
) -> (Memory, CausalLm) {
    let policy = language_model(1);
    let reference = policy.copy(&options(false)).unwrap();
    let critic =
        settings.advantage_estimator.has_critic().then(|| reward_model.copy(&options(true)).unwrap());
    let prompts: Vec<PromptRow> = (0..8)
        .map(|prompt| PromptRow {
            input_ids: vec![3 + prompt, 5],
            messages: Vec::new(),
            tools: None,
            answer: None,
        })
        .collect();
    let manager = ChunkManager::unlimited();
    let models = RolloutModels {
        policy: &policy,
        reference: settings.has_reference().then_some(&reference),
        critic: critic.as_ref(),
        reward_models: vec![reward_model],
        memory: &manager,
    };
    let data = on_policy::Data {
        prompts: &prompts,
        shuffle: true,
        ptx: &[],
        stop_ids: &[STOP],
        decode: &|ids| format!("{ids:?}"),
        rewards: rewards_of_a_model(),
        turns: None,
    };
    let groups = Arc::new(ProcessGroups::single());
    let mut stage = ppo::Ppo::new(models, data, settings, train, 3, &groups).unwrap();
    let (memory, outcome) = in_run(out, None, |run| stage.train(run));
    outcome.unwrap();
    drop(stage);
    (memory, policy)
}

fn ppo_settings() -> PpoConfig {
    PpoConfig {
        iterations: 25,
        rollout_batch_size: 8,
        samples_per_prompt: 4,
        epochs: 2,
        mini_batch_size: 16,
        max_new_tokens: 5,
        kl_coef: 0.01,
        critic_lr: 1e-2,
        ..PpoConfig::default()
    }
}

#[test]
fn ppo_raises_the_score_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let train = TrainConfig { lr: 5e-3, ..train() };
    let (memory, _) = run_ppo(&ppo_settings(), &train, folder.path(), &reward_model);
    let scores = memory.all("objective/scores");
    let (first, last) = (scores[..3].iter().sum::<f64>() / 3.0, scores[22..].iter().sum::<f64>() / 3.0);
    assert!(last > first + 1.0, "{scores:?}");
    assert!(memory.all("objective/kl")[24] > 0.1, "a policy that moved is at a distance from its reference");
    assert!(folder.path().join("final/model.safetensors").exists());
}

/// A unit is a forward pass over all tokens of prompts and replies: policy, reference, critic and reward
/// model score in one unit each, and policy and critic learn in three units an epoch each, if no prompt is
/// shared.
#[test]
fn replies_to_one_prompt_run_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let reward_model = ScalarModel::random(config(), 2, &options(false)).unwrap();
    let train = TrainConfig { micro_batch_size: 32, ..train() };
    // All replies in one mini-batch, and four mini-batches with two prompts each.
    let cases = [(4, 32, Shuffle::Replies), (4, 8, Shuffle::Prompts), (1, 8, Shuffle::Replies)];
    for (index, (samples_per_prompt, mini_batch_size, shuffle)) in cases.into_iter().enumerate() {
        let settings =
            PpoConfig { iterations: 1, samples_per_prompt, mini_batch_size, shuffle, ..ppo_settings() };
        let out = folder.path().join(index.to_string());
        let (memory, _) = run_ppo(&settings, &train, &out, &reward_model);
        let [tokens, score, update, length] =
            ["tokens", "units/score", "units/update", "response_length/mean"].map(|name| memory.all(name)[0]);
        let replies = length * 8.0 * samples_per_prompt as f64;
        let share = ((tokens - replies) / samples_per_prompt as f64 + replies) / tokens;
        assert!((score - 4.0 * share).abs() < 1e-6, "{score} {share}");
        assert!((update - 12.0 * share).abs() < 1e-6, "{update} {share}");
        assert!(samples_per_prompt == 1 || share < 0.8, "{share}");
    }
}

#[test]
fn the_samplers_logprobs_are_those_of_the_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let reward_model = ScalarModel::random(config(), 2, &options(false)).unwrap();
    let train = TrainConfig { micro_batch_size: 4, ..train() };
    let [trainer, sampler] = [OldLogprobs::Trainer, OldLogprobs::Sampler].map(|old_logprobs| {
        let settings = PpoConfig { iterations: 2, temperature: 0.8, old_logprobs, ..ppo_settings() };
        run_ppo(&settings, &train, &folder.path().join(format!("{old_logprobs:?}")), &reward_model).0
    });
    for name in ["objective/kl", "objective/entropy", "loss/value_avg", "policy/approxkl_avg", "grad_norm"] {
        for (trainer, sampler) in trainer.all(name).iter().zip(sampler.all(name)) {
            assert!(
                (trainer - sampler).abs() < 1e-4 * trainer.abs().max(0.01),
                "{name}: {trainer} {sampler}"
            );
        }
    }
    assert!(
        sampler.all("sampling/logp_difference/max").iter().all(|&largest| largest > 0.0 && largest < 1e-5)
    );
    // The policy runs on four replies instead of all 32.
    let saved = trainer.all("units/score")[0] - sampler.all("units/score")[0];
    assert!(saved > 0.7 * trainer.all("units/score")[0] / 4.0, "{saved}");
}

#[test]
fn the_logged_value_loss_has_no_weight() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let logged = |vf_coef: f64| {
        // One step, before which both critics are the same.
        let settings = PpoConfig { iterations: 1, epochs: 1, mini_batch_size: 32, vf_coef, ..ppo_settings() };
        let out = folder.path().join(vf_coef.to_string());
        run_ppo(&settings, &train(), &out, &reward_model).0.all("loss/value_avg")[0]
    };
    let [half, double, none] = [0.5, 2.0, 0.0].map(logged);
    assert!(half > 0.0 && half == double && half == none, "{half} {double} {none}");
}

/// Without a critic, and with replies to the same prompt instead.
#[test]
fn grpo_and_rloo_raise_the_score_that_they_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let train = TrainConfig { lr: 5e-3, ..train() };
    for estimator in [AdvantageEstimator::Grpo, AdvantageEstimator::Rloo] {
        let settings = PpoConfig { advantage_estimator: estimator, ..ppo_settings() };
        let out = folder.path().join(format!("{estimator:?}"));
        let (memory, _) = run_ppo(&settings, &train, &out, &reward_model);
        let scores = memory.all("objective/scores");
        let (first, last) = (scores[..3].iter().sum::<f64>() / 3.0, scores[22..].iter().sum::<f64>() / 3.0);
        assert!(last > first + 1.0, "{estimator:?}: {scores:?}");
        assert!(
            memory
                .steps
                .iter()
                .all(|row| row.get("loss/value_avg").is_none() && row.get("critic_grad_norm").is_none())
        );
        assert!(out.join("checkpoints").exists() && !out.join("checkpoints/step-24/critic").exists());
    }
}

#[test]
fn the_logged_reward_is_the_one_before_whitening() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let settings = PpoConfig { iterations: 2, kl_coef: 0.0, whiten_rewards: true, ..ppo_settings() };
    let (memory, _) = run_ppo(&settings, &train(), folder.path(), &reward_model);
    // Without a penalty a reply earns its score and nothing else.
    let pairs = memory.all("objective/rlhf_reward").into_iter().zip(memory.all("objective/scores"));
    for (reward, score) in pairs {
        assert!((reward - score).abs() < 1e-5, "{reward} {score}");
    }
}

#[test]
fn a_rollout_of_one_token_makes_no_nan() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let settings = PpoConfig {
        iterations: 2,
        rollout_batch_size: 1,
        samples_per_prompt: 1,
        mini_batch_size: 1,
        max_new_tokens: 1,
        whiten_rewards: true,
        ..ppo_settings()
    };
    let (memory, policy) = run_ppo(&settings, &train(), folder.path(), &reward_model);
    assert!(weights(&policy).iter().all(|weight| weight.is_finite()));
    for (name, value) in memory.steps.iter().flat_map(|metrics| &metrics.0) {
        assert_eq!(value.is_nan(), name == "val/explained_variance", "{name}: {value}");
    }
}

#[test]
fn without_shuffling_the_language_modelling_term_keeps_the_order_of_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (reward_model, _) = run_reward(&folder.path().join("rm"), None);
    let [policy, reference] = [language_model(3), language_model(3)];
    let critic = reward_model.copy(&options(true)).unwrap();
    let prompts = [PromptRow { input_ids: vec![3, 5], messages: Vec::new(), tools: None, answer: None }];
    let (ptx, train) = (rows(), TrainConfig { lr: 0.0, ..train() });
    let settings = PpoConfig {
        iterations: 4,
        rollout_batch_size: 1,
        samples_per_prompt: 1,
        mini_batch_size: 1,
        epochs: 1,
        ptx_coef: 1.0,
        ..ppo_settings()
    };
    let manager = ChunkManager::unlimited();
    let models = RolloutModels {
        policy: &policy,
        reference: settings.has_reference().then_some(&reference),
        critic: Some(&critic),
        reward_models: vec![&reward_model],
        memory: &manager,
    };
    let data = on_policy::Data {
        prompts: &prompts,
        shuffle: false,
        ptx: &ptx,
        stop_ids: &[STOP],
        decode: &|ids| format!("{ids:?}"),
        rewards: rewards_of_a_model(),
        turns: None,
    };
    let groups = Arc::new(ProcessGroups::single());
    let mut stage = ppo::Ppo::new(models, data, &settings, &train, 3, &groups).unwrap();
    let (memory, outcome) = in_run(&folder.path().join("ppo"), None, |run| stage.train(run));
    outcome.unwrap();
    let ptx_losses = memory.all("loss/ptx_avg");
    for (row, ptx_loss) in ptx[..4].iter().zip(ptx_losses) {
        let alone = sft::evaluate(&policy, std::slice::from_ref(row), 1, &groups).unwrap();
        assert!((alone.get("eval/loss").unwrap() - ptx_loss).abs() < 1e-5, "{alone:?} {ptx_loss}");
    }
}

#[test]
fn a_margin_that_is_no_number_is_refused_before_the_first_step() {
    let mut pairs = pairs();
    pairs[1].margin = Some(f64::NAN);
    let model = ScalarModel::random(config(), 1, &options(true)).unwrap();
    let settings = RmConfig::default();
    let error = Reward::new(&model, &pairs, &[], &settings).err().unwrap().to_string();
    assert!(error.starts_with("pair 2 has the margin NaN"), "{error}");
}

#[test]
fn the_first_update_has_ratio_one_and_the_sampler_agrees_with_the_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let reward_model = ScalarModel::random(config(), 2, &options(false)).unwrap();
    let once =
        PpoConfig { iterations: 1, epochs: 1, mini_batch_size: 32, temperature: 0.7, ..ppo_settings() };
    let (memory, _) = run_ppo(&once, &train(), folder.path(), &reward_model);
    // The micro-batches of the update differ from those of the scoring, hence not to the last bit.
    assert!((memory.all("val/ratio")[0] - 1.0).abs() < 1e-6, "{:?}", memory.all("val/ratio"));
    assert!(memory.all("policy/approxkl_avg")[0] < 1e-12);
    assert!(memory.all("objective/kl")[0].abs() < 1e-5);
    assert!(memory.all("sampling/logp_difference/max")[0] < 1e-5);
}

#[test]
fn ppo_is_the_same_for_a_seed_and_for_any_micro_batch() {
    let folder = tempfile::tempdir().unwrap();
    let reward_model = ScalarModel::random(config(), 2, &options(false)).unwrap();
    let settings = PpoConfig { iterations: 3, ..ppo_settings() };
    let run = |micro_batch_size, name: &str| {
        let train = TrainConfig { micro_batch_size, lr: 1e-3, ..train() };
        weights(&run_ppo(&settings, &train, &folder.path().join(name), &reward_model).1)
    };
    let (first, again, micro_batched) = (run(8, "a"), run(8, "b"), run(3, "c"));
    assert_eq!(first, again);
    assert!(worst(&first, &micro_batched) < 1e-4, "{}", worst(&first, &micro_batched));
}

#[test]
fn all_models_must_share_a_vocabulary() {
    let policy = language_model(1);
    let other =
        Config::from_json(&config().to_json().replace("\"vocab_size\": 24", "\"vocab_size\": 25"), "other")
            .unwrap();
    let strange = ScalarModel::random(other, 2, &options(true)).unwrap();
    let manager = ChunkManager::unlimited();
    let models = RolloutModels {
        policy: &policy,
        reference: Some(&policy),
        critic: Some(&strange),
        reward_models: vec![&strange],
        memory: &manager,
    };
    let error = models.check().unwrap_err().to_string();
    assert!(
        error.contains("policy model has a vocabulary of 24 tokens and the critic model of 25"),
        "{error}"
    );
    assert_eq!(VOCABULARY, policy.config().vocab_size());
}

#[test]
fn a_run_that_diverges_says_so_and_leaves_no_final_model() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows();
    let model = language_model(1);
    tch::no_grad(|| {
        let mut weight = model.parameters()[0].tensor.shallow_clone();
        let _ = weight.fill_(f64::NAN);
    });
    let objective = Sft::new(&model, &rows, &[], None).unwrap();
    let (_, outcome) = in_run(folder.path(), None, |run| trainer::train(&objective, true, &train(), run));
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the loss of optimizer step 1 is NaN"), "{error}");
    assert!(!folder.path().join("final").exists());
}

#[test]
fn tasks_are_asked_once_the_model_is_saved_and_their_failure_ends_no_run() {
    let (folder, rows) = (tempfile::tempdir().unwrap(), rows());
    let run = |name: &str, fails: fn(u64) -> Option<Error>| {
        let out = folder.path().join(name);
        let asked = RefCell::new(Vec::new());
        let tasks = |step| {
            let saved = if step == 6 { "final" } else { "checkpoints/step-3" };
            asked.borrow_mut().push((step, out.join(saved).exists()));
            let metrics = Metrics(vec![("eval/sums/acc".to_owned(), 0.5)]);
            let scores = TaskScores { metrics, warnings: vec!["one is missing".to_owned()] };
            fails(step).map_or(Ok(scores), Err)
        };
        let model = language_model(1);
        let objective = Sft::new(&model, &rows, &[], None).unwrap();
        let (memory, outcome) = in_run_with_tasks(&out, None, Some(&tasks), |run| {
            trainer::train(&objective, true, &train(), run)
        });
        (memory, outcome, asked.take())
    };

    let (memory, outcome, asked) =
        run("tolerated", |step| (step == 3).then(|| Error::Tasks("the disk is full".into())));
    outcome.unwrap();
    assert_eq!(asked, [(3, true), (6, true)]);
    assert_eq!(memory.evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [6]);
    assert!(memory.messages[0].contains("the disk is full; step 3 has no scores"), "{:?}", memory.messages);
    assert_eq!(memory.messages[1..], ["warning: one is missing"]);

    let (_, outcome, asked) = run("fatal", |_| Some(Error::TasksOnPart("a rank is gone".into())));
    assert!(matches!(outcome, Err(Error::TasksOnPart(_))));
    assert_eq!(asked, [(3, true)]);
}
