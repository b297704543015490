//! A document with the answers of all models, as the JSON of the page has it.

use serde::Serialize;

use super::opening::Turn;
use crate::aggregate::numbers;
use crate::document::Document;
use crate::evaluation::Sample;
use crate::page::number::number;
use crate::request::Response;
use crate::score::{MetricValue, Scored};

/// A document in the page.
#[derive(Serialize)]
pub(super) struct Shown<'a> {
    pub(super) id: usize,
    pub(super) prompts: Vec<Vec<Turn<'a>>>,
    pub(super) choices: &'a [String],
    pub(super) right: Vec<usize>,
    pub(super) target: Option<String>,
    pub(super) scored_text: Option<&'a str>,
    pub(super) models: Vec<Answered<'a>>,
}

/// The answers of one model to a document.
#[derive(Default, Serialize)]
pub(super) struct Answered<'a> {
    problem: Option<&'a str>,
    logprobs: Vec<String>,
    /// The most likely choice.
    best: Option<usize>,
    /// The choice with the highest log-likelihood per character, where the task counts it.
    best_per_character: Option<usize>,
    greedy: Option<bool>,
    replies: Vec<ShownReply<'a>>,
    results: Vec<ShownResult<'a>>,
}

#[derive(Serialize)]
struct ShownReply<'a> {
    text: &'a str,
    tokens: usize,
    ended: bool,
}

/// What one filter made of the answers.
#[derive(Serialize)]
struct ShownResult<'a> {
    answer: &'a str,
    unparsed: bool,
    correct: Option<bool>,
    metrics: Vec<(&'a str, String)>,
}

impl<'a> Answered<'a> {
    pub(super) fn missing() -> Self {
        Self { problem: Some("there is no sample"), ..Self::default() }
    }

    pub(super) fn new(sample: &'a Sample, document: &Document, has_normalized: bool) -> Self {
        let mut answered = Self { problem: sample.problem.as_deref(), ..Self::default() };
        let mut logprobs = Vec::new();
        for response in &sample.responses {
            match response {
                Response::Loglikelihood { logprob, is_greedy, .. } => {
                    logprobs.push(*logprob);
                    answered.greedy = Some(*is_greedy);
                }
                Response::Reply { text, tokens, ended, .. } => {
                    answered.replies.push(ShownReply { text, tokens: *tokens, ended: *ended });
                }
                Response::Failed { .. } => logprobs.push(f64::NAN),
            }
        }
        answered.results = sample.scored.iter().map(ShownResult::new).collect();

        if document.choices.len() > 1 && document.choices.len() == logprobs.len() {
            answered.greedy = None;
            answered.best = most_likely(logprobs.iter().copied());
            let lengths = document.choices.iter().map(|choice| choice.chars().count() as f64);
            let normalized = logprobs.iter().zip(lengths).map(|(logprob, length)| logprob / length);
            answered.best_per_character = most_likely(normalized).filter(|_| has_normalized);
        }
        if answered.replies.is_empty() {
            answered.logprobs = logprobs.into_iter().map(number).collect();
        }
        answered
    }
}

impl<'a> ShownResult<'a> {
    fn new(scored: &'a Scored) -> Self {
        let metrics = scored.metrics.iter().map(|metric| (metric.name.as_str(), shown(&metric.value)));
        Self {
            answer: &scored.answer,
            unparsed: scored.unparsed,
            correct: scored.correct,
            metrics: metrics.collect(),
        }
    }
}

/// What a metric says about one document.
fn shown(value: &MetricValue) -> String {
    match value {
        MetricValue::Weighted { total, weight } => format!("{} / {weight}", number(*total)),
        other => numbers(other).into_iter().map(number).collect::<Vec<_>>().join(", "),
    }
}

/// The first of the highest values; none if one of them is no number.
fn most_likely(values: impl Iterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, value) in values.enumerate() {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, held)| value > held) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index)
}
