//! `generate --best-of`: scores the samples of each prompt and writes the one with the highest score.
//!
//! ```text
//!   score = sum of the rewards: reward models, and the entries of a run file     rlhf::reward_function
//!   best  = the sample with the highest score, of equal ones the first           rlhf::best_of
//! ```
//! A sample without a score is never the best one. A row whose samples all have no score has no best reply:
//! it is written with null in place of the reply, and with the reason. Reward models read the ids that the
//! policy has read and written; verifiers, programs and judges get the text of the reply without the token
//! that ended it, and the turns before it. To them a row of `ids`, or a text with `--raw`, is one turn of the
//! user.

use std::ops::Range;

use datasets::{Message, PromptRow};
use gemini::ChunkManager;
use inference::generate::Completion;
use inference::request::FinishReason;
use inference::session::Session;
use models::causal_lm::CausalLm;
use models::scalar_model::ScalarModel;
use parallel::ProcessGroups;
use rewards::{RewardEntry, RewardKind};
use rlhf::best_of::{best, kl_bound};
use rlhf::reward_function::{RewardFunction, Rewards, ScoredReply};
use rlhf::rollout::score::Pass;
use rlhf::rollout::{self, Rollout, RolloutModels};
use serde::Serialize;
use text::number::{counted, metric};

use super::reply::Reply;
use crate::args::{GenerateArgs, SampleArgs};
use crate::config::{self, ConfigError, RunConfig};
use crate::console::print_stderr;
use crate::input::{self, Input, RowInput};
use crate::reward_models::RewardModels;
use crate::{reward_list, stage};

/// What scores the samples. Nothing is loaded yet.
pub(super) struct BestOf {
    config: RunConfig,
    models: RewardModels,
}

/// What scores the samples, ready to do so.
pub(super) struct Scorers {
    models: Vec<ScalarModel>,
    function: RewardFunction,
    groups: ProcessGroups,
    /// The prompts, one for each output row.
    rows: Vec<PromptRow>,
}

/// An output row.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    /// The best sample.
    Best {
        #[serde(flatten)]
        reply: &'a Reply,
        /// Its index among the samples.
        sample: usize,
        score: f64,
        scores: &'a [Option<f64>],
        /// The number of samples without a score.
        unscored: usize,
    },
    /// No sample has a score.
    Nothing {
        ids: (),
        text: (),
        finish_reason: (),
        sample: (),
        score: (),
        scores: &'a [Option<f64>],
        unscored: usize,
        reason: String,
    },
}

impl BestOf {
    /// Finds what scores the samples, if there are samples to choose from. Reads no weights.
    pub(super) fn find(samples: &SampleArgs) -> anyhow::Result<Option<Self>> {
        if samples.best_of.is_none() {
            return Ok(None);
        }
        let mut config = match &samples.config {
            Some(path) => config::load_rewards(path, &stage::schemas())?,
            None => RunConfig::default(),
        };
        config.ppo.reward_model.0.extend_from_slice(&samples.reward_model);
        let counts = |entry: &RewardEntry| entry.weight != 0.0;
        if let Some(path) = &samples.config
            && config.ppo.reward_model.0.is_empty()
            && !config.reward.iter().any(counts)
        {
            let argument = format!("--config {}", path.display());
            let problem = "no reward in it counts: give it [[reward]] entries or [ppo] reward_model in its \
                           common sections, or name a --reward-model";
            return Err(ConfigError::Argument { argument, problem: problem.to_owned() }.into());
        }
        let models = RewardModels::find(&config)?;
        Ok(Some(Self { config, models }))
    }

    /// Loads the reward models and starts what else scores, so that what does not work is known before the
    /// first reply.
    pub(super) fn load(
        &self,
        session: &Session<CausalLm>,
        inputs: &[Input],
        prompts: &[Vec<i64>],
        arguments: &GenerateArgs,
    ) -> anyhow::Result<Scorers> {
        let reads_text = |entry: &RewardEntry| !matches!(entry.kind, RewardKind::Model(_));
        let tokenizer = if self.config.reward.iter().any(reads_text) {
            Some(session.tokenizer()?)
        } else {
            session.tokenizer().ok()
        };
        let policy = session.model.config();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let whole = longest.saturating_add(arguments.sampling.max_new_tokens.get());
        let whole = whole.min(policy.max_positions() as usize);
        self.models.check(policy, tokenizer, whole, "lower --max-new-tokens")?;

        let rows = inputs.iter().zip(prompts).map(|(input, ids)| prompt_row(session, input, ids));
        let rows: Vec<PromptRow> = rows.collect::<Result<_, _>>()?;
        reward_list::need_answers(&self.config, &rows)?;
        let groups = ProcessGroups::single();
        let function = reward_list::function(&self.config, &groups)?;
        Ok(Scorers { models: self.models.load(session.model.device())?, function, groups, rows })
    }
}

impl Scorers {
    /// Writes the best of the samples of each prompt. Returns an error if no row has one.
    pub(super) fn write(
        &mut self,
        session: &Session<CausalLm>,
        completions: Vec<Completion>,
        arguments: &GenerateArgs,
    ) -> anyhow::Result<()> {
        let count = arguments.samples.count();
        let rewards = self.score(session, &completions, arguments)?;
        for reason in self.function.take_reasons() {
            print_stderr(&format!("warning: a sample has no score: {reason}"));
        }

        let replies = Reply::decode_all(session, completions)?;
        let (mut lines, mut best_scores) = (Vec::with_capacity(self.rows.len()), Vec::new());
        let rows = replies.chunks(count).zip(rewards.totals.chunks(count));
        for (row, (samples, scores)) in rows.enumerate() {
            let unscored = scores.iter().filter(|score| score.is_none()).count();
            let found = best(scores)?.and_then(|sample| Some((sample, scores[sample]?)));
            lines.push(match found {
                Some((sample, score)) => {
                    best_scores.push(score);
                    Line::Best { reply: &samples[sample], sample, score, scores, unscored }
                }
                None => nothing(scores, self.reason(&rewards, &(row * count..(row + 1) * count))),
            });
        }
        input::write(&lines, arguments.output.as_deref(), arguments.force)?;

        if best_scores.is_empty() {
            anyhow::bail!("no row has a best reply: no sample has a score");
        }
        print_stderr(&summary(&rewards.totals, &best_scores, count));
        Ok(())
    }

    /// The rewards of all samples.
    fn score(
        &mut self,
        session: &Session<CausalLm>,
        completions: &[Completion],
        arguments: &GenerateArgs,
    ) -> anyhow::Result<Rewards> {
        let count = arguments.samples.count();
        let replies = completions.iter().enumerate();
        let replies =
            replies.map(|(index, completion)| scored_reply(session, &self.rows[index / count], completion));
        let replies: Vec<ScoredReply> = replies.collect::<Result<_, _>>()?;
        self.function.begin(replies, &self.groups);

        let memory = ChunkManager::unlimited();
        let models = RolloutModels {
            policy: &session.model,
            reference: None,
            critic: None,
            reward_models: self.models.iter().collect(),
            memory: &memory,
        };
        let mut pass = Pass::new(&self.groups, arguments.batch_size.get());
        let by_models = models.score_rewards(&mut pass, &self.rollout(completions, count))?;
        let by_scorers = self.function.finish(&self.groups)?;
        Ok(self.function.combine(by_models, by_scorers, completions.len()))
    }

    /// The samples as reward models read them.
    fn rollout(&self, completions: &[Completion], count: usize) -> Rollout {
        let mut rollout = Rollout::default();
        for (index, completion) in completions.iter().enumerate() {
            let row = index / count;
            let prompt = &self.rows[row].input_ids;
            let ids = [prompt.as_slice(), completion.ids.as_slice()].concat();
            rollout.push(rollout::Reply {
                prompt: row,
                group: row,
                prompt_length: prompt.len(),
                written: std::iter::once(prompt.len()..ids.len()).collect(),
                ids,
                logprobs: completion.logprobs.clone(),
                entropy: completion.entropies.clone(),
                stopped: has_stopped(completion),
                ..rollout::Reply::default()
            });
        }
        rollout
    }

    /// Why no sample of a row has a score: the rewards that gave some of them none.
    fn reason(&self, rewards: &Rewards, samples: &Range<usize>) -> String {
        let terms = self.function.terms().iter().zip(&rewards.by_term);
        let failed = terms.filter(|(term, scores)| {
            term.weight != 0.0 && scores[samples.clone()].iter().any(Option::is_none)
        });
        let names: Vec<&str> = failed.map(|(term, _)| term.name.as_str()).collect();
        format!("no sample has a score; there is none from {}", names.join(", "))
    }
}

/// The row of a prompt whose samples have no score.
fn nothing(scores: &[Option<f64>], reason: String) -> Line<'_> {
    let unscored = scores.len();
    Line::Nothing { ids: (), text: (), finish_reason: (), sample: (), score: (), scores, unscored, reason }
}

/// A prompt as scorers see it.
fn prompt_row(session: &Session<CausalLm>, input: &Input, ids: &[i64]) -> Result<PromptRow, datasets::Error> {
    let (messages, tools) = match &input.value {
        RowInput::Messages { messages, tools } => (messages.clone(), tools.clone()),
        RowInput::Text(text) => (vec![Message::user(text)], None),
        RowInput::Ids(ids) => (session.text(ids)?.map(Message::user).into_iter().collect(), None),
        RowInput::Pair { .. } => unreachable!("pairs are not read"),
    };
    Ok(PromptRow { input_ids: ids.to_vec(), messages, tools, answer: input.answer.clone() })
}

/// A sample as scorers see it.
fn scored_reply(
    session: &Session<CausalLm>,
    row: &PromptRow,
    completion: &Completion,
) -> Result<ScoredReply, datasets::Error> {
    let stopped = has_stopped(completion);
    let length = completion.ids.len().saturating_sub(usize::from(stopped));
    Ok(ScoredReply {
        prompt: row.messages.clone(),
        text: session.text(&completion.ids[..length])?.unwrap_or_default(),
        answer: row.answer.clone(),
        tokens: completion.ids.len(),
        stopped,
    })
}

fn has_stopped(completion: &Completion) -> bool {
    completion.finish_reason == FinishReason::Stop
}

/// What the scores say. The bound of the divergence holds where all samples of a prompt were compared.
fn summary(scores: &[Option<f64>], best: &[f64], count: usize) -> String {
    let mean = |scores: &[f64]| metric(scores.iter().sum::<f64>() / scores.len() as f64);
    let scored: Vec<f64> = scores.iter().flatten().copied().collect();
    let means = format!("mean score {}, of all samples {}", mean(best), mean(&scored));
    let (unscored, rows) = (scores.len() - scored.len(), scores.len() / count);
    if unscored == 0 {
        let bound = metric(kl_bound(count));
        return format!(
            "best of {count}: {means}; KL to the distribution of the samples at most {bound} nats"
        );
    }
    let samples = counted(scores.len() as u64, "sample");
    let without = counted((rows - best.len()) as u64, "row");
    format!(
        "best of {count}: {means}; {unscored} of {samples} without a score; {without} without a best reply"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_said_of_rows_that_lack_no_score() {
        // The best are 3 and 1; all have the mean 1. ln 2 - 1/2 = 0.1931.
        let whole = summary(&[Some(3.0), Some(1.0), Some(-1.0), Some(1.0)], &[3.0, 1.0], 2);
        let words =
            "best of 2: mean score 2, of all samples 1; KL to the distribution of the samples at most 0.1931";
        assert!(whole.starts_with(words), "{whole}");
        let part = summary(&[Some(3.0), None, None, None], &[3.0], 2);
        let words = "; 3 of 4 samples without a score; 1 row without a best reply";
        assert!(part.ends_with(words) && !part.contains("KL"), "{part}");
    }

    #[test]
    fn a_row_without_a_best_reply_has_null_in_its_place() {
        let line = nothing(&[None, None], "why".to_owned());
        let row = serde_json::to_value(&line).unwrap();
        let wanted = serde_json::json!({
            "ids": null, "text": null, "finish_reason": null, "sample": null, "score": null,
            "scores": [null, null], "unscored": 2, "reason": "why",
        });
        assert_eq!(row, wanted);
    }
}
