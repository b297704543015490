//! Python features that the Jinja engine lacks: printing of values, `json.dumps` and `strftime`.
//!
//! Floats print in Rust's shortest form, which agrees with Python's below 1e16. This module knows no
//! templates.

use std::fmt::Write as _;
use std::time::SystemTime;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Utc};
use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Whether a value is a tuple: a list that Python prints in parentheses.
pub(super) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// Python's `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.to_string(),
        _ => repr(value),
    }
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::String => quote(&value.to_string()),
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            match items.as_slice() {
                [item] if is_tuple(value) => format!("({item},)"),
                _ if is_tuple(value) => format!("({})", items.join(", ")),
                _ => format!("[{}]", items.join(", ")),
            }
        }
        ValueKind::Map if value.as_object().is_some_and(|object| object.enumerator_len().is_some()) => {
            let entry = |key: Value| {
                let item = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&item))
            };
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(entry).collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    }
}

/// A Python string literal: in single quotes, unless the text contains single quotes and no double quotes.
fn quote(text: &str) -> String {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(mark);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == mark => {
                out.push('\\');
                out.push(mark);
            }
            _ => out.push(character),
        }
    }
    out.push(mark);
    out
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "the engine calls filters with owned keyword arguments")]
pub(super) fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let failed = |error| Error::new(ErrorKind::InvalidOperation, "cannot write as JSON").with_source(error);
    let indent = indent.map_or_else(|| options.get::<Option<Value>>("indent"), |indent| Ok(Some(indent)))?;
    let indent = indent.filter(|indent| !indent.is_none()).map(usize::try_from).transpose()?;

    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };

    let default_item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (default_item.to_owned(), ": ".to_owned()));

    let writer = JsonWriter {
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };

    options.assert_all_used()?;

    let mut out = String::new();
    writer.write(&mut out, &serde_json::to_value(value).map_err(failed)?, 0);
    Ok(Value::from(out))
}

struct JsonWriter {
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl JsonWriter {
    fn write(&self, out: &mut String, value: &serde_json::Value, depth: usize) {
        match value {
            serde_json::Value::Array(items) => {
                self.write_list(out, ('[', ']'), items, depth, |out, item| self.write(out, item, depth + 1));
            }
            serde_json::Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sorted {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.write_list(out, ('{', '}'), &entries, depth, |out, (key, item)| {
                    self.write_string(out, key);
                    out.push_str(&self.key);
                    self.write(out, item, depth + 1);
                });
            }
            serde_json::Value::String(text) => self.write_string(out, text),
            scalar => out.push_str(&scalar.to_string()),
        }
    }

    fn write_list<T>(
        &self,
        out: &mut String,
        brackets: (char, char),
        items: &[T],
        depth: usize,
        mut write_item: impl FnMut(&mut String, &T),
    ) {
        out.push(brackets.0);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.new_line(out, depth + 1);
            write_item(out, item);
        }
        if !items.is_empty() {
            self.new_line(out, depth);
        }
        out.push(brackets.1);
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        let json = serde_json::Value::from(text).to_string();
        if !self.ascii {
            out.push_str(&json);
            return;
        }
        for character in json.chars() {
            if character.is_ascii() {
                out.push(character);
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
                }
            }
        }
    }
}

/// A moment, in UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(DateTime<Utc>);

impl Clock {
    pub(super) fn now() -> Self {
        Self(SystemTime::now().into())
    }

    /// Python's `strftime`. A directive that is unknown is an error.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
        if items.contains(&Item::Error) {
            let message = format!("strftime_now does not know every directive of {format:?}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        Ok(self.0.format_with_items(items.iter()).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_print_as_in_python() {
        let clock = |seconds| Clock(DateTime::from_timestamp(seconds, 0).unwrap());
        // datetime.fromtimestamp(1709210096, timezone.utc) is Thursday 2024-02-29 12:34:56.
        let leap_day = clock(1_709_210_096);
        assert_eq!(leap_day.strftime("%d %b %Y").unwrap(), "29 Feb 2024");
        assert_eq!(
            leap_day.strftime("%A, %B %-d, %y %H:%M:%S %I%p %%").unwrap(),
            "Thursday, February 29, 24 12:34:56 12PM %"
        );
        // 1999-12-31 23:59:59, a Friday.
        let new_year = clock(946_684_799);
        assert_eq!(new_year.strftime("%F %T %a %-m").unwrap(), "1999-12-31 23:59:59 Fri 12");
        assert!(new_year.strftime("%Q").is_err());
    }

    #[test]
    fn values_print_as_in_python() {
        let value =
            Value::from(minijinja::value::Serde(serde_json::json!({"a": [1, true, null, "it's", 1.5]})));
        assert_eq!(text(&value), "{'a': [1, True, None, \"it's\", 1.5]}");
        assert_eq!(text(&Value::from("x")), "x");
        assert_eq!(text(&Value::UNDEFINED), "");
    }
}
