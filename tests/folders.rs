//! Folders and files: whose they are, who holds them, and what is left after a signal, a fault or a full
//! disk.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::harness::{Scratch, children, names, signal};
use crate::training::{copied, json, life, metrics};

/// A run of supervised fine-tuning that lasts, in the folder `long`, once it trains.
fn long_run(scratch: &Scratch, sets: &str) -> Child {
    let words =
        format!("sft --config life/sft/run.toml --set out=long --set train.steps=1000000 --set {sets}");
    let child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", 3);
    child
}

/// Waits for the end of `child`, for `limit` at most; gives its exit code.
fn ends_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if started.elapsed() > limit {
            child.kill().unwrap();
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_lies_in_a_run_folder_and_is_not_ours_is_never_overwritten() {
    let scratch = copied();
    let sft = "sft --config life/sft/run.toml --set out=mine";
    for name in [
        "run.toml",
        "plan.json",
        "metrics.jsonl",
        "samples.jsonl",
        "tensorboard/events.out.tfevents.1",
        "live/events.jsonl",
        "checkpoints/notes",
        "logs/rank-1.log",
    ] {
        let file = format!("mine/{name}");
        std::fs::create_dir_all(scratch.path(&file).parent().unwrap()).unwrap();
        scratch.write(&file, "mine");
        let top = name.split('/').next().unwrap();
        for processes in ["1", "2"] {
            let outcome = scratch.run(&format!("{sft} --nproc {processes}"));
            outcome.fails(2, &[&format!("mine/{top}: no run of this program made this")]);
            assert_eq!(scratch.read(&file), "mine");
            assert_eq!(names(&scratch.path("mine")), [top]);
        }
        std::fs::remove_dir_all(scratch.path("mine")).unwrap();
    }
    // The user's own run file, where the run saves the resolved one.
    std::fs::create_dir(scratch.path("mine")).unwrap();
    let text =
        format!("# my notes\n{}", scratch.read("life/sft/run.toml").replace("\"life/sft\"", "\"mine\""));
    scratch.write("mine/run.toml", &text);
    scratch.run("sft --config mine/run.toml").fails(2, &["mine/run.toml: no run of this program made this"]);
    assert_eq!(scratch.read("mine/run.toml"), text);
    // A lock file that no run wrote marks nothing. A folder of ours in which no checkpoint was made may be used
    // again, but not over the file that is being read.
    scratch.write("mine/.colossal-chat.lock", "");
    scratch.run("sft --config mine/run.toml").fails(2, &["mine/run.toml: no run of this program made this"]);
    scratch.write("mine/.colossal-chat", "colossal-chat 1 run\n");
    scratch.run("sft --config mine/run.toml").fails(2, &["mine/run.toml: this is the run file"]);
    assert_eq!(scratch.read("mine/run.toml"), text);
    scratch.write("file", "");
    scratch
        .run("sft --config life/sft/run.toml --set out=file")
        .fails(2, &["\"file\" cannot be used: it is not a folder"]);
    scratch.run("sft --config life/sft/run.toml --set out=file/x").fails(2, &["file is not a folder"]);
}

#[test]
fn what_lies_in_the_folder_of_a_pipeline_and_is_not_ours_is_never_overwritten() {
    let scratch = copied();
    for name in ["run.toml", "data/rows", "sft/x", "report.html", "seconds.json"] {
        let file = format!("mine/{name}");
        std::fs::create_dir_all(scratch.path(&file).parent().unwrap()).unwrap();
        scratch.write(&file, "mine");
        scratch
            .run("pipeline --config life.toml --set out=mine")
            .fails(2, &[&format!("mine/{}: no run", name.split('/').next().unwrap())]);
        assert_eq!(scratch.read(&file), "mine");
        std::fs::remove_dir_all(scratch.path("mine")).unwrap();
    }
}

#[test]
fn an_output_replaces_nothing_without_force_and_the_input_never() {
    let scratch = copied();
    scratch.write("in.jsonl", "{\"text\": \"2 + 2\"}\n");
    scratch.write("old.jsonl", "mine");
    for command in ["generate --raw --max-new-tokens 2", "logprobs", "reward", "data convert"] {
        let model = if command == "reward" { "life/rm/final" } else { "life/sft/final" };
        let line = match command {
            "data convert" => "data convert in.jsonl".to_owned(),
            _ => format!("{command} --model {model} --input in.jsonl"),
        };
        scratch.run(&format!("{line} --output old.jsonl")).fails(2, &["--output old.jsonl", "--force"]);
        scratch.run(&format!("{line} --output in.jsonl --force")).fails(2, &["the input itself"]);
        assert_eq!(
            [scratch.read("old.jsonl").as_str(), scratch.read("in.jsonl").as_str()],
            ["mine", "{\"text\": \"2 + 2\"}\n"]
        );
        scratch.run(&format!("{line} --output old.jsonl --force")).succeeds();
        assert!(scratch.read("old.jsonl").starts_with('{'));
        scratch.write("old.jsonl", "mine");
    }
    // A name under which an earlier version wrote.
    scratch.write("new.jsonl.tmp", "mine");
    scratch.run("logprobs --model life/sft/final --input in.jsonl --output new.jsonl").succeeds();
    assert_eq!(scratch.read("new.jsonl.tmp"), "mine");
}

#[test]
fn a_folder_that_exists_is_not_replaced() {
    let scratch = copied();
    let before = names(&scratch.path("life/data"));
    scratch.run("data synth --train 1 --out life/data").fails(2, &["--out life/data: it exists already"]);
    scratch
        .run("data tokenizer life/data/text.parquet --vocab-size 300 --out life/data")
        .fails(2, &["--out life/data: it exists already"]);
    scratch
        .run("model init life/sft/final/config.json --out life/data")
        .fails(2, &["--out life/data: it exists already"]);
    assert_eq!(names(&scratch.path("life/data")), before);
    assert_eq!(names(&scratch.path("life")), names(&life().path("life")));
}

#[test]
fn a_folder_in_use_is_refused_and_a_killed_run_leaves_no_lock() {
    let scratch = copied();
    let mut child = long_run(&scratch, "checkpoint.every=1");
    let holder = format!("long: process {} on ", child.id());
    let words = [holder.as_str(), "is running in this folder"];
    let line = "sft --config life/sft/run.toml --set out=long --set train.steps=1000000";
    scratch.run(line).fails(2, &words);
    scratch.run(&format!("{line} --resume")).fails(2, &words);
    scratch.run(&format!("{line} --resume --nproc 2")).fails(2, &words);
    signal("KILL", child.id());
    child.wait().unwrap();
    let rows = scratch.read("long/metrics.jsonl").lines().count();
    let words = format!("{line} --resume --set checkpoint.every=0");
    let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", rows + 3);
    signal("TERM", child.id());
    assert_eq!(ends_within(&mut child, Duration::from_secs(20)), Some(130));
}

#[test]
fn a_pipeline_holds_the_folders_of_its_stages() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/ppo")).unwrap();
    // Long enough to be looked at; the other stages are done.
    let words = "pipeline --config life.toml --resume --set stage.ppo.ppo.iterations=100000";
    let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("life/ppo/metrics.jsonl", 1);
    let holder = format!("process {} on ", child.id());
    scratch.run("pipeline --config life.toml --resume").fails(2, &["life: ", &holder]);
    scratch.run("sft --config life/sft/run.toml --resume").fails(2, &["life/sft: ", &holder]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_finished_run_that_is_resumed_stays_as_it_is() {
    let scratch = copied();
    let weights = scratch.path("life/sft/final/model.safetensors");
    let changed = || std::fs::metadata(&weights).unwrap().modified().unwrap();
    let before = changed();
    let outcome = scratch.run("sft --config life/sft/run.toml --resume");
    outcome.succeeds();
    assert!(outcome.stderr.contains("this run is finished"), "{outcome:#?}");
    assert_eq!(changed(), before);
}

#[test]
fn a_finished_run_becomes_longer_and_equals_one_that_was_as_long_from_the_start() {
    for (stage, key, [short, long]) in
        [("sft", "train.steps", [6, 9]), ("rm", "train.steps", [6, 8]), ("ppo", "ppo.iterations", [2, 4])]
    {
        let scratch = copied();
        let line = |out: &str, length: u64| {
            format!(
                "{stage} --config life/{stage}/run.toml --set train.scheduler=constant --set checkpoint.every=2 \
                 --set out={out} --set {key}={length}"
            )
        };
        scratch.run(&line("whole", long)).succeeds();
        scratch.run(&line("grown", short)).succeeds();
        let outcome = scratch.run(&format!("{} --resume", line("grown", long)));
        outcome.succeeds();
        let told = format!("this run is extended from {short} to {long} steps");
        for words in [told.as_str(), "the model of the shorter run is now grown/final.before-extension"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:#?}");
        }

        let bytes = |out: &str| std::fs::read(scratch.path(&format!("{out}/model.safetensors"))).unwrap();
        assert!(bytes("grown/final") == bytes("whole/final"), "{stage}");
        assert!(bytes("grown/final.before-extension") == bytes(&format!("whole/checkpoints/step-{short}")));
        assert_eq!(metrics(&scratch, "grown"), metrics(&scratch, "whole"));

        // The saved configuration is that of the longer run, which can neither shrink nor be taken for the
        // shorter one.
        assert!(scratch.run(&format!("{} --resume", line("grown", long))).stderr.contains("is finished"));
        let changed =
            format!("this run has {long} {}, and {short} are asked for", key.rsplit('.').next().unwrap());
        scratch.run(&format!("{} --resume", line("grown", short))).fails(2, &[&changed]);
    }
}

/// What refuses a longer run refuses it before anything in its folder changes.
#[test]
fn a_refused_extension_changes_nothing() {
    let scratch = copied();
    scratch.write("rows.jsonl", &"{\"prompt\": \"1 + 1\", \"response\": \"2\"}\n".repeat(8));
    let line =
        "sft --config life/sft/run.toml --set data.train=rows.jsonl --set checkpoint.every=2 --set out=kept";
    scratch.run(&format!("{line} --set train.steps=4")).succeeds();
    let settings = scratch.read("kept/run.toml");
    scratch.write("rows.jsonl", &"{\"prompt\": \"1 + 1\", \"response\": \"3\"}\n".repeat(8));
    for processes in [1, 2] {
        scratch
            .run(&format!("{line} --set train.steps=6 --resume --nproc {processes}"))
            .fails(3, &["the training rows have changed"]);
        assert_eq!(scratch.read("kept/run.toml"), settings);
        assert!(scratch.path("kept/final").exists() && !scratch.path("kept/final.before-extension").exists());
    }
}

#[test]
fn settings_that_make_no_run_longer_leave_it_finished() {
    let scratch = copied();
    // `epochs` has no effect beside `steps`; and 40 pairs in batches of 8 are 5 steps an epoch.
    let line = "rm --config life/rm/run.toml --resume --set train.epochs=2";
    scratch.run(line).fails(2, &["`train.epochs` has no effect on rm", "[train] steps"]);
    scratch.run("rm --config life/rm/run.toml --set out=five --set train.steps=5").succeeds();
    let text = scratch.read("five/run.toml");
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("steps =")).collect();
    scratch.write("epochs.toml", &without.join("\n"));
    let outcome = scratch.run("rm --config epochs.toml --resume --set train.epochs=1");
    outcome.succeeds();
    assert!(outcome.stderr.contains("this run is finished: it has had its 5 steps already"), "{outcome:#?}");
    assert!(scratch.path("five/final").exists() && !scratch.path("five/final.before-extension").exists());
}

/// A scheduler restarts a job with the same command, whatever it had done when it died.
#[test]
fn a_run_without_a_checkpoint_resumes_from_its_beginning() {
    let scratch = copied();
    let line =
        |out: &str, more: &str| format!("sft --config life/sft/run.toml --set out={out} --resume{more}");
    let told = "there is nothing to resume yet, so the run starts from the beginning";
    let weights = |out: &str| std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap();
    let outcome = scratch.run(&line("planned", " --dry-run"));
    outcome.succeeds();
    assert!(outcome.stderr.contains(told) && !scratch.path("planned").exists(), "{outcome:#?}");
    for (out, more, processes) in [("new", "", 1), ("pair", " --nproc 2", 2), ("dead", "", 1)] {
        if out == "dead" {
            // What a run leaves that was killed before its first checkpoint.
            let words = "sft --config life/sft/run.toml --set out=dead --set train.steps=1000000 --set checkpoint.every=0";
            let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
            scratch.wait_for_rows("dead/metrics.jsonl", 2);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let outcome = scratch.run(&line(out, more));
        outcome.succeeds();
        assert_eq!(outcome.stderr.matches(told).count(), 1, "{out}: {outcome:#?}");
        assert_eq!(metrics(&scratch, out).len(), 6, "{out}");
        if processes == 1 {
            assert!(weights(out) == weights("life/sft"), "{out}");
        }
        // The second time there is something.
        let again = scratch.run(&line(out, more));
        assert!(again.stderr.contains("this run is finished") && !again.stderr.contains(told), "{again:#?}");
    }
    // With the very file that the dead run has saved.
    std::fs::create_dir(scratch.path("own")).unwrap();
    scratch.write("own/.colossal-chat.lock", &scratch.read("new/.colossal-chat.lock"));
    scratch.write("own/run.toml", &scratch.read("new/run.toml").replace("\"new\"", "\"own\""));
    let text = scratch.read("own/run.toml");
    scratch.run("sft --config own/run.toml").fails(2, &["this is the run file"]);
    scratch.run("sft --config own/run.toml --resume").succeeds();
    assert_eq!(scratch.read("own/run.toml"), text);
    // A folder of somebody else stays somebody else's.
    std::fs::create_dir(scratch.path("theirs")).unwrap();
    scratch.write("theirs/metrics.jsonl", "theirs\n");
    for more in ["", " --nproc 2"] {
        scratch.run(&line("theirs", more)).fails(2, &["theirs/metrics.jsonl", "no run of this program"]);
        assert_eq!(names(&scratch.path("theirs")), ["metrics.jsonl"]);
    }
}

#[test]
fn a_pipeline_without_a_folder_resumes_from_its_beginning() {
    let scratch = Scratch::new();
    scratch.write("life.toml", crate::training::LIFE);
    let told = "life: there is nothing to resume yet";
    let line = "pipeline --config life.toml --resume";
    let outcome = scratch.run(&format!("{line} --dry-run"));
    outcome.succeeds();
    assert!(outcome.stderr.contains(told) && !scratch.path("life").exists(), "{outcome:#?}");
    let outcome = scratch.run(&format!("{line} --set pipeline.stages=['data','tokenizer','base']"));
    outcome.succeeds();
    assert_eq!(outcome.stderr.matches(told).count(), 1, "{outcome:#?}");
    // A stage that died before its first checkpoint begins again.
    let base = scratch.path("life/base");
    for part in ["final", "checkpoints"] {
        std::fs::remove_dir_all(base.join(part)).unwrap();
    }
    let outcome = scratch.run(&format!("{line} --set pipeline.stages=['data','tokenizer','base']"));
    outcome.succeeds();
    assert!(!outcome.stderr.contains(told) && base.join("final").exists(), "{outcome:#?}");
}

/// The user may also edit the file in the run folder. It is kept as it was written.
#[test]
fn the_file_in_the_run_folder_makes_a_run_longer_too() {
    let scratch = copied();
    let text = format!("# mine\n{}", scratch.read("life/sft/run.toml").replace("steps = 6", "steps = 8"));
    scratch.write("life/sft/run.toml", &text);
    let outcome = scratch.run("sft --config life/sft/run.toml --resume --nproc 2");
    outcome.succeeds();
    assert!(outcome.stderr.contains("this run is extended from 6 to 8 steps"), "{outcome:#?}");
    assert_eq!(scratch.read("life/sft/run.toml"), text);
    assert_eq!(metrics(&scratch, "life/sft").len(), 8);
    assert!(scratch.path("life/sft/checkpoints/step-8").exists());
}

/// A run folder of an earlier version: its `run.toml` and its checkpoints lack keys of today.
#[test]
fn a_run_of_an_earlier_version_resumes() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/ppo/final")).unwrap();
    let text = scratch.read("life/ppo/run.toml");
    let old: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with("advantage_estimator") && !line.starts_with("device"))
        .map(|line| match line.strip_prefix("reward_model = [") {
            Some(name) => format!("reward_model = {}", name.trim_end_matches(']')),
            None => line.to_owned(),
        })
        .collect();
    assert!(
        old.len() + 2 == text.lines().count() && old.iter().any(|line| line.starts_with("reward_model = \""))
    );
    scratch.write("mine.toml", &text);
    scratch.write("life/ppo/run.toml", &old.join("\n"));
    scratch.run("ppo --config mine.toml --resume").succeeds();
}

#[test]
fn an_extended_schedule_is_reported_with_both_rates() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set train.scheduler=linear --set train.lr=0.001 --set out=grown \
                --set checkpoint.every=4";
    scratch.run(&format!("{line} --set train.steps=8")).succeeds();
    // After 8 steps, the rate would be 0.001 (1 - 8 / 8) = 0; in a run of 16 steps, it is 0.001 (1 - 8 / 16).
    let outcome = scratch.run(&format!("{line} --set train.steps=16 --resume"));
    outcome.succeeds();
    assert!(
        outcome.stderr.contains("the next step has the rate 5.000e-4 instead of 0.000e0"),
        "{outcome:#?}"
    );
    let rates: Vec<f64> = metrics(&scratch, "grown").iter().map(|row| row["lr"].as_f64().unwrap()).collect();
    assert_eq!(rates.len(), 16);
    assert!((rates[7] - 0.001 / 8.0).abs() < 1e-12 && (rates[8] - 0.0005).abs() < 1e-12, "{rates:?}");
}

#[test]
fn a_run_that_kept_no_checkpoint_cannot_become_longer() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set checkpoint.every=0 --set out=bare --set train.steps";
    scratch.run(&format!("{line}=2")).succeeds();
    let words = ["bare: this run is finished and has kept no checkpoint", "[checkpoint] every"];
    scratch.run(&format!("{line}=3 --resume")).fails(2, &words);
    assert!(scratch.path("bare/final").exists());

    std::fs::remove_dir_all(scratch.path("life/ppo/checkpoints")).unwrap();
    let text = scratch.read("life/run.toml");
    let line = "pipeline --config life.toml --resume --set stage.ppo.ppo.iterations=3";
    scratch.run(line).fails(2, &["life/ppo: this run is finished and has kept no checkpoint"]);
    assert_eq!(scratch.read("life/run.toml"), text);
}

/// The file that the user passes may be the one in the folder of the pipeline.
#[test]
fn a_pipeline_that_is_refused_keeps_its_configuration() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/sft/final")).unwrap();
    let text = scratch.read("life/run.toml");
    let line = "pipeline --config life/run.toml --resume --set stage.sft.train.lr=5";
    scratch.run(line).fails(2, &["life/sft/run.toml", "train.lr"]);
    assert_eq!(scratch.read("life/run.toml"), text);
}

/// Rows that make as many steps as were asked for by number leave a stage finished, whoever has used its
/// model.
#[test]
fn a_pipeline_counts_rows_before_it_calls_a_stage_longer() {
    let scratch = copied();
    let text = scratch.read("life/run.toml");
    let (before, rm) = text.split_once("[stage.rm.train]").unwrap();
    let (above, steps) = rm.split_once("\nsteps = 6").unwrap();
    let (_origin, after) = steps.split_once('\n').unwrap();
    scratch.write("epochs.toml", &format!("{before}[stage.rm.train]{above}\n{after}"));
    let line =
        "pipeline --config epochs.toml --resume --set stage.rm.data.limit=24 --set stage.rm.train.epochs=2";
    scratch.run(line).fails(2, &["data.limit"]);
    let line = "pipeline --config epochs.toml --resume --set stage.rm.train.epochs=2";
    scratch.run(line).fails(2, &["stage rm cannot become longer", "used by ppo"]);
    let line = "pipeline --config epochs.toml --resume --set stage.rm.train.epochs=1";
    scratch.run(line).fails(2, &["life/rm: this run has 6 steps, and 5 are asked for"]);
}

/// A run file as an earlier version resolved it: the base stage has a table of the tokenizer and none of the
/// model.
#[test]
fn a_pipeline_of_an_earlier_version_is_resumed_from_its_own_file() {
    let scratch = copied();
    let without_model = |path: &str, table: &str| {
        let text = scratch.read(path);
        let (before, model) = text.split_once(table).unwrap();
        let after = model.split_once("\n[").unwrap().1;
        scratch.write(path, &format!("{before}[{after}"));
    };
    without_model("life/run.toml", "[stage.base.model]\n");
    without_model("life/base/run.toml", "[model]\n");
    assert!(scratch.read("life/run.toml").contains("[stage.base.tokenizer]\n"));
    scratch.run("pipeline --config life/run.toml --resume").succeeds();
    scratch
        .run("pipeline --config life/run.toml --resume --set model.dtype=bfloat16")
        .fails(2, &["sft", "model.dtype"]);
}

#[test]
fn a_device_that_a_late_stage_cannot_have_is_found_first() {
    let scratch = Scratch::new();
    scratch.write("life.toml", crate::training::LIFE);
    let line = "pipeline --config life.toml --set stage.ppo.model.device=cuda:9";
    for more in ["", " --dry-run", " --nproc 2 --dry-run"] {
        scratch.run(&format!("{line}{more}")).fails(4, &["cuda:9"]);
        assert!(!scratch.path("life").exists());
    }
}

/// From `steps` to `epochs`, only the number of rows tells which run is longer: 40 pairs are 5 steps an
/// epoch.
#[test]
fn epochs_that_make_fewer_steps_do_not_shorten_a_run() {
    let scratch = copied();
    let text = scratch.read("life/rm/run.toml");
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("steps =")).collect();
    assert_eq!(without.len() + 1, text.lines().count());
    scratch.write("epochs.toml", &without.join("\n"));
    let line = "rm --config epochs.toml --resume --set train.epochs";
    scratch.run(&format!("{line}=1")).fails(2, &["this run has 6 steps, and 5 are asked for", "not shorter"]);
    assert_eq!(scratch.read("life/rm/run.toml"), text);
    scratch.run(&format!("{line}=2")).succeeds();
    assert_eq!(metrics(&scratch, "life/rm").len(), 10);
}

/// Rows that take some seconds to tokenize; others for each `case`, so that nothing is remembered from the
/// last one.
fn many_rows(scratch: &Scratch, case: usize) {
    let text = format!("{case}: 12 plus 30 is 42, and a list of words. ").repeat(40);
    scratch.write("many.jsonl", &format!("{{\"text\": \"{text}\"}}\n").repeat(100_000));
    scratch.write("ids.jsonl", &"{\"ids\": [5, 6, 7, 8]}\n".repeat(400_000));
}

/// Whether a mask of `/proc/PID/status`, such as `SigCgt`, holds `signal`.
fn mask_holds(process: &str, mask: &str, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix(mask)?.strip_prefix(':'));
    bits.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).unwrap() >> (signal - 1) & 1 == 1)
}

/// Waits until `process` listens for SIGTERM, and then a moment.
fn wait_until_listening(process: u32) {
    let started = Instant::now();
    while !mask_holds(&process.to_string(), "SigCgt", 15) {
        assert!(started.elapsed() < Duration::from_secs(60), "{process} does not listen after a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn a_signal_before_the_first_step_ends_the_program_at_once() {
    let scratch = copied();
    let train = "sft --config life/sft/run.toml --set out=early --set data.overlong='truncate' --set data.train=many.jsonl";
    let ranks = format!("{train} --nproc 2");
    let cases = [
        (train, "INT"),
        (train, "TERM"),
        (train, "HUP"),
        (ranks.as_str(), "TERM"),
        ("data convert many.jsonl --output early/rows.jsonl.gz", "INT"),
        ("data tokenizer many.jsonl --out early/tokenizer", "TERM"),
        ("logprobs --model life/sft/final --input ids.jsonl --output early/rows.jsonl", "HUP"),
    ];
    // Under `nohup`, a test inherits that it is ignored.
    let is_sent = |name: &str| name != "HUP" || !mask_holds("self", "SigIgn", 1);
    for (case, (line, name)) in cases.into_iter().enumerate().filter(|(_, (_, name))| is_sent(name)) {
        many_rows(&scratch, case);
        let mut child = scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap();
        wait_until_listening(child.id());
        if line == ranks {
            while children(child.id()).len() < 2 {
                std::thread::sleep(Duration::from_millis(10));
            }
            children(child.id()).into_iter().for_each(wait_until_listening);
        }
        assert!(child.try_wait().unwrap().is_none(), "{line} ended by itself");
        signal(name, child.id());
        let code = ends_within(&mut child, Duration::from_secs(4));
        let told = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(code, Some(130), "{line}: {told}");
        assert!(told.contains("error: ") && told.contains("interrupted"), "{line}: {told}");
        assert!(!told.contains("--resume") && !told.contains("whole"), "{line}: {told}");
        let left = scratch.path("early");
        if line != ranks && left.exists() {
            assert_eq!(names(&left), Vec::<String>::new(), "{line}");
        }
        let _ = std::fs::remove_dir_all(left);
    }
}

#[test]
fn a_closed_terminal_saves_even_when_it_hangs_up_twice() {
    if mask_holds("self", "SigIgn", 1) {
        eprintln!("skipped: this test runs under `nohup`, and what it starts ignores SIGHUP as well");
        return;
    }
    let scratch = copied();
    let mut child = long_run(&scratch, "checkpoint.every=0");
    // Nobody reads what it says any more.
    drop((child.stderr.take(), child.stdout.take()));
    signal("HUP", child.id());
    let _ = Command::new("sh")
        .args(["-c", &format!("kill -HUP {}", child.id())])
        .stderr(std::process::Stdio::null())
        .status();
    assert_eq!(ends_within(&mut child, Duration::from_secs(30)), Some(130));
    let checkpoints = names(&scratch.path("long/checkpoints"));
    assert_eq!(checkpoints.len(), 1, "{checkpoints:?}");
    assert!(scratch.path(&format!("long/checkpoints/{}/trainer_state/files.json", checkpoints[0])).exists());
}

/// Cuts a file in half.
fn halve(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    for (file, processes) in
        [("model.safetensors", 1), ("trainer_state/state.json", 1), ("tokenizer.json", 2)]
    {
        let scratch = copied();
        let sft = |name: &str| scratch.path(&format!("life/sft/{name}"));
        std::fs::remove_dir_all(sft("final")).unwrap();
        halve(&sft(&format!("checkpoints/step-6/{file}")));
        for left_over in ["checkpoints/.step-5.tmp", "checkpoints/.step-5.71-x.tmp", ".final.71-x.tmp"] {
            std::fs::create_dir(sft(left_over)).unwrap();
        }
        std::fs::create_dir(sft("checkpoints/.mine.tmp")).unwrap();
        let outcome = scratch.run(&format!("sft --config life/sft/run.toml --resume --nproc {processes}"));
        outcome.succeeds();
        let damaged = format!("step-6/{file}");
        for words in [damaged.as_str(), "step-6.damaged", "continuing from life/sft/checkpoints/step-4"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:#?}");
        }
        let mut wanted = vec![".mine.tmp", "step-2", "step-4", "step-6", "step-6.damaged"];
        wanted.sort_unstable();
        assert_eq!(names(&sft("checkpoints")), wanted);
        assert!(!sft(".final.71-x.tmp").exists());
        if processes == 1 {
            let bytes =
                |scratch: &Scratch| std::fs::read(scratch.path("life/sft/final/model.safetensors")).unwrap();
            assert!(bytes(&scratch) == bytes(life()), "{file}");
        }
    }
}

/// Sets the first number of a tensor of an fp32 file.
fn set_first(path: &Path, name: &str, value: f32) {
    let mut bytes = std::fs::read(path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let start = data + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Changes the file of a checkpoint.
type Damage<'a> = &'a dyn Fn(&Scratch, &str);

/// A moment that is not a number makes the next weights NaN, and a changed `config.json` another model.
#[test]
fn a_checkpoint_with_impossible_numbers_or_a_changed_file_falls_back_to_the_one_before() {
    let (norm, optimizer) = ("model.norm.weight", "trainer_state/optimizer.safetensors");
    let change = |scratch: &Scratch, file: &str, from: &str, to: &str| {
        let text = scratch.read(file);
        assert_ne!(text.replace(from, to), text, "{file}");
        scratch.write(file, &text.replace(from, to));
    };
    let cases: [(&str, Damage<'_>, &str); 5] = [
        (
            optimizer,
            &|scratch, file| set_first(&scratch.path(file), &format!("exp_avg.{norm}"), f32::NAN),
            "`exp_avg.model.norm.weight` is NaN at [0] and must be finite",
        ),
        (
            optimizer,
            &|scratch, file| set_first(&scratch.path(file), &format!("exp_avg_sq.{norm}"), -1e-9),
            "at [0] and must be finite and not below zero",
        ),
        (
            "model.safetensors",
            &|scratch, file| set_first(&scratch.path(file), norm, f32::INFINITY),
            "`model.norm.weight` is inf at [0]",
        ),
        (
            "config.json",
            &|scratch, file| change(scratch, file, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""),
            "its content has changed since the checkpoint was saved",
        ),
        (
            "tokenizer.json",
            &|scratch, file| change(scratch, file, "\"version\": \"1.0\"", "\"version\": \"1.1\""),
            "its content has changed since the checkpoint was saved",
        ),
    ];
    for (file, damage, words) in cases {
        let scratch = copied();
        std::fs::remove_dir_all(scratch.path("life/sft/final")).unwrap();
        let path = format!("life/sft/checkpoints/step-6/{file}");
        damage(&scratch, &path);
        let outcome = scratch.run("sft --config life/sft/run.toml --resume");
        outcome.succeeds();
        for words in [file, words, "step-6.damaged", "continuing from life/sft/checkpoints/step-4"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:#?}");
        }
        let bytes =
            |scratch: &Scratch| std::fs::read(scratch.path("life/sft/final/model.safetensors")).unwrap();
        assert!(bytes(&scratch) == bytes(life()), "{file}");
    }
}

#[test]
fn a_run_folder_that_is_removed_under_way_is_not_made_anew() {
    let scratch = copied();
    let words =
        "sft --config life/sft/run.toml --set out=gone --set train.steps=100000 --set checkpoint.every=0";
    let child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("gone/metrics.jsonl", 1);
    std::fs::remove_dir_all(scratch.path("gone")).unwrap();
    signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && told.contains("gone: this run folder was removed"), "{told}");
    assert!(!told.contains("--resume") && !scratch.path("gone").exists(), "{told}");
}

#[test]
fn a_checkpoint_whose_state_is_of_another_step_is_refused() {
    for (stage, key) in [("sft", "step"), ("ppo", "iteration")] {
        let scratch = copied();
        let out = format!("life/{stage}");
        std::fs::remove_dir_all(scratch.path(&format!("{out}/final"))).unwrap();
        let newest = names(&scratch.path(&format!("{out}/checkpoints"))).pop().unwrap();
        let state = format!("{out}/checkpoints/{newest}/trainer_state/state.json");
        let step = newest.strip_prefix("step-").unwrap();
        let text = scratch.read(&state);
        let changed = text.replacen(&format!("\"{key}\": {step}"), &format!("\"{key}\": 1"), 1);
        assert_ne!(changed, text);
        scratch.write(&state, &changed);
        // Checkpoints of earlier versions do not tell that a file has changed.
        std::fs::remove_file(scratch.path(&state).with_file_name("files.json")).unwrap();
        let outcome = scratch.run(&format!("{stage} --config {out}/run.toml --resume"));
        outcome.fails(3, &[&newest, "its saved state belongs to step 1"]);
        assert!(!scratch.path(&format!("{out}/final")).exists());
    }
}

#[test]
fn a_run_without_a_whole_checkpoint_says_what_is_wrong_with_each() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/rm/final")).unwrap();
    for step in ["step-2", "step-4", "step-6"] {
        let folder = scratch.path(&format!("life/rm/checkpoints/{step}"));
        std::fs::remove_file(folder.join("trainer_state/optimizer.safetensors")).unwrap();
    }
    let words = [
        "every checkpoint is damaged",
        "step-2/trainer_state",
        "step-4/trainer_state",
        "step-6/trainer_state",
    ];
    scratch.run("rm --config life/rm/run.toml --resume").fails(3, &words);
    assert_eq!(names(&scratch.path("life/rm/checkpoints")), ["step-2", "step-4", "step-6"]);
}

#[test]
fn a_failed_run_promises_no_checkpoint() {
    let scratch = copied();
    let sets = "--set out=diverged --set train.lr=1e30 --set train.max_grad_norm=0 --set checkpoint.every=0";
    let outcome = scratch.run(&format!("sft --config life/sft/run.toml {sets}"));
    outcome.fails(5, &["this run has saved no checkpoint"]);
    assert!(!outcome.stderr.contains("whole"), "{outcome:#?}");
}

#[test]
fn killed_at_any_moment_a_run_resumes_exactly() {
    killed_at_any_moment("sft", "--set train.steps=25");
}

#[test]
fn killed_at_any_moment_a_ppo_resumes_exactly() {
    killed_at_any_moment("ppo", "--set ppo.iterations=15");
}

fn killed_at_any_moment(stage: &str, length: &str) {
    let scratch = copied();
    let sets = format!("{length} --set checkpoint.every=1 --set checkpoint.keep=2 --set out=");
    let line = |out: &str, more: &str| format!("{stage} --config life/{stage}/run.toml {sets}{out}{more}");
    scratch.run(&line("whole", "")).succeeds();
    let (mut kills, mut pause) = (0, 7u64);
    while !scratch.path("killed/final").exists() {
        let resume =
            names_or_none(&scratch.path("killed/checkpoints")).iter().any(|name| name.starts_with("step-"));
        let line = line("killed", if resume { " --resume" } else { "" });
        let mut child = scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap();
        // Some time after it has begun to write.
        let rows = std::fs::read_to_string(scratch.path("killed/metrics.jsonl"))
            .map_or(0, |text| text.lines().count());
        let started = Instant::now();
        let moved = || {
            std::fs::read_to_string(scratch.path("killed/metrics.jsonl"))
                .map_or(0, |text| text.lines().count())
                > rows
        };
        while !moved() && child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        pause = (pause * 1_103_515_245 + 12_345) % (1 << 31);
        std::thread::sleep(Duration::from_millis(pause % 120));
        if child.try_wait().unwrap().is_none() {
            kills += 1;
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.code().is_none_or(|code| code == 0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(kills < 60, "no progress");
    }
    let bytes = |out: &str| std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap();
    assert!(kills > 0 && bytes("killed") == bytes("whole"), "{kills} kills");
    assert_eq!(metrics(&scratch, "killed"), metrics(&scratch, "whole"));
    assert!(names(&scratch.path("killed/checkpoints")).iter().all(|name| name.starts_with("step-")));
}

fn names_or_none(folder: &Path) -> Vec<String> {
    if folder.exists() { names(folder) } else { Vec::new() }
}

#[test]
fn a_full_disk_keeps_the_last_checkpoint() {
    let scratch = copied();
    let mounts = |options: &str| format!("mkdir small && mount -t tmpfs -o {options} none small");
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).current_dir(scratch.path(""));
        command.output()
    };
    if !namespace(&format!("{} && rmdir small 2>/dev/null; mountpoint -q small", mounts("size=64k")))
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("skipped: this system lets no test mount a tmpfs in a namespace of its own");
        return;
    }
    std::fs::remove_dir(scratch.path("small")).unwrap();
    let size = |name: &str| {
        std::fs::metadata(life().path(&format!("life/sft/checkpoints/step-2/{name}"))).unwrap().len()
    };
    let checkpoint: u64 =
        ["model.safetensors", "tokenizer.json", "trainer_state/optimizer.safetensors"].map(size).iter().sum();
    // Room for one checkpoint and no second one.
    let script = format!(
        "{} && {} --threads 1 sft --config life/sft/run.toml --set out=small/run; code=$?; cp -r small/run kept; exit $code",
        mounts(&format!("size={}k", checkpoint * 9 / 5 / 1024)),
        env!("CARGO_BIN_EXE_colossal-chat"),
    );
    let output = namespace(&script).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("free some space")
            && told.contains("the newest checkpoint of this run is small/run/checkpoints/step-2"),
        "{told}"
    );
    assert_eq!(names(&scratch.path("kept/checkpoints")), ["step-2"]);
    // With room again, it goes on.
    scratch.run("sft --config life/sft/run.toml --set out=kept --resume").succeeds();
    let bytes = |scratch: &Scratch, out: &str| {
        std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap()
    };
    assert!(bytes(&scratch, "kept") == bytes(life(), "life/sft"));
}

#[test]
fn the_code_tells_whose_fault_it_is() {
    let scratch = copied();
    scratch.write("in.jsonl", "{\"text\": \"2 + 2\"}\n");
    scratch.write("file", "");
    std::fs::create_dir(scratch.path("hollow")).unwrap();
    let sft = "sft --config life/sft/run.toml --set out=x";
    for (line, code, words) in [
        ("sft --config absent.toml".to_owned(), 2, "absent.toml"),
        (format!("{sft} --set data.train=absent.jsonl"), 3, "absent.jsonl"),
        (format!("{sft} --set model.path=absent"), 2, "absent"),
        (format!("{sft} --set model.path=hollow"), 3, "hollow"),
        (format!("{sft} --set model.path=nobody/nothing"), 2, "nobody/nothing"),
        (format!("{sft} --set tokenizer.path=hollow"), 3, "hollow"),
        ("sft --config life/sft/run.toml".to_owned(), 2, "there is a run in this folder already"),
        ("logprobs --model life/sft/final --input absent.jsonl".to_owned(), 3, "absent.jsonl"),
        ("logprobs --model hollow --input in.jsonl".to_owned(), 3, "hollow"),
        (
            "logprobs --model life/sft/final --input in.jsonl --output file/x".to_owned(),
            2,
            "file is not a folder",
        ),
        (
            "logprobs --model life/sft/final --input in.jsonl --output hollow".to_owned(),
            2,
            "this is a folder",
        ),
        ("model info hollow".to_owned(), 3, "hollow"),
        ("model init absent.json --out x".to_owned(), 3, "absent.json"),
        ("data tokenizer absent.parquet --out x".to_owned(), 3, "absent.parquet"),
        ("data convert in.jsonl --output x.parquet --layout what".to_owned(), 2, "what"),
        (format!("{sft} --nproc 2 --set out=file"), 2, "not a folder"),
    ] {
        let outcome = scratch.run(&line);
        assert_eq!(outcome.code, code, "{line}: {outcome:#?}");
        outcome.fails(code, &[words]);
    }
    assert!(!scratch.path("x").exists() && names(&scratch.path("hollow")).is_empty());
    let mut command = scratch.command(&["chat", "--model", "life/sft/final"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\xff\xfe").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Retitles the window, fills the clipboard (OSC 52), a C1 control, a bidirectional override.
const ATTACK: &str = "\u{1b}]0;x\u{7}\u{1b}]52;c;cm0gLXJm\u{7}\u{9b}31m\u{202e}";

fn is_harmless(text: &str) -> bool {
    !text.chars().any(|character| {
        (character.is_control() && character != '\n' && character != '\t') || character == '\u{202e}'
    })
}

#[test]
fn control_bytes_of_files_and_names_do_not_reach_the_terminal() {
    let scratch = copied();
    let escaped = serde_json::to_string(ATTACK).unwrap();
    let row = format!("{{\"messages\": [{{\"role\": {escaped}, \"content\": \"x\"}}]}}\n");
    scratch.write("rows.jsonl", &row);
    scratch.write("layout.jsonl", &format!("{{{escaped}: 1}}\n"));
    let named = format!("{ATTACK}.jsonl");
    scratch.write(&named, &row);
    scratch.write("run.toml", &format!("out = 'x'\n['{}']\n", ATTACK.replace('\u{1b}', "")));
    scratch.write("config.json", &format!("{{\"model_type\": {escaped}}}"));
    let template = format!("{{{{ raise_exception({escaped}) }}}}");
    let cases: [&[&str]; 9] = [
        &["data", "check", "rows.jsonl"],
        &["data", "check", "layout.jsonl"],
        &["data", "check", &named],
        &["generate", "--prompt", "x", "--model", ATTACK],
        &["generate", "--prompt", "x", "--model", "life/sft/final", "--template", &template],
        &["sft", "--config", "run.toml"],
        &["sft", "--config", "life/sft/run.toml", "--set", ATTACK],
        &["model", "init", "config.json", "--out", "x"],
        &["sft", ATTACK],
    ];
    for words in cases {
        let outcome = scratch.run_with(words, "");
        assert!(outcome.code > 1 && !outcome.stderr.is_empty(), "{words:?}: {outcome:#?}");
        assert!(is_harmless(&outcome.stderr), "{words:?}: {:?}", outcome.stderr);
    }
}

#[test]
fn rows_on_a_terminal_are_harmless_and_in_a_pipe_exact() {
    let scratch = copied();
    let mut config = json(&scratch, "life/sft/final/config.json");
    config["architectures"] = serde_json::json!([ATTACK]);
    scratch.write("life/sft/final/config.json", &config.to_string());
    let exact = scratch.run("model info life/sft/final --json");
    let info: serde_json::Value = serde_json::from_str(exact.succeeds()).unwrap();
    assert_eq!(info["architectures"][0], ATTACK);
    let line = format!("{} model info life/sft/final", env!("CARGO_BIN_EXE_colossal-chat"));
    let output =
        Command::new("script").args(["-qec", &line, "/dev/null"]).current_dir(scratch.path("")).output();
    let Ok(output) = output else {
        eprintln!("skipped: this system has no program `script`, which runs another one on a terminal");
        return;
    };
    let shown = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
    assert!(shown.contains("hidden_size") && is_harmless(&shown), "{shown:?}");
}
