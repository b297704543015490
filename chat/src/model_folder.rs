//! The folder of a model: which folder a name means, a tokenizer to train with, and the files beside the
//! weights.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::Tokenizer;
use gemini::{ChunkManager, WeightMemory};
use inference::model_folder::ModelFolder;
use inference::remote::{RemoteError, is_endpoint};
use inference::session::{load_tokenizer, stop_ids};
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::lora::AdapterFolder;
use parallel::ProcessGroups;
use serde_json::json;
use tch::{Device, Kind};

use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::output;

/// The folder of a model: a local folder, or the cached copy of a hub model, which is downloaded if needed.
/// For the folder of a run, this is the folder of its trained model, `final/`. An endpoint has no folder.
pub(crate) fn find(model: &str) -> anyhow::Result<ModelFolder> {
    Ok(ModelFolder::open(find_path(model)?)?)
}

/// The folder of an adapter, found as [`find`] finds it. The model that it belongs to need not be there.
pub(crate) fn find_adapter(model: &str) -> anyhow::Result<AdapterFolder> {
    let path = find_path(model)?;
    if AdapterFolder::is_one(&path) {
        return Ok(AdapterFolder::open(&path)?);
    }
    let problem = "this is no adapter: it has no adapter_config.json".to_owned();
    Err(ConfigError::Argument { argument: path.display().to_string(), problem }.into())
}

fn find_path(model: &str) -> anyhow::Result<PathBuf> {
    if is_endpoint(model) {
        return Err(RemoteError::WeightsWanted { address: model.to_owned() }.into());
    }
    let folder = datasets::hub::resolve(model)?;
    if folder.join("config.json").exists() || !folder.join("run.toml").exists() {
        return Ok(folder);
    }
    let made = folder.join("final");
    if !made.is_dir() {
        let argument = folder.display().to_string();
        return Err(ConfigError::Argument { argument, problem: no_model_message(&folder) }.into());
    }
    print_stderr(&format!("{}: the folder of a run; its model is {}", folder.display(), made.display()));
    Ok(made)
}

/// How the file of an adapter names a model folder: by its name and commit on the hub if it comes from there,
/// otherwise by its whole path.
pub(crate) fn name_of_base(folder: &Path) -> (String, Option<String>) {
    let path = || std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).display().to_string();
    match datasets::hub::cached_model(folder) {
        Some((name, commit)) => (name, Some(commit)),
        None => (path(), None),
    }
}

/// The error message for the folder of a run or pipeline that has no model of its own. It names the folders
/// to use instead.
fn no_model_message(folder: &Path) -> String {
    let inside = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path().join("final"));
    let mut made: Vec<String> =
        inside.filter(|made| made.is_dir()).map(|made| made.display().to_string()).collect();
    made.sort();
    if made.is_empty() {
        return "this is the folder of a run that has not finished: continue it with --resume, or give one of \
                its checkpoints"
            .to_owned();
    }
    format!("this is the folder of a pipeline: give one of its models, {}", made.join(", "))
}

/// A tokenizer for a model that is about to be trained.
pub(crate) struct TokenizerToTrain {
    pub(crate) tokenizer: Tokenizer,
    /// The tokens that were added to the tokenizer. The model needs embeddings for them.
    pub(crate) added: Vec<&'static str>,
}

/// Like [`load_tokenizer`], for supervised fine-tuning: the template `chatml` adds its turn tokens if they
/// are missing.
pub(crate) fn tokenizer_to_train(folder: &Path, template: Option<&str>) -> anyhow::Result<TokenizerToTrain> {
    if template != Some("chatml") {
        return Ok(TokenizerToTrain { tokenizer: load_tokenizer(folder, template)?, added: Vec::new() });
    }
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    let added = tokenizer.add_turn_tokens();
    tokenizer.set_built_in_template("chatml")?;
    Ok(TokenizerToTrain { tokenizer, added })
}

/// Writes the files that accompany a language model: the tokenizer, and a `generation_config.json` with which
/// `transformers` ends a reply at the same token ids as this program.
pub(crate) fn save_tokenizer(
    folder: &Path,
    tokenizer: &Tokenizer,
    config: &Config,
) -> Result<(), rlhf::Error> {
    tokenizer.save(folder)?;
    let generation = json!({
        "bos_token_id": tokenizer.bos_id(),
        "eos_token_id": stop_ids(tokenizer, config),
        "pad_token_id": tokenizer.pad_id(),
    });
    output::write_atomically(&folder.join("generation_config.json"), format!("{generation:#}\n").as_bytes())
}

/// The options for loading frozen weights that no stage trains.
pub(crate) fn frozen_options(kind: Kind, device: Device) -> LoadOptions {
    let groups = Arc::new(ProcessGroups::single());
    let memory = WeightMemory::for_device(&ChunkManager::unlimited(), device, &groups);
    LoadOptions { memory, ..LoadOptions::frozen(kind, device) }
}

/// The last part of a path that tells models apart: `final` and the steps of checkpoints do not.
pub(crate) fn short_name(path: &Path) -> String {
    let parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let telling = |part: &&String| !matches!(part.as_str(), "final" | "checkpoints" | "." | "/" | "..");
    let last = parts.iter().rev().find(telling).cloned();
    last.unwrap_or_else(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_telling_part_of_a_path() {
        for (path, name) in [
            ("demo/sft/final", "sft"),
            ("runs/ppo/checkpoints/step-20", "step-20"),
            ("./base/", "base"),
            ("owner/name", "name"),
            (".", "."),
        ] {
            assert_eq!(short_name(Path::new(path)), name);
        }
    }
}
