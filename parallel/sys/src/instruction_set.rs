//! The instruction sets for which the loops of this crate are compiled, and the choice among them at run
//! time.
//!
//! A loop is written once, with operations that IEEE 754 rounds correctly (the fused multiply-add among
//! them), and compiled once for each set, so all of them give the same bits.

use std::sync::OnceLock;

/// The instruction set for which a loop is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// The set of the build. Without a fused multiply-add (x86-64 before 2013) the C library computes it,
    /// which is slow and gives the same bits.
    Build,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl InstructionSet {
    /// The sets that this processor has, the fastest last.
    pub(crate) fn available() -> Vec<Self> {
        let mut sets = vec![Self::Build];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            sets.push(Self::Avx2);
            let has_all = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            sets.extend(has_all.then_some(Self::Avx512));
        }
        sets
    }

    /// The fastest set that this processor has.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Build))
    }
}
