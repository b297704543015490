//! Ranks that share a model write the replies of the whole model.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use inference::generate::{self, GenerationOptions, RequestIds};
use inference::sample::SamplingParams;
use models::causal_lm::{CausalLm, LoadOptions};
use models::model_parallel::ModelParallel;
use on_mesh::on_mesh;
use parallel::{Axis, Transport};
use tch::{Device, Kind};

/// Runs `body` on `size` tensor-parallel ranks, each a thread.
fn on_ranks<T: Send>(size: usize, body: impl Fn(&ModelParallel) -> T + Sync) -> Vec<T> {
    on_mesh(&[(Axis::Tensor, size)], Transport::Shared, |groups| {
        body(&ModelParallel::tensor_parallel_only(groups.tensor_parallel()))
    })
}

/// The folder of a golden model.
fn golden_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

fn load(name: &str, model_parallel: &ModelParallel) -> CausalLm {
    let options = LoadOptions {
        kind: Kind::Float,
        device: Device::Cpu,
        trainable: false,
        model_parallel: model_parallel.clone(),
        memory: None,
    };
    CausalLm::load(&golden_folder(name), &options).unwrap()
}

/// Replies to three prompts, two at a time.
fn written(model: &CausalLm, temperature: f64) -> Vec<Vec<i64>> {
    let prompts: Vec<Vec<i64>> = vec![vec![5, 9, 41], vec![30], vec![1, 2, 3, 46, 8]];
    let options = GenerationOptions {
        sampling: SamplingParams { temperature, ..SamplingParams::default() },
        max_new_tokens: 6,
        stop_ids: vec![7],
        seed: 3,
        request_ids: RequestIds::From(0),
        max_num_seqs: 2,
        speculative_tokens: 0,
        draft: None,
    };
    let listener = &mut |_: usize, _: i64| ControlFlow::Continue(());
    let completions = generate::generate(model, &prompts, &options, listener).unwrap();
    completions.into_iter().map(|completion| completion.ids).collect()
}

#[test]
fn ranks_that_share_a_model_write_the_replies_of_the_whole() {
    for name in ["llama", "gpt2", "bloom", "qwen3"] {
        let model = load(name, &ModelParallel::NONE);
        let whole = [0.0, 1.0].map(|temperature| written(&model, temperature));
        for size in [2, 4] {
            let replies = |model_parallel: &ModelParallel| {
                let model = load(name, model_parallel);
                [0.0, 1.0].map(|temperature| written(&model, temperature))
            };
            for sharded in on_ranks(size, replies) {
                assert_eq!(whole, sharded, "{name} on {size}");
            }
        }
    }
}
