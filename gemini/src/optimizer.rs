//! AdamW over a list of tensors: on the host by our own kernel, on a GPU by the fused one of libtorch.
//!
//! ```text
//!   w -= r d w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//!   w -= r (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//! ```
//! with gradient `g`, moments `m` and `v`, step `t` (from 1), learning rate `r` and weight decay `d`
//! (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2). The same call also scales the gradient for
//! clipping. This module knows no schedule and no model.

use parallel::adamw::{AdamwStep, AdamwTensors};
use parallel::dispatch::{Value, call};
use parallel::elements::ElementNumbers;
use tch::{Device, Kind, Tensor, no_grad};

use crate::{Error, TrainConfig};

/// The AdamW moments of one parameter.
#[derive(Debug)]
pub(crate) struct Moments {
    pub(crate) exp_avg: Tensor,
    pub(crate) exp_avg_sq: Tensor,
}

/// One parameter of an update, or some elements of it: the fp32 values, their gradient, the moments, and
/// whether weight decay applies.
#[derive(Debug)]
pub(crate) struct AdamwParam {
    pub(crate) master: Tensor,
    /// The weight of lower precision, to which the master is copied; `None` if the weight is its own master.
    /// Megatron: `copy_main_params_to_model_params`.
    pub(crate) weight: Option<Tensor>,
    pub(crate) grad: Tensor,
    pub(crate) moments: Moments,
    pub(crate) weight_decay: bool,
    /// What the random numbers that round moments in bf16 depend on: the name of the parameter, and the
    /// numbers of these elements in the full parameter. So all copies of an element are rounded alike, on
    /// any rank of any mesh.
    pub(crate) seed: u64,
    pub(crate) elements: ElementNumbers,
}

impl AdamwParam {
    /// The same tensors once more.
    pub(crate) fn shallow_clone(&self) -> Self {
        Self {
            master: self.master.shallow_clone(),
            weight: self.weight.as_ref().map(Tensor::shallow_clone),
            grad: self.grad.shallow_clone(),
            moments: Moments {
                exp_avg: self.moments.exp_avg.shallow_clone(),
                exp_avg_sq: self.moments.exp_avg_sq.shallow_clone(),
            },
            weight_decay: self.weight_decay,
            seed: self.seed,
            elements: self.elements.clone(),
        }
    }
}

/// Updates every parameter in place. The gradients are divided by `grad_divisor` first; `step` counts from 1.
/// On the host, the result of an element does not depend on how the parameters are cut into chunks.
pub(crate) fn adamw(
    updates: &[AdamwParam],
    config: &TrainConfig,
    lr: f64,
    step: u64,
    grad_divisor: f64,
) -> Result<(), Error> {
    let decay_of = |decays: bool| if decays { config.weight_decay } else { 0.0 };
    let (on_host, on_device): (Vec<&AdamwParam>, Vec<&AdamwParam>) =
        updates.iter().partition(|update| update.master.device() == Device::Cpu);

    for update in on_host {
        let hyperparameters = AdamwStep {
            lr,
            betas: config.betas,
            eps: config.eps,
            weight_decay: decay_of(update.weight_decay),
            step,
            grad_divisor,
            seed: update.seed,
        };
        let flat = |tensor: &Tensor| tensor.detach().view([-1]);
        let [master, grad] = [&update.master, &update.grad].map(flat);
        let weight = update.weight.as_ref().map(flat);
        let [exp_avg, exp_avg_sq] = [&update.moments.exp_avg, &update.moments.exp_avg_sq].map(flat);
        let tensors = AdamwTensors {
            master: &master,
            grad: &grad,
            exp_avg: &exp_avg,
            exp_avg_sq: &exp_avg_sq,
            weight: weight.as_ref(),
        };
        parallel::adamw::adamw(&tensors, &hyperparameters, &update.elements)?;
    }

    // The fused kernel has one weight decay for all tensors of a call.
    for decays in [true, false] {
        let group: Vec<&AdamwParam> =
            on_device.iter().copied().filter(|update| update.weight_decay == decays).collect();
        if !group.is_empty() {
            fused(&group, config, [lr, decay_of(decays), grad_divisor], step)?;
        }
    }
    for update in on_device {
        if let Some(weight) = &update.weight {
            no_grad(|| weight.shallow_clone().copy_(&update.master));
        }
    }
    Ok(())
}

/// AdamW of libtorch, for parameters on a GPU.
fn fused(
    group: &[&AdamwParam],
    config: &TrainConfig,
    [lr, weight_decay, grad_divisor]: [f64; 3],
    step: u64,
) -> Result<(), Error> {
    let device = group[0].master.device();
    // The kernel does not increment the step; it reads the number of the current step.
    let scalar = |value: f64| Tensor::full(&[] as &[i64], value, (Kind::Float, device));
    let (count, divisor) = (scalar(step as f64), scalar(grad_divisor));

    let masters: Vec<&Tensor> = group.iter().map(|update| &update.master).collect();
    let grads: Vec<&Tensor> = group.iter().map(|update| &update.grad).collect();
    let exp_avgs: Vec<&Tensor> = group.iter().map(|update| &update.moments.exp_avg).collect();
    let exp_avg_sqs: Vec<&Tensor> = group.iter().map(|update| &update.moments.exp_avg_sq).collect();
    let counts: Vec<&Tensor> = group.iter().map(|_| &count).collect();

    let arguments = [
        Value::Tensors(&masters),
        Value::Tensors(&grads),
        Value::Tensors(&exp_avgs),
        Value::Tensors(&exp_avg_sqs),
        Value::Tensors(&[]),
        Value::Tensors(&counts),
        Value::Double(lr),
        Value::Double(config.betas.0),
        Value::Double(config.betas.1),
        Value::Double(weight_decay),
        Value::Double(config.eps),
        Value::Bool(false),
        Value::Bool(false),
        Value::Tensor(&divisor),
    ];

    no_grad(|| call("aten::_fused_adamw_", "", &arguments))?;
    Ok(())
}

/// The Euclidean norm of each gradient, scalars in fp64.
pub(crate) fn norms(grads: &[&Tensor]) -> Result<Vec<Tensor>, Error> {
    if grads.is_empty() {
        return Ok(Vec::new());
    }
    let norms = parallel::dispatch::call_tensors(
        "aten::_foreach_norm",
        "Scalar",
        &[Value::Tensors(grads), Value::Double(2.0)],
    )?;
    Ok(norms.iter().map(|norm| norm.to_kind(Kind::Double)).collect())
}

/// The Euclidean norm of some gradients taken as one vector, from the norm of each.
pub(crate) fn total_norm<'a>(norms: impl Iterator<Item = &'a Tensor>) -> f64 {
    let norms: Vec<&Tensor> = norms.collect();
    if norms.is_empty() {
        return 0.0;
    }
    Tensor::stack(&norms, 0).square().sum(Kind::Double).sqrt().double_value(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parameter with weight decay and moments of zero.
    fn param(master: &[f32], grad: &[f32]) -> AdamwParam {
        let master = Tensor::from_slice(master);
        AdamwParam {
            grad: Tensor::from_slice(grad),
            moments: Moments { exp_avg: master.zeros_like(), exp_avg_sq: master.zeros_like() },
            master,
            weight: None,
            weight_decay: true,
            seed: 0,
            elements: ElementNumbers::starting_at(0),
        }
    }

    #[test]
    fn one_step_by_hand() {
        // w = 1, g = 4 / 2 (divisor 2), lr 0.1, decay 0.5: w (1 - 0.05) = 0.95; m^ = 2, v^ = 4: w -= 0.1 * 2
        // / (2 + 1e-8).
        let config = TrainConfig { weight_decay: 0.5, ..TrainConfig::default() };
        let param = param(&[1.0], &[4.0]);
        adamw(&[param.shallow_clone()], &config, 0.1, 1, 2.0).unwrap();
        assert!((param.master.double_value(&[0]) - 0.85).abs() < 1e-6, "{param:?}");
    }

    /// torch 2.11.0: three `torch.optim.AdamW` steps with grads (0.5, -2), (0.1, 1), (-0.3, 0.2).
    #[test]
    fn three_steps_equal_those_of_torch() {
        let config =
            TrainConfig { weight_decay: 0.1, betas: (0.9, 0.95), eps: 1e-6, ..TrainConfig::default() };
        let param = param(&[1.0, -1.0], &[0.0, 0.0]);
        for (step, grad) in [[0.5f32, -2.0], [0.1, 1.0], [-0.3, 0.2]].iter().enumerate() {
            let param = AdamwParam { grad: Tensor::from_slice(grad), ..param.shallow_clone() };
            adamw(&[param], &config, 0.01, step as u64 + 1, 1.0).unwrap();
        }
        let got = Vec::<f32>::try_from(&param.master).unwrap();
        let expected = EXPECTED;
        assert!((got[0] - expected[0]).abs() < 1e-6 && (got[1] - expected[1]).abs() < 1e-6, "{got:?}");
    }

    const EXPECTED: [f32; 2] = [0.976_774_5, -0.982_831];

    #[test]
    fn the_norm_is_over_all_tensors() {
        let (a, b) = (Tensor::from_slice(&[3.0f32]), Tensor::from_slice(&[0.0f32, 4.0]));
        assert!((total_norm(norms(&[&a, &b]).unwrap().iter()) - 5.0).abs() < 1e-12);
    }
}
