//! Complex numbers with the functions that answers hold, on their principal branches.

use super::super::expression::Function;

/// The largest whole exponent for which factors are multiplied one by one.
const MOST_FACTORS: f64 = 1000.0;

/// A complex number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex {
    pub(super) re: f64,
    pub(super) im: f64,
}

impl Complex {
    pub(super) fn real(re: f64) -> Self {
        Self { re, im: 0.0 }
    }

    pub(super) fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }

    pub(super) fn times(self, other: Self) -> Self {
        Self { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }

    /// `None` for a division by zero.
    pub(super) fn over(self, other: Self) -> Option<Self> {
        let square = other.re * other.re + other.im * other.im;
        let product = self.times(Self { im: -other.im, ..other });
        (square > 0.0).then(|| Self { re: product.re / square, im: product.im / square })
    }

    fn exponential(self) -> Self {
        let size = self.re.exp();
        Self { re: size * self.im.cos(), im: size * self.im.sin() }
    }

    /// `None` for 0.
    pub(super) fn logarithm(self) -> Option<Self> {
        (self.size() > 0.0).then(|| Self { re: self.size().ln(), im: self.im.atan2(self.re) })
    }

    /// `None` for a negative power of 0.
    pub(super) fn power(self, exponent: Self) -> Option<Self> {
        if exponent.im == 0.0 && exponent.re.fract() == 0.0 && exponent.re.abs() <= MOST_FACTORS {
            let factors = exponent.re.abs() as u32;
            let power = (0..factors).fold(Self::real(1.0), |power, _| power.times(self));
            return if exponent.re < 0.0 { Self::real(1.0).over(power) } else { Some(power) };
        }
        if self.size() == 0.0 {
            return (exponent.re > 0.0).then_some(self);
        }
        if self.im == 0.0 && self.re > 0.0 && exponent.im == 0.0 {
            return Some(Self::real(self.re.powf(exponent.re)));
        }
        Some(self.logarithm()?.times(exponent).exponential())
    }

    /// A function of one argument. `None` where it is infinite, and for functions that are no function of
    /// complex numbers.
    pub(super) fn function(self, function: Function) -> Option<Self> {
        let i = Self { re: 0.0, im: 1.0 };
        let half = Self::real(0.5);
        // sin z = -i sinh(iz) and cos z = cosh(iz).
        let rotated = self.times(i);
        let (sinh, cosh) = self.hyperbolic();
        let (sine, cosine) = rotated.hyperbolic();
        let sine = sine.times(Self { re: 0.0, im: -1.0 });
        let one = Self::real(1.0);
        match function {
            Function::Exponential => Some(self.exponential()),
            Function::Logarithm => self.logarithm(),
            Function::Sine => Some(sine),
            Function::Cosine => Some(cosine),
            Function::Tangent => sine.over(cosine),
            Function::Cosecant => one.over(sine),
            Function::Secant => one.over(cosine),
            Function::Cotangent => cosine.over(sine),
            Function::HyperbolicSine => Some(sinh),
            Function::HyperbolicCosine => Some(cosh),
            Function::HyperbolicTangent => sinh.over(cosh),
            Function::ArcSine => self.arc_sine(),
            // acos z = pi/2 - asin z.
            Function::ArcCosine => {
                let negative = self.arc_sine()?.times(Self::real(-1.0));
                Some(negative.plus(Self::real(std::f64::consts::FRAC_PI_2)))
            }
            // atan z = i/2 (ln(1 - iz) - ln(1 + iz)).
            Function::ArcTangent => {
                let below = one.plus(rotated).logarithm()?.times(Self::real(-1.0));
                let above = one.plus(rotated.times(Self::real(-1.0))).logarithm()?;
                Some(above.plus(below).times(i).times(half))
            }
            _ => None,
        }
    }

    /// The hyperbolic sine and cosine.
    fn hyperbolic(self) -> (Self, Self) {
        let (rising, falling) = (self.exponential(), self.times(Self::real(-1.0)).exponential());
        let half = Self::real(0.5);
        (rising.plus(falling.times(Self::real(-1.0))).times(half), rising.plus(falling).times(half))
    }

    /// `asin z = -i ln(iz + sqrt(1 - z²))`.
    fn arc_sine(self) -> Option<Self> {
        let i = Self { re: 0.0, im: 1.0 };
        let square = Self::real(1.0).plus(self.times(self).times(Self::real(-1.0)));
        let root = square.power(Self::real(0.5))?;
        Some(self.times(i).plus(root).logarithm()?.times(Self { re: 0.0, im: -1.0 }))
    }
}
