//! Other names: `--map WANTED=FOUND` for columns and the fields of turns, `--map ALIAS=user` for roles.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use serde_json::{Value, json};

use super::Foreign;
use crate::conversation::Role;
use crate::error::{Error, Result};
use crate::record::{Demonstration, Layout, Preference, Prompt, Record, Row, Unpaired};

const COLUMNS: [&str; 14] = [
    "messages",
    "prompt",
    "completion",
    "text",
    "chosen",
    "rejected",
    "margin",
    "answer",
    "label",
    "input_ids",
    "labels",
    "chosen_input_ids",
    "rejected_input_ids",
    "prompt_length",
];
const NAMES: &str = "messages, prompt, completion, text, chosen, rejected, margin, answer, label, input_ids, labels, \
                     chosen_input_ids, rejected_input_ids, prompt_length; role, content";
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
            let bad = || Error::BadMapping { given: entry.to_owned(), columns: NAMES };
            let (wanted, found) = entry.split_once('=').ok_or_else(bad)?;
            let (wanted, found) = (wanted.trim().to_owned(), found.trim().to_owned());
            if wanted.is_empty() || found.is_empty() {
                return Err(bad());
            }
            if COLUMNS.contains(&wanted.as_str()) {
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

    /// The field of a turn that holds `role` or `content`, with the first of `usual` that the turn has as default.
    pub(super) fn field<'a>(&self, name: &str, turn: &'a Row, usual: &[&str]) -> Option<&'a Value> {
        match self.fields.get(name) {
            Some(found) => turn.get(found),
            None => usual.iter().find_map(|name| turn.get(*name)),
        }
    }

    /// The layout: a canonical one if the mapping (or nothing but the names of roles) makes it so, a foreign one otherwise.
    pub(super) fn layout(&self, columns: &[String], first: &Row, path: &Path) -> Result<Foreign> {
        let renamed: Vec<String> = columns.iter().map(|column| self.canonical_name(column)).collect();
        let first = self.rename(first.clone());
        if self.columns.is_empty() {
            match Foreign::detect(&renamed, &first, path) {
                // Not foreign, so perhaps canonical.
                Err(Error::MissingColumn { .. }) => {}
                told => return told,
            }
        }
        let layouts = [
            Demonstration::detect(&renamed, path),
            Preference::detect(&renamed, path),
            Unpaired::detect(&renamed, path),
            Prompt::detect(&renamed, path),
        ];
        let fitting: Vec<Layout> = layouts.into_iter().flatten().collect();
        let larger = |layout: &Layout| {
            !fitting.iter().any(|other| {
                other.required().len() > layout.required().len()
                    && layout.required().iter().all(|column| other.required().contains(column))
            })
        };
        let best: Vec<Layout> = fitting.iter().copied().filter(larger).collect();
        match best[..] {
            [layout] | [layout @ Layout::Messages, Layout::PromptMessages] => Ok(Foreign::Canonical(layout)),
            [] => Foreign::detect(&renamed, &first, path),
            _ => Err(Error::AmbiguousLayout {
                path: path.to_owned(),
                found: columns.join(", "),
                choices: best.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(" or "),
            }),
        }
    }

    fn canonical_name(&self, column: &str) -> String {
        let mapped = self.columns.iter().find(|(_, found)| *found == column);
        mapped.map_or(column, |(wanted, _)| wanted).to_owned()
    }

    /// Gives columns their canonical names.
    pub(super) fn rename(&self, row: Row) -> Row {
        row.into_iter().map(|(name, value)| (self.canonical_name(&name), value)).collect()
    }

    /// Gives the turns of a canonical row their canonical fields and roles; what is not known stays, to be refused later.
    pub(super) fn canonical_turns(&self, row: &Row) -> Row {
        let turn = |turn: &Value| {
            let Some(object) = turn.as_object() else { return turn.clone() };
            let role = self.field("role", object, &["role", "from"]);
            let content = self.field("content", object, &["content", "value"]);
            let name = role.and_then(Value::as_str);
            let known = name.and_then(|name| self.role(name)).map(Role::as_str);
            json!({"role": known.or(name), "content": content})
        };
        let turns = |(name, value): (&String, &Value)| match value {
            Value::Array(list) if list.iter().all(Value::is_object) => {
                (name.clone(), list.iter().map(turn).collect())
            }
            other => (name.clone(), other.clone()),
        };
        row.iter().map(turns).collect()
    }
}
