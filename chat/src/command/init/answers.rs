//! The questions of `init`, their defaults, and the checks of their answers.
//!
//! | question | one stage | a stage with a second model | all |
//! |---|---|---|---|
//! | 1 | what | what | what |
//! | 2 | model | model | model |
//! | 3 | rows | second model | files, told apart by their columns |
//! | 4 | length | rows | length |
//! | 5 | run file | length | run file |

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use datasets::{Error, HubSettings};
use inference::model_folder::ModelFolder;
use inference::session::{check_vocabulary, load_tokenizer};

use super::check::{as_text, free_path, refused};
use super::dialog::{Dialog, Question};
use super::rows::{self, Rows};
use crate::args::{Goal, InitArgs, RunLength};
use crate::config::ConfigError;
use crate::model_folder;
use crate::nearby::Nearby;
use crate::output::check_named_file;
use crate::stage;
use crate::stage::definition::{OtherModel, RowKind};

/// What the run file is written from.
#[derive(Debug)]
pub(super) struct Answers {
    /// What is trained.
    pub(super) goal: Goal,
    /// The model to start from.
    pub(super) model: ModelAnswer,
    /// Whether low-rank adapters are trained in place of the model.
    pub(super) has_adapters: bool,
    /// The model that the stage needs beside it.
    pub(super) other_model: Option<ModelAnswer>,
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
    /// Whether it is an adapter of another model.
    pub(super) is_adapter: bool,
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
            None => dialog.ask(&goal_question(nearby), check_goal)?,
        };
        refuse_unused_flags(goal, arguments)?;

        let model = ask_model(arguments.model.as_ref(), &model_question(goal, nearby), head(goal), dialog)?;
        let has_adapters = arguments.lora;
        if has_adapters && model.is_adapter {
            let problem =
                format!("{} is an adapter already, which is trained on: leave the flag out", model.name);
            return Err(refused("--lora", problem).into());
        }
        let other_model = match other_model(goal) {
            Some(other) => {
                let head = if other.is_reward_model { Head::Reward } else { Head::Language };
                let given = given_model(other.flag, arguments);
                Some(ask_model(given, &other_question(other, nearby), head, dialog)?)
            }
            None => None,
        };

        let rows = Rows::ask(goal, arguments, nearby, dialog)?;
        let length = match arguments.length {
            Some(length) => length,
            None => dialog.ask(&length_question(), check_length)?,
        };

        let out = match (out, &other_model) {
            (Some(out), _) => out,
            // The second model has used the question.
            (None, Some(_)) => free_path("run", ".toml"),
            (None, None) => dialog.ask(&out_question(), |text| check_out(Path::new(text), false))?,
        };
        let folder = free_path(&format!("runs/{}", goal.command()), "");
        Ok(Self { goal, model, has_adapters, other_model, rows, length, out, folder })
    }
}

fn goal_question(nearby: &Nearby) -> Question<'static> {
    let has = |kind| nearby.files.iter().any(|file| file.kind() == Some(kind));
    let goal = match (has(RowKind::Demonstrations), has(RowKind::Pairs)) {
        (true, true) => Some(Goal::All),
        (false, true) => stage::for_rows(RowKind::Pairs).map(Goal::Stage),
        _ => stage::for_rows(RowKind::Demonstrations).map(Goal::Stage),
    };
    let choices = Goal::every().map(|goal| (goal.name(), goal.title())).collect();
    let default = goal.map(|goal| goal.name().to_owned());
    Question { text: "What to train", choices, default, flag: "--stage" }
}

/// What kind of model a goal may start from. A reward model may start from another one.
fn head(goal: Goal) -> Head {
    match goal {
        Goal::Stage(stage) if !stage.stage.schema.reads("eval.tasks") => Head::Either,
        _ => Head::Language,
    }
}

fn other_model(goal: Goal) -> Option<&'static OtherModel> {
    match goal {
        Goal::Stage(stage) => stage.init.other_model.as_ref(),
        Goal::All => None,
    }
}

/// The model that a flag names.
fn given_model<'a>(flag: &str, arguments: &'a InitArgs) -> Option<&'a String> {
    match flag {
        "--teacher" => arguments.teacher.as_ref(),
        _ => arguments.reward_model.as_ref(),
    }
}

fn model_question(goal: Goal, nearby: &Nearby) -> Question<'static> {
    let trained =
        || nearby.runs.iter().filter(|run| run.is_finished && !stage::trains_reward_model(run.name));
    let after = match goal {
        Goal::Stage(stage) => stage.init.after,
        Goal::All => None,
    };
    let tuned = trained().filter(|run| Some(run.name) == after);
    let models = nearby.models.iter().filter(|model| !model.is_reward_model).map(|model| &model.path);
    let first = tuned.map(|run| &run.path).chain(models).chain(trained().map(|run| &run.path)).next();
    let text = "The model to start from: a folder, or a hub name owner/name";
    Question { text, choices: Vec::new(), default: first.and_then(|path| as_text(path)), flag: "--model" }
}

fn other_question(other: &OtherModel, nearby: &Nearby) -> Question<'static> {
    let runs = nearby.runs.iter().filter(|run| run.is_finished && stage::trains_reward_model(run.name));
    let models = nearby.models.iter().filter(|model| model.is_reward_model);
    let found = runs.map(|run| &run.path).chain(models.map(|model| &model.path)).next();
    // Which language model is a teacher, nobody can tell.
    let default = found.filter(|_| other.is_reward_model).and_then(|path| as_text(path));
    Question { text: other.question, choices: Vec::new(), default, flag: other.flag }
}

fn length_question() -> Question<'static> {
    let text = "How long: quick (a few steps, to see that it works) or normal (every row once)";
    Question { text, choices: Vec::new(), default: Some("quick".to_owned()), flag: "--length" }
}

fn out_question() -> Question<'static> {
    let text = "Write the run file to";
    Question { text, choices: Vec::new(), default: as_text(&free_path("run", ".toml")), flag: "--out" }
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

fn check_goal(text: &str) -> anyhow::Result<Goal> {
    let names = || Goal::every().map(Goal::name).collect::<Vec<_>>().join(", ");
    Goal::find(text).ok_or_else(|| not_a_choice("--stage", text, &names()).into())
}

fn check_length(text: &str) -> anyhow::Result<RunLength> {
    RunLength::from_str(text, true).map_err(|_| not_a_choice("--length", text, "quick, normal").into())
}

fn not_a_choice(flag: &str, text: &str, names: &str) -> ConfigError {
    refused(&format!("{flag} {text}"), format!("give one of {names}"))
}

/// Refuses a flag that has no effect on what is trained.
fn refuse_unused_flags(goal: Goal, arguments: &InitArgs) -> Result<(), ConfigError> {
    let reads = |flag: &str| {
        let is_rows = goal.stages().iter().any(|stage| stage.init.rows.flag() == flag);
        is_rows || other_model(goal).is_some_and(|other| other.flag == flag)
    };
    let kinds = [RowKind::Demonstrations, RowKind::Pairs, RowKind::Prompts];
    let rows = kinds.map(|kind| (kind.flag(), !rows::given(kind, arguments).is_empty()));
    let models = ["--reward-model", "--teacher"].map(|flag| (flag, given_model(flag, arguments).is_some()));
    match rows.into_iter().chain(models).find(|&(flag, is_given)| is_given && !reads(flag)) {
        Some((flag, _)) => Err(refused(flag, format!("`{}` does not read it: leave it out", goal.command()))),
        None => Ok(()),
    }
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
    let unseen = ModelAnswer {
        name: name.to_owned(),
        max_positions: None,
        hidden_size: None,
        needs_template: false,
        is_adapter: false,
    };
    let Some(folder) = local_folder(name)? else { return Ok(unseen) };

    let config = folder.config()?;
    let expected = match (head, config.is_sequence_classification()) {
        (Head::Language, true) => Some("is a reward model: name a language model"),
        (Head::Reward, false) => Some("is a language model: name the folder of a reward model"),
        _ => None,
    };
    if let Some(problem) = expected {
        return Err(refused(name, problem).into());
    }

    let tokenizer = load_tokenizer(folder.tokenizer_path(), None)?;
    check_vocabulary(&tokenizer, &config)?;
    let needs_template = tokenizer.chat_template().is_none();
    let (max_positions, hidden_size) = (config.max_positions(), config.architecture().hidden_size);
    Ok(ModelAnswer {
        max_positions: Some(max_positions),
        hidden_size: Some(hidden_size),
        needs_template,
        is_adapter: folder.base().is_some(),
        ..unseen
    })
}

/// The folder of a model on this machine; `None` for a hub model that is not in the cache.
fn local_folder(name: &str) -> anyhow::Result<Option<ModelFolder>> {
    if Path::new(name).is_dir() {
        return Ok(Some(model_folder::find(name)?));
    }
    // Writing a run file downloads nothing.
    let cache = HubSettings { offline: true, ..HubSettings::from_process() };
    match cache.resolve(name) {
        Err(Error::Offline { .. }) => Ok(None),
        found => Ok(Some(ModelFolder::open(found?)?)),
    }
}

#[cfg(test)]
mod tests;
