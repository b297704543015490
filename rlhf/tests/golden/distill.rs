//! The divergences of distillation, and their gradients, against two producers that know nothing of one
//! another: `distill_paper.py` computes the paper's formulas in plain Python, with central differences, and
//! `distill_trl.py` runs TRL 1.16.0 with autograd.

use models::head::{self, Head, Teacher};
use rlhf::config::DistillConfig;
use tch::{Device, Kind, Tensor};

use super::{Values, golden, json, worst};

/// The loss is computed in fp32 from logits of about 5.
const TOLERANCE: f64 = 2e-6;

/// Logits `[N, V]` as the hidden states of a head that does not change them.
fn logits(rows: &serde_json::Value) -> Tensor {
    let rows: Vec<Vec<f32>> = serde_json::from_value(rows.clone()).unwrap();
    Tensor::from_slice2(&rows)
}

fn ours() -> Values {
    let inputs = json("distill_inputs.json");
    let teacher = logits(&inputs["teacher"]);
    let identity = Tensor::eye(teacher.size()[1], (Kind::Float, Device::Cpu));
    let cases = inputs["cases"].as_object().unwrap();
    let of_case = |(name, case): (&String, &serde_json::Value)| {
        let config: DistillConfig = serde_json::from_value(case.clone()).unwrap();
        let student = logits(&inputs["student"]).set_requires_grad(true);
        let teacher = Teacher { hidden: &teacher, head: Head::new(&identity, None), top_k: None };
        let loss = head::divergence(
            &student,
            Head::new(&identity, None),
            teacher,
            config.divergence(),
            config.temperature,
        )
        .unwrap();
        loss.backward();
        let gradient = Vec::<f32>::try_from(student.grad().flatten(0, -1)).unwrap();
        let values = std::iter::once(loss.double_value(&[])).chain(gradient.into_iter().map(f64::from));
        (name.clone(), values.collect())
    };
    cases.iter().map(of_case).collect()
}

#[test]
fn divergences_and_their_gradients_are_those_of_the_paper_and_of_trl() {
    let (paper, trl) = (golden("distill_paper.json"), golden("distill_trl.json"));
    let (error, name) = worst(&paper, &trl);
    assert!(error < 1e-8, "the producers differ in {name} by {error}");
    let ours = ours();
    for (producer, theirs) in [("paper", &paper), ("TRL", &trl)] {
        let (error, name) = worst(&ours, theirs);
        assert!(error < TOLERANCE, "{producer}, {name}: {error}");
    }
}
