//! NF4: a number is one of sixteen quantiles of the normal distribution, times the largest magnitude among
//! its 64 neighbours in the matrix (Dettmers et al. 2023, arXiv 2305.14314, section 3).
//!
//! ```text
//!   block b of a matrix, row after row:  64 numbers, the last block may have fewer
//!   scale[b]  = max |w|                                     over the block
//!   code[i]   = the nearest of BOOK to w[i] / scale[b]      two codes a byte, the first in the upper half
//!   w[i]      ~ BOOK[code[i]] scale[b]
//! ```
//! The scales are quantised in turn ([`scales`]). Codes and numbers are bit for bit those of bitsandbytes
//! 0.50.2 on a processor from fp32. A number between two of [`BOOK`] goes to the lower one if it lies exactly
//! in the middle.

use super::scales::{self, Scales};

/// The numbers that a code stands for (appendix E of the paper; bitsandbytes: `get_4bit_type`).
pub const BOOK: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The numbers that share a scale.
pub use parallel::kernels::quantized::BLOCK;

/// The least magnitude that a block is divided by.
const LEAST_SCALE: f32 = 1e-38;

/// A matrix in NF4.
#[derive(Clone, Debug, PartialEq)]
pub struct Nf4 {
    /// Two codes in each byte.
    pub codes: Vec<u8>,
    /// The scale of each block.
    pub scales: Scales,
}

/// Quantises a matrix that arrives in pieces.
#[derive(Debug, Default)]
pub struct Nf4Quantizer {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Nf4Quantizer {
    /// Adds the next finite numbers of the matrix. All pieces but the last have a multiple of [`BLOCK`]
    /// numbers.
    pub fn push(&mut self, numbers: &[f32]) {
        let (blocks, rest) = numbers.as_chunks::<BLOCK>();
        for block in blocks {
            let scale = largest(block);
            self.scales.push(scale);
            let factor = scale.max(LEAST_SCALE).recip();
            self.push_codes(&block.map(|number| code(number * factor)));
        }
        if !rest.is_empty() {
            let scale = largest(rest).max(LEAST_SCALE);
            self.scales.push(scale);
            let codes: Vec<u8> = rest.iter().map(|number| code(number / scale)).collect();
            self.push_codes(&codes);
        }
    }

    /// The codes of a block. An odd last one is followed by that of zero.
    fn push_codes(&mut self, codes: &[u8]) {
        let (pairs, last) = codes.as_chunks::<2>();
        self.codes.extend(pairs.iter().map(|[first, second]| first << 4 | second));
        self.codes.extend(last.iter().map(|last| last << 4 | code(0.0)));
    }

    /// The quantised matrix.
    pub fn finish(self) -> Nf4 {
        Nf4 { codes: self.codes, scales: scales::quantize(&self.scales) }
    }
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, number| most.max(number.abs()))
}

/// The code of a number between -1 and 1: how many midpoints lie below it.
fn code(number: f32) -> u8 {
    const MIDPOINTS: [f32; 15] = {
        let (mut midpoints, mut index) = ([0.0; 15], 0);
        while index < 15 {
            midpoints[index] = f32::midpoint(BOOK[index], BOOK[index + 1]);
            index += 1;
        }
        midpoints
    };
    MIDPOINTS.iter().map(|&midpoint| u8::from(number > midpoint)).sum()
}
