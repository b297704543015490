//! One transformer block: attention and MLP with their norms and residuals, for every family.
//!
//! How queries meet keys (whole rows side by side, or one new token against a cache) is a function that the caller hands
//! in, so training, prefill and decoding are the same block.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Activation, Architecture, ResidualOrder};
use crate::attention::Attention;
use crate::layer::{Linear, ModuleBuilder, Norm};
use crate::model_parallel::{self, TensorParallelRegion};
use crate::moe::{LoadBalancingLoss, MoeLayer};
use crate::rope::Rotary;

/// From queries, keys and values to `[N, heads * D]`.
pub type AttentionFn<'a> = dyn FnMut(&Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

/// The forward context: what every block needs besides the hidden states.
#[derive(Debug)]
pub struct ForwardContext {
    /// How they enter and leave what ranks share.
    pub tp_region: TensorParallelRegion,
    /// How their positions enter attention, if by rotation.
    pub rotary: Option<Rotary>,
    /// What keeps experts equally busy, in training.
    pub aux_loss: Option<LoadBalancingLoss>,
    /// Whether the ranks of an expert group have different rows, as in training.
    pub distinct_rows_per_rank: bool,
}

/// One block.
#[derive(Debug)]
pub struct Block {
    first_norm: Norm,
    attention: Attention,
    second_norm: Norm,
    mlp: FeedForward,
    residual: ResidualOrder,
}

impl Block {
    /// Block `layer` of a model.
    pub fn new(
        registry: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        layer: usize,
    ) -> Result<Self, Error> {
        let names = &architecture.names;
        let prefix = format!("{}.{layer}", names.layers);
        let norm = |registry: &mut ModuleBuilder<'_>, name: &str| {
            registry.norm(&format!("{prefix}.{name}"), architecture.hidden_size)
        };
        Ok(Self {
            first_norm: norm(registry, names.first_norm)?,
            attention: Attention::new(registry, architecture, layer, &prefix)?,
            second_norm: norm(registry, names.second_norm)?,
            mlp: FeedForward::new(registry, architecture, layer, &prefix)?,
            residual: architecture.residual,
        })
    }

    /// `[N, hidden]` to the same shape, of the tokens that this rank has between two borders.
    pub fn forward(
        &self,
        x: &Tensor,
        ctx: &ForwardContext,
        attention_fn: &mut AttentionFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        match self.residual {
            ResidualOrder::PreNorm => {
                let a = self.attend(&self.first_norm.forward(x), ctx, attention_fn, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(&a), Some(&a), ctx)
            }
            ResidualOrder::PostNorm => {
                let a = self.first_norm.forward(&self.attend(x, ctx, attention_fn, Some(x))?);
                Ok(self.second_norm.forward(&self.mlp.forward(&a, Some(&a), ctx)?))
            }
            ResidualOrder::Parallel => {
                let attended = self.attend(&self.first_norm.forward(x), ctx, attention_fn, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(x), Some(&attended), ctx)
            }
            ResidualOrder::NormedResidual => {
                let n = self.first_norm.forward(x);
                let m = self.second_norm.forward(&self.attend(&n, ctx, attention_fn, Some(&n))?);
                self.mlp.forward(&m, Some(&m), ctx)
            }
        }
    }

    /// Its attention.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    fn attend(
        &self,
        x: &Tensor,
        ctx: &ForwardContext,
        attention_fn: &mut AttentionFn<'_>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        let attended =
            attention_fn(&self.attention, &self.attention.qkv(x, ctx.rotary.as_ref(), &ctx.tp_region)?)?;
        self.attention.o_proj(&attended, residual, &ctx.tp_region)
    }
}

/// What a block does with each token by itself.
#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Experts(MoeLayer),
}

impl FeedForward {
    fn new(
        registry: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, Error> {
        if let Some(experts) = architecture.experts.as_ref().filter(|experts| experts.is_moe_layer[layer]) {
            return Ok(Self::Experts(MoeLayer::new(registry, architecture, experts, prefix)?));
        }
        let names = &architecture.names;
        let parts = [names.gate, names.up, names.down].map(|part| format!("{prefix}.{part}"));
        let parts = parts.each_ref().map(String::as_str);
        Ok(Self::Dense(Mlp::new(registry, architecture, parts, architecture.intermediate_size)?))
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        ctx: &ForwardContext,
    ) -> Result<Tensor, parallel::Error> {
        match self {
            Self::Dense(mlp) => {
                let inner = mlp.intermediate(&ctx.tp_region.copy_to_region(x)?);
                ctx.tp_region.row_parallel_linear(&mlp.down, &inner, residual)
            }
            Self::Experts(mixture) => mixture.forward(x, residual, ctx),
        }
    }
}

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    /// An MLP of `inner` columns, with the full names of its gate, its first and its last matrix.
    pub fn new(
        registry: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        [gate, up, down]: [&str; 3],
        inner: i64,
    ) -> Result<Self, Error> {
        let (hidden, bias) = (architecture.hidden_size, architecture.mlp_bias);
        let share = model_parallel::shard_evenly(inner, "inner columns of an MLP", registry.group())?;
        let gate = if architecture.gated_mlp {
            Some(registry.column_parallel_linear(gate, [hidden, inner], bias, &share)?)
        } else {
            None
        };
        Ok(Self {
            gate,
            up: registry.column_parallel_linear(up, [hidden, inner], bias, &share)?,
            down: registry.row_parallel_linear(down, [inner, hidden], bias, &share)?,
            activation: architecture.activation,
        })
    }

    /// The partial output of this rank's MLP columns, `[n, H]`, without the bias. The caller all-reduces it
    /// over the tensor-parallel group.
    pub fn forward_partial(&self, x: &Tensor) -> Tensor {
        self.down.matmul(&self.intermediate(x))
    }

    fn intermediate(&self, x: &Tensor) -> Tensor {
        match &self.gate {
            Some(gate) => self.activation.apply(&gate.forward(x)) * self.up.forward(x),
            None => self.activation.apply(&self.up.forward(x)),
        }
    }
}

impl Activation {
    /// Element by element.
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu("none"),
            Self::GeluTanh => x.gelu("tanh"),
            Self::Relu => x.relu(),
        }
    }
}
