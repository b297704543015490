//! The commands between adapters and the weights of their models: `model merge`, `unmerge`, `init-adapter`
//! and `convert-adapter`.

use std::path::Path;

use datasets::Tokenizer;
use gemini::checkpoint;
use inference::model_folder::ModelFolder;
use inference::session::load_tokenizer;
use models::config::Config;
use models::lora::config::{ALL_LINEAR, Names};
use models::lora::rebase::{self, CHANGED_MODEL};
use models::lora::{AdapterFile, LoraConfig, LoraPlan, WeightInit};
use tch::{Device, Kind};

use crate::args::{
    AdapterInit, ModelConvertAdapterArgs, ModelInitAdapterArgs, ModelMergeArgs, ModelUnmergeArgs,
};
use crate::config::ConfigError;
use crate::config::section::QuantizeType;
use crate::console::print_stderr;
use crate::model_folder;
use crate::output;

/// Writes a model without adapters that computes what a model with an adapter does.
pub(super) fn merge(arguments: &ModelMergeArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let folder = model_folder::find(&arguments.model)?;
    let Some(base) = folder.base() else {
        return Err(refused(&arguments.model, "this is a whole model: give the folder of an adapter"));
    };

    // The sums are computed in fp32, whatever is written.
    let loading = model_folder::frozen_options(Kind::Float, Device::Cpu);
    let writing = model_folder::frozen_options(arguments.dtype.kind(), Device::Cpu);
    let tokenizer = load_tokenizer(folder.tokenizer_path(), None)?;
    let config = folder.config()?;
    checkpoint::write_folder(&arguments.out, |out| {
        if config.is_sequence_classification() {
            folder.scalar_model(&loading)?.merge(&writing)?.save(out)?;
        } else {
            folder.causal_lm(&loading)?.merge(&writing)?.save(out)?;
        }
        save_tokenizer(out, &tokenizer, &config)
    })?;

    let (out, adapter) = (arguments.out.display(), folder.path().display());
    print_stderr(&format!(
        "{out} holds the model {} with the adapter {adapter} in its weights",
        base.display()
    ));
    Ok(())
}

/// Writes a model without an adapter that was merged into it.
pub(super) fn unmerge(arguments: &ModelUnmergeArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let merged = whole_model(&arguments.model)?;
    let mut adapter = model_folder::find_adapter(&arguments.adapter)?;
    let tokenizer = load_tokenizer(merged.tokenizer_path(), None)?;
    let config = merged.config()?;
    checkpoint::write_folder(&arguments.out, |out| {
        rebase::unmerge(merged.path(), &mut adapter, out)?;
        save_tokenizer(out, &tokenizer, &config)
    })?;

    let (out, adapter) = (arguments.out.display(), adapter.path().display());
    print_stderr(&format!("{out} holds the model without the adapter {adapter}"));
    Ok(())
}

/// Writes an adapter that begins with a part of the weights of its model.
pub(super) fn init(arguments: &ModelInitAdapterArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let init = weight_init(arguments)?;
    let model = whole_model(&arguments.model)?;
    let changed = arguments.out.join(CHANGED_MODEL);
    let base = if init.changes_weights() { changed.as_path() } else { model.path() };
    let plan = new_adapter(arguments, base)?.into();
    let kind = arguments.dtype.unwrap_or_default().kind();

    let tokenizer = load_tokenizer(model.tokenizer_path(), None)?;
    let config = model.config()?;
    checkpoint::write_folder(&arguments.out, |out| {
        rebase::initialize(model.path(), &plan, init, kind, out)?;
        if init.changes_weights() {
            save_tokenizer(&out.join(CHANGED_MODEL), &tokenizer, &config)?;
        }
        save_tokenizer(out, &tokenizer, &config)
    })?;

    let (out, base) = (arguments.out.display(), base.display());
    print_stderr(&format!("{out} holds an adapter of rank {} of the model {base}", arguments.rank));
    Ok(())
}

/// Writes an adapter of an original model that is there what a trained one is on a changed model.
pub(super) fn convert(arguments: &ModelConvertAdapterArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let mut trained = model_folder::find_adapter(&arguments.trained)?;
    let mut initial = model_folder::find_adapter(&arguments.initial)?;
    let original = whole_model(&arguments.base)?;
    let (name, revision) = model_folder::name_of_base(original.path());
    if initial.file().base.as_ref() == Some(&name) {
        let problem = "the initial adapter belongs to this model already, and so does the trained one: there is \
                       nothing to convert";
        return Err(refused(&format!("--base {}", arguments.base), problem));
    }

    let has_tokenizer = trained.path().join("tokenizer.json").exists();
    let tokenizer =
        load_tokenizer(if has_tokenizer { trained.path() } else { original.tokenizer_path() }, None)?;
    let config = trained.config(original.path())?;
    checkpoint::write_folder(&arguments.out, |out| {
        rebase::convert(&mut trained, &mut initial, (original.path(), (name, revision)), out)?;
        save_tokenizer(out, &tokenizer, &config)
    })?;

    let (out, base) = (arguments.out.display(), original.path().display());
    print_stderr(&format!("{out} holds the adapter {} for the model {base}", trained.path().display()));
    Ok(())
}

/// The folder of a whole model.
pub(super) fn whole_model(name: &str) -> anyhow::Result<ModelFolder> {
    let folder = model_folder::find(name)?;
    if folder.base().is_some() {
        return Err(refused(
            name,
            "this is an adapter: give the folder of a whole model, such as `model merge` makes",
        ));
    }
    Ok(folder)
}

/// What the flags say that an adapter begins with.
fn weight_init(arguments: &ModelInitAdapterArgs) -> anyhow::Result<WeightInit> {
    let quantization = arguments.quantize.map(QuantizeType::quantization);
    match (arguments.init, quantization) {
        (AdapterInit::Loftq, _) if arguments.dtype.is_some() => {
            Err(refused("--dtype", "loftq does not write the model: leave it out"))
        }
        (AdapterInit::Loftq, Some(quantization)) => Ok(WeightInit::Loftq(quantization)),
        (AdapterInit::Loftq, None) => Err(refused("--quantize", "loftq needs it: nf4 or int8")),
        (_, Some(_)) => {
            let problem = "only loftq makes up for quantised weights: leave it out, and set [model] quantize in training";
            Err(refused("--quantize", problem))
        }
        (AdapterInit::Pissa, None) => Ok(WeightInit::Pissa),
        (AdapterInit::Olora, None) => Ok(WeightInit::Olora),
    }
}

/// The settings that the flags give to an adapter of the model `base`.
fn new_adapter(arguments: &ModelInitAdapterArgs, base: &Path) -> anyhow::Result<LoraPlan> {
    let lora_alpha = arguments.alpha.unwrap_or(arguments.rank as f64);
    if !(lora_alpha.is_finite() && lora_alpha > 0.0) {
        return Err(refused(&format!("--alpha {lora_alpha}"), "it must be a finite number above zero"));
    }
    let target_modules = match &arguments.target[..] {
        [] => Names::One(ALL_LINEAR.to_owned()),
        names => Names::Several(names.to_vec()),
    };
    let lora = LoraConfig {
        r: arguments.rank,
        lora_alpha,
        target_modules,
        use_rslora: arguments.rslora,
        ..LoraConfig::default()
    };
    let (base, revision) = model_folder::name_of_base(base);
    let file = AdapterFile { lora, base: Some(base), revision, base_hash: None };
    Ok(file.plan("the flags")?)
}

/// Writes the files of the tokenizer beside a model with this configuration.
pub(super) fn save_tokenizer(folder: &Path, tokenizer: &Tokenizer, config: &Config) -> anyhow::Result<()> {
    if config.is_sequence_classification() {
        return Ok(tokenizer.save(folder)?);
    }
    Ok(model_folder::save_tokenizer(folder, tokenizer, config)?)
}

fn refused(argument: &str, problem: &str) -> anyhow::Error {
    ConfigError::Argument { argument: argument.to_owned(), problem: problem.to_owned() }.into()
}
