//! Synthetic bilingual instructions with exact verifiers, for models of about a million parameters.
//!
//! Prompts are short, every question has one right answer, and the answer is the bare result. All numbers are
//! written in digits, English is lower case, and both languages have the same tasks.
//!
//! | family | tasks | English | Chinese | answer |
//! |---|---|---|---|---|
//! | arithmetic | sum, difference, product | what is 37 + 45? | 37加45是多少？ | 82 |
//! | list | reverse, sort, largest, smallest, nth, length | sort: 7 2 9 | 从小到大：7 2 9 | 2 7 9 |
//! | letter | count, first, last, spelled, backwards | how many a are in bana? | bana里有几个a？ | 2 |
//! | comparison | larger, smaller, same | which is larger, 37 or 45? | 37和45哪个大？ | 45 |
//! | conversion | centimetres, minutes, grams, words | turn 7 hours into minutes. | 7小时是多少分钟？ | 420 |
//! | date | after, before, earlier | 3 days after friday? | 星期五后3天是星期几？ | monday, 星期一 |
//!
//! Some conversations have a second turn that builds on the first answer ("then add 3.", "再加3呢？").
//!
//! Problems are held out, not wordings: see [`side`]. All problems of a conversation are on the same side of
//! the split. The corpus, demonstrations, training pairs and rollout prompts contain only training problems.
//! Demonstrations are right and bare, or spoilt as in the table in `spoil`. The same options produce the same
//! bytes on every platform. Each split has its own stream of random numbers. [`SynthData::fingerprint`]
//! identifies the data.
//!
//! [`calculator`] has a task of its own, in which a reply calls a tool.
//!
//! Everything is in memory: this module knows no files, no tokenizer and no chat template.

mod arithmetic;
pub mod calculator;
mod comparison;
mod conversion;
mod corpus;
mod date;
mod dice;
mod letter;
mod list;
#[cfg(test)]
mod oracle;
mod phrase;
mod question;
mod split;
mod spoil;
mod task;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::corpus::{LINES, RUN_SHARE};
use self::dice::SynthRng;
use self::question::{FOLLOWED_KINDS, KINDS, QuestionPlan};
pub use self::question::{Question, verify};
pub use self::split::{FNV_OFFSET, Side, fnv1a, side};
pub use self::spoil::{Corruption, DEMONSTRATION_FLAWS, PAIR_FLAWS};
pub use self::task::{FAMILIES, Language};
use crate::conversation::{Message, Role};
use crate::error::{Error, Result};

/// Number of draws for one kind of problem before another kind is tried, because a kind may have few held-out
/// problems.
const DRAWS_PER_KIND: usize = 3000;

/// Number of draws per requested question, after which the generator concludes that no more distinct
/// questions exist.
const DRAWS_PER_QUESTION: usize = 40;

/// The amount of data to generate. Sizes are rows; shares are in `0..=1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SynthOptions {
    /// The seed of all draws. The split into training and held-out problems does not depend on it.
    pub seed: u64,
    /// Rows of plain text for the base model.
    pub pretraining: usize,
    /// Number of demonstrations.
    pub train: usize,
    /// Number of preference pairs on training problems.
    pub preferences: usize,
    /// Number of preference pairs on held-out problems.
    pub heldout_preferences: usize,
    /// Number of rollout prompts, on training problems.
    pub prompts: usize,
    /// Number of evaluation questions, on held-out problems. Each prompt occurs once.
    pub heldout: usize,
    /// Share of demonstrations that are spoilt.
    pub spoilt_share: f64,
    /// Share of problems that are held out, less than 1.
    pub heldout_share: f64,
    /// Share of conversations with a second turn.
    pub two_turn_share: f64,
    /// Share of conversations and statements in Chinese.
    pub chinese_share: f64,
}

impl Default for SynthOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            pretraining: 40_000,
            train: 40_000,
            preferences: 20_000,
            heldout_preferences: 1000,
            prompts: 10_000,
            heldout: 1000,
            spoilt_share: 0.4,
            heldout_share: 0.1,
            two_turn_share: 0.1,
            chinese_share: 0.5,
        }
    }
}

/// A preference pair: the bare right answer and a spoilt reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The turns before the answer.
    pub prompt: Vec<Message>,
    /// The bare right answer.
    pub chosen: String,
    /// The spoilt reply.
    pub rejected: String,
    /// What is wrong with the spoilt reply.
    pub flaw: Corruption,
}

/// All splits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthData {
    /// Rows of plain text.
    pub pretraining: Vec<String>,
    /// Conversations that end with an assistant turn.
    pub demonstrations: Vec<Vec<Message>>,
    /// Pairs on training problems.
    pub preferences: Vec<Pair>,
    /// Pairs on held-out problems.
    pub heldout_preferences: Vec<Pair>,
    /// Questions on training problems.
    pub prompts: Vec<Question>,
    /// Questions on held-out problems, without duplicate prompts.
    pub heldout: Vec<Question>,
}

impl SynthData {
    /// Generates all splits. Returns an error if a share is out of range, or if fewer held-out prompts exist
    /// than requested.
    pub fn generate(options: &SynthOptions) -> Result<Self> {
        check(options)?;
        let source = |stream, side| RowGenerator { options, side, dice: SynthRng::new(options.seed, stream) };
        Ok(Self {
            pretraining: source(0, Side::Training).rows(options.pretraining)?,
            demonstrations: source(1, Side::Training).demonstrations(options.train)?,
            preferences: source(2, Side::Training).pairs(options.preferences)?,
            heldout_preferences: source(3, Side::HeldOut).pairs(options.heldout_preferences)?,
            prompts: source(4, Side::Training).questions(options.prompts)?,
            heldout: source(5, Side::HeldOut).unique_questions(options.heldout)?,
        })
    }

    /// The FNV-1a hash of all texts in order. Each turn is preceded by its role, and each text is followed by
    /// the byte 255.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = FNV_OFFSET;
        let mut take = |text: &str| hash = fnv1a(fnv1a(hash, text.as_bytes()), &[255]);
        self.pretraining.iter().for_each(|row| take(row));
        self.demonstrations.iter().for_each(|turns| take_turns(turns, &mut take));
        for pair in self.preferences.iter().chain(&self.heldout_preferences) {
            take_turns(&pair.prompt, &mut take);
            take(&pair.chosen);
            take(&pair.rejected);
        }
        for question in self.prompts.iter().chain(&self.heldout) {
            take_turns(&question.messages, &mut take);
            take(&question.answer);
        }
        hash
    }
}

fn take_turns(turns: &[Message], take: &mut impl FnMut(&str)) {
    for turn in turns {
        take(match turn.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        });
        take(&turn.content);
    }
}

fn check(options: &SynthOptions) -> Result<()> {
    let shares = [
        ("spoilt_share", options.spoilt_share),
        ("heldout_share", options.heldout_share),
        ("two_turn_share", options.two_turn_share),
        ("chinese_share", options.chinese_share),
    ];
    for (name, value) in shares {
        if !(0.0..=1.0).contains(&value) {
            return Err(Error::SynthShare { name, value });
        }
    }
    Ok(())
}

/// Generates rows of one side of the split.
struct RowGenerator<'a> {
    options: &'a SynthOptions,
    side: Side,
    dice: SynthRng,
}

impl RowGenerator<'_> {
    fn rows(&mut self, count: usize) -> Result<Vec<String>> {
        (0..count)
            .map(|_| {
                let lines: Result<Vec<String>> = (0..LINES).map(|_| self.line(count)).collect();
                Ok(lines?.join("\n"))
            })
            .collect()
    }

    fn line(&mut self, count: usize) -> Result<String> {
        let language = self.language();
        if self.dice.chance(RUN_SHARE) {
            return Ok(corpus::run(language, &mut self.dice));
        }
        let plot = self.plot(false).ok_or_else(|| self.exhausted(count, 0))?;
        Ok(corpus::statement(&plot.first, language, &mut self.dice))
    }

    fn demonstrations(&mut self, count: usize) -> Result<Vec<Vec<Message>>> {
        let questions = self.questions(count)?;
        Ok(questions.iter().map(|question| question.answered(self.reply(question))).collect())
    }

    /// The reply of a demonstration: the right answer, or a spoilt reply.
    fn reply(&mut self, question: &Question) -> String {
        if !self.dice.chance(self.options.spoilt_share) {
            return question.answer.clone();
        }
        let flaw = self.dice.weighted(&DEMONSTRATION_FLAWS);
        spoil::corrupt(question, flaw, self.options.heldout_share, &mut self.dice)
    }

    fn pairs(&mut self, count: usize) -> Result<Vec<Pair>> {
        let questions = self.questions(count)?;
        Ok(questions.into_iter().map(|question| self.pair(question)).collect())
    }

    fn pair(&mut self, question: Question) -> Pair {
        let flaw = self.dice.weighted(&PAIR_FLAWS);
        let rejected = spoil::corrupt(&question, flaw, self.options.heldout_share, &mut self.dice);
        Pair { prompt: question.messages, chosen: question.answer, rejected, flaw }
    }

    fn questions(&mut self, count: usize) -> Result<Vec<Question>> {
        (0..count).map(|got| self.question().ok_or_else(|| self.exhausted(count, got))).collect()
    }

    fn unique_questions(&mut self, count: usize) -> Result<Vec<Question>> {
        let mut seen = BTreeSet::new();
        let mut questions = Vec::with_capacity(count);
        for _ in 0..count * DRAWS_PER_QUESTION {
            if questions.len() == count {
                break;
            }
            let question = self.question().ok_or_else(|| self.exhausted(count, questions.len()))?;
            if seen.insert(question.text()) {
                questions.push(question);
            }
        }
        if questions.len() < count { Err(self.exhausted(count, questions.len())) } else { Ok(questions) }
    }

    fn question(&mut self) -> Option<Question> {
        let language = self.language();
        let two_turns = self.dice.chance(self.options.two_turn_share);
        let plot = self.plot(two_turns)?;
        Some(plot.ask(language, &mut self.dice))
    }

    /// Draws problems of this side. The kind is drawn first, so that both sides have the same mix of kinds.
    fn plot(&mut self, two_turns: bool) -> Option<QuestionPlan> {
        for _ in 0..KINDS.len() {
            let kind =
                if two_turns { self.dice.weighted(&FOLLOWED_KINDS) } else { self.dice.weighted(&KINDS) };
            for _ in 0..DRAWS_PER_KIND {
                let plot = QuestionPlan::draw(kind, two_turns, &mut self.dice);
                if plot.keys().iter().all(|key| side(key, self.options.heldout_share) == self.side) {
                    return Some(plot);
                }
            }
        }
        None
    }

    fn language(&mut self) -> Language {
        if self.dice.chance(self.options.chinese_share) { Language::Chinese } else { Language::English }
    }

    fn exhausted(&self, wanted: usize, got: usize) -> Error {
        let side = if self.side == Side::HeldOut { "held-out" } else { "training" };
        Error::SynthExhausted { side, wanted, got }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> SynthOptions {
        SynthOptions {
            seed: 42,
            pretraining: 3000,
            train: 6000,
            preferences: 3000,
            heldout_preferences: 500,
            prompts: 2000,
            heldout: 600,
            ..SynthOptions::default()
        }
    }

    fn text_of(turns: &[Message]) -> String {
        turns.iter().map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n")
    }

    fn users(turns: &[Message]) -> Vec<Message> {
        turns[..turns.len() - 1].to_vec()
    }

    #[test]
    fn the_same_options_give_the_same_world() {
        let world = SynthData::generate(&small()).unwrap();
        assert_eq!(world, SynthData::generate(&small()).unwrap());
        let other = SynthOptions { seed: 43, ..small() };
        assert_ne!(world.fingerprint(), SynthData::generate(&other).unwrap().fingerprint());
    }

    /// The fingerprint changes when the data changes. Results measured on the old data are then no longer
    /// comparable.
    #[test]
    fn the_world_is_the_one_that_was_published() {
        assert_eq!(
            format!("{:016x}", SynthData::generate(&small()).unwrap().fingerprint()),
            "b590b29aba9d28da"
        );
    }

    #[test]
    fn a_split_does_not_depend_on_the_size_of_another() {
        let world = SynthData::generate(&small()).unwrap();
        let longer = SynthData::generate(&SynthOptions { train: 7000, pretraining: 10, ..small() }).unwrap();
        assert_eq!(world.heldout, longer.heldout);
        assert_eq!(world.preferences, longer.preferences);
    }

    #[test]
    fn held_out_and_training_share_no_problem_and_no_prompt() {
        let world = SynthData::generate(&small()).unwrap();
        let training: BTreeSet<&String> = world.prompts.iter().flat_map(|question| &question.keys).collect();
        for question in &world.heldout {
            assert!(
                question.keys.iter().all(|key| side(key, 0.1) == Side::HeldOut && !training.contains(key))
            );
        }
        let mut trained: BTreeSet<String> =
            world.demonstrations.iter().map(|turns| text_of(&users(turns))).collect();
        trained.extend(world.preferences.iter().map(|pair| text_of(&pair.prompt)));
        trained.extend(world.prompts.iter().map(|question| text_of(&question.messages)));
        let heldout: BTreeSet<String> =
            world.heldout.iter().map(|question| text_of(&question.messages)).collect();
        assert_eq!(heldout.len(), world.heldout.len());
        let pairs: BTreeSet<String> =
            world.heldout_preferences.iter().map(|pair| text_of(&pair.prompt)).collect();
        assert!(trained.is_disjoint(&heldout) && trained.is_disjoint(&pairs));
        // The first turn of a training conversation must not state a held-out prompt either.
        let first_turns: BTreeSet<&str> = trained.iter().map(|text| text.lines().next().unwrap()).collect();
        assert!(
            world.heldout.iter().all(|question| !first_turns.contains(question.messages[0].content.as_str()))
        );
    }

    /// Parses the sums of the corpus from the text.
    #[test]
    fn no_held_out_sum_is_in_any_training_text() {
        let world = SynthData::generate(&small()).unwrap();
        let demonstrations = world.demonstrations.iter().map(|turns| text_of(turns));
        let text = world.pretraining.iter().cloned().chain(demonstrations).collect::<Vec<_>>().join("\n");
        let mut sums = 0;
        for line in text.lines() {
            let line = line.replace(' ', "").replace("plus", "+").replace('加', "+");
            for part in line.split(|sign: char| !sign.is_ascii_digit() && sign != '+') {
                let Some((left, right)) = part.split_once('+') else { continue };
                let (Ok(left), Ok(right)) = (left.parse::<u32>(), right.parse::<u32>()) else { continue };
                sums += 1;
                let key = format!("sum:{}+{}", left.min(right), left.max(right));
                assert_eq!(side(&key, 0.1), Side::Training, "{line}");
            }
        }
        assert!(1000 < sums, "{sums}");
    }

    #[test]
    fn the_shares_are_met() {
        let options = SynthOptions { train: 10_000, preferences: 10_000, prompts: 10_000, ..small() };
        let world = SynthData::generate(&options).unwrap();
        let mut source =
            RowGenerator { options: &options, side: Side::Training, dice: SynthRng::new(options.seed, 1) };
        let questions = source.questions(options.train).unwrap();
        let right = questions
            .iter()
            .zip(&world.demonstrations)
            .filter(|(question, turns)| verify(&question.answer, &turns[turns.len() - 1].content))
            .count();
        // Binomial(10000, 0.6): standard deviation 49; the other counts have at most 50.
        assert!(right.abs_diff(6000) < 250, "{right}");
        let wrong = world.preferences.iter().filter(|pair| pair.flaw == Corruption::WrongContent).count();
        assert!(wrong.abs_diff(4000) < 220, "{wrong}");
        let chinese = world.prompts.iter().filter(|question| question.language == Language::Chinese).count();
        assert!(chinese.abs_diff(5000) < 250, "{chinese}");
        let two_turns = world.prompts.iter().filter(|question| question.messages.len() == 3).count();
        assert!(two_turns.abs_diff(1000) < 150, "{two_turns}");
        for family in FAMILIES {
            assert!(world.heldout.iter().any(|question| question.family == family), "{family}");
        }
        assert!(world.heldout.iter().any(|question| question.messages.len() == 3));
    }

    #[test]
    fn pairs_set_the_right_answer_against_a_wrong_one() {
        let world = SynthData::generate(&small()).unwrap();
        for pair in world.preferences.iter().chain(&world.heldout_preferences) {
            assert!(!verify(&pair.chosen, &pair.rejected), "{pair:?}");
            assert_eq!(pair.prompt[pair.prompt.len() - 1].role, Role::User);
        }
    }

    #[test]
    fn few_characters_suffice() {
        let world = SynthData::generate(&small()).unwrap();
        let mut text = world.pretraining.join("\n");
        for turns in &world.demonstrations {
            text += &text_of(turns);
        }
        let characters: BTreeSet<char> = text.chars().filter(|character| !character.is_ascii()).collect();
        assert!(characters.len() <= 140, "{} {characters:?}", characters.len());
    }

    #[test]
    fn impossible_options_are_errors() {
        let generate = |options: SynthOptions| SynthData::generate(&options).unwrap_err();
        let error = generate(SynthOptions { spoilt_share: 1.5, ..small() });
        assert!(matches!(error, Error::SynthShare { name: "spoilt_share", .. }));
        let error = generate(SynthOptions { heldout_share: 0.0, ..small() });
        assert!(matches!(error, Error::SynthExhausted { side: "held-out", wanted: 500, got: 0 }));
        let error = generate(SynthOptions { heldout_share: 1.0, train: 10, ..small() });
        assert!(matches!(error, Error::SynthExhausted { side: "training", .. }));
    }
}
