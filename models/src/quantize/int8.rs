//! Eight bits a number and one scale a row, as `LLM.int8()` holds weights (Dettmers et al. 2022, arXiv
//! 2208.07339, section 2.1).
//!
//! ```text
//!   scale[row] = max |w|                                over the row, fp32
//!   code       = round(w 127 / scale[row])              ties to even
//!   w          ~ code scale[row] / 127
//! ```
//! Codes and numbers are bit for bit those of bitsandbytes 0.50.2 on a processor from fp32. `LLM.int8()` also
//! quantises the inputs of a layer; here only the weight is quantised.

/// The factor of a dequantised number, 1/127 (bitsandbytes multiplies by it).
pub const UNIT: f32 = 7.874_016e-3;

/// Some rows of a matrix with eight bits a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Int8 {
    /// The code of each number, row after row.
    pub codes: Vec<i8>,
    /// The scale of each row.
    pub scales: Vec<f32>,
}

impl Int8 {
    /// Adds rows of `columns` finite numbers each.
    pub fn push_rows(&mut self, numbers: &[f32], columns: usize) {
        for row in numbers.chunks_exact(columns.max(1)) {
            let scale = row.iter().fold(0.0f32, |most, number| most.max(number.abs()));
            self.scales.push(scale);
            // The quotient of a row of zeros is not a number, whose code is zero.
            let factor = 127.0 / scale;
            self.codes.extend(row.iter().map(|number| (number * factor).round_ties_even() as i8));
        }
    }
}
