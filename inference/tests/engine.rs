//! The engine on models of every family: replies are those of whole passes, whatever runs beside them.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use inference::Error;
use inference::engine::{self, Engine, EngineOptions};
use inference::generate::{self, Completion, GenerationOptions, Generator, GeneratorOptions, RequestIds};
use inference::request::{Event, Failure, FinishReason, ReplyId, Request};
use inference::sample::SamplingParams;
use inference::scheduler::{Counts, Order};
use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use parallel::{Parameter, Segmented};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, no_grad};

const MODELS: [&str; 15] = [
    "llama",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gpt2",
    "opt",
    "bloom",
    "neox",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "qwen3-moe-window",
];
const LOAD: LoadOptions = LoadOptions::frozen(Kind::Float, Device::Cpu);
const ROOMY: EngineOptions = EngineOptions {
    sequences: 8,
    cached_tokens: 1024,
    batched_tokens: 64,
    order: Order::Arrival,
    speculative_tokens: 0,
};

/// The folder of a golden model.
fn golden_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

fn load(name: &str) -> CausalLm {
    CausalLm::load(&golden_folder(name), &LOAD).unwrap()
}

fn request(id: u64, prompt: &[i64], samples: u32, temperature: f64) -> Request {
    let sampling = SamplingParams { temperature, ..SamplingParams::default() };
    Request {
        id,
        samples,
        seed: 5,
        stream: id * 100,
        max_new_tokens: 6,
        stop_ids: [0].into(),
        ..Request::new(prompt.into(), sampling)
    }
}

/// Prompts of random lengths, of which some begin alike, for any of the golden models.
fn prompts(count: usize, longest: usize) -> Vec<Vec<i64>> {
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let common: Vec<i64> = (0..longest).map(|_| random.random_range(1..40)).collect();
    let mut prompt = || {
        let length = random.random_range(1..longest);
        let shared = random.random_range(0..=length - 1);
        let own = (shared..length).map(|_| random.random_range(1..40));
        common[..shared].iter().copied().chain(own).collect()
    };
    (0..count).map(|_| prompt()).collect()
}

/// Runs an engine until all its requests have ended.
fn finish(engine: &mut Engine) -> BTreeMap<ReplyId, (Vec<i64>, FinishReason)> {
    let mut ids: BTreeMap<ReplyId, Vec<i64>> = BTreeMap::new();
    let mut replies = BTreeMap::new();
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Prompt { .. } => {}
                Event::Token { reply, token, .. } => ids.entry(reply).or_default().push(token.id),
                Event::Finished { reply, reason } => {
                    replies.insert(reply, (ids[&reply].clone(), reason));
                }
                Event::Failed { .. } => panic!("{event:?}"),
            }
        }
    }
    replies
}

/// The greedy reply, each token by a pass over the whole row.
fn greedy(model: &CausalLm, prompt: &[i64], request: &Request) -> (Vec<i64>, FinishReason) {
    let mut row = prompt.to_vec();
    loop {
        let hidden = model.forward_no_grad(&Batch::new(&[&row], Device::Cpu)).unwrap();
        let last = hidden.narrow(0, hidden.size()[0] - 1, 1);
        let id = no_grad(|| model.head().logits(&last)).unwrap().argmax(-1, false).int64_value(&[0]);
        row.push(id);
        let reply = row[prompt.len()..].to_vec();
        if request.stop_ids.contains(&id) {
            return (reply, FinishReason::Stop);
        }
        if reply.len() == request.max_new_tokens || row.len() as i64 == model.config().max_positions() {
            return (reply, FinishReason::Length);
        }
    }
}

#[test]
fn greedy_replies_are_those_of_whole_passes_with_split_prompts_and_shared_prefixes() {
    for name in MODELS {
        let model = load(name);
        let longest = 40.min(model.config().max_positions() as usize - 1);
        let prompts = prompts(50, longest);
        let mut engine = Engine::new(&model, EngineOptions { batched_tokens: 11, ..ROOMY }).unwrap();
        for (id, prompt) in (0..).zip(&prompts) {
            engine.add(request(id, prompt, 1, 0.0)).unwrap();
        }
        let replies = finish(&mut engine);
        for (id, prompt) in (0..).zip(&prompts) {
            let wanted = greedy(&model, prompt, &request(id, prompt, 1, 0.0));
            assert_eq!(replies[&ReplyId { request: id, sample: 0 }], wanted, "{name}, {prompt:?}");
        }
    }
}

#[test]
fn what_runs_beside_a_request_does_not_change_its_replies() {
    for name in ["llama", "llama-dynamic", "gpt2", "bloom"] {
        let model = load(name);
        let longest = 20.min(model.config().max_positions() as usize - 7);
        let requests: Vec<Request> =
            (0..).zip(prompts(12, longest)).map(|(id, prompt)| request(id, &prompt, 3, 1.0)).collect();
        let alone: Vec<_> = requests
            .iter()
            .flat_map(|request| {
                let mut engine = Engine::new(&model, ROOMY).unwrap();
                engine.add(request.clone()).unwrap();
                finish(&mut engine)
            })
            .collect();
        // The small cache holds three sequences of 32 tokens, so sequences are preempted.
        for cached_tokens in [1024, 96] {
            let mut engine = Engine::new(&model, EngineOptions { cached_tokens, ..ROOMY }).unwrap();
            for request in &requests {
                engine.add(request.clone()).unwrap();
            }
            assert_eq!(finish(&mut engine).into_iter().collect::<Vec<_>>(), alone, "{name}, {cached_tokens}");
        }
    }
}

#[test]
fn the_prompt_of_several_samples_is_computed_once() {
    let model = load("gpt2");
    let mut engine = Engine::new(&model, ROOMY).unwrap();
    for (id, prompt) in (0..).zip([vec![3; 19], vec![4; 7]]) {
        engine.add(request(id, &prompt, 4, 1.0)).unwrap();
    }
    let replies = finish(&mut engine);
    assert_eq!((replies.len(), engine.counts().prefilled), (8, 19 + 7));
}

#[test]
fn a_turn_of_a_chat_computes_its_new_tokens_alone() {
    let model = load("gpt2");
    let mut engine = Engine::new(&model, EngineOptions { sequences: 1, cached_tokens: 32, ..ROOMY }).unwrap();
    let mut on_token = |_: i64| ControlFlow::Continue(());
    let first = Request { stop_ids: [].into(), ..request(0, &[7; 14], 1, 0.0) };
    let reply = generate::complete(&mut engine, first, &mut on_token).unwrap().ids;
    let before = engine.counts().prefilled;
    let prompt = [&[7; 14], reply.as_slice(), &[8, 9, 3]].concat();
    let second = generate::complete(&mut engine, request(0, &prompt, 1, 0.0), &mut on_token).unwrap();
    // The first page of 16 tokens is there.
    assert_eq!(engine.counts().prefilled - before, prompt.len() as u64 - 16);
    assert_eq!((second.ids, second.finish_reason), greedy(&model, &prompt, &request(0, &prompt, 1, 0.0)));
}

#[test]
fn the_tokens_of_a_prompt_are_scored_as_by_a_whole_pass() {
    for name in ["llama", "qwen2-window", "gpt2", "bloom", "mixtral"] {
        let model = load(name);
        let prompt: Vec<i64> = (0..13).map(|index| 1 + index * 7 % 40).collect();
        let hidden = model.forward_no_grad(&Batch::new(&[&prompt], Device::Cpu)).unwrap();
        let wanted = no_grad(|| model.head().logits(&hidden)).unwrap().log_softmax(-1, Kind::Float);

        let mut engine = Engine::new(&model, EngineOptions { batched_tokens: 5, ..ROOMY }).unwrap();
        // The first request leaves its pages behind, which a scored prompt must not read.
        engine.add(request(0, &prompt, 1, 0.0)).unwrap();
        let _ = finish(&mut engine);
        let scored = Request { prompt_logprobs: true, top_logprobs: 2, ..request(1, &prompt, 2, 0.0) };
        engine.add(scored).unwrap();
        let (mut events, mut found, mut best) = (Vec::new(), Vec::new(), Vec::new());
        while !engine.is_idle() {
            engine.step(&mut events).unwrap();
        }
        for event in events {
            match event {
                Event::Prompt { logprobs, top, .. } => {
                    assert_eq!(logprobs.len(), top.len());
                    found.extend(logprobs);
                    best.extend(top);
                }
                Event::Token { token, top, .. } => assert_eq!((token.id, top.len()), (top[0].0, 2)),
                Event::Finished { .. } | Event::Failed { .. } => {}
            }
        }
        assert_eq!((found.len(), best.len()), (12, 12), "{name}");
        for (index, (found, best)) in found.into_iter().zip(best).enumerate() {
            let row = wanted.get(index as i64);
            assert!(
                (f64::from(found) - row.double_value(&[prompt[index + 1]])).abs() < 1e-5,
                "{name} {index}"
            );
            assert_eq!(best[0].0, row.argmax(-1, false).int64_value(&[]));
            for (id, logprob) in best {
                assert!((f64::from(logprob) - row.double_value(&[id])).abs() < 1e-5, "{name} {index} {id}");
            }
        }
    }
}

#[test]
fn penalties_and_biases_reach_their_own_request_alone() {
    let model = load("llama");
    let prompt = [4, 5, 6];
    let plain = Request { stop_ids: [].into(), ..request(0, &prompt, 1, 0.0) };
    let biased = Request { id: 1, samples: 2, logit_bias: [(9, 100.0)].into(), ..plain.clone() };
    let sampling = SamplingParams { repetition_penalty: 1e6, ..plain.sampling };
    let penalized = Request { id: 2, sampling, ..plain.clone() };
    let mut engine = Engine::new(&model, ROOMY).unwrap();
    for request in [&plain, &biased, &penalized] {
        engine.add(request.clone()).unwrap();
    }
    let replies = finish(&mut engine);
    let ids = |request, sample| replies[&ReplyId { request, sample }].0.clone();
    assert_eq!(ids(0, 0), greedy(&model, &prompt, &plain).0);
    assert_eq!([ids(1, 0), ids(1, 1)], [[9; 6], [9; 6]]);
    // The penalty makes every token that was said all but impossible or all but zero.
    let mut said = [prompt.to_vec(), ids(2, 0)].concat();
    said.sort_unstable();
    said.dedup();
    assert_eq!(said.len(), 9);
}

#[test]
fn a_request_that_fails_does_so_alone() {
    let [model, healthy] = [(); 2].map(|()| load("neox"));
    let is_embedding = |parameter: &&Parameter| parameter.name == "gpt_neox.embed_in.weight";
    let embedding = model.parameters().iter().find(is_embedding).unwrap();
    let _ = no_grad(|| embedding.tensor.get(33).fill_(f64::NAN));
    let prompt = [4, 5, 6];
    let mut engine = Engine::new(&model, EngineOptions { cached_tokens: 16, ..ROOMY }).unwrap();
    engine.add(request(0, &[33, 5], 2, 0.0)).unwrap();
    engine.add(request(1, &prompt, 1, 0.0)).unwrap();
    engine.add(request(2, &[2; 17], 1, 0.0)).unwrap();
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    let failed: Vec<(u64, Failure)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Failed { request, failure } => Some((*request, *failure)),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [(0, Failure::LogitsNotFinite), (2, Failure::NoRoom { needed: 2, pages: 1 })]);
    let ids: Vec<i64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Token { token, .. } => Some(token.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, greedy(&healthy, &prompt, &request(1, &prompt, 1, 0.0)).0);
}

#[test]
fn an_aborted_request_has_no_more_events() {
    let model = load("llama");
    let mut engine = Engine::new(&model, ROOMY).unwrap();
    for id in 0..3 {
        engine.add(Request { stop_ids: [].into(), ..request(id, &[1, 2, 3 + id as i64], 2, 1.0) }).unwrap();
    }
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    assert!(engine.abort(1) && !engine.abort(1));
    assert!(engine.abort_reply(ReplyId { request: 2, sample: 0 }));
    events.clear();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    let finished: Vec<ReplyId> = events
        .iter()
        .filter_map(|event| match event {
            Event::Finished { reply, .. } => Some(*reply),
            _ => None,
        })
        .collect();
    let reply = |request, sample| ReplyId { request, sample };
    assert_eq!(finished, [reply(0, 0), reply(0, 1), reply(2, 1)]);
    assert!(events.iter().all(|event| !matches!(event, Event::Token { reply, .. } if reply.request == 1)));
}

/// The replies of an engine to prompts that repeat themselves, and what was counted.
fn replies_with_guesses(
    model: &CausalLm,
    speculative_tokens: usize,
    draft: Option<&CausalLm>,
    temperature: f64,
) -> (BTreeMap<ReplyId, (Vec<i64>, FinishReason)>, Counts) {
    let longest = 20.min(model.config().max_positions() as usize - 1);
    let mut engine = Engine::new(model, EngineOptions { speculative_tokens, ..ROOMY }).unwrap();
    if let Some(draft) = draft {
        engine = engine.with_draft(draft).unwrap();
    }
    for (id, prompt) in (0..).zip(prompts(10, longest)) {
        let prompt = prompt.repeat(2);
        let prompt = &prompt[..prompt.len().min(longest)];
        let request =
            Request { max_new_tokens: 12, stop_ids: [3].into(), ..request(id, prompt, 2, temperature) };
        engine.add(request).unwrap();
    }
    (finish(&mut engine), engine.counts())
}

#[test]
fn guesses_change_no_token() {
    for name in MODELS {
        let model = load(name);
        for temperature in [0.0, 1.0] {
            let (plain, _) = replies_with_guesses(&model, 0, None, temperature);
            let (guessed, counts) = replies_with_guesses(&model, 3, None, temperature);
            assert_eq!(plain, guessed, "{name} at {temperature}");
            assert!(counts.accepted > 0 || temperature > 0.0, "{name}: no guess was right");
        }
    }
}

#[test]
fn a_caller_may_end_replies_in_the_middle_of_the_tokens_of_a_step() {
    let model = load("llama");
    let prompts = prompts(3, 8);
    let options = GenerationOptions {
        sampling: SamplingParams::greedy(),
        max_new_tokens: 5,
        stop_ids: Vec::new(),
        seed: 0,
        request_ids: RequestIds::From(0),
    };
    let room = GeneratorOptions::for_prompts(&model, &prompts, options.max_new_tokens, 3);
    let room = GeneratorOptions { speculative_tokens: 3, draft: Some(&model), ..room };
    let mut generator = Generator::new(&model, &room).unwrap();
    let whole = generator.generate(&prompts, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();

    // The second step gives each reply its last four tokens, of which the callback wants one.
    let mut seen = [0; 3];
    let ended = generator.generate(&prompts, &options, &mut |index, _| {
        seen[index] += 1;
        if seen[index] == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    for (whole, ended) in whole.iter().zip(ended.unwrap()) {
        assert_eq!((ended.ids.as_slice(), ended.finish_reason), (&whole.ids[..2], FinishReason::Interrupted));
    }
}

#[test]
fn a_generator_writes_each_batch_as_if_it_were_the_first() {
    let model = load("neox");
    let options = |temperature| GenerationOptions {
        sampling: SamplingParams { temperature, ..SamplingParams::default() },
        max_new_tokens: 10,
        stop_ids: vec![3],
        seed: 0,
        request_ids: RequestIds::From(0),
    };
    // The second batch has the prompts of the first, and pages for two of its replies at once.
    let batches = [(prompts(5, 20), 0.0), (prompts(9, 20), 1.0)];
    let room = GeneratorOptions {
        max_num_seqs: 4,
        longest: 30,
        most_cached_tokens: engine::cached_tokens(2, 30),
        speculative_tokens: 0,
        draft: None,
    };
    let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
    let mut generator = Generator::new(&model, &room).unwrap();
    for (prompts, temperature) in &batches {
        let mut ended: Vec<(usize, Completion)> = Vec::new();
        let mut on_reply = |index: usize, reply: &Completion| {
            ended.push((index, reply.clone()));
            ControlFlow::Continue(())
        };
        let options = options(*temperature);
        let replies = generator.generate_each(prompts, &options, on_token, &mut on_reply).unwrap();
        let first = generate::generate(&model, prompts, &room, &options, on_token).unwrap();
        assert_eq!(replies, first);
        ended.sort_by_key(|(index, _)| *index);
        assert_eq!(ended, replies.into_iter().enumerate().collect::<Vec<_>>());
    }
    assert!(generator.counts().preempted > 0);
}

#[test]
fn a_batch_may_fail_or_be_ended_and_the_next_one_is_whole() {
    let model = load("neox");
    let options = |max_new_tokens| GenerationOptions {
        sampling: SamplingParams::greedy(),
        max_new_tokens,
        stop_ids: Vec::new(),
        seed: 0,
        request_ids: RequestIds::From(0),
    };
    // One page. The last reply outgrows it, and nothing else is left to compute.
    let room = GeneratorOptions {
        max_num_seqs: 1,
        longest: 16,
        most_cached_tokens: usize::MAX,
        speculative_tokens: 0,
        draft: None,
    };
    let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
    let mut generator = Generator::new(&model, &room).unwrap();
    let prompts = prompts(4, 9);
    let whole = generator.generate(&prompts, &options(4), on_token).unwrap();
    let error = generator.generate(&prompts[..1], &options(20), on_token).unwrap_err();
    assert!(matches!(error, Error::NoRoom { index: 0, needed: 2, pages: 1 }), "{error}");

    let mut ended = Vec::new();
    let mut on_reply = |index: usize, _: &Completion| {
        ended.push(index);
        if ended.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    generator.generate_each(&prompts, &options(4), on_token, &mut on_reply).unwrap();
    assert_eq!(ended, [0, 1]);
    assert_eq!(generator.generate(&prompts, &options(4), on_token).unwrap(), whole);
}

#[test]
fn a_draft_changes_no_token() {
    let (mut guessed, mut accepted) = (0, 0);
    for name in MODELS {
        let model = load(name);
        let other = CausalLm::random(model.config().clone(), 3, &LOAD).unwrap();
        for temperature in [0.0, 1.0] {
            let (plain, _) = replies_with_guesses(&model, 0, None, temperature);
            // The model itself as a draft: all its guesses are right, drawn ones as well.
            let (same, counts) = replies_with_guesses(&model, 3, Some(&model), temperature);
            assert_eq!(plain, same, "{name} guesses for itself, at {temperature}");
            assert!(counts.guessed > 0 && counts.accepted == counts.guessed, "{name}: {counts:?}");
            let (same, counts) = replies_with_guesses(&model, 3, Some(&other), temperature);
            assert_eq!(plain, same, "another model guesses for {name}, at {temperature}");
            (guessed, accepted) = (guessed + counts.guessed, accepted + counts.accepted);
        }
    }
    assert!(accepted < guessed / 2, "{accepted} of {guessed} guesses of other models were right");
}
