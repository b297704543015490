//! The head against the dense form, by hand, and at its edges.

use super::*;
use tch::Device;

struct Case {
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
}

/// A random test case. With V = `70_000` a chunk has 128 rows, so more rows need several chunks.
fn case(rows: i64, vocabulary: i64) -> Case {
    tch::manual_seed(7);
    let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    Case {
        hidden: random(&[rows, 8]),
        weight: random(&[vocabulary, 8]),
        bias: random(&[vocabulary]),
        targets: Tensor::randint(vocabulary, [rows], (Kind::Int64, Device::Cpu)),
    }
}

fn close(left: &Tensor, right: &Tensor) {
    close_to(left, right, 2e-5);
}

fn close_to(left: &Tensor, right: &Tensor, tolerance: f64) {
    let worst = (left - right).abs().max().double_value(&[]);
    let scale = right.abs().max().double_value(&[]).max(1.0);
    assert!(worst < tolerance * scale, "{worst} against {scale}");
}

fn grads(loss: &Tensor, case: &Case) -> Vec<Tensor> {
    Tensor::run_backward(&[loss], &[&case.hidden, &case.weight, &case.bias], false, false)
}

#[test]
fn cross_entropy_equals_the_dense_form_with_its_gradients() {
    for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
        let case = case(rows, vocabulary);
        let head = Head::new(&case.weight, Some(&case.bias));
        let weights = Tensor::arange(rows, (Kind::Float, Device::Cpu)) / rows as f64;
        let ours = cross_entropy(&case.hidden, head, &case.targets, Some(&weights)).unwrap() * 3.0;
        let dense = case.hidden.linear(&case.weight, Some(&case.bias)).log_softmax(1, Kind::Float);
        let picked = dense.gather(1, &case.targets.unsqueeze(1), false).squeeze_dim(1);
        let dense = -(picked * &weights).sum(Kind::Float) * 3.0;
        close(&ours, &dense);
        for (left, right) in grads(&ours, &case).iter().zip(&grads(&dense, &case)) {
            close(left, right);
        }
    }
}

#[test]
fn logprobs_and_entropy_equal_the_dense_form_with_gradients() {
    for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
        let case = case(rows, vocabulary);
        let head = Head::new(&case.weight, Some(&case.bias));
        let seeds = Tensor::arange(rows, (Kind::Float, Device::Cpu)) - 2.0;
        for shares in [[1.0, 0.0], [0.0, 1.0], [0.3, -2.0]] {
            let ours = logprobs(&case.hidden, head, &case.targets, 0.7).unwrap();
            // The reference is in double precision, because a sum over 70 000 tokens loses digits in
            // fp32.
            let [hidden, weight, bias] =
                [&case.hidden, &case.weight, &case.bias].map(|tensor| tensor.to_kind(Kind::Double));
            let dense = (hidden.linear(&weight, Some(&bias)) / 0.7).log_softmax(1, Kind::Double);
            let picked = dense.gather(1, &case.targets.unsqueeze(1), false).squeeze_dim(1);
            let entropy = -(dense.exp() * &dense).sum_dim_intlist(1, false, Kind::Double);
            close(&ours.logprobs, &picked);
            close(&ours.entropy, &entropy);
            let weigh = |logprobs: &Tensor, entropy: &Tensor| {
                let weighted_terms = [(logprobs, shares[0]), (entropy, shares[1])];
                let used = weighted_terms.into_iter().filter(|(_, share)| *share != 0.0);
                let sums = used.map(|(values, share)| (values * &seeds).sum(Kind::Float) * share);
                sums.reduce(|left, right| left + right).unwrap()
            };
            let (left, right) = (weigh(&ours.logprobs, &ours.entropy), weigh(&picked, &entropy));
            // The terms p (log p + H) of the entropy cancel in the sum over the vocabulary, so fp32 keeps
            // one digit less.
            let tolerance = if shares[1] == 0.0 { 2e-5 } else { 1e-4 };
            for (left, right) in grads(&left, &case).iter().zip(&grads(&right, &case)) {
                close_to(left, right, tolerance);
            }
        }
    }
}

#[test]
fn a_loss_of_tokens_equals_that_of_their_logprobs_and_entropies() {
    for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
        let case = case(rows, vocabulary);
        let head = Head::new(&case.weight, Some(&case.bias));
        let advantages = Tensor::arange(rows, (Kind::Float, Device::Cpu)).sin();
        for entropy in [true, false] {
            let options = LogprobsOptions { temperature: 0.7, entropy };
            let loss = |found: &RowLogprobs, advantages: &Tensor| {
                assert_eq!(found.entropy.is_some(), entropy);
                let policy = (found.logprobs.exp() * advantages).sum(Kind::Float);
                found.entropy.iter().fold(policy, |loss, entropy| loss - entropy.sum(Kind::Float) * 0.3)
            };
            let ours = token_loss(&case.hidden, head, &case.targets, options, &mut |rows, found| {
                let statistics = Some(found.logprobs.sum(Kind::Double).view([1]).detach());
                Ok::<_, Error>(RowSums { loss: loss(found, &rows.of(&advantages)), statistics })
            })
            .unwrap();

            let found = logprobs(&case.hidden, head, &case.targets, 0.7).unwrap();
            let entropies = entropy.then(|| found.entropy.shallow_clone());
            let dense = RowLogprobs { logprobs: found.logprobs.shallow_clone(), entropy: entropies };
            let wanted = loss(&dense, &advantages);

            close(&ours.loss, &wanted);
            close(&ours.statistics.unwrap(), &found.logprobs.sum(Kind::Double).view([1]));
            for (left, right) in grads(&(ours.loss * 3.0), &case).iter().zip(&grads(&(wanted * 3.0), &case)) {
                close(left, right);
            }
        }
    }
}

/// The divergence of distributions, from their logarithms in double precision.
fn dense_divergence(kind: Divergence, p: &Tensor, q: &Tensor) -> Tensor {
    let kl = |left: &Tensor, right: &Tensor| (left.exp() * (left - right)).sum(Kind::Double);
    match kind {
        Divergence::ForwardKl => kl(q, p),
        Divergence::ReverseKl => kl(p, q),
        Divergence::Jsd(weight) => {
            let mixture = (p.exp() * (1.0 - weight) + q.exp() * weight).log();
            kl(q, &mixture) * weight + kl(p, &mixture) * (1.0 - weight)
        }
    }
}

#[test]
fn divergences_equal_the_dense_form_with_their_gradients() {
    for (rows, vocabulary, top_k) in [(5, 11, 3), (140, 70_000, 20)] {
        let case = case(rows, vocabulary);
        let head = Head::new(&case.weight, Some(&case.bias));
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        let (states, weight) = (random(&[rows, 6]), random(&[vocabulary, 6]));
        let [hidden, own_weight, bias, own_states, own_head] =
            [&case.hidden, &case.weight, &case.bias, &states, &weight].map(|x| x.to_kind(Kind::Double));
        let q = (own_states.matmul(&own_head.tr()) / 0.7).log_softmax(1, Kind::Double);
        let likeliest = q.topk(top_k, 1, true, true).1;

        for top_k in [None, Some(top_k)] {
            let teacher = Teacher { hidden: &states, head: Head::new(&weight, None), top_k };
            // With some tokens, the last outcome is all others.
            let outcomes = |logprobs: &Tensor| {
                if top_k.is_none() {
                    return logprobs.shallow_clone();
                }
                let named = logprobs.gather(1, &likeliest, false);
                let rest: Tensor = 1.0 - named.exp().sum_dim_intlist(1, true, Kind::Double);
                Tensor::cat(&[named, rest.log()], 1)
            };
            for kind in [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::Jsd(0.3)] {
                let p = (hidden.linear(&own_weight, Some(&bias)) / 0.7).log_softmax(1, Kind::Double);
                let dense = dense_divergence(kind, &outcomes(&p), &outcomes(&q));
                let ours = divergence(&case.hidden, head, teacher, kind, 0.7).unwrap();
                close(&ours, &dense);
                for (left, right) in grads(&(ours * 3.0), &case).iter().zip(&grads(&(dense * 3.0), &case)) {
                    close(left, right);
                }
            }
        }
    }
}

#[test]
fn one_token_against_the_rest_by_hand() {
    // The teacher has the probabilities 1/2, 1/4, 1/8, 1/8, and the student 1/4 each. With the likeliest
    // token alone, they are (1/2, 1/2) and (1/4, 3/4).
    let teacher = Tensor::from_slice2(&[[4f32.ln(), 2f32.ln(), 0.0, 0.0]]);
    let identity = Tensor::eye(4, (Kind::Float, Device::Cpu));
    let head = Head::new(&identity, None);
    for (kind, expected) in [
        // 1/2 ln 2 + 1/2 ln 2/3; 1/4 ln 1/2 + 3/4 ln 3/2; with the mixture (3/8, 5/8):
        // (1/2 ln 4/3 + 1/2 ln 4/5) / 2 + (1/4 ln 2/3 + 3/4 ln 6/5) / 2.
        (Divergence::ForwardKl, 0.143_841),
        (Divergence::ReverseKl, 0.130_812),
        (Divergence::Jsd(0.5), 0.033_822),
    ] {
        let student = Tensor::zeros([1, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let teacher = Teacher { hidden: &teacher, head, top_k: Some(1) };
        let value = divergence(&student, head, teacher, kind, 1.0).unwrap();
        assert!((value.double_value(&[]) - expected).abs() < 1e-6, "{kind:?}: {value:?}");
        value.backward();
        if kind == Divergence::ForwardKl {
            // 1/4 - 1/2 for the token, and 1/4 (1 - (1/2) / (3/4)) for each of the others.
            let wanted = Tensor::from_slice2(&[[-0.25f32, 1.0 / 12.0, 1.0 / 12.0, 1.0 / 12.0]]);
            close(&student.grad(), &wanted);
        }
    }
}

#[test]
fn a_probability_that_underflows_leaves_a_divergence_finite() {
    // The first token has the probability exp(-200) under one model and 1 under the other.
    let (student, teacher) = (Tensor::from_slice2(&[[0f32, 200.0]]), Tensor::from_slice2(&[[200f32, 0.0]]));
    let identity = Tensor::eye(2, (Kind::Float, Device::Cpu));
    let head = Head::new(&identity, None);
    for (kind, expected) in [
        (Divergence::ForwardKl, 200.0),
        (Divergence::ReverseKl, 200.0),
        (Divergence::Jsd(0.5), std::f64::consts::LN_2),
    ] {
        let student = student.copy().set_requires_grad(true);
        let value =
            divergence(&student, head, Teacher { hidden: &teacher, head, top_k: None }, kind, 1.0).unwrap();
        assert!((value.double_value(&[]) - expected).abs() < 1e-4, "{kind:?}: {value:?}");
        value.backward();
        assert!(student.grad().isfinite().all().int64_value(&[]) == 1, "{kind:?}: {:?}", student.grad());
    }
}

#[test]
fn targets_that_share_rows_have_the_logprobs_of_repeated_rows() {
    for (rows, vocabulary) in [(5, 11), (300, 70_000)] {
        let case = case(rows, vocabulary);
        let head = Head::new(&case.weight, Some(&case.bias));
        let shared: Vec<i64> = (0..2 * rows).map(|at| (at * 7) % rows).collect();
        let targets: Vec<i64> = (0..2 * rows).map(|at| (at * 13) % vocabulary).collect();
        let found = target_logprobs(&case.hidden, head, &shared, &targets).unwrap();
        let repeated = case.hidden.index_select(0, &Tensor::from_slice(&shared));
        let wanted = logprobs(&repeated, head, &Tensor::from_slice(&targets), 1.0).unwrap();
        close(&found.logprobs, &wanted.logprobs);
        assert_eq!(found.argmax, argmax(&case.hidden, head).unwrap());
    }
    let none = Tensor::zeros([0, 8], (Kind::Float, Device::Cpu));
    let case = case(1, 11);
    let found = target_logprobs(&none, Head::new(&case.weight, None), &[], &[]).unwrap();
    assert_eq!((found.logprobs.size(), found.argmax.size()), (vec![0], vec![0]));
}

#[test]
fn a_uniform_head_by_hand() {
    // With W = 0, p = 1/4 for every token, so log p = -ln 4 and the entropy is ln 4.
    let hidden = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
    let weight = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
    let targets = Tensor::from_slice(&[1i64, 3]);
    let found = logprobs(&hidden, Head::new(&weight, None), &targets, 1.0).unwrap();
    assert!((found.logprobs.double_value(&[0]) + 4f64.ln()).abs() < 1e-6);
    assert!((found.entropy.double_value(&[1]) - 4f64.ln()).abs() < 1e-6);
    let loss = cross_entropy(&hidden, Head::new(&weight, None), &targets, None).unwrap();
    assert!((loss.double_value(&[]) - 2.0 * 4f64.ln()).abs() < 1e-6);
}

#[test]
fn no_rows_give_no_numbers() {
    let hidden = Tensor::zeros([0, 3], (Kind::Float, Device::Cpu));
    let weight = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
    let targets = Tensor::from_slice::<i64>(&[]);
    let found = logprobs(&hidden, Head::new(&weight, None), &targets, 1.0).unwrap();
    assert_eq!(found.logprobs.size(), [0]);
}

#[test]
fn without_a_graph_no_gradient_is_made() {
    let case = case(5, 11);
    let head = Head::new(&case.weight, Some(&case.bias));
    let loss = no_grad(|| cross_entropy(&case.hidden, head, &case.targets, None)).unwrap();
    let found = no_grad(|| logprobs(&case.hidden, head, &case.targets, 1.0)).unwrap();
    assert!(!loss.requires_grad() && !found.logprobs.requires_grad());
}
