//! The speeds of a machine from which the time of a step is predicted: measured by `doctor --bench`, and kept
//! in the cache folder of the user.
//!
//! ```text
//!   colossal-chat/speed-2-threads.json    one file for each number of threads
//! ```
//! A file may have been copied from another machine or damaged: one of another processor, number of cores or
//! number of threads is not used, and one with a speed that no machine has is an error. This module measures
//! nothing.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use parallel::regular_file;
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::failure::Failure;
use crate::{own_file, user_folders};

/// The speeds of a machine with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineSpeed {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The speed of matrix products, in order of their width.
    pub(crate) matmul: Vec<MatmulSpeed>,
    /// The operations per second of attention over short sequences, forward and backward.
    pub(crate) attention: DtypeSpeed,
    /// The bytes per second that an activation function reads and writes.
    pub(crate) elementwise: DtypeSpeed,
    /// The speed of memory.
    pub(crate) memory: MemorySpeed,
    /// The speed of the disk.
    pub(crate) disk: DiskSpeed,
}

/// What a measurement is valid for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The name of the processor.
    pub(crate) processor: String,
    /// The cores that a process may use.
    pub(crate) cores: usize,
    /// The threads of one operation.
    pub(crate) threads: usize,
}

/// The speed of the three products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatmulSpeed {
    /// The width of the layer's input.
    pub(crate) width: usize,
    /// Operations per second: a multiplication and an addition are two.
    pub(crate) flops: DtypeSpeed,
}

/// A speed in each dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DtypeSpeed {
    /// In fp32.
    pub(crate) float32: f64,
    /// In bf16.
    pub(crate) bfloat16: f64,
}

/// Bytes per second, over tensors that are larger than the caches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemorySpeed {
    pub(crate) read: f64,
    /// Of copying: what is read and what is written.
    pub(crate) copy: f64,
}

/// Bytes per second, with many requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskSpeed {
    /// The folder on this disk.
    pub(crate) folder: PathBuf,
    /// Whether the transfers passed the page cache.
    pub(crate) is_direct: bool,
    pub(crate) read: f64,
    /// Of writing.
    pub(crate) write: f64,
}

/// Slower and faster than any machine.
const OPERATIONS_PER_SECOND: RangeInclusive<f64> = 1e6..=1e16;
const BYTES_PER_SECOND: RangeInclusive<f64> = 1e4..=1e14;
/// No file with speeds is longer.
const MAX_FILE_BYTES: u64 = 64 << 10;

impl Machine {
    /// This machine, for operations with this number of threads.
    pub(crate) fn here(threads: usize) -> Self {
        Self { processor: processor_name(), cores: parallel::launch::cores(), threads }
    }
}

/// The name of the processor.
pub(crate) fn processor_name() -> String {
    cpuinfo_field("model name").unwrap_or_else(|| "unknown".to_owned())
}

/// A field of the first processor in `/proc/cpuinfo`.
pub(crate) fn cpuinfo_field(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned()))
}

impl DtypeSpeed {
    /// The speed in a dtype.
    pub(crate) fn of(self, kind: Kind) -> f64 {
        if kind == Kind::Float { self.float32 } else { self.bfloat16 }
    }
}

impl MachineSpeed {
    /// The file for operations with this number of threads; `None` if the user has no cache folder.
    pub(crate) fn path(threads: usize) -> Option<PathBuf> {
        Some(user_folders::cache()?.join(format!("speed-{threads}-threads.json")))
    }

    /// Reads the speeds of `machine`; `None` if they were not measured.
    pub(crate) fn load(machine: &Machine) -> Result<Option<Self>, Failure> {
        let path = Self::path(machine.threads).filter(|path| path.symlink_metadata().is_ok());
        let speed = path.map(|path| Self::read(&path)).transpose()?;
        Ok(speed.filter(|speed| speed.machine == *machine))
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(own_file::write(path, serde_json::to_string_pretty(self)?.as_bytes())?)
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let damaged = |problem: String| Failure::File {
            path: path.to_owned(),
            problem: format!(
                "{problem}: measure this machine again with `colossal-chat doctor --bench`, or remove this file"
            ),
        };
        let text = regular_file::read_to_string(path, MAX_FILE_BYTES);
        let text = text.map_err(|error| damaged(error.to_string()))?;
        let speed: Self = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        speed.impossible_value().map_or(Ok(speed), |problem| Err(damaged(problem)))
    }

    /// What of this no machine has.
    fn impossible_value(&self) -> Option<String> {
        let Self { matmul, attention, elementwise, memory, disk, .. } = self;
        if matmul.is_empty() || !matmul.is_sorted_by(|left, right| left.width < right.width) {
            return Some("the widths of `matmul` do not increase".to_owned());
        }
        let dtypes = |name: &'static str, speed: DtypeSpeed| [(name, speed.float32), (name, speed.bfloat16)];
        let products = matmul.iter().flat_map(|speed| dtypes("matmul.flops", speed.flops));
        let operations = products.chain(dtypes("attention", *attention));
        let operations = operations.map(|(name, value)| (name, value, OPERATIONS_PER_SECOND));
        let bytes = [
            ("memory.read", memory.read),
            ("memory.copy", memory.copy),
            ("disk.read", disk.read),
            ("disk.write", disk.write),
        ];
        let bytes = dtypes("elementwise", *elementwise).into_iter().chain(bytes);
        let bytes = bytes.map(|(name, value)| (name, value, BYTES_PER_SECOND));
        // Numbers that are not finite lie in no range.
        let outside = operations.chain(bytes).find(|(_, value, range)| !range.contains(value))?;
        let (name, value, range) = outside;
        Some(format!("`{name}` is {value:e}, which is not between {:e} and {:e}", range.start(), range.end()))
    }

    /// The operations per second of products of this width: on a straight line between the measured widths,
    /// over the logarithm of the width.
    pub(crate) fn matmul_flops(&self, width: f64, kind: Kind) -> f64 {
        let value = |speed: &MatmulSpeed| speed.flops.of(kind);
        let above = self.matmul.partition_point(|speed| (speed.width as f64) < width);
        let last = self.matmul.len() - 1;
        let (low, high) = (self.matmul[above.saturating_sub(1)], self.matmul[above.min(last)]);
        if low.width == high.width {
            return value(&low);
        }
        let [from, to] = [low.width, high.width].map(|width| (width as f64).ln());
        let share = (width.ln() - from) / (to - from);
        value(&low) + share * (value(&high) - value(&low))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine with round numbers in fp32, half of them in bf16: 100 Gflop/s, 20 of attention, 5 GB/s of
    /// activations; 20 and 10 GB/s of memory, 2 and 1 GB/s of disk.
    pub(crate) fn round() -> MachineSpeed {
        let half_in_bf16 = |float32: f64| DtypeSpeed { float32, bfloat16: float32 / 2.0 };
        MachineSpeed {
            machine: Machine { processor: "round".to_owned(), cores: 2, threads: 2 },
            matmul: vec![MatmulSpeed { width: 128, flops: half_in_bf16(1e11) }],
            attention: half_in_bf16(2e10),
            elementwise: half_in_bf16(5e9),
            memory: MemorySpeed { read: 2e10, copy: 1e10 },
            disk: DiskSpeed { folder: "/".into(), is_direct: true, read: 2e9, write: 1e9 },
        }
    }

    #[test]
    fn speeds_lie_between_those_of_the_measured_widths() {
        let mut speed = round();
        let flops = DtypeSpeed { float32: 2e11, bfloat16: 7e10 };
        speed.matmul.push(MatmulSpeed { width: 512, flops });
        for (width, float32) in [(64.0, 1e11), (128.0, 1e11), (256.0, 1.5e11), (512.0, 2e11), (4096.0, 2e11)]
        {
            let told = speed.matmul_flops(width, Kind::Float);
            assert!((told - float32).abs() < 1.0, "{width}: {told}");
        }
        assert!((speed.matmul_flops(256.0, Kind::BFloat16) - 6e10).abs() < 1.0);
    }

    #[test]
    fn a_file_reads_back_and_a_damaged_one_is_an_error_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("speed.json");
        round().write(&path).unwrap();
        assert_eq!(MachineSpeed::read(&path).unwrap(), round());

        let text = std::fs::read_to_string(&path).unwrap();
        for (was, now, words) in [
            ("100000000000.0", "-1.0", "`matmul.flops` is -1e0"),
            ("100000000000.0", "1e999", "number out of range"),
            ("2000000000.0", "0", "`disk.read` is 0e0"),
            ("\"width\": 128", "\"width\": -1", "invalid value"),
            ("\"cores\"", "\"kernels\"", "unknown field `kernels`"),
            ("\"memory\": {", "\"memory\": ", "line"),
        ] {
            std::fs::write(&path, text.replacen(was, now, 1)).unwrap();
            let error = MachineSpeed::read(&path).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("doctor --bench"), "{now}: {error}");
        }
        std::fs::write(&path, text.repeat(1000)).unwrap();
        assert!(MachineSpeed::read(&path).is_err());
        assert!(MachineSpeed::read(folder.path()).unwrap_err().to_string().contains("regular file"));
    }
}
