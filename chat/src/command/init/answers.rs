//! The questions of `init`, their defaults, and the checks of their answers.
//!
//! | question | sft, rm | ppo | all |
//! |---|---|---|---|
//! | 1 | what | what | what |
//! | 2 | model | model | model |
//! | 3 | rows | reward model | files, told apart by their columns |
//! | 4 | length | prompts | length |
//! | 5 | run file | length | run file |

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use datasets::{Error, HubSettings};
use models::config::Config;

use super::dialog::{Dialog, Question};
use super::rows::Rows;
use super::{as_text, command, free_path, refused};
use crate::args::{Goal, InitArgs, RunLength};
use crate::config::ConfigError;
use crate::model_folder;
use crate::nearby::Nearby;
use crate::output::check_named_file;

/// What the run file is written from.
#[derive(Debug)]
pub(super) struct Answers {
    /// What is trained.
    pub(super) goal: Goal,
    /// The model to start from.
    pub(super) model: ModelAnswer,
    /// The reward model, for PPO alone.
    pub(super) reward_model: Option<ModelAnswer>,
    /// The rows of each stage that runs.
    pub(super) rows: Rows,
    /// How long the run is.
    pub(super) length: RunLength,
    /// The run file.
    pub(super) out: PathBuf,
    /// The run folder.
    pub(super) folder: PathBuf,
}

/// A model, and what its folder says.
#[derive(Debug)]
pub(super) struct ModelAnswer {
    /// The folder or the hub name.
    pub(super) name: String,
    /// The longest sequence in tokens; `None` if the model is not on this machine yet.
    pub(super) max_positions: Option<i64>,
    /// The size of its hidden states; `None` if the model is not on this machine yet.
    pub(super) hidden_size: Option<i64>,
    /// Whether its tokenizer has no chat template.
    pub(super) needs_template: bool,
}

/// What kind of model an answer must name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Language,
    Reward,
    Either,
}

impl Answers {
    /// Takes the flags, and asks for the rest.
    pub(super) fn collect<R: BufRead, W: Write>(
        arguments: &InitArgs,
        nearby: &Nearby,
        dialog: &mut Dialog<R, W>,
    ) -> anyhow::Result<Self> {
        // Checked first, so that nobody answers questions for a file that cannot be written.
        let out = arguments.out.as_deref().map(|out| check_out(out, arguments.force)).transpose()?;
        let goal = match arguments.stage {
            Some(goal) => goal,
            None => dialog.ask(&goal_question(nearby), |text| choice("--stage", text))?,
        };
        refuse_unused_flags(goal, arguments)?;

        let head = if goal == Goal::Rm { Head::Either } else { Head::Language };
        let model = ask_model(arguments.model.as_ref(), &model_question(goal, nearby), head, dialog)?;
        let is_ppo = goal == Goal::Ppo;
        let reward_model = is_ppo
            .then(|| {
                let question = reward_question(nearby);
                ask_model(arguments.reward_model.as_ref(), &question, Head::Reward, dialog)
            })
            .transpose()?;

        let rows = Rows::ask(goal, arguments, nearby, dialog)?;
        let length = match arguments.length {
            Some(length) => length,
            None => dialog.ask(&length_question(), |text| choice("--length", text))?,
        };

        let out = match (out, is_ppo) {
            (Some(out), _) => out,
            // PPO has used the question for its reward model.
            (None, true) => free_path("run", ".toml"),
            (None, false) => dialog.ask(&out_question(), |text| check_out(Path::new(text), false))?,
        };
        let folder = free_path(&format!("runs/{}", command(goal)), "");
        Ok(Self { goal, model, reward_model, rows, length, out, folder })
    }
}

fn goal_question(nearby: &Nearby) -> Question<'static> {
    let has = |stage| nearby.files.iter().any(|file| file.stage() == Some(stage));
    let goal = match (has("sft"), has("rm")) {
        (true, true) => "all",
        (false, true) => "rm",
        _ => "sft",
    };
    let text = "What to train: sft (a model, by example), rm (a reward model, on pairs of answers), \
                ppo (a model, by rewards) or all";
    Question { text, default: Some(goal.to_owned()), flag: "--stage" }
}

fn model_question(goal: Goal, nearby: &Nearby) -> Question<'static> {
    let trained = || nearby.runs.iter().filter(|run| run.is_finished && run.name != "rm");
    // The reward model and PPO go on from supervised fine-tuning.
    let tuned = trained().filter(|run| run.name == "sft" && matches!(goal, Goal::Rm | Goal::Ppo));
    let models = nearby.models.iter().filter(|model| !model.is_reward_model).map(|model| &model.path);
    let first = tuned.map(|run| &run.path).chain(models).chain(trained().map(|run| &run.path)).next();
    let text = "The model to start from: a folder, or a hub name owner/name";
    Question { text, default: first.and_then(|path| as_text(path)), flag: "--model" }
}

fn reward_question(nearby: &Nearby) -> Question<'static> {
    let trained = nearby.runs.iter().filter(|run| run.is_finished && run.name == "rm");
    let models = nearby.models.iter().filter(|model| model.is_reward_model);
    let first = trained.map(|run| &run.path).chain(models.map(|model| &model.path)).next();
    let text = "The reward model: the folder that `rm` has written";
    Question { text, default: first.and_then(|path| as_text(path)), flag: "--reward-model" }
}

fn length_question() -> Question<'static> {
    let text = "How long: quick (a few steps, to see that it works) or normal (every row once)";
    Question { text, default: Some("quick".to_owned()), flag: "--length" }
}

fn out_question() -> Question<'static> {
    let text = "Write the run file to";
    Question { text, default: as_text(&free_path("run", ".toml")), flag: "--out" }
}

/// Checks that a run file may be written there.
fn check_out(path: &Path, force: bool) -> anyhow::Result<PathBuf> {
    if path.extension().is_none_or(|extension| extension != "toml") {
        let argument = format!("--out {}", path.display());
        return Err(refused(&argument, "this is no name of a run file: let it end in .toml").into());
    }
    check_named_file("--out", path, force, &[])?;
    Ok(path.to_owned())
}

/// Reads one of the names of a list of choices.
fn choice<T: ValueEnum>(flag: &str, text: &str) -> anyhow::Result<T> {
    T::from_str(text, true).map_err(|_| {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
        refused(&format!("{flag} {text}"), format!("give one of {}", names.join(", "))).into()
    })
}

/// Refuses a flag that has no effect on what is trained.
fn refuse_unused_flags(goal: Goal, arguments: &InitArgs) -> Result<(), ConfigError> {
    let reads = |goals: &[Goal]| goal == Goal::All || goals.contains(&goal);
    for (flag, is_given, is_read) in [
        ("--data", !arguments.data.is_empty(), reads(&[Goal::Sft])),
        ("--preferences", !arguments.preferences.is_empty(), reads(&[Goal::Rm])),
        ("--prompts", !arguments.prompts.is_empty(), reads(&[Goal::Ppo])),
        ("--reward-model", arguments.reward_model.is_some(), goal == Goal::Ppo),
    ] {
        if is_given && !is_read {
            let problem = format!("`{}` does not read it: leave it out", command(goal));
            return Err(refused(flag, problem));
        }
    }
    Ok(())
}

fn ask_model<R: BufRead, W: Write>(
    given: Option<&String>,
    question: &Question<'_>,
    head: Head,
    dialog: &mut Dialog<R, W>,
) -> anyhow::Result<ModelAnswer> {
    let model = match given {
        Some(name) => check_model(name, head)?,
        None => dialog.ask(question, |name| check_model(name, head))?,
    };
    if model.max_positions.is_none() {
        let name = &model.name;
        dialog.say(&format!(
            "   {name} is not on this machine: the run downloads it and checks it when it starts"
        ))?;
    }
    Ok(model)
}

/// Checks the configuration and the tokenizer of a model. A hub model that is not in the cache is taken as it
/// is.
fn check_model(name: &str, head: Head) -> anyhow::Result<ModelAnswer> {
    let unseen =
        ModelAnswer { name: name.to_owned(), max_positions: None, hidden_size: None, needs_template: false };
    let Some(folder) = local_folder(name)? else { return Ok(unseen) };

    let config = Config::from_folder(&folder)?;
    let expected = match (head, config.is_sequence_classification()) {
        (Head::Language, true) => Some("is a reward model: name a language model"),
        (Head::Reward, false) => Some("is a language model: name the folder of a reward model"),
        _ => None,
    };
    if let Some(problem) = expected {
        return Err(refused(name, problem).into());
    }

    let tokenizer = model_folder::tokenizer(&folder, None)?;
    model_folder::check_vocabulary(&tokenizer, &config)?;
    let needs_template = tokenizer.chat_template().is_none();
    let (max_positions, hidden_size) = (config.max_positions(), config.architecture().hidden_size);
    Ok(ModelAnswer {
        max_positions: Some(max_positions),
        hidden_size: Some(hidden_size),
        needs_template,
        ..unseen
    })
}

/// The folder of a model on this machine; `None` for a hub model that is not in the cache.
fn local_folder(name: &str) -> anyhow::Result<Option<PathBuf>> {
    if Path::new(name).is_dir() {
        return Ok(Some(model_folder::find(name)?));
    }
    // Writing a run file downloads nothing.
    let cache = HubSettings { offline: true, ..HubSettings::from_process() };
    match cache.resolve(name) {
        Err(Error::Offline { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}

#[cfg(test)]
mod tests;
