//! The resolved configuration as it is saved with a run: written as TOML, and compared with another one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::no_effect::{self, HELD_OUT};
use super::read;
use super::run_config::RunConfig;
use super::stage::{IgnoredKey, StageSchema};
use super::tree::{self, Node};

impl RunConfig {
    /// Returns the keys and sections that have no effect on `stage`, each with the reason.
    pub(super) fn ignored_keys(&self, stage: &StageSchema) -> Vec<IgnoredKey> {
        [stage.ignored_keys(), no_effect::by_setting(self, stage)].concat()
    }

    /// Reads a configuration that [`to_toml`](Self::to_toml) wrote, perhaps in an earlier version, and writes
    /// it as this version does: keys that did not exist yet have their defaults in `stage`.
    pub(crate) fn upgrade(saved: &str, stage: &StageSchema) -> anyhow::Result<String> {
        let mut saved = tree::parse(saved, Path::new("run.toml"))?;
        // The section [rm] was called [reward], which is a list now.
        if saved.get("reward").is_some_and(|entry| matches!(entry.node, Node::Table(_))) {
            let section = saved.remove("reward").expect("the section was found above");
            saved.insert("rm".to_owned(), section);
        }
        let config: Self = read::read(&tree::merge(stage.own_defaults()?, saved))?;
        Ok(config.of_stage(stage).to_toml(stage)?)
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
/// how often it is saved, and how programs and servers are reached that score or answer replies. `*` is any
/// one part of a key.
pub(crate) const RESUME_MUTABLE_KEYS: [&str; 26] = [
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
    "reward.*.attempts",
    "reward.*.batch_size",
    "reward.*.command",
    "reward.*.concurrency",
    "reward.*.headers",
    "reward.*.max_restarts",
    "reward.*.timeout",
    "reward.*.url",
    "environment.attempts",
    "environment.batch_size",
    "environment.command",
    "environment.concurrency",
    "environment.headers",
    "environment.max_restarts",
    "environment.timeout",
    "environment.url",
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

/// Compares two resolved configurations. Keys and sections in `except` are ignored, in which `*` is any one
/// part of a key.
pub(crate) fn differences(was: &str, now: &str, except: &[&str]) -> Result<Vec<Difference>, toml::de::Error> {
    let [was, now] = [flatten_toml(was)?, flatten_toml(now)?];
    let is_excepted = |key: &str| except.iter().any(|section| is_within(key, section));
    let found = flat_differences(&was, &now).into_iter();
    Ok(found.filter(|difference| !is_excepted(&difference.key)).collect())
}

/// Whether `key` is the key or section `section`, or is in it.
fn is_within(key: &str, section: &str) -> bool {
    let mut parts = parts(key);
    section.split('.').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
}

/// The parts of a dotted key. A name in quotes is one part.
fn parts(key: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    key.split(move |mark: char| {
        is_quoted ^= mark == '"';
        mark == '.' && !is_quoted
    })
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

/// Maps the dotted key of every value of a TOML text to the value. A list of tables with names of their own,
/// such as `[[reward]]`, is laid out by name, as in `reward.length.weight`, beside the list of the names.
pub(crate) fn flatten_toml(text: &str) -> Result<BTreeMap<String, String>, toml::de::Error> {
    let mut found = BTreeMap::new();
    lay_out("", &toml::from_str(text)?, &mut found);
    Ok(found)
}

fn lay_out(prefix: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(table) => lay_out(&key, table, flat),
            toml::Value::Array(values) => match named_tables(values) {
                Some(tables) => {
                    for (name, table) in &tables {
                        let quote = if name.contains('.') { "\"" } else { "" };
                        lay_out(&format!("{key}.{quote}{name}{quote}"), table, flat);
                        flat.remove(&format!("{key}.{quote}{name}{quote}.name"));
                    }
                    let names: Vec<&str> = tables.into_iter().map(|(name, _)| name).collect();
                    flat.insert(key, toml::Value::from(names).to_string());
                }
                None => drop(flat.insert(key, value.to_string())),
            },
            value => drop(flat.insert(key, value.to_string())),
        }
    }
}

/// The tables of a list by their names, or their kinds if they have no name, in their order. `None` if some
/// have neither or two have the same.
fn named_tables(values: &[toml::Value]) -> Option<Vec<(&str, &toml::Table)>> {
    let tables: Vec<(&str, &toml::Table)> = values.iter().map(named_table).collect::<Option<_>>()?;
    let names: BTreeSet<&str> = tables.iter().map(|(name, _)| *name).collect();
    (!tables.is_empty() && names.len() == tables.len()).then_some(tables)
}

fn named_table(value: &toml::Value) -> Option<(&str, &toml::Table)> {
    let table = value.as_table()?;
    Some((table.get("name").or_else(|| table.get("kind"))?.as_str()?, table))
}
