//! `eval judge` through the binary, with endpoints of the test's process: what is asked and counted, what is
//! kept when a server fails, and which input is refused.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::chat_server::{ChatServer, Reply};
use crate::harness::{Outcome, Scratch, names};
use crate::inference::world;

fn say(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

/// Writes questions with one turn each: `Question 0?` and so on.
fn write_questions(scratch: &Scratch, count: usize) {
    let row = |number| format!("{}\n", json!({"id": number, "prompt": format!("Question {number}?")}));
    scratch.write("questions.jsonl", &(0..count).map(row).collect::<String>());
}

/// Writes a file of answers.
fn write_answers(scratch: &Scratch, model: &str, answers: &[&str]) {
    let row = |(number, text): (usize, &&str)| {
        format!(
            "{}\n",
            json!({"question_id": number, "model_id": model, "choices": [{"index": 0, "turns": [text]}]})
        )
    };
    scratch.write(&format!("{model}.jsonl"), &answers.iter().enumerate().map(row).collect::<String>());
}

fn results(scratch: &Scratch, folder: &str) -> Value {
    serde_json::from_str(&scratch.read(&format!("{folder}/judge.json"))).unwrap()
}

fn rows(scratch: &Scratch, file: &str) -> Vec<Value> {
    scratch.read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The text between `start` and the next `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    text.split_once(start).unwrap_or_else(|| panic!("no {start} in {text}")).1.split_once(end).unwrap().0
}

/// The answers of A and B in a prompt for pairs.
fn sides(prompt: &str) -> [&str; 2] {
    ["A", "B"]
        .map(|side| between(prompt, &format!("[The Start of Assistant {side}'s Answer]\n"), "\n[The End"))
}

/// The judge that finds the answer with the larger number better.
fn by_number(messages: &[String], _: usize) -> Reply {
    let [a, b] = sides(messages.last().unwrap()).map(|text| text.parse::<f64>().unwrap());
    say(if a > b {
        "[[A]]"
    } else if b > a {
        "[[B]]"
    } else {
        "[[C]]"
    })
}

/// Writes an MT-Bench of three questions.
fn write_mt_bench(scratch: &Scratch) {
    fs::create_dir_all(scratch.path("eval-data/mt_bench/reference_answer")).unwrap();
    let mut questions = String::new();
    for (id, category) in [(81, "writing"), (101, "math"), (102, "math")] {
        let turns = [format!("First {id}?"), format!("Second {id}?")];
        writeln!(questions, "{}", json!({"question_id": id, "category": category, "turns": turns})).unwrap();
    }
    scratch.write("eval-data/mt_bench/question.jsonl", &questions);
    let reference =
        |id| json!({"question_id": id, "choices": [{"turns": ["right", "right too"]}]}).to_string();
    let references = format!("{}\n{}\n", reference(101), reference(102));
    scratch.write("eval-data/mt_bench/reference_answer/gpt-4.jsonl", &references);
}

#[test]
fn a_second_turn_holds_the_first_reply_and_the_same_command_asks_nothing_again() {
    let scratch = Scratch::new();
    write_mt_bench(&scratch);
    let model = ChatServer::start(|messages, _| say(&format!("reply to {}", messages.join("|"))));
    let judge = ChatServer::start(|messages, _| {
        let prompt = messages.last().unwrap();
        say(if prompt.contains("Second") { "Rating: [[6]]" } else { "Rating: [[9]]" })
    });
    let line = format!(
        "eval judge --questions mt_bench --model {} --judge {} --output out --max-gen-toks 50",
        model.address, judge.address
    );
    let outcome = scratch.run(&line);
    assert!(
        outcome.succeeds().contains("Ratings from 1 to 10") && outcome.stdout.contains("7.50"),
        "{outcome:#?}"
    );

    let asked = model.asked();
    assert_eq!(asked.len(), 6);
    assert!(
        asked.contains(&vec!["First 81?".into(), "reply to First 81?".into(), "Second 81?".into()]),
        "{asked:?}"
    );
    for body in model.bodies() {
        let is_math = body["messages"][0]["content"].as_str().unwrap().contains("10");
        assert_eq!(
            (&body["temperature"], &body["max_tokens"]),
            (&json!(if is_math { 0.0 } else { 0.7 }), &json!(50))
        );
    }
    let with_reference =
        judge.asked().iter().filter(|messages| messages.last().unwrap().contains("right")).count();
    assert_eq!((judge.asked().len(), with_reference), (6, 4));

    let found = results(&scratch, "out");
    let rating = &found["ratings"][0];
    assert_eq!((&rating["rating"]["mean"], &rating["rating"]["n"]), (&json!(7.5), &json!(3)));
    assert_eq!((&rating["turns"][1]["mean"], &rating["categories"][0]["n"]), (&json!(6.0), &json!(4)));
    assert!(
        rating["by"]["protocol_id"].as_str().unwrap().starts_with("mt_bench_single/v1/rating#"),
        "{rating:#}"
    );
    assert_eq!(rows(&scratch, "out/judgements.jsonl").len(), 6);
    let answers = names(&scratch.path("out/answers"));
    assert_eq!(rows(&scratch, &format!("out/answers/{}", answers[0])).len(), 3);
    for file in ["summary.md", "report.html", "settings.json", "environment.json"] {
        assert!(!scratch.read(&format!("out/{file}")).is_empty());
    }
    assert!(!scratch.read("out/report.html").contains("<script"));

    let before = (scratch.read("out/judge.json"), scratch.read("out/judgements.jsonl"));
    let again = scratch.run(&format!("{line} --json"));
    assert_eq!(again.json(), found);
    assert_eq!((model.asked().len(), judge.asked().len()), (6, 6));
    assert_eq!((scratch.read("out/judge.json"), scratch.read("out/judgements.jsonl")), before);
}

#[test]
fn what_a_judge_fails_at_is_named_and_asked_again_and_the_rest_is_kept() {
    let scratch = Scratch::new();
    write_questions(&scratch, 6);
    write_answers(&scratch, "sft", &["0", "1", "2", "3", "4", "5"]);
    let healed = Arc::new(AtomicBool::new(false));
    let is_healed = healed.clone();
    let judge = ChatServer::start(move |messages, before| {
        let prompt = messages.iter().find(|text| text.contains("[Question]")).unwrap();
        let is_reminder = messages.last().unwrap() != prompt;
        match (between(prompt, "[Question]\nQuestion ", "?"), is_healed.load(Ordering::Relaxed)) {
            ("1", false) if before == 0 => Reply::Status("429 Too Many Requests", "Retry-After: 1\r\n"),
            ("2", false) => Reply::Silence,
            ("3", false) => Reply::Body("<html>busy</html>"),
            ("4", _) => say("I cannot say."),
            ("5", _) if !is_reminder => say("Somewhere between [[2]] and [[3]]."),
            _ => say("Rating: [[8]]"),
        }
    });
    let line = format!(
        "eval judge --questions questions.jsonl --answers sft.jsonl --judge {} --output out --endpoint-timeout 2",
        judge.address
    );
    let outcome = scratch.run(&line);
    outcome.fails(
        1,
        &[
            "left 2 of 6 turns of sft without a verdict",
            "the same command asks them again",
            "no whole reply within 2 s",
        ],
    );
    let rating = results(&scratch, "out")["ratings"][0].clone();
    assert_eq!(
        (&rating["unparsed"], &rating["failed"], &rating["rating"]["n"]),
        (&json!(1), &json!(2), &json!(3))
    );
    let kept = rows(&scratch, "out/judgements.jsonl");
    assert_eq!(kept.iter().filter(|row| row["rating"] == 8.0).count(), 3);
    assert_eq!(kept[4]["replies"], json!(["I cannot say.", "I cannot say."]));
    assert!(kept[3]["failed"].as_str().unwrap().contains(&judge.address), "{:#}", kept[3]);

    healed.store(true, Ordering::Relaxed);
    let before = judge.asked().len();
    scratch.run(&line).succeeds();
    assert_eq!(judge.asked().len() - before, 2, "the two that failed");
    let rating = results(&scratch, "out")["ratings"][0].clone();
    assert_eq!(
        (&rating["unparsed"], &rating["failed"], &rating["rating"]["n"]),
        (&json!(1), &json!(0), &json!(5))
    );
}

/// A judge that says something else, and one that is behind no chat endpoint, have judged nothing.
#[test]
fn a_judge_without_any_verdict_ends_with_1() {
    let scratch = Scratch::new();
    write_questions(&scratch, 2);
    write_answers(&scratch, "sft", &["0", "1"]);
    write_answers(&scratch, "ppo", &["2", "3"]);
    let judge = ChatServer::start(|_, _| say("Both are fine."));
    let line = |answers: &str, judge: &ChatServer| {
        format!(
            "eval judge --questions questions.jsonl --answers {answers} --judge {} --output out",
            judge.address
        )
    };
    for answers in ["sft.jsonl", "sft.jsonl,ppo.jsonl"] {
        let outcome = scratch.run(&line(answers, &judge));
        outcome.fails(1, &["gave no verdict that can be read, on 2 items"]);
        assert!(scratch.path("out/report.html").exists());
        fs::remove_dir_all(scratch.path("out")).unwrap();
    }
    let empty = ChatServer::start(|_, _| Reply::Body("{\"choices\":[]}"));
    let outcome = scratch.run(&line("sft.jsonl", &empty));
    outcome.fails(1, &["left 2 of 2 turns of sft without a verdict", "no choice with a message"]);
    outcome.fails(1, &["✗ 2 of 2 requests failed"]);
    assert!(!outcome.stderr.contains('✓'), "{}", outcome.stderr);
    // No answer is kept: the same command asks both again.
    scratch.run(&line("sft.jsonl", &empty)).fails(1, &["left 2 of 2 turns"]);
    assert_eq!(empty.asked().len(), 4);
}

#[test]
fn a_model_that_fails_leaves_the_others_judged() {
    let scratch = Scratch::new();
    write_questions(&scratch, 3);
    let healed = Arc::new(AtomicBool::new(false));
    let is_healed = healed.clone();
    let good = ChatServer::start(|_, _| say("7"));
    let model = ChatServer::start(move |messages, _| match messages[0].as_str() {
        "Question 1?" if !is_healed.load(Ordering::Relaxed) => Reply::Body("no JSON"),
        _ => say("5"),
    });
    let judge = ChatServer::start(by_number);
    let line = format!(
        "eval judge --questions questions.jsonl --model {},{} --judge {} --output out",
        good.address, model.address, judge.address
    );
    let outcome = scratch.run(&line);
    outcome.fails(1, &["left 1 of 3 questions without an answer", "the same command asks them again"]);
    let comparison = results(&scratch, "out")["comparisons"][0].clone();
    assert_eq!((&comparison["losses"], &comparison["win_rate"]["n"]), (&json!(2), &json!(2)));
    let judged = rows(&scratch, "out/judgements.jsonl");
    assert_eq!(judged.iter().map(|row| row["row"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 2]);

    healed.store(true, Ordering::Relaxed);
    let asked = (model.asked().len(), judge.asked().len(), good.asked().len());
    scratch.run(&line).succeeds();
    assert_eq!(
        (model.asked().len(), judge.asked().len(), good.asked().len()),
        (asked.0 + 1, asked.1 + 2, asked.2)
    );
    assert_eq!(results(&scratch, "out")["comparisons"][0]["losses"], 3);
}

#[test]
fn a_refused_key_ends_with_2_and_keeps_what_there_is() {
    let scratch = Scratch::new();
    write_questions(&scratch, 6);
    let healed = Arc::new(AtomicBool::new(false));
    let is_healed = healed.clone();
    let refusing = move |messages: &[String]| {
        !is_healed.load(Ordering::Relaxed) && messages.last().unwrap().contains("Question 4?")
    };
    let refuses = refusing.clone();
    let model = ChatServer::start(move |messages, _| {
        if refuses(messages) { Reply::Status("401 Unauthorized", "") } else { say("an answer") }
    });
    let judge = ChatServer::start(|_, _| Reply::Status("401 Unauthorized", ""));
    let line = |judge: &str| {
        format!(
            "eval judge --questions questions.jsonl --model {} --judge {judge} --output out --endpoint-concurrency 1",
            model.address
        )
    };
    scratch.run(&line(&judge.address)).fails(2, &["401", "COLOSSAL_API_KEY"]);
    assert_eq!((model.asked().len(), judge.asked().len()), (5, 0));
    assert_eq!(rows(&scratch, "out/answer_responses.jsonl").len(), 4);

    healed.store(true, Ordering::Relaxed);
    scratch.run(&line(&judge.address)).fails(2, &["401", "COLOSSAL_API_KEY"]);
    assert_eq!((model.asked().len(), judge.asked().len()), (7, 1), "what was answered is not asked again");
    assert_eq!(names(&scratch.path("out/answers")).len(), 1);
    assert!(!scratch.path("out/judge.json").exists());

    // Nothing was judged yet, so another judge may begin. After it, a third one may not.
    let judge = ChatServer::start(|_, _| say("[[5]]"));
    scratch.run(&line(&judge.address)).succeeds();
    assert_eq!((model.asked().len(), judge.asked().len()), (7, 6));
    let third = ChatServer::start(|_, _| say("[[7]]"));
    scratch.run(&line(&third.address)).fails(2, &["other judge", "--force"]);
    scratch.run(&format!("{} --force", line(&third.address))).succeeds();
    assert_eq!((model.asked().len(), third.asked().len()), (7, 6));
}

#[test]
fn pairs_are_judged_in_both_orders_and_the_numbers_are_those_by_hand() {
    let scratch = Scratch::new();
    write_questions(&scratch, 5);
    write_answers(&scratch, "sft", &["2", "2", "2", "2", "2"]);
    write_answers(&scratch, "ppo", &["3", "4", "5", "1", "2"]);
    write_answers(&scratch, "dpo", &["1", "1", "0", "9", "2"]);
    let judge = ChatServer::start(by_number);
    let line = format!("eval judge --questions questions.jsonl --judge {}", judge.address);
    let outcome = scratch.run(&format!("{line} --answers sft.jsonl,ppo.jsonl,dpo.jsonl --output out"));
    assert!(outcome.succeeds().contains("Standings"), "{outcome:#?}");
    // Five pairs twice in two orders; both orders of two equal answers are one request.
    assert_eq!(judge.asked().len(), 2 * (2 * 4 + 1) - 1);

    let found = results(&scratch, "out");
    let rates: Vec<f64> =
        [0, 1].map(|at| found["comparisons"][at]["win_rate"]["mean"].as_f64().unwrap()).to_vec();
    // 3 wins, a loss and a tie; a win, 3 losses and a tie.
    assert_eq!(rates, [3.5 / 5.0, 1.5 / 5.0]);
    assert_eq!(
        (&found["comparisons"][0]["ties"], &found["comparisons"][0]["disagreements"]),
        (&json!(1), &json!(0.0))
    );
    // Each model meets the baseline alone, so its odds are its points: 400 lg(3.5 / 1.5) above or below it.
    let ratings = found["standings"]["models"].as_array().unwrap();
    let shift = 400.0 * (3.5_f64 / 1.5).log10();
    for (rating, (name, wanted)) in
        ratings.iter().zip([("ppo", 1000.0 + shift), ("sft", 1000.0), ("dpo", 1000.0 - shift)])
    {
        assert_eq!(rating["model"], name);
        assert!((rating["rating"].as_f64().unwrap() - wanted).abs() < 1e-6, "{rating:#} {wanted}");
    }
    assert!(ratings.iter().all(|rating| rating["comparisons"].as_u64() >= Some(5)));

    // A judge that always takes the first answer says nothing.
    let biased = ChatServer::start(|_, _| say("[[A]]"));
    let line = format!("eval judge --questions questions.jsonl --judge {} --output first", biased.address);
    scratch.run(&format!("{line} --answers sft.jsonl,ppo.jsonl --baseline ppo")).succeeds();
    let comparison = results(&scratch, "first")["comparisons"][0].clone();
    assert_eq!((&comparison["system"], &comparison["ties"]), (&json!("sft"), &json!(5)));
    // The fifth pair is one request, and its swapped verdict the other one.
    assert_eq!((&comparison["win_rate"]["mean"], &comparison["disagreements"]), (&json!(0.5), &json!(1.0)));
}

#[test]
fn arena_hard_is_judged_in_five_degrees_from_files_of_answers() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("eval-data/arena_hard")).unwrap();
    scratch.write(
        "eval-data/arena_hard/question.jsonl",
        "{\"uid\": \"f0\", \"prompt\": \"Why?\"}\n{\"uid\": \"f1\", \"prompt\": \"How?\"}\n",
    );
    for (model, text) in [("gpt-a", "much"), ("gpt-b", "less")] {
        let row = |uid: &str| {
            let said =
                json!([{"role": "user", "content": "?"}, {"role": "assistant", "content": {"answer": text}}]);
            format!("{}\n", json!({"uid": uid, "model": model, "messages": said}))
        };
        scratch.write(&format!("{model}.jsonl"), &[row("f0"), row("f1")].concat());
    }
    let judge = ChatServer::start(|messages, _| {
        let first = between(messages.last().unwrap(), "[Start of the answer of assistant A]\n", "\n");
        say(if first == "much" { "[[A>>B]]" } else { "[[B>A]]" })
    });
    let line = format!("eval judge --questions arena_hard --judge {} --output out", judge.address);
    scratch.run(&format!("{line} --answers gpt-b.jsonl,gpt-a.jsonl")).succeeds();
    let found = results(&scratch, "out");
    let comparison = &found["comparisons"][0];
    assert_eq!((&comparison["system"], &comparison["verdict"]), (&json!("gpt-a"), &json!("five_way")));
    assert_eq!((&comparison["wins"], &comparison["win_rate"]["mean"]), (&json!(2), &json!(1.0)));
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains("no standings"), "{warnings}");
}

#[test]
fn a_reward_model_judges_as_the_command_reward_scores_and_the_training_reward_is_flagged() {
    let scratch = Scratch::new();
    write_questions(&scratch, 4);
    let (model, reward) = (world().path("model"), world().path("judge").display().to_string());
    fs::create_dir_all(scratch.path("ppo/final")).unwrap();
    for name in names(&model) {
        fs::copy(model.join(&name), scratch.path("ppo/final").join(&name)).unwrap();
    }
    let eval = format!(
        "eval judge --questions questions.jsonl --judge {reward} --model {},ppo --max-gen-toks 6",
        model.display()
    );
    let answers = |folder: &str, model: &str| rows(&scratch, &format!("{folder}/answers/{model}.jsonl"));
    scratch.write("ppo/run.toml", "[ppo]\nreward_model = 'elsewhere'\n");
    scratch.run(&format!("{eval} --temperature 0.9 --output out")).succeeds();
    let comparison = results(&scratch, "out")["comparisons"][0].clone();
    assert_eq!((&comparison["biased"], &comparison["system"]), (&json!(false), &json!("ppo")));

    let mut conversations = String::new();
    for row in answers("out", "ppo") {
        let prompt = format!("Question {}?", row["question_id"].as_str().unwrap());
        let reply = &row["choices"][0]["turns"][0];
        let said = json!([{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]);
        writeln!(conversations, "{}", json!({"messages": said})).unwrap();
    }
    scratch.write("conversations.jsonl", &conversations);
    let scored = scratch.run(&format!("reward --model {reward} --input conversations.jsonl")).rows();
    for (row, score) in rows(&scratch, "out/judgements.jsonl").iter().zip(&scored) {
        let (ours, theirs) = (row["rewards"][0].as_f64().unwrap(), score["score"].as_f64().unwrap());
        assert!((ours - theirs).abs() < 1e-5, "{row:#} {score}");
    }
    assert!(comparison["mean_rewards"][0].is_f64());

    scratch.write("ppo/run.toml", &format!("[ppo]\nreward_model = '{reward}'\n"));
    let outcome = scratch.run(&format!("{eval} --output biased"));
    assert!(outcome.stderr.contains("the judge is the training reward: biased"), "{outcome:#?}");
    assert_eq!(results(&scratch, "biased")["comparisons"][0]["biased"], true);
    assert!(scratch.read("biased/report.html").contains("the judge is the training reward: biased"));
}

#[test]
fn wrong_input_is_named_before_anybody_is_asked() {
    let scratch = Scratch::new();
    write_questions(&scratch, 2);
    write_answers(&scratch, "a", &["1", "2"]);
    write_answers(&scratch, "b", &["1", "2"]);
    scratch.write("math.jsonl", "{\"id\": 0, \"category\": \"math\", \"prompt\": \"1 + 1?\"}\n");
    scratch.write("twice.jsonl", "{\"id\": 7, \"prompt\": \"a\"}\n{\"id\": 7, \"prompt\": \"b\"}\n");
    scratch.write("bad.jsonl", "{\"id\": 7, \"text\": \"a\"}\n");
    scratch.write("other.jsonl", "{\"question_id\": 9, \"choices\": [{\"turns\": [\"x\"]}]}\n");
    let never = ChatServer::start(|_, _| panic!("nobody is asked"));
    let reward = world().path("judge").display().to_string();
    let judge =
        |rest: &str, judge: &str| -> Outcome { scratch.run(&format!("eval judge {rest} --judge {judge}")) };
    let (one, two) = (
        "--questions questions.jsonl --answers a.jsonl",
        "--questions questions.jsonl --answers a.jsonl,b.jsonl",
    );
    for (rest, code, words) in [
        ("--questions nowhere.jsonl --answers a.jsonl".to_owned(), 2, &["nowhere.jsonl", "no such file"][..]),
        (
            "--questions mt_bench --answers a.jsonl".into(),
            3,
            &["eval-data/mt_bench/question.jsonl", "FastChat", "--data"],
        ),
        (
            "--questions arena_hard --answers a.jsonl".into(),
            3,
            &["arena_hard/question.jsonl", "arena-hard-auto"],
        ),
        ("--questions twice.jsonl --answers a.jsonl".into(), 3, &["twice.jsonl", "row 2", "\"7\""]),
        ("--questions bad.jsonl --answers a.jsonl".into(), 3, &["bad.jsonl", "row 1", "prompt"]),
        ("--questions math.jsonl --answers a.jsonl".into(), 3, &["0 of 1 reference answers", "--references"]),
        (
            "--questions questions.jsonl --answers other.jsonl".into(),
            3,
            &["other.jsonl", "none of the 2 questions"],
        ),
        ("--questions questions.jsonl --answers a.jsonl,a.jsonl".into(), 2, &["two models are named \"a\""]),
        ("--questions questions.jsonl".into(), 2, &["--model"]),
        (format!("{one} --mode pairwise"), 2, &["needs two models"]),
        (format!("{one} --prompt five_way"), 2, &["its verdict is a comparison", "--mode pairwise"]),
        (format!("{one} --prompt none.toml"), 2, &["none.toml"]),
        (format!("{one} --temperature 1"), 2, &["--model"]),
        (format!("{two} --baseline c"), 2, &["--baseline c", "a, b"]),
        (format!("{two} --mode single --baseline a"), 2, &["--baseline", "--mode pairwise"]),
    ] {
        judge(&rest, &never.address).fails(code, words);
    }
    judge(one, &reward).fails(2, &["needs two models"]);
    judge(&format!("{two} --mode single"), &reward).fails(2, &["a reward model compares answers"]);
    judge(&format!("{two} --prompt five_way"), &reward).fails(2, &["--prompt", "is asked nothing"]);
    judge(&format!("{two} --endpoint-timeout 3"), &reward)
        .fails(2, &["--endpoint-timeout", "no model is behind"]);
    judge(one, "nowhere/final").fails(2, &["nowhere"]);
    assert!(!scratch.path("eval-results").exists());
}
