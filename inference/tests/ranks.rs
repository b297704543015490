//! Ranks that share a model write the replies of the whole model.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inference::generate::{self, Completion, GenerationOptions, Generator, GeneratorOptions, RequestIds};
use inference::request::FinishReason;
use inference::sample::SamplingParams;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::model_parallel::{ModelParallel, PipelineParallel};
use on_mesh::on_mesh;
use parallel::comm::ProcessGroup;
use parallel::pipeline::ScheduleKind;
use parallel::{Axis, Transport};
use tch::{Device, Kind};

/// Runs `body` on the ranks of a mesh of pipeline, expert and tensor, each a thread.
fn on_ranks<T: Send>(
    [pipeline, expert, tensor]: [usize; 3],
    (schedule_kind, transport): (ScheduleKind, Transport),
    body: impl Fn(&ModelParallel) -> T + Sync,
) -> Vec<T> {
    let axes = [(Axis::Pipeline, pipeline), (Axis::Expert, expert), (Axis::Tensor, tensor)];
    on_mesh(&axes, transport, |groups| {
        let several = |group: &Arc<ProcessGroup>| (group.size() > 1).then(|| Arc::clone(group));
        let pipeline_parallel = several(groups.pipeline_parallel()).map(|group| PipelineParallel {
            group,
            schedule_kind,
            virtual_stages: 2,
            embedding_group: groups.embedding_group().cloned(),
        });
        body(&ModelParallel {
            tensor_parallel: several(groups.tensor_parallel()),
            expert_parallel: several(groups.expert_parallel()),
            pipeline_parallel,
            ..ModelParallel::NONE
        })
    })
}

const SHARED: (ScheduleKind, Transport) = (ScheduleKind::OneForwardOneBackward, Transport::Shared);

/// The folder of a golden model.
fn golden_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

const LOAD: LoadOptions = LoadOptions::frozen(Kind::Float, Device::Cpu);

fn load(name: &str, model_parallel: &ModelParallel) -> CausalLm {
    let options = LoadOptions { model_parallel: model_parallel.clone(), ..LOAD };
    CausalLm::load(&golden_folder(name), &options).unwrap()
}

/// Five prompts, of which one has two samples.
fn prompts() -> Vec<Vec<i64>> {
    vec![vec![5, 9, 41], vec![30], vec![30], vec![1, 2, 3, 46, 8], vec![7, 7, 7, 7, 7, 7], vec![12, 40]]
}

fn options(temperature: f64) -> GenerationOptions {
    GenerationOptions {
        sampling: SamplingParams { temperature, ..SamplingParams::default() },
        max_new_tokens: 6,
        stop_ids: vec![7],
        seed: 3,
        request_ids: RequestIds::From(0),
    }
}

/// Replies to the prompts, four at a time, of which the caller ends the last one after two tokens.
fn written(model: &CausalLm, temperature: f64, speculative_tokens: usize) -> Vec<Completion> {
    let (prompts, options) = (prompts(), options(temperature));
    let room = GeneratorOptions::for_prompts(model, &prompts, options.max_new_tokens, 4);
    let room = GeneratorOptions { speculative_tokens, ..room };
    let mut seen = 0;
    let on_token = &mut |index: usize, _: i64| {
        seen += usize::from(index == 5);
        if seen == 2 && index == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    generate::generate(model, &prompts, &room, &options, on_token).unwrap()
}

fn ids(completions: &[Completion]) -> Vec<(&[i64], FinishReason)> {
    completions.iter().map(|completion| (completion.ids.as_slice(), completion.finish_reason)).collect()
}

#[test]
fn ranks_that_share_a_model_write_the_replies_of_the_whole() {
    // Pipeline, expert and tensor ranks.
    let meshes = [[1, 1, 2], [1, 1, 4], [2, 1, 1], [3, 1, 1], [2, 1, 2]];
    let dense = ["llama", "gpt2", "bloom", "qwen3"].map(|name| (name, meshes.as_slice()));
    for (name, meshes) in dense.into_iter().chain([("mixtral", [[1, 2, 1], [2, 2, 1], [1, 2, 2]].as_slice())])
    {
        let model = load(name, &ModelParallel::NONE);
        for (temperature, guesses) in [(0.0, 0), (1.0, 0), (0.0, 2)] {
            let whole = written(&model, temperature, guesses);
            for &mesh in meshes {
                let replies = |model_parallel: &ModelParallel| {
                    written(&load(name, model_parallel), temperature, guesses)
                };
                let ranks = on_ranks(mesh, SHARED, replies);
                for rank in &ranks {
                    // Every rank has the numbers of the rank that draws, in all bits.
                    assert_eq!(rank, &ranks[0], "{name} on {mesh:?}");
                }
                assert_eq!(ids(&whole), ids(&ranks[0]), "{name} on {mesh:?} at {temperature} with {guesses}");
            }
        }
    }
}

#[test]
fn stages_that_talk_over_sockets_write_the_same_replies() {
    let whole = written(&load("llama", &ModelParallel::NONE), 1.0, 0);
    let replies = |model_parallel: &ModelParallel| written(&load("llama", model_parallel), 1.0, 0);
    for rank in on_ranks([2, 1, 1], (ScheduleKind::OneForwardOneBackward, Transport::Gloo), replies) {
        assert_eq!(ids(&whole), ids(&rank));
    }
}

/// With several stages, a rank waits for other ranks in the middle of a step.
#[test]
fn ranks_with_several_stages_write_the_same_replies() {
    let whole = written(&load("llama", &ModelParallel::NONE), 1.0, 0);
    let replies = |model_parallel: &ModelParallel| written(&load("llama", model_parallel), 1.0, 0);
    for schedule in [ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV] {
        for transport in [Transport::Shared, Transport::Gloo] {
            for rank in on_ranks([2, 1, 1], (schedule, transport), replies) {
                assert_eq!(ids(&whole), ids(&rank), "{schedule:?}");
            }
        }
    }
}

/// Ranks of different machines round differently. Here one of them even has another model.
#[test]
fn ranks_follow_the_one_that_draws() {
    let replies = on_ranks([1, 2, 1], SHARED, |model_parallel| {
        let group = model_parallel.expert_parallel.as_ref().unwrap();
        let options = LoadOptions { model_parallel: model_parallel.clone(), ..LOAD };
        let model = match group.rank() {
            0 => CausalLm::load(&golden_folder("llama"), &options).unwrap(),
            _ => {
                CausalLm::random(Config::from_folder(&golden_folder("llama")).unwrap(), 3, &options).unwrap()
            }
        };
        written(&model, 1.0, 0)
    });
    assert_eq!(ids(&replies[0]), ids(&replies[1]));
    assert_eq!(ids(&replies[0]), ids(&written(&load("llama", &ModelParallel::NONE), 1.0, 0)));
}

/// A stage sends hidden states forward, and the last one sends three numbers for each token back: no logits.
#[test]
fn stages_send_hidden_states_and_tokens() {
    let sent = on_ranks([2, 1, 1], SHARED, |model_parallel| {
        let group = &model_parallel.pipeline_parallel.as_ref().unwrap().group;
        let model = load("llama", model_parallel);
        let before = group.sent_bytes();
        let completions = written(&model, 1.0, 0);
        let new_tokens: usize = completions.iter().map(|completion| completion.ids.len()).sum();
        (group.sent_bytes() - before, new_tokens as u64, model.config().hidden_size() as u64)
    });
    let (new_tokens, hidden_size) = (sent[0].1, sent[0].2);
    // Every token but the last one of a reply runs through the stages, and each of five prompts does so once.
    let prompt_tokens: usize = prompts().iter().map(Vec::len).sum::<usize>() - 1;
    let steps = prompt_tokens as u64 + new_tokens - prompts().len() as u64;
    assert_eq!((sent[0].0, sent[1].0), (steps * hidden_size * 4, new_tokens * 3 * 8));
}

#[test]
fn a_draft_is_refused_on_ranks() {
    on_ranks([1, 1, 2], SHARED, |model_parallel| {
        let (model, draft) = (load("llama", model_parallel), load("llama", &ModelParallel::NONE));
        let room = GeneratorOptions::for_prompts(&model, &prompts(), 6, 4);
        let room = GeneratorOptions { speculative_tokens: 2, draft: Some(&draft), ..room };
        let error = Generator::new(&model, &room).unwrap_err();
        assert!(matches!(error, inference::Error::DraftOfSplitModel), "{error}");
    });
}
