//! One TOML file for the whole life of a model.
//!
//! The common sections (`[model] [tokenizer] [data] [train] [checkpoint] [log] [eval] [reward] [ppo]`) hold
//! for every stage. `[stage.NAME.SECTION]` is laid over them, key by key, for the stage NAME alone, and
//! `--set` over that: `--set` > `[stage.NAME.*]` > common sections > defaults. `[pipeline] [synth] [base]`
//! belong to `pipeline`. An unknown key, a wrong type, a value out of bounds and a key without effect are
//! errors before anything is loaded. The resolved form is saved with the run and reads back as the same
//! configuration. Knows no command.

pub(crate) mod error;
mod read;
pub(crate) mod section;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use datasets::synth::SynthOptions;
use gemini::TrainConfig;
use rlhf::config::{PpoConfig, RewardConfig};
use serde::{Deserialize, Serialize};

pub(crate) use error::ConfigError;
use section::{
    BaseSection, CheckpointSection, DataSection, EvalSection, LogSection, ModelSection, ParallelSection,
    PipelineSection, SequenceMode, TensorMode, TokenizerSection,
};
use tree::{Node, SourceLocation, Tree};

/// A stage that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// The base model, from nothing; a part of `pipeline` alone.
    #[value(skip)]
    Base,
    /// Supervised fine-tuning.
    Sft,
    /// The reward model.
    Rm,
    /// Proximal policy optimisation.
    Ppo,
}

impl Stage {
    /// Every stage, in the order of a pipeline.
    pub(crate) const ALL: [Self; 4] = [Self::Base, Self::Sft, Self::Rm, Self::Ppo];

    /// The name in the configuration and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Sft => "sft",
            Self::Rm => "rm",
            Self::Ppo => "ppo",
        }
    }

    /// Keys and sections that change nothing for this stage, with what to do instead.
    fn ignored_keys(self) -> &'static [(&'static str, &'static str)] {
        const REWARD: (&str, &str) = ("reward", "[reward] is read by rm");
        const PPO: (&str, &str) = ("ppo", "[ppo] is read by ppo");
        const PTX: (&str, &str) = ("data.ptx", "ptx rows are read by ppo");
        match self {
            Self::Base => &[("model", "the base model starts from [base]"), REWARD, PPO, PTX],
            Self::Sft => &[REWARD, PPO, PTX],
            Self::Rm => &[PPO, PTX, ("data.packing", "pairs are not packed")],
            Self::Ppo => &[
                REWARD,
                ("train.steps", "[ppo] iterations says how long it runs"),
                ("train.epochs", "[ppo] iterations says how long it runs"),
                (
                    "train.gradient_accumulation_steps",
                    "[ppo] mini_batch_size says how many replies make a step",
                ),
                ("data.packing", "prompts are not packed"),
                ("data.eval", "ppo tells how it goes by the rollout"),
                ("data.eval_fraction", "ppo tells how it goes by the rollout"),
                ("eval", "ppo tells how it goes by the rollout"),
            ],
        }
    }
}

/// The configuration of one stage, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    /// Decides initial values, data order and draws.
    pub(crate) seed: u64,
    /// The run folder.
    pub(crate) out: PathBuf,
    /// Threads of one operation; absent: one a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    /// How processes share the work.
    pub(crate) parallel: ParallelSection,
    /// What the stage starts from.
    pub(crate) model: ModelSection,
    /// Its tokenizer.
    pub(crate) tokenizer: TokenizerSection,
    /// What it learns from.
    pub(crate) data: DataSection,
    /// How one optimiser step is made.
    pub(crate) train: TrainConfig,
    /// When it is saved.
    pub(crate) checkpoint: CheckpointSection,
    /// When it tells.
    pub(crate) log: LogSection,
    /// When it is measured.
    pub(crate) eval: EvalSection,
    /// The reward model's own settings.
    pub(crate) reward: RewardConfig,
    /// PPO's own settings.
    pub(crate) ppo: PpoConfig,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            out: PathBuf::new(),
            threads: None,
            parallel: ParallelSection::default(),
            model: ModelSection::default(),
            tokenizer: TokenizerSection::default(),
            data: DataSection::default(),
            train: TrainConfig::default(),
            checkpoint: CheckpointSection::default(),
            log: LogSection::default(),
            eval: EvalSection::default(),
            reward: RewardConfig::default(),
            ppo: PpoConfig::default(),
        }
    }
}

/// The whole file: what it must look like, whatever is run from it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunFile {
    seed: u64,
    out: PathBuf,
    threads: Option<usize>,
    parallel: ParallelSection,
    model: ModelSection,
    tokenizer: TokenizerSection,
    data: DataSection,
    train: TrainConfig,
    checkpoint: CheckpointSection,
    log: LogSection,
    eval: EvalSection,
    reward: RewardConfig,
    ppo: PpoConfig,
    pipeline: PipelineSection,
    synth: SynthOptions,
    base: BaseSection,
    stage: Stages,
}

/// The `[stage.NAME]` tables.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Stages {
    base: StageSections,
    sft: StageSections,
    rm: StageSections,
    ppo: StageSections,
}

/// What one stage may lay over the common sections.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StageSections {
    model: ModelSection,
    tokenizer: TokenizerSection,
    data: DataSection,
    train: TrainConfig,
    checkpoint: CheckpointSection,
    log: LogSection,
    eval: EvalSection,
    reward: RewardConfig,
    ppo: PpoConfig,
}

/// Sections that only `pipeline` reads.
const PIPELINE_ONLY_SECTIONS: [&str; 4] = ["pipeline", "synth", "base", "stage"];

/// A configuration and what a person should know of it.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// The configuration.
    pub(crate) config: T,
    /// Keys of the file that change nothing for this stage.
    pub(crate) warnings: Vec<String>,
}

/// Everything that `pipeline` needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PipelineConfig {
    /// Decides initial values, data order and draws.
    pub(crate) seed: u64,
    /// The folder of all stages.
    pub(crate) out: PathBuf,
    /// Threads of one operation; absent: one a core.
    pub(crate) threads: Option<usize>,
    /// How processes share the work.
    pub(crate) parallel: ParallelSection,
    /// What is done.
    pub(crate) pipeline: PipelineSection,
    /// The generated rows.
    pub(crate) synth: SynthOptions,
    /// The network.
    pub(crate) base: BaseSection,
    /// The tokenizer that is trained.
    pub(crate) tokenizer: TokenizerSection,
    /// The stages that train, resolved; paths that the pipeline makes itself are still empty.
    pub(crate) stages: BTreeMap<Stage, RunConfig>,
}

/// Reads the configuration of `stage` from the file `path`, with the `--set` arguments laid over it, and
/// checks it.
pub(crate) fn load(path: &Path, sets: &[String], stage: Stage) -> Result<Loaded<RunConfig>, ConfigError> {
    let text = read_file(path)?;
    from_text(&text, path, sets, stage)
}

/// Reads the configuration of a pipeline from the file `path`, with the `--set` arguments laid over it.
pub(crate) fn load_pipeline(path: &Path, sets: &[String]) -> Result<PipelineConfig, ConfigError> {
    pipeline_from_text(&read_file(path)?, path, sets)
}

/// [`load_pipeline`] from text; `path` is named in errors.
pub(crate) fn pipeline_from_text(
    text: &str,
    path: &Path,
    sets: &[String],
) -> Result<PipelineConfig, ConfigError> {
    let tree = apply_overrides(tree::parse(text, path)?, sets.iter())?;
    let file: RunFile = read::read(&tree)?;
    let mut stages = BTreeMap::new();
    for stage in Stage::ALL {
        refuse_stage_sections(&tree, stage)?;
        // Once more over the tables of the stage: `--set` goes before everything.
        let common = sets
            .iter()
            .filter(|set| !PIPELINE_ONLY_SECTIONS.iter().any(|part| set.starts_with(&format!("{part}."))));
        let config: RunConfig = read::read(&apply_overrides(stage_sections(tree.clone(), stage), common)?)?;
        config.check_bounds(stage)?;
        stages.insert(stage, config);
    }
    Ok(PipelineConfig {
        seed: file.seed,
        out: required_out(file.out, "pipeline")?,
        threads: file.threads,
        parallel: file.parallel,
        pipeline: file.pipeline,
        synth: file.synth,
        base: file.base,
        tokenizer: file.tokenizer,
        stages,
    })
}

fn from_text(
    text: &str,
    path: &Path,
    sets: &[String],
    stage: Stage,
) -> Result<Loaded<RunConfig>, ConfigError> {
    let (for_life, for_stage): (Vec<&String>, Vec<&String>) = sets.iter().partition(|set| {
        PIPELINE_ONLY_SECTIONS.iter().any(|section| set.starts_with(&format!("{section}.")))
    });
    let tree = apply_overrides(tree::parse(text, path)?, for_life.into_iter())?;
    // The whole file is read, so that a mistake in a section that another stage reads shows now and not after
    // hours.
    read::read::<RunFile>(&tree)?;
    for other in Stage::ALL {
        refuse_stage_sections(&tree, other)?;
    }
    let whole_life = tree.contains_key("pipeline") || tree.contains_key("stage");
    let tree = apply_overrides(stage_sections(tree, stage), for_stage.into_iter())?;
    let config: RunConfig = read::read(&tree)?;
    config.check(stage)?;
    let warnings = check_ignored_keys(&tree, stage)?;
    Ok(Loaded { config, warnings: if whole_life { Vec::new() } else { warnings } })
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn apply_overrides<'a>(tree: Tree, mut sets: impl Iterator<Item = &'a String>) -> Result<Tree, ConfigError> {
    sets.try_fold(tree, |tree, set| tree::set(tree, set))
}

/// The common sections with those of `stage` laid over them, and nothing else.
fn stage_sections(mut tree: Tree, stage: Stage) -> Tree {
    let own = tree::find(&tree, &format!("stage.{}", stage.name())).map(|entry| entry.node.clone());
    tree.retain(|key, _| !PIPELINE_ONLY_SECTIONS.contains(&key.as_str()));
    match own {
        Some(Node::Table(own)) => tree::merge(tree, own),
        _ => tree,
    }
}

/// Refuses `[stage.NAME.SECTION]` keys that the stage does not read: nobody writes those by intention.
fn refuse_stage_sections(tree: &Tree, stage: Stage) -> Result<(), ConfigError> {
    for (key, reason) in stage.ignored_keys() {
        if let Some(entry) = tree::find(tree, &format!("stage.{}.{key}", stage.name())) {
            let (place, key) = (entry.origin.location.clone(), entry.origin.key.clone());
            return Err(ConfigError::NoEffect { place, key, stage: stage.name(), reason });
        }
    }
    Ok(())
}

/// Keys without effect: an error when `--set` wrote them, else a warning each.
fn check_ignored_keys(tree: &Tree, stage: Stage) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for (key, reason) in stage.ignored_keys() {
        let Some(entry) = tree::find(tree, key) else { continue };
        let from_set = overridden_by_set(&entry.node).or_else(|| {
            matches!(entry.origin.location, SourceLocation::Set(_)).then(|| entry.origin.clone())
        });
        let error = |origin: tree::Origin| ConfigError::NoEffect {
            place: origin.location,
            key: origin.key,
            stage: stage.name(),
            reason,
        };
        match from_set {
            Some(origin) => return Err(error(origin)),
            None => warnings.push(error(entry.origin.clone()).to_string()),
        }
    }
    Ok(warnings)
}

/// The first value below `node` that `--set` wrote.
fn overridden_by_set(node: &Node) -> Option<tree::Origin> {
    let Node::Table(tree) = node else { return None };
    tree.values().find_map(|entry| {
        let own = matches!(
            (&entry.origin.location, &entry.node),
            (SourceLocation::Set(_), Node::Leaf(_) | Node::List(_))
        );
        own.then(|| entry.origin.clone()).or_else(|| overridden_by_set(&entry.node))
    })
}

fn required_out(out: PathBuf, stage: &'static str) -> Result<PathBuf, ConfigError> {
    if out.as_os_str().is_empty() {
        return Err(ConfigError::Needed { key: "out", stage, what: "a folder for the run" });
    }
    Ok(out)
}

impl RunConfig {
    /// Refuses what cannot be, and what is not there.
    pub(crate) fn check(&self, stage: Stage) -> Result<(), ConfigError> {
        self.check_bounds(stage)?;
        let needed = |key, what| Err(ConfigError::Needed { key, stage: stage.name(), what });
        required_out(self.out.clone(), stage.name())?;
        if self.model.path.is_empty() && stage != Stage::Base {
            return needed("model.path", "a model to start from");
        }
        if self.data.train.0.is_empty() {
            return needed("data.train", "rows to learn from");
        }
        if stage == Stage::Ppo && self.ppo.reward_model.is_empty() {
            return needed("ppo.reward_model", "the folder of a reward model");
        }

        // Settings that contradict one another.
        if stage == Stage::Ppo && self.ppo.ptx_coef == 0.0 && !self.data.ptx.0.is_empty() {
            let message =
                "has no effect while [ppo] ptx_coef is 0: set that, or leave the rows out".to_owned();
            return Err(ConfigError::Value { place: None, key: "data.ptx".to_owned(), message });
        }
        let held_out = self.data.eval_fraction > 0.0 || !self.data.eval.0.is_empty();
        if self.eval.every > 0 && !held_out && stage != Stage::Ppo {
            let wanted =
                "there are no held-out rows to look at: give [data] eval or eval_fraction, or leave it out";
            return refuse("eval.every", self.eval.every, wanted);
        }
        Ok(())
    }

    /// Refuses what cannot be, wherever the paths come from.
    fn check_bounds(&self, stage: Stage) -> Result<(), ConfigError> {
        check_parallel(&self.parallel, self.threads)?;
        self.train.check().map_err(rlhf::Error::from)?;
        if stage == Stage::Ppo {
            self.ppo.check()?;
        }
        self.data.check()?;
        if self.log.every == 0 {
            return refuse("log.every", 0, "must be at least 1");
        }
        if self.checkpoint.every > 0 && self.checkpoint.keep == 0 {
            return refuse("checkpoint.keep", 0, "must be at least 1, or set [checkpoint] every = 0");
        }
        Ok(())
    }

    /// The file that says the same, with every default written out, for `stage`.
    pub(crate) fn to_toml(&self, stage: Stage) -> Result<String, toml::ser::Error> {
        let mut table = toml::Table::try_from(self)?;
        for (key, _) in stage.ignored_keys() {
            match key.split_once('.') {
                None => drop(table.remove(*key)),
                Some((section, key)) => {
                    if let Some(toml::Value::Table(section)) = table.get_mut(section) {
                        section.remove(key);
                    }
                }
            }
        }
        toml::to_string(&table)
    }
}

/// Refuses ways of sharing that contradict one another or do not work yet.
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

    // The other modes would lay out a mesh whose collectives nobody calls, and wait for ever.
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

/// Keys that change no number of a run: where it lies and runs, how it is watched, how often it is saved.
pub(crate) const RESUME_MUTABLE_KEYS: [&str; 8] =
    ["out", "threads", "parallel", "log", "eval", "checkpoint", "data.eval", "data.cache"];

/// The first key in which two resolved configurations differ, with both values; keys and sections of `except`
/// are not looked at.
pub(crate) fn first_difference(
    was: &str,
    now: &str,
    except: &[&str],
) -> Result<Option<(String, [String; 2])>, toml::de::Error> {
    let [was, now] = [flatten_toml(was)?, flatten_toml(now)?];
    let keys: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let excepted = |key: &str| {
        let within = |section: &&str| {
            key.strip_prefix(*section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        except.iter().any(within)
    };
    let value = |of: &BTreeMap<String, String>, key| of.get(key).map_or("not set", String::as_str).to_owned();
    let changed = keys.into_iter().find(|key| !excepted(key) && was.get(*key) != now.get(*key));
    Ok(changed.map(|key| (key.clone(), [value(&was, key), value(&now, key)])))
}

/// Every value of a TOML text under its dotted key.
fn flatten_toml(text: &str) -> Result<BTreeMap<String, String>, toml::de::Error> {
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

fn refuse(key: &str, value: u64, wanted: &str) -> Result<(), ConfigError> {
    Err(ConfigError::Value { place: None, key: key.to_owned(), message: format!("{value}: {wanted}") })
}

impl PipelineConfig {
    /// The file that says the same, with every default written out.
    pub(crate) fn to_toml(&self) -> anyhow::Result<String> {
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
        table.insert("tokenizer".into(), toml::Value::try_from(&self.tokenizer)?);
        let mut stages = toml::Table::new();
        for (stage, config) in &self.stages {
            let mut own: toml::Table = toml::from_str(&config.to_toml(*stage)?)?;
            for key in ["seed", "out", "threads", "parallel"] {
                own.remove(key);
            }
            stages.insert(stage.name().to_owned(), toml::Value::Table(own));
        }
        table.insert("stage".into(), toml::Value::Table(stages));
        Ok(toml::to_string(&table)?)
    }
}

#[cfg(test)]
mod tests;
