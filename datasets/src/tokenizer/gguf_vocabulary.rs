//! Tokenizers in the metadata of GGUF files, the format of llama.cpp.
//!
//! llama.cpp has programs of its own for tokenizers, which the metadata name: `gpt2` for byte-level BPE, with
//! the name of a pre-tokenizer, and `llama` for tokens with scores as in `SentencePiece`. A tokenizer whose
//! parts are those of such a program can be written; any other is refused with the part that differs. What
//! is read becomes a `tokenizer.json` with the parts of the program.

mod ends;
mod keys;
mod pre_tokenizer;
mod read;
mod scores;
mod write;

pub use read::GgufTokenizer;
pub use write::GgufOptions;

#[cfg(test)]
mod tests;
