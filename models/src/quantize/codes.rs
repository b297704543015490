//! The codes of a whole matrix, before a rank keeps its part of them.

use tch::{Kind, Tensor, no_grad};

use super::int8::Int8;
use super::kind::Quantization;
use super::nf4::{Nf4, Nf4Quantizer};

/// The numbers that are quantised at a time, in whole blocks.
const PIECE_NUMBERS: i64 = 1 << 20;

/// What the codes of a matrix are, and what their scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFormat {
    /// Four bits a number, and scales in eight bits.
    Nf4,
    /// Four bits a number, and scales in fp32.
    Nf4WithNumbers,
    /// Eight bits a number, and scales in fp32.
    Int8,
}

impl CodeFormat {
    /// The kind of codes.
    pub fn quantization(self) -> Quantization {
        match self {
            Self::Nf4 | Self::Nf4WithNumbers => Quantization::Nf4,
            Self::Int8 => Quantization::Int8,
        }
    }
}

impl From<Quantization> for CodeFormat {
    /// The format that this program makes.
    fn from(quantization: Quantization) -> Self {
        match quantization {
            Quantization::Nf4 => Self::Nf4,
            Quantization::Int8 => Self::Int8,
        }
    }
}

/// The codes of a whole matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum MatrixCodes {
    /// Four bits a number, and scales in eight bits.
    Nf4(Nf4),
    /// Four bits a number, and scales in fp32.
    Nf4WithNumbers {
        /// Two codes in each byte.
        codes: Vec<u8>,
        /// The scale of each block.
        scales: Vec<f32>,
    },
    /// Eight bits a number.
    Int8(Int8),
}

impl MatrixCodes {
    /// Quantises `full`, a weight `[out, in]` with finite numbers, as if they were fp32.
    pub fn of(quantization: Quantization, full: &Tensor) -> Self {
        match quantization {
            Quantization::Nf4 => Self::Nf4(nf4(full)),
            Quantization::Int8 => Self::Int8(int8(full)),
        }
    }

    /// What the codes are, and what their scales are.
    pub(crate) fn format(&self) -> CodeFormat {
        match self {
            Self::Nf4(_) => CodeFormat::Nf4,
            Self::Nf4WithNumbers { .. } => CodeFormat::Nf4WithNumbers,
            Self::Int8(_) => CodeFormat::Int8,
        }
    }
}

/// Calls `push` with the numbers of `full` in fp32, `length` at a time.
fn in_pieces(full: &Tensor, length: i64, mut push: impl FnMut(&[f32])) {
    let flat = no_grad(|| full.detach().contiguous().view([-1]));
    let numel = flat.numel() as i64;
    for start in (0..numel).step_by(length.max(1) as usize) {
        let piece = flat.narrow(0, start, length.min(numel - start)).to_kind(Kind::Float);
        push(&Vec::<f32>::try_from(piece).expect("fp32 on the host"));
    }
}

fn nf4(full: &Tensor) -> Nf4 {
    let mut quantizer = Nf4Quantizer::default();
    in_pieces(full, PIECE_NUMBERS, |numbers| quantizer.push(numbers));
    quantizer.finish()
}

fn int8(full: &Tensor) -> Int8 {
    let columns = full.size()[1];
    let mut whole = Int8::default();
    let rows_in_piece = (PIECE_NUMBERS / columns.max(1)).max(1);
    in_pieces(full, rows_in_piece * columns, |numbers| whole.push_rows(numbers, columns as usize));
    whole
}
