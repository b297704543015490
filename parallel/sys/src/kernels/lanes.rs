//! Sixteen numbers at once, for the loops whose sums must stay in registers. A compiler that vectorizes a
//! plain loop keeps the sums of such a loop in memory.
//!
//! All instruction sets compute with sixteen lanes and add them up in the same order, so they give the same
//! bits.

use super::LANES;
use super::prefetch::prefetch;
use crate::instruction_set::InstructionSet;

/// Sixteen numbers.
///
/// # Safety
/// Every method needs the instructions of the implementation, which [`run`] has found.
pub(super) trait Lanes: Copy {
    const COUNT: usize = LANES;

    unsafe fn splat(number: f32) -> Self;

    /// Reads the sixteen numbers from `place` on.
    unsafe fn load(place: *const f32) -> Self;

    /// Reads `count` numbers from `place` on, and zeros for the others.
    #[inline(always)]
    unsafe fn load_first(place: *const f32, count: usize) -> Self {
        let mut numbers = [0f32; LANES];
        // SAFETY: the caller's promises.
        unsafe {
            std::ptr::copy_nonoverlapping(place, numbers.as_mut_ptr(), count);
            Self::load(numbers.as_ptr())
        }
    }

    /// Reads sixteen whole numbers of eight bits from `place` on.
    unsafe fn load_whole(place: *const i8) -> Self;

    /// The numbers of `book` at sixteen places of four bits, which are read from `pairs` on: two in each of
    /// eight bytes, the first in the upper half.
    unsafe fn look_up(book: &[f32; LANES], pairs: *const u8) -> Self;

    /// Writes the numbers to `place` and the fifteen after it.
    unsafe fn store(self, place: *mut f32);

    /// `self factor`, rounded once.
    #[inline(always)]
    unsafe fn multiply(self, factor: Self) -> Self {
        // SAFETY: the caller's promise. Minus zero changes no number, and no zero either.
        unsafe { self.multiply_add(factor, Self::splat(-0.0)) }
    }

    /// `self factor + sum`, rounded once.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;

    /// The sums of the lanes of four values.
    unsafe fn sums(values: [Self; 4]) -> [f32; 4];
}

/// A loop over [`Lanes`].
pub(super) trait LanesLoop {
    /// `ROWS` and `COLUMNS` are the numbers of operands of [`dot_products`] whose sums fit into registers,
    /// and `VALUES` a number of values that fit with a few others.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self);
}

/// Whether [`run`] has instructions for [`Lanes`] on this processor.
pub(super) fn are_available() -> bool {
    InstructionSet::best() != InstructionSet::Build
}

/// Runs a loop with the instructions of `set`, one of [`InstructionSet::available`] with [`Lanes`].
pub(super) fn run(set: InstructionSet, lanes_loop: impl LanesLoop) {
    match set {
        // SAFETY: `available` has found these instructions.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { x86::run_avx512(lanes_loop) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { x86::run_avx2(lanes_loop) },
        InstructionSet::Build => unreachable!("the caller asked whether there are lanes"),
    }
}

/// Computes the products of `ROWS` rows of `x` with `COLUMNS` rows of `y`, at most four. Rows lie one after
/// another and have `length` numbers each.
///
/// Unless `ahead` is 0, the function fetches the memory at the distance of `ahead` numbers from `y`, as much
/// as `y` takes. It does so in the order of the addresses, which the prefetcher of a processor
/// recognizes; the products read several rows at once, which it does not.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn dot_products<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    x: &[f32],
    y: &[f32],
    length: usize,
    ahead: isize,
) -> [[f32; COLUMNS]; ROWS] {
    assert!(x.len() == ROWS * length && y.len() == COLUMNS * length && COLUMNS <= 4, "whole rows");
    let (x, y) = (x.as_ptr(), y.as_ptr());
    // SAFETY: the processor has the instructions, and what is read lies within the rows.
    unsafe {
        let mut sums = [[L::splat(0.0); COLUMNS]; ROWS];
        let whole = length / L::COUNT * L::COUNT;
        for at in (0..whole).step_by(L::COUNT) {
            let (mut left, mut right) = ([L::splat(0.0); ROWS], [L::splat(0.0); COLUMNS]);
            for column in 0..COLUMNS {
                if ahead != 0 {
                    let place = (at * COLUMNS + column * L::COUNT) as isize;
                    prefetch(y.wrapping_offset(ahead + place));
                }
                right[column] = L::load(y.add(column * length + at));
            }
            for row in 0..ROWS {
                left[row] = L::load(x.add(row * length + at));
            }
            add_products(&mut sums, left, right);
        }
        if whole < length {
            let (mut left, mut right) = ([L::splat(0.0); ROWS], [L::splat(0.0); COLUMNS]);
            for column in 0..COLUMNS {
                right[column] = L::load_first(y.add(column * length + whole), length - whole);
            }
            for row in 0..ROWS {
                left[row] = L::load_first(x.add(row * length + whole), length - whole);
            }
            add_products(&mut sums, left, right);
        }

        let mut totals = [[0.0; COLUMNS]; ROWS];
        for row in 0..ROWS {
            let mut four = [L::splat(0.0); 4];
            four[..COLUMNS].copy_from_slice(&sums[row]);
            totals[row].copy_from_slice(&L::sums(four)[..COLUMNS]);
        }
        totals
    }
}

/// Adds the product of each pair to its sum.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn add_products<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    sums: &mut [[L; COLUMNS]; ROWS],
    left: [L; ROWS],
    right: [L; COLUMNS],
) {
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            // SAFETY: the caller's promise.
            sums[row][column] = unsafe { left[row].multiply_add(right[column], sums[row][column]) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #[allow(clippy::wildcard_imports, reason = "the names begin with `_mm`")]
    use std::arch::x86_64::*;

    use super::{Lanes, LanesLoop};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2(lanes_loop: impl LanesLoop) {
        // SAFETY: these are the instructions of the function.
        unsafe { lanes_loop.run::<[__m256; 2], 2, 3, 4>() }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn run_avx512(lanes_loop: impl LanesLoop) {
        // SAFETY: these are the instructions of the function.
        unsafe { lanes_loop.run::<__m512, 4, 4, 16>() }
    }

    impl Lanes for __m512 {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn splat(number: f32) -> Self {
            _mm512_set1_ps(number)
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn load(place: *const f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_loadu_ps(place) }
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn load_whole(place: *const i8) -> Self {
            // SAFETY: the caller's promise.
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(place.cast()) }))
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn look_up(book: &[f32; 16], pairs: *const u8) -> Self {
            // SAFETY: the caller's promise, and the book has sixteen numbers.
            let (places, book) = unsafe { (places(pairs), _mm512_loadu_ps(book.as_ptr())) };
            _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(places), book)
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn store(self, place: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(place, self) }
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
            _mm512_fmadd_ps(self, factor, sum)
        }

        #[inline]
        #[target_feature(enable = "avx,avx512f,avx512dq")]
        unsafe fn sums(values: [Self; 4]) -> [f32; 4] {
            // An array's `map` would take a closure, which has no instructions of its own.
            let [a, b, c, d] = values;
            sums_of_quarters([in_quarter(a), in_quarter(b), in_quarter(c), in_quarter(d)])
        }
    }

    impl Lanes for [__m256; 2] {
        #[inline]
        #[target_feature(enable = "avx")]
        unsafe fn splat(number: f32) -> Self {
            [_mm256_set1_ps(number); 2]
        }

        #[inline]
        #[target_feature(enable = "avx")]
        unsafe fn load(place: *const f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { [_mm256_loadu_ps(place), _mm256_loadu_ps(place.add(8))] }
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn load_whole(place: *const i8) -> Self {
            // SAFETY: the caller's promise.
            let [lower, upper] =
                unsafe { [_mm_loadl_epi64(place.cast()), _mm_loadl_epi64(place.add(8).cast())] };
            [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lower)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper))]
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn look_up(book: &[f32; 16], pairs: *const u8) -> Self {
            // SAFETY: the caller's promise, and the book has sixteen numbers.
            let (places, lower, upper) = unsafe {
                (places(pairs), _mm256_loadu_ps(book.as_ptr()), _mm256_loadu_ps(book.as_ptr().add(8)))
            };
            [
                look_up_eight(lower, upper, _mm256_cvtepu8_epi32(places)),
                look_up_eight(lower, upper, _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(places))),
            ]
        }

        #[inline]
        #[target_feature(enable = "avx")]
        unsafe fn store(self, place: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(place, self[0]);
                _mm256_storeu_ps(place.add(8), self[1]);
            }
        }

        #[inline]
        #[target_feature(enable = "avx,fma")]
        unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
            [_mm256_fmadd_ps(self[0], factor[0], sum[0]), _mm256_fmadd_ps(self[1], factor[1], sum[1])]
        }

        #[inline]
        #[target_feature(enable = "avx")]
        unsafe fn sums(values: [Self; 4]) -> [f32; 4] {
            let [a, b, c, d] = values;
            let half = [
                _mm256_add_ps(a[0], a[1]),
                _mm256_add_ps(b[0], b[1]),
                _mm256_add_ps(c[0], c[1]),
                _mm256_add_ps(d[0], d[1]),
            ];
            sums_of_quarters([quarter(half[0]), quarter(half[1]), quarter(half[2]), quarter(half[3])])
        }
    }

    /// The sixteen halves of eight bytes, the upper half of each before the lower.
    ///
    /// # Safety
    /// The eight bytes can be read.
    #[inline]
    #[target_feature(enable = "sse2")]
    unsafe fn places(pairs: *const u8) -> __m128i {
        // SAFETY: the caller's promise.
        let pairs = unsafe { _mm_loadl_epi64(pairs.cast()) };
        let half = _mm_set1_epi8(15);
        let upper = _mm_and_si128(_mm_srli_epi16::<4>(pairs), half);
        _mm_unpacklo_epi8(upper, _mm_and_si128(pairs, half))
    }

    /// The numbers at places in a book of two parts. A permutation looks at three bits of a place, and the
    /// fourth chooses the part.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up_eight(lower: __m256, upper: __m256, places: __m256i) -> __m256 {
        let is_upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places));
        let [lower, upper] =
            [_mm256_permutevar8x32_ps(lower, places), _mm256_permutevar8x32_ps(upper, places)];
        _mm256_blendv_ps(lower, upper, is_upper)
    }

    /// Adds the upper half of the lanes to the lower half, and does so again.
    #[inline]
    #[target_feature(enable = "avx,avx512f,avx512dq")]
    fn in_quarter(lanes: __m512) -> __m128 {
        quarter(_mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes)))
    }

    #[inline]
    #[target_feature(enable = "avx")]
    fn quarter(half: __m256) -> __m128 {
        _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half))
    }

    #[inline]
    #[target_feature(enable = "avx")]
    fn sums_of_quarters([a, b, c, d]: [__m128; 4]) -> [f32; 4] {
        let sums = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
        // SAFETY: both are four numbers.
        unsafe { std::mem::transmute::<__m128, [f32; 4]>(sums) }
    }
}
