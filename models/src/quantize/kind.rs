//! The kinds of codes.

use serde::{Deserialize, Serialize};

use super::nf4::BLOCK;
use super::scales::NESTED_BLOCK;

/// How the weights of linear layers are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// Four bits a number, blocks of 64 with a scale, and scales of eight bits.
    Nf4,
    /// Eight bits a number, and a scale for each output.
    Int8,
}

impl Quantization {
    /// The name in a run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Int8 => "int8",
        }
    }

    /// The bytes of a number with its part of the scales, of a large matrix.
    pub fn bytes_per_number(self) -> f64 {
        let (block, nested) = (BLOCK as f64, NESTED_BLOCK as f64);
        match self {
            Self::Nf4 => 0.5 + (1.0 + 4.0 / nested) / block,
            Self::Int8 => 1.0,
        }
    }
}
