//! Spoilt replies: low-quality demonstrations, and the rejected side of preference pairs.
//!
//! | flaw | reply to "what is 37 + 45?" | share of spoilt demonstrations | share of pairs |
//! |---|---|---|---|
//! | evasive | i am not sure, ask someone else. | 30 % | 20 % |
//! | wordy | well, i think it is 82. | 35 % | 20 % |
//! | wrong form | 82!!, answer=82, "82", 82 82, eighty two | 35 % | 20 % |
//! | wrong content | 83, 92, 72, 28 | 0 % | 40 % |
//!
//! Demonstrations are never wrong in content: the SFT policy should be clumsy, not wrong. A reward model that
//! uses only the form of a reply gets half of the pairs with wrong content right, so its accuracy is at most
//! 60 % + 40 % / 2 = 80 %.

use serde::{Deserialize, Serialize};

use super::conversion::Conversion;
use super::dice::SynthRng;
use super::question::Question;
use super::split::{Side, side};
use super::task::Language;

/// The flaw of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Corruption {
    /// The reply does not answer the question.
    Evasive,
    /// The reply has the right answer within a sentence.
    Wordy,
    /// The reply has the right answer in an unwanted form: with marks around it, twice, or in words.
    WrongForm,
    /// The reply has the right form and a wrong answer close to the right one.
    WrongContent,
}

/// Percentages of flaws among spoilt demonstrations.
pub const DEMONSTRATION_FLAWS: [(Corruption, u32); 3] =
    [(Corruption::Evasive, 30), (Corruption::Wordy, 35), (Corruption::WrongForm, 35)];

/// Percentages of flaws among the rejected sides of pairs.
pub const PAIR_FLAWS: [(Corruption, u32); 4] = [
    (Corruption::Evasive, 20),
    (Corruption::Wordy, 20),
    (Corruption::WrongForm, 20),
    (Corruption::WrongContent, 40),
];

const EVASIVE: [[&str; 3]; 2] = [
    ["i am not sure, ask someone else.", "i do not know that.", "that is hard to say."],
    ["这个我不太清楚。", "我不知道，问别人吧。", "这个不好说。"],
];

const WORDY: [[&str; 4]; 2] = [
    [
        "well, i think it is {=}.",
        "the answer is {=}, hope it helps!",
        "let me see, it is {=}.",
        "the answer you want is {=}.",
    ],
    ["我想答案是{=}。", "我看答案就是{=}吧。", "我看看，是{=}吧。", "你要的答案是{=}。"],
];

const WRONG_FORM: [[&str; 4]; 2] =
    [["{=}!!", "answer={=}", "\"{=}\"", "{=} {=}"], ["{=}！！", "答案={=}", "“{=}”", "{=} {=}"]];

/// Writes a reply to `question` with the given flaw. With `heldout_share` of the problems held out, no reply
/// reveals the answer to a held-out problem.
pub(super) fn corrupt(
    question: &Question,
    flaw: Corruption,
    heldout_share: f64,
    dice: &mut SynthRng,
) -> String {
    let row = usize::from(question.language == Language::Chinese);
    let template = match flaw {
        Corruption::Evasive => *dice.pick(&EVASIVE[row]),
        Corruption::Wordy => *dice.pick(&WORDY[row]),
        Corruption::WrongForm => {
            let other = other_form(question, heldout_share).filter(|_| dice.chance(0.3));
            return other.unwrap_or_else(|| dice.pick(&WRONG_FORM[row]).replace("{=}", &question.answer));
        }
        Corruption::WrongContent => return question.problem.task().near_miss(question.language, dice),
    };
    template.replace("{=}", &question.answer)
}

/// The answer in another form, such as words for digits; `None` if that would reveal the answer to a held-out
/// problem.
fn other_form(question: &Question, heldout_share: f64) -> Option<String> {
    let reveals = question.answer.parse().is_ok_and(|number| {
        20 <= number && side(&Conversion::words_key(number), heldout_share) == Side::HeldOut
    });
    if reveals { None } else { question.problem.task().other_form(question.language) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::question::{KINDS, QuestionPlan, verify};

    #[test]
    fn shares_are_percentages() {
        assert_eq!(DEMONSTRATION_FLAWS.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
        assert_eq!(PAIR_FLAWS.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
    }

    #[test]
    fn no_spoilt_reply_is_right() {
        let mut dice = SynthRng::new(11, 0);
        for (kind, _) in KINDS {
            for round in 0..400 {
                let language = if round % 2 == 0 { Language::English } else { Language::Chinese };
                let question = QuestionPlan::draw(kind, round % 5 == 0, &mut dice).ask(language, &mut dice);
                for (flaw, _) in PAIR_FLAWS {
                    let reply = corrupt(&question, flaw, 0.1, &mut dice);
                    assert!(!verify(&question.answer, &reply), "{question:?} {reply}");
                    assert!(!reply.is_empty() && !reply.contains(['{', '}']));
                    if flaw == Corruption::Wordy {
                        assert!(reply.contains(&question.answer));
                    }
                }
            }
        }
    }
}
