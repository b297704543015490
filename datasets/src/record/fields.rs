//! The fields of a row, read as one type or refused with an error that names the row and the field.
//!
//! Null counts as missing. In CSV files every cell is a text, so a text in a column that expects a list is
//! parsed as JSON; in no other format is it parsed, but for tools and calls, which data sets store as text.

use std::borrow::Cow;

use serde_json::Value;

use super::layout::Layout;
use super::mapping::Mapping;
use super::notes;
use crate::error::{Error, Result, RowLocation};
use crate::table::Row;
use crate::table::json::{self, Problem};
use crate::table::limits::row_too_large;

/// A row with its location, layout and mapping.
pub(super) struct Fields<'a> {
    pub(super) row: &'a Row,
    pub(super) at: &'a RowLocation,
    pub(super) mapping: &'a Mapping,
    pub(super) layout: Layout,
}

impl Fields<'_> {
    /// Returns a field that is present and not null.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.row.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn need(&self, field: &str, expected: &'static str) -> Result<&Value> {
        self.get(field).ok_or_else(|| Error::MissingField {
            at: self.at.clone(),
            field: field.to_owned(),
            expected,
        })
    }

    pub(super) fn text(&self, field: &str) -> Result<String> {
        let value = self.need(field, "text")?;
        value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(field, value, "text"))
    }

    pub(super) fn number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        let finite = number.filter(|number: &f64| number.is_finite());
        finite.map(Some).ok_or_else(|| self.wrong(field, value, "a finite number"))
    }

    pub(super) fn ids(&self, field: &str) -> Result<Vec<i64>> {
        const IDS: &str = "a list of whole numbers";
        let value = self.listed(field, IDS)?;
        let list = value.as_array().ok_or_else(|| self.wrong(field, &value, IDS))?;
        let id = |(index, id): (usize, &Value)| {
            id.as_i64().ok_or_else(|| self.wrong(&format!("{field}[{index}]"), id, "a whole number"))
        };
        list.iter().enumerate().map(id).collect()
    }

    /// Returns a text, or an empty text if the field is missing or null.
    pub(super) fn text_or_empty(&self, field: &str) -> Result<String> {
        self.get(field).map_or_else(|| Ok(String::new()), |_| self.text(field))
    }

    /// Returns a field. A CSV text that holds a JSON list is parsed as that list.
    pub(super) fn listed(&self, field: &str, expected: &'static str) -> Result<Cow<'_, Value>> {
        let value = self.need(field, expected)?;
        let cell = value.as_str().filter(|text| self.at.is_csv() && text.trim_start().starts_with('['));
        let list = cell.map(|text| self.parsed(field, text)).transpose()?.flatten();
        Ok(list.map_or(Cow::Borrowed(value), Cow::Owned))
    }

    /// Parses a text that may be JSON. `None` if it is not.
    pub(super) fn parsed(&self, field: &str, text: &str) -> Result<Option<Value>> {
        match json::parse(text.as_bytes()) {
            Ok(value) => Ok(Some(value)),
            // A list with a field that is there twice, or one that is too large, is no text.
            Err(Problem::Broken(error)) if error.is_data() => {
                let reason = format!("the list in the field {field}: {}", Error::reason_of_json(&error));
                Err(Error::BadForeignRow { at: self.at.clone(), reason })
            }
            Err(Problem::TooLarge) => Err(row_too_large(self.at.clone())),
            Err(Problem::Broken(_)) => Ok(None),
        }
    }

    pub(super) fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> Error {
        Error::WrongType {
            at: self.at.clone(),
            field: field.to_owned(),
            found: notes::preview(found),
            expected,
        }
    }
}
