//! EVA: adapters begin with the directions that transformers' inputs have, their ranks are where these
//! explain most, and the model computes what it did.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "golden/folder.rs"]
#[expect(dead_code, reason = "one of its functions is enough here")]
mod folder;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use folder::golden_folder;
use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::lora::config::Names;
use models::lora::eva::{self, EvaRow};
use models::lora::folder::ADAPTER_WEIGHTS;
use models::lora::{AdapterFile, AdapterFolder, LoraConfig, LoraPlan};
use parallel::safetensors_file::TensorFile;
use parallel::{Placement, Segmented};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

/// What transformers' inputs give (`golden/lora/eva.py`).
#[derive(serde::Deserialize)]
struct Golden {
    rows: Vec<Vec<i64>>,
    /// The number of tokens at the start of each row whose inputs do not count.
    not_counted: usize,
    /// `A` of rank 4, by model and layer.
    a: BTreeMap<String, BTreeMap<String, Vec<Vec<f32>>>>,
    /// The ranks of all layers with the rank 4 in the settings and `rho` 2, by model.
    ranks: BTreeMap<String, BTreeMap<String, i64>>,
}

fn golden() -> Golden {
    let text = std::fs::read_to_string(golden_folder("lora").join("eva.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

impl Golden {
    fn rows(&self) -> Vec<EvaRow<'_>> {
        let is_counted = |ids: &[i64]| (0..ids.len()).map(|index| index >= self.not_counted).collect();
        self.rows.iter().map(|ids| EvaRow { input_ids: ids, is_counted: is_counted(ids) }).collect()
    }
}

fn plan(r: i64) -> Arc<LoraPlan> {
    let lora = LoraConfig { r, lora_alpha: 6.0, ..LoraConfig::default() };
    let file = AdapterFile { lora, base: Some("base".to_owned()), revision: None, base_hash: None };
    Arc::new(file.plan("test").unwrap())
}

fn initialized(name: &str, rho: f64) -> TempDir {
    let (golden, folder) = (golden(), tempfile::tempdir().unwrap());
    eva::initialize(&golden_folder(name), &plan(4), &golden.rows(), rho, folder.path()).unwrap();
    folder
}

/// The matrix of a layer in an adapter folder.
fn matrix(folder: &Path, module: &str, which: &str) -> Tensor {
    let file = TensorFile::open(&folder.join(ADAPTER_WEIGHTS)).unwrap();
    let name = format!("base_model.model.{module}.lora_{which}.weight");
    file.read(&name, file.shape(&name).unwrap(), &Placement::Replicate).unwrap()
}

#[test]
fn the_directions_are_those_of_transformers_inputs() {
    for (name, layers) in golden().a {
        for rho in [1.0, 2.0] {
            let folder = initialized(&name, rho);
            for (module, expected) in &layers {
                let (a, b) = (matrix(folder.path(), module, "A"), matrix(folder.path(), module, "B"));
                let both = a.size()[0].min(4);
                let expected = Tensor::from_slice2(expected).narrow(0, 0, both);
                let worst = (a.narrow(0, 0, both) - expected).abs().max().double_value(&[]);
                assert!(worst < 1e-3, "{name}, {module}, {rho}: {worst}");
                let identity = Tensor::eye(a.size()[0], (Kind::Float, Device::Cpu));
                assert!(a.matmul(&a.tr()).allclose(&identity, 0.0, 1e-5, false), "{name}, {module}");
                assert_eq!(b.abs().max().double_value(&[]), 0.0);
            }
        }
    }
}

#[test]
fn ranks_are_where_the_directions_explain_most() {
    for (name, expected) in golden().ranks {
        let folder = initialized(&name, 2.0);
        let ranks = expected.keys().map(|module| matrix(folder.path(), module, "A").size()[0]);
        assert!(ranks.eq(expected.values().copied()), "{name}");
        let file = AdapterFile::from_folder(folder.path()).unwrap();
        let moved: BTreeMap<String, i64> = expected.clone().into_iter().filter(|(_, r)| *r != 4).collect();
        assert_eq!(file.lora.rank_pattern, moved, "{name}");
        // The factor 6 / 4 stays.
        let alphas: BTreeMap<String, f64> =
            moved.iter().map(|(module, r)| (module.clone(), *r as f64 * 1.5)).collect();
        assert_eq!(file.lora.alpha_pattern, alphas, "{name}");
        assert_eq!((file.lora.r, file.lora.exclude_modules), (4, None));

        let same = AdapterFile::from_folder(initialized(&name, 1.0).path()).unwrap().lora;
        assert!(same.rank_pattern.is_empty() && same.alpha_pattern.is_empty(), "{name}");
        assert!(matches!(same.target_modules, Names::Several(names) if !names.is_empty()));
    }
}

#[test]
fn the_model_computes_what_it_did() {
    let golden = golden();
    let rows: Vec<&[i64]> = golden.rows.iter().map(Vec::as_slice).collect();
    for name in ["llama", "gpt2", "opt-after"] {
        let options = LoadOptions::frozen(Kind::Float, Device::Cpu);
        let base = CausalLm::load(&golden_folder(name), &options).unwrap();
        let folder = initialized(name, 2.0);
        // The hash of the base is checked too.
        let mut adapter = AdapterFolder::open_on(folder.path(), &golden_folder(name)).unwrap();
        let adapted = base.with_adapter(&mut adapter, false).unwrap();
        let hidden = |model: &CausalLm| model.forward_no_grad(&Batch::new(&rows, Device::Cpu)).unwrap();
        assert!(hidden(&base).allclose(&hidden(&adapted), 1e-5, 1e-5, false), "{name}");
        let config = |folder: &Path| std::fs::read_to_string(folder.join("config.json")).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&config(folder.path())).unwrap(),
            serde_json::from_str::<serde_json::Value>(&config(&golden_folder(name))).unwrap()
        );
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let (golden, out) = (golden(), tempfile::tempdir().unwrap());
    let refused = |name: &str, r: i64, rows: &[EvaRow<'_>]| {
        eva::initialize(&golden_folder(name), &plan(r), rows, 1.0, out.path()).unwrap_err().to_string()
    };
    let rows = golden.rows();
    let error = refused("llama", 25, &rows);
    assert!(
        error.contains("q_proj` must be given a rank of at most 24") && error.contains("got 25"),
        "{error}"
    );
    let error = refused("llama", 8, &rows[..1]);
    assert!(error.contains("given more than 8 tokens with a label") && error.contains("got 7"), "{error}");
    let error = refused("mixtral", 4, &rows);
    assert!(error.contains("block_sparse_moe.experts.0") && error.contains("left out"), "{error}");
    assert!(refused("llama-score", 4, &rows).contains("reward model"));
}
