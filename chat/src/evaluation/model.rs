//! The models of an evaluation: folders and endpoints, with names that differ, and how one is opened.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use datasets::Tokenizer;
use eval::request::LanguageModel;
use inference::language_model::{EndpointModel, EndpointOptions, FolderModel, folder_digest};
use inference::model_folder::ModelFolder;
use inference::remote::{KeyChoice, KeyPlan, is_endpoint};
use inference::session::{Session, check_vocabulary, load_tokenizer};
use inference::shared_weights::SharedWeights;
use models::scalar_model::ScalarModel;
use parallel::LocalRank;

use crate::adapters::{self, Adapter, Base};
use crate::config::{ConfigError, DeviceSetting};
use crate::model_folder::{self, short_name};
use crate::session::{self, ModelSource, WeightSettings};

/// Changes when the same conversation gets another score from the same reward model.
const REWARD_ENGINE: &str = "colossal-chat reward 2";

/// How models are run here, and asked behind an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct ModelHost {
    /// How the weights are held, and where a model computes.
    pub(crate) weights: WeightSettings,
    /// The most tokens of a row, below what the model allows.
    pub(crate) max_length: Option<NonZeroUsize>,
    /// The requests that are under way at an endpoint at once, in place of the usual number.
    pub(crate) endpoint_concurrency: Option<NonZeroUsize>,
    /// The most seconds for a reply of an endpoint, in place of the usual number.
    pub(crate) endpoint_timeout: Option<NonZeroU64>,
}

impl ModelHost {
    /// The usual settings, on a device.
    pub(crate) fn on(device: DeviceSetting) -> Self {
        Self {
            weights: WeightSettings { device, ..WeightSettings::default() },
            max_length: None,
            endpoint_concurrency: None,
            endpoint_timeout: None,
        }
    }
}

/// A model to evaluate, or a judge.
pub(crate) struct Candidate {
    /// The name that reports show.
    pub(crate) name: String,
    /// What the command line called it.
    pub(crate) argument: String,
    place: Place,
}

enum Place {
    Folder(ModelFolder),
    Endpoint(Box<EndpointModel>),
}

impl Candidate {
    /// Finds a model folder, or connects to an endpoint.
    pub(crate) fn find(argument: &str, host: &ModelHost, key: KeyChoice) -> anyhow::Result<Self> {
        let (name, place) = if is_endpoint(argument) {
            let model = EndpointModel::connect(argument, endpoint_options(host, key))?;
            (model.name().to_owned(), Place::Endpoint(Box::new(model)))
        } else {
            (short_name(Path::new(argument)), Place::Folder(model_folder::find(argument)?))
        };
        Ok(Self { name, argument: argument.to_owned(), place })
    }

    /// Finds several models. Their names differ.
    pub(crate) fn find_all(
        arguments: &[String],
        host: &ModelHost,
        keys: &KeyPlan,
    ) -> anyhow::Result<Vec<Self>> {
        let mut candidates: Vec<Self> = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let mut candidate = Self::find(argument, host, keys.choice(argument, false))?;
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

    /// Refuses a folder that cannot answer, before any model is asked: one of a reward model, without weights
    /// or a tokenizer, or without a chat template where conversations are asked. `flag` names it in messages.
    pub(crate) fn check_answers(&self, flag: &str, needs_template: bool) -> anyhow::Result<()> {
        let Place::Folder(folder) = &self.place else { return Ok(()) };
        let refuse = |problem: &str| {
            let (argument, problem) = (format!("{flag} {}", self.argument), problem.to_owned());
            anyhow::Error::from(ConfigError::Argument { argument, problem })
        };
        let config = folder.config()?;
        if config.is_sequence_classification() {
            return Err(refuse("is a reward model, which has no vocabulary head: name a language model"));
        }
        let tokenizer = check_folder(folder)?;
        if needs_template && tokenizer.chat_template().is_none() {
            return Err(refuse(
                "its tokenizer has no chat template, and conversations are asked: put one into chat_template.jinja, or \
                 name another model",
            ));
        }
        Ok(())
    }

    /// A model folder that was found before.
    pub(crate) fn of_folder(name: String, folder: PathBuf) -> anyhow::Result<Self> {
        let argument = folder.display().to_string();
        Ok(Self { argument, name, place: Place::Folder(ModelFolder::open(folder)?) })
    }

    /// Puts each adapter behind the model that it belongs to.
    pub(crate) fn add_adapters(candidates: &mut Vec<Self>, given: &[String]) -> anyhow::Result<()> {
        let bases = candidates.iter().filter_map(|candidate| {
            candidate.folder().map(|folder| Base { name: candidate.name.clone(), folder: folder.clone() })
        });
        for adapter in adapters::find(given, &bases.collect::<Vec<_>>())?.into_iter().rev() {
            let is_base =
                |other: &Self| other.folder().is_some_and(|folder| adapter.folder.is_adapter_of(folder));
            let place =
                candidates.iter().position(is_base).expect("an adapter has its base among the models");
            let Adapter { name, given, folder } = adapter;
            candidates.insert(place + 1, Self { name, argument: given, place: Place::Folder(folder) });
        }
        Ok(())
    }

    /// The folder of the model. An endpoint has none.
    pub(crate) fn folder(&self) -> Option<&ModelFolder> {
        match &self.place {
            Place::Folder(folder) => Some(folder),
            Place::Endpoint(_) => None,
        }
    }

    /// Where the model is: its folder, with links resolved, or its address. Two models may have one name.
    pub(crate) fn place(&self) -> String {
        match &self.place {
            Place::Folder(folder) => {
                let folder = folder.path();
                folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).display().to_string()
            }
            Place::Endpoint(model) => model.name().to_owned(),
        }
    }

    /// The name as part of the name of a folder: of an endpoint, the name of its model.
    pub(crate) fn file_name(&self) -> String {
        let short = self.name.rsplit_once('#').map_or(self.name.as_str(), |(_, name)| name);
        super::output::file_name(if self.folder().is_some() { &self.name } else { short })
    }

    /// Loads the model, if it has a folder, on the `weights` of the model that was opened before if it
    /// belongs to these. Several processes of one machine have a device each.
    pub(crate) fn open(
        &self,
        host: &ModelHost,
        local: LocalRank,
        weights: &mut SharedWeights,
    ) -> anyhow::Result<Box<dyn LanguageModel>> {
        Ok(match &self.place {
            Place::Endpoint(model) => Box::new(EndpointModel::clone(model)),
            Place::Folder(folder) => {
                weights.keep_only_for(folder)?;
                let (session, trunk) = session::causal_lm_on(weights, &model_source(folder, host), local)?;
                weights.keep(trunk);
                let max_length = host.max_length.map(usize::from);
                Box::new(FolderModel::new(session, self.name.clone(), folder, max_length)?)
            }
        })
    }
}

/// Checks the headers of the weights of a folder, and its tokenizer, which it returns.
pub(crate) fn check_folder(folder: &ModelFolder) -> anyhow::Result<Tokenizer> {
    let config = folder.config()?;
    folder.check_weights()?;
    let tokenizer = load_tokenizer(folder.tokenizer_path(), None)?;
    check_vocabulary(&tokenizer, &config)?;
    Ok(tokenizer)
}

/// The hash of everything that the scores of a reward model depend on besides the conversation.
/// `max_length` is the most tokens of a conversation.
pub(crate) fn reward_digest(
    session: &Session<ScalarModel>,
    folder: &ModelFolder,
    weights: WeightSettings,
    max_length: usize,
) -> anyhow::Result<String> {
    let template = session.tokenizer()?.chat_template().map_or("", |template| template.source());
    let numbers = weights.numbers();
    Ok(folder_digest(folder, &format!("{REWARD_ENGINE} {numbers} {max_length} {template}"))?)
}

/// How the model of a folder is loaded.
pub(crate) fn model_source(folder: &ModelFolder, host: &ModelHost) -> ModelSource {
    let model = folder.path().display().to_string();
    ModelSource { model, weights: host.weights, template: None }
}

/// Refuses flags of endpoints if no model is behind one.
pub(crate) fn check_endpoint_flags(host: &ModelHost, has_endpoint: bool) -> Result<(), ConfigError> {
    let flags = [
        ("--endpoint-concurrency", host.endpoint_concurrency.is_some()),
        ("--endpoint-timeout", host.endpoint_timeout.is_some()),
    ];
    check_flags(&flags, has_endpoint, "no model is behind an endpoint")
}

/// Refuses flags of model folders if all models are behind endpoints.
pub(crate) fn check_folder_flags(host: &ModelHost, has_folder: bool) -> Result<(), ConfigError> {
    let [dtype, quantize, device] = host.weights.given();
    let flags = [dtype, quantize, device, ("--max-length", host.max_length.is_some())];
    check_flags(&flags, has_folder, "the servers of the models decide this")
}

/// Refuses flags that were given and have no effect.
fn check_flags(flags: &[(&str, bool)], have_effect: bool, why: &str) -> Result<(), ConfigError> {
    match flags.iter().find(|(_, is_given)| *is_given && !have_effect) {
        None => Ok(()),
        Some((flag, _)) => {
            let problem = format!("{why}: leave the flag out");
            Err(ConfigError::Argument { argument: (*flag).to_owned(), problem })
        }
    }
}

fn endpoint_options(host: &ModelHost, key: KeyChoice) -> EndpointOptions {
    let usual = EndpointOptions::default();
    EndpointOptions {
        concurrency: host.endpoint_concurrency.unwrap_or(usual.concurrency),
        key,
        timeout: host.endpoint_timeout.map_or(usual.timeout, |seconds| Duration::from_secs(seconds.get())),
        ..usual
    }
}
