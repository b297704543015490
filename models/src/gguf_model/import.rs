//! Reads a GGUF file as the weights and the configuration of an HF folder, one tensor after the other.
//!
//! A tensor keeps its type. `Q8_0` becomes fp32, which holds its numbers exactly. A vector, which GGUF files
//! hold as F32, gets the type of the token embedding if that holds its numbers exactly, so a folder in bf16
//! comes back as it was.

use std::path::Path;

use gguf::{GgufFile, Metadata, TensorInfo, TensorType, q8_0};
use parallel::safetensors_file::TensorSpec;
use tch::{Device, Kind, Tensor, no_grad};

use super::names::{ROPE_FREQS, gguf_name};
use super::{Family, rope, separate, settings};
use crate::Error;
use crate::config::Config;
use crate::decoder::load::check_finite;
use crate::stored_model::parameters;
use crate::weights;

/// The numbers that are read at a time; a multiple of every block.
const PIECE: u64 = 1 << 20;

/// A model in a GGUF file.
#[derive(Debug)]
pub struct GgufImport {
    file: GgufFile,
    family: Family,
    config: Config,
    tensors: Vec<ImportedTensor>,
}

/// A tensor with its name in the file.
#[derive(Debug)]
struct ImportedTensor {
    spec: TensorSpec,
    theirs: String,
}

impl GgufImport {
    /// Opens a file, and checks that it has the tensors that its metadata promise, and no others.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = GgufFile::open(path)?;
        let (family, mut config) = settings::read(&file)?;
        if let Some(info) = file.tensor(ROPE_FREQS).filter(|_| family == Family::Llama) {
            check_shape(&file, info, &[config.head_dim() / 2])?;
            let divisors = read(&file, info)?;
            let scaling = rope::llama3_scaling(&config, &divisors, file.metadata())?;
            config.set("rope_scaling", scaling)?;
        }

        let expected = parameters(&config)?;
        let embedding = file.tensor("token_embd.weight").map(|info| kind_of(info.tensor_type));
        let embedding = embedding.expect("the size of the vocabulary was read from it");
        let mut tensors = Vec::new();
        for (name, shape) in expected {
            let theirs = gguf_name(&name).expect("every parameter of these families has a name");
            let missing = || gguf::Error::MissingTensor { path: path.to_owned(), name: theirs.clone() };
            let info = file.tensor(&theirs).ok_or_else(missing)?;
            check_shape(&file, info, &shape)?;
            let kind = vector_kind(&file, info, embedding)?;
            tensors.push(ImportedTensor { spec: TensorSpec { name, kind, shape }, theirs });
        }
        let import = Self { file, family, config: config.for_causal_lm(embedding), tensors };
        import.check_all_used()?;
        Ok(import)
    }

    /// The metadata of the file.
    pub fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Writes `config.json` and the weights to a folder.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let specs: Vec<TensorSpec> = self.tensors.iter().map(|tensor| tensor.spec.clone()).collect();
        weights::save_each(folder, &self.config, &specs, |spec| self.values(spec))
    }

    /// The values of a tensor, which are finite.
    fn values(&self, spec: &TensorSpec) -> Result<Tensor, Error> {
        let found = self.tensors.iter().find(|tensor| tensor.spec.name == spec.name);
        let theirs = &found.expect("the names are those of the tensors").theirs;
        let info = self.file.tensor(theirs).expect("the file was found to have it");
        let mut values = read(&self.file, info)?.to_kind(spec.kind);
        check_finite(self.file.path(), theirs, &values)?;
        if let Some(heads) = self.family.interleaved_heads(&spec.name, &self.config) {
            values = separate(&values, heads);
        }
        Ok(values)
    }

    fn check_all_used(&self) -> Result<(), Error> {
        let is_used = |name: &str| {
            let is_divisors = name == ROPE_FREQS && self.family == Family::Llama;
            is_divisors || self.tensors.iter().any(|tensor| tensor.theirs == name)
        };
        match self.file.tensors().find(|info| !is_used(&info.name)) {
            None => Ok(()),
            Some(info) => {
                let (path, name) = (self.file.path().to_owned(), info.name.clone());
                Err(Error::UnexpectedTensor { path, name })
            }
        }
    }
}

fn check_shape(file: &GgufFile, info: &TensorInfo, expected: &[i64]) -> Result<(), Error> {
    if info.shape.iter().map(|&size| size as i64).eq(expected.iter().copied()) {
        return Ok(());
    }
    let (path, name) = (file.path().to_owned(), info.name.clone());
    Err(Error::GgufShape { path, name, expected: expected.to_vec(), got: info.shape.clone() })
}

/// The kind in which the numbers of a type are held exactly.
fn kind_of(tensor_type: TensorType) -> Kind {
    match tensor_type {
        TensorType::F32 | TensorType::Q8_0 => Kind::Float,
        TensorType::F16 => Kind::Half,
        TensorType::BF16 => Kind::BFloat16,
    }
}

/// The kind in which a tensor is saved: its own, or of a vector that of the embedding if it loses nothing.
fn vector_kind(file: &GgufFile, info: &TensorInfo, embedding: Kind) -> Result<Kind, Error> {
    let own = kind_of(info.tensor_type);
    if info.shape.len() > 1 || own == embedding {
        return Ok(own);
    }
    let values = read(file, info)?;
    let is_exact = values.to_kind(embedding).to_kind(own).equal(&values);
    Ok(if is_exact { embedding } else { own })
}

/// The numbers of a tensor in the order of the file.
fn read(file: &GgufFile, info: &TensorInfo) -> Result<Tensor, Error> {
    let kind = kind_of(info.tensor_type);
    let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
    let numel: u64 = info.shape.iter().product();
    let target = Tensor::f_empty([numel as i64], (kind, Device::Cpu))?;
    let (block, block_bytes) = (info.tensor_type.block(), info.tensor_type.block_bytes());
    let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
    for start in (0..numel).step_by(PIECE as usize) {
        let count = PIECE.min(numel - start);
        bytes.resize((count / block * block_bytes) as usize, 0);
        file.read(&info.name, start / block * block_bytes, &mut bytes)?;
        let piece = if info.tensor_type == TensorType::Q8_0 {
            numbers.clear();
            q8_0::dequantize(&bytes, &mut numbers);
            Tensor::from_slice(&numbers)
        } else {
            Tensor::f_from_data_size(&bytes, &[count as i64], kind)?
        };
        no_grad(|| target.narrow(0, start as i64, count as i64).f_copy_(&piece))?;
    }
    Ok(target.view(shape.as_slice()))
}
