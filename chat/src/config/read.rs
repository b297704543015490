//! Deserializes a [`Tree`] into the sections of the configuration with serde. Errors name the key and the
//! place where it was written.
//!
//! serde reports an error to the deserializer's error type in structured form: an unknown field with the list
//! of known fields, or a wrong type with the expected type. [`ReadError`] keeps this structure and receives
//! its [`Origin`] as it propagates up. This module knows no particular section.

use std::collections::btree_map;
use std::fmt;

use serde::de::{self, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor};
use toml::Value;

use super::error::ConfigError;
use super::tree::{Entry, Node, Origin, Tree};

impl ConfigError {
    /// An unknown key of a file whose other sections are read apart is told with their names as well.
    pub(super) fn with_sections(self, sections: &[&str]) -> Self {
        match self {
            Self::UnknownKey { place, key, known, nearest } if !key.contains('.') => {
                let nearest = nearest.or_else(|| self::nearest(&key, sections).map(str::to_owned));
                let known = format!("{known}, {}", sections.join(", "));
                Self::UnknownKey { place, key, known, nearest }
            }
            other => other,
        }
    }
}

/// Deserializes a complete tree as a `T`.
pub(crate) fn read<T: de::DeserializeOwned>(tree: &Tree) -> Result<T, ConfigError> {
    T::deserialize(TableReader(tree)).map_err(ReadError::into_config)
}

/// A structural error that serde reported.
#[derive(Debug)]
enum Problem {
    UnknownKey { key: String, known: &'static [&'static str] },
    UnknownValue { value: String, known: &'static [&'static str] },
    Type { found: String, wanted: String },
    Missing { key: &'static str },
    Other(String),
}

/// A problem, and the place of the value that caused it once that place is known.
#[derive(Debug)]
struct ReadError {
    problem: Problem,
    origin: Option<Origin>,
}

impl ReadError {
    fn at(mut self, origin: &Origin) -> Self {
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }

    /// The error of a table. A reader that knows the keys of a table only after it has read all of them names
    /// an unknown one without its place.
    fn of_table(self, tree: &Tree) -> Self {
        let unknown = match (&self.problem, &self.origin) {
            (Problem::UnknownKey { key, .. }, None) => tree.get(key),
            _ => None,
        };
        match unknown {
            Some(entry) => self.at(&entry.origin),
            None => self,
        }
    }

    fn into_config(self) -> ConfigError {
        let (place, key) =
            self.origin.map_or((None, String::new()), |origin| (Some(origin.location), origin.key));

        match self.problem {
            Problem::UnknownKey { key: last, known } => {
                // The origin is that of the key itself, or that of its table if the key could not be found.
                let section = match key.strip_suffix(&last) {
                    Some(section) if section.is_empty() || section.ends_with('.') => section.to_owned(),
                    _ if key.is_empty() => String::new(),
                    _ => format!("{key}."),
                };
                let nearest = nearest(&last, known).map(|nearest| format!("{section}{nearest}"));
                let key = format!("{section}{last}");
                ConfigError::UnknownKey { place, nearest, key, known: known.join(", ") }
            }
            Problem::UnknownValue { value, known } => {
                let nearest = nearest(&value, known).map(str::to_owned);
                ConfigError::UnknownValue { place, nearest, key, value, known: known.join(", ") }
            }
            Problem::Type { found, wanted } => ConfigError::Type { place, key, found, wanted },
            Problem::Missing { key: last } => {
                let key = if key.is_empty() { last.to_owned() } else { format!("{key}.{last}") };
                ConfigError::Missing { place, key }
            }
            Problem::Other(message) => ConfigError::Value { place, key, message },
        }
    }
}

/// The entry of `known` that is most similar to `word`, if any is similar enough. The similarity is the
/// higher of the Jaro-Winkler and the normalized Damerau-Levenshtein similarity.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |other: &str| {
        strsim::jaro_winkler(word, other).max(strsim::normalized_damerau_levenshtein(word, other))
    };
    let best = known.iter().max_by(|left, right| likeness(left).total_cmp(&likeness(right)))?;
    (likeness(best) > 0.65).then_some(*best)
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.problem)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Problem::Other(message.to_string()).into()
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Problem::Type { found: found_text(&found), wanted: wanted_text(&wanted.to_string()) }.into()
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(found, wanted)
    }

    fn invalid_length(length: usize, wanted: &dyn Expected) -> Self {
        let found = format!("a list of {length}");
        Problem::Type { found, wanted: wanted_text(&wanted.to_string()) }.into()
    }

    fn unknown_variant(value: &str, known: &'static [&'static str]) -> Self {
        Problem::UnknownValue { value: value.to_owned(), known }.into()
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Problem::UnknownKey { key: key.to_owned(), known }.into()
    }

    fn missing_field(key: &'static str) -> Self {
        Problem::Missing { key }.into()
    }
}

impl From<Problem> for ReadError {
    fn from(problem: Problem) -> Self {
        Self { problem, origin: None }
    }
}

fn found_text(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(flag) => flag.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Str(text) => format!("the text {text:?}"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// Translates serde's name for an expected Rust type into the words of TOML.
fn wanted_text(wanted: &str) -> String {
    match wanted {
        "f64" | "f32" => "a number".to_owned(),
        "u64" | "u32" | "usize" => "a whole number, 0 or more".to_owned(),
        "i64" | "i32" | "isize" => "a whole number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "a text in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a tuple of size 2" => "a list of 2".to_owned(),
        text if text.starts_with("struct ") || text == "a map" => "a table".to_owned(),
        text => text
            .strip_prefix("variant of enum ")
            .map_or_else(|| text.to_owned(), |_| "a name in quotes".to_owned()),
    }
}

/// Deserializes a table.
struct TableReader<'a>(&'a Tree);

impl<'de> de::Deserializer<'de> for TableReader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor
            .visit_map(Pairs { rest: self.0.iter(), current: None })
            .map_err(|error: ReadError| error.of_table(self.0))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Pairs<'a> {
    rest: btree_map::Iter<'a, String, Entry>,
    current: Option<&'a Entry>,
}

impl<'de> de::MapAccess<'de> for Pairs<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        let Some((key, entry)) = self.rest.next() else { return Ok(None) };
        self.current = Some(entry);
        let key: de::value::StrDeserializer<'_, ReadError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|error| error.at(&entry.origin))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let entry = self.current.take().expect("serde asks for a value after its key");
        seed.deserialize(EntryReader(entry)).map_err(|error| error.at(&entry.origin))
    }
}

/// Deserializes a value.
struct EntryReader<'a>(&'a Entry);

impl<'de> de::Deserializer<'de> for EntryReader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.0.node {
            Node::Table(tree) => TableReader(tree).deserialize_any(visitor),
            Node::List(entries) => {
                let mut rest = entries.iter();
                let value = visitor.visit_seq(Elements { rest: &mut rest })?;
                match rest.len() {
                    0 => Ok(value),
                    left => {
                        let [found, wanted] =
                            [entries.len(), entries.len() - left].map(|length| format!("a list of {length}"));
                        Err(Problem::Type { found, wanted }.into())
                    }
                }
            }
            Node::Leaf(Value::String(text)) => visitor.visit_str(text),
            Node::Leaf(Value::Integer(number)) => visitor.visit_i64(*number),
            Node::Leaf(Value::Float(number)) => visitor.visit_f64(*number),
            Node::Leaf(Value::Boolean(flag)) => visitor.visit_bool(*flag),
            Node::Leaf(other) => visitor.visit_string(other.to_string()),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.0.node {
            Node::Leaf(Value::String(text)) => {
                let variant: de::value::StrDeserializer<'_, ReadError> = text.as_str().into_deserializer();
                variant.deserialize_enum(name, variants, visitor)
            }
            Node::Leaf(value) => Err(not_a_name(&value.to_string(), variants)),
            Node::List(_) => Err(not_a_name("a list", variants)),
            Node::Table(_) => Err(not_a_name("a table", variants)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The elements of a list. An error in a table is at the place of the table, if at none within it.
struct Elements<'r, 'a> {
    rest: &'r mut std::slice::Iter<'a, Entry>,
}

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        let Some(entry) = self.rest.next() else { return Ok(None) };
        seed.deserialize(EntryReader(entry)).map(Some).map_err(|error| error.at(&entry.origin))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

fn not_a_name(found: &str, variants: &[&str]) -> ReadError {
    Problem::Type { found: found.to_owned(), wanted: format!("one of {}", variants.join(", ")) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::location::SourceLocation;

    /// The message about the unknown key `patern`, reported with the origin of `at`.
    fn unknown(at: Option<&str>) -> String {
        let location = SourceLocation::File("run.toml".into(), 4);
        let origin = at.map(|key| Origin { location, key: key.to_owned() });
        let problem = Problem::UnknownKey { key: "patern".to_owned(), known: &["kind", "pattern"] };
        ReadError { problem, origin }.into_config().to_string()
    }

    #[test]
    fn an_unknown_key_is_named_whole_whether_its_own_place_is_known_or_that_of_its_table() {
        let told = "run.toml:4: unknown key `reward[1].patern`, did you mean `reward[1].pattern`? ";
        for at in ["reward[1].patern", "reward[1]"] {
            let message = unknown(Some(at));
            assert!(message.starts_with(told), "{message}");
        }
        // A table whose name ends like the key.
        let message = unknown(Some("mypatern"));
        assert!(
            message
                .starts_with("run.toml:4: unknown key `mypatern.patern`, did you mean `mypatern.pattern`? ")
        );
        let message = unknown(None);
        assert!(message.starts_with("unknown key `patern`, did you mean `pattern`? "), "{message}");
    }
}
