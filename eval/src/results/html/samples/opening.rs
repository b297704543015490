//! What all prompts of a task begin with.

use crate::document::Document;
use crate::request::{Prompt, Request};

/// The shortest common beginning of prompts that is stored once, in bytes.
const SHORTEST: usize = 200;

/// A turn of a prompt: the role, empty for plain text, and the text.
pub(super) type Turn<'a> = (&'static str, &'a str);

pub(super) fn turns(request: &Request) -> Vec<Turn<'_>> {
    let context = match request {
        Request::LoglikelihoodRolling { text } => return vec![("", text.as_str())],
        Request::Loglikelihood { context, .. } | Request::GenerateUntil { context, .. } => context,
    };
    match context {
        Prompt::Text(text) => vec![("", text.as_str())],
        Prompt::Chat(messages) => {
            messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect()
        }
    }
}

/// What all prompts of a task begin with: whole turns, and bytes of the next one up to the end of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Opening {
    turns: usize,
    bytes: usize,
}

impl Opening {
    /// The common beginning of the prompts of documents; nothing if it is short, or all that there is.
    pub(super) fn of(documents: &[Document]) -> Self {
        let mut prompts = documents.iter().flat_map(|document| &document.requests).map(turns);
        let Some(first) = prompts.next() else { return Self::default() };
        let Some(shared) = prompts.map(|prompt| Self::shared(&first, &prompt)).min() else {
            return Self::default();
        };
        let Some(next) = first.get(shared.turns) else { return Self::default() };

        let line_end = next.1.as_bytes()[..shared.bytes].iter().rposition(|&byte| byte == b'\n');
        let bytes = line_end.map_or(0, |at| at + 1);
        let whole: usize = first[..shared.turns].iter().map(|turn| turn.1.len()).sum();
        if whole + bytes < SHORTEST { Self::default() } else { Self { bytes, ..shared } }
    }

    /// How far two prompts agree.
    fn shared(left: &[Turn<'_>], right: &[Turn<'_>]) -> Self {
        let turns = left.iter().zip(right).take_while(|(left, right)| left == right).count();
        let bytes = match (left.get(turns), right.get(turns)) {
            (Some(left), Some(right)) if left.0 == right.0 => {
                left.1.bytes().zip(right.1.bytes()).take_while(|(left, right)| left == right).count()
            }
            _ => 0,
        };
        Self { turns, bytes }
    }

    /// The beginning itself.
    pub(super) fn text<'t>(self, prompt: &[Turn<'t>]) -> Vec<Turn<'t>> {
        let mut text: Vec<Turn<'t>> = prompt.iter().take(self.turns).copied().collect();
        if self.bytes > 0 {
            text.extend(prompt.get(self.turns).map(|(role, text)| (*role, &text[..self.bytes])));
        }
        text
    }

    /// A prompt without its beginning.
    pub(super) fn rest<'t>(self, prompt: Vec<Turn<'t>>) -> Vec<Turn<'t>> {
        let mut rest: Vec<Turn<'t>> = prompt.into_iter().skip(self.turns).collect();
        if let Some(first) = rest.first_mut() {
            first.1 = &first.1[self.bytes..];
        }
        rest
    }
}
