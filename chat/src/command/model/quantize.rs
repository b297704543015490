//! `model quantize` and `model dequantize`: a model folder whose linear layers are codes, and numbers
//! again.

use std::path::Path;

use gemini::checkpoint;
use inference::session::load_tokenizer;
use models::quantize::folder;

use super::adapter::{save_tokenizer, whole_model};
use crate::args::{ModelDequantizeArgs, ModelQuantizeArgs};
use crate::console::print_stderr;
use crate::output;

/// Writes a model with the weights of its linear layers in codes.
pub(super) fn quantize(arguments: &ModelQuantizeArgs) -> anyhow::Result<()> {
    let quantization = arguments.quantize.quantization();
    let from =
        rewrite(&arguments.model, &arguments.out, |model, out| folder::quantize(model, quantization, out))?;
    let (out, name) = (arguments.out.display(), quantization.name());
    print_stderr(&format!("{out} holds the model {from} with its linear layers in {name}"));
    Ok(())
}

/// Writes a model with the numbers of its codes.
pub(super) fn dequantize(arguments: &ModelDequantizeArgs) -> anyhow::Result<()> {
    let kind = arguments.dtype.kind();
    let from = rewrite(&arguments.model, &arguments.out, |model, out| folder::dequantize(model, kind, out))?;
    let (out, name) = (arguments.out.display(), arguments.dtype.name());
    print_stderr(&format!("{out} holds the model {from} with its codes as numbers of {name}"));
    Ok(())
}

/// Writes what `write` makes of a whole model, and its tokenizer, to the folder `out`. Returns the path
/// of the model.
fn rewrite(
    model: &str,
    out: &Path,
    write: impl FnOnce(&Path, &Path) -> Result<(), models::Error>,
) -> anyhow::Result<String> {
    output::check_output_folder(out)?;
    let model = whole_model(model)?;
    let tokenizer = load_tokenizer(model.tokenizer_path(), None)?;
    let config = model.config()?;
    checkpoint::write_folder(out, |out| {
        write(model.path(), out)?;
        save_tokenizer(out, &tokenizer, &config)
    })?;
    Ok(model.path().display().to_string())
}
