//! Models with adapters: they begin as their trunk, compute what the merged model computes, share the trunk's
//! memory, and give the same logits, gradients and files however they are split over ranks.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "lora/adapters.rs"]
mod adapters;
#[path = "golden/folder.rs"]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::path::Path;
use std::sync::Arc;

use adapters::{adapted, adapter_folder, fill, plan, trunk};
use folder::{golden_folder, with_aux_loss};
use models::causal_lm::CausalLm;
use models::lora::{AdapterFile, AdapterFolder, LoraConfig, LoraPlan};
use models::model_parallel::{ModelParallel, PipelineParallel, SequenceParallel};
use models::scalar_model::ScalarModel;
use outcome::{
    FAMILIES, MOE_FAMILIES, close, flat, on_every_mesh, on_mesh, on_ranks, on_whole_mesh, options, outcome,
    same, sequence_parallel_of, step, step_with_experts, written,
};
use parallel::pipeline::ScheduleKind;
use parallel::safetensors_file::TensorFile;
use parallel::{Placement, ProcessGroups, Segmented, Transport};
use tch::no_grad;

fn is_bias(name: &str) -> bool {
    name.strip_suffix(".bias").is_some()
}

/// The settings of adapters that a model can be tested with, under short names.
fn kinds_of(model: &str) -> Vec<&'static str> {
    let trunk = trunk(&golden_folder(model), None);
    let mut kinds = vec!["lora", "rslora", "dora", "rows"];
    if trunk.parameters().iter().any(|parameter| is_bias(&parameter.name)) {
        kinds.extend(["all-biases", "dora-biases"]);
    }
    if !trunk.config().architecture().tie_word_embeddings {
        kinds.push("tables");
    }
    kinds
}

/// Whether the files of two adapters hold the same tensors, in whatever order.
fn same_tensors(one: &Path, other: &Path) -> bool {
    let file = |folder: &Path| TensorFile::open(&folder.join("adapter_model.safetensors")).unwrap();
    let [one, other] = [one, other].map(file);
    let is_same = |name: &str| {
        let shape = one.shape(name).unwrap();
        let read = |file: &TensorFile| file.read(name, shape, &Placement::Replicate).unwrap();
        read(&one) == read(&other)
    };
    one.names().eq(other.names()) && one.names().all(is_same)
}

#[test]
fn a_new_adapter_changes_no_bit() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        let trunk = trunk(&golden_folder(name), None);
        let logits = |model: &CausalLm| {
            let batch = models::batch::Batch::new(&outcome::ROWS, tch::Device::Cpu);
            flat(&no_grad(|| model.head().logits(&model.forward_no_grad(&batch).unwrap())).unwrap())
        };
        for kind in kinds_of(name) {
            let model = trunk.with_new_adapter(&plan(kind), 3, true).unwrap();
            assert!(logits(&model) == logits(&trunk), "{name}, {kind}");
        }
    }
}

#[test]
fn a_merged_model_computes_the_same() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        for kind in kinds_of(name) {
            let folder = adapter_folder(&golden_folder(name), kind);
            let model = adapted(&golden_folder(name), folder.path(), None);
            let merged = model.merge(&options(None)).unwrap();
            assert_eq!(merged.parameters().len(), trunk(&golden_folder(name), None).parameters().len());
            let [one, other] = [&model, &merged].map(|model| outcome(model, false));
            assert!(
                one.logits != outcome(&trunk(&golden_folder(name), None), false).logits,
                "{name}, {kind}"
            );
            close(&format!("{name}, {kind}"), &one.logits, &other.logits);
            assert_eq!(written(&model), written(&merged), "{name}, {kind}");
        }
    }
}

#[test]
fn models_with_adapters_share_the_memory_of_their_trunk() {
    let trunk = trunk(&golden_folder("llama"), None);
    let folder = adapter_folder(&golden_folder("llama"), "lora");
    let policy = trunk.with_new_adapter(&plan("lora"), 3, true).unwrap();
    let other = trunk.with_adapter(&mut AdapterFolder::open(folder.path()).unwrap(), false).unwrap();
    let critic = ScalarModel::on_trunk(&trunk, Some(&plan("lora")), 4, true).unwrap();
    let pointers = |parameters: &[parallel::Parameter]| -> Vec<usize> {
        let shared = parameters.iter().filter(|parameter| !parameter.name.contains("lora"));
        shared
            .filter(|parameter| parameter.name != "score.weight")
            .map(|p| p.tensor.data_ptr() as usize)
            .collect()
    };
    let shared = pointers(trunk.parameters());
    assert_eq!(pointers(policy.parameters()), shared);
    assert_eq!(pointers(other.parameters()), shared);
    assert_eq!(pointers(critic.parameters()), shared[..shared.len() - 1], "a critic has no vocabulary head");
    let trained = |parameters: &[parallel::Parameter]| -> Vec<bool> {
        parameters.iter().map(|parameter| parameter.tensor.requires_grad()).collect()
    };
    let own = |parameters: &[parallel::Parameter]| -> Vec<bool> {
        let is_own = |name: &str| name.contains("lora") || name == "score.weight";
        parameters.iter().map(|parameter| is_own(&parameter.name)).collect()
    };
    assert_eq!(trained(policy.parameters()), own(policy.parameters()));
    assert_eq!(trained(critic.parameters()), own(critic.parameters()));
    assert!(trained(other.parameters()).into_iter().all(|is_trained| !is_trained));
}

#[test]
fn a_split_model_has_the_logits_gradients_and_files_of_the_whole() {
    for name in FAMILIES {
        for kind in kinds_of(name) {
            let (base, folder) = (golden_folder(name), adapter_folder(&golden_folder(name), kind));
            let whole = outcome(&adapted(&base, folder.path(), None), false);
            // Four ranks share two key-value heads where queries share them.
            for size in [2, 4] {
                let saved = tempfile::tempdir().unwrap();
                on_ranks(size, Transport::Shared, |model_parallel| {
                    let model = adapted(&base, folder.path(), Some(model_parallel));
                    same(&format!("{name}, {kind} on {size}"), &whole, &outcome(&model, size == 4));
                    model.save(saved.path()).unwrap();
                });
                for file in ["adapter_model.safetensors", "adapter_config.json"] {
                    let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
                    assert!(read(folder.path()) == read(saved.path()), "{name}, {kind}: {file}");
                }
            }
        }
    }
}

#[test]
fn ranks_with_different_tokens_have_the_gradients_of_the_whole() {
    for name in ["llama", "qwen3", "gpt2", "neox"] {
        for kind in kinds_of(name) {
            let (base, folder) = (golden_folder(name), adapter_folder(&golden_folder(name), kind));
            let whole = outcome(&adapted(&base, folder.path(), None), false);
            for (mode, mesh) in [("megatron", [1, 2]), ("ulysses", [2, 2]), ("ring", [2, 2])] {
                on_mesh(mesh, Transport::Shared, |groups| {
                    let model_parallel = sequence_parallel_of(groups, mode);
                    let model = adapted(&base, folder.path(), Some(&model_parallel));
                    same(&format!("{name}, {kind}, {mode}"), &whole, &outcome(&model, true));
                });
            }
        }
    }
}

#[test]
fn ranks_with_different_layers_have_the_losses_gradients_and_replies_of_the_whole() {
    for name in ["llama", "llama-tied", "gpt2", "bloom"] {
        for kind in kinds_of(name) {
            let (base, folder) = (golden_folder(name), adapter_folder(&golden_folder(name), kind));
            let model = adapted(&base, folder.path(), None);
            let ((loss, gradients), replies) = (step(&model, &ModelParallel::NONE), written(&model));
            for (schedule_kind, mesh) in
                [(ScheduleKind::OneForwardOneBackward, [2, 2]), (ScheduleKind::ZeroBubbleV, [2, 1])]
            {
                let saved = tempfile::tempdir().unwrap();
                on_whole_mesh([mesh[0], 1, mesh[1]], Transport::Shared, |groups| {
                    let layers = PipelineParallel {
                        group: Arc::clone(groups.pipeline_parallel()),
                        schedule_kind,
                        virtual_stages: 2,
                        embedding_group: groups.embedding_group().cloned(),
                    };
                    let model_parallel = ModelParallel {
                        pipeline_parallel: Some(layers),
                        pipeline_expert_group: Some(Arc::clone(groups.pipeline_expert_group())),
                        ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
                    };
                    let what = format!("{name}, {kind}, {schedule_kind:?}");
                    let model = adapted(&base, folder.path(), Some(&model_parallel));
                    let (local_loss, local_grads) = step(&model, &model_parallel);
                    let [total] = groups.pipeline_parallel().all_reduce_sum([local_loss]).unwrap();
                    close(&what, &[loss], &[total]);
                    for (parameter, local) in &local_grads {
                        let (_, whole) = gradients.iter().find(|(name, _)| name == parameter).unwrap();
                        close(&format!("{what}: the gradient of {parameter}"), whole, local);
                    }
                    assert_eq!(written(&model), replies, "{what}");
                    model.save(saved.path()).unwrap();
                });
                assert!(same_tensors(folder.path(), saved.path()), "{name}, {kind}, {schedule_kind:?}");
            }
        }
    }
}

#[test]
fn ranks_with_different_experts_have_the_gradients_and_replies_of_the_whole() {
    for name in MOE_FAMILIES {
        let base = with_aux_loss(name);
        let folder = adapter_folder(base.path(), "lora");
        let model = adapted(base.path(), folder.path(), None);
        let ((loss, gradients), replies) =
            (step_with_experts(&model, &ProcessGroups::single()), written(&model));
        assert!(gradients.iter().any(|(name, _)| name.contains("experts")), "experts have adapters");
        for (mesh, mode) in [([1, 2, 1, 2], "megatron"), ([2, 2, 1, 1], "")] {
            on_every_mesh([1, mesh[0], mesh[1], mesh[2], mesh[3]], Transport::Shared, |groups| {
                let sequence_parallel = if mode.is_empty() {
                    SequenceParallel::Replicated
                } else {
                    sequence_parallel_of(groups, mode).sequence_parallel
                };
                let model_parallel = ModelParallel {
                    sequence_parallel,
                    expert_parallel: Some(Arc::clone(groups.expert_parallel())),
                    ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
                };
                let what = format!("{name}, {mesh:?} {mode}");
                let model = adapted(base.path(), folder.path(), Some(&model_parallel));
                let (local_loss, local_grads) = step_with_experts(&model, groups);
                let [total] = groups.loss_group().all_reduce_sum([local_loss]).unwrap();
                close(&what, &[loss], &[total]);
                for (parameter, local) in &local_grads {
                    let (_, whole) = gradients.iter().find(|(name, _)| name == parameter).unwrap();
                    close(&format!("{what}: the gradient of {parameter}"), whole, local);
                }
                assert_eq!(written(&model), replies, "{what}");
            });
        }
    }
}

/// All biases are trained, or those of the linear layers, and their names in the file are PEFT's.
#[test]
fn biases_are_trained_and_saved_as_peft_names_them() {
    for (name, norm) in [("gpt2", "transformer.ln_f"), ("neox", "gpt_neox.final_layer_norm")] {
        let base = trunk(&golden_folder(name), None);
        let biases = base.parameters().iter().map(|parameter| parameter.name.clone());
        let (norms, layers): (Vec<String>, Vec<String>) = biases
            .filter(|name| is_bias(name))
            .partition(|name| name.contains("ln_") || name.contains("norm"));
        assert!(norms.contains(&format!("{norm}.bias")) && !layers.is_empty());
        for (kind, trained) in [("all-biases", [&norms[..], &layers].concat()), ("dora-biases", layers)] {
            let folder = adapter_folder(&golden_folder(name), kind);
            let whole = outcome(&adapted(&golden_folder(name), folder.path(), None), false);
            let gradients = whole.gradients.iter().map(|(name, _)| name.clone());
            let mut found: Vec<String> = gradients.filter(|name| is_bias(name)).collect();
            let mut trained = trained;
            found.sort();
            trained.sort();
            assert_eq!(found, trained, "{name}, {kind}");

            let file = TensorFile::open(&folder.path().join("adapter_model.safetensors")).unwrap();
            let in_file = |name: &String| match name.strip_suffix(".bias") {
                Some(module) if !norms.contains(name) => format!("base_model.model.{module}.base_layer.bias"),
                _ => format!("base_model.model.{name}"),
            };
            let mut expected: Vec<String> = trained.iter().map(in_file).collect();
            expected.sort();
            let found: Vec<&str> = file.names().filter(|name| is_bias(name)).collect();
            assert_eq!(found, expected, "{name}, {kind}");
            assert_eq!(file.metadata("colossal_chat.base_hash"), Some("0123"));
        }
    }
    for kind in ["all-biases", "dora-biases"] {
        let error = trunk(&golden_folder("llama"), None).with_new_adapter(&plan(kind), 3, true).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("test: `bias` = \"") && error.contains("has a bias: leave"), "{error}");
    }
}

#[test]
fn modules_that_are_trained_whole_are_saved_with_the_adapter() {
    let base = golden_folder("llama");
    let lora = LoraConfig {
        modules_to_save: Some(vec!["lm_head".to_owned(), "model.norm".to_owned()]),
        ..plan("lora").config().clone()
    };
    let file = AdapterFile { lora, base: None, revision: None, base_hash: None };
    let model = trunk(&base, None).with_new_adapter(&Arc::new(file.plan("test").unwrap()), 3, true).unwrap();
    fill(&model);
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path()).unwrap();
    let whole = outcome(&model, false);
    assert!(whole.gradients.iter().any(|(name, _)| name == "lm_head.weight"));
    assert!(whole.gradients.iter().any(|(name, _)| name == "model.norm.weight"));
    same("loaded again", &whole, &outcome(&adapted(&base, folder.path(), None), true));
    on_ranks(2, Transport::Shared, |model_parallel| {
        same("on 2", &whole, &outcome(&adapted(&base, folder.path(), Some(model_parallel)), false));
    });

    let plan = Arc::new(file.plan("run.toml").unwrap());
    let error = trunk(&golden_folder("llama-tied"), None).with_new_adapter(&plan, 3, true).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("run.toml: `modules_to_save` = \"lm_head\" is not supported"), "{error}");
}

/// Settings with one name in `modules_to_save`.
fn whole(name: &str) -> Arc<LoraPlan> {
    let lora = LoraConfig { modules_to_save: Some(vec![name.to_owned()]), ..plan("lora").config().clone() };
    let file = AdapterFile { lora, base: None, revision: None, base_hash: None };
    Arc::new(file.plan("run.toml").unwrap())
}

/// `mlp` trains all below the MLPs, which have no adapters then, `norm` the norms of the blocks too, and a
/// block is a module as well. The tensors have the names that PEFT 0.21.2 gives them
/// (`tests/adapters_peft.py`).
#[test]
fn modules_are_trained_with_all_below_them() {
    for (name, saved, part) in [
        ("llama", "mlp", ".mlp."),
        ("llama", "norm", "norm."),
        ("llama", "layers.0", ".layers.0."),
        ("gpt2", "mlp", ".mlp."),
    ] {
        let base = golden_folder(name);
        let trunk = trunk(&base, None);
        let model = trunk.with_new_adapter(&whole(saved), 3, true).unwrap();
        fill(&model);
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path()).unwrap();

        let file = TensorFile::open(&folder.path().join("adapter_model.safetensors")).unwrap();
        let (adapters, found): (Vec<&str>, Vec<&str>) =
            file.names().partition(|name| name.contains(".lora_"));
        assert!(!adapters.is_empty() && !adapters.iter().any(|name| name.contains(part)), "{name}, {saved}");
        let all = trunk.parameters().iter().filter(|parameter| parameter.name.contains(part));
        let mut expected: Vec<String> =
            all.map(|parameter| format!("base_model.model.{}", parameter.name)).collect();
        expected.sort();
        assert_eq!(found, expected, "{name}, {saved}");

        let whole = outcome(&model, false);
        let trained = model.parameters().iter().filter(|parameter| parameter.tensor.requires_grad());
        assert_eq!(whole.gradients.len(), trained.count(), "{name}, {saved}");
        same("loaded again", &whole, &outcome(&adapted(&base, folder.path(), None), true));
        on_ranks(2, Transport::Shared, |model_parallel| {
            same("on 2", &whole, &outcome(&adapted(&base, folder.path(), Some(model_parallel)), false));
        });
    }
}

#[test]
fn modules_that_peft_trains_in_another_way_are_refused_by_name() {
    let trunk = trunk(&golden_folder("llama"), None);
    for (saved, words) in [
        ("layers", "`model.layers` has all blocks"),
        ("model", "`model` has all blocks"),
        ("lp", "`model.layers.0.mlp` ends with it and would have adapters"),
        ("proj", "`model.layers.0.self_attn.q_proj` ends with it and would have adapters"),
    ] {
        let error = trunk.with_new_adapter(&whole(saved), 3, true).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("run.toml: `modules_to_save` = \"{saved}\" is not supported")),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
    }
}
