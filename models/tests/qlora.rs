//! Models with adapters on quantised weights: they compute what the numbers compute that the codes stand for,
//! however they are split over ranks, and what they save is an adapter.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[expect(dead_code, reason = "one of its functions is enough here")]
#[path = "lora/adapters.rs"]
mod adapters;
#[expect(dead_code, reason = "one of its functions is enough here")]
#[path = "golden/folder.rs"]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::path::Path;
use std::sync::Arc;

use adapters::fill;
use folder::golden_folder;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::load::weight_specs;
use models::decoder::{DecoderSpec, HeadKind};
use models::lora::{AdapterFile, AdapterFolder, LoraConfig, LoraPlan};
use models::model_parallel::{ModelParallel, PipelineParallel};
use models::quantize::{Quantization, QuantizedMatrix};
use models::scalar_model::ScalarModel;
use outcome::{
    FAMILIES, MOE_FAMILIES, close, on_every_mesh, on_mesh, on_ranks, on_whole_mesh, options, outcome, same,
    sequence_parallel_of, step, step_with_experts, written,
};
use parallel::pipeline::ScheduleKind;
use parallel::{ProcessGroups, Segmented, Transport};
use tch::{Kind, no_grad};

const QUANTIZATIONS: [Quantization; 2] = [Quantization::Nf4, Quantization::Int8];

fn plan(use_dora: bool) -> Arc<LoraPlan> {
    let lora = LoraConfig { r: 4, lora_alpha: 6.0, use_dora, ..LoraConfig::default() };
    let file = AdapterFile { lora, base: Some("base".to_owned()), revision: None, base_hash: None };
    Arc::new(file.plan("test").unwrap())
}

fn frozen(model_parallel: Option<&ModelParallel>, quantize: Option<Quantization>) -> LoadOptions {
    LoadOptions { trainable: false, quantize, ..options(model_parallel) }
}

fn trunk(name: &str, model_parallel: Option<&ModelParallel>, quantization: Quantization) -> CausalLm {
    CausalLm::load(&golden_folder(name), &frozen(model_parallel, Some(quantization))).unwrap()
}

/// A folder with an adapter of a quantised golden model, whose numbers depend on their names.
fn adapter_folder(name: &str, quantization: Quantization, use_dora: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = trunk(name, None, quantization).with_new_adapter(&plan(use_dora), 3, true).unwrap();
    fill(&model);
    model.save(folder.path()).unwrap();
    folder
}

fn adapted(trunk: &CausalLm, adapter: &Path) -> CausalLm {
    trunk.with_adapter(&mut AdapterFolder::open(adapter).unwrap(), true).unwrap()
}

/// The model whose weights are the numbers of the codes is saved, and loaded as any model.
#[test]
fn a_quantised_model_computes_what_its_numbers_compute() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        for (quantization, use_dora) in [(QUANTIZATIONS[0], false), (QUANTIZATIONS[1], true)] {
            let base = trunk(name, None, quantization);
            let dense = tempfile::tempdir().unwrap();
            base.merge(&options(None)).unwrap().save(dense.path()).unwrap();
            let dense = CausalLm::load(dense.path(), &frozen(None, None)).unwrap();
            let adapter = adapter_folder(name, quantization, use_dora);
            let [one, other] = [&base, &dense].map(|trunk| outcome(&adapted(trunk, adapter.path()), false));
            let what = format!("{name}, {quantization:?}");
            same(&what, &one, &other);
            let original = CausalLm::load(&golden_folder(name), &frozen(None, None)).unwrap();
            assert!(one.logits != outcome(&adapted(&original, adapter.path()), false).logits, "{what}");
            let [one, other] = [&base, &dense].map(|trunk| written(&adapted(trunk, adapter.path())));
            assert_eq!(one, other, "{what}");
        }
    }
}

/// Every linear layer but the head and the routers is quantised, and nothing else: the parameters are those
/// of the whole model, of which the codes are bytes.
#[test]
fn linear_layers_are_quantised_and_nothing_else() {
    for name in FAMILIES.into_iter().chain(MOE_FAMILIES) {
        let original = CausalLm::load(&golden_folder(name), &frozen(None, None)).unwrap();
        let base = trunk(name, None, Quantization::Nf4);
        let quantized = base.decoder().quantized_weights();
        let names = |model: &CausalLm| -> Vec<String> {
            model.parameters().iter().map(|parameter| parameter.name.clone()).collect()
        };
        assert_eq!(names(&base), names(&original), "{name}");
        for parameter in base.parameters() {
            let layer = parameter.name.strip_suffix(".weight");
            let has_codes = layer.is_some_and(|layer| quantized.contains_key(layer));
            assert_eq!(has_codes, parameter.tensor.kind() == Kind::Uint8, "{name}: {}", parameter.name);
        }
        let is_matrix = |parameter: &&parallel::Parameter| parameter.tensor.dim() == 2;
        let tables = base.parameters().iter().filter(is_matrix).map(|parameter| parameter.name.as_str());
        let ends = [
            "embed_tokens.weight",
            "wte.weight",
            "wpe.weight",
            "embed_in.weight",
            "embed_out.weight",
            "embed_positions.weight",
            "word_embeddings.weight",
            "lm_head.weight",
            ".gate.weight",
            "shared_expert_gate.weight",
        ];
        tables.for_each(|table| assert!(ends.iter().any(|end| table.ends_with(end)), "{name}: {table}"));
        let adapted = base.with_new_adapter(&plan(false), 3, true).unwrap();
        assert_eq!(adapted.decoder().quantized_weights().len(), quantized.len());
    }
}

#[test]
fn a_split_model_has_the_codes_logits_gradients_and_files_of_the_whole() {
    for name in FAMILIES {
        for (quantization, use_dora) in [(QUANTIZATIONS[0], true), (QUANTIZATIONS[1], false)] {
            let folder = adapter_folder(name, quantization, use_dora);
            let whole = outcome(&adapted(&trunk(name, None, quantization), folder.path()), false);
            // Four ranks share two key-value heads where queries share them.
            for size in [2, 4] {
                let saved = tempfile::tempdir().unwrap();
                on_ranks(size, Transport::Shared, |model_parallel| {
                    let model = adapted(&trunk(name, Some(model_parallel), quantization), folder.path());
                    same(&format!("{name}, {quantization:?} on {size}"), &whole, &outcome(&model, size == 4));
                    model.save(saved.path()).unwrap();
                });
                for file in ["adapter_model.safetensors", "adapter_config.json"] {
                    let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
                    assert!(read(folder.path()) == read(saved.path()), "{name}, {quantization:?}: {file}");
                }
            }
        }
    }
}

#[test]
fn ranks_with_different_tokens_and_layers_compute_what_one_computes() {
    for name in ["llama-tied", "gpt2"] {
        let folder = adapter_folder(name, Quantization::Nf4, false);
        let model = adapted(&trunk(name, None, Quantization::Nf4), folder.path());
        let whole = outcome(&model, false);
        for (mode, mesh) in [("megatron", [1, 2]), ("ulysses", [2, 2]), ("ring", [2, 2])] {
            on_mesh(mesh, Transport::Shared, |groups| {
                let model_parallel = sequence_parallel_of(groups, mode);
                let model = adapted(&trunk(name, Some(&model_parallel), Quantization::Nf4), folder.path());
                same(&format!("{name}, {mode}"), &whole, &outcome(&model, true));
            });
        }

        let ((loss, gradients), replies) = (step(&model, &ModelParallel::NONE), written(&model));
        on_whole_mesh([2, 1, 2], Transport::Shared, |groups| {
            let layers = PipelineParallel {
                group: Arc::clone(groups.pipeline_parallel()),
                schedule_kind: ScheduleKind::ZeroBubbleV,
                virtual_stages: 2,
                embedding_group: groups.embedding_group().cloned(),
            };
            let model_parallel = ModelParallel {
                pipeline_parallel: Some(layers),
                pipeline_expert_group: Some(Arc::clone(groups.pipeline_expert_group())),
                ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
            };
            let model = adapted(&trunk(name, Some(&model_parallel), Quantization::Nf4), folder.path());
            let (local_loss, grads) = step(&model, &model_parallel);
            let [total] = groups.pipeline_parallel().all_reduce_sum([local_loss]).unwrap();
            close(name, &[loss], &[total]);
            for (parameter, grad) in grads {
                let (_, wanted) = gradients.iter().find(|(other, _)| *other == parameter).unwrap();
                close(&format!("{name}: {parameter}"), wanted, &grad);
            }
            assert_eq!(written(&model), replies, "{name}");
        });
    }
}

#[test]
fn ranks_with_different_experts_compute_what_one_computes() {
    for name in MOE_FAMILIES {
        let folder = adapter_folder(name, Quantization::Nf4, false);
        let model = adapted(&trunk(name, None, Quantization::Nf4), folder.path());
        let ((loss, gradients), replies) =
            (step_with_experts(&model, &ProcessGroups::single()), written(&model));
        let all = model.decoder().quantized_weights().len();
        on_every_mesh([1, 2, 2, 1, 1], Transport::Shared, |groups| {
            let model_parallel = ModelParallel {
                expert_parallel: Some(Arc::clone(groups.expert_parallel())),
                ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
            };
            let trunk = trunk(name, Some(&model_parallel), Quantization::Nf4);
            assert!(trunk.decoder().quantized_weights().len() < all, "{name}: experts are divided");
            let model = adapted(&trunk, folder.path());
            let (local_loss, local_grads) = step_with_experts(&model, groups);
            let [total] = groups.loss_group().all_reduce_sum([local_loss]).unwrap();
            close(name, &[loss], &[total]);
            for (parameter, local) in &local_grads {
                let (_, whole) = gradients.iter().find(|(other, _)| other == parameter).unwrap();
                close(&format!("{name}: the gradient of {parameter}"), whole, local);
            }
            assert_eq!(written(&model), replies, "{name}");
        });
    }
}

#[test]
fn roles_share_the_codes_of_their_trunk() {
    let base = trunk("llama", None, Quantization::Nf4);
    let policy = base.with_new_adapter(&plan(false), 3, true).unwrap();
    let critic = ScalarModel::on_trunk(&base, Some(&plan(true)), 4, true).unwrap();
    let logits = |model: &CausalLm| {
        let batch = models::batch::Batch::new(&outcome::ROWS, tch::Device::Cpu);
        outcome::flat(&no_grad(|| model.head().logits(&model.forward_no_grad(&batch).unwrap())).unwrap())
    };
    assert_eq!(logits(&policy), logits(&base), "a new adapter changes no bit");
    assert_eq!(logits(&policy.for_decoding().unwrap().share().unwrap()), logits(&base));
    let of_base = base.decoder().quantized_weights();
    assert!(!of_base.is_empty());
    for (layer, matrix) in critic.decoder().quantized_weights() {
        assert!(matrix.shares_codes_with(&of_base[layer]), "{layer}");
    }
    let error = base.save(tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
    assert!(error.contains("is quantised") && error.contains("save an adapter"), "{error}");
}

/// The magnitudes of a new DoRA adapter are the norms of the numbers that are computed with, so their factor
/// is one in bf16 too.
#[test]
fn a_new_dora_adapter_changes_no_bit_in_any_dtype() {
    for (quantization, kind) in
        QUANTIZATIONS.into_iter().flat_map(|it| [(it, Kind::Float), (it, Kind::BFloat16)])
    {
        let options = LoadOptions { kind, ..frozen(None, Some(quantization)) };
        let base = CausalLm::load(&golden_folder("llama"), &options).unwrap();
        let dora = base.with_new_adapter(&plan(true), 3, true).unwrap();
        let hidden = |model: &CausalLm| {
            let batch = models::batch::Batch::new(&outcome::ROWS, tch::Device::Cpu);
            no_grad(|| model.forward_no_grad(&batch)).unwrap()
        };
        assert!(hidden(&dora).equal(&hidden(&base)), "{quantization:?} {kind:?}");
    }
}

/// What is planned is what is held.
#[test]
fn a_plan_counts_the_bytes_of_codes() {
    let config = Config::from_folder(&golden_folder("llama")).unwrap();
    for quantization in QUANTIZATIONS {
        let base = trunk("llama", None, quantization);
        let codes: usize = base.decoder().quantized_weights().values().map(QuantizedMatrix::num_bytes).sum();
        let numbers = base.parameters().iter().filter(|parameter| parameter.tensor.kind() == Kind::Float);
        let numbers: usize = numbers.map(|parameter| 4 * parameter.tensor.numel()).sum();
        let spec = DecoderSpec::on_trunk(config.clone(), HeadKind::Vocabulary, None);
        let specs = weight_specs(spec, &frozen(None, Some(quantization))).unwrap();
        let planned = |spec: &parallel::residency::WeightSpec| {
            spec.shape.iter().product::<i64>() as usize * spec.kind.elt_size_in_bytes()
        };
        assert_eq!(specs.iter().map(planned).sum::<usize>(), codes + numbers, "{quantization:?}");
        let elements: i64 = base
            .decoder()
            .quantized_weights()
            .values()
            .map(|matrix| matrix.size().iter().product::<i64>())
            .sum();
        // What the codes of scales stand for takes 256 numbers of each matrix, which counts in a small one.
        let books = match quantization {
            Quantization::Nf4 => 4 * 257 * base.decoder().quantized_weights().len(),
            Quantization::Int8 => 0,
        };
        let (codes, bytes) = ((codes - books) as f64, elements as f64 * quantization.bytes_per_number());
        assert!(codes > bytes && codes < 2.0 * bytes, "{codes} for {elements} numbers");
    }
}

#[test]
fn what_cannot_be_quantised_is_refused_by_name() {
    let refused = |name: &str, options: &LoadOptions| {
        let error = CausalLm::load(&golden_folder(name), options).unwrap_err().to_string();
        assert!(error.contains("`quantize` = nf4 is not supported"), "{error}");
        error
    };
    let nf4 = frozen(None, Some(Quantization::Nf4));
    assert!(refused("llama", &LoadOptions { trainable: true, ..nf4.clone() }).contains("[model.lora]"));

    let lora = LoraConfig { modules_to_save: Some(vec!["o_proj".to_owned()]), ..LoraConfig::default() };
    let plan =
        Arc::new(AdapterFile { lora, base: None, revision: None, base_hash: None }.plan("test").unwrap());
    let base = trunk("llama", None, Quantization::Nf4);
    let error = base.with_new_adapter(&plan, 1, true).unwrap_err().to_string();
    assert!(error.contains("o_proj` is quantised") && error.contains("`modules_to_save`"), "{error}");
}
