//! The elements of a tensor in a file: their dtypes and their indices.

use tch::Kind;

/// The supported dtypes, with their names in safetensors. Whole numbers of eight bits are codes.
pub(super) const DTYPES: [(&str, Kind); 6] = [
    ("F32", Kind::Float),
    ("BF16", Kind::BFloat16),
    ("F16", Kind::Half),
    ("F64", Kind::Double),
    ("U8", Kind::Uint8),
    ("I8", Kind::Int8),
];

/// The index, one per dimension, of the element with this number in a tensor of this shape.
pub(super) fn index_of(number: u64, shape: &[i64]) -> Vec<i64> {
    let mut rest = number as i64;
    let mut index: Vec<i64> = shape
        .iter()
        .rev()
        .map(|&length| {
            let index = rest % length;
            rest /= length;
            index
        })
        .collect();
    index.reverse();
    index
}
