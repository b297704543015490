//! `chat`: a line-based conversation with a model. Answers are streamed, and the history is kept until
//! `/new`.
//!
//! On a terminal, each line is a turn. In a pipe, all of stdin is one turn, and stdout receives only the
//! answer. Ctrl-C stops the current answer, and the part generated so far stays in the history. At the
//! prompt, Ctrl-C exits the program with code 130.

use std::io::{self, BufRead, IsTerminal, Read, Stderr, Stdout};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use datasets::Message;
use models::causal_lm::CausalLm;
use models::generate::{self, Completion, FinishReason, GenerationOptions};
use tui::line::{LineChat, Statistics, TerminalStyle};
use tui::terminal::Environment;

use crate::args::ChatArgs;
use crate::command::generate as replies;
use crate::config::ConfigError;
use crate::exit::Failure;
use crate::interrupt;
use crate::session::Session;

const HELP: [&str; 4] = [
    "/help   this list",
    "/new    forget the conversation and start a new one",
    "/exit   end (so does Ctrl-D)",
    "Ctrl-C  stop the answer; at the prompt, end",
];

/// Runs the conversation until the user ends it.
pub(crate) fn run(arguments: &ChatArgs) -> anyhow::Result<()> {
    let session = Session::causal_lm(&arguments.model)?;
    let options = replies::options(&arguments.sampling, session.stop_ids());
    options.sampling.check()?;
    // A chat needs a tokenizer. If there is none, fail before the user types the first line.
    session.tokenizer()?;
    let mut chat =
        Chat { session, options, system: arguments.system.clone(), history: Vec::new(), screen: screen() };
    chat.forget();
    if io::stdin().is_terminal() { chat.by_lines() } else { chat.once() }
}

struct Chat {
    session: Session<CausalLm>,
    options: GenerationOptions,
    system: Option<String>,
    history: Vec<Message>,
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

impl Chat {
    /// Answers one turn that is read from a pipe.
    fn once(&mut self) -> anyhow::Result<()> {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(Failure::Stdin)?;
        if text.trim().is_empty() {
            let problem =
                "there is no message on it: pipe one in, as in `echo 'Hi!' | colossal-chat chat --model DIR`";
            return Err(
                ConfigError::Argument { argument: "stdin".to_owned(), problem: problem.to_owned() }.into()
            );
        }
        let reason = self.answer(text.trim_end())?;
        if reason == FinishReason::Interrupted { Err(Failure::Interrupted.into()) } else { Ok(()) }
    }

    /// Runs an interactive conversation with one turn per line.
    fn by_lines(&mut self) -> anyhow::Result<()> {
        self.screen.notice("/help lists the commands")?;
        loop {
            self.screen.prompt()?;
            let mut line = String::new();
            if io::stdin().lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim() {
                "" => {}
                "/exit" => return Ok(()),
                "/help" => HELP.iter().try_for_each(|line| self.screen.notice(line))?,
                "/new" => self.forget(),
                command if command.starts_with('/') => {
                    self.screen.notice(&format!("there is no command {command}; /help lists them"))?;
                }
                text => self.turn(text)?,
            }
        }
    }

    /// Answers one turn. A conversation that has become too long for the model gives a notice instead of an
    /// error.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        match self.answer(text) {
            Err(error) if matches!(error.downcast_ref(), Some(models::Error::LongPrompt { .. })) => {
                self.history.pop();
                Ok(self.screen.notice(&format!("{error}; /new starts a new conversation"))?)
            }
            other => other.map(drop),
        }
    }

    fn forget(&mut self) {
        self.history = self.system.iter().map(Message::system).collect();
    }

    /// Adds a user turn to the history, streams the answer, and adds the answer as well.
    fn answer(&mut self, text: &str) -> anyhow::Result<FinishReason> {
        self.history.push(Message::user(text));
        let prompt = self.session.tokenizer()?.encode_prompt(&self.history)?;

        // From here on, a signal stops the answer instead of the program.
        let work = interrupt::enter_graceful();
        let started = Instant::now();
        let mut first_token = None;
        let mut reply = Reply { screen: &mut self.screen, text: String::new(), problem: None };
        let mut decoder = self.session.tokenizer()?.stream_decoder(true);
        let mut listener = |_: usize, id: i64| {
            first_token.get_or_insert_with(|| started.elapsed());
            if !self.options.stop_ids.contains(&id) {
                reply.take(decoder.push(id));
            }
            let enough = interrupt::is_stop_requested() || reply.problem.is_some();
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let prompts = std::slice::from_ref(&prompt);
        let made = generate::generate(&self.session.model, prompts, &self.options, &mut listener)?;
        drop(work);

        reply.take(decoder.finish());
        let text = reply.finish()?;
        self.history.push(Message::assistant(text));
        let times = (first_token.unwrap_or_default(), started.elapsed());
        let statistics = self.statistics(prompt.len(), &made[0], times);
        self.screen.finish(io::stderr().is_terminal().then_some(&statistics))?;
        Ok(made[0].finish_reason)
    }

    fn statistics(
        &self,
        prompt: usize,
        made: &Completion,
        (first_token, total): (Duration, Duration),
    ) -> Statistics {
        let finish_reason = match made.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Interrupted => "interrupted",
        };
        Statistics {
            prompt_tokens: prompt as u64,
            new_tokens: made.ids.len() as u64,
            context: self.session.model.config().max_positions() as u64,
            first_token,
            total,
            finish_reason: finish_reason.to_owned(),
        }
    }
}

/// An answer that is being streamed to the screen: its text so far, and the first error.
struct Reply<'a> {
    screen: &'a mut Screen,
    text: String,
    problem: Option<anyhow::Error>,
}

impl Reply<'_> {
    fn take(&mut self, piece: Result<String, datasets::Error>) {
        let shown = piece.map_err(anyhow::Error::from).and_then(|piece| {
            self.screen.push(&piece)?;
            self.text.push_str(&piece);
            Ok(())
        });
        if let Err(problem) = shown {
            self.problem.get_or_insert(problem);
        }
    }

    fn finish(self) -> anyhow::Result<String> {
        self.problem.map_or(Ok(self.text), Err)
    }
}
