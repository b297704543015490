//! Memory that is fetched before it is read.

/// Asks the processor to fetch the memory at `place` into its second-level cache. The first level has room
/// for few requests, and then waits. `place` may lie outside of any tensor.
#[inline(always)]
pub(super) fn prefetch(place: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
