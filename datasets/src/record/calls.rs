//! Tools, the calls of an assistant turn, and what names the call that a tool turn answers.
//!
//! `tools` is a list of descriptions; a call is `{"type", "id", "function": {"name", "arguments"}}` as in the
//! API of `OpenAI`, or the inner object alone. Both may also be the text of such a list, as data sets store
//! lists of objects whose fields differ. Arguments are given to templates as they are, like transformers does:
//! an object stays an object and a text a text.
//!
//! In a list of objects, a field that is null is missing: Arrow gives each object the fields of all others. In
//! a JSON text null stays null.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::notes::is_blank;
use crate::conversation::{Message, Role, function, function_name};
use crate::error::Result;
use crate::table::Row;

/// The role of `ShareGPT` whose turns are calls, each the JSON text of `{name, arguments}`.
pub(super) const CALLING_ROLE: &str = "function_call";

const TOOLS: &str = "a list of tool descriptions (objects), or the JSON text of one";
const CALLS: &str =
    "a list of {\"type\": \"function\", \"function\": {\"name\", \"arguments\"}}, or the JSON text of one";

impl Fields<'_> {
    /// Returns the tools of a row. `None` if there are none.
    pub(super) fn tools(&self) -> Result<Option<Value>> {
        if !self.has_tools() {
            return Ok(None);
        }
        let tools = self.objects("tools", &self.row["tools"], TOOLS)?;
        Ok(Some(Value::Array(tools)))
    }

    fn has_tools(&self) -> bool {
        self.layout.reads("tools") && self.row.get("tools").is_some_and(|tools| !is_blank(tools))
    }

    /// Reads the calls of a turn, and what says which call it answers.
    pub(super) fn read_calls(&self, field: &str, turn: &Row, message: &mut Message) -> Result<()> {
        let given = |name: &str| turn.get(name).filter(|value| !is_blank(value));
        let text = |name: &str| {
            let text = |value: &Value| {
                let text = value.as_str().map(str::to_owned);
                text.ok_or_else(|| self.wrong(&format!("{field}.{name}"), value, "text"))
            };
            given(name).map(text).transpose()
        };
        message.name = text("name")?;
        message.tool_call_id = text("tool_call_id")?;
        if let Some(calls) = given("tool_calls") {
            message.tool_calls = self.calls(&format!("{field}.tool_calls"), calls)?;
        }

        let only_in = |role: Role, name: &str, expected| match given(name) {
            Some(value) if message.role != role => {
                Err(self.wrong(&format!("{field}.{name}"), value, expected))
            }
            _ => Ok(()),
        };
        only_in(Role::Assistant, "tool_calls", "absent: only an assistant turn calls tools")?;
        only_in(Role::Tool, "tool_call_id", "absent: only a tool turn answers a call")
    }

    /// Turns the text of a turn into the calls that it writes down. It stays a text if the row describes no
    /// tools, or if it is no call.
    pub(super) fn read_calling_text(&self, field: &str, message: &mut Message) -> Result<()> {
        if !self.has_tools() || message.calls_tools() {
            return Ok(());
        }
        let calls = match self.parsed(&format!("{field}.content"), &message.content)? {
            Some(Value::Array(calls)) => calls,
            Some(call @ Value::Object(_)) => vec![call],
            _ => return Ok(()),
        };
        if calls.is_empty() || calls.iter().any(|call| function_name(call).is_none()) {
            return Ok(());
        }
        let wrap = |call: Value| match call.get("function") {
            Some(Value::Object(_)) => call,
            _ => json!({"type": "function", "function": call}),
        };
        message.tool_calls = calls.into_iter().map(wrap).collect();
        message.content.clear();
        Ok(())
    }

    fn calls(&self, field: &str, value: &Value) -> Result<Vec<Value>> {
        let calls = self.objects(field, value, CALLS)?;
        for (index, call) in calls.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if function_name(call).is_none() {
                return Err(self.wrong(&field, call, "a call with the name of its function"));
            }
            match function(call).get("arguments") {
                None | Some(Value::Object(_) | Value::String(_)) => {}
                Some(other) => {
                    let expected = "an object, or the JSON text of one";
                    return Err(self.wrong(&format!("{field}.function.arguments"), other, expected));
                }
            }
        }
        Ok(calls)
    }

    /// Returns a list of objects, or the list that a JSON text holds.
    fn objects(&self, field: &str, value: &Value, expected: &'static str) -> Result<Vec<Value>> {
        let list = match value {
            Value::Array(list) => list.iter().map(without_nulls).collect(),
            Value::String(text) => match self.parsed(field, text)? {
                Some(Value::Array(list)) => list,
                _ => return Err(self.wrong(field, value, expected)),
            },
            other => return Err(self.wrong(field, other, expected)),
        };
        match list.iter().position(|item| !item.is_object()) {
            Some(index) => Err(self.wrong(&format!("{field}[{index}]"), &list[index], "an object")),
            None => Ok(list),
        }
    }
}

/// A copy of a value without the fields of objects that are null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        Value::Object(object) => {
            let filled = object.iter().filter(|(_, value)| !value.is_null());
            let filled: Map<_, _> =
                filled.map(|(name, value)| (name.clone(), without_nulls(value))).collect();
            Value::Object(filled)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::{Demonstration, Layout, Record};
    use crate::{Error, RowLocation};

    fn read(layout: Layout, row: &Value) -> Result<Demonstration> {
        let at = RowLocation { path: "data.jsonl".into(), row: 3 };
        Demonstration::parse(layout, row.as_object().unwrap(), &at)
    }

    fn parts(row: Demonstration) -> (Vec<Message>, Option<Value>) {
        match row {
            Demonstration::Messages { messages, tools } => (messages, tools),
            other => panic!("{other:?}"),
        }
    }

    fn message(turn: &Value) -> std::result::Result<Message, String> {
        let row = json!({"messages": [turn, {"role": "assistant", "content": "a"}]});
        let row = read(Layout::Messages, &row).map_err(|error: Error| error.to_string())?;
        Ok(parts(row).0.remove(0))
    }

    #[test]
    fn tools_are_a_list_or_the_text_of_one() {
        let turns = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]);
        let tools = |tools: Value| read(Layout::Messages, &json!({"messages": turns, "tools": tools}));
        let wanted = json!([{"name": "f", "parameters": {"z": 1, "a": {"type": "string"}}}]);
        assert_eq!(parts(tools(wanted.clone()).unwrap()).1, Some(wanted.clone()));
        assert_eq!(parts(tools(json!(wanted.to_string())).unwrap()).1, Some(wanted.clone()));
        // Arrow fills the fields that the tools do not share; a text says what it says.
        let filled =
            json!([{"name": "f", "parameters": {"z": 1, "a": {"type": "string", "enum": null}, "b": null}}]);
        assert_eq!(parts(tools(filled.clone()).unwrap()).1, Some(wanted));
        assert_eq!(parts(tools(json!(filled.to_string())).unwrap()).1, Some(filled));
        for nothing in [json!(null), json!(""), json!([]), json!(" [] ")] {
            assert_eq!(parts(tools(nothing).unwrap()).1, None);
        }
        for (wrong, words) in [
            (
                json!("search"),
                "the field tools is the text \"search\"; it must be a list of tool descriptions",
            ),
            (json!([1]), "the field tools[0] is the number 1; it must be an object"),
            (json!({"name": "f"}), "the field tools is an object with name; it must be a list"),
            (
                json!("[{\"name\": 1, \"name\": 2}]"),
                "the list in the field tools: the field \"name\" is there twice",
            ),
        ] {
            let error = tools(wrong).unwrap_err().to_string();
            assert!(error.starts_with("data.jsonl line 3: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn calls_and_results_are_fields_of_turns() {
        let call = json!({"type": "function", "id": "7", "function": {"name": "f", "arguments": {"b": 1, "a": "x"}}});
        let turn = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let wanted = Message { tool_calls: vec![call.clone()], ..Message::assistant("") };
        assert_eq!(message(&turn(json!([call]))).unwrap(), wanted);
        assert_eq!(message(&turn(json!(json!([call]).to_string()))).unwrap(), wanted);
        assert_eq!(message(&json!({"role": "assistant", "tool_calls": [call]})).unwrap(), wanted);
        // Arguments that are a text stay one.
        let text = json!({"name": "f", "arguments": "{\"b\": 1}"});
        assert_eq!(message(&turn(json!([text]))).unwrap().tool_calls, [text]);
        let result =
            json!({"role": "tool", "content": "r", "name": "f", "tool_call_id": "7", "tool_calls": null});
        let (name, id) = (Some("f".to_owned()), Some("7".to_owned()));
        assert_eq!(message(&result).unwrap(), Message { name, tool_call_id: id, ..Message::tool("r") });
        for (turn, words) in [
            (turn(json!([])), "messages[0].content is missing or null"),
            (
                turn(json!("now")),
                "messages[0].tool_calls is the text \"now\"; it must be a list of {\"type\"",
            ),
            (
                turn(json!([{"id": "7"}])),
                "messages[0].tool_calls[0] is an object with id; it must be a call with",
            ),
            (
                turn(json!([{"function": {"name": "f", "arguments": [1]}}])),
                "messages[0].tool_calls[0].function.arguments is a list of 1; it must be an object, or the JSON text",
            ),
            (
                json!({"role": "user", "content": "q", "tool_calls": [call]}),
                "messages[0].tool_calls is a list of 1; it must be absent: only an assistant turn calls tools",
            ),
            (
                json!({"role": "user", "content": "q", "tool_call_id": "7"}),
                "messages[0].tool_call_id is the text \"7\"; it must be absent",
            ),
            (
                json!({"role": "tool", "content": "r", "name": 7}),
                "messages[0].name is the number 7; it must be text",
            ),
        ] {
            let error = message(&turn).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_calls_of_sharegpt_are_calls_if_the_row_has_tools() {
        let row = |text: &str, tools: Value| {
            let turns = json!([{"from": "human", "value": "q"}, {"from": "function_call", "value": text},
                {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}]);
            let row = json!({"conversations": turns, "tools": tools});
            parts(read(Layout::ShareGpt, &row).unwrap()).0.remove(1)
        };
        let text = r#"{"name": "f", "arguments": {"a": 1}}"#;
        let called = json!({"type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let tools = json!("[{\"name\": \"f\"}]");
        let wanted = Message { tool_calls: vec![called.clone()], ..Message::assistant("") };
        assert_eq!(row(text, tools.clone()), wanted);
        let twice = row(&format!("[{text}, {text}]"), tools.clone());
        assert_eq!(twice.tool_calls, [called.clone(), called]);
        assert_eq!(row(text, json!(null)), Message::assistant(text));
        assert_eq!(row("I call f.", tools.clone()), Message::assistant("I call f."));
        assert_eq!(row("{\"arguments\": 1}", tools), Message::assistant("{\"arguments\": 1}"));
    }
}
