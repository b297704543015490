//! Which linear layers of a model are held in codes.

use std::sync::Arc;

use super::codes::CodeFormat;
use super::kind::Quantization;
use super::stored::StoredCodes;

/// Which linear layers of a model are held in codes.
#[derive(Clone, Debug)]
pub enum QuantizedLayers {
    /// All of them, which are quantised when they are read.
    All(Quantization),
    /// Those that have codes in the files of the model folder.
    Stored(Arc<StoredCodes>),
}

impl QuantizedLayers {
    /// What the codes of a linear layer are; `None` if its weight is numbers.
    pub(crate) fn format_of(&self, layer: &str) -> Option<CodeFormat> {
        match self {
            Self::All(quantization) => Some((*quantization).into()),
            Self::Stored(codes) => codes.format_of(layer),
        }
    }
}
