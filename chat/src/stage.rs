//! One training stage from its resolved configuration: load, check, train. `sft`, `rm`, `ppo` and every part of `pipeline` end here.

mod base;
mod plan;
mod ppo;
mod preflight;
mod rm;
mod rows;
mod sft;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::Tokenizer;
use gemini::checkpoint;
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::decoder;
use models::split::{Layers, Split, Tokens};
use parallel::comm::Group;
use parallel::{Groups, Mesh, Parameter, Segmented, memory};
use rlhf::event::Recorder;
use rlhf::run::{Cadence, Run, Save};
use tch::Device;

use crate::command::tell;
use crate::config::section::SequenceMode;
use crate::config::{ConfigError, RunConfig, Stage};
use crate::folder::RunFolder;
use crate::interrupt;
use crate::session;

pub(crate) use base::Network;
pub(crate) use plan::Plan;
pub(crate) use preflight::Preflight;

/// What surrounds a stage.
pub(crate) struct Around<'a> {
    /// The processes of the job.
    pub(crate) groups: &'a Arc<Groups>,
    /// How they are arranged; of a dry run, how they would be.
    pub(crate) mesh: &'a Mesh,
    /// Who listens.
    pub(crate) recorder: &'a mut dyn Recorder,
    /// The folder of the run, and the checkpoint that it goes on from.
    pub(crate) folder: &'a RunFolder,
    /// What it is run for.
    pub(crate) goal: Goal,
}

/// What a stage is run for. But for training, it stops before the run folder is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// To train.
    Train,
    /// To check everything and tell the plan.
    DryRun,
    /// To print the plan.
    Plan {
        /// As one object.
        json: bool,
    },
}

/// Runs a stage that starts from a model folder.
pub(crate) fn run(stage: Stage, config: &RunConfig, around: &mut Around<'_>) -> anyhow::Result<()> {
    match stage {
        Stage::Base => anyhow::bail!("the base model is trained by `pipeline`"),
        Stage::Sft => sft::run(config, around),
        Stage::Rm => rm::run(config, around),
        Stage::Ppo => ppo::run(config, around),
    }
}

/// Trains a new network on plain text.
pub(crate) fn run_base(
    config: &RunConfig,
    network: &Network<'_>,
    around: &mut Around<'_>,
) -> anyhow::Result<()> {
    base::run(config, network, around)
}

/// The folder that the model is loaded from: the checkpoint of a resumed run, else what `[model] path` names.
fn start_folder(config: &RunConfig, around: &Around<'_>) -> anyhow::Result<PathBuf> {
    around.folder.checkpoint().map_or_else(|| session::folder(&config.model.path), |path| Ok(path.to_owned()))
}

/// The tokenizer of a stage: what `[tokenizer]` names, else that of the model.
fn tokenizer(config: &RunConfig, model: &Path) -> anyhow::Result<Tokenizer> {
    session::tokenizer(&tokenizer_folder(config, model)?, config.tokenizer.template.as_deref())
}

fn tokenizer_folder(config: &RunConfig, model: &Path) -> anyhow::Result<PathBuf> {
    match &config.tokenizer.path {
        Some(path) => session::folder(path),
        None => Ok(model.to_owned()),
    }
}

/// Weights to be trained, of which each process has its part.
fn trainable(config: &RunConfig, groups: &Groups) -> LoadOptions {
    let tokens = match config.parallel.sequence.mode {
        SequenceMode::Megatron if groups.tensor().size() > 1 => Tokens::Megatron,
        SequenceMode::Ulysses if groups.sequence().size() > 1 => {
            Tokens::Ulysses(Arc::clone(groups.sequence()))
        }
        SequenceMode::Ring if groups.sequence().size() > 1 => Tokens::Ring(Arc::clone(groups.sequence())),
        _ => Tokens::Whole,
    };
    let section = &config.parallel.pipeline;
    let layers = (section.size > 1).then(|| Layers {
        group: Arc::clone(groups.pipeline()),
        method: section.schedule,
        chunks: section.chunks,
        ends: groups.ends().cloned(),
    });
    let wide = |group: &Arc<Group>| (group.size() > 1).then(|| Arc::clone(group));
    let (experts, holders) = (wide(groups.expert()), wide(groups.holders()));
    let split = Split { tokens, layers, experts, holders, ..Split::of_weights(groups.tensor()) };
    LoadOptions { kind: config.model.dtype.kind(), device: Device::Cpu, trainable: true, split }
}

/// Shows the plan; opens the run folder and runs `stage` in it, unless only the plan was asked for.
fn in_run_folder(
    stage: Stage,
    config: &RunConfig,
    mut plan: Plan,
    companions: &Save<'_>,
    around: &mut Around<'_>,
    train: impl FnOnce(&mut Run<'_>) -> Result<(), rlhf::Error>,
) -> anyhow::Result<()> {
    let groups = around.groups;
    plan.loaded_bytes = groups.world().gather(vec![memory::peak_rss_bytes()])?;
    if groups.is_first() {
        match around.goal {
            Goal::Plan { json } => plan.print(json)?,
            Goal::Train | Goal::DryRun => plan.show(),
        }
    }
    if around.goal != Goal::Train {
        return Ok(());
    }

    let settings = config.to_toml(stage)?;
    if groups.is_first() {
        around.folder.open(&settings)?;
        plan.write(&config.out)?;
    }
    groups.world().barrier()?;
    let mut files = crate::record::Many(vec![
        Box::new(crate::record::Rows::new(&config.out)),
        Box::new(crate::record::Events::new(&config.out)),
    ]);
    let mut recorder = Both(&mut files, around.recorder);
    let mut run = Run {
        stage: stage.name(),
        out: &config.out,
        groups: Arc::clone(groups),
        seed: config.seed,
        cadence: Cadence {
            checkpoint: config.checkpoint.every,
            keep: config.checkpoint.keep,
            log: config.log.every,
            eval: config.eval.every,
        },
        resume: around.folder.checkpoint().map(Path::to_owned),
        interrupted: interrupt::flag(),
        recorder: &mut recorder,
        companions,
    };

    // From here on a signal lets the step at hand end and be saved.
    let work = interrupt::begin();
    let trained = train(&mut run);
    drop(work);
    if let Err(error) = trained {
        if groups.is_first() {
            tell_what_is_left(&config.out, &error);
        }
        return Err(error.into());
    }

    let peaks = groups.world().gather(vec![memory::peak_rss_bytes()])?;
    if groups.is_first() && peaks.len() > 1 {
        tell(&format!("peak memory of the processes: {}", plan::mebibytes(&peaks)));
    }
    Ok(())
}

/// Values of a whole model, of which each process has some parameters.
fn num_values(model: &impl Segmented, groups: &Groups) -> anyhow::Result<usize> {
    let counts = |parameter: &&Parameter| parameter.counts_among(groups);
    let own: usize = model.parameters().iter().filter(counts).map(Parameter::num_elements).sum();
    let [all] = groups.holders().sum([own as f64])?;
    Ok(all as usize)
}

/// Tells, once for a stage, that dropout which a `config.json` asks for is not applied.
fn tell_dropout(groups: &Groups, models: &[(&str, &Config)]) {
    let told = |(role, config): &(&str, &Config)| {
        let shares: Vec<String> =
            config.dropout().iter().map(|(key, share)| format!("`{key}` {share}")).collect();
        (!shares.is_empty()).then(|| format!("{} of the {role}", shares.join(", ")))
    };
    let told: Vec<String> = models.iter().filter_map(told).collect();
    if groups.is_first() && !told.is_empty() {
        tell(&format!("warning: dropout of config.json is not applied: {}", told.join("; ")));
    }
}

/// Checks that the models of a stage can be split over `mesh`. In a dry run the ranks of the mesh do not
/// exist, so loading the models would not detect it.
fn check_split(config: &RunConfig, models: &[&Config], around: &Around<'_>) -> anyhow::Result<()> {
    let is_running = around.mesh.world_size() == around.groups.world().size();
    if is_running { check_experts(config, models) } else { check_mesh(config, models, around.mesh) }
}

fn check_experts(config: &RunConfig, models: &[&Config]) -> anyhow::Result<()> {
    if config.parallel.expert.size > 1 && models.iter().all(|model| model.architecture().experts.is_none()) {
        let key = "parallel.expert.size".to_owned();
        let message = format!("{}: no model of this stage has experts", config.parallel.expert.size);
        return Err(ConfigError::Value { place: None, key, message }.into());
    }
    Ok(())
}

/// Refuses models that cannot be split over `mesh`, from their configurations alone.
fn check_mesh(config: &RunConfig, models: &[&Config], mesh: &Mesh) -> anyhow::Result<()> {
    check_experts(config, models)?;
    for rank in 0..mesh.world_size() {
        let split = trainable(config, &Groups::planned(&mesh.seen_from(rank))).split;
        models.iter().try_for_each(|model| decoder::check_split(model, &split))?;
    }
    Ok(())
}

/// Says where the newest checkpoint of a run that failed is, if there is one. Who interrupts a run hears it
/// anyway.
fn tell_what_is_left(out: &Path, error: &rlhf::Error) {
    if matches!(error, rlhf::Error::Interrupted { .. }) {
        return;
    }
    let newest =
        checkpoint::list(&out.join("checkpoints")).ok().and_then(|mut checkpoints| checkpoints.pop());
    match newest {
        Some((_, path)) => tell(&format!("the newest checkpoint of this run is {}", path.display())),
        None => tell("this run has saved no checkpoint"),
    }
}

/// The files of the run folder first, then whoever else listens.
struct Both<'a>(&'a mut dyn Recorder, &'a mut dyn Recorder);

impl Recorder for Both<'_> {
    fn record(&mut self, event: &rlhf::event::Event<'_>) -> Result<(), rlhf::Error> {
        self.0.record(event)?;
        self.1.record(event)
    }
}
