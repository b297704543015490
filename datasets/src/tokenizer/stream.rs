//! Ids to text while they are still being generated.
//!
//! A token may end inside a character, and how a token reads may depend on the one before it (a leading space). So the
//! decoder decodes a window that begins with tokens already shown, and shows what the window gained, unless it ends in the
//! replacement character: then the next token may complete it. The pieces together equal the decoding of all ids.

use super::Tokenizer;
use crate::error::Result;

/// Turns ids into text as they come.
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    ids: Vec<i64>,
    /// Start of the window.
    window: usize,
    /// End of the ids already shown.
    shown: usize,
    /// Bytes already given out.
    given: usize,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, ids: Vec::new(), window: 0, shown: 0, given: 0 }
    }

    /// Takes an id and returns the text that is now complete, often empty.
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

    /// What is left when no more ids come: for example half a character, as the replacement character.
    pub fn finish(self) -> Result<String> {
        let all = self.decode(&self.ids)?;
        Ok(all.get(self.given..).unwrap_or_default().to_owned())
    }

    fn decode(&self, ids: &[i64]) -> Result<String> {
        self.tokenizer.decode(ids, self.skip_special)
    }
}
