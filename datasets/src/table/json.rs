//! Parses JSON and rejects objects that contain a field twice, because one of the two values would be lost.
//!
//! A value may take [`limits::ROW_BYTES`](super::limits) in memory, and an object may have so many fields as
//! a file may have columns. What a value takes is counted while it is parsed.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::limits::{COLUMNS, Room};

thread_local! {
    /// The memory that the value which this thread parses may still take.
    static ROOM: Cell<Room> = const { Cell::new(Room::of_row()) };
}

/// A JSON value whose objects have no duplicate fields. It is parsed inside [`within_row`].
pub(super) struct Strict(pub(super) Value);

/// The reason why a text is not a row's value.
pub(crate) enum Problem {
    /// The text is not JSON, or an object has a field twice or too many fields.
    Broken(serde_json::Error),
    /// The value takes more memory than a row may.
    TooLarge,
}

/// Parses one value.
pub(crate) fn parse(text: &[u8]) -> Result<Value, Problem> {
    within_row(|| serde_json::from_slice(text)).map(|Strict(value)| value)
}

/// Parses a value with `parse`, which may take the memory of one row.
pub(super) fn within_row<T>(parse: impl FnOnce() -> serde_json::Result<T>) -> Result<T, Problem> {
    ROOM.set(Room::of_row());
    parse().map_err(|error| if ROOM.get().is_exceeded() { Problem::TooLarge } else { Problem::Broken(error) })
}

/// Takes memory from the room of the value.
fn take<E: Error>(bytes: impl FnOnce(&mut Room) -> bool) -> Result<(), E> {
    let mut room = ROOM.get();
    let fits = bytes(&mut room);
    ROOM.set(room);
    if fits { Ok(()) } else { Err(E::custom("the value is too large")) }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        take(|room| room.take_text(value))?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        take(|room| room.take_text(&value))?;
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            take(Room::take_value)?;
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            take(|room| room.take_field(&name))?;
            let Strict(value) = map.next_value()?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the field {name:?} is there twice")));
            }
            if object.len() == COLUMNS {
                return Err(A::Error::custom(format_args!("an object has more than {COLUMNS} fields")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
