//! `kind = "json"`: the reply, or a part of it, is JSON that fits a JSON schema.
//!
//! Schemas of the drafts 4, 6, 7, 2019-09 and 2020-12, by the crate `boon`. Without `$schema`, a schema is of
//! the draft 2020-12. References lead to places within the schema; nothing is loaded from a file or from the
//! network. Patterns of a schema are searched in linear time.

use std::fmt;

use boon::{Compiler, Draft, SchemaIndex, Schemas, UrlLoader};
use serde_json::Value;

use crate::entry::JsonConfig;
use crate::error::Wrong;
use crate::extract::Extractor;
use crate::score::{Reply, ScoreError, at_most};

/// The longest text that is read as JSON, in bytes. For each item that does not fit the schema, the check
/// writes down its path, so its memory is a multiple of the text.
const LONGEST_JSON: usize = 1 << 16;

/// The name of the schema, to which its own references are relative. No server can have it.
const ADDRESS: &str = "https://schema.invalid/reward.json";

/// Checks JSON.
pub(crate) struct Json {
    extractor: Extractor,
    schema: Option<(Schemas, SchemaIndex)>,
}

impl fmt::Debug for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Json").field("extractor", &self.extractor).finish_non_exhaustive()
    }
}

impl Json {
    pub(crate) fn new(config: &JsonConfig) -> Result<Self, Wrong> {
        let extractor = Extractor::new(config.extract, &config.pattern)?;
        let schema = config.schema.as_ref().map(compile).transpose()?;
        Ok(Self { extractor, schema })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let Some(text) = self.extractor.find(reply.text)? else { return Ok(0.0) };
        at_most(&text, LONGEST_JSON)?;
        let Ok(value) = serde_json::from_str::<Value>(&text) else { return Ok(0.0) };
        let fits =
            self.schema.as_ref().is_none_or(|(schemas, index)| schemas.validate(&value, *index).is_ok());
        Ok(f64::from(fits))
    }
}

/// The compiled schema of a table, or of a text in JSON.
fn compile(schema: &Value) -> Result<(Schemas, SchemaIndex), Wrong> {
    let fix = "give a JSON schema, such as { type = \"object\", required = [\"answer\"] }";
    let parsed;
    let schema = match schema {
        Value::String(text) => {
            parsed = serde_json::from_str(text)
                .map_err(|error| Wrong::new("schema", format!("is a text that is no JSON: {error}"), fix))?;
            &parsed
        }
        other => other,
    };
    if !schema.is_object() && !schema.is_boolean() {
        return Err(Wrong::new("schema", "is neither a table nor true or false", fix));
    }

    let wrong =
        |error: boon::CompileError| Wrong::new("schema", format!("is no valid schema: {error:#}"), fix);
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.set_default_draft(Draft::V2020_12);
    compiler.use_loader(Box::new(LoadsNothing));
    compiler.add_resource(ADDRESS, schema.clone()).map_err(wrong)?;
    let index = compiler.compile(ADDRESS, &mut schemas).map_err(wrong)?;
    Ok((schemas, index))
}

/// Refuses every reference to another document.
struct LoadsNothing;

impl UrlLoader for LoadsNothing {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err(format!("{url} is not in the schema, and nothing is loaded; put it under \"$defs\"").into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::entry::Extract;
    use crate::hostile_text::hostile_texts;

    fn score(config: &JsonConfig, text: &str) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer: None, tokens: 0, stopped: true };
        Json::new(config).unwrap().score(&reply)
    }

    fn with_schema(schema: Value) -> JsonConfig {
        JsonConfig { schema: Some(schema), ..JsonConfig::default() }
    }

    #[test]
    fn json_fits_its_schema_or_not() {
        let config = with_schema(json!({
            "type": "object", "required": ["name", "age"], "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}
            }
        }));
        for (text, expected) in [
            (r#"{"name": "Åsa", "age": 7}"#, 0.0),
            (r#" {"name": "Anna", "age": 7.0}"#, 1.0),
            ("\n{\"age\": 1, \"name\": \"字A\"}", 0.0),
            ("{\"age\": 1, \"name\": \"A字\"}\r\n", 1.0),
            (r#"{"name": "Anna", "age": -1}"#, 0.0),
            (r#"{"name": "Anna"}"#, 0.0),
            (r#"{"name": "Anna", "age": 1, "x": 1}"#, 0.0),
            (r#"{"name": "Anna", "age": "1"}"#, 0.0),
            (r#"{"name": "Anna", "age": 1"#, 0.0),
            (r#"{"name": "Anna", "age": 1} and"#, 0.0),
            ("", 0.0),
        ] {
            assert_eq!(score(&config, text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn without_a_schema_any_json_fits() {
        let config = JsonConfig::default();
        for (text, expected) in [
            ("[1, -2.5e3, null]", 1.0),
            ("1,000", 0.0),
            ("NaN", 0.0),
            ("'a'", 0.0),
            ("\"\\u5b57\"", 1.0),
            ("yes", 0.0),
        ] {
            assert_eq!(score(&config, text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn json_may_stand_in_a_block() {
        let config = JsonConfig { extract: Extract::Fenced, ..JsonConfig::default() };
        assert_eq!(score(&config, "Here:\n```json\n{\"a\": [1]}\n```\nDone."), Ok(1.0));
        assert_eq!(score(&config, "{\"a\": [1]}"), Ok(0.0));
    }

    #[test]
    fn a_schema_may_be_a_text_and_refer_to_itself() {
        let items = r##""type": "array", "items": {"$ref": "#/$defs/tree"}"##;
        let tree = format!(r##"{{"$ref": "#/$defs/tree", "$defs": {{"tree": {{{items}}}}}}}"##);
        let config = with_schema(tree.into());
        assert_eq!(score(&config, "[[], [[]]]"), Ok(1.0));
        assert_eq!(score(&config, "[[], [1]]"), Ok(0.0));
        // Deeper than JSON is read.
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(score(&config, &deep), Ok(0.0));
        let endless = with_schema(json!({"$ref": "#"}));
        assert_eq!(score(&endless, "1"), Ok(0.0));
    }

    #[test]
    fn schemas_are_checked_and_nothing_is_loaded() {
        for (schema, part) in [
            (json!("{"), "no JSON"),
            (json!(7), "neither a table"),
            (json!({"type": "text"}), "no valid schema"),
            (json!({"pattern": "("}), "no valid schema"),
            (json!({"$ref": "file:///etc/passwd"}), "no valid schema"),
            (json!({"$ref": "other.json"}), "no valid schema"),
            (json!({"$schema": "https://example.com/mine"}), "no valid schema"),
        ] {
            let wrong = Json::new(&with_schema(schema.clone())).unwrap_err();
            assert!(wrong.key == "schema" && wrong.problem.contains(part), "{schema}: {wrong:?}");
        }
    }

    #[test]
    fn long_json_has_no_score() {
        let long = format!("[{}1]", "1,".repeat(LONGEST_JSON / 2));
        assert_eq!(score(&JsonConfig::default(), &long).unwrap_err().name(), "too_long");
        // As many errors as items, at the deepest place.
        let nested = format!("{}{}1{}", "[".repeat(100), "1,".repeat(30_000), "]".repeat(100));
        assert_eq!(score(&with_schema(json!({"type": "array", "items": {"$ref": "#"}})), &nested), Ok(0.0));
    }

    #[test]
    fn odd_texts_have_a_score() {
        let format = json!({"$schema": "http://json-schema.org/draft-07/schema#", "format": "time"});
        let time = Json::new(&with_schema(format)).unwrap();
        for text in hostile_texts() {
            let quoted = json!(text).to_string();
            for text in [&text, &quoted] {
                let reply = Reply { prompt: &[], text, answer: None, tokens: 0, stopped: true };
                assert!(time.score(&reply).is_ok() || text.len() > LONGEST_JSON, "{text:?}");
            }
        }
    }
}
