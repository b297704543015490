//! Generates the replies to prompts: one turn, or several with an [`Environment`] between them.
//!
//! ```text
//!   ids   prompt | turn 1 | what the template puts after it, with the answers | turn 2 | ...
//! ```
//! Token in, token out: the tokens that the policy has written stay as they are, and only what follows them is
//! tokenized ([`Follow`]). So the log-probabilities of the sampler are those of the tokens that are trained.
//!
//! The replicas of the model share the prompts in contiguous ranges. The random draws of a reply depend on the
//! seed and on the index of its prompt among all, so no split changes a reply. All ranks run as many turns as
//! the longest episode of the job.

use std::ops::ControlFlow;

use datasets::{Message, PromptRow};
use inference::generate::{self, Completion, GenerationOptions, GeneratorOptions, RequestIds};
use inference::request::FinishReason;
use inference::sample::SamplingParams;
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::advantage::ScoreSlot;
use crate::environment::{Environment, NewEpisode, PolicyTurn, Step};
use crate::reward_function::RewardFunction;
use crate::rollout::data::{Reply, Rollout};

/// Tokenizes what follows a turn of the policy: the ids that the chat template puts after the turn's last
/// token, with the new turns, up to where the policy writes on. Gets the row, the turns since its prompt (the
/// last one is the policy's) and the new turns.
pub type Follow<'a> = dyn Fn(&PromptRow, &[Message], &[Message]) -> Result<Vec<i64>, Error> + 'a;

/// What replies are generated with.
pub struct Generation<'a> {
    /// The policy.
    pub policy: &'a CausalLm,
    /// The prompts of the training data.
    pub rows: &'a [PromptRow],
    /// The tokens that end a turn.
    pub stop_ids: &'a [i64],
    /// The most tokens of a turn.
    pub max_new_tokens: usize,
    /// Divides the logits.
    pub temperature: f64,
    /// The most replies that are generated at the same time; `None` for all.
    pub max_num_seqs: Option<usize>,
    /// Where the score of a reply is added.
    pub score_slot: ScoreSlot,
    /// Decodes the text of a turn.
    pub decode: &'a dyn Fn(&[i64]) -> String,
    /// The process groups of the job.
    pub groups: &'a ProcessGroups,
}

/// An environment with its limits.
pub struct Turns<'a> {
    /// The environment, on the ranks that score replies ([`RewardFunction::scores_on`]).
    pub environment: Option<Box<dyn Environment>>,
    /// The most turns of the policy in an episode.
    pub max_turns: usize,
    /// The most tokens of an episode, with its prompt: an episode ends when it has no room for another turn.
    pub max_tokens: usize,
    /// Tokenizes what follows a turn.
    pub follow: &'a Follow<'a>,
    /// The number of the next episode of the job, which no earlier one has.
    pub next_episode: u64,
}

/// A prompt that was drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Its row in the training data.
    pub prompt: usize,
    /// The group of its replies.
    pub group: usize,
}

/// An episode under way.
struct Episode {
    /// The index of its prompt among those that were drawn together.
    request: u64,
    /// The number by which the environment knows it.
    number: u64,
    reply: Reply,
    /// The turns since the prompt.
    turns: Vec<Message>,
    is_done: bool,
}

/// What the ranks of one replica are told after a turn.
#[derive(Serialize, Deserialize)]
struct Answers {
    replica: usize,
    steps: Vec<Result<Step, String>>,
}

impl Generation<'_> {
    /// Generates a reply to each drawn prompt and returns all of them on every rank, with the reasons of
    /// episodes that have failed. `seed` gives the seed of a turn; the temperature 0 is greedy. Every rank
    /// calls this with the same draws.
    pub fn replies(
        &self,
        draws: &[Draw],
        temperature: f64,
        seed: &dyn Fn(usize) -> u64,
        mut turns: Option<&mut Turns<'_>>,
    ) -> Result<(Rollout, Vec<String>), Error> {
        let share = self.groups.model_replicas().shard_range(draws.len());
        let first = share.start as u64;
        let base = turns.as_ref().map_or(0, |turns| turns.next_episode);
        let mut episodes: Vec<Episode> = draws[share]
            .iter()
            .zip(first..)
            .map(|(draw, request)| self.begin(*draw, request, base))
            .collect();
        let mut reasons = Vec::new();
        if let Some(turns) = &mut turns {
            turns.next_episode += draws.len() as u64;
            let begun = turns.begin(self.rows, &episodes);
            self.tell(begun, &mut episodes, &mut reasons, turns)?;
        }

        let most = turns.as_ref().map_or(1, |turns| turns.max_turns);
        for turn in 0..most {
            let active: Vec<usize> =
                (0..episodes.len()).filter(|&episode| !episodes[episode].is_done).collect();
            let [left] = self.groups.world().all_reduce_max([active.len() as f64])?;
            if left == 0.0 {
                break;
            }
            self.write_turn(&mut episodes, &active, temperature, seed(turn))?;
            let Some(turns) = &mut turns else { break };
            let asked = turns.step(&episodes, &active);
            self.tell(asked, &mut episodes, &mut reasons, turns)?;
        }

        let mut rollout = Rollout::default();
        for Episode { number, reply, .. } in episodes {
            if let Some(environment) = turns.as_mut().and_then(|turns| turns.environment.as_mut()) {
                environment.end(number);
            }
            rollout.push(self.with_score_slot(reply));
        }
        let mut all = Rollout::default();
        for part in self.groups.model_replicas().all_gather_object(vec![rollout])? {
            all.append(part);
        }
        Ok((all, reasons))
    }

    fn begin(&self, draw: Draw, request: u64, base: u64) -> Episode {
        let ids = self.rows[draw.prompt].input_ids.clone();
        let reply = Reply {
            prompt: draw.prompt,
            group: draw.group,
            prompt_length: ids.len(),
            ids,
            ..Reply::default()
        };
        Episode { request, number: base + request, reply, turns: Vec::new(), is_done: false }
    }

    /// Lets the policy write one turn of each active episode.
    fn write_turn(
        &self,
        episodes: &mut [Episode],
        active: &[usize],
        temperature: f64,
        seed: u64,
    ) -> Result<(), Error> {
        let prompts: Vec<Vec<i64>> =
            active.iter().map(|&episode| episodes[episode].reply.ids.clone()).collect();
        let options = GenerationOptions {
            sampling: SamplingParams { temperature, ..SamplingParams::default() },
            max_new_tokens: self.max_new_tokens,
            stop_ids: self.stop_ids.to_vec(),
            seed,
            request_ids: RequestIds::Given(active.iter().map(|&episode| episodes[episode].request).collect()),
        };
        let max_num_seqs = self.max_num_seqs.unwrap_or(prompts.len());
        let room = GeneratorOptions::for_prompts(self.policy, &prompts, self.max_new_tokens, max_num_seqs);
        let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
        let completions = generate::generate(self.policy, &prompts, &room, &options, on_token)?;
        for (&episode, completion) in active.iter().zip(completions) {
            self.add_turn(&mut episodes[episode], completion);
        }
        Ok(())
    }

    fn add_turn(&self, episode: &mut Episode, completion: Completion) {
        let stopped = completion.finish_reason == FinishReason::Stop;
        let text = (self.decode)(completion.ids.strip_suffix(last(&completion, stopped)).unwrap_or_default());
        let reply = &mut episode.reply;
        let start = reply.ids.len();
        reply.ids.extend(completion.ids);
        reply.written.push(start..reply.ids.len());
        reply.logprobs.extend(completion.logprobs);
        reply.entropy.extend(completion.entropies);
        reply.stopped = stopped;
        // A turn that was cut has no end that another turn could follow.
        episode.is_done |= !stopped;
        episode.turns.push(Message::assistant(text));
    }

    /// Tells all ranks of each replica what its environment answered, and continues or ends the episodes.
    fn tell(
        &self,
        steps: Vec<(usize, Result<Step, String>)>,
        episodes: &mut [Episode],
        reasons: &mut Vec<String>,
        turns: &Turns<'_>,
    ) -> Result<(), Error> {
        let replica = self.groups.model_replicas().rank();
        let asked: Vec<usize> = steps.iter().map(|(episode, _)| *episode).collect();
        let own = RewardFunction::scores_on(self.groups)
            .then(|| Answers { replica, steps: steps.into_iter().map(|(_, step)| step).collect() });
        let all = self.groups.world().all_gather_object(own.into_iter().collect::<Vec<_>>())?;
        for Answers { replica: of, steps } in all {
            reasons.extend(steps.iter().filter_map(|step| step.as_ref().err()).cloned());
            if of == replica {
                for (&episode, step) in asked.iter().zip(steps) {
                    self.go_on(&mut episodes[episode], step, turns, reasons);
                }
            }
        }
        Ok(())
    }

    /// Continues an episode with what its environment answered, or ends it.
    fn go_on(
        &self,
        episode: &mut Episode,
        step: Result<Step, String>,
        turns: &Turns<'_>,
        reasons: &mut Vec<String>,
    ) {
        let Ok(Step { messages, reward, done }) = step else {
            (episode.reply.failed, episode.is_done) = (true, true);
            return;
        };
        let reply = &mut episode.reply;
        let written = reply.written.len();
        if let Some(reward) = reward {
            reply.turn_rewards.push((written.saturating_sub(1), reward));
        }
        episode.is_done |= done || (written > 0 && messages.is_empty());
        if episode.is_done || messages.is_empty() {
            return;
        }
        // The last turn that is allowed has been written: no answer follows it.
        if written == turns.max_turns {
            (episode.is_done, reply.stopped) = (true, false);
            return;
        }
        // An answer that cannot be tokenized fails its episode, and not the run.
        let following = match (turns.follow)(&self.rows[reply.prompt], &episode.turns, &messages) {
            Ok(following) => following,
            Err(error) => {
                reasons.push(error.to_string());
                (reply.failed, episode.is_done) = (true, true);
                return;
            }
        };
        if reply.ids.len() + following.len() + self.max_new_tokens > turns.max_tokens {
            (episode.is_done, reply.stopped) = (true, false);
            return;
        }
        reply.ids.extend(following);
        episode.turns.extend(messages);
    }

    /// A reply that has as many tokens as it may have has no slot after its end, as in TRL, where that slot is
    /// the first padding token.
    fn with_score_slot(&self, reply: Reply) -> Reply {
        let score_slot = self.score_slot.of_replies(&[reply.logprobs.len()], self.max_new_tokens)[0];
        Reply { score_slot, ..reply }
    }
}

/// The token that ended a turn, if one did.
fn last(completion: &Completion, stopped: bool) -> &[i64] {
    let length = completion.ids.len();
    &completion.ids[length - usize::from(stopped && length > 0)..]
}

impl Turns<'_> {
    /// Begins the episodes of this rank's replica.
    fn begin(&mut self, rows: &[PromptRow], episodes: &[Episode]) -> Vec<(usize, Result<Step, String>)> {
        let all = 0..episodes.len();
        let Some(environment) = &mut self.environment else {
            return all.map(|index| (index, Ok(Step::default()))).collect();
        };
        let new: Vec<NewEpisode<'_>> = episodes
            .iter()
            .map(|Episode { number, reply, .. }| {
                let PromptRow { messages, answer, .. } = &rows[reply.prompt];
                NewEpisode { episode: *number, prompt: messages, answer: answer.as_deref() }
            })
            .collect();
        let begun = environment.reset(&new);
        assert_eq!(begun.len(), new.len(), "an environment answers for each episode");
        all.zip(begun).map(|(index, begun)| (index, begun.map(|()| Step::default()))).collect()
    }

    /// Asks the environment what follows the turns that were written.
    fn step(&mut self, episodes: &[Episode], active: &[usize]) -> Vec<(usize, Result<Step, String>)> {
        let Some(environment) = &mut self.environment else {
            return active.iter().map(|&index| (index, Ok(Step::default()))).collect();
        };
        let turns: Vec<PolicyTurn<'_>> = active
            .iter()
            .map(|&index| {
                let Episode { number, turns, .. } = &episodes[index];
                let text = turns.last().map_or("", |turn| turn.content.as_str());
                PolicyTurn { episode: *number, text }
            })
            .collect();
        let steps = environment.step(&turns);
        assert_eq!(steps.len(), turns.len(), "an environment answers each turn");
        active.iter().copied().zip(steps).collect()
    }
}
