//! The home folder in the paths of the configuration: `~` and `~/...` are read as a shell reads them, because
//! no shell has seen the file, nor what follows `=` in `--set`.

use toml::Value;

use super::error::ConfigError;
use super::tree::{Entry, Node, Tree};
use crate::user_folders;

/// The keys that hold paths, or names of models that may be paths.
const PATH_KEYS: [&str; 15] = [
    "out",
    "gemini.disk_path",
    "model.path",
    "tokenizer.path",
    "data.train",
    "data.eval",
    "data.ptx",
    "data.cache",
    "eval.data",
    "eval.include_path",
    "ppo.reward_model",
    "ppo.reference_model",
    "ppo.critic_model",
    "reference.model",
    "distill.teacher",
];

/// Writes out the home folder in every path of the common sections and of the tables of stages.
pub(super) fn expand_home(mut tree: Tree) -> Result<Tree, ConfigError> {
    expand_keys(&mut tree)?;
    if let Some(Entry { node: Node::Table(stages), .. }) = tree.get_mut("stage") {
        for stage in stages.values_mut() {
            if let Node::Table(sections) = &mut stage.node {
                expand_keys(sections)?;
            }
        }
    }
    Ok(tree)
}

fn expand_keys(tree: &mut Tree) -> Result<(), ConfigError> {
    PATH_KEYS.into_iter().try_for_each(|key| find_mut(tree, key).map_or(Ok(()), expand))?;
    expand_rewards(tree)
}

/// Expands the models of `[[reward]]` entries.
fn expand_rewards(tree: &mut Tree) -> Result<(), ConfigError> {
    let Some(Entry { node: Node::List(entries), .. }) = tree.get_mut("reward") else { return Ok(()) };
    entries.iter_mut().try_for_each(|entry| match &mut entry.node {
        Node::Table(table) => table.get_mut("model").map_or(Ok(()), expand),
        _ => Ok(()),
    })
}

/// Expands a text, or every text of a list. Other values are refused when the sections are read.
fn expand(entry: &mut Entry) -> Result<(), ConfigError> {
    match &mut entry.node {
        Node::Leaf(Value::String(path)) => {
            let expanded = user_folders::expand_home(path).map_err(|error| ConfigError::Value {
                place: Some(entry.origin.location.clone()),
                key: entry.origin.key.clone(),
                message: error.to_string(),
            })?;
            *path = expanded;
            Ok(())
        }
        Node::List(entries) => entries.iter_mut().try_for_each(expand),
        _ => Ok(()),
    }
}

fn find_mut<'a>(tree: &'a mut Tree, key: &str) -> Option<&'a mut Entry> {
    match key.split_once('.') {
        None => tree.get_mut(key),
        Some((first, rest)) => match &mut tree.get_mut(first)?.node {
            Node::Table(inner) => find_mut(inner, rest),
            _ => None,
        },
    }
}
