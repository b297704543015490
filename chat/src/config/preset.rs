//! Presets: the conventions and hyper-parameters of other programs and papers. A preset is a run file below
//! the file of the user, with common sections and tables of stages. Of several, each is above those before
//! it. A preset says nothing about the size of a run: how many rows fit into memory is not a convention.

use super::error::ConfigError;
use super::location::SourceLocation;
use super::read;
use super::stage::StageSchema;
use super::tree::{self, Entry, Node, Origin, Tree};

/// The key that names a preset, or several.
pub(super) const KEY: &str = "preset";

/// The presets, each with its file.
pub(crate) const PRESETS: [(&str, &str); 10] = [
    ("trl", include_str!("../../presets/trl.toml")),
    ("colossalchat", include_str!("../../presets/colossalchat.toml")),
    ("openrlhf", include_str!("../../presets/openrlhf.toml")),
    ("verl", include_str!("../../presets/verl.toml")),
    ("deepspeed-chat", include_str!("../../presets/deepspeed-chat.toml")),
    ("dapo", include_str!("../../presets/dapo.toml")),
    ("dr-grpo", include_str!("../../presets/dr-grpo.toml")),
    ("lora", include_str!("../../presets/lora.toml")),
    ("qlora", include_str!("../../presets/qlora.toml")),
    ("lora-without-regret", include_str!("../../presets/lora-without-regret.toml")),
];

/// A preset that the user has named.
#[derive(Debug)]
pub(super) struct Preset {
    name: &'static str,
    /// Its common sections, and its tables of stages under `stage`.
    pub(super) sections: Tree,
    /// Where it is named.
    origin: Origin,
}

impl Preset {
    /// Whether the preset says something of a stage. Optimizer settings of all stages are something of a
    /// stage without an algorithm of its own, such as `sft`, and nothing of the others.
    pub(super) fn covers(&self, stage: &StageSchema) -> bool {
        let is_value = |section: &String| match section.as_str() {
            "stage" => false,
            "train" => stage.sections.is_empty(),
            _ => true,
        };
        tree::find(&self.sections, &format!("stage.{}", stage.name)).is_some()
            || self.sections.keys().any(is_value)
    }

    /// The line that tells that the preset does not cover `stage`.
    pub(super) fn warning(&self, stage: &str) -> String {
        let tables: Vec<&str> = match self.sections.get("stage") {
            Some(Entry { node: Node::Table(tables), .. }) => tables.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let beside = if self.sections.contains_key("train") { " beside [train]" } else { "" };
        let (place, name, covered) = (&self.origin.location, self.name, tables.join(", "));
        format!("{place}: the preset `{name}` has no values for {stage}{beside}; it has values for {covered}")
    }
}

/// Removes the names of presets from the file of the user and returns the presets; without a name, none.
pub(super) fn take(tree: &mut Tree) -> Result<Vec<Preset>, ConfigError> {
    match tree.remove(KEY) {
        None => Ok(Vec::new()),
        Some(Entry { node: Node::List(entries), .. }) => entries.iter().map(named).collect(),
        Some(entry) => Ok(vec![named(&entry)?]),
    }
}

/// The preset that an entry names.
fn named(Entry { node, origin }: &Entry) -> Result<Preset, ConfigError> {
    let (place, key) = (Some(origin.location.clone()), origin.key.clone());
    let Node::Leaf(toml::Value::String(name)) = node else {
        let message = "must be the name of a preset, in quotes, or a list of names".to_owned();
        return Err(ConfigError::Value { place, key, message });
    };
    if let Some((name, text)) = PRESETS.iter().find(|(known, _)| known == name) {
        let sections = tree::parse_included(text, &SourceLocation::Preset(name))?;
        return Ok(Preset { name, sections, origin: origin.clone() });
    }
    let known = PRESETS.map(|(name, _)| name);
    let nearest = read::nearest(name, &known).map(str::to_owned);
    Err(ConfigError::UnknownValue { place, nearest, key, value: name.clone(), known: known.join(", ") })
}
