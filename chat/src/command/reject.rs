//! `reject`: rejection sampling. The model replies several times to each prompt, and the replies with high
//! rewards become rows to train on.
//!
//! ```text
//!   prompts           -> samples_per_prompt replies each, and their rewards     rlhf::rollout_sampler
//!   of each prompt    -> the replies that are kept                              rlhf::best_of
//!   the kept replies  -> OUT/rows.parquet (messages, score), OUT/summary.json
//! ```
//! One round of RAFT (Dong et al. 2023, arXiv 2304.06767) is `reject` and then `sft` on its rows. Replies are
//! sampled and scored as in the stages on rollouts, with the same settings. This is a command and no stage:
//! it trains nothing, so it leaves no model, no checkpoint and no curve.
//!
//! The command runs in one process. The seed decides every reply. The folder is written at the end, under a
//! temporary name until it is complete.

mod schema;
mod selection;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Stderr};
use std::path::Path;

use datasets::{PromptRow, Tokenizer};
use gemini::{ChunkManager, checkpoint};
use inference::model_folder::ModelFolder;
use inference::session::{check_vocabulary, stop_ids};
use models::causal_lm::{CausalLm, LoadOptions};
use models::scalar_model::ScalarModel;
use parallel::{LocalRank, ProcessGroups};
use rlhf::best_of::Keep;
use rlhf::config::{AdvantageEstimator, PpoConfig};
use rlhf::episodes::Generation;
use rlhf::rollout::RolloutModels;
use rlhf::rollout::score::Pass;
use rlhf::rollout_sampler::RolloutSampler;
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

use self::schema::SCHEMA;
use self::selection::Selection;
use crate::args::RejectArgs;
use crate::config::{self, ConfigError, Loaded, RunConfig};
use crate::console::print_stderr;
use crate::model_folder::{self, frozen_options};
use crate::output::{check_parent, check_writable};
use crate::reward_models::RewardModels;
use crate::stage::{self, context, rows};
use crate::{device, interrupt, reward_list, session};

/// Samples replies, scores them, and writes the rows of those that are kept.
pub(crate) fn run(arguments: &RejectArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let sets = arguments.overrides.sets();
    let Loaded { config, warnings } = config::load(&arguments.config, &sets, &SCHEMA, &stage::schemas())?;
    check(&config)?;
    check_out(&config.out)?;
    session::prepare(threads.or(config.threads))?;
    for warning in &warnings {
        print_stderr(&format!("warning: {warning}"));
    }

    let folder = model_folder::find(config.model_path(&SCHEMA)?)?;
    let reward_models = RewardModels::find(&config)?;
    let tokenizer = context::tokenizer(&config, &folder)?;
    let prompts = prompts(&config, &folder, &tokenizer, &reward_models)?;

    device::load([config.model.device]);
    let device = device::resolve(config.model.device, LocalRank::SINGLE)?;
    let options = frozen_options(config.model.dtype.kind(), device);
    let policy = folder.causal_lm(&LoadOptions { quantize: config.model.quantize, ..options })?;
    let reward_models = reward_models.load(device)?;

    let stop_ids = stop_ids(&tokenizer, policy.config());
    // A reply with an id that no token has is blank, and no row is made of it.
    let decode = |ids: &[i64]| tokenizer.decode(ids, true).unwrap_or_default();
    let mut selection = Selection::new(&config, &prompts, &stop_ids, &decode);
    let sampling = Sampling {
        config: &config,
        prompts: &prompts,
        policy: &policy,
        reward_models: &reward_models,
        stop_ids: &stop_ids,
        decode: &decode,
    };
    sampling.run(&mut selection)?;
    selection.write(&config)
}

/// Refuses settings with which nothing can be selected.
fn check(config: &RunConfig) -> Result<(), ConfigError> {
    let refuse =
        |key: &str, message: String| Err(ConfigError::Value { place: None, key: key.to_owned(), message });
    if config.environment.is_some() {
        let message = "rows are made of single replies: leave it out, or write it for its stage alone, as \
                       [stage.NAME.environment]";
        return refuse("environment", message.to_owned());
    }
    let (samples, kept) = (config.ppo.samples_per_prompt, config.reject.per_prompt.unwrap_or(1));
    if config.reject.keep == Keep::Best && kept >= samples {
        let message = format!(
            "{samples}: with the best {kept} replies to a prompt all of them are kept: raise this, or take \
             [reject] keep = \"above\""
        );
        return refuse("ppo.samples_per_prompt", message);
    }
    Ok(())
}

/// Refuses a folder in which there is something, or in which nothing can be written.
fn check_out(out: &Path) -> Result<(), ConfigError> {
    let usable = if checkpoint::is_occupied(out) {
        Err("there is something in it already".to_owned())
    } else {
        check_parent(out).and_then(|()| check_writable(out))
    };
    usable.map_err(|problem| ConfigError::BadOut { path: out.to_owned(), problem })?;
    interrupt::register_temp_folder(checkpoint::parent(out));
    Ok(())
}

/// Reads the prompts and checks them against the configurations of the models. Reads no weights.
fn prompts(
    config: &RunConfig,
    folder: &ModelFolder,
    tokenizer: &Tokenizer,
    reward_models: &RewardModels,
) -> anyhow::Result<Vec<PromptRow>> {
    let policy = folder.config()?;
    check_vocabulary(tokenizer, &policy)?;
    let prompts = rows::load_all::<PromptRow>(&config.data.train, tokenizer, &config.data)?;
    rows::refuse_none(&prompts, &SCHEMA)?;
    reward_list::check_answers(config, &prompts.rows)?.iter().for_each(|warning| print_stderr(warning));
    let (longest, room) = (prompts.longest, policy.max_positions() as usize);
    if longest >= room {
        return Err(ConfigError::NoRoom { longest, room }.into());
    }
    let whole = longest.saturating_add(config.ppo.max_new_tokens).min(room);
    let fix = "lower [data] max_length or [ppo] max_new_tokens";
    reward_models.check(&policy, Some(tokenizer), whole, fix)?;
    Ok(prompts.rows)
}

/// What replies are sampled and scored with.
struct Sampling<'a> {
    config: &'a RunConfig,
    prompts: &'a [PromptRow],
    policy: &'a CausalLm,
    reward_models: &'a [ScalarModel],
    stop_ids: &'a [i64],
    decode: &'a dyn Fn(&[i64]) -> String,
}

impl Sampling<'_> {
    /// Samples and scores the replies to all prompts, and passes them on.
    fn run(&self, selection: &mut Selection<'_>) -> anyhow::Result<()> {
        let rounds = rounds(self.prompts.len(), self.config.ppo.rollout_batch_size);
        let mut display = Display::new(rounds.count);
        let outcome = self.run_rounds(&rounds, selection, &mut display);
        display.end(outcome.as_ref().err());
        outcome
    }

    fn run_rounds(
        &self,
        rounds: &Rounds,
        selection: &mut Selection<'_>,
        display: &mut Display,
    ) -> anyhow::Result<()> {
        let groups = ProcessGroups::single();
        let ppo = sampler_settings(&self.config.ppo, rounds.prompts);
        let generation = Generation {
            policy: self.policy,
            rows: self.prompts,
            stop_ids: self.stop_ids,
            max_new_tokens: ppo.max_new_tokens,
            temperature: ppo.temperature,
            max_num_seqs: ppo.rollout_micro_batch_size,
            score_slot: ppo.score_slot,
            decode: self.decode,
            groups: &groups,
        };
        let rewards = reward_list::function(self.config, &groups)?;
        let mut sampler = RolloutSampler::new(&ppo, generation, None, rewards, self.config.seed, false)?;

        let memory = ChunkManager::unlimited();
        let models = RolloutModels {
            policy: self.policy,
            reference: None,
            critic: None,
            reward_models: self.reward_models.iter().collect(),
            memory: &memory,
        };
        let mut pass = Pass::new(&groups, self.config.train.micro_batch_size);
        for round in 1..=rounds.count {
            let mut messages = Vec::new();
            let sampled = sampler.next(round, &models, &mut pass, &mut messages);
            for message in messages {
                display.tell(message);
            }
            selection.add(&sampled?)?;
            display.update(round, selection);
        }
        Ok(())
    }
}

/// The rounds in which all prompts are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounds {
    count: u64,
    /// The prompts of each round.
    prompts: usize,
}

/// The rounds of at most `most` prompts each. All have the same number, so that the last round draws few
/// prompts a second time.
fn rounds(prompts: usize, most: usize) -> Rounds {
    let count = prompts.div_ceil(most).max(1);
    Rounds { count: count as u64, prompts: prompts.div_ceil(count) }
}

/// The settings with which a sampler draws each prompt once, and its replies from the model as it is.
fn sampler_settings(ppo: &PpoConfig, rollout_batch_size: usize) -> PpoConfig {
    PpoConfig {
        rollout_batch_size,
        // Any estimator that needs no further reply.
        advantage_estimator: AdvantageEstimator::ReinforcePlusPlus,
        dynamic_sampling: false,
        staleness: 0,
        ..ppo.clone()
    }
}

/// The progress on stderr.
struct Display {
    progress: Progress<Stderr>,
    /// What was told already: a server that is down is told once.
    told: BTreeSet<String>,
}

impl Display {
    fn new(rounds: u64) -> Self {
        let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
        let mut progress = Progress::new(std::io::stderr(), mode);
        progress.call_steps(SCHEMA.units.step);
        // A closed stderr does not stop the work, here and below.
        let _ = progress.start(SCHEMA.name, rounds);
        Self { progress, told: BTreeSet::new() }
    }

    fn tell(&mut self, message: String) {
        if !self.told.contains(&message) {
            let _ = self.progress.message(&message);
            self.told.insert(message);
        }
    }

    fn update(&mut self, round: u64, selection: &Selection<'_>) {
        let summary = selection.summary();
        let score = summary.mean_score.unwrap_or(f64::NAN);
        let _ = self.progress.update(round, &[("score", score), ("kept", summary.kept as f64)]);
    }

    fn end(mut self, error: Option<&anyhow::Error>) {
        let _ = match error {
            None => self.progress.finish(),
            Some(error) => self.progress.fail(&error.to_string()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_hold_all_prompts_and_few_twice() {
        for (prompts, most, wanted) in
            [(64, 64, (1, 64)), (65, 64, (2, 33)), (10, 4, (3, 4)), (3, 64, (1, 3))]
        {
            let rounds = rounds(prompts, most);
            assert_eq!((rounds.count, rounds.prompts), wanted);
        }
        for prompts in 1..200 {
            let rounds = rounds(prompts, 7);
            let drawn = rounds.count as usize * rounds.prompts;
            let twice = drawn.checked_sub(prompts).unwrap();
            assert!(rounds.prompts <= 7 && twice < rounds.count as usize, "{prompts}");
        }
    }

    #[test]
    fn the_best_of_as_many_replies_as_there_are_is_refused() {
        let mut config = RunConfig::default_of(&SCHEMA);
        assert!(check(&config).is_ok());
        config.reject.per_prompt = Some(8);
        let error = check(&config).unwrap_err().to_string();
        assert!(error.contains("ppo.samples_per_prompt") && error.contains("the best 8"), "{error}");
        config.reject.keep = Keep::Above;
        assert!(check(&config).is_ok());
    }
}
