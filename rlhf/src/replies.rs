//! The layout that the formulas of this crate share: the replies of a rollout one after another, without
//! padding.
//!
//! ```text
//!   B replies of T_1 .. T_B tokens; N = T_1 + .. + T_B
//!   lengths [B]   one flat vector of N numbers per quantity
//! ```
//! Lengths are given and never inferred from token ids.

use std::ops::Range;

/// The range of each reply in a flat vector over the tokens (or slots) of all replies; `lengths` `[B]`.
pub fn ranges(lengths: &[i64]) -> Vec<Range<usize>> {
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let range = start..start + length as usize;
            start = range.end;
            range
        })
        .collect()
}
