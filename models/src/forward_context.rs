//! The context that all blocks of one forward pass share.

use crate::load_balancing::LoadBalancingLoss;
use crate::rope::Rotary;
use crate::tensor_parallel_region::TensorParallelRegion;

/// The forward context: what every block needs besides the hidden states.
#[derive(Debug)]
pub struct ForwardContext {
    /// The tensor-parallel region that hidden states enter and leave.
    pub tp_region: TensorParallelRegion,
    /// The rotary tables of the tokens, for models with rotary embeddings.
    pub rotary: Option<Rotary>,
    /// The load-balancing auxiliary loss, in training.
    pub aux_loss: Option<LoadBalancingLoss>,
    /// Whether the ranks of an expert-parallel group have different rows, as in training.
    pub tokens_differ_per_expert_rank: bool,
}
