//! Judges: a model that rates the answers of other models, or compares them.
//!
//! - [`Judge::rate`]: each turn of a conversation from 1 to 10, as in MT-Bench (Zheng et al. 2023, arXiv
//!   2306.05685); questions of some categories with a reference answer.
//! - [`Judge::compare`]: two answers in both orders, always; orders that disagree are a tie. With the five
//!   degrees of Arena-Hard (Li et al. 2024, arXiv 2406.11939), a strong verdict has three votes.
//! - [`compare_rewards`]: the same comparison by the scores of a reward model.
//! - [`standings`]: ratings of several models from their comparisons.
//! - [`answer`]: the answers of a model to the questions; [`AnswerSheet::from_rows`]: answers from a file.
//!
//! The judge is asked like any other model, greedily and through the cache, so that judging that was broken
//! off goes on where it was. A reply without a verdict is answered with a reminder, once; then the item is
//! `unparsed`. An item that the judge could not answer is `failed`, and the next run asks it again. Neither
//! is a loss; they do not count. This module does not know how a model is run.

mod answering;
mod answers;
mod judgement;
mod pairwise;
mod prompt;
mod question;
mod rating;
pub mod results;
mod verdict;

use datasets::{Message, Row};
use serde_json::Value;

use crate::Error;
use crate::request::{LanguageModel, Prompt, Request, Response};
use crate::request_set::Progress;
use crate::request_set::RequestSet;
use crate::response_cache::ResponseCache;
pub use answering::{AnswerSettings, AnswerSheet, answer, common, mt_bench_temperature};
pub use answers::Answers;
use answers::check;
use judgement::Heard;
pub use judgement::JudgedBy;
pub use pairwise::{Comparison, GroupRate, JudgedPair, Order, Outcome, Rewards, compare_rewards, standings};
pub use prompt::{JudgePrompt, without_delimiters};
pub use question::{Question, add_references};
pub use rating::{GroupMean, Rated, RatedTurn};
pub use verdict::{Preference, VerdictKind, any_rating, preference, rating};

/// A model with the prompts that make it a judge.
pub struct Judge<'a> {
    /// The model.
    pub model: &'a mut dyn LanguageModel,
    /// What it is asked.
    pub prompt: &'a JudgePrompt,
}

/// Which requests an indication of progress is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// All items.
    Verdicts,
    /// The items whose verdict could not be read. Their number is known after the first round.
    Reminders,
}

/// One turn of a question.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// The index of the question.
    row: usize,
    /// The turn, from 1.
    turn: usize,
}

impl Judge<'_> {
    /// Has each turn of the answers rated.
    pub fn rate(
        &mut self,
        questions: &[Question],
        answers: &Answers,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Round, Progress),
    ) -> Result<Rated, Error> {
        self.prompt.expect(&[VerdictKind::Rating])?;
        let items = self.items(questions, &[answers])?;
        let (shown, imitations) = self.shown(answers);
        let asked = self.conversations(questions, &items, &[("answers", &shown)])?;
        let heard = self.hear(asked, rating, cache, on_progress)?;

        let turns = items.iter().zip(heard).map(|(item, heard)| RatedTurn {
            row: item.row,
            question: questions[item.row].id.clone(),
            category: questions[item.row].category.clone(),
            turn: item.turn,
            rating: heard.verdict,
            failed: heard.failed,
            replies: heard.replies,
        });
        let mut rated = Rated::new(self.judged_by(questions, None), answers.model.clone(), turns.collect())?;
        rated.warnings.extend(self.warnings(&[answers], imitations));
        Ok(rated)
    }

    /// Has each turn of the answers of `system` compared with those of `baseline`, in both orders.
    pub fn compare(
        &mut self,
        questions: &[Question],
        system: &Answers,
        baseline: &Answers,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Round, Progress),
    ) -> Result<Comparison, Error> {
        self.prompt.expect(&[VerdictKind::Pair, VerdictKind::FiveWay])?;
        let items = self.items(questions, &[system, baseline])?;
        let (first, of_first) = self.shown(system);
        let (second, of_second) = self.shown(baseline);
        let mut asked =
            self.conversations(questions, &items, &[("answers_a", &first), ("answers_b", &second)])?;
        asked.extend(self.conversations(
            questions,
            &items,
            &[("answers_a", &second), ("answers_b", &first)],
        )?);

        let kind = self.prompt.verdict();
        let mut heard = self.hear(asked, |reply| preference(reply, kind), cache, on_progress)?;
        let swapped = heard.split_off(items.len());
        let pairs = items.iter().zip(heard).zip(swapped).map(|((item, straight), swapped)| {
            let swapped = Heard { verdict: swapped.verdict.map(Preference::swapped), ..swapped };
            let length = |answers: &Answers| answers.replies[item.row][item.turn - 1].chars().count();
            JudgedPair {
                row: item.row,
                question: questions[item.row].id.clone(),
                category: questions[item.row].category.clone(),
                turn: item.turn,
                orders: [straight, swapped].map(Order::from).into(),
                lengths: [length(system), length(baseline)],
                rewards: None,
            }
        });
        let models = [system, baseline].map(|answers| answers.model.clone());
        let by = self.judged_by(questions, Some(baseline));
        let mut comparison = Comparison::new(by, kind, models, pairs.collect())?;
        comparison.warnings.extend(self.warnings(&[system, baseline], of_first + of_second));
        Ok(comparison)
    }

    /// All turns of all questions, after a look at whether everything has an answer.
    fn items(&self, questions: &[Question], answers: &[&Answers]) -> Result<Vec<Item>, Error> {
        check(self.prompt.name(), questions, answers)?;
        self.prompt.check_questions(questions)?;
        let turns = |(row, question): (usize, &Question)| {
            (1..=question.turns.len()).map(move |turn| Item { row, turn })
        };
        Ok(questions.iter().enumerate().flat_map(turns).collect())
    }

    /// The answers as the judge sees them, and how many of them imitate the frame of the prompt.
    fn shown(&self, answers: &Answers) -> (Vec<Vec<String>>, usize) {
        let mut imitations = 0;
        let mut shown = |reply: &String| {
            let (text, imitates) = self.prompt.harmless(reply);
            imitations += usize::from(imitates);
            text
        };
        let replies = answers.replies.iter().map(|turns| turns.iter().map(&mut shown).collect()).collect();
        (replies, imitations)
    }

    /// What the judge is asked about each item. `answers` has the replies by column.
    fn conversations(
        &self,
        questions: &[Question],
        items: &[Item],
        answers: &[(&str, &[Vec<String>])],
    ) -> Result<Vec<Vec<Message>>, Error> {
        let conversation = |&Item { row, turn }: &Item| {
            let question = &questions[row];
            let mut columns = Row::new();
            columns.insert("questions".to_owned(), Value::from(&question.turns[..turn]));
            for (column, replies) in answers {
                columns.insert((*column).to_owned(), Value::from(&replies[row][..turn]));
            }
            let with_reference = self.prompt.wants_reference(&question.category);
            if with_reference {
                columns.insert("references".to_owned(), Value::from(&question.references[..turn]));
            }
            let rendered = self.prompt.render(turn, with_reference, &columns);
            rendered.map_err(|error| Error::InRow {
                task: self.prompt.name().to_owned(),
                row,
                source: Box::new(error),
            })
        };
        items.iter().map(conversation).collect()
    }

    /// Asks everything, and once more what `read` finds no verdict in.
    fn hear<T>(
        &mut self,
        asked: Vec<Vec<Message>>,
        read: impl Fn(&str) -> Option<T>,
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Round, Progress),
    ) -> Result<Vec<Heard<T>>, Error> {
        let responses = self.ask(&asked, cache, &mut |progress| on_progress(Round::Verdicts, progress))?;
        let mut heard = Vec::with_capacity(asked.len());
        let (mut places, mut reminders) = (Vec::new(), Vec::new());
        for (place, (mut messages, response)) in asked.into_iter().zip(responses).enumerate() {
            let mut one = Heard { verdict: None, failed: None, replies: Vec::new() };
            one.take(response, &read)?;
            if one.verdict.is_none() && one.failed.is_none() {
                messages.push(Message::assistant(one.replies[0].clone()));
                messages.push(Message::user(self.prompt.reminder()));
                places.push(place);
                reminders.push(messages);
            }
            heard.push(one);
        }

        if !places.is_empty() {
            let responses =
                self.ask(&reminders, cache, &mut |progress| on_progress(Round::Reminders, progress))?;
            for (place, response) in places.into_iter().zip(responses) {
                heard[place].take(response, &read)?;
            }
        }
        Ok(heard)
    }

    fn ask(
        &mut self,
        conversations: &[Vec<Message>],
        cache: &mut ResponseCache,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Response>, Error> {
        let mut requests = RequestSet::default();
        let add = |messages: &Vec<Message>| {
            requests.add(Request::GenerateUntil {
                context: Prompt::Chat(messages.clone()),
                until: Vec::new(),
                max_gen_toks: self.prompt.max_gen_toks(),
                temperature: 0.0,
                sample: 0,
            })
        };
        let places: Vec<usize> = conversations.iter().map(add).collect();
        let responses = requests.ask(self.model, cache, on_progress)?;
        Ok(places.into_iter().map(|place| of_whole_prompt(&responses[place])).collect())
    }

    fn judged_by(&self, questions: &[Question], baseline: Option<&Answers>) -> JudgedBy {
        JudgedBy::new(&self.prompt.id(), questions, (self.model.name(), self.model.digest()), baseline)
    }

    fn warnings(&self, answers: &[&Answers], imitations: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        for answers in answers.iter().filter(|answers| answers.digest == self.model.digest()) {
            let model = &answers.model;
            warnings.push(format!(
                "{model} judges its own answers, and judges prefer their own: use another judge"
            ));
        }
        if imitations > 0 {
            warnings.push(format!(
                "{imitations} answers hold text that frames answers in the judge's prompt; it was replaced, and \
                 these answers are worth a look"
            ));
        }
        warnings
    }
}

/// The answer of a judge, unless it did not see the beginning of its prompt, where the question and the first
/// answer stand.
fn of_whole_prompt(response: &Response) -> Response {
    match response.cut() {
        0 => response.clone(),
        cut => Response::Failed {
            problem: format!(
                "the prompt has {cut} tokens more than the judge takes: use a judge with a longer context, or lower \
                 max_gen_toks of the prompt file"
            ),
        },
    }
}
