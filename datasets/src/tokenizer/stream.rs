//! Decodes ids to text while they are being generated.
//!
//! A token may end inside a character, and the text of a token may depend on the token before it (a leading
//! space). Therefore the decoder decodes a window that begins with tokens already shown, and returns the text
//! that the newest tokens add. If that text ends in the replacement character, it waits, because the next
//! token may complete the character. All pieces together equal the decoding of all ids.

use super::Tokenizer;
use crate::error::Result;

impl Tokenizer {
    /// Creates a decoder that takes ids one by one and returns text as soon as it is complete.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, skip_special, ids: Vec::new(), window: 0, shown: 0, given: 0 }
    }

    /// Creates a decoder for ids that continue `before`, whose text is not returned. The first token keeps
    /// its leading space.
    pub fn stream_decoder_after(&self, before: &[i64], skip_special: bool) -> Result<StreamDecoder<'_>> {
        // A token depends on the few before it, and not on the beginning of a long text.
        let mut width = CONTEXT;
        loop {
            let start = before.len().saturating_sub(width);
            let ids = &before[start..];
            let mut shown = ids.len();
            let mut text = self.decode(ids, skip_special)?;
            // The next token may complete a character of the last ones.
            while text.ends_with(char::REPLACEMENT_CHARACTER) && shown > 0 {
                shown -= 1;
                text = self.decode(&ids[..shown], skip_special)?;
            }
            // The first of them may be the middle of a character.
            let is_whole = shown > 0 && !text.starts_with(char::REPLACEMENT_CHARACTER);
            if is_whole || start == 0 {
                let (ids, given) = (ids.to_vec(), text.len());
                return Ok(StreamDecoder { tokenizer: self, skip_special, ids, window: 0, shown, given });
            }
            width *= 2;
        }
    }

    /// The text that a token adds to a text. A leading space is part of it, which [`decode`](Self::decode)
    /// drops with some tokenizers.
    pub fn token_text(&self, id: i64) -> Result<String> {
        let alone = self.decode(&[id], false)?;
        let twice = self.decode(&[id, id], false)?;
        Ok(twice.strip_prefix(&alone).map(str::to_owned).unwrap_or(alone))
    }
}

/// The number of tokens before the first one that may change its text, unless they begin within a character.
const CONTEXT: usize = 8;

/// Decodes ids to text as they arrive.
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    ids: Vec<i64>,
    /// Start of the window.
    window: usize,
    /// End of the ids whose text was returned.
    shown: usize,
    /// Number of bytes of text already returned.
    given: usize,
}

impl StreamDecoder<'_> {
    /// Takes an id and returns the text that is now complete, which is often empty.
    pub fn push(&mut self, id: i64) -> Result<String> {
        self.ids.push(id);
        let before = self.decode(&self.ids[self.window..self.shown])?;
        let after = self.decode(&self.ids[self.window..])?;
        if after.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        match after.strip_prefix(&before) {
            Some(gained) if !gained.is_empty() => {
                let gained = gained.to_owned();
                self.window = self.shown;
                self.shown = self.ids.len();
                self.given += gained.len();
                Ok(gained)
            }
            _ => Ok(String::new()),
        }
    }

    /// Returns the remaining text after the last id: for example an incomplete character, as the replacement
    /// character.
    pub fn finish(self) -> Result<String> {
        let all = self.decode(&self.ids)?;
        Ok(all.get(self.given..).unwrap_or_default().to_owned())
    }

    fn decode(&self, ids: &[i64]) -> Result<String> {
        self.tokenizer.decode(ids, self.skip_special)
    }
}
