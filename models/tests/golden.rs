//! Every family against the logits of transformers (`golden/make_golden.py`), and the forms of the forward
//! pass against one another: packed rows, segments with and without checkpointing, rows in pieces
//! with a cache, save and load.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "golden/folder.rs"]
mod folder;

use std::ops::Range;
use std::path::Path;

use folder::{golden_folder, with_aux_loss};
use models::batch::Batch;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::{CausalLm, LoadOptions};
use models::head;
use models::model_parallel::ModelParallel;
use models::scalar_model::ScalarModel;
use parallel::{ForwardPass, GradientSource, Segmented};
use tch::{Device, Kind, Tensor};

const MODELS: [&str; 25] = [
    "llama",
    "llama-tied",
    "llama-biases",
    "llama-linear",
    "llama-dynamic",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gpt2",
    "gpt2-scaled",
    "opt",
    "opt-after",
    "bloom",
    "bloom-normed",
    "neox",
    "neox-sequential",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "mixtral-bare",
    "qwen2-moe-window",
    "qwen3-moe-window",
];
const OPTIONS: LoadOptions = LoadOptions {
    kind: Kind::Float,
    device: Device::Cpu,
    trainable: false,
    model_parallel: ModelParallel::NONE,
    memory: None,
    quantize: None,
};
const TRAINABLE: LoadOptions = LoadOptions { trainable: true, ..OPTIONS };

/// Two rows of ids and what transformers makes of them.
struct Golden {
    rows: Vec<Vec<i64>>,
    logits: Vec<Tensor>,
}

fn golden(name: &str) -> Golden {
    let tensors = Tensor::read_safetensors(golden_folder(name).join("golden.safetensors")).unwrap();
    let get = |key: &str| tensors.iter().find(|(name, _)| name == key).unwrap().1.shallow_clone();
    Golden {
        rows: [0, 1].map(|row| Vec::try_from(get(&format!("ids.{row}"))).unwrap()).to_vec(),
        logits: [0, 1].map(|row| get(&format!("logits.{row}"))).into(),
    }
}

fn batch(rows: &[Vec<i64>]) -> Batch {
    Batch::new(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), Device::Cpu)
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

/// The part of flat hidden states that belongs to a row.
fn row_of(batch: &Batch, hidden: &Tensor, row: usize) -> Tensor {
    hidden.narrow(0, batch.first_indices()[row], batch.lengths[row])
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let model = CausalLm::load(&golden_folder(name), &OPTIONS).unwrap();
        let golden = golden(name);
        let mut rows = golden.rows.clone();
        rows.push(rows[0].clone()); // A third row, so that the rows of a group are apart in the batch.
        let batch = batch(&rows);
        let logits = model.forward_no_grad(&batch).unwrap().matmul(&model.head().weight.tr());
        for (row, expected) in golden.logits.iter().chain([&golden.logits[0]]).enumerate() {
            let difference = difference(&row_of(&batch, &logits, row), expected);
            assert!(difference < 1e-4, "{name} row {row}: {difference}");
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for name in ["llama-score", "gpt2-score", "opt-score"] {
        let model = ScalarModel::load(&golden_folder(name), &OPTIONS).unwrap();
        let golden = golden(name);
        let batch = batch(&golden.rows);
        let values = model.values(&model.forward_no_grad(&batch).unwrap()).unwrap();
        for (row, &last) in batch.last_indices().iter().enumerate() {
            let difference = (values.double_value(&[last]) - golden.logits[row].double_value(&[0])).abs();
            assert!(difference < 1e-4, "{name} row {row}: {difference}");
        }
    }
}

/// Positions at which cached and whole passes must agree: dynamic NTK turns old keys anew once a row is
/// longer than the model's positions, and a cache does not.
fn comparable(name: &str, length: i64) -> i64 {
    if name == "llama-dynamic" { length.min(16) } else { length }
}

#[test]
fn a_cache_changes_nothing() {
    for name in MODELS {
        let model = CausalLm::load(&golden_folder(name), &OPTIONS).unwrap();
        let mut rows = golden(name).rows;
        rows[1].truncate(comparable(name, 23) as usize);
        let whole = batch(&rows);
        let expected = model.forward_no_grad(&whole).unwrap();
        let mut cache = model.decoder().cache(12, 4);
        // Pages of four tokens, in no order. The last three belong to a second copy of row 0.
        let pages: [&[u32]; 3] = [&[7, 2, 9], &[0, 5, 3, 11, 1, 6], &[4, 10, 8]];
        let mut step = |spans: &[(usize, Range<usize>)]| {
            let row = |(place, span): &(usize, Range<usize>)| CachedRow {
                tokens: &rows[place % 2][span.clone()],
                past: span.start,
                pages: pages[*place],
                outputs: Outputs::All,
            };
            let hidden = model.step(&spans.iter().map(row).collect::<Vec<_>>(), &mut cache).unwrap();
            let mut start = 0;
            for (place, span) in spans {
                let count = span.len() as i64;
                let expected = row_of(&whole, &expected, place % 2).narrow(0, span.start as i64, count);
                let difference = difference(&hidden.narrow(0, start, count), &expected);
                assert!(difference < 1e-5, "{name} row {place}, {span:?}: {difference}");
                start += count;
            }
            assert_eq!(hidden.size()[0], start);
        };

        step(&[(0, 0..2), (1, 0..4)]);
        // A single token, a row that goes on, and a whole row, in one step.
        step(&[(0, 2..3), (1, 4..9), (2, 0..5)]);
        step(&[(0, 3..5)]);
        for index in 0..6 {
            step(&[(1, 9 + index..10 + index), (0, 5 + index..6 + index), (2, 5 + index..6 + index)]);
        }
        for position in 15..rows[1].len() {
            step(&[(1, position..position + 1)]);
        }
    }
}

#[test]
fn only_the_wanted_tokens_have_an_output() {
    let model = CausalLm::load(&golden_folder("llama"), &OPTIONS).unwrap();
    let rows = golden("llama").rows;
    let whole = batch(&rows);
    let expected = model.forward_no_grad(&whole).unwrap();
    let mut cache = model.decoder().cache(2, 16);
    let row = |index: usize, outputs| CachedRow {
        tokens: &rows[index][..6],
        past: 0,
        pages: [&[1], &[0]][index],
        outputs,
    };
    let hidden = model.step(&[row(1, Outputs::Last), row(0, Outputs::None)], &mut cache).unwrap();
    assert!(difference(&hidden, &row_of(&whole, &expected, 1).narrow(0, 5, 1)) < 1e-5);
    let hidden = model.step(&[row(0, Outputs::None)], &mut cache).unwrap();
    assert_eq!(hidden.size()[0], 0);
}

#[test]
fn segments_give_the_gradients_of_the_whole_graph() {
    for name in MODELS {
        let model = CausalLm::load(&golden_folder(name), &TRAINABLE).unwrap();
        let batch = batch(&golden(name).rows);
        let loss_of = |hidden: &Tensor| {
            hidden.matmul(&model.head().weight.tr()).log_softmax(-1, Kind::Float).square().mean(Kind::Float)
        };
        let hidden = (1..model.num_segments())
            .fold(model.forward_segment(0, None, &batch).unwrap(), |hidden, index| {
                model.forward_segment(index, Some(&hidden), &batch).unwrap()
            });
        loss_of(&hidden).backward();
        let expected: Vec<Tensor> =
            model.parameters().iter().map(|parameter| parameter.tensor.grad().copy()).collect();
        for checkpoint in [false, true] {
            let mut got: Vec<Tensor> = expected.iter().map(Tensor::zeros_like).collect();
            let forward = ForwardPass::run(&model, &batch, checkpoint).unwrap();
            let loss = loss_of(forward.hidden());
            let mut add = |_, index: usize, grad: Tensor| {
                got[index] += grad;
                Ok(())
            };
            forward.backward::<parallel::Error>(&loss, &mut add).unwrap();
            for ((parameter, got), expected) in model.parameters().iter().zip(&got).zip(&expected) {
                let difference = difference(got, expected);
                assert!(difference < 1e-6, "{name} {}: {difference}", parameter.name);
            }
        }
    }
}

#[test]
fn parameters_have_unique_names_and_each_segment_its_own() {
    for name in MODELS {
        let model = CausalLm::load(&golden_folder(name), &OPTIONS).unwrap();
        let mut names: Vec<&str> =
            model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{name}");
        let mut used: Vec<usize> =
            (0..model.num_segments()).flat_map(|index| model.segment_parameters(index)).collect();
        used.extend(model.head_parameters());
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, (0..names.len()).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn what_is_saved_is_what_was_loaded() {
    for name in MODELS {
        let model = CausalLm::load(&golden_folder(name), &OPTIONS).unwrap();
        let target = tempfile::tempdir().unwrap();
        model.save(target.path()).unwrap();
        let again = CausalLm::load(target.path(), &OPTIONS).unwrap();
        let batch = batch(&golden(name).rows);
        assert_eq!(model.forward_no_grad(&batch).unwrap(), again.forward_no_grad(&batch).unwrap(), "{name}");
        let config = |path: &Path| -> serde_json::Value {
            serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap()
        };
        assert_eq!(config(target.path()), config(&golden_folder(name)), "{name}");
    }
}

#[test]
fn a_reward_model_begins_with_the_trunk_of_a_language_model() {
    for name in ["llama", "gpt2", "opt-after", "bloom", "neox"] {
        let language = CausalLm::load(&golden_folder(name), &OPTIONS).unwrap();
        let from_folder = ScalarModel::from_causal_lm(&golden_folder(name), 7, &OPTIONS).unwrap();
        let from_model = ScalarModel::from_model(&language, 7, &OPTIONS).unwrap();
        let batch = batch(&golden(name).rows);
        let hidden = language.forward_no_grad(&batch).unwrap();
        let values = from_folder.values(&from_folder.forward_no_grad(&batch).unwrap()).unwrap();
        assert_eq!(hidden, from_model.forward_no_grad(&batch).unwrap(), "{name}");
        assert_eq!(values, from_model.values(&hidden).unwrap(), "{name}");
        let target = tempfile::tempdir().unwrap();
        from_folder.save(target.path()).unwrap();
        let again = ScalarModel::load(target.path(), &OPTIONS).unwrap();
        assert_eq!(again.values(&again.forward_no_grad(&batch).unwrap()).unwrap(), values, "{name}");
    }
}

#[test]
fn a_new_model_depends_on_its_seed_alone() {
    let config = || models::config::Config::from_folder(&golden_folder("gpt2")).unwrap();
    let [one, same, other] = [1, 1, 2].map(|seed| CausalLm::random(config(), seed, &OPTIONS).unwrap());
    let batch = batch(&[vec![1, 2, 3]]);
    assert_eq!(one.forward_no_grad(&batch).unwrap(), same.forward_no_grad(&batch).unwrap());
    assert_ne!(one.forward_no_grad(&batch).unwrap(), other.forward_no_grad(&batch).unwrap());
    let weight = |suffix: &str| {
        let parameter = one.parameters().iter().find(|parameter| parameter.name.ends_with(suffix)).unwrap();
        parameter.tensor.std(false).double_value(&[])
    };
    // 0.02, and 0.02 / sqrt(2 * 2 layers) for the way back into the stream; 1728 and 2304 draws.
    assert!((weight("h.0.attn.c_attn.weight") - 0.02).abs() < 0.002);
    assert!((weight("h.0.mlp.c_proj.weight") - 0.01).abs() < 0.001);
}

#[test]
fn half_precision_stays_near() {
    let options = LoadOptions { kind: Kind::BFloat16, ..OPTIONS };
    for name in ["llama", "gpt2", "bloom", "neox"] {
        let model = CausalLm::load(&golden_folder(name), &options).unwrap();
        let golden = golden(name);
        let batch = batch(&golden.rows);
        let logits =
            model.forward_no_grad(&batch).unwrap().matmul(&model.head().weight.tr()).to_kind(Kind::Float);
        let scale = golden.logits[1].abs().max().double_value(&[]);
        let difference = difference(&row_of(&batch, &logits, 1), &golden.logits[1]) / scale;
        assert!(difference < 0.05, "{name}: {difference}");
    }
}

#[test]
fn the_load_balancing_loss_is_that_of_transformers() {
    // transformers, `output_router_logits=True, router_aux_loss_coef=0.4`, the second golden row as its own
    // labels: the gradient of the one router, which sees the row by itself.
    let wanted =
        [-0.014_176_738, 0.114_350_05, 0.056_824_058, -0.007_084_972_7, -0.036_130_205, 0.089_971_155];
    let model = CausalLm::load(with_aux_loss("qwen2-moe").path(), &TRAINABLE).unwrap();
    let row = golden("qwen2-moe").rows[1].clone();
    let mut batch = batch(std::slice::from_ref(&row));
    batch.aux_loss_divisor = row.len() as f64;
    let forward = ForwardPass::run(&model, &batch, true).unwrap();
    let predicted = row.len() as i64 - 1;
    let targets = Tensor::from_slice(&row[1..]);
    let loss =
        head::cross_entropy(&forward.hidden().narrow(0, 0, predicted), model.head(), &targets, None).unwrap();
    let mut found = None;
    let mut deliver = |_: GradientSource, index: usize, grad: Tensor| {
        if model.parameters()[index].name.ends_with("mlp.gate.weight") {
            found = Some(grad);
        }
        Ok(())
    };
    let _ = forward.backward::<parallel::Error>(&(loss / predicted as f64), &mut deliver).unwrap();
    let found = found.unwrap();
    for (index, wanted) in wanted.into_iter().enumerate() {
        assert!((found.double_value(&[0, index as i64]) - wanted).abs() < 1e-6, "{found}");
    }
    assert!((found.abs().sum(Kind::Float).double_value(&[]) - 7.078_093_5).abs() < 1e-5);
}
