//! Writes model folders whose linear layers are codes, which transformers loads with bitsandbytes, and
//! makes numbers of such folders again.
//!
//! One matrix is in memory at a time. A file has tensors of wide numbers first, so a matrix is quantised
//! twice: once for its scales in fp32, and once for what has eight bits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parallel::safetensors_file::TensorSpec;
use parallel::upload;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::codes::MatrixCodes;
use super::kind::Quantization;
use super::nf4::{BLOCK, BOOK};
use super::scales::{self, NESTED_BLOCK};
use super::settings;
use super::stored::{ABSMAX, NESTED_ABSMAX, NESTED_QUANT_MAP, QUANT_MAP, QUANT_STATE, SCB, WEIGHT_FORMAT};
use crate::Error;
use crate::config::dtype_name;
use crate::decoder::load::weight_specs;
use crate::decoder::{DecoderSpec, HeadKind, LoadOptions};
use crate::stored_model::StoredModel;
use crate::weights;

/// The bytes of the JSON of a matrix, which spaces fill up: its length must be known before its numbers
/// are.
const STATE_BYTES: usize = 256;

/// Writes the language model in `model` to the folder `out` with the weights of its linear layers in
/// codes. The other parameters stay as they are.
pub fn quantize(model: &Path, quantization: Quantization, out: &Path) -> Result<(), Error> {
    let stored = StoredModel::open(model)?;
    if let Some(found) = stored.quantization() {
        return Err(refused(
            model,
            found.name(),
            "the files hold codes already: give the model that they were made from",
        ));
    }
    let options =
        LoadOptions { quantize: Some(quantization), ..LoadOptions::frozen(Kind::Float, Device::Cpu) };
    let specs = weight_specs(DecoderSpec::whole(stored.config().clone(), HeadKind::Vocabulary), &options)?;
    let coded = specs.into_iter().filter(|spec| spec.kind == Kind::Uint8).map(|spec| spec.parameter.name);
    let coded: BTreeSet<String> = coded.collect();

    let (mut specs, mut parts) = (Vec::new(), BTreeMap::new());
    for spec in stored.specs() {
        if !coded.contains(&spec.name) {
            specs.push(spec.clone());
            continue;
        }
        let weight = CodedWeight::of(spec, stored.config().architecture().is_conv1d);
        for (part, spec) in weight.parts(quantization) {
            parts.insert(spec.name.clone(), (weight.clone(), part));
            specs.push(spec);
        }
    }
    let kind = parts.values().next().map_or(Kind::Float, |(weight, _)| weight.kind);
    let mut config = stored.config().clone();
    config.set(settings::KEY, settings::to_json(quantization, dtype_name(kind)))?;

    let mut last: Option<(String, MatrixCodes)> = None;
    weights::save_each(out, &config, &specs, |spec| {
        let Some((weight, part)) = parts.get(&spec.name) else { return stored.values(&spec.name) };
        if last.as_ref().is_none_or(|(name, _)| *name != weight.name) {
            let values = stored.values(&weight.name)?;
            let full = if weight.is_conv1d { values.tr() } else { values };
            last = Some((weight.name.clone(), MatrixCodes::of(quantization, &full)));
        }
        let (_, codes) = last.as_ref().expect("it was just made");
        Ok(weight.tensor(*part, codes))
    })
}

/// Writes the language model in `model`, whose linear layers are codes, to the folder `out` as numbers of
/// `kind`.
pub fn dequantize(model: &Path, kind: Kind, out: &Path) -> Result<(), Error> {
    let stored = StoredModel::open(model)?;
    if stored.quantization().is_none() {
        return Err(Error::Field {
            path: stored.config().origin().to_owned(),
            key: settings::KEY.to_owned(),
            expected: "that of nf4 or int8 codes".to_owned(),
            got: "none: the weights of this model are numbers already".to_owned(),
        });
    }
    let config = stored.config().for_causal_lm(kind);
    stored.save_changed(out, &config, Some(kind), |_, values| Ok(values))
}

fn refused(model: &Path, value: &str, fix: &str) -> Error {
    Error::Unsupported {
        path: model.display().to_string(),
        key: settings::KEY.to_owned(),
        value: value.to_owned(),
        fix: fix.to_owned(),
    }
}

/// The weight of a linear layer that is written in codes.
#[derive(Clone)]
struct CodedWeight {
    name: String,
    /// `[out, in]`.
    shape: [i64; 2],
    /// The kind to which bitsandbytes rounds its numbers: that of the file.
    kind: Kind,
    is_conv1d: bool,
}

/// A tensor among those of a weight in codes.
#[derive(Clone, Copy)]
enum Part {
    Codes,
    Scales,
    NestedScales,
    Book,
    ScaleBook,
    State,
    Format,
}

impl CodedWeight {
    fn of(spec: &TensorSpec, is_conv1d: bool) -> Self {
        let mut shape: [i64; 2] = spec.shape.clone().try_into().expect("a weight is a matrix");
        if is_conv1d {
            shape.reverse();
        }
        // bitsandbytes knows no fp64.
        let kind = if spec.kind == Kind::Double { Kind::Float } else { spec.kind };
        Self { name: spec.name.clone(), shape, kind, is_conv1d }
    }

    /// The tensors of the weight.
    fn parts(&self, quantization: Quantization) -> Vec<(Part, TensorSpec)> {
        let [rows, columns] = self.shape;
        let numel = rows * columns;
        let blocks = (numel as usize).div_ceil(BLOCK);
        let nested = blocks.div_ceil(NESTED_BLOCK) as i64;
        let module = self.name.strip_suffix(".weight").expect("a weight is called so");
        let part = |part, owner: &str, end: &str, kind, shape: &[i64]| {
            (part, TensorSpec { name: format!("{owner}{end}"), kind, shape: shape.to_vec() })
        };
        let name = self.name.as_str();

        match quantization {
            Quantization::Nf4 => vec![
                part(Part::Codes, name, "", Kind::Uint8, &[(numel as usize).div_ceil(2) as i64, 1]),
                part(Part::Scales, name, ABSMAX, Kind::Uint8, &[blocks as i64]),
                part(Part::NestedScales, name, NESTED_ABSMAX, Kind::Float, &[nested]),
                part(Part::Book, name, QUANT_MAP, Kind::Float, &[BOOK.len() as i64]),
                part(Part::ScaleBook, name, NESTED_QUANT_MAP, Kind::Float, &[scales::book().len() as i64]),
                part(Part::State, name, QUANT_STATE, Kind::Uint8, &[STATE_BYTES as i64]),
            ],
            Quantization::Int8 => vec![
                part(Part::Codes, name, "", Kind::Int8, &self.shape),
                part(Part::Scales, module, SCB, Kind::Float, &[rows]),
                part(Part::Format, module, WEIGHT_FORMAT, Kind::Uint8, &[]),
            ],
        }
    }

    /// The values of a part of the codes.
    fn tensor(&self, part: Part, codes: &MatrixCodes) -> Tensor {
        let cpu = Device::Cpu;
        match (codes, part) {
            (MatrixCodes::Nf4(nf4), Part::Codes) => upload(&nf4.codes, cpu).view([-1, 1]),
            (MatrixCodes::Nf4(nf4), Part::Scales) => upload(&nf4.scales.codes, cpu),
            (MatrixCodes::Nf4(nf4), Part::NestedScales) => upload(&nf4.scales.nested, cpu),
            (MatrixCodes::Nf4(_), Part::Book) => upload(&BOOK, cpu),
            (MatrixCodes::Nf4(nf4), Part::ScaleBook) => upload(&nf4.scales.book[..], cpu),
            (MatrixCodes::Nf4(nf4), Part::State) => upload(&self.state(nf4.scales.offset), cpu),
            (MatrixCodes::Int8(int8), Part::Codes) => upload(&int8.codes, cpu).view(self.shape),
            (MatrixCodes::Int8(int8), Part::Scales) => upload(&int8.scales, cpu),
            (MatrixCodes::Int8(_), Part::Format) => upload(&[0u8], cpu).squeeze(),
            _ => unreachable!("a weight has the parts of its codes"),
        }
    }

    /// The JSON of a matrix in NF4 whose scales have the mean `offset`.
    fn state(&self, offset: f32) -> Vec<u8> {
        let state = json!({
            "quant_type": "nf4",
            "blocksize": BLOCK,
            "dtype": dtype_name(self.kind),
            "shape": self.shape,
            "nested_blocksize": NESTED_BLOCK,
            "nested_dtype": "float32",
            "nested_offset": f64::from(offset),
        });
        let mut text = state.to_string().into_bytes();
        assert!(text.len() <= STATE_BYTES, "a dozen short words and numbers");
        text.resize(STATE_BYTES, b' ');
        text
    }
}
