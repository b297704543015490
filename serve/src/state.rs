//! What all requests share: the models, the keys, the limits and the metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datasets::Tokenizer;
use inference::request::Request;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, channel};
use utoipa::ToSchema;

use crate::auth::Keys;
use crate::context_length::ContextLength;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::worker::{Command, Job, Message, Piece, PoolJob, TextOptions, Ticket};

/// The pieces of an answer that may wait for their reader. A client that is this far behind loses its
/// request.
const UNREAD_PIECES: usize = 4096;

/// What a request may ask for at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The requests of a model that are under way or wait.
    pub requests: usize,
    /// The replies of a request.
    pub samples: u32,
    /// The most likely tokens that come with each token.
    pub top_logprobs: usize,
    /// The stop strings of a request.
    pub stops: usize,
    /// The bytes of a stop string.
    pub stop_bytes: usize,
    /// The prompts of one request.
    pub prompts: usize,
    /// The bytes of a body.
    pub body_bytes: usize,
    /// How long a client may take to send the head of a request, and again to send its body.
    pub read_time: Duration,
    /// The connections that are open at once.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 256,
            samples: 16,
            top_logprobs: 20,
            stops: 16,
            stop_bytes: 256,
            prompts: 64,
            body_bytes: 4 << 20,
            read_time: Duration::from_secs(30),
            connections: 1024,
        }
    }
}

/// The state of the service.
pub(crate) struct State {
    pub(crate) models: Vec<Arc<Model>>,
    pub(crate) keys: Keys,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    /// Set when the server ends.
    pub(crate) is_stopping: AtomicBool,
}

/// A model, as the HTTP side knows it.
pub(crate) struct Model {
    pub(crate) name: String,
    /// When the server began to load it, in seconds since 1970.
    pub(crate) created: u64,
    /// The name of the model whose weights this adapter shares; `None` for a model.
    pub(crate) parent: Option<String>,
    messages: Sender<Message>,
    /// Its place among the models of its thread.
    place: usize,
    /// The requests that are under way or wait.
    open: Arc<AtomicUsize>,
    next_id: AtomicU64,
    /// Set once the model is loaded.
    ready: OnceLock<Ready>,
}

/// What a model makes of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModelKind {
    /// Replies, and final hidden states.
    Language,
    /// Scores.
    Reward,
}

/// What is known of a loaded model.
pub(crate) struct Ready {
    pub(crate) kind: ModelKind,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) stop_ids: Arc<[i64]>,
    pub(crate) context: ContextLength,
    /// The most tokens of a text to embed or to score, which takes no place in the KV cache.
    pub(crate) positions: usize,
    /// The size of the vocabulary.
    pub(crate) vocab_size: i64,
}

impl Model {
    /// A model that is being loaded, at a place of the thread that gets `messages`.
    pub(crate) fn new(name: String, parent: Option<String>, messages: Sender<Message>, place: usize) -> Self {
        Self {
            name,
            created: unix_seconds(),
            parent,
            messages,
            place,
            open: Arc::default(),
            next_id: AtomicU64::new(0),
            ready: OnceLock::new(),
        }
    }

    /// Notes that the model is loaded.
    pub(crate) fn set_ready(&self, ready: Ready) {
        let _ = self.ready.set(ready);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.get().is_some()
    }

    /// What is known of the model, or the answer that it is not there yet.
    pub(crate) fn ready(&self) -> Result<&Ready, ApiError> {
        self.ready.get().ok_or_else(|| ApiError::loading(&self.name))
    }

    /// Like [`ready`](Self::ready), for a model of a kind.
    pub(crate) fn ready_as(&self, kind: ModelKind) -> Result<&Ready, ApiError> {
        let ready = self.ready()?;
        match (ready.kind, kind) {
            (ModelKind::Language, ModelKind::Reward) => Err(ApiError::field(
                "model",
                format!("{} is a language model, which gives no scores", self.name),
            )),
            (ModelKind::Reward, ModelKind::Language) => {
                Err(ApiError::field("model", format!("{} is a reward model: ask /v1/score", self.name)))
            }
            _ => Ok(ready),
        }
    }

    /// Makes one vector of each row of tokens.
    pub(crate) async fn pool(&self, rows: Vec<Vec<i64>>, limit: usize) -> Result<Vec<Vec<f32>>, ApiError> {
        let ticket = Ticket::take(&self.open, limit).ok_or_else(|| ApiError::busy(limit))?;
        let (answer, answered) = tokio::sync::oneshot::channel();
        let job = PoolJob { rows, answer, _ticket: ticket };
        self.ask(Command::Pool(job))?;
        answered.await.map_err(|_| ApiError::stopping())?
    }

    /// Sends a request to the model. Its answer comes in pieces; when they are dropped, the request ends.
    pub(crate) fn send(
        self: &Arc<Self>,
        request: Request,
        text: TextOptions,
        limit: usize,
    ) -> Result<Pieces, ApiError> {
        let ticket = Ticket::take(&self.open, limit).ok_or_else(|| ApiError::busy(limit))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (pieces, receiver) = channel(UNREAD_PIECES);
        let request = Request { id, ..request };
        let job = Job { request, text, pieces, arrived: Instant::now(), ticket };
        self.ask(Command::Generate(job))?;
        Ok(Pieces { id, receiver, model: Arc::clone(self) })
    }

    /// Ends the requests that are under way: they get the answer that the server is being stopped.
    pub(crate) fn end_requests(&self) {
        let _ = self.ask(Command::EndAll);
    }

    /// Loads the weights again.
    pub(crate) async fn reload(&self) -> Result<(), ApiError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let message = Message::Reload { place: self.place, answer };
        self.messages.send(message).map_err(|_| ApiError::stopping())?;
        answered.await.map_err(|_| ApiError::stopping())?.map_err(ApiError::failed)
    }

    fn ask(&self, command: Command) -> Result<(), ApiError> {
        let message = Message::Command { place: self.place, command: Box::new(command) };
        self.messages.send(message).map_err(|_| ApiError::stopping())
    }
}

/// The present moment, in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl State {
    /// The model of this name.
    pub(crate) fn model(&self, name: &str) -> Result<&Arc<Model>, ApiError> {
        if self.is_stopping.load(Ordering::Relaxed) {
            return Err(ApiError::stopping());
        }
        let names = || self.models.iter().map(|model| model.name.clone()).collect::<Vec<String>>();
        self.models.iter().find(|model| model.name == name).ok_or_else(|| ApiError::no_model(name, &names()))
    }
}

/// The answer to a request, as it comes.
pub(crate) struct Pieces {
    id: u64,
    receiver: Receiver<Piece>,
    model: Arc<Model>,
}

impl Pieces {
    /// The next piece. The channel closes before the end only if the client does not read, or the thread of
    /// the model has ended.
    pub(crate) async fn next(&mut self) -> Piece {
        self.receiver.recv().await.unwrap_or_else(|| Piece::Failed(ApiError::slow_reader()))
    }
}

impl Drop for Pieces {
    /// The client is gone, or has its answer: then the thread knows no such request any more.
    fn drop(&mut self) {
        let _ = self.model.ask(Command::Abort(self.id));
    }
}
