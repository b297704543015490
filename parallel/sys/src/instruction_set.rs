//! The instruction sets for which the loops of this crate are compiled, and the choice among them at run
//! time.
//!
//! A loop is written once, with operations that IEEE 754 rounds correctly (the fused multiply-add among
//! them), and compiled once for each set, so all of them give the same bits.

use std::sync::OnceLock;

/// A loop that is compiled once for each instruction set. `run` and all that it calls are inlined.
pub(crate) trait VectorLoop {
    fn run(self);
}

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

    /// Runs a loop with these instructions. `self` is one of [`available`](Self::available).
    pub(crate) fn run(self, vector_loop: impl VectorLoop) {
        match self {
            Self::Build => vector_loop.run(),
            // SAFETY: `available` has found these instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { run_avx2(vector_loop) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { run_avx512(vector_loop) },
        }
    }

    /// The fastest set that this processor has.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Build))
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2(vector_loop: impl VectorLoop) {
    vector_loop.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
fn run_avx512(vector_loop: impl VectorLoop) {
    vector_loop.run();
}
