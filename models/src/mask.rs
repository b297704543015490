//! Attention masks in addition to causality: sliding windows and ALiBi (Press et al. 2021, arXiv 2108.12409).

use std::ops::Range;

use parallel::upload;
use tch::{Device, Kind, Tensor, no_grad};

/// The sliding window and the ALiBi bias of an attention layer. Attention is always causal.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskKind {
    /// The number of latest tokens that a query sees, including itself; `None` for all.
    pub window: Option<i64>,
    /// The ALiBi bias, if the model has one.
    pub alibi: Option<Alibi>,
}

/// The heads of an ALiBi bias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// The number of all heads of the layer, which determines the slopes.
    pub heads: i64,
    /// The heads that this rank computes.
    pub local_heads: Range<i64>,
}

impl Alibi {
    /// The slopes of the heads of this rank.
    pub fn slopes(&self) -> Vec<f32> {
        alibi_slopes(self.heads)[self.local_heads.start as usize..self.local_heads.end as usize].to_vec()
    }
}

impl MaskKind {
    /// The bias added to the attention scores of queries at positions `past..past + queries`:
    /// `[1, 1 or heads, queries, past + queries]`, with minus infinity where a key is masked.
    pub fn attention_bias(&self, past: i64, queries: i64, kind: Kind, device: Device) -> Tensor {
        no_grad(|| {
            let keys = Tensor::arange(past + queries, (Kind::Float, device));
            let distance = keys.unsqueeze(0) - keys.narrow(0, past, queries).unsqueeze(1); // [queries, keys]
            self.bias_at_distance(&distance).view([1, -1, queries, past + queries]).to_kind(kind)
        })
    }

    /// The bias of a key at `distance` (key position minus query position) `[..., queries, keys]`. The result
    /// has an additional head dimension before the last two.
    pub fn bias_at_distance(&self, distance: &Tensor) -> Tensor {
        let mut masked = distance.gt(0.0);
        if let Some(window) = self.window {
            masked = masked.logical_or(&distance.le(-window as f64));
        }
        let bias = match &self.alibi {
            Some(alibi) => {
                let slopes = upload(&alibi.slopes(), distance.device());
                slopes.view([-1, 1, 1]) * distance.unsqueeze(-3)
            }
            None => distance.zeros_like().unsqueeze(-3),
        };
        bias.masked_fill(&masked.unsqueeze(-3), f64::NEG_INFINITY)
    }
}

/// The ALiBi slopes (Press et al. 2021, section 3): `2^(-8 i / n)` for a power of two `n`. For other counts
/// the remaining heads take every second slope of the next power of two.
pub fn alibi_slopes(heads: i64) -> Vec<f32> {
    let power = 1_i64 << heads.ilog2();
    let slope = |index: f64, count: i64| (-8.0 * index / count as f64).exp2() as f32;
    let first = (1..=power).map(|index| slope(index as f64, power));
    let rest = (0..heads - power).map(|index| slope((2 * index + 1) as f64, 2 * power));
    first.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_by_hand() {
        // Four heads have 2^-2, 2^-4, 2^-6, 2^-8. The fifth and sixth take 2^-1 and 2^-3 of the eight-head
        // list.
        assert_eq!(alibi_slopes(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
    }
}
