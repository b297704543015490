//! The operations that a layer takes, forward, forward and backward, and for a decoded token. Each is a
//! kernel that is started, waits for all threads and goes over memory, so a change that adds one says so
//! here.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::sync::Arc;

use models::batch::Batch;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::head;
use models::lora::{AdapterFile, LoraConfig};
use models::model_parallel::ModelParallel;
use parallel::operations::{self, Counts};
use parallel::segment::ForwardPass;
use parallel::{Segmented, upload};
use serde_json::json;
use tch::{Device, Kind};

/// Operations that compute nothing: they describe the same memory anew, allocate, or call another operation
/// that is counted too.
const NO_KERNEL: [&str; 41] = [
    "_to_copy",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "detach_",
    "embedding",
    "embedding_backward",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "flatten",
    "item",
    "linear",
    "lift_fresh",
    "matmul",
    "mean",
    "narrow",
    "numpy_T",
    "reshape",
    "resize_",
    "resolve_conj",
    "result_type",
    "scaled_dot_product_attention",
    "select",
    "slice",
    "split",
    "square",
    "squeeze",
    "t",
    "to",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
    "zeros",
    "zeros_like",
];

fn model(layers: i64, is_trained: bool) -> CausalLm {
    let file = json!({
        "model_type": "llama", "vocab_size": 64, "max_position_embeddings": 128, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let options = LoadOptions {
        kind: Kind::Float,
        device: Device::Cpu,
        trainable: is_trained,
        model_parallel: ModelParallel::NONE,
        memory: None,
        quantize: None,
    };
    CausalLm::random(Config::from_json(&file.to_string(), "test").unwrap(), 1, &options).unwrap()
}

fn rows() -> [Vec<i64>; 2] {
    [(0..20).collect(), (5..25).collect()]
}

fn batch() -> Batch {
    let rows = rows();
    Batch::new(&rows.each_ref().map(Vec::as_slice), Device::Cpu)
}

/// The kernels of `compute` in each layer, and outside of the layers.
fn kernels(is_trained: bool, compute: impl Fn(&CausalLm) -> Counts) -> (usize, usize) {
    let [two, three] = [2, 3].map(|layers| {
        let counts = compute(&model(layers, is_trained));
        println!("{layers} layers: {counts:?}");
        let is_kernel = |name: &str| match name.strip_prefix("aten::") {
            Some(name) => !NO_KERNEL.contains(&name),
            // The steps of autograd are counted as well.
            None => name.starts_with("mkldnn::") || name.starts_with("kernels::"),
        };
        counts.iter().filter(|(name, _)| is_kernel(name)).map(|(_, count)| count).sum::<usize>()
    });
    let layer = three - two;
    (layer, two - 2 * layer)
}

fn forward(model: &CausalLm) -> Counts {
    let batch = batch();
    operations::count(|| model.forward_no_grad(&batch).unwrap()).unwrap().1
}

fn training(model: &CausalLm) -> Counts {
    let batch = batch();
    let targets = upload(&rows().concat(), Device::Cpu);
    let step = || {
        let forward = ForwardPass::run(model, &batch, false).unwrap();
        let loss = head::cross_entropy(forward.hidden(), model.head(), &targets, None).unwrap();
        forward.backward::<parallel::Error>(&loss, &mut |_, _, _| Ok(())).unwrap();
    };
    operations::count(step).unwrap().1
}

/// Training of an adapter in the last block.
fn training_on_top(model: &CausalLm) -> Counts {
    let last = model.config().architecture().num_layers as usize - 1;
    let lora = LoraConfig { layers_to_transform: Some(vec![last]), ..LoraConfig::default() };
    let file = AdapterFile { lora, base: None, revision: None, base_hash: None };
    let plan = Arc::new(file.plan("test").unwrap());
    training(&model.with_new_adapter(&plan, 1, true).unwrap())
}

/// One token for each of four rows.
fn decoding(model: &CausalLm) -> Counts {
    let model = model.for_decoding().unwrap();
    let mut cache = model.decoder().cache(4, 32);
    let mut step = |tokens: &[i64], past| {
        let pages = [[0], [1], [2], [3]];
        let rows = pages.each_ref().map(|pages| CachedRow { tokens, past, pages, outputs: Outputs::Last });
        model.step(&rows, &mut cache).unwrap()
    };
    let _ = step(&[1, 2, 3], 0);
    let _ = step(&[4], 3);
    operations::count(|| step(&[5], 4)).unwrap().1
}

#[test]
fn a_block_below_all_adapters_runs_forward_alone() {
    assert_eq!(kernels(false, training_on_top).0, kernels(false, forward).0);
}

#[test]
fn a_layer_takes_no_more_kernels_than_before() {
    let found = [kernels(false, forward), kernels(true, training), kernels(false, decoding)];
    let most = [(15, 18), (47, 57), (17, 12)];
    let is_more = |(found, most): (&(usize, usize), &(usize, usize))| found.0 > most.0 || found.1 > most.1;
    assert!(
        !found.iter().zip(&most).any(is_more),
        "forward, with backward, and a decoded token, in a layer and outside of the layers: {found:?}"
    );
}
