//! Presets: the conventions and hyper-parameters of other programs. A preset is a run file below the file of
//! the user, with common sections and tables of stages. It says nothing about the size of a run: how many
//! rows fit into memory is not a convention.

use super::error::ConfigError;
use super::read;
use super::tree::{self, Entry, Node, Tree};

/// The key that names a preset.
pub(super) const KEY: &str = "preset";

/// The presets, each with its file.
pub(crate) const PRESETS: [(&str, &str); 5] = [
    ("trl", include_str!("../../presets/trl.toml")),
    ("colossalchat", include_str!("../../presets/colossalchat.toml")),
    ("openrlhf", include_str!("../../presets/openrlhf.toml")),
    ("verl", include_str!("../../presets/verl.toml")),
    ("deepspeed-chat", include_str!("../../presets/deepspeed-chat.toml")),
];

/// Removes the name of a preset from the file of the user and returns the sections of the preset; without a
/// name, none.
pub(super) fn take(tree: &mut Tree) -> Result<Tree, ConfigError> {
    let Some(Entry { node, origin }) = tree.remove(KEY) else { return Ok(Tree::new()) };
    let Node::Leaf(toml::Value::String(name)) = &node else {
        let message = "must be the name of a preset, in quotes".to_owned();
        return Err(ConfigError::Value { place: Some(origin.location), key: origin.key, message });
    };
    if let Some((name, text)) = PRESETS.iter().find(|(known, _)| known == name) {
        return tree::parse_preset(text, name);
    }
    let known = PRESETS.map(|(name, _)| name);
    let nearest = read::nearest(name, &known).map(str::to_owned);
    let (place, key, value) = (Some(origin.location), origin.key, name.clone());
    Err(ConfigError::UnknownValue { place, nearest, key, value, known: known.join(", ") })
}
