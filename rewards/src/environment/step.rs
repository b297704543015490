//! The answer of a program or a server to turns, read and checked.
//!
//! ```text
//!   {"steps": [{"messages": [{"role": "tool", "content": "87"}], "reward": 0.1, "done": false},
//!              {"done": true}, {"error": "no such file"}, ...]}
//! ```
//! `messages` and `reward` may be left out. What follows a turn costs its own episode alone if it is not
//! usable. This file does not know how the answer arrived.

use datasets::{Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::episode::Step;
use super::error::EnvironmentError;
use crate::score::quoted;

/// The longest text of the messages after one turn, and of the tools, in bytes.
const LONGEST_TEXT: usize = 64 << 10;
/// The most messages after one turn.
const MOST_MESSAGES: usize = 16;

/// What follows a turn, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStep {
    #[serde(default)]
    messages: Vec<Message>,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(default)]
    error: Option<String>,
}

/// What follows each of the `asked` turns of a request. Without one entry for each turn, nobody knows which
/// entry belongs to which turn.
pub(super) fn steps(answer: &Map<String, Value>, asked: usize) -> Vec<Result<Step, EnvironmentError>> {
    match answer.get("steps") {
        Some(Value::Array(steps)) if steps.len() == asked => steps.iter().map(step).collect(),
        Some(Value::Array(steps)) => {
            vec![bad(format!("has {} `steps` for {asked} turns", steps.len())); asked]
        }
        _ => vec![bad("has no list `steps`".to_owned()); asked],
    }
}

/// The tools that the first answer names, if any.
pub(super) fn tools(answer: &Map<String, Value>) -> Result<Option<Value>, String> {
    let tools = match answer.get("tools") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err("names `tools` that are no list".to_owned()),
    };
    if !tools.iter().all(Value::is_object) {
        return Err("names `tools` that are no objects".to_owned());
    }
    if serde_json::to_string(tools).is_ok_and(|text| text.len() <= LONGEST_TEXT) {
        return Ok((!tools.is_empty()).then(|| Value::Array(tools.clone())));
    }
    Err(format!("names `tools` of more than {LONGEST_TEXT} bytes"))
}

fn step(value: &Value) -> Result<Step, EnvironmentError> {
    let written = WrittenStep::deserialize(value).or_else(|error| {
        bad(format!("is \"{}\" ({})", quoted(&value.to_string()), quoted(&error.to_string())))
    })?;
    if let Some(error) = written.error {
        return Err(EnvironmentError::Reported { reason: quoted(&error) });
    }
    let Some(done) = written.done else { return bad("does not say whether it is `done`".to_owned()) };
    let WrittenStep { messages, reward, .. } = written;

    if let Some(message) = messages.iter().find(|message| !matches!(message.role, Role::Tool | Role::User)) {
        return bad(format!(
            "has a message with the role `{}`, and only tool and user are taken",
            message.role
        ));
    }
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    if messages.len() > MOST_MESSAGES || bytes > LONGEST_TEXT {
        let found = format!("has {} messages of {bytes} bytes", messages.len());
        return bad(format!("{found}, and at most {MOST_MESSAGES} of {LONGEST_TEXT} bytes are taken"));
    }
    if done != messages.is_empty() {
        let problem = if done { "has messages after the end" } else { "goes on without a message" };
        return bad(problem.to_owned());
    }
    if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
        return bad(format!("has the reward {reward}, which is not finite"));
    }
    Ok(Step { messages, reward, done })
}

fn bad<T>(problem: String) -> Result<T, EnvironmentError> {
    Err(EnvironmentError::BadStep { problem })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(answer: Value, asked: usize) -> Vec<Result<Step, EnvironmentError>> {
        let Value::Object(answer) = answer else { panic!("an object") };
        steps(&answer, asked)
    }

    fn problem(step: &Value) -> String {
        let found = read(json!({"steps": [step]}), 1).remove(0);
        match found {
            Err(EnvironmentError::BadStep { problem }) => problem,
            other => panic!("{step}: {other:?}"),
        }
    }

    #[test]
    fn steps_are_messages_rewards_and_an_end() {
        let answer = json!({"id": 3, "steps": [
            {"messages": [{"role": "tool", "content": "87"}, {"role": "user", "content": "go on"}],
             "reward": 0.5, "done": false},
            {"done": true, "reward": null},
            {"messages": [], "done": true, "reward": -1},
            {"error": "no \u{1b}[2Jfile"},
        ]});
        let first = Step {
            messages: vec![Message::tool("87"), Message::user("go on")],
            reward: Some(0.5),
            done: false,
        };
        let end = |reward| Ok(Step { messages: vec![], reward, done: true });
        let reported = EnvironmentError::Reported { reason: "no ␛[2Jfile".to_owned() };
        assert_eq!(read(answer, 4), [Ok(first), end(None), end(Some(-1.0)), Err(reported)]);
    }

    #[test]
    fn a_step_that_cannot_be_used_is_refused() {
        let message = |role: &str| json!({"messages": [{"role": role, "content": "x"}], "done": false});
        let long =
            json!({"messages": [{"role": "tool", "content": "x".repeat(LONGEST_TEXT + 1)}], "done": false});
        let many = json!({"messages": vec![json!({"role": "tool", "content": ""}); 17], "done": false});
        for (step, part) in [
            (message("system"), "system"),
            (message("assistant"), "assistant"),
            (message("developer"), "developer"),
            (long, "65537 bytes"),
            (many, "17 messages"),
            (json!({"messages": [{"role": "tool", "content": "x"}], "done": true}), "after the end"),
            (json!({"done": false}), "without a message"),
            (json!({"messages": []}), "`done`"),
            (json!({"done": true, "rewards": 1}), "rewards"),
            (json!({"done": true, "reward": "1"}), "reward"),
            (json!({"done": "yes"}), "yes"),
            (json!({"messages": [{"role": "tool", "content": 87}], "done": false}), "87"),
            (json!(null), "null"),
        ] {
            let found = problem(&step);
            assert!(found.contains(part), "{part}: {found}");
        }
        let fits =
            json!({"messages": [{"role": "tool", "content": "x".repeat(LONGEST_TEXT)}], "done": false});
        assert!(read(json!({"steps": [fits]}), 1)[0].is_ok());
    }

    #[test]
    fn a_list_of_another_length_says_nothing_of_any_turn() {
        for answer in [
            json!({"steps": [{"done": true}]}),
            json!({"steps": [{"done": true}, {"done": true}, {"done": true}]}),
            json!({"steps": {"done": true}}),
            json!({"scores": [1, 2]}),
        ] {
            let found = read(answer, 2);
            assert!(found.len() == 2 && found.iter().all(Result::is_err), "{found:?}");
        }
    }

    #[test]
    fn tools_are_a_list_of_objects() {
        let read = |answer: Value| tools(answer.as_object().unwrap());
        let list = json!([{"type": "function", "function": {"name": "f"}}]);
        assert_eq!(read(json!({"tools": list})), Ok(Some(list)));
        for none in [json!({}), json!({"tools": null}), json!({"tools": []})] {
            assert_eq!(read(none), Ok(None));
        }
        for bad in
            [json!({"tools": {}}), json!({"tools": ["f"]}), json!({"tools": [{"a": "x".repeat(70_000)}]})]
        {
            assert!(read(bad).is_err());
        }
    }
}
