//! Adapters on one copy of the weights of their base: the bytes that they add, and replies of engines that
//! take turns, which are those of each model alone.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::path::{Path, PathBuf};

use inference::engine::{Engine, EngineOptions};
use inference::model_folder::ModelFolder;
use inference::request::{Event, Request};
use inference::sample::SamplingParams;
use inference::scheduler::Order;
use inference::shared_weights::SharedWeights;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::lora::{AdapterFile, LoraConfig};
use models::scalar_model::ScalarModel;
use parallel::{Segmented, allocator};
use tch::{Device, Kind, Tensor, no_grad};

const LOAD: LoadOptions = LoadOptions::frozen(Kind::Float, Device::Cpu);

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 400, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}"#;

/// The adapters of the test: two language models, the second with a head of its own, and a reward model.
const ADAPTERS: [&str; 3] = ["a", "b", "reward"];

/// Makes a base with adapters whose numbers depend on their names, and returns their folders.
fn make(folder: &Path) -> (PathBuf, Vec<PathBuf>) {
    let base = folder.join("base");
    let model = CausalLm::random(Config::from_json(LLAMA, "test").unwrap(), 3, &LOAD).unwrap();
    model.save(&base).unwrap();
    let adapter = |name: &str| {
        let modules_to_save = (name == "b").then(|| vec!["lm_head".to_owned()]);
        let lora = LoraConfig { r: 2, lora_alpha: 16.0, modules_to_save, ..LoraConfig::default() };
        let file =
            AdapterFile { lora, base: Some(base.display().to_string()), revision: None, base_hash: None };
        let plan = std::sync::Arc::new(file.plan("test").unwrap());
        let path = folder.join(name);
        if name == "reward" {
            let model = ScalarModel::on_trunk(&model, Some(&plan), 5, true).unwrap();
            change(&model, name);
            model.save(&path).unwrap();
        } else {
            let model = model.with_new_adapter(&plan, 5, true).unwrap();
            change(&model, name);
            model.save(&path).unwrap();
        }
        path
    };
    (base.clone(), ADAPTERS.map(adapter).to_vec())
}

/// Gives the trained numbers of a model other values.
fn change(model: &impl Segmented, name: &str) {
    for parameter in model.parameters().iter().filter(|parameter| parameter.tensor.requires_grad()) {
        let number = parallel::fnv1a(format!("{name} {}", parameter.name)) % 1000;
        let first = f64::from(u32::try_from(number).unwrap());
        let mut tensor = parameter.tensor.detach();
        let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)) + first;
        no_grad(|| tensor.copy_(&(values.sin() * 0.1).view_as(&tensor)));
    }
}

fn engine(model: &CausalLm) -> Engine {
    let options = EngineOptions {
        sequences: 4,
        cached_tokens: 64,
        batched_tokens: 32,
        order: Order::Arrival,
        speculative_tokens: 0,
    };
    Engine::new(model, options).unwrap()
}

/// The replies of several engines, which take a step each until all are idle.
fn replies(engines: &mut [Engine]) -> Vec<Vec<i64>> {
    let mut replies = vec![Vec::new(); engines.len()];
    for (engine, seed) in engines.iter_mut().zip(1..) {
        let prompt: Vec<i64> = (0..20).map(|place| (place * 17 + 3) % 400).collect();
        let request = Request {
            seed,
            max_new_tokens: 12,
            stop_ids: [].into(),
            ..Request::new(prompt.into(), SamplingParams::default())
        };
        engine.add(request).unwrap();
    }
    while engines.iter().any(|engine| !engine.is_idle()) {
        for (engine, reply) in engines.iter_mut().zip(&mut replies) {
            let mut events = Vec::new();
            engine.step(&mut events).unwrap();
            let tokens = events.into_iter().filter_map(|event| match event {
                Event::Token { token, .. } => Some(token.id),
                _ => None,
            });
            reply.extend(tokens);
        }
    }
    replies
}

fn file_bytes(path: &Path) -> usize {
    std::fs::metadata(path).unwrap().len() as usize
}

/// One test alone in this process: another one would count its own tensors.
#[test]
fn adapters_share_one_copy_and_compute_what_they_compute_alone() {
    allocator::install().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let (base, adapters) = make(scratch.path());
    let folders: Vec<ModelFolder> =
        [&base].into_iter().chain(&adapters).map(|path| ModelFolder::open(path.clone()).unwrap()).collect();

    let before = allocator::live_bytes();
    let mut weights = SharedWeights::default();
    let mut models = Vec::new();
    for folder in &folders[..3] {
        let (session, trunk) = weights.causal_lm(folder, None, &LOAD).unwrap();
        assert_eq!(trunk.is_some(), folder.base().is_none(), "the base alone is read");
        weights.keep(trunk);
        models.push(session.model);
    }
    let reward = weights.scalar_model(&folders[3], None, &LOAD).unwrap().model;
    let shared = allocator::live_bytes() - before;
    let base_bytes = file_bytes(&base.join("model.safetensors"));
    let added: usize = adapters.iter().map(|path| file_bytes(&path.join("adapter_model.safetensors"))).sum();
    // The heap sets aside a little more for each small tensor than it has.
    assert!(base_bytes > 6 << 20 && added < base_bytes / 8, "{base_bytes} {added}");
    assert!(
        (base_bytes..base_bytes + added * 5 / 4).contains(&(shared + 16384)),
        "{shared} {base_bytes} {added}"
    );

    let mut engines: Vec<Engine> = models.iter().map(engine).collect();
    let together = replies(&mut engines);
    let scores = values(&reward);
    // The caches of three engines: two numbers for each of 2 heads of 64 in 3 layers and 64 tokens.
    let caches = 3 * 2 * 2 * 64 * 3 * 64 * 4;
    let with_engines = allocator::live_bytes() - before;
    assert!(with_engines < shared + caches + base_bytes / 8, "{with_engines} {shared}");
    drop((engines, models, reward, weights));

    let alone = |folder: &ModelFolder| {
        let model = folder.causal_lm(&LOAD).unwrap();
        engine(&model)
    };
    let mut engines: Vec<Engine> = folders[..3].iter().map(alone).collect();
    assert_eq!(replies(&mut engines), together);
    assert!(together[0] != together[1] && together[1] != together[2] && together[0] != together[2]);
    assert_eq!(values(&folders[3].scalar_model(&LOAD).unwrap()), scores);
    assert!(allocator::live_bytes() - before > 3 * base_bytes, "three models alone have three copies");
}

/// The value of each token of a row.
fn values(model: &ScalarModel) -> Vec<f32> {
    let row: Vec<i64> = (0..9).map(|place| place * 31 % 400).collect();
    let batch = models::batch::Batch::new(&[&row[..]], Device::Cpu);
    let values = no_grad(|| model.values(&model.forward_no_grad(&batch).unwrap()).unwrap());
    Vec::<f32>::try_from(values).unwrap()
}
