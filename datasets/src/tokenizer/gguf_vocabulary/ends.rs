//! The tokens that end a reply, in the keys that llama.cpp has for them.
//!
//! There are three keys: the end of a sequence, of a turn (`eot`) and of a message (`eom`). llama.cpp also
//! ends a reply at tokens with certain texts, whatever the keys say (`special_eog_ids` in
//! `src/llama-vocab.cpp`).

use gguf::{Metadata, Value};

use super::super::Tokenizer;
use super::keys::{END_IDS, END_KEYS, SPECIAL_KEYS};
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

/// Adds the special tokens and the tokens of `stop_ids`. Returns the texts of tokens at which llama.cpp ends
/// a reply and this program does not.
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
    let first_end = || stop_ids.iter().copied().find(|&id| tokenizer.id_to_token(id).is_some());
    let Some(eos) = tokenizer.eos_id().or_else(first_end) else {
        return Err(Error::MissingSpecialToken { name: tokenizer.name.clone(), token: "eos_token" });
    };
    metadata.set("tokenizer.ggml.eos_token_id", Value::u32(eos as u32));

    // The end of a turn and the end of a message have keys of their own. Others take the keys that are left,
    // those first whose texts llama.cpp does not recognize.
    let is_other = |id: &i64| *id != eos && tokenizer.id_to_token(*id).is_some();
    let mut rest: Vec<i64> = stop_ids.iter().copied().filter(is_other).collect();
    rest.sort_by_key(|&id| RECOGNIZED.contains(&text(id).as_str()));
    let all: Vec<i32> = std::iter::once(eos).chain(rest.iter().copied()).map(|id| id as i32).collect();
    let mut take = |is_wanted: &dyn Fn(i64) -> bool| {
        rest.iter().position(|&id| is_wanted(id)).map(|place| rest.remove(place))
    };
    let turn = take(&|id| tokenizer.end_of_turn == Some(id));
    let message = take(&|id| text(id) == "<|eom_id|>");
    let keyed = [turn.or_else(|| take(&|_| true)), message.or_else(|| take(&|_| true))];
    for (key, id) in END_KEYS.into_iter().zip(keyed) {
        if let Some(id) = id {
            metadata.set(key, Value::u32(id as u32));
        }
    }
    if let Some(&id) = rest.iter().find(|&&id| !RECOGNIZED.contains(&text(id).as_str())) {
        let found = format!("the end token {:?} beside three others", text(id));
        let fix = "a file has room for three: take some out of eos_token_id in generation_config.json and config.json";
        return Err(refused(tokenizer, "generation_config.json", found, fix));
    }
    if !rest.is_empty() {
        metadata.set(END_IDS, Value::i32s(&all));
    }

    let ends = |text: &&str| tokenizer.token_to_id(text).is_some_and(|id| !stop_ids.contains(&id));
    Ok(RECOGNIZED.into_iter().filter(ends).collect())
}

/// The error for a part that a GGUF file cannot say.
pub(super) fn refused(tokenizer: &Tokenizer, part: &'static str, found: String, fix: &'static str) -> Error {
    Error::NoGgufTokenizer { name: tokenizer.name.clone(), part, found, fix }
}
