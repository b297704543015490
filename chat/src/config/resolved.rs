//! The resolved configuration as it is saved with a run: written as TOML, and compared with another one.

use std::collections::{BTreeMap, BTreeSet};

use super::no_effect::{self, HELD_OUT};
use super::run_config::RunConfig;
use super::stage::{IgnoredKey, StageSchema};

impl RunConfig {
    /// Returns the keys and sections that have no effect on `stage`, each with the reason.
    pub(super) fn ignored_keys(&self, stage: &StageSchema) -> Vec<IgnoredKey> {
        [stage.ignored_keys(), no_effect::by_setting(self, stage)].concat()
    }

    /// Reads a configuration that [`to_toml`](Self::to_toml) wrote, perhaps in an earlier version, and writes
    /// it as this version does: keys that did not exist yet have their defaults.
    pub(crate) fn upgrade(saved: &str, stage: &StageSchema) -> Result<String, toml::de::Error> {
        let config: Self = toml::from_str(saved)?;
        config.to_toml(stage).map_err(serde::de::Error::custom)
    }

    /// Writes the configuration of `stage` as TOML that makes the same run, with every default written out.
    /// Keys without effect are left out.
    pub(crate) fn to_toml(&self, stage: &StageSchema) -> Result<String, toml::ser::Error> {
        let mut table = toml::Table::try_from(self)?;
        // Whether the report of a pipeline reads the held-out rows of a stage is not known here.
        let is_kept = |key: &str| key == HELD_OUT && stage.reads(HELD_OUT);
        let ignored = self.ignored_keys(stage).into_iter().filter(|(key, _)| !is_kept(key));
        ignored.for_each(|(key, _)| remove(&mut table, key));
        toml::to_string(&table)
    }

    /// The same, with the origin of every value that is no default as a comment.
    pub(crate) fn to_annotated_toml(&self, stage: &StageSchema) -> anyhow::Result<String> {
        Ok(self.origins.annotate(&self.to_toml(stage)?)?)
    }
}

/// Removes a dotted key from a table.
pub(super) fn remove(table: &mut toml::Table, key: &str) {
    match key.split_once('.') {
        None => drop(table.remove(key)),
        Some((section, key)) => {
            if let Some(toml::Value::Table(section)) = table.get_mut(section) {
                remove(section, key);
            }
        }
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
