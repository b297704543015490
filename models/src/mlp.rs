//! The MLP of a block or of one expert.

use parallel::{autograd, kernels};
use tch::{Tensor, no_grad};

use crate::Error;
use crate::architecture::{Activation, Architecture};
use crate::builder::ModuleBuilder;
use crate::linear::Linear;
use crate::model_parallel;
use crate::tensor_parallel_region::TensorParallelRegion;

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    /// Builds an MLP with `inner` intermediate columns. The names of its gate, up and down matrices are
    /// complete checkpoint names.
    pub fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        [gate, up, down]: [&str; 3],
        inner: i64,
    ) -> Result<Self, Error> {
        let (hidden, bias) = (architecture.hidden_size, architecture.mlp_bias);
        let share = model_parallel::shard_evenly(inner, "inner columns of an MLP", builder.group())?;
        let gate = if architecture.gated_mlp {
            Some(builder.column_parallel_linear(gate, [hidden, inner], bias, &share)?)
        } else {
            None
        };
        Ok(Self {
            gate,
            up: builder.column_parallel_linear(up, [hidden, inner], bias, &share)?,
            down: builder.row_parallel_linear(down, [inner, hidden], bias, &share)?,
            activation: architecture.activation,
        })
    }

    /// The partial output of this rank's MLP columns, `[n, H]`, without the bias. The caller all-reduces it
    /// over the tensor-parallel group.
    pub fn forward_partial(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        self.down.matmul(&self.intermediate(x)?)
    }

    /// The output of a dense MLP `[n, H]` on top of `residual`, all-reduced over the tensor-parallel group.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        tp_region: &TensorParallelRegion,
    ) -> Result<Tensor, parallel::Error> {
        let inner = self.intermediate(&tp_region.copy_to_region(x)?)?;
        tp_region.forward_row_parallel(&self.down, &inner, residual)
    }

    fn intermediate(&self, x: &Tensor) -> Result<Tensor, parallel::Error> {
        match &self.gate {
            Some(gate) => self.activation.gate(gate.forward(x)?, self.up.forward(x)?),
            None => Ok(self.activation.apply(&self.up.forward(x)?)),
        }
    }
}

impl Activation {
    /// Applies the activation element by element.
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu("none"),
            Self::GeluTanh => x.gelu("tanh"),
            Self::Relu => x.relu(),
        }
    }

    /// The gradient of [`apply`](Self::apply) with respect to `x`.
    fn backward(self, grad: &Tensor, x: &Tensor) -> Tensor {
        match self {
            Self::Silu => x.silu_backward(grad),
            Self::Gelu => x.gelu_backward(grad, "none"),
            Self::GeluTanh => x.gelu_backward(grad, "tanh"),
            Self::Relu => x.threshold_backward(grad, 0),
        }
    }

    /// Computes `act(gate) * up` (Shazeer 2020, arXiv 2002.05202) as one node of the graph. Its backward pass
    /// computes the activation again, which takes less time than keeping it takes memory, and writes the
    /// gradients into the memory of `gate` and `up`, which therefore belong to this call alone.
    #[expect(clippy::needless_pass_by_value, reason = "the node overwrites the memory of both")]
    fn gate(self, gate: Tensor, up: Tensor) -> Result<Tensor, parallel::Error> {
        let is_silu = matches!(self, Self::Silu);
        let gated = move |gate: &Tensor, up: &Tensor| {
            let mut activated = self.apply(gate);
            let _ = activated.g_mul_(up);
            activated
        };
        let (mut kept_gate, mut kept_up) = (gate.detach(), up.detach());
        let fused = is_silu.then(|| kernels::gated::forward(&kept_gate, &kept_up)).flatten();
        let output = fused.unwrap_or_else(|| no_grad(|| gated(&kept_gate, &kept_up)));
        let node = autograd::node(output, &[&gate, &up], move |grad| {
            if is_silu && kernels::gated::backward_(grad, &mut kept_gate, &mut kept_up) {
                return vec![Some(kept_gate), Some(kept_up)];
            }
            let gate_grad = self.backward(&(grad * kept_up), &kept_gate);
            vec![Some(gate_grad), Some(gated(&kept_gate, grad))]
        });
        Ok(node?)
    }
}
