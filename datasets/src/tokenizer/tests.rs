//! Tokenizers: training, saving, loading, special tokens.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::train::TrainOptions;
use super::*;
use crate::conversation::Message;

/// A small bilingual tokenizer, always the same.
pub(crate) fn small() -> Tokenizer {
    let texts = (0..200).map(|number| {
        format!(
            "What is {number} plus {}? The answer is {}. 请问 {number} 加一等于几? 答案是 {}。",
            number + 1,
            2 * number + 1,
            number + 1
        )
    });
    Tokenizer::train(texts, &TrainOptions { vocab_size: 300, ..TrainOptions::default() }).unwrap()
}

/// [`small`] with more special tokens.
pub(crate) fn with_special(tokens: &[&str]) -> Tokenizer {
    let mut tokenizer = small();
    let added: Vec<_> = tokens.iter().map(|&token| tokenizers::AddedToken::from(token, true)).collect();
    tokenizer.inner.add_special_tokens(added).unwrap();
    tokenizer.vocab_size = tokenizer.inner.get_vocab_size(true);
    tokenizer
}

/// The folder of the small public model, or `None` with a line that says so.
pub(crate) fn stories() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/models/stories260k"));
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is not there", folder.display());
    None
}

pub(crate) fn golden() -> Json {
    serde_json::from_str(include_str!("../../tests/golden/encode.json")).unwrap()
}

pub(crate) fn list(value: &Json) -> Vec<i64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn ids_and_texts_are_those_of_transformers() {
    let Some(folder) = stories() else { return };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()), (Some(1), Some(2), None));
    assert_eq!(tokenizer.vocab_size(), 512);
    for case in golden()["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(ids, list(&case["plain"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), case["decoded"].as_str().unwrap(), "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), case["decoded_skip"].as_str().unwrap(), "{text:?}");
        let special = tokenizer.encode(text, true).unwrap();
        // transformers doubles the BOS of a text that brings its own; this project never does.
        let mut wanted = list(&case["special"]);
        if wanted.starts_with(&[1, 1]) {
            wanted.remove(0);
        }
        assert_eq!(special, wanted, "{text:?}");
        check_stream(&tokenizer, &ids);
    }
}

/// Pieces of text that come one by one are together the text of all ids.
fn check_stream(tokenizer: &Tokenizer, ids: &[i64]) {
    for skip in [false, true] {
        let mut stream = tokenizer.stream_decoder(skip);
        let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert!(!text.ends_with('\u{fffd}'));
        text.push_str(&stream.finish().unwrap());
        let whole = tokenizer.decode(ids, skip).unwrap();
        assert_eq!(text, whole, "{ids:?}");

        // After any of the ids, the others add the rest of the text, with the space between.
        for cut in 0..ids.len() {
            let before = tokenizer.decode(&ids[..cut], skip).unwrap();
            let Some(rest) = whole.strip_prefix(&before).filter(|_| !before.ends_with('\u{fffd}')) else {
                continue;
            };
            let mut stream = tokenizer.stream_decoder_after(&ids[..cut], skip).unwrap();
            let mut text: String = ids[cut..].iter().map(|&id| stream.push(id).unwrap()).collect();
            text.push_str(&stream.finish().unwrap());
            assert_eq!(text, rest, "{ids:?} after {cut}");
        }
    }
}

#[test]
fn equal_texts_train_equal_tokenizers() {
    let files = |tokenizer: &Tokenizer| {
        let folder = tempfile::tempdir().unwrap();
        tokenizer.save(folder.path()).unwrap();
        std::fs::read(folder.path().join("tokenizer.json")).unwrap()
    };
    assert_eq!(files(&small()), files(&small()));
}

#[test]
fn any_language_survives_and_digits_stand_alone() {
    let tokenizer = small();
    assert_eq!(tokenizer.vocab_size(), 300);
    for text in ["12345 plus 6", "春眠不觉晓,处处闻啼鸟。", "naïve 😀\n\n\tx  y", "\u{1}\u{7f}"]
    {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
        check_stream(&tokenizer, &ids);
    }
    let ids = tokenizer.encode("12345", false).unwrap();
    assert_eq!(ids.len(), 5);
    // Merges happened: far fewer ids than bytes.
    assert!(tokenizer.encode("The answer is", false).unwrap().len() < 6);
    let small = TrainOptions { vocab_size: 100, ..TrainOptions::default() };
    let error = Tokenizer::train(std::iter::empty(), &small).unwrap_err();
    assert!(matches!(error, Error::VocabularyTooSmall { got: 100, least: 261 }));
}

#[test]
fn incomplete_characters_are_held_back() {
    let tokenizer = small();
    let ids = tokenizer.encode("😀", false).unwrap();
    assert_eq!(ids.len(), 4);
    let mut stream = tokenizer.stream_decoder(true);
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces, ["", "", "", "😀"]);
    let mut stream = tokenizer.stream_decoder(true);
    assert_eq!(stream.push(ids[0]).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    // Special tokens in between leave no trace and do no harm.
    let mut ids = tokenizer.encode("a b", false).unwrap();
    ids.insert(1, tokenizer.eos_id().unwrap());
    check_stream(&tokenizer, &ids);
}

#[test]
fn bytes_that_are_no_text_wait_for_a_while_only() {
    let byte_level = small();
    let lead = byte_level.encode("😀", false).unwrap()[0];
    let plain = byte_level.encode("a", false).unwrap()[0];
    let mut stream = byte_level.stream_decoder(true);
    let pieces: Vec<String> =
        [&[lead; 40][..], &[plain]].concat().iter().map(|&id| stream.push(id).unwrap()).collect();
    let longest = pieces.iter().map(|piece| piece.chars().count()).max().unwrap();
    assert!(longest <= 16, "{pieces:?}");
    assert_eq!(pieces.concat(), "\u{fffd}".repeat(40) + "a");

    // A vocabulary with byte fallback decodes a run of bytes as a whole, so a wrong one changes what was
    // shown.
    let Some(folder) = stories() else { return };
    let fallback = Tokenizer::from_folder(&folder).unwrap();
    let text = fallback.encode("春 a", false).unwrap();
    let wrong = fallback.token_to_id("<0xFF>").unwrap();
    let mut stream = fallback.stream_decoder(true);
    let ids = [&text[..text.len() - 1], &[wrong; 30], &text[text.len() - 1..]].concat();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    let longest = pieces.iter().map(|piece| piece.chars().count()).max().unwrap();
    assert!(
        longest <= 19 && pieces.concat().starts_with("春") && pieces.concat().ends_with('a'),
        "{pieces:?}"
    );
}

#[test]
fn a_part_of_a_character_has_its_bytes() {
    let bytes = |tokenizer: &Tokenizer, text: &str| -> Vec<Vec<u8>> {
        let ids = tokenizer.encode(text, false).unwrap();
        ids.iter().map(|&id| tokenizer.token_bytes(id, &tokenizer.token_text(id).unwrap())).collect()
    };
    let text = "one 😀春 é\u{ad}\u{fffd}\n";
    let byte_level = small();
    assert_eq!(bytes(&byte_level, text).concat(), text.as_bytes());
    assert_eq!(bytes(&byte_level, "😀"), [[0xF0], [0x9F], [0x98], [0x80]]);

    let Some(folder) = stories() else { return };
    let fallback = Tokenizer::from_folder(&folder).unwrap();
    // This tokenizer begins a text with a space.
    assert_eq!(bytes(&fallback, text).concat(), format!(" {text}").as_bytes());
    assert!(bytes(&fallback, "春").ends_with(&[vec![0xE6], vec![0x98], vec![0xA5]]));
}

#[test]
fn bos_and_eos_are_never_doubled() {
    let mut tokenizer = small();
    let bos = tokenizer.bos_id().unwrap();
    let eos = tokenizer.eos_id().unwrap();
    let plain = tokenizer.encode("hi", false).unwrap();
    let with = |head: &[i64], tail: &[i64]| [head, &plain, tail].concat();
    assert_eq!(tokenizer.encode("hi", true).unwrap(), with(&[bos], &[]));
    assert_eq!(tokenizer.encode("<|bos|>hi", true).unwrap(), with(&[bos], &[]));
    tokenizer.config.insert("add_eos_token".to_owned(), Json::from(true));
    assert_eq!(tokenizer.encode("<|bos|>hi<|eos|>", true).unwrap(), with(&[bos], &[eos]));
    assert_eq!(tokenizer.encode("hi", true).unwrap(), with(&[bos], &[eos]));
    tokenizer.config.insert("add_bos_token".to_owned(), Json::from(false));
    assert_eq!(tokenizer.encode("hi", true).unwrap(), with(&[], &[eos]));
    assert_eq!(tokenizer.encode("<|bos|>hi", true).unwrap(), with(&[bos], &[eos]));
}

#[test]
fn a_saved_tokenizer_reads_back_the_same() {
    let mut tokenizer = small();
    tokenizer.set_chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}").unwrap();
    let folder = tempfile::tempdir().unwrap();
    tokenizer.save(folder.path()).unwrap();
    let again = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!(again.special, tokenizer.special);
    assert_eq!(again.stop_ids(), tokenizer.stop_ids());
    assert_eq!(again.chat_template().unwrap().source(), tokenizer.chat_template().unwrap().source());
    let text = "What is 12 plus 7? 答案是<|im_end|>";
    assert_eq!(again.encode(text, true).unwrap(), tokenizer.encode(text, true).unwrap());
}

#[test]
fn stop_ids_hold_the_end_of_turn_and_what_the_folder_names() {
    let tokenizer = small();
    let end_of_turn = tokenizer.token_to_id("<|im_end|>");
    assert_eq!(tokenizer.end_of_turn_id(), end_of_turn);
    assert_eq!(tokenizer.stop_ids(), [tokenizer.eos_id().unwrap(), end_of_turn.unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    tokenizer.save(folder.path()).unwrap();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [7, 1]}"#).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!(tokenizer.stop_ids(), [1, 4, 7]);
}

#[test]
fn missing_files_and_wrong_ids_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err();
    assert!(matches!(error, Error::TokenizerMissing { .. }));
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json: not a usable tokenizer file"), "{error}");
    let tokenizer = small();
    let error = tokenizer.decode(&[3, 300], true).unwrap_err().to_string();
    assert!(error.contains("token id 300 is outside the vocabulary of 300 ids"), "{error}");
    assert!(tokenizer.decode(&[-1], true).is_err());
}

#[test]
fn a_folder_without_template_says_what_to_do() {
    let mut tokenizer = small();
    tokenizer.template = None;
    let error = tokenizer.encode_prompt(&[Message::user("a")]).unwrap_err().to_string();
    assert!(error.contains("chatml, plain"), "{error}");
    assert!(tokenizer.set_built_in_template("llama").is_err());
    tokenizer.set_built_in_template("plain").unwrap();
    assert_eq!(
        tokenizer
            .render(&[Message::user("a"), Message::assistant("b"), Message::user("c")], true)
            .unwrap()
            .text,
        "<|bos|>User: a\n\nAssistant: b<|eos|>\n\nUser: c\n\nAssistant:"
    );
    assert_eq!(tokenizer.end_of_turn_id(), tokenizer.eos_id());
}

#[test]
fn a_template_that_cannot_be_used_matters_only_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    small().save(folder.path()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), "{% for x in %}").unwrap();
    let mut tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    let error = tokenizer.encode_prompt(&[Message::user("a")]).unwrap_err();
    assert!(matches!(error, Error::TemplateSyntax { .. }), "{error}");
    // It is kept as it is, and another one may take its place.
    let copy = tempfile::tempdir().unwrap();
    tokenizer.save(copy.path()).unwrap();
    assert_eq!(std::fs::read_to_string(copy.path().join("chat_template.jinja")).unwrap(), "{% for x in %}");
    tokenizer.set_built_in_template("chatml").unwrap();
    tokenizer.encode_prompt(&[Message::user("a")]).unwrap();
}

#[test]
fn special_text_in_the_words_of_a_user_is_found() {
    let tokenizer = small();
    assert_eq!(tokenizer.special_text_in("x <|im_end|> y").as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.special_text_in("<im_end>"), None);
}

#[test]
fn public_tokenizers_give_their_recorded_ids() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tok"));
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let unpacked = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let file = std::fs::File::open(folder.join(format!("minimind_{name}.gz"))).unwrap();
        let mut out = std::fs::File::create(unpacked.path().join(name)).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(file), &mut out).unwrap();
    }
    let tokenizer = Tokenizer::from_folder(unpacked.path()).unwrap();
    let end = tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.end_of_turn_id(), Some(end));
    let encoded = tokenizer
        .encode_conversation(&[
            Message::user("你好"),
            Message::assistant("Hello 你好!"),
            Message::user("x"),
            Message::assistant("y"),
        ])
        .unwrap();
    let spoken: Vec<i64> = encoded.labels().into_iter().filter(|&label| label >= 0).collect();
    let text = tokenizer.decode(&spoken, false).unwrap();
    assert!(text.ends_with("y<|im_end|>") && text.contains("Hello 你好!<|im_end|>"), "{text}");
}
