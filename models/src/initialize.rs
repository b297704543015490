//! Initial values of weights: normal, uniform, zeros or ones. They depend only on the seed, not on the machine or the
//! number of threads.
//!
//! Each parameter draws from a separate `ChaCha8` stream that is selected by its name, so its values depend
//! neither on the order of creation nor on other parameters. Normal numbers are drawn by the method of Box
//! and Muller (1958).

use parallel::fnv1a;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::Tensor;

/// The distribution of a new parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus this bound and this bound.
    Uniform(f64),
    /// Zeros: biases.
    Zeros,
    /// Ones: weights of norms.
    Ones,
}

/// The values of the parameter `name`, fp32 on the CPU.
pub fn values(initial: Initial, shape: &[i64], seed: u64, name: &str) -> Tensor {
    let options = (tch::Kind::Float, tch::Device::Cpu);
    let count = shape.iter().product::<i64>() as usize;
    match initial {
        Initial::Zeros => Tensor::zeros(shape, options),
        Initial::Ones => Tensor::ones(shape, options),
        Initial::Normal(deviation) => Tensor::from_slice(&normal(count, deviation, seed, name)).view(shape),
        Initial::Uniform(bound) => Tensor::from_slice(&uniform(count, bound, seed, name)).view(shape),
    }
}

fn generator(seed: u64, name: &str) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(fnv1a(name));
    generator
}

fn uniform(count: usize, bound: f64, seed: u64, name: &str) -> Vec<f32> {
    let mut generator = generator(seed, name);
    (0..count).map(|_| ((2.0 * generator.random::<f64>() - 1.0) * bound) as f32).collect()
}

fn normal(count: usize, deviation: f64, seed: u64, name: &str) -> Vec<f32> {
    let mut generator = generator(seed, name);
    let mut numbers = Vec::with_capacity(count + 1);
    while numbers.len() < count {
        let radius = (-2.0 * (1.0 - generator.random::<f64>()).ln()).sqrt() * deviation;
        let (sine, cosine) = (std::f64::consts::TAU * generator.random::<f64>()).sin_cos();
        numbers.extend([(radius * cosine) as f32, (radius * sine) as f32]);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_and_name_decide_and_nothing_else() {
        let draw = |seed, name| normal(4, 1.0, seed, name);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_eq!(draw(1, "a")[..3], normal(3, 1.0, 1, "a")[..]);
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
    }

    #[test]
    fn moments_are_those_of_the_normal_distribution() {
        let numbers = normal(200_000, 0.02, 3, "weight");
        let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / 200_000.0;
        let variance = numbers.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 200_000.0;
        // Standard errors: 0.02 / sqrt(2e5) = 4.5e-5, and sqrt(2 / 2e5) = 0.3 % of the variance.
        assert!(mean.abs() < 2e-4, "{mean}");
        assert!((variance / 4e-4 - 1.0).abs() < 0.015, "{variance}");
    }
}
