//! The parts of a message that are computed from the values of the error.

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
