//! The interval of the difference of two independent estimates from their own intervals: the method of
//! variance estimates recovery (Zou and Donner 2008, "Construction of confidence limits about effect
//! measures", Statistics in Medicine 27, p. 1693). For two rates with Wilson's intervals it is method 10 of
//! Newcombe 1998 ("Interval estimation for the difference between independent proportions", Statistics in
//! Medicine 17, p. 873).
//!
//! ```text
//! low  = m1 - m2 - sqrt((m1 - l1)² + (u2 - m2)²)
//! high = m1 - m2 + sqrt((u1 - m1)² + (m2 - l2)²)
//! ```
//!
//! Where both intervals have a width, so has this one. This file does not know what was estimated.

/// The ends of the 95 % interval of the first mean minus the second one. Each has the ends of its own.
pub fn independent_difference(
    (first, (first_low, first_high)): (f64, (f64, f64)),
    (second, (second_low, second_high)): (f64, (f64, f64)),
) -> (f64, f64) {
    let difference = first - second;
    (
        difference - (first - first_low).hypot(second_high - second),
        difference + (first_high - first).hypot(second - second_low),
    )
}
