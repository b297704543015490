//! `kind = "language"`: the reply is written in a language.
//!
//! The language is told by the script, and where several languages share one, by frequent words, endings and
//! letters ([`eval::ifeval`], `language:response_language`), for the 30 languages that an instruction of
//! `IFEval` may ask for, and for Chinese. Chinese is a text whose letters are more than half Chinese
//! characters, without kana. Code and formulas count by their letters.
//!
//! `IFEval` lets a reply pass whose language cannot be told. A policy would learn to write digits, so here
//! such a reply has the score 0: it passes as any language, and what passes as two languages is written in
//! neither.

use eval::ifeval::Prompt;
use serde_json::json;

use crate::entry::LanguageConfig;
use crate::error::Wrong;
use crate::extract::too_slow;
use crate::score::{Reply, ScoreError};

/// How many characters are looked at, as in `IFEval`.
const LOOKED_AT: usize = 10_000;

/// Tells whether a text is in a language.
pub(crate) enum Language {
    Chinese,
    /// Whether it is in the language, and whether it is in another one.
    Other {
        own: Prompt,
        other: Prompt,
    },
}

impl Language {
    pub(crate) fn new(config: &LanguageConfig) -> Result<Self, Wrong> {
        if config.language == "zh" {
            return Ok(Self::Chinese);
        }
        let instruction = |code: &str| {
            let ids = json!(["language:response_language"]);
            Prompt::parse("language", &ids, &json!([{"language": code}])).map_err(|_| {
                let problem = format!("is {:?}, which is not known", config.language);
                Wrong::new(
                    "language",
                    problem,
                    "give zh, or the code of a language of IFEval, such as en, de or ja",
                )
            })
        };
        let other = if config.language == "en" { "ru" } else { "en" };
        Ok(Self::Other { own: instruction(&config.language)?, other: instruction(other)? })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let follows = |prompt: &Prompt| {
            let followed = prompt.strict(reply.text).map_err(|error| too_slow(&error))?;
            Ok(followed == [true])
        };
        let is_written = match self {
            Self::Chinese => is_chinese(reply.text),
            Self::Other { own, other } => follows(own)? && !follows(other)?,
        };
        Ok(f64::from(is_written))
    }
}

/// Whether more than half of the letters are Chinese characters, and none is Japanese.
fn is_chinese(text: &str) -> bool {
    let (mut letters, mut chinese) = (0_usize, 0_usize);
    for c in text.chars().take(LOOKED_AT).filter(|c| c.is_alphabetic()) {
        match c {
            '\u{3040}'..='\u{30ff}' => return false,
            '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}' => chinese += 1,
            _ => {}
        }
        letters += 1;
    }
    2 * chinese > letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn score(language: &str, text: &str) -> f64 {
        let reply = Reply { prompt: &[], text, answer: None, tokens: 0, stopped: true };
        Language::new(&LanguageConfig { language: language.to_owned() }).unwrap().score(&reply).unwrap()
    }

    #[test]
    fn a_text_is_in_one_language() {
        let texts = [
            ("en", "The answer is 42, because the sum of both numbers is known."),
            ("de", "Die Antwort ist 42, weil die Summe der beiden Zahlen bekannt ist."),
            ("fr", "La réponse est 42, parce que la somme des deux nombres est connue."),
            ("ru", "Ответ 42, потому что сумма обоих чисел известна."),
            ("ja", "答えは42です。合計が分かっているからです。"),
            ("ko", "두 수의 합을 알고 있으므로 답은 42입니다."),
            ("zh", "答案是42，因为两个数的和是已知的。"),
        ];
        for (language, _) in texts {
            for (written, text) in texts {
                assert_eq!(score(language, text), f64::from(language == written), "{language}: {text}");
            }
        }
    }

    #[test]
    fn a_text_without_a_language_is_in_none() {
        for language in ["en", "de", "zh", "ja", "ru"] {
            for text in ["", " \u{3000}\n", "42", "-1,000.5", "!?…", "\u{0}\u{200b}"] {
                assert_eq!(score(language, text), 0.0, "{language}: {text:?}");
            }
        }
        // Half of the letters are Latin.
        assert_eq!((score("zh", "答案ab"), score("zh", "答案是a")), (0.0, 1.0));
    }

    #[test]
    fn unknown_languages_are_refused() {
        for language in ["", "xx", "English", "zh-cn"] {
            let config = LanguageConfig { language: language.to_owned() };
            assert_eq!(Language::new(&config).err().unwrap().key, "language", "{language}");
        }
    }

    #[test]
    fn odd_texts_have_a_score() {
        for text in hostile_texts() {
            for language in ["en", "zh", "hi"] {
                let score = score(language, &text);
                assert!(score == 0.0 || score == 1.0, "{text:?}");
            }
        }
    }
}
