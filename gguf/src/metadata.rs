//! The metadata of a file: values by key, read with errors that name the file and the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{Error, Value};

/// Values by key.
#[derive(Clone, Debug)]
pub struct Metadata {
    origin: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// No values yet. `origin` names the file in errors.
    pub fn new(origin: &Path) -> Self {
        Self { origin: origin.to_owned(), values: BTreeMap::new() }
    }

    /// The file.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The keys in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The keys with their values, in alphabetical order.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = (&String, &Value)> {
        self.values.iter()
    }

    /// Sets a key. Returns the value that it had.
    pub fn set(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.values.insert(key.into(), value)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text that must be there.
    pub fn text(&self, key: &str) -> Result<&str, Error> {
        self.optional_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A text.
    pub fn optional_text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a text", Value::as_text)
    }

    /// A whole number that must be there.
    pub fn integer(&self, key: &str) -> Result<i64, Error> {
        self.optional_integer(key)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number.
    pub fn optional_integer(&self, key: &str) -> Result<Option<i64>, Error> {
        self.typed(key, "a whole number", Value::as_integer)
    }

    /// A number that must be there.
    pub fn number(&self, key: &str) -> Result<f64, Error> {
        self.optional_number(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", Value::as_number)
    }

    /// A flag.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A list of texts that must be there.
    pub fn texts(&self, key: &str) -> Result<&[String], Error> {
        self.typed(key, "a list of texts", Value::as_texts)?.ok_or_else(|| self.missing(key))
    }

    /// A list of whole numbers.
    pub fn optional_integers(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(key, "a list of whole numbers", Value::as_integers)
    }

    /// A list of fractions.
    pub fn optional_fractions(&self, key: &str) -> Result<Option<Vec<f64>>, Error> {
        self.typed(key, "a list of numbers with a fraction", Value::as_fractions)
    }

    /// The error for a value that is not one of the valid ones.
    pub fn wrong(&self, key: &str, expected: &'static str) -> Error {
        let got = self.get(key).map_or_else(|| "nothing".to_owned(), Value::describe);
        Error::WrongValue { path: self.origin.clone(), key: key.to_owned(), expected, got }
    }

    /// The error for a key whose value is valid and not supported.
    pub fn unsupported(&self, key: &str, fix: &'static str) -> Error {
        let value = self.get(key).map_or_else(|| "nothing".to_owned(), Value::describe);
        Error::Unsupported { path: self.origin.clone(), found: format!("`{key}` = {value}"), fix }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let value = self.get(key);
        value.map(|value| read(value).ok_or_else(|| self.wrong(key, expected))).transpose()
    }

    fn missing(&self, key: &str) -> Error {
        Error::MissingKey { path: self.origin.clone(), key: key.to_owned() }
    }
}
