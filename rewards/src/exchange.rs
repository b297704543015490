//! Requests and answers as JSON objects, which programs and servers of the user share.
//!
//! A request has an `id`. An answer with a field `error` says that the request could not be answered. This
//! file does not know how the JSON gets there, nor what is asked.

use serde::Serialize;
use serde_json::{Map, Value};

/// A request without white space, which is one line.
pub(crate) fn request(id: u64, body: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Numbered<'a, B> {
        id: u64,
        #[serde(flatten)]
        body: &'a B,
    }
    serde_json::to_vec(&Numbered { id, body }).expect("texts and whole numbers are JSON")
}

/// What an answer says in place of an answer.
pub(crate) fn reported(answer: &Map<String, Value>) -> Option<String> {
    match answer.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(message)) => Some(message.clone()),
        Some(other) => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line() {
        let line = request(7, &serde_json::json!({"replies": ["a\nb\r\u{2028}"]}));
        assert_eq!(String::from_utf8(line).unwrap(), "{\"id\":7,\"replies\":[\"a\\nb\\r\u{2028}\"]}");
    }

    #[test]
    fn an_error_of_null_is_none() {
        let said = |text: &str| reported(&serde_json::from_str(text).unwrap());
        assert_eq!(said(r#"{"error": "no"}"#).as_deref(), Some("no"));
        assert_eq!(said(r#"{"error": {"code": 3}}"#).as_deref(), Some("{\"code\":3}"));
        assert_eq!(said(r#"{"error": null}"#), None);
        assert_eq!(said("{}"), None);
    }
}
