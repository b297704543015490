//! The line chat: in a pipe, one message and its answer; on a terminal with `--inline`, one turn after the
//! other in the ordinary flow of the terminal, which keeps its own scrollback.
//!
//! Ctrl-C stops the current answer, and the part generated so far stays in the history. At the prompt, Ctrl-C
//! clears the line, and Ctrl-D ends. A pasted text is one message, however many lines it has.

use std::io::{self, IsTerminal, Read, Stderr, Stdout};
use std::ops::ControlFlow;

use datasets::Message;
use inference::shared_weights::SharedWeights;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::json;
use tui::chat::event::{ContextPolicy, Sampling};
use tui::line::{LineChat, Statistics, TerminalStyle};
use tui::terminal::Environment;

use super::answerer::{Answerer, Question, Update};
use super::sessions::Sessions;
use crate::adapters;
use crate::args::ChatArgs;
use crate::config::ConfigError;
use crate::console;
use crate::failure::Failure;
use crate::interrupt;

const HELP: [&str; 5] = [
    "/help   this list",
    "/new    forget the conversation and start a new one",
    "/exit   end (so does Ctrl-D)",
    "Ctrl-C  stop the answer; at the prompt, clear the line",
    "without --inline, the chat fills the screen and can do much more",
];

/// A conversation by lines.
pub(super) struct Conversation {
    model: Answerer,
    system: Option<String>,
    history: Vec<Message>,
    sampling: Sampling,
    policy: ContextPolicy,
    ignore_eos: bool,
    screen: Screen,
}

/// A screen that writes answers to stdout and everything else to stderr.
type Screen = LineChat<Stdout, Stderr>;

fn screen() -> Screen {
    let (environment, output) = (Environment::read(), io::stdout().is_terminal());
    let look = TerminalStyle {
        interactive: output && io::stdin().is_terminal(),
        color_output: environment.color(output),
        color_error: environment.color(io::stderr().is_terminal()),
    };
    LineChat::new(io::stdout(), io::stderr(), look)
}

impl Conversation {
    /// Loads the model.
    pub(super) fn new(
        arguments: &ChatArgs,
        sampling: Sampling,
        policy: ContextPolicy,
    ) -> anyhow::Result<Self> {
        let source = arguments.model.source();
        let speculation = arguments.speculation.speculation(&source);
        let source = adapters::one_model(source, arguments.adapter.first().map(String::as_str))?;
        let model = Answerer::load(&source, &speculation, &mut SharedWeights::default())?;
        let ignore_eos = arguments.sampling.ignore_eos;
        let system = arguments.system.clone();
        let history = Vec::new();
        let mut conversation =
            Self { model, system, history, sampling, policy, ignore_eos, screen: screen() };
        conversation.forget();
        Ok(conversation)
    }

    /// Answers one turn that is read from a pipe.
    pub(super) fn once(&mut self, as_json: bool) -> anyhow::Result<()> {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(Failure::Stdin)?;
        if text.trim().is_empty() {
            let problem =
                "there is no message on it: pipe one in, as in `echo 'Hi!' | colossal-chat chat --model DIR`";
            return Err(
                ConfigError::Argument { argument: "stdin".to_owned(), problem: problem.to_owned() }.into()
            );
        }
        let (text, statistics) = match self.answer(text.trim_end(), !as_json) {
            Ok(answer) => answer,
            Err(error) => {
                // What arrived ends like an answer.
                self.screen.finish(None)?;
                return Err(error);
            }
        };
        if as_json {
            let row = json!({
                "text": text,
                "finish_reason": statistics.finish_reason,
                "prompt_tokens": statistics.prompt_tokens,
                "new_tokens": statistics.new_tokens,
                "seconds": statistics.total.as_secs_f64(),
            });
            console::print(&row.to_string())?;
        } else {
            self.screen.finish(io::stderr().is_terminal().then_some(&statistics))?;
        }
        if statistics.finish_reason == "interrupted" { Err(Failure::Interrupted.into()) } else { Ok(()) }
    }

    /// Runs an interactive conversation with one turn per input.
    pub(super) fn by_lines(&mut self, sessions: Option<&Sessions>) -> anyhow::Result<()> {
        let mut editor = DefaultEditor::new()?;
        for message in sessions.map(Sessions::history).unwrap_or_default() {
            editor.add_history_entry(message)?;
        }
        self.screen.notice("/help lists the commands")?;

        loop {
            let text = match editor.readline("> ") {
                Ok(text) => text,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(error.into()),
            };

            let text = text.trim();
            if !text.is_empty() {
                editor.add_history_entry(text)?;
                sessions.map_or(Ok(()), |sessions| sessions.remember(text))?;
            }

            match text {
                "" => {}
                "/exit" | "/quit" => return Ok(()),
                "/help" => HELP.iter().try_for_each(|line| self.screen.notice(line))?,
                "/new" => self.forget(),
                command if command.starts_with('/') && !command.starts_with("//") => {
                    self.screen.notice(&format!("there is no command {command}; /help lists them"))?;
                }
                text => self.turn(text.strip_prefix('/').unwrap_or(text))?,
            }
        }
    }

    /// Answers one turn. What goes wrong is a notice, and the conversation stays as it was.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        let before = self.history.len();
        match self.answer(text, true) {
            Ok((_, statistics)) => {
                Ok(self.screen.finish(io::stderr().is_terminal().then_some(&statistics))?)
            }
            Err(error) => {
                self.history.truncate(before);
                Ok(self.screen.notice(&crate::exit::text(&error))?)
            }
        }
    }

    fn forget(&mut self) {
        self.history = self.system.iter().map(Message::system).collect();
    }

    /// Adds a user turn to the history, streams the answer, and adds the answer as well.
    fn answer(&mut self, text: &str, shows: bool) -> anyhow::Result<(String, Statistics)> {
        self.history.push(Message::user(text));
        let question = Question {
            messages: self.history.clone(),
            prefix: String::new(),
            sampling: self.sampling,
            policy: self.policy,
            ignore_eos: self.ignore_eos,
        };

        // From here on, a signal stops the answer instead of the program.
        let work = interrupt::enter_graceful();
        let (mut answer, mut problem) = (String::new(), None);
        let (screen, policy) = (&mut self.screen, self.policy);
        let statistics = self.model.answer(&question, &mut |update| {
            let shown = match update {
                Update::Started { dropped: 0, .. } => Ok(()),
                Update::Started { dropped, .. } => {
                    let what = if policy == ContextPolicy::Summarize { "summarized" } else { "left out" };
                    screen.notice(&format!("the context is full: the oldest {dropped} messages are {what}"))
                }
                Update::Notice(text) => screen.notice(text),
                Update::Piece { text, .. } => {
                    answer.push_str(text);
                    if shows { screen.push(text) } else { Ok(()) }
                }
            };
            if let Err(error) = shown {
                problem.get_or_insert(error);
            }
            let enough = interrupt::is_stop_requested() || problem.is_some();
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        drop(work);
        if let Some(problem) = problem {
            return Err(problem.into());
        }
        self.history.push(Message::assistant(answer.clone()));
        Ok((answer, statistics))
    }
}
