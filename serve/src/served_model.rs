//! The models that the service gets from its caller, and how they are loaded.

use datasets::Tokenizer;
use inference::shared_weights::SharedWeights;
use models::causal_lm::CausalLm;
use models::scalar_model::ScalarModel;

use crate::error::BoxError;

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

/// Loads a model, on the thread that then owns it, and on the weights that it shares with others of the
/// thread. It is called again when new weights are asked for.
pub type Load = Box<dyn Fn(&mut SharedWeights) -> Result<LoadedModel, BoxError> + Send>;

/// A model to serve.
pub struct ServedModel {
    /// The name by which requests ask for it.
    pub name: String,
    /// Loads it.
    pub load: Load,
    /// The adapters that share its weights, each of them a model by its own name.
    pub adapters: Vec<ServedAdapter>,
}

/// An adapter to serve.
pub struct ServedAdapter {
    /// The name by which requests ask for it.
    pub name: String,
    /// Loads it, after its model.
    pub load: Load,
}

impl LoadedModel {
    /// The `config.json` of the model.
    pub(crate) fn config(&self) -> String {
        match self {
            Self::Language(loaded) => loaded.model.config().to_json(),
            Self::Reward(loaded) => loaded.model.config().to_json(),
        }
    }
}
