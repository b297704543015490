//! The first minute: a run file that works as it is, and what the program says without arguments.

use crate::harness::Scratch;
use crate::training::life;

/// A folder with links to the rows of a finished pipeline.
fn place() -> Scratch {
    let scratch = Scratch::new();
    for file in ["sft", "preference", "prompts"] {
        let file = format!("{file}.parquet");
        std::fs::copy(life().path("life/data").join(&file), scratch.path(&file)).unwrap();
    }
    scratch
}

#[test]
fn a_run_file_passes_a_dry_run_as_it_is() {
    let scratch = place();
    let model = |stage: &str| life().path(&format!("life/{stage}/final")).display().to_string();
    for (stage, command) in [
        ("sft", "sft"),
        ("distill", "distill"),
        ("rm", "rm"),
        ("dpo", "dpo"),
        ("kto", "kto"),
        ("orpo", "orpo"),
        ("simpo", "simpo"),
        ("cpo", "cpo"),
        ("ppo", "ppo"),
        ("online-dpo", "online-dpo"),
        ("gkd", "gkd"),
        ("all", "pipeline"),
    ] {
        let other = match stage {
            "ppo" | "online-dpo" => format!(" --reward-model {}", model("rm")),
            "distill" | "gkd" => format!(" --teacher {}", model("sft")),
            _ => String::new(),
        };
        let told = scratch.run(&format!(
            "init --yes --stage {stage} --model {}{other} --out {stage}.toml",
            model(if stage == "sft" || stage == "all" { "base" } else { "sft" })
        ));
        assert!(
            told.succeeds().contains(&format!("colossal-chat {command} --config {stage}.toml")),
            "{told:#?}"
        );
        scratch.run(&format!("{command} --config {stage}.toml --dry-run")).succeeds();
    }
    for (stage, more, command) in
        [("sft", "", "sft"), ("ppo", " --reward-model", "ppo"), ("all", "", "pipeline")]
    {
        let other = if more.is_empty() { String::new() } else { format!("{more} {}", model("rm")) };
        let line = format!("init --yes --lora --stage {stage} --model {}{other}", model("sft"));
        scratch.run(&format!("{line} --out lora-{stage}.toml")).succeeds();
        scratch.run(&format!("{command} --config lora-{stage}.toml --dry-run")).succeeds();
    }
    let planned = scratch.run("sft --config lora-sft.toml --dry-run");
    assert!(
        planned.stderr.contains("of them are trained") && planned.stderr.contains("rank 16 on 14 layers")
    );
    let text = scratch.read("lora-ppo.toml");
    assert!(text.contains("\nlr = 1e-5\n") && text.contains("\ncritic_lr = 1e-4\n"), "{text}");
    scratch.run("sft --config sft.toml --set train.steps=2").succeeds();
    assert!(scratch.path("runs/sft/final").is_dir());
    // The next file gets a run folder of its own, and starts from the model of the finished run.
    scratch.run("init --yes --stage sft").succeeds();
    let next = scratch.read("run.toml");
    assert!(next.contains("out = \"runs/sft-2\"") && next.contains("path = \"runs/sft\""), "{next}");
    scratch.run("sft --config run.toml --dry-run").succeeds();
}

#[test]
fn a_run_file_is_never_overwritten_unasked() {
    let scratch = place();
    scratch.write("run.toml", "mine");
    let model = life().path("life/base/final").display().to_string();
    let init = |words: &str| scratch.run(&format!("init --yes --stage sft --model {model} {words}"));
    init("--out run.toml").fails(2, &["--out run.toml", "--force"]);
    init("--out run").fails(2, &["--out run: ", ".toml"]);
    assert_eq!(scratch.read("run.toml"), "mine");
    init("--length normal").succeeds();
    assert!(scratch.read("run-2.toml").contains("epochs = 1"));
    init("--out run.toml --force").succeeds();
    assert!(scratch.read("run.toml").contains("steps = 20"));
}

#[test]
fn off_a_terminal_every_question_needs_a_flag() {
    let scratch = place();
    scratch.run("init --stage sft").fails(2, &["--model: this is no terminal"]);
    scratch.run("init --yes --stage sft").fails(2, &["--model: nothing here answers it"]);
    scratch.run("init --yes --stage sft --model nowhere").fails(2, &["nowhere"]);
    let model = life().path("life/rm/final").display().to_string();
    scratch.run(&format!("init --yes --stage sft --model {model}")).fails(2, &["is a reward model"]);
    let model = life().path("life/base/final").display().to_string();
    let wrong = format!("init --yes --stage sft --model {model} --data preference.parquet");
    scratch.run(&wrong).fails(3, &["preference.parquet", "demonstration"]);
    assert!(!scratch.names().contains(&"run.toml".to_owned()));
}

#[test]
fn without_arguments_and_terminal_the_help_is_an_error() {
    let scratch = place();
    let told = scratch.run_with(&[], "");
    assert_eq!((told.code, told.stdout.as_str()), (2, ""), "{told:#?}");
    assert!(told.stderr.contains("Usage: colossal-chat"), "{told:#?}");
}
