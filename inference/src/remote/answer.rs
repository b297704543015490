//! The content of a reply: what the chunks of `/chat/completions` say, one JSON object each.
//!
//! The fields are those of the API of `OpenAI`: `choices[0].delta.content`, `choices[0].finish_reason`,
//! `usage` and `error`. A server that does not stream sends one object with `message` instead of `delta`. The
//! thoughts that some servers send apart (`reasoning_content`, or `reasoning`) are counted, and are not part
//! of the text. Objects are read field by field, because servers add fields and send `null` for missing ones.
//! This file does not know how the chunks arrive.

use crate::request::FinishReason;
use serde_json::Value;

use super::error::{RemoteError, excerpt};

/// What the chunks have said so far, apart from the text.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Whether there was a choice, which may have said nothing.
    has_choice: bool,
    /// The number of pieces of text.
    pub(super) pieces: u64,
    /// The number of pieces of thought.
    pub(super) thoughts: u64,
    /// Why the reply ended, in the words of the server.
    pub(super) finish_reason: Option<String>,
    /// The tokens of the prompt, as counted by the server.
    pub(super) prompt_tokens: Option<u64>,
    /// The tokens of the reply, as counted by the server.
    pub(super) new_tokens: Option<u64>,
}

impl Answer {
    /// Takes one chunk, and returns its text, which is often empty.
    pub(super) fn take(&mut self, json: &[u8]) -> Result<String, RemoteError> {
        let chunk: Value = serde_json::from_slice(json).map_err(|error| {
            RemoteError::Malformed(format!("{error} in {:?}", excerpt(&String::from_utf8_lossy(json))))
        })?;
        if !chunk.is_object() {
            let problem = format!("wanted a JSON object, found {:?}", excerpt(&chunk.to_string()));
            return Err(RemoteError::Malformed(problem));
        }
        if chunk.get("error").is_some_and(|error| !error.is_null()) || chunk["object"] == "error" {
            return Err(RemoteError::Reported(error_message(&chunk)));
        }

        let usage = &chunk["usage"];
        self.prompt_tokens = usage["prompt_tokens"].as_u64().or(self.prompt_tokens);
        self.new_tokens = usage["completion_tokens"].as_u64().or(self.new_tokens);

        let choice = &chunk["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        let said = [&choice["delta"], &choice["message"]].into_iter().find(|said| said.is_object());
        self.has_choice |= said.is_some() || choice["finish_reason"].is_string();
        let said = said.unwrap_or(&Value::Null);
        let is_thought = |field: &str| said[field].as_str().is_some_and(|thought| !thought.is_empty());
        if is_thought("reasoning_content") || is_thought("reasoning") {
            self.thoughts += 1;
        }
        let text = content(&said["content"])? + said["refusal"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.pieces += 1;
        }
        Ok(text)
    }

    /// Refuses a reply that has ended without a choice: it answers nothing.
    pub(super) fn check_choice(&self) -> Result<(), RemoteError> {
        let problem = "it has no choice with a message, so it holds no answer";
        if self.has_choice { Ok(()) } else { Err(RemoteError::Malformed(problem.to_owned())) }
    }

    /// Why the reply ended, if the server said so, and the server's own word if there is no name for it here.
    pub(super) fn finish(&self) -> Option<(FinishReason, Option<String>)> {
        let reason = self.finish_reason.as_deref()?;
        Some(match reason {
            "length" | "max_tokens" => (FinishReason::Length, None),
            "stop" | "eos" | "eos_token" | "stop_sequence" => (FinishReason::Stop, None),
            other => (FinishReason::Stop, Some(excerpt(other))),
        })
    }

    /// The tokens of the reply. Without a count of the server, each piece counts as one token.
    pub(super) fn tokens(&self) -> u64 {
        self.new_tokens.unwrap_or(self.pieces + self.thoughts)
    }
}

/// The text of a `content` field: a string, or a list of parts of which those with a `text` count.
fn content(value: &Value) -> Result<String, RemoteError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => Ok(parts.iter().filter_map(|part| part["text"].as_str()).collect()),
        other => {
            let problem = format!("`content` is {:?}, wanted text", excerpt(&other.to_string()));
            Err(RemoteError::Malformed(problem))
        }
    }
}

/// The message of an object that reports an error. Servers write `{"error": {"message": ...}}`,
/// `{"error": ...}`, `{"message": ...}` or `{"detail": ...}`.
pub(super) fn error_message(object: &Value) -> String {
    let known = [&object["error"]["message"], &object["error"], &object["message"], &object["detail"]];
    let found = known.into_iter().find(|value| !value.is_null()).unwrap_or(object);
    excerpt(found.as_str().unwrap_or(&found.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(chunks: &[&str]) -> Result<(String, Answer), RemoteError> {
        let mut answer = Answer::default();
        let texts: Result<String, _> = chunks.iter().map(|chunk| answer.take(chunk.as_bytes())).collect();
        texts.map(|text| (text, answer))
    }

    #[test]
    fn chunks_add_up_to_text_counts_and_the_reason() {
        let (text, answer) = take(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"content":"Hel"}}],"usage":null,"error":null}"#,
            r#"{"choices":[{"delta":{"content":"lo"}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}"#,
        ])
        .unwrap();
        assert_eq!(text, "Hello");
        assert_eq!((answer.prompt_tokens, answer.tokens(), answer.pieces), (Some(7), 9, 2));
        assert_eq!(answer.finish(), Some((FinishReason::Length, None)));
    }

    #[test]
    fn thoughts_are_counted_and_are_not_text() {
        let (text, answer) = take(&[
            r#"{"choices":[{"delta":{"reasoning_content":"Let me see"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"hm","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":"4"}}]}"#,
        ])
        .unwrap();
        assert_eq!((text.as_str(), answer.thoughts, answer.pieces, answer.tokens()), ("4", 2, 1, 3));
        assert_eq!(answer.finish(), None);
    }

    #[test]
    fn one_object_is_a_whole_reply() {
        let object = r#"{"choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"Hi"}]},
                        "finish_reason":"content_filter"}]}"#;
        let (text, answer) = take(&[object]).unwrap();
        assert_eq!(text, "Hi");
        assert_eq!(answer.finish(), Some((FinishReason::Stop, Some("content_filter".to_owned()))));
    }

    #[test]
    fn an_error_within_a_reply_is_told_in_the_words_of_the_server() {
        for chunk in [
            r#"{"error":{"message":"out\u001b[2J of memory","code":500}}"#,
            r#"{"error":"out\u001b[2J of memory"}"#,
            r#"{"object":"error","message":"out\u001b[2J of memory"}"#,
        ] {
            let text = take(&[chunk]).unwrap_err().to_string();
            assert_eq!(text, "the server reports: out␛[2J of memory");
        }
        let long = format!(r#"{{"error":"{}"}}"#, "y".repeat(1000));
        assert_eq!(take(&[&long]).unwrap_err().to_string().matches('y').count(), 300);
    }

    #[test]
    fn what_is_no_chunk_is_malformed() {
        for chunk in ["", "{", "[]", "7", r#"{"choices":[{"delta":{"content":{"a":1}}}]}"#, r#""\ud800""#] {
            assert!(matches!(take(&[chunk]), Err(RemoteError::Malformed(_))), "{chunk}");
        }
        // An object without any known field says nothing.
        for nothing in ["{}", r#"{"choices":[]}"#, r#"{"choices":[{}]}"#, r#"{"choices":{"0":[]}}"#] {
            let (text, answer) = take(&[nothing]).unwrap();
            assert!(text.is_empty() && answer.check_choice().is_err(), "{nothing}");
        }
        let silent = take(&[r#"{"choices":[{"delta":{"role":"assistant"}}]}"#, r#"{"choices":[]}"#]).unwrap();
        assert!(silent.1.check_choice().is_ok());
    }
}
