//! The configuration: one TOML file for all stages of a model.
//!
//! The common sections (`[model] [tokenizer] [data] [train] [checkpoint] [log] [eval]`) apply to every stage,
//! and a section of an algorithm to the stages that read it. `[stage.NAME.SECTION]` overrides them key by key
//! for the stage NAME alone, and `--set` overrides both. `preset` names the conventions of another program.
//! The precedence is: `--set` > `[stage.NAME.*]` > common sections > preset > defaults. Only `pipeline` reads
//! `[pipeline] [synth] [base]`. An unknown key, a wrong type, a value out of bounds and a key without effect
//! are reported before anything is loaded. The resolved configuration is saved with the run and reads back as
//! the same configuration. This module runs no command.

mod device;
pub(crate) mod error;
mod finding;
mod location;
mod no_effect;
mod origins;
mod paths;
pub(crate) mod preset;
mod read;
pub(crate) mod section;
pub(crate) mod stage;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use datasets::synth::SynthOptions;
use gemini::{GeminiConfig, TrainConfig};
use rlhf::config::{
    CpoConfig, DistillConfig, DpoConfig, KtoConfig, OldLogprobs, OrpoConfig, PpoConfig, RewardConfig,
    SimpoConfig,
};
use rlhf::loss::preference::PreferenceLoss;
use serde::{Deserialize, Serialize};

pub(crate) use device::DeviceSetting;
pub(crate) use error::ConfigError;
use finding::PipelineFindings;
use no_effect::HELD_OUT;
use origins::Origins;
use section::{
    BaseSection, CheckpointSection, DataSection, Dtype, EvalSection, LogSection, ModelSection,
    ParallelSection, PipelineSection, PipelineStep, ReferenceSection, SequenceMode, TensorMode,
    TokenizerSection,
};
pub(crate) use stage::{IgnoredKey, StageSchema, Units};
use tree::{Entry, Node, Tree};

use crate::folder;

/// The resolved configuration of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    /// The seed of initial values, data order and random draws.
    pub(crate) seed: u64,
    /// The run folder.
    pub(crate) out: PathBuf,
    /// Number of threads per operation. If absent, each process gets an equal share of the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    /// How the ranks share the work.
    pub(crate) parallel: ParallelSection,
    /// How much memory the models may take.
    pub(crate) gemini: GeminiConfig,
    /// The model that the stage starts from.
    pub(crate) model: ModelSection,
    /// The tokenizer of the model.
    pub(crate) tokenizer: TokenizerSection,
    /// The training data.
    pub(crate) data: DataSection,
    /// The settings of the optimizer steps.
    pub(crate) train: TrainConfig,
    /// When checkpoints are saved.
    pub(crate) checkpoint: CheckpointSection,
    /// When metrics are logged.
    pub(crate) log: LogSection,
    /// When held-out rows are evaluated.
    pub(crate) eval: EvalSection,
    /// Settings specific to reward-model training.
    pub(crate) reward: RewardConfig,
    /// Settings specific to PPO.
    pub(crate) ppo: PpoConfig,
    /// The model that offline algorithms compare the policy with.
    pub(crate) reference: ReferenceSection,
    /// Settings specific to DPO and its family.
    pub(crate) dpo: DpoConfig,
    /// Settings specific to KTO.
    pub(crate) kto: KtoConfig,
    /// Settings specific to ORPO.
    pub(crate) orpo: OrpoConfig,
    /// Settings specific to `SimPO`.
    pub(crate) simpo: SimpoConfig,
    /// Settings specific to CPO.
    pub(crate) cpo: CpoConfig,
    /// Settings specific to distillation.
    pub(crate) distill: DistillConfig,
    /// What the pipeline gives its base stage.
    #[serde(skip)]
    pub(crate) base: NewModel,
    /// Where the values come from.
    #[serde(skip)]
    pub(crate) origins: Origins,
}

/// The sections of algorithms, which stages read them, and what refuses their values. A stage names the
/// sections that it reads.
pub(crate) const ALGORITHM_SECTIONS: [(&str, &str, SectionCheck); 9] = [
    ("reward", "[reward] is read by rm", |_| Ok(())),
    ("ppo", "[ppo] is read by ppo", |config| config.ppo.check()),
    ("reference", "[reference] is read by dpo and kto", |_| Ok(())),
    ("dpo", "[dpo] is read by dpo", |config| config.dpo.check()),
    ("kto", "[kto] is read by kto", |config| config.kto.check()),
    ("orpo", "[orpo] is read by orpo", |config| config.orpo.check()),
    ("simpo", "[simpo] is read by simpo", |config| config.simpo.check()),
    ("cpo", "[cpo] is read by cpo", |config| config.cpo.check()),
    ("distill", "[distill] is read by distill", |config| config.distill.check()),
];

/// Refuses the values of a section.
pub(crate) type SectionCheck = fn(&RunConfig) -> Result<(), rlhf::Error>;

/// A model that is trained from random weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NewModel {
    /// The sizes of the network.
    pub(crate) network: BaseSection,
    /// The folder of its tokenizer, which the pipeline trains.
    pub(crate) tokenizer: PathBuf,
    /// The size of the vocabulary of this tokenizer.
    pub(crate) vocab_size: usize,
}

/// The sections that only `pipeline` reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PipelineSections {
    pipeline: PipelineSection,
    synth: SynthOptions,
    base: BaseSection,
    stage: BTreeMap<String, toml::Table>,
}

/// The names of [`PipelineSections`].
const PIPELINE_ONLY_SECTIONS: [&str; 4] = ["pipeline", "synth", "base", "stage"];

/// The keys that every stage of a pipeline has in common.
const WHOLE_JOB_KEYS: [&str; 4] = ["seed", "out", "threads", "parallel"];

/// A configuration and the warnings about it.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// The configuration.
    pub(crate) config: T,
    /// Keys of the file that have no effect on this stage.
    pub(crate) warnings: Vec<String>,
}

/// The configuration of `pipeline`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PipelineConfig {
    /// The seed of initial values, data order and random draws.
    pub(crate) seed: u64,
    /// The folder that contains the run folders of all stages.
    pub(crate) out: PathBuf,
    /// Number of threads per operation. If absent, each process gets an equal share of the cores.
    pub(crate) threads: Option<usize>,
    /// How the ranks share the work.
    pub(crate) parallel: ParallelSection,
    /// The parts of the pipeline to run.
    pub(crate) pipeline: PipelineSection,
    /// The same parts, checked.
    pub(crate) steps: Vec<PipelineStep>,
    /// The settings of the generated rows.
    pub(crate) synth: SynthOptions,
    /// The network of the base model.
    pub(crate) base: BaseSection,
    /// The tasks that the part `eval` asks every model.
    pub(crate) eval: EvalSection,
    /// The tokenizer that is trained.
    pub(crate) tokenizer: TokenizerSection,
    /// The resolved configurations of the training stages. Paths that the pipeline creates itself are not set
    /// yet.
    pub(crate) stages: BTreeMap<&'static str, RunConfig>,
    /// Keys of the file that have no effect.
    pub(crate) warnings: Vec<String>,
    /// Where the values of the common sections come from.
    origins: Origins,
}

/// Reads the configuration of `stage` from the file `path`, applies the `--set` arguments, and checks the
/// result. `stages` are all stages that a file may have sections of.
pub(crate) fn load(
    path: &Path,
    sets: &[String],
    stage: &'static StageSchema,
    stages: &[&'static StageSchema],
) -> Result<Loaded<RunConfig>, ConfigError> {
    let text = read_file(path)?;
    from_text(&text, path, sets, stage, stages)
}

/// Reads the configuration of a pipeline of `stages` from the file `path` and applies the `--set` arguments.
pub(crate) fn load_pipeline(
    path: &Path,
    sets: &[String],
    stages: &[&'static StageSchema],
) -> Result<PipelineConfig, ConfigError> {
    pipeline_from_text(&read_file(path)?, path, sets, stages)
}

/// Like [`load_pipeline`], from text. `path` is used in error messages.
pub(crate) fn pipeline_from_text(
    text: &str,
    path: &Path,
    sets: &[String],
    schemas: &[&'static StageSchema],
) -> Result<PipelineConfig, ConfigError> {
    let mut tree = apply_overrides(tree::parse(text, path)?, sets.iter())?;
    let preset = preset::take(&mut tree)?;
    let (file, common) = read_file_sections(&tree, schemas)?;
    let steps = pipeline_steps(&tree, &file.pipeline, schemas)?;

    let mut stages = BTreeMap::new();
    let is_saved = folder::is_configuration_of(Some(path), &common.out);
    let mut told = PipelineFindings::default();
    for &stage in schemas {
        // Apply `--set` again after the tables of the stage, because `--set` overrides everything.
        let common = sets.iter().filter(|set| is_of_stages(set));
        let stage_tree = apply_overrides(stage_sections(&preset, tree.clone(), stage), common)?;
        let config = read_stage(&stage_tree)?;
        config.check_bounds(stage).map_err(|error| error.placed(&stage_tree))?;
        if steps.contains(&PipelineStep::Stage(stage.name)) {
            told.warnings.extend(finding::check_warmup(&stage_tree, &config, stage, is_saved)?);
            let mut ignored = no_effect::by_setting(&config, stage);
            // The report measures the reward model on these rows.
            ignored.retain(|(key, _)| *key != HELD_OUT || !steps.contains(&PipelineStep::Report));
            told.add(stage, finding::findings(&stage_tree, &config, &ignored, is_saved)?)?;
        }
        stages.insert(stage.name, config);
    }
    let unused = |section: &str| match section {
        "synth" => file.synth != SynthOptions::default(),
        _ => file.base != BaseSection::default(),
    };
    let of_parts = finding::by_parts(&tree, &steps, unused);
    let warnings = told.conclude(of_parts, &steps, schemas)?;

    if steps.contains(&PipelineStep::Eval) && common.eval.tasks.0.is_empty() {
        let what = "tasks for the part `eval` of [pipeline] stages";
        return Err(ConfigError::Needed { key: "eval.tasks", stage: "pipeline", what });
    }
    Ok(PipelineConfig {
        seed: common.seed,
        out: required_out(common.out, "pipeline")?,
        threads: common.threads,
        parallel: common.parallel,
        steps,
        eval: common.eval,
        pipeline: file.pipeline,
        synth: file.synth,
        base: file.base,
        tokenizer: common.tokenizer,
        stages,
        warnings,
        origins: Origins::of(&tree),
    })
}

fn from_text(
    text: &str,
    path: &Path,
    sets: &[String],
    stage: &'static StageSchema,
    stages: &[&'static StageSchema],
) -> Result<Loaded<RunConfig>, ConfigError> {
    let (for_stage, for_pipeline): (Vec<&String>, Vec<&String>) =
        sets.iter().partition(|set| is_of_stages(set));
    let mut tree = apply_overrides(tree::parse(text, path)?, for_pipeline.into_iter())?;
    let preset = preset::take(&mut tree)?;
    // The full file is read, so that a mistake in a section of another stage is reported now and not hours
    // later.
    let (file, _) = read_file_sections(&tree, stages)?;
    pipeline_steps(&tree, &file.pipeline, stages)?;
    let is_pipeline_file = tree.contains_key("pipeline") || tree.contains_key("stage");
    let tree = apply_overrides(stage_sections(&preset, tree, stage), for_stage.into_iter())?;
    let config = read_stage(&tree)?;
    config.check(stage).map_err(|error| error.placed(&tree))?;
    let is_saved = folder::is_configuration_of(Some(path), &config.out);
    let mut warnings = finding::check_warmup(&tree, &config, stage, is_saved)?;
    for finding in finding::findings(&tree, &config, &config.ignored_keys(stage), is_saved)? {
        match finding {
            finding if finding.is_refused => return Err(finding.error(stage.name)),
            // A common key of a file for several stages may be meant for another one.
            finding if is_pipeline_file && finding.is_common() => {}
            finding => warnings.push(finding.error(stage.name).to_string()),
        }
    }
    Ok(Loaded { config, warnings })
}

/// Reads the sections of a file for all stages: those that only `pipeline` reads, and the common ones. The
/// tables of the stages must be as valid.
fn read_file_sections(
    tree: &Tree,
    stages: &[&'static StageSchema],
) -> Result<(PipelineSections, RunConfig), ConfigError> {
    let is_of_pipeline = |key: &str| PIPELINE_ONLY_SECTIONS.contains(&key);
    let [of_pipeline, common] = [true, false].map(|wanted| -> Tree {
        let sections = tree.iter().filter(|(key, _)| is_of_pipeline(key) == wanted);
        sections.map(|(key, entry)| (key.clone(), entry.clone())).collect()
    });
    let common = read::read(&common)
        .map_err(|error| error.with_sections(&[&PIPELINE_ONLY_SECTIONS[..], &[preset::KEY]].concat()))?;
    let file = read::read(&of_pipeline)?;
    check_stage_tables(tree, stages)?;
    Ok((file, common))
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// Applies `--set` arguments, and writes out the home folder in paths.
fn apply_overrides<'a>(tree: Tree, mut sets: impl Iterator<Item = &'a String>) -> Result<Tree, ConfigError> {
    paths::expand_home(sets.try_fold(tree, |tree, set| tree::set(tree, set))?)
}

/// Whether a `--set` argument sets a key of stages: not the preset, and no key that only `pipeline` reads.
fn is_of_stages(set: &str) -> bool {
    let key = set.split('=').next().unwrap_or_default().trim();
    let is_of_pipeline = PIPELINE_ONLY_SECTIONS.iter().any(|section| key.starts_with(&format!("{section}.")));
    key != preset::KEY && !is_of_pipeline
}

/// Returns the sections of a file for `stage`: the sections of the preset, overridden by those of the file. In
/// each of the two, the table of the stage overrides the common sections. No other section is left.
fn stage_sections(preset: &Tree, file: Tree, stage: &StageSchema) -> Tree {
    let of_stage = |mut tree: Tree| {
        let own = tree::find(&tree, &format!("stage.{}", stage.name)).map(|entry| entry.node.clone());
        tree.retain(|key, _| !PIPELINE_ONLY_SECTIONS.contains(&key.as_str()));
        match own {
            Some(Node::Table(own)) => tree::merge(tree, own),
            _ => tree,
        }
    };
    tree::merge(of_stage(preset.clone()), of_stage(file))
}

/// Reads the configuration of a stage from its sections.
fn read_stage(tree: &Tree) -> Result<RunConfig, ConfigError> {
    Ok(RunConfig { origins: Origins::of(tree), ..read::read(tree)? })
}

/// Refuses `[stage.NAME]` tables of no stage, and keys in them that the stage does not read. Unlike a key of
/// a common section, such a key cannot be meant for another stage.
fn check_stage_tables(tree: &Tree, stages: &[&'static StageSchema]) -> Result<(), ConfigError> {
    let names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
    if let Some(Entry { node: Node::Table(tables), .. }) = tree.get("stage")
        && let Some((name, entry)) = tables.iter().find(|(name, _)| !names.contains(&name.as_str()))
    {
        let nearest = read::nearest(name, &names).map(|nearest| format!("stage.{nearest}"));
        let (place, key) = (Some(entry.origin.location.clone()), entry.origin.key.clone());
        return Err(ConfigError::UnknownKey { place, nearest, key, known: names.join(", ") });
    }

    for stage in stages {
        let Some(Entry { node: Node::Table(own), .. }) = tree::find(tree, &format!("stage.{}", stage.name))
        else {
            continue;
        };
        if let Some((key, entry)) = own.iter().find(|(key, _)| WHOLE_JOB_KEYS.contains(&key.as_str())) {
            let (place, key) = (Some(entry.origin.location.clone()), format!("stage.{}.{key}", stage.name));
            let known = "the sections of a stage".to_owned();
            return Err(ConfigError::UnknownKey { place, nearest: None, key, known });
        }
        read::read::<RunConfig>(own)?;
        for (key, reason) in stage.ignored_keys() {
            if let Some(entry) = tree::find(own, key) {
                let (place, key) = (entry.origin.location.clone(), entry.origin.key.clone());
                return Err(ConfigError::NoEffect { place, key, stage: stage.name, reason });
            }
        }
    }
    Ok(())
}

/// Returns the parts that `[pipeline] stages` lists. Refuses names of no part.
fn pipeline_steps(
    tree: &Tree,
    section: &PipelineSection,
    stages: &[&'static StageSchema],
) -> Result<Vec<PipelineStep>, ConfigError> {
    let step = |name: &String| {
        PipelineStep::of(name, stages).map_err(|known| {
            let entry = tree::find(tree, "pipeline.stages");
            ConfigError::UnknownValue {
                place: entry.map(|entry| entry.origin.location.clone()),
                nearest: read::nearest(name, &known).map(str::to_owned),
                key: "pipeline.stages".to_owned(),
                value: name.clone(),
                known: known.join(", "),
            }
        })
    };
    section.stages.iter().map(step).collect()
}

fn required_out(out: PathBuf, stage: &'static str) -> Result<PathBuf, ConfigError> {
    if out.as_os_str().is_empty() {
        return Err(ConfigError::Needed { key: "out", stage, what: "a folder for the run" });
    }
    Ok(out)
}

impl RunConfig {
    /// Refuses invalid or contradictory settings and missing required ones.
    pub(crate) fn check(&self, stage: &StageSchema) -> Result<(), ConfigError> {
        self.check_bounds(stage)?;
        required_out(self.out.clone(), stage.name)?;
        if stage.reads("model.path") {
            self.model_path(stage)?;
        }
        if self.data.train.0.is_empty() {
            let (key, what) = ("data.train", "rows to learn from");
            return Err(ConfigError::Needed { key, stage: stage.name, what });
        }
        if stage.reads("ppo") {
            self.reward_models(stage)?;
        }

        // Settings that contradict each other.
        if stage.reads("data.ptx") && self.ppo.ptx_coef == 0.0 && !self.data.ptx.0.is_empty() {
            let message =
                "has no effect while [ppo] ptx_coef is 0: set that, or leave the rows out".to_owned();
            return Err(ConfigError::Value { place: None, key: "data.ptx".to_owned(), message });
        }
        if stage.reads("ppo")
            && self.ppo.old_logprobs == OldLogprobs::Sampler
            && self.model.dtype == Dtype::Bfloat16
        {
            let wanted = "in bfloat16 the sampler and the training pass round differently: take \"trainer\", or [model] \
                          dtype = \"float32\"";
            return refuse("ppo.old_logprobs", "sampler", wanted);
        }
        let held_out = self.data.eval_fraction > 0.0 || !self.data.eval.0.is_empty();
        let has_tasks = !self.eval.tasks.0.is_empty() && stage.reads("eval.tasks");
        if self.eval.every > 0 && !held_out && !has_tasks && stage.reads("data.eval") {
            let wanted = "there are neither held-out rows nor tasks: give [data] eval, eval_fraction or [eval] tasks, \
                          or leave this key out";
            return refuse("eval.every", self.eval.every, wanted);
        }
        Ok(())
    }

    /// Returns the keys and sections that have no effect on `stage`, each with the reason.
    fn ignored_keys(&self, stage: &StageSchema) -> Vec<IgnoredKey> {
        [stage.ignored_keys(), no_effect::by_setting(self, stage)].concat()
    }

    /// The optimizer steps of the run (for PPO: of the policy), if no row has to be counted for it.
    fn optimizer_steps(&self, stage: &StageSchema) -> Option<u64> {
        if stage.has_rollouts { Some(self.ppo.policy_steps(self.ppo.iterations)) } else { self.train.steps }
    }

    /// What is wrong with a warm-up that is longer than a run of `steps` optimizer steps.
    pub(crate) fn long_warmup(&self, steps: u64) -> Option<String> {
        let warmup = self.train.warmup_steps;
        (warmup > steps).then(|| {
            format!(
                "{warmup} steps of warm-up are more than the run has ({steps}), so the rate never reaches [train] lr: lower \
                 this, or train longer"
            )
        })
    }

    /// Returns the model that `stage` starts from.
    pub(crate) fn model_path(&self, stage: &StageSchema) -> Result<&str, ConfigError> {
        let (key, what) = ("model.path", "a model to start from");
        self.model.path.as_deref().ok_or(ConfigError::Needed { key, stage: stage.name, what })
    }

    /// Returns the reward models of PPO.
    pub(crate) fn reward_models(&self, stage: &StageSchema) -> Result<&[String], ConfigError> {
        let (key, what) = ("ppo.reward_model", "the folder of a reward model");
        match self.ppo.reward_model.0.as_slice() {
            [] => Err(ConfigError::Needed { key, stage: stage.name, what }),
            names => Ok(names),
        }
    }

    /// Refuses invalid values. Does not require paths, because `pipeline` fills them in later.
    fn check_bounds(&self, stage: &StageSchema) -> Result<(), ConfigError> {
        check_parallel(&self.parallel, self.threads)?;
        if let Some((key, reason)) = self.gemini.refused_key() {
            return Err(ConfigError::Value { place: None, key: key.to_owned(), message: reason.to_owned() });
        }

        let optional = [
            ("model.path", &self.model.path),
            ("tokenizer.path", &self.tokenizer.path),
            ("ppo.reference_model", &self.ppo.reference_model),
            ("ppo.critic_model", &self.ppo.critic_model),
            ("reference.model", &self.reference.model),
            ("distill.teacher", &self.distill.teacher),
        ];
        let names = optional.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?)));
        for (key, name) in names.chain(self.ppo.reward_model.0.iter().map(|name| ("ppo.reward_model", name)))
        {
            if name.trim().is_empty() {
                let message =
                    "is empty: name a folder or a model of the hub, or leave the key out".to_owned();
                return Err(ConfigError::Value { place: None, key: key.to_owned(), message });
            }
        }
        self.train.check().map_err(rlhf::Error::from)?;
        let mut read = ALGORITHM_SECTIONS.iter().filter(|(section, ..)| stage.reads(section));
        read.try_for_each(|(.., check)| check(self))?;
        self.data.check()?;
        self.eval.check()?;
        if self.log.every == 0 {
            return refuse("log.every", 0, "must be at least 1");
        }
        if self.checkpoint.every > 0 && self.checkpoint.keep == 0 {
            return refuse("checkpoint.keep", 0, "must be at least 1, or set [checkpoint] every = 0");
        }
        Ok(())
    }

    /// Reads a configuration that [`to_toml`](Self::to_toml) wrote, perhaps in an earlier version, and writes
    /// it as this version does: keys that did not exist yet have their defaults.
    pub(crate) fn upgrade(saved: &str, stage: &StageSchema) -> Result<String, toml::de::Error> {
        let config: Self = toml::from_str(saved)?;
        config.to_toml(stage).map_err(serde::de::Error::custom)
    }

    /// The number of steps (for PPO: iterations) of the run, if no row has to be counted for it.
    pub(crate) fn fixed_length(&self, stage: &StageSchema) -> Option<u64> {
        if stage.has_rollouts { Some(self.ppo.iterations) } else { self.train.steps }
    }

    /// Writes the configuration of `stage` as TOML that makes the same run, with every default written out.
    /// Keys without effect are left out.
    pub(crate) fn to_toml(&self, stage: &StageSchema) -> Result<String, toml::ser::Error> {
        let mut table = toml::Table::try_from(self)?;
        // Whether the report of a pipeline reads the held-out rows of a stage is not known here.
        let is_kept = |key: &str| key == HELD_OUT && stage.reads(HELD_OUT);
        let ignored = self.ignored_keys(stage).into_iter().filter(|(key, _)| !is_kept(key));
        ignored.for_each(|(key, _)| finding::remove(&mut table, key));
        toml::to_string(&table)
    }

    /// The same, with the origin of every value that is no default as a comment.
    pub(crate) fn to_annotated_toml(&self, stage: &StageSchema) -> anyhow::Result<String> {
        Ok(self.origins.annotate(&self.to_toml(stage)?)?)
    }
}

/// Refuses parallel settings that contradict each other or are not implemented yet.
fn check_parallel(parallel: &ParallelSection, threads: Option<usize>) -> Result<(), ConfigError> {
    if threads == Some(0) {
        return refuse("threads", 0, "must be at least 1; leave it out for a fair share of the cores");
    }
    let (sequence, tensor) = (&parallel.sequence, parallel.tensor.size);
    for (key, size) in [
        ("parallel.data", parallel.data.unwrap_or(1)),
        ("parallel.pipeline.size", parallel.pipeline.size),
        ("parallel.pipeline.chunks", parallel.pipeline.chunks),
        ("parallel.expert.size", parallel.expert.size),
        ("parallel.tensor.size", tensor),
        ("parallel.sequence.size", sequence.size),
    ] {
        if size == 0 {
            return refuse(key, 0, "must be at least 1");
        }
    }

    // The other modes would create a mesh with an axis that no collective uses, and the job would hang.
    if parallel.tensor.mode != TensorMode::OneDimension {
        let message = "layers in two and three dimensions are not there yet: use \"1d\"".to_owned();
        return Err(ConfigError::Value { place: None, key: "parallel.tensor.mode".to_owned(), message });
    }
    if let Some(depth) = parallel.tensor.depth {
        return refuse("parallel.tensor.depth", depth as u64, "has no effect on mode = \"1d\": leave it out");
    }

    let size = sequence.size as u64;
    match sequence.mode {
        SequenceMode::None if size > 1 => {
            refuse("parallel.sequence.size", size, "needs mode = \"ulysses\" or \"ring\" in the same section")
        }
        SequenceMode::Megatron if size > 1 => {
            let wanted =
                "must be 1: mode = \"megatron\" shares tokens among the processes of [parallel.tensor]";
            refuse("parallel.sequence.size", size, wanted)
        }
        SequenceMode::Megatron if tensor == 1 => {
            refuse("parallel.tensor.size", 1, "must be above 1 for [parallel.sequence] mode = \"megatron\"")
        }
        _ => Ok(()),
    }
}

/// Keys that do not change the results of a run: where it is stored, where it runs, how it is monitored and
/// how often it is saved.
pub(crate) const RESUME_MUTABLE_KEYS: [&str; 10] = [
    "out",
    "threads",
    "parallel",
    "gemini",
    "model.device",
    "log",
    "eval",
    "checkpoint",
    "data.eval",
    "data.cache",
];

/// Keys that give the length of a run. They may grow on resume.
pub(crate) const LENGTH_KEYS: [&str; 3] = ["train.steps", "train.epochs", "ppo.iterations"];

/// A key in which two resolved configurations differ.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The dotted key.
    pub(crate) key: String,
    /// The first value as TOML, or "not set".
    pub(crate) was: String,
    /// The second value.
    pub(crate) now: String,
}

/// Compares two resolved configurations. Keys and sections in `except` are ignored.
pub(crate) fn differences(was: &str, now: &str, except: &[&str]) -> Result<Vec<Difference>, toml::de::Error> {
    let [was, now] = [flatten_toml(was)?, flatten_toml(now)?];
    let excepted = |key: &str| {
        let within = |section: &&str| {
            key.strip_prefix(*section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        except.iter().any(within)
    };
    Ok(flat_differences(&was, &now).into_iter().filter(|difference| !excepted(&difference.key)).collect())
}

/// Compares two configurations that are laid out by dotted key.
pub(crate) fn flat_differences(
    was: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<Difference> {
    let keys: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let value = |of: &BTreeMap<String, String>, key| of.get(key).map_or("not set", String::as_str).to_owned();
    let changed = keys.into_iter().filter(|key| was.get(*key) != now.get(*key));
    changed.map(|key| Difference { key: key.clone(), was: value(was, key), now: value(now, key) }).collect()
}

/// Maps the dotted key of every value of a TOML text to the value.
pub(crate) fn flatten_toml(text: &str) -> Result<BTreeMap<String, String>, toml::de::Error> {
    fn lay(prefix: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) {
        for (key, value) in table {
            let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                toml::Value::Table(table) => lay(&key, table, flat),
                value => drop(flat.insert(key, value.to_string())),
            }
        }
    }
    let mut found = BTreeMap::new();
    lay("", &toml::from_str(text)?, &mut found);
    Ok(found)
}

fn refuse(key: &str, value: impl Display, wanted: &str) -> Result<(), ConfigError> {
    Err(ConfigError::Value { place: None, key: key.to_owned(), message: format!("{value}: {wanted}") })
}

impl PipelineConfig {
    /// Writes the configuration as TOML that reads back the same, with every default written out.
    pub(crate) fn to_toml(&self, schemas: &[&'static StageSchema]) -> anyhow::Result<String> {
        let mut table = toml::Table::new();
        table.insert("seed".into(), toml::Value::try_from(self.seed)?);
        table.insert("out".into(), toml::Value::try_from(&self.out)?);
        if let Some(threads) = self.threads {
            table.insert("threads".into(), toml::Value::try_from(threads)?);
        }
        table.insert("parallel".into(), toml::Value::try_from(&self.parallel)?);
        table.insert("pipeline".into(), toml::Value::try_from(&self.pipeline)?);
        table.insert("synth".into(), toml::Value::try_from(&self.synth)?);
        table.insert("base".into(), toml::Value::try_from(&self.base)?);
        table.insert("eval".into(), toml::Value::try_from(&self.eval)?);
        table.insert("tokenizer".into(), toml::Value::try_from(&self.tokenizer)?);

        let mut stages = toml::Table::new();
        for stage in schemas {
            let mut own: toml::Table = toml::from_str(&self.stages[stage.name].to_toml(stage)?)?;
            for key in WHOLE_JOB_KEYS {
                own.remove(key);
            }
            stages.insert(stage.name.to_owned(), toml::Value::Table(own));
        }

        table.insert("stage".into(), toml::Value::Table(stages));
        Ok(toml::to_string(&table)?)
    }

    /// The same, with the origin of every value that is no default as a comment.
    pub(crate) fn to_annotated_toml(&self, schemas: &[&'static StageSchema]) -> anyhow::Result<String> {
        let mut origins = self.origins.clone();
        for (name, config) in &self.stages {
            origins.extend(&format!("stage.{name}."), &config.origins);
        }
        Ok(origins.annotate(&self.to_toml(schemas)?)?)
    }
}

#[cfg(test)]
mod tests;
