//! The values of metadata: a number, a text, or a list of one of the two.
//!
//! Numbers keep their type and their bytes, because a file must be written as it was read, and because a list
//! of a million bytes must not take more memory than the file. A list of lists, which the format allows, has
//! no known use and is refused when a file is read.

/// The type of a number, with its id in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// 8 bits without a sign.
    U8,
    /// 8 bits with a sign.
    I8,
    /// 16 bits without a sign.
    U16,
    /// 16 bits with a sign.
    I16,
    /// 32 bits without a sign.
    U32,
    /// 32 bits with a sign.
    I32,
    /// IEEE 754 binary32.
    F32,
    /// A byte that is 0 or 1.
    Bool,
    /// 64 bits without a sign.
    U64,
    /// 64 bits with a sign.
    I64,
    /// IEEE 754 binary64.
    F64,
}

/// The id of texts.
pub(crate) const TEXT_ID: u32 = 8;

/// The id of lists.
pub(crate) const LIST_ID: u32 = 9;

/// The types of numbers, with their ids and their widths in bytes.
const NUMBER_TYPES: [(NumberType, u32, usize); 11] = [
    (NumberType::U8, 0, 1),
    (NumberType::I8, 1, 1),
    (NumberType::U16, 2, 2),
    (NumberType::I16, 3, 2),
    (NumberType::U32, 4, 4),
    (NumberType::I32, 5, 4),
    (NumberType::F32, 6, 4),
    (NumberType::Bool, 7, 1),
    (NumberType::U64, 10, 8),
    (NumberType::I64, 11, 8),
    (NumberType::F64, 12, 8),
];

impl NumberType {
    /// The type with this id; `None` for texts, lists and unknown ids.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        NUMBER_TYPES.iter().find(|(_, known, _)| *known == id).map(|&(kind, ..)| kind)
    }

    /// The id in a file.
    pub(crate) fn id(self) -> u32 {
        self.entry().1
    }

    /// The width in bytes.
    pub fn width(self) -> usize {
        self.entry().2
    }

    fn entry(self) -> (Self, u32, usize) {
        *NUMBER_TYPES.iter().find(|(kind, ..)| *kind == self).expect("every type is listed")
    }

    /// The whole number in `bytes`, which has the width of this type; `None` for a fraction, a flag, and what
    /// 64 bits with a sign cannot hold.
    fn integer(self, bytes: &[u8]) -> Option<i64> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => i64::try_from(bits).ok(),
            Self::I8 => Some(i64::from(bits as i8)),
            Self::I16 => Some(i64::from(bits as i16)),
            Self::I32 => Some(i64::from(bits as i32)),
            Self::I64 => Some(bits as i64),
            Self::F32 | Self::F64 | Self::Bool => None,
        }
    }

    /// The fraction in `bytes`, which has the width of this type; `None` for whole numbers and flags. The
    /// result is the shortest decimal number that rounds to the bits, so an epsilon of 1e-5 is 1e-5 again.
    fn fraction(self, bytes: &[u8]) -> Option<f64> {
        match self {
            Self::F32 => {
                let value = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
                value.to_string().parse().ok()
            }
            Self::F64 => Some(f64::from_le_bytes(bytes.try_into().expect("eight bytes"))),
            _ => None,
        }
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number as its little-endian bytes, or a flag.
    Number(NumberType, Vec<u8>),
    /// A text.
    Text(String),
    /// The bytes of numbers, one after the other.
    Numbers(NumberType, Vec<u8>),
    /// Texts.
    Texts(Vec<String>),
}

impl Value {
    /// A number without a sign.
    pub fn u32(value: u32) -> Self {
        Self::Number(NumberType::U32, value.to_le_bytes().to_vec())
    }

    /// A fraction.
    pub fn f32(value: f32) -> Self {
        Self::Number(NumberType::F32, value.to_le_bytes().to_vec())
    }

    /// A flag.
    pub fn bool(value: bool) -> Self {
        Self::Number(NumberType::Bool, vec![u8::from(value)])
    }

    /// A text.
    pub fn text(value: impl Into<String>) -> Self {
        Self::Text(value.into())
    }

    /// A list of whole numbers.
    pub fn i32s(values: &[i32]) -> Self {
        Self::Numbers(NumberType::I32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// A list of fractions.
    pub fn f32s(values: &[f32]) -> Self {
        Self::Numbers(NumberType::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// The whole number.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Number(kind, bytes) => kind.integer(bytes),
            _ => None,
        }
    }

    /// The number, whole or not.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Number(kind, bytes) => {
                kind.fraction(bytes).or_else(|| kind.integer(bytes).map(|whole| whole as f64))
            }
            _ => None,
        }
    }

    /// The flag.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Number(NumberType::Bool, bytes) => Some(bytes == &[1]),
            _ => None,
        }
    }

    /// The text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list.
    pub fn as_texts(&self) -> Option<&[String]> {
        match self {
            Self::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// The whole numbers of a list.
    pub fn as_integers(&self) -> Option<Vec<i64>> {
        match self {
            Self::Numbers(kind, bytes) => {
                bytes.chunks_exact(kind.width()).map(|number| kind.integer(number)).collect()
            }
            _ => None,
        }
    }

    /// The fractions of a list.
    pub fn as_fractions(&self) -> Option<Vec<f64>> {
        match self {
            Self::Numbers(kind, bytes) => {
                bytes.chunks_exact(kind.width()).map(|number| kind.fraction(number)).collect()
            }
            _ => None,
        }
    }

    /// The value in a few words, for messages.
    pub fn describe(&self) -> String {
        const SHOWN: usize = 60;
        match self {
            Self::Number(..) => match (self.as_bool(), self.as_number()) {
                (Some(flag), _) => flag.to_string(),
                (_, Some(number)) => number.to_string(),
                _ => "a number of more than 63 bits".to_owned(),
            },
            Self::Text(text) => format!("{:?}", text.chars().take(SHOWN).collect::<String>()),
            Self::Numbers(kind, bytes) => {
                format!("a list of {} numbers of type {kind:?}", bytes.len() / kind.width())
            }
            Self::Texts(texts) => format!("a list of {} texts", texts.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_sign_and_their_decimals() {
        let number = |kind, bytes: &[u8]| Value::Number(kind, bytes.to_vec());
        assert_eq!(number(NumberType::I8, &[0xfe]).as_integer(), Some(-2));
        assert_eq!(number(NumberType::I16, &[0xfe, 0xff]).as_integer(), Some(-2));
        assert_eq!(number(NumberType::U16, &[0xfe, 0xff]).as_integer(), Some(65_534));
        assert_eq!(number(NumberType::U64, &[0xff; 8]).as_integer(), None);
        assert_eq!(number(NumberType::I64, &[0xff; 8]).as_integer(), Some(-1));
        assert_eq!(Value::f32(1e-5).as_number(), Some(1e-5));
        assert_eq!(Value::u32(7).as_number(), Some(7.0));
        assert_eq!((Value::bool(true).as_bool(), Value::bool(true).as_integer()), (Some(true), None));
        assert_eq!(Value::i32s(&[-1, 3]).as_integers(), Some(vec![-1, 3]));
        assert_eq!(Value::i32s(&[-1, 3]).as_fractions(), None);
        assert_eq!(Value::f32s(&[0.1]).as_fractions(), Some(vec![0.1]));
    }
}
