//! Moments in UTC as RFC 3339 text, `2026-03-01T12:30:05.250Z`.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike, NaiveDateTime, SecondsFormat};

/// A moment, in milliseconds since 1970 began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timestamp(i64);

/// A text that is not a moment.
#[derive(Debug, thiserror::Error)]
#[error("give a moment in UTC such as 2026-03-01T12:30:05Z, or a date such as 2026-03-01")]
pub(crate) struct NotATimestamp;

impl Timestamp {
    /// The present moment.
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(since.as_millis() as i64)
    }

    /// The year and the month, as in `2026-03`.
    pub(crate) fn month(self) -> String {
        self.to_string()[..7].to_owned()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = DateTime::from_timestamp_millis(self.0).ok_or(fmt::Error)?;
        formatter.write_str(&moment.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl FromStr for Timestamp {
    type Err = NotATimestamp;

    /// Reads a moment in UTC, or a date, which is the moment when the day begins.
    fn from_str(text: &str) -> Result<Self, NotATimestamp> {
        let whole = if text.contains('T') { text.to_owned() } else { format!("{text}T00:00:00Z") };
        let body = whole.strip_suffix('Z').ok_or(NotATimestamp)?;
        let (time, digits) = body.split_once('.').unwrap_or((body, "0"));
        let moment = NaiveDateTime::parse_from_str(time, FORMAT).map_err(|_| NotATimestamp)?;
        // Only the plain form is read: no signs, no digits left out, and no second 60.
        let is_plain = moment.format(FORMAT).to_string() == time && moment.year() > 0;
        let is_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_plain || !is_digits {
            return Err(NotATimestamp);
        }
        let millis: i64 = format!("{digits:0<3}")[..3].parse().map_err(|_| NotATimestamp)?;
        Ok(Self(moment.and_utc().timestamp_millis() + millis))
    }
}

/// The form of a moment without the fraction of its second.
const FORMAT: &str = "%Y-%m-%dT%H:%M:%S";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Timestamp> {
        text.parse().ok()
    }

    #[test]
    fn moments_are_read_and_written() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T12:30:05.250Z", 951_827_405_250),
            ("2026-03-01T00:00:00.000Z", 1_772_323_200_000),
            ("1969-12-31T23:59:59.999Z", -1),
        ] {
            assert_eq!(Timestamp(millis).to_string(), text);
            assert_eq!(parse(text), Some(Timestamp(millis)));
        }
        assert_eq!(parse("2026-03-01"), parse("2026-03-01T00:00:00Z"));
        assert_eq!(parse("2026-03-01T00:00:00.5Z"), parse("2026-03-01T00:00:00.500999Z"));
        assert_eq!(parse("2026-03-01").unwrap().month(), "2026-03");
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2026",
            "2026-3-1",
            "2026-02-30",
            "2025-02-29",
            "2026-13-01",
            "2026-03-01T25:00:00Z",
            "2026-03-01T12:00:00",
            "2026-03-01T12:00:00+01:00",
            "2026-03-01T12:00:00.Z",
            "+026-03-01",
            "２026-03-01",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
