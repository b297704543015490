//! `Q8_0`: blocks of 32 numbers, each an 8-bit integer times one scale in half precision.
//!
//! With `d = max |x| / 127` in fp32, a number is `round(x / d)`, half away from zero, and the scale is stored
//! as `d` rounded to 16 bits. ggml: `quantize_row_q8_0_ref`. The largest error of a number is `d / 2`, plus
//! what the rounding of the scale adds.

use half::f16;

/// The numbers of a block.
pub const BLOCK: usize = 32;

/// The bytes of a block: the scale, and a byte for each number.
pub const BLOCK_BYTES: usize = 2 + BLOCK;

/// Appends the blocks of `values`, whose length is a multiple of [`BLOCK`]. Returns the first number whose
/// block has no scale in half precision: it is too large, or not finite.
pub fn quantize(values: &[f32], blocks: &mut Vec<u8>) -> Result<(), f32> {
    for block in values.chunks_exact(BLOCK) {
        let most = block.iter().fold(0f32, |most, value| most.max(value.abs()));
        let scale = most / 127.0;
        let stored = f16::from_f32(scale);
        if let Some(&wrong) = block.iter().find(|value| !value.is_finite()) {
            return Err(wrong);
        }
        if stored.is_infinite() {
            return Err(most);
        }
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        blocks.extend(stored.to_le_bytes());
        blocks.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
    }
    Ok(())
}

/// Appends the numbers of `blocks`, whose length is a multiple of [`BLOCK_BYTES`]. The products are exact in
/// fp32.
pub fn dequantize(blocks: &[u8], values: &mut Vec<f32>) {
    for block in blocks.chunks_exact(BLOCK_BYTES) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        values.extend(block[2..].iter().map(|&byte| f32::from(byte as i8) * scale));
    }
}

#[cfg(test)]
mod tests;
