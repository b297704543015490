//! The 16-bit number bfloat16: the upper half of an `f32`, and three ways to and from it.
//!
//! Rounding to nearest is what libtorch does. Stochastic rounding goes to one of the two neighbours at
//! random, to the nearer one more often, so that the expected result is the number itself.

#![expect(
    clippy::inline_always,
    reason = "such a function is compiled with the instruction set of its caller"
)]

/// The upper half of an `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bfloat16(u16);

impl Bfloat16 {
    #[inline(always)]
    pub(crate) fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to the nearest value, ties to even.
    #[inline(always)]
    pub(crate) fn nearest(wide: f32) -> Self {
        let bits = wide.to_bits();
        Self::or_nan(wide, bits.wrapping_add(0x7fff + ((bits >> 16) & 1)))
    }

    /// Rounds away from zero with the probability `lower half / 2^16`, for a `random` number that is uniform
    /// below 2^16; a value that bfloat16 can hold stays what it is.
    #[inline(always)]
    pub(crate) fn stochastic(wide: f32, random: u32) -> Self {
        Self::or_nan(wide, wide.to_bits().wrapping_add(random))
    }

    /// The upper half of `rounded`. A NaN stays one, whatever was added to its bits.
    #[inline(always)]
    fn or_nan(wide: f32, rounded: u32) -> Self {
        let bits = if wide.is_nan() { wide.to_bits() | 0x40_0000 } else { rounded };
        Self((bits >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_by_hand() {
        // bfloat16 has 7 fraction bits: next to 1 its values are 2^-7 apart.
        let above = |ulps: f32| 1.0 + ulps / 128.0;
        for (ulps, nearest) in [(0.49, 0.0), (0.5, 0.0), (0.51, 1.0), (1.5, 2.0), (2.5, 2.0)] {
            assert_eq!(Bfloat16::nearest(above(ulps)).widen(), above(nearest), "{ulps}");
        }
        // 1 + 2^-9 is a quarter of the way up: the upper quarter of the random numbers carries.
        let quarter = above(0.25);
        assert_eq!(Bfloat16::stochastic(quarter, 0xbfff).widen(), 1.0);
        assert_eq!(Bfloat16::stochastic(quarter, 0xc000).widen(), above(1.0));
        assert_eq!(Bfloat16::stochastic(-quarter, 0xc000).widen(), -above(1.0));
        for exact in [0.0, -0.0, above(1.0), f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Bfloat16::stochastic(exact, 0xffff).widen().to_bits(), exact.to_bits());
        }
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(Bfloat16::nearest(nan).widen().is_nan());
            assert!(Bfloat16::stochastic(nan, 0xffff).widen().is_nan());
        }
    }
}
