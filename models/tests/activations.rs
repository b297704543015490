//! The activation memory that the configuration promises is what the allocator counts. The allocator belongs
//! to the process, so all of this is one test in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use models::activations::ActivationMemory;
use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::head;
use models::model_parallel::ModelParallel;
use parallel::{Segmented, allocator};
use planner::hardware::Dtype;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// A model with two blocks; `keys` change the file of its configuration.
fn model(family: &str, keys: &Value, kind: Kind) -> CausalLm {
    let mut file = json!({
        "model_type": family, "vocab_size": 512, "max_position_embeddings": 2048,
        "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": 32, "intermediate_size": 1024, "ffn_dim": 1024, "moe_intermediate_size": 512,
        "n_embd": 256, "n_layer": 2, "n_head": 8,
    });
    file.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let config = Config::from_json(&file.to_string(), "dir").unwrap();
    let model_parallel = ModelParallel::NONE;
    let options = LoadOptions {
        kind,
        device: Device::Cpu,
        trainable: true,
        model_parallel,
        memory: None,
        quantize: None,
    };
    CausalLm::random(config, 1, &options).unwrap()
}

fn batch(rows: usize, length: usize) -> Batch {
    let row: Vec<i64> = (0..length as i64).map(|index| index * 7 % 512).collect();
    Batch::new(&vec![row.as_slice(); rows], Device::Cpu)
}

/// The bytes that `compute` leaves behind in what it returns, and the most while it runs.
fn count<T>(compute: impl Fn() -> T) -> (T, usize, usize) {
    // What is computed once for a batch is there from here on.
    drop(compute());
    let before = allocator::live_bytes();
    allocator::reset_peak();
    let result = compute();
    (result, allocator::live_bytes() - before, allocator::peak_live_bytes() - before)
}

#[track_caller]
fn near(what: &str, counted: usize, planned: usize, tolerance: f64) {
    near_with(what, counted, planned, 0, tolerance);
}

/// `scratch` is what some processors take in addition, and others do not.
#[track_caller]
fn near_with(what: &str, counted: usize, planned: usize, scratch: usize, tolerance: f64) {
    let ratio = |planned: usize| planned as f64 / counted as f64;
    let is_near = ratio(planned) <= 1.0 + tolerance && ratio(planned + scratch) >= 1.0 - tolerance;
    assert!(is_near, "{what}: counted {counted}, planned {planned}, and {scratch} on some processors");
}

/// What oneDNN takes for a matrix product in bf16 where the processor has no instruction for the operands as
/// they lie: a copy of both in another layout, and the result in fp32.
fn product_scratch(kind: Kind, (rows, inner, columns): (usize, usize, usize)) -> usize {
    if kind == Kind::BFloat16 { 2 * (rows * inner + inner * columns) + 4 * rows * columns } else { 0 }
}

fn check(family: &str, keys: &Value, kind: Kind, (rows, length): (usize, usize), tolerance: f64) {
    let model = model(family, keys, kind);
    let batch = batch(rows, length);
    let (tokens, hidden_size) = (rows * length, model.config().architecture().hidden_size);
    let memory = ActivationMemory::new(model.config().architecture(), kind, 1);
    let what = format!("{family} {keys} {kind:?}, {rows} x {length}");

    let x = Tensor::randn([tokens as i64, hidden_size], (kind, Device::Cpu)).set_requires_grad(true);
    let (y, kept, _) = count(|| model.forward_segment(1, Some(&x), &batch).unwrap());
    near(&format!("{what}: a block keeps"), kept, memory.block(0, tokens), tolerance);

    // The seed of the backward pass is not part of it.
    let seed = Tensor::ones_like(&y);
    let indices = model.segment_parameters(1);
    let weights: Vec<Tensor> =
        indices.iter().map(|&index| model.parameters()[index].tensor.shallow_clone()).collect();
    let inputs: Vec<&Tensor> = weights.iter().chain([&x]).collect();
    let before = allocator::live_bytes();
    allocator::reset_peak();
    let grads = parallel::autograd::grad(&[&y], &[&seed], &inputs).unwrap();
    let most = allocator::peak_live_bytes() - before;
    drop(grads);
    let (hidden_size, inner) =
        (hidden_size as usize, model.config().architecture().intermediate_size as usize);
    near_with(
        &format!("{what}: a block in its backward pass"),
        kept + most,
        memory.block(0, tokens) + memory.block_backward(0, tokens),
        product_scratch(kind, (tokens, inner, hidden_size)),
        tolerance,
    );

    let norm = model.num_segments() - 1;
    let (_, kept, _) = count(|| model.forward_segment(norm, Some(&x), &batch).unwrap());
    near(&format!("{what}: the norm keeps"), kept, memory.final_norm(tokens), tolerance);

    let dtype = if kind == Kind::Float { Dtype::Float32 } else { Dtype::BFloat16 };
    let loss_bytes = |is_trained| {
        memory.vocabulary(is_trained).loss(tokens as f64, 1.0, dtype).map(|bytes| bytes as usize)
    };
    let targets = Tensor::zeros([tokens as i64], (Kind::Int64, Device::Cpu));
    let (_, kept, most) = count(|| head::cross_entropy(&x, model.head(), &targets, None).unwrap());
    let planned = loss_bytes(true);
    near(&format!("{what}: the head keeps"), kept, planned[0], tolerance);
    let vocab_size = model.config().architecture().vocab_size as usize;
    let scratch = product_scratch(kind, (tokens, hidden_size, vocab_size));
    near_with(&format!("{what}: the head at most"), most, planned[1], scratch, tolerance);

    let frozen = model.for_decoding().unwrap();
    let (_, kept, most) = count(|| head::cross_entropy(&x, frozen.head(), &targets, None).unwrap());
    let planned = loss_bytes(false);
    near(&format!("{what}: the frozen head keeps"), kept, planned[0], tolerance);
    near_with(&format!("{what}: the frozen head at most"), most, planned[1], scratch, tolerance);
}

#[test]
fn activations_take_what_the_configuration_promises() {
    allocator::install().unwrap();
    for kind in [Kind::Float, Kind::BFloat16] {
        for keys in [
            json!({}),
            json!({"hidden_size": 512}),
            json!({"num_attention_heads": 16}),
            json!({"num_key_value_heads": 4}),
            json!({"intermediate_size": 2048, "vocab_size": 4096}),
        ] {
            check("llama", &keys, kind, (1, 512), 0.12);
        }
        check("llama", &json!({"vocab_size": 32_000}), kind, (2, 640), 0.12);
        check("qwen3", &json!({}), kind, (4, 256), 0.12);
        check("gpt2", &json!({}), kind, (2, 512), 0.12);
        let experts = json!({"num_local_experts": 8, "num_experts_per_tok": 2});
        check("mixtral", &experts, kind, (2, 512), 0.3);
    }
}
