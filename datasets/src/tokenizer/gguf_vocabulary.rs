//! Tokenizers in the metadata of GGUF files, the format of llama.cpp.
//!
//! llama.cpp has programs of its own for tokenizers, which the metadata name: `gpt2` for byte-level BPE, with
//! the name of a pre-tokenizer, and `llama` for tokens with scores as in `SentencePiece`. A tokenizer whose
//! parts are those of such a program can be written; any other is refused with the part that differs. What
//! is read becomes a `tokenizer.json` with the parts of the program.

mod ends;
mod pre_tokenizer;
mod read;
mod scores;
mod write;

pub use read::GgufTokenizer;
pub use write::GgufOptions;

/// How llama.cpp treats a token, with its number in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// The keys of the special tokens, with their names in `tokenizer_config.json`.
const SPECIAL_KEYS: [(&str, &str); 6] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    // The format spells it so.
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// The key of the token that ends a turn, and of one that ends a message.
const END_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const TEMPLATE: &str = "tokenizer.chat_template";

/// A key of this program: texts begin with BOS, although `add_bos_token` is false for the chat's sake.
const TEXTS_HAVE_BOS: &str = "colossal_chat.add_bos_to_texts";

/// The text of an id that no token has. llama.cpp's converters write the same.
fn padding(id: usize) -> String {
    format!("[PAD{id}]")
}

#[cfg(test)]
mod tests;
