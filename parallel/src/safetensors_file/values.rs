//! Which numbers a tensor may hold, decided on the bytes of a file.

use tch::Kind;

/// The numbers that a tensor may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedValues {
    /// Any, NaN and infinity among them.
    Any,
    /// Finite ones.
    Finite,
    /// Finite ones that are not below zero.
    NotNegative,
}

impl AllowedValues {
    /// What an error says.
    pub(super) fn wanted(self) -> &'static str {
        match self {
            Self::Any => "any number",
            Self::Finite => "finite",
            Self::NotNegative => "finite and not below zero",
        }
    }

    /// The first number of `bytes`, which hold numbers of `kind`, that is not allowed: its index and its
    /// value.
    pub(super) fn first_refused(self, bytes: &[u8], kind: Kind) -> Option<(usize, f64)> {
        if self == Self::Any {
            return None;
        }
        // A number with the largest exponent is infinite or NaN. A number of bfloat16 is the upper half of
        // an f32.
        let signed = self == Self::Finite;
        let refused = |exponent: u64, sign: u64| {
            move |bits: u64| bits & exponent == exponent || (!signed && bits & sign != 0 && bits != sign)
        };
        let (float, wide) = (|bits: u64| f64::from(f32::from_bits(bits as u32)), f64::from_bits);
        match kind {
            Kind::Float => {
                find(bytes, refused(0x7f80_0000, 1 << 31), |four| u32::from_le_bytes(four).into(), float)
            }
            Kind::BFloat16 => {
                let value = |bits: u64| float(bits << 16);
                find(bytes, refused(0x7f80, 1 << 15), |two| u16::from_le_bytes(two).into(), value)
            }
            // Whole numbers are finite.
            Kind::Uint8 => None,
            Kind::Int8 if signed => None,
            Kind::Int8 => {
                let value = |bits: u64| f64::from((bits as u8).cast_signed());
                find(bytes, |bits| bits & 0x80 != 0, |[one]: [u8; 1]| one.into(), value)
            }
            Kind::Half => find(bytes, refused(0x7c00, 1 << 15), |two| u16::from_le_bytes(two).into(), half),
            _ => find(bytes, refused(0x7ff0 << 48, 1 << 63), u64::from_le_bytes, wide),
        }
    }
}

/// Finds the first number whose bits `is_refused`.
fn find<const WIDTH: usize>(
    bytes: &[u8],
    is_refused: impl Fn(u64) -> bool,
    bits: impl Fn([u8; WIDTH]) -> u64,
    value: impl Fn(u64) -> f64,
) -> Option<(usize, f64)> {
    let bits_of = |number: &[u8]| bits(number.try_into().expect("a number has this width"));
    let index = bytes.chunks_exact(WIDTH).position(|number| is_refused(bits_of(number)))?;
    Some((index, value(bits_of(&bytes[index * WIDTH..(index + 1) * WIDTH]))))
}

/// The value of a number of 16 bits (IEEE 754 binary16: 5 bits of exponent, 10 of fraction).
fn half(bits: u64) -> f64 {
    let (exponent, fraction) = ((bits >> 10) & 0x1f, (bits & 0x3ff) as f64 / 1024.0);
    let magnitude = match exponent {
        0x1f if fraction > 0.0 => f64::NAN,
        0x1f => f64::INFINITY,
        0 => fraction * 2f64.powi(-14),
        _ => (1.0 + fraction) * 2f64.powi(exponent as i32 - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    #[test]
    fn whole_numbers_are_finite_and_may_be_below_zero() {
        for allowed in [AllowedValues::Any, AllowedValues::Finite, AllowedValues::NotNegative] {
            assert_eq!(allowed.first_refused(&[0, 255, 128], Kind::Uint8), None);
            let below_zero = (allowed == AllowedValues::NotNegative).then_some((1, -1.0));
            assert_eq!(allowed.first_refused(&[7, 255, 128], Kind::Int8), below_zero);
        }
    }

    /// libtorch rounds the numbers to each kind.
    #[test]
    fn the_first_number_that_is_not_allowed_is_found_in_every_kind() {
        use AllowedValues::{Any, Finite, NotNegative};
        let cases = [
            ([0.0, -0.0, 1.5, 3.0], None, None),
            ([0.0, 1.5, -1.5, f64::NAN], Some(3), Some(2)),
            ([f64::NEG_INFINITY, 1.0, 2.0, -4.0], Some(0), Some(0)),
            ([6e4, 1e-7, f64::INFINITY, f64::NAN], Some(2), Some(2)),
            ([6e4, 1.0, 2.0, -1e-7], None, Some(3)),
        ];
        for kind in [Kind::Float, Kind::BFloat16, Kind::Half, Kind::Double] {
            for (values, finite, not_negative) in cases {
                let tensor = Tensor::from_slice(&values).to_kind(kind);
                let mut bytes = vec![0; 4 * kind.elt_size_in_bytes()];
                tensor.copy_data_u8(&mut bytes, 4);
                for (allowed, expected) in [(Any, None), (Finite, finite), (NotNegative, not_negative)] {
                    let found = allowed.first_refused(&bytes, kind);
                    assert_eq!(found.map(|(index, _)| index), expected, "{kind:?} {values:?} {allowed:?}");
                    if let Some((index, value)) = found {
                        let exact = tensor.double_value(&[index as i64]);
                        assert!(
                            value == exact || value.is_nan() && exact.is_nan(),
                            "{kind:?} {value} {exact}"
                        );
                    }
                }
            }
        }
    }
}
