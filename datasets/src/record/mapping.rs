//! Renames columns, turn fields and roles: `--map WANTED=FOUND` for columns and turn fields,
//! `--map ALIAS=user` for roles.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

use super::layout::Layout;
use crate::conversation::Role;
use crate::error::{Error, Result};
use crate::table::Row;

/// Common names of roles.
const ALIASES: [(&str, Role); 12] = [
    ("system", Role::System),
    ("user", Role::User),
    ("human", Role::User),
    ("prompter", Role::User),
    ("assistant", Role::Assistant),
    ("gpt", Role::Assistant),
    ("bing", Role::Assistant),
    ("chatgpt", Role::Assistant),
    ("function_call", Role::Assistant),
    ("tool", Role::Tool),
    ("observation", Role::Tool),
    ("function_response", Role::Tool),
];

/// A mapping from the names in a file to canonical columns, turn fields and roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// From canonical column to the column in the file.
    columns: BTreeMap<String, String>,
    /// From `role` or `content` to the field in the file.
    fields: BTreeMap<String, String>,
    /// From role name in the file to role.
    roles: BTreeMap<String, Role>,
}

impl Mapping {
    /// Parses entries such as `messages=dialogue`, `role=speaker`, `content=utterance`, `bot=assistant`.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self> {
        let mut mapping = Self::default();
        for entry in entries {
            let entry = entry.as_ref();
            let columns = columns();
            let bad = || Error::BadMapping { given: entry.to_owned(), columns: columns.join(", ") };
            let (wanted, found) = entry.split_once('=').ok_or_else(bad)?;
            let (wanted, found) = (wanted.trim().to_owned(), found.trim().to_owned());
            if wanted.is_empty() || found.is_empty() {
                return Err(bad());
            }
            if columns.contains(&wanted.as_str()) {
                mapping.columns.insert(wanted, found);
            } else if ["role", "content"].contains(&wanted.as_str()) {
                mapping.fields.insert(wanted, found);
            } else {
                mapping.roles.insert(wanted, Role::from_str(&found).map_err(|_| bad())?);
            }
        }
        Ok(mapping)
    }

    /// Returns the role for a name. The mapping takes precedence over the common names.
    pub(super) fn role(&self, name: &str) -> Option<Role> {
        let usual = || ALIASES.iter().find(|alias| alias.0 == name).map(|alias| alias.1);
        self.roles.get(name).copied().or_else(usual)
    }

    /// Whether the user has said which role this name stands for.
    pub(super) fn names_role(&self, name: &str) -> bool {
        self.roles.contains_key(name)
    }

    /// Returns the turn field that holds `role` or `content`. Without a mapping it is the first of `usual`
    /// that the turn has.
    pub(crate) fn field<'a>(&'a self, name: &str, turn: &'a Row, usual: &[&str]) -> Option<&'a Value> {
        match self.fields.get(name) {
            Some(found) => turn.get(found),
            None => usual.iter().find_map(|name| turn.get(*name)),
        }
    }

    /// Whether a turn field is read, under its canonical or mapped name.
    pub(super) fn reads_turn_field(&self, field: &str) -> bool {
        ["role", "from", "content", "value", "weight", "tool_calls", "name", "tool_call_id"].contains(&field)
            || self.fields.values().any(|found| found == field)
    }

    /// Returns the canonical name of a column.
    pub(crate) fn canonical_name(&self, column: &str) -> String {
        let mapped = self.columns.iter().find(|(_, found)| *found == column);
        match mapped {
            Some((wanted, _)) => wanted.clone(),
            // Another column is mapped to this name.
            None if self.columns.contains_key(column) => format!("{column} (not mapped)"),
            None => column.to_owned(),
        }
    }

    /// Renames the columns of a row to their canonical names.
    pub(crate) fn rename(&self, row: Row) -> Row {
        row.into_iter().map(|(name, value)| (self.canonical_name(&name), value)).collect()
    }
}

/// Returns every column that some layout reads, without duplicates.
fn columns() -> Vec<&'static str> {
    let mut columns: Vec<&str> = Vec::new();
    for layout in Layout::ALL {
        for &column in layout.required().iter().chain(layout.optional()) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
    }
    columns
}
