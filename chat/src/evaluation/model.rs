//! The models of an evaluation: folders and endpoints, with names that differ, and how one is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::request::LanguageModel;
use parallel::LocalRank;

use super::endpoint::{EndpointModel, EndpointOptions};
use super::engine::FolderModel;
use crate::args::{ModelArgs, ModelHostArgs};
use crate::config::ConfigError;
use crate::model_folder;
use crate::remote::RemoteModel;
use crate::session::Session;

/// A model to evaluate, or a judge.
pub(crate) struct Candidate {
    /// The name that reports show.
    pub(crate) name: String,
    /// What the command line called it.
    pub(crate) argument: String,
    place: Place,
}

enum Place {
    Folder(PathBuf),
    Endpoint(Box<EndpointModel>),
}

impl Candidate {
    /// Finds a model folder, or connects to an endpoint.
    pub(crate) fn find(argument: &str, host: &ModelHostArgs) -> anyhow::Result<Self> {
        let (name, place) = if RemoteModel::is_remote(argument) {
            let model = EndpointModel::connect(argument, endpoint_options(host))?;
            (model.name().to_owned(), Place::Endpoint(Box::new(model)))
        } else {
            (short_name(Path::new(argument)), Place::Folder(model_folder::find(argument)?))
        };
        Ok(Self { name, argument: argument.to_owned(), place })
    }

    /// Finds several models. Their names differ.
    pub(crate) fn find_all(arguments: &[String], host: &ModelHostArgs) -> anyhow::Result<Vec<Self>> {
        let mut candidates: Vec<Self> = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let mut candidate = Self::find(argument, host)?;
            let taken = |name: &str| candidates.iter().any(|other| other.name == name);
            if taken(&candidate.name) {
                candidate.name.clone_from(argument);
            }
            if taken(&candidate.name) {
                let problem = "this model is named twice: name each once".to_owned();
                return Err(ConfigError::Argument { argument: format!("--model {argument}"), problem }.into());
            }
            candidates.push(candidate);
        }
        Ok(candidates)
    }

    /// A model folder that was found before.
    pub(crate) fn of_folder(name: String, folder: PathBuf) -> Self {
        Self { argument: folder.display().to_string(), name, place: Place::Folder(folder) }
    }

    /// The folder of the model. An endpoint has none.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.place {
            Place::Folder(folder) => Some(folder),
            Place::Endpoint(_) => None,
        }
    }

    /// Where the model is: its folder, with links resolved, or its address. Two models may have one name.
    pub(crate) fn place(&self) -> String {
        match &self.place {
            Place::Folder(folder) => {
                folder.canonicalize().unwrap_or_else(|_| folder.clone()).display().to_string()
            }
            Place::Endpoint(model) => model.name().to_owned(),
        }
    }

    /// The name as part of the name of a folder: of an endpoint, the name of its model.
    pub(crate) fn file_name(&self) -> String {
        let short = self.name.rsplit_once('#').map_or(self.name.as_str(), |(_, name)| name);
        super::output::file_name(if self.folder().is_some() { &self.name } else { short })
    }

    /// Loads the model, if it has a folder.
    /// Several processes of one machine have a device each.
    pub(crate) fn open(
        &self,
        host: &ModelHostArgs,
        local: LocalRank,
    ) -> anyhow::Result<Box<dyn LanguageModel>> {
        Ok(match &self.place {
            Place::Endpoint(model) => Box::new(EndpointModel::clone(model)),
            Place::Folder(folder) => {
                let session = Session::causal_lm_on(&model_args(folder, host), local)?;
                let max_length = host.max_length.map(usize::from);
                Box::new(FolderModel::new(session, self.name.clone(), folder, max_length)?)
            }
        })
    }
}

/// How the model of a folder is loaded.
pub(crate) fn model_args(folder: &Path, host: &ModelHostArgs) -> ModelArgs {
    let model = folder.display().to_string();
    ModelArgs { model, dtype: host.dtype, device: host.device, template: None }
}

/// Refuses flags of endpoints if no model is behind one.
pub(crate) fn check_endpoint_flags(host: &ModelHostArgs, has_endpoint: bool) -> Result<(), ConfigError> {
    let flags = [
        ("--endpoint-concurrency", host.endpoint_concurrency.is_some()),
        ("--endpoint-timeout", host.endpoint_timeout.is_some()),
    ];
    match flags.into_iter().find(|(_, given)| *given && !has_endpoint) {
        None => Ok(()),
        Some((flag, _)) => {
            let problem = "no model is behind an endpoint: leave the flag out".to_owned();
            Err(ConfigError::Argument { argument: flag.to_owned(), problem })
        }
    }
}

fn endpoint_options(host: &ModelHostArgs) -> EndpointOptions {
    let usual = EndpointOptions::default();
    EndpointOptions {
        concurrency: host.endpoint_concurrency.unwrap_or(usual.concurrency),
        timeout: host.endpoint_timeout.map_or(usual.timeout, |seconds| Duration::from_secs(seconds.get())),
        ..usual
    }
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
