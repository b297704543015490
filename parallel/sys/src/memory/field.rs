//! Fields of the files in which the kernel reports memory, such as `/proc/meminfo`.

/// Reads a field in KiB from a file of `/proc`, as bytes.
pub(super) fn read_bytes(path: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}
