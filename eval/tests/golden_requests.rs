//! The prompts of the built-in tasks, byte for byte those that lm-evaluation-harness 0.4.13 sends
//! (`golden/lm_eval/requests`): version, examples, contexts, continuations, stop texts and targets.
//!
//! The recordings hold hashes, no text, so the rows are made from public files beside the repository
//! (`golden_requests/convert.rs`). Without these files nothing is compared. `FIRST_OF_SEVERAL` is the only
//! difference that is allowed.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "golden_requests/convert.rs"]
mod convert;
#[path = "golden_requests/recording.rs"]
mod recording;

use std::fmt::Debug;

use convert::{Conversion, Data};
use datasets::template::built_in;
use datasets::{ChatTemplate, RenderOptions};
use eval::document::{Document, Target};
use eval::evaluation::{Evaluation, PreparedTask};
use eval::request::{Prompt, Request, sha256};
use eval::task::{OutputType, Registry, Task};
use recording::{Digest, RecordedDocument, RecordedTarget, Recording};
use serde_json::{Value, json};

/// Tasks of the harness that the program does not have.
const NOT_OURS: [&str; 1] = ["bbq_generate"];

/// Tasks in which several choices may be right. For them `doc_to_target` of the harness gives the first one
/// alone, as the answer of an example; their scoring reads the row. Ours gives all.
const FIRST_OF_SEVERAL: [&str; 3] = ["bbq", "bbq_ambig", "truthfulqa_mc2"];

/// The tokens of a reply, where the harness names no number.
const MAX_GEN_TOKS: usize = 256;
/// The differences that a failure shows.
const SHOWN: usize = 20;

#[test]
fn multiple_choice_and_loglikelihood() {
    let sources: [Conversion; 11] = [
        convert::arc,
        convert::boolq,
        convert::commonsense_qa,
        convert::hellaswag,
        convert::lambada,
        convert::openbookqa,
        convert::piqa,
        convert::social_iqa,
        convert::truthfulqa,
        convert::wikitext,
        convert::winogrande,
    ];
    check(&["choice"], &sources, 23);
}

#[test]
fn mmlu() {
    check(&["mmlu"], &[convert::mmlu], 114);
}

#[test]
fn blimp() {
    check(&["blimp"], &[convert::blimp], 67);
}

#[test]
fn bbh() {
    check(&["bbh_cot_fewshot", "bbh_zeroshot"], &[convert::bbh], 54);
}

#[test]
fn agieval() {
    check(&["agieval"], &[convert::agieval], 19);
}

#[test]
fn bbq_and_crows_pairs() {
    check(&["bbq", "crows_pairs"], &[convert::bbq, convert::crows_pairs], 14);
}

#[test]
fn math() {
    check(&["hendrycks_math", "minerva_math"], &[convert::math], 23);
}

#[test]
fn generation() {
    let sources: [Conversion; 5] =
        [convert::aime, convert::gsm8k, convert::humaneval, convert::ifeval, convert::mbpp];
    check(&["generation"], &sources, 10);
}

#[test]
fn conversations_and_system_instructions() {
    let sources: [Conversion; 14] = [
        convert::arc,
        convert::bbh,
        convert::bbq,
        convert::boolq,
        convert::gsm8k,
        convert::hellaswag,
        convert::humaneval,
        convert::ifeval,
        convert::lambada,
        convert::math,
        convert::mbpp,
        convert::mmlu,
        convert::truthfulqa,
        convert::winogrande,
    ];
    check(&["chat"], &sources, 24);
}

/// Compares the recordings of `files`, of which `count` are of tasks that the program has.
fn check(files: &[&str], sources: &[Conversion], count: usize) {
    let Some(data) = Data::new(sources) else { return };
    let registry = Registry::embedded().unwrap();
    let template = ChatTemplate::new("chatml", built_in("chatml").unwrap()).unwrap();

    let mut compared = 0;
    let mut differences = Vec::new();
    for file in files {
        for recording in Recording::read(file) {
            if NOT_OURS.contains(&recording.task.as_str()) {
                assert!(registry.task(&recording.task).is_none(), "compare {}", recording.name);
                continue;
            }
            let options = recording.options(*file == "chat");
            let selection = registry.select(&[&recording.task]).unwrap();
            let mut comparison = Comparison {
                template: &template,
                recording: &recording,
                place: String::new(),
                found: vec![],
            };
            match Evaluation::prepare(selection, data.path(), options) {
                Ok(evaluation) => comparison.task(&evaluation.tasks[0]),
                Err(error) => comparison.note(&format!("cannot be prepared: {}", chain(&error))),
            }
            differences.extend(comparison.found);
            compared += 1;
        }
    }

    let first = &differences[..differences.len().min(SHOWN)];
    assert!(first.is_empty(), "{} differences, the first:\n{}", differences.len(), first.join("\n"));
    assert_eq!(compared, count, "recordings of {files:?}");
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Collects what differs from one recording.
struct Comparison<'a> {
    template: &'a ChatTemplate,
    recording: &'a Recording,
    /// The document and the request under comparison.
    place: String,
    found: Vec<String>,
}

impl Comparison<'_> {
    fn task(&mut self, prepared: &PreparedTask) {
        let (task, documents, recording) = (&prepared.task, &prepared.documents, self.recording);
        self.equal("version", &task.version.map_or_else(|| json!("Yaml"), Value::from), &recording.version);
        self.equal("shots", &documents.shots, &recording.shots);
        self.equal("documents", &documents.documents.len(), &recording.documents.len());
        // What is asked about several contexts is multiple choice in the harness.
        let output_type = match task.output_type {
            OutputType::MultipleContext => json!("multiple_choice"),
            other => serde_json::to_value(other).unwrap(),
        };
        self.equal("output type", &output_type, &json!(recording.output_type));
        let filters: Vec<&str> = task.filter_list.iter().map(|pipeline| pipeline.name.as_str()).collect();
        let filters = if filters.is_empty() { vec!["none"] } else { filters };
        self.equal("filters", &json!(filters), &json!(recording.filters));
        if task.output_type == OutputType::GenerateUntil {
            self.equal("repeats", &task.generation_kwargs.repeats, &recording.repeats);
        }

        for (ours, theirs) in documents.documents.iter().zip(&recording.documents) {
            self.document(task, ours, theirs);
        }
    }

    fn document(&mut self, task: &Task, ours: &Document, theirs: &RecordedDocument) {
        self.place = format!(", document {}", theirs.doc);
        self.equal("number", &ours.doc_id, &theirs.doc);
        self.equal("rows of the examples", &ours.fewshot_rows, &theirs.fewshot_rows);
        self.equal("number of requests", &ours.requests.len(), &theirs.requests);
        if !is_target(task, ours, &theirs.target) {
            self.note(&format!("target: ours {:?}, recorded {:?}", ours.target, theirs.target));
        }
        for (index, request) in ours.requests.iter().enumerate() {
            self.place = format!(", document {}, request {index}", theirs.doc);
            self.request(index, request, theirs);
        }
    }

    fn request(&mut self, index: usize, ours: &Request, theirs: &RecordedDocument) {
        let (context, continuation, text) = match ours {
            Request::Loglikelihood { context, continuation } => (Some(context), Some(continuation), None),
            Request::LoglikelihoodRolling { text } => (None, None, Some(text)),
            Request::GenerateUntil { context, .. } => (Some(context), None, None),
        };
        let context = context.map(|context| self.rendered(context));
        self.text("context", index, context.as_ref(), theirs.context.as_deref());
        self.text("continuation", index, continuation, theirs.continuation.as_deref());
        self.text("text", index, text, theirs.text.as_deref());

        if let Request::GenerateUntil { until, max_gen_toks, temperature, .. } = ours {
            let (recording, kwargs) = (self.recording, &self.recording.gen_kwargs);
            self.equal("until", until, &recording.until);
            self.equal("max_gen_toks", max_gen_toks, &kwargs.max_gen_toks.unwrap_or(MAX_GEN_TOKS));
            self.equal("temperature", temperature, &kwargs.temperature.unwrap_or(0.0));
        }
    }

    /// The prompt as text, with the generation prompt after a conversation.
    fn rendered(&self, prompt: &Prompt) -> String {
        match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Chat(messages) => {
                let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
                self.template.render(messages, &options).unwrap().text
            }
        }
    }

    /// Compares a text of the request `index` with its digest.
    fn text(&mut self, what: &str, index: usize, ours: Option<&String>, theirs: Option<&[Digest]>) {
        const END: usize = 120;
        let theirs = theirs.map(|all| if all.len() == 1 { Some(&all[0]) } else { all.get(index) });
        let (ours, theirs) = match (ours, theirs) {
            (None, None) => return,
            (Some(ours), Some(Some(theirs))) => (ours, theirs),
            (ours, _) => return self.note(&format!("{what}: ours {ours:?}, recorded {theirs:?}")),
        };

        let length = ours.chars().count();
        if length != theirs.1 || sha256(ours.as_bytes()) != theirs.0 {
            let end: String = ours.chars().skip(length.saturating_sub(END)).collect();
            self.note(&format!("{what}: {length} characters, recorded {}; it ends {end:?}", theirs.1));
        }
    }

    fn equal<T: Debug + PartialEq>(&mut self, what: &str, ours: &T, theirs: &T) {
        if ours != theirs {
            self.note(&format!("{what}: ours {ours:?}, recorded {theirs:?}"));
        }
    }

    fn note(&mut self, difference: &str) {
        self.found.push(format!("{}{}: {difference}", self.recording.name, self.place));
    }
}

/// Whether a target of the harness means the same as ours.
fn is_target(task: &Task, document: &Document, theirs: &RecordedTarget) -> bool {
    match (theirs, &document.target) {
        (RecordedTarget::Number(number), Target::Index(index)) => number == index,
        (RecordedTarget::Number(number), Target::Text(text)) => number.to_string() == *text,
        (RecordedTarget::Number(number), Target::Indices(indices)) => {
            FIRST_OF_SEVERAL.contains(&task.task.as_str()) && indices.first() == Some(number)
        }
        (RecordedTarget::Numbers(numbers), Target::Indices(indices)) => numbers == indices,
        (RecordedTarget::Numbers(_), _) | (RecordedTarget::Number(_), Target::Texts(_)) => false,
        (RecordedTarget::Hash { sha256: hash }, target) => {
            let text = match (task.output_type, target) {
                (OutputType::MultipleContext, Target::Index(index)) => gap_target(document, *index),
                // The harness may have the text of a choice where we have its index.
                _ => target.text(&document.choices).unwrap(),
            };
            sha256(text.as_bytes()) == *hash
        }
    }
}

/// The target of a row with a gap: for the harness the text after the gap, for us the index of the noun.
fn gap_target(document: &Document, index: usize) -> &str {
    assert_eq!(document.row["answer"], (index + 1).to_string(), "row {}", document.doc_id);
    match &document.requests[0] {
        Request::Loglikelihood { continuation, .. } => continuation.trim_start(),
        _ => panic!("row {} asks for no log-likelihood", document.doc_id),
    }
}
