//! How bytes move between ranks.

use serde::{Deserialize, Serialize};

/// The transport that moves bytes between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory within a host, Gloo between hosts, and NCCL for tensors of GPUs.
    #[default]
    Auto,
    /// Gloo everywhere. Tensors of GPUs go through the host.
    Gloo,
    /// Shared memory; an error if a group spans several hosts. Tensors of GPUs go through the host.
    Shared,
}

impl Transport {
    /// Whether tensors of GPUs go through the host, so that ranks may share a GPU.
    pub fn stages_gpus(self) -> bool {
        self != Self::Auto
    }
}
