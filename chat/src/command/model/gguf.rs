//! `model export` and `model import`: a model folder as a GGUF file, and back.

use std::path::Path;

use datasets::tokenizer::gguf_vocabulary::{GgufOptions, GgufTokenizer};
use gemini::checkpoint;
use gguf::{Metadata, TensorType, Value};
use inference::session::{check_vocabulary, load_tokenizer, stop_ids};
use models::gguf_model::export::{ExportSource, GgufExport};
use models::gguf_model::import::GgufImport;
use tch::{Device, Kind};

use super::stored;
use crate::args::{GgufDtype, ModelExportArgs, ModelImportArgs};
use crate::console::print_stderr;
use crate::{model_folder, output};

/// The files beside the weights that an export reads.
const TEXT_FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "adapter_config.json",
];

/// Writes a language model as a GGUF file.
pub(super) fn export(arguments: &ModelExportArgs) -> anyhow::Result<()> {
    let folder = model_folder::find(&arguments.model)?;
    let mut inputs = folder.weight_paths()?;
    let places = [Some(folder.path()), folder.base(), Some(folder.tokenizer_path())];
    inputs.extend(places.into_iter().flatten().flat_map(|place| TEXT_FILES.map(|name| place.join(name))));
    let inputs: Vec<&Path> = inputs.iter().map(AsRef::as_ref).collect();
    let path = arguments.gguf.as_path();
    output::check_named_file("--gguf", path, arguments.force, &inputs)?;

    let config = folder.config()?;
    let tokenizer = load_tokenizer(folder.tokenizer_path(), None)?;
    check_vocabulary(&tokenizer, &config)?;
    let is_computed = folder.base().is_some() || config.quantization().is_some();
    let tensor_type = match arguments.dtype {
        Some(given) => given.tensor_type(),
        None if is_computed => TensorType::F32,
        None => stored_type(folder.path())?,
    };

    let mut metadata = Metadata::new(path);
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
    metadata.set("general.name", Value::text(name));
    let stop_ids = stop_ids(&tokenizer, &config);
    let options = GgufOptions { vocab_size: config.vocab_size() as usize, stop_ids: &stop_ids };
    let mut notes = tokenizer.describe_gguf(&options, &mut metadata)?;
    let export = GgufExport::new(config, tensor_type)?;
    export.describe(&mut metadata);
    let unquantized: Vec<&str> = export.unquantized().collect();
    if let Some(first) = unquantized.first() {
        let count = unquantized.len();
        notes.push(format!(
            "{count} matrices stay F32, because their rows are no multiple of 32: {first} ..."
        ));
    }

    let merged = if folder.base().is_some() {
        let options = model_folder::frozen_options(Kind::Float, Device::Cpu);
        Some(folder.causal_lm(&options)?.merge(&options)?)
    } else {
        None
    };
    let source = merged.as_ref().map_or(ExportSource::Folder(folder.path()), ExportSource::Model);
    output::write_pieces(path, arguments.force, |file| {
        export.write(file, source, &metadata)?;
        anyhow::Ok(())
    })?;

    for note in &notes {
        print_stderr(note);
    }
    print_stderr(&format!("{} holds the model as {tensor_type:?}", path.display()));
    Ok(())
}

/// Makes a model folder of a GGUF file.
pub(super) fn import(arguments: &ModelImportArgs) -> anyhow::Result<()> {
    output::check_output_folder(&arguments.out)?;
    let import = GgufImport::open(&arguments.file)?;
    let vocab_size = import.config().vocab_size() as usize;
    let tokenizer = GgufTokenizer::read(import.metadata(), vocab_size)?;
    checkpoint::write_folder(&arguments.out, |folder| {
        import.save(folder)?;
        tokenizer.save(folder)?;
        // What was made is read as every tokenizer is, and written as this program writes it.
        let tokenizer = load_tokenizer(folder, None)?;
        model_folder::save_tokenizer(folder, &tokenizer, import.config())?;
        anyhow::Ok(())
    })?;
    let (out, file) = (arguments.out.display(), arguments.file.display());
    print_stderr(&format!("{out} holds the model of {file}"));
    Ok(())
}

impl GgufDtype {
    fn tensor_type(self) -> TensorType {
        match self {
            Self::F32 => TensorType::F32,
            Self::F16 => TensorType::F16,
            Self::Bf16 => TensorType::BF16,
            Self::Q8_0 => TensorType::Q8_0,
        }
    }
}

/// The type in which most of the numbers of a folder are stored.
fn stored_type(folder: &Path) -> anyhow::Result<TensorType> {
    let (dtypes, _) = stored::measure_weights(folder)?;
    let most = dtypes.into_iter().max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype);
    Ok(match most.as_deref() {
        Some("BF16") => TensorType::BF16,
        Some("F16") => TensorType::F16,
        _ => TensorType::F32,
    })
}
