//! Typed reading of JSON objects, with errors that name file and key. `null` counts as absent, as in transformers.

use serde_json::{Map, Value};

use crate::Error;

/// The keys of one JSON object.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    origin: &'a str,
    parent: &'a str,
}

impl<'a> Fields<'a> {
    /// The keys of a whole file; `origin` names it in messages.
    pub fn new(map: &'a Map<String, Value>, origin: &'a str) -> Self {
        Self { map, origin, parent: "" }
    }

    /// The object under `key`, where there is one that is not empty.
    pub fn object(&self, key: &'a str) -> Result<Option<Self>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) if map.is_empty() => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { map, origin: self.origin, parent: key })),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// The names of the keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// A key's value; `None` where it is absent or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The first of several spellings that is there.
    pub fn first(&self, keys: &[&'a str]) -> Option<&'a str> {
        keys.iter().copied().find(|key| self.get(key).is_some())
    }

    /// A whole number above zero under any of the spellings, or `default`.
    pub fn size_or(&self, keys: &[&'a str], default: i64) -> Result<i64, Error> {
        let Some(key) = self.first(keys) else { return Ok(default) };
        match self.get(key).and_then(Value::as_i64) {
            Some(number) if number > 0 => Ok(number),
            _ => Err(self.wrong(key, "a whole number above zero", self.get(key).unwrap_or(&Value::Null))),
        }
    }

    /// A whole number above zero that must be there, under any of the spellings.
    pub fn size(&self, keys: &[&'a str]) -> Result<i64, Error> {
        if self.first(keys).is_none() {
            return Err(self.wrong(keys[0], "a whole number above zero", &Value::Null));
        }
        self.size_or(keys, 0)
    }

    /// A finite number, or `default`.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// A number, where there is one.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number", value)),
        }
    }

    /// A flag, or `default`.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value)),
        }
    }

    /// Text, or `default`.
    pub fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_str().ok_or_else(|| self.wrong(key, "text", value)),
        }
    }

    /// Refuses any value of `key` but the neutral ones; an absent key is neutral.
    pub fn refuse_unless(&self, key: &str, neutral: &[Value], fix: &str) -> Result<(), Error> {
        match self.get(key) {
            Some(value) if !neutral.iter().any(|allowed| equal(allowed, value)) => {
                Err(self.unsupported(key, value, fix))
            }
            _ => Ok(()),
        }
    }

    /// The error of a setting that is not implemented.
    pub fn unsupported(&self, key: &str, value: &Value, fix: &str) -> Error {
        Error::Unsupported {
            path: self.origin.to_owned(),
            key: self.full(key),
            value: abbreviated(value),
            fix: fix.to_owned(),
        }
    }

    /// The error of a setting with a wrong value.
    pub fn wrong(&self, key: &str, expected: &str, got: &Value) -> Error {
        let got = if got.is_null() { "nothing".to_owned() } else { abbreviated(got) };
        Error::Field { path: self.origin.to_owned(), key: self.full(key), expected: expected.to_owned(), got }
    }

    fn full(&self, key: &str) -> String {
        if self.parent.is_empty() { key.to_owned() } else { format!("{}.{key}", self.parent) }
    }
}

/// Equal as JSON, and as numbers where one is written 1 and the other 1.0.
fn equal(left: &Value, right: &Value) -> bool {
    left == right || (left.is_number() && left.as_f64() == right.as_f64())
}

fn abbreviated(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(80).chain("…".chars()).collect() }
}
