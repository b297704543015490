//! A named parameter and its place on the mesh.
//!
//! Placement is data: loading, saving and resharding read it and are written once for every layer.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::Axis;

/// How one parameter lies on one axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Every rank holds the whole.
    Replicate,
    /// Rank `i` along `axis` holds the `i`-th part of dimension `dim`.
    Shard {
        /// The mesh axis.
        axis: Axis,
        /// The tensor dimension.
        dim: usize,
    },
    /// The ranks along `axis` hold terms of a sum.
    Partial {
        /// The mesh axis.
        axis: Axis,
    },
}

/// A parameter under the name that it has in a HF checkpoint.
#[derive(Debug)]
pub struct Parameter {
    /// The checkpoint's name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The local part of the values; layers hold handles to this very tensor.
    pub tensor: Tensor,
    /// Where the other parts are.
    pub placement: Placement,
    /// Whether weight decay applies: to matrices and embeddings, not to norms and biases.
    pub decay: bool,
}

impl Parameter {
    /// A parameter that every rank holds whole. Decays if it has two dimensions or more.
    pub fn replicated(name: impl Into<String>, tensor: &Tensor) -> Self {
        Self {
            name: name.into(),
            tensor: tensor.shallow_clone(),
            placement: Placement::Replicate,
            decay: tensor.dim() > 1,
        }
    }

    /// Values held here.
    pub fn num_elements(&self) -> usize {
        self.tensor.numel()
    }
}

impl Clone for Parameter {
    /// Another handle to the same values.
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            tensor: self.tensor.shallow_clone(),
            placement: self.placement,
            decay: self.decay,
        }
    }
}
