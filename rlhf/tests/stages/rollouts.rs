//! Stages on rollouts whose rewards come from scorers: what must not change the result, and what must.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Message, PromptRow};
use gemini::ChunkManager;
use gemini::TrainConfig;
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use rlhf::config::{AdvantageEstimator, AdvantageScale, KlPlace, PpoConfig};
use rlhf::correction::CorrectionMode;
use rlhf::environment::{Environment, NewEpisode, PolicyTurn, Step};
use rlhf::episodes::Turns;
use rlhf::loss::{LossAggMode, PolicyLossKind};
use rlhf::reward_function::{Normalization, RewardFunction, ScoredReply, Scorer, Term};
use rlhf::rollout::RolloutModels;
use rlhf::{Error, on_policy, ppo};

use super::{Memory, STOP, in_run, language_model, options, train, weights, worst};

/// The share of even tokens in a reply.
pub(super) struct EvenTokens;

impl Scorer for EvenTokens {
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
        replies.iter().map(|reply| Ok(share_of_even(&reply.text))).collect()
    }
}

fn share_of_even(text: &str) -> f64 {
    let ids: Vec<i64> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
    ids.iter().filter(|id| *id % 2 == 0).count() as f64 / ids.len().max(1) as f64
}

/// No score for the replies to some prompts.
struct FailsFor(fn(&ScoredReply) -> bool);

impl Scorer for FailsFor {
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
        let of = |reply: &ScoredReply| {
            if (self.0)(reply) {
                Err("the server is down".to_owned())
            } else {
                Ok(share_of_even(&reply.text))
            }
        };
        replies.iter().map(of).collect()
    }
}

/// 1 for every reply to an even prompt: there is nothing to compare.
pub(super) struct EqualForHalf;

impl Scorer for EqualForHalf {
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
        let is_even = |reply: &ScoredReply| reply.answer.as_deref() == Some("even");
        let of = |reply: &ScoredReply| if is_even(reply) { 1.0 } else { share_of_even(&reply.text) };
        replies.iter().map(|reply| Ok(of(reply))).collect()
    }
}

pub(super) fn term(name: &str) -> Term {
    Term { name: name.to_owned(), weight: 1.0, clip: None, normalization: Normalization::None }
}

fn group_settings() -> PpoConfig {
    PpoConfig {
        iterations: 6,
        rollout_batch_size: 4,
        samples_per_prompt: 4,
        epochs: 1,
        mini_batch_size: 8,
        max_new_tokens: 6,
        kl_coef: 0.0,
        advantage_estimator: AdvantageEstimator::Grpo,
        ..PpoConfig::default()
    }
}

pub(super) fn prompts() -> Vec<PromptRow> {
    (0..8)
        .map(|prompt| PromptRow {
            input_ids: vec![3 + prompt, 5],
            messages: vec![Message::user(prompt.to_string())],
            tools: None,
            answer: Some(if prompt % 2 == 0 { "even" } else { "odd" }.to_owned()),
        })
        .collect()
}

/// What a run has beside its settings.
struct Setup<'a> {
    scorer: Box<dyn Scorer>,
    environment: Option<Box<dyn Environment>>,
    resume: Option<PathBuf>,
    micro_batch_size: usize,
    stop_ids: Vec<i64>,
    out: &'a Path,
}

impl<'a> Setup<'a> {
    fn new(scorer: impl Scorer + 'static, out: &'a Path) -> Self {
        let stop_ids = vec![STOP];
        Self { scorer: Box::new(scorer), environment: None, resume: None, micro_batch_size: 4, stop_ids, out }
    }
}

fn run(settings: &PpoConfig, setup: Setup<'_>) -> (Memory, Result<(), Error>, Vec<f32>) {
    let policy = match &setup.resume {
        Some(folder) => CausalLm::load(folder, &options(true)).unwrap(),
        None => language_model(1),
    };
    let reference = language_model(1);
    let prompts = prompts();
    let manager = ChunkManager::unlimited();
    let models = RolloutModels {
        policy: &policy,
        reference: settings.has_reference().then_some(&reference),
        critic: None,
        reward_models: Vec::new(),
        memory: &manager,
    };
    let follow = |_: &PromptRow, _: &[Message], messages: &[Message]| {
        Ok(messages.iter().flat_map(|message| [20, message.content.len() as i64 + 3, 21]).collect())
    };
    let turns = setup.environment.map(|environment| Turns {
        environment: Some(environment),
        max_turns: 3,
        max_tokens: 60,
        follow: &follow,
        next_episode: 0,
    });
    let data = on_policy::Data {
        prompts: &prompts,
        shuffle: true,
        ptx: &[],
        stop_ids: &setup.stop_ids,
        decode: &|ids| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(" "),
        rewards: RewardFunction::new(vec![term("even")], vec![setup.scorer]),
        turns,
    };
    let train = TrainConfig { lr: 5e-3, micro_batch_size: setup.micro_batch_size, ..train() };
    let groups = Arc::new(ProcessGroups::single());
    let mut stage = ppo::Ppo::new(models, data, settings, &train, 3, &groups).unwrap();
    let (memory, outcome) = in_run(setup.out, setup.resume, |run| stage.train(run));
    drop(stage);
    (memory, outcome, weights(&policy))
}

pub(super) fn gain(memory: &Memory) -> f64 {
    let scores = memory.all("objective/scores");
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    mean(&scores[scores.len() - 5..]) - mean(&scores[..5])
}

#[test]
fn every_algorithm_raises_the_score_of_a_scorer() {
    let folder = tempfile::tempdir().unwrap();
    let base = PpoConfig { iterations: 40, epochs: 2, ..group_settings() };
    let of = |estimator| PpoConfig { advantage_estimator: estimator, ..base.clone() };
    let with = |policy_loss| PpoConfig { policy_loss, ..base.clone() };
    let cases = [
        of(AdvantageEstimator::Rloo),
        of(AdvantageEstimator::ReinforcePlusPlus),
        of(AdvantageEstimator::ReinforcePlusPlusBaseline),
        of(AdvantageEstimator::Remax),
        of(AdvantageEstimator::Opo),
        of(AdvantageEstimator::Maxrl),
        of(AdvantageEstimator::PassAtK),
        PpoConfig { advantage_scale: AdvantageScale::Batch, ..base.clone() },
        PpoConfig {
            advantage_scale: AdvantageScale::None,
            loss_agg_mode: LossAggMode::SeqMeanTokenSumNorm,
            ..base.clone()
        },
        with(PolicyLossKind::Gspo),
        with(PolicyLossKind::Cispo),
        with(PolicyLossKind::Gmpo),
        with(PolicyLossKind::Sapo),
        with(PolicyLossKind::DppoTv),
        with(PolicyLossKind::DppoKl),
        with(PolicyLossKind::Gpg),
        PpoConfig { kl_coef: 0.01, kl_place: KlPlace::Loss, kl_importance: true, ..base.clone() },
        PpoConfig { entropy_coef: 0.001, policy_loss: PolicyLossKind::Gspo, ..base.clone() },
    ];
    for (index, settings) in cases.iter().enumerate() {
        let out = folder.path().join(index.to_string());
        let (memory, outcome, _) = run(settings, Setup::new(EvenTokens, &out));
        outcome.unwrap();
        let gain = gain(&memory);
        assert!(
            gain > 0.1,
            "case {index}, {:?} {:?}: {gain}",
            settings.advantage_estimator,
            settings.policy_loss
        );
    }
}

#[test]
fn refills_replace_prompts_without_variance_and_keep_the_number_of_replies() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig { dynamic_sampling: true, ..group_settings() };
    let (memory, outcome, _) = run(&settings, Setup::new(EqualForHalf, folder.path()));
    outcome.unwrap();
    // Half of the prompts teach nothing, so a rollout of four needs refills nearly always.
    assert!(memory.all("rollout/refills").iter().sum::<f64>() > 3.0);
    assert!(memory.all("groups/zero_variance").iter().all(|&share| share > 0.0 && share < 1.0));

    // Without enough rounds, prompts that were set aside fill the rollout.
    let none = PpoConfig { max_refills: 0, ..settings.clone() };
    let out = folder.path().join("none");
    let (memory, outcome, _) = run(&none, Setup::new(EqualForHalf, &out));
    outcome.unwrap();
    assert_eq!(memory.all("rollout/refills"), [0.0; 6]);
}

#[test]
fn a_resumed_run_equals_the_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let refills = PpoConfig { dynamic_sampling: true, ..group_settings() };
    let ahead = PpoConfig { staleness: 1, correction: CorrectionMode::TokenTruncate, ..group_settings() };
    let both = PpoConfig { dynamic_sampling: true, ..ahead.clone() };
    let greedy = PpoConfig { advantage_estimator: AdvantageEstimator::Remax, ..ahead.clone() };
    for (index, settings) in [refills, ahead, both, greedy].iter().enumerate() {
        let out = folder.path().join(index.to_string());
        let (whole, outcome, weights) = run(settings, Setup::new(EqualForHalf, &out));
        outcome.unwrap();
        let again = out.join("again");
        let resume = Some(out.join("checkpoints/step-3"));
        let (resumed, outcome, resumed_weights) =
            run(settings, Setup { resume, ..Setup::new(EqualForHalf, &again) });
        outcome.unwrap();
        assert_eq!(weights, resumed_weights, "case {index}");
        assert_eq!(whole.all("objective/scores")[3..], resumed.all("objective/scores"), "case {index}");
    }
}

#[test]
fn a_rollout_one_step_ahead_was_written_by_the_policy_before() {
    let folder = tempfile::tempdir().unwrap();
    let [on, off] = [0, 1].map(|staleness| {
        let settings = PpoConfig { staleness, correction: CorrectionMode::TokenTruncate, ..group_settings() };
        let out = folder.path().join(staleness.to_string());
        let (memory, outcome, _) = run(&settings, Setup::new(EvenTokens, &out));
        outcome.unwrap();
        memory
    });
    let differences = |memory: &Memory| memory.all("sampling/logp_difference/max");
    assert!(differences(&on).iter().all(|&difference| difference < 1e-5));
    // The first rollout was drawn by the policy that learns from it.
    assert!(differences(&off)[0] < 1e-5);
    assert!(differences(&off)[1..].iter().all(|&difference| difference > 1e-3), "{:?}", differences(&off));
    assert!(on.all("correction/kl").iter().all(|&kl| kl.abs() < 1e-9));
    assert!(off.all("correction/kl")[1..].iter().all(|&kl| kl > 0.0));
}

#[test]
fn replies_without_a_score_are_left_out_and_a_run_without_any_score_ends() {
    let folder = tempfile::tempdir().unwrap();
    let some = FailsFor(|reply| reply.prompt[0].content == "3");
    let (memory, outcome, weights) = run(&group_settings(), Setup::new(some, folder.path()));
    outcome.unwrap();
    let failed = memory.all("rewards/even/failed");
    assert!(
        failed.contains(&0.25) && failed.iter().all(|&share| share == 0.0 || share == 0.25),
        "{failed:?}"
    );
    assert!(memory.messages.iter().any(|message| message.contains("the server is down")));
    let last = memory.messages.last().unwrap();
    assert!(last.contains("replies had no score and taught nothing"), "{last}");
    assert!(weights.iter().all(|weight| weight.is_finite()));

    let out = folder.path().join("none");
    let (memory, outcome, _) = run(&group_settings(), Setup::new(FailsFor(|_| true), &out));
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::NoScores { iterations: 3, .. }), "{error}");
    assert!(error.to_string().contains("the server is down"), "{error}");
    assert_eq!(memory.steps.len(), 2);
    assert!(!out.join("final").exists());

    // A run that is over before that has learned nothing either.
    let short = PpoConfig { iterations: 2, ..group_settings() };
    let out = folder.path().join("short");
    let (_, outcome, _) = run(&short, Setup::new(FailsFor(|_| true), &out));
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::NoScores { iterations: 2, .. }), "{error}");
    assert!(error.to_string().ends_with("see that the [[reward]] entries work"), "{error}");
    assert!(!out.join("final").exists());
}

/// Equal rewards for the even prompts, or none.
struct Equal(bool);

impl Scorer for Equal {
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
        let of = |reply: &ScoredReply| match (reply.answer.as_deref(), self.0) {
            (Some("even"), true) => Ok(0.5),
            (Some("even"), false) => Err("none".to_owned()),
            _ => Ok(share_of_even(&reply.text)),
        };
        replies.iter().map(of).collect()
    }
}

#[test]
fn excluded_replies_change_no_gradient_of_others() {
    // A group without scores, and the same rollout in which its rewards are equal: both teach nothing.
    let folder = tempfile::tempdir().unwrap();
    // The sum over replies: the mean over tokens would count those of equal rewards.
    let settings = PpoConfig { iterations: 1, mini_batch_size: 16, ..group_settings() };
    let [equal, excluded] = [true, false].map(|is_equal| {
        let out = folder.path().join(is_equal.to_string());
        let (memory, outcome, _) = run(&settings, Setup::new(Equal(is_equal), &out));
        outcome.unwrap();
        (memory.all("grad_norm")[0], memory.all("response_length/mean")[0])
    });
    assert_eq!(equal.1, excluded.1, "the same replies");
    // The weights of the others grow by the share of the tokens that are left, and the direction stays.
    assert!(excluded.0 >= equal.0, "{excluded:?} {equal:?}");
}

/// Answers each turn once, with a reward, and is then done.
#[derive(Default)]
struct Echo {
    turns: Vec<(u64, usize)>,
}

impl Environment for Echo {
    fn reset(&mut self, episodes: &[NewEpisode<'_>]) -> Vec<Result<(), String>> {
        self.turns.extend(episodes.iter().map(|episode| (episode.episode, 0)));
        episodes.iter().map(|_| Ok(())).collect()
    }

    fn step(&mut self, turns: &[PolicyTurn<'_>]) -> Vec<Result<Step, String>> {
        let mut answer = |turn: &PolicyTurn<'_>| {
            let (_, count) = self.turns.iter_mut().find(|(episode, _)| *episode == turn.episode).unwrap();
            *count += 1;
            match (*count, turn.episode % 16) {
                (1, 2) => Err("episode 2 is broken".to_owned()),
                (1, _) => Ok(Step { messages: vec![Message::tool("five")], reward: Some(0.25), done: false }),
                _ => Ok(Step { messages: Vec::new(), reward: None, done: true }),
            }
        };
        turns.iter().map(&mut answer).collect()
    }

    fn end(&mut self, episode: u64) {
        self.turns.retain(|(known, _)| *known != episode);
    }
}

#[test]
fn episodes_of_several_turns_are_trained_on_what_the_policy_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig { iterations: 30, ..group_settings() };
    let environment: Option<Box<dyn Environment>> = Some(Box::new(Echo::default()));
    // A third of the tokens end a turn, so that most turns end before their limit.
    let stop_ids = vec![2, 4, 7, 9, 11, 13, 15, 17];
    let setup = Setup { environment, stop_ids, ..Setup::new(EvenTokens, folder.path()) };
    let (memory, outcome, _) = run(&settings, setup);
    outcome.unwrap();
    // Token in, token out: the trainer reads the tokens of the sampler.
    assert!(memory.all("sampling/logp_difference/max").iter().all(|&largest| largest < 1e-5));
    // One of 16 episodes fails after its first turn, unless that was cut, which ends an episode.
    assert!(memory.all("monitor/turns").iter().all(|&turns| turns > 1.0 && turns <= 2.0));
    assert!(memory.all("monitor/excluded").iter().any(|&share| share >= 1.0 / 16.0));
    assert!(gain(&memory) > 0.05, "{:?}", memory.all("objective/scores"));
}

#[test]
fn any_split_into_micro_batches_gives_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let settings = PpoConfig {
        iterations: 2,
        policy_loss: PolicyLossKind::Gspo,
        kl_coef: 0.01,
        kl_place: KlPlace::Loss,
        ..group_settings()
    };
    let [first, second] = [3, 8].map(|micro_batch_size| {
        let out = folder.path().join(micro_batch_size.to_string());
        run(&settings, Setup { micro_batch_size, ..Setup::new(EvenTokens, &out) }).2
    });
    assert!(worst(&first, &second) < 1e-4, "{}", worst(&first, &second));
}
