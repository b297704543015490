//! Evaluations through the binary: results, an evaluation that is killed, bounds, comparisons, code that
//! models write, wrong input.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::chat_server::{ChatServer, Reply};
use crate::harness::{Scratch, signal};
use crate::inference::world;
use crate::training::{copied, copy, json, metrics};

const TASKS: &str = r#"
task = "{{ subset }}"
version = 1
output_type = "multiple_choice"
doc_to_text = "Q: {{ question }}\nA:"
doc_to_choice = "{{ choices }}"
doc_to_target = "{{ answer }}"
metric_list = [{ metric = "acc" }, { metric = "acc_norm" }]

[dataset]
folder = "sums"
split = "test"

[[subset]]
name = "choose"

[[subset]]
name = "write"
output_type = "generate_until"
doc_to_target = "{{ choices[answer] }}"
metric_list = [{ metric = "exact_match" }]
generation_kwargs = { until = ["\n"], max_gen_toks = 6 }

[[subset]]
name = "text"
output_type = "loglikelihood_rolling"
doc_to_target = "{{ question }}"
metric_list = [{ metric = "byte_perplexity" }]

[[group]]
group = "sums"
tasks = ["choose"]
metrics = ["acc"]
"#;

/// A folder with tasks and rows.
pub(crate) fn bench() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("tasks.toml", TASKS);
    fs::create_dir_all(scratch.path("eval-data/sums")).unwrap();
    let row = |n: usize| {
        let (left, right) = (n % 7, n / 7);
        format!(
            "{{\"question\": \"what is the sum of {left} and {right}? 多少\", \"choices\": [\"{}\", \"{}\", \"不知道\"], \"answer\": {}}}\n",
            left + right,
            left + right + 1,
            n % 2
        )
    };
    scratch.write("eval-data/sums/test.jsonl", &(0..60).map(row).collect::<String>());
    scratch
}

pub(crate) fn model() -> String {
    world().path("model").display().to_string()
}

#[test]
fn results_are_written_and_a_killed_evaluation_continues_to_the_same() {
    let scratch = bench();
    let words = |output: &str| {
        format!(
            "eval --model {} --tasks sums,write,text --include-path tasks.toml --output {output}",
            model()
        )
    };
    let outcome = scratch.run(&words("whole"));
    let tables = outcome.succeeds();
    for name in ["choose", "write", "text", "acc_norm", "byte_perplexity", "exact_match"] {
        assert!(tables.contains(name), "{tables}");
    }
    let whole = scratch.read("whole/results.json");
    let results: serde_json::Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(results["tasks"][0]["effective"], 60);
    let harness: serde_json::Value = serde_json::from_str(&scratch.read("whole/lm_eval/model.json")).unwrap();
    assert_eq!(harness["results"]["choose"]["acc,none"], results["models"][0]["scores"][0]["value"]);
    assert_eq!(harness["n-samples"]["choose"]["original"], 60);
    assert_eq!(scratch.read("whole/samples/model/choose.jsonl").lines().count(), 60);
    assert!(scratch.read("whole/summary.csv").starts_with("model,task"));

    // The same command again asks nothing and changes nothing.
    let responses = scratch.read("whole/responses.jsonl");
    scratch.run(&words("whole")).succeeds();
    assert_eq!(scratch.read("whole/responses.jsonl"), responses);
    assert_eq!(scratch.read("whole/results.json"), whole);

    // Two processes share the requests. Other batches change log-likelihoods by rounding only.
    let two = scratch.run(&format!("{} --nproc 2", words("two")));
    assert!(two.succeeds().contains("byte_perplexity"), "{two:#?}");
    let lines = |name: &str| scratch.read(&format!("two/{name}")).lines().count();
    let all = scratch.read("whole/responses.jsonl").lines().count();
    assert!(lines("responses.jsonl") > 0 && lines("responses-1.jsonl") > 0);
    assert_eq!(lines("responses.jsonl") + lines("responses-1.jsonl"), all);
    let diff = scratch.run("eval diff whole two --json").json();
    for comparison in diff.as_array().unwrap() {
        assert!(comparison["difference"]["estimate"]["mean"].as_f64().unwrap().abs() < 1e-9, "{comparison}");
    }
    // One process takes over what both have answered.
    scratch.run(&words("two")).succeeds();
    assert_eq!(lines("responses.jsonl") + lines("responses-1.jsonl"), all);

    for milliseconds in [100, 200, 300, 450] {
        let output = format!("killed-{milliseconds}");
        let line = words(&output);
        let words: Vec<&str> = line.split(' ').collect();
        let mut child = scratch
            .command(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        std::thread::sleep(Duration::from_millis(milliseconds));
        signal("KILL", child.id());
        child.wait().unwrap();
        scratch.run(&line).succeeds();
        assert_eq!(scratch.read(&format!("{output}/results.json")), whole, "{output}");
        let samples = |folder: &str| scratch.read(&format!("{folder}/samples/model/write.jsonl"));
        assert_eq!(samples(&output), samples("whole"));
    }
}

#[test]
fn models_are_compared_and_bounds_decide_the_code() {
    let scratch = bench();
    let other = scratch.path("other").display().to_string();
    let line = format!(
        "model init {} --tokenizer {} --seed 9 --out {other}",
        world().path("config.json").display(),
        world().path("tokenizer").display()
    );
    scratch.run(&line).succeeds();
    let eval = format!("eval --tasks choose,text --include-path tasks.toml --limit 20 --model {}", model());

    let both = scratch.run(&format!("{eval},{other} --output both"));
    assert!(both.succeeds().contains("differences, paired by document"), "{both:#?}");
    let results: serde_json::Value = serde_json::from_str(&scratch.read("both/results.json")).unwrap();
    assert_eq!(results["models"][1]["name"], "other");
    let comparison = &results["comparisons"][0];
    let count = |name: &str| comparison[name].as_u64().unwrap();
    assert_eq!(count("more") + count("equal") + count("less"), 20);

    scratch.run(&format!("{eval} --output one")).succeeds();
    let line =
        format!("eval --tasks choose,text --include-path tasks.toml --limit 20 --model {other} --output two");
    scratch.run(&line).succeeds();
    let diff = scratch.run("eval diff one two --json").json();
    assert_eq!(diff[0]["difference"], comparison["difference"]);

    scratch.run(&format!("{eval} --output one --require choose>=0.0 --require text<=1e9")).succeeds();
    scratch.run(&format!("{eval} --output one --require choose>=1.1")).fails(1, &["choose>=1.1: model has"]);
    scratch.run(&format!("{eval} --output new --require choice>=0")).fails(2, &["choice>=0", "choose"]);
    assert!(!scratch.path("new").exists());
    scratch.run(&format!("{eval} --output one --require choose:f1>=0")).fails(1, &["no such score"]);
    scratch.run(&format!("{eval} --output one --require choose")).fails(2, &["TASK>=NUMBER"]);

    // Another number of examples is another question.
    scratch.run(&format!("{eval} --output shots --num-fewshot 1")).succeeds();
    scratch.run("eval diff one shots").fails(2, &["was asked otherwise", "--force"]);
    scratch.run("eval diff one shots --force").succeeds();
}

#[test]
fn wrong_input_is_named_before_a_model_is_loaded() {
    let scratch = bench();
    let eval = format!("eval --model {} --include-path tasks.toml", model());
    for (rest, code, words) in [
        ("--tasks chose", 2, &["no task \"chose\"", "choose"][..]),
        ("--tasks choose --data nowhere", 3, &["no rows of the split \"test\"", "nowhere/sums"]),
        ("--tasks arc_easy", 3, &["eval-data/arc_easy", "huggingface.co/datasets/allenai/ai2_arc"]),
        ("--tasks choose --num-fewshot 100", 2, &["fewer few-shot examples"]),
        ("--tasks choose --output tasks.toml", 2, &["not a folder"]),
        ("--tasks choose --output eval-data", 2, &["something else than an evaluation"]),
        ("--tasks choose --include-path none.toml", 2, &["none.toml"]),
    ] {
        scratch.run(&format!("{eval} {rest}")).fails(code, words);
    }
    scratch.run("eval --model nowhere/final --tasks choose --include-path tasks.toml").fails(2, &["nowhere"]);
    scratch.run("eval --tasks choose").fails(2, &["--model"]);

    // All models are looked at before the first is asked.
    let second = |folder: &str, rest: &str| {
        scratch
            .run(&format!("eval --model {},{folder} --include-path tasks.toml --tasks choose{rest}", model()))
    };
    let reward = world().path("judge").display().to_string();
    second(&reward, " --output second").fails(2, &["judge", "name a language model"]);
    copy(&world().path("model"), &scratch.path("bare"));
    fs::remove_file(scratch.path("bare/tokenizer.json")).unwrap();
    second("bare", " --output second").fails(3, &["bare", "tokenizer.json"]);
    assert!(!scratch.path("second").exists());

    scratch.run(&format!("{eval} --tasks choose --limit 3 --output mine")).succeeds();
    scratch
        .run(&format!("{eval} --tasks choose --limit 4 --output mine"))
        .fails(2, &["other limit", "--force"]);
    scratch.run(&format!("{eval} --tasks choose --limit 4 --output mine --force")).succeeds();

    // A reply that does not fit beside any prompt is a failure of each document, and nothing else stops.
    scratch.write("tasks.toml", &TASKS.replace("max_gen_toks = 6", "max_gen_toks = 5000"));
    let outcome = scratch.run(&format!("{eval} --tasks write,choose --limit 3 --output long"));
    outcome.fails(1, &["3 documents without an answer", "max_gen_toks"]);
    assert!(outcome.stdout.contains("choose"));
}

#[test]
fn ranks_of_a_run_share_the_verdicts_on_the_programs_of_rank_0() {
    let scratch = copied();
    let rows = (0..6).map(|n| format!("{{\"question\": \"{n}\", \"answer\": {}}}\n", n % 2));
    fs::create_dir_all(scratch.path("rows/sums")).unwrap();
    scratch.write("rows/sums/test.jsonl", &rows.collect::<String>());
    scratch.write("code.toml", CODE);
    let outcome = scratch.run(
        "sft --config life.toml --nproc 2 --set model.path=life/base/final --set data.train=life/data/sft.parquet \
         --set eval.every=3 --set eval.tasks=['right','early','greedy'] --set eval.data=rows \
         --set eval.include_path=['code.toml'] --set eval.allow_code_execution=true --set out=code",
    );
    if outcome.stderr.contains("the sandbox for code execution") {
        eprintln!("skipped, because {}", outcome.stderr);
        return;
    }
    outcome.succeeds();
    assert_eq!(task_scores(&scratch, "code", "eval/right/pass_at_1"), [(3, 1.0), (6, 1.0)]);
    assert_eq!(task_scores(&scratch, "code", "eval/early/pass_at_1"), [(3, 0.0), (6, 0.0)]);
    // Fourteen processes of 900 MB: the programs fail, and the run goes on to its end.
    assert_eq!(task_scores(&scratch, "code", "eval/greedy/pass_at_1"), [(3, 0.0), (6, 0.0)]);
}

/// Tasks whose programs do not depend on what the model writes: each holds its reply as a text.
const CODE: &str = r#"
task = "{{ subset }}"
version = 1
output_type = "generate_until"
doc_to_text = "Q: {{ question }}\nA:"
doc_to_target = "assert {{ answer }} in (0, 1)"
metric_list = [{ metric = "pass_at_1" }]
generation_kwargs = { max_gen_toks = 4 }

[dataset]
folder = "sums"
split = "test"

[[subset]]
name = "right"
code_execution = { program = "reply = {{ reply | tojson }}\n{{ target }}" }

[[subset]]
name = "early"
code_execution = { program = "import os\nos._exit(0)\n{{ target }}" }

[[subset]]
name = "greedy"
code_execution = { program = """
import os
for _ in range(14):
    if os.fork() == 0:
        memory = bytearray(900 << 20)
        while memory:
            pass
{{ target }}""" }
"#;

#[test]
fn code_runs_in_a_sandbox_and_only_with_leave() {
    let scratch = bench();
    scratch.write("code.toml", CODE);
    let line = format!(
        "eval --model {} --include-path code.toml --tasks right,early --limit 6 --output code",
        model()
    );
    scratch.run(&line).fails(2, &["task right runs code", "--allow-code-execution"]);
    assert!(!scratch.path("code").exists());

    let outcome = scratch.run(&format!("{line} --allow-code-execution"));
    if outcome.stderr.contains("the sandbox for code execution") {
        eprintln!("skipped, because {}", outcome.stderr);
        return;
    }
    outcome.succeeds();
    let results: serde_json::Value = serde_json::from_str(&scratch.read("code/results.json")).unwrap();
    for (at, task, value) in [(0, "right", 1.0), (1, "early", 0.0)] {
        let score = &results["models"][0]["scores"][at];
        assert_eq!([&score["task"], &score["metric"]], [task, "pass_at_1"]);
        assert_eq!(score["value"], value, "{task}");
    }
    assert!(results["settings"]["python"].as_str().unwrap().starts_with("3."), "{results}");
    let samples = scratch.read("code/samples/model/early.jsonl");
    assert!(samples.contains("exit code 0 before its tests were over"), "{samples}");

    let plain = format!("eval --model {} --include-path tasks.toml --tasks choose --limit 2", model());
    let unused = scratch.run(&format!("{plain} --output plain --allow-code-execution"));
    unused.succeeds();
    assert!(unused.stderr.contains("allow_code_execution has no effect"), "{}", unused.stderr);
}

#[test]
fn an_endpoint_answers_tasks_that_generate_and_is_asked_again_what_failed() {
    let scratch = bench();
    let server = ChatServer::start(|messages, before| {
        let fails = messages[0].contains("sum of 2 and 0") && before == 0;
        if fails { Reply::Body("no JSON") } else { Reply::Text("不知道\nQ:".to_owned()) }
    });
    let eval = format!("eval --model {} --include-path tasks.toml --limit 4", server.address);
    scratch
        .run(&format!("{eval} --tasks choose"))
        .fails(2, &[&server.address, "log-probabilities", "choose"]);
    scratch.run(&format!("{eval} --tasks write")).fails(2, &[&server.address, "add --apply-chat-template"]);
    assert_eq!(server.asked().len(), 0);

    let line = format!("{eval} --tasks write --apply-chat-template --output out");
    scratch.run(&line).fails(1, &["left 1 documents without an answer", "the same command asks them again"]);
    let again = scratch.run(&line);
    again.succeeds();
    assert!(
        again
            .stderr
            .contains("3 of 4 answers are from an earlier run; the same command with --force asks again"),
        "{again:#?}"
    );
    assert_eq!(server.asked().len(), 5);
    scratch.run(&format!("{line} --force")).succeeds();
    assert_eq!(server.asked().len(), 9);
    scratch.run(&format!("{line} --dtype bfloat16")).fails(2, &["--dtype", "leave the flag out"]);
    scratch.run(&format!("{line} --max-length 64")).fails(2, &["--max-length", "leave the flag out"]);
    let results: serde_json::Value = serde_json::from_str(&scratch.read("out/results.json")).unwrap();
    assert_eq!(
        (&results["models"][0]["name"], &results["tasks"][0]["effective"]),
        (&server.address.into(), &4.into())
    );

    let refusing = ChatServer::start(|_, _| Reply::Status("401 Unauthorized", ""));
    let line = line.replace(server_of(&line), &refusing.address).replace("--output out", "--output refused");
    scratch.run(&line).fails(2, &["401", "COLOSSAL_API_KEY"]);
    let folder =
        format!("eval --model {} --tasks write --include-path tasks.toml --endpoint-timeout 3", model());
    scratch.run(&folder).fails(2, &["--endpoint-timeout", "no model is behind an endpoint"]);
}

/// A line of the progress with a check mark would say that all is well.
#[test]
fn requests_that_an_endpoint_refuses_are_counted() {
    let scratch = bench();
    let server = ChatServer::start(|_, _| Reply::Status("400 Bad Request", ""));
    let outcome = scratch.run(&format!(
        "eval --model {} --include-path tasks.toml --limit 2 --tasks write --apply-chat-template --output out",
        server.address
    ));
    outcome.fails(1, &["✗ 2 of 2 requests failed", "left 2 documents without an answer"]);
    assert!(!outcome.stderr.contains('✓'), "{}", outcome.stderr);
}

/// An answer that is none is asked again, and is no wrong answer until then.
#[test]
fn an_empty_reply_of_an_endpoint_is_no_answer() {
    let scratch = bench();
    let server = ChatServer::start(|_, before| match before {
        0 => Reply::Body("{\"choices\":[]}"),
        1 => Reply::Body("{\"choices\":[{\"message\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}"),
        _ => Reply::Text("不知道\nQ:".to_owned()),
    });
    let line = format!(
        "eval --model {} --include-path tasks.toml --limit 2 --tasks write --apply-chat-template --output out",
        server.address
    );
    scratch.run(&line).fails(1, &["left 2 documents without an answer", "no choice with a message"]);
    scratch.run(&line).fails(1, &["left 2 documents without an answer", "the reply is empty"]);
    scratch.run(&line).succeeds();
    assert_eq!(server.asked().len(), 6);
}

/// The rows of all subjects in the place that the error of missing rows names.
#[test]
fn a_subject_is_asked_its_own_rows() {
    let scratch = Scratch::new();
    let row = |subject: &str, question: &str| {
        format!(
            "{{\"subject\": \"{subject}\", \"question\": \"{question}\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 1}}\n"
        )
    };
    std::fs::create_dir_all(scratch.path("eval-data/cais/mmlu")).unwrap();
    let rows =
        [row("anatomy", "Which bone?"), row("astronomy", "Which star?"), row("astronomy", "Which moon?")];
    scratch.write("eval-data/cais/mmlu/test.jsonl", &rows.concat());
    let show = |subject: &str| {
        scratch.run(&format!("eval show mmlu_{subject} --num-fewshot 0 --rows 9")).succeeds().to_owned()
    };
    let (anatomy, astronomy) = (show("anatomy"), show("astronomy"));
    assert!(anatomy.contains("Which bone?") && !anatomy.contains("Which star?"), "{anatomy}");
    assert!(astronomy.contains("Which moon?") && !astronomy.contains("Which bone?"), "{astronomy}");
    scratch
        .run("eval show mmlu_virology --num-fewshot 0")
        .fails(3, &["no row", "\"virology\" in the column \"subject\"", "eval-data/mmlu/virology"]);

    // Nothing says which rows of BBH are whose.
    std::fs::create_dir_all(scratch.path("eval-data/SaylorTwift/bbh")).unwrap();
    scratch.write(
        "eval-data/SaylorTwift/bbh/test.jsonl",
        "{\"input\": \"not True is\", \"target\": \"False\"}\n",
    );
    let missing = scratch.run("eval show bbh_zeroshot_navigate");
    missing.fails(3, &["no rows", "eval-data/SaylorTwift/bbh/navigate"]);
    assert!(!missing.stderr.contains("bbh/data"), "{missing:#?}");
}

/// The address in a command line.
fn server_of(line: &str) -> &str {
    line.split(' ').find(|word| word.starts_with("http://")).unwrap()
}

#[test]
fn tasks_are_listed_and_prompts_shown() {
    let scratch = bench();
    let list = scratch.run("eval list --include-path tasks.toml");
    for name in ["choose", "mmlu_anatomy", "gsm8k", "sums"] {
        assert!(list.succeeds().contains(name), "{name}");
    }
    let all = scratch.run("eval list mmlu* --json").json();
    assert!(all.as_array().unwrap().len() >= 58);
    let shown = scratch.run("eval show choose --include-path tasks.toml --num-fewshot 1 --rows 2");
    assert!(shown.succeeds().contains("Q: what is the sum of 1 and 0? 多少\nA:"), "{shown:#?}");
    assert!(shown.stdout.contains("3) \" 不知道\"") && shown.stdout.contains("target: 1"), "{shown:#?}");
}

/// The scores that a run wrote, by step.
fn task_scores(scratch: &Scratch, run: &str, metric: &str) -> Vec<(u64, f64)> {
    let rows = metrics(scratch, run);
    rows.iter().filter_map(|row| Some((row["step"].as_u64()?, row[metric].as_f64()?))).collect()
}

#[test]
fn a_model_in_training_is_asked_tasks_and_scores_what_its_folder_scores() {
    let scratch = copied();
    let tasks = "--set eval.tasks=['world_preference','world'] --set eval.data=life --set eval.limit=8";
    let sft = |out: &str, rest: &str| {
        scratch.run(&format!(
            "sft --config life.toml --set model.path=life/base/final --set data.train=life/data/sft.parquet \
             --set eval.every=3 {tasks} --set out={out}{rest}"
        ))
    };
    sft("sft", "").succeeds();
    let scores = task_scores(&scratch, "sft", "eval/world_preference/acc");
    assert_eq!(scores.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 6]);
    assert_eq!(task_scores(&scratch, "sft", "eval/world/exact_match/stripped").len(), 2);

    // Two replicas share the requests.
    sft("two", " --nproc 2").succeeds();
    assert_eq!(task_scores(&scratch, "two", "eval/world_preference/acc"), scores);
    let line = "eval --model sft/final --tasks world_preference,world --data life --limit 8 --json";
    let results = scratch.run(line).json();
    assert_eq!(results["models"][0]["scores"][0]["value"].as_f64(), Some(scores[1].1));

    let ppo = format!(
        "ppo --config life.toml --set model.path=sft/final --set ppo.reward_model=life/rm/final \
         --set data.train=life/data/prompts.parquet --set eval.every=2 {tasks} --set out=ppo"
    );
    scratch.run(&ppo).succeeds();
    assert_eq!(task_scores(&scratch, "ppo", "eval/world_preference/acc").len(), 1);

    // Replies that fit beside no prompt: nothing is scored, the user is told once, and the run goes on.
    let long = sft("long", " --set eval.max_gen_toks=5000");
    long.succeeds();
    let told = "the task world of [eval] has 8 of 8 documents without an answer, the first because the reply";
    assert_eq!(long.stderr.matches(told).count(), 1, "{long:#?}");
    assert!(task_scores(&scratch, "long", "eval/world/exact_match/stripped").is_empty());
    assert!(scratch.path("long/final/config.json").exists());

    sft("split", " --set parallel.pipeline.size=2 --nproc 2").fails(2, &["eval.tasks", "pipeline"]);
    sft("unknown", " --set eval.tasks=['worlds']").fails(2, &["worlds", "did you mean"]);
    let rm =
        "rm --config life.toml --set model.path=life/sft/final --set data.train=life/data/preference.parquet";
    scratch.run(&format!("{rm} {tasks} --set out=rm")).fails(2, &["eval.tasks", "rm"]);
}

#[test]
fn a_pipeline_ends_with_an_evaluation_of_its_models() {
    let scratch = copied();
    let stages = "['data','tokenizer','base','sft','rm','ppo','eval','report']";
    let line = format!("pipeline --config life.toml --resume --set pipeline.stages={stages}");
    // Only a pipeline that makes its rows knows what to ask about them.
    scratch.run(&line.replace(stages, "['sft','eval']")).fails(2, &["eval.tasks"]);
    scratch.run(&format!("{line} --set eval.tasks=wrld")).fails(2, &["wrld", "world"]);
    // Before the first part runs: tasks whose rows the pipeline does not make, and a part without a model.
    let fresh = line.replace(" --resume", " --set out=fresh");
    scratch
        .run(&format!("{fresh} --set eval.tasks=['world','arc_easy']"))
        .fails(3, &["part eval", "no rows of the split", "fresh/arc_easy"]);
    let alone = fresh.replace(stages, "['data','eval']");
    scratch
        .run(&format!("{alone} --set eval.tasks=world"))
        .fails(3, &["no model to evaluate", "such as sft"]);
    assert!(!scratch.path("fresh").exists());
    let outcome = scratch.run(&format!("{line} --set eval.tasks=['world','world_preference']"));
    outcome.succeeds();

    let results = json(&scratch, "life/eval/results.json");
    let names: Vec<&str> =
        results["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["base", "sft", "ppo"]);
    let pairs: Vec<(&str, &str)> = results["comparisons"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|comparison| comparison["task"] == "world_preference" && comparison["metric"] == "acc")
        .map(|comparison| (comparison["model"].as_str().unwrap(), comparison["baseline"].as_str().unwrap()))
        .collect();
    assert_eq!(pairs, [("sft", "base"), ("ppo", "base"), ("ppo", "sft")]);
    // The files that the stages were trained on were searched for the questions.
    assert_eq!(results["contamination"].as_array().unwrap().len(), 6);
    let of_first = |count: &str| results["contamination"][0][count].as_u64().unwrap();
    assert_eq!(of_first("checked") + of_first("unexamined"), 12);

    // A conversation is encoded as `generate` encodes it: the template alone writes special tokens.
    let samples = scratch.read("life/eval/samples/sft/world.jsonl");
    let samples: Vec<serde_json::Value> =
        samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |sample: &serde_json::Value| serde_json::json!({"messages": sample["prompt"]}).to_string();
    let rows = samples.iter().map(row).collect::<Vec<_>>().join("\n");
    scratch.write("asked.jsonl", &rows);
    let line = "generate --model life/sft/final --input asked.jsonl --temperature 0 --max-new-tokens 32";
    let replies = scratch.run(line).succeeds().to_owned();
    assert_eq!(replies.lines().count(), samples.len());
    for (reply, sample) in replies.lines().zip(&samples) {
        let reply: serde_json::Value = serde_json::from_str(reply).unwrap();
        assert_eq!(reply["text"], sample["responses"][0]);
    }

    let report = scratch.read("life/report.html");
    assert!(report.contains("href=\"eval/report.html#samples\"") && report.contains("world_preference"));
    assert_eq!(json(&scratch, "life/report.json")["benchmarks"]["results"], results);
    assert!(scratch.read("life/report.md").contains("## Tasks"));
}

#[test]
fn the_ranks_of_a_pipeline_share_the_requests_of_its_evaluation() {
    let scores = |processes: usize| {
        let scratch = copied();
        fs::remove_dir_all(scratch.path("life/eval")).unwrap();
        let outcome = scratch.run(&format!(
            "pipeline --config life.toml --resume --nproc {processes} --set eval.data=life \
             --set pipeline.stages=['data','tokenizer','base','sft','rm','ppo','eval'] \
             --set eval.tasks=['world','world_preference']"
        ));
        outcome.succeeds();
        let second = fs::read_to_string(scratch.path("life/eval/responses-1.jsonl")).unwrap_or_default();
        assert_eq!(second.lines().count() > 0, processes == 2, "{outcome:#?}");
        json(&scratch, "life/eval/results.json")["models"].clone()
    };
    assert_eq!(scores(2), scores(1));
}

#[test]
fn training_rows_among_the_documents_are_counted() {
    let scratch = bench();
    let row = |n: usize| format!("{{\"text\": \"Q: What is the sum of {} and {}? 多少\"}}\n", n % 7, n / 7);
    scratch.write("train.jsonl", &(0..15).map(row).collect::<String>());
    let eval = format!("eval --model {} --include-path tasks.toml --tasks choose --output out", model());
    // A pattern, as in `data.train`.
    let outcome = scratch.run(&format!("{eval} --train-data tr*.jsonl"));
    outcome.succeeds();
    let results = json(&scratch, "out/results.json");
    let found = &results["contamination"][0];
    assert_eq!((&found["contaminated"], &found["checked"]), (&15.into(), &60.into()));
    assert_eq!(found["unexamined"], 0);
    let ends: (f64, f64) = serde_json::from_value(found["difference_interval"].clone()).unwrap();
    assert!(ends.0 < ends.1);
    assert!(
        outcome.stdout.contains("rows in the training data") && outcome.stdout.contains("15 of 60"),
        "{outcome:#?}"
    );
    assert!(scratch.read("out/summary.md").contains("## Rows in the training data\n\n| Task"));
    // The parts add up to the whole.
    let share = |name: &str| found[name].as_f64().unwrap();
    let whole = results["models"][0]["scores"][0]["value"].as_f64().unwrap();
    assert!((share("dirty_score") * 15.0 + share("clean_score") * 45.0 - whole * 60.0).abs() < 1e-9);
    assert!(scratch.read("out/report.html").contains("15 of 60 (25.0 %)"));
    scratch.run(&format!("{eval} --train-data nowhere.jsonl --force")).fails(3, &["nowhere.jsonl"]);
    scratch.run(&format!("{eval} --train-data no*.jsonl --force")).fails(3, &["no*.jsonl"]);
}
