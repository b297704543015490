//! Scaled dot-product attention: `softmax(q k^T * scale + mask) v`, scores and softmax in fp32 inside libtorch's kernel.
//!
//! Legend: `N` tokens, `R` rows, `T` tokens of a row, `D` head size.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Architecture, Position, Qkv};
use crate::batch::MaskKind;
use crate::layer::{Linear, Norm, Registry};
use crate::rope::Rotary;

/// Attention over whole rows: `q` `[R, heads, T, D]`, `k` and `v` `[R, kv_heads, T, D]` to `[R, heads, T, D]`. Without a
/// mask it is causal; a mask is added to the scores and holds the causality itself.
pub fn scaled_dot_product(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, scale: f64) -> Tensor {
    let grouped = q.size()[1] != k.size()[1];
    Tensor::scaled_dot_product_attention(q, k, v, mask, 0.0, mask.is_none(), scale, grouped)
}

/// The projections of one attention layer.
#[derive(Debug)]
pub struct Attention {
    projection: Projection,
    norms: Option<(Norm, Norm)>,
    out: Linear,
    heads: [i64; 2],
    head_dim: i64,
    scale: f64,
    mask: MaskKind,
}

#[derive(Debug)]
enum Projection {
    Separate([Linear; 3]),
    Blocks(Linear),
    PerHead(Linear),
}

impl Attention {
    /// The attention of `layer`, whose modules have names that begin with `prefix`.
    pub fn new(
        registry: &mut Registry<'_>,
        architecture: &Architecture,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, Error> {
        let (names, dim) = (&architecture.names, architecture.head_dim);
        let (inner, outer) = (architecture.hidden_size, architecture.num_heads * dim);
        let kv = architecture.num_kv_heads * dim;
        let name = |index: usize| format!("{prefix}.{}", names.qkv[index]);
        let bias = architecture.qkv_bias;
        let projection = match architecture.qkv {
            Qkv::Separate => Projection::Separate([
                registry.linear(&name(0), inner, outer, bias)?,
                registry.linear(&name(1), inner, kv, bias)?,
                registry.linear(&name(2), inner, kv, bias)?,
            ]),
            Qkv::Blocks => Projection::Blocks(registry.linear(&name(0), inner, outer + 2 * kv, bias)?),
            Qkv::PerHead => Projection::PerHead(registry.linear(&name(0), inner, outer + 2 * kv, bias)?),
        };
        let norms = if architecture.qk_norm {
            let norm = |registry: &mut Registry<'_>, which: &str| {
                registry.norm(&format!("{prefix}.self_attn.{which}_norm"), dim)
            };
            Some((norm(registry, "q")?, norm(registry, "k")?))
        } else {
            None
        };
        let out_name = format!("{prefix}.{}", names.out);
        let out = registry.residual_linear(&out_name, outer, inner, architecture.out_bias)?;
        let alibi_heads = matches!(architecture.position, Position::Alibi).then_some(architecture.num_heads);
        Ok(Self {
            projection,
            norms,
            out,
            heads: [architecture.num_heads, architecture.num_kv_heads],
            head_dim: dim,
            scale: architecture.scales[layer],
            mask: MaskKind { window: architecture.windows[layer], alibi_heads },
        })
    }

    /// Queries `[N, heads, D]`, keys and values `[N, kv_heads, D]` of `x` `[N, hidden]`, normed and rotated.
    pub fn project(&self, x: &Tensor, rotary: Option<&Rotary>) -> [Tensor; 3] {
        let [heads, kv_heads] = self.heads;
        let [mut q, mut k, v] = match &self.projection {
            Projection::Separate([q, k, v]) => [(q, heads), (k, kv_heads), (v, kv_heads)]
                .map(|(linear, heads)| linear.forward(x).unflatten(1, [heads, self.head_dim])),
            Projection::Blocks(linear) => {
                let joined = linear.forward(x).unflatten(1, [heads + 2 * kv_heads, self.head_dim]);
                [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)]
                    .map(|(start, count)| joined.narrow(1, start, count))
            }
            Projection::PerHead(linear) => {
                let joined = linear.forward(x).unflatten(1, [heads, 3, self.head_dim]);
                [0, 1, 2].map(|part| joined.select(2, part))
            }
        };
        if let Some((q_norm, k_norm)) = &self.norms {
            (q, k) = (q_norm.forward(&q), k_norm.forward(&k));
        }
        if let Some(rotary) = rotary {
            (q, k) = (rotary.apply(&q), rotary.apply(&k));
        }
        [q, k, v]
    }

    /// The output projection of `attended` `[N, heads * D]`, on top of `residual` where there is one.
    pub fn project_out(&self, attended: &Tensor, residual: Option<&Tensor>) -> Tensor {
        self.out.forward_onto(attended, residual)
    }

    /// The factor of the scores.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// What is seen beside causality.
    pub fn mask(&self) -> &MaskKind {
        &self.mask
    }
}
