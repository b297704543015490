//! The data of `judge.json` and `judgements.jsonl`, and their form as Markdown.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::judge::{AnswerSheet, Comparison, JudgedPair, Outcome, Rated, standings};
use crate::page::{Table, escape_markdown};
use crate::statistics::{Anchor, Ratings};

/// The version of `judge.json`.
pub const FORMAT: u32 = 1;
/// The rating of the baseline on the scale of Elo.
const ANCHOR: f64 = 1000.0;
/// The bootstrap resamples of the ratings. Each fits a model.
const RESAMPLES: usize = 1000;

/// A model whose answers are judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedModel {
    /// The name.
    pub name: String,
    /// The hash of the model, or of its answers if a file held them.
    pub digest: String,
    /// The questions with an answer.
    pub answered: usize,
    /// The questions without an answer. They are not judged.
    pub unanswered: usize,
    /// Why the first of them has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The replies that ended at the limit of tokens.
    pub cut: usize,
    /// The mean length of a reply, in characters.
    pub mean_length: f64,
}

impl From<&AnswerSheet> for JudgedModel {
    fn from(sheet: &AnswerSheet) -> Self {
        let missing = sheet.missing();
        let unanswered = missing.map_or(0, |(count, _)| count);
        Self {
            name: sheet.model.clone(),
            digest: sheet.digest.clone(),
            answered: sheet.replies.len() - unanswered,
            unanswered,
            problem: missing.map(|(_, problem)| problem.to_owned()),
            cut: sheet.cut,
            mean_length: sheet.mean_length(),
        }
    }
}

/// What a judge said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeResults {
    /// [`FORMAT`].
    pub format: u32,
    /// The program and its version.
    pub program: String,
    /// The settings, as the command line gave them.
    pub settings: Value,
    /// The name of the judge.
    pub judge: String,
    /// The number of questions.
    pub questions: usize,
    /// The models, in the order of the command line.
    pub models: Vec<JudgedModel>,
    /// The ratings of each model, if the judge rated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratings: Vec<Rated>,
    /// Each model against the baseline, if the judge compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// The models on one scale, if the comparisons allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standings: Option<Ratings>,
    /// What speaks against these numbers, besides the warnings of each rating and comparison.
    pub warnings: Vec<String>,
}

impl JudgeResults {
    /// The results of a judge on the answers of `sheets`. `items` hold rows among all questions.
    pub fn new(
        judge: &str,
        sheets: &[AnswerSheet],
        ratings: Vec<Rated>,
        comparisons: Vec<Comparison>,
    ) -> Result<Self, Error> {
        let mut results = Self {
            format: FORMAT,
            program: String::new(),
            settings: Value::Null,
            judge: judge.to_owned(),
            questions: sheets.first().map_or(0, |sheet| sheet.replies.len()),
            models: sheets.iter().map(JudgedModel::from).collect(),
            ratings,
            comparisons,
            standings: None,
            warnings: Vec::new(),
        };
        for model in &results.models {
            results.warnings.extend(warnings_of_model(model));
        }
        if let Some(first) = results.comparisons.first() {
            let anchor = Anchor { model: &first.baseline, rating: ANCHOR };
            match standings(&results.comparisons, anchor, RESAMPLES) {
                Ok(found) => results.standings = Some(found),
                Err(error @ Error::Undetermined { .. }) => {
                    results.warnings.push(format!("there are no standings: {error}"));
                }
                // Without a single vote a model is on no scale.
                Err(Error::UnknownAnchor { .. } | Error::TooFew { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(results)
    }

    /// The contents of `judge.json`: everything but the items, which are in `judgements.jsonl`.
    pub fn summary(&self) -> Result<Value, Error> {
        let mut value = serde_json::to_value(self)?;
        for key in ["ratings", "comparisons"] {
            let parts = value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
            parts.filter_map(Value::as_object_mut).for_each(|part| {
                part.remove("items");
            });
        }
        Ok(value)
    }

    /// The rows of `judgements.jsonl`: one for each rated turn and for each pair.
    pub fn judgements(&self) -> Result<Vec<Value>, Error> {
        let mut rows = Vec::new();
        for rated in &self.ratings {
            for item in &rated.items {
                rows.push(judgement(&json!({"model": rated.model}), item)?);
            }
        }
        for comparison in &self.comparisons {
            let (system, baseline) = (&comparison.system, &comparison.baseline);
            for item in &comparison.items {
                let head = json!({"system": system, "baseline": baseline, "outcome": item.outcome()});
                rows.push(judgement(&head, item)?);
            }
        }
        Ok(rows)
    }

    /// All warnings, each once, with the models that they are about.
    pub fn all_warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        for rated in &self.ratings {
            warnings.extend(rated.warnings.iter().map(|warning| format!("{}: {warning}", rated.model)));
        }
        for comparison in &self.comparisons {
            let name = format!("{} against {}", comparison.system, comparison.baseline);
            warnings.extend(comparison.warnings.iter().map(|warning| format!("{name}: {warning}")));
        }
        warnings
    }

    /// The protocol ids: judgements are comparable exactly if theirs are equal.
    pub fn protocols(&self) -> Vec<(String, &str)> {
        let ratings = self.ratings.iter().map(|rated| (rated.model.clone(), rated.by.protocol_id.as_str()));
        let comparisons = self.comparisons.iter().map(|comparison| {
            let name = format!("{} against {}", comparison.system, comparison.baseline);
            (name, comparison.by.protocol_id.as_str())
        });
        ratings.chain(comparisons).collect()
    }

    /// The turns and pairs that the judge was shown, and how many of them have a verdict.
    pub fn verdicts(&self) -> (usize, usize) {
        let turns = self.ratings.iter().flat_map(|rated| &rated.items).map(|item| item.rating.is_some());
        let pairs = self.comparisons.iter().flat_map(|comparison| &comparison.items);
        let is_decided =
            |pair: &JudgedPair| matches!(pair.outcome(), Outcome::Win | Outcome::Tie | Outcome::Loss);
        let all: Vec<bool> = turns.chain(pairs.map(is_decided)).collect();
        (all.len(), all.iter().filter(|has_verdict| **has_verdict).count())
    }

    /// The turns and pairs that the judge could not answer, how many there are in all, and why the first of
    /// them has no verdict.
    pub fn failures(&self) -> Vec<(String, usize, usize, &str)> {
        let mut failures = Vec::new();
        for rated in self.ratings.iter().filter(|rated| rated.failed > 0) {
            let first = rated.items.iter().find_map(|item| item.failed.as_deref()).unwrap_or_default();
            failures.push((format!("turns of {}", rated.model), rated.failed, rated.items.len(), first));
        }
        for comparison in self.comparisons.iter().filter(|comparison| comparison.failed > 0) {
            let mut orders = comparison.items.iter().flat_map(|item| &item.orders);
            let first = orders.find_map(|order| order.failed.as_deref()).unwrap_or_default();
            let what = format!("pairs of {} and {}", comparison.system, comparison.baseline);
            failures.push((what, comparison.failed, comparison.items.len(), first));
        }
        failures
    }

    /// The tables, warnings and protocol ids as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Judged by {}\n\n{} questions, {} models.\n",
            escape_markdown(&self.judge),
            self.questions,
            self.models.len()
        );
        for table in self.tables() {
            let _ = write!(text, "\n## {}\n\n{}", escape_markdown(&table.title), table.markdown());
        }
        let warnings = self.all_warnings();
        if !warnings.is_empty() {
            text.push_str("\n## Warnings\n\n");
            for warning in warnings {
                let _ = writeln!(text, "- {}", escape_markdown(&warning));
            }
        }
        let protocols = Table::of(
            "Protocols",
            2,
            &self.protocols(),
            &[("judged", &|(name, _)| name.clone()), ("id", &|(_, id)| (*id).to_owned())],
        );
        text + "\n## Protocols\n\n" + &protocols.markdown()
    }
}

/// An item with what it belongs to.
fn judgement(head: &Value, item: &impl Serialize) -> Result<Value, Error> {
    let mut row: Map<String, Value> = head.as_object().cloned().unwrap_or_default();
    if let Value::Object(item) = serde_json::to_value(item)? {
        row.extend(item);
    }
    Ok(Value::Object(row))
}

fn warnings_of_model(model: &JudgedModel) -> Vec<String> {
    let JudgedModel { name, unanswered, cut, .. } = model;
    let mut warnings = Vec::new();
    if *unanswered > 0 {
        warnings.push(format!("{unanswered} questions have no answer of {name} and are not judged"));
    }
    if *cut > 0 {
        warnings.push(format!(
            "{cut} replies of {name} end at the limit of tokens, and judges mark unfinished answers down: raise \
             --max-gen-toks"
        ));
    }
    warnings
}
