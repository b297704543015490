//! The thread of a model and of the adapters that share its weights: it loads them, runs them, and loads them
//! again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::{io, thread};

use datasets::Tokenizer;
use inference::engine::{Engine, EngineOptions};
use inference::shared_weights::SharedWeights;
use models::config::Config;
use models::scalar_model::ScalarModel;

use crate::context_length::ContextLength;
use crate::error::{BoxError, Error};
use crate::metrics::{Metrics, ModelLabel};
use crate::served_model::{LanguageModel, Load, LoadedModel, RewardModel, ServedModel};
use crate::state::{Model, ModelKind, Ready};
use crate::worker::{self, Message, Served, Worker};

/// The message when new weights belong to another architecture.
const OTHER_MODEL: &str = "config.json has changed: start the server again for another model";

/// Starts the thread of a model, which tells `failed` if it cannot go on. Returns the model and its adapters.
pub(crate) fn start(
    served: ServedModel,
    engine: EngineOptions,
    metrics: &Arc<Metrics>,
    failed: &tokio::sync::mpsc::Sender<Error>,
) -> Result<Vec<Arc<Model>>, io::Error> {
    let (sender, messages) = channel();
    let ServedModel { name: base, load, adapters } = served;
    let all = [(base.clone(), None, load)]
        .into_iter()
        .chain(adapters.into_iter().map(|adapter| (adapter.name, Some(base.clone()), adapter.load)));
    let (mut models, mut members) = (Vec::new(), Vec::new());
    for (place, (name, parent, load)) in all.enumerate() {
        let model = Arc::new(Model::new(name.clone(), parent, sender.clone(), place));
        members.push(Member { model: Arc::downgrade(&model), name, load });
        models.push(model);
    }
    let thread = ModelThread { members, engine, metrics: Arc::clone(metrics) };

    let failed = failed.clone();
    let name = base.clone();
    let work = move || {
        // A panic has told the user already; here it must not leave a model that never answers.
        let error = match catch_unwind(AssertUnwindSafe(|| thread.run(&messages))) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => Error::Panicked { name },
        };
        let _ = failed.blocking_send(error);
    };
    thread::Builder::new().name(format!("model {base}")).spawn(work)?;
    Ok(models)
}

/// The thread of a model.
struct ModelThread {
    /// The model, and then its adapters.
    members: Vec<Member>,
    engine: EngineOptions,
    metrics: Arc<Metrics>,
}

/// A model or an adapter of the thread.
struct Member {
    /// The thread ends when nobody can send messages any more, so it does not keep the sender alive.
    model: Weak<Model>,
    name: String,
    load: Load,
}

/// A member that can answer.
struct Started {
    runner: Runner,
    ready: Ready,
    /// Its `config.json`.
    config: String,
}

enum Runner {
    Language(Box<Engine>),
    Reward(Box<ScalarModel>),
}

impl ModelThread {
    fn run(self, messages: &Receiver<Message>) -> Result<(), Error> {
        let mut weights = SharedWeights::default();
        let start = |member: &Member| {
            let started = (member.load)(&mut weights).and_then(|loaded| self.start_model(loaded));
            started.map_err(|source| member.error(source))
        };
        let started = self.members.iter().map(start).collect::<Result<Vec<Started>, Error>>()?;

        let tokenizers: Vec<Arc<Tokenizer>> =
            started.iter().map(|started| Arc::clone(&started.ready.tokenizer)).collect();
        let (mut served, mut configs) = (Vec::new(), Vec::new());
        for ((member, started), tokenizer) in self.members.iter().zip(started).zip(&tokenizers) {
            let label = ModelLabel { model_name: member.name.clone() };
            served.push(match started.runner {
                Runner::Language(engine) => {
                    Served::Language(Box::new(Worker::new(*engine, tokenizer, &self.metrics, label)))
                }
                Runner::Reward(model) => Served::Reward(model),
            });
            configs.push(started.config);
            // If the server has ended meanwhile, nobody asks any more.
            if let Some(model) = member.model.upgrade() {
                model.set_ready(started.ready);
            }
        }
        let mut reload =
            |served: &mut [Served<'_>], place| self.reload(&mut weights, &configs, served, place);
        worker::run(&mut served, messages, &mut reload).map_err(|source| self.members[0].error(source.into()))
    }

    fn start_model(&self, loaded: LoadedModel) -> Result<Started, BoxError> {
        let config = loaded.config();
        let (runner, kind, tokenizer, stop_ids, context, (positions, vocab_size)) = match loaded {
            LoadedModel::Language(LanguageModel { model, tokenizer, stop_ids, draft }) => {
                let mut engine = Engine::new(&model, self.engine)?;
                if let Some(draft) = &draft {
                    engine = engine.with_draft(draft)?;
                }
                let (sizes, cached_tokens) = (sizes(model.config()), engine.cached_tokens());
                let tokens = sizes.0.min(cached_tokens);
                let context = ContextLength { tokens, is_of_cache: cached_tokens < sizes.0 };
                let runner = Runner::Language(Box::new(engine));
                (runner, ModelKind::Language, tokenizer, stop_ids, context, sizes)
            }
            LoadedModel::Reward(RewardModel { model, tokenizer }) => {
                let sizes = sizes(model.config());
                let context = ContextLength { tokens: sizes.0, is_of_cache: false };
                (Runner::Reward(Box::new(model)), ModelKind::Reward, tokenizer, Vec::new(), context, sizes)
            }
        };
        let (tokenizer, stop_ids) = (Arc::new(tokenizer), stop_ids.into());
        let ready = Ready { kind, tokenizer, stop_ids, context, positions, vocab_size };
        Ok(Started { runner, ready, config })
    }

    /// Loads a member again. The adapters lie on the weights of the model, so they are loaded again with it.
    fn reload(
        &self,
        weights: &mut SharedWeights,
        configs: &[String],
        served: &mut [Served<'_>],
        place: usize,
    ) -> Result<(), BoxError> {
        let is_model = place == 0;
        let places = if is_model { 0..self.members.len() } else { place..place + 1 };
        let mut new_weights = weights.draft_alone()?;
        let into = if is_model { &mut new_weights } else { &mut *weights };
        let mut loaded = Vec::with_capacity(places.len());
        for place in places.clone() {
            let again = (self.members[place].load)(into)?;
            if again.config() != configs[place] {
                return Err(OTHER_MODEL.into());
            }
            loaded.push(again);
        }
        // Nothing has changed until all are here.
        for (place, again) in places.zip(loaded) {
            match (&mut served[place], again) {
                (Served::Language(worker), LoadedModel::Language(again)) => {
                    worker.reload_weights(&again.model)?;
                }
                (Served::Reward(model), LoadedModel::Reward(again)) => **model = again.model,
                _ => return Err(OTHER_MODEL.into()),
            }
        }
        if is_model {
            *weights = new_weights;
        }
        Ok(())
    }
}

impl Member {
    fn error(&self, source: BoxError) -> Error {
        Error::Model { name: self.name.clone(), source }
    }
}

/// The most tokens of a text, and the size of the vocabulary.
fn sizes(config: &Config) -> (usize, i64) {
    (config.max_positions() as usize, config.vocab_size())
}
