//! The codes of linear layers in the files of a model folder, as transformers 5.23 saves a model of
//! bitsandbytes.
//!
//! ```text
//!   nf4    X.weight                                  U8 [n / 2, 1]    two codes in each byte
//!          X.weight.absmax                           U8 [n / 64]      scales; F32 if they are no codes
//!          X.weight.nested_absmax                    F32 [n / 16384]  the scales of scales
//!          X.weight.quant_map, .nested_quant_map     F32 [16], [256]  what codes stand for
//!          X.weight.quant_state.bitsandbytes__nf4    U8               JSON: shape, blocks, mean scale
//!   int8   X.weight                                  I8 [out, in]
//!          X.SCB                                     F32 [out]        the scale of each row
//!          X.weight_format                           U8 []            0: row after row
//! ```
//! Codes lie as `[out, in]` in every family. Which layers have codes, the files say: a layer that is
//! dense in them stays so. The dtype in the JSON, to which bitsandbytes rounds the numbers of a matrix,
//! is not used: the numbers are computed in fp32 and rounded to the dtype of the model in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parallel::safetensors_file::TensorFile;
use serde_json::{Map, Value, json};

use super::codes::{CodeFormat, MatrixCodes};
use super::int8::Int8;
use super::kind::Quantization;
use super::nf4::{self, BLOCK, Nf4};
use super::scales::{NESTED_BLOCK, Scales};
use crate::Error;
use crate::architecture::Names;
use crate::config::Config;
use crate::fields::Fields;
use crate::weights::WeightFolder;

pub(super) const ABSMAX: &str = ".absmax";
pub(super) const NESTED_ABSMAX: &str = ".nested_absmax";
pub(super) const QUANT_MAP: &str = ".quant_map";
pub(super) const NESTED_QUANT_MAP: &str = ".nested_quant_map";
pub(super) const QUANT_STATE: &str = ".quant_state.bitsandbytes__nf4";
pub(super) const SCB: &str = ".SCB";
pub(super) const WEIGHT_FORMAT: &str = ".weight_format";

/// The largest JSON of a matrix, in bytes.
const LARGEST_STATE: u64 = 4096;

const AGAIN: &str = "quantise the original model again, with `model quantize` or with transformers";

/// The codes of linear layers in the files of a model folder.
#[derive(Debug)]
pub struct StoredCodes {
    folder: PathBuf,
    files: Vec<Arc<TensorFile>>,
    names: Names,
    quantization: Quantization,
}

impl StoredCodes {
    /// The codes in `files` of the model `config`; `None` if its linear layers are numbers.
    pub(crate) fn of(folder: &Path, config: &Config, files: &WeightFolder) -> Option<Arc<Self>> {
        let quantization = config.quantization()?;
        let (folder, names) = (folder.to_owned(), config.architecture().names);
        Some(Arc::new(Self { folder, files: files.shared_files(), names, quantization }))
    }

    /// How the codes hold numbers.
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// What the codes of a linear layer are; `None` if its weight is numbers.
    pub(crate) fn format_of(&self, layer: &str) -> Option<CodeFormat> {
        let weight = self.weight_of(layer);
        self.is_code(&weight).then(|| match self.quantization {
            Quantization::Nf4 if self.is_nested(&weight) => CodeFormat::Nf4,
            Quantization::Nf4 => CodeFormat::Nf4WithNumbers,
            Quantization::Int8 => CodeFormat::Int8,
        })
    }

    /// Whether the scales of a weight are codes.
    fn is_nested(&self, weight: &str) -> bool {
        self.file(&format!("{weight}{NESTED_ABSMAX}")).is_some()
    }

    /// Whether a tensor belongs to the codes of a weight: scales, and what codes stand for.
    pub(crate) fn is_companion(&self, name: &str) -> bool {
        let ends: &[&str] = match self.quantization {
            Quantization::Nf4 => &[ABSMAX, NESTED_ABSMAX, QUANT_MAP, NESTED_QUANT_MAP, QUANT_STATE],
            Quantization::Int8 => &[SCB, WEIGHT_FORMAT],
        };
        let Some(module) = ends.iter().find_map(|end| name.strip_suffix(*end)) else { return false };
        match self.quantization {
            Quantization::Nf4 => self.is_code(module),
            Quantization::Int8 => self.is_code(&format!("{module}.weight")),
        }
    }

    /// Reads the codes of the whole weight `shape` `[out, in]` of a linear layer. Returns an error for
    /// codes that are not those of such a matrix, and for scales that make a number that is not finite.
    pub(crate) fn read(&self, layer: &str, shape: [i64; 2]) -> Result<MatrixCodes, Error> {
        let weight = self.weight_of(layer);
        match self.quantization {
            Quantization::Nf4 => self.read_nf4(&weight, shape),
            Quantization::Int8 => self.read_int8(&weight, shape).map(MatrixCodes::Int8),
        }
    }

    fn read_nf4(&self, weight: &str, shape: [i64; 2]) -> Result<MatrixCodes, Error> {
        let numel = shape.iter().product::<i64>() as usize;
        let blocks = numel.div_ceil(BLOCK);
        let part = |end: &str| format!("{weight}{end}");
        let is_nested = self.is_nested(weight);
        let offset = self.offset(&part(QUANT_STATE), shape, is_nested)?;
        let map = part(QUANT_MAP);
        if self.numbers(&map, nf4::BOOK.len())? != nf4::BOOK {
            return Err(self.wrong(&map, "the sixteen numbers of NF4", "others"));
        }

        let codes = self.bytes(weight, "U8", &[numel.div_ceil(2) as i64, 1])?;
        if !is_nested {
            return Ok(MatrixCodes::Nf4WithNumbers { codes, scales: self.numbers(&part(ABSMAX), blocks)? });
        }
        let map = part(NESTED_QUANT_MAP);
        let book: [f32; 256] = self.numbers(&map, 256)?.try_into().expect("so many are read");
        if book.iter().any(|number| number.abs() > 1.0) {
            return Err(self.wrong(&map, "numbers from -1 to 1", "others"));
        }
        let nested = self.numbers(&part(NESTED_ABSMAX), blocks.div_ceil(NESTED_BLOCK))?;
        if nested.iter().any(|scale| !(scale.abs() + offset.abs()).is_finite()) {
            return Err(self.wrong(&part(NESTED_ABSMAX), "scales of finite numbers", "larger ones"));
        }
        let of_scales = self.bytes(&part(ABSMAX), "U8", &[blocks as i64])?;
        let scales = Scales { codes: of_scales, nested, offset, book: Arc::new(book) };
        Ok(MatrixCodes::Nf4(Nf4 { codes, scales }))
    }

    /// Checks the JSON `name` of a matrix of four bits, and returns the mean of its scales, 0 if they are
    /// not nested.
    fn offset(&self, name: &str, shape: [i64; 2], is_nested: bool) -> Result<f32, Error> {
        let length = self.file(name).and_then(|file| file.num_bytes(name)).unwrap_or(0);
        if length > LARGEST_STATE {
            return Err(self.wrong(name, &format!("at most {LARGEST_STATE} bytes"), &length.to_string()));
        }
        let origin = self.place(name);
        let text = self.bytes(name, "U8", &[length as i64])?;
        let state: Map<String, Value> = serde_json::from_slice(&text)
            .map_err(|source| Error::Json { path: format!("{origin}: `{name}`"), source })?;
        let origin = format!("{origin}: {name}");
        let fields = Fields::new(&state, &origin);

        let got = |key: &str| fields.get(key).unwrap_or(&Value::Null);
        let nested = [("nested_blocksize", json!(NESTED_BLOCK))];
        let wanted = [("quant_type", json!("nf4")), ("blocksize", json!(BLOCK))];
        let wanted = wanted.iter().chain(if is_nested { &nested[..] } else { &[] });
        for (key, value) in wanted {
            if got(key) != value {
                return Err(fields.unsupported(key, got(key), &format!("it must be {value}: {AGAIN}")));
            }
        }
        if *got("shape") != json!(shape) {
            return Err(fields.wrong("shape", &format!("{shape:?}, as in config.json"), got("shape")));
        }
        if !is_nested {
            return Ok(0.0);
        }
        let offset = got("nested_offset").as_f64().map(|offset| offset as f32);
        let offset = offset.filter(|offset| offset.is_finite());
        offset.ok_or_else(|| fields.wrong("nested_offset", "a number", got("nested_offset")))
    }

    fn read_int8(&self, weight: &str, shape: [i64; 2]) -> Result<Int8, Error> {
        let module = weight.strip_suffix(".weight").unwrap_or(weight);
        let format = format!("{module}{WEIGHT_FORMAT}");
        // Early files have none.
        if self.file(&format).is_some() && self.bytes(&format, "U8", &[])? != [0] {
            return Err(self.wrong(&format, "0, codes that lie row after row", "another layout"));
        }
        let name = format!("{module}{SCB}");
        let scales = self.numbers(&name, shape[0] as usize)?;
        if scales.iter().any(|scale| !(scale * f32::from(i8::MIN)).is_finite()) {
            return Err(self.wrong(&name, "scales of finite numbers", "larger ones"));
        }
        let codes = self.bytes(weight, "I8", &shape)?.into_iter().map(u8::cast_signed).collect();
        Ok(Int8 { codes, scales })
    }

    /// The name of a layer's weight in the files, whether they have it or not.
    fn weight_of(&self, layer: &str) -> String {
        let name = format!("{layer}.weight");
        self.names.spellings(&name).into_iter().find(|name| self.file(name).is_some()).unwrap_or(name)
    }

    fn is_code(&self, name: &str) -> bool {
        let dtype = match self.quantization {
            Quantization::Nf4 => "U8",
            Quantization::Int8 => "I8",
        };
        self.file(name).is_some_and(|file| file.dtype(name) == Some(dtype))
    }

    /// The file that has a tensor.
    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.files.iter().map(|file| &**file).find(|file| file.shape(name).is_some())
    }

    /// The path of the file that has a tensor, or of the folder.
    fn place(&self, name: &str) -> String {
        self.file(name).map_or(self.folder.as_path(), TensorFile::path).display().to_string()
    }

    /// The bytes of a tensor, which has this dtype and shape.
    fn bytes(&self, name: &str, dtype: &str, shape: &[i64]) -> Result<Vec<u8>, Error> {
        let missing = || Error::MissingTensor { path: self.folder.clone(), name: name.to_owned() };
        let file = self.file(name).ok_or_else(missing)?;
        let (found, sizes) = (file.dtype(name).unwrap_or_default(), file.shape(name).unwrap_or_default());
        if (found, sizes) != (dtype, shape) {
            return Err(self.wrong(name, &format!("{dtype} {shape:?}"), &format!("{found} {sizes:?}")));
        }
        let mut bytes = vec![0; file.num_bytes(name).unwrap_or(0) as usize];
        file.read_bytes(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// The numbers of a tensor `[count]` in fp32, which are finite.
    fn numbers(&self, name: &str, count: usize) -> Result<Vec<f32>, Error> {
        let bytes = self.bytes(name, "F32", &[count as i64])?;
        let (numbers, _) = bytes.as_chunks::<4>();
        let numbers: Vec<f32> = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
        match numbers.iter().find(|number| !number.is_finite()) {
            None => Ok(numbers),
            Some(number) => Err(self.wrong(name, "finite", &number.to_string())),
        }
    }

    fn wrong(&self, name: &str, expected: &str, got: &str) -> Error {
        let (path, key) = (self.place(name), name.to_owned());
        Error::Field { path, key, expected: format!("{expected} ({AGAIN})"), got: got.to_owned() }
    }
}
