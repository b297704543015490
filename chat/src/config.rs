//! The configuration: one TOML file for all stages of a model.
//!
//! The common sections (`[model] [tokenizer] [data] [train] [checkpoint] [log] [eval]`) apply to every stage,
//! and a section of an algorithm to the stages that read it. `[stage.NAME.SECTION]` overrides them key by key
//! for the stage NAME alone, and `--set` overrides both. `preset` names the conventions of other programs.
//! The precedence is: `--set` > `[stage.NAME.*]` > common sections > preset > defaults of the stage >
//! defaults of the sections. Only `pipeline` reads `[pipeline] [synth] [base]`. An unknown key, a wrong type,
//! a value out of bounds and a key without effect are reported before anything is loaded. The resolved
//! configuration is saved with the run and reads back as the same configuration. This module runs no command.

mod device;
pub(crate) mod error;
mod finding;
mod layout;
mod location;
mod no_effect;
mod origins;
mod paths;
pub(crate) mod preset;
mod read;
mod resolved;
mod run_config;
pub(crate) mod section;
pub(crate) mod stage;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datasets::synth::SynthOptions;
use serde::Deserialize;

pub(crate) use device::DeviceSetting;
pub(crate) use error::ConfigError;
use finding::PipelineFindings;
pub(crate) use layout::ChosenLayout;
use no_effect::HELD_OUT;
use origins::Origins;
use preset::Preset;
pub(crate) use resolved::{
    Difference, LENGTH_KEYS, RESUME_MUTABLE_KEYS, differences, flat_differences, flatten_toml,
};
use run_config::required_out;
pub(crate) use run_config::{NewModel, RunConfig, of_rewards};
use section::{BaseSection, EvalSection, ParallelSection, PipelineSection, PipelineStep, TokenizerSection};
pub(crate) use stage::{StageSchema, Units};
use tree::{Entry, Node, Tree};

use crate::folder;

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

/// The tasks about the rows that the part `data` makes.
const WORLD_TASKS: [&str; 3] = ["world", "world_sampled", "world_preference"];

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
    /// What the part `eval` asks every model, as the file says it ([`Self::evaluation`]).
    eval: EvalSection,
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

/// Reads the rewards in the common sections of the file `path`: `[[reward]]` and `[ppo] reward_model`. Every
/// other key has to be valid as well, and means nothing to the caller.
pub(crate) fn load_rewards(path: &Path, stages: &[&'static StageSchema]) -> Result<RunConfig, ConfigError> {
    let mut tree = apply_overrides(tree::parse(&read_file(path)?, path)?, std::iter::empty())?;
    preset::take(&mut tree)?;
    let (_, config) = read_file_sections(&tree, stages)?;
    config.check_rewards().map_err(|error| error.placed(&tree))?;
    Ok(config)
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
    let presets = preset::take(&mut tree)?;
    let (file, mut common) = read_file_sections(&tree, schemas)?;
    let steps = pipeline_steps(&tree, &file.pipeline, schemas)?;
    refuse_auto(&common.parallel).map_err(|error| error.placed(&tree))?;
    place_rows(&mut common.eval, &tree, &steps, &common.out);

    let mut stages = BTreeMap::new();
    let is_saved = folder::is_configuration_of(Some(path), &common.out);
    let mut told = PipelineFindings::default();
    for &stage in schemas {
        // Apply `--set` again after the tables of the stage, because `--set` overrides everything.
        let sets = sets.iter().filter(|set| is_of_stages(set));
        let stage_tree = apply_overrides(stage_sections(&presets, tree.clone(), stage)?, sets)?;
        let mut written = read_stage(&stage_tree)?;
        place_rows(&mut written.eval, &stage_tree, &steps, &common.out);
        let config = written.clone().of_stage(stage);
        // Several stages read `[ppo]` with defaults of their own. Its values need to fit to those that run.
        if steps.contains(&PipelineStep::Stage(stage.name)) {
            config.check_bounds(stage).map_err(|error| error.placed(&stage_tree))?;
            told.warnings.extend(finding::check_warmup(&stage_tree, &config, stage, is_saved)?);
            let mut ignored = no_effect::by_setting(&config, stage);
            // The report measures the reward model on these rows.
            ignored.retain(|(key, _)| *key != HELD_OUT || !steps.contains(&PipelineStep::Report));
            told.add(stage, finding::findings(&stage_tree, &written, stage, &ignored, is_saved)?)?;
        }
        stages.insert(stage.name, config);
    }

    let running = |stage: &&&StageSchema| steps.contains(&PipelineStep::Stage(stage.name));
    let is_useless = |preset: &&Preset| !schemas.iter().filter(running).any(|stage| preset.covers(stage));
    told.warnings.extend(presets.iter().filter(is_useless).map(|preset| preset.warning("this pipeline")));
    let unused = |section: &str| match section {
        "synth" => file.synth != SynthOptions::default(),
        _ => file.base != BaseSection::default(),
    };
    let of_parts = finding::by_parts(&tree, &steps, unused);
    let warnings = told.conclude(of_parts, &steps, schemas)?;

    check_tasks(&steps, &common)?;
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

/// Refuses `[parallel] auto` in a pipeline.
fn refuse_auto(parallel: &ParallelSection) -> Result<(), ConfigError> {
    if !parallel.auto {
        return Ok(());
    }
    let message = "the stages of a pipeline share one layout, and each has a fastest one of its own: take the layout that \
                   `plan STAGE --search` finds for the longest stage"
        .to_owned();
    Err(ConfigError::Value { place: None, key: "parallel.auto".to_owned(), message })
}

/// Refuses a pipeline whose part `eval` has nothing to ask.
fn check_tasks(steps: &[PipelineStep], common: &RunConfig) -> Result<(), ConfigError> {
    if steps.contains(&PipelineStep::Eval) && common.eval.tasks.0.is_empty() && !makes_rows(steps) {
        let what = "tasks for the part `eval` of [pipeline] stages";
        return Err(ConfigError::Needed { key: "eval.tasks", stage: "pipeline", what });
    }
    Ok(())
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
    let presets = preset::take(&mut tree)?;
    // The full file is read, so that a mistake in a section of another stage is reported now and not hours
    // later.
    let (file, _) = read_file_sections(&tree, stages)?;
    pipeline_steps(&tree, &file.pipeline, stages)?;
    let is_pipeline_file = tree.contains_key("pipeline") || tree.contains_key("stage");
    let tree = apply_overrides(stage_sections(&presets, tree, stage)?, for_stage.into_iter())?;
    let written = read_stage(&tree)?;
    let config = written.clone().of_stage(stage);
    config.check(stage).map_err(|error| error.placed(&tree))?;
    let is_saved = folder::is_configuration_of(Some(path), &config.out);
    let useless = presets.iter().filter(|preset| !preset.covers(stage));
    let mut warnings: Vec<String> = useless.map(|preset| preset.warning(stage.name)).collect();
    warnings.extend(finding::check_warmup(&tree, &config, stage, is_saved)?);
    for finding in finding::findings(&tree, &written, stage, &config.ignored_keys(stage), is_saved)? {
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
    let common = read_sections(&common)
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

/// Returns the sections of a file for `stage`: the defaults of the stage, overridden by the sections of each
/// preset and of the file. In each of them, the table of the stage overrides the common sections. No other
/// section is left.
fn stage_sections(presets: &[Preset], file: Tree, stage: &StageSchema) -> Result<Tree, ConfigError> {
    let of_stage = |mut tree: Tree| {
        let own = tree::find(&tree, &format!("stage.{}", stage.name)).map(|entry| entry.node.clone());
        tree.retain(|key, _| !PIPELINE_ONLY_SECTIONS.contains(&key.as_str()));
        match own {
            Some(Node::Table(own)) => tree::merge(tree, own),
            _ => tree,
        }
    };
    let trees = presets.iter().map(|preset| preset.sections.clone()).chain([file]);
    Ok(trees.map(of_stage).fold(stage.own_defaults()?, tree::merge))
}

/// Reads the configuration of a stage from its sections.
fn read_stage(tree: &Tree) -> Result<RunConfig, ConfigError> {
    Ok(RunConfig { origins: Origins::of(tree), ..read_sections(tree)? })
}

/// Reads the common sections, or those of a stage. The section of reward-model training was called `[reward]`
/// once, which is a list now; serde would only say that it is a table.
fn read_sections(tree: &Tree) -> Result<RunConfig, ConfigError> {
    match tree.get("reward") {
        Some(Entry { node: Node::Table(_), origin }) => {
            let (place, key) = (origin.location.clone(), origin.key.clone());
            Err(ConfigError::RewardTable { place, key })
        }
        _ => read::read(tree),
    }
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
        read_sections(own)?;
        for (key, reason) in stage.ignored_keys() {
            if let Some(entry) = tree::find(own, key) {
                let (place, key) = (entry.origin.location.clone(), entry.origin.key.clone());
                return Err(ConfigError::NoEffect { place, key, stage: stage.name, reason });
            }
        }
    }
    Ok(())
}

/// Whether the pipeline makes its rows.
fn makes_rows(steps: &[PipelineStep]) -> bool {
    steps.contains(&PipelineStep::Data)
}

/// Lets tasks look for the rows that a pipeline makes in its folder `out`, unless the file names another one.
fn place_rows(eval: &mut EvalSection, tree: &Tree, steps: &[PipelineStep], out: &Path) {
    if makes_rows(steps) && tree::find(tree, "eval.data").is_none() {
        out.clone_into(&mut eval.data);
    }
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

impl PipelineConfig {
    /// What the part `eval` asks every model. If the file names no task, a pipeline that makes its rows asks
    /// about these rows.
    pub(crate) fn evaluation(&self) -> EvalSection {
        let mut section = self.eval.clone();
        if section.tasks.0.is_empty() {
            section.tasks.0 = WORLD_TASKS.map(str::to_owned).into();
        }
        section
    }

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
