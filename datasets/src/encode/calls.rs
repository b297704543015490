//! The tokens of a turn that calls tools.
//!
//! Each template writes calls in a form of its own, often between special tokens, and may leave out the text
//! of the turn. So neither the content nor the next special token says where the turn ends. It ends with the
//! first stop token after the name of its last call. If it has none, it ends where the rendering of the
//! conversation up to and including the turn ends; if that rendering is no head of the conversation, the turn
//! is refused.

use std::ops::Range;

use super::{Answer, common_prefix, first_difference};
use crate::conversation::{Message, function_name};
use crate::error::Result;
use crate::tokenizer::{Pieces, Tokenizer};

/// The text of a turn that is rendered in place of another one.
const PROBE: &str = "Zq7xProbe";

/// How far the text of a turn goes at most.
#[derive(Clone, Copy)]
enum Limit {
    /// The text of the turn ends here.
    Exact(usize),
    /// The text of the next turn has begun before this byte.
    Beyond(usize),
}

impl Tokenizer {
    /// Returns the tokens of a turn that calls tools, the first of which is `start`. `prompt` is the text
    /// before it, with the generation prompt.
    pub(super) fn calling_tokens(
        &self,
        answer: &Answer<'_>,
        prompt: &str,
        start: usize,
    ) -> Result<Range<usize>> {
        self.check_opened(answer, prompt)?;
        let Pieces { ids, ranges } = answer.pieces;
        let limit = self.calls_limit(answer, prompt)?;
        let (Limit::Exact(byte) | Limit::Beyond(byte)) = limit;
        let within = start..ranges.partition_point(|range| range.end <= byte).max(start);

        // The text of a special token inside of the calls would pass for the end.
        if !self.holds_special_text(answer.message()) {
            let named = names_end(answer, prompt.len());
            let is_end = |&token: &usize| ranges[token].start >= named && self.is_stop(ids[token]);
            if let Some(end) = within.clone().find(is_end) {
                return Ok(start..end + 1);
            }
        }
        match limit {
            Limit::Exact(_) => Ok(start..self.trimmed(answer, within)),
            Limit::Beyond(_) => {
                let reason = "no end-of-turn token ends its tool calls".to_owned();
                Err(self.not_a_prefix(answer.turn, reason))
            }
        }
    }

    /// Checks that the generation prompt opens the turn: a text in place of the calls would follow it without
    /// a special token between them.
    fn check_opened(&self, answer: &Answer<'_>, prompt: &str) -> Result<()> {
        let before = answer.before(answer.turn);
        let probe = [before.messages, &[Message::assistant(PROBE)]].concat();
        let text = self.render_unchecked(before.with_messages(&probe), false)?.text;
        let Some(behind) = text.strip_prefix(prompt) else {
            return Err(self.not_a_prefix(answer.turn, first_difference(prompt, &text)));
        };
        let header = behind.find(PROBE).map_or("", |at| &behind[..at]);
        if self.special_text_in(header).is_some() {
            let reason =
                format!("the generation prompt does not open the turn: {header:?} stands before the answer");
            return Err(self.not_a_prefix(answer.turn, reason));
        }
        Ok(())
    }

    /// Returns how far the text of the turn goes.
    fn calls_limit(&self, answer: &Answer<'_>, prompt: &str) -> Result<Limit> {
        let Answer { conversation, turn, text, .. } = *answer;
        let Some(next) = conversation.messages.get(turn + 1) else { return Ok(Limit::Exact(text.len())) };
        let until = self.render(answer.before(turn + 1), false)?.text;
        if until.len() > prompt.len() && text.starts_with(&until) {
            return Ok(Limit::Exact(until.len()));
        }

        // A template may write a turn in another way where it is the last. With another text in the next
        // turn, the rendering is the same up to that text.
        let changed = Message { content: PROBE.to_owned(), tool_calls: Vec::new(), ..next.clone() };
        let until = [&conversation.messages[..=turn], &[changed]].concat();
        let until = self.render_unchecked(conversation.with_messages(&until), false)?.text;
        let limit = common_prefix(&until, text);
        if limit <= prompt.len() {
            return Err(self.not_a_prefix(turn, first_difference(&until, text)));
        }
        Ok(Limit::Beyond(limit))
    }

    /// Whether the calls or the text of a turn contain the text of a special token.
    fn holds_special_text(&self, message: &Message) -> bool {
        let calls = message.tool_calls.iter().map(ToString::to_string);
        calls.chain([message.content.clone()]).any(|text| self.special_text_in(&text).is_some())
    }
}

/// Returns the byte behind the names of the calls, which stand in their order from byte `start`.
fn names_end(answer: &Answer<'_>, start: usize) -> usize {
    let names = answer.message().tool_calls.iter().filter_map(function_name);
    names.fold(start, |end, name| answer.text[end..].find(name).map_or(end, |at| end + at + name.len()))
}
