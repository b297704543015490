//! The replies that rejection sampling keeps, as rows to train on.
//!
//! A row is the prompt with the reply as its last turn. Only that turn is learned: replies of the assistant
//! that stand in the prompt get the weight 0. The text of a reply is without the token that ended it, because
//! the chat template ends the turn.

use datasets::{Demonstration, Message, PromptRow, Role, table};
use gemini::checkpoint;
use rlhf::best_of::{Candidate, RejectConfig, RejectSummary};
use rlhf::rollout::Rollout;
use rlhf::rollout::data::Layout;
use rlhf::rollout_sampler::Sampled;
use text::number::{counted, metric};

use super::schema::SCHEMA;
use crate::config::RunConfig;
use crate::console::print_stderr;
use crate::output;

/// The rows so far.
pub(super) struct Selection<'a> {
    config: &'a RejectConfig,
    samples_per_prompt: usize,
    prompts: &'a [PromptRow],
    stop_ids: &'a [i64],
    decode: &'a dyn Fn(&[i64]) -> String,
    rows: Vec<Demonstration>,
    scores: Vec<f64>,
    summary: RejectSummary,
}

impl<'a> Selection<'a> {
    /// Begins without a row. Replies are to come in the order of `prompts`.
    pub(super) fn new(
        config: &'a RunConfig,
        prompts: &'a [PromptRow],
        stop_ids: &'a [i64],
        decode: &'a dyn Fn(&[i64]) -> String,
    ) -> Self {
        Self {
            config: &config.reject,
            samples_per_prompt: config.ppo.samples_per_prompt,
            prompts,
            stop_ids,
            decode,
            rows: Vec::new(),
            scores: Vec::new(),
            summary: RejectSummary::default(),
        }
    }

    /// What became of the replies so far.
    pub(super) fn summary(&self) -> &RejectSummary {
        &self.summary
    }

    /// Keeps some of the replies to the next prompts. Behind the last prompt the sampler begins with the
    /// first one again, whose replies are here already.
    pub(super) fn add(&mut self, sampled: &Sampled) -> Result<(), rlhf::Error> {
        let Sampled { rollout, scores, .. } = sampled;
        let layout = rollout.layout();
        let replies: Vec<usize> = (0..rollout.len()).collect();
        let left = self.prompts.len() - self.summary.prompts;
        for replies in replies.chunks(self.samples_per_prompt).take(left) {
            let texts: Vec<String> =
                replies.iter().map(|&reply| self.text(rollout, &layout, reply)).collect();
            let candidates: Vec<Candidate<'_>> = replies
                .iter()
                .zip(&texts)
                .map(|(&reply, text)| Candidate {
                    score: scores[reply],
                    text,
                    stopped: rollout.stopped[reply],
                })
                .collect();
            let kept = self.config.select(&candidates)?;
            self.summary.add(&candidates, &kept);
            let prompt = &self.prompts[rollout.prompts[replies[0]]];
            for index in kept {
                self.rows.push(row(prompt, &texts[index]));
                self.scores.extend(candidates[index].score);
            }
        }
        Ok(())
    }

    /// The text of a reply.
    fn text(&self, rollout: &Rollout, layout: &Layout, reply: usize) -> String {
        let sequence = &rollout.ids[layout.sequences[reply].clone()];
        let ids = &sequence[rollout.prompt_lengths[reply]..];
        (self.decode)(match ids.split_last() {
            Some((last, rest)) if self.stop_ids.contains(last) => rest,
            _ => ids,
        })
    }

    /// Writes the rows and the summary, unless there is no row.
    pub(super) fn write(self, config: &RunConfig) -> anyhow::Result<()> {
        let line = line(&self.summary);
        if self.rows.is_empty() {
            anyhow::bail!("no reply was kept, so nothing is written: {line}");
        }
        checkpoint::write_folder(&config.out, |folder| -> anyhow::Result<()> {
            table::write_scored_records(&folder.join("rows.parquet"), &self.rows, &self.scores)?;
            let summary = format!("{}\n", serde_json::to_string_pretty(&self.summary)?);
            output::write_new(&folder.join("summary.json"), summary.as_bytes())?;
            let settings = config.to_annotated_toml(&SCHEMA)?;
            output::write_new(&folder.join("reject.toml"), settings.as_bytes())?;
            Ok(())
        })?;
        print_stderr(&line);
        print_stderr(&config.out.join("rows.parquet").display().to_string());
        Ok(())
    }
}

/// A prompt with a reply to learn.
fn row(prompt: &PromptRow, text: &str) -> Demonstration {
    let before = prompt
        .messages
        .iter()
        .map(|message| Message { ignore_loss: message.role == Role::Assistant, ..message.clone() });
    let messages = before.chain([Message::assistant(text)]).collect();
    Demonstration::Messages { messages, tools: prompt.tools.clone() }
}

/// The summary in one line.
fn line(summary: &RejectSummary) -> String {
    let RejectSummary { prompts_kept, kept, excluded, truncated, blank, distinct, .. } = summary;
    let prompts = counted(summary.prompts as u64, "prompt");
    let samples = counted(summary.samples as u64, "sample");
    let rows = counted(*kept as u64, "row");
    let mean = |score: Option<f64>| score.map_or_else(|| "–".to_owned(), metric);
    let (all, best) = (mean(summary.mean_score), mean(summary.mean_score_kept));
    format!(
        "{prompts}, {samples}: {rows} of {prompts_kept} prompts; {excluded} without a score, {truncated} cut, \
         {blank} blank; {distinct} distinct; mean score {all}, of the kept ones {best}"
    )
}

#[cfg(test)]
mod tests {
    use rlhf::reward_function::Rewards;
    use rlhf::rollout::Reply;

    use super::*;

    const STOP: i64 = 9;

    /// A reply of two tokens to the first or the second prompt.
    fn reply(prompt: usize, ids: [i64; 2]) -> Reply {
        Reply {
            prompt,
            group: prompt,
            ids: [[1, 2], ids].concat(),
            prompt_length: 2,
            written: std::iter::once(2..4).collect(),
            logprobs: vec![-1.0; 2],
            entropy: vec![1.0; 2],
            stopped: ids[1] == STOP,
            ..Reply::default()
        }
    }

    fn sampled(replies: Vec<Reply>, scores: &[Option<f64>]) -> Sampled {
        let mut rollout = Rollout::default();
        for reply in replies {
            rollout.push(reply);
        }
        let (rewards, scores) = (Rewards::default(), scores.to_vec());
        Sampled { rollout, rewards, scores, greedy: None, refills: 0, zero_variance: 0.0 }
    }

    #[test]
    fn the_reply_alone_is_learned_and_later_rounds_repeat_no_prompt() {
        let turns = [Message::user("a"), Message::assistant("b"), Message::user("c")];
        let prompt = PromptRow { input_ids: vec![1, 2], messages: turns.to_vec(), tools: None, answer: None };
        let prompts = [prompt.clone(), prompt];
        let mut config = RunConfig::default_of(&SCHEMA);
        config.ppo.samples_per_prompt = 2;
        let decode = |ids: &[i64]| format!("{ids:?}");
        let mut selection = Selection::new(&config, &prompts, &[STOP], &decode);
        let first = vec![reply(0, [5, STOP]), reply(0, [6, STOP])];
        selection.add(&sampled(first, &[Some(1.0), Some(2.0)])).unwrap();
        // The second prompt has one reply that was cut, and the first one is here already.
        let second = vec![reply(1, [5, STOP]), reply(1, [6, 7]), reply(0, [8, STOP]), reply(0, [8, STOP])];
        selection.add(&sampled(second, &[Some(-1.0), Some(3.0), Some(9.0), Some(9.0)])).unwrap();

        assert_eq!(selection.scores, [2.0, -1.0]);
        let messages: Vec<&[Message]> = selection
            .rows
            .iter()
            .map(|row| match row {
                Demonstration::Messages { messages, .. } => messages.as_slice(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!([&messages[0][3].content, &messages[1][3].content], ["[6]", "[5]"]);
        let ignored: Vec<bool> = messages[0].iter().map(|message| message.ignore_loss).collect();
        assert_eq!(ignored, [false, true, false, false]);
        let summary = selection.summary();
        assert_eq!((summary.prompts, summary.samples, summary.kept, summary.truncated), (2, 4, 2, 1));
        assert_eq!(
            line(summary),
            "2 prompts, 4 samples: 2 rows of 2 prompts; 0 without a score, 1 cut, 0 blank; 4 distinct; mean \
             score 1.250, of the kept ones 0.5000"
        );
    }
}
