//! Formats numbers for people: short, of nearly constant width, with no more digits than are useful.

use std::time::Duration;

/// Formats a count or a rate with at most three digits: `7.5`, `980`, `1.2k`, `34k`, `5.1M`. Values that are
/// not finite become `–`.
pub fn count(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let units = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];
    // A value that would round up to four digits belongs to the next unit.
    let (scale, unit) =
        units.into_iter().find(|(scale, _)| value.abs() < 999.5 * scale).unwrap_or((1e15, "P"));
    let scaled = value / scale;
    let fits_ten = scaled.abs() < 9.95;
    let whole = unit.is_empty() && scaled.fract() == 0.0;
    if fits_ten && !whole { format!("{scaled:.1}{unit}") } else { format!("{scaled:.0}{unit}") }
}

/// Formats a count with its noun: `1 step`, `83 steps`, `2 replies`, `2 processes`.
pub fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) if noun.ends_with('s') => format!("{count} {noun}es"),
        (_, None) => format!("{count} {noun}s"),
    }
}

/// The median of values in any order: the one in the middle, or the mean of the two in the middle. `None`
/// without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let above = values.len() / 2;
    let below = values.len().checked_sub(1)? / 2;
    Some(f64::midpoint(values[below], values[above]))
}

/// Formats a duration in its two largest units: `0.4s`, `45s`, `3m12s`, `1h04m`, `2d03h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Formats a metric with about four digits: `42`, `1.234`, `0.0521`, `3.00e-4`, `NaN`.
pub fn metric(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value.is_nan() => "NaN".into(),
        _ if value.is_infinite() => {
            if value > 0.0 {
                "inf".into()
            } else {
                "-inf".into()
            }
        }
        _ if value.fract() == 0.0 && size < 1e6 => format!("{}", value as i64),
        _ if !(1e-2..1e6).contains(&size) => format!("{value:.2e}"),
        _ if size < 1.0 => format!("{value:.4}"),
        _ if size < 10.0 => format!("{value:.3}"),
        _ if size < 100.0 => format!("{value:.2}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let cases = [
            (0.0, "0"),
            (7.0, "7"),
            (7.46, "7.5"),
            (9.97, "10"),
            (980.0, "980"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (1_234.0, "1.2k"),
            (34_321.0, "34k"),
            (999_600.0, "1.0M"),
            (5_100_000.0, "5.1M"),
            (2e15, "2.0P"),
        ];
        for (value, expected) in cases {
            assert_eq!(count(value), expected);
        }
        assert_eq!(count(f64::INFINITY), "–");
    }

    #[test]
    fn the_median_of_22_and_24_is_23() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![24.0, 22.0]), Some(23.0));
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(vec![9.0, 1.0, 5.0, 2.0]), Some(3.5));
    }

    #[test]
    fn one_has_no_plural() {
        let said = [0, 1, 2].map(|count| counted(count, "step"));
        assert_eq!(said, ["0 steps", "1 step", "2 steps"]);
        assert_eq!(counted(2, "reply"), "2 replies");
    }

    #[test]
    fn durations() {
        let cases = [
            (0.0, "0.0s"),
            (0.42, "0.4s"),
            (9.96, "10s"),
            (45.4, "45s"),
            (59.7, "1m00s"),
            (192.0, "3m12s"),
            (3_599.6, "1h00m"),
            (3_870.0, "1h04m"),
            (183_600.0, "2d03h"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), expected);
        }
    }

    #[test]
    fn metrics() {
        let cases = [
            (42.0, "42"),
            (1.2344, "1.234"),
            (0.05214, "0.0521"),
            (3e-4, "3.00e-4"),
            (-12.345, "-12.35"),
            (512.25, "512.2"),
            (2.5e7 + 0.5, "2.50e7"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (0.0, "0"),
        ];
        for (value, expected) in cases {
            assert_eq!(metric(value), expected);
        }
    }
}
