//! The thread that owns the models of a chat screen. Work comes in through a channel, in order; events go out
//! through another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use inference::shared_weights::SharedWeights;
use models::scalar_model::ScalarModel;
use parallel::LocalRank;
use tui::chat::conversation::{self, TurnId};
use tui::chat::event::{Against, Event, ModelEvent, Notice, Request, TokenReport};
use tui::line::Statistics;

use super::answerer::{Answer, Answerer, LocalAnswer, Question, Update, answer_remotely};
use super::tokens;
use crate::exit;
use crate::session::{self, ModelSource, Speculation};
use crate::user_folders::{self, HomeError};

const NOT_LOADED: &str = "this model could not be loaded; /model DIR takes another one";
const STOPPED: &str = "stopped before it began";
/// How long the end of the thread is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the models do.
pub(super) enum Work {
    Load {
        slot: usize,
        model: String,
    },
    /// Answers of different models are written at once.
    Generate(Vec<Request>),
    Template {
        slot: usize,
        template: String,
    },
    Score {
        session: String,
        turn: TurnId,
        messages: Vec<Message>,
        model: Option<String>,
    },
    Tokens {
        slot: usize,
        messages: Vec<Message>,
        against: Against,
        ends: bool,
    },
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
            weights: SharedWeights::default(),
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
    weights: SharedWeights,
    reward: Option<(String, Session<ScalarModel>)>,
    reference: Option<(String, Session<models::causal_lm::CausalLm>)>,
    events: Sender<Event>,
    stopped: Arc<AtomicU64>,
}

impl Models {
    fn run(&mut self, work: &Receiver<(u64, Work)>) {
        for (number, work) in work {
            let slot = match &work {
                Work::Load { slot, .. } => Some(*slot),
                _ => None,
            };
            let Err(error) = guarded(|| self.work(number, work)) else { continue };
            let event = match slot {
                Some(slot) => Event::Model(ModelEvent::LoadFailed { slot, error }),
                None => Event::Text { title: "this did not work".to_owned(), text: error },
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
            Work::Generate(requests) => {
                self.generate(number, requests);
                Ok(())
            }
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
        self.answerers.get_mut(&slot).map(|(_, answerer)| answerer).context(NOT_LOADED)
    }

    fn source(&self, model: &str) -> Result<ModelSource, HomeError> {
        // No shell has seen what is typed here.
        Ok(ModelSource { model: user_folders::expand_home(model)?, ..self.setup.model.clone() })
    }

    fn load(&mut self, slot: usize, model: &str) -> anyhow::Result<()> {
        self.tell(ModelEvent::Loading { slot, note: "reading the weights".to_owned() });
        let source = self.source(model)?;
        let answerer = Answerer::load(&source, &self.setup.speculation, &mut self.weights)?;
        self.tell(ModelEvent::Loaded { slot, context: answerer.context(), detail: answerer.detail() });
        self.answerers.insert(slot, (model.to_owned(), answerer));
        Ok(())
    }

    fn question(&self, request: Request) -> Question {
        let Request { messages, prefix, sampling, policy, .. } = request;
        let ignore_eos = self.setup.ignore_eos;
        Question { messages: to_messages(messages), prefix, sampling, policy, ignore_eos }
    }

    /// Writes answers: those of different models at once, and those of one model in their order.
    fn generate(&mut self, number: u64, requests: Vec<Request>) {
        let mut left = requests;
        while !left.is_empty() {
            let mut slots = BTreeSet::new();
            let (now, later): (Vec<Request>, Vec<Request>) =
                left.into_iter().partition(|request| slots.insert(request.slot));
            self.write_at_once(number, now);
            left = later;
        }
    }

    /// Writes the answers of different models. Models of this process take turns, a step each, and each
    /// endpoint is waited for by a thread of its own.
    fn write_at_once(&mut self, number: u64, requests: Vec<Request>) {
        let mut asked: Vec<(usize, TurnId, Question)> = requests
            .into_iter()
            .map(|request| (request.slot, request.turn, self.question(request)))
            .collect();
        // Endpoints are asked first: they do not wait while a model here writes a summary.
        asked.sort_by_key(|(slot, ..)| matches!(self.answerers.get(slot), Some((_, Answerer::Local { .. }))));
        let (events, stopped) = (&self.events, &self.stopped);
        let mut answerers: BTreeMap<usize, &mut Answerer> =
            self.answerers.iter_mut().map(|(&slot, (_, answerer))| (slot, answerer)).collect();

        std::thread::scope(|scope| {
            let mut writing = Vec::new();
            for (slot, turn, question) in &asked {
                let writer = Writer { turn: *turn, number, events: events.clone(), stopped };
                let answerer = answerers.remove(slot).context(NOT_LOADED);
                let begin = || {
                    // An answer that was stopped before it began is not begun.
                    anyhow::ensure!(!writer.is_stopped(), STOPPED);
                    answerer?.begin(question, &mut |update| writer.tell(update))
                };
                match guarded(begin) {
                    Ok(Answer::Local(answer)) => writing.push((writer, answer)),
                    Ok(Answer::Remote(model)) => {
                        let waiting = writer.clone();
                        let wait = move || {
                            let listen = &mut |update: Update<'_>| waiting.tell(update);
                            waiting.end(guarded(|| answer_remotely(model, question, listen)));
                        };
                        if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, wait) {
                            writer.end(Err(error.to_string()));
                        }
                    }
                    Err(error) => writer.end(Err(error)),
                }
            }
            take_turns(writing);
        });
    }

    fn score(&mut self, messages: &[Message], model: Option<String>) -> anyhow::Result<f64> {
        let wanted = model.or_else(|| self.reward.as_ref().map(|(name, _)| name.clone()));
        let wanted = wanted.or_else(|| self.setup.reward_model.clone());
        let wanted = wanted.context("name a reward model: /reward DIR, or start with --reward-model DIR")?;
        if self.reward.as_ref().is_none_or(|(name, _)| *name != wanted) {
            self.notice(format!("loading the reward model {wanted}"));
            self.reward =
                Some((wanted.clone(), session::scalar_model_on(&self.weights, &self.source(&wanted)?)?));
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
                let source = self.source(&wanted)?;
                let (session, _) = session::causal_lm_on(&self.weights, &source, LocalRank::SINGLE)?;
                self.reference = Some((wanted.clone(), session));
            }
        }
        let (name, answerer) = self.answerers.get(&slot).context("this model is not loaded")?;
        let session = answerer.local("this view")?;
        let reference = self.reference.as_ref().filter(|_| compares);
        let reference = reference.map(|(name, session)| (name.as_str(), session));
        tokens::report((name, session), reference, messages, ends)
    }
}

/// Passes an answer on to the screen, until it is stopped.
#[derive(Clone)]
struct Writer<'a> {
    turn: TurnId,
    /// The number of the piece of work that asks for the answer.
    number: u64,
    events: Sender<Event>,
    stopped: &'a AtomicU64,
}

impl Writer<'_> {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) >= self.number
    }

    fn tell(&self, update: Update<'_>) -> ControlFlow<()> {
        let turn = self.turn;
        let event = match update {
            Update::Started { prompt_tokens, dropped } => {
                Event::Model(ModelEvent::Started { turn, prompt_tokens, dropped })
            }
            Update::Piece { text, new_tokens, rate } => {
                Event::Model(ModelEvent::Piece { turn, text: text.to_owned(), new_tokens, rate })
            }
            Update::Notice(text) => Event::Notice(Notice::done(text)),
        };
        if self.events.send(event).is_err() || self.is_stopped() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn end(&self, outcome: Result<Statistics, String>) {
        let turn = self.turn;
        let event = match outcome {
            Ok(statistics) => ModelEvent::Finished { turn, statistics },
            Err(error) => ModelEvent::Failed { turn, error },
        };
        // Without a screen there is nobody to tell.
        let _ = self.events.send(Event::Model(event));
    }
}

/// Writes answers of models of this process to their ends, a step of each at a time.
fn take_turns(mut writing: Vec<(Writer<'_>, Box<LocalAnswer<'_>>)>) {
    while !writing.is_empty() {
        writing.retain_mut(|(writer, answer)| {
            let outcome = if !answer.has_begun() && writer.is_stopped() {
                Some(Err(STOPPED.to_owned()))
            } else {
                guarded(|| answer.step(&mut |update| writer.tell(update))).transpose()
            };
            let Some(outcome) = outcome else { return true };
            writer.end(outcome);
            false
        });
    }
}

/// What `work` returns, or the text of its error. A panic, for instance about a full budget, must not take
/// the conversation with it.
fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(exit::text(&error)),
        Err(panic) => Err(exit::panic_text(exit::panic_message(panic.as_ref()))),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use datasets::{Tokenizer, TrainOptions};
    use models::causal_lm::CausalLm;
    use models::config::Config;
    use tch::{Device, Kind};
    use tui::chat::event::{ContextPolicy, Sampling};

    use super::*;
    use crate::config::DeviceSetting;
    use crate::model_folder;
    use crate::session::WeightSettings;

    /// What happened to the answer of a turn.
    type TurnEvent = (TurnId, &'static str);

    const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": 300, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}"#;

    fn save_model(folder: &Path) {
        let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
        let tokenizer = Tokenizer::train(["good day".to_owned()].into_iter(), &options).unwrap();
        let mut config = Config::from_json(LLAMA, "test").unwrap();
        config.set("vocab_size", tokenizer.vocab_size().into()).unwrap();
        let options = model_folder::frozen_options(Kind::Float, Device::Cpu);
        fs::create_dir(folder).unwrap();
        CausalLm::random(config, 3, &options).unwrap().save(folder).unwrap();
        tokenizer.save(folder).unwrap();
    }

    fn worker() -> Worker {
        let template = Some("{% for message in messages %}{{ message.content }}{% endfor %}".to_owned());
        let weights = WeightSettings { device: DeviceSetting::Cpu, ..WeightSettings::default() };
        Worker::start(WorkerSetup {
            model: ModelSource { model: String::new(), weights, template },
            speculation: Speculation::default(),
            reward_model: None,
            reference: None,
            ignore_eos: true,
        })
        .unwrap()
    }

    fn request(turn: TurnId, slot: usize) -> Request {
        let sampling =
            Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, max_new_tokens: 9, seed: turn as u64 };
        let messages = vec![(conversation::Role::User, "good day".to_owned())];
        Request { turn, slot, messages, prefix: String::new(), sampling, policy: ContextPolicy::Stop }
    }

    /// The events of some answers until all have ended: pieces and ends by turn, in their order, and the
    /// errors of the turns that failed.
    fn events(worker: &Worker, answers: usize) -> (Vec<TurnEvent>, Vec<(TurnId, String)>) {
        let (mut seen, mut failed, mut ended) = (Vec::new(), Vec::new(), 0);
        while ended < answers {
            let Event::Model(event) = worker.events.recv_timeout(Duration::from_secs(60)).unwrap() else {
                continue;
            };
            match event {
                ModelEvent::Piece { turn, new_tokens: 1.., .. } => seen.push((turn, "piece")),
                ModelEvent::Finished { turn, statistics } => {
                    assert_eq!(statistics.new_tokens, 9);
                    seen.push((turn, "end"));
                    ended += 1;
                }
                ModelEvent::Failed { turn, error } => {
                    failed.push((turn, error));
                    ended += 1;
                }
                ModelEvent::LoadFailed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        (seen, failed)
    }

    /// Waits until the models are gone.
    fn join(worker: Worker) {
        drop(worker.sender);
        worker.thread.join().unwrap();
    }

    #[test]
    fn different_models_answer_at_once_and_one_model_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = worker();
        for slot in 0..2 {
            let model = folder.path().join(format!("m{slot}"));
            save_model(&model);
            worker.send(Work::Load { slot, model: model.display().to_string() }).unwrap();
        }
        // Slot 7 has no model, which the others do not feel.
        let requests = vec![request(10, 0), request(11, 1), request(12, 7), request(13, 0)];
        worker.send(Work::Generate(requests)).unwrap();
        let (seen, failed) = events(&worker, 4);

        assert_eq!(failed, [(12, NOT_LOADED.to_owned())]);
        let place = |wanted: (TurnId, &str)| seen.iter().position(|event| *event == wanted).unwrap();
        assert!(place((11, "piece")) < place((10, "end")), "{seen:?}");
        assert!(place((10, "piece")) < place((11, "end")), "{seen:?}");
        assert!(place((13, "piece")) > place((10, "end")), "{seen:?}");
        join(worker);
    }

    #[test]
    fn a_stop_ends_all_answers_and_the_next_one_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = worker();
        let model = folder.path().join("m");
        save_model(&model);
        worker.send(Work::Load { slot: 0, model: model.display().to_string() }).unwrap();
        worker.newest += 1;
        worker.stop();
        worker.newest -= 1;
        worker.send(Work::Generate(vec![request(1, 0), request(2, 0)])).unwrap();
        worker.send(Work::Generate(vec![request(3, 0)])).unwrap();
        let (seen, failed) = events(&worker, 3);
        assert_eq!(failed.iter().map(|(turn, _)| *turn).collect::<Vec<_>>(), [1, 2]);
        assert!(failed.iter().all(|(_, error)| error.contains("stopped before it began")), "{failed:?}");
        assert!(seen.iter().all(|(turn, _)| *turn == 3) && seen.ends_with(&[(3, "end")]), "{seen:?}");
        join(worker);
    }
}
