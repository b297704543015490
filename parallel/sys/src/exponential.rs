//! The exponential function, with operations that are rounded correctly, so that every instruction set gives
//! the same bits.

/// `e^x` for `x` up to 0, within 1 unit in the last place; below the normal numbers it is 0. NaN stays NaN.
///
/// `x = n ln 2 + r` with an integer `n` and `r` within half of `ln 2`, in two parts of `ln 2` (Cody and Waite
/// 1980); the polynomial for `e^r` is of Cephes (Moshier 1989, `expf`).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Numbers of this size have no fraction, so that adding it rounds to an integer.
    const TO_INTEGER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const LOWEST: f32 = -87.336_54;

    let shifted = x.mul_add(std::f32::consts::LOG2_E, TO_INTEGER);
    let n = shifted - TO_INTEGER;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4f32;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p.mul_add(r, coefficient);
    }
    let power = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < LOWEST { 0.0 } else { power * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_a_unit_in_the_last_place() {
        let mut worst = 0.0f64;
        for index in 0..=2_000_000 {
            let x = -87.33 * (f64::from(index) / 2_000_000.0);
            let x = x as f32;
            let exact = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * 2f64.powf(exact.log2().floor());
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst < 1.0, "{worst} units");
        assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }
}
