//! Measures the models of a pipeline on held-out rows with the verifier: their replies, exact match, the gain
//! of PPO over SFT as a paired difference by question, and the accuracy of the reward model.

use std::path::{Path, PathBuf};

use datasets::dataset::{EncodedDataset, LoadOptions};
use datasets::{Overlong, PreferenceRow, Prompt, ReadOptions, Tokenizer, table};
use eval::report::{Gain, Reply, RewardModel, Score, Scores};
use eval::statistics::{
    PairedCounts, average_items, clustered_rate, paired_difference, paired_rates, wilson,
};
use models::causal_lm::CausalLm;
use models::scalar_model::ScalarModel;
use parallel::{LocalRank, ProcessGroups};
use tch::{Device, Kind};

use super::final_folder;
use super::replies::{Question, SamplingOptions, replies};
use crate::config::{ConfigError, PipelineConfig};
use crate::console::print_stderr;
use crate::failure::Failure;
use crate::stage::{Stage, ppo, rm};
use crate::{device, model_folder};

/// The number of sampled replies per question.
const SAMPLES: usize = 4;

/// The replies of one model, per question.
pub(super) struct Measured {
    pub(super) greedy: Vec<Vec<Reply>>,
    pub(super) sampled: Vec<Vec<Reply>>,
}

fn heldout_path(config: &PipelineConfig) -> PathBuf {
    config.out.join("data/heldout.parquet")
}

/// The held-out questions. There are none if the pipeline did not generate its data.
pub(super) fn heldout(config: &PipelineConfig) -> anyhow::Result<Vec<Prompt>> {
    let path = heldout_path(config);
    if path.exists() { Ok(table::read_records(&path, None)?) } else { Ok(Vec::new()) }
}

/// Generates the replies of the model of `stage`. Returns `None` if there is no such model or no question.
pub(super) fn measure(
    config: &PipelineConfig,
    stage: &Stage,
    prompts: &[Prompt],
) -> anyhow::Result<Option<Measured>> {
    let folder = final_folder(config, stage);
    if prompts.is_empty() || !folder.exists() {
        return Ok(None);
    }
    print_stderr(&format!("measuring {}", folder.display()));
    let tokenizer = model_folder::tokenizer(&folder, None)?;
    let model = CausalLm::load(&folder, &model_folder::frozen_options(Kind::Float, device(config, stage)?))?;
    let stop_ids = model_folder::stop_ids(&tokenizer, model.config());
    let questions = questions(&tokenizer, prompts, &heldout_path(config))?;

    // A reply that cannot be decoded becomes an error text, which the verifier counts as wrong.
    let decode = |ids: &[i64]| tokenizer.decode(ids, true).unwrap_or_else(|error| format!("<{error}>"));
    let draw = |samples, temperature| {
        let max_new_tokens = config.stages[ppo::STAGE.schema.name].ppo.max_new_tokens;
        let drawing = SamplingOptions { samples, temperature, max_new_tokens, seed: config.seed };
        replies(&model, &questions, drawing, &stop_ids, &decode)
    };
    Ok(Some(Measured { greedy: draw(1, 0.0)?, sampled: draw(SAMPLES, 1.0)? }))
}

/// The device on which the model of `stage` was trained. Only rank 0 writes the report.
fn device(config: &PipelineConfig, stage: &Stage) -> Result<Device, ConfigError> {
    device::resolve(config.stages[stage.schema.name].model.device, LocalRank::SINGLE)
}

/// The questions of `prompts`, which were read from `path`.
fn questions(tokenizer: &Tokenizer, prompts: &[Prompt], path: &Path) -> anyhow::Result<Vec<Question>> {
    prompts
        .iter()
        .map(|prompt| {
            let missing = || Failure::File {
                path: path.to_owned(),
                problem: "a row has no `answer`: remove the folder `data` and run again".to_owned(),
            };
            let answer = prompt.answer.clone().ok_or_else(missing)?;
            Ok(Question { prompt: tokenizer.encode_prompt(&prompt.messages)?, answer })
        })
        .collect()
}

/// The correctness of each reply, per question: 1 for a correct reply, 0 for a wrong one.
pub(super) fn rights(replies: &[Vec<Reply>]) -> Vec<Vec<f64>> {
    let right = |reply: &Reply| f64::from(u8::from(reply.correct));
    replies.iter().map(|replies| replies.iter().map(right).collect()).collect()
}

pub(super) fn scores(measured: &Measured) -> anyhow::Result<Scores> {
    let right = measured.greedy.iter().flatten().filter(|reply| reply.correct).count() as u64;
    let greedy = wilson(right, measured.greedy.len() as u64)?;
    let sampled = sampled_rate(&rights(&measured.sampled))?;
    Ok(Scores { greedy: Some(Score::from(greedy)), sampled: Some(sampled) })
}

/// The rate of right replies, where the replies to one question are not independent.
fn sampled_rate(rights: &[Vec<f64>]) -> anyhow::Result<Score> {
    let replies = rights.iter().enumerate();
    let replies = replies.flat_map(|(question, rights)| rights.iter().map(move |&right| (right, question)));
    let (values, questions): (Vec<f64>, Vec<usize>) = replies.unzip();
    Ok(Score::from(clustered_rate(&values, &questions)?))
}

/// The gain of `after` over `before`, paired by question, each with the correctness of its replies.
pub(super) fn gain(before: &[Vec<f64>], after: &[Vec<f64>]) -> anyhow::Result<Gain> {
    let (before, after) = (average_items(before)?, average_items(after)?);
    // No question can gain or lose more than one point.
    let found = paired_difference(&before, &after)?.estimate.within(-1.0, 1.0);
    let counts = PairedCounts::of(before.iter().copied().zip(after.iter().copied()));
    let (low, high) = match counts {
        Some(counts) => paired_rates(counts, before.len())?,
        None => (found.low, found.high),
    };
    Ok(Gain { mean: found.mean, low, high })
}

/// The accuracy of the reward model on held-out preference pairs.
pub(super) fn reward_model(config: &PipelineConfig) -> anyhow::Result<Option<RewardModel>> {
    let folder = final_folder(config, &rm::STAGE);
    let stage = &config.stages[rm::STAGE.schema.name];
    let mut files = stage.data.eval.0.clone();
    let made = config.out.join("data/heldout_preference.parquet");
    if files.is_empty() && made.exists() {
        files.push(made.display().to_string());
    }
    if files.is_empty() || !folder.exists() {
        return Ok(None);
    }

    let tokenizer = model_folder::tokenizer(&folder, None)?;
    let model =
        ScalarModel::load(&folder, &model_folder::frozen_options(Kind::Float, device(config, &rm::STAGE)?))?;
    let reading = ReadOptions { drop: stage.data.drop.clone(), ..ReadOptions::default() };
    let options = LoadOptions { reading, ..LoadOptions::new(stage.data.max_length, Overlong::Drop) };
    let pairs = EncodedDataset::<PreferenceRow>::load(&files, &tokenizer, &options)?;
    if pairs.counts.kept < pairs.counts.read {
        let left_out = pairs.counts.read - pairs.counts.kept;
        print_stderr(&format!(
            "{left_out} of {} held-out pairs are longer than max_length or have equal answers, and are left out",
            pairs.counts.read
        ));
    }

    let alone = ProcessGroups::single();
    let scores = rlhf::reward::evaluate(&model, &pairs.rows, stage.train.micro_batch_size, &alone)?;
    let rights = scores.correct();
    // A tie, which counts one half in `rights`, is not counted as correct here.
    let right = rights.iter().filter(|&&right| right == 1.0).count() as u64;
    Ok(Some(RewardModel::from(wilson(right, rights.len() as u64)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_and_a_gain_have_a_width_where_no_reply_is_right() {
        let wrong = vec![vec![0.0; SAMPLES]; 1000];
        let rate = sampled_rate(&wrong).unwrap();
        // Wilson's interval of 0 of 1000 ends at z² / (1000 + z²), by hand 3.841459 / 1003.841459.
        assert!((rate.high - 0.003_826_8).abs() < 1e-7 && rate.low == 0.0, "{rate:?}");
        assert_eq!((rate.mean, rate.n), (0.0, 1000));
        let even = gain(&wrong, &wrong).unwrap();
        assert!(
            even.mean == 0.0 && (even.high - rate.high).abs() < 1e-15 && even.low == -even.high,
            "{even:?}"
        );
    }

    #[test]
    fn the_gain_of_sampled_replies_is_paired_by_question_with_students_interval() {
        // By hand: averages 1/2, 0, 1/2 and 1, 1/2, 1/2, so differences 1/2, 1/2, 0 with mean 1/3 and s² =
        // 1/12; t with 2 degrees of freedom is 4.302653, and half the width 4.302653 sqrt(1/36) = 0.717109.
        let before = [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]].map(Vec::from);
        let after = [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]].map(Vec::from);
        let found = gain(&before, &after).unwrap();
        assert!((found.mean - 1.0 / 3.0).abs() < 1e-15);
        assert!((found.low - (1.0 / 3.0 - 0.717_109)).abs() < 1e-6 && found.high == 1.0, "{found:?}");
    }
}
