//! The final report of a pipeline: what the part `eval` found, the reward model on held-out pairs, the runs
//! of the stages, and what they cost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datasets::dataset::{EncodedDataset, LoadOptions};
use datasets::{Overlong, PreferenceRow, ReadOptions};
use eval::page::number::percent;
use eval::report::{Benchmarks, Report, RewardModel};
use eval::statistics::wilson;
use inference::session::load_tokenizer;
use models::config::Config;
use models::scalar_model::ScalarModel;
use parallel::{LocalRank, ProcessGroups, regular_file};
use serde_json::{Map, Value, json};
use tch::Kind;

use super::{overlays, part};
use crate::config::PipelineConfig;
use crate::config::section::PipelineStep;
use crate::console::print_stderr;
use crate::evaluation::output::LARGEST_RESULTS;
use crate::failure::Failure;
use crate::run_data::RunData;
use crate::stage::{self, Stage, rm};
use crate::{device, model_folder, own_file};

/// Writes `report.md`, `report.html` and `report.json`.
pub(crate) fn write(
    config: &PipelineConfig,
    seconds: &BTreeMap<String, f64>,
    command: &str,
) -> anyhow::Result<()> {
    let runs = runs(config)?;
    let stages: Vec<&str> = runs.iter().map(|run| run.facts.stage.as_str()).collect();
    let is_drawn = |run: &RunData, metric: &str| {
        stage::find(&run.facts.stage).is_some_and(|stage| stage.curves.contains(&metric))
    };
    let report = Report {
        title: format!("A pipeline of {}", stages.join(", ")),
        command: command.to_owned(),
        settings: settings(config)?,
        machine: machine(),
        benchmarks: benchmarks(config)?,
        reward_model: reward_model(config)?,
        seconds: seconds_of_parts(seconds),
        peak_rss_bytes: Some(parallel::memory::peak_rss_bytes()),
        runs: runs.iter().map(part).collect(),
        curves: overlays(&runs, is_drawn),
    };

    own_file::write_all(&config.out, &eval::report::files(&report)?)?;
    if let Some(model) = report.reward_model {
        print_stderr(&format!("reward model: {} of {} held-out pairs", percent(model.accuracy), model.n));
    }
    Ok(())
}

/// The runs of the stages that have written metrics.
fn runs(config: &PipelineConfig) -> anyhow::Result<Vec<RunData>> {
    let folders = stage::ALL.into_iter().map(|stage| config.out.join(stage.schema.name));
    let runs = folders.filter(|folder| folder.join("metrics.jsonl").exists());
    let runs = runs.map(|folder| RunData::read(&folder)).collect::<Result<Vec<_>, _>>()?;
    runs.iter().for_each(RunData::print_warnings);
    Ok(runs)
}

/// The results of the part `eval`, if the pipeline has it.
fn benchmarks(config: &PipelineConfig) -> anyhow::Result<Option<Benchmarks>> {
    if !config.steps.contains(&PipelineStep::Eval) {
        print_stderr("note: the report has no scores of models: [pipeline] stages has no part `eval`");
        return Ok(None);
    }
    let path = config.out.join("eval/results.json");
    let damaged = |problem: String| Failure::File { path: path.clone(), problem };
    let text = regular_file::read_to_string(&path, LARGEST_RESULTS);
    let text = text.map_err(|source| damaged(source.to_string()))?;
    let results = serde_json::from_str(&text).map_err(|source| damaged(source.to_string()))?;
    Ok(Some(Benchmarks { report: "eval/report.html".to_owned(), results }))
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

    let tokenizer = load_tokenizer(&folder, None)?;
    // Only rank 0 writes the report.
    let device = device::resolve(stage.model.device, LocalRank::SINGLE)?;
    let model = ScalarModel::load(&folder, &model_folder::frozen_options(Kind::Float, device))?;
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

fn final_folder(config: &PipelineConfig, stage: &Stage) -> PathBuf {
    config.out.join(stage.schema.name).join("final")
}

/// The seconds of the parts that ran, in the order of a pipeline.
fn seconds_of_parts(seconds: &BTreeMap<String, f64>) -> Vec<(&'static str, f64)> {
    let stages = stage::ALL.into_iter().map(|stage| stage.schema.name);
    let parts = ["data", "tokenizer"].into_iter().chain(stages).chain(["eval"]);
    parts.filter_map(|part| Some((part, *seconds.get(part)?))).collect()
}

/// The seed, and the sizes of the models. The sizes can differ from `[base]`, because the models may stem
/// from another base model.
fn settings(config: &PipelineConfig) -> anyhow::Result<Map<String, Value>> {
    let mut settings = Map::new();
    settings.insert("seed".into(), json!(config.seed));
    let folders = stage::language_models().map(|stage| final_folder(config, stage));
    if let Some(folder) = folders.filter(|folder| folder.exists()).last() {
        let model = Config::from_folder(&folder)?;
        settings.insert("hidden size".into(), json!(model.hidden_size()));
        settings.insert("layers".into(), json!(model.num_layers()));
    }
    Ok(settings)
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
