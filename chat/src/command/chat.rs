//! `chat`: talks with a model, on a full screen, by lines, or in a pipe.
//!
//! On a terminal the chat fills the screen; with `--inline` it runs in the ordinary flow of the terminal. In
//! a pipe, all of stdin is one turn, and stdout receives only the answer.
//!
//! | module | content |
//! |---|---|
//! | `screen` | the loop between terminal, state and models, and the effects of the state |
//! | `worker` | the thread that owns the models |
//! | `answerer` | a model that answers, here or behind an endpoint; the full context |
//! | `tokens` | log-probabilities and KL, token by token |
//! | `line` | the line chat and the pipe |
//! | `sessions`, `settings`, `export` | files |

mod answerer;
mod export;
mod line;
mod screen;
mod sessions;
mod settings;
mod tokens;
mod worker;

use std::io::{self, IsTerminal};

use inference::remote::{KeyPlan, is_endpoint};
use tui::chat::event::Sampling;
use tui::chat::{Adapter, Names, Setup};
use tui::terminal::Environment;
use tui::theme::{Symbols, Theme, ThemeName};

use crate::adapters::{self, Base};
use crate::args::{ChatArgs, OtherModels};
use crate::command::generate as replies;
use crate::config::ConfigError;
use crate::feedback::{self, FeedbackLog};
use crate::model_folder::{self, short_name};
use line::Conversation;
use screen::Kept;
use sessions::Sessions;
use settings::Settings;
use worker::{Worker, WorkerSetup};

/// Runs the conversation until the user ends it.
pub(crate) fn run(arguments: &ChatArgs) -> anyhow::Result<()> {
    let options = replies::options(&arguments.sampling, Vec::new());
    options.sampling.check()?;
    let sampling = Sampling {
        temperature: arguments.sampling.temperature,
        top_k: arguments.sampling.top_k,
        top_p: arguments.sampling.top_p,
        max_new_tokens: arguments.sampling.max_new_tokens.get(),
        seed: arguments.sampling.seed,
    };
    refuse_local_flags(arguments)?;
    KeyPlan::new(models(arguments), None)?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let (settings, keys) = Settings::read()?;
    let policy = arguments.context.map(Into::into).or(settings.context).unwrap_or_default();
    if !is_terminal || arguments.json {
        refuse_screen_options(arguments, "there is no terminal")?;
        return Conversation::new(arguments, sampling, policy)?.once(arguments.json);
    }
    let sessions =
        if arguments.kept.no_save { None } else { Some(Sessions::new(sessions::default_folder()?)) };
    if arguments.inline || !Environment::read().moves_cursor() {
        refuse_screen_options(arguments, "the chat runs by lines")?;
        return Conversation::new(arguments, sampling, policy)?.by_lines(sessions.as_ref());
    }

    let folder = arguments.kept.feedback.clone().map_or_else(feedback::default_folder, Ok)?;
    let newest = arguments.kept.continue_newest.then(String::new);
    let open = arguments.kept.session.clone().or(newest);
    let theme = arguments.theme.or(settings.theme()).unwrap_or_default();
    let has_color = Environment::read().color(true);
    let setup = Setup {
        models: models(arguments).cloned().collect(),
        adapters: screen_adapters(arguments)?,
        is_endpoint,
        compare: names(&arguments.others),
        system: arguments.system.clone(),
        sampling,
        context: policy,
        history: sessions.as_ref().map(Sessions::history).unwrap_or_default(),
        theme: Theme::new(if has_color { theme } else { ThemeName::Plain }),
        symbols: Symbols::detect(std::env::var_os),
        keys,
        vim: settings.vim,
        mouse: settings.mouse,
        new_id: Box::new(Sessions::new_id),
        saves: sessions.is_some(),
        given: if open.is_some() { arguments.given.0.clone() } else { Vec::new() },
        feedback_folder: folder.display().to_string(),
    };
    let worker = Worker::start(WorkerSetup {
        model: arguments.model.source(),
        speculation: arguments.speculation.speculation(&arguments.model.source()),
        reward_model: arguments.others.reward_model.clone(),
        reference: arguments.others.reference.clone(),
        ignore_eos: arguments.sampling.ignore_eos,
    })?;
    screen::run(setup, worker, Kept { sessions, log: FeedbackLog::new(folder) }, open)
}

/// The models that answer.
fn models(arguments: &ChatArgs) -> impl Iterator<Item = &String> + Clone {
    std::iter::once(&arguments.model.model).chain(&arguments.others.compare)
}

/// The adapters of the model. On the screen they are known by one word each.
fn screen_adapters(arguments: &ChatArgs) -> anyhow::Result<Vec<Adapter>> {
    if arguments.adapter.is_empty() {
        return Ok(Vec::new());
    }
    let refuse = |argument: String, problem: String| Err(ConfigError::Argument { argument, problem }.into());
    if !arguments.others.compare.is_empty() {
        let problem =
            "--adapter is given: leave --compare out, and compare on the screen with /compare NAME NAME";
        return refuse("--compare".to_owned(), problem.to_owned());
    }
    let base = Base {
        name: short_name(arguments.model.model.as_ref()),
        folder: model_folder::find(&arguments.model.model)?,
    };
    let adapters = adapters::find(&arguments.adapter, &[base])?;
    let is_word = |name: &str| !name.contains(char::is_whitespace) && !["off", "blind"].contains(&name);
    if let Some(other) = adapters.iter().find(|adapter| !is_word(&adapter.name)) {
        let problem = format!(
            "{:?} cannot be typed as a name in the chat: give NAME=DIR, with one word other than off and blind",
            other.name
        );
        return refuse(format!("--adapter {}", other.given), problem);
    }
    Ok(adapters.into_iter().map(|adapter| Adapter { name: adapter.name, path: adapter.given }).collect())
}

/// Whether they answer side by side, and under which names.
fn names(others: &OtherModels) -> Option<Names> {
    match (others.compare.is_empty(), others.blind) {
        (true, _) => None,
        (false, false) => Some(Names::Shown),
        (false, true) => Some(Names::Hidden),
    }
}

/// Refuses the flags that only a model of this machine can follow.
fn refuse_local_flags(arguments: &ChatArgs) -> Result<(), ConfigError> {
    let model = &arguments.model;
    let [dtype, quantize, device] = model.weights.given();
    let given = [
        dtype,
        quantize,
        device,
        ("--template", model.template.is_some()),
        ("--ignore-eos", arguments.sampling.ignore_eos),
        ("--speculative-tokens", arguments.speculation.speculative_tokens.is_some()),
        ("--context", arguments.context.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) if models(arguments).all(|model| is_endpoint(model)) => Err(ConfigError::Argument {
            argument: flag.to_owned(),
            problem: "the server of --model decides this: leave the flag out".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Refuses what only the full screen can do.
fn refuse_screen_options(arguments: &ChatArgs, why: &str) -> Result<(), ConfigError> {
    let options = [
        ("a second --adapter", arguments.adapter.len() > 1),
        ("--compare", !arguments.others.compare.is_empty()),
        ("--blind", arguments.others.blind),
        ("--reward-model", arguments.others.reward_model.is_some()),
        ("--reference", arguments.others.reference.is_some()),
        ("--feedback", arguments.kept.feedback.is_some()),
        ("--theme", arguments.theme.is_some()),
        ("--session", arguments.kept.session.is_some()),
        ("--continue", arguments.kept.continue_newest),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(ConfigError::Argument {
            argument: name.to_owned(),
            problem: format!("it belongs to the chat on a full screen, and {why}"),
        }),
        None => Ok(()),
    }
}
