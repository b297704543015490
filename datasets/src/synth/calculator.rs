//! Arithmetic that a model of about a million parameters cannot do in its head, with a calculator to call.
//!
//! A conversation has two replies. The first is a call: `=`, a space, and an expression of integers with `+`,
//! `-`, `*` and parentheses. The calculator answers with a tool turn that is the number alone, and the second
//! reply repeats it:
//!
//! ```text
//! user       what is 123 * 45 + 67?
//! assistant  = 123*45+67
//! tool       5602
//! assistant  5602
//! ```
//!
//! Numbers have two to four digits, and no problem is one of the world's own arithmetic. As there, the hash of
//! a problem decides whether it is held out ([`side`]), so no held-out problem is trained on in any wording.
//! No result is negative. The same options produce the same bytes on every platform.

use std::collections::BTreeSet;

use super::dice::SynthRng;
use super::split::{FNV_OFFSET, Side, fnv1a, side};
use super::take_turns;
use super::task::Language;
use crate::conversation::Message;
use crate::error::{Error, Result};

/// Number of draws per problem, after which the generator concludes that no more problems exist.
const DRAWS: usize = 3000;

/// The streams of random numbers, behind those of the world.
const STREAMS: [u64; 3] = [16, 17, 18];

/// The amount of data to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct CalculatorOptions {
    /// The seed of all draws. The split into training and held-out problems does not depend on it.
    pub seed: u64,
    /// Number of demonstrations, and of rollout prompts.
    pub rows: usize,
    /// Number of evaluation questions, on held-out problems. Each prompt occurs once.
    pub heldout: usize,
    /// Share of problems that are held out, less than 1.
    pub heldout_share: f64,
    /// Share of conversations in Chinese.
    pub chinese_share: f64,
}

impl Default for CalculatorOptions {
    fn default() -> Self {
        Self { seed: 0, rows: 10_000, heldout: 1000, heldout_share: 0.1, chinese_share: 0.5 }
    }
}

/// A question for the calculator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calculation {
    /// The words of the user.
    pub question: String,
    /// The reply that calls the calculator.
    pub call: String,
    /// The right answer, which the calculator gives.
    pub answer: String,
    /// The key of the problem, the same in all wordings and languages.
    pub key: String,
}

impl Calculation {
    /// The conversation in which the calculator is called.
    pub fn demonstration(&self) -> Vec<Message> {
        vec![
            Message::user(&self.question),
            Message::assistant(&self.call),
            Message::tool(&self.answer),
            Message::assistant(&self.answer),
        ]
    }
}

/// All splits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalculatorData {
    /// Conversations on training problems.
    pub demonstrations: Vec<Vec<Message>>,
    /// Questions on training problems.
    pub prompts: Vec<Calculation>,
    /// Questions on held-out problems, without duplicate prompts.
    pub heldout: Vec<Calculation>,
}

impl CalculatorData {
    /// Generates all splits. Returns an error if a share is out of range, or if fewer problems exist than
    /// requested.
    pub fn generate(options: &CalculatorOptions) -> Result<Self> {
        let shares = [("heldout_share", options.heldout_share), ("chinese_share", options.chinese_share)];
        if let Some(&(name, value)) = shares.iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            return Err(Error::SynthShare { name, value });
        }
        let source = |stream: usize, side| {
            let dice = SynthRng::new(options.seed, STREAMS[stream]);
            CalculationGenerator { options, side, dice }
        };
        let demonstrations = source(0, Side::Training).calculations(options.rows)?;
        Ok(Self {
            demonstrations: demonstrations.iter().map(Calculation::demonstration).collect(),
            prompts: source(1, Side::Training).calculations(options.rows)?,
            heldout: source(2, Side::HeldOut).distinct(options.heldout)?,
        })
    }

    /// The FNV-1a hash of all texts in order, as [`SynthData::fingerprint`](super::SynthData::fingerprint).
    pub fn fingerprint(&self) -> u64 {
        let mut hash = FNV_OFFSET;
        let mut take = |text: &str| hash = fnv1a(fnv1a(hash, text.as_bytes()), &[255]);
        self.demonstrations.iter().for_each(|turns| take_turns(turns, &mut take));
        for calculation in self.prompts.iter().chain(&self.heldout) {
            take(&calculation.question);
            take(&calculation.answer);
        }
        hash
    }
}

/// Generates problems of one side of the split.
struct CalculationGenerator<'a> {
    options: &'a CalculatorOptions,
    side: Side,
    dice: SynthRng,
}

impl CalculationGenerator<'_> {
    fn calculations(&mut self, count: usize) -> Result<Vec<Calculation>> {
        (0..count).map(|got| self.calculation().ok_or_else(|| self.exhausted(count, got))).collect()
    }

    /// Questions of which no two are the same.
    fn distinct(&mut self, count: usize) -> Result<Vec<Calculation>> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(count);
        for _ in 0..count.saturating_mul(2) {
            if found.len() == count {
                break;
            }
            let calculation = self.calculation().ok_or_else(|| self.exhausted(count, found.len()))?;
            if seen.insert(calculation.question.clone()) {
                found.push(calculation);
            }
        }
        if found.len() < count { Err(self.exhausted(count, found.len())) } else { Ok(found) }
    }

    fn calculation(&mut self) -> Option<Calculation> {
        let is_chinese = self.dice.chance(self.options.chinese_share);
        let language = if is_chinese { Language::Chinese } else { Language::English };
        // The form is drawn first, so that both sides have the same mix of forms.
        let form = *self.dice.pick(&FORMS);
        for _ in 0..DRAWS {
            let problem = Problem::draw(form, &mut self.dice);
            if side(&problem.key(), self.options.heldout_share) == self.side {
                return Some(problem.ask(language, &mut self.dice));
            }
        }
        None
    }

    fn exhausted(&self, wanted: usize, got: usize) -> Error {
        let side = if self.side == Side::HeldOut { "held-out" } else { "training" };
        Error::SynthExhausted { side, wanted, got }
    }
}

/// The form of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Sum,
    Difference,
    Product,
    SumOfThree,
    ProductAndSum,
    ProductAndDifference,
    SumAndProduct,
}

const FORMS: [Form; 7] = [
    Form::Sum,
    Form::Difference,
    Form::Product,
    Form::SumOfThree,
    Form::ProductAndSum,
    Form::ProductAndDifference,
    Form::SumAndProduct,
];

/// A form with its numbers. Forms of two numbers do not use the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Problem {
    form: Form,
    numbers: [u32; 3],
}

impl Problem {
    fn draw(form: Form, dice: &mut SynthRng) -> Self {
        let mut number = |fewest: u32, most: u32| {
            let digits = dice.between(fewest, most);
            // Without 10, 100 and 1000, with which the world's own products are made.
            dice.between(10_u32.pow(digits - 1) + 1, 10_u32.pow(digits) - 1)
        };
        let numbers = match form {
            Form::Sum => [number(3, 4), number(3, 4), 0],
            Form::Difference => {
                let (one, other) = (number(3, 4), number(3, 4));
                [one.max(other), one.min(other), 0]
            }
            Form::Product => [number(2, 4), number(2, 3), 0],
            Form::SumOfThree => [number(2, 4), number(2, 4), number(2, 4)],
            Form::ProductAndSum => [number(2, 3), number(2, 2), number(2, 4)],
            // 11 * 11 is more than any number of two digits.
            Form::ProductAndDifference => [number(2, 3), number(2, 2), number(2, 2)],
            Form::SumAndProduct => [number(2, 3), number(2, 3), number(2, 2)],
        };
        Self { form, numbers }
    }

    /// The key of the problem. Problems that are equal by symmetry share a key.
    fn key(&self) -> String {
        let mut numbers = self.numbers;
        let symmetric = match self.form {
            Form::Difference => 0,
            Form::SumOfThree => 3,
            _ => 2,
        };
        numbers[..symmetric].sort_unstable();
        format!("calculator:{}", filled(self.form.expression(), &numbers))
    }

    fn result(&self) -> u32 {
        let [left, right, third] = self.numbers;
        match self.form {
            Form::Sum => left + right,
            Form::Difference => left - right,
            Form::Product => left * right,
            Form::SumOfThree => left + right + third,
            Form::ProductAndSum => left * right + third,
            Form::ProductAndDifference => left * right - third,
            Form::SumAndProduct => (left + right) * third,
        }
    }

    /// Puts the problem into words.
    fn ask(&self, language: Language, dice: &mut SynthRng) -> Calculation {
        let [english, chinese] = self.form.wordings();
        let wordings = if language == Language::English { english } else { chinese };
        Calculation {
            question: filled(dice.pick::<&str>(&wordings), &self.numbers),
            call: format!("= {}", filled(self.form.expression(), &self.numbers)),
            answer: self.result().to_string(),
            key: self.key(),
        }
    }
}

/// Puts numbers into the slots `{0}`, `{1}` and `{2}` of a text.
fn filled(text: &str, numbers: &[u32; 3]) -> String {
    let slots = ["{0}", "{1}", "{2}"].into_iter().zip(numbers);
    slots.fold(text.to_owned(), |text, (slot, number)| text.replace(slot, &number.to_string()))
}

impl Form {
    /// The expression of a call.
    fn expression(self) -> &'static str {
        match self {
            Self::Sum => "{0}+{1}",
            Self::Difference => "{0}-{1}",
            Self::Product => "{0}*{1}",
            Self::SumOfThree => "{0}+{1}+{2}",
            Self::ProductAndSum => "{0}*{1}+{2}",
            Self::ProductAndDifference => "{0}*{1}-{2}",
            Self::SumAndProduct => "({0}+{1})*{2}",
        }
    }

    /// The questions, in English and in Chinese. They use the words and characters of the world.
    #[rustfmt::skip]
    fn wordings(self) -> [[&'static str; 4]; 2] {
        match self {
            Self::Sum => [
                ["what is {0} + {1}?", "{0} plus {1} is?", "add {0} and {1}.", "find the sum of {0} and {1}."],
                ["{0}+{1}等于多少？", "{0}加{1}是多少？", "求{0}与{1}的和。", "算一下{0}+{1}。"],
            ],
            Self::Difference => [
                ["what is {0} - {1}?", "{0} minus {1} is?", "take {1} from {0}.", "find {0} - {1}."],
                ["{0}-{1}等于多少？", "{0}减{1}是多少？", "求{0}与{1}的差。", "算一下{0}-{1}。"],
            ],
            Self::Product => [
                ["what is {0} * {1}?", "{0} times {1} is?", "multiply {0} by {1}.",
                 "find the product of {0} and {1}."],
                ["{0}*{1}等于多少？", "{0}乘{1}是多少？", "求{0}与{1}的积。", "算一下{0}*{1}。"],
            ],
            Self::SumOfThree => [
                ["what is {0} + {1} + {2}?", "{0} plus {1} plus {2} is?", "add {0} and {1} and {2}.",
                 "find the sum of {0} and {1} and {2}."],
                ["{0}+{1}+{2}等于多少？", "{0}加{1}加{2}是多少？", "{0}加{1}，再加{2}是多少？",
                 "算一下{0}+{1}+{2}。"],
            ],
            Self::ProductAndSum => [
                ["what is {0} * {1} + {2}?", "{0} times {1} plus {2} is?", "multiply {0} by {1}, then add {2}.",
                 "find {0} * {1} + {2}."],
                ["{0}*{1}+{2}等于多少？", "{0}乘{1}加{2}是多少？", "{0}乘{1}，再加{2}是多少？",
                 "算一下{0}*{1}+{2}。"],
            ],
            Self::ProductAndDifference => [
                ["what is {0} * {1} - {2}?", "{0} times {1} minus {2} is?",
                 "multiply {0} by {1}, then take {2}.", "find {0} * {1} - {2}."],
                ["{0}*{1}-{2}等于多少？", "{0}乘{1}减{2}是多少？", "{0}乘{1}，再减{2}是多少？",
                 "算一下{0}*{1}-{2}。"],
            ],
            Self::SumAndProduct => [
                ["what is ({0} + {1}) * {2}?", "add {0} and {1}, then multiply by {2}.",
                 "multiply the sum of {0} and {1} by {2}.", "find ({0} + {1}) * {2}."],
                ["({0}+{1})*{2}等于多少？", "{0}加{1}，再乘{2}是多少？", "{0}与{1}的和乘{2}是多少？",
                 "算一下({0}+{1})*{2}。"],
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Role;

    fn options() -> CalculatorOptions {
        CalculatorOptions { seed: 42, rows: 3000, heldout: 600, ..CalculatorOptions::default() }
    }

    /// Evaluates a sum of products, of which a factor may be a sum in parentheses; an independent reading of
    /// the expression, which knows nothing of forms.
    fn evaluate(expression: &str) -> i64 {
        let (value, rest) = sum(expression);
        assert_eq!(rest, "", "{expression}");
        value
    }

    fn sum(text: &str) -> (i64, &str) {
        let (mut value, mut rest) = product(text);
        loop {
            let (sign, behind) = match rest.split_at_checked(1) {
                Some(("+", behind)) => (1, behind),
                Some(("-", behind)) => (-1, behind),
                _ => return (value, rest),
            };
            let (term, behind) = product(behind);
            (value, rest) = (value + sign * term, behind);
        }
    }

    fn product(text: &str) -> (i64, &str) {
        let (mut value, mut rest) = factor(text);
        while let Some(behind) = rest.strip_prefix('*') {
            let (next, behind) = factor(behind);
            (value, rest) = (value * next, behind);
        }
        (value, rest)
    }

    fn factor(text: &str) -> (i64, &str) {
        if let Some(inner) = text.strip_prefix('(') {
            let (value, rest) = sum(inner);
            return (value, rest.strip_prefix(')').unwrap());
        }
        let end = text.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(text.len());
        (text[..end].parse().unwrap(), &text[end..])
    }

    fn numbers(text: &str) -> Vec<u32> {
        text.split(|sign: char| !sign.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    }

    #[test]
    fn the_call_says_what_the_question_asks() {
        let data = CalculatorData::generate(&options()).unwrap();
        for calculation in data.prompts.iter().chain(&data.heldout) {
            let expression = calculation.call.strip_prefix("= ").unwrap();
            assert_eq!(evaluate(expression).to_string(), calculation.answer, "{calculation:?}");
            assert!(!calculation.answer.starts_with('-'), "{calculation:?}");
            let mut asked = numbers(&calculation.question);
            if calculation.question.starts_with("take") {
                asked.reverse();
            }
            assert_eq!(asked, numbers(expression), "{calculation:?}");
            assert!(asked.iter().all(|number| (11..=9999).contains(number)), "{calculation:?}");
            let words = ["+", "plus", "add", "sum", "加", "和"];
            let has = |words: &[&str]| words.iter().any(|word| calculation.question.contains(word));
            assert_eq!(has(&words), expression.contains('+'), "{calculation:?}");
            assert_eq!(has(&["-", "minus", "take", "减", "差"]), expression.contains('-'), "{calculation:?}");
            assert_eq!(has(&["*", "times", "multiply", "product", "乘", "积"]), expression.contains('*'));
        }
        assert_eq!(evaluate("(12+34)*56-7"), 2569);
    }

    #[test]
    fn a_demonstration_calls_and_repeats_the_result() {
        let data = CalculatorData::generate(&options()).unwrap();
        for turns in &data.demonstrations {
            let [question, call, result, answer] = &turns[..] else { panic!("{turns:?}") };
            let roles = [question, call, result, answer].map(|turn| turn.role);
            assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Assistant]);
            assert_eq!(evaluate(call.content.strip_prefix("= ").unwrap()).to_string(), result.content);
            assert_eq!(answer.content, result.content);
        }
    }

    #[test]
    fn no_held_out_problem_is_trained_on() {
        let data = CalculatorData::generate(&options()).unwrap();
        let trained: BTreeSet<&str> = data.prompts.iter().map(|prompt| prompt.key.as_str()).collect();
        assert!(trained.iter().all(|key| side(key, 0.1) == Side::Training));
        assert!(data.heldout.iter().all(|question| side(&question.key, 0.1) == Side::HeldOut));
        let asked: BTreeSet<&str> = data.heldout.iter().map(|question| question.question.as_str()).collect();
        assert_eq!(asked.len(), 600);
        assert!(data.demonstrations.iter().all(|turns| !asked.contains(turns[0].content.as_str())));

        let problem = |form, numbers| Problem { form, numbers }.key();
        assert_eq!(problem(Form::Sum, [345, 123, 0]), "calculator:123+345");
        assert_eq!(problem(Form::SumAndProduct, [34, 12, 5]), problem(Form::SumAndProduct, [12, 34, 5]));
        assert_ne!(problem(Form::ProductAndSum, [34, 12, 56]), problem(Form::ProductAndSum, [34, 56, 12]));
        assert_eq!(problem(Form::SumOfThree, [34, 12, 56]), problem(Form::SumOfThree, [56, 34, 12]));
    }

    /// The fingerprint changes when the data changes. Results measured on the old data are then no longer
    /// comparable.
    #[test]
    fn the_data_is_that_which_was_published() {
        let data = CalculatorData::generate(&options()).unwrap();
        assert_eq!(format!("{:016x}", data.fingerprint()), "3147561d396cab11");
        let more = CalculatorData::generate(&CalculatorOptions { rows: 3001, ..options() }).unwrap();
        assert_eq!((&more.prompts[..3000], &more.heldout), (&data.prompts[..], &data.heldout));
        let other = CalculatorData::generate(&CalculatorOptions { seed: 43, ..options() }).unwrap();
        assert_ne!(other.fingerprint(), data.fingerprint());
    }

    #[test]
    fn wordings_have_no_open_slots_and_the_words_of_the_world() {
        let world = super::super::SynthData::generate(&super::super::SynthOptions {
            pretraining: 4000,
            train: 4000,
            preferences: 0,
            heldout_preferences: 0,
            prompts: 0,
            heldout: 0,
            ..super::super::SynthOptions::default()
        });
        let world = world.unwrap();
        let mut known = world.pretraining.join("\n");
        world.demonstrations.iter().flatten().for_each(|turn| known += &turn.content);
        let known: BTreeSet<char> = known.chars().collect();
        for form in FORMS {
            for wording in form.wordings().as_flattened() {
                let text = filled(wording, &[123, 45, 67]);
                assert!(!text.contains(['{', '}']) && text == text.to_lowercase(), "{text}");
                let new: Vec<char> = text.chars().filter(|sign| !known.contains(sign)).collect();
                assert!(new.iter().all(|sign| "()，".contains(*sign)), "{text}: {new:?}");
            }
        }
    }

    #[test]
    fn impossible_options_are_errors() {
        let generate = |options: CalculatorOptions| CalculatorData::generate(&options).unwrap_err();
        let error = generate(CalculatorOptions { heldout_share: 1.5, ..options() });
        assert!(matches!(error, Error::SynthShare { name: "heldout_share", .. }));
        let error = generate(CalculatorOptions { heldout_share: 0.0, ..options() });
        assert!(matches!(error, Error::SynthExhausted { side: "held-out", wanted: 600, got: 0 }));
        let error = generate(CalculatorOptions { heldout_share: 1.0, ..options() });
        assert!(matches!(error, Error::SynthExhausted { side: "training", .. }));
    }
}
