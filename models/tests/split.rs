//! A model that several ranks share is the whole model: logits, losses, gradients, replies, files, and the bytes that it takes.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use models::batch::Batch;
use models::causal_lm::{CausalLm, LoadOptions};
use models::generate::{self, Options};
use models::head;
use models::sample::Sampling;
use models::scalar_model::ScalarModel;
use parallel::c10d::Store;
use parallel::comm::{Group, Reduction};
use parallel::{Mesh, Place, Segmented, Tape, Transport, World};
use tch::{Device, Kind, Tensor};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Three rows of different length: seven, one and four tokens.
const ROWS: [&[i64]; 3] = [&[5, 9, 41, 47, 0, 7, 7], &[30], &[1, 2, 3, 46]];

/// Every family, and every arrangement that splits in its own way.
const FAMILIES: [&str; 13] = [
    "llama",
    "llama-biases",
    "llama-tied",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
    "opt",
    "opt-after",
    "bloom",
    "bloom-normed",
    "neox",
    "neox-sequential",
];

fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

fn options(tensor: Option<&Arc<Group>>) -> LoadOptions<'_> {
    LoadOptions { kind: Kind::Float, device: Device::Cpu, trainable: true, tensor }
}

/// Runs `body` on `size` ranks that share a model, each a thread.
fn on_ranks<T: Send>(size: usize, transport: Transport, body: impl Fn(&Arc<Group>) -> T + Sync) -> Vec<T> {
    let server = Store::open("127.0.0.1", 0, true, TIMEOUT).unwrap();
    let port = server.port();
    let rank = |rank: usize| {
        let place = Place { rank, size, port, served: true, ..Place::single() };
        let world = World::join(place, transport, TIMEOUT).unwrap();
        let groups = world.groups(&Mesh::new([1, 1, 1, size], rank, size).unwrap()).unwrap();
        let result = body(groups.tensor());
        groups.world().barrier().unwrap();
        result
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|index| scope.spawn(move || rank(index))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What a model says of [`ROWS`], with the gradient of each parameter as a whole.
struct Outcome {
    logits: Vec<f32>,
    numbers: Vec<f64>,
    gradients: Vec<(String, Vec<f32>)>,
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).contiguous().view([-1])).unwrap()
}

/// A loss that uses cross-entropy, log-probabilities and entropy; `checkpoint` runs each block twice.
fn outcome(model: &CausalLm, group: Option<&Group>, checkpoint: bool) -> Outcome {
    let batch = Batch::new(&ROWS, Device::Cpu);
    let targets = Tensor::from_slice(&[9i64, 41, 47, 0, 7, 7, 3, 11, 2, 3, 46, 20]);
    let weights = Tensor::arange(12, (Kind::Float, Device::Cpu)) / 7.0;
    let hidden = model.infer(&batch).unwrap();
    let logits = flat(&tch::no_grad(|| model.head().logits(&hidden)).unwrap());
    let best = flat(&head::argmax(&hidden, model.head()).unwrap());
    let tape = Tape::record(model, &batch, checkpoint).unwrap();
    let cross_entropy = head::cross_entropy(tape.hidden(), model.head(), &targets, Some(&weights)).unwrap();
    let found = head::logprobs(tape.hidden(), model.head(), &targets, 0.7).unwrap();
    let weighted = |x: &Tensor| (x * &weights).sum(Kind::Float);
    let loss = &cross_entropy + weighted(&found.logprobs) * 0.3 - weighted(&found.entropy) * 0.2;
    let mut numbers = vec![cross_entropy.double_value(&[]), loss.double_value(&[])];
    numbers.extend(best.iter().map(|&id| f64::from(id)));
    let mut sums: Vec<Option<Tensor>> = model.parameters().iter().map(|_| None).collect();
    tape.backward(&loss, &mut |index, grad| {
        sums[index] = Some(match sums[index].take() {
            Some(sum) => sum + grad,
            None => grad,
        });
    })
    .unwrap();
    let gradients = model
        .parameters()
        .iter()
        .zip(sums)
        .map(|(parameter, grad)| {
            let grad = grad.unwrap().contiguous();
            if let (true, Some(group)) = (parameter.partial, group) {
                group.all_reduce(&grad, Reduction::Sum).unwrap();
            }
            (parameter.name.clone(), flat(&parameter.placement.whole(&grad).unwrap()))
        })
        .collect();
    Outcome { logits, numbers, gradients }
}

fn close<T: Copy + Into<f64>>(what: &str, one: &[T], many: &[T]) {
    assert_eq!(one.len(), many.len(), "{what}");
    let scale = one.iter().map(|&x| x.into().abs()).fold(1.0, f64::max);
    let pairs = one.iter().zip(many);
    let worst = pairs.map(|(&one, &many)| (one.into() - many.into()).abs()).fold(0.0, f64::max);
    assert!(worst < 2e-6 * scale, "{what}: {worst}");
}

fn same(name: &str, one: &Outcome, many: &Outcome) {
    close(&format!("{name}: logits"), &one.logits, &many.logits);
    close(&format!("{name}: losses and best tokens"), &one.numbers, &many.numbers);
    assert_eq!(one.gradients.len(), many.gradients.len());
    for ((parameter, one), (other, many)) in one.gradients.iter().zip(&many.gradients) {
        assert_eq!(parameter, other);
        close(&format!("{name}: the gradient of {parameter}"), one, many);
    }
}

#[test]
fn a_split_model_has_the_logits_and_gradients_of_the_whole() {
    for name in FAMILIES {
        let whole = outcome(&CausalLm::load(&golden(name), &options(None)).unwrap(), None, false);
        // Four ranks share two key-value heads where queries share them.
        for (size, transport) in [(2, Transport::Shared), (4, Transport::Shared), (2, Transport::Gloo)] {
            on_ranks(size, transport, |group| {
                let model = CausalLm::load(&golden(name), &options(Some(group))).unwrap();
                same(&format!("{name} on {size}"), &whole, &outcome(&model, Some(group), size == 4));
            });
        }
    }
}

#[test]
fn heads_columns_and_tokens_need_not_be_a_multiple_of_the_ranks() {
    let whole = outcome(&CausalLm::load(&golden("gpt2"), &options(None)).unwrap(), None, false);
    on_ranks(3, Transport::Shared, |group| {
        // Four heads on three ranks, and 48 tokens and 96 columns evenly.
        let model = CausalLm::load(&golden("gpt2"), &options(Some(group))).unwrap();
        same("gpt2 on 3", &whole, &outcome(&model, Some(group), false));
        let error = CausalLm::load(&golden("llama"), &options(Some(group))).unwrap_err().to_string();
        let wanted = "[parallel.tensor] size = 3: 4 query heads with 2 key-value heads cannot be split so";
        assert!(error.starts_with(wanted), "{error}");
    });
}

#[test]
fn a_split_reward_model_gives_the_values_of_the_whole() {
    for name in ["llama-score", "gpt2-score", "opt-score"] {
        let batch = || Batch::new(&ROWS, Device::Cpu);
        let values = |model: &ScalarModel| flat(&model.values(&model.infer(&batch()).unwrap()));
        let whole = values(&ScalarModel::load(&golden(name), &options(None)).unwrap());
        on_ranks(2, Transport::Shared, |group| {
            let model = ScalarModel::load(&golden(name), &options(Some(group))).unwrap();
            close(name, &whole, &values(&model));
        });
    }
}

#[test]
fn ranks_that_share_a_model_write_the_replies_of_the_whole() {
    let prompts: Vec<Vec<i64>> = vec![vec![5, 9, 41], vec![30], vec![1, 2, 3, 46, 8]];
    for name in ["llama", "gpt2", "bloom", "qwen3"] {
        let replies = |model: &CausalLm, temperature: f64| {
            let options = Options {
                sampling: Sampling { temperature, ..Sampling::default() },
                max_new_tokens: 6,
                stop_ids: vec![7],
                seed: 3,
                first_request: 0,
                batch_size: 2,
            };
            let listener = &mut |_: usize, _: i64| ControlFlow::Continue(());
            let completions = generate::generate(model, &prompts, &options, listener).unwrap();
            completions.into_iter().map(|completion| completion.ids).collect::<Vec<_>>()
        };
        let model = CausalLm::load(&golden(name), &options(None)).unwrap();
        let whole = [0.0, 1.0].map(|temperature| replies(&model, temperature));
        for size in [2, 4] {
            for split in on_ranks(size, Transport::Shared, |group| {
                let model = CausalLm::load(&golden(name), &options(Some(group))).unwrap();
                [0.0, 1.0].map(|temperature| replies(&model, temperature))
            }) {
                assert_eq!(whole, split, "{name} on {size}");
            }
        }
    }
}

#[test]
fn a_split_model_is_saved_whole() {
    for name in ["llama", "gpt2", "neox"] {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        CausalLm::load(&golden(name), &options(None)).unwrap().save(one.path()).unwrap();
        on_ranks(2, Transport::Shared, |group| {
            let model = CausalLm::load(&golden(name), &options(Some(group))).unwrap();
            assert!(model.parameters()[0].tensor.numel() < model.parameters()[0].num_elements());
            model.save(many.path()).unwrap();
        });
        for file in ["model.safetensors", "config.json"] {
            let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
            assert!(read(one.path()) == read(many.path()), "{name}: {file}");
        }
    }
}

#[test]
fn a_new_model_begins_with_the_same_values_however_it_is_split() {
    let config = || models::config::Config::from_folder(&golden("gpt2")).unwrap();
    let values = |model: &CausalLm| -> Vec<Vec<f32>> {
        let whole = |parameter: &parallel::Parameter| parameter.placement.whole(&parameter.tensor).unwrap();
        model.parameters().iter().map(|parameter| flat(&whole(parameter))).collect()
    };
    let whole = values(&CausalLm::random(config(), 5, &options(None)).unwrap());
    on_ranks(2, Transport::Shared, |group| {
        assert!(whole == values(&CausalLm::random(config(), 5, &options(Some(group))).unwrap()));
    });
}

#[test]
fn a_pass_sends_as_much_as_the_formula_says() {
    let sent = on_ranks(4, Transport::Shared, |group| {
        let model = CausalLm::load(&golden("gpt2"), &options(Some(group))).unwrap();
        let batch = Batch::new(&ROWS, Device::Cpu);
        let before = group.sent_bytes();
        let tape = Tape::record(&model, &batch, false).unwrap();
        let loss = head::cross_entropy(
            tape.hidden(),
            model.head(),
            &Tensor::zeros([12], (Kind::Int64, Device::Cpu)),
            None,
        )
        .unwrap();
        tape.backward(&loss, &mut |_, _| ()).unwrap();
        group.sent_bytes() - before
    });
    // Hidden states [12, 24] in fp32, summed once by the embedding, four times a block (out of attention and MLP going forward, into
    // them coming back) and once by the head; the head's 12 log sums gathered, its one loss in fp64 summed.
    let (ranks, layers) = (4, 2);
    let all_reduce = |bytes: u64| 2 * bytes * (ranks - 1) / ranks;
    let wanted = (4 * layers + 2) * all_reduce(12 * 24 * 4) + 12 * 4 * (ranks - 1) + all_reduce(8);
    assert_eq!(sent, [wanted; 4]);
}
