//! The final report of a pipeline. It evaluates every model on held-out rows with the verifier, not with the
//! reward model.
//!
//! Exact match is measured with greedy decoding and with four sampled replies per question at temperature 1.
//! The gain of PPO over SFT is a paired difference by question. The curves come from the `metrics.jsonl` of
//! the stages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use datasets::dataset::{EncodedDataset, LoadOptions};
use datasets::{Overlong, PreferenceRow, Prompt, ReadOptions, Tokenizer, table};
use eval::report::{
    Benchmarks, Curve, Gain, PerModel, Reply, Report, RewardModel, Sample, Score, Scores, Seconds,
};
use eval::statistics::{
    PairedCounts, average_items, clustered_rate, paired_difference, paired_rates, wilson,
};
use models::causal_lm::CausalLm;
use models::config::Config;
use models::scalar_model::ScalarModel;
use parallel::{LocalRank, ProcessGroups, regular_file};
use serde_json::{Map, Value, json};
use tch::{Device, Kind};

use crate::config::section::PipelineStep;
use crate::config::{ConfigError, PipelineConfig};
use crate::console::print_stderr;
use crate::evaluation::output::LARGEST_RESULTS;
use crate::failure::Failure;
use crate::record::LARGEST_ROWS;
use crate::replies::{Question, SamplingOptions, replies};
use crate::stage::{self, Stage, base, ppo, rm, sft};
use crate::{device, model_folder};

/// The number of sampled replies per question.
const SAMPLES: usize = 4;

/// The maximum number of questions whose replies are shown side by side.
const SHOWN: usize = 16;

/// The replies of one model, per question.
struct Measured {
    greedy: Vec<Vec<Reply>>,
    sampled: Vec<Vec<Reply>>,
}

/// Evaluates every model of the pipeline and writes `report.md`, `report.html` and `report.json`.
pub(crate) fn write(
    config: &PipelineConfig,
    seconds: &BTreeMap<String, f64>,
    command: &str,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let prompts = heldout(config)?;
    let [base, sft, ppo] =
        [&base::STAGE, &sft::STAGE, &ppo::STAGE].map(|stage| measure(config, stage, &prompts));
    let models = PerModel { base: base?, sft: sft?, ppo: ppo? };

    let mut report = Report {
        title: "From a base model to PPO".to_owned(),
        command: command.to_owned(),
        settings: settings(config)?,
        machine: machine(),
        exact_match: PerModel {
            base: scores(models.base.as_ref())?,
            sft: scores(models.sft.as_ref())?,
            ppo: scores(models.ppo.as_ref())?,
        },
        reward_model: reward_model(config)?,
        kl: last_metric(config, &ppo::STAGE, "objective/kl")?,
        benchmarks: benchmarks(config)?,
        curves: curves(config)?,
        samples: samples(&prompts, &models),
        ..Report::default()
    };

    if let (Some(sft), Some(ppo)) = (&models.sft, &models.ppo) {
        report.paired_gain = Some(gain(&rights(&sft.sampled), &rights(&ppo.sampled))?);
        report.paired_gain_greedy = Some(gain(&rights(&sft.greedy), &rights(&ppo.greedy))?);
    }

    report.seconds = stage_seconds(seconds, started.elapsed().as_secs_f64());
    report.peak_rss_bytes = Some(parallel::memory::peak_rss_bytes());
    eval::report::write(&report, &config.out)?;
    summary(&report);
    Ok(())
}

/// The results of the part `eval`, if the pipeline has it.
fn benchmarks(config: &PipelineConfig) -> anyhow::Result<Option<Benchmarks>> {
    if !config.steps.contains(&PipelineStep::Eval) {
        return Ok(None);
    }
    let path = config.out.join("eval/results.json");
    let damaged = |problem: String| Failure::File { path: path.clone(), problem };
    let text = regular_file::read_to_string(&path, LARGEST_RESULTS);
    let text = text.map_err(|source| damaged(source.to_string()))?;
    let results = serde_json::from_str(&text).map_err(|source| damaged(source.to_string()))?;
    Ok(Some(Benchmarks { report: "eval/report.html".to_owned(), results }))
}

fn heldout_path(config: &PipelineConfig) -> PathBuf {
    config.out.join("data/heldout.parquet")
}

/// The held-out questions. There are none if the pipeline did not generate its data.
fn heldout(config: &PipelineConfig) -> anyhow::Result<Vec<Prompt>> {
    let path = heldout_path(config);
    if path.exists() { Ok(table::read_records(&path, None)?) } else { Ok(Vec::new()) }
}

fn final_folder(config: &PipelineConfig, stage: &Stage) -> PathBuf {
    config.out.join(stage.schema.name).join("final")
}

/// Generates the replies of the model of `stage`. Returns `None` if there is no such model or no question.
fn measure(config: &PipelineConfig, stage: &Stage, prompts: &[Prompt]) -> anyhow::Result<Option<Measured>> {
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
fn rights(replies: &[Vec<Reply>]) -> Vec<Vec<f64>> {
    let right = |reply: &Reply| f64::from(u8::from(reply.correct));
    replies.iter().map(|replies| replies.iter().map(right).collect()).collect()
}

fn scores(measured: Option<&Measured>) -> anyhow::Result<Option<Scores>> {
    let Some(measured) = measured else { return Ok(None) };
    let right = measured.greedy.iter().flatten().filter(|reply| reply.correct).count() as u64;
    let greedy = wilson(right, measured.greedy.len() as u64)?;
    let sampled = sampled_rate(&rights(&measured.sampled))?;
    Ok(Some(Scores { greedy: Some(Score::from(greedy)), sampled: Some(sampled) }))
}

/// The rate of right replies, where the replies to one question are not independent.
fn sampled_rate(rights: &[Vec<f64>]) -> anyhow::Result<Score> {
    let replies = rights.iter().enumerate();
    let replies = replies.flat_map(|(question, rights)| rights.iter().map(move |&right| (right, question)));
    let (values, questions): (Vec<f64>, Vec<usize>) = replies.unzip();
    Ok(Score::from(clustered_rate(&values, &questions)?))
}

/// The gain of `after` over `before`, paired by question, each with the correctness of its replies.
fn gain(before: &[Vec<f64>], after: &[Vec<f64>]) -> anyhow::Result<Gain> {
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
fn reward_model(config: &PipelineConfig) -> anyhow::Result<Option<RewardModel>> {
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
    let estimate = wilson(right, rights.len() as u64)?;
    Ok(Some(RewardModel {
        accuracy: estimate.mean,
        low: estimate.low,
        high: estimate.high,
        n: estimate.n as u64,
    }))
}

/// The rows of a stage's `metrics.jsonl`.
fn metrics(config: &PipelineConfig, stage: &Stage) -> anyhow::Result<Vec<Value>> {
    let path = config.out.join(stage.schema.name).join("metrics.jsonl");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let damaged = |problem: String| Failure::File { path: path.clone(), problem };
    let text = regular_file::read_to_string(&path, LARGEST_ROWS);
    let text = text.map_err(|source| damaged(source.to_string()))?;
    let row = |(line, text): (usize, &str)| {
        serde_json::from_str(text).map_err(|source| damaged(format!("line {}: {source}", line + 1)).into())
    };
    text.lines().enumerate().map(row).collect()
}

/// The values of a metric over the steps of a stage, as pairs of step and value.
fn points(config: &PipelineConfig, stage: &Stage, metric: &str) -> anyhow::Result<Vec<(f64, f64)>> {
    let point = |row: &Value| Some((row["step"].as_f64()?, row[metric].as_f64()?));
    Ok(metrics(config, stage)?.iter().filter_map(point).collect())
}

fn last_metric(config: &PipelineConfig, stage: &Stage, metric: &str) -> anyhow::Result<Option<f64>> {
    Ok(points(config, stage, metric)?.last().map(|&(_, value)| value))
}

fn curves(config: &PipelineConfig) -> anyhow::Result<Vec<Curve>> {
    let mut curves = Vec::new();
    for stage in stage::ALL {
        for &metric in stage.curves {
            let points = points(config, stage, metric)?;
            if points.len() > 1 {
                curves.push(Curve { stage: stage.schema.name.to_owned(), metric: metric.to_owned(), points });
            }
        }
    }
    Ok(curves)
}

/// Questions spread evenly over the held-out rows, with the greedy reply of each model.
fn samples(prompts: &[Prompt], models: &PerModel<Measured>) -> Vec<Sample> {
    let every = prompts.len().div_ceil(SHOWN).max(1);
    let reply =
        |model: &Option<Measured>, row: usize| model.as_ref().map(|model| model.greedy[row][0].clone());
    let turns = |prompt: &Prompt| {
        prompt.messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join(" / ")
    };
    (0..prompts.len())
        .step_by(every)
        .map(|row| Sample {
            prompt: turns(&prompts[row]),
            answer: prompts[row].answer.clone().unwrap_or_default(),
            replies: PerModel {
                base: reply(&models.base, row),
                sft: reply(&models.sft, row),
                ppo: reply(&models.ppo, row),
            },
        })
        .collect()
}

fn stage_seconds(seconds: &BTreeMap<String, f64>, eval: f64) -> Seconds {
    let of = |part: &str| seconds.get(part).copied();
    let data = ["data", "tokenizer"].into_iter().filter_map(of).reduce(|left, right| left + right);
    Seconds { data, base: of("base"), sft: of("sft"), rm: of("rm"), ppo: of("ppo"), eval: Some(eval) }
}

fn settings(config: &PipelineConfig) -> anyhow::Result<Map<String, Value>> {
    let mut settings = Map::new();
    settings.insert("seed".into(), json!(config.seed));
    if let Some(model) = measured_model(config)? {
        settings.insert("hidden size".into(), json!(model.hidden_size()));
        settings.insert("layers".into(), json!(model.num_layers()));
    }

    for stage in stage::ALL.into_iter().filter(|stage| final_folder(config, stage).exists()) {
        let name = stage.schema.name;
        let run = &config.stages[name];
        if let Some(path) = &run.model.path {
            settings.insert(format!("{name} from"), json!(path));
        }
        if let Some(steps) = run.train.steps {
            settings.insert(format!("{name} steps"), json!(steps));
        }
        settings.insert(format!("{name} learning rate"), json!(run.train.lr));
    }

    if !final_folder(config, &ppo::STAGE).exists() {
        return Ok(settings);
    }
    let ppo = &config.stages[ppo::STAGE.schema.name].ppo;
    settings.insert("ppo iterations".into(), json!(ppo.iterations));
    settings.insert("ppo replies per iteration".into(), json!(ppo.replies()?));
    settings.insert("ppo KL coefficient".into(), json!(ppo.kl_coef));
    Ok(settings)
}

/// The configuration of the evaluated models. It can differ from `[base]`, because the models may stem from
/// another base model.
fn measured_model(config: &PipelineConfig) -> anyhow::Result<Option<Config>> {
    let folders = [&sft::STAGE, &ppo::STAGE, &base::STAGE].map(|stage| final_folder(config, stage));
    let there = folders.iter().find(|folder| folder.exists());
    Ok(there.map(|folder| Config::from_folder(folder)).transpose()?)
}

fn machine() -> Map<String, Value> {
    let mut machine = Map::new();
    machine.insert("processor".into(), json!(processor()));
    machine.insert("threads".into(), json!(tch::get_num_threads()));
    machine.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    machine
}

fn processor() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Prints the main results to stderr.
fn summary(report: &Report) {
    let percent = |score: &Option<Score>| score.map_or("-".into(), |s| format!("{:.1} %", s.mean * 100.0));
    let rows = [
        ("base", &report.exact_match.base),
        ("sft", &report.exact_match.sft),
        ("ppo", &report.exact_match.ppo),
    ];

    for (name, scores) in rows {
        if let Some(scores) = scores {
            let (greedy, sampled) = (percent(&scores.greedy), percent(&scores.sampled));
            print_stderr(&format!("{name:>5}: exact match {greedy} greedy, {sampled} sampled"));
        }
    }

    if let Some(Gain { mean, low, high }) = report.paired_gain {
        print_stderr(&format!(
            "ppo over sft, sampled: {:+.1} points [{:+.1}, {:+.1}]",
            mean * 100.0,
            low * 100.0,
            high * 100.0
        ));
    }
    if let Some(model) = report.reward_model {
        print_stderr(&format!("reward model: {:.1} % of {} held-out pairs", model.accuracy * 100.0, model.n));
    }
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
