//! The pre-tokenizers of byte-level BPE that llama.cpp knows by a name.
//!
//! Source: `llm_tokenizer_bpe` and `llama_vocab::impl::load` in llama.cpp's `src/llama-vocab.cpp`. Names that
//! split alike differ in what they do to spaces of decoded text, which no id depends on.

use serde_json::{Value, json};

/// Contractions, letters with one character before them, digits, punctuation, line ends.
const LETTERS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
const REST: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A pre-tokenizer with what llama.cpp ties to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    /// The name that is written, and others that mean the same ids.
    pub(super) names: &'static [&'static str],
    /// Whether a whole piece that is a token is not merged from its bytes.
    pub(super) ignore_merges: bool,
    /// Whether a reader normalizes texts to NFC. llama.cpp never does.
    pub(super) is_nfc: bool,
    /// Whether BOS is added if the metadata do not say.
    pub(super) adds_bos: bool,
    split: Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// GPT-2's pattern.
    Gpt2,
    /// Each digit, then GPT-2's pattern.
    DigitsGpt2,
    /// A pattern with this part for digits.
    Pattern(&'static str),
}

/// All that are known. The tokenizers that this program trains are `smollm`.
const KNOWN: [PreTokenizer; 5] = [
    PreTokenizer::new(&["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"], Split::Gpt2),
    PreTokenizer::new(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        Split::DigitsGpt2,
    ),
    PreTokenizer {
        is_nfc: true,
        ..PreTokenizer::new(&["qwen2", "deepseek-r1-qwen", "stablelm2"], Split::Pattern(r"\p{N}"))
    },
    PreTokenizer {
        ignore_merges: true,
        adds_bos: true,
        ..PreTokenizer::new(&["llama-bpe", "llama3", "llama-v3"], Split::Pattern(r"\p{N}{1,3}"))
    },
    PreTokenizer::new(&["smaug-bpe", "dbrx"], Split::Pattern(r"\p{N}{1,3}")),
];

impl PreTokenizer {
    const fn new(names: &'static [&'static str], split: Split) -> Self {
        Self { names, ignore_merges: false, is_nfc: false, adds_bos: false, split }
    }

    /// The pre-tokenizer with this name.
    pub(super) fn by_name(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.names.contains(&name))
    }

    /// The pre-tokenizer that splits like this part of a `tokenizer.json`.
    pub(super) fn by_part(part: &Value, ignore_merges: bool) -> Option<&'static Self> {
        let part = plain(part);
        KNOWN.iter().find(|known| known.ignore_merges == ignore_merges && plain(&known.part()) == part)
    }

    /// The names that can be written or read.
    pub(super) fn all_names() -> String {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.names[0]).collect();
        names.join(", ")
    }

    /// The part of a `tokenizer.json`.
    pub(super) fn part(&self) -> Value {
        let sequence =
            |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
        match self.split {
            Split::Gpt2 => byte_level(true),
            Split::DigitsGpt2 => {
                sequence(json!({"type": "Digits", "individual_digits": true}), byte_level(true))
            }
            Split::Pattern(digits) => {
                let pattern = json!({"Regex": format!("{LETTERS}{digits}{REST}")});
                let split =
                    json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
                sequence(split, byte_level(false))
            }
        }
    }
}

/// The part that makes bytes printable.
pub(super) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// A part without what no id depends on, and a sequence of one part as that part.
fn plain(part: &Value) -> Value {
    let mut part = part.clone();
    if let Some(object) = part.as_object_mut() {
        object.shift_remove("trim_offsets");
    }
    match part["pretokenizers"].as_array() {
        Some(parts) if parts.len() == 1 => plain(&parts[0]),
        Some(parts) => Value::Array(parts.iter().map(plain).collect()),
        None => part,
    }
}
