//! What adapters train of the tables of a model, its embedding and its head: rows of single tokens, and
//! low-rank products.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "lora/adapters.rs"]
mod adapters;
#[expect(dead_code, reason = "one of its functions is enough here")]
#[path = "golden/folder.rs"]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::sync::Arc;

use adapters::{TOKENS, adapted, adapter_folder, fill, plan, trunk};
use folder::golden_folder;
use models::causal_lm::{CausalLm, LoadOptions};
use models::lora::config::Names;
use models::lora::{AdapterFile, AdapterFolder, LoraConfig, LoraPlan, TokenIndices};
use models::scalar_model::ScalarModel;
use outcome::{close, on_ranks, options, outcome, same, written};
use parallel::safetensors_file::TensorFile;
use parallel::{Placement, Segmented, Transport};
use tch::Tensor;

/// Settings with the same rows of the embedding and, if a model does not tie it, of the head.
fn plan_of_both(model: &CausalLm, tokens: &[i64]) -> Arc<LoraPlan> {
    let mut plan = (*plan("lora")).clone();
    plan.train_rows(model.config().architecture(), tokens).unwrap();
    Arc::new(plan)
}

/// While the rows equal those of the tables, their gradients are rows of the gradients of the tables.
#[test]
fn new_rows_have_the_gradients_of_the_tables_rows() {
    for name in ["llama", "llama-tied", "gpt2", "opt-after", "neox"] {
        let base = golden_folder(name);
        let whole = outcome(&CausalLm::load(&base, &options(None)).unwrap(), false);
        let trunk = trunk(&base, None);
        let model = trunk.with_new_adapter(&plan_of_both(&trunk, &TOKENS), 3, true).unwrap();
        let adapted = outcome(&model, false);
        assert!(adapted.logits == outcome(&trunk, false).logits, "{name}");
        let mut tables = 0;
        for (parameter, rows) in &adapted.gradients {
            let Some(module) = parameter.strip_suffix(".token_adapter.trainable_tokens_delta") else {
                continue;
            };
            let is_table = |(name, _): &&(String, Vec<f32>)| *name == format!("{module}.weight");
            let (_, table) = whole.gradients.iter().find(is_table).unwrap();
            let width = table.len() / 48;
            let row = |&token: &i64| &table[token as usize * width..][..width];
            let expected: Vec<f32> = TOKENS.iter().flat_map(row).copied().collect();
            assert!(expected.iter().any(|&x| x != 0.0), "{name}");
            close(&format!("{name}: {parameter}"), &expected, rows);
            tables += 1;
        }
        let is_tied = model.config().architecture().tie_word_embeddings;
        assert_eq!(tables, if is_tied { 1 } else { 2 }, "{name}");
    }
}

#[test]
fn rows_of_an_untied_head_are_split_merged_and_saved_with_the_adapter() {
    for name in ["llama", "neox"] {
        let base = golden_folder(name);
        let trunk = trunk(&base, None);
        let model = trunk.with_new_adapter(&plan_of_both(&trunk, &TOKENS), 3, true).unwrap();
        fill(&model);
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path()).unwrap();
        let file = TensorFile::open(&folder.path().join("adapter_model.safetensors")).unwrap();
        let names = &model.config().architecture().names;
        for module in [names.token_embedding, names.head] {
            let rows = format!("base_model.model.{module}.token_adapter.trainable_tokens_delta");
            assert_eq!(file.shape(&rows).unwrap()[0], 4, "{name}");
        }

        let whole = outcome(&model, false);
        same("loaded again", &whole, &outcome(&adapted(&base, folder.path(), None), true));
        for size in [2, 4] {
            on_ranks(size, Transport::Shared, |model_parallel| {
                let model = adapted(&base, folder.path(), Some(model_parallel));
                same(&format!("{name} on {size}"), &whole, &outcome(&model, false));
            });
        }
        let merged = model.merge(&options(None)).unwrap();
        close(name, &whole.logits, &outcome(&merged, false).logits);
        let decoding = model.for_decoding().unwrap();
        assert_eq!(written(&model), written(&decoding), "{name}");

        // A reward model has no such head, and neither has its file.
        let mut adapter = AdapterFolder::open(folder.path()).unwrap();
        let scores = ScalarModel::with_adapter(&trunk, &mut adapter, Some(4), true).unwrap();
        let reward = tempfile::tempdir().unwrap();
        scores.save(reward.path()).unwrap();
        let settings =
            AdapterFolder::open(reward.path()).unwrap().file().lora.trainable_token_indices.clone();
        let modules = match settings {
            Some(TokenIndices::ByModule(modules)) => modules,
            other => panic!("{other:?}"),
        };
        assert_eq!(modules.into_values().collect::<Vec<_>>(), [TOKENS.to_vec()], "{name}");
        ScalarModel::with_adapter(&trunk, &mut AdapterFolder::open(reward.path()).unwrap(), None, true)
            .unwrap();
    }
}

/// An adapter with rows for tokens that its base does not have belongs to the base with more rows.
#[test]
fn rows_of_new_tokens_belong_to_a_grown_vocabulary() {
    for name in ["llama", "llama-tied"] {
        let frozen = LoadOptions { trainable: false, ..options(None) };
        let grown = || CausalLm::load_resized(&golden_folder(name), 51, &frozen).unwrap();
        let trunk = grown();
        let lora = plan_of_both(&trunk, &[48, 49, 50]);
        let model = trunk.with_new_adapter(&lora, 3, true).unwrap();
        fill(&model);
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path()).unwrap();
        let again = grown().with_adapter(&mut AdapterFolder::open(folder.path()).unwrap(), true).unwrap();
        assert_eq!(again.config().vocab_size(), 51);
        same(name, &outcome(&model, false), &outcome(&again, false));

        let small = self::trunk(&golden_folder(name), None);
        let error = small.with_new_adapter(&lora, 3, true).unwrap_err().to_string();
        let words = "test: `trainable_token_indices` = 48 is not supported: the rows of `model.embed_tokens`";
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn an_adapter_of_a_table_that_cannot_have_one_is_refused() {
    let refused = |model: &str, module: &str, more: LoraConfig| {
        let lora = LoraConfig {
            target_modules: Names::Several(vec!["q_proj".to_owned(), module.to_owned()]),
            ..more
        };
        let file = AdapterFile { lora, base: None, revision: None, base_hash: None };
        let plan = Arc::new(file.plan("run.toml").unwrap());
        let error = trunk(&golden_folder(model), None).with_new_adapter(&plan, 3, true).unwrap_err();
        error.to_string()
    };
    let dora = LoraConfig { use_dora: true, ..LoraConfig::default() };
    let rows = TokenIndices::ByModule([("lm_head".to_owned(), vec![3])].into());
    let rows = LoraConfig { trainable_token_indices: Some(rows), ..LoraConfig::default() };
    for (model, module, more, words) in [
        (
            "llama-tied",
            "embed_tokens",
            LoraConfig::default(),
            "= \"model.embed_tokens\" is not supported: the model ties",
        ),
        ("llama-tied", "lm_head", LoraConfig::default(), "= \"lm_head\" is not supported: the model ties"),
        (
            "llama",
            "lm_head",
            dora,
            "= \"lm_head\" is not supported: an embedding or a head has no magnitudes",
        ),
        ("llama", "lm_head", rows, "`trainable_token_indices` trains rows of it"),
    ] {
        let error = refused(model, module, more);
        assert!(error.starts_with("run.toml: `target_modules`") && error.contains(words), "{error}");
    }
}

/// PEFT saves the table of an embedding or a head beside its adapter, and it has to be the model's own.
#[test]
fn a_saved_table_is_compared_with_that_of_the_model() {
    let base = golden_folder("llama");
    let folder = adapter_folder(&base, "tables");
    let path = folder.path().join("adapter_model.safetensors");
    let file = TensorFile::open(&path).unwrap();
    let read = |name: &str| file.read(name, file.shape(name).unwrap(), &Placement::Replicate).unwrap();
    let tensors: Vec<(String, Tensor)> = file.names().map(|name| (name.to_owned(), read(name))).collect();
    let trunk = trunk(&base, None);
    let table = trunk.parameters().iter().find(|parameter| parameter.name == "lm_head.weight").unwrap();
    let whole = outcome(&adapted(&base, folder.path(), None), false);
    for change in [0.0, 0.5] {
        let saved = table.tensor.detach() + change;
        let name = "base_model.model.lm_head.base_layer.weight".to_owned();
        let all = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        let all: Vec<(String, Tensor)> = all.chain([(name, saved)]).collect();
        Tensor::write_safetensors(&all, &path).unwrap();
        let found = trunk.with_adapter(&mut AdapterFolder::open(folder.path()).unwrap(), true);
        if change == 0.0 {
            same("with its table", &whole, &outcome(&found.unwrap(), false));
        } else {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("lm_head.base_layer.weight` = another table"), "{error}");
        }
    }
}
