//! Model folders whose linear layers are codes: those of transformers 5.23.0 with bitsandbytes 0.50.2,
//! which `golden/quantize/saved.py` wrote, those that are written here, and such as are not what they
//! say.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[expect(dead_code, reason = "one of its functions is enough here")]
#[path = "golden/folder.rs"]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::collections::BTreeMap;
use std::path::Path;

use folder::golden_folder;
use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::quantize::folder::{dequantize, quantize};
use models::quantize::{Quantization, QuantizedMatrix};
use outcome::{flat, on_ranks, options};
use parallel::{Segmented, Transport};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, no_grad};

const QUANTIZATIONS: [Quantization; 2] = [Quantization::Nf4, Quantization::Int8];

/// The folders of transformers.
const SAVED: [(&str, Quantization); 4] = [
    ("llama-nf4", Quantization::Nf4),
    ("llama-nf4-plain", Quantization::Nf4),
    ("llama-int8", Quantization::Int8),
    ("gpt2-nf4", Quantization::Nf4),
];

/// The weight with the tensors that the cases below change.
const UP: &str = "model.layers.0.mlp.up_proj";

fn frozen(quantize: Option<Quantization>) -> LoadOptions {
    LoadOptions { quantize, ..LoadOptions::frozen(Kind::Float, Device::Cpu) }
}

fn loaded(folder: &Path) -> CausalLm {
    CausalLm::load(folder, &frozen(None)).unwrap()
}

fn refusal(folder: &Path, options: &LoadOptions) -> String {
    CausalLm::load(folder, options).unwrap_err().to_string()
}

fn logits(model: &CausalLm) -> Vec<f32> {
    let batch = Batch::new(&[&[5i64, 9, 1, 3][..], &[2, 14]], Device::Cpu);
    let hidden = model.forward_no_grad(&batch).unwrap();
    flat(&no_grad(|| model.head().logits(&hidden)).unwrap())
}

/// The hash of the numbers that the script writes.
fn hash(matrix: &QuantizedMatrix) -> String {
    let bytes: Vec<u8> = flat(&matrix.dense(Kind::Float)).into_iter().flat_map(f32::to_le_bytes).collect();
    format!("{:016x}", parallel::fnv1a(bytes))
}

#[test]
fn the_codes_of_transformers_stand_for_the_numbers_of_bitsandbytes() {
    for (name, quantization) in SAVED {
        let folder = golden_folder("quantize").join(name);
        let text = std::fs::read_to_string(folder.join("numbers.json")).unwrap();
        let wanted: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
        let model = loaded(&folder);
        assert_eq!(model.config().quantization(), Some(quantization), "{name}");
        let found = model.decoder().quantized_weights().iter();
        let found: BTreeMap<String, String> =
            found.map(|(layer, matrix)| (layer.clone(), hash(matrix))).collect();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn the_numbers_of_codes_are_a_model_that_computes_the_same() {
    for (name, _) in SAVED {
        let (folder, out) = (golden_folder("quantize").join(name), tempfile::tempdir().unwrap());
        dequantize(&folder, Kind::Float, out.path()).unwrap();
        let (coded, dense) = (loaded(&folder), loaded(out.path()));
        assert_eq!(dense.config().quantization(), None);
        assert!(dense.decoder().quantized_weights().is_empty());
        for (one, other) in logits(&coded).into_iter().zip(logits(&dense)) {
            assert!((one - other).abs() <= 1e-5 * other.abs().max(1.0), "{name}: {one} {other}");
        }

        let again = tempfile::tempdir().unwrap();
        let error = dequantize(out.path(), Kind::Float, again.path()).unwrap_err().to_string();
        assert!(error.contains("numbers already"), "{error}");
    }
}

/// A folder has the codes that reading makes of the numbers, on one rank and on two.
#[test]
fn a_folder_of_codes_is_the_model_that_is_quantised_while_it_is_read() {
    for name in ["llama", "llama-tied", "llama-biases", "gpt2", "opt", "neox", "bloom", "mixtral"] {
        for quantization in QUANTIZATIONS {
            let (golden, out) = (golden_folder(name), tempfile::tempdir().unwrap());
            quantize(&golden, quantization, out.path()).unwrap();
            assert_eq!(Config::from_folder(out.path()).unwrap().quantization(), Some(quantization));
            let read = CausalLm::load(&golden, &frozen(Some(quantization))).unwrap();
            same_model(name, &read, &loaded(out.path()));
            on_ranks(2, Transport::Shared, |model_parallel| {
                let load = |folder: &Path, quantize: Option<Quantization>| {
                    let options = LoadOptions { trainable: false, quantize, ..options(Some(model_parallel)) };
                    CausalLm::load(folder, &options).unwrap()
                };
                same_model(name, &load(&golden, Some(quantization)), &load(out.path(), None));
            });

            let other = tempfile::tempdir().unwrap();
            let error = quantize(out.path(), quantization, other.path()).unwrap_err().to_string();
            assert!(error.contains("codes already"), "{error}");
        }
    }
}

fn same_model(name: &str, one: &CausalLm, other: &CausalLm) {
    let matrices = |model: &CausalLm| -> Vec<(String, Vec<f32>)> {
        let weights = model.decoder().quantized_weights().iter();
        weights.map(|(layer, matrix)| (layer.clone(), flat(&matrix.dense(Kind::Float)))).collect()
    };
    assert!(matrices(one) == matrices(other) && !matrices(one).is_empty(), "{name}");
    let parameters = |model: &CausalLm| -> Vec<(String, Vec<f32>)> {
        let parameters = model.parameters().iter();
        parameters.map(|parameter| (parameter.name.clone(), flat(&parameter.tensor))).collect()
    };
    assert!(parameters(one) == parameters(other), "{name}");
}

#[test]
fn what_codes_cannot_do_is_refused_by_name() {
    let folder = golden_folder("quantize").join("llama-nf4");
    let error = refusal(&folder, &frozen(Some(Quantization::Int8)));
    assert!(error.contains("`quantize` = int8") && error.contains("nf4 codes already"), "{error}");
    CausalLm::load(&folder, &frozen(Some(Quantization::Nf4))).unwrap();
    let error = refusal(&folder, &options(None));
    assert!(error.contains("`quantization_config` = nf4") && error.contains("[model.lora]"), "{error}");
    let out = tempfile::tempdir().unwrap();
    let error = loaded(&folder).save(out.path()).unwrap_err().to_string();
    assert!(error.contains("save an adapter"), "{error}");
}

/// A model folder whose tensors can be changed.
struct Changed {
    folder: tempfile::TempDir,
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Changed {
    fn of(name: &str) -> Self {
        let (from, folder) = (golden_folder("quantize").join(name), tempfile::tempdir().unwrap());
        std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
        let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
        let (length, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let header = serde_json::from_slice(header).unwrap();
        Self { folder, header, data: data.to_vec() }
    }

    fn bytes(&mut self, name: &str) -> &mut [u8] {
        let offsets = &self.header[name]["data_offsets"];
        let at = |index: usize| offsets[index].as_u64().unwrap() as usize;
        &mut self.data[at(0)..at(1)]
    }

    /// Puts `to` in place of `from`, which is as long, in the JSON of a matrix.
    fn replace(&mut self, from: &str, to: &str) {
        let bytes = self.bytes(&format!("{UP}.weight.quant_state.bitsandbytes__nf4"));
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains(from) && from.len() == to.len(), "{text}");
        bytes.copy_from_slice(text.replace(from, to).as_bytes());
    }

    fn write(&self) -> &Path {
        let header = Value::Object(self.header.clone()).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &self.data].concat();
        std::fs::write(self.folder.path().join("model.safetensors"), bytes).unwrap();
        self.folder.path()
    }

    fn refusal(&self) -> String {
        refusal(self.write(), &frozen(None))
    }
}

/// Checks that a change of one of the folders is refused with these words.
fn refused(name: &str, change: &dyn Fn(&mut Changed), words: &[&str]) {
    let mut changed = Changed::of(name);
    loaded(changed.write());
    change(&mut changed);
    let error = changed.refusal();
    for word in words {
        assert!(error.contains(word), "{error} has no `{word}`");
    }
}

#[test]
fn codes_that_are_not_those_of_the_layer_are_refused() {
    let refused = |change: &dyn Fn(&mut Changed), words: &[&str]| refused("llama-nf4", change, words);
    let fill = |end: &'static str, number: f32| {
        let name = format!("{UP}.weight{end}");
        move |changed: &mut Changed| changed.bytes(&name)[..4].copy_from_slice(&number.to_le_bytes())
    };
    refused(&fill(".quant_map", 0.5), &["up_proj.weight.quant_map", "NF4"]);
    refused(&fill(".quant_map", f32::NAN), &["up_proj.weight.quant_map", "finite"]);
    refused(&fill(".nested_quant_map", -1.5), &["nested_quant_map", "from -1 to 1"]);
    refused(&fill(".nested_absmax", f32::INFINITY), &["nested_absmax", "finite"]);
    for (from, to, word) in [
        ("\"blocksize\": 64", "\"blocksize\": 32", "`blocksize` = 32"),
        ("\"nested_blocksize\": 256", "\"nested_blocksize\": 128", "`nested_blocksize` = 128"),
        ("\"nf4\"", "\"fp4\"", "`quant_type` = \"fp4\""),
        ("[128, 64]", "[64, 128]", "`shape` must be [128, 64]"),
        ("\"nested_offset\": 0", "\"nested_offsex\": 0", "`nested_offset`"),
        ("{\"quant_type\"", "[\"quant_type\"", "no valid JSON"),
    ] {
        refused(&|changed| changed.replace(from, to), &[word, "up_proj.weight.quant_state"]);
    }
}

#[test]
fn tensors_that_are_not_those_of_codes_are_refused() {
    let weight = format!("{UP}.weight");
    let refused = |change: &dyn Fn(&mut Changed), words: &[&str]| refused("llama-nf4", change, words);
    let set = |name: String, key: &'static str, value: Value| {
        move |changed: &mut Changed| changed.header[&name][key] = value.clone()
    };
    refused(&set(weight.clone(), "shape", json!([1, 4096])), &["up_proj.weight", "U8 [4096, 1]"]);
    refused(&set(weight.clone(), "shape", json!([2, 2048])), &["up_proj.weight", "U8 [4096, 1]"]);
    refused(&set(weight.clone(), "dtype", json!("I8")), &["up_proj.weight", "I8"]);
    refused(&set(format!("{weight}.absmax"), "dtype", json!("I8")), &["absmax", "U8 [128]"]);
    // The head and the norms are no codes.
    let table = |name: &'static str, shape: [i64; 2]| {
        move |changed: &mut Changed| {
            changed.header[name]["dtype"] = json!("U8");
            changed.header[name]["shape"] = json!(shape);
        }
    };
    refused(&table("lm_head.weight", [16, 128]), &["`lm_head.weight` = U8"]);
    refused(&table("model.norm.weight", [128, 1]), &["`model.norm.weight` = U8"]);
    for end in [".absmax", ".quant_map", ".nested_quant_map", ".quant_state.bitsandbytes__nf4"] {
        let name = format!("{weight}{end}");
        let words = [name.as_str()];
        refused(&|changed| drop(changed.header.shift_remove(&name)), &words);
    }
    // Scales of eight bits without what they stand for.
    let name = format!("{weight}.nested_absmax");
    refused(&|changed| drop(changed.header.shift_remove(&name)), &["up_proj.weight.absmax", "F32 [128]"]);
    // A companion of no codes.
    let [name, other] = [format!("{weight}.absmax"), "model.norm.weight.absmax".to_owned()];
    let rename = |changed: &mut Changed| {
        let entry = changed.header.shift_remove(&name).unwrap();
        changed.header.insert(other.clone(), entry);
    };
    refused(&rename, &["absmax"]);
}

#[test]
fn codes_of_eight_bits_that_are_not_those_of_the_layer_are_refused() {
    let refused = |change: &dyn Fn(&mut Changed), words: &[&str]| refused("llama-int8", change, words);
    let [scb, format] = [format!("{UP}.SCB"), format!("{UP}.weight_format")];
    for number in [f32::NAN, f32::MAX] {
        let change = |changed: &mut Changed| changed.bytes(&scb)[..4].copy_from_slice(&number.to_le_bytes());
        refused(&change, &["up_proj.SCB", "finite"]);
    }
    refused(&|changed| changed.bytes(&format)[0] = 2, &["up_proj.weight_format", "row after row"]);
    refused(&|changed| drop(changed.header.shift_remove(&scb)), &["up_proj.SCB"]);
    let mut early = Changed::of("llama-int8");
    early.header.shift_remove(&format);
    early.header.insert("left".to_owned(), json!({"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}));
    assert!(
        early.refusal().contains("`left`"),
        "weights without a format are read, and an unknown tensor is not"
    );
}

#[test]
fn codes_without_a_configuration_of_them_are_refused() {
    let changed = Changed::of("llama-nf4");
    let path = changed.folder.path().join("config.json");
    let mut config: Map<String, Value> =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config.shift_remove("quantization_config");
    std::fs::write(&path, Value::Object(config).to_string()).unwrap();
    let error = changed.refusal();
    assert!(error.contains("q_proj.weight` = U8") && error.contains("quantization_config"), "{error}");
}
