//! Writes a model as a GGUF file, one tensor after the other.

use std::io::{BufWriter, Write};
use std::path::Path;

use gguf::{GgufWriter, Metadata, TensorInfo, TensorType, Value, q8_0};
use parallel::Segmented;
use parallel::residency::HeldWeights;
use tch::{Device, Kind, Tensor};

use super::names::gguf_name;
use super::{Family, interleave, rope, settings};
use crate::Error;
use crate::causal_lm::CausalLm;
use crate::config::Config;
use crate::decoder::load::check_finite;
use crate::stored_model::{StoredModel, parameters};

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

        let mut weights = Weights::open(source)?;
        for (name, info) in &self.tensors {
            let mut values = weights.values(name)?;
            if let Some(heads) = self.family.interleaved_heads(name, &self.config) {
                values = interleave(&values, heads);
            }
            write_values(&mut writer, path, info, &values)?;
        }
        writer.finish().and_then(|mut output| output.flush()).map_err(io)
    }
}

/// The weights of a model that is being written.
enum Weights<'a> {
    Stored(Box<StoredModel>),
    Held { model: &'a CausalLm, held: HeldWeights<'a> },
}

impl<'a> Weights<'a> {
    fn open(source: ExportSource<'a>) -> Result<Self, Error> {
        Ok(match source {
            ExportSource::Folder(folder) => Self::Stored(Box::new(StoredModel::open(folder)?)),
            ExportSource::Model(model) => Self::Held { model, held: HeldWeights::none() },
        })
    }

    /// The values of a parameter, which are finite.
    fn values(&mut self, name: &str) -> Result<Tensor, Error> {
        let (model, held) = match self {
            Self::Stored(model) => return model.values(name),
            Self::Held { model, held } => (*model, held),
        };
        let parameters = model.parameters();
        let found = parameters.iter().position(|parameter| parameter.name == name);
        let index = found.expect("the model has the parameters of its configuration");
        held.fetch_next(model.residency(), index)?;
        let values = parameters[index].tensor.detach();
        check_finite(Path::new(model.config().origin()), name, &values)?;
        Ok(values.to_device(Device::Cpu))
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
