//! Typed access to JSON objects, with errors that name the file and the key.
//!
//! A key that is absent has its default. A key that is `null` is not absent: transformers keeps it as `None`,
//! which has a special meaning for a few keys ([`Fields::optional_size`]) and is an error for the others.
//! Sizes have upper bounds far above the sizes of any model, so that no product of sizes overflows and no
//! memory is allocated for an absurd number.

use serde_json::{Map, Value};

use crate::Error;

const SIZE: &str = "a whole number above zero";

/// The largest allowed standard deviation of new weights, far above any sensible value.
const LARGEST_DEVIATION: f64 = 1000.0;

/// The keys of one JSON object.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    origin: &'a str,
    parent: &'a str,
}

impl<'a> Fields<'a> {
    /// The keys of a file. `origin` names the file in error messages.
    pub fn new(map: &'a Map<String, Value>, origin: &'a str) -> Self {
        Self { map, origin, parent: "" }
    }

    /// The name of the source of the keys, for error messages.
    pub fn origin(&self) -> &'a str {
        self.origin
    }

    /// The object under `key`; `None` if it is absent, null or empty.
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

    /// The value of a key; `None` if it is absent or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is present, null or not.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Whether the key is present and null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Returns the spelling of a key that is present. Two spellings with different values are an error,
    /// because different readers of the file would use different ones.
    fn resolve_alias(&self, keys: &[&'a str]) -> Result<Option<&'a str>, Error> {
        let mut present = keys.iter().copied().filter(|key| self.has(key));
        let Some(first) = present.next() else { return Ok(None) };
        match present.find(|other| !equal(&self.map[first], &self.map[*other])) {
            None => Ok(Some(first)),
            Some(other) => {
                let expected = format!("the same as `{}`, of which it is another spelling", self.full(first));
                Err(self.wrong(other, &expected, &self.map[other]))
            }
        }
    }

    /// A whole number above zero under any of the spellings, or `default`.
    pub fn size_or(&self, keys: &[&'a str], default: i64) -> Result<i64, Error> {
        Ok(self.given_size(keys)?.unwrap_or(default))
    }

    /// A required whole number above zero under any of the spellings.
    pub fn size(&self, keys: &[&'a str]) -> Result<i64, Error> {
        self.given_size(keys)?.ok_or_else(|| self.wrong(keys[0], SIZE, &Value::Null))
    }

    /// A whole number above zero: `absent` if the key is absent, `None` if it is null.
    pub fn optional_size(&self, key: &'a str, absent: Option<i64>) -> Result<Option<i64>, Error> {
        if self.is_null(key) { Ok(None) } else { Ok(self.given_size(&[key])?.or(absent)) }
    }

    /// A whole number above zero under any of the spellings; `None` if all are absent.
    fn given_size(&self, keys: &[&'a str]) -> Result<Option<i64>, Error> {
        let Some(key) = self.resolve_alias(keys)? else { return Ok(None) };
        let (value, largest) = (&self.map[key], largest(key));
        match value.as_i64() {
            Some(number) if (1..=largest).contains(&number) => Ok(Some(number)),
            // A number beyond 64 bits is parsed as a float.
            _ if value.as_f64().is_some_and(|number| number > largest as f64) => {
                Err(self.wrong(key, &format!("{SIZE} and at most {largest}"), value))
            }
            _ => Err(self.wrong(key, SIZE, value)),
        }
    }

    /// A whole number, 0 or more, or `default`.
    pub fn count_or(&self, key: &'a str, default: i64) -> Result<i64, Error> {
        let Some(value) = self.map.get(key) else { return Ok(default) };
        let count = value.as_i64().filter(|&number| number >= 0);
        count.ok_or_else(|| self.wrong(key, "a whole number, 0 or more", value))
    }

    /// A number, or `default`.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// A number above zero, or `default`, for the epsilon of a norm.
    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        let number = self.number_or(key, default)?;
        if number > 0.0 { Ok(number) } else { Err(self.wrong(key, "a number above zero", &self.map[key])) }
    }

    /// The standard deviation of new weights, or 0.02.
    pub fn deviation(&self, key: &str) -> Result<f64, Error> {
        let number = self.number_or(key, 0.02)?;
        let sound = (0.0..=LARGEST_DEVIATION).contains(&number);
        if sound { Ok(number) } else { Err(self.wrong(key, "a number from 0 to 1000", &self.map[key])) }
    }

    /// A number; `None` if the key is absent.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.map.get(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number", value)),
        }
    }

    /// A number; `None` if the key is absent or null.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, Error> {
        if self.is_null(key) { Ok(None) } else { self.number(key) }
    }

    /// A flag, or `default`.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.map.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value)),
        }
    }

    /// Text, or `default`.
    pub fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        match self.map.get(key) {
            None => Ok(default),
            Some(value) => value.as_str().ok_or_else(|| self.wrong(key, "text", value)),
        }
    }

    /// Returns an error if `key` has a value that is not one of `neutral`. An absent or null key is neutral.
    pub fn require_neutral(&self, key: &str, neutral: &[Value], fix: &str) -> Result<(), Error> {
        match self.get(key) {
            Some(value) if !neutral.iter().any(|allowed| equal(allowed, value)) => {
                Err(self.unsupported(key, value, fix))
            }
            _ => Ok(()),
        }
    }

    /// The error for a setting that is not implemented.
    pub fn unsupported(&self, key: &str, value: &Value, fix: &str) -> Error {
        Error::Unsupported {
            path: self.origin.to_owned(),
            key: self.full(key),
            value: truncated(value),
            fix: fix.to_owned(),
        }
    }

    /// The error for a setting with a wrong value.
    pub fn wrong(&self, key: &str, expected: &str, got: &Value) -> Error {
        let got = if got.is_null() && !self.has(key) { "nothing".to_owned() } else { truncated(got) };
        Error::Field { path: self.origin.to_owned(), key: self.full(key), expected: expected.to_owned(), got }
    }

    fn full(&self, key: &str) -> String {
        if self.parent.is_empty() { key.to_owned() } else { format!("{}.{key}", self.parent) }
    }
}

/// Whether two values are equal as JSON or as numbers, so that 1 equals 1.0.
fn equal(left: &Value, right: &Value) -> bool {
    left == right || (left.is_number() && left.as_f64() == right.as_f64())
}

fn truncated(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(80).chain("…".chars()).collect() }
}

/// The largest allowed value of a size: at least ten times the largest value in any model, and small enough
/// that no product of sizes overflows.
fn largest(key: &str) -> i64 {
    match key {
        "num_hidden_layers" | "n_layer" => 1 << 12,
        "num_attention_heads" | "n_head" | "num_key_value_heads" => 1 << 16,
        "num_experts" | "num_local_experts" | "num_experts_per_tok" => 1 << 14,
        "hidden_size"
        | "n_embd"
        | "n_embed"
        | "head_dim"
        | "intermediate_size"
        | "n_inner"
        | "ffn_dim"
        | "word_embed_proj_dim"
        | "moe_intermediate_size"
        | "shared_expert_intermediate_size" => 1 << 24,
        _ => i64::from(i32::MAX),
    }
}
