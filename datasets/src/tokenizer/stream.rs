//! Decodes ids to text while they are being generated.
//!
//! A token may end inside a character, and the text of a token may depend on the token before it (a leading
//! space). Therefore the decoder decodes a window that begins with tokens already shown, and returns the text
//! that the newest tokens add. If that text ends in the replacement character, it waits, because the next
//! token may complete the character. All pieces together equal the decoding of all ids, unless these hold
//! long runs of bytes that are no text, for which the decoder does not wait.

use std::ops::Range;

use super::Tokenizer;
use crate::error::Result;

impl Tokenizer {
    /// Creates a decoder that takes ids one by one and returns text as soon as it is complete.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, skip_special, ids: Vec::new(), window: 0, shown: 0 }
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
                let ids = ids.to_vec();
                return Ok(StreamDecoder { tokenizer: self, skip_special, ids, window: 0, shown });
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

    /// The bytes that a token adds to a text, of which [`token_text`](Self::token_text) is `text`. A token may
    /// be a part of a character, which has bytes and no text of its own.
    pub fn token_bytes(&self, id: i64, text: &str) -> Vec<u8> {
        let is_part = text.contains(char::REPLACEMENT_CHARACTER);
        let bytes =
            if is_part { self.id_to_token(id).and_then(|token| bytes_of_token(&token)) } else { None };
        bytes.unwrap_or_else(|| text.as_bytes().to_vec())
    }
}

/// The bytes that the name of a token in the vocabulary stands for: `<0xE2>` is a byte for which a
/// `SentencePiece` vocabulary has no token (byte fallback), and a byte-level vocabulary writes each byte as
/// one character. `None` for any other token.
fn bytes_of_token(token: &str) -> Option<Vec<u8>> {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if let Some(byte) = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
        return Some(vec![byte]);
    }
    token.chars().map(byte_of_character).collect()
}

/// The byte that a character of a byte-level vocabulary stands for. Bytes that can be printed as Latin-1
/// stand for themselves, and the others are counted from U+0100 on, in their order. Radford et al. 2019
/// (GPT-2): `bytes_to_unicode`.
fn byte_of_character(character: char) -> Option<u8> {
    let is_printed = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(is_printed),
        Err(_) => (0..=u8::MAX).filter(|byte| !is_printed(byte)).nth(code as usize - 0x100),
    }
}

/// The number of tokens before the first one that may change its text, unless they begin within a character.
const CONTEXT: usize = 8;

/// The most tokens that wait for their character. A character has four bytes at most, but a token may end one
/// character and begin the next one, so a text in many characters may wait for longer than four tokens.
const LONGEST_WAIT: usize = 16;

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
}

impl StreamDecoder<'_> {
    /// Takes an id and returns the text that is now complete, which is often empty.
    pub fn push(&mut self, id: i64) -> Result<String> {
        self.ids.push(id);
        let (before, after) =
            (self.decode(self.window..self.shown)?, self.decode(self.window..self.ids.len())?);
        if after == before {
            // The token has no text, so nothing waits for the next one.
            self.shown = self.ids.len();
            return Ok(String::new());
        }
        let is_complete = !after.ends_with(char::REPLACEMENT_CHARACTER) && after.starts_with(&before);
        if !is_complete && self.ids.len() - self.shown < LONGEST_WAIT {
            return Ok(String::new());
        }
        let gained = gained(&before, &after);
        self.window = self.shown;
        self.shown = self.ids.len();
        Ok(gained.to_owned())
    }

    /// Returns the remaining text after the last id: for example an incomplete character, as the replacement
    /// character.
    pub fn finish(self) -> Result<String> {
        let (before, after) =
            (self.decode(self.window..self.shown)?, self.decode(self.window..self.ids.len())?);
        Ok(gained(&before, &after).to_owned())
    }

    fn decode(&self, range: Range<usize>) -> Result<String> {
        self.tokenizer.decode(&self.ids[range], self.skip_special)
    }
}

/// What `after` has more than `before`. Bytes that are no text may change the characters that were there
/// before; then as many characters as there were are left out.
fn gained<'a>(before: &str, after: &'a str) -> &'a str {
    after.strip_prefix(before).unwrap_or_else(|| {
        let mut characters = after.chars();
        characters.by_ref().take(before.chars().count()).for_each(drop);
        characters.as_str()
    })
}
