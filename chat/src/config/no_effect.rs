//! Keys of the run file that have no effect under the other settings of a stage, each with the reason. Keys
//! that a stage never reads are in its [`StageSchema`]. [`super::finding`] decides what becomes of a key
//! that the user has written all the same.

mod ppo;

use gemini::config::Scheduler;
use gemini::placement::PlacementPolicy;
use parallel::pipeline::ScheduleKind;
use rlhf::config::DpoConfig;
use rlhf::distill::DivergenceKind;
use rlhf::loss::preference::{DpoLoss, FDivergence};

use super::section::{ParallelSection, SequenceMode};
use super::stage::{IgnoredKey, StageSchema};
use super::{DeviceSetting, RunConfig};

/// The held-out rows, which the report of a pipeline may read besides the stage.
pub(super) const HELD_OUT: &str = "data.eval";

/// The keys of `[eval]` that say how tasks are asked.
pub(super) const TASK_KEYS: [&str; 9] = [
    "eval.data",
    "eval.include_path",
    "eval.limit",
    "eval.num_fewshot",
    "eval.apply_chat_template",
    "eval.fewshot_in_one_turn",
    "eval.max_gen_toks",
    "eval.allow_code_execution",
    "eval.system_instruction",
];

/// Returns the keys that have no effect on `stage` because of other settings, each with the reason.
pub(super) fn by_setting(config: &RunConfig, stage: &StageSchema) -> Vec<IgnoredKey> {
    let mut keys = by_parallel(&config.parallel);
    keys.push((
        "tokenizer.vocab_size",
        "it is the size of a tokenizer that the part `tokenizer` of a pipeline trains",
    ));
    keys.extend(by_gemini(config));
    keys.extend(by_eval(config, stage));

    if !stage.reads("model.path") {
        let reason = "the base model has the tokenizer that the pipeline trains, with its template";
        keys.extend([("tokenizer.path", reason), ("tokenizer.template", reason)]);
    }
    if stage.reads("ppo") {
        // Online DPO has a reference without a KL penalty.
        let has_penalty = stage.reads("ppo.kl_coef");
        let of_ppo = ppo::by_ppo(&config.ppo).into_iter();
        keys.extend(of_ppo.filter(|(key, _)| has_penalty || *key != "ppo.reference_model"));
    }
    if stage.reads("dpo") {
        keys.extend(by_dpo(&config.dpo));
    }
    if stage.reads("distill") && config.distill.divergence != DivergenceKind::Jsd {
        keys.push(("distill.beta", "only divergence = \"jsd\" weighs two divergences"));
    }

    if config.train.warmup_steps > 0 {
        keys.push(("train.warmup_ratio", "[train] warmup_steps says how many steps warm up"));
    }
    keys.extend(by_scheduler(config.train.scheduler));
    if config.train.steps.is_some() {
        keys.push(("train.epochs", "[train] steps is the length of the run: leave one of the two out"));
    }

    let has_critic = stage.reads("ppo.critic_lr") && config.ppo.advantage_estimator.has_critic();
    let learns = config.train.lr > 0.0 || (has_critic && config.ppo.critic_lr > 0.0);
    if !learns {
        let reason = "with a learning rate of 0 no weight changes";
        let names = [
            "train.scheduler",
            "train.decay_power",
            "train.decay_ratio",
            "train.milestones",
            "train.gamma",
            "train.warmup_steps",
            "train.warmup_ratio",
            "train.min_lr_ratio",
            "train.betas",
            "train.eps",
            "train.weight_decay",
            "train.max_grad_norm",
        ];
        keys.extend(names.map(|key| (key, reason)));
    }

    keys.retain(|(key, _)| stage.reads(key));
    keys
}

/// The keys of schedules of the learning rate that another schedule does not read.
fn by_scheduler(scheduler: Scheduler) -> Vec<IgnoredKey> {
    let without_lowest_rate = match scheduler {
        Scheduler::Constant => Some("scheduler = \"constant\" does not decay"),
        Scheduler::Multistep => Some("scheduler = \"multistep\" ends where its milestones lead to"),
        Scheduler::OneCycle => Some("scheduler = \"one_cycle\" ends at a 250,000th of the rate"),
        _ => None,
    };
    let lowest_rate = without_lowest_rate.map(|reason| ("train.min_lr_ratio", reason));

    let readers = [
        ("train.decay_power", Scheduler::Polynomial, "only scheduler = \"polynomial\" has an exponent"),
        (
            "train.decay_ratio",
            Scheduler::WarmupStableDecay,
            "only scheduler = \"warmup_stable_decay\" reads it",
        ),
        ("train.milestones", Scheduler::Multistep, "only scheduler = \"multistep\" has milestones"),
        ("train.gamma", Scheduler::Multistep, "only scheduler = \"multistep\" has milestones"),
    ];
    let unread = readers.into_iter().filter(|(_, reader, _)| *reader != scheduler);
    lowest_rate.into_iter().chain(unread.map(|(key, _, reason)| (key, reason))).collect()
}

fn by_parallel(parallel: &ParallelSection) -> Vec<IgnoredKey> {
    let mut keys = Vec::new();
    if parallel.auto {
        keys.push(("train.activation_checkpointing", "[parallel] auto chooses it"));
    } else {
        keys.push(("parallel.hardware", "only [parallel] auto = true plans for it"));
    }
    let pipeline = &parallel.pipeline;
    if pipeline.size == 1 {
        let reason = "[parallel.pipeline] size is 1, so no layers are split";
        keys.extend([("parallel.pipeline.schedule", reason), ("parallel.pipeline.chunks", reason)]);
    } else if pipeline.schedule != ScheduleKind::Interleaved {
        keys.push(("parallel.pipeline.chunks", "only schedule = \"interleaved\" has a number of chunks"));
    }
    let sequence = &parallel.sequence;
    if sequence.size == 1 && matches!(sequence.mode, SequenceMode::Ulysses | SequenceMode::Ring) {
        keys.push(("parallel.sequence.mode", "[parallel.sequence] size is 1, so no row is split"));
    }
    keys
}

/// The keys of `[gemini]` beside a placement that does not use them. Those without a budget are refused by
/// [`gemini::GeminiConfig::refused_key`].
fn by_gemini(config: &RunConfig) -> Vec<IgnoredKey> {
    const STAYS: &str = "placement = \"cuda\" moves nothing";
    let gemini = &config.gemini;
    let may_be_cpu = matches!(config.model.device, DeviceSetting::Auto | DeviceSetting::Cpu);
    match gemini.placement {
        PlacementPolicy::Cuda => vec![("gemini.disk_path", STAYS), ("gemini.host_memory", STAYS)],
        PlacementPolicy::Disk => Vec::new(),
        _ if gemini.host_memory.is_some() => Vec::new(),
        PlacementPolicy::Auto | PlacementPolicy::Static if may_be_cpu => Vec::new(),
        _ => vec![(
            "gemini.disk_path",
            "without host_memory or placement = \"disk\" all that leaves the device stays on the host",
        )],
    }
}

fn by_eval(config: &RunConfig, stage: &StageSchema) -> Vec<IgnoredKey> {
    let eval = &config.eval;
    let mut keys = Vec::new();
    if eval.every == 0 && stage.reads(HELD_OUT) {
        keys.push((HELD_OUT, "held-out rows are measured every [eval] every steps, which is 0"));
    }
    let reason = if !stage.reads("eval.tasks") {
        "a reward model answers no tasks"
    } else if eval.tasks.0.is_empty() {
        "[eval] tasks names no task"
    } else if eval.every == 0 {
        "tasks are asked every [eval] every steps, which is 0"
    } else {
        if eval.num_fewshot == Some(0) {
            keys.push(("eval.fewshot_in_one_turn", "with num_fewshot = 0 there are no examples"));
        }
        return keys;
    };
    // A reward may run programs that the model writes.
    let runs_code = stage.reads("reward")
        && config.reward.iter().any(|entry| matches!(entry.kind, rewards::RewardKind::Code(_)));
    let is_read = |key: &&str| runs_code && *key == "eval.allow_code_execution";
    keys.extend(TASK_KEYS.iter().filter(|key| !is_read(key)).map(|&key| (key, reason)));
    keys.push(("eval.tasks", reason));
    if eval.tasks.0.is_empty() && !stage.reads("data.eval") {
        keys.push(("eval.every", "this stage evaluates no rows, and [eval] tasks names no task"));
    }
    keys
}

/// The keys of `[dpo]` that none of its losses reads.
fn by_dpo(dpo: &DpoConfig) -> Vec<IgnoredKey> {
    let has = |loss| dpo.loss.0.contains(&loss);
    let mut keys = Vec::new();
    if !has(DpoLoss::Ipo) {
        keys.push(("dpo.ipo_reduction", "only loss = \"ipo\" divides by the number of tokens or does not"));
    }
    if !has(DpoLoss::Discopop) {
        keys.push(("dpo.discopop_tau", "only loss = \"discopop\" has a temperature"));
    }
    if !has(DpoLoss::Dpop) {
        keys.push(("dpo.dpop_lambda", "only loss = \"dpop\" counts less likely answers"));
    }
    if dpo.f_divergence != FDivergence::AlphaDivergence {
        keys.push(("dpo.f_alpha", "only f_divergence = \"alpha_divergence\" has an order"));
    }
    if dpo.reference_free {
        let reason = "[dpo] reference_free compares the policy with no model";
        keys.extend([("reference.model", reason), ("ppo.reference_model", reason)]);
    }
    keys
}
