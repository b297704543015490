//! `pipeline`: every stage of a model's life from one file.
//!
//! ```text
//!   data ──> tokenizer ──> base ──> sft ──> rm ──> ppo ──> report
//! ```
//! Each part leaves a folder under `out/` and finds there what the parts before it left; a path that the file names itself is kept.
//! A part that is done (its folder is whole) is not done again with `--resume`. Before the first part runs, the inputs of all of
//! them are checked ([`Preflight`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use datasets::synth::{SynthOptions, World};
use datasets::{Tokenizer, TrainOptions};
use gemini::checkpoint;
use parallel::{Groups, Mesh};

use crate::args::TrainArgs;
use crate::command::data::write_world;
use crate::command::tell;
use crate::config::section::{Files, Part};
use crate::config::{self, ConfigError, PipelineConfig, RunConfig, Stage};
use crate::display::Display;
use crate::interrupt::Interrupt;
use crate::launch::{self, Job, Start};
use crate::record::{same_settings, write_whole};
use crate::report;
use crate::stage::{self, Around, Goal, Network, Preflight};

/// Runs the parts that the file names.
pub(crate) fn run(arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let config = config::load_pipeline(&arguments.config, &arguments.sets)?;
    if arguments.dry_run {
        let mesh = launch::mesh(&config.parallel, 0, arguments.nproc)?;
        preflight(&config, arguments.resume, &mesh)?;
        return crate::command::print(&config.to_toml()?).map_err(Into::into);
    }
    let command = format!("colossal-chat pipeline --config {}", arguments.config.display());
    let how = How { command: &command, resume: arguments.resume, processes: arguments.nproc, threads };
    run_config(config, &how)
}

/// How a pipeline is run.
pub(crate) struct How<'a> {
    /// What the report says was typed.
    pub(crate) command: &'a str,
    /// Leave out what is done.
    pub(crate) resume: bool,
    /// Processes on this machine.
    pub(crate) processes: usize,
    /// Threads of one operation.
    pub(crate) threads: Option<usize>,
}

/// Runs a pipeline.
pub(crate) fn run_config(config: PipelineConfig, how: &How<'_>) -> anyhow::Result<()> {
    if launch::starts_others(how.processes)? {
        let job = Job::on_this_host(how.processes, &config.out);
        return launch::run(&job, &launch::own_arguments());
    }
    let resume = how.resume;
    let start = Start { command: "pipeline", resume, settings: &config.to_toml()? };
    let groups = launch::join(how.threads.or(config.threads), &config.parallel, &start)?;
    if groups.is_first() {
        preflight(&config, resume, groups.mesh())?;
        open(&config, resume)?;
    }
    groups.world().barrier()?;
    let interrupt = Interrupt::listen()?;
    interrupt.begin();
    let seconds = read_seconds(&config.out, resume)?;
    let mut pipeline = Pipeline { config, resume, interrupt, groups, seconds };
    let parts = pipeline.config.pipeline.stages.clone();
    for (index, &part) in parts.iter().enumerate() {
        let display = Display::part(index + 1, parts.len());
        let started = Instant::now();
        if pipeline.run_part(part, display, how.command)? && pipeline.groups.is_first() {
            pipeline.seconds.insert(part, started.elapsed().as_secs_f64());
            let seconds = serde_json::to_string_pretty(&pipeline.seconds)?;
            write_whole(&pipeline.config.out.join("seconds.json"), seconds.as_bytes())?;
        }
        parallel::memory::release_free_heap();
    }
    Ok(())
}

/// Checks what every part reads, and says in a line what each stage will do. Nothing is written.
fn preflight(config: &PipelineConfig, resume: bool, mesh: &Mesh) -> anyhow::Result<()> {
    let parts = &config.pipeline.stages;
    let made =
        if parts.contains(&Part::Data) { MADE_ROWS.map(|file| config.path(file)).into() } else { [].into() };
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
                let network = Network { base: &config.base, tokenizer: &tokenizer };
                preflight.base(&run, &network, config.tokenizer.vocab_size)
            }
            _ => preflight.stage(stage, &run),
        };
        tell(&line.with_context(|| format!("stage {}", stage.name()))?);
    }
    Ok(())
}

/// Makes the folder, or takes it up again.
fn open(config: &PipelineConfig, resume: bool) -> anyhow::Result<()> {
    if !resume && config.out.join("run.toml").exists() {
        return Err(ConfigError::OutTaken(config.out.clone()).into());
    }
    let (saved, text) = (config.out.join("run.toml"), config.to_toml()?);
    if resume && saved.exists() {
        // Each stage compares its own sections: one that was removed may be run anew with others.
        same_settings(&saved, &text, &["stage", "pipeline"])?;
    }
    std::fs::create_dir_all(&config.out).with_context(|| config.out.display().to_string())?;
    Ok(write_whole(&saved, text.as_bytes())?)
}

/// The seconds of parts that an earlier run did.
fn read_seconds(out: &Path, resume: bool) -> anyhow::Result<BTreeMap<Part, f64>> {
    let path = out.join("seconds.json");
    if !resume || !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{}: remove it and run again", path.display()))
}

struct Pipeline {
    config: PipelineConfig,
    resume: bool,
    interrupt: Interrupt,
    groups: Arc<Groups>,
    seconds: BTreeMap<Part, f64>,
}

impl Pipeline {
    /// Runs one part; false when it was done before.
    fn run_part(&self, part: Part, display: Display, command: &str) -> anyhow::Result<bool> {
        match part {
            Part::Data => self.once(|| self.data()),
            Part::Tokenizer => self.once(|| self.tokenizer()),
            Part::Base => self.train(Stage::Base, display),
            Part::Sft => self.train(Stage::Sft, display),
            Part::Rm => self.train(Stage::Rm, display),
            Part::Ppo => self.train(Stage::Ppo, display),
            // The last part, however long it takes: nobody has to wait for it.
            Part::Report if !self.groups.is_first() => Ok(true),
            Part::Report => {
                report::write(&self.config, &self.seconds, command)?;
                tell(&format!("{}", self.config.out.join("report.html").display()));
                Ok(true)
            }
        }
    }

    /// Runs what one process does for all; the others wait for it.
    fn once(&self, work: impl FnOnce() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        let done = if self.groups.is_first() { work()? } else { true };
        self.groups.world().barrier()?;
        Ok(done)
    }

    fn data(&self) -> anyhow::Result<bool> {
        let folder = self.config.path("data");
        if self.resume && folder.exists() {
            return Ok(false);
        }
        let options = SynthOptions { seed: self.config.seed, ..self.config.synth.clone() };
        write_world(&World::generate(&options)?, &folder)?;
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
        tell(&format!("{:>8} tokens  {}", tokenizer.vocab_size(), folder.display()));
        Ok(true)
    }

    fn train(&self, stage: Stage, mut display: Display) -> anyhow::Result<bool> {
        let config = self.config.stage(stage);
        if self.resume && config.out.join("final").exists() {
            same_settings(&config.out.join("run.toml"), &config.to_toml(stage)?, &[])?;
            return Ok(false);
        }
        config.check(stage)?;
        let mut around = Around {
            groups: &self.groups,
            mesh: self.groups.mesh(),
            recorder: &mut display,
            interrupted: self.interrupt.flag(),
            resume: self.resume && !checkpoint::list(&config.out.join("checkpoints"))?.is_empty(),
            goal: Goal::Train,
        };
        match stage {
            Stage::Base => {
                let network = Network { base: &self.config.base, tokenizer: &self.config.path("tokenizer") };
                stage::run_base(&config, &network, &mut around)?;
            }
            _ => stage::run(stage, &config, &mut around)?,
        }
        Ok(true)
    }
}

/// The files that the part `data` writes.
const MADE_ROWS: [&str; 6] = [
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
                if self.path("data/heldout_preference.parquet").exists() {
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
