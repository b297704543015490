//! Seconds and bytes as text.

/// Formats a time with three digits.
pub(crate) fn in_seconds(seconds: f64) -> String {
    let digits = match seconds {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{seconds:.digits$} s")
}

/// Formats sizes in rank order, as in `312, 298 MiB`.
pub(super) fn mebibytes(bytes: &[u64]) -> String {
    let each: Vec<String> =
        bytes.iter().map(|&bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20))).collect();
    format!("{} MiB", each.join(", "))
}
