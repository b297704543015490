//! The `[gemini]` section: how much memory the models may take, and where they go when they do not fit.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::placement::PlacementPolicy;

/// The `[gemini]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeminiConfig {
    /// Which parts of the models leave the memory of the device: `auto`, `cpu`, `static`, `disk` or `cuda`.
    pub placement: PlacementPolicy,
    /// The memory that all models of a process may take on its device, such as `"400MiB"` or `"1.5GiB"`:
    /// weights, gradients, optimizer state, activations, logits, caches. If absent, nothing is limited and
    /// nothing is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<ByteSize>,
    /// The memory of the host that parts of the models may take which have left a GPU; only for models on a
    /// GPU. If absent, three quarters of the machine, or `device_memory` with `placement = "disk"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<ByteSize>,
    /// An existing folder for parts that leave memory. If absent, the nearest existing folder of `out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_path: Option<PathBuf>,
}

impl Default for GeminiConfig {
    fn default() -> Self {
        Self { placement: PlacementPolicy::Auto, device_memory: None, host_memory: None, disk_path: None }
    }
}

impl GeminiConfig {
    /// Returns the key that cannot be used as it is set and the reason, if there is one.
    pub fn refused_key(&self) -> Option<(&'static str, &'static str)> {
        if self.device_memory.is_some() {
            return None;
        }
        let reason = "without device_memory nothing leaves memory";
        let keys = [
            ("gemini.disk_path", self.disk_path.is_some()),
            ("gemini.host_memory", self.host_memory.is_some()),
            ("gemini.placement", self.placement != PlacementPolicy::Auto),
        ];
        keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| (key, reason))
    }

    /// Returns the key that models on the CPU cannot use as it is set and the reason, if there is one.
    pub fn refused_on_cpu(&self) -> Option<(&'static str, &'static str)> {
        if self.host_memory.is_some() {
            let reason = "is the memory for what leaves a GPU; for models on the CPU, device_memory is the memory of the host";
            return Some(("gemini.host_memory", reason));
        }
        let reason =
            "moves chunks from a GPU to the host: for models on the CPU use \"auto\", \"static\" or \"disk\"";
        (self.placement == PlacementPolicy::Cpu).then_some(("gemini.placement", reason))
    }
}

/// A number of bytes, written as `400MiB`, `1.5GiB` or `2GB`, or as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct ByteSize(pub u64);

/// How a size stands in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || format!("{text:?} is no size: write a number and a unit, such as \"400MiB\" or \"1.5GiB\"");
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)))
            .ok_or_else(refused)?;
        let number: f64 = number.trim().parse().map_err(|_| refused())?;
        let bytes = number * unit as f64;
        if !(bytes.is_finite() && (1.0..9e18).contains(&bytes)) {
            return Err(refused());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size with the largest binary unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().filter(|(name, _)| name.contains('i'));
        let fitting = binary.into_iter().find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes));
        match fitting {
            Some((name, bytes)) => write!(f, "{}{name}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl TryFrom<Written> for ByteSize {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(0) => Err("0 bytes hold nothing".to_owned()),
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_they_were_written() {
        for (text, bytes) in [
            ("400MiB", 400 << 20),
            ("1.5GiB", 1536 << 20),
            ("2GB", 2_000_000_000),
            ("7 B", 7),
            ("1TiB", 1 << 40),
            ("3kB", 3000),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size, ByteSize(bytes), "{text}");
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
        assert_eq!(ByteSize(1536 << 20).to_string(), "1536MiB");
        for text in ["", "MiB", "-1MiB", "400", "400 megs", "nanGiB", "1e300TiB", "0GiB"] {
            assert!(text.parse::<ByteSize>().unwrap_err().contains("write a number and a unit"), "{text}");
        }
    }

    #[test]
    fn a_key_without_effect_is_named() {
        let config = GeminiConfig { disk_path: Some("/tmp".into()), ..GeminiConfig::default() };
        assert_eq!(config.refused_key().unwrap().0, "gemini.disk_path");
        let config = GeminiConfig { device_memory: Some(ByteSize(1 << 20)), ..config };
        assert_eq!(config.refused_key(), None);
    }
}
