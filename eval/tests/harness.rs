//! Whole evaluations with a double in place of a model: what is asked, what is scored, what remains after a
//! process was killed, and what a bad task file or bad rows are told.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use eval::document::PromptOptions;
use eval::evaluation::{Evaluation, ModelRun, Score};
use eval::request::{LanguageModel, OnResponses, Prompt, Request, Response};
use eval::response_cache::ResponseCache;
use eval::results::Results;
use eval::task::Registry;
use serde_json::json;
use tempfile::TempDir;

/// Answers from a table of continuations, in batches of two, and stops after some batches as if killed.
struct Double {
    logprobs: BTreeMap<&'static str, f64>,
    replies: BTreeMap<&'static str, &'static str>,
    batches: usize,
    asked: Vec<Request>,
    /// The prompt that it does not answer.
    refused: Option<&'static str>,
    /// The tokens that every prompt for a reply loses.
    cut: usize,
}

impl Double {
    fn new(logprobs: &[(&'static str, f64)], replies: &[(&'static str, &'static str)]) -> Self {
        let logprobs = logprobs.iter().copied().collect();
        let replies = replies.iter().copied().collect();
        Self { logprobs, replies, batches: usize::MAX, asked: Vec::new(), refused: None, cut: 0 }
    }

    fn answer(&self, request: &Request) -> Response {
        match request {
            Request::Loglikelihood { continuation, .. } => match self.logprobs.get(continuation.as_str()) {
                Some(&logprob) => Response::Loglikelihood { logprob, is_greedy: logprob > -1.0, cut: 0 },
                None => Response::Failed { problem: format!("nothing is known of {continuation:?}") },
            },
            Request::LoglikelihoodRolling { text } => {
                Response::Loglikelihood { logprob: -(text.len() as f64), is_greedy: false, cut: 0 }
            }
            Request::GenerateUntil { context: Prompt::Text(context), .. }
                if self.refused.is_some_and(|refused| context.contains(refused)) =>
            {
                Response::Failed { problem: "refused".to_owned() }
            }
            Request::GenerateUntil { context: Prompt::Text(context), .. } => {
                let found = self.replies.iter().find(|(question, _)| context.ends_with(*question));
                let text = found.map_or("", |(_, reply)| *reply).to_owned();
                Response::Reply { tokens: text.len(), text, ended: true, cut: self.cut }
            }
            Request::GenerateUntil { .. } => Response::Failed { problem: "no conversations".to_owned() },
        }
    }
}

impl LanguageModel for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn digest(&self) -> &'static str {
        "0123"
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        for (batch, chunk) in requests.chunks(2).enumerate() {
            let first = 2 * batch;
            if (first..first + chunk.len()).all(|index| answered[index]) {
                continue;
            }
            if self.batches == 0 {
                return Err(eval::Error::Model { name: "double".into(), source: "killed".into() });
            }
            self.batches -= 1;
            self.asked.extend_from_slice(chunk);
            let answer = |(at, request)| (first + at, self.answer(request));
            on_responses(chunk.iter().enumerate().map(answer).collect())?;
        }
        Ok(())
    }
}

/// A folder with task files and rows.
struct Bench {
    folder: TempDir,
}

const CHOICE: &str = r#"
task = "colours"
version = 2
output_type = "multiple_choice"
description = "Answer.\n\n"
doc_to_text = "Q: {{ question }}\nA:"
doc_to_target = "{{ answer }}"
doc_to_choice = "{{ choices }}"
metric_list = [{ metric = "acc" }, { metric = "acc_norm" }, { metric = "acc_bytes" }]
[dataset]
folder = "colours"
split = "test"
[fewshot]
split = "dev"
sampler = "first_n"
"#;

const GENERATE: &str = r#"
task = "sums"
output_type = "generate_until"
doc_to_text = "{{ question }}"
doc_to_target = "{{ answer }}"
metric_list = [{ metric = "exact_match", ignore_case = true }]
[dataset]
folder = "sums"
split = "test"
[generation_kwargs]
until = ["\n"]
[[filter_list]]
name = "number"
filter = [{ function = "regex", regex_pattern = '(\d+)' }]
[[filter_list]]
name = "plain"
filter = [{ function = "take_first" }]
"#;

const COLOURS: [&str; 4] = [
    r#"{"question": "sky?", "choices": ["blue", "dark green"], "answer": 0}"#,
    r#"{"question": "grass?", "choices": ["red", "dark green"], "answer": 1}"#,
    r#"{"question": "天空?", "choices": ["蓝色的", "white"], "answer": 0}"#,
    r#"{"question": "snow?", "choices": ["white", "white smoke"], "answer": [0, 1]}"#,
];

const LOGPROBS: [(&str, f64); 6] = [
    (" blue", -4.0),
    (" dark green", -5.0),
    (" red", -0.5),
    (" 蓝色的", -6.0),
    (" white", -7.0),
    (" white smoke", -8.0),
];

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.write("tasks/colours.toml", CHOICE);
        bench.write("tasks/sums.toml", GENERATE);
        bench.write("data/colours/test.jsonl", &(COLOURS.join("\n") + "\n"));
        bench.write(
            "data/colours/dev.jsonl",
            "{\"question\": \"coal?\", \"choices\": [\"black\", \"white\"], \"answer\": 0}\n",
        );
        bench.write(
            "data/sums/test.jsonl",
            "{\"question\": \"1 + 1\", \"answer\": \"2\"}\n{\"question\": \"2 + 2\", \"answer\": \"4\"}\n\
             {\"question\": \"3 + 3\", \"answer\": \"six\"}\n",
        );
        bench
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn prepare(&self, tasks: &[&str], options: PromptOptions) -> Result<Evaluation, eval::Error> {
        let mut registry = Registry::default();
        registry.add_path(&self.path("tasks"))?;
        Evaluation::prepare(registry.select(tasks)?, &self.path("data"), options)
    }

    fn run(&self, evaluation: &Evaluation, model: &mut Double, cache: &str) -> Result<ModelRun, eval::Error> {
        let mut cache = ResponseCache::open(&self.path(cache))?;
        evaluation.run(model, &mut cache, &mut |_| ())
    }

    fn error(&self, tasks: &[&str]) -> String {
        let error = self.prepare(tasks, PromptOptions::default()).unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            write!(text, ": {cause}").unwrap();
            source = cause.source();
        }
        text
    }
}

fn score<'a>(run: &'a ModelRun, task: &str, metric: &str, filter: &str) -> &'a Score {
    let all = run.scores.iter().chain(&run.groups);
    let found =
        all.into_iter().find(|score| score.task == task && score.metric == metric && score.filter == filter);
    found.unwrap_or_else(|| panic!("no {task} {metric} {filter}"))
}

#[test]
fn choices_by_hand() {
    let bench = Bench::new();
    let evaluation = bench.prepare(&["colours"], PromptOptions::default()).unwrap();
    let run = bench.run(&evaluation, &mut Double::new(&LOGPROBS, &[]), "cache").unwrap();

    // By hand. acc: blue right (-4 > -5), red wrong (-0.5), 蓝色的 right (-6 > -7), white right: 3 of 4.
    // acc_norm, per character: blue -1, dark green -0.5: wrong; red -0.17: wrong; 蓝色的 -2, white -1.4: wrong;
    // white -1.4, white smoke -0.73, both right: 1 of 4. acc_bytes: 蓝色的 has 9 bytes, -0.67: right: 2 of 4.
    let value = |metric| score(&run, "colours", metric, "none").aggregated.value;
    assert_eq!([value("acc"), value("acc_norm"), value("acc_bytes")], [0.75, 0.25, 0.5]);
    // s² = 4 * 0.75 * 0.25 / 3 = 0.25, se = sqrt(0.25 / 4).
    let error = score(&run, "colours", "acc", "none").aggregated.standard_error.unwrap();
    assert!((error - 0.25).abs() < 1e-12);
    assert_eq!(run.failed(), 0);
    assert!(
        run.samples[0][1].scored[0].answer == "red" && run.samples[0][1].scored[0].correct == Some(false)
    );
}

#[test]
fn prompts_are_description_examples_and_question() {
    let bench = Bench::new();
    let options = PromptOptions { num_fewshot: Some(1), limit: Some(1), ..PromptOptions::default() };
    let evaluation = bench.prepare(&["colours"], options.clone()).unwrap();
    let document = &evaluation.tasks[0].documents.documents[0];
    let Request::Loglikelihood { context: Prompt::Text(context), continuation } = &document.requests[1]
    else {
        panic!("wanted a log-likelihood");
    };
    assert_eq!(context, "Answer.\n\nQ: coal?\nA: black\n\nQ: sky?\nA:");
    assert_eq!(continuation, " dark green");

    let system = PromptOptions { system_instruction: Some("Be brief.".to_owned()), ..options };
    let hash = |options| bench.prepare(&["colours"], options).unwrap().tasks[0].protocol_id();
    assert_ne!(hash(system.clone()), evaluation.tasks[0].protocol_id());
    let chat = PromptOptions { apply_chat_template: true, fewshot_as_multiturn: true, ..system };
    let evaluation = bench.prepare(&["colours"], chat).unwrap();
    let Request::Loglikelihood { context: Prompt::Chat(messages), continuation } =
        &evaluation.tasks[0].documents.documents[0].requests[0]
    else {
        panic!("wanted a conversation");
    };
    let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(texts, ["Be brief.\n\nAnswer.\n\n", "Q: coal?\nA:", "black", "Q: sky?\nA:"]);
    assert_eq!(continuation, "blue");
}

#[test]
fn replies_under_two_filters_and_unparsed_ones() {
    let bench = Bench::new();
    let evaluation = bench.prepare(&["sums"], PromptOptions::default()).unwrap();
    let mut model = Double::new(&[], &[("1 + 1", "it is 2"), ("2 + 2", "4"), ("3 + 3", "SIX")]);
    let run = bench.run(&evaluation, &mut model, "cache").unwrap();
    let number = score(&run, "sums", "exact_match", "number");
    assert_eq!((number.aggregated.value, number.unparsed), (2.0 / 3.0, 1));
    let plain = score(&run, "sums", "exact_match", "plain");
    assert_eq!((plain.aggregated.value, plain.unparsed), (2.0 / 3.0, 0));
}

#[test]
fn a_killed_evaluation_continues_to_the_same_results() {
    let bench = Bench::new();
    bench.write(
        "tasks/all.toml",
        "[[group]]\ngroup = \"all\"\ntasks = [\"colours\", \"s*\"]\nmetrics = [\"acc\"]\n",
    );
    let evaluation = bench.prepare(&["all"], PromptOptions::default()).unwrap();
    let replies = [("1 + 1", "2"), ("2 + 2", "5"), ("3 + 3", "")];
    let results = |run: ModelRun| {
        let run = ModelRun { elapsed: std::time::Duration::ZERO, ..run };
        let results =
            Results::new(&evaluation, std::slice::from_ref(&run), "p".to_owned(), json!({})).unwrap();
        (serde_json::to_string(&results).unwrap(), run)
    };
    let whole = results(bench.run(&evaluation, &mut Double::new(&LOGPROBS, &replies), "whole").unwrap());

    for killed_after in 0..6 {
        let cache = format!("killed-{killed_after}");
        let mut model = Double::new(&LOGPROBS, &replies);
        model.batches = killed_after;
        let first = bench.run(&evaluation, &mut model, &cache);
        let asked = model.asked.len();
        if first.is_err() {
            // The last line is cut off, as a process that is killed while it writes leaves it.
            let bytes = fs::read(bench.path(&cache)).unwrap();
            fs::write(bench.path(&cache), &bytes[..bytes.len() - bytes.len().min(7)]).unwrap();
        }
        let mut model = Double::new(&LOGPROBS, &replies);
        let second = results(bench.run(&evaluation, &mut model, &cache).unwrap());
        assert_eq!(second, whole, "killed after {killed_after} batches");
        assert!(model.asked.len() <= evaluation.num_requests() - asked + 2);
    }
}

#[test]
fn what_a_model_cannot_answer_is_named_and_asked_again() {
    let bench = Bench::new();
    let evaluation = bench.prepare(&["colours"], PromptOptions::default()).unwrap();
    let run = bench.run(&evaluation, &mut Double::new(&LOGPROBS[..5], &[]), "cache").unwrap();
    assert_eq!(run.failed(), 1);
    let acc = score(&run, "colours", "acc", "none");
    assert_eq!((acc.n, acc.failed, acc.aggregated.value), (3, 1, 2.0 / 3.0));
    assert!(run.samples[0][3].problem.as_ref().unwrap().contains("white smoke"));

    let mut model = Double::new(&LOGPROBS, &[]);
    let run = bench.run(&evaluation, &mut model, "cache").unwrap();
    assert_eq!((run.failed(), score(&run, "colours", "acc", "none").n), (0, 4));
    // Nothing but the batch of the failed request was asked again. A batch has two requests.
    assert_eq!(model.asked.len(), 2);
}

#[test]
fn models_are_compared_by_document() {
    let bench = Bench::new();
    let evaluation = bench.prepare(&["colours"], PromptOptions::default()).unwrap();
    let worse: Vec<(&str, f64)> = LOGPROBS.iter().map(|&(text, logprob)| (text, -10.0 - logprob)).collect();
    let first = bench.run(&evaluation, &mut Double::new(&worse, &[]), "first").unwrap();
    let second = bench.run(&evaluation, &mut Double::new(&LOGPROBS, &[]), "second").unwrap();
    let second = ModelRun { name: "other".to_owned(), ..second };
    let results = Results::new(&evaluation, &[first, second], "p".to_owned(), json!({})).unwrap();
    let acc = results.comparisons.iter().find(|comparison| comparison.metric == "acc").unwrap();
    // The reversed model has the second, and the row with two right choices: sky, grass and 天空 differ.
    assert_eq!((acc.more, acc.equal, acc.less), (2, 1, 1));
    assert_eq!(acc.difference.estimate.mean, 0.25);
    assert!(acc.p_value_holm >= acc.p_value && acc.p_value_holm <= 1.0);
    let text = results.markdown();
    assert!(text.contains("| colours | 2 | none | 0 | acc | ↑ | 0.7500 |"), "{text}");
    assert!(results.csv().lines().count() == 7);
}

#[test]
fn results_with_a_score_of_nan_can_be_read_again() {
    let bench = Bench::new();
    let metrics = "[{ metric = \"acc\" }, { metric = \"acc_norm\" }, { metric = \"acc_bytes\" }]";
    bench.write("tasks/colours.toml", &CHOICE.replace(metrics, "[{ metric = \"mc2\" }]"));
    let evaluation = bench.prepare(&["colours"], PromptOptions::default()).unwrap();
    // exp(-2000) is 0, so the share of the right choices is 0/0.
    let unlikely: Vec<(&str, f64)> = LOGPROBS.iter().map(|&(text, _)| (text, -2000.0)).collect();
    let run = bench.run(&evaluation, &mut Double::new(&unlikely, &[]), "cache").unwrap();
    let results = Results::new(&evaluation, &[run], "p".to_owned(), json!({})).unwrap();
    let read: Results = serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
    assert!(read.models[0].scores.iter().any(|score| score.aggregated.value.is_nan()), "{read:?}");
}

#[test]
fn groups_weigh_tasks_by_size() {
    let bench = Bench::new();
    bench.write("data/more/test.jsonl", &(COLOURS[..2].join("\n") + "\n"));
    let family = CHOICE
        .replace("task = \"colours\"", "task = \"{{ subset }}_colours\"")
        .replace("folder = \"colours\"", "folder = \"{{ subset }}\"")
        + "\n[[subset]]\nname = \"more\"\nversion = 3\n[[subset]]\nname = \"most\"\ndataset.folder = \"colours\"\n\
           [[group]]\ngroup = \"both\"\ntasks = [\"*_colours\"]\nmetrics = [\"acc\"]\n";
    bench.write("tasks/family.toml", &family);
    let evaluation = bench.prepare(&["both"], PromptOptions::default()).unwrap();
    assert_eq!(
        evaluation.tasks.iter().map(|task| task.task.version).collect::<Vec<_>>(),
        [Some(3.0), Some(2.0)]
    );
    let run = bench.run(&evaluation, &mut Double::new(&LOGPROBS, &[]), "cache").unwrap();
    let group = score(&run, "both", "acc", "none");
    // (1 + 3) of (2 + 4).
    assert!((group.aggregated.value - 4.0 / 6.0).abs() < 1e-12 && group.n == 6);
}

#[test]
fn bad_task_files_are_named_with_what_to_do() {
    let bench = Bench::new();
    for (from, to, words) in [
        ("metric_list", "metrics", "unknown field `metrics`"),
        ("{ metric = \"acc\" }", "{ metric = \"accuracy\" }", "accuracy"),
        ("{ metric = \"acc\" }", "{ metric = \"perplexity\" }", "does not give"),
        ("output_type = \"multiple_choice\"", "output_type = \"choice\"", "choice"),
        ("doc_to_choice = \"{{ choices }}\"", "", "doc_to_choice is missing"),
        ("{{ question }}", "{{ question", "doc_to_text"),
        ("folder = \"colours\"", "folder = \"../colours\"", "dataset.folder"),
        ("folder = \"colours\"", "folder = \"/etc\"", "dataset.folder"),
        ("task = \"colours\"", "task = \"a/b\"", "no name of a task"),
        ("task = \"colours\"", "task = ", "colours.toml"),
        ("split = \"test\"", "split = \"train\"", "no rows of the split \"train\""),
        ("{{ answer }}", "{{ right }}", "doc_to_target"),
        ("{{ answer }}", "{{ question }}", "none of the choices"),
        ("{{ choices }}", "{{ answer }}", "no list of texts"),
        ("version = 2", "version = \"2\"", "version"),
        ("{ metric = \"acc_norm\" }", "{ metric = \"mc2\" }", "two results called acc"),
    ] {
        bench.write("tasks/colours.toml", &CHOICE.replace(from, to));
        let error = bench.error(&["colours"]);
        assert!(error.contains(words), "{from} -> {to}: {error}");
    }
    bench.write("tasks/colours.toml", CHOICE);
    assert!(bench.error(&["colour"]).contains("did you mean colours"));
    bench.write(
        "data/colours/test.jsonl",
        "{\"question\": \"sky?\", \"choices\": [\"blue\"], \"answer\": 3}\n",
    );
    let error = bench.error(&["colours"]);
    assert!(error.contains("row 0") && error.contains("with 1 choices"), "{error}");
    bench.write("data/colours/test.jsonl", "{\"question\": \n");
    assert!(bench.error(&["colours"]).contains("test.jsonl"));
    bench.write("tasks/more.toml", CHOICE);
    assert!(bench.error(&["colours"]).contains("taken"));
}

#[test]
fn a_row_is_no_example_of_itself_unless_the_task_says_so() {
    let bench = Bench::new();
    let contexts = |task: &str| -> Vec<String> {
        bench.write("tasks/sums.toml", task);
        let options = PromptOptions { num_fewshot: Some(2), ..PromptOptions::default() };
        let evaluation = bench.prepare(&["sums"], options).unwrap();
        let context = |document: &eval::document::Document| match &document.requests[0] {
            Request::GenerateUntil { context: Prompt::Text(text), .. } => text.clone(),
            _ => panic!("wanted a reply"),
        };
        evaluation.tasks[0].documents.documents.iter().map(context).collect()
    };
    let holds_itself = |context: &String| {
        let (examples, question) = context.rsplit_once("\n\n").unwrap();
        examples.contains(question)
    };
    // Three rows, two examples each: the other two.
    assert!(!contexts(GENERATE).iter().any(holds_itself));
    let included =
        GENERATE.replace("[generation_kwargs]", "[fewshot]\nsplit = \"test\"\n[generation_kwargs]");
    assert!(contexts(&included).iter().any(holds_itself));
}

#[test]
fn a_task_without_any_answer_stays_in_the_tables_and_its_group_has_no_value() {
    let bench = Bench::new();
    bench.write("data/more/test.jsonl", "{\"question\": \"9 + 9\", \"answer\": \"18\"}\n");
    let more = GENERATE.replace("\"sums\"", "\"more\"").replace("{{ question }}", "{{ question }}?");
    bench.write("tasks/more.toml", &more);
    let group = "[[group]]\ngroup = \"both\"\ntasks = [\"sums\", \"more\"]\nmetrics = [\"exact_match\"]\n";
    bench.write("tasks/both.toml", group);
    let evaluation = bench.prepare(&["both"], PromptOptions::default()).unwrap();
    let mut model = Double::new(&[], &[("1 + 1", "2"), ("2 + 2", "4"), ("3 + 3", "six")]);
    model.refused = Some("9 + 9");
    let run = bench.run(&evaluation, &mut model, "cache").unwrap();
    let sums = score(&run, "sums", "exact_match", "plain");
    assert_eq!((sums.aggregated.value, sums.failed), (1.0, 0));
    let more = score(&run, "more", "exact_match", "plain");
    assert!(more.aggregated.value.is_nan() && (more.n, more.failed) == (0, 1));
    let both = score(&run, "both", "exact_match", "plain");
    assert!(both.aggregated.value.is_nan() && (both.n, both.failed) == (3, 1));

    // All right: no standard error to pool, and no interval of width zero.
    let mut model = Double::new(&[], &[("1 + 1", "2"), ("2 + 2", "4"), ("3 + 3", "six"), ("9 + 9?", "18")]);
    let run = bench.run(&evaluation, &mut model, "right").unwrap();
    let both = score(&run, "both", "exact_match", "plain").aggregated;
    assert_eq!((both.value, both.interval), (1.0, None));

    for (from, to) in [("exact_match", "accuracy"), ("metrics =", "filters = [\"first\"]\nmetrics =")] {
        bench.write("tasks/both.toml", &group.replace(from, to));
        let error = bench.error(&["both"]);
        assert!(error.contains("the group both has") && error.contains("they give"), "{error}");
    }
}

#[test]
fn an_answer_that_cannot_be_scored_costs_its_own_document() {
    let bench = Bench::new();
    // The pattern tries every way to cut the text into one and two letters.
    bench.write("tasks/sums.toml", &GENERATE.replace(r"(\d+)", r"(?:(a|aa)+)(?!\1)$b"));
    let evaluation = bench.prepare(&["sums"], PromptOptions::default()).unwrap();
    let letters = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let mut model = Double::new(&[], &[("1 + 1", "2"), ("2 + 2", letters), ("3 + 3", "six")]);
    let run = bench.run(&evaluation, &mut model, "cache").unwrap();
    let plain = score(&run, "sums", "exact_match", "plain");
    assert_eq!((plain.n, plain.failed), (2, 1));
    assert!(
        run.samples[0][1].problem.as_ref().unwrap().contains("pattern"),
        "{:?}",
        run.samples[0][1].problem
    );
}

#[test]
fn rows_that_the_metrics_cannot_use_are_named_before_a_model_is_asked() {
    let bench = Bench::new();
    let ifeval = GENERATE.replace("\"exact_match\", ignore_case = true", "\"ifeval\"");
    bench.write("tasks/sums.toml", &ifeval);
    let error = bench.error(&["sums"]);
    assert!(error.contains("task sums, row 0") && error.contains("instruction_id_list"), "{error}");
}

#[test]
fn the_protocol_id_depends_on_answers_and_rules() {
    let bench = Bench::new();
    let id = || bench.prepare(&["sums"], PromptOptions::default()).unwrap().tasks[0].protocol_id();
    let first = id();
    bench.write("tasks/sums.toml", &GENERATE.replace("ignore_case = true", "ignore_case = false"));
    let second = id();
    let rows = fs::read_to_string(bench.path("data/sums/test.jsonl")).unwrap();
    bench.write("data/sums/test.jsonl", &rows.replace("\"six\"", "\"6\""));
    let third = id();
    assert!(first != second && second != third && first != third);
}

#[test]
fn prompts_that_lost_their_beginning_are_counted() {
    let bench = Bench::new();
    let evaluation = bench.prepare(&["sums"], PromptOptions::default()).unwrap();
    let mut model = Double::new(&[], &[("1 + 1", "2")]);
    model.cut = 7;
    let run = bench.run(&evaluation, &mut model, "cache").unwrap();
    assert_eq!(score(&run, "sums", "exact_match", "plain").cut, 3);
}

#[test]
fn the_tasks_of_the_program_are_whole() {
    let registry = Registry::embedded().unwrap();
    let selection = registry.select(registry.names()).unwrap();
    assert!(selection.tasks.len() > 300, "{}", selection.tasks.len());
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("tasks").read_dir().unwrap().count() >= 20);
}
