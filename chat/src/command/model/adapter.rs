//! The commands between adapters and the weights of their models: `model merge`, `unmerge`, `init-adapter`
//! and `convert-adapter`. `init-adapter` also reads rows.

use std::path::Path;
use std::sync::Arc;

use datasets::{EncodedDataset, IGNORE_INDEX, LoadOptions, Overlong, SftRow, Tokenizer};
use gemini::checkpoint;
use inference::model_folder::ModelFolder;
use inference::session::{check_vocabulary, load_tokenizer};
use models::config::Config;
use models::lora::config::{ALL_LINEAR, Names};
use models::lora::eva::{self, EvaRow};
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

/// The largest rank of a layer with EVA, in units of the rank. PEFT: `EvaConfig.rho`.
const DEFAULT_RHO: f64 = 2.0;

/// The longest row that EVA looks at, in tokens, as in `[data]`, if the model has so many positions.
const DEFAULT_MAX_LENGTH: i64 = 1024;

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

/// Writes an adapter that begins with a part of the weights of its model, or with what its layers read.
pub(super) fn init(arguments: &ModelInitAdapterArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let Some(init) = weight_init(arguments)? else { return init_from_rows(arguments) };
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

/// Writes an adapter that begins with the directions in which the inputs of its layers vary over rows.
fn init_from_rows(arguments: &ModelInitAdapterArgs) -> anyhow::Result<()> {
    let rho = arguments.rho.unwrap_or(DEFAULT_RHO);
    if !(rho.is_finite() && rho >= 1.0) {
        return Err(refused(&format!("--rho {rho}"), "it must be a finite number of at least 1"));
    }
    let model = whole_model(&arguments.model)?;
    let plan = Arc::new(new_adapter(arguments, model.path())?);
    let (tokenizer, config) = (load_tokenizer(model.tokenizer_path(), None)?, model.config()?);
    let rows = labelled_rows(arguments, &tokenizer, &config)?;
    let rows: Vec<EvaRow<'_>> = rows.iter().map(eva_row).collect();
    checkpoint::write_folder(&arguments.out, |out| {
        eva::initialize(model.path(), &plan, &rows, rho, out)?;
        save_tokenizer(out, &tokenizer, &config)
    })?;

    let (out, base) = (arguments.out.display(), model.path().display());
    print_stderr(&format!(
        "{out} holds an adapter of rank {} of the model {base}, made of the inputs of {} rows",
        arguments.rank,
        rows.len()
    ));
    Ok(())
}

/// The rows of `--data`, which fit the model.
fn labelled_rows(
    arguments: &ModelInitAdapterArgs,
    tokenizer: &Tokenizer,
    config: &Config,
) -> anyhow::Result<Vec<SftRow>> {
    check_vocabulary(tokenizer, config)?;
    let default = DEFAULT_MAX_LENGTH.min(config.max_positions()) as u64;
    let max_length = arguments.max_length.unwrap_or(default) as usize;
    let limit = arguments.limit.map(|limit| limit as usize);
    let options = LoadOptions { limit, ..LoadOptions::new(max_length, Overlong::Drop) };
    let dataset = EncodedDataset::<SftRow>::load(&arguments.data, tokenizer, &options)?;

    let (read, kept) = (dataset.counts.read, dataset.counts.kept);
    if kept == 0 {
        let problem = "every row was left out: see --max-length, and `data check`";
        return Err(refused(&format!("--data {}", arguments.data.join(",")), problem));
    }
    if kept < read {
        let left_out = read - kept;
        print_stderr(&format!(
            "{left_out} of {read} rows are longer than {max_length} tokens or have no label, and are left out"
        ));
    }
    let longest = dataset.rows.iter().map(|row| row.input_ids.len()).max().unwrap_or(0);
    config.check_length("the longest row", longest)?;
    Ok(dataset.rows)
}

/// A row whose inputs count at the tokens with a label. PEFT: `EvaConfig.use_label_mask`.
fn eva_row(row: &SftRow) -> EvaRow<'_> {
    let is_counted = row.labels.iter().map(|&label| label != IGNORE_INDEX).collect();
    EvaRow { input_ids: &row.input_ids, is_counted }
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

/// The part of the weights that the flags say an adapter begins with; `None` for EVA, which takes none.
fn weight_init(arguments: &ModelInitAdapterArgs) -> anyhow::Result<Option<WeightInit>> {
    let of_eva = [
        ("--data", !arguments.data.is_empty()),
        ("--limit", arguments.limit.is_some()),
        ("--max-length", arguments.max_length.is_some()),
        ("--rho", arguments.rho.is_some()),
    ];
    let given = of_eva.into_iter().find(|(_, is_given)| *is_given && arguments.init != AdapterInit::Eva);
    if let Some((flag, _)) = given {
        return Err(refused(flag, "only eva reads rows: leave it out"));
    }

    let quantization = arguments.quantize.map(QuantizeType::quantization);
    match (arguments.init, quantization) {
        (AdapterInit::Loftq | AdapterInit::Eva, _) if arguments.dtype.is_some() => {
            Err(refused("--dtype", "loftq and eva do not write the model: leave it out"))
        }
        (AdapterInit::Loftq, Some(quantization)) => Ok(Some(WeightInit::Loftq(quantization))),
        (AdapterInit::Loftq, None) => Err(refused("--quantize", "loftq needs it: nf4 or int8")),
        (_, Some(_)) => {
            let problem = "only loftq makes up for quantised weights: leave it out, and set [model] quantize in training";
            Err(refused("--quantize", problem))
        }
        (AdapterInit::Pissa, None) => Ok(Some(WeightInit::Pissa)),
        (AdapterInit::Olora, None) => Ok(Some(WeightInit::Olora)),
        (AdapterInit::Eva, None) => Ok(None),
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
