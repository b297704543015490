//! What a command that runs a model needs: a process that is ready for tensor operations, and the model that
//! the command line names, loaded on its device.

use clap::Args;
use inference::model_folder::{ModelFolder, Trunk};
use inference::session::Session;
use inference::shared_weights::SharedWeights;
use models::causal_lm::{CausalLm, LoadOptions};
use models::scalar_model::ScalarModel;
use parallel::LocalRank;

use crate::config::DeviceSetting;
use crate::config::section::{Dtype, QuantizeType};
use crate::{device, interrupt, model_folder};

/// Installs the signal handlers, and initializes this process for tensor operations.
pub(crate) fn prepare(threads: Option<usize>) -> anyhow::Result<()> {
    interrupt::listen()?;
    // `doctor` reports the settings that the C library rejects.
    parallel::launch::init_process(threads, 1)?;
    Ok(())
}

/// How the weights of models are held, and where the models compute: flags of each command that runs one.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct WeightSettings {
    /// The numbers that the weights are held in.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Dtype::Float32)]
    pub(crate) dtype: Dtype,
    /// Hold the weights of linear layers in codes of four or eight bits, made while they are read. Only on
    /// the CPU.
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) quantize: Option<QuantizeType>,
    /// Where a model computes: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSetting::Auto)]
    pub(crate) device: DeviceSetting,
}

impl WeightSettings {
    /// The flags, and whether each was given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 3] {
        [
            ("--dtype", self.dtype != Dtype::Float32),
            ("--quantize", self.quantize.is_some()),
            ("--device", self.device != DeviceSetting::Auto),
        ]
    }

    /// What results say of the numbers in memory: the type, and the codes if there are any.
    pub(crate) fn numbers(&self) -> String {
        match self.quantize {
            None => self.dtype.name().to_owned(),
            Some(quantize) => format!("{} with {}", self.dtype.name(), quantize.quantization().name()),
        }
    }
}

/// Which model is loaded, and how it is held.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    /// A model folder, or a hub name `owner/name[@revision]`.
    pub(crate) model: String,
    /// How its weights are held, and where it computes.
    pub(crate) weights: WeightSettings,
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
    let WeightSettings { dtype, quantize, device } = source.weights;
    device::load([device]);
    let device = device::resolve(device, local)?;
    let quantize = quantize.map(QuantizeType::quantization);
    Ok((folder, LoadOptions { quantize, ..model_folder::frozen_options(dtype.kind(), device) }))
}
