//! Adapters that begin with a part of the weights of their model: together they compute what the model did,
//! and the parts are those of the formulas. Converted and unmerged folders compute what the original ones do.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "golden/folder.rs"]
#[expect(dead_code, reason = "one of its functions is enough here")]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use folder::golden_folder;
use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::lora::config::Names;
use models::lora::folder::ADAPTER_WEIGHTS;
use models::lora::rebase::{self, CHANGED_MODEL};
use models::lora::{AdapterFile, AdapterFolder, LoraConfig, LoraPlan, TokenIndices, WeightInit};
use models::quantize::{Quantization, QuantizedMatrix};
use models::weights::WeightFolder;
use outcome::{FAMILIES, MOE_FAMILIES, ROWS, flat, options};
use parallel::safetensors_file::TensorFile;
use parallel::{Parameter, Placement, Segmented};
use tch::{Device, Kind, Tensor, no_grad};
use tempfile::TempDir;

const CHANGING: [WeightInit; 2] = [WeightInit::Pissa, WeightInit::Olora];

fn plan(lora: LoraConfig) -> Arc<LoraPlan> {
    let file = AdapterFile { lora, base: Some("base".to_owned()), revision: None, base_hash: None };
    Arc::new(file.plan("test").unwrap())
}

/// Rank 4 and the factor 1.5, or 3 with the square root.
fn settings(use_rslora: bool) -> LoraConfig {
    LoraConfig { r: 4, lora_alpha: 6.0, use_rslora, ..LoraConfig::default() }
}

/// Other ranks and factors in the first block, which is called `0` in every family.
fn patterned(use_rslora: bool) -> LoraConfig {
    LoraConfig {
        rank_pattern: [(r"0\..*".to_owned(), 2)].into(),
        alpha_pattern: [(r"1\..*".to_owned(), 3.0)].into(),
        ..settings(use_rslora)
    }
}

/// The folder of a new adapter of a golden model.
fn initialized(name: &str, lora: LoraConfig, init: WeightInit, kind: Kind) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    rebase::initialize(&golden_folder(name), &plan(lora), init, kind, folder.path()).unwrap();
    folder
}

fn load(folder: &Path, kind: Kind) -> CausalLm {
    CausalLm::load(folder, &LoadOptions { trainable: false, kind, ..options(None) }).unwrap()
}

fn adapted(model: &Path, adapter: &Path) -> CausalLm {
    load(model, Kind::Float).with_adapter(&mut AdapterFolder::open(adapter).unwrap(), true).unwrap()
}

fn logits(model: &CausalLm) -> Vec<f32> {
    let batch = Batch::new(&ROWS, Device::Cpu);
    flat(&no_grad(|| model.head().logits(&model.forward_no_grad(&batch).unwrap())).unwrap())
}

fn difference(one: &CausalLm, other: &CausalLm) -> f32 {
    let pairs = logits(one).into_iter().zip(logits(other));
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

/// Moves the trained parameters of a model by numbers that depend on their names.
fn train(model: &CausalLm) {
    for parameter in model.parameters().iter().filter(|parameter| parameter.tensor.requires_grad()) {
        let first = f64::from(u32::try_from(parallel::fnv1a(&parameter.name) % 1000).unwrap());
        let numel = parameter.tensor.numel() as i64;
        let change = (Tensor::arange(numel, (Kind::Float, Device::Cpu)) + first).sin() * 0.1;
        let mut tensor = parameter.tensor.detach();
        no_grad(|| drop(tensor.f_add_(&change.view_as(&tensor)).unwrap()));
    }
}

/// The folder of a filled adapter on a golden model.
fn trained_folder(model: &Path, lora: LoraConfig) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = load(model, Kind::Float).with_new_adapter(&plan(lora), 3, true).unwrap();
    train(&model);
    model.save(folder.path()).unwrap();
    folder
}

/// The weight of a linear layer, `[out, in]` in fp32.
fn weight(model: &Path, module: &str) -> Tensor {
    let name = format!("{module}.weight");
    let file = TensorFile::open(&model.join("model.safetensors")).unwrap();
    let weight = file.read(&name, file.shape(&name).unwrap(), &Placement::Replicate).unwrap();
    let is_conv1d = Config::from_folder(model).unwrap().architecture().is_conv1d;
    if is_conv1d { weight.tr() } else { weight }.to_kind(Kind::Float)
}

/// The matrices `A` and `B` of each layer.
fn factors(adapter: &Path) -> BTreeMap<String, [Tensor; 2]> {
    let file = TensorFile::open(&adapter.join(ADAPTER_WEIGHTS)).unwrap();
    let read = |name: &str| file.read(name, file.shape(name).unwrap(), &Placement::Replicate).unwrap();
    let modules = file.names().filter_map(|name| name.strip_suffix(".lora_A.weight"));
    let pair = |module: &str| {
        let short = module.strip_prefix("base_model.model.").unwrap().to_owned();
        (short, ["A", "B"].map(|matrix| read(&format!("{module}.lora_{matrix}.weight"))))
    };
    modules.map(pair).collect()
}

#[test]
fn a_new_adapter_on_the_changed_model_computes_what_the_model_did() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        let original = load(&golden_folder(name), Kind::Float);
        for init in CHANGING {
            for lora in [settings(false), patterned(true)] {
                let folder = initialized(name, lora, init, Kind::Float);
                let changed = folder.path().join(CHANGED_MODEL);
                let found = difference(&original, &adapted(&changed, folder.path()));
                assert!(found < 1e-5, "{name}, {init:?}: {found}");
                let without = difference(&original, &load(&changed, Kind::Float));
                assert!(without > 0.01, "{name}, {init:?}: the adapter has a part of the weights: {without}");
            }
        }
    }
}

/// The numbers are numpy's (`golden/lora/singular_values.py`).
#[test]
fn pissa_leaves_the_smaller_singular_values() {
    type Golden = BTreeMap<String, BTreeMap<String, Vec<f64>>>;
    let text = std::fs::read_to_string(golden_folder("lora").join("singular_values.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let close = |found: &Tensor, expected: &[f64]| {
        let found = Vec::<f64>::try_from(found.to_kind(Kind::Double)).unwrap();
        let worst = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        assert!(found.len() == expected.len() && worst < 1e-5, "{found:?} {expected:?}");
    };
    for (name, modules) in golden {
        let folder = initialized(&name, settings(false), WeightInit::Pissa, Kind::Float);
        let factors = factors(folder.path());
        for (module, expected) in modules {
            let (_, found, _) = weight(&folder.path().join(CHANGED_MODEL), &module).svd(true, true);
            let smaller = [&expected[4..], &[0.0; 4]].concat();
            close(&found, &smaller);
            let [a, b] = &factors[&module];
            let (_, taken, _) = (b.matmul(a) * 1.5).svd(true, true);
            close(&taken.narrow(0, 0, 4), &expected[..4]);
        }
    }
}

#[test]
fn olora_begins_with_orthonormal_columns() {
    for name in ["llama", "gpt2", "neox", "mixtral"] {
        let folder = initialized(name, settings(false), WeightInit::Olora, Kind::Float);
        let (original, changed) = (golden_folder(name), folder.path().join(CHANGED_MODEL));
        for (module, [a, b]) in factors(folder.path()) {
            let identity = Tensor::eye(4, (Kind::Float, Device::Cpu));
            assert!(b.tr().matmul(&b).allclose(&identity, 0.0, 1e-6, false), "{name}, {module}");
            // Q R is W in the first columns, so 1 - 1.5 of them are left.
            let [original, changed] =
                [&original, &changed].map(|model| weight(model, &module).narrow(1, 0, 4));
            assert!(changed.allclose(&(original * -0.5), 0.0, 1e-5, false), "{name}, {module}");
            assert_eq!((a.size()[0], b.size()[1]), (4, 4));
        }
    }
}

#[test]
fn loftq_leaves_a_smaller_error_than_quantisation() {
    for name in ["llama", "qwen2", "gpt2", "neox", "mixtral"] {
        for quantization in [Quantization::Nf4, Quantization::Int8] {
            let init = WeightInit::Loftq(quantization);
            let folder = initialized(name, settings(false), init, Kind::Float);
            assert!(!folder.path().join(CHANGED_MODEL).exists());
            let factors = factors(folder.path());
            assert!(factors.len() >= 8, "{name}: {}", factors.len());
            for (module, [a, b]) in factors {
                let weight = weight(&golden_folder(name), &module);
                let quantized = QuantizedMatrix::new(quantization, &weight, &Placement::Replicate).unwrap();
                let error = &weight - quantized.dense(Kind::Float);
                let left = (&error - b.matmul(&a) * 1.5).norm().double_value(&[]);
                assert!(left < 0.95 * error.norm().double_value(&[]), "{name}, {quantization:?}, {module}");
            }
        }
    }
}

#[test]
fn weights_in_bf16_are_rounded_once() {
    for name in ["llama", "gpt2"] {
        let [exact, rounded] = [Kind::Float, Kind::BFloat16]
            .map(|kind| initialized(name, settings(false), WeightInit::Pissa, kind));
        let [exact_model, rounded_model] = [&exact, &rounded].map(|folder| folder.path().join(CHANGED_MODEL));
        let [exact_model, rounded_model] =
            [exact_model, rounded_model].map(|path| load(&path, Kind::BFloat16));
        for (one, other) in exact_model.parameters().iter().zip(rounded_model.parameters()) {
            assert!(one.tensor.equal(&other.tensor), "{name}, {}", one.name);
        }
        let config = std::fs::read_to_string(rounded.path().join("base/config.json")).unwrap();
        assert!(config.contains("\"dtype\": \"bfloat16\""), "{config}");
        // The header has the hash of the changed model, which differs.
        let values = |folder: &TempDir| {
            let bytes = std::fs::read(folder.path().join(ADAPTER_WEIGHTS)).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[8 + header..].to_vec()
        };
        assert!(values(&exact) == values(&rounded), "adapters are fp32");
    }
}

#[test]
fn a_rank_above_the_sides_of_a_weight_is_refused() {
    let lora = LoraConfig { r: 13, ..settings(false) };
    let folder = tempfile::tempdir().unwrap();
    let run = |lora: LoraConfig| {
        rebase::initialize(
            &golden_folder("llama"),
            &plan(lora),
            WeightInit::Pissa,
            Kind::Float,
            folder.path(),
        )
    };
    let error = run(lora.clone()).unwrap_err().to_string();
    let words =
        "k_proj` must be given a rank of at most 12, the smaller side of its weight, or no adapter, got 13";
    assert!(error.contains(words), "{error}");
    let target_modules = Names::Several(vec!["q_proj".to_owned(), "down_proj".to_owned()]);
    run(LoraConfig { target_modules, ..lora }).unwrap();
}

#[test]
fn a_converted_adapter_computes_on_the_original_model_what_the_trained_one_does() {
    for name in ["llama", "gpt2", "neox", "qwen2", "mixtral"] {
        for init in CHANGING {
            for lora in [settings(false), settings(true), patterned(false), patterned(true)] {
                let initial = initialized(name, lora.clone(), init, Kind::Float);
                let [trained, converted] = [(); 2].map(|()| tempfile::tempdir().unwrap());
                let changed = initial.path().join(CHANGED_MODEL);
                let model = adapted(&changed, initial.path());
                train(&model);
                model.save(trained.path()).unwrap();

                let [mut one, mut other] =
                    [&trained, &initial].map(|folder| AdapterFolder::open(folder.path()).unwrap());
                let original = (golden_folder(name), "the original".to_owned());
                rebase::convert(&mut one, &mut other, (&original.0, (original.1, None)), converted.path())
                    .unwrap();
                let again = adapted(&original.0, converted.path());
                let found = difference(&model, &again);
                assert!(found < 1e-5, "{name}, {init:?}, {lora:?}: {found}");
                let moved = difference(&model, &load(&original.0, Kind::Float));
                assert!(moved > 0.01, "{name}, {init:?}: {moved}");
            }
        }
    }
}

#[test]
fn a_converted_file_has_twice_the_ranks_and_the_same_factors() {
    for (use_rslora, alphas) in [(false, [12.0, 6.0]), (true, [8.485_281_374_238_57, 4.242_640_687_119_285])]
    {
        let initial = initialized("llama", patterned(use_rslora), WeightInit::Pissa, Kind::Float);
        let out = tempfile::tempdir().unwrap();
        let open = || AdapterFolder::open(initial.path()).unwrap();
        let original = golden_folder("llama");
        rebase::convert(&mut open(), &mut open(), (&original, ("original".to_owned(), None)), out.path())
            .unwrap();
        let file = AdapterFile::from_folder(out.path()).unwrap();
        let lora = &file.lora;
        assert_eq!((lora.r, lora.use_rslora), (8, use_rslora));
        assert_eq!(lora.rank_pattern.values().copied().collect::<Vec<_>>(), [4]);
        let found: Vec<f64> =
            std::iter::once(&lora.lora_alpha).chain(lora.alpha_pattern.values()).copied().collect();
        assert_eq!(found.len(), 2);
        for (found, wanted) in found.iter().zip(alphas) {
            assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
        }
        assert_eq!(file.base.as_deref(), Some("original"));
    }
}

#[test]
fn what_cannot_be_converted_is_refused_by_name() {
    let original = golden_folder("llama");
    let refused = |trained: &TempDir, initial: &TempDir| {
        let out = tempfile::tempdir().unwrap();
        let [mut one, mut other] =
            [trained, initial].map(|folder| AdapterFolder::open(folder.path()).unwrap());
        rebase::convert(&mut one, &mut other, (&original, ("x".to_owned(), None)), out.path())
            .unwrap_err()
            .to_string()
    };
    let initial = initialized("llama", settings(false), WeightInit::Pissa, Kind::Float);
    let dora = trained_folder(&original, LoraConfig { use_dora: true, ..settings(false) });
    for error in [refused(&dora, &initial), refused(&initial, &dora)] {
        assert!(error.contains("adapter_config.json: `use_dora` = true is not supported"), "{error}");
    }

    let factor = trained_folder(&original, LoraConfig { lora_alpha: 8.0, ..settings(false) });
    let error = refused(&factor, &initial);
    let words = "must be given an adapter of rank 4 with the factor 2, as in the trained adapter, which began as \
                 this one, got an adapter of rank 4 with the factor 1.5";
    assert!(error.contains(words), "{error}");
    let target_modules = Names::Several(vec!["q_proj".to_owned()]);
    let fewer = trained_folder(&original, LoraConfig { target_modules, ..settings(false) });
    assert!(refused(&fewer, &initial).contains("must be given no adapter"));
    assert!(refused(&initial, &fewer).contains("got no adapter"));
}

#[test]
fn an_unmerged_model_is_the_original() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        let is_tied = Config::from_folder(&golden_folder(name)).unwrap().architecture().tie_word_embeddings;
        let with_head = Names::One(".*(proj|dense|query_key_value)|lm_head|embed_out".to_owned());
        let with_head = LoraConfig { target_modules: with_head, ..settings(false) };
        let with_head = (!is_tied).then_some(with_head);
        for lora in [settings(false), patterned(true)].into_iter().chain(with_head) {
            let adapter = trained_folder(&golden_folder(name), lora);
            let [merged, out] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let model = adapted(&golden_folder(name), adapter.path());
            model.merge(&options(None)).unwrap().save(merged.path()).unwrap();
            let mut adapter = AdapterFolder::open(adapter.path()).unwrap();
            rebase::unmerge(merged.path(), &mut adapter, out.path()).unwrap();

            let [one, other] = [&golden_folder(name), out.path()].map(|path| load(path, Kind::Float));
            for (Parameter { name: parameter, tensor, .. }, other) in
                one.parameters().iter().zip(other.parameters())
            {
                let worst = (tensor - &other.tensor).abs().max().double_value(&[]);
                assert!(worst < 1e-6, "{name}, {parameter}: {worst}");
            }
        }
    }
}

#[test]
fn an_unmerged_model_keeps_its_dtype() {
    let adapter = trained_folder(&golden_folder("llama"), settings(false));
    let [merged, out] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let model = adapted(&golden_folder("llama"), adapter.path());
    let options = LoadOptions { kind: Kind::BFloat16, trainable: false, ..options(None) };
    model.merge(&options).unwrap().save(merged.path()).unwrap();
    rebase::unmerge(merged.path(), &mut AdapterFolder::open(adapter.path()).unwrap(), out.path()).unwrap();
    let names = ["model.layers.0.mlp.up_proj.weight".to_owned()];
    let found =
        WeightFolder::open(out.path()).unwrap().tensor(&names, &[40, 24], &Placement::Replicate).unwrap();
    assert_eq!(found.kind(), Kind::BFloat16);
    let original = weight(&golden_folder("llama"), "model.layers.0.mlp.up_proj");
    // Two roundings to eight bits, of numbers below 2.
    assert!((found.to_kind(Kind::Float) - original).abs().max().double_value(&[]) < 2f64.powi(-7));
}

#[test]
fn what_cannot_be_unmerged_is_refused_by_name() {
    let original = golden_folder("llama");
    let refused = |lora: LoraConfig| {
        let (adapter, out) = (trained_folder(&original, lora), tempfile::tempdir().unwrap());
        let mut adapter = AdapterFolder::open(adapter.path()).unwrap();
        rebase::unmerge(&original, &mut adapter, out.path()).unwrap_err().to_string()
    };
    let error = refused(LoraConfig { use_dora: true, ..settings(false) });
    assert!(error.contains("adapter_config.json: `use_dora` = true is not supported: the norms"), "{error}");
    let saved = Some(vec!["lm_head".to_owned()]);
    let error = refused(LoraConfig { modules_to_save: saved, ..settings(false) });
    assert!(error.contains("`modules_to_save` = [\"lm_head\"] is not supported: the original"), "{error}");
    let tokens = Some(TokenIndices::Embedding(vec![3, 1]));
    let error = refused(LoraConfig { trainable_token_indices: tokens, ..settings(false) });
    assert!(error.contains("`trainable_token_indices` = [3,1] is not supported: the original"), "{error}");
    let target_modules = Names::Several(vec!["q_proj".to_owned(), "embed_tokens".to_owned()]);
    let error = refused(LoraConfig { target_modules, ..settings(false) });
    assert!(error.contains("`model.embed_tokens` must be a module without an adapter"), "{error}");
}
