//! The tokens of `ChatML` turns, for base models that have none, and the templates that use them.
//!
//! New tokens get the ids after the highest one; the model must get embedding rows for them. This module
//! knows no model weights.

use std::sync::OnceLock;

use serde_json::{Value, json};
use tokenizers::AddedToken;

use super::{SpecialToken, Tokenizer};
use crate::error::{Error, Result};
use crate::template;

/// The tokens that open and close a turn.
const TOKENS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

impl Tokenizer {
    /// Adds `<|im_start|>` and `<|im_end|>` as special tokens if they are missing, and makes `<|im_end|>` the
    /// EOS if it is new. Returns the new tokens.
    pub fn add_turn_tokens(&mut self) -> Vec<&'static str> {
        let missing: Vec<&str> =
            TOKENS.into_iter().filter(|token| self.token_to_id(token).is_none()).collect();
        let added: Vec<AddedToken> = missing.iter().map(|&token| AddedToken::from(token, true)).collect();
        let listed = self.inner.add_special_tokens(added);
        listed.expect("special tokens are not normalized, and the other added tokens were listed before");
        for token in &missing {
            self.note_token(token);
        }
        if missing.contains(&TOKENS[1]) {
            let text = TOKENS[1].to_owned();
            self.config.insert("eos_token".to_owned(), json!(text));
            let id = self.token_to_id(&text).expect("just added");
            self.special.insert("eos_token".to_owned(), SpecialToken { text, id });
        }
        let highest = self.inner.get_vocab(true).into_values().max();
        self.vocab_size = highest.map_or(0, |id| id as usize + 1);
        self.literal = OnceLock::new();
        self.find_stops();
        missing
    }

    /// Replaces the chat template by a built-in one: `chatml` or `plain`. Returns an error if the tokenizer
    /// lacks the tokens of the template; see [`Self::add_turn_tokens`].
    pub fn set_built_in_template(&mut self, name: &str) -> Result<()> {
        let source = template::built_in(name)?;
        let needs_eos = name == "plain" && self.eos_id().is_none();
        if needs_eos {
            return Err(Error::MissingSpecialToken { name: self.name.clone(), token: "eos_token" });
        }
        let missing = TOKENS.into_iter().find(|token| self.token_to_id(token).is_none());
        if let Some(token) = missing.filter(|_| name == "chatml") {
            return Err(Error::MissingTurnToken { name: self.name.clone(), token });
        }
        self.set_chat_template(source)
    }

    /// Adds the token to the list of added tokens in `tokenizer_config.json`, if there is such a list.
    fn note_token(&mut self, token: &str) {
        let id = self.token_to_id(token).expect("just added").to_string();
        if let Some(Value::Object(listed)) = self.config.get_mut("added_tokens_decoder") {
            let entry = json!({
                "content": token, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true
            });
            listed.insert(id, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::conversation::Message;
    use crate::error::Error;
    use crate::tokenizer::tests::{small, stories};
    use crate::{Tokenizer, TrainOptions};

    #[test]
    fn a_base_model_gets_the_tokens_of_chatml() {
        let Some(folder) = stories() else { return };
        let mut tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let error = tokenizer.set_built_in_template("chatml").unwrap_err();
        assert!(matches!(error, Error::MissingTurnToken { token: "<|im_start|>", .. }), "{error}");
        assert_eq!(tokenizer.add_turn_tokens(), ["<|im_start|>", "<|im_end|>"]);
        assert_eq!((tokenizer.vocab_size(), tokenizer.eos_id()), (514, Some(513)));
        tokenizer.set_built_in_template("chatml").unwrap();
        assert_eq!(tokenizer.end_of_turn_id(), Some(513));
        let encoded =
            tokenizer.encode_conversation(&[Message::user("hi"), Message::assistant("yes")]).unwrap();
        assert_eq!(encoded.input_ids[0], 512);
        // Saving and loading changes nothing.
        let saved = tempfile::tempdir().unwrap();
        tokenizer.save(saved.path()).unwrap();
        let mut again = Tokenizer::from_folder(saved.path()).unwrap();
        assert!(again.add_turn_tokens().is_empty());
        assert_eq!((again.vocab_size(), again.eos_id()), (514, Some(513)));
        let prompt = [Message::user("hi")];
        assert_eq!(again.encode_prompt(&prompt).unwrap(), tokenizer.encode_prompt(&prompt).unwrap());
    }

    #[test]
    fn tokens_that_are_there_are_left_alone() {
        let mut tokenizer = small();
        let before = (tokenizer.vocab_size(), tokenizer.eos_id());
        assert!(tokenizer.add_turn_tokens().is_empty());
        assert_eq!((tokenizer.vocab_size(), tokenizer.eos_id()), before);
        let other = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
        assert!(Tokenizer::train(std::iter::empty(), &other).unwrap().add_turn_tokens().is_empty());
    }
}
