//! Distillation on a model of a few thousand parameters.

use std::path::{Path, PathBuf};

use gemini::TrainConfig;
use models::causal_lm::CausalLm;
use rlhf::config::DistillConfig;
use rlhf::distill::Distill;
use rlhf::sft::Sft;
use rlhf::trainer;

use super::{Memory, config, in_run_every, options, rows, train, weights, worst};

fn distilled(
    settings: &str,
    train: &TrainConfig,
    packing: Option<usize>,
    (out, resume): (&Path, Option<PathBuf>),
) -> (Vec<f32>, Memory) {
    let (rows, config): (_, DistillConfig) = (rows(), serde_json::from_str(settings).unwrap());
    let teacher = CausalLm::random(super::config(), 2, &options(false)).unwrap();
    let student = match &resume {
        Some(folder) => CausalLm::load(folder, &options(true)).unwrap(),
        None => super::language_model(1),
    };
    let sft = Sft::new(&student, &rows, &rows, packing).unwrap();
    let objective = Distill::new(sft, &teacher, &config).unwrap();
    let (memory, outcome) =
        in_run_every(3, out, resume, None, |run| trainer::train(&objective, true, train, run));
    outcome.unwrap();
    (weights(&student), memory)
}

#[test]
fn no_split_into_micro_batches_changes_the_gradient() {
    let folder = tempfile::tempdir().unwrap();
    // With a large eps, an update of AdamW is nearly proportional to the gradient.
    let train = TrainConfig { eps: 1.0, lr: 0.1, max_grad_norm: 1e9, ..train() };
    let start = weights(&super::language_model(1));
    for (number, settings) in [
        "{}",
        r#"{"divergence": "reverse_kl", "temperature": 2}"#,
        r#"{"divergence": "jsd", "beta": 0.2, "nll_coef": 0.5}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let of_split = |size: usize| {
            let train = TrainConfig {
                micro_batch_size: size,
                gradient_accumulation_steps: 4 / size,
                ..train.clone()
            };
            distilled(settings, &train, None, (&folder.path().join(format!("{number}-{size}")), None))
        };
        let (whole, memory) = of_split(4);
        for size in [2, 1] {
            let (split, again) = of_split(size);
            let difference = worst(&whole, &split) / worst(&whole, &start);
            assert!(difference < 1e-4, "{settings}, {size}: {difference}");
            for (left, right) in memory.all("loss").iter().zip(again.all("loss")) {
                assert!((left - right).abs() < 1e-5, "{settings}, {size}: {left} {right}");
            }
        }
    }
}

#[test]
fn a_student_comes_nearer_to_its_teacher_and_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let long = TrainConfig { steps: Some(60), ..train() };
    for (number, settings) in
        [r#"{"divergence": "forward_kl"}"#, r#"{"divergence": "reverse_kl"}"#, r#"{"divergence": "jsd"}"#]
            .into_iter()
            .enumerate()
    {
        let out = folder.path().join(number.to_string());
        let (whole, memory) = distilled(settings, &long, Some(16), (&out, None));
        let of = |name: &str| -> Vec<f64> {
            memory.evaluations.iter().map(|(_, metrics)| metrics.get(name).unwrap()).collect()
        };
        let (losses, agreement) = (of("eval/loss"), of("eval/agreement"));
        let last = losses.len() - 1;
        assert!(losses[last] < losses[0] / 4.0, "{settings}: {losses:?}");
        assert!(agreement[last] > agreement[0] && agreement[last] > 0.8, "{settings}: {agreement:?}");

        let halfway = out.join("checkpoints/step-36");
        let (resumed, _) = distilled(settings, &long, Some(16), (&out.join("again"), Some(halfway)));
        assert_eq!(whole, resumed, "{settings}");
    }
}

#[test]
fn a_teacher_with_another_vocabulary_is_refused() {
    let mut other = config();
    other.set("vocab_size", 25.into()).unwrap();
    let teacher = CausalLm::random(other, 2, &options(false)).unwrap();
    let (student, config, rows) = (super::language_model(1), DistillConfig::default(), rows());
    let sft = Sft::new(&student, &rows, &[], None).unwrap();
    let error = Distill::new(sft, &teacher, &config).err().unwrap().to_string();
    assert!(error.contains("24") && error.contains("25") && error.contains("teacher"), "{error}");
}
