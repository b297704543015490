//! The browser of samples: its controls, and the samples as JSON in the page.
//!
//! A page holds at most [`MOST_SAMPLES`] samples of a task and [`MOST_BYTES`] in all, shared fairly by the
//! tasks. Samples that models judge differently come first, then those that are not right, then the rest;
//! each kind in the order of the rows. What all prompts of a task begin with is stored once.
//!
//! The JSON holds no character that could end its element, and none that reorders text on screen. Numbers are
//! texts, written as in the tables, so that the script formats none.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Section, count};
use crate::Error;
use crate::aggregate::numbers;
use crate::document::{Document, Target};
use crate::evaluation::{Evaluation, ModelRun, PreparedTask, Sample};
use crate::report::{escape_html, isolated};
use crate::request::{Prompt, Request, Response};
use crate::results::number;
use crate::score::{MetricValue, Scored};
use crate::task::{MetricConfig, OutputType};

/// The most samples of a task in the page.
const MOST_SAMPLES: usize = 500;
/// The most bytes of samples in the page.
const MOST_BYTES: usize = 20_000_000;
/// The shortest common beginning of prompts that is stored once, in bytes.
const SHORTEST_OPENING: usize = 200;

/// The samples of a page.
pub(super) struct Embedded {
    /// For each task, the samples in the page and all samples.
    counts: Vec<(usize, usize)>,
    /// For each task, its filters.
    filters: Vec<Vec<String>>,
    /// The element that holds the samples.
    pub(super) data: String,
}

impl Embedded {
    /// For each task, the samples in the page and all samples.
    pub(super) fn counts(&self) -> &[(usize, usize)] {
        &self.counts
    }
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
            None => Answered { problem: Some("there is no sample"), ..Answered::default() },
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

/// A turn of a prompt: the role, empty for plain text, and the text.
type Turn<'a> = (&'static str, &'a str);

fn turns(request: &Request) -> Vec<Turn<'_>> {
    let context = match request {
        Request::LoglikelihoodRolling { text } => return vec![("", text.as_str())],
        Request::Loglikelihood { context, .. } | Request::GenerateUntil { context, .. } => context,
    };
    match context {
        Prompt::Text(text) => vec![("", text.as_str())],
        Prompt::Chat(messages) => {
            messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect()
        }
    }
}

/// What all prompts of a task begin with: whole turns, and bytes of the next one up to the end of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Opening {
    turns: usize,
    bytes: usize,
}

impl Opening {
    /// The common beginning of the prompts of documents; nothing if it is short, or all that there is.
    fn of(documents: &[Document]) -> Self {
        let mut prompts = documents.iter().flat_map(|document| &document.requests).map(turns);
        let Some(first) = prompts.next() else { return Self::default() };
        let Some(shared) = prompts.map(|prompt| Self::shared(&first, &prompt)).min() else {
            return Self::default();
        };
        let Some(next) = first.get(shared.turns) else { return Self::default() };

        let line_end = next.1.as_bytes()[..shared.bytes].iter().rposition(|&byte| byte == b'\n');
        let bytes = line_end.map_or(0, |at| at + 1);
        let whole: usize = first[..shared.turns].iter().map(|turn| turn.1.len()).sum();
        if whole + bytes < SHORTEST_OPENING { Self::default() } else { Self { bytes, ..shared } }
    }

    /// How far two prompts agree.
    fn shared(left: &[Turn<'_>], right: &[Turn<'_>]) -> Self {
        let turns = left.iter().zip(right).take_while(|(left, right)| left == right).count();
        let bytes = match (left.get(turns), right.get(turns)) {
            (Some(left), Some(right)) if left.0 == right.0 => {
                left.1.bytes().zip(right.1.bytes()).take_while(|(left, right)| left == right).count()
            }
            _ => 0,
        };
        Self { turns, bytes }
    }

    /// The beginning itself.
    fn text<'t>(self, prompt: &[Turn<'t>]) -> Vec<Turn<'t>> {
        let mut text: Vec<Turn<'t>> = prompt.iter().take(self.turns).copied().collect();
        if self.bytes > 0 {
            text.extend(prompt.get(self.turns).map(|(role, text)| (*role, &text[..self.bytes])));
        }
        text
    }

    /// A prompt without its beginning.
    fn rest<'t>(self, prompt: Vec<Turn<'t>>) -> Vec<Turn<'t>> {
        let mut rest: Vec<Turn<'t>> = prompt.into_iter().skip(self.turns).collect();
        if let Some(first) = rest.first_mut() {
            first.1 = &first.1[self.bytes..];
        }
        rest
    }
}

/// A document in the page.
#[derive(Serialize)]
struct Shown<'a> {
    id: usize,
    prompts: Vec<Vec<Turn<'a>>>,
    choices: &'a [String],
    right: Vec<usize>,
    target: Option<String>,
    scored_text: Option<&'a str>,
    models: Vec<Answered<'a>>,
}

/// The answers of one model to a document.
#[derive(Default, Serialize)]
struct Answered<'a> {
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
    fn new(sample: &'a Sample, document: &Document, has_normalized: bool) -> Self {
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

/// JSON that may stand in an element of a page: what could end the element or reorder text is escaped.
pub(super) fn safe_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    let json = serde_json::to_string(value)?;
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<'
            | '>'
            | '&'
            | '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}' => {
                let _ = write!(safe, "\\u{:04x}", character as u32);
            }
            other => safe.push(other),
        }
    }
    Ok(safe)
}

/// The controls of the browser. The script shows them, and fills in the rest.
pub(super) fn section(embedded: &Embedded, evaluation: &Evaluation, runs: &[ModelRun]) -> Section {
    let mut body = String::new();
    let left_out: usize = embedded.counts.iter().map(|(shown, all)| all - shown).sum();
    let shown: usize = embedded.counts.iter().map(|(shown, _)| shown).sum();
    if left_out > 0 {
        let _ = writeln!(
            body,
            "<p class=\"note\">{} are in this page, and {left_out} are not: those on which models differ come \
             first, then those that are not right. The protocols above say how many there are of each task. \
             All samples are in the folder <code>samples</code> beside this page.</p>",
            count(shown, "sample", "samples"),
        );
    }
    body.push_str(
        "<p class=\"no-script\">The browser of samples needs scripts, and they are off. All samples are in the \
         folder <code>samples</code> beside this page.</p>\n",
    );
    body.push_str(&controls(embedded, evaluation, runs));
    body.push_str("<p class=\"shown\" role=\"status\"></p>\n");
    let pages = |label: &str| {
        format!(
            "<nav class=\"pages\" aria-label=\"pages of samples, {label}\" hidden>\
             <button type=\"button\" data-step=\"-1\">← earlier</button> <span class=\"page\"></span> \
             <button type=\"button\" data-step=\"1\">later →</button></nav>\n"
        )
    };
    let _ = write!(body, "{}<div class=\"list\"></div>\n{}", pages("above"), pages("below"));
    Section { id: "samples", heading: "Samples", body }
}

fn controls(embedded: &Embedded, evaluation: &Evaluation, runs: &[ModelRun]) -> String {
    let mut form = String::from(
        "<form class=\"filters\" hidden>\n<label>task <select name=\"task\"><option value=\"\">all tasks</option>",
    );
    for (index, prepared) in evaluation.tasks.iter().enumerate() {
        let task = escape_html(&prepared.task.task);
        for (filter, name) in embedded.filters[index].iter().enumerate() {
            let name = if embedded.filters[index].len() > 1 {
                format!(", {}", escape_html(name))
            } else {
                String::new()
            };
            let _ = write!(form, "<option value=\"{index}:{filter}\">{task}{name}</option>");
        }
    }
    form.push_str(
        "</select></label>\n<label>model <select name=\"model\"><option value=\"\">any model</option>",
    );
    for (index, run) in runs.iter().enumerate() {
        let _ = write!(form, "<option value=\"{index}\" dir=\"auto\">{}</option>", escape_html(&run.name));
    }
    form.push_str(
        "</select></label>\n<label class=\"search\">text <input type=\"search\" name=\"text\" dir=\"auto\" \
         autocomplete=\"off\" placeholder=\"in prompts, choices and replies\"></label>\n<fieldset>\n\
         <legend>show</legend>\n",
    );

    let mut kinds = vec![
        ("all", "all"),
        ("right", "right"),
        ("wrong", "wrong"),
        ("unparsed", "unparsed"),
        ("failed", "failed"),
    ];
    if runs.len() > 1 {
        kinds.extend([("lost", "right → wrong"), ("gained", "wrong → right")]);
    }
    for (kind, label) in kinds {
        let checked = if kind == "all" { " checked" } else { "" };
        let _ = writeln!(
            form,
            "<label><input type=\"radio\" name=\"kind\" value=\"{kind}\"{checked}> {label} \
             <span class=\"count\" data-kind=\"{kind}\"></span></label>"
        );
    }
    form.push_str("</fieldset>\n");
    if let Some(first) = runs.first().filter(|_| runs.len() > 1) {
        let _ = writeln!(
            form,
            "<p class=\"note\">Unparsed replies are among the wrong ones. → is from {} to the model above. All \
             tasks: each by its first filter.</p>",
            isolated(&first.name)
        );
    }
    form + "</form>\n"
}
