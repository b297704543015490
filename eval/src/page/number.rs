//! Formats numbers for people: scores, percentages, differences, p-values, counts, durations, bytes. All
//! forms of a report use these texts, so they never disagree.

/// What stands in the place of a number that there is none of.
pub(crate) const NOTHING: &str = "–";

/// A number with four decimals, or with four digits where that says too little; an en dash for NaN.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return NOTHING.to_owned();
    }
    if value == 0.0 || (0.001..10_000.0).contains(&value.abs()) {
        return format!("{value:.4}");
    }
    format!("{value:.4e}")
}

/// [`number`]; an en dash without one.
pub fn optional(value: Option<f64>) -> String {
    or_nothing(value, number)
}

/// A value as text; an en dash without one.
pub(crate) fn or_nothing<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), text)
}

/// The ends of an interval; an en dash where there is none.
pub fn interval(interval: Option<(f64, f64)>) -> String {
    or_nothing(interval, |(low, high)| format!("{} to {}", number(low), number(high)))
}

/// A difference with a sign of ASCII and four decimals, for terminals and Markdown.
pub fn plain_signed(difference: f64) -> String {
    format!("{difference:+.4}")
}

/// An interval of a difference, as [`plain_signed`] writes its ends; an en dash where there is none.
pub fn plain_signed_interval(interval: Option<(f64, f64)>) -> String {
    or_nothing(interval, |(low, high)| format!("{} to {}", plain_signed(low), plain_signed(high)))
}

/// A difference with its sign, as [`number`] writes it.
pub(crate) fn signed(value: f64) -> String {
    let sign = match value {
        above if above > 0.0 => "+",
        below if below < 0.0 => "−",
        _ => "",
    };
    format!("{sign}{}", number(value.abs()))
}

/// An interval of a difference; an en dash where there is none.
pub(crate) fn signed_interval(interval: Option<(f64, f64)>) -> String {
    or_nothing(interval, |(low, high)| format!("{} to {}", signed(low), signed(high)))
}

/// A p-value with four decimals.
pub fn p_value(value: f64) -> String {
    if value < 0.0001 { "<0.0001".to_owned() } else { format!("{value:.4}") }
}

/// A value of a metric of training, with about four digits.
pub(crate) fn metric(value: f64) -> String {
    if !value.is_finite() {
        return "not finite".to_owned();
    }
    let is_plain = value == 0.0 || (1e-3..1e6).contains(&value.abs());
    if is_plain { format!("{value:.4}") } else { format!("{value:.2e}") }
}

/// `67.0 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The part of a whole as a share in percent.
pub(crate) fn percent_of(part: usize, whole: usize) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

/// `62.3 to 71.4`, in percent.
pub(crate) fn percent_interval(low: f64, high: f64) -> String {
    format!("{:.1} to {:.1}", 100.0 * low, 100.0 * high)
}

/// `1 row`, `2 rows`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `9.4 s`, `2 min 40 s`, `1 h 03 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 59.95 => format!("{seconds:.1} s"),
        0..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number of bytes in binary units.
pub(crate) fn bytes(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib >= 1.0 { format!("{gib:.2} GiB") } else { format!("{:.1} MiB", gib * 1024.0) }
}
