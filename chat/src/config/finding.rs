//! What becomes of keys without effect that the user has written.
//!
//! ```text
//!   written by --set, or beside a key of the same rank that excludes it   refused
//!   written in the file                                                   told, in one line each
//!   at its default, in a preset, or in the file that the run has saved    nothing
//! ```
//! A key of a common section may be meant for another stage. In a file for several stages it is told only if
//! no stage uses it, and a value that a table of a stage or `--set` overrides is no mistake. Which keys these
//! are is in [`super::no_effect`].

use super::location::SourceLocation;
use super::no_effect::TASK_KEYS;
use super::section::PipelineStep;
use super::stage::{IgnoredKey, StageSchema};
use super::tree::{self, Node, Origin, Tree};
use super::{ConfigError, RunConfig};

/// Pairs of keys of which only the second has an effect. Both at once is a mistake.
const EXCLUDED_BY: [(&str, &str); 1] = [("train.epochs", "train.steps")];

/// A key without effect that the user has written.
#[derive(Debug)]
pub(super) struct Finding {
    /// Where, and under which name.
    pub(super) origin: Origin,
    /// The key without the table of a stage.
    pub(super) key: &'static str,
    /// Why it has no effect.
    pub(super) reason: &'static str,
    /// Whether it is surely a mistake.
    pub(super) is_refused: bool,
}

impl Finding {
    /// Whether the key stands in a common section, and may be meant for another stage.
    pub(super) fn is_common(&self) -> bool {
        !self.origin.key.starts_with("stage.")
    }

    /// The finding as an error.
    pub(super) fn error(&self, stage: &'static str) -> ConfigError {
        let (place, key) = (self.origin.location.clone(), self.origin.key.clone());
        ConfigError::NoEffect { place, key, stage, reason: self.reason }
    }
}

/// Returns the keys of `ignored` that the user has written, other than at their default in `stage`.
/// `is_saved` is whether the file is the one that the run itself has saved: nobody has written its keys.
pub(super) fn findings(
    tree: &Tree,
    config: &RunConfig,
    stage: &StageSchema,
    ignored: &[IgnoredKey],
    is_saved: bool,
) -> Result<Vec<Finding>, ConfigError> {
    let [values, defaults] = [table_of(config)?, table_of(&RunConfig::default_of(stage))?];
    let mut found: Vec<Finding> = Vec::new();
    for &(key, reason) in ignored {
        let Some(entry) = tree::find(tree, key) else { continue };
        if found.iter().any(|finding| finding.key == key) {
            continue;
        }

        let origin = set_below(&entry.node).unwrap_or_else(|| entry.origin.clone());
        if matches!(origin.location, SourceLocation::Preset(_) | SourceLocation::Stage(_)) {
            continue;
        }
        let is_set = matches!(origin.location, SourceLocation::Set(_));
        let is_excluded = !is_saved
            && EXCLUDED_BY.iter().any(|(excluded, by)| {
                *excluded == key && tree::find(tree, by).is_some_and(|by| rank(&by.origin) <= rank(&origin))
            });

        // What equals the default was not asked for, and says nothing.
        let is_section = matches!(entry.node, Node::Table(_));
        let is_own = is_section || value_at(&values, key) != value_at(&defaults, key);
        if is_set || is_excluded || (is_own && !is_saved) {
            found.push(Finding { origin, key, reason, is_refused: is_set || is_excluded });
        }
    }
    Ok(found)
}

/// Refuses a warm-up that is longer than the run if the file says both, and tells of it if the length comes
/// from a table of the stage or from `--set`. A length that follows from the rows is not known here.
pub(super) fn check_warmup(
    tree: &Tree,
    config: &RunConfig,
    stage: &StageSchema,
    is_saved: bool,
) -> Result<Vec<String>, ConfigError> {
    const KEY: &str = "train.warmup_steps";
    let problem = config.optimizer_steps(stage).and_then(|steps| config.long_warmup(steps));
    let (Some(message), Some(entry)) = (problem, tree::find(tree, KEY)) else { return Ok(Vec::new()) };
    let length = if stage.has_rollouts { "ppo.iterations" } else { "train.steps" };
    let is_overridden =
        tree::find(tree, length).is_some_and(|length| rank(&length.origin) > rank(&entry.origin));
    let (place, key) = (Some(entry.origin.location.clone()), entry.origin.key.clone());
    let error = ConfigError::Value { place, key, message };
    if is_overridden || is_saved { Ok(vec![error.to_string()]) } else { Err(error) }
}

/// What the stages of a pipeline have found.
#[derive(Debug, Default)]
pub(super) struct PipelineFindings {
    /// The lines to tell.
    pub(super) warnings: Vec<String>,
    /// Keys of common sections, and how many stages do not use each of them.
    common: Vec<(Finding, usize)>,
}

impl PipelineFindings {
    /// Takes the findings of a stage. Refuses a key of its own table that is surely a mistake.
    pub(super) fn add(
        &mut self,
        stage: &'static StageSchema,
        found: Vec<Finding>,
    ) -> Result<(), ConfigError> {
        for finding in found {
            if !finding.is_common() {
                if finding.is_refused {
                    return Err(finding.error(stage.name));
                }
                self.warnings.push(finding.error(stage.name).to_string());
                continue;
            }
            match self.common.iter_mut().find(|(known, _)| known.key == finding.key) {
                Some((known, count)) => {
                    known.is_refused |= finding.is_refused;
                    *count += 1;
                }
                None => self.common.push((finding, 1)),
            }
        }
        Ok(())
    }

    /// Returns the lines to tell: those of the stages, of the keys that no stage uses, and `of_parts`.
    pub(super) fn conclude(
        mut self,
        of_parts: Vec<Finding>,
        steps: &[PipelineStep],
        schemas: &[&'static StageSchema],
    ) -> Result<Vec<String>, ConfigError> {
        let readers = |key: &str| {
            let runs = |schema: &&&StageSchema| steps.contains(&PipelineStep::Stage(schema.name));
            schemas.iter().filter(runs).filter(|schema| schema.reads(key)).count()
        };
        let is_unused = |(finding, count): &(Finding, usize)| {
            *count == readers(finding.key) && !is_read_by_pipeline(finding.key, steps)
        };
        let unused = self.common.into_iter().filter(is_unused).map(|(finding, _)| finding);
        for finding in unused.chain(of_parts) {
            let error = finding.error("this pipeline");
            if finding.is_refused {
                return Err(error);
            }
            self.warnings.push(error.to_string());
        }
        Ok(self.warnings)
    }
}

/// Whether a part of a pipeline that is no stage reads `key`.
fn is_read_by_pipeline(key: &str, steps: &[PipelineStep]) -> bool {
    match key {
        "tokenizer.vocab_size" => steps.contains(&PipelineStep::Tokenizer),
        "eval.tasks" => steps.contains(&PipelineStep::Eval),
        key => TASK_KEYS.contains(&key) && steps.contains(&PipelineStep::Eval),
    }
}

/// The keys of sections that only a part of a pipeline uses, if that part does not run.
pub(super) fn by_parts(tree: &Tree, steps: &[PipelineStep], is_set: impl Fn(&str) -> bool) -> Vec<Finding> {
    const PARTS: [(&str, PipelineStep, &str); 2] = [
        ("synth", PipelineStep::Data, "[pipeline] stages has no part `data`, which makes these rows"),
        (
            "base",
            PipelineStep::Stage("base"),
            "[pipeline] stages has no part `base`, which trains this network",
        ),
    ];
    // Parts that --set leaves out are left out for once.
    let parts = tree::find(tree, "pipeline.stages");
    if parts.is_some_and(|parts| matches!(parts.origin.location, SourceLocation::Set(_))) {
        return Vec::new();
    }
    let unused = PARTS.into_iter().filter(|(key, part, _)| !steps.contains(part) && is_set(key));
    let found = unused.filter_map(|(key, _, reason)| {
        let entry = tree.get(key)?;
        let origin = set_below(&entry.node).unwrap_or_else(|| entry.origin.clone());
        let is_refused = matches!(origin.location, SourceLocation::Set(_));
        Some(Finding { origin, key, reason, is_refused })
    });
    found.collect()
}

/// How much an origin prevails over others: `--set` over the table of a stage over a common section over a
/// preset over the defaults of the stage.
fn rank(origin: &Origin) -> u8 {
    match origin.location {
        SourceLocation::Set(_) => 4,
        SourceLocation::File(..) => 2 + u8::from(origin.key.starts_with("stage.")),
        SourceLocation::Preset(_) => 1,
        SourceLocation::Stage(_) => 0,
    }
}

fn table_of(config: &RunConfig) -> Result<toml::Table, ConfigError> {
    let failed = |error: toml::ser::Error| ConfigError::Value {
        place: None,
        key: "the configuration".to_owned(),
        message: error.to_string(),
    };
    toml::Table::try_from(config).map_err(failed)
}

/// The value of a dotted key.
fn value_at<'a>(table: &'a toml::Table, key: &str) -> Option<&'a toml::Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((section, key)) => value_at(table.get(section)?.as_table()?, key),
    }
}

/// Returns the origin of the first value below `node` that `--set` wrote.
fn set_below(node: &Node) -> Option<Origin> {
    let Node::Table(tree) = node else { return None };
    tree.values().find_map(|entry| {
        let is_set = matches!(entry.origin.location, SourceLocation::Set(_));
        let is_value = matches!(entry.node, Node::Leaf(_) | Node::List(_));
        (is_set && is_value).then(|| entry.origin.clone()).or_else(|| set_below(&entry.node))
    })
}
