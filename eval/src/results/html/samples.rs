//! The samples as JSON in the page.
//!
//! A page holds at most [`MOST_SAMPLES`] samples of a task and [`MOST_BYTES`] in all, shared fairly by the
//! tasks. Samples that models judge differently come first, then those that are not right, then the rest;
//! each kind in the order of the rows. What all prompts of a task begin with is stored once.
//!
//! The JSON holds no character that could end its element, and none that reorders text on screen. Numbers are
//! texts, written as in the tables, so that the script formats none.

mod opening;
mod shown;

use std::fmt::Write as _;

use crate::Error;
use crate::document::{Document, Target};
use crate::evaluation::{Evaluation, ModelRun, PreparedTask, Sample};
use crate::page::safe_json;
use crate::request::Request;
use crate::score::Scored;
use crate::task::{MetricConfig, OutputType};
use opening::{Opening, Turn, turns};
use shown::{Answered, Shown};

/// The most samples of a task in the page.
const MOST_SAMPLES: usize = 500;
/// The most bytes of samples in the page.
const MOST_BYTES: usize = 20_000_000;

/// The samples of a page.
pub(super) struct Embedded {
    /// For each task, the samples in the page and all samples.
    pub(super) counts: Vec<(usize, usize)>,
    /// For each task, its filters.
    pub(super) filters: Vec<Vec<String>>,
    /// The element that holds the samples.
    pub(super) data: String,
}

/// Chooses the samples of a page.
pub(super) fn embed(evaluation: &Evaluation, runs: &[ModelRun]) -> Result<Embedded, Error> {
    embed_within(evaluation, runs, MOST_SAMPLES, MOST_BYTES)
}

/// Chooses at most `most` samples of each task, and `bytes` bytes of all.
pub(super) fn embed_within(
    evaluation: &Evaluation,
    runs: &[ModelRun],
    most: usize,
    bytes: usize,
) -> Result<Embedded, Error> {
    let mut tasks = Vec::with_capacity(evaluation.tasks.len());
    for (index, prepared) in evaluation.tasks.iter().enumerate() {
        tasks.push(TaskSamples::new(prepared, runs, index)?);
    }
    let mut left = tasks.iter().fold(bytes, |left, task| left.saturating_sub(task.head.len()));

    // One sample of each task in turn, so that no task takes the room of the others.
    for place in 0..most {
        let mut is_full = true;
        for task in &mut tasks {
            let Some(&document) = task.order.get(place) else { continue };
            let sample = task.sample(document)?;
            if sample.len() < left {
                left -= sample.len() + 1;
                task.chosen.push((document, sample));
                is_full = false;
            }
        }
        if is_full {
            break;
        }
    }

    let models: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let mut json = format!("{{\"models\":{},\"tasks\":[", safe_json(&models)?);
    for (index, task) in tasks.iter_mut().enumerate() {
        task.chosen.sort_by_key(|(document, _)| *document);
        let samples: Vec<&str> = task.chosen.iter().map(|(_, sample)| sample.as_str()).collect();
        let comma = if index == 0 { "" } else { "," };
        let left_out = task.order.len() - samples.len();
        let samples = samples.join(",\n");
        let _ = write!(json, "{comma}\n{{{},\"left_out\":{left_out},\"samples\":[\n{samples}]}}", task.head);
    }
    Ok(Embedded {
        counts: tasks.iter().map(|task| (task.chosen.len(), task.order.len())).collect(),
        filters: tasks.iter().map(TaskSamples::filter_names).collect(),
        data: format!("<script type=\"application/json\" id=\"samples-data\">{json}]}}</script>\n"),
    })
}

/// The samples of one task.
struct TaskSamples<'a> {
    prepared: &'a PreparedTask,
    /// For each model, its samples.
    samples: Vec<&'a [Sample]>,
    filters: Vec<&'a str>,
    opening: Opening,
    /// The first members of the task's JSON object.
    head: String,
    /// The documents, the most telling first.
    order: Vec<usize>,
    /// The documents in the page, as JSON.
    chosen: Vec<(usize, String)>,
}

impl<'a> TaskSamples<'a> {
    fn new(prepared: &'a PreparedTask, runs: &'a [ModelRun], index: usize) -> Result<Self, Error> {
        let documents = &prepared.documents.documents;
        let samples: Vec<&[Sample]> =
            runs.iter().map(|run| run.samples.get(index).map_or(&[][..], Vec::as_slice)).collect();
        let scored = samples.iter().flat_map(|samples| samples.iter()).find(|s| !s.scored.is_empty());
        let filters: Vec<&str> =
            scored.map_or_else(Vec::new, |s| s.scored.iter().map(|scored| scored.filter.as_str()).collect());

        let opening = Opening::of(documents);
        let first = documents.iter().flat_map(|document| &document.requests).next();
        let shared = first.map_or_else(Vec::new, |request| opening.text(&turns(request)));
        let head = format!(
            "\"task\":{},\"filters\":{},\"opening\":{}",
            safe_json(&prepared.task.task)?,
            safe_json(&filters)?,
            safe_json(&shared)?
        );

        let mut order: Vec<usize> = (0..documents.len()).collect();
        let task = Self { prepared, samples, filters, opening, head, order: Vec::new(), chosen: Vec::new() };
        order.sort_by_cached_key(|&document| task.rank(document));
        Ok(Self { order, ..task })
    }

    fn filter_names(&self) -> Vec<String> {
        self.filters.iter().map(|&filter| filter.to_owned()).collect()
    }

    /// The samples of all models for one document.
    fn of_document(&self, document: usize) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter_map(move |samples| samples.get(document))
    }

    /// 0 where models differ, 1 where one is not right, 2 otherwise.
    fn rank(&self, document: usize) -> u8 {
        let differ = |filter: usize| {
            let mut verdicts =
                self.of_document(document).filter_map(|sample| sample.scored.get(filter)?.correct);
            let first = verdicts.next();
            verdicts.any(|verdict| Some(verdict) != first)
        };
        let is_wrong = |scored: &Scored| scored.unparsed || scored.correct == Some(false);
        if (0..self.filters.len()).any(differ) {
            0
        } else if self.of_document(document).any(|s| s.problem.is_some() || s.scored.iter().any(is_wrong)) {
            1
        } else {
            2
        }
    }

    /// A document with all its answers, as JSON for the page.
    fn sample(&self, index: usize) -> Result<String, Error> {
        let document = &self.prepared.documents.documents[index];
        let mut prompts: Vec<Vec<Turn<'_>>> =
            document.requests.iter().map(|request| self.opening.rest(turns(request))).collect();
        prompts.dedup();
        let right = (0..document.choices.len()).filter(|&choice| document.target.is_right(choice));
        let normalized = |metric: &MetricConfig| matches!(metric, MetricConfig::AccNorm {});
        let has_normalized = self.prepared.task.metric_list.iter().any(normalized);
        let target = match &document.target {
            Target::Text(text) => Some(text.clone()),
            Target::Texts(texts) => Some(texts.join("\n")),
            Target::Index(_) | Target::Indices(_) => None,
        };
        let models = self.samples.iter().map(|samples| match samples.get(index) {
            Some(sample) => Answered::new(sample, document, has_normalized),
            None => Answered::missing(),
        });

        safe_json(&Shown {
            id: document.doc_id,
            prompts,
            choices: &document.choices,
            right: right.collect(),
            target,
            scored_text: self.scored_text(document),
            models: models.collect(),
        })
    }

    /// The text whose log-likelihood is asked for, where it is no choice.
    fn scored_text(&self, document: &'a Document) -> Option<&'a str> {
        if self.prepared.task.output_type != OutputType::MultipleContext {
            return None;
        }
        match document.requests.first()? {
            Request::Loglikelihood { continuation, .. } => Some(continuation),
            _ => None,
        }
    }
}
