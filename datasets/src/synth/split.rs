//! Decides which problems are held out.
//!
//! A problem is held out iff `mix(FNV-1a(SALT + key)) / 2^64 < share`. The key names the problem, independent
//! of its wording and language, and the salt is fixed. Every seed therefore has the same split, and no
//! wording of a held-out problem ever occurs in training text. FNV-1a is the 64-bit hash of Fowler, Noll and
//! Vo. `mix` is the finaliser of `MurmurHash3`, because the high bits of FNV-1a are poor on short keys.

use super::dice::unit_interval;

/// Changing the salt changes which problems are held out.
const SALT: &str = "colossal-chat/1:";

/// The side of the split that a problem is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The problem may occur in demonstrations, pairs, rollout prompts and the corpus.
    Training,
    /// The problem occurs only in evaluation data.
    HeldOut,
}

/// The side of a problem when `heldout_share` of all problems is held out.
pub fn side(key: &str, heldout_share: f64) -> Side {
    let hash = mix(fnv1a(fnv1a(FNV_OFFSET, SALT.as_bytes()), key.as_bytes()));
    if unit_interval(hash) < heldout_share { Side::HeldOut } else { Side::Training }
}

/// The initial state of FNV-1a.
pub const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues 64-bit FNV-1a from `state`: `state = (state xor byte) * (2^40 + 2^8 + 0xb3)` for each byte.
pub fn fnv1a(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_of_the_published_vectors() {
        // From the test vectors of the authors' reference code.
        assert_eq!(fnv1a(FNV_OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_share_is_met_on_similar_keys() {
        let held = (0..10_000).filter(|n| side(&format!("sum:{n}+7"), 0.1) == Side::HeldOut).count();
        // Binomial(10000, 0.1): mean 1000, standard deviation 30.
        assert!(held.abs_diff(1000) < 150, "{held}");
        assert_eq!(side("sum:1+1", 0.0), Side::Training);
        assert_eq!(side("sum:1+1", 1.0), Side::HeldOut);
    }
}
