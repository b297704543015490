//! Bounds how much a tokenizer may make of a text, or of ids, before it makes it.
//!
//! A `tokenizer.json` is a program that comes with a model: its normalizer may replace each letter by a long
//! text, ten times in a row, its post-processor may add any number of tokens, and its decoder replaces as
//! well. Therefore an upper bound is computed from the file, as `per_byte * length + once`, and every text is
//! checked against it before it is encoded, every list of ids before it is decoded. The bounds of Unicode's
//! normalization forms are those of its FAQ (unicode.org/faq/normalization: a factor of 3 for NFC and NFD and
//! of 11 for NFKC and NFKD, in UTF-8).

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

/// The bytes that a text may become in addition to [`PER_INPUT_BYTE`] times its own. A byte of a text that is
/// being tokenized takes about 20 bytes of memory.
const ENCODED_BYTES: u64 = 64 << 20;
const PER_INPUT_BYTE: u64 = 16;
/// The bytes of text that a list of ids may become.
const DECODED_BYTES: u64 = 256 << 20;
/// The largest factor of a part.
const PER_BYTE: u64 = 4096;
/// The most tokens that a post-processor adds to a text, and the most bytes of their texts.
const ADDED_TOKENS: usize = 1024;
const ADDED_BYTES: usize = 64 << 10;
/// The longest prefix, suffix or unknown token of a model. One of them stands at every letter of a text.
const AFFIX_BYTES: usize = 256;

/// Why a tokenizer or a text is refused.
type Refused = String;

/// A length as a function of another one: `per_byte * length + once`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    per_byte: u64,
    once: u64,
}

impl Length {
    const SAME: Self = Self { per_byte: 1, once: 0 };

    /// What comes out if a part with this length comes next.
    fn then(self, next: Self) -> Self {
        Self {
            per_byte: self.per_byte.saturating_mul(next.per_byte),
            once: self.once.saturating_mul(next.per_byte).saturating_add(next.once),
        }
    }

    fn of(self, length: usize) -> u64 {
        self.per_byte.saturating_mul(length as u64).saturating_add(self.once)
    }

    /// Refuses a part that makes thousands of bytes of one.
    fn within_limits(self, part: &str) -> Result<Self, Refused> {
        if self.per_byte <= PER_BYTE && self.once <= ENCODED_BYTES {
            return Ok(self);
        }
        Err(format!(
            "its {part} may make {} bytes of one byte and {} bytes of an empty text; at most {PER_BYTE} and \
             {ENCODED_BYTES} are allowed",
            self.per_byte, self.once
        ))
    }
}

/// The bounds of a tokenizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    encoded: Length,
    /// Of the texts of all tokens; `once` is for each token.
    decoded: Length,
}

/// The parts of `tokenizer.json` that may grow a text.
#[derive(Deserialize)]
pub(super) struct Parts {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    model: Option<Affixes>,
    #[serde(default)]
    added_tokens: Vec<AddedText>,
}

#[derive(Deserialize)]
struct Affixes {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    unk_token: Option<String>,
}

#[derive(Deserialize)]
struct AddedText {
    content: String,
}

impl Parts {
    /// Computes the bounds. The file is refused if a part has none that is acceptable.
    pub(super) fn growth(&self) -> Result<Growth, Refused> {
        if let Some(model) = &self.model {
            model.check()?;
        }
        let processor = self.post_processor.as_ref().map(part).transpose()?;
        processor.as_ref().map_or(Ok(()), check_processor)?;
        let growth =
            Growth::new(self.normalizer.as_ref(), self.pre_tokenizer.as_ref(), self.decoder.as_ref())?;
        // The library normalizes the added tokens when it reads the file.
        growth.check_text(self.added_tokens.iter().map(|token| token.content.len()).sum())?;
        Ok(growth)
    }
}

impl Affixes {
    fn check(&self) -> Result<(), Refused> {
        let affixes = [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
            ("unk_token", &self.unk_token),
        ];
        for (name, text) in affixes {
            let length = text.as_ref().map_or(0, String::len);
            if length > AFFIX_BYTES {
                return Err(format!("the {name} of its model has {length} bytes, more than {AFFIX_BYTES}"));
            }
        }
        Ok(())
    }
}

impl Growth {
    /// The bounds of a tokenizer that was made here.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, Refused> {
        Self::new(tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer(), tokenizer.get_decoder())
    }

    fn new(
        normalizer: Option<&NormalizerWrapper>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
        decoder: Option<&DecoderWrapper>,
    ) -> Result<Self, Refused> {
        let normalized = match normalizer {
            None => Length::SAME,
            Some(normalizer) => of_part(&part(normalizer)?, "normalizers", &of_normalizer)?,
        };
        let split = match pre_tokenizer {
            None => Length::SAME,
            Some(pre_tokenizer) => of_part(&part(pre_tokenizer)?, "pretokenizers", &of_pre_tokenizer)?,
        };
        let decoded = match decoder {
            // The tokens are joined by spaces.
            None => Length { per_byte: 1, once: 1 },
            Some(decoder) => of_part(&part(decoder)?, "decoders", &of_decoder)?,
        };
        let encoded = normalized.within_limits("normalizer")?.then(split).within_limits("pre-tokenizer")?;
        Ok(Self { encoded, decoded: decoded.within_limits("decoder")? })
    }

    /// Refuses a text of `length` bytes that may become too long.
    pub(super) fn check_text(&self, length: usize) -> Result<(), Refused> {
        let most = ENCODED_BYTES + PER_INPUT_BYTE * length as u64;
        let bound = self.encoded.of(length);
        if bound <= most {
            return Ok(());
        }
        Err(format!(
            "its normalizer and pre-tokenizer may make {} MiB of a text of {length} bytes; at most {} MiB are allowed",
            bound >> 20,
            most >> 20
        ))
    }

    /// Refuses ids whose text may become too long. `longest` is the length of the longest token in bytes and
    /// `exact` gives the length of all tokens, which takes longer.
    pub(super) fn check_ids(
        &self,
        count: usize,
        longest: usize,
        exact: impl FnOnce() -> usize,
    ) -> Result<(), Refused> {
        let once = self.decoded.once.saturating_mul(count as u64);
        let bound = |bytes: usize| self.decoded.per_byte.saturating_mul(bytes as u64).saturating_add(once);
        if bound(count.saturating_mul(longest)) <= DECODED_BYTES {
            return Ok(());
        }
        let bound = bound(exact());
        if bound <= DECODED_BYTES {
            return Ok(());
        }
        Err(format!(
            "its decoder may make {} MiB of {count} tokens; at most {} MiB are allowed",
            bound >> 20,
            DECODED_BYTES >> 20
        ))
    }
}

/// A part as the library writes it, which has one form where it reads several.
fn part(part: &impl serde::Serialize) -> Result<Value, Refused> {
    serde_json::to_value(part).map_err(|error| error.to_string())
}

/// The length after a part, or after all parts of a sequence under the key `list`.
fn of_part(
    part: &Value,
    list: &str,
    of_one: &dyn Fn(&str, &Value) -> Result<Length, Refused>,
) -> Result<Length, Refused> {
    let kind = part["type"].as_str().unwrap_or_default();
    if kind != "Sequence" {
        return of_one(kind, part);
    }
    let parts = part[list].as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().try_fold(Length::SAME, |before, part| Ok(before.then(of_part(part, list, of_one)?)))
}

fn of_normalizer(kind: &str, part: &Value) -> Result<Length, Refused> {
    let times = |per_byte| Ok(Length { per_byte, once: 0 });
    match kind {
        "Strip" | "StripAccents" | "Nmt" => times(1),
        "Lowercase" | "ByteLevel" => times(2),
        "NFC" | "NFD" => times(3),
        "NFKC" | "NFKD" => times(11),
        // Spaces around ideographs (2), NFD (3) and lower case (2).
        "BertNormalizer" => times(12),
        "Prepend" => Ok(Length { per_byte: 1, once: part["prepend"].as_str().map_or(0, str::len) as u64 }),
        "Replace" => Ok(of_replace(part)),
        "Precompiled" => {
            let map = part["precompiled_charsmap"].as_str().unwrap_or_default();
            let longest = longest_replacement(map).ok_or("its precompiled_charsmap is damaged")?;
            times(longest.max(1) as u64)
        }
        other => Err(format!("its normalizer {other:?} is not known to this program")),
    }
}

fn of_pre_tokenizer(kind: &str, part: &Value) -> Result<Length, Refused> {
    match kind {
        "ByteLevel" => Ok(Length { per_byte: 2, once: 1 }),
        // A space becomes the replacement, and one more comes first.
        "Metaspace" => {
            let length = part["replacement"].as_str().map_or(1, str::len) as u64;
            Ok(Length { per_byte: length, once: length })
        }
        "BertPreTokenizer" | "CharDelimiterSplit" | "Whitespace" | "WhitespaceSplit" | "Split"
        | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength" => Ok(Length::SAME),
        other => Err(format!("its pre-tokenizer {other:?} is not known to this program")),
    }
}

fn of_decoder(kind: &str, part: &Value) -> Result<Length, Refused> {
    // An empty text is found before every letter and at the end, and a space is put there.
    let spaces = |found: &str| match part[found].as_str() {
        Some("") => Length { per_byte: 2, once: 1 },
        _ => Length::SAME,
    };
    match kind {
        "BPEDecoder" => Ok(spaces("suffix")),
        "CTC" => Ok(spaces("word_delimiter_token")),
        // A byte that is no text becomes the replacement character.
        "ByteLevel" => Ok(Length { per_byte: 3, once: 0 }),
        "WordPiece" => Ok(Length { per_byte: 1, once: 1 }),
        "Metaspace" | "Fuse" | "Strip" | "ByteFallback" => Ok(Length::SAME),
        "Replace" => Ok(of_replace(part)),
        other => Err(format!("its decoder {other:?} is not known to this program")),
    }
}

/// A replacement of a text that has a length, or of a pattern, which may match the empty text everywhere.
fn of_replace(part: &Value) -> Length {
    let content = part["content"].as_str().map_or(0, str::len) as u64;
    match part["pattern"]["String"].as_str().map_or(0, str::len) as u64 {
        0 => Length { per_byte: content.saturating_add(1), once: content },
        found => Length { per_byte: content.div_ceil(found).max(1), once: 0 },
    }
}

/// Refuses a post-processor that repeats the text or adds many tokens.
fn check_processor(processor: &Value) -> Result<(), Refused> {
    let mut added = Added::default();
    added.count(processor);
    if added.copies > 1 {
        return Err(format!("its post-processor writes the text {} times", added.copies));
    }
    if added.tokens > ADDED_TOKENS || added.bytes > ADDED_BYTES {
        return Err(format!(
            "its post-processor adds {} tokens of {} bytes to a text; at most {ADDED_TOKENS} of {ADDED_BYTES} are \
             allowed",
            added.tokens, added.bytes
        ));
    }
    Ok(())
}

/// What the templates of a post-processor write.
#[derive(Default)]
struct Added {
    /// How often a template writes the text, at most.
    copies: usize,
    tokens: usize,
    bytes: usize,
}

impl Added {
    fn count(&mut self, processor: &Value) {
        match processor["type"].as_str() {
            Some("Sequence") => {
                let processors = processor["processors"].as_array();
                processors.into_iter().flatten().for_each(|processor| self.count(processor));
            }
            Some("TemplateProcessing") => {
                let mut copies = 0;
                for piece in processor["single"].as_array().into_iter().flatten() {
                    copies += usize::from(piece.get("Sequence").is_some());
                    let Some(id) = piece["SpecialToken"]["id"].as_str() else { continue };
                    let token = &processor["special_tokens"][id];
                    self.tokens += token["ids"].as_array().map_or(0, Vec::len);
                    let texts = token["tokens"].as_array().into_iter().flatten();
                    self.bytes += texts.map(|text| text.as_str().map_or(0, str::len)).sum::<usize>();
                }
                self.copies = self.copies.max(copies);
            }
            // `BertProcessing` and `RobertaProcessing` add two, `ByteLevel` none.
            _ => self.tokens += 2,
        }
    }
}

/// The length of the longest replacement of `SentencePiece`'s map of characters: the length of a trie (four
/// bytes), the trie, and replacements that end with a zero byte. `None` if it is not that.
fn longest_replacement(map: &str) -> Option<usize> {
    let bytes = base64(map)?;
    let (length, rest) = bytes.split_first_chunk()?;
    let replacements = rest.get(u32::from_le_bytes(*length) as usize..)?;
    replacements.split(|&byte| byte == 0).map(<[u8]>::len).max()
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth(parts: Value) -> Result<Growth, Refused> {
        serde_json::from_value::<Parts>(parts).unwrap().growth()
    }

    #[test]
    fn the_bound_of_a_sequence_is_the_product_of_its_parts() {
        // Llama 2: "▁" has three bytes and comes first once, and for every space.
        let llama = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
        let found = growth(json!({"normalizer": llama})).unwrap();
        assert_eq!(found.encoded, Length { per_byte: 3, once: 9 });
        // A pattern may match between any two bytes.
        let pattern = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"});
        assert_eq!(of_replace(&pattern), Length { per_byte: 3, once: 2 });
        // Two bytes become three: at most two for each.
        let pattern = json!({"type": "Replace", "pattern": {"String": "ab"}, "content": "abc"});
        assert_eq!(of_replace(&pattern), Length { per_byte: 2, once: 0 });
    }

    #[test]
    fn parts_that_expand_are_refused_by_name() {
        let long = "a".repeat(100);
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": long});
        let bomb = json!([replace, replace, replace]);
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let template = |single: Value| {
            let ids: Vec<u32> = vec![0; 600];
            let tokens: Vec<&str> = vec!["<s>"; 600];
            json!({"type": "TemplateProcessing", "single": single, "pair": [],
                   "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": tokens}}})
        };
        let special = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        for (parts, words) in [
            (
                json!({"normalizer": {"type": "Sequence", "normalizers": bomb}}),
                "its normalizer may make 1000000 bytes",
            ),
            (
                json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": vec![byte_level; 13]}}),
                "its pre-tokenizer may make 8192 bytes",
            ),
            (
                json!({"decoder": {"type": "Sequence", "decoders": bomb}}),
                "its decoder may make 1000000 bytes",
            ),
            (json!({"post_processor": template(json!([text, text]))}), "writes the text 2 times"),
            (
                json!({"post_processor": template(json!([special, special, text]))}),
                "adds 1200 tokens of 3600 bytes",
            ),
            (json!({"model": {"unk_token": "u".repeat(300)}}), "the unk_token of its model has 300 bytes"),
        ] {
            let refused = growth(parts).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        assert!(growth(json!({"post_processor": template(json!([special, text]))})).is_ok());
    }

    #[test]
    fn texts_and_ids_are_refused_by_what_they_may_become() {
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)});
        let found = growth(json!({"normalizer": replace, "decoder": replace})).unwrap();
        // 64 MiB and 16 bytes for each byte are reached at 64 MiB / (1000 - 16) = 68200 bytes.
        assert!(found.check_text(68_000).is_ok());
        assert!(found.check_text(69_000).unwrap_err().contains("65 MiB of a text of 69000 bytes"));
        // 256 MiB are reached at 268435 bytes of tokens.
        assert!(found.check_ids(1000, 268, || unreachable!()).is_ok());
        assert!(found.check_ids(1000, 300, || 200_000).is_ok());
        assert!(found.check_ids(1000, 300, || 290_000).unwrap_err().contains("276 MiB of 1000 tokens"));
        // Without a normalizer no text is too long.
        assert!(growth(json!({})).unwrap().check_text(usize::MAX >> 8).is_ok());
    }

    #[test]
    fn the_longest_replacement_of_a_map_is_found() {
        // A trie of four bytes, then "ab" and "cde".
        let map = "BAAAAAAAAABhYgBjZGUA";
        assert_eq!(base64(map).unwrap(), b"\x04\0\0\0\0\0\0\0ab\0cde\0");
        assert_eq!(longest_replacement(map), Some(3));
        assert_eq!(longest_replacement("/////w=="), None);
    }
}
