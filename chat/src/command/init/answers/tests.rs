//! Tests of the questions, their checks, and the run files that come of them.

use std::fs;

use clap::Parser;
use datasets::{Tokenizer, TrainOptions};
use tempfile::TempDir;

use super::*;
use crate::args::{Cli, Command};
use crate::command::init::rows::default_files;
use crate::command::init::run_file;
use crate::nearby::Run;
use crate::{config, stage};

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
    "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}"#;

/// A folder with a language model, a reward model and rows. The models have no weights.
fn place() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
    let tokenizer = Tokenizer::train(["good day".to_owned()].into_iter(), &options).unwrap();
    let judge = LLAMA.replace("ForCausalLM\"],", "ForSequenceClassification\"], \"num_labels\": 1,");
    for (name, config) in [("base", LLAMA), ("judge", &judge)] {
        let model = folder.path().join(name);
        fs::create_dir(&model).unwrap();
        tokenizer.save(&model).unwrap();
        fs::write(model.join("config.json"), config).unwrap();
    }
    for (name, row) in [
        ("chats.jsonl", r#"{"prompt": "hi", "completion": "good day"}"#),
        ("pairs.jsonl", r#"{"prompt": "hi", "chosen": "good day", "rejected": "no"}"#),
        ("prompts.jsonl", r#"{"prompt": "hi"}"#),
        ("thumbs.jsonl", r#"{"prompt": "hi", "completion": "good day", "label": true}"#),
    ] {
        fs::write(folder.path().join(name), format!("{row}\n")).unwrap();
    }
    folder
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn arguments(words: &[&str]) -> InitArgs {
    let cli = Cli::try_parse_from(["colossal-chat", "init"].iter().chain(words)).unwrap();
    match cli.command {
        Command::Init(arguments) => arguments,
        _ => unreachable!("the words begin with init"),
    }
}

/// What a person gets who types `lines`, where `@` stands for the folder.
fn typed(folder: &TempDir, words: &[&str], lines: &str) -> (anyhow::Result<Answers>, usize, String) {
    let lines = lines.replace('@', folder.path().to_str().unwrap());
    let mut dialog = Dialog::typed(&lines);
    let answers = Answers::collect(&arguments(words), &Nearby::default(), &mut dialog);
    let (asked, seen) = dialog.seen();
    (answers, asked, seen)
}

/// Writes the run file of `answers`, reads it back as its command does, and gives the settings of each stage.
fn read_back(folder: &TempDir, answers: &Answers) -> Vec<config::RunConfig> {
    let file = folder.path().join("run.toml");
    fs::write(&file, run_file::text(answers, None)).unwrap();
    if answers.goal.is_all() {
        let config = config::load_pipeline(&file, &[], &stage::schemas()).unwrap();
        assert_eq!(config.warnings, Vec::<String>::new());
        return ["sft", "rm", "ppo"].map(|name| config.stages[name].clone()).into();
    }
    let stage = stage::find(answers.goal.name()).unwrap();
    let loaded = config::load(&file, &[], &stage.schema, &stage::schemas()).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    vec![loaded.config]
}

#[test]
fn at_most_five_questions_make_a_run_file_that_its_command_reads() {
    let folder = place();
    for lines in [
        "sft\n@/base\n@/chats.jsonl\nquick\n@/new.toml\n",
        "rm\n@/base\n@/pairs.jsonl\nnormal\n@/new.toml\n",
        "dpo\n@/base\n@/pairs.jsonl\nquick\n@/new.toml\n",
        "kto\n@/base\n@/thumbs.jsonl,@/pairs.jsonl\nquick\n@/new.toml\n",
        "orpo\n@/base\n@/pairs.jsonl\nnormal\n@/new.toml\n",
        "simpo\n@/base\n@/pairs.jsonl\nquick\n@/new.toml\n",
        "cpo\n@/base\n@/pairs.jsonl\nquick\n@/new.toml\n",
        "distill\n@/base\n@/base\n@/chats.jsonl\nnormal\n",
        "ppo\n@/base\n@/judge\n@/prompts.jsonl, @/pairs.jsonl\nnormal\n",
        "online-dpo\n@/base\n@/judge\n@/prompts.jsonl\nquick\n",
        "gkd\n@/base\n@/base\n@/prompts.jsonl\nnormal\n",
        "all\n@/base\n@/pairs.jsonl,@/chats.jsonl\nnormal\n@/new.toml\n",
    ] {
        let (answers, asked, seen) = typed(&folder, &[], lines);
        let answers = answers.unwrap();
        let goal = answers.goal.name();
        assert!(asked <= 5 && lines.starts_with(&format!("{goal}\n")), "{seen}");
        let stages = read_back(&folder, &answers);
        assert_eq!(stages[0].model.path, Some(path(&folder, "base")));
        // The model reads 64 tokens, and no row may be longer.
        assert!(stages.iter().all(|stage| stage.data.max_length <= 64));
        match goal {
            "ppo" => {
                let files = ["prompts.jsonl", "pairs.jsonl"].map(|name| path(&folder, name));
                assert_eq!(stages[0].data.train.0, files);
                assert_eq!(stages[0].ppo.reward_model.0, [path(&folder, "judge")]);
            }
            "online-dpo" => assert_eq!(stages[0].ppo.reward_model.0, [path(&folder, "judge")]),
            "distill" | "gkd" => assert_eq!(stages[0].distill.teacher, Some(path(&folder, "base"))),
            "all" => {
                let files = ["chats.jsonl", "pairs.jsonl", "pairs.jsonl"].map(|name| path(&folder, name));
                assert!(stages.iter().map(|stage| &stage.data.train.0[0]).eq(&files));
                assert!(stages[1].model.path.is_none());
            }
            _ => {}
        }
    }
    // Every stage with a command has a run file.
    let with_command = stage::ALL.iter().filter(|stage| stage.command.is_some()).count();
    assert_eq!(stage::with_init().count(), with_command);
}

#[test]
fn an_answer_is_checked_before_the_next_question() {
    let folder = place();
    let lines = "train\nppo\n@/nothing\n@/judge\n@/base\n@/base\n@/judge\n@/thumbs.csv\n@/prompts.jsonl\nlong\nquick\n";
    let (answers, asked, seen) = typed(&folder, &[], lines);
    assert!(answers.is_ok() && asked == 5, "{seen}");
    for words in [
        "--stage train: give one of sft, distill, rm, dpo, kto, orpo, simpo, cpo, ppo, grpo, rloo, reinforce, online-dpo, gkd, all",
        "nothing",
        "is a reward model: name a language model",
        "is a language model: name the folder of a reward model",
        "thumbs.csv",
        "--length long: give one of quick, normal",
    ] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    let (refused, _, seen) = typed(&folder, &[], "sft\n@/base\n@/pairs.jsonl\n");
    assert!(refused.is_err() && seen.contains("demonstration"), "{seen}");
    let (refused, _, seen) = typed(&folder, &[], "all\n@/base\n@/chats.jsonl\n@/thumbs.jsonl\n");
    assert!(refused.is_err() && seen.contains("preference rows"), "{seen}");
    assert!(seen.contains("no stage of this file trains on the layout unpaired"), "{seen}");
}

#[test]
fn flags_answer_their_questions() {
    let folder = place();
    let (model, data) = (path(&folder, "base"), path(&folder, "chats.jsonl"));
    let words =
        ["--model", &model, "--data", &data, "--length", "quick", "--stage", "sft", "--out", "x.toml"];
    let (answers, asked, _) = typed(&folder, &words, "");
    let answers = answers.unwrap();
    assert_eq!((asked, answers.rows.of(RowKind::Demonstrations)), (0, &[data][..]));
    for (words, flag) in [
        (["--stage", "sft", "--prompts", "x"], "--prompts: `sft` does not read it"),
        (["--stage", "rm", "--data", "x"], "--data: `rm` does not read it"),
        (["--stage", "all", "--reward-model", "x"], "--reward-model: `pipeline` does not read it"),
        (["--stage", "dpo", "--teacher", "x"], "--teacher: `dpo` does not read it"),
    ] {
        let error = typed(&folder, &words, "").0.unwrap_err().to_string();
        assert!(error.starts_with(flag), "{error}");
    }
}

fn goal(name: &str) -> Goal {
    Goal::find(name).unwrap()
}

fn reward_question(nearby: &Nearby) -> Question<'static> {
    other_question(other_model(goal("ppo")).unwrap(), nearby)
}

#[test]
fn the_defaults_are_what_lies_here() {
    let folder = place();
    fs::write(folder.path().join("base/model.safetensors"), "").unwrap();
    fs::write(folder.path().join("judge/model.safetensors"), "").unwrap();
    let nearby = Nearby::search(folder.path());
    assert_eq!(goal_question(&nearby).default, Some("all".to_owned()));
    assert_eq!(model_question(goal("ppo"), &nearby).default, Some(path(&folder, "base")));
    assert_eq!(reward_question(&nearby).default, Some(path(&folder, "judge")));
    let files = ["chats.jsonl", "pairs.jsonl", "prompts.jsonl"].map(|name| path(&folder, name));
    // Rows to measure with, and a name that a terminal obeys, come before these by name.
    for name in ["a-heldout.jsonl", "a\u{1b}.jsonl"] {
        fs::copy(&files[0], folder.path().join(name)).unwrap();
    }
    let mut nearby = Nearby::search(folder.path());
    assert_eq!(default_files(goal("all"), &nearby), Some(files.join(", ")));
    assert_eq!(default_files(goal("rm"), &nearby), Some(files[1].clone()));
    assert_eq!(default_files(goal("sft"), &Nearby::default()), None);
    let run = |path: &str, name| Run { path: path.into(), name, command: name, is_finished: true };
    nearby.runs = vec![run("runs/rm", "rm"), run("runs/sft", "sft")];
    assert_eq!(model_question(goal("sft"), &nearby).default, Some(path(&folder, "base")));
    assert_eq!(model_question(goal("rm"), &nearby).default, Some("runs/sft".to_owned()));
    assert_eq!(reward_question(&nearby).default, Some("runs/rm".to_owned()));
}

#[test]
fn the_run_file_explains_itself() {
    let folder = place();
    let (answers, ..) =
        typed(&folder, &["--out", "run.toml"], "all\n@/base\n@/pairs.jsonl,@/chats.jsonl\nnormal\n");
    let mut answers = answers.unwrap();
    answers.folder = "runs/pipeline".into();
    answers.model.needs_template = true;
    let text = run_file::text(&answers, None).replace(folder.path().to_str().unwrap(), "HERE");
    insta::assert_snapshot!(text);
}

#[test]
fn the_faster_dtype_is_written_with_the_measured_factor() {
    let folder = place();
    let (answers, ..) = typed(&folder, &["--out", "run.toml"], "sft\n@/base\n@/chats.jsonl\nnormal\n");
    let answers = answers.unwrap();
    // Here bf16 has half the speed of fp32.
    let mut hardware = planner::hardware::round_numbers();
    let text = run_file::text(&answers, Some(&hardware));
    assert!(text.contains("it is 0.50 times as fast") && text.contains("dtype = \"float32\""), "{text}");
    hardware.device.matmul[0].flops.bfloat16 = 1.94e11;
    let text = run_file::text(&answers, Some(&hardware));
    assert!(text.contains("it is 1.94 times as fast") && text.contains("dtype = \"bfloat16\""), "{text}");
}
