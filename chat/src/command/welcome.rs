//! `colossal-chat` alone on a terminal: what can be done next, as plain text.
//!
//! It lists what [`Nearby`] finds in the current folder, each with the command that goes on with it, and then
//! the commands for a new start. Every command can be copied as it is. The screen reads no keys.

use std::path::Path;

use text::single_line;

use crate::console::print;
use crate::nearby::{Model, Nearby, RowFile, Run};
use crate::shell::quote;
use crate::stage;
use crate::stage::definition::InitStage;

/// How many entries of one kind are listed.
const LISTED: usize = 5;

/// Commands for a new start, and what they do.
const STARTS: [(&str, &str); 4] = [
    ("colossal-chat demo", "train a small model from nothing, on rows that it makes itself, in minutes"),
    ("colossal-chat init", "write a run file for your own model and rows, in five questions"),
    ("colossal-chat doctor", "check this machine"),
    ("colossal-chat help", "list every command"),
];

/// Prints the screen.
pub(crate) fn run() -> anyhow::Result<()> {
    Ok(print(&text(&Nearby::search(Path::new("."))))?)
}

fn text(found: &Nearby) -> String {
    let mut parts = vec![format!(
        "colossal-chat {}: trains language models on what people prefer, and talks with them",
        env!("CARGO_PKG_VERSION")
    )];
    parts.extend(listed("Runs here", found.runs.iter().map(run_lines)));
    parts.extend(listed("Models here", found.models.iter().map(model_lines)));
    parts.extend(listed("Rows here", found.files.iter().map(file_lines)));
    if found.is_partial {
        parts.push("There is more here than was looked at: start in a smaller folder to see it.".to_owned());
    }
    parts.push(section("Start", &STARTS.map(|(command, what)| entry(what, &[command.to_owned()]))));
    parts.join("\n\n")
}

/// The first entries of one kind under a title; nothing if there are none.
fn listed(title: &str, entries: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let more = entries.len().saturating_sub(LISTED);
    let mut lines: Vec<String> = entries.take(LISTED).collect();
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    (!lines.is_empty()).then(|| section(title, &lines))
}

fn section(title: &str, entries: &[String]) -> String {
    format!("{title}\n{}", entries.join("\n"))
}

/// What an entry is, and below it the commands that go on with it.
fn entry(what: &str, commands: &[String]) -> String {
    let commands = commands.iter().map(|command| format!("\n    {command}"));
    format!("  {}{}", single_line(what), commands.collect::<String>())
}

fn run_lines(run: &Run) -> String {
    let (path, command) = (quote(&run.path), run.command);
    let name = format!("{} ({}", run.path.display(), run.name);
    if !run.is_finished {
        let file = quote(&run.path.join("run.toml"));
        let goes_on = format!("colossal-chat {command} --config {file} --resume");
        let watch = (command != "pipeline").then(|| format!("colossal-chat watch {path}"));
        return entry(
            &format!("{name}, not finished)"),
            &watch.into_iter().chain([goes_on]).collect::<Vec<_>>(),
        );
    }
    let watch = format!("colossal-chat watch {path}");
    let uses = if stage::trains_reward_model(run.name) {
        next_of_reward_model(&path)
    } else {
        format!("colossal-chat chat --model {path}")
    };
    entry(&format!("{name}, finished)"), &[uses, watch])
}

fn model_lines(model: &Model) -> String {
    let (path, name) = (quote(&model.path), model.path.display());
    if model.is_reward_model {
        return entry(&format!("{name} (a reward model)"), &[next_of_reward_model(&path)]);
    }
    entry(&name.to_string(), &[format!("colossal-chat chat --model {path}")])
}

/// The command that goes on from a reward model.
fn next_of_reward_model(path: &str) -> String {
    let reads = |stage: InitStage| {
        let other = stage.init.other_model.as_ref().filter(|other| other.is_reward_model)?;
        Some(format!("colossal-chat init --stage {} {} {path}", stage.name(), other.flag))
    };
    stage::with_init().find_map(reads).unwrap_or_default()
}

fn file_lines(file: &RowFile) -> String {
    let (path, name) = (quote(&file.path), file.path.display());
    let Some(stage) = file.kind().and_then(stage::for_rows) else {
        let check = format!("colossal-chat data check {path}");
        return entry(&format!("{name} ({})", file.layout), &[check]);
    };
    let (flag, stage) = (stage.init.rows.flag(), stage.name());
    let what = format!("{name} ({}, rows for {stage})", file.layout);
    entry(&what, &[format!("colossal-chat init --stage {stage} {flag} {path}")])
}

#[cfg(test)]
mod tests {
    use datasets::Layout;

    use super::*;

    #[test]
    fn everything_that_is_found_has_a_command_to_go_on() {
        let run = |path: &str, name, is_finished| Run { path: path.into(), name, command: name, is_finished };
        let model = |path: &str, is_reward_model| Model { path: path.into(), is_reward_model };
        let file = |path: &str, layout| RowFile { path: path.into(), layout };
        let found = Nearby {
            models: vec![model("base", false), model("judge", true)],
            runs: vec![
                run("runs/sft", "sft", true),
                run("runs/rm", "rm", true),
                run("runs/ppo", "ppo", false),
                run("colossal-demo", "pipeline", false),
            ],
            files: vec![
                file("my chats.jsonl", Layout::Messages),
                file("pairs.parquet", Layout::Preference),
                file("prompts.parquet", Layout::Prompt),
                file("thumbs.parquet", Layout::Unpaired),
            ],
            is_partial: true,
        };
        insta::assert_snapshot!(text(&found).replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn an_empty_folder_gets_the_commands_for_a_new_start() {
        let text = text(&Nearby::default());
        assert!(!text.contains("here") && STARTS.iter().all(|(command, _)| text.contains(command)), "{text}");
    }

    #[test]
    fn a_long_list_is_cut_and_a_hostile_name_is_harmless() {
        let models = (0..7).map(|number| Model {
            path: format!("m{number}\u{1b}]52;c;x\u{7}").into(),
            is_reward_model: false,
        });
        let text = text(&Nearby { models: models.collect(), ..Nearby::default() });
        assert!(text.contains("and 2 more") && !text.contains("m5"), "{text}");
        assert!(text.contains(r"--model $'m0\033]52;c;x\007'"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text}");
    }
}
