//! Text from outside in which the text of special tokens stays text.
//!
//! A tokenizer splits a text at the texts of its special tokens before anything else. A copy of it that does
//! not do so encodes the parts between those special tokens that a template wrote. Added tokens that are not
//! special, such as `<tool_call>` of some models, are tokens in either case. This module knows no turns.

use std::ops::Range;

use tokenizers::AddedToken;

use super::{Pieces, Tokenizer};
use crate::error::Result;
use crate::untrusted::decode;

/// A token that begins every text of the copy, so that no part is the beginning of a text, where some
/// tokenizers add a space.
const GUARD: &str = "\u{10fffe}guard\u{10fffe}";

impl Tokenizer {
    /// Returns a text of the same length without the text of a special token.
    pub(crate) fn masked(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // What one replacement leaves may hold the text of a shorter token, but not without end.
        for _ in 0..=self.inner.get_added_vocabulary().len() {
            let Some(special) = self.special_text_in(&text) else { break };
            text = text.replace(&special, &"x".repeat(special.len()));
        }
        text
    }

    /// Encodes a text in which only some special tokens are tokens: those of `masked`, the pieces of the same
    /// text after [`Self::masked`].
    pub(crate) fn encode_literally(&self, text: &str, masked: &Pieces) -> Result<Vec<i64>> {
        let mut ids = Vec::with_capacity(masked.ids.len());
        let mut end = 0;
        for (&id, range) in masked.ids.iter().zip(&masked.ranges).filter(|(id, _)| self.is_special(**id)) {
            self.add_literal(text, end..range.start, &mut ids)?;
            ids.push(id);
            end = range.end;
        }
        self.add_literal(text, end..text.len(), &mut ids)?;

        let special = |ids: &[i64]| ids.iter().copied().filter(|&id| self.is_special(id)).collect::<Vec<_>>();
        if special(&ids) == special(&masked.ids) {
            return Ok(ids);
        }
        let text = self.special_text_in(text).unwrap_or_default();
        Err(self.failed(&format!("the text {text:?} is a token wherever it stands")))
    }

    /// Adds the ids of a part of a text that has no special tokens.
    fn add_literal(&self, text: &str, part: Range<usize>, ids: &mut Vec<i64>) -> Result<()> {
        let part = text.get(part).unwrap_or_default();
        if part.is_empty() {
            return Ok(());
        }
        self.check_text(part)?;
        let literal = self.literal()?;
        let encoding = decode(|| literal.encode_fast(format!("{GUARD}{part}"), false));
        let encoding =
            encoding.map_err(|reason| self.failed(&reason))?.map_err(|error| self.failed(&error))?;
        // The first id is that of the guard.
        ids.extend(encoding.get_ids().iter().skip(1).map(|&id| i64::from(id)));
        Ok(())
    }

    /// Returns the copy that takes the text of special tokens for text.
    fn literal(&self) -> Result<&tokenizers::Tokenizer> {
        if let Some(literal) = self.literal.get() {
            return Ok(literal);
        }
        let mut literal = self.inner.clone();
        literal.set_encode_special_tokens(true);
        let guard = AddedToken::from(GUARD, false).normalized(false);
        literal.add_tokens([guard]).map_err(|error| self.failed(&error))?;
        Ok(self.literal.get_or_init(|| Box::new(literal)))
    }
}
