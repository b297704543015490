//! `kind = "world"`: the reply is the bare answer to a question of the synthetic data, as its verifier says
//! ([`datasets::synth::verify`]).

use datasets::synth::verify;

use crate::answer::given;
use crate::score::{Reply, ScoreError};

/// 1 for the bare answer of the row, 0 for anything else.
pub(crate) fn score(reply: &Reply<'_>) -> Result<f64, ScoreError> {
    Ok(f64::from(verify(given(reply.answer)?, reply.text)))
}

#[cfg(test)]
mod tests {
    use datasets::synth::{SynthData, SynthOptions};

    use super::*;

    fn of(text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        score(&Reply { prompt: &[], text, answer, tokens: 0, stopped: true })
    }

    #[test]
    fn questions_of_the_world_are_verified() {
        let options = SynthOptions {
            pretraining: 0,
            train: 0,
            preferences: 50,
            heldout_preferences: 0,
            prompts: 50,
            heldout: 0,
            ..SynthOptions::default()
        };
        let data = SynthData::generate(&options).unwrap();
        assert_eq!(data.prompts.len(), 50);
        for question in &data.prompts {
            let answer = question.answer.as_str();
            assert_eq!(of(&format!(" {answer}\n"), Some(answer)), Ok(1.0));
            assert_eq!(of(&format!("it is {answer}"), Some(answer)), Ok(0.0));
            assert_eq!(of(answer, None), Err(ScoreError::NoAnswer));
        }
        for pair in &data.preferences {
            assert_eq!(of(&pair.rejected, Some(&pair.chosen)), Ok(0.0), "{pair:?}");
        }
    }

    #[test]
    fn only_the_bare_answer_is_right() {
        for (text, expected) in
            [("-5", 1.0), ("\u{3000}-5\r\n", 1.0), ("−5", 0.0), ("5", 0.0), ("-5.", 0.0), ("", 0.0)]
        {
            assert_eq!(of(text, Some("-5")), Ok(expected), "{text:?}");
        }
        assert_eq!(of("星期一", Some("星期一")), Ok(1.0));
        assert_eq!(of("", Some("")), Err(ScoreError::NoAnswer));
    }
}
