//! The keys of a tokenizer in the metadata of a GGUF file, and the kinds of its tokens.

/// How llama.cpp treats a token, with its number in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// The keys of the special tokens, with their names in `tokenizer_config.json`.
pub(super) const SPECIAL_KEYS: [(&str, &str); 6] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    // The format spells it so.
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// The key of the token that ends a turn, and of one that ends a message.
pub(super) const END_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(super) const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";

/// A key of this program: texts begin with BOS, although `add_bos_token` is false for the chat's sake.
pub(super) const TEXTS_HAVE_BOS: &str = "colossal_chat.add_bos_to_texts";

/// A key of this program: the ids of all tokens that end a reply, where there are more than the keys above hold.
pub(super) const END_IDS: &str = "colossal_chat.end_token_ids";

/// The text of an id that no token has. llama.cpp's converters write the same.
pub(super) fn padding(id: usize) -> String {
    format!("[PAD{id}]")
}
