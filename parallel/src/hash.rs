//! A hash that is the same in every build, on every machine: the 64-bit FNV-1a (Fowler, Noll and Vo).
//!
//! It selects the random stream of a parameter by its name, and tells whether a file or a tensor has changed
//! by accident. It does not withstand someone who looks for two contents with one hash.

/// The 64-bit FNV-1a hash.
pub fn fnv1a(bytes: impl AsRef<[u8]>) -> u64 {
    bytes
        .as_ref()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_has_its_published_values() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
