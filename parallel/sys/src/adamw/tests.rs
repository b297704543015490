//! AdamW: against numbers by hand, against torch bit by bit, and against itself cut in other ways.

use tch::no_grad;

use super::*;
use crate::dispatch::{Value, call};

const STEP: AdamwStep = AdamwStep {
    lr: 0.01,
    betas: (0.9, 0.95),
    eps: 1e-6,
    weight_decay: 0.1,
    step: 3,
    grad_divisor: 1.7,
    seed: 42,
};

/// The tensors of one run. `weight` is always there, and used where it is wanted.
struct State {
    master: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    weight: Tensor,
}

impl State {
    /// Numbers as in training, in which some are special.
    fn random(count: i64, moments: Kind) -> Self {
        // Tests beside this one share the generator of libtorch, so the numbers come from the sine of large
        // multiples, with tails by the cube.
        let number = |stream: f64, scale: f64| {
            let angle = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + stream * 78.233;
            ((angle * 43_758.545_3).sin().pow_tensor_scalar(3) * (3.0 * scale)).to_kind(Kind::Float)
        };
        let state = Self {
            master: number(1.0, 1.0),
            grad: number(2.0, 0.03),
            exp_avg: number(3.0, 0.02).to_kind(moments),
            exp_avg_sq: number(4.0, 0.02).square().to_kind(moments),
            weight: Tensor::zeros([count], (Kind::BFloat16, Device::Cpu)),
        };
        let special = [0.0, -0.0, 1e-45, -1e-39, f32::MIN_POSITIVE, 3e38, -3e38, 1e19, 1e-20, 1.0];
        let put = |tensor: &Tensor, at: i64, value: f32| {
            let _ = tensor.get(at).fill_(f64::from(value));
        };
        for (index, &value) in special.iter().enumerate() {
            let (index, last) = (index as i64, special.len() as i64);
            if index + 3 * last < count {
                put(&state.grad, index, value);
                put(&state.master, index + last, value);
                put(&state.exp_avg, index + 2 * last, value);
                put(&state.exp_avg_sq, index + 3 * last, value.abs());
            }
        }
        state
    }

    fn filled(count: i64, [master, grad]: [f64; 2], moments: Kind) -> Self {
        let full = |value: f64, kind| Tensor::full([count], value, (kind, Device::Cpu));
        Self {
            master: full(master, Kind::Float),
            grad: full(grad, Kind::Float),
            exp_avg: full(0.0, moments),
            exp_avg_sq: full(0.0, moments),
            weight: full(0.0, Kind::BFloat16),
        }
    }

    fn each(&self, change: impl Fn(&Tensor) -> Tensor) -> Self {
        Self {
            master: change(&self.master),
            grad: change(&self.grad),
            exp_avg: change(&self.exp_avg),
            exp_avg_sq: change(&self.exp_avg_sq),
            weight: change(&self.weight),
        }
    }

    fn copied(&self) -> Self {
        self.each(Tensor::copy)
    }

    /// A view of `count` elements from `start`.
    fn part(&self, start: i64, count: i64) -> Self {
        self.each(|tensor| tensor.narrow(0, start, count))
    }

    /// The same numbers at other addresses, not aligned to more than an element.
    fn misaligned(&self, by: i64) -> Self {
        self.each(|tensor| {
            let room = Tensor::zeros([tensor.size1().unwrap() + by], (tensor.kind(), Device::Cpu));
            let mut view = room.narrow(0, by, tensor.size1().unwrap());
            view.copy_(tensor);
            view
        })
    }

    fn tensors(&self, copy: bool) -> AdamwTensors<'_> {
        let Self { master, grad, exp_avg, exp_avg_sq, weight } = self;
        AdamwTensors { master, grad, exp_avg, exp_avg_sq, weight: copy.then_some(weight) }
    }

    fn update(&self, step: &AdamwStep) {
        adamw(&self.tensors(true), step, &ElementNumbers::starting_at(0)).unwrap();
    }

    /// The bits of all tensors.
    fn bits(&self) -> [Vec<u32>; 5] {
        [&self.master, &self.grad, &self.exp_avg, &self.exp_avg_sq, &self.weight].map(bits)
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float)).unwrap()
}

/// Every NaN has the same bits here.
fn bits(tensor: &Tensor) -> Vec<u32> {
    numbers(tensor).iter().map(|number| if number.is_nan() { u32::MAX } else { number.to_bits() }).collect()
}

/// `aten::_fused_adamw_` with the same arguments.
fn aten(state: &State, step: &AdamwStep) {
    let scalar = |value: f64| Tensor::full(&[] as &[i64], value, (Kind::Float, Device::Cpu));
    let (count, divisor) = (scalar(step.step as f64), scalar(step.grad_divisor));
    let arguments = [
        Value::Tensors(&[&state.master]),
        Value::Tensors(&[&state.grad]),
        Value::Tensors(&[&state.exp_avg]),
        Value::Tensors(&[&state.exp_avg_sq]),
        Value::Tensors(&[]),
        Value::Tensors(&[&count]),
        Value::Double(step.lr),
        Value::Double(step.betas.0),
        Value::Double(step.betas.1),
        Value::Double(step.weight_decay),
        Value::Double(step.eps),
        Value::Bool(false),
        Value::Bool(false),
        Value::Tensor(&divisor),
    ];
    no_grad(|| call("aten::_fused_adamw_", "", &arguments)).unwrap();
}

#[test]
fn one_step_by_hand() {
    // w = 1, g = 4 / 2 (divisor 2), lr 0.1, decay 0.5: w (1 - 0.05) = 0.95. m = 0.1 * 2 = 0.2, m^ = 2;
    // v = 0.05 * 4 = 0.2, v^ = 4: w -= 0.1 * 2 / (2 + 1e-6).
    let state = State::filled(1, [1.0, 4.0], Kind::Float);
    state.update(&AdamwStep { lr: 0.1, weight_decay: 0.5, step: 1, grad_divisor: 2.0, ..STEP });
    for (tensor, expected) in [(&state.master, 0.85), (&state.exp_avg, 0.2), (&state.exp_avg_sq, 0.2)] {
        assert!((tensor.double_value(&[0]) - expected).abs() < 1e-6, "{tensor:?}");
    }
    // The nearest of the bfloat16 numbers, 2^-8 apart below 1: 0.85 * 256 = 217.6.
    assert_eq!(state.weight.double_value(&[0]), 218.0 / 256.0);
    assert_eq!(state.grad.double_value(&[0]), 4.0);
}

/// torch 2.11.0: three `torch.optim.AdamW` steps with grads (0.5, -2), (0.1, 1), (-0.3, 0.2).
#[test]
fn three_steps_equal_those_of_torch() {
    let mut state = State::filled(2, [0.0, 0.0], Kind::Float);
    state.master = Tensor::from_slice(&[1.0f32, -1.0]);
    for (step, grad) in [[0.5f32, -2.0], [0.1, 1.0], [-0.3, 0.2]].iter().enumerate() {
        state.grad = Tensor::from_slice(grad);
        state.update(&AdamwStep { step: step as u64 + 1, grad_divisor: 1.0, ..STEP });
    }
    let got = numbers(&state.master);
    assert!((got[0] - 0.976_774_5).abs() < 1e-6 && (got[1] + 0.982_831).abs() < 1e-6, "{got:?}");
}

#[test]
fn the_bits_are_those_of_aten() {
    if InstructionSet::best() == InstructionSet::Build {
        return;
    }
    // aten splits equally among its threads; a multiple of 16 per thread leaves none to its scalar loop.
    let count = i64::from(tch::get_num_threads()) * (1 << 15);
    let steps = [
        STEP,
        AdamwStep { lr: 1e-5, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, step: 1000, ..STEP },
        AdamwStep { betas: (0.3, 0.9), step: 1, grad_divisor: 1.0, ..STEP },
        AdamwStep { lr: 3.0, betas: (0.0, 0.0), eps: 0.0, weight_decay: 0.01, grad_divisor: 1e4, ..STEP },
    ];
    for step in steps {
        let (ours, theirs) = (State::random(count, Kind::Float), State::random(count, Kind::Float));
        let grad = ours.grad.copy();
        ours.update(&step);
        aten(&theirs, &step);
        let scaled = grad.shallow_clone() / f64::from(step.grad_divisor as f32);
        for (name, left, right) in [
            ("exp_avg", &ours.exp_avg, &theirs.exp_avg),
            ("exp_avg_sq", &ours.exp_avg_sq, &theirs.exp_avg_sq),
            ("master", &ours.master, &theirs.master),
            ("scaled gradient", &scaled, &theirs.grad),
        ] {
            assert!(bits(left) == bits(right), "{name} of {step:?}");
        }
        // Unlike aten, this leaves the gradient.
        assert!(bits(&ours.grad) == bits(&grad));
    }
}

#[test]
fn every_cut_gives_the_same_bits() {
    let count: i64 = 4567;
    // The elements cross a multiple of 2^32, where the random numbers change their key.
    let first = (1u64 << 32) - 2000;
    for kind in [Kind::Float, Kind::BFloat16] {
        let start = State::random(count, kind);
        let whole = start.copied();
        adamw(&whole.tensors(true), &STEP, &ElementNumbers::starting_at(first)).unwrap();
        assert_ne!(whole.bits()[2], start.bits()[2]);

        for size in [1, 7, 16, 1000, 4096] {
            let pieces = start.misaligned(size % 5);
            for begin in (0..count).step_by(size as usize) {
                let piece = pieces.part(begin, size.min(count - begin));
                let elements = ElementNumbers::starting_at(first).skip(begin as u64);
                adamw(&piece.tensors(true), &STEP, &elements).unwrap();
            }
            assert_eq!(pieces.bits(), whole.bits(), "{kind:?} in pieces of {size}");
        }
    }
}

/// A matrix whose columns two ranks hold: each rounds its elements as one rank with all of them does.
#[test]
fn a_shard_of_columns_has_the_bits_of_the_whole() {
    let (rows, columns) = (37i64, 61i64);
    // The numbers of the matrix cross a multiple of 2^32 in its middle.
    let first = (1u64 << 32) - (rows * columns) as u64 / 2;
    for kind in [Kind::Float, Kind::BFloat16] {
        let start = State::random(rows * columns, kind);
        let whole = start.copied();
        adamw(&whole.tensors(true), &STEP, &ElementNumbers::starting_at(first)).unwrap();
        for columns_of in [0..20i64, 20..61] {
            let narrow = |state: &State| {
                state.each(|tensor| {
                    let matrix = tensor.view([rows, columns]);
                    let part = matrix.narrow(1, columns_of.start, columns_of.end - columns_of.start);
                    part.contiguous().view([-1])
                })
            };
            let part = narrow(&start);
            let range = first + columns_of.start as u64..first + columns_of.end as u64;
            let elements = ElementNumbers::in_blocks(std::iter::once(range), columns as u64);
            for threads in [1, 3] {
                let part = part.copied();
                let set = InstructionSet::best();
                adamw_with(&part.tensors(true), &STEP, &elements, set, threads).unwrap();
                let mut expected = narrow(&whole);
                expected.grad = part.grad.shallow_clone();
                assert_eq!(part.bits(), expected.bits(), "{kind:?} {columns_of:?}");
            }
        }
    }
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_same_bits() {
    for (kind, count) in [Kind::Float, Kind::BFloat16]
        .into_iter()
        .flat_map(|kind| [1, 15, 16, 17, 33, 63, 1027, 99_991].map(|count| (kind, count)))
    {
        let start = State::random(count, kind);
        let run = |set: InstructionSet, threads: usize, copy: bool| {
            let state = start.misaligned(1);
            adamw_with(&state.tensors(copy), &STEP, &ElementNumbers::starting_at(5), set, threads).unwrap();
            state.bits()
        };
        let expected = run(InstructionSet::Build, 1, true);
        for set in InstructionSet::available() {
            for threads in [1, 2, 3, 8] {
                assert_eq!(run(set, threads, true), expected, "{kind:?} {count} {set:?} {threads}");
            }
            let [master, grad, exp_avg, exp_avg_sq, weight] = run(set, 1, false);
            assert_eq!([master, grad, exp_avg, exp_avg_sq], expected[..4]);
            assert!(weight.iter().all(|&bits| bits == 0));
        }
    }
}

#[test]
fn the_copy_is_what_torch_rounds_to() {
    let state = State::random(100_003, Kind::Float);
    state.update(&STEP);
    let expected = state.master.to_kind(Kind::BFloat16);
    assert_eq!(bits(&state.weight), bits(&expected));
    assert!(numbers(&state.weight).iter().all(|number| !number.is_nan()));
}

#[test]
fn stochastic_rounding_has_no_bias() {
    const COUNT: i64 = 1 << 20;
    let rounded_up = |step: &AdamwStep| {
        // With betas (0.9, 0.95): m = 0.1 g and v = 0.05 g^2.
        let (wide, narrow) =
            (State::filled(1, [1.0, 0.77], Kind::Float), State::filled(COUNT, [1.0, 0.77], Kind::BFloat16));
        wide.update(step);
        narrow.update(step);
        [(&wide.exp_avg, &narrow.exp_avg), (&wide.exp_avg_sq, &narrow.exp_avg_sq)].map(|(wide, narrow)| {
            let exact = numbers(wide)[0];
            let below = f32::from_bits(exact.to_bits() & 0xffff_0000);
            let above = f32::from_bits(below.to_bits() + 0x1_0000);
            let share = f64::from((exact - below) / (above - below));
            assert!(share > 0.05 && share < 0.95, "a share that can be measured: {share}");
            let ups: Vec<f64> = numbers(narrow)
                .iter()
                .map(|&number| {
                    assert!(number == below || number == above);
                    if number == above { 1.0 } else { 0.0 }
                })
                .collect();
            (share, ups)
        })
    };
    let correlation = |left: &[f64], right: &[f64], [a, b]: [f64; 2]| {
        let products: f64 = left.iter().zip(right).map(|(l, r)| (l - a) * (r - b)).sum();
        products / (a * (1.0 - a) * b * (1.0 - b)).sqrt() / (left.len() as f64).sqrt()
    };

    let [(p, first), (q, second)] = rounded_up(&STEP);
    for (share, ups) in [(p, &first), (q, &second)] {
        let mean = ups.iter().sum::<f64>() / COUNT as f64;
        let standard_error = (share * (1.0 - share) / COUNT as f64).sqrt();
        assert!((mean - share).abs() < 4.0 * standard_error, "{mean} for {share} +- {standard_error}");
        // In units of the standard error: neighbours, and elements that are further apart.
        for lag in [1, 2, 16, 1024] {
            let z = correlation(&ups[lag..], &ups[..ups.len() - lag], [share; 2]);
            assert!(z.abs() < 4.0, "lag {lag}: {z}");
        }
    }
    // The two moments, the next step, and another seed.
    assert!(correlation(&first, &second, [p, q]).abs() < 4.0);
    let [_, (same, next)] = rounded_up(&AdamwStep { seed: STEP.seed + 1, ..STEP });
    assert!(same == q && correlation(&second, &next, [q, q]).abs() < 4.0);
    assert_ne!(second, next);
    let [(next_share, next), _] = rounded_up(&AdamwStep { step: STEP.step + 1, ..STEP });
    assert!(next_share == p && correlation(&first, &next, [p, p]).abs() < 4.0);
}

#[test]
fn the_second_moment_keeps_moving() {
    const STEPS: u64 = 2000;
    let (beta2, grad) = (0.999, 0.3f64);
    let state = State::filled(4096, [0.0, grad], Kind::BFloat16);
    let mut nearest = Bfloat16::default();
    for step in 1..=STEPS {
        state.update(&AdamwStep { betas: (0.9, beta2), step, grad_divisor: 1.0, weight_decay: 0.0, ..STEP });
        let wide = beta2 as f32 * nearest.widen() + (1.0 - beta2) as f32 * (grad * grad) as f32;
        nearest = Bfloat16::nearest(wide);
    }
    let expected = grad * grad * (1.0 - beta2.powf(STEPS as f64));
    let values = state.exp_avg_sq.to_kind(Kind::Double);
    let (mean, deviation) = (values.mean(Kind::Double).double_value(&[]), values.std(true).double_value(&[]));
    // One element is a random walk about the exact value; the mean of all has no bias.
    assert!((mean / expected - 1.0).abs() < 0.005, "{mean} for {expected}");
    assert!(deviation / expected < 0.05, "{deviation} for {expected}");
    // Rounded to nearest it would have stopped early.
    assert!(f64::from(nearest.widen()) < 0.5 * expected, "{nearest:?}");
    // And the weights moved as far as with fp32 moments: about lr per step.
    let moved = state.master.mean(Kind::Double).double_value(&[]);
    assert!((moved + STEP.lr * STEPS as f64).abs() < 0.01 * STEP.lr * STEPS as f64, "{moved}");
}

#[test]
fn what_does_not_fit_is_named() {
    let state = State::random(64, Kind::Float);
    let (good, elements) = (state.tensors(true), ElementNumbers::starting_at(0));
    let before = state.bits();
    let wide = Tensor::zeros([64], (Kind::Double, Device::Cpu));
    let short = Tensor::zeros([63], (Kind::Float, Device::Cpu));
    let apart = Tensor::zeros([64, 2], (Kind::Float, Device::Cpu)).select(1, 0);
    let cases = [
        (AdamwTensors { master: &wide, ..good }, "`master` is of kind Double and must be of kind Float"),
        (AdamwTensors { grad: &short, ..good }, "`grad` has 63 elements and `master` has 64"),
        (AdamwTensors { exp_avg: &apart, ..good }, "`exp_avg` must be contiguous"),
        (AdamwTensors { exp_avg_sq: &state.weight, ..good }, "`exp_avg_sq` is of kind BFloat16"),
        (AdamwTensors { exp_avg_sq: &state.grad, ..good }, "`exp_avg_sq` shares memory with `grad`"),
        (AdamwTensors { weight: Some(&state.master), ..good }, "`weight` is of kind Float"),
    ];
    for (tensors, expected) in cases {
        let message = adamw(&tensors, &STEP, &elements).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = adamw(&good, &AdamwStep { step: 0, ..STEP }, &elements).unwrap_err().to_string();
    assert!(message.contains("`step` is 0"), "{message}");
    assert_eq!(state.bits(), before);
    State::random(0, Kind::Float).update(&STEP);
}
