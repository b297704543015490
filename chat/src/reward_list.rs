//! The rewards of a run: reward models and the `[[reward]]` entries, as terms of one function.
//!
//! `[ppo] reward_model` is a short form of entries with `kind = "model"` and the weight 1. Reward models come
//! first, then verifiers, programs, servers and judges, in the order of the file. The models are loaded with
//! the others of the stage; everything else becomes a scorer here, on the ranks that score replies.

mod judge;

use std::sync::Arc;

use datasets::PromptRow;
use parallel::ProcessGroups;
use rewards::{Normalize, ProgramLog, Reply, RewardEntry, RewardKind, ScoreError};
use rlhf::reward_function::{Normalization, RewardFunction, ScoredReply, Scorer, Term};

use crate::config::{ConfigError, RunConfig, of_rewards};
use crate::evaluation;

/// A reward model of a run.
pub(crate) struct RewardModel<'a> {
    /// The setting that names it.
    pub(crate) key: &'static str,
    /// Its folder.
    pub(crate) folder: &'a str,
    term: Term,
}

/// The reward models of a run.
pub(crate) fn models(config: &RunConfig) -> Vec<RewardModel<'_>> {
    let short = config.ppo.reward_model.0.iter().enumerate().map(|(index, folder)| {
        let name = if index == 0 { "reward".to_owned() } else { format!("reward_{}", index + 1) };
        let term = Term { name, weight: 1.0, clip: None, normalization: Normalization::None };
        RewardModel { key: "ppo.reward_model", folder, term }
    });
    let listed = config.reward.iter().filter_map(|entry| match &entry.kind {
        RewardKind::Model(model) => {
            Some(RewardModel { key: "reward.model", folder: &model.model, term: term_of(entry) })
        }
        _ => None,
    });
    short.chain(listed).collect()
}

/// The reward function of a run. Programs are started and servers are asked, so that what does not work is
/// known before the first step.
pub(crate) fn function(config: &RunConfig, groups: &ProcessGroups) -> anyhow::Result<RewardFunction> {
    let mut terms: Vec<Term> = models(config).into_iter().map(|model| model.term).collect();
    let of_scorers = || config.reward.iter().filter(|entry| !matches!(entry.kind, RewardKind::Model(_)));
    terms.extend(of_scorers().map(term_of));
    let scorers = if RewardFunction::scores_on(groups) {
        let code = if of_scorers().any(|entry| matches!(entry.kind, RewardKind::Code(_))) {
            allow_code(config)?;
            Some(evaluation::code_runner()?)
        } else {
            None
        };
        of_scorers().map(|entry| scorer(entry, code.as_ref())).collect::<Result<_, _>>()?
    } else {
        Vec::new()
    };
    Ok(RewardFunction::new(terms, scorers))
}

/// Refuses rows without an answer if an entry compares with answers.
pub(crate) fn need_answers(config: &RunConfig, rows: &[PromptRow]) -> Result<(), ConfigError> {
    config.reward.iter().try_for_each(|entry| unreadable_answers(entry, rows).map(drop))
}

/// Refuses rows without an answer, and rewards that can read the answer of no row: no reply would ever have a
/// score. Returns a warning for each reward that cannot read some of them.
pub(crate) fn check_answers(config: &RunConfig, rows: &[PromptRow]) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for entry in &config.reward {
        let unreadable = unreadable_answers(entry, rows)?;
        let Some(first) = unreadable.first() else { continue };
        let (count, total) = (unreadable.len(), rows.len());
        let of_rows = format!("the answers of {count} of {total} rows, the first because {first}");
        if count == total {
            return Err(of_entry(
                entry,
                format!("cannot read {of_rows}: correct them, or take another kind"),
            ));
        }
        warnings.push(format!(
            "warning: `reward.{}` cannot read {of_rows}: replies to these have no score",
            entry.name
        ));
    }
    Ok(warnings)
}

/// Why an entry cannot read the answers of rows. Refuses rows without an answer.
fn unreadable_answers(entry: &RewardEntry, rows: &[PromptRow]) -> Result<Vec<ScoreError>, ConfigError> {
    let Some(check) = rewards::answer_check(entry).map_err(of_rewards)? else { return Ok(Vec::new()) };
    let problems = rows.iter().filter_map(|row| check(row.answer.as_deref()).err());
    let is_missing = |problem: &ScoreError| matches!(problem, ScoreError::NoAnswer);
    let (missing, unreadable): (Vec<ScoreError>, Vec<ScoreError>) = problems.partition(is_missing);
    if missing.is_empty() {
        return Ok(unreadable);
    }
    let message = format!(
        "compares with the answers of the rows, and {} of {} rows have none: give them a column `answer`, or take another \
         kind",
        missing.len(),
        rows.len()
    );
    Err(of_entry(entry, message))
}

fn of_entry(entry: &RewardEntry, message: String) -> ConfigError {
    ConfigError::Value { place: None, key: format!("reward.{}", entry.name), message }
}

/// Refuses to run programs that the model writes unless the user allows it.
fn allow_code(config: &RunConfig) -> Result<(), ConfigError> {
    if config.eval.allow_code_execution {
        return Ok(());
    }
    let message =
        "false: a reward with kind = \"code\" runs programs that the model writes, in a sandbox; set it to \
                   true to allow that"
            .to_owned();
    Err(ConfigError::Value { place: None, key: "eval.allow_code_execution".to_owned(), message })
}

fn term_of(entry: &RewardEntry) -> Term {
    let normalization = match entry.normalize {
        Normalize::None => Normalization::None,
        Normalize::Fixed => {
            Normalization::Fixed { mean: entry.mean.unwrap_or(0.0), std: entry.std.unwrap_or(1.0) }
        }
        Normalize::Running => Normalization::Running,
    };
    Term { name: entry.name.clone(), weight: entry.weight, clip: entry.clip, normalization }
}

fn scorer(
    entry: &RewardEntry,
    code: Option<&Arc<dyn eval::code_execution::CodeRunner + Send + Sync>>,
) -> anyhow::Result<Box<dyn Scorer>> {
    if let RewardKind::Judge(judge) = &entry.kind {
        return Ok(Box::new(judge::Judge::open(&entry.name, judge)?));
    }
    let scorer = rewards::scorer(entry, code.cloned(), &ProgramLog::Stderr)?;
    let scorer = scorer.expect("models and judges are made elsewhere");
    Ok(Box::new(Adapted { name: entry.name.clone(), scorer }))
}

/// A scorer of the crate `rewards` as the loop asks it.
struct Adapted {
    name: String,
    scorer: Box<dyn rewards::Scorer>,
}

impl Scorer for Adapted {
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
        let replies: Vec<Reply<'_>> = replies.iter().map(as_reply).collect();
        let scores = self.scorer.score(&replies).into_iter();
        scores.map(|score| score.map_err(|error| format!("`{}`: {error}", self.name))).collect()
    }
}

fn as_reply(reply: &ScoredReply) -> Reply<'_> {
    Reply {
        prompt: &reply.prompt,
        text: &reply.text,
        answer: reply.answer.as_deref(),
        tokens: reply.tokens,
        stopped: reply.stopped,
    }
}
