//! Tasks whose replies are programs, with a double in place of the interpreter: which programs are run, and
//! how verdicts become pass@k. How programs are isolated is tested in `chat`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eval::code_execution::{CodeRunner, Program, RunnerError, Verdict};
use eval::document::{PromptOptions, build};
use eval::evaluation::{Evaluation, ModelRun};
use eval::request::{LanguageModel, OnResponses, Prompt, Request, Response};
use eval::response_cache::ResponseCache;
use eval::results::sample_rows;
use eval::score::programs;
use eval::task::Registry;
use serde_json::Value;
use tempfile::TempDir;

const TASK: &str = r#"
task = "code"
output_type = "generate_until"
doc_to_text = "{{ prompt }}"
doc_to_target = "test({{ n }})"
metric_list = [{ metric = "pass_at_k", k = [1, 2] }, { metric = "pass_at_1" }]
generation_kwargs = { repeats = 3, temperature = 0.8 }
filter_list = [{ name = "all", filter = [] }]
[dataset]
folder = "code"
split = "test"
[code_execution]
program = "{{ prompt }}{{ reply }}\n{{ target }}"
timeout = 1.5
"#;

/// Passes programs without "bad", and keeps all that it is given.
#[derive(Clone, Debug, Default)]
struct Runner {
    programs: Arc<Mutex<Vec<Program>>>,
}

impl CodeRunner for Runner {
    fn interpreter(&self) -> String {
        "double".to_owned()
    }

    fn run(&self, programs: &[Program]) -> Result<Vec<Verdict>, RunnerError> {
        self.programs.lock().unwrap().extend_from_slice(programs);
        if programs.iter().any(|program| program.source.contains("broken")) {
            return Err("no sandbox".into());
        }
        let verdict = |program: &Program| {
            if program.source.contains("bad") {
                Verdict::Failed { reason: "AssertionError".to_owned() }
            } else {
                Verdict::Passed
            }
        };
        Ok(programs.iter().map(verdict).collect())
    }
}

/// Writes "good" as its first reply to a prompt and "bad" as each other one. It cannot answer a prompt with
/// "?".
struct Model;

impl LanguageModel for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn digest(&self) -> &'static str {
        "0"
    }

    fn respond(
        &mut self,
        requests: &[Request],
        _: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let answer = |request: &Request| match request {
            Request::GenerateUntil { context: Prompt::Text(text), sample, .. } if !text.contains('?') => {
                let text = if *sample == 0 { "good" } else { "bad" };
                Response::Reply { text: text.to_owned(), tokens: 1, ended: true, cut: 0 }
            }
            _ => Response::Failed { problem: "too long".to_owned() },
        };
        on_responses(requests.iter().map(answer).enumerate().collect())
    }
}

/// A folder with the task and its rows.
fn bench(task: &str, rows: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("code")).unwrap();
    fs::write(folder.path().join("code.toml"), task).unwrap();
    fs::write(folder.path().join("code/test.jsonl"), rows).unwrap();
    folder
}

fn prepare(folder: &Path) -> Result<Evaluation, eval::Error> {
    let mut registry = Registry::default();
    registry.add_path(folder)?;
    Evaluation::prepare(registry.select(&["code"])?, folder, PromptOptions::default())
}

fn run(folder: &Path, evaluation: &Evaluation) -> Result<ModelRun, eval::Error> {
    let mut cache = ResponseCache::open(&folder.join("responses.jsonl"))?;
    evaluation.run(&mut Model, &mut cache, &mut |_| ())
}

const ROWS: &str =
    "{\"prompt\": \"a \", \"n\": 1}\n{\"prompt\": \"b \", \"n\": 2}\n{\"prompt\": \"c?\", \"n\": 3}\n";

#[test]
fn equal_programs_run_once_and_verdicts_become_pass_at_k() {
    let bench = bench(TASK, ROWS);
    let runner = Runner::default();
    let mut evaluation = prepare(bench.path()).unwrap();
    evaluation.code_runner = Some(Box::new(runner.clone()));
    let run = run(bench.path(), &evaluation).unwrap();

    let sources: Vec<String> =
        runner.programs.lock().unwrap().iter().map(|program| program.source.clone()).collect();
    assert_eq!(sources, ["a good\ntest(1)", "a bad\ntest(1)", "b good\ntest(2)", "b bad\ntest(2)"]);
    assert_eq!(runner.programs.lock().unwrap()[0].timeout, Duration::from_millis(1500));

    // One of three replies passes: pass@1 = 1/3, pass@2 = 1 - C(2, 2) / C(3, 2) = 2/3.
    let scores: Vec<(&str, f64, usize, usize)> = run
        .scores
        .iter()
        .map(|score| (score.metric.as_str(), score.aggregated.value, score.n, score.failed))
        .collect();
    for ((metric, value, n, failed), (wanted, right)) in
        scores.into_iter().zip([("pass@1", 1.0 / 3.0), ("pass@2", 2.0 / 3.0), ("pass_at_1", 1.0 / 3.0)])
    {
        assert_eq!((metric, n, failed), (wanted, 2, 1));
        assert!((value - right).abs() < 1e-12, "{metric}: {value}");
    }
    let rows: Vec<Value> = sample_rows(&evaluation.tasks[0], &run.samples[0]).collect();
    assert_eq!(rows[0]["executions"][0], "passed");
    assert_eq!(rows[0]["executions"][1]["failed"]["reason"], "AssertionError");
    assert!(rows[2]["executions"].is_null());
}

#[test]
fn without_leave_nothing_is_asked_and_a_broken_runner_is_an_error() {
    let bench = bench(TASK, ROWS);
    let mut evaluation = prepare(bench.path()).unwrap();
    assert!(evaluation.runs_code());
    let error = run(bench.path(), &evaluation).unwrap_err().to_string();
    assert!(error.contains("task code") && error.contains("--allow-code-execution"), "{error}");
    let kept = fs::read_to_string(bench.path().join("responses.jsonl")).unwrap();
    assert!(!kept.contains("good"), "{kept}");

    fs::write(bench.path().join("code/test.jsonl"), "{\"prompt\": \"broken\", \"n\": 1}\n").unwrap();
    evaluation = prepare(bench.path()).unwrap();
    evaluation.code_runner = Some(Box::new(Runner::default()));
    let error = run(bench.path(), &evaluation).unwrap_err();
    assert!(error.to_string().contains("the task code could not be run"), "{error}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no sandbox");
}

#[test]
fn what_contradicts_itself_in_a_task_is_named() {
    for (from, to, words) in [
        ("k = [1, 2]", "k = [1, 4]", "asks for pass@4, and the filter all keeps 3 of 3 replies"),
        ("filter = []", "filter = [{ function = \"take_first\" }]", "keeps 1 of 3 replies"),
        ("filter_list = [{ name = \"all\", filter = [] }]", "", "the filter none keeps 1 of 3"),
        ("k = [1, 2]", "k = []", "without a k"),
        ("k = [1, 2]", "k = [0]", "k = 0"),
        ("timeout = 1.5", "timeout = 0", "code_execution.timeout is no time limit"),
        ("timeout = 1.5", "timeout = 1e9", "code_execution.timeout is no time limit"),
        ("timeout = 1.5", "timeouts = 1", "unknown field `timeouts`"),
        ("{{ target }}", "{{ target", "code_execution.program"),
        ("[code_execution]", "[fewshot]", "unknown field `program`"),
    ] {
        let bench = bench(&TASK.replace(from, to), ROWS);
        let error = prepare(bench.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{from} -> {to}: {error}");
    }
    let head = TASK.split("[code_execution]").next().unwrap();
    let error = prepare(bench(head, ROWS).path()).unwrap_err().to_string();
    assert!(error.contains("[code_execution] is missing, and pass_at_k needs it"), "{error}");
    let exact =
        TASK.replace("pass_at_k\", k = [1, 2]", "exact_match\"").replace(", { metric = \"pass_at_1\" }", "");
    let error = prepare(bench(&exact, ROWS).path()).unwrap_err().to_string();
    assert!(error.contains("no effect without pass_at_k"), "{error}");

    // A column that no row has is an error of the row, before a model is asked.
    let unknown = bench(&TASK.replace("{{ target }}", "{{ tests }}"), ROWS);
    let error = prepare(unknown.path()).unwrap_err().to_string();
    assert!(error.contains("task code, row 0"), "{error}");
}

#[test]
fn programs_are_those_of_the_harness() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lm_eval/scores/code.json");
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let registry = Registry::embedded().unwrap();
    let options = PromptOptions { num_fewshot: Some(0), ..PromptOptions::default() };
    for case in &cases {
        let task = registry.task(case["task"].as_str().unwrap()).unwrap();
        let row = case["doc"].as_object().unwrap().clone();
        let documents = build(task, vec![row], None, &options).unwrap().documents;
        for recorded in case["replies"].as_array().unwrap() {
            let text = recorded[0].as_str().unwrap();
            let response = Response::Reply { text: text.to_owned(), tokens: 1, ended: true, cut: 0 };
            let found = programs(task, &documents[0], &[response]).unwrap();
            // The prediction, where a filter made it, and the reference.
            let prediction = recorded[1]["create_test"][0].as_str().unwrap_or(text);
            assert_eq!(found[0].source, format!("{prediction}\n{}", case["target"].as_str().unwrap()));
            assert_eq!((found.len(), found[0].timeout), (1, Duration::from_secs(3)));
        }
    }
    assert_eq!(cases.len(), 2);
}
