//! One transformer block: attention and MLP with their norms and residuals, for every family.
//!
//! How queries meet keys (whole rows side by side, or one new token against a cache) is a function that the caller hands
//! in, so training, prefill and decoding are the same block.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Activation, Architecture, Residual};
use crate::attention::Attention;
use crate::experts::{Balance, Mixture};
use crate::layer::{Linear, Norm, Registry};
use crate::rope::Rotary;
use crate::split::{self, Border};

/// From queries, keys and values to `[N, heads * D]`.
pub type Mix<'a> = dyn FnMut(&Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

/// The forward context: what every block needs besides the hidden states.
#[derive(Debug)]
pub struct Way {
    /// How they enter and leave what ranks share.
    pub border: Border,
    /// How their positions enter attention, if by rotation.
    pub rotary: Option<Rotary>,
    /// What keeps experts equally busy, in training.
    pub balance: Option<Balance>,
    /// Whether the ranks of an expert group have different rows, as in training.
    pub rows_are_own: bool,
}

/// One block.
#[derive(Debug)]
pub struct Block {
    first_norm: Norm,
    attention: Attention,
    second_norm: Norm,
    mlp: FeedForward,
    residual: Residual,
}

impl Block {
    /// Block `layer` of a model.
    pub fn new(
        registry: &mut Registry<'_>,
        architecture: &Architecture,
        layer: usize,
    ) -> Result<Self, Error> {
        let names = &architecture.names;
        let prefix = format!("{}.{layer}", names.layers);
        let norm = |registry: &mut Registry<'_>, name: &str| {
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
    pub fn forward(&self, x: &Tensor, way: &Way, mix: &mut Mix<'_>) -> Result<Tensor, parallel::Error> {
        match self.residual {
            Residual::Before => {
                let a = self.attend(&self.first_norm.forward(x), way, mix, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(&a), Some(&a), way)
            }
            Residual::After => {
                let a = self.first_norm.forward(&self.attend(x, way, mix, Some(x))?);
                Ok(self.second_norm.forward(&self.mlp.forward(&a, Some(&a), way)?))
            }
            Residual::Parallel => {
                let attended = self.attend(&self.first_norm.forward(x), way, mix, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(x), Some(&attended), way)
            }
            Residual::Normed => {
                let n = self.first_norm.forward(x);
                let m = self.second_norm.forward(&self.attend(&n, way, mix, Some(&n))?);
                self.mlp.forward(&m, Some(&m), way)
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
        way: &Way,
        mix: &mut Mix<'_>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        let attended = mix(&self.attention, &self.attention.project(x, way.rotary.as_ref(), &way.border)?)?;
        self.attention.project_out(&attended, residual, &way.border)
    }
}

/// What a block does with each token by itself.
#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Experts(Mixture),
}

impl FeedForward {
    fn new(
        registry: &mut Registry<'_>,
        architecture: &Architecture,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, Error> {
        if let Some(experts) = architecture.experts.as_ref().filter(|experts| experts.layers[layer]) {
            return Ok(Self::Experts(Mixture::new(registry, architecture, experts, prefix)?));
        }
        let names = &architecture.names;
        let parts = [names.gate, names.up, names.down].map(|part| format!("{prefix}.{part}"));
        let parts = parts.each_ref().map(String::as_str);
        Ok(Self::Dense(Mlp::new(registry, architecture, parts, architecture.intermediate_size)?))
    }

    fn forward(&self, x: &Tensor, residual: Option<&Tensor>, way: &Way) -> Result<Tensor, parallel::Error> {
        match self {
            Self::Dense(mlp) => {
                let inner = mlp.inner(&way.border.enter(x)?);
                way.border.leave(&mlp.down, &inner, residual)
            }
            Self::Experts(mixture) => mixture.forward(x, residual, way),
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
        registry: &mut Registry<'_>,
        architecture: &Architecture,
        [gate, up, down]: [&str; 3],
        inner: i64,
    ) -> Result<Self, Error> {
        let (hidden, bias) = (architecture.hidden_size, architecture.mlp_bias);
        let share = split::even(inner, "inner columns of an MLP", registry.group())?;
        let gate = if architecture.gated {
            Some(registry.columns(gate, [hidden, inner], bias, &share)?)
        } else {
            None
        };
        Ok(Self {
            gate,
            up: registry.columns(up, [hidden, inner], bias, &share)?,
            down: registry.rows(down, [inner, hidden], bias, &share)?,
            activation: architecture.activation,
        })
    }

    /// The partial output of this rank's MLP columns, `[n, H]`, without the bias. The caller all-reduces it
    /// over the tensor-parallel group.
    pub fn term(&self, x: &Tensor) -> Tensor {
        self.down.product(&self.inner(x))
    }

    fn inner(&self, x: &Tensor) -> Tensor {
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
