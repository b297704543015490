//! Other names: `--map WANTED=FOUND` for columns and the fields of turns, `--map ALIAS=user` for roles.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

use super::{Layout, Row};
use crate::conversation::Role;
use crate::error::{Error, Result};

/// Names of roles in common use.
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

/// Names of columns, fields of turns, and roles, as a file has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Canonical column to the column found.
    columns: BTreeMap<String, String>,
    /// `role` or `content` to the field found.
    fields: BTreeMap<String, String>,
    /// Role name found to role.
    roles: BTreeMap<String, Role>,
}

impl Mapping {
    /// Reads entries such as `messages=dialogue`, `role=speaker`, `content=utterance`, `bot=assistant`.
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

    /// The role behind a name: the mapping's word first, then the names in common use.
    pub(super) fn role(&self, name: &str) -> Option<Role> {
        let usual = || ALIASES.iter().find(|alias| alias.0 == name).map(|alias| alias.1);
        self.roles.get(name).copied().or_else(usual)
    }

    /// The field of a turn that holds `role` or `content`, with the first of `usual` that the turn has as
    /// default.
    pub(super) fn field<'a>(&'a self, name: &str, turn: &'a Row, usual: &[&str]) -> Option<&'a Value> {
        match self.fields.get(name) {
            Some(found) => turn.get(found),
            None => usual.iter().find_map(|name| turn.get(*name)),
        }
    }

    /// Whether a field of a turn is read, under its own or a mapped name.
    pub(super) fn reads_turn_field(&self, field: &str) -> bool {
        ["role", "from", "content", "value", "weight"].contains(&field)
            || self.fields.values().any(|found| found == field)
    }

    /// The name by which a column is read.
    pub(crate) fn canonical_name(&self, column: &str) -> String {
        let mapped = self.columns.iter().find(|(_, found)| *found == column);
        match mapped {
            Some((wanted, _)) => wanted.clone(),
            // Another column has been given this name.
            None if self.columns.contains_key(column) => format!("{column} (not mapped)"),
            None => column.to_owned(),
        }
    }

    /// Gives columns the names by which they are read.
    pub(crate) fn rename(&self, row: Row) -> Row {
        row.into_iter().map(|(name, value)| (self.canonical_name(&name), value)).collect()
    }
}

/// Every column that some layout reads, each once.
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
