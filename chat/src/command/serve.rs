//! `serve`: answers requests over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use inference::engine::{self, EngineOptions};
use inference::model_folder::ModelFolder;
use inference::scheduler::Order;
use inference::session::load_tokenizer;
use inference::shared_weights::SharedWeights;
use parallel::LocalRank;
use serve::{
    Keys, LanguageModel, Limits, Load, LoadedModel, Options, RewardModel, ServedAdapter, ServedModel,
};
use text::number::counted;

use crate::adapters::{self, Adapter, Base};
use crate::args::ServeArgs;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::evaluation::model::check_folder;
use crate::session::{self, ModelSource, Speculation};
use crate::{device, interrupt, model_folder};

/// The variable with keys.
const KEYS_VARIABLE: &str = "COLOSSAL_CHAT_SERVE_KEYS";

/// Serves models until a signal stops it.
pub(crate) fn run(arguments: &ServeArgs) -> anyhow::Result<()> {
    let models = models(arguments)?;
    device::load([arguments.weights.device]);
    device::resolve(arguments.weights.device, LocalRank::SINGLE)?;
    let names = |model: &ServedModel| {
        let adapters = model.adapters.iter().map(|adapter| adapter.name.clone());
        std::iter::once(model.name.clone()).chain(adapters).collect::<Vec<String>>()
    };
    let names: Vec<String> = models.iter().flat_map(names).collect();
    let defaults = Limits::default();
    let options = Options {
        address: SocketAddr::new(arguments.host, arguments.port),
        keys: keys(arguments.api_key_file.as_deref())?,
        limits: Limits {
            requests: arguments.max_requests.get(),
            samples: u32::try_from(arguments.max_num_seqs.get()).unwrap_or(u32::MAX).min(defaults.samples),
            ..defaults
        },
        engine: EngineOptions {
            sequences: arguments.max_num_seqs.get(),
            cached_tokens: arguments.kv_cache_tokens.get(),
            batched_tokens: engine::BATCHED_TOKENS,
            order: Order::Arrival,
            speculative_tokens: arguments.speculation.tokens(),
        },
        drain: Duration::from_secs(arguments.drain),
    };
    let has_keys = !options.keys.is_empty();

    let _graceful = interrupt::enter_graceful();
    let on_bound = |address| print_stderr(&welcome(address, &names, has_keys));
    let drain = arguments.drain;
    // The server asks until the answer is yes, so the line appears once.
    let should_stop = move || {
        let stops = interrupt::is_stop_requested();
        if stops {
            print_stderr(&farewell(drain));
        }
        stops
    };
    serve::run(models, options, should_stop, on_bound)?;
    print_stderr("the server has ended");
    Ok(())
}

/// What a user sees after the first signal, with the seconds that requests may still take.
fn farewell(drain: u64) -> String {
    format!(
        "the server stops: it takes no new requests, and waits at most {} for those under way; a second signal ends \
         them at once",
        counted(drain, "second")
    )
}

/// What a user sees once the port is open.
fn welcome(address: SocketAddr, names: &[String], has_keys: bool) -> String {
    let key = if has_keys { " -H \"Authorization: Bearer $KEY\"" } else { "" };
    let name = &names[0];
    let (noun, verb) = if names.len() == 1 { ("model", "is") } else { ("models", "are") };
    format!(
        "the {noun} {} {verb} being loaded; the chat page is at http://{address}/\n\
         curl http://{address}/v1/chat/completions{key} -H 'Content-Type: application/json' \\\n  \
         -d '{{\"model\": \"{name}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is 3 + 4?\"}}]}}'",
        names.join(", ")
    )
}

/// The models with their adapters and names, of which no two are the same.
fn models(arguments: &ServeArgs) -> anyhow::Result<Vec<ServedModel>> {
    arguments.speculation.draft_model.as_deref().map_or(Ok(()), check_draft)?;
    let mut bases: Vec<Base> = Vec::new();
    for given in &arguments.model {
        let (name, folder) = adapters::named(given);
        let refuse = |problem: String| {
            Err(ConfigError::Argument { argument: format!("--model {given}"), problem }.into())
        };
        if name == Some("") || folder.is_empty() {
            return refuse("give NAME=DIR or DIR".to_owned());
        }
        let name = name.map_or_else(|| default_name(folder), str::to_owned);
        if bases.iter().any(|base| base.name == name) {
            return refuse(format!("two models have the name `{name}`: give NAME=DIR"));
        }
        bases.push(Base { name, folder: model_folder::find(folder)? });
    }

    let mut adapters = adapters::find(&arguments.adapter, &bases)?;
    let mut models = Vec::with_capacity(bases.len());
    for Base { name, folder } in bases {
        let own = |adapter: &mut Adapter| adapter.folder.is_adapter_of(&folder);
        let served = |Adapter { name, folder, .. }: Adapter| -> anyhow::Result<ServedAdapter> {
            let load = loader(arguments, &name, &folder, true)?;
            Ok(ServedAdapter { name, load })
        };
        let adapters = adapters.extract_if(.., own).map(served).collect::<anyhow::Result<_>>()?;
        let load = loader(arguments, &name, &folder, false)?;
        models.push(ServedModel { name, load, adapters });
    }
    Ok(models)
}

/// What loads a model, or an adapter on the weights of a model that is there. What can be known of it is
/// checked before the port is open.
fn loader(arguments: &ServeArgs, name: &str, folder: &ModelFolder, is_adapter: bool) -> anyhow::Result<Load> {
    check_folder(folder)?;
    load_tokenizer(folder.tokenizer_path(), arguments.template.as_deref())?;
    let source = ModelSource {
        model: folder.path().display().to_string(),
        weights: arguments.weights,
        template: arguments.template.clone(),
    };
    let speculation = arguments.speculation.speculation(&source);
    let name = name.to_owned();
    Ok(Box::new(move |weights: &mut SharedWeights| {
        let loaded = load(&source, &speculation, (weights, is_adapter))
            .map_err(anyhow::Error::reallocate_into_boxed_dyn_error_without_backtrace)?;
        // Its engine is made next, which may fail: the paths /health and /v1/models tell when it is ready.
        print_stderr(&format!("the weights of {name} are read"));
        Ok(loaded)
    }))
}

/// Refuses a draft model that cannot guess tokens, as far as its files tell.
fn check_draft(given: &str) -> anyhow::Result<()> {
    let is_reward_model = || -> anyhow::Result<bool> {
        let found = model_folder::find(given)?;
        found.check_weights()?;
        Ok(found.config()?.is_sequence_classification())
    };
    let argument = format!("--draft-model {given}");
    if is_reward_model().context(argument.clone())? {
        let problem =
            "this is a reward model, which writes no tokens: give a small language model".to_owned();
        return Err(ConfigError::Argument { argument, problem }.into());
    }
    Ok(())
}

/// The name of a model whose user gave none: what tells its folder apart, or the hub name.
fn default_name(given: &str) -> String {
    let path = Path::new(given);
    if path.is_dir() { model_folder::short_name(path) } else { given.to_owned() }
}

/// Loads a language model, or a reward model if the folder holds one.
fn load(
    source: &ModelSource,
    speculation: &Speculation,
    (weights, is_adapter): (&mut SharedWeights, bool),
) -> anyhow::Result<LoadedModel> {
    let folder = model_folder::find(&source.model)?;
    anyhow::ensure!(
        !is_adapter || weights.hold(&folder)?,
        "{}: adapter_config.json names another model than before: start the server again",
        folder.path().display()
    );
    if folder.config()?.is_sequence_classification() {
        let (model, tokenizer) = session::scalar_model_on(weights, source)?.into_parts()?;
        return Ok(LoadedModel::Reward(RewardModel { model, tokenizer }));
    }
    let (session, trunk) = session::causal_lm_on(weights, source, LocalRank::SINGLE)?;
    let stop_ids = session.stop_ids();
    let (model, tokenizer) = session.into_parts()?;
    weights.keep(trunk);
    let draft = weights.draft(|| speculation.load_draft())?.map(Box::new);
    Ok(LoadedModel::Language(LanguageModel { model, tokenizer, stop_ids, draft }))
}

/// The keys of the file and of the environment. A source of keys that is named and has none is refused, so
/// that no server is open by mistake.
fn keys(file: Option<&Path>) -> Result<Keys, ConfigError> {
    let refuse =
        |argument: String, problem: &str| ConfigError::Argument { argument, problem: problem.to_owned() };
    let mut text = String::new();
    if let Some(file) = file {
        let argument = || format!("--api-key-file {}", file.display());
        text = std::fs::read_to_string(file).map_err(|source| refuse(argument(), &source.to_string()))?;
        if Keys::parse(&text).is_empty() {
            return Err(refuse(argument(), "the file has no key"));
        }
    }
    if let Some(keys) = std::env::var_os(KEYS_VARIABLE) {
        let keys = keys.to_str().map(|keys| keys.replace(',', "\n")).unwrap_or_default();
        if Keys::parse(&keys).is_empty() {
            return Err(refuse(
                KEYS_VARIABLE.to_owned(),
                "the variable has no key: unset it, or give it one",
            ));
        }
        text = format!("{text}\n{keys}");
    }
    Ok(Keys::parse(&text))
}
