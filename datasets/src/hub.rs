//! Resolves models by name: a local folder, or a repository of the Hugging Face hub through its cache.
//! Fetches the rows of datasets from there ([`HubSettings::fetch_rows`]).
//!
//! The cache has the layout of Python's `huggingface_hub`, so both share it. `HF_HOME`, `HF_HUB_CACHE`,
//! `HF_ENDPOINT`, `HF_TOKEN` (or the token file), `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and
//! `HF_HUB_DOWNLOAD_TIMEOUT` have their usual meaning. They are read only in [`HubSettings::from_process`].
//! All files are fetched at the commit that the hub reports, so files of two commits never mix.
//!
//! The hub, its mirrors and its repositories are not trusted. The commit, the `ETag`s and the names of the
//! weight files are checked before they become paths (`name.rs`), and the token is sent to no other host
//! (`client.rs`). The only file whose content this module reads is the weight index.

mod bounds;
mod cache;
mod client;
mod fetch;
mod local;
mod name;
mod settings;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

pub use self::bounds::measure_disks_with;
use self::cache::{CacheFolder, written};
use self::client::Client;
use self::fetch::Snapshot;
pub use self::name::plain_file_name;
use self::name::{Kind, RepositoryName, is_commit, is_plain_path, is_weight_file};
pub use self::settings::HubSettings;
use crate::error::{Error, Result};
use crate::small_file::read_small;

/// Files other than weights that are fetched if the repository has them.
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

impl HubSettings {
    /// The folder of a model: `model` itself if it is a folder, otherwise `owner/name[@revision]` from the
    /// cache or the hub.
    ///
    /// A text that denotes a local folder is never looked up in the hub: a text that begins with `/`, `.` or
    /// `~` or ends in `/`, that has one part or more than two, or whose first part is an existing folder. A
    /// commit does not change, so one that the cache has is not asked for again.
    pub fn resolve(&self, model: &str) -> Result<PathBuf> {
        let path = Path::new(model);
        if path.is_dir() {
            check_index(path)?;
            return Ok(path.to_owned());
        }
        local::refuse_missing(model)?;
        let name = RepositoryName::parse(Kind::Model, model).ok_or_else(|| Error::UnknownModel {
            model: model.to_owned(),
            hint: local::hint(model, false),
        })?;
        let cache = CacheFolder::new(&self.cache, &name);
        if self.offline {
            return self.cached(&name, &cache);
        }
        let kept = is_commit(&name.revision).then(|| self.cached(&name, &cache).ok()).flatten();
        kept.map_or_else(|| self.download(&name, &cache), Ok)
    }

    /// The name `owner/name` and the commit of the model that lies in a folder of the cache; `None` for any
    /// other folder.
    pub fn cached_model(&self, folder: &Path) -> Option<(String, String)> {
        let parts: Vec<&str> =
            folder.strip_prefix(&self.cache).ok()?.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
        let [repository, "snapshots", commit] = parts[..] else { return None };
        let id = repository.strip_prefix("models--")?.replacen("--", "/", 1);
        let name = RepositoryName::parse(Kind::Model, &id)?;
        let is_own = is_commit(commit) && CacheFolder::new(&self.cache, &name).snapshot(commit) == folder;
        is_own.then(|| (id, commit.to_owned()))
    }

    fn cached(&self, name: &RepositoryName, cache: &CacheFolder) -> Result<PathBuf> {
        let offline = |file: &str| Error::Offline {
            model: name.full.clone(),
            file: file.to_owned(),
            cache: self.cache.clone(),
        };
        let commit = cache.commit(&name.revision).ok_or_else(|| offline(REQUIRED[0]))?;
        let folder = cache.snapshot(&commit);
        let need = |file: &str| if folder.join(file).is_file() { Ok(()) } else { Err(offline(file)) };
        REQUIRED.into_iter().try_for_each(need)?;
        if !folder.join(WEIGHTS).is_file() {
            let index = folder.join(INDEX);
            if !index.is_file() {
                return Err(offline(WEIGHTS));
            }
            shards(&index)?.iter().try_for_each(|shard| need(shard))?;
        }
        Ok(folder)
    }

    /// Fetches those files of a dataset `owner/name[@revision]` that `is_wanted` chooses by their path, and
    /// puts them into `target` under the same paths. Files that are there already are kept. Returns the
    /// paths of all of them.
    pub fn fetch_rows(
        &self,
        dataset: &str,
        is_wanted: &dyn Fn(&str) -> bool,
        target: &Path,
    ) -> Result<Vec<PathBuf>> {
        let name = RepositoryName::parse(Kind::Dataset, dataset)
            .ok_or_else(|| Error::DatasetName { dataset: dataset.to_owned() })?;
        if self.offline {
            let (file, cache) = ("the list of files".to_owned(), self.cache.clone());
            return Err(Error::Offline { model: name.full, file, cache });
        }

        let cache = CacheFolder::new(&self.cache, &name);
        let (client, listing) = self.listing(&name)?;
        let wanted: Vec<&str> = listing.files().into_iter().filter(|file| is_wanted(file)).collect();
        let snapshot =
            Snapshot { settings: self, name: &name, client: &client, cache: &cache, commit: &listing.sha };
        if let Some(file) = wanted.iter().find(|file| !is_plain_path(file)) {
            return Err(snapshot.hostile("file", file));
        }

        let missing: Vec<&str> = wanted.iter().copied().filter(|file| !target.join(file).exists()).collect();
        for (file, path) in missing.iter().zip(snapshot.fetch_files(&missing)?) {
            copy_whole(&path, &target.join(file))?;
        }
        let paths = wanted.iter().map(|file| target.join(file)).collect();
        cache.note(&name.revision, &listing.sha)?;
        Ok(paths)
    }

    /// Asks the hub for the commit of a revision and its files.
    fn listing(&self, name: &RepositoryName) -> Result<(Client, Listing)> {
        let listed = |reason| self.failed(name, "the list of files", reason);
        let client = Client::new(&self.endpoint, self.token.clone(), self.timeout).map_err(listed)?;
        let kind = name.kind.in_api();
        let address = format!("/api/{kind}/{}/revision/{}", name.id, name.revision_in_address());
        let listing: Listing = client.listing(&address).map_err(listed)?;
        if !is_commit(&listing.sha) {
            let (model, found) = (name.full.clone(), listing.sha);
            return Err(Error::HostileName { model, what: "commit", found });
        }
        Ok((client, listing))
    }

    fn download(&self, name: &RepositoryName, cache: &CacheFolder) -> Result<PathBuf> {
        let (client, listing) = self.listing(name)?;
        let snapshot = Snapshot { settings: self, name, client: &client, cache, commit: &listing.sha };
        snapshot.fetch_all(&listing.files())?;
        // The revision is recorded last, so that the cache refers only to complete snapshots.
        cache.note(&name.revision, &listing.sha)?;
        Ok(cache.snapshot(&listing.sha))
    }
}

/// The files of a repository at one commit.
#[derive(serde::Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<ListedFile>,
}

#[derive(serde::Deserialize)]
struct ListedFile {
    rfilename: String,
}

impl Listing {
    fn files(&self) -> BTreeSet<&str> {
        self.siblings.iter().map(|file| file.rfilename.as_str()).collect()
    }
}

/// Copies a file of the cache. The copy is whole or absent.
fn copy_whole(from: &Path, to: &Path) -> Result<()> {
    let copied = || -> std::io::Result<()> {
        let folder = to.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new()
            .prefix(".fetch-")
            .suffix(".tmp")
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        std::io::copy(&mut fs::File::open(from)?, &mut file)?;
        file.as_file().sync_all()?;
        file.persist(to).map_err(|error| error.error)?;
        fs::File::open(folder)?.sync_all()
    };
    written(to, copied())
}

impl Snapshot<'_> {
    /// Fetches all files of a model. The weight index comes first: if it is rejected, no other file is
    /// fetched.
    fn fetch_all(&self, files: &BTreeSet<&str>) -> Result<()> {
        let missing = |file| Error::HubFileMissing { model: self.name.full.clone(), file };
        if let Some(file) = REQUIRED.into_iter().find(|file| !files.contains(file)) {
            return Err(missing(file));
        }
        let mut weights = BTreeSet::from([WEIGHTS.to_owned()]);
        if !files.contains(WEIGHTS) {
            if !files.contains(INDEX) {
                return Err(missing(WEIGHTS));
            }
            let path = self.fetch(INDEX)?;
            weights = shards(&path)?;
            if let Some(file) = weights.iter().find(|file| !files.contains(file.as_str())) {
                let reason = format!("weight_map names {file:?}, which the repository does not have");
                return Err(Error::WeightIndex { path, reason });
            }
        }
        let small = SMALL_FILES.into_iter().filter(|file| files.contains(file));
        let wanted: Vec<&str> = small.chain(weights.iter().map(String::as_str)).collect();
        self.fetch_files(&wanted).map(drop)
    }
}

/// The folder of a model, with the settings of this process; see [`HubSettings::resolve`].
pub fn resolve(model: &str) -> Result<PathBuf> {
    HubSettings::from_process().resolve(model)
}

/// What [`HubSettings::cached_model`] returns with the settings of this process.
pub fn cached_model(folder: &Path) -> Option<(String, String)> {
    HubSettings::from_process().cached_model(folder)
}

/// Whether a text is the name `owner/name[@revision]` of a dataset. Such a name is a plain path of two
/// folders.
pub fn is_dataset_name(text: &str) -> bool {
    RepositoryName::parse(Kind::Dataset, text).is_some()
}

/// Returns an error if the index of a local folder points outside the folder.
fn check_index(folder: &Path) -> Result<()> {
    let index = folder.join(INDEX);
    if index.is_file() && !folder.join(WEIGHTS).is_file() {
        shards(&index)?;
    }
    Ok(())
}

/// The weight files listed in an index, without duplicates.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let invalid = |reason: String| Error::WeightIndex { path: index.to_owned(), reason };
    let text = read_small(index)?.ok_or_else(|| invalid("it is not there".to_owned()))?;
    let parsed: Index = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match names.iter().find(|name| !is_weight_file(name)) {
        Some(name) => Err(invalid(format!(
            "weight_map names {name:?}, which is not a .safetensors file in the same folder"
        ))),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests;
