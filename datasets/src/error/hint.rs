//! The parts of a message that are computed from the values of the error.

use super::RowLocation;

/// Describes a JSON syntax error. For JSONL the line is the line in the file, because the parser sees one
/// line at a time.
pub(super) fn broken_json(at: &RowLocation, source: &serde_json::Error) -> String {
    let by_lines = RowLocation::unit(&at.path) == "line" && at.row > 0;
    let line = if by_lines { at.row } else { source.line() };
    let reason = source.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    format!("{} line {line} column {}: broken JSON: {reason}", at.path.display(), source.column())
}

/// Suggests a `--map` entry for an unknown role name, from its meaning in most files.
pub(super) fn role_hint(role: &str) -> String {
    let meant = match role.to_ascii_lowercase().as_str() {
        "human" | "customer" | "person" | "question" | "input" | "user" => "user",
        "bot" | "model" | "ai" | "agent" | "chatbot" | "answer" | "output" | "assistant" => "assistant",
        "developer" | "instruction" | "instructions" | "context" | "system" => "system",
        "function" | "ipython" | "tool_result" | "tool" => "tool",
        _ => return format!("say who it is with --map {role}=user, or =assistant, =system, =tool"),
    };
    format!("if it is the {meant}, convert the file with --map {role}={meant}")
}
