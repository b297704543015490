//! Which scorer an entry has, what its settings must be, and what the answers of its rows must be.

use std::collections::BTreeMap;

use url::Url;

use crate::answer;
use crate::choice::Choice;
use crate::code::{self, Code, ReplyTemplate, Runner};
use crate::command::CommandScorer;
use crate::entry::{JudgeConfig, Normalize, RewardEntry, RewardKind};
use crate::error::{Error, Wrong};
use crate::exact::Exact;
use crate::format::Format;
use crate::http::HttpScorer;
use crate::instruction::{Instructions, of_row};
use crate::json::Json;
use crate::language::Language;
use crate::length::Length;
use crate::limits::{check_batches, within};
use crate::math::Math;
use crate::numeric::Numeric;
use crate::pattern::Pattern;
use crate::program::ProgramLog;
use crate::repetition::Repetition;
use crate::score::{EachReply, LONGEST_TEXT, Reply, ScoreError, Scorer, at_most, quoted};
use crate::{client, program, world};

/// Says of the `answer` of a row why no reply to that row has a score.
pub type AnswerCheck = Box<dyn Fn(Option<&str>) -> Result<(), ScoreError>>;

/// Refuses entries that cannot work, by key and value. It starts no program and asks no server.
pub fn check(entries: &[RewardEntry]) -> Result<(), Error> {
    let mut names = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        check_entry(entry).map_err(|wrong| wrong.of(&format!("reward[{index}]")))?;
        if let Some(first) = names.insert(entry.name.as_str(), index) {
            return Err(Error::SameName { first, second: index, name: entry.name.clone() });
        }
    }
    if !entries.is_empty() && entries.iter().all(|entry| entry.weight == 0.0) {
        return Err(Error::NoWeight);
    }
    Ok(())
}

/// The scorer of an entry. `None` for the kinds `model` and `judge`, which the caller runs. `code` runs
/// programs of the model, and what a program of the user writes to stderr goes to `log`. Programs are started
/// and servers are asked once, so that one that does not answer is found before the first step.
pub fn scorer(
    entry: &RewardEntry,
    code: Option<Runner>,
    log: &ProgramLog,
) -> Result<Option<Box<dyn Scorer>>, Error> {
    let label = label(entry);
    let of_entry = |wrong: Wrong| wrong.of(&label);
    check_entry(entry).map_err(of_entry)?;
    match &entry.kind {
        RewardKind::Model(_) | RewardKind::Judge(_) => Ok(None),
        RewardKind::Code(config) => {
            let runner = code.ok_or_else(|| Error::NoSandbox { name: entry.name.clone() })?;
            Ok(Some(Box::new(Code::new(config, runner).map_err(of_entry)?)))
        }
        RewardKind::Command(config) => {
            let mut scorer = CommandScorer::start(&label, config, log).map_err(of_entry)?;
            scorer.probe().map_err(of_entry)?;
            Ok(Some(Box::new(scorer)))
        }
        RewardKind::Http(config) => {
            let scorer = HttpScorer::new(config).map_err(of_entry)?;
            scorer.probe().map_err(of_entry)?;
            Ok(Some(Box::new(scorer)))
        }
        kind => verifier(kind).map_err(of_entry),
    }
}

/// How an entry reads the answers of rows, so that rows to which no reply can have a score are found before
/// the first step. `None` for an entry that compares with no answer. It starts no program and asks no server.
pub fn answer_check(entry: &RewardEntry) -> Result<Option<AnswerCheck>, Error> {
    own_answer_check(&entry.kind).map_err(|wrong| wrong.of(&label(entry)))
}

fn own_answer_check(kind: &RewardKind) -> Result<Option<AnswerCheck>, Wrong> {
    let needs_answer =
        |key, source: &str| ReplyTemplate::new(key, source).map(|template| template.needs_answer());
    Ok(Some(match kind {
        RewardKind::Exact(config) => {
            let exact = Exact::new(config)?;
            reads(move |answer| exact.wanted(answer).map(|_| ()))
        }
        RewardKind::Numeric(config) => {
            let numeric = Numeric::new(config)?;
            reads(move |answer| numeric.wanted(answer).map(|_| ()))
        }
        RewardKind::Math(config) => {
            let math = Math::new(config);
            reads(move |answer| math.right(answer).map(|_| ()))
        }
        RewardKind::Choice(config) => {
            let choice = Choice::new(config)?;
            reads(move |answer| choice.right(answer).map(|_| ()))
        }
        RewardKind::Ifeval(config) if config.instructions.is_empty() => {
            reads(|answer| of_row(answer).map(|_| ()))
        }
        RewardKind::World(_) => reads(|written| answer::given(written).map(|_| ())),
        RewardKind::Code(config) if needs_answer("program", &config.program)? => {
            reads(|written| answer::given(written).map(|_| ()))
        }
        // The judge is shown a blank answer as it is.
        RewardKind::Judge(config) if needs_answer("template", &config.template)? => {
            Box::new(|answer: Option<&str>| answer.map(|_| ()).ok_or(ScoreError::NoAnswer))
        }
        _ => return Ok(None),
    }))
}

/// The check of an answer that a scorer of this crate reads.
fn reads(read: impl Fn(Option<&str>) -> Result<(), ScoreError> + 'static) -> AnswerCheck {
    Box::new(move |answer| {
        at_most(answer.unwrap_or_default(), LONGEST_TEXT)?;
        read(answer)
    })
}

/// What messages call an entry whose place in the list is not known.
fn label(entry: &RewardEntry) -> String {
    format!("reward {:?}", entry.name)
}

/// The scorer of a kind that looks at each reply by itself. `None` for other kinds.
fn verifier(kind: &RewardKind) -> Result<Option<Box<dyn Scorer>>, Wrong> {
    Ok(Some(match kind {
        RewardKind::Exact(config) => {
            let exact = Exact::new(config)?;
            each(move |reply| exact.score(reply))
        }
        RewardKind::Numeric(config) => {
            let numeric = Numeric::new(config)?;
            each(move |reply| numeric.score(reply))
        }
        RewardKind::Math(config) => {
            let math = Math::new(config);
            each(move |reply| math.score(reply))
        }
        RewardKind::Choice(config) => {
            let choice = Choice::new(config)?;
            each(move |reply| choice.score(reply))
        }
        RewardKind::Regex(config) => {
            let pattern = Pattern::new(config)?;
            each(move |reply| pattern.score(reply))
        }
        RewardKind::Json(config) => {
            let json = Json::new(config)?;
            each(move |reply| json.score(reply))
        }
        RewardKind::Format(config) => {
            let format = Format::new(config)?;
            each(move |reply| Ok(format.score(reply)))
        }
        RewardKind::Ifeval(config) => {
            let instructions = Instructions::new(config)?;
            each(move |reply| instructions.score(reply))
        }
        RewardKind::Length(config) => {
            let length = Length::new(config)?;
            each(move |reply| Ok(length.score(reply)))
        }
        RewardKind::Language(config) => {
            let language = Language::new(config)?;
            each(move |reply| language.score(reply))
        }
        RewardKind::Repetition(config) => {
            let repetition = Repetition::new(config)?;
            each(move |reply| Ok(repetition.score(reply)))
        }
        RewardKind::World(_) => each(world::score),
        RewardKind::Model(_)
        | RewardKind::Judge(_)
        | RewardKind::Code(_)
        | RewardKind::Command(_)
        | RewardKind::Http(_) => return Ok(None),
    }))
}

/// The scorer that looks at each reply by itself.
fn each(score: impl FnMut(&Reply<'_>) -> Result<f64, ScoreError> + Send + 'static) -> Box<dyn Scorer> {
    Box::new(EachReply(score))
}

/// Refuses the settings of one entry.
fn check_entry(entry: &RewardEntry) -> Result<(), Wrong> {
    check_shared(entry)?;
    match &entry.kind {
        RewardKind::Model(config) => given("model", &config.model, "name a sequence-classification folder"),
        RewardKind::Judge(config) => check_judge(config),
        RewardKind::Code(config) => code::check(config),
        RewardKind::Command(config) => program::check(config),
        RewardKind::Http(config) => client::check(config),
        kind => verifier(kind).map(|_| ()),
    }
}

/// Refuses the values of the keys that every kind has.
fn check_shared(entry: &RewardEntry) -> Result<(), Wrong> {
    /// The longest name, in bytes.
    const LONGEST_NAME: usize = 64;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if entry.name.is_empty() || entry.name.len() > LONGEST_NAME || !entry.name.chars().all(is_part) {
        let problem = format!("is {:?}", text::truncate(&text::single_line(&entry.name), LONGEST_NAME));
        let fix = format!("give up to {LONGEST_NAME} ASCII letters, digits, `_`, `-` and `.`");
        return Err(Wrong::new("name", problem, fix));
    }
    finite("weight", Some(entry.weight))?;
    finite("mean", entry.mean)?;
    positive("clip", entry.clip, "give a number above 0, or leave it out")?;
    positive("std", entry.std, "give the standard deviation of the scores, above 0")?;
    for (key, value) in [("mean", entry.mean), ("std", entry.std)] {
        match (entry.normalize, value) {
            (Normalize::Fixed, None) => {
                let fix = "give it, measured on replies of the model that the run starts from";
                return Err(Wrong::new(key, "is missing, and `normalize` is \"fixed\"", fix));
            }
            (Normalize::None | Normalize::Running, Some(_)) => {
                let problem = "has no effect, because `normalize` is not \"fixed\"";
                return Err(Wrong::new(key, problem, "set normalize = \"fixed\", or leave it out"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_judge(config: &JudgeConfig) -> Result<(), Wrong> {
    /// The most tokens of a reply, and the most attempts and questions at a time.
    const MOST: [usize; 3] = [1 << 20, 100, 1024];
    check_server(&config.model)?;
    ReplyTemplate::new("template", &config.template)?;
    let [low, high] = config.scale;
    if !(low.is_finite() && high.is_finite() && low < high) {
        let problem = format!("is [{low}, {high}]");
        return Err(Wrong::new("scale", problem, "give the lowest and the highest rating, such as [1, 10]"));
    }
    if !(config.temperature.is_finite() && config.temperature >= 0.0) {
        let problem = format!("is {}", config.temperature);
        return Err(Wrong::new("temperature", problem, "give 0, or a number above it"));
    }
    within("max_tokens", config.max_tokens, MOST[0])?;
    within("attempts", config.attempts, MOST[1])?;
    within("concurrency", config.concurrency, MOST[2])?;
    check_batches(1, config.timeout)
}

/// Refuses a judge that is not named by the address of a server.
fn check_server(model: &str) -> Result<(), Wrong> {
    const FORM: &str = "give the address of a server, http://HOST:PORT/v1#MODEL";
    given("model", model, FORM)?;
    let starts =
        |scheme: &str| model.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if !starts("http://") && !starts("https://") {
        let model = quoted(model);
        let problem = format!("is {model:?}, which is no address, and a judge is asked on a server");
        let fix = format!("run `colossal-chat serve --model {model}`, and give http://127.0.0.1:8000/v1");
        return Err(Wrong::new("model", problem, fix));
    }
    match Url::parse(model) {
        Ok(_) => Ok(()),
        Err(error) => Err(Wrong::new("model", format!("is no address: {error}"), FORM)),
    }
}

fn given(key: &'static str, value: &str, fix: &str) -> Result<(), Wrong> {
    if value.trim().is_empty() { Err(Wrong::new(key, "is missing", fix)) } else { Ok(()) }
}

fn finite(key: &'static str, value: Option<f64>) -> Result<(), Wrong> {
    match value.filter(|value| !value.is_finite()) {
        Some(value) => Err(Wrong::new(key, format!("is {value}"), "give a finite number")),
        None => Ok(()),
    }
}

fn positive(key: &'static str, value: Option<f64>, fix: &str) -> Result<(), Wrong> {
    match value.filter(|value| !(value.is_finite() && *value > 0.0)) {
        Some(value) => Err(Wrong::new(key, format!("is {value}"), fix)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
