//! The settings for the hub, from the environment variables of Python's `huggingface_hub`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::name::RepositoryName;
use crate::error::Error;

/// The default limit for how long a server may stay silent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Settings for the hub and its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// The cache folder.
    pub cache: PathBuf,
    /// The URL of the hub.
    pub endpoint: String,
    /// The access token for private and gated models.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// Whether to show progress on stderr.
    pub progress: bool,
    /// The limit for connecting, and for how long a server may stay silent.
    pub timeout: Duration,
}

impl HubSettings {
    /// Reads the settings from the environment of this process.
    pub fn from_process() -> Self {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// Reads the settings from environment variables. Empty variables count as not set.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map_or_else(
            || PathBuf::from(variable("HOME").unwrap_or_default()).join(".cache/huggingface"),
            PathBuf::from,
        );
        let token_file = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let saved = || fs::read_to_string(token_file).ok();
        let token = variable("HF_TOKEN").or_else(saved).map(|token| token.trim().to_owned());
        let offline = variable("HF_HUB_OFFLINE").map(|value| value.to_lowercase());

        Self {
            cache: variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            endpoint: variable("HF_ENDPOINT").map_or_else(
                || "https://huggingface.co".to_owned(),
                |endpoint| endpoint.trim_end_matches('/').to_owned(),
            ),
            token: token.filter(|token| !token.is_empty()),
            offline: offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.as_str())),
            progress: true,
            timeout: variable("HF_HUB_DOWNLOAD_TIMEOUT")
                .and_then(|seconds| seconds.parse().ok())
                .filter(|&seconds| seconds > 0)
                .map_or(TIMEOUT, Duration::from_secs),
        }
    }

    /// The error of a request for `file`.
    pub(super) fn failed(&self, name: &RepositoryName, file: &str, reason: String) -> Error {
        Error::Hub {
            model: name.full.clone(),
            file: file.to_owned(),
            endpoint: self.endpoint.clone(),
            reason,
        }
    }
}
