//! What follows the tokens of a reply, in a conversation that goes on.
//!
//! The tokens that a policy sampled stay what they are: text that was decoded and encoded again may give other
//! ids, for which no log-probability was recorded. So only what comes after the reply is encoded: a
//! conversation with a placeholder in place of the reply is rendered, and the ids are those of the text behind
//! the end-of-turn token of the placeholder. They begin after a special token, so they do not depend on the
//! text before. The conversation that goes on must begin with the text of the one before.
//!
//! Results of tools are foreign text. The text of a special token in them is encoded as text, never as the
//! token. This module does not know what the turns say.

use super::first_difference;
use crate::conversation::{Conversation, Message};
use crate::error::{Error, Result};
use crate::tokenizer::{Pieces, Tokenizer};

/// The text that stands for the reply.
const REPLY: &str = "Zq7xReply";

impl Tokenizer {
    /// Encodes what follows a reply: the ids between the end-of-turn token of the reply and the next reply,
    /// which are those of `turns` and of the generation prompt. `before` is the conversation that the reply
    /// answers. The reply must end with the end-of-turn token.
    ///
    /// The ids of the prompt, of the reply and of what follows are together those of the next prompt.
    pub fn encode_following<'a>(
        &self,
        before: impl Into<Conversation<'a>>,
        turns: &[Message],
    ) -> Result<Vec<i64>> {
        let before = before.into();
        let messages = [before.messages, &[Message::assistant(REPLY)], turns].concat();
        let text = self.render(before.with_messages(&messages), true)?.text;
        let from = self.end_of_placeholder(before, &text)?;

        let is_hostile = |text: &str| self.special_text_in(text).is_some();
        if turns.iter().flat_map(foreign_texts).any(is_hostile) {
            return self.encode_foreign(before, turns, &text, from);
        }
        let pieces = self.pieces(&text[from..])?;
        let end = self.end_of_reply(&text[from..], &pieces)?;
        Ok(pieces.ids[end + 1..].to_vec())
    }

    /// Returns the byte behind the placeholder in the text of a conversation that goes on.
    fn end_of_placeholder(&self, before: Conversation<'_>, text: &str) -> Result<usize> {
        let prompt = self.render(before, true)?.text;
        let behind = text.strip_prefix(&prompt).ok_or_else(|| {
            let difference = first_difference(&prompt, text);
            self.no_following(format!("the earlier turns change when turns follow: {difference}"))
        })?;
        let at = behind.find(REPLY).ok_or_else(|| self.no_following("it changes the reply".to_owned()))?;
        let header = &behind[..at];
        if self.special_text_in(header).is_some() {
            let reason = format!("{header:?} stands between the generation prompt and the reply");
            return Err(self.no_following(reason));
        }
        Ok(prompt.len() + at + REPLY.len())
    }

    /// Encodes the text behind byte `from`, and what turns say in it as text.
    fn encode_foreign(
        &self,
        before: Conversation<'_>,
        turns: &[Message],
        text: &str,
        from: usize,
    ) -> Result<Vec<i64>> {
        // With other text in place of that of special tokens, the special tokens are those of the template.
        let masked: Vec<Message> = turns.iter().map(|turn| self.masked_turn(turn)).collect();
        let messages = [before.messages, &[Message::assistant(REPLY)], &masked].concat();
        let masked = self.render_unchecked(before.with_messages(&messages), true)?.text;
        if masked.len() != text.len() || masked.as_bytes()[..from] != text.as_bytes()[..from] {
            let reason = "a turn holds the text of a special token, which it changes".to_owned();
            return Err(self.no_following(reason));
        }

        let pieces = self.pieces(&masked[from..])?;
        let end = self.end_of_reply(&masked[from..], &pieces)?;
        let begin = pieces.ranges[end].end;
        let behind = Pieces {
            ids: pieces.ids[end + 1..].to_vec(),
            ranges: pieces.ranges[end + 1..]
                .iter()
                .map(|range| range.start - begin..range.end - begin)
                .collect(),
        };
        self.encode_literally(&text[from + begin..], &behind)
    }

    /// Returns the index of the end-of-turn token that the text behind a reply begins with, white space aside.
    fn end_of_reply(&self, text: &str, pieces: &Pieces) -> Result<usize> {
        let end = pieces.ids.iter().position(|&id| self.is_special(id));
        let ends = |&end: &usize| {
            self.is_stop(pieces.ids[end]) && text[..pieces.ranges[end].start].trim().is_empty()
        };
        end.filter(ends).ok_or_else(|| {
            let head: String = text.chars().take(24).collect();
            self.no_following(format!("no end-of-turn token ends the reply: {head:?} stands behind it"))
        })
    }

    /// Returns a turn with other text in place of that of special tokens.
    fn masked_turn(&self, turn: &Message) -> Message {
        let masked = |text: &Option<String>| text.as_ref().map(|text| self.masked(text));
        Message {
            content: self.masked(&turn.content),
            name: masked(&turn.name),
            tool_call_id: masked(&turn.tool_call_id),
            ..turn.clone()
        }
    }

    fn no_following(&self, reason: String) -> Error {
        Error::NoFollowing { name: self.name().to_owned(), reason }
    }
}

/// The texts of a turn that come from outside.
fn foreign_texts(turn: &Message) -> impl Iterator<Item = &str> {
    [Some(turn.content.as_str()), turn.name.as_deref(), turn.tool_call_id.as_deref()].into_iter().flatten()
}

#[cfg(test)]
mod tests;
