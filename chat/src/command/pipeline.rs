//! `pipeline`: every stage of a model's life from one file.
//!
//! ```text
//!   data ──> tokenizer ──> base ──> sft ──> rm ──> ppo ──> report
//! ```
//! Each part leaves a folder under `out/` and finds there what the parts before it left; a path that the file
//! names itself is kept. A part that is done (its folder is whole) is not done again with `--resume`. Before
//! the first part runs, the inputs of all of them are checked ([`Preflight`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use datasets::synth::{SynthData, SynthOptions};
use datasets::{Tokenizer, TrainOptions};
use gemini::checkpoint;
use parallel::{Mesh, ProcessGroups};

use crate::args::TrainArgs;
use crate::command::data::write_world;
use crate::command::print_stderr;
use crate::config::section::{Files, PipelineStep};
use crate::config::{self, ConfigError, PipelineConfig, RunConfig, Stage};
use crate::display::Display;
use crate::exit::Failure;
use crate::folder::{self, FolderRequest, RunFolder, same_settings};
use crate::interrupt;
use crate::launch::{self, Job, StartupSpec};
use crate::output::write_atomically;
use crate::report;
use crate::stage::{self, BaseModelSpec, Preflight, RunMode, StageContext};

/// Runs the parts that the file names.
pub(crate) fn run(arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let config = config::load_pipeline(&arguments.config, &arguments.sets)?;
    if arguments.dry_run {
        let mesh = launch::mesh(&config.parallel, 0, arguments.nproc)?;
        check_folder(&config, Some(&arguments.config), arguments.resume)?;
        preflight(&config, arguments.resume, &mesh)?;
        return crate::command::print(&config.to_toml()?).map_err(Into::into);
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
    /// What the report says was typed.
    pub(crate) command: &'a str,
    /// The file that says what to do, if it is one.
    pub(crate) run_file: Option<&'a Path>,
    /// Leave out what is done.
    pub(crate) resume: bool,
    /// Processes on this machine.
    pub(crate) processes: usize,
    /// Threads of one operation.
    pub(crate) threads: Option<usize>,
}

/// Runs a pipeline.
pub(crate) fn run_config(config: PipelineConfig, how: &PipelineOptions<'_>) -> anyhow::Result<()> {
    if launch::is_launcher(how.processes)? {
        check_folder(&config, how.run_file, how.resume)?;
        preflight(&config, how.resume, &launch::mesh(&config.parallel, 0, how.processes)?)?;
        folder::lock_for_launcher(&config.out, &names(&config), how.resume)?;
        let job = Job::on_this_host(how.processes, &config.out)?;
        return launch::run(&job, &launch::own_arguments());
    }
    interrupt::listen()?;
    let resume = how.resume;
    let start = StartupSpec { command: "pipeline", resume, settings: &config.to_toml()? };
    let groups = launch::join(how.threads.or(config.threads), &config.parallel, &start)?;
    if groups.is_rank_zero() {
        check_folder(&config, how.run_file, resume)?;
        // The launcher of several processes on this machine has checked the inputs already.
        if how.processes == 1 {
            preflight(&config, resume, groups.mesh())?;
        }
        create_and_lock(&config, how.run_file, resume)?;
    }
    groups.world().barrier()?;
    let seconds = read_seconds(&config.out, resume)?;
    let mut pipeline = PipelineRun { config, resume, groups, seconds };
    let parts = pipeline.config.pipeline.stages.clone();
    for (index, &part) in parts.iter().enumerate() {
        let display = Display::part(index + 1, parts.len());
        let started = Instant::now();
        let is_new = pipeline.run_part(part, display, how.command)?;
        // Asked for while a stage was saving its last model: it has ended well, and no other begins.
        if interrupt::is_stop_requested() {
            return Err(Failure::Interrupted.into());
        }
        if is_new && pipeline.groups.is_rank_zero() {
            pipeline.seconds.insert(part, started.elapsed().as_secs_f64());
            let seconds = serde_json::to_string_pretty(&pipeline.seconds)?;
            write_atomically(&pipeline.config.out.join("seconds.json"), seconds.as_bytes())?;
        }
        parallel::memory::release_free_heap();
    }
    Ok(())
}

/// Checks what every part reads, and says in a line what each stage will do. Nothing is written.
fn preflight(config: &PipelineConfig, resume: bool, mesh: &Mesh) -> anyhow::Result<()> {
    let parts = &config.pipeline.stages;
    let made =
        GENERATED_FILES.iter().filter(|_| parts.contains(&PipelineStep::Data)).map(|file| config.path(file));
    let mut preflight = Preflight::new(&config.out, mesh, made);
    for part in parts {
        let Some(stage) = part.stage() else { continue };
        let run = config.stage(stage);
        if resume && run.out.join("final").exists() {
            continue;
        }
        let tokenizer = config.path("tokenizer");
        let line = match stage {
            Stage::Base => {
                let network = BaseModelSpec { base: &config.base, tokenizer: &tokenizer };
                preflight.base(&run, &network, config.tokenizer.vocab_size)
            }
            _ => preflight.stage(stage, &run),
        };
        print_stderr(&line.with_context(|| format!("stage {}", stage.name()))?);
    }
    Ok(())
}

/// The names that the parts of a pipeline have in its folder.
fn names(config: &PipelineConfig) -> Vec<&'static str> {
    let mut names = vec![folder::CONFIGURATION, "seconds.json", "logs"];
    for part in &config.pipeline.stages {
        match part {
            PipelineStep::Data => names.push("data"),
            PipelineStep::Tokenizer => names.push("tokenizer"),
            PipelineStep::Base => names.push(Stage::Base.name()),
            PipelineStep::Sft => names.push(Stage::Sft.name()),
            PipelineStep::Rm => names.push(Stage::Rm.name()),
            PipelineStep::Ppo => names.push(Stage::Ppo.name()),
            PipelineStep::Report => names.extend(["report.json", "report.md", "report.html"]),
        }
    }
    names
}

/// Refuses a folder that the pipeline may not have. Makes nothing.
fn check_folder(config: &PipelineConfig, run_file: Option<&Path>, resume: bool) -> anyhow::Result<()> {
    folder::check_place(&config.out)?;
    folder::refuse_foreign_files(&config.out, &names(config))?;
    let saved = config.out.join(folder::CONFIGURATION);
    if !resume && folder::is_configuration_of(run_file, &config.out) {
        return Err(ConfigError::RunFileInOut(saved).into());
    }
    if !resume && saved.exists() {
        return Err(ConfigError::OutHasRun(config.out.clone()).into());
    }
    Ok(())
}

/// Makes the folder, or takes it up again, and holds it and those of its stages until this process ends.
fn create_and_lock(config: &PipelineConfig, run_file: Option<&Path>, resume: bool) -> anyhow::Result<()> {
    let (saved, text) = (config.out.join(folder::CONFIGURATION), config.to_toml()?);
    folder::acquire_lock(&config.out)?;
    // Another pipeline may have begun here while this one checked its inputs.
    check_folder(config, run_file, resume)?;
    Stage::ALL.iter().try_for_each(|stage| folder::reacquire_lock(&config.out.join(stage.name())))?;
    if resume && saved.exists() {
        // Each stage compares its own sections: one that was removed may be run anew with others.
        same_settings(&saved, &text, &["stage", "pipeline"])?;
    }
    if folder::is_configuration_of(run_file, &config.out) {
        return Ok(());
    }
    Ok(write_atomically(&saved, text.as_bytes())?)
}

/// The seconds of parts that an earlier run did.
fn read_seconds(out: &Path, resume: bool) -> anyhow::Result<BTreeMap<PipelineStep, f64>> {
    let path = out.join("seconds.json");
    if !resume || !path.exists() {
        return Ok(BTreeMap::new());
    }
    let damaged = |problem: String| {
        let problem = format!("{problem}: remove this file and run again");
        Failure::File { path: path.clone(), problem }
    };
    let text = std::fs::read_to_string(&path).map_err(|source| damaged(source.to_string()))?;
    Ok(serde_json::from_str(&text).map_err(|source| damaged(source.to_string()))?)
}

struct PipelineRun {
    config: PipelineConfig,
    resume: bool,
    groups: Arc<ProcessGroups>,
    seconds: BTreeMap<PipelineStep, f64>,
}

impl PipelineRun {
    /// Runs one part; false when it was done before.
    fn run_part(&self, part: PipelineStep, display: Display, command: &str) -> anyhow::Result<bool> {
        match part {
            PipelineStep::Data => self.on_rank_zero(|| self.data()),
            PipelineStep::Tokenizer => self.on_rank_zero(|| self.tokenizer()),
            PipelineStep::Base => self.train(Stage::Base, display),
            PipelineStep::Sft => self.train(Stage::Sft, display),
            PipelineStep::Rm => self.train(Stage::Rm, display),
            PipelineStep::Ppo => self.train(Stage::Ppo, display),
            // The last part, however long it takes: nobody has to wait for it.
            PipelineStep::Report if !self.groups.is_rank_zero() => Ok(true),
            PipelineStep::Report => {
                report::write(&self.config, &self.seconds, command)?;
                print_stderr(&format!("{}", self.config.out.join("report.html").display()));
                Ok(true)
            }
        }
    }

    /// Runs what one process does for all; the others wait for it.
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

    /// Trains a tokenizer on the rows of the base model and of supervised fine-tuning, as they are rendered.
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

    fn train(&self, stage: Stage, mut display: Display) -> anyhow::Result<bool> {
        let config = self.config.stage(stage);
        if self.resume && config.out.join("final").exists() {
            same_settings(&config.out.join("run.toml"), &config.to_toml(stage)?, &[])?;
            return Ok(false);
        }
        config.check(stage)?;
        let settings = config.to_toml(stage)?;
        let request = FolderRequest {
            out: &config.out,
            settings: &settings,
            run_file: None,
            resume: self.resume && !checkpoint::list(&config.out.join("checkpoints"))?.is_empty(),
            writes: true,
        };
        let folder = RunFolder::prepare(&request, &self.groups)?;
        let mut ctx = StageContext {
            groups: &self.groups,
            mesh: self.groups.mesh(),
            recorder: &mut display,
            folder: &folder,
            mode: RunMode::Train,
        };
        match stage {
            Stage::Base => {
                let network =
                    BaseModelSpec { base: &self.config.base, tokenizer: &self.config.path("tokenizer") };
                stage::run_base(&config, &network, &mut ctx)?;
            }
            _ => stage::run(stage, &config, &mut ctx)?,
        }
        Ok(true)
    }
}

/// The files that the part `data` writes.
const GENERATED_FILES: [&str; 6] = [
    "data/sft.parquet",
    "data/preference.parquet",
    "data/prompts.parquet",
    "data/heldout.parquet",
    "data/heldout_preference.parquet",
    "data/text.parquet",
];

impl PipelineConfig {
    /// A path below the folder of the pipeline.
    fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// The configuration of a stage, with the paths that the file leaves to the pipeline.
    fn stage(&self, stage: Stage) -> RunConfig {
        let mut config = self.stages[&stage].clone();
        config.out = self.path(stage.name());
        config.seed = self.seed;
        let made = |name: &str| self.path(name).display().to_string();
        let set = |path: &mut String, name: &str| {
            if path.is_empty() {
                *path = made(name);
            }
        };
        let set_files = |files: &mut Files, name: &str| {
            if files.0.is_empty() {
                files.0.push(made(name));
            }
        };
        match stage {
            Stage::Base => set_files(&mut config.data.train, "data/text.parquet"),
            Stage::Sft => {
                set(&mut config.model.path, "base/final");
                set_files(&mut config.data.train, "data/sft.parquet");
            }
            Stage::Rm => {
                set(&mut config.model.path, "sft/final");
                set_files(&mut config.data.train, "data/preference.parquet");
                let made = self.path("data/heldout_preference.parquet").exists();
                if made && config.data.eval_fraction == 0.0 {
                    set_files(&mut config.data.eval, "data/heldout_preference.parquet");
                }
            }
            Stage::Ppo => {
                set(&mut config.model.path, "sft/final");
                set(&mut config.ppo.reward_model, "rm/final");
                set_files(&mut config.data.train, "data/prompts.parquet");
                if config.ppo.ptx_coef > 0.0 {
                    set_files(&mut config.data.ptx, "data/sft.parquet");
                }
            }
        }
        config
    }
}
