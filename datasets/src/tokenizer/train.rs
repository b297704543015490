//! Training a tokenizer: byte-level BPE (Sennrich et al. 2016; Radford et al. 2019 for bytes).
//!
//! The alphabet is the 256 bytes, so any text in any language can be encoded. Each digit is its own token,
//! which makes arithmetic learnable for small models (Touvron et al. 2023, section 2.1). The ids are ordered:
//! special tokens first, then the bytes, then the merges in the order in which they were learned. This module
//! knows no files.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, json};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;

use super::folder::Parts;
use super::growth::Growth;
use super::{SpecialToken, Tokenizer};
use crate::error::{Error, Result};
use crate::template;

const BOS: &str = "<|bos|>";
const EOS: &str = "<|eos|>";
const PAD: &str = "<|pad|>";
const TURNS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];
const BYTES: usize = 256;

/// Options for training a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// Total number of ids: special tokens, 256 bytes, merges.
    pub vocab_size: usize,
    /// Pairs rarer than this are not merged.
    pub min_frequency: u64,
    /// Special tokens in addition to `<|bos|>`, `<|eos|>`, `<|pad|>`, `<|im_start|>` and `<|im_end|>`.
    pub extra_special_tokens: Vec<String>,
    /// The longest sequence of the model in tokens, for `tokenizer_config.json`.
    pub model_max_length: usize,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self { vocab_size: 512, min_frequency: 2, extra_special_tokens: Vec::new(), model_max_length: 1024 }
    }
}

impl Tokenizer {
    /// Trains a byte-level BPE tokenizer with single digits and `ChatML` turns. Equal input gives equal
    /// output.
    pub fn train(texts: impl Iterator<Item = String> + Send, options: &TrainOptions) -> Result<Self> {
        let names: Vec<&str> = [BOS, EOS, PAD]
            .into_iter()
            .chain(TURNS)
            .chain(options.extra_special_tokens.iter().map(String::as_str))
            .collect();
        let least = names.len() + BYTES;
        if options.vocab_size < least {
            return Err(Error::VocabularyTooSmall { got: options.vocab_size, least });
        }

        let failed = |error: tokenizers::Error| Error::Tokenize {
            name: "a new model".to_owned(),
            reason: error.to_string(),
        };

        let mut inner = untrained();
        let mut trainer = TrainerWrapper::from(trainer(&names, options));
        inner.train(&mut trainer, texts).map_err(failed)?;

        let bos = inner.token_to_id(BOS).expect("the trainer adds its special tokens");
        let processor = TemplateProcessing::builder()
            .try_single(format!("{BOS} $A"))
            .and_then(|builder| builder.try_pair(format!("{BOS} $A {BOS} $B:1")))
            .map_err(|reason| failed(reason.into()))?
            .special_tokens(vec![(BOS, bos)])
            .build()
            .map_err(|error| failed(error.into()))?;
        inner.with_post_processor(Some(processor));

        let mut tokenizer = add_special_tokens(inner, options);
        tokenizer.set_chat_template(template::built_in("chatml")?)?;
        Ok(tokenizer)
    }
}

fn untrained() -> tokenizers::Tokenizer {
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    let bytes = ByteLevel::new(false, false, true);
    let split =
        Sequence::new(vec![PreTokenizerWrapper::from(Digits::new(true)), PreTokenizerWrapper::from(bytes)]);
    inner.with_pre_tokenizer(Some(split));
    inner.with_decoder(Some(bytes));
    inner
}

fn trainer(names: &[&str], options: &TrainOptions) -> BpeTrainer {
    let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
    BpeTrainer::builder()
        .vocab_size(options.vocab_size)
        .min_frequency(options.min_frequency)
        .show_progress(false)
        .special_tokens(names.iter().map(|&name| AddedToken::from(name, true)).collect())
        .initial_alphabet(alphabet)
        .build()
}

/// Adds the special tokens and settings to the trained vocabulary.
fn add_special_tokens(inner: tokenizers::Tokenizer, options: &TrainOptions) -> Tokenizer {
    let mut special = BTreeMap::new();
    let mut config = Map::new();
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    config.insert("model_max_length".to_owned(), json!(options.model_max_length));
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    for (name, text) in [("bos_token", BOS), ("eos_token", EOS), ("pad_token", PAD)] {
        let id = inner.token_to_id(text).expect("the trainer adds its special tokens");
        special.insert(name.to_owned(), SpecialToken { text: text.to_owned(), id: i64::from(id) });
        config.insert(name.to_owned(), json!(text));
    }
    let growth = Growth::of(&inner).expect("a tokenizer that was made here does not expand texts");
    Parts { inner, growth, config, special, generation_eos: Vec::new() }.build("a new model".to_owned())
}
