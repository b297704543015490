//! The errors that name the settings whose values are refused.

use std::fmt;

use crate::Error;

/// Refuses the value of a setting.
pub(crate) fn refuse(
    section: &'static str,
    key: &'static str,
    value: &dyn fmt::Display,
    wanted: &str,
) -> Result<(), Error> {
    Err(Error::Setting { section, key, value: value.to_string(), wanted: wanted.to_owned() })
}

/// Refuses a number that is not above 0.
pub(crate) fn positive(section: &'static str, key: &'static str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    refuse(section, key, &value, "must be more than 0")
}

/// Refuses a number below 0.
pub(crate) fn not_negative(section: &'static str, key: &'static str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    refuse(section, key, &value, "must be 0 or more")
}
