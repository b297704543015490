//! Models by name: a local folder, or a repository of the Hugging Face hub through its cache.
//!
//! The cache has hf-hub's form (`models--OWNER--NAME/{blobs,refs,snapshots}`), so Python's tools share it. `HF_HOME`,
//! `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` (or the token file), `HF_TOKEN_PATH` and `HF_HUB_OFFLINE` have their usual meaning;
//! they are read in [`HubSettings::from_process`] and nowhere else. A file of an older snapshot never mixes with a newer
//! one: everything is fetched at the commit that the hub names. Knows no file's content but that of the weight index.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::error::{Error, Result};

/// Files that are fetched where the repository has them, besides weights.
const SMALL_FILES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];
const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where models come from and are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// The cache folder.
    pub cache: PathBuf,
    /// The address of the hub.
    pub endpoint: String,
    /// The secret for private and gated models.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// Whether progress is shown on stderr.
    pub progress: bool,
}

impl HubSettings {
    /// The settings of this process.
    pub fn from_process() -> Self {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// The settings that environment variables give; empty ones count as not set.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map_or_else(
            || PathBuf::from(variable("HOME").unwrap_or_default()).join(".cache/huggingface"),
            PathBuf::from,
        );
        let token_file = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let saved = || fs::read_to_string(token_file).ok().map(|token| token.trim().to_owned());
        let offline = variable("HF_HUB_OFFLINE").map(|value| value.to_lowercase());
        Self {
            cache: variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            endpoint: variable("HF_ENDPOINT").map_or_else(
                || "https://huggingface.co".to_owned(),
                |endpoint| endpoint.trim_end_matches('/').to_owned(),
            ),
            token: variable("HF_TOKEN").or_else(saved).filter(|token| !token.is_empty()),
            offline: offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.as_str())),
            progress: true,
        }
    }

    /// The folder of a model: `model` itself where it is a folder, else `owner/name[@revision]` from cache or hub.
    pub fn resolve(&self, model: &str) -> Result<PathBuf> {
        let path = Path::new(model);
        if path.is_dir() {
            return Ok(path.to_owned());
        }
        let name =
            RepositoryName::parse(model).ok_or_else(|| Error::UnknownModel { model: model.to_owned() })?;
        if self.offline { self.cached(&name) } else { self.download(&name) }
    }

    fn cached(&self, name: &RepositoryName) -> Result<PathBuf> {
        let cache = Cache::new(self.cache.clone()).repo(name.at(&name.revision));
        let need = |file: &str| {
            let offline = || Error::Offline {
                model: name.full.clone(),
                file: file.to_owned(),
                cache: self.cache.clone(),
            };
            cache.get(file).ok_or_else(offline)
        };
        let config = need(REQUIRED[0])?;
        need(REQUIRED[1])?;
        if cache.get(WEIGHTS).is_none() {
            let index = cache.get(INDEX).map_or_else(|| need(WEIGHTS), Ok)?;
            for shard in shards(&index)? {
                need(&shard)?;
            }
        }
        folder_of(&config)
    }

    fn download(&self, name: &RepositoryName) -> Result<PathBuf> {
        let builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(self.progress)
            .with_retries(3);
        let api = builder.build().map_err(|error| self.failed(name, "the list of files", &error))?;
        let info = api.repo(name.at(&name.revision)).info();
        let info = info.map_err(|error| self.failed(name, "the list of files", &error))?;
        let files: BTreeSet<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        if let Some(file) = REQUIRED.into_iter().find(|file| !files.contains(file)) {
            return Err(Error::HubFileMissing { model: name.full.clone(), file });
        }
        let snapshot = Snapshot { settings: self, name, repo: api.repo(name.at(&info.sha)) };
        for file in SMALL_FILES.into_iter().filter(|file| files.contains(file)) {
            snapshot.fetch(file)?;
        }
        if files.contains(INDEX) {
            for shard in shards(&snapshot.fetch(INDEX)?)? {
                snapshot.fetch(&shard)?;
            }
        } else if files.contains(WEIGHTS) {
            snapshot.fetch(WEIGHTS)?;
        } else {
            return Err(Error::HubFileMissing { model: name.full.clone(), file: WEIGHTS });
        }
        // The revision is noted last, so that the cache names only snapshots that are whole.
        let cache = Cache::new(self.cache.clone()).repo(name.at(&name.revision));
        let noted = cache.create_ref(&info.sha);
        noted.map_err(|source| Error::Write { path: self.cache.clone(), source })?;
        folder_of(&snapshot.fetch(REQUIRED[0])?)
    }

    fn failed(&self, name: &RepositoryName, file: &str, error: &ApiError) -> Error {
        Error::Hub {
            model: name.full.clone(),
            file: file.to_owned(),
            endpoint: self.endpoint.clone(),
            reason: error.to_string(),
        }
    }
}

/// The folder of a model with the settings of this process; see [`HubSettings::resolve`].
pub fn resolve(model: &str) -> Result<PathBuf> {
    HubSettings::from_process().resolve(model)
}

/// A repository at one commit.
struct Snapshot<'a> {
    settings: &'a HubSettings,
    name: &'a RepositoryName,
    repo: ApiRepo,
}

impl Snapshot<'_> {
    /// The file's path in the cache, fetched where it is not there.
    fn fetch(&self, file: &str) -> Result<PathBuf> {
        self.repo.get(file).map_err(|error| self.settings.failed(self.name, file, &error))
    }
}

/// `owner/name[@revision]`.
struct RepositoryName {
    full: String,
    id: String,
    revision: String,
}

impl RepositoryName {
    fn parse(model: &str) -> Option<Self> {
        let (id, revision) = model.split_once('@').unwrap_or((model, "main"));
        let (owner, name) = id.split_once('/')?;
        let letter = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let word = |text: &str| !text.is_empty() && !text.starts_with('.') && text.chars().all(letter);
        let valid = word(owner) && word(name) && !revision.is_empty() && !revision.contains("..");
        valid.then(|| Self { full: model.to_owned(), id: id.to_owned(), revision: revision.to_owned() })
    }

    fn at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.id.clone(), RepoType::Model, revision.to_owned())
    }
}

fn folder_of(file: &Path) -> Result<PathBuf> {
    let folder = file.parent().map(Path::to_owned);
    folder.ok_or_else(|| Error::UnknownModel { model: file.display().to_string() })
}

/// The weight files that an index names, each once.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let read = |source| Error::Read { path: index.to_owned(), source };
    let text = fs::read_to_string(index).map_err(read)?;
    let parsed: Index = serde_json::from_str(&text).map_err(|source| Error::BadJson {
        at: crate::error::At { path: index.to_owned(), row: 0 },
        source,
    })?;
    Ok(parsed.weight_map.into_values().collect())
}

#[cfg(test)]
mod tests;
