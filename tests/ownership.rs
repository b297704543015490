//! What others have put into the folders of this program: links, pipes and devices under every name that it
//! writes or reads, and folders that only look like its own. All of it is refused by name and left as it is,
//! and nothing waits at a pipe or reads a device without end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::eval::{bench, model};
use crate::harness::{Outcome, Scratch, names};
use crate::inference::world;
use crate::training::{copied, copy, json};

/// The longest that a command here may take. What waits at a pipe takes for ever.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the binary, and fails if it does not end.
fn run(scratch: &Scratch, line: &str) -> Outcome {
    let mut child = scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{line} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Outcome { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// What somebody may put in the place of a file.
#[derive(Clone, Copy, Debug)]
enum Plant {
    Pipe,
    /// A link to a file of the user.
    Link,
    /// A link to a file without end.
    Zeros,
}

impl Plant {
    const ALL: [Self; 3] = [Self::Pipe, Self::Link, Self::Zeros];

    fn make(self, scratch: &Scratch, path: &Path) {
        match self {
            Self::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            Self::Link => {
                scratch.write("precious", "precious");
                symlink(scratch.path("precious"), path).unwrap();
            }
            Self::Zeros => symlink("/dev/zero", path).unwrap(),
        }
    }

    /// Fails unless all of it is as it was made.
    #[track_caller]
    fn stands(self, scratch: &Scratch, path: &Path) {
        let target = match self {
            Self::Pipe => None,
            Self::Link => Some(scratch.path("precious")),
            Self::Zeros => Some(PathBuf::from("/dev/zero")),
        };
        assert_eq!(fs::read_link(path).ok(), target, "{} has changed", path.display());
        assert!(!fs::symlink_metadata(path).unwrap().is_file());
        if scratch.path("precious").exists() {
            assert_eq!(scratch.read("precious"), "precious");
        }
    }
}

/// The paths of all files and folders below a folder.
fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            found.extend(tree(&path).into_iter().map(|below| format!("{name}/{below}")));
        }
        found.push(name);
    }
    found
}

/// The content of all files below a folder, but for the locks, which every command that opens a folder writes.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let is_content = |name: &String| {
        folder.join(name).is_file() && Path::new(name).extension().is_none_or(|extension| extension != "lock")
    };
    let files = tree(folder).into_iter().filter(is_content);
    files.map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

/// Puts a pipe and a link in the place of every file and folder of `folder` whose path `is_meant` takes, one
/// after the other, and deeper in it one of them; runs one of `lines` each time, which ends with an error that
/// names the path. In the end, everything is as it was.
fn refuses_plants(scratch: &Scratch, folder: &str, is_meant: fn(&str) -> bool, lines: &[&str]) {
    let before = contents(&scratch.path(folder));
    let names: Vec<String> = tree(&scratch.path(folder)).into_iter().filter(|name| is_meant(name)).collect();
    assert!(names.len() > 3, "{names:?}");
    for (place, name) in names.iter().enumerate() {
        let path = scratch.path(&format!("{folder}/{name}"));
        let plants = [Plant::ALL[place % 3], Plant::ALL[(place + 1) % 3]];
        let plants = if name.contains('/') { &plants[..1] } else { &plants[..] };
        for (turn, plant) in plants.iter().enumerate() {
            let line = lines[(place + turn) % lines.len()];
            let aside = scratch.path("aside");
            fs::rename(&path, &aside).unwrap();
            plant.make(scratch, &path);
            let outcome = run(scratch, line);
            assert!(outcome.code > 0, "{plant:?} at {name}, {line}: {outcome:#?}");
            let last = name.rsplit('/').next().unwrap();
            assert!(outcome.stderr.contains(last), "{plant:?} at {name}, {line}: {outcome:#?}");
            plant.stands(scratch, &path);
            fs::remove_file(&path).unwrap();
            fs::rename(&aside, &path).unwrap();
        }
    }
    assert!(contents(&scratch.path(folder)) == before, "{folder} has changed");
}

/// The lock is written anew by every command that opens the folder.
fn is_not_the_lock_nor_live(name: &str) -> bool {
    name != ".colossal-chat.lock" && !name.starts_with("live")
}

#[test]
fn a_run_that_is_resumed_follows_no_link_and_waits_at_no_pipe() {
    let scratch = copied();
    for gone in ["final", "checkpoints/step-2", "checkpoints/step-6"] {
        fs::remove_dir_all(scratch.path(&format!("life/sft/{gone}"))).unwrap();
    }
    fs::create_dir(scratch.path("life/sft/logs")).unwrap();
    scratch.write("life/sft/logs/rank-1.log", "earlier\n");
    scratch.write("sft.toml", &scratch.read("life/sft/run.toml"));
    let line = "sft --config sft.toml --resume";
    refuses_plants(&scratch, "life/sft", is_not_the_lock_nor_live, &[line]);
    // A folder of ours as a link to another one.
    for name in ["tensorboard", "checkpoints", "logs"] {
        let (path, elsewhere) = (scratch.path(&format!("life/sft/{name}")), scratch.path("elsewhere"));
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let before = contents(&elsewhere);
        for more in ["", " --nproc 2"] {
            let outcome = run(&scratch, &format!("{line}{more}"));
            outcome.fails(2, &[&format!("life/sft/{name}: this is a link")]);
        }
        assert_eq!(contents(&elsewhere), before);
        fs::remove_file(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
    }
    run(&scratch, line).succeeds();
}

#[test]
fn a_new_run_in_an_old_folder_follows_no_link_and_waits_at_no_pipe() {
    let scratch = copied();
    for gone in ["final", "checkpoints"] {
        fs::remove_dir_all(scratch.path(&format!("life/sft/{gone}"))).unwrap();
    }
    scratch.write("sft.toml", &scratch.read("life/sft/run.toml"));
    let line = "sft --config sft.toml";
    refuses_plants(&scratch, "life/sft", is_not_the_lock_nor_live, &[line]);
    // Names that this folder lacks, and the lock.
    let absent = ["checkpoints", "final", "logs", "tensorboard/events.out.tfevents.1", ".colossal-chat.lock"];
    for (place, name) in absent.into_iter().enumerate() {
        let path = scratch.path(&format!("life/sft/{name}"));
        for plant in [Plant::ALL[place % 3], Plant::ALL[(place + 1) % 3]] {
            let _ = fs::remove_file(&path);
            plant.make(&scratch, &path);
            let outcome = run(&scratch, line);
            assert!(outcome.code == 2 && outcome.stderr.contains(name), "{plant:?} at {name}: {outcome:#?}");
            plant.stands(&scratch, &path);
        }
        fs::remove_file(&path).unwrap();
    }
    run(&scratch, line).succeeds();
}

/// What only observers read ends no run: it is named in a warning.
#[test]
fn a_run_leaves_what_lies_under_live_alone_and_trains() {
    for (name, plant) in [
        ("live/events.jsonl", Plant::Link),
        ("live/events.jsonl", Plant::Pipe),
        ("live/rank-0.json", Plant::Pipe),
        ("live/rank-0.json", Plant::Zeros),
        ("live/requests/1.json", Plant::Zeros),
        ("live/requests/1.json", Plant::Pipe),
    ] {
        let scratch = copied();
        for gone in ["final", "checkpoints/step-6"] {
            fs::remove_dir_all(scratch.path(&format!("life/sft/{gone}"))).unwrap();
        }
        let path = scratch.path(&format!("life/sft/{name}"));
        let _ = fs::remove_file(&path);
        plant.make(&scratch, &path);
        let outcome = run(&scratch, "sft --config life/sft/run.toml --resume");
        outcome.succeeds();
        assert!(name.contains("requests") || outcome.stderr.contains(name), "{name}: {outcome:#?}");
        plant.stands(&scratch, &path);
    }
}

#[test]
fn a_reader_of_runs_follows_no_link_and_waits_at_no_pipe() {
    let scratch = copied();
    for (place, name) in names(&scratch.path("life/sft")).into_iter().enumerate() {
        let path = scratch.path(&format!("life/sft/{name}"));
        if path.is_dir() {
            continue;
        }
        for plant in [Plant::Pipe, [Plant::Link, Plant::Zeros][place % 2]] {
            fs::rename(&path, scratch.path("aside")).unwrap();
            plant.make(&scratch, &path);
            for line in ["watch life/sft --once --json", "runs ls life"] {
                run(&scratch, line);
                plant.stands(&scratch, &path);
            }
            fs::remove_file(&path).unwrap();
            fs::rename(scratch.path("aside"), &path).unwrap();
        }
    }
}

#[test]
fn a_pipeline_follows_no_link_and_waits_at_no_pipe() {
    let scratch = copied();
    fs::remove_file(scratch.path("life/report.json")).unwrap();
    // The folders of the stages are those of runs.
    let is_meant = |name: &str| {
        let first = name.split('/').next().unwrap();
        name == first && name != ".colossal-chat.lock" || ["data", "tokenizer"].contains(&first)
    };
    refuses_plants(&scratch, "life", is_meant, &["pipeline --config life.toml --resume"]);
    for name in ["metrics.jsonl", "final/config.json"] {
        let (path, aside) = (scratch.path(&format!("life/base/{name}")), scratch.path("aside"));
        fs::rename(&path, &aside).unwrap();
        Plant::Link.make(&scratch, &path);
        let outcome = run(&scratch, "pipeline --config life.toml --resume");
        outcome.fails(2, &[&format!("life/base/{name}: this is a link")]);
        Plant::Link.stands(&scratch, &path);
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
}

/// Writes what `eval judge` and `eval rm` read.
fn write_questions(scratch: &Scratch) {
    scratch.write("questions.jsonl", "{\"id\": 0, \"prompt\": \"q?\"}\n");
    for name in ["one", "two"] {
        let choices = format!("[{{\"index\": 0, \"turns\": [\"{name}\"]}}]");
        let row = format!("{{\"question_id\": 0, \"model_id\": \"{name}\", \"choices\": {choices}}}\n");
        scratch.write(&format!("{name}.jsonl"), &row);
    }
    scratch.write("pairs.jsonl", "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
}

/// Commands that write a folder of results `out`.
fn result_commands() -> [String; 3] {
    let reward = world().path("judge").display().to_string();
    let model = model();
    [
        format!("eval --model {model} --include-path tasks.toml --tasks choose --limit 2 --output out"),
        format!(
            "eval judge --questions questions.jsonl --judge {reward} --answers one.jsonl,two.jsonl --output out"
        ),
        format!("eval rm --model {reward} --data pairs.jsonl --output out"),
    ]
}

#[test]
fn a_folder_of_results_follows_no_link_and_waits_at_no_pipe() {
    for command in result_commands() {
        let scratch = bench();
        write_questions(&scratch);
        run(&scratch, &command).succeeds();
        let forced = format!("{command} --force");
        let is_meant = |name: &str| name != ".colossal-chat.lock";
        refuses_plants(&scratch, "out", is_meant, &[&command, &forced]);
        run(&scratch, &forced).succeeds();
    }

    let scratch = bench();
    let [command, ..] = result_commands();
    run(&scratch, &command).succeeds();
    for (place, name) in ["responses-1.jsonl", ".done-0", ".done-1", "logs"].into_iter().enumerate() {
        for plant in [Plant::ALL[place % 3], Plant::ALL[(place + 1) % 3]] {
            let path = scratch.path(&format!("out/{name}"));
            plant.make(&scratch, &path);
            run(&scratch, &format!("{command} --nproc 2")).fails(2, &[name]);
            plant.stands(&scratch, &path);
            fs::remove_file(&path).unwrap();
        }
    }
    for name in ["results.json", "samples/model/choose.jsonl"] {
        for plant in Plant::ALL {
            copy(&scratch.path("out"), &scratch.path("other"));
            let path = scratch.path(&format!("other/{name}"));
            fs::remove_file(&path).unwrap();
            plant.make(&scratch, &path);
            run(&scratch, "eval diff out other").fails(2, &[name]);
            plant.stands(&scratch, &path);
            fs::remove_dir_all(scratch.path("other")).unwrap();
        }
    }
}

#[test]
fn force_takes_no_folder_of_somebody_else() {
    let scratch = bench();
    write_questions(&scratch);
    let settings = [
        "{\"editor.fontSize\": 12}".to_owned(),
        "{\"tasks\": [\"choose\"], \"models\": [], \"places\": []}".to_owned(),
        "{\"command\": \"eval judge\"}".to_owned(),
        "{\"report\": \"reward model\"}".to_owned(),
    ];
    for command in result_commands() {
        for (case, text) in settings.iter().enumerate() {
            let _ = fs::remove_dir_all(scratch.path("out"));
            for folder in ["out/samples/deep", "out/lm_eval"] {
                fs::create_dir_all(scratch.path(folder)).unwrap();
            }
            for file in
                ["samples/deep/mine", "lm_eval/mine.json", "report.html", "results.json", "summary.md"]
            {
                scratch.write(&format!("out/{file}"), "mine");
            }
            scratch.write("out/settings.json", text);
            // As somebody would who wants the folder to look like one of ours.
            if case % 2 == 1 {
                scratch.write("out/.colossal-chat.lock", "");
            }
            let before = contents(&scratch.path("out"));
            run(&scratch, &format!("{command} --force")).fails(2, &["something else than an evaluation"]);
            assert!(contents(&scratch.path("out")) == before, "{command}");
        }
    }
}

#[test]
fn only_listed_files_are_removed_and_another_kind_of_results_is_refused() {
    let scratch = bench();
    write_questions(&scratch);
    let [eval, judge, rm] = result_commands();
    run(&scratch, &eval).succeeds();
    let listed = scratch.read("out/.colossal-chat");
    assert!(
        listed.starts_with("colossal-chat 1 eval\n") && listed.contains("\nsamples/model/choose.jsonl\n")
    );
    for command in [judge, rm, "sft --config x.toml".to_owned()] {
        scratch.write("x.toml", "out = 'out'\n[model]\npath = 'x'\n[data]\ntrain = 'pairs.jsonl'\n");
        run(&scratch, &command).fails(2, &["it holds results of `eval`"]);
    }

    let mine = ["samples/model/mine.jsonl", "samples/mine.txt", "lm_eval/mine.json", "summary.txt"];
    for name in mine {
        scratch.write(&format!("out/{name}"), "mine");
    }
    let other = eval.replace("choose", "write");
    run(&scratch, &other.replace("--limit 2", "--limit 3")).fails(2, &["other limit"]);
    run(&scratch, &format!("{other} --force")).succeeds();
    assert!(mine.iter().all(|name| scratch.read(&format!("out/{name}")) == "mine"));
    assert!(!scratch.path("out/samples/model/choose.jsonl").exists());
    assert!(scratch.path("out/samples/model/write.jsonl").exists());
}

/// Whether two values are equal but for the rounding of numbers, which depends on the rows of a batch.
fn are_near(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            let [left, right] = [left, right].map(|number| number.as_f64().unwrap());
            (left - right).abs() <= 1e-5 * right.abs().max(1.0)
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| are_near(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            let same = |((left_key, left), (right_key, right)): ((&String, &Value), (&String, &Value))| {
                left_key == right_key && are_near(left, right)
            };
            left.len() == right.len() && left.iter().zip(right).all(same)
        }
        _ => left == right,
    }
}

#[test]
fn a_folder_of_results_takes_further_tasks_and_models() {
    let scratch = bench();
    let other = scratch.path("other").display().to_string();
    let init = format!(
        "model init {} --tokenizer {} --seed 9 --out {other}",
        world().path("config.json").display(),
        world().path("tokenizer").display()
    );
    scratch.run(&init).succeeds();
    let eval = |models: &str, tasks: &str, output: &str| {
        format!("eval --model {models} --include-path tasks.toml --tasks {tasks} --limit 4 --output {output}")
    };
    let both = format!("{},{other}", model());
    scratch.run(&eval(&both, "choose,text", "whole")).succeeds();

    scratch.run(&eval(&model(), "choose", "grown")).succeeds();
    let answers = || scratch.read("grown/responses.jsonl").lines().count();
    let first = answers();
    let more = scratch.run(&eval(&model(), "text", "grown"));
    more.succeeds();
    assert!(more.stderr.contains("grown holds results of model on choose"), "{more:#?}");
    let second = answers();
    // The bound is that of the model which is named.
    let bounds = |bound: &str| format!("{} --require choose{bound}", eval(&other, "choose", "grown"));
    scratch.run(&bounds(">=0")).succeeds();
    let results = json(&scratch, "grown/results.json");
    for key in ["models", "comparisons", "tasks"] {
        assert_eq!(results[key], json(&scratch, "whole/results.json")[key], "{key}");
    }
    // Nothing was asked twice.
    assert_eq!(scratch.read("whole/responses.jsonl").lines().count(), answers());
    assert!(first < second && second < answers());
    for name in ["samples/model/choose.jsonl", "samples/other/text.jsonl", "lm_eval/other.json"] {
        let values = |folder: &str| {
            let text = scratch.read(&format!("{folder}/{name}"));
            serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<Vec<Value>, _>>().unwrap()
        };
        let (grown, whole) = (values("grown"), values("whole"));
        assert!(are_near(&grown.into(), &whole.into()), "{name}");
    }

    // A part of it again changes nothing, and another question is no part of it.
    scratch.run(&eval(&model(), "text", "grown")).succeeds();
    assert_eq!(json(&scratch, "grown/results.json"), results);
    let line = eval(&model(), "text", "grown");
    scratch.run(&line.replace("--limit 4", "--limit 3")).fails(2, &["other limit", "--force"]);
    scratch.run(&format!("{line} --force")).succeeds();
    assert_eq!(json(&scratch, "grown/results.json")["models"].as_array().unwrap().len(), 1);
    // Two processes add to it, too.
    scratch.run(&format!("{} --nproc 2", eval(&other, "choose", "grown"))).succeeds();
    assert_eq!(json(&scratch, "grown/results.json")["models"].as_array().unwrap().len(), 2);
}

#[test]
fn an_evaluation_that_fails_on_its_inputs_claims_no_folder() {
    let scratch = bench();
    copy(&world().path("model"), &scratch.path("broken"));
    let weights = scratch.path("broken/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() - 64;
    bytes[middle..].copy_from_slice(&[0xff; 64]);
    fs::write(&weights, bytes).unwrap();
    let eval = "eval --include-path tasks.toml --tasks choose --limit 2 --output out --model";
    run(&scratch, &format!("{eval} broken")).fails(3, &["broken"]);
    assert!(!scratch.path("out").exists());
    run(&scratch, &format!("{eval} {} --train-data nowhere.jsonl", model())).fails(3, &["nowhere.jsonl"]);
    assert!(!scratch.path("out").exists());

    // With several processes their messages are kept there, and the folder is free for any other command.
    let outcome = run(&scratch, &format!("{eval} broken --nproc 2"));
    assert!(outcome.code > 0 && !scratch.path("out/settings.json").exists(), "{outcome:#?}");
    run(&scratch, &format!("{eval} {}", model()).replace("--limit 2", "--limit 3")).succeeds();
}

/// Folders of versions before the marker: a run goes on, and results are replaced.
#[test]
fn a_folder_of_an_earlier_version_gets_its_marker() {
    let scratch = copied();
    let [eval, ..] = result_commands();
    for folder in ["life", "life/sft"] {
        fs::remove_file(scratch.path(&format!("{folder}/.colossal-chat"))).unwrap();
    }
    fs::remove_dir_all(scratch.path("life/sft/final")).unwrap();
    run(&scratch, "sft --config life/sft/run.toml --resume").succeeds();
    assert_eq!(scratch.read("life/sft/.colossal-chat"), "colossal-chat 1 run\n");
    run(&scratch, "pipeline --config life.toml --resume").succeeds();
    assert_eq!(scratch.read("life/.colossal-chat"), "colossal-chat 1 pipeline\n");

    // Without its lock, nothing says whose folder it is.
    for name in [".colossal-chat", ".colossal-chat.lock", "final/config.json"] {
        fs::remove_file(scratch.path(&format!("life/sft/{name}"))).unwrap();
    }
    fs::remove_dir_all(scratch.path("life/sft/final")).unwrap();
    let words = ["life/sft: it has no file .colossal-chat", "`colossal-chat 1 run`"];
    run(&scratch, "sft --config life/sft/run.toml --resume").fails(2, &words);
    scratch.write("life/sft/.colossal-chat", "colossal-chat 1 run\n");
    run(&scratch, "sft --config life/sft/run.toml --resume").succeeds();

    let scratch = bench();
    run(&scratch, &eval).succeeds();
    fs::remove_file(scratch.path("out/.colossal-chat")).unwrap();
    run(&scratch, &eval).succeeds();
    assert!(scratch.read("out/.colossal-chat").contains("\nsamples/model/choose.jsonl\n"));
}
