//! The tokens that end a reply, in the keys that llama.cpp has for them.
//!
//! There are three keys: the end of a sequence, of a turn (`eot`) and of a message (`eom`). llama.cpp also
//! ends a reply at tokens with certain texts, whatever the keys say (`special_eog_ids` in
//! `src/llama-vocab.cpp`).

use gguf::{Metadata, Value};

use super::super::Tokenizer;
use super::keys::{END_KEYS, SPECIAL_KEYS};
use crate::error::{Error, Result};

/// The texts of tokens at which llama.cpp ends every reply.
const RECOGNIZED: [&str; 28] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<REPO>",
];

/// Adds the special tokens and the tokens of `stop_ids`. Returns the texts of tokens at which llama.cpp ends a
/// reply and this program does not.
pub(super) fn describe(
    tokenizer: &Tokenizer,
    stop_ids: &[i64],
    metadata: &mut Metadata,
) -> Result<Vec<&'static str>> {
    for (name, key) in SPECIAL_KEYS {
        if let Some(token) = tokenizer.special.get(name) {
            metadata.set(key, Value::u32(token.id as u32));
        }
    }
    let text = |id: i64| tokenizer.id_to_token(id).unwrap_or_default();
    let Some(eos) = tokenizer.eos_id().or(stop_ids.first().copied()) else {
        return Err(Error::MissingSpecialToken { name: tokenizer.name.clone(), token: "eos_token" });
    };
    metadata.set("tokenizer.ggml.eos_token_id", Value::u32(eos as u32));

    // The end of a turn has a key of its own, and so has a token that is called the end of a message.
    let mut others: Vec<i64> = stop_ids.iter().copied().filter(|&id| id != eos).collect();
    others.sort_by_key(|&id| (tokenizer.end_of_turn != Some(id), text(id) != "<|eom_id|>"));
    let (keyed, rest) = others.split_at(others.len().min(END_KEYS.len()));
    for (key, &id) in END_KEYS.into_iter().zip(keyed) {
        metadata.set(key, Value::u32(id as u32));
    }
    if let Some(&id) = rest.iter().find(|&&id| !RECOGNIZED.contains(&text(id).as_str())) {
        let found = format!("the end token {:?} beside three others", text(id));
        let fix = "a file has room for three: take some out of eos_token_id in generation_config.json and config.json";
        return Err(refused(tokenizer, "generation_config.json", found, fix));
    }
    let ends = |text: &&str| tokenizer.token_to_id(text).is_some_and(|id| !stop_ids.contains(&id));
    Ok(RECOGNIZED.into_iter().filter(ends).collect())
}

/// The error for a part that a GGUF file cannot say.
pub(super) fn refused(tokenizer: &Tokenizer, part: &'static str, found: String, fix: &'static str) -> Error {
    Error::NoGgufTokenizer { name: tokenizer.name.clone(), part, found, fix }
}
