//! A streamed answer: server-sent events, one for each piece as it comes.

use std::convert::Infallible;
use std::time::Duration;

use async_stream::stream;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::answer::Usage;
use crate::state::Pieces;
use crate::worker::{Piece, TokenLogprob};

/// After this time without a token, a comment keeps the connection open.
const SILENCE: Duration = Duration::from_secs(15);

/// How a path writes the parts of an answer.
pub(super) trait ChunkWriter: Send + 'static {
    /// The event with which a sample begins, if there is one.
    fn begin(&mut self, sample: u32) -> Option<Event>;

    /// The event of a token, unless it says nothing.
    fn token(&mut self, sample: u32, text: String, token: &TokenLogprob) -> Option<Event>;

    /// The event with which a sample ends; `text` is its last text.
    fn finished(&mut self, sample: u32, text: String, reason: &'static str) -> Event;

    /// The event that counts the tokens.
    fn usage(&mut self, usage: Usage) -> Event;
}

/// Streams the answer to a request for `samples` replies. After an error, neither the usage nor `[DONE]`
/// comes.
pub(super) fn respond(
    mut pieces: Pieces,
    samples: u32,
    prompt_tokens: usize,
    include_usage: bool,
    mut writer: impl ChunkWriter,
) -> Response {
    let events = stream! {
        for sample in 0..samples {
            if let Some(event) = writer.begin(sample) {
                yield Ok::<Event, Infallible>(event);
            }
        }

        let (mut open, mut new_tokens) = (samples, 0);
        while open > 0 {
            match pieces.next().await {
                Piece::Prompt { .. } => {}
                Piece::Token { sample, text, token } => {
                    new_tokens += 1;
                    if let Some(event) = writer.token(sample, text, &token) {
                        yield Ok(event);
                    }
                }
                Piece::Finished { sample, text, reason } => {
                    open -= 1;
                    yield Ok(writer.finished(sample, text, reason.name()));
                }
                Piece::Failed(error) => {
                    yield Ok(json_event(&error.to_body()));
                    return;
                }
            }
        }

        if include_usage {
            yield Ok(writer.usage(Usage::of(prompt_tokens, new_tokens)));
        }
        yield Ok(Event::default().data("[DONE]"));
    };
    Sse::new(events).keep_alive(KeepAlive::new().interval(SILENCE)).into_response()
}

/// An event with JSON.
pub(super) fn json_event(value: &impl Serialize) -> Event {
    Event::default().data(serde_json::to_string(value).expect("every value here is JSON"))
}
