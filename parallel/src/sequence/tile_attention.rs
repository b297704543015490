//! Attention of some queries over one block of keys, with the log-sum-exp by which results of several blocks
//! are merged.
//!
//! ```text
//!   S = scale Q K^T    l = log sum_j e^(S_j)    P = e^(S - l)    O = P V
//!   dV = P^T dO        dS = P (dO V^T - rowsum(dO O))            dQ = scale dS K    dK = scale dS^T Q
//! ```
//! With `l` and `O` over *all* keys, these are the gradients of one block, and need no other block (Dao et
//! al. 2022, arXiv 2205.14135, section 3.1). On the CPU, libtorch's flash kernel computes them. libtorch has
//! kernels with a log-sum-exp for some other devices, dtypes and shapes only, so there the same sums are
//! written out: they hold the scores of one block.

use parallel_sys::dispatch::{self, Value};
use tch::{Device, Kind, Tensor};

use crate::SysError;

/// Computes the attention output `[rows, heads, T, D]` and the log-sum-exp of its scores `[rows, heads, T]`,
/// in fp32 at least.
pub(super) fn tile_attention(
    [q, k, v]: [&Tensor; 3],
    causal: bool,
    scale: f64,
) -> Result<[Tensor; 2], SysError> {
    if q.device() == Device::Cpu {
        flash([q, k, v], causal, scale)
    } else {
        Ok(math([q, k, v], causal, scale))
    }
}

/// Computes the gradients of `q`, `k` and `v` from the result and the log-sum-exp over all keys.
pub(super) fn tile_attention_backward(
    grad: &Tensor,
    qkv: [&Tensor; 3],
    saved: [&Tensor; 2],
    causal: bool,
    scale: f64,
) -> Result<[Tensor; 3], SysError> {
    if grad.device() == Device::Cpu {
        flash_backward(grad, qkv, saved, causal, scale)
    } else {
        Ok(math_backward(grad, qkv, saved, causal, scale))
    }
}

/// Sums are accumulated in fp32 or wider.
pub(super) fn accumulation_kind(kind: Kind) -> Kind {
    if kind == Kind::Double { kind } else { Kind::Float }
}

fn math([q, k, v]: [&Tensor; 3], causal: bool, scale: f64) -> [Tensor; 2] {
    let scores = scores(q, k, causal, scale);
    let lse = scores.logsumexp(-1, false);
    let probs = (scores - lse.unsqueeze(-1)).exp();
    [probs.to_kind(v.kind()).matmul(v), lse]
}

fn math_backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    [result, lse]: [&Tensor; 2],
    causal: bool,
    scale: f64,
) -> [Tensor; 3] {
    let kind = accumulation_kind(q.kind());
    let probs = (scores(q, k, causal, scale) - lse.unsqueeze(-1)).exp();
    let grad = grad.to_kind(q.kind());
    let row_sums = (grad.to_kind(kind) * result.to_kind(kind)).sum_dim_intlist(-1, true, kind);
    let grad_scores = (grad.matmul(&v.transpose(-2, -1)).to_kind(kind) - row_sums) * &probs * scale;
    let grad_scores = grad_scores.to_kind(q.kind());
    [
        grad_scores.matmul(k),
        grad_scores.transpose(-2, -1).matmul(q),
        probs.to_kind(q.kind()).transpose(-2, -1).matmul(&grad),
    ]
}

/// The scaled scores `[rows, heads, T, keys]`, in fp32 at least; minus infinity where the causal mask
/// applies.
fn scores(q: &Tensor, k: &Tensor, causal: bool, scale: f64) -> Tensor {
    let scores = q.matmul(&k.transpose(-2, -1)).to_kind(accumulation_kind(q.kind())) * scale;
    if !causal {
        return scores;
    }
    let later = scores.ones_like().triu(1).to_kind(Kind::Bool);
    scores.masked_fill(&later, f64::NEG_INFINITY)
}

fn flash([q, k, v]: [&Tensor; 3], causal: bool, scale: f64) -> Result<[Tensor; 2], SysError> {
    let arguments = [
        Value::Tensor(q),
        Value::Tensor(k),
        Value::Tensor(v),
        Value::Double(0.0),
        Value::Bool(causal),
        Value::None,
        Value::Double(scale),
    ];
    outputs("aten::_scaled_dot_product_flash_attention_for_cpu", &arguments)
}

fn flash_backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    [result, lse]: [&Tensor; 2],
    causal: bool,
    scale: f64,
) -> Result<[Tensor; 3], SysError> {
    let arguments = [
        Value::Tensor(grad),
        Value::Tensor(q),
        Value::Tensor(k),
        Value::Tensor(v),
        Value::Tensor(result),
        Value::Tensor(lse),
        Value::Double(0.0),
        Value::Bool(causal),
        Value::None,
        Value::Double(scale),
    ];
    outputs("aten::_scaled_dot_product_flash_attention_for_cpu_backward", &arguments)
}

fn outputs<const N: usize>(name: &str, arguments: &[Value<'_>]) -> Result<[Tensor; N], SysError> {
    let outputs = dispatch::call_tensors(name, "", arguments)?;
    Ok(outputs.try_into().expect("the schema says how many results there are"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::tests::close;

    #[test]
    fn the_written_out_sums_equal_the_kernel() {
        let input = |length: i64, phase: f64| {
            (Tensor::arange(2 * 3 * length * 8, (Kind::Double, Device::Cpu)) * 1.7 + phase)
                .sin()
                .view([2, 3, length, 8])
        };
        for (causal, keys) in [(true, 5), (false, 7)] {
            let [q, k, v, grad] = [input(5, 1.0), input(keys, 2.0), input(keys, 3.0), input(5, 4.0)];
            let qkv = [&q, &k, &v];
            let [result, lse] = flash(qkv, causal, 0.3).unwrap();
            for (written_out, kernel) in math(qkv, causal, 0.3).iter().zip([&result, &lse]) {
                close(written_out, kernel);
            }
            let saved = [&result, &lse];
            let kernel = flash_backward(&grad, qkv, saved, causal, 0.3).unwrap();
            for (written_out, kernel) in math_backward(&grad, qkv, saved, causal, 0.3).iter().zip(&kernel) {
                close(written_out, kernel);
            }
        }
    }
}
