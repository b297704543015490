//! The final report of a pipeline. It evaluates every model on held-out rows with the verifier, not with the
//! reward model.
//!
//! Exact match is measured with greedy decoding and with four sampled replies per question at temperature 1.
//! The gain of PPO over SFT is a paired difference by question. The curves come from the `metrics.jsonl` of
//! the stages.

mod measure;
mod replies;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use datasets::Prompt;
use eval::page::number::percent;
use eval::report::{Benchmarks, Curve, Gain, PerModel, Report, Sample, Score};
use models::config::Config;
use parallel::regular_file;
use serde_json::{Map, Value, json};

use crate::command::runs::print_warnings;
use crate::config::PipelineConfig;
use crate::config::section::PipelineStep;
use crate::console::print_stderr;
use crate::evaluation::output::LARGEST_RESULTS;
use crate::failure::Failure;
use crate::own_file;
use crate::run_data::RunData;
use crate::stage::{self, Stage, base, ppo, sft};
use measure::{Measured, gain, heldout, measure, reward_model, rights, scores};

/// The maximum number of questions whose replies are shown side by side.
const SHOWN: usize = 16;

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
    let runs = runs(config)?;

    let mut report = Report {
        title: "From a base model to PPO".to_owned(),
        command: command.to_owned(),
        settings: settings(config)?,
        machine: machine(),
        exact_match: models.map(scores).transpose()?,
        reward_model: reward_model(config)?,
        kl: last_kl(&runs),
        benchmarks: benchmarks(config)?,
        curves: curves(&runs),
        samples: samples(&prompts, &models),
        ..Report::default()
    };

    if let (Some(sft), Some(ppo)) = (&models.sft, &models.ppo) {
        report.paired_gain = Some(gain(&rights(&sft.sampled), &rights(&ppo.sampled))?);
        report.paired_gain_greedy = Some(gain(&rights(&sft.greedy), &rights(&ppo.greedy))?);
    }

    report.seconds = part_seconds(seconds, started.elapsed().as_secs_f64());
    report.peak_rss_bytes = Some(parallel::memory::peak_rss_bytes());
    own_file::write_all(&config.out, &eval::report::files(&report)?)?;
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

fn final_folder(config: &PipelineConfig, stage: &Stage) -> PathBuf {
    config.out.join(stage.schema.name).join("final")
}

/// The runs of the stages that have written metrics.
fn runs(config: &PipelineConfig) -> anyhow::Result<Vec<(&'static Stage, RunData)>> {
    let mut runs = Vec::new();
    for stage in stage::ALL {
        let folder = config.out.join(stage.schema.name);
        if folder.join("metrics.jsonl").exists() {
            let run = RunData::read(&folder)?;
            print_warnings(&run);
            runs.push((stage, run));
        }
    }
    Ok(runs)
}

/// The KL divergence of the last rollout that has one.
fn last_kl(runs: &[(&Stage, RunData)]) -> Option<f64> {
    let (_, ppo) = runs.iter().find(|(stage, _)| stage.schema.name == ppo::STAGE.schema.name)?;
    let values = ppo.find("objective/kl")?.points.iter().map(|point| point.1);
    values.rev().find(|value| value.is_finite())
}

fn curves(runs: &[(&Stage, RunData)]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (stage, run) in runs {
        let found = stage.curves.iter().filter_map(|metric| run.find(metric));
        curves.extend(found.filter(|series| series.points.len() > 1).map(|series| Curve {
            stage: stage.schema.name.to_owned(),
            metric: series.name.clone(),
            points: series.points.clone(),
        }));
    }
    curves
}

/// Questions spread evenly over the held-out rows, with the greedy reply of each model.
fn samples(prompts: &[Prompt], models: &PerModel<Measured>) -> Vec<Sample> {
    let every = prompts.len().div_ceil(SHOWN).max(1);
    let replies = |row: usize| models.map(|model| model.greedy[row][0].clone());
    let turns = |prompt: &Prompt| {
        prompt.messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join(" / ")
    };
    (0..prompts.len())
        .step_by(every)
        .map(|row| Sample {
            prompt: turns(&prompts[row]),
            answer: prompts[row].answer.clone().unwrap_or_default(),
            replies: replies(row),
        })
        .collect()
}

/// The seconds of the parts that ran, by the names of the report.
fn part_seconds(seconds: &BTreeMap<String, f64>, eval: f64) -> Vec<(&'static str, f64)> {
    let of = |part: &str| seconds.get(part).copied();
    let data = ["data", "tokenizer"].into_iter().filter_map(of).reduce(|left, right| left + right);
    let stages = ["base", "sft", "rm", "ppo"].into_iter().filter_map(|part| Some((part, of(part)?)));
    data.map(|data| ("data", data)).into_iter().chain(stages).chain([("eval", eval)]).collect()
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
    let text = |score: Option<Score>| score.map_or("-".to_owned(), |score| percent(score.mean));
    for (name, scores) in report.exact_match.known() {
        let (name, greedy, sampled) = (name.to_lowercase(), text(scores.greedy), text(scores.sampled));
        print_stderr(&format!("{name:>5}: exact match {greedy} greedy, {sampled} sampled"));
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
        print_stderr(&format!("reward model: {} of {} held-out pairs", percent(model.accuracy), model.n));
    }
}
