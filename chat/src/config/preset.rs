//! Presets: the conventions and hyper-parameters of other programs and papers. A preset is a run file below
//! the file of the user, with common sections and tables of stages. Of several, each is above those before
//! it. A preset says nothing about the size of a run: how many rows fit into memory is not a convention.

use super::error::ConfigError;
use super::read;
use super::tree::{self, Entry, Node, Tree};

/// The key that names a preset, or several.
pub(super) const KEY: &str = "preset";

/// The presets, each with its file.
pub(crate) const PRESETS: [(&str, &str); 8] = [
    ("trl", include_str!("../../presets/trl.toml")),
    ("colossalchat", include_str!("../../presets/colossalchat.toml")),
    ("openrlhf", include_str!("../../presets/openrlhf.toml")),
    ("verl", include_str!("../../presets/verl.toml")),
    ("deepspeed-chat", include_str!("../../presets/deepspeed-chat.toml")),
    ("lora", include_str!("../../presets/lora.toml")),
    ("qlora", include_str!("../../presets/qlora.toml")),
    ("lora-without-regret", include_str!("../../presets/lora-without-regret.toml")),
];

/// Removes the names of presets from the file of the user and returns the sections of each preset; without a
/// name, none.
pub(super) fn take(tree: &mut Tree) -> Result<Vec<Tree>, ConfigError> {
    match tree.remove(KEY) {
        None => Ok(Vec::new()),
        Some(Entry { node: Node::List(entries), .. }) => entries.iter().map(named).collect(),
        Some(entry) => Ok(vec![named(&entry)?]),
    }
}

/// The sections of the preset that an entry names.
fn named(Entry { node, origin }: &Entry) -> Result<Tree, ConfigError> {
    let (place, key) = (Some(origin.location.clone()), origin.key.clone());
    let Node::Leaf(toml::Value::String(name)) = node else {
        let message = "must be the name of a preset, in quotes, or a list of names".to_owned();
        return Err(ConfigError::Value { place, key, message });
    };
    if let Some((name, text)) = PRESETS.iter().find(|(known, _)| known == name) {
        return tree::parse_preset(text, name);
    }
    let known = PRESETS.map(|(name, _)| name);
    let nearest = read::nearest(name, &known).map(str::to_owned);
    Err(ConfigError::UnknownValue { place, nearest, key, value: name.clone(), known: known.join(", ") })
}
