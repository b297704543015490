//! Adapters to test with: their settings under short names, with numbers in place of those that they begin
//! with.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::path::Path;
use std::sync::Arc;

use models::causal_lm::{CausalLm, LoadOptions};
use models::lora::config::Names;
use models::lora::{AdapterFile, AdapterFolder, Bias, LoraConfig, LoraPlan, TokenIndices};
use models::model_parallel::ModelParallel;
use parallel::Segmented;
use tch::{Kind, Tensor, no_grad};

use crate::outcome::options;

/// Tokens whose rows are trained: the first and the last one among them, and of four ranks that share a
/// vocabulary of 48, the second has none.
pub(crate) const TOKENS: [i64; 4] = [47, 7, 0, 30];

pub(crate) fn plan(kind: &str) -> Arc<LoraPlan> {
    let layers = match kind {
        "tables" => ".*(proj|dense|query_key_value|embed_tokens|embed_in)|lm_head|embed_out",
        _ => "all-linear",
    };
    let lora = LoraConfig {
        target_modules: Names::One(layers.to_owned()),
        r: 4,
        lora_alpha: 6.0,
        use_rslora: kind == "rslora",
        use_dora: kind.starts_with("dora"),
        bias: match kind {
            "all-biases" => Bias::All,
            "dora-biases" => Bias::LoraOnly,
            _ => Bias::None,
        },
        trainable_token_indices: (kind == "rows").then(|| TokenIndices::Embedding(TOKENS.to_vec())),
        ..LoraConfig::default()
    };
    let base_hash = Some("0123".to_owned());
    let file = AdapterFile { lora, base: Some("base".to_owned()), revision: None, base_hash };
    Arc::new(file.plan("test").unwrap())
}

pub(crate) fn trunk(folder: &Path, model_parallel: Option<&ModelParallel>) -> CausalLm {
    CausalLm::load(folder, &LoadOptions { trainable: false, ..options(model_parallel) }).unwrap()
}

/// Sets all parameters that a model does not share with its trunk to numbers that depend on their names.
pub(crate) fn fill(model: &CausalLm) {
    for parameter in model.parameters().iter().filter(|parameter| parameter.tensor.requires_grad()) {
        let first = f64::from(u32::try_from(parallel::fnv1a(&parameter.name) % 1000).unwrap());
        let numel = parameter.tensor.numel() as i64;
        let values = (Tensor::arange(numel, (Kind::Float, tch::Device::Cpu)) + first).sin() * 0.1;
        let mut tensor = parameter.tensor.detach();
        no_grad(|| {
            let values = values.view_as(&tensor);
            // Magnitudes are near the norms that they begin with.
            let values =
                if parameter.name.ends_with("magnitude_vector") { &tensor * (values + 1.0) } else { values };
            tensor.copy_(&values);
        });
    }
}

/// A folder with a filled adapter of a golden model.
pub(crate) fn adapter_folder(model: &Path, kind: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = trunk(model, None).with_new_adapter(&plan(kind), 3, true).unwrap();
    fill(&model);
    model.save(folder.path()).unwrap();
    folder
}

/// A model with the adapter of a folder.
pub(crate) fn adapted(model: &Path, adapter: &Path, model_parallel: Option<&ModelParallel>) -> CausalLm {
    trunk(model, model_parallel).with_adapter(&mut AdapterFolder::open(adapter).unwrap(), true).unwrap()
}
