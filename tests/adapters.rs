//! Several adapters on one model: the commands that run them answer as they do with the folder of each
//! adapter as their model.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::chat::Tmux;
use crate::eval::bench;
use crate::harness::Scratch;
use crate::serve::Server;
use crate::training::{copied, copy, json as read_json};

/// A base with two adapters, a reward model that is an adapter of it, and an adapter of another base.
fn world() -> &'static Scratch {
    static WORLD: OnceLock<Scratch> = OnceLock::new();
    WORLD.get_or_init(|| {
        let scratch = copied();
        // Each adapter learns one word, so that it says something else than its base.
        let lora = "--set model.lora.r=4 --set train.lr=0.03 --set train.steps=30 --set checkpoint.every=0";
        let sft = format!("sft --config life/sft/run.toml {lora} --set model.path=life/sft/final");
        for (out, word) in [("a", "one"), ("b", "seven")] {
            let reply = [word; 6].join(" ");
            let row = json!({"messages": [
                {"role": "user", "content": "hello"}, {"role": "assistant", "content": reply},
            ]});
            scratch.write(&format!("{out}.jsonl"), &format!("{row}\n").repeat(16));
            scratch.run(&format!("{sft} --set out={out} --set data.train={out}.jsonl")).succeeds();
        }
        let rm = "rm --config life/rm/run.toml --set model.path=life/sft/final --set out=rm";
        scratch.run(&format!("{rm} {lora}")).succeeds();
        scratch.run(&format!("sft --config life/sft/run.toml {lora} --set out=other")).succeeds();
        scratch
    })
}

/// The model, its adapters, and the folder of each as a model of its own.
const MODELS: [(&str, &str); 3] = [("base", "life/sft/final"), ("a", "a/final"), ("b", "b/final")];

/// What a model of its own answers to a conversation.
fn answer(model: &str, messages: &Value) -> String {
    // Tests run at once.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let scratch = world();
    let file = format!("asked-{}.jsonl", ASKED.fetch_add(1, Ordering::Relaxed));
    scratch.write(&file, &format!("{}\n", json!({ "messages": messages })));
    let line =
        format!("generate --model {model} --input {file} --temperature 0 --ignore-eos --max-new-tokens 8");
    scratch.run(&line).json()["text"].as_str().unwrap().to_owned()
}

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

#[test]
fn a_command_of_one_model_runs_the_adapter_as_its_folder() {
    let scratch = world();
    let said = MODELS.map(|(_, folder)| answer(folder, &hello()));
    assert!(said[0] != said[1] && said[1] != said[2] && said[0] != said[2], "{said:?}");

    scratch.write("texts.jsonl", "{\"text\": \"one two three\"}\n");
    let conversation = json!({"prompt": "What is 3 + 4?", "completion": "7"});
    scratch.write("conversations.jsonl", &format!("{conversation}\n"));
    for (command, rows, adapter) in [
        ("generate --prompt hello --temperature 0 --max-new-tokens 8", "", "a"),
        ("logprobs", "--input texts.jsonl", "a"),
        ("reward", "--input conversations.jsonl", "rm"),
    ] {
        let run =
            |model: &str| scratch.run(format!("{command} {model} {rows}").trim_end()).succeeds().to_owned();
        let alone = run(&format!("--model {adapter}"));
        assert_eq!(run(&format!("--model life/sft/final --adapter {adapter}")), alone, "{command}");
        let two = "--model life/sft/final --adapter a --adapter b";
        scratch.run(format!("{command} {two} {rows}").trim_end()).fails(2, &["--adapter", "multiple times"]);
    }

    let words = ["chat", "--temperature", "0", "--ignore-eos", "--max-new-tokens", "8", "--json", "--model"];
    let chat = |more: &[&str]| scratch.run_with(&[&words[..], more].concat(), "hello\n");
    assert_eq!(chat(&["life/sft", "--adapter", "b"]).json()["text"], said[2]);
    chat(&["life/sft", "--adapter", "a,b"]).fails(2, &["a second --adapter", "full screen"]);
}

#[test]
fn what_is_no_adapter_of_the_model_is_refused_with_the_fix() {
    let scratch = world();
    let base = "--model life/sft/final";
    let tasks = "--tasks none";
    for (command, end) in [
        ("generate", " --prompt x"),
        ("serve", ""),
        ("eval", &format!(" {tasks}")[..]),
        ("chat --inline", ""),
    ] {
        let fails = |models: &str, words: &[&str]| {
            scratch.run(&format!("{command} {models}{end}")).fails(2, words);
        };
        fails(
            &format!("{base} --adapter other"),
            &["--adapter other: this is an adapter of", "life/base/final", "life/sft/final", "give --model"],
        );
        fails(&format!("{base} --adapter life/base/final"), &["this is a whole model: name it with --model"]);
        fails(
            "--model a --adapter b",
            &["--model a/final: this is an adapter itself", "life/sft/final, and --adapter a/final"],
        );
        fails(&format!("{base} --adapter =a"), &["--adapter =a: give NAME=DIR or DIR"]);
    }
    for command in ["serve", &format!("eval {tasks}")] {
        let fails = |models: &str, words: &[&str]| {
            scratch.run(&format!("{command} {base} {models}")).fails(2, words);
        };
        fails("--adapter x=a --adapter x=b", &["--adapter x=b: two models have the name `x`: give NAME=DIR"]);
        fails("--adapter x=a --adapter y=a", &["--adapter y=a: this adapter is named twice"]);
        fails("--adapter sft=a", &["two models have the name `sft`"]);
    }
    scratch
        .run("chat --model http://127.0.0.1:9/v1 --adapter a --inline")
        .fails(2, &["http://127.0.0.1:9/v1"]);

    // Its embedding has a row for a token that the base does not have.
    copy(&scratch.path("a/final"), &scratch.path("wide"));
    let mut config = read_json(scratch, "wide/config.json");
    let size = config["vocab_size"].as_i64().unwrap();
    config["vocab_size"] = (size + 1).into();
    scratch.write("wide/config.json", &config.to_string());
    let words =
        [&format!("trained with {} tokens", size + 1)[..], &format!("has {size}"), "alone, with --model"];
    scratch.run(&format!("serve {base} --adapter wide")).fails(2, &words);
}

fn serve() -> Server {
    // One of the adapters is a model of its own as well.
    let models = "alone=b,base=life/sft/final";
    let flags =
        ["--model", models, "--adapter", "a=a", "--adapter", "b=b/final,rm=rm", "--max-num-seqs", "2"];
    Server::start(world(), &flags)
}

#[test]
fn a_server_answers_with_each_adapter_as_with_its_folder_while_all_are_asked() {
    let server = serve();
    let listed = server.get("/v1/models", "").json();
    let listed = listed["data"].as_array().unwrap().iter();
    let listed: Vec<(&Value, &Value, &Value)> =
        listed.map(|model| (&model["id"], &model["parent"], &model["kind"])).collect();
    let (none, base) = (&Value::Null, &json!("base"));
    let [language, reward] = [&json!("language"), &json!("reward")];
    let names = ["alone", "base", "a", "b", "rm"].map(|name| json!(name));
    let wanted = [(none, language), (none, language), (base, language), (base, language), (base, reward)];
    assert_eq!(
        listed,
        names.iter().zip(wanted).map(|(name, (of, kind))| (name, of, kind)).collect::<Vec<_>>()
    );

    let ask = |model: &str| {
        let body = json!({
            "model": model, "messages": hello(), "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        });
        server.post("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"].clone()
    };
    let wanted = MODELS.map(|(_, folder)| answer(folder, &hello()));
    thread::scope(|scope| {
        for round in 0..4 {
            for (place, (name, _)) in MODELS.into_iter().enumerate() {
                let (ask, wanted) = (&ask, &wanted[place]);
                scope.spawn(move || assert_eq!(ask(name), wanted.as_str(), "{name}, {round}"));
            }
        }
    });

    let scored = server.post(
        "/v1/score",
        &json!({"model": "rm", "messages": [
            {"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "7"},
        ]}),
    );
    world().write("scored.jsonl", "{\"prompt\": \"What is 3 + 4?\", \"completion\": \"7\"}\n");
    let alone = world().run("reward --model rm --input scored.jsonl").json()["score"].as_f64().unwrap();
    let score = scored.json()["data"][0]["score"].as_f64().unwrap();
    assert!((score - alone).abs() < 1e-6, "{score} {alone}");
    server
        .post("/v1/completions", &json!({"model": "c", "prompt": "x"}))
        .fails(404, &["alone, base, a, b, rm"]);
}

#[test]
fn an_adapter_is_loaded_again_alone_and_a_model_with_its_adapters() {
    // The folders change, so they are copies.
    let scratch = copied();
    copy(&world().path("a/final"), &scratch.path("one"));
    let mut file = read_json(&scratch, "one/adapter_config.json");
    file["base_model_name_or_path"] = scratch.path("life/sft/final").to_str().unwrap().into();
    scratch.write("one/adapter_config.json", &file.to_string());
    let flags = ["--model", "base=life/sft/final", "--adapter", "one"];
    let server = Server::start(&scratch, &flags);
    let ask = |model: &str| {
        let body = json!({
            "model": model, "messages": hello(), "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        });
        server.post("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"].clone()
    };
    let reload = |model: &str| server.ask("POST", &format!("/v1/models/{model}/reload"), "", "");
    let [of_base, of_a, of_b] = MODELS.map(|(_, folder)| json!(answer(folder, &hello())));
    assert_eq!([ask("base"), ask("one")], [of_base.clone(), of_a.clone()]);

    let weights = "adapter_model.safetensors";
    std::fs::copy(world().path("b/final").join(weights), scratch.path("one").join(weights)).unwrap();
    assert_eq!(reload("one").status, 200);
    assert_eq!([ask("base"), ask("one")], [of_base.clone(), of_b.clone()]);

    // An adapter does not belong to other weights of the base, so nothing is loaded.
    let whole = scratch.path("life/sft/final/model.safetensors");
    let before = std::fs::read(&whole).unwrap();
    std::fs::copy(scratch.path("life/base/final/model.safetensors"), &whole).unwrap();
    for model in ["one", "base"] {
        reload(model).fails(500, &["other weights"]);
        assert_eq!([ask("base"), ask("one")], [of_base.clone(), of_b.clone()], "{model}");
    }
    std::fs::write(&whole, before).unwrap();
    std::fs::copy(world().path("a/final").join(weights), scratch.path("one").join(weights)).unwrap();
    assert_eq!(reload("base").status, 200);
    assert_eq!([ask("base"), ask("one")], [of_base, of_a]);

    copy(&scratch.path("life/sft/final"), &scratch.path("elsewhere"));
    file["base_model_name_or_path"] = scratch.path("elsewhere").to_str().unwrap().into();
    scratch.write("one/adapter_config.json", &file.to_string());
    reload("one").fails(500, &["start the server again"]);
}

#[test]
fn an_evaluation_of_adapters_is_that_of_their_folders() {
    let scratch = bench();
    let path = |name: &str| world().path(name).display().to_string();
    let (base, a, b) = (path("life/sft/final"), path("a/final"), path("b/final"));
    let run = |models: &str, output: &str| {
        let tasks = "--tasks sums,write,text --include-path tasks.toml --json";
        scratch.run(&format!("eval {models} {tasks} --output {output}")).json()
    };
    let together = run(&format!("--model {base} --adapter {a} --adapter again={b}"), "together");
    let alone = run(&format!("--model {base},{a},{b}"), "alone");
    let names = |results: &Value| {
        let models = results["models"].as_array().unwrap().iter();
        models.map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&together), ["sft", "a", "again"]);
    assert_eq!(names(&alone), ["sft", "a", "b"]);
    for place in 0..3 {
        let [left, right] = [&together, &alone].map(|results| &results["models"][place]);
        assert!(!left["scores"].is_null(), "{left:#}");
        assert_eq!((&left["scores"], &left["groups"]), (&right["scores"], &right["groups"]), "{place}");
    }
    // The answers are kept under the same hash, so nothing is asked again.
    let answers = |output: &str| {
        let mut lines: Vec<String> =
            scratch.read(&format!("{output}/responses.jsonl")).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(answers("together"), answers("alone"));
}

#[test]
fn a_judged_adapter_and_one_that_is_a_reward_model_are_those_of_their_folders() {
    let scratch = Scratch::new();
    let path = |name: &str| world().path(name).display().to_string();
    let (base, a, rm) = (path("life/sft/final"), path("a/final"), path("rm/final"));
    scratch.write("questions.jsonl", "{\"prompt\": \"hello\"}\n{\"prompt\": \"What is 3 + 4?\"}\n");
    let judge = |models: &str, output: &str| {
        let line = "eval judge --questions questions.jsonl --max-gen-toks 6";
        scratch.run(&format!("{line} --judge {rm} {models} --output {output}")).succeeds();
        scratch.read(&format!("{output}/judgements.jsonl"))
    };
    let judged = judge(&format!("--model {base} --adapter {a}"), "together");
    assert_eq!(judged, judge(&format!("--model {base},{a}"), "alone"));

    let rows = world().path("life/data/preference.parquet").display().to_string();
    let score = |model: &str, output: &str| {
        scratch.run(&format!("eval rm {model} --data {rows} --limit 8 --output {output}")).succeeds();
        scratch.read(&format!("{output}/samples.jsonl"))
    };
    let scored = score(&format!("--model {base} --adapter {rm}"), "rm-together");
    assert_eq!(scored, score(&format!("--model {rm}"), "rm-alone"));
    let line = format!("eval rm --model {base} --adapter {base} --data {rows} --output no");
    scratch.run(&line).fails(2, &["--adapter", "whole model"]);
}

#[test]
fn a_person_switches_adapters_and_the_conversation_goes_on() {
    // Its own folders, because sessions are kept there.
    let scratch = Scratch::new();
    let Some(tmux) = Tmux::start(&scratch, 100, 30) else { return };
    let path = |name: &str| world().path(name).display().to_string();
    let binary = env!("CARGO_BIN_EXE_colossal-chat");
    let adapters = format!("--adapter {} --adapter bee={}", path("a/final"), path("b/final"));
    let settings = "--temperature 0 --ignore-eos --max-new-tokens 8";
    tmux.line(&format!(
        "{binary} --threads 1 chat --model {} {adapters} {settings}; echo code $?",
        path("life/sft/final")
    ));
    tmux.shows("parameters, context");
    tmux.shows("adapter a");
    tmux.line("hello");
    tmux.answered(1);
    tmux.line("/adapter");
    tmux.shows("> a  ");
    tmux.keys(&["Escape"]);
    tmux.wait("closed list", |screen| !screen.contains("> a  "));
    tmux.line("/adapter bee");
    tmux.shows("adapter bee");
    tmux.line("and now");
    tmux.answered(2);
    tmux.line("/adapter off");
    tmux.wait("no adapter", |screen| !screen.contains("adapter bee"));
    tmux.line("and without");
    tmux.answered(3);
    tmux.line("/adapter cee");
    tmux.shows("there is no adapter cee: /adapter takes off, a, bee");
    tmux.line("/good");
    tmux.shows("good");
    tmux.line("/quit");
    tmux.shows("code 0");

    let folder = scratch.path(".share/colossal-chat/sessions");
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let session = files.find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    let session: Value = serde_json::from_slice(&std::fs::read(session).unwrap()).unwrap();
    let turns = session["conversation"]["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 6, "{session:#}");
    let mut messages = Vec::new();
    for (place, folder) in [(1, "a/final"), (3, "b/final"), (5, "life/sft/final")] {
        messages.push(json!({"role": "user", "content": turns[place - 1]["text"]}));
        assert_eq!(turns[place]["text"], answer(folder, &json!(messages)), "{folder}");
        assert_eq!(turns[place]["model"], path(folder));
        messages.push(json!({"role": "assistant", "content": turns[place]["text"]}));
    }
    let feedback = std::fs::read_dir(scratch.path(".share/colossal-chat/feedback")).unwrap().next().unwrap();
    let feedback: Value = serde_json::from_slice(&std::fs::read(feedback.unwrap().path()).unwrap()).unwrap();
    assert_eq!(feedback["models"], json!([path("life/sft/final")]));
}

#[test]
fn a_chat_refuses_names_that_mean_something_else() {
    let scratch = world();
    let Some(tmux) = Tmux::start(scratch, 200, 30) else { return };
    let binary = env!("CARGO_BIN_EXE_colossal-chat");
    for (name, flags, words) in [
        ("word", "--adapter off=a", "cannot be typed as a name in the chat: give NAME=DIR"),
        ("comparison", "--adapter a --compare b", "--compare: --adapter is given: leave --compare out"),
    ] {
        // The message is read from a file, and the code has a name of its own: a screen wraps lines, and may
        // still show what the line before has printed.
        let line = format!("{binary} chat --model life/sft/final {flags} 2> {name}; echo {name}: code $?");
        tmux.line(&line);
        tmux.shows(&format!("{name}: code 2"));
        let refused = scratch.read(name);
        assert!(refused.contains(words), "{refused}");
    }
}
