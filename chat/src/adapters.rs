//! `--adapter [NAME=]DIR` beside `--model`: adapters of the models of a command, which share their weights.

use inference::model_folder::ModelFolder;

use crate::config::ConfigError;
use crate::model_folder::{self, short_name};
use crate::session::ModelSource;
use crate::user_folders::expand_home;

/// A model that may have adapters.
pub(crate) struct Base {
    /// The name by which the command knows it.
    pub(crate) name: String,
    /// Its folder.
    pub(crate) folder: ModelFolder,
}

/// An adapter of one of the models.
pub(crate) struct Adapter {
    /// The name that the user gave, or else what tells its folder apart.
    pub(crate) name: String,
    /// The folder as the user gave it.
    pub(crate) given: String,
    /// The folder.
    pub(crate) folder: ModelFolder,
}

/// Parts `NAME=DIR` and `DIR`. A name has no slash, so `runs/lr=1e-4/final` is a folder.
pub(crate) fn named(given: &str) -> (Option<&str>, &str) {
    match given.split_once('=') {
        Some((name, folder)) if !name.contains('/') => (Some(name), folder),
        _ => (None, given),
    }
}

/// The model of a command that runs one: that of `source`, or an adapter of it.
pub(crate) fn one_model(source: ModelSource, adapter: Option<&str>) -> anyhow::Result<ModelSource> {
    let Some(given) = adapter else { return Ok(source) };
    let base = Base { name: String::new(), folder: model_folder::find(&source.model)? };
    let adapter = find_one(given, &[base])?;
    Ok(ModelSource { model: adapter.folder.path().display().to_string(), ..source })
}

/// Finds adapters of some models, on which they are loaded. No two of the models and adapters have one name.
pub(crate) fn find(given: &[String], bases: &[Base]) -> anyhow::Result<Vec<Adapter>> {
    let mut adapters: Vec<Adapter> = Vec::with_capacity(given.len());
    for argument in given {
        let adapter = find_one(argument, bases)?;
        let mut names = bases.iter().map(|base| &base.name).chain(adapters.iter().map(|other| &other.name));
        if names.any(|name| *name == adapter.name) {
            let problem = format!("two models have the name `{}`: give NAME=DIR", adapter.name);
            return Err(refusal(argument, problem).into());
        }
        if adapters.iter().any(|other| other.folder.path() == adapter.folder.path()) {
            return Err(refusal(argument, "this adapter is named twice: name each once".to_owned()).into());
        }
        check_vocabulary(argument, &adapter, bases)?;
        adapters.push(adapter);
    }
    Ok(adapters)
}

/// Finds one adapter, and checks that it belongs to one of the models.
pub(crate) fn find_one(argument: &str, bases: &[Base]) -> anyhow::Result<Adapter> {
    let (name, folder) = named(argument);
    if name == Some("") || folder.is_empty() {
        return Err(refusal(argument, "give NAME=DIR or DIR".to_owned()).into());
    }

    let given = expand_home(folder)?;
    let name = name.map_or_else(|| short_name(given.as_ref()), str::to_owned);
    let folder = model_folder::find(&given)?;
    let Some(wanted) = folder.base() else {
        return Err(refusal(argument, "this is a whole model: name it with --model".to_owned()).into());
    };
    if bases.iter().any(|base| folder.is_adapter_of(&base.folder)) {
        return Ok(Adapter { name, given, folder });
    }

    // The model may be an adapter of the same base, where the base is meant.
    let is_sibling = |base: &&Base| base.folder.trunk_path() == folder.trunk_path();
    if let Some(Base { folder: adapter, .. }) = bases.iter().find(is_sibling) {
        let own_base = adapter.base().expect("an adapter has a base").display();
        let adapter = adapter.path().display();
        let problem =
            format!("this is an adapter itself: give its base, --model {own_base}, and --adapter {adapter}");
        return Err(ConfigError::Argument { argument: format!("--model {adapter}"), problem }.into());
    }
    let names: Vec<String> = bases.iter().map(|base| base.folder.path().display().to_string()).collect();
    let names = if names.is_empty() { "no folder".to_owned() } else { names.join(", ") };
    let wanted = wanted.display();
    let problem = format!("this is an adapter of {wanted}, and --model names {names}: give --model {wanted}");
    Err(refusal(argument, problem).into())
}

/// Refuses an adapter that was trained with tokens that its base does not have: its embeddings are others.
fn check_vocabulary(argument: &str, adapter: &Adapter, bases: &[Base]) -> anyhow::Result<()> {
    let sizes = |folder: &ModelFolder| Ok::<i64, models::Error>(folder.config()?.vocab_size());
    for base in bases.iter().filter(|base| adapter.folder.is_adapter_of(&base.folder)) {
        let [own, other] = [sizes(&adapter.folder)?, sizes(&base.folder)?];
        if own != other {
            let problem = format!(
                "it was trained with {own} tokens, and {} has {other}, so they cannot share weights: name it alone, \
                 with --model",
                base.folder.path().display()
            );
            return Err(refusal(argument, problem).into());
        }
    }
    Ok(())
}

fn refusal(argument: &str, problem: String) -> ConfigError {
    ConfigError::Argument { argument: format!("--adapter {argument}"), problem }
}
