//! Writes a conversation to a file: Markdown to read, JSON, JSONL and Parquet to train on.

use std::path::PathBuf;

use datasets::{Demonstration, Message, table};
use serde_json::json;

use crate::{output, user_folders};

/// Writes `messages` and returns the file. Without a path it gets a new name in the current folder. An
/// existing file is never replaced.
pub(super) fn write(
    format: &str,
    path: Option<&str>,
    title: &str,
    messages: &[Message],
) -> anyhow::Result<PathBuf> {
    let path = match path {
        Some(path) => PathBuf::from(user_folders::expand_home(path)?),
        None => free_name(format),
    };
    anyhow::ensure!(!path.exists(), "{} exists already: give another name", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        anyhow::bail!("there is no folder {}: make it, or give another name", folder.display());
    }
    match format {
        "parquet" => table::write_records(&path, &[Demonstration::without_tools(messages.to_vec())])?,
        "json" => output::write_new(&path, format!("{:#}\n", json!({ "messages": messages })).as_bytes())?,
        "jsonl" => output::write_new(&path, format!("{}\n", json!({ "messages": messages })).as_bytes())?,
        _ => output::write_new(&path, markdown(title, messages).as_bytes())?,
    }
    Ok(path)
}

fn markdown(title: &str, messages: &[Message]) -> String {
    let mut text = if title.is_empty() { String::new() } else { format!("# {title}\n\n") };
    for message in messages {
        text.extend(["**", message.role.as_str(), "**\n\n", message.content.trim_end(), "\n\n"]);
    }
    text
}

fn free_name(format: &str) -> PathBuf {
    let mut path = PathBuf::from(format!("chat.{format}"));
    let mut number = 1;
    while path.exists() {
        path = PathBuf::from(format!("chat-{number}.{format}"));
        number += 1;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_holds_the_conversation_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let messages = [Message::user("2 + 2?"), Message::assistant("4\n")];
        for format in ["md", "json", "jsonl", "parquet"] {
            let path = folder.path().join(format!("talk.{format}")).display().to_string();
            write(format, Some(&path), "sums", &messages).unwrap();
            let error = write(format, Some(&path), "sums", &messages).unwrap_err();
            assert!(error.to_string().contains("exists already"), "{error}");
        }
        let path = folder.path().join("talk.parquet");
        let read: Vec<Demonstration> = table::read_records(&path, None).unwrap();
        assert_eq!(read, [Demonstration::without_tools(messages.to_vec())]);
        let text = std::fs::read_to_string(folder.path().join("talk.md")).unwrap();
        assert_eq!(text, "# sums\n\n**user**\n\n2 + 2?\n\n**assistant**\n\n4\n\n");
    }
}
