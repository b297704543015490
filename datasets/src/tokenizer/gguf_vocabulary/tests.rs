//! Tokenizers there and back, and what is refused in both directions.

use std::fs;
use std::path::Path;

use gguf::{Metadata, NumberType, Value};
use serde_json::{Value as Json, json};

use super::keys::*;
use super::pre_tokenizer::PreTokenizer;
use super::*;
use crate::Tokenizer;
use crate::conversation::Message;
use crate::tokenizer::tests::{small, stories};

const TEXTS: [&str; 14] = [
    "",
    "a",
    " ",
    "   three   spaces ",
    "What is 12345 plus 7? It's 12352.",
    "\n\n\tTabs\r\nand lines\n",
    "请问 3 加一等于几? 答案是 4。",
    "naïve café — e\u{301} ﬁ Ⅻ ½ ٣",
    "👩‍👩‍👧‍👦 🇩🇪 \u{200b}\u{feff}",
    "<|im_start|>user\nhi<|im_end|>\n<s>x</s> y<unk>",
    "▁▁ mark ▁",
    "<0x41> [PAD3] <|eos|>",
    "ALL CAPS don't WE'LL I'D",
    "\u{0}\u{7f}\u{10ffff}",
];

fn describe(tokenizer: &Tokenizer, vocab_size: usize) -> Result<(Metadata, Vec<String>), crate::Error> {
    let mut metadata = Metadata::new(Path::new("x.gguf"));
    let options = GgufOptions { vocab_size, stop_ids: tokenizer.stop_ids() };
    let notes = tokenizer.describe_gguf(&options, &mut metadata)?;
    Ok((metadata, notes))
}

fn read(metadata: &Metadata, vocab_size: usize) -> Result<Tokenizer, crate::Error> {
    let folder = tempfile::tempdir().unwrap();
    GgufTokenizer::read(metadata, vocab_size)?.save(folder.path())?;
    Tokenizer::from_folder(folder.path())
}

/// Checks that a tokenizer comes back with the same ids, ends and conversations.
fn comes_back(tokenizer: &Tokenizer, vocab_size: usize) -> Metadata {
    let (metadata, _) = describe(tokenizer, vocab_size).unwrap();
    let again = read(&metadata, vocab_size).unwrap();
    for text in TEXTS {
        for special in [false, true] {
            let ids = tokenizer.encode(text, special).unwrap();
            assert_eq!(again.encode(text, special).unwrap(), ids, "{text:?} {special}");
            assert_eq!(again.decode(&ids, special).unwrap(), tokenizer.decode(&ids, special).unwrap());
        }
    }
    let ends = |tokenizer: &Tokenizer| {
        (tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id(), tokenizer.stop_ids().to_vec())
    };
    assert_eq!(ends(&again), ends(tokenizer));
    assert_eq!(again.vocab_size(), tokenizer.vocab_size());
    let source =
        |tokenizer: &Tokenizer| tokenizer.chat_template().map(|template| template.source().to_owned());
    assert_eq!(source(&again), source(tokenizer));
    metadata
}

/// The files of `small` with parts of `tokenizer.json` replaced.
fn changed(change: impl FnOnce(&mut Json)) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    small().save(folder.path()).unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(&path, json.to_string()).unwrap();
    Tokenizer::from_folder(folder.path()).unwrap()
}

#[test]
fn a_tokenizer_of_this_program_comes_back() {
    let tokenizer = small();
    let metadata = comes_back(&tokenizer, tokenizer.vocab_size() + 4);
    assert_eq!(metadata.text(MODEL).unwrap(), "gpt2");
    assert_eq!(metadata.text(PRE).unwrap(), "smollm");
    let tokens = metadata.texts(TOKENS).unwrap();
    assert_eq!((tokens.len(), tokens[300].as_str()), (304, "[PAD300]"));
    let types = metadata.optional_integers(TOKEN_TYPES).unwrap().unwrap();
    assert_eq!((types[..6].to_vec(), types[300]), (vec![3, 3, 3, 3, 3, 1], 5));
    // <|eos|> is 1, and <|im_end|>, which ends a turn, is 4.
    assert_eq!(metadata.integer("tokenizer.ggml.eos_token_id").unwrap(), 1);
    assert_eq!(metadata.integer("tokenizer.ggml.eot_token_id").unwrap(), 4);
}

/// Texts begin with BOS and conversations do not: llama.cpp has one flag for both, which follows the
/// conversation, and the import knows about the texts.
#[test]
fn a_conversation_decides_whether_bos_is_added() {
    let mut tokenizer = small();
    let (metadata, notes) = describe(&tokenizer, 300).unwrap();
    assert_eq!(metadata.optional_bool(ADD_BOS).unwrap(), Some(false));
    assert_eq!(metadata.optional_bool(TEXTS_HAVE_BOS).unwrap(), Some(true));
    assert!(notes.iter().any(|note| note.contains("do not begin with BOS")), "{notes:?}");

    let source = tokenizer.chat_template().unwrap().source().to_owned();
    tokenizer.set_chat_template(format!("{{{{ bos_token }}}}{source}")).unwrap();
    let (metadata, notes) = describe(&tokenizer, 300).unwrap();
    assert_eq!(metadata.optional_bool(ADD_BOS).unwrap(), Some(true));
    assert!(metadata.get(TEXTS_HAVE_BOS).is_none() && notes.is_empty(), "{notes:?}");
    comes_back(&tokenizer, 300);
}

#[test]
fn every_known_pre_tokenizer_comes_back() {
    for (name, normalizer) in [
        ("gpt-2", Json::Null),
        ("smollm", Json::Null),
        ("qwen2", json!({"type": "NFC"})),
        ("llama-bpe", Json::Null),
        ("smaug-bpe", Json::Null),
    ] {
        let pre = PreTokenizer::by_name(name).unwrap();
        let tokenizer = changed(|json| {
            json["pre_tokenizer"] = pre.part();
            json["normalizer"] = normalizer;
            json["model"]["ignore_merges"] = json!(pre.ignore_merges);
        });
        let metadata = comes_back(&tokenizer, 300);
        assert_eq!(metadata.text(PRE).unwrap(), name);
    }
}

#[test]
fn tokens_with_scores_come_back() {
    let Some(folder) = stories() else { return };
    let mut tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let metadata = comes_back(&tokenizer, 512);
    assert_eq!(metadata.text(MODEL).unwrap(), "llama");
    assert_eq!(metadata.optional_bool(ADD_SPACE).unwrap(), Some(true));
    assert_eq!(metadata.optional_bool(ADD_BOS).unwrap(), Some(true));
    let types = metadata.optional_integers(TOKEN_TYPES).unwrap().unwrap();
    assert_eq!(types[..4], [2, 3, 3, 6]);
    // With two more tokens and a template without BOS.
    tokenizer.add_turn_tokens();
    tokenizer.set_built_in_template("chatml").unwrap();
    let metadata = comes_back(&tokenizer, 514);
    assert_eq!(metadata.optional_bool(ADD_BOS).unwrap(), Some(false));
    let again = read(&metadata, 514).unwrap();
    let talk = [Message::user("once"), Message::assistant("upon"), Message::user(" a time")];
    assert_eq!(again.encode_prompt(&talk).unwrap(), tokenizer.encode_prompt(&talk).unwrap());
}

/// Repeated letters can be split everywhere: 94 chains of 512 tokens have 12 million merges.
#[test]
fn a_vocabulary_with_endless_merges_is_refused() {
    let chains =
        ('!'..='~').flat_map(|letter| (1..=512).map(move |length| letter.to_string().repeat(length)));
    let tokens: Vec<String> = chains.collect();
    let ids = tokens.iter().cloned().zip(0..).collect();
    let error = scores::to_merges(&tokens, &vec![0.0; tokens.len()], &ids).unwrap_err();
    assert!(error.contains("so many splits"), "{error}");

    // The text of an id without a token is made by nothing.
    let tokens = ["[PA", "D7]", "[PAD7]"].map(str::to_owned);
    let ids = tokens[..2].iter().cloned().zip(0..).collect();
    assert!(scores::to_merges(&tokens, &[0.0; 3], &ids).unwrap().is_empty());
}

/// ab is made first, then abc, which is ab and c or a and bc; bc itself comes last.
#[test]
fn scores_by_hand() {
    let tokens: Vec<String> = ["a", "b", "c", "abc", "ab", "bc"].map(str::to_owned).to_vec();
    let ids = tokens.iter().cloned().zip(0..).collect();
    let merges = [["a", "b"], ["a", "bc"], ["ab", "c"], ["b", "c"]].map(|pair| pair.map(str::to_owned));
    let made = scores::of_merges(&merges, &ids, 6).unwrap();
    assert_eq!(made, [0.0, 0.0, 0.0, -1.0, 0.0, -2.0]);
    let wide: Vec<f64> = made.iter().map(|&score| f64::from(score)).collect();
    assert_eq!(scores::to_merges(&tokens, &wide, &ids).unwrap(), merges);

    let error = scores::of_merges(&merges[..3], &ids, 6).unwrap_err();
    assert_eq!(error, "\"b\" and \"c\" make the token \"bc\" and are no merge");
    let apart = [&merges[1], &merges[0], &merges[2], &merges[3]].map(Clone::clone);
    let error = scores::of_merges(&apart, &ids, 6).unwrap_err();
    assert_eq!(error, "the merges that make \"abc\" do not follow one another");
}

#[test]
fn what_llama_cpp_computes_otherwise_is_refused_by_name() {
    let refusal = |change: fn(&mut Json)| describe(&changed(change), 300).unwrap_err().to_string();
    for (error, words) in [
        (
            refusal(|json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true)),
            "in pre_tokenizer cannot be written as GGUF: llama.cpp has a name",
        ),
        (refusal(|json| json["normalizer"] = json!({"type": "Lowercase"})), "in normalizer"),
        (refusal(|json| json["model"]["ignore_merges"] = json!(true)), "with ignore_merges = true"),
        (refusal(|json| json["added_tokens"][3]["rstrip"] = json!(true)), "rstrip of \"<|im_start|>\""),
        (refusal(|json| json["model"]["byte_fallback"] = json!(true)), "in normalizer and pre_tokenizer"),
        (
            refusal(|json| {
                json["post_processor"]["single"].as_array_mut().unwrap().reverse();
            }),
            "in post_processor",
        ),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let small = small();
    let error = describe(&small, 299).unwrap_err().to_string();
    assert!(error.contains("beyond the 299 embeddings"), "{error}");

    let mut metadata = Metadata::new(Path::new("x.gguf"));
    let options = GgufOptions { vocab_size: 300, stop_ids: &[1, 4, 7, 8, 9] };
    let error = small.describe_gguf(&options, &mut metadata).unwrap_err().to_string();
    assert!(error.contains("beside three others") && error.contains("generation_config.json"), "{error}");
}

#[test]
fn a_pre_tokenizer_without_a_name_here_is_refused_when_it_is_read() {
    let (mut metadata, _) = describe(&small(), 300).unwrap();
    metadata.set(PRE, Value::text("tekken"));
    let error = read(&metadata, 300).unwrap_err().to_string();
    assert!(error.contains("\"tekken\"") && error.contains("gpt-2, smollm, qwen2"), "{error}");
    metadata.set(MODEL, Value::text("bert"));
    let error = read(&metadata, 300).unwrap_err().to_string();
    assert!(error.contains("`tokenizer.ggml.model` = \"bert\" is not supported"), "{error}");
}

#[test]
fn hostile_metadata_are_refused_by_their_key() {
    let (good, _) = describe(&small(), 300).unwrap();
    let texts = |count: usize| Value::Texts((0..count).map(|index| index.to_string()).collect());
    let twice = Value::Texts(vec!["same".to_owned(); 300]);
    for (key, value) in [
        (TOKENS, texts(299)),
        (TOKENS, twice),
        (TOKENS, Value::u32(3)),
        (TOKEN_TYPES, Value::i32s(&[1; 299])),
        (TOKEN_TYPES, Value::f32s(&[1.0; 300])),
        (MERGES, texts(3)),
        (MERGES, Value::Texts(vec!["zz zz".to_owned()])),
        (MERGES, Value::Texts(vec![String::new()])),
        ("tokenizer.ggml.eos_token_id", Value::u32(300)),
        ("tokenizer.ggml.bos_token_id", Value::Number(NumberType::I64, (-1i64).to_le_bytes().to_vec())),
        ("tokenizer.ggml.eot_token_id", Value::text("<|im_end|>")),
        (TEMPLATE, Value::u32(1)),
    ] {
        let mut metadata = good.clone();
        metadata.set(key, value);
        let error = read(&metadata, 300).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("x.gguf"), "{key}: {error}");
    }
    // A template that does not compile is an error only when it is used, as in a folder.
    let mut metadata = good;
    metadata.set(TEMPLATE, Value::text("{% for"));
    assert!(read(&metadata, 300).unwrap().encode_prompt(&[Message::user("a")]).is_err());
}
