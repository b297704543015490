//! One transformer block: attention and MLP with their norms and residuals, for every family.
//!
//! The caller passes in the attention function (over complete rows, or of one new token with a KV cache), so
//! training, prefill and decoding run the same block.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Architecture, ResidualOrder};
use crate::attention::Attention;
use crate::batch::gather_rows;
use crate::builder::ModuleBuilder;
use crate::forward_context::ForwardContext;
use crate::mlp::Mlp;
use crate::moe::MoeLayer;
use crate::norm::Norm;

/// Computes attention `[N, heads * D]` from queries, keys and values.
pub type AttentionFn<'a> = dyn FnMut(&Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

/// One transformer block.
#[derive(Debug)]
pub struct Block {
    first_norm: Norm,
    attention: Attention,
    second_norm: Norm,
    mlp: FeedForward,
    residual: ResidualOrder,
}

impl Block {
    /// Builds block `layer` of a model.
    pub fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        layer: usize,
    ) -> Result<Self, Error> {
        let names = &architecture.names;
        let prefix = format!("{}.{layer}", names.layers);
        let norm = |builder: &mut ModuleBuilder<'_>, name: &str| {
            builder.norm(&format!("{prefix}.{name}"), architecture.hidden_size)
        };
        Ok(Self {
            first_norm: norm(builder, names.first_norm)?,
            attention: Attention::new(builder, architecture, layer, &prefix)?,
            second_norm: norm(builder, names.second_norm)?,
            mlp: FeedForward::new(builder, architecture, layer, &prefix)?,
            residual: architecture.residual,
        })
    }

    /// Computes the block's output `[N, hidden]` from `x` `[N, hidden]`. The tokens are those that this rank
    /// has outside tensor-parallel regions. With `outputs`, int64 `[M]`, all tokens are attended to, and only
    /// these have an output, `[M, hidden]`.
    pub fn forward(
        &self,
        x: &Tensor,
        outputs: Option<&Tensor>,
        ctx: &ForwardContext,
        attention_fn: &mut AttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        match self.residual {
            ResidualOrder::PreNorm => {
                let a = self.attend(&self.first_norm.forward(x), x, outputs, ctx, attention_fn)?;
                self.mlp.forward(&self.second_norm.forward(&a), Some(&a), ctx)
            }

            ResidualOrder::PostNorm => {
                let a = self.first_norm.forward(&self.attend(x, x, outputs, ctx, attention_fn)?);
                Ok(self.second_norm.forward(&self.mlp.forward(&a, Some(&a), ctx)?))
            }

            ResidualOrder::Parallel => {
                let attended = self.attend(&self.first_norm.forward(x), x, outputs, ctx, attention_fn)?;
                self.mlp.forward(&self.second_norm.forward(&select(x, outputs)), Some(&attended), ctx)
            }

            ResidualOrder::NormedResidual => {
                let n = self.first_norm.forward(x);
                let m = self.second_norm.forward(&self.attend(&n, &n, outputs, ctx, attention_fn)?);
                self.mlp.forward(&m, Some(&m), ctx)
            }
        }
    }

    /// The attention layer.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The attention layer's output plus `residual`, both of the tokens that have an output.
    fn attend(
        &self,
        x: &Tensor,
        residual: &Tensor,
        outputs: Option<&Tensor>,
        ctx: &ForwardContext,
        attention_fn: &mut AttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        let attended =
            attention_fn(&self.attention, &self.attention.qkv(x, ctx.rotary.as_ref(), &ctx.tp_region)?)?;
        let [attended, residual] = [&attended, residual].map(|x| select(x, outputs));
        self.attention.o_proj(&attended, Some(&residual), &ctx.tp_region)
    }
}

/// The rows of `x` `[N, width]` that have an output.
fn select(x: &Tensor, outputs: Option<&Tensor>) -> Tensor {
    outputs.map_or_else(|| x.shallow_clone(), |outputs| gather_rows(x, outputs))
}

/// The feed-forward layer of a block: a dense MLP or a mixture of experts.
#[derive(Debug)]
enum FeedForward {
    Dense(Box<Mlp>),
    Experts(Box<MoeLayer>),
}

impl FeedForward {
    fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, Error> {
        if let Some(experts) = architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer]) {
            let mixture = MoeLayer::new(builder, architecture, experts, prefix)?;
            return Ok(Self::Experts(Box::new(mixture)));
        }
        let names = &architecture.names;
        let matrix_names = [names.gate, names.up, names.down].map(|name| format!("{prefix}.{name}"));
        let matrix_names = matrix_names.each_ref().map(String::as_str);
        Ok(Self::Dense(Box::new(Mlp::new(
            builder,
            architecture,
            matrix_names,
            architecture.intermediate_size,
        )?)))
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        ctx: &ForwardContext,
    ) -> Result<Tensor, parallel::Error> {
        match self {
            Self::Dense(mlp) => mlp.forward(x, residual, &ctx.tp_region),
            Self::Experts(mixture) => mixture.forward(x, residual, ctx),
        }
    }
}
