//! What a command that runs a model needs: a process that is ready for tensor operations, and the model that
//! the command line names, loaded on its device.

use inference::model_folder::{ModelFolder, Trunk};
use inference::session::Session;
use inference::shared_weights::SharedWeights;
use models::causal_lm::{CausalLm, LoadOptions};
use models::scalar_model::ScalarModel;
use parallel::LocalRank;

use crate::config::DeviceSetting;
use crate::config::section::Dtype;
use crate::{device, interrupt, model_folder};

/// Installs the signal handlers, and initializes this process for tensor operations.
pub(crate) fn prepare(threads: Option<usize>) -> anyhow::Result<()> {
    interrupt::listen()?;
    // `doctor` reports the settings that the C library rejects.
    parallel::launch::init_process(threads, 1)?;
    Ok(())
}

/// Which model is loaded, and how it is held.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    /// A model folder, or a hub name `owner/name[@revision]`.
    pub(crate) model: String,
    /// The type of the weights in memory.
    pub(crate) dtype: Dtype,
    /// Where the model computes.
    pub(crate) device: DeviceSetting,
    /// A built-in chat template, or Jinja source. If absent, the model's own.
    pub(crate) template: Option<String>,
}

/// How the next tokens of replies are guessed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speculation {
    /// The tokens that are guessed in a step.
    pub(crate) tokens: usize,
    /// The model that guesses. If absent, what a reply repeats is the guess.
    pub(crate) draft: Option<ModelSource>,
}

impl Speculation {
    /// Loads the model that guesses, if there is one.
    pub(crate) fn load_draft(&self) -> anyhow::Result<Option<CausalLm>> {
        self.draft.as_ref().map(|draft| Ok(causal_lm(draft)?.model)).transpose()
    }
}

/// Loads the language model of a source.
pub(crate) fn causal_lm(source: &ModelSource) -> anyhow::Result<Session<CausalLm>> {
    let (folder, options) = find(source, LocalRank::SINGLE)?;
    Ok(Session::causal_lm(&folder, source.template.as_deref(), &options)?)
}

/// Loads the language model of a source in one of several processes of this machine, on shared weights as
/// [`SharedWeights::causal_lm`] does.
pub(crate) fn causal_lm_on(
    weights: &SharedWeights,
    source: &ModelSource,
    local: LocalRank,
) -> anyhow::Result<(Session<CausalLm>, Option<Trunk>)> {
    let (folder, options) = find(source, local)?;
    Ok(weights.causal_lm(&folder, source.template.as_deref(), &options)?)
}

/// Loads the reward model of a source.
pub(crate) fn scalar_model(source: &ModelSource) -> anyhow::Result<Session<ScalarModel>> {
    scalar_model_on(&SharedWeights::default(), source)
}

/// Loads the reward model of a source, on shared weights if it is an adapter of them.
pub(crate) fn scalar_model_on(
    weights: &SharedWeights,
    source: &ModelSource,
) -> anyhow::Result<Session<ScalarModel>> {
    let (folder, options) = find(source, LocalRank::SINGLE)?;
    Ok(weights.scalar_model(&folder, source.template.as_deref(), &options)?)
}

/// The folder of a model, and how it is loaded on its device.
fn find(source: &ModelSource, local: LocalRank) -> anyhow::Result<(ModelFolder, LoadOptions)> {
    let folder = model_folder::find(&source.model)?;
    device::load([source.device]);
    let device = device::resolve(source.device, local)?;
    Ok((folder, model_folder::frozen_options(source.dtype.kind(), device)))
}
