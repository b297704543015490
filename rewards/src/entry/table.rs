//! Reads and writes a `[[reward]]` table.
//!
//! The keys of a table depend on its `kind`, which may stand behind them. serde buffers the fields of a
//! tagged enum and thereby loses where a value was written, so the table is read by hand: every value is read
//! as the type of its key when the key is met, and an error of the deserializer keeps its place. After the
//! last key the kind is known, and a key that it does not have is refused with those that it has: a key of no
//! kind as an unknown field, beside which the nearest one may be shown, and a key of another kind in words.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Extract, Normalize, RewardEntry};

/// The keys of every kind.
const SHARED: [&str; 7] = ["kind", "name", "weight", "clip", "normalize", "mean", "std"];

/// The keys of a kind: those that every kind has, and its own.
const fn keys<const OWN: usize, const ALL: usize>(own: [&'static str; OWN]) -> [&'static str; ALL] {
    assert!(OWN + SHARED.len() == ALL, "the list is too long or too short");
    let mut all = [""; ALL];
    let mut index = 0;
    while index < ALL {
        all[index] = if index < SHARED.len() { SHARED[index] } else { own[index - SHARED.len()] };
        index += 1;
    }
    all
}

static MODEL: [&str; 8] = keys(["model"]);
static JUDGE: [&str; 15] =
    keys(["model", "template", "scale", "max_tokens", "temperature", "timeout", "attempts", "concurrency"]);
static EXACT: [&str; 11] = keys(["extract", "pattern", "ignore_case", "any_of"]);
static NUMERIC: [&str; 11] = keys(["extract", "pattern", "tolerance", "any_of"]);
static MATH: [&str; 8] = keys(["any_of"]);
static CHOICE: [&str; 8] = keys(["choices"]);
static REGEX: [&str; 9] = keys(["pattern", "full"]);
static JSON: [&str; 10] = keys(["extract", "pattern", "schema"]);
static FORMAT: [&str; 10] = keys(["tags", "opened", "outside"]);
static IFEVAL: [&str; 10] = keys(["loose", "share", "instructions"]);
static LENGTH: [&str; 10] = keys(["target", "max", "tolerance"]);
static LANGUAGE: [&str; 8] = keys(["language"]);
static REPETITION: [&str; 9] = keys(["ngram", "penalty"]);
static CODE: [&str; 9] = keys(["program", "timeout"]);
static COMMAND: [&str; 12] = keys(["command", "batch_size", "timeout", "max_restarts", "concurrency"]);
static HTTP: [&str; 13] = keys(["url", "batch_size", "timeout", "attempts", "concurrency", "headers"]);

/// The names of the kinds, as serde wants them.
static KINDS: [&str; 17] = [
    "model",
    "judge",
    "exact",
    "numeric",
    "math",
    "choice",
    "regex",
    "json",
    "format",
    "ifeval",
    "length",
    "language",
    "repetition",
    "world",
    "code",
    "command",
    "http",
];

/// The keys of the tables of a kind.
fn known(kind: &str) -> &'static [&'static str] {
    match kind {
        "model" => &MODEL,
        "judge" => &JUDGE,
        "exact" => &EXACT,
        "numeric" => &NUMERIC,
        "math" => &MATH,
        "choice" => &CHOICE,
        "regex" => &REGEX,
        "json" => &JSON,
        "format" => &FORMAT,
        "ifeval" => &IFEVAL,
        "length" => &LENGTH,
        "language" => &LANGUAGE,
        "repetition" => &REPETITION,
        "code" => &CODE,
        "command" => &COMMAND,
        "http" => &HTTP,
        _ => &SHARED,
    }
}

impl<'de> Deserialize<'de> for RewardEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = RewardEntry;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RewardEntry, A::Error> {
        let (mut values, mut unknown) = (Map::new(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            match read_value(&key, &mut map)? {
                Some(value) => drop(values.insert(key, value)),
                None => unknown.push(key),
            }
        }

        let Some(Value::String(kind)) = values.remove("kind") else {
            let message = format!("has no `kind`; give one of {}", KINDS.join(", "));
            return Err(de::Error::custom(message));
        };
        let known = known(&kind);
        if let Some(key) = unknown.first() {
            return Err(de::Error::unknown_field(key, known));
        }
        // A key of another kind is spelled right: no other key is meant.
        if let Some(key) = values.keys().find(|key| !known.contains(&key.as_str())) {
            let keys = known.join(", ");
            return Err(de::Error::custom(format!(
                "kind = {kind:?} has no key `{key}`; its keys are {keys}"
            )));
        }
        entry(kind, values).map_err(de::Error::custom)
    }
}

/// The value of a key, read as the type that the key has in every kind. `None` for a key of no kind.
fn read_value<'de, A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Option<Value>, A::Error> {
    Ok(Some(match key {
        "kind" => Value::from(map.next_value::<KindName>()?.0),
        "name" | "model" | "template" | "pattern" | "choices" | "language" | "program" | "url" => {
            map.next_value::<String>()?.into()
        }
        "weight" | "clip" | "mean" | "std" | "tolerance" | "penalty" | "timeout" | "temperature" => {
            map.next_value::<Finite>()?.0.into()
        }
        "target" | "max" | "max_tokens" | "ngram" | "batch_size" | "max_restarts" | "attempts"
        | "concurrency" => map.next_value::<usize>()?.into(),
        "ignore_case" | "any_of" | "full" | "opened" | "outside" | "loose" | "share" => {
            map.next_value::<bool>()?.into()
        }
        "scale" => map.next_value::<[Finite; 2]>()?.map(|end| end.0).to_vec().into(),
        "tags" | "command" => map.next_value::<Vec<String>>()?.into(),
        "headers" => {
            let texts = map.next_value::<BTreeMap<String, String>>()?;
            Value::Object(texts.into_iter().map(|(name, text)| (name, text.into())).collect())
        }
        "instructions" => {
            let tables = map.next_value::<Vec<Map<String, Value>>>()?;
            tables.into_iter().map(Value::Object).collect()
        }
        "schema" => map.next_value::<Value>()?,
        "extract" => json(&map.next_value::<Extract>()?)?,
        "normalize" => json(&map.next_value::<Normalize>()?)?,
        _ => {
            map.next_value::<IgnoredAny>()?;
            return Ok(None);
        }
    }))
}

fn json<E: de::Error>(value: &impl Serialize) -> Result<Value, E> {
    serde_json::to_value(value).map_err(E::custom)
}

/// The entry of values that have the right types.
fn entry(kind: String, mut values: Map<String, Value>) -> Result<RewardEntry, serde_json::Error> {
    let [name, weight, clip, normalize, mean, std] =
        ["name", "weight", "clip", "normalize", "mean", "std"].map(|key| values.remove(key));
    let number = |value: Option<Value>| value.as_ref().and_then(Value::as_f64);
    let name = name.as_ref().and_then(Value::as_str).unwrap_or(&kind).to_owned();
    values.insert("kind".to_owned(), Value::String(kind));
    Ok(RewardEntry {
        name,
        weight: number(weight).unwrap_or(1.0),
        clip: number(clip),
        normalize: normalize.map(serde_json::from_value).transpose()?.unwrap_or_default(),
        mean: number(mean),
        std: number(std),
        kind: serde_json::from_value(Value::Object(values))?,
    })
}

/// The name of a kind.
struct KindName(String);

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if KINDS.contains(&name.as_str()) {
            Ok(Self(name))
        } else {
            Err(de::Error::unknown_variant(&name, &KINDS))
        }
    }
}

/// A number that is neither infinite nor NaN.
struct Finite(f64);

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        if number.is_finite() {
            Ok(Self(number))
        } else {
            Err(de::Error::invalid_value(Unexpected::Float(number), &"a finite number"))
        }
    }
}

impl Serialize for RewardEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Ok(Value::Object(own)) = serde_json::to_value(&self.kind) else {
            return Err(serde::ser::Error::custom("the settings of a reward are a table"));
        };
        let mut table = Map::from_iter([
            ("kind".to_owned(), Value::from(self.kind.name())),
            ("name".to_owned(), Value::from(self.name.as_str())),
            ("weight".to_owned(), Value::from(self.weight)),
        ]);
        let numbers = [("clip", self.clip), ("mean", self.mean), ("std", self.std)];
        table.extend(numbers.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))));
        let normalize = serde_json::to_value(self.normalize).map_err(serde::ser::Error::custom)?;
        table.insert("normalize".to_owned(), normalize);
        // In TOML, tables stand behind all other values: the structs of the kinds have theirs at the end.
        table.extend(own);
        table.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
