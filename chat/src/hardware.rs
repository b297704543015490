//! The hardware file of this machine: measured by `doctor --bench`, and kept in the cache folder of the user.
//!
//! ```text
//!   colossal-chat/hardware-2-threads.toml    one file for each number of threads
//! ```
//! A file may have been copied from another machine or damaged: one of another processor, number of cores or
//! number of threads is not used, and one with a value that no machine has is an error. This module measures
//! nothing.

use std::path::{Path, PathBuf};

use parallel::regular_file;
use planner::Hardware;
use planner::hardware::SHIPPED;

use crate::failure::Failure;
use crate::{own_file, user_folders};

/// No file is longer.
const MAX_FILE_BYTES: u64 = 64 << 10;

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

/// The file for operations with this number of threads; `None` if the user has no cache folder.
pub(crate) fn path(threads: usize) -> Option<PathBuf> {
    Some(user_folders::cache()?.join(format!("hardware-{threads}-threads.toml")))
}

/// Reads what was measured of this machine with this number of threads; `None` if nothing was.
pub(crate) fn load(threads: usize) -> Result<Option<Hardware>, Failure> {
    let path = path(threads).filter(|path| path.symlink_metadata().is_ok());
    let hardware = path.map(|path| read(&path)).transpose()?;
    Ok(hardware.filter(|hardware| is_of_this_machine(hardware, threads)))
}

/// The hardware of a file that the user names, or of a name that this program knows.
pub(crate) fn find(name: &str) -> Result<Hardware, Failure> {
    let path = Path::new(name);
    let shipped = SHIPPED.iter().find(|(known, _)| *known == name);
    if let (Some((_, text)), false) = (shipped, path.exists()) {
        return Ok(Hardware::parse(text).expect("a test reads every file that is shipped"));
    }
    let refused = |problem: String| {
        let known: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let problem = format!(
            "{problem}: docs/formats.md has the keys of a hardware file; these names are known: {}",
            known.join(", ")
        );
        Failure::File { path: path.to_owned(), problem }
    };
    let text =
        regular_file::read_to_string(path, MAX_FILE_BYTES).map_err(|error| refused(error.to_string()))?;
    Hardware::parse(&text).map_err(|error| refused(error.to_string()))
}

/// Writes the file, whole or not at all.
pub(crate) fn write(hardware: &Hardware, path: &Path) -> anyhow::Result<()> {
    Ok(own_file::write(path, hardware.to_text().as_bytes())?)
}

fn is_of_this_machine(hardware: &Hardware, threads: usize) -> bool {
    let device = &hardware.device;
    (device.name.as_str(), device.threads, device.cores)
        == (processor_name().as_str(), Some(threads), Some(parallel::launch::cores()))
}

fn read(path: &Path) -> Result<Hardware, Failure> {
    let damaged = |problem: String| Failure::File {
        path: path.to_owned(),
        problem: format!(
            "{problem}: measure this machine again with `colossal-chat doctor --bench`, or remove this file"
        ),
    };
    let text = regular_file::read_to_string(path, MAX_FILE_BYTES);
    let text = text.map_err(|error| damaged(error.to_string()))?;
    Hardware::parse(&text).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back_and_a_damaged_one_is_an_error_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hardware.toml");
        let hardware = planner::hardware::round_numbers();
        write(&hardware, &path).unwrap();
        assert_eq!(read(&path).unwrap(), hardware);

        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("memory_read = ", "memory_read = -", 1)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("`device.memory_read` is -") && error.contains("doctor --bench"), "{error}");
        std::fs::write(&path, text.repeat(1000)).unwrap();
        assert!(read(&path).is_err());
        assert!(read(folder.path()).unwrap_err().to_string().contains("regular file"));
    }

    #[test]
    fn what_was_measured_elsewhere_is_not_used() {
        let mut hardware = planner::hardware::round_numbers();
        assert!(!is_of_this_machine(&hardware, 2));
        hardware.device.name = processor_name();
        hardware.device.cores = Some(parallel::launch::cores());
        assert!(is_of_this_machine(&hardware, 2) && !is_of_this_machine(&hardware, 3));
    }
}
