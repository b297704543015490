//! Writes a model as a GGUF file, one tensor after the other.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use gguf::{GgufWriter, Metadata, TensorInfo, TensorType, Value, q8_0};
use parallel::residency::HeldWeights;
use parallel::{Placement, Segmented};
use tch::{Device, Kind, Tensor};

use super::names::gguf_name;
use super::{Family, interleave, parameters, rope, settings};
use crate::Error;
use crate::causal_lm::{CausalLm, refuse_reward_model};
use crate::config::Config;
use crate::decoder::load::{check_finite, check_tied_head, is_ignorable, spellings};
use crate::weights::WeightFolder;

/// The numbers that are converted at a time; a multiple of every block.
const PIECE: i64 = 1 << 20;

/// Where the weights come from.
#[derive(Clone, Copy, Debug)]
pub enum ExportSource<'a> {
    /// A model folder, of which one tensor is in memory at a time.
    Folder(&'a Path),
    /// A model in memory.
    Model(&'a CausalLm),
}

/// A model that is about to be written.
#[derive(Debug)]
pub struct GgufExport {
    config: Config,
    family: Family,
    tensor_type: TensorType,
    /// The names here, and the entries of the file.
    tensors: Vec<(String, TensorInfo)>,
}

impl GgufExport {
    /// Plans the file. Matrices are written as `tensor_type`, and vectors, of which there are few, as F32, as
    /// llama.cpp wants them. Returns an error that names what a GGUF file cannot say.
    pub fn new(config: Config, tensor_type: TensorType) -> Result<Self, Error> {
        let family = settings::family(&config)?;
        let mut tensors = Vec::new();
        for (name, shape) in parameters(&config)? {
            let is_matrix = shape.len() > 1;
            let whole_blocks =
                shape.last().is_some_and(|row| row.cast_unsigned().is_multiple_of(tensor_type.block()));
            let own_type = if is_matrix && whole_blocks { tensor_type } else { TensorType::F32 };
            let theirs = gguf_name(&name).expect("every parameter of these families has a name");
            let shape = shape.iter().map(|&size| size as u64).collect();
            tensors.push((name, TensorInfo { name: theirs, shape, tensor_type: own_type }));
        }
        Ok(Self { config, family, tensor_type, tensors })
    }

    /// Adds the keys of the model to `metadata`.
    pub fn describe(&self, metadata: &mut Metadata) {
        settings::describe(&self.config, self.family, metadata);
        // llama.cpp: `llama_ftype`.
        let file_type = match self.tensor_type {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q8_0 => 7,
            TensorType::BF16 => 32,
        };
        metadata.set("general.file_type", Value::u32(file_type));
        metadata.set("general.quantization_version", Value::u32(2));
    }

    /// The matrices that are written as F32 because their rows are no multiple of a block.
    pub fn unquantized(&self) -> impl Iterator<Item = &str> {
        let infos = self.tensors.iter().map(|(_, info)| info);
        let kept = infos.filter(|info| info.shape.len() > 1 && info.tensor_type != self.tensor_type);
        kept.map(|info| info.name.as_str())
    }

    /// The entries of the tensors, without divisors of frequencies.
    pub(super) fn infos(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(|(_, info)| info.clone()).collect()
    }

    /// Writes the file. `metadata` also name it in errors.
    pub fn write(
        &self,
        output: impl Write,
        source: ExportSource<'_>,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        let path = metadata.origin();
        let io = |source| Error::Io { path: path.to_owned(), source };
        let divisors = rope::divisors(&self.config);
        let infos = [divisors.iter().map(|(info, _)| info.clone()).collect(), self.infos()].concat();
        let output = BufWriter::with_capacity(1 << 20, output);
        let mut writer = GgufWriter::new(output, metadata, &infos).map_err(io)?;
        if let Some((info, values)) = &divisors {
            write_values(&mut writer, path, info, values)?;
        }

        let mut weights = Weights::open(self, source)?;
        for (index, (name, info)) in self.tensors.iter().enumerate() {
            let mut values = weights.values(index)?;
            if let Some(heads) = self.family.interleaved_heads(name, &self.config) {
                values = interleave(&values, heads);
            }
            write_values(&mut writer, path, info, &values)?;
        }
        weights.check_all_used()?;
        writer.finish().and_then(|mut output| output.flush()).map_err(io)
    }
}

/// The weights of a model that is being written.
struct Weights<'a> {
    export: &'a GgufExport,
    source: ExportSource<'a>,
    files: Option<(PathBuf, WeightFolder)>,
    held: HeldWeights<'a>,
}

impl<'a> Weights<'a> {
    fn open(export: &'a GgufExport, source: ExportSource<'a>) -> Result<Self, Error> {
        let files = match source {
            ExportSource::Folder(folder) => {
                refuse_reward_model(folder)?;
                Some((folder.to_owned(), WeightFolder::open(folder)?))
            }
            ExportSource::Model(_) => None,
        };
        Ok(Self { export, source, files, held: HeldWeights::none() })
    }

    /// The values of a parameter, which are finite.
    fn values(&mut self, index: usize) -> Result<Tensor, Error> {
        let (name, info) = &self.export.tensors[index];
        let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
        let (origin, values) = match (&mut self.files, self.source) {
            (Some((folder, files)), _) => {
                let (names, all) = (&self.export.config.architecture().names, Placement::Replicate);
                let reader = files.reader(&spellings(names, name), &shape, &all)?;
                let is_embedding = name.strip_suffix(".weight") == Some(names.token_embedding);
                if is_embedding && self.export.config.architecture().tie_word_embeddings {
                    check_tied_head(files, folder, names, &shape, &all, &reader)?;
                }
                (folder.clone(), reader.read()?)
            }
            (None, ExportSource::Model(model)) => {
                let parameters = model.parameters();
                let found = parameters.iter().position(|parameter| parameter.name == *name);
                let index = found.expect("the model has the parameters of its configuration");
                self.held.fetch_next(model.residency(), index)?;
                (PathBuf::from(self.export.config.origin()), parameters[index].tensor.detach())
            }
            (None, ExportSource::Folder(_)) => unreachable!("a folder was opened"),
        };
        check_finite(&origin, name, &values)?;
        Ok(values.to_device(Device::Cpu))
    }

    fn check_all_used(&self) -> Result<(), Error> {
        self.files.as_ref().map_or(Ok(()), |(_, files)| files.check_all_used(is_ignorable))
    }
}

/// Writes a tensor in its type, piece by piece.
fn write_values<W: Write>(
    writer: &mut GgufWriter<W>,
    path: &Path,
    info: &TensorInfo,
    values: &Tensor,
) -> Result<(), Error> {
    let flat = values.contiguous().view([-1]);
    let numel = flat.numel() as i64;
    for start in (0..numel).step_by(PIECE as usize) {
        let piece = flat.narrow(0, start, PIECE.min(numel - start));
        let bytes = match info.tensor_type {
            TensorType::F32 => bytes_of(&converted(&piece, Kind::Float, info)?),
            TensorType::BF16 => bytes_of(&converted(&piece, Kind::BFloat16, info)?),
            TensorType::F16 => bytes_of(&converted(&piece, Kind::Half, info)?),
            TensorType::Q8_0 => quantized(&piece, info)?,
        };
        writer.append(&bytes).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    }
    Ok(())
}

fn bytes_of(piece: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; piece.numel() * piece.kind().elt_size_in_bytes()];
    piece.copy_data_u8(&mut bytes, piece.numel());
    bytes
}

/// The numbers rounded to a kind. Returns an error if one becomes infinite.
fn converted(piece: &Tensor, kind: Kind, info: &TensorInfo) -> Result<Tensor, Error> {
    let narrow = piece.to_kind(kind);
    if narrow.isfinite().all().int64_value(&[]) == 1 {
        return Ok(narrow);
    }
    Err(too_large(info, piece.abs().max().double_value(&[])))
}

fn quantized(piece: &Tensor, info: &TensorInfo) -> Result<Vec<u8>, Error> {
    let mut numbers = vec![0f32; piece.numel()];
    piece.to_kind(Kind::Float).copy_data(&mut numbers, piece.numel());
    let mut blocks = Vec::with_capacity(numbers.len() / q8_0::BLOCK * q8_0::BLOCK_BYTES);
    q8_0::quantize(&numbers, &mut blocks).map_err(|value| too_large(info, f64::from(value)))?;
    Ok(blocks)
}

fn too_large(info: &TensorInfo, value: f64) -> Error {
    let dtype = match info.tensor_type {
        TensorType::F32 => "f32",
        TensorType::F16 => "f16",
        TensorType::BF16 => "bf16",
        TensorType::Q8_0 => "q8_0",
    };
    Error::WeightTooLarge { name: info.name.clone(), value, dtype }
}
