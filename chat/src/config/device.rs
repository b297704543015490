//! The setting that says where the models compute.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The setting `[model] device` or `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum DeviceSetting {
    /// A GPU if there is one, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU of NVIDIA: the one with this index, or the one that belongs to the process.
    Cuda(Option<usize>),
    /// A GPU of Apple, which has no fp64 and so runs no stage yet; and the name of the device of the tests.
    Mps,
}

impl FromStr for DeviceSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index = || text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            "mps" => Ok(Self::Mps),
            _ => match index() {
                Some(index) => Ok(Self::Cuda(Some(index))),
                None => Err(format!("no device {text:?}: use auto, cpu, cuda or cuda:N")),
            },
        }
    }
}

impl fmt::Display for DeviceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            Self::Mps => f.write_str("mps"),
        }
    }
}

impl TryFrom<String> for DeviceSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DeviceSetting> for String {
    fn from(setting: DeviceSetting) -> Self {
        setting.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_back_as_it_was_written() {
        for text in ["auto", "cpu", "cuda", "cuda:1", "mps"] {
            assert_eq!(text.parse::<DeviceSetting>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", ""] {
            assert!(text.parse::<DeviceSetting>().unwrap_err().contains("use auto, cpu, cuda or cuda:N"));
        }
    }
}
