//! What the property tests of this crate share.

use proptest::test_runner::{Config, RngSeed};

/// The number of cases of a property test. Every run draws the same cases, so that a test which fails points
/// at what was changed since it passed. Raise the number, or take another seed, to search for more.
pub(crate) fn cases(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() }
}
