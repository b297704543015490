//! Where a model that is built gets its quantised weights.

use std::sync::Arc;

use super::kind::Quantization;
use super::matrix::QuantizedWeights;
use super::stored::StoredCodes;

/// Where a model gets its quantised weights.
#[derive(Clone, Debug)]
pub enum QuantizedSource {
    /// It quantises them when it has read them.
    Read(Quantization),
    /// It reads their codes. Layers that have none in the files stay as they are.
    Stored(Arc<StoredCodes>),
    /// It gets none: only their sizes are wanted.
    Sizes(Quantization),
    /// It gets none, but the sizes of those that have codes in the files.
    StoredSizes(Arc<StoredCodes>),
    /// It shares those of another model.
    Shared(QuantizedWeights),
}

impl QuantizedSource {
    /// Whether the weight of a linear layer is held in codes.
    pub(crate) fn holds(&self, layer: &str) -> bool {
        match self {
            Self::Read(_) | Self::Sizes(_) => true,
            Self::Stored(codes) | Self::StoredSizes(codes) => codes.has(layer),
            Self::Shared(weights) => weights.contains_key(layer),
        }
    }
}
