//! A service over HTTP in the form of OpenAI's API.
//!
//! ```text
//! HTTP (one thread, tokio)                      a thread for each model, with the adapters of it
//! router ─ key ─ api/* ──Command::Generate──>   Worker ── Engine
//!             Pieces <──a bounded channel────     (tokens to text, stop strings)
//! ```
//! A model belongs to its thread, and nothing else touches it. Its adapters share its weights, and have
//! engines and KV caches of their own on the same thread. A client that goes away drops its `Pieces`, which
//! ends the request; a client that does not read fills its channel, which ends it too.

mod api;
mod auth;
mod context_length;
mod error;
mod json;
mod metrics;
mod model_thread;
mod served_model;
mod server;
mod state;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inference::engine::EngineOptions;

pub use auth::Keys;
pub use error::{BoxError, Error};
pub use served_model::{LanguageModel, Load, LoadedModel, RewardModel, ServedAdapter, ServedModel};
pub use state::Limits;

use metrics::Metrics;
use state::State;

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

        let start = |served| model_thread::start(served, options.engine, &metrics, &failed);
        let models = models.into_iter().map(start).collect::<Result<Vec<_>, std::io::Error>>()?.concat();
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
