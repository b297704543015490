//! One transformer block: attention and MLP with their norms and residuals, for every family.
//!
//! How queries meet keys (whole rows side by side, or one new token against a cache) is a function that the caller hands
//! in, so training, prefill and decoding are the same block.

use tch::Tensor;

use crate::Error;
use crate::architecture::{Activation, Architecture, Residual};
use crate::attention::Attention;
use crate::layer::{Linear, Norm, Registry};
use crate::rope::Rotary;
use crate::split::{self, Border};

/// From queries, keys and values to `[N, heads * D]`.
pub type Mix<'a> = dyn FnMut(&Attention, &[Tensor; 3]) -> Result<Tensor, parallel::Error> + 'a;

/// One block.
#[derive(Debug)]
pub struct Block {
    first_norm: Norm,
    attention: Attention,
    second_norm: Norm,
    mlp: Mlp,
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
            mlp: Mlp::new(registry, architecture, &prefix)?,
            residual: architecture.residual,
        })
    }

    /// `[N, hidden]` to the same shape.
    pub fn forward(
        &self,
        x: &Tensor,
        rotary: Option<&Rotary>,
        mix: &mut Mix<'_>,
    ) -> Result<Tensor, parallel::Error> {
        match self.residual {
            Residual::Before => {
                let a = self.attend(&self.first_norm.forward(x), rotary, mix, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(&a), Some(&a))
            }
            Residual::After => {
                let a = self.first_norm.forward(&self.attend(x, rotary, mix, Some(x))?);
                Ok(self.second_norm.forward(&self.mlp.forward(&a, Some(&a))?))
            }
            Residual::Parallel => {
                let attended = self.attend(&self.first_norm.forward(x), rotary, mix, Some(x))?;
                self.mlp.forward(&self.second_norm.forward(x), Some(&attended))
            }
            Residual::Normed => {
                let n = self.first_norm.forward(x);
                let m = self.second_norm.forward(&self.attend(&n, rotary, mix, Some(&n))?);
                self.mlp.forward(&m, Some(&m))
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
        rotary: Option<&Rotary>,
        mix: &mut Mix<'_>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, parallel::Error> {
        let attended = mix(&self.attention, &self.attention.project(x, rotary)?)?;
        self.attention.project_out(&attended, residual)
    }
}

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
    border: Border,
}

impl Mlp {
    fn new(registry: &mut Registry<'_>, architecture: &Architecture, prefix: &str) -> Result<Self, Error> {
        let names = &architecture.names;
        let (hidden, inner, bias) =
            (architecture.hidden_size, architecture.intermediate_size, architecture.mlp_bias);
        let share = split::even(inner, "inner columns of an MLP", registry.group())?;
        let gate = if architecture.gated {
            Some(registry.columns(&format!("{prefix}.{}", names.gate), [hidden, inner], bias, &share)?)
        } else {
            None
        };
        Ok(Self {
            gate,
            up: registry.columns(&format!("{prefix}.{}", names.up), [hidden, inner], bias, &share)?,
            down: registry.rows(&format!("{prefix}.{}", names.down), [inner, hidden], bias, &share)?,
            activation: architecture.activation,
            border: Border::new(registry.group()),
        })
    }

    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, parallel::Error> {
        let x = self.border.enter(x)?;
        let inner = match &self.gate {
            Some(gate) => self.activation.apply(&gate.forward(&x)) * self.up.forward(&x),
            None => self.activation.apply(&self.up.forward(&x)),
        };
        self.border.leave(&self.down, &inner, residual)
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
