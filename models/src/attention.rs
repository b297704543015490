//! Scaled dot-product attention `softmax(q k^T * scale + mask) v`. Libtorch's kernel computes scores and
//! softmax in fp32.
//!
//! Legend: `N` tokens, `R` rows, `T` tokens per row, `D` head size.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Architecture, Position, Qkv};
use crate::builder::ModuleBuilder;
use crate::linear::Linear;
use crate::mask::{Alibi, MaskKind};
use crate::model_parallel::{HeadPartition, WeightPlacement};
use crate::norm::Norm;
use crate::rope::Rotary;
use crate::tensor_parallel_region::TensorParallelRegion;

/// Attention over complete rows, from `q` `[R, heads, T, D]`, `k` and `v` `[R, kv_heads, T, D]` to
/// `[R, heads, T, D]`. Without a mask it is causal. A mask is added to the scores and must include causality.
pub fn scaled_dot_product(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, scale: f64) -> Tensor {
    let grouped = q.size()[1] != k.size()[1];
    Tensor::scaled_dot_product_attention(q, k, v, mask, 0.0, mask.is_none(), scale, grouped)
}

/// One attention layer: its projections, its heads on this rank, and its mask.
#[derive(Debug)]
pub struct Attention {
    projection: Projection,
    norms: Option<(Norm, Norm)>,
    out: Linear,
    heads: HeadPartition,
    head_dim: i64,
    scale: f64,
    mask: MaskKind,
}

#[derive(Debug)]
enum Projection {
    Separate(Box<[Linear; 3]>),
    Fused(Linear),
    InterleavedByHead(Linear),
}

/// The mask of a rank's heads in `layer`.
pub(crate) fn mask_for_layer(architecture: &Architecture, layer: usize, heads: &HeadPartition) -> MaskKind {
    let alibi = matches!(architecture.position, Position::Alibi)
        .then(|| Alibi { heads: architecture.num_heads, local_heads: heads.query_heads.clone() });
    MaskKind { window: architecture.sliding_windows[layer], alibi }
}

impl Attention {
    /// Builds the attention of `layer`; the names of its modules begin with `prefix`.
    pub fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, Error> {
        let (names, dim) = (&architecture.names, architecture.head_dim);
        let (inner, outer) = (architecture.hidden_size, architecture.num_heads * dim);
        let heads = HeadPartition::new(architecture, builder.group())?;
        let projection = Projection::new(builder, architecture, &heads, prefix)?;

        // Each rank applies the norm to its own heads, so under tensor parallelism its gradient is partial.
        let norms = if architecture.qk_norm {
            let placement = if builder.group().is_some() {
                WeightPlacement::ReplicatePartialGrad
            } else {
                WeightPlacement::Replicate
            };
            let norm = |builder: &mut ModuleBuilder<'_>, which: &str| {
                builder.norm_with_placement(&format!("{prefix}.self_attn.{which}_norm"), dim, &placement)
            };
            Some((norm(builder, "q")?, norm(builder, "k")?))
        } else {
            None
        };

        let out_name = format!("{prefix}.{}", names.out);
        let out = builder.row_parallel_linear(
            &out_name,
            [outer, inner],
            architecture.out_bias,
            &heads.query_placement,
        )?;

        let mask = mask_for_layer(architecture, layer, &heads);
        builder.model_parallel().check_attention(&heads.query_heads, &mask)?;
        let scale = architecture.attention_scales[layer];
        Ok(Self { projection, norms, out, heads, head_dim: dim, scale, mask })
    }

    /// Computes the queries `[N, heads, D]`, keys and values `[N, kv_heads, D]` of this rank's heads from `x`
    /// `[N, hidden]`, with norms and rotary embeddings applied.
    pub fn qkv(
        &self,
        x: &Tensor,
        rotary: Option<&Rotary>,
        tp_region: &TensorParallelRegion,
    ) -> Result<[Tensor; 3], parallel::Error> {
        let x = &tp_region.copy_to_region(x)?;
        let [heads, kv_heads] =
            [&self.heads.query_heads, &self.heads.kv_heads].map(|range| range.end - range.start);

        let [mut q, mut k, v] = match &self.projection {
            Projection::Separate(projections) => {
                let [q, k, v] = &**projections;
                let split_heads = |x: Tensor, heads| x.unflatten(1, [heads, self.head_dim]);
                let [q, k, v] = [q.forward(x)?, self.project_kv(k, x)?, self.project_kv(v, x)?];
                [split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)]
            }
            Projection::Fused(linear) => {
                let qkv = linear.forward(x)?.unflatten(1, [heads + 2 * kv_heads, self.head_dim]);
                [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)]
                    .map(|(start, count)| qkv.narrow(1, start, count))
            }
            Projection::InterleavedByHead(linear) => {
                let qkv = linear.forward(x)?.unflatten(1, [heads, 3, self.head_dim]);
                [0, 1, 2].map(|index| qkv.select(2, index))
            }
        };

        if let Some((q_norm, k_norm)) = &self.norms {
            (q, k) = (q_norm.forward(&q), k_norm.forward(&k));
        }
        if let Some(rotary) = rotary {
            (q, k) = (rotary.apply(&q), rotary.apply(&k));
        }
        Ok([q, k, v])
    }

    /// Projects `x` to the keys or values of this rank's key-value heads.
    fn project_kv(&self, linear: &Linear, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match self.heads.kv_placement {
            WeightPlacement::ReplicatePartialGrad => {
                let kv_heads = &self.heads.kv_heads;
                linear
                    .select_columns(&(kv_heads.start * self.head_dim..kv_heads.end * self.head_dim))
                    .forward(x)
            }
            _ => linear.forward(x),
        }
    }

    /// The output projection of `attended` `[N, heads * D]`, plus `residual` if there is one.
    pub fn o_proj(
        &self,
        attended: &Tensor,
        residual: Option<&Tensor>,
        tp_region: &TensorParallelRegion,
    ) -> Result<Tensor, parallel::Error> {
        tp_region.forward_row_parallel(&self.out, attended, residual)
    }

    /// The number of key-value heads on this rank.
    pub fn kv_heads(&self) -> i64 {
        self.heads.kv_heads.end - self.heads.kv_heads.start
    }

    /// The size of one head.
    pub fn head_dim(&self) -> i64 {
        self.head_dim
    }

    /// The factor applied to the attention scores.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The sliding window and ALiBi bias of this layer.
    pub fn mask(&self) -> &MaskKind {
        &self.mask
    }
}

impl Projection {
    /// Builds the linear layers that make queries, keys and values.
    fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        heads: &HeadPartition,
        prefix: &str,
    ) -> Result<Self, Error> {
        let (inner, dim) = (architecture.hidden_size, architecture.head_dim);
        let (outer, kv) = (architecture.num_heads * dim, architecture.num_kv_heads * dim);
        let name = |index: usize| format!("{prefix}.{}", architecture.names.qkv[index]);
        let bias = architecture.qkv_bias;
        let (query_placement, kv_placement) = (&heads.query_placement, &heads.kv_placement);

        let fused = [inner, outer + 2 * kv];
        Ok(match architecture.qkv {
            Qkv::Separate => Self::Separate(Box::new([
                builder.column_parallel_linear(&name(0), [inner, outer], bias, query_placement)?,
                builder.column_parallel_linear(&name(1), [inner, kv], bias, kv_placement)?,
                builder.column_parallel_linear(&name(2), [inner, kv], bias, kv_placement)?,
            ])),
            Qkv::Fused => Self::Fused(builder.column_parallel_linear(
                &name(0),
                fused,
                bias,
                &heads.fused_placement(),
            )?),
            Qkv::InterleavedByHead => Self::InterleavedByHead(builder.column_parallel_linear(
                &name(0),
                fused,
                bias,
                &heads.interleaved_placement(),
            )?),
        })
    }
}
