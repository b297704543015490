//! `pipeline`: runs all stages, from the data to the final report, from one run file.
//!
//! ```text
//!   data ──> tokenizer ──> base ──> sft ──> rm ──> ppo ──> eval ──> report
//! ```
//! Each part writes a folder under `out/` and reads the folders of earlier parts, unless the run file sets
//! another path. With `--resume`, a part whose folder is complete is not run again. Before the first part
//! runs, the inputs of all parts are checked ([`Preflight`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use datasets::synth::{SynthData, SynthOptions};
use datasets::{Tokenizer, TrainOptions, table};
use eval::task::Task;
use gemini::checkpoint;
use parallel::{LocalRank, Mesh, ProcessGroups, regular_file};
use text::number::counted;

use crate::args::TrainArgs;
use crate::command::data::write_world;
use crate::command::eval as eval_command;
use crate::config::section::{EvalSection, PipelineStep};
use crate::config::{self, ConfigError, NewModel, PipelineConfig, RunConfig};
use crate::console::print_stderr;
use crate::display::Display;
use crate::evaluation::Candidate;
use crate::evaluation::job::{self, EvalJob};
use crate::evaluation::model::ModelHost;
use crate::failure::Failure;
use crate::folder::{self, FolderRequest, LengthChange, RunFolder, check_run_settings, check_settings};
use crate::launch::{self, Job, StartupSpec};
use crate::own_file;
use crate::own_folder::{Claim, FolderKind, LARGEST_SETTINGS};
use crate::report;
use crate::stage::context::{RunMode, StageContext, check_disk_path, chunk_manager};
use crate::stage::definition::PipelineFolder;
use crate::stage::preflight::Preflight;
use crate::stage::{self, Stage};
use crate::{device, interrupt};

/// Runs the parts that the run file lists.
pub(crate) fn run(arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    if arguments.ui {
        let problem =
            "a pipeline is several runs: start it without, and give the folder of a stage to `watch`"
                .to_owned();
        return Err(ConfigError::Argument { argument: "--ui".to_owned(), problem }.into());
    }

    let config = config::load_pipeline(&arguments.config, &arguments.overrides.sets(), &stage::schemas())?;
    if arguments.dry_run {
        // Everything that a run would check, without a process of its own.
        let mesh = launch::mesh(&config.parallel, 0, arguments.nproc)?;
        print_warnings(&config);
        load_devices(&config);
        check_devices(&config, LocalRank::last_of(arguments.nproc, config.parallel.transport))?;
        check_folder(&config, Some(&arguments.config), arguments.resume)?;
        report_new(&config, arguments.resume);
        preflight(&config, arguments.resume, &mesh)?;
        return crate::console::print(&config.to_annotated_toml(&stage::schemas())?).map_err(Into::into);
    }

    let command = format!("colossal-chat pipeline --config {}", arguments.config.display());
    let how = PipelineOptions {
        command: &command,
        run_file: Some(&arguments.config),
        resume: arguments.resume,
        processes: arguments.nproc,
        threads,
    };
    run_config(config, &how)
}

/// How a pipeline is run.
pub(crate) struct PipelineOptions<'a> {
    /// The command line that the report shows.
    pub(crate) command: &'a str,
    /// The run file, if the configuration came from a file.
    pub(crate) run_file: Option<&'a Path>,
    /// Whether to skip the parts that are complete.
    pub(crate) resume: bool,
    /// The number of processes on this machine.
    pub(crate) processes: usize,
    /// The number of threads per operation.
    pub(crate) threads: Option<usize>,
}

/// Runs a pipeline.
pub(crate) fn run_config(config: PipelineConfig, how: &PipelineOptions<'_>) -> anyhow::Result<()> {
    if launch::is_launcher(how.processes)? {
        folder::refuse_locked(&config.out)?;
        check_folder(&config, how.run_file, how.resume)?;
        preflight(&config, how.resume, &launch::mesh(&config.parallel, 0, how.processes)?)?;
        folder::lock_for_launcher(&config.out, &claim(&names(&config)))?;
        let job = Job::on_this_host(how.processes, &config.out)?;
        return launch::run(&job, &launch::own_arguments());
    }

    interrupt::listen()?;
    load_devices(&config);
    let resume = how.resume;
    let start = StartupSpec { command: "pipeline", resume, settings: &config.to_toml(&stage::schemas())? };
    let groups = launch::join(how.threads.or(config.threads), &config.parallel, &start)?;
    check_devices(&config, groups.local_rank())?;
    if groups.is_rank_zero() {
        print_warnings(&config);
        folder::refuse_locked(&config.out)?;
        check_folder(&config, how.run_file, resume)?;
        // If there are several processes, their launcher on this machine has already checked the inputs.
        if how.processes == 1 {
            preflight(&config, resume, groups.mesh())?;
        }
        create_and_lock(&config, how.run_file, resume)?;
    }
    groups.world().barrier()?;

    let seconds = read_seconds(&config.out, resume)?;
    let mut pipeline = PipelineRun { config, resume, groups, seconds };
    let parts = pipeline.config.steps.clone();
    for (index, &part) in parts.iter().enumerate() {
        let started = Instant::now();
        let is_new = pipeline.run_part(part, index + 1, how.command)?;
        // A signal during the final save of a stage: the stage has finished, but the next part must not
        // start. A request from outside reaches rank 0 alone, so the ranks agree.
        let is_stopped = f64::from(u8::from(interrupt::is_stop_requested()));
        let [is_stopped] = pipeline.groups.world().all_reduce_max([is_stopped])?;
        if is_stopped > 0.0 {
            return Err(Failure::Interrupted.into());
        }
        if is_new && pipeline.groups.is_rank_zero() {
            pipeline.seconds.insert(part.name().to_owned(), started.elapsed().as_secs_f64());
            let seconds = serde_json::to_string_pretty(&pipeline.seconds)?;
            own_file::write(&pipeline.config.out.join("seconds.json"), seconds.as_bytes())?;
        }
        parallel::memory::release_free_heap();
    }
    Ok(())
}

fn load_devices(config: &PipelineConfig) {
    device::load(config.stages.values().map(|stage| stage.model.device));
}

/// Refuses a device that a process cannot have: a mistake in the last stage must not cost the time of the
/// first ones.
fn check_devices(config: &PipelineConfig, local: LocalRank) -> Result<(), ConfigError> {
    for part in &config.steps {
        if let PipelineStep::Stage(name) = part {
            device::resolve(config.stages[name].model.device, local)?;
        }
    }
    Ok(())
}

fn print_warnings(config: &PipelineConfig) {
    config.warnings.iter().for_each(|warning| print_stderr(&format!("warning: {warning}")));
}

/// Checks the inputs of every part, and prints one line per stage that says what the stage will do. Writes no
/// files.
fn preflight(config: &PipelineConfig, resume: bool, mesh: &Mesh) -> anyhow::Result<()> {
    let generates = config.steps.contains(&PipelineStep::Data);
    let made = GENERATED_FILES.iter().filter(|_| generates).map(|file| config.path(file));
    let mut preflight = Preflight::new(&config.out, mesh, made);

    for part in &config.steps {
        let name = match part {
            PipelineStep::Stage(name) => name,
            PipelineStep::Eval => {
                preflight_eval(config).context("part eval")?;
                continue;
            }
            _ => continue,
        };
        let stage = stage_of(name);
        let run = config.stage(stage);
        if resume && config.is_complete(stage, &run)? {
            continue;
        }
        let made = |task: &Task| makes_rows(config, &run.eval, task);
        let checked = run.check(&stage.schema).and_then(|()| check_disk_path(&run)).map_err(Into::into);
        let checked = checked.and_then(|()| stage::tasks::preflight(&run, &stage.schema, &made));
        let line = checked.and_then(|()| (stage.preflight)(&mut preflight, &run));
        print_stderr(&line.with_context(|| format!("stage {name}"))?);
    }
    Ok(())
}

/// Checks that the part `eval` has a model, its tasks, and their rows unless the pipeline makes them first.
fn preflight_eval(config: &PipelineConfig) -> anyhow::Result<()> {
    let is_made = |stage: &Stage| {
        let part =
            |step: &PipelineStep| matches!(step, PipelineStep::Stage(name) if *name == stage.schema.name);
        config.steps.iter().any(part) || config.path(stage.schema.name).join("final").exists()
    };
    if !stage::language_models().any(is_made) {
        return Err(no_model(config).into());
    }

    let section = config.evaluation();
    let all = job::select(&section)?.tasks.len();
    let tasks = counted(all as u64, "task");
    let checked = stage::tasks::check(&section, &|task| makes_rows(config, &section, task))?;
    match checked {
        Some(evaluation) if evaluation.tasks.len() == all => {
            let requests = counted(evaluation.num_requests() as u64, "request");
            print_stderr(&format!("eval: {tasks}, {requests} for each model"));
        }
        _ => print_stderr(&format!("eval: {tasks}, on rows that this pipeline makes")),
    }
    Ok(())
}

fn no_model(config: &PipelineConfig) -> Failure {
    let problem =
        "there is no model to evaluate: add a stage that trains one, such as sft, to [pipeline] stages";
    Failure::File { path: config.out.clone(), problem: problem.to_owned() }
}

/// Whether the rows of a task are those that this pipeline makes.
fn makes_rows(config: &PipelineConfig, eval: &EvalSection, task: &Task) -> bool {
    let file = format!("{}/{}.parquet", task.dataset.folder, task.dataset.split);
    let is_made = GENERATED_FILES.contains(&file.as_str()) && !config.path(&file).exists();
    config.steps.contains(&PipelineStep::Data) && eval.data == config.out && is_made
}

/// The file and folder names that the parts of a pipeline use in its folder.
fn names(config: &PipelineConfig) -> Vec<&'static str> {
    let mut names = vec![folder::CONFIGURATION, "seconds.json", "logs"];
    for part in &config.steps {
        match part {
            PipelineStep::Report => names.extend(["report.json", "report.md", "report.html"]),
            part => names.push(part.name()),
        }
    }
    names
}

fn claim<'a>(names: &'a [&'a str]) -> Claim<'a> {
    Claim { kind: FolderKind::Pipeline, names }
}

/// Refuses a folder that the pipeline may not use. Creates nothing.
fn check_folder(config: &PipelineConfig, run_file: Option<&Path>, resume: bool) -> anyhow::Result<()> {
    folder::check_place(&config.out)?;
    claim(&names(config)).check(&config.out)?;
    let saved = config.out.join(folder::CONFIGURATION);
    if !resume && folder::is_configuration_of(run_file, &config.out) {
        return Err(ConfigError::RunFileInOut(saved).into());
    }
    if !resume && saved.exists() {
        return Err(ConfigError::OutHasRun(config.out.clone()).into());
    }
    Ok(())
}

/// Says so if `--resume` finds nothing that an earlier pipeline has made.
fn report_new(config: &PipelineConfig, resume: bool) {
    if resume && !config.out.join(folder::CONFIGURATION).exists() {
        print_stderr(&folder::nothing_to_resume(&config.out));
    }
}

/// Creates or reopens the folder of the pipeline, locks it and the folders of its stages until this process
/// exits, and saves the configuration.
fn create_and_lock(config: &PipelineConfig, run_file: Option<&Path>, resume: bool) -> anyhow::Result<()> {
    let (saved, text) = (config.out.join(folder::CONFIGURATION), config.to_toml(&stage::schemas())?);
    folder::acquire_lock(&config.out, &claim(&names(config)))?;
    // Another pipeline may have started here while this one checked its inputs.
    check_folder(config, run_file, resume)?;
    report_new(config, resume);
    let folders = stage::ALL.iter().map(|stage| config.path(stage.schema.name));
    folders.into_iter().try_for_each(|folder| folder::reacquire_lock(&folder))?;
    if resume && saved.exists() {
        // Each stage compares its own sections, so that a stage whose folder was removed may run again with
        // other settings.
        let was = folder::read_configuration(&config.out)?;
        check_settings(&saved, &was, &text, &["stage", "pipeline"])?;
        // The file that the user passes is not replaced by its resolved form, unless the command line changes
        // it.
        let is_kept = folder::is_configuration_of(run_file, &config.out);
        if is_kept && config::differences(&was, &text, &[])?.is_empty() {
            return Ok(());
        }
    }
    let text = config.to_annotated_toml(&stage::schemas())?;
    Ok(own_file::write(&saved, text.as_bytes())?)
}

/// Reads the seconds that the parts of an earlier run took.
fn read_seconds(out: &Path, resume: bool) -> anyhow::Result<BTreeMap<String, f64>> {
    let path = out.join("seconds.json");
    if !resume || !path.exists() {
        return Ok(BTreeMap::new());
    }
    let damaged = |problem: String| {
        let problem = format!("{problem}: remove this file and run again");
        Failure::File { path: path.clone(), problem }
    };
    let text = regular_file::read_to_string(&path, LARGEST_SETTINGS);
    let text = text.map_err(|source| damaged(source.to_string()))?;
    Ok(serde_json::from_str(&text).map_err(|source| damaged(source.to_string()))?)
}

struct PipelineRun {
    config: PipelineConfig,
    resume: bool,
    groups: Arc<ProcessGroups>,
    seconds: BTreeMap<String, f64>,
}

impl PipelineRun {
    /// Runs one part. Returns false if an earlier run has already completed it.
    fn run_part(&self, part: PipelineStep, number: usize, command: &str) -> anyhow::Result<bool> {
        match part {
            PipelineStep::Data => self.on_rank_zero(|| self.data()),
            PipelineStep::Tokenizer => self.on_rank_zero(|| self.tokenizer()),
            PipelineStep::Stage(name) => self.train(stage_of(name), number),
            PipelineStep::Eval => self.evaluate(command),
            // Rank 0 writes the report alone. No other rank has to wait for it.
            PipelineStep::Report if !self.groups.is_rank_zero() => Ok(true),
            PipelineStep::Report => {
                report::pipeline::write(&self.config, &self.seconds, command)?;
                print_stderr(&format!("{}", self.config.out.join("report.html").display()));
                Ok(true)
            }
        }
    }

    /// Runs `work` on rank 0 only. The other ranks wait at a barrier.
    fn on_rank_zero(&self, work: impl FnOnce() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        let done = if self.groups.is_rank_zero() { work()? } else { true };
        self.groups.world().barrier()?;
        Ok(done)
    }

    fn data(&self) -> anyhow::Result<bool> {
        let folder = self.config.path("data");
        if self.resume && folder.exists() {
            return Ok(false);
        }
        let options = SynthOptions { seed: self.config.seed, ..self.config.synth.clone() };
        write_world(&SynthData::generate(&options)?, &folder)?;
        Ok(true)
    }

    /// Trains a tokenizer on the generated rows for the base model and for supervised fine-tuning.
    fn tokenizer(&self) -> anyhow::Result<bool> {
        let folder = self.config.path("tokenizer");
        if self.resume && folder.exists() {
            return Ok(false);
        }
        let mut texts = Vec::new();
        for file in ["text.parquet", "sft.parquet"] {
            texts.extend(super::data::texts(&self.config.path("data").join(file))?);
        }
        let options = TrainOptions {
            vocab_size: self.config.tokenizer.vocab_size,
            model_max_length: self.config.base.max_position_embeddings as usize,
            ..TrainOptions::default()
        };
        let tokenizer = Tokenizer::train(texts.into_iter(), &options)?;
        checkpoint::write_folder(&folder, |folder| anyhow::Ok(tokenizer.save(folder)?))?;
        print_stderr(&format!("{:>8} tokens  {}", tokenizer.vocab_size(), folder.display()));
        Ok(true)
    }

    /// Asks every language model of the pipeline the tasks of `[eval]`. Answers of an earlier run are kept by
    /// the hash of the model, so this part always runs, and asks only what is new. The ranks share the
    /// requests, each with the whole model: none waits for another longer than a collective may take.
    ///
    /// Returns false if an earlier run has written results: its time is the time of the evaluation.
    fn evaluate(&self, command: &str) -> anyhow::Result<bool> {
        let is_new = !self.config.path("eval/results.json").exists();
        let finals = stage::language_models()
            .map(|stage| (stage.schema.name, self.config.path(stage.schema.name).join("final")));
        let there = finals.filter(|(_, folder)| folder.exists());
        let candidates: Vec<Candidate> = there
            .map(|(name, folder)| Candidate::of_folder(name.to_owned(), folder))
            .collect::<anyhow::Result<_>>()?;
        let Some(last) = candidates.last() else {
            return Err(no_model(&self.config).into());
        };
        let job = EvalJob {
            section: &self.config.evaluation(),
            train_data: self.train_data(),
            host: ModelHost::on(self.config.stages[last.name.as_str()].model.device),
            output: &self.config.path("eval"),
            force: self.resume,
            command,
            candidates,
        };
        let groups = (self.groups.world().size() > 1).then_some(&*self.groups);
        let Some(outcome) = job.run(groups)? else { return Ok(is_new) };
        outcome.problems.iter().for_each(|problem| print_stderr(&format!("warning: {problem}")));
        print_stderr(&format!("{}\n{}", eval_command::summary(&outcome.results), outcome.report.display()));
        Ok(is_new)
    }

    /// The files of rows that the stages of the pipeline train on, each once. Files that are gone since a
    /// stage was trained are left out.
    fn train_data(&self) -> Vec<String> {
        let mut files: Vec<String> = Vec::new();
        for part in &self.config.steps {
            let PipelineStep::Stage(name) = part else { continue };
            for file in self.config.stage(stage_of(name)).data.train.0 {
                let is_there =
                    table::expand(&[&file]).is_ok_and(|found| found.iter().all(|path| path.exists()));
                if is_there && !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        files
    }

    fn train(&self, stage: &'static Stage, number: usize) -> anyhow::Result<bool> {
        let schema = &stage.schema;
        let config = self.config.stage(stage);
        if self.resume && self.config.is_complete(stage, &config)? {
            return Ok(false);
        }

        config.check(schema)?;
        let resume = self.resume && folder::holds_run(&config.out)?;
        let request = FolderRequest {
            stage: schema,
            config: &config,
            run_file: None,
            resume,
            writes: true,
            used_by: self.config.users_of(stage)?,
        };
        let folder = RunFolder::prepare(&request, &self.groups)?;

        let mut display = Display::part(schema.units.step, number, self.config.steps.len());
        let mut ctx = StageContext {
            stage: schema,
            groups: &self.groups,
            memory: chunk_manager(&config, &self.groups)?,
            mesh: self.groups.mesh(),
            recorder: &mut display,
            folder: &folder,
            mode: RunMode::Train,
            has_trained: false,
            plan: None,
        };
        (stage.run)(&config, &mut ctx)?;
        Ok(ctx.has_trained)
    }
}

/// Returns the stage of a part whose name was checked when the configuration was read.
fn stage_of(name: &str) -> &'static Stage {
    stage::find(name).expect("a part of the pipeline is a stage that exists")
}

/// The files that the part `data` generates.
const GENERATED_FILES: [&str; 6] = [
    "data/sft.parquet",
    "data/preference.parquet",
    "data/prompts.parquet",
    "data/heldout.parquet",
    "data/heldout_preference.parquet",
    "data/text.parquet",
];

impl PipelineConfig {
    /// A path inside the folder of the pipeline.
    fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// Whether an earlier run has completed `stage` with the configuration `run`, and the stage does not
    /// become longer. Refuses other settings, and to extend a stage whose model a later stage has already
    /// used.
    fn is_complete(&self, stage: &'static Stage, run: &RunConfig) -> anyhow::Result<bool> {
        if !folder::holds_run(&run.out)? {
            return Ok(false);
        }
        let change = check_run_settings(&run.out, run, &stage.schema)?;
        if !run.out.join("final").exists() {
            return Ok(false);
        }
        if change == LengthChange::Same {
            return Ok(true);
        }
        folder::check_extendable(&run.out)?;

        let later = self.users_of(stage)?;
        if change == LengthChange::Longer && !later.is_empty() {
            let (stage, path) = (stage.schema.name, self.out.clone());
            return Err(ConfigError::UsedByLaterStages { stage, later, path }.into());
        }
        Ok(false)
    }

    /// The later stages that have a run in the folder of the pipeline, and so may have used the model of
    /// `stage`.
    fn users_of(&self, stage: &Stage) -> anyhow::Result<Vec<&'static str>> {
        let names = stage::ALL.into_iter().map(|stage| stage.schema.name);
        let mut users = Vec::new();
        for name in names.skip_while(|name| *name != stage.schema.name).skip(1) {
            if folder::holds_run(&self.path(name))? {
                users.push(name);
            }
        }
        Ok(users)
    }

    /// The configuration of a stage. Paths that the run file does not set point to the results of earlier
    /// parts.
    fn stage(&self, stage: &Stage) -> RunConfig {
        let name = stage.schema.name;
        let mut config = self.stages[name].clone();
        config.out = self.path(name);
        config.seed = self.seed;
        config.base = NewModel {
            network: self.base.clone(),
            tokenizer: self.path("tokenizer"),
            vocab_size: self.tokenizer.vocab_size,
        };
        (stage.set_pipeline_paths)(&mut config, &PipelineFolder(&self.out));
        config
    }
}
