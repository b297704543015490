//! Numbers that data chooses, below a prime.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A Mersenne prime, whose products fit 128 bits.
pub(super) const PRIME: u64 = (1 << 61) - 1;

/// A number below the prime that data chooses.
pub(super) fn hash(data: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish() % PRIME
}
