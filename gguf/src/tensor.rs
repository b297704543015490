//! The types of tensors and the entries of the tensor table.

use crate::q8_0;

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an F32.
    BF16,
    /// Blocks of 32 numbers of 8 bits with one scale ([`q8_0`]).
    Q8_0,
}

/// The types that are read and written here.
const KNOWN: [(TensorType, u32); 4] =
    [(TensorType::F32, 0), (TensorType::F16, 1), (TensorType::Q8_0, 8), (TensorType::BF16, 30)];

/// The names of other types that are in use, for messages.
const OTHERS: [(u32, &str); 24] = [
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (26, "I32"),
    (28, "F64"),
    (29, "IQ1_M"),
    (39, "MXFP4"),
];

impl TensorType {
    /// The type with this id, or the name of a type that is not supported.
    pub(crate) fn from_id(id: u32) -> Result<Self, String> {
        if let Some((kind, _)) = KNOWN.iter().find(|(_, known)| *known == id) {
            return Ok(*kind);
        }
        let other = OTHERS.iter().find(|(other, _)| *other == id);
        Err(other.map_or_else(|| format!("the type {id}"), |(_, name)| (*name).to_owned()))
    }

    /// The id in a file.
    pub(crate) fn id(self) -> u32 {
        KNOWN.iter().find(|(kind, _)| *kind == self).expect("every type is listed").1
    }

    /// The numbers of a block. The length of a row is a multiple of it.
    pub fn block(self) -> u64 {
        if self == Self::Q8_0 { q8_0::BLOCK as u64 } else { 1 }
    }

    /// The bytes of a block.
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => q8_0::BLOCK_BYTES as u64,
        }
    }
}

/// An entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The shape, outermost dimension first as in libtorch. A file has the dimensions in the other order.
    pub shape: Vec<u64>,
    /// How the numbers are stored.
    pub tensor_type: TensorType,
}

impl TensorInfo {
    /// The number of bytes; `None` if the last dimension is no multiple of the block, a dimension is zero, or
    /// the number does not fit into 63 bits.
    pub fn num_bytes(&self) -> Option<u64> {
        let row = *self.shape.last()?;
        let sound = row % self.tensor_type.block() == 0 && !self.shape.contains(&0);
        let numel = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
        let bytes = (numel / self.tensor_type.block()).checked_mul(self.tensor_type.block_bytes())?;
        (sound && i64::try_from(bytes).is_ok()).then_some(bytes)
    }
}
