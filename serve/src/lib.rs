//! A service over HTTP in the form of OpenAI's API.
//!
//! ```text
//! HTTP (one thread, tokio)                      a thread for each model
//! router ─ key ─ api/* ──Command::Generate──>   Worker ── Engine
//!             Pieces <──a bounded channel────     (tokens to text, stop strings)
//! ```
//! A model belongs to its thread, and nothing else touches it. A client that goes away drops its `Pieces`,
//! which ends the request; a client that does not read fills its channel, which ends it too.

mod api;
mod auth;
mod context_length;
mod error;
mod json;
mod metrics;
mod server;
mod state;
mod worker;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use datasets::Tokenizer;
use inference::engine::{Engine, EngineOptions};
use models::causal_lm::CausalLm;
use models::scalar_model::ScalarModel;

pub use auth::Keys;
pub use error::{BoxError, Error};
pub use state::Limits;

use context_length::ContextLength;
use metrics::{Metrics, ModelLabel};
use state::{Model, ModelKind, Ready, State};
use worker::{Command, Worker};

/// A loaded language model with what turns text into tokens and back.
pub struct LanguageModel {
    /// The model.
    pub model: CausalLm,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The tokens that end a reply.
    pub stop_ids: Vec<i64>,
    /// The model that guesses the tokens of replies, if there is one.
    pub draft: Option<Box<CausalLm>>,
}

/// A loaded reward model with its tokenizer.
pub struct RewardModel {
    /// The model.
    pub model: ScalarModel,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
}

/// A loaded model.
pub enum LoadedModel {
    /// It writes replies.
    Language(LanguageModel),
    /// It gives scores.
    Reward(RewardModel),
}

/// Loads a model, on the thread that then owns it. It is called again when new weights are asked for.
pub type Load = Box<dyn Fn() -> Result<LoadedModel, BoxError> + Send>;

/// A model to serve.
pub struct ServedModel {
    /// The name by which requests ask for it.
    pub name: String,
    /// Loads it.
    pub load: Load,
}

/// How the service runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address and the port.
    pub address: SocketAddr,
    /// Who may ask.
    pub keys: Keys,
    /// What a request may ask for.
    pub limits: Limits,
    /// The sizes of the engine of each model.
    pub engine: EngineOptions,
    /// How long requests that are under way may go on once the server is being stopped.
    pub drain: Duration,
}

/// Serves models until `should_stop` says so. `on_bound` gets the address once the port is open, which is
/// before the models are loaded: until then, requests are answered with 503. A model that fails ends the
/// service.
pub fn run(
    models: Vec<ServedModel>,
    options: Options,
    should_stop: impl Fn() -> bool + Send + 'static,
    on_bound: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let metrics = Arc::new(Metrics::new());
    let (failed, mut has_failed) = tokio::sync::mpsc::channel(1);
    runtime.block_on(async {
        let listener = server::bind(options.address, !options.keys.is_empty()).await?;
        on_bound(listener.local_addr()?);

        let start = |served| start_model(served, options.engine, &metrics, &failed);
        let models = models.into_iter().map(start).collect::<Result<_, std::io::Error>>()?;
        let state = Arc::new(State {
            models,
            keys: options.keys,
            limits: options.limits,
            metrics: Arc::clone(&metrics),
            is_stopping: false.into(),
        });

        let stop = async move {
            while !should_stop() {
                tokio::time::sleep(STOP_INTERVAL).await;
            }
        };
        tokio::select! {
            () = server::serve(listener, state, stop, options.drain) => Ok(()),
            Some(error) = has_failed.recv() => Err(error),
        }
    })
}

/// How often the service looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Starts the thread of a model, which tells `failed` if it cannot go on.
fn start_model(
    served: ServedModel,
    engine: EngineOptions,
    metrics: &Arc<Metrics>,
    failed: &tokio::sync::mpsc::Sender<Error>,
) -> Result<Arc<Model>, std::io::Error> {
    let (commands, receiver) = channel();
    let model = Arc::new(Model::new(served.name.clone(), commands));
    let thread = ModelThread {
        model: Arc::downgrade(&model),
        name: served.name,
        load: served.load,
        engine,
        metrics: Arc::clone(metrics),
    };

    let failed = failed.clone();
    let name = model.name.clone();
    let work = move || {
        // A panic has told the user already; here it must not leave a model that never answers.
        let result = catch_unwind(AssertUnwindSafe(|| thread.run(&receiver)));
        let error = match result {
            Ok(Ok(())) => return,
            Ok(Err(source)) => Error::Model { name, source },
            Err(_) => Error::Panicked { name },
        };
        let _ = failed.blocking_send(error);
    };
    thread::Builder::new().name(format!("model {}", model.name)).spawn(work)?;
    Ok(model)
}

/// The thread of a model.
struct ModelThread {
    /// The thread ends when nobody can send commands any more, so it does not keep the sender alive.
    model: std::sync::Weak<Model>,
    name: String,
    load: Load,
    engine: EngineOptions,
    metrics: Arc<Metrics>,
}

impl ModelThread {
    fn run(self, commands: &Receiver<Command>) -> Result<(), BoxError> {
        match (self.load)()? {
            LoadedModel::Language(model) => self.run_language_model(model, commands),
            LoadedModel::Reward(model) => {
                self.run_reward_model(model, commands);
                Ok(())
            }
        }
    }

    fn run_language_model(
        &self,
        loaded: LanguageModel,
        commands: &Receiver<Command>,
    ) -> Result<(), BoxError> {
        let LanguageModel { model, tokenizer, stop_ids, draft } = loaded;
        let mut engine = Engine::new(&model, self.engine)?;
        if let Some(draft) = &draft {
            engine = engine.with_draft(draft)?;
        }
        let (positions, cached_tokens) = (model.config().max_positions() as usize, engine.cached_tokens());
        let tokens = positions.min(cached_tokens);
        let context = ContextLength { tokens, is_of_cache: cached_tokens < positions };
        let (config, vocab_size) = (model.config().to_json(), model.config().vocab_size());
        drop((model, draft));

        let tokenizer = Arc::new(tokenizer);
        let stop_ids = stop_ids.into();
        let kind = ModelKind::Language;
        let for_requests = Arc::clone(&tokenizer);
        self.set_ready(Ready { kind, tokenizer: for_requests, stop_ids, context, positions, vocab_size });

        let label = ModelLabel { model_name: self.name.clone() };
        let mut reload = |engine: &mut Engine| match (self.load)()? {
            LoadedModel::Language(again) if again.model.config().to_json() == config => {
                Ok(engine.reload_weights(&again.model)?)
            }
            _ => Err(OTHER_MODEL.into()),
        };
        Ok(Worker::new(engine, &tokenizer, &self.metrics, label).run(commands, &mut reload)?)
    }

    fn run_reward_model(&self, loaded: RewardModel, commands: &Receiver<Command>) {
        let RewardModel { model, tokenizer } = loaded;
        let (positions, config) = (model.config().max_positions() as usize, model.config().to_json());
        let context = ContextLength { tokens: positions, is_of_cache: false };
        let (tokenizer, stop_ids, kind) = (Arc::new(tokenizer), Arc::new([]), ModelKind::Reward);
        let vocab_size = model.config().vocab_size();
        self.set_ready(Ready { kind, tokenizer, stop_ids, context, positions, vocab_size });
        let mut reload = || match (self.load)()? {
            LoadedModel::Reward(again) if again.model.config().to_json() == config => Ok(again.model),
            _ => Err(OTHER_MODEL.into()),
        };
        worker::run_reward_model(model, commands, &mut reload);
    }

    /// Lets requests in. If the server has ended meanwhile, nobody asks any more.
    fn set_ready(&self, ready: Ready) {
        if let Some(model) = self.model.upgrade() {
            model.set_ready(ready);
        }
    }
}

/// The message when new weights belong to another architecture.
const OTHER_MODEL: &str = "config.json has changed: start the server again for another model";
