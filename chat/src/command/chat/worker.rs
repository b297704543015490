//! The thread that owns the models of a chat screen. Work comes in through a channel, in order; events go out
//! through another.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use datasets::{Message, Role};
use inference::session::Session;
use models::scalar_model::ScalarModel;
use tui::chat::conversation::{self, TurnId};
use tui::chat::event::{Against, Event, ModelEvent, Notice, Request, TokenReport};

use super::answerer::{Answerer, Question, Update};
use super::tokens;
use crate::exit;
use crate::session::{self, ModelSource, Speculation};
use crate::user_folders::{self, HomeError};

/// How long the end of the thread is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the models do.
pub(super) enum Work {
    Load { slot: usize, model: String },
    Generate(Request),
    Template { slot: usize, template: String },
    Score { session: String, turn: TurnId, messages: Vec<Message>, model: Option<String> },
    Tokens { slot: usize, messages: Vec<Message>, against: Against, ends: bool },
    Prompt(Request),
}

/// The thread with the models.
pub(super) struct Worker {
    sender: Sender<(u64, Work)>,
    events: Receiver<Event>,
    /// The number of the newest piece of work.
    newest: u64,
    /// Answers up to this number are not wanted any more.
    stopped: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// What a worker starts with.
pub(super) struct WorkerSetup {
    /// How models are loaded; the name of the model is replaced.
    pub(super) model: ModelSource,
    /// How the tokens of their answers are guessed.
    pub(super) speculation: Speculation,
    /// The reward model, if one was named.
    pub(super) reward_model: Option<String>,
    /// The reference, if one was named.
    pub(super) reference: Option<String>,
    /// Whether answers run to their limit.
    pub(super) ignore_eos: bool,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(setup: WorkerSetup) -> anyhow::Result<Self> {
        let (sender, work) = mpsc::channel();
        let (events, receiver) = mpsc::channel();
        let stopped = Arc::new(AtomicU64::new(0));
        let mut models = Models {
            setup,
            answerers: HashMap::new(),
            reward: None,
            reference: None,
            events,
            stopped: Arc::clone(&stopped),
        };
        let thread =
            std::thread::Builder::new().name("models".to_owned()).spawn(move || models.run(&work))?;
        Ok(Self { sender, events: receiver, newest: 0, stopped, thread })
    }

    /// Adds a piece of work.
    pub(super) fn send(&mut self, work: Work) -> anyhow::Result<()> {
        self.newest += 1;
        self.sender.send((self.newest, work)).ok().context("the thread of the models has ended")
    }

    /// Stops all answers that were asked for by now.
    pub(super) fn stop(&self) {
        self.stopped.store(self.newest, Ordering::SeqCst);
    }

    /// Ends the thread. Returns `false` if it is still at work, such as loading a model, after a moment.
    pub(super) fn end(self) -> bool {
        self.stop();
        drop(self.sender);
        let started = Instant::now();
        while !self.thread.is_finished() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.thread.is_finished()
    }

    /// The next event, if there is one.
    pub(super) fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

struct Models {
    setup: WorkerSetup,
    answerers: HashMap<usize, (String, Answerer)>,
    reward: Option<(String, Session<ScalarModel>)>,
    reference: Option<(String, Session<models::causal_lm::CausalLm>)>,
    events: Sender<Event>,
    stopped: Arc<AtomicU64>,
}

impl Models {
    fn run(&mut self, work: &Receiver<(u64, Work)>) {
        for (number, work) in work {
            let turn = match &work {
                Work::Generate(request) => Some(request.turn),
                _ => None,
            };
            let slot = match &work {
                Work::Load { slot, .. } => Some(*slot),
                _ => None,
            };

            // A panic, for instance about a full budget, must not take the conversation with it.
            let error = match catch_unwind(AssertUnwindSafe(|| self.work(number, work))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => exit::text(&error),
                Err(panic) => exit::panic_text(exit::panic_message(panic.as_ref())),
            };

            let event = match (turn, slot) {
                (Some(turn), _) => Event::Model(ModelEvent::Failed { turn, error }),
                (None, Some(slot)) => Event::Model(ModelEvent::LoadFailed { slot, error }),
                (None, None) => Event::Text { title: "this did not work".to_owned(), text: error },
            };
            if self.events.send(event).is_err() {
                return;
            }
        }
    }

    fn tell(&self, event: ModelEvent) {
        // Without a screen there is nobody to tell.
        let _ = self.events.send(Event::Model(event));
    }

    fn notice(&self, text: impl Into<String>) {
        let _ = self.events.send(Event::Notice(Notice::done(text)));
    }

    fn work(&mut self, number: u64, work: Work) -> anyhow::Result<()> {
        match work {
            Work::Load { slot, model } => self.load(slot, &model),
            Work::Generate(request) => self.generate(number, request),
            Work::Template { slot, template } => {
                self.answerer(slot)?.set_template(&template)?;
                self.notice("the template holds from the next answer on");
                Ok(())
            }
            Work::Score { session, turn, messages, model } => {
                let score = self.score(&messages, model)?;
                self.tell(ModelEvent::Scored { session, turn, score });
                Ok(())
            }
            Work::Tokens { slot, messages, against, ends } => {
                let report = self.tokens(slot, &messages, against, ends)?;
                self.tell(ModelEvent::Tokens(Box::new(report)));
                Ok(())
            }
            Work::Prompt(request) => {
                let (slot, question) = (request.slot, self.question(request));
                let (text, count) = self.answerer(slot)?.prompt(&question)?;
                let _ = self.events.send(Event::Text { title: format!("the prompt: {count} tokens"), text });
                Ok(())
            }
        }
    }

    fn answerer(&mut self, slot: usize) -> anyhow::Result<&mut Answerer> {
        let missing = "this model could not be loaded; /model DIR takes another one";
        self.answerers.get_mut(&slot).map(|(_, answerer)| answerer).context(missing)
    }

    fn source(&self, model: &str) -> Result<ModelSource, HomeError> {
        // No shell has seen what is typed here.
        Ok(ModelSource { model: user_folders::expand_home(model)?, ..self.setup.model.clone() })
    }

    fn load(&mut self, slot: usize, model: &str) -> anyhow::Result<()> {
        self.tell(ModelEvent::Loading { slot, note: "reading the weights".to_owned() });
        let answerer = Answerer::load(&self.source(model)?, &self.setup.speculation)?;
        self.tell(ModelEvent::Loaded { slot, context: answerer.context(), detail: answerer.detail() });
        self.answerers.insert(slot, (model.to_owned(), answerer));
        Ok(())
    }

    fn question(&self, request: Request) -> Question {
        let Request { messages, prefix, sampling, policy, .. } = request;
        let ignore_eos = self.setup.ignore_eos;
        Question { messages: to_messages(messages), prefix, sampling, policy, ignore_eos }
    }

    fn generate(&mut self, number: u64, request: Request) -> anyhow::Result<()> {
        let (turn, slot) = (request.turn, request.slot);
        let question = self.question(request);
        let stopped = Arc::clone(&self.stopped);
        let is_stopped = move || stopped.load(Ordering::SeqCst) >= number;
        let events = self.events.clone();
        let mut listen = |update: Update<'_>| {
            let event = match update {
                Update::Started { prompt_tokens, dropped } => {
                    Event::Model(ModelEvent::Started { turn, prompt_tokens, dropped })
                }
                Update::Piece { text, new_tokens, rate } => {
                    Event::Model(ModelEvent::Piece { turn, text: text.to_owned(), new_tokens, rate })
                }
                Update::Notice(text) => Event::Notice(Notice::done(text)),
            };
            if events.send(event).is_err() || is_stopped() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        // An answer that was stopped before it began is not begun.
        if listen(Update::Piece { text: "", new_tokens: 0, rate: None }).is_break() {
            anyhow::bail!("stopped before it began");
        }
        let statistics = self.answerer(slot)?.answer(&question, &mut listen)?;
        self.tell(ModelEvent::Finished { turn, statistics });
        Ok(())
    }

    fn score(&mut self, messages: &[Message], model: Option<String>) -> anyhow::Result<f64> {
        let wanted = model.or_else(|| self.reward.as_ref().map(|(name, _)| name.clone()));
        let wanted = wanted.or_else(|| self.setup.reward_model.clone());
        let wanted = wanted.context("name a reward model: /reward DIR, or start with --reward-model DIR")?;
        if self.reward.as_ref().is_none_or(|(name, _)| *name != wanted) {
            self.notice(format!("loading the reward model {wanted}"));
            self.reward = Some((wanted.clone(), session::scalar_model(&self.source(&wanted)?)?));
        }
        let (_, session) = self.reward.as_ref().expect("it was loaded above");
        let ids = session.tokenizer()?.encode_scored(messages)?;
        let longest = session.model.config().max_positions();
        if ids.len() as i64 > longest {
            return Err(inference::Error::LongPrompt { index: 0, length: ids.len(), longest }.into());
        }
        let scores = Vec::<f32>::try_from(&rlhf::reward::score(&session.model, &[&ids])?)?;
        self.notice(format!("{wanted}: {:+.4}", scores[0]));
        Ok(scores[0].into())
    }

    fn tokens(
        &mut self,
        slot: usize,
        messages: &[Message],
        against: Against,
        ends: bool,
    ) -> anyhow::Result<TokenReport> {
        let compares = against != Against::Nothing;
        if let Against::Reference(named) = against {
            let wanted = named.or_else(|| self.reference.as_ref().map(|(name, _)| name.clone()));
            let wanted = wanted.or_else(|| self.setup.reference.clone());
            let wanted = wanted.context("name the reference: /kl DIR, or start with --reference DIR")?;
            if self.reference.as_ref().is_none_or(|(name, _)| *name != wanted) {
                self.notice(format!("loading the reference {wanted}"));
                self.reference = Some((wanted.clone(), session::causal_lm(&self.source(&wanted)?)?));
            }
        }
        let (name, answerer) = self.answerers.get(&slot).context("this model is not loaded")?;
        let session = answerer.local("this view")?;
        let reference = self.reference.as_ref().filter(|_| compares);
        let reference = reference.map(|(name, session)| (name.as_str(), session));
        tokens::report((name, session), reference, messages, ends)
    }
}

/// The messages of a screen as rows of data have them.
pub(super) fn to_messages(messages: Vec<(conversation::Role, String)>) -> Vec<Message> {
    let role = |role| match role {
        conversation::Role::System => Role::System,
        conversation::Role::User => Role::User,
        conversation::Role::Assistant => Role::Assistant,
    };
    messages.into_iter().map(|(of, text)| Message::new(role(of), text)).collect()
}
