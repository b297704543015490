//! The scales of blocks in eight bits: "double quantisation" (Dettmers et al. 2023, arXiv 2305.14314, section
//! 3) with the dynamic code of Dettmers et al. 2022 (arXiv 2110.02861, section 2.1).
//!
//! ```text
//!   offset  = mean of the scales
//!   nested  = max |scale - offset|                                 over 256 scales
//!   code    = the nearest of BOOK to (scale - offset) / nested
//!   scale   ~ BOOK[code] nested + offset
//! ```
//! bitsandbytes 0.50.2 looks codes up on a processor: the quotient is first rounded to one of 65,536 steps
//! from -1 to 1, so a quotient next to the middle of two codes may get the farther one. Codes are bit for bit
//! the same here. Its mean is a sum of fp32 whose rounding depends on the number of threads; here it is
//! always that of one.

use std::sync::{Arc, OnceLock};

/// The scales that share a scale of their own.
pub use parallel::kernels::quantized::NESTED_BLOCK;

/// The steps of the table of codes.
const STEPS: usize = 1 << 16;

/// The quantised scales of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// The code of each scale.
    pub codes: Vec<u8>,
    /// One fp32 for each [`NESTED_BLOCK`] scales.
    pub nested: Vec<f32>,
    /// The mean of the scales.
    pub offset: f32,
    /// What codes stand for: [`book`], or nearly that, where it was computed by another machine.
    pub book: Arc<[f32; 256]>,
}

/// Quantises the scales of the blocks of one matrix.
pub fn quantize(scales: &[f32]) -> Scales {
    let offset = if scales.is_empty() { 0.0 } else { sum(scales) / scales.len() as f32 };
    let (mut codes, mut nested) = (Vec::with_capacity(scales.len()), Vec::new());
    for block in scales.chunks(NESTED_BLOCK) {
        let centred: Vec<f32> = block.iter().map(|scale| scale - offset).collect();
        let largest = centred.iter().fold(0.0f32, |most, number| most.max(number.abs()));
        nested.push(largest);
        // Equal scales have no distance from their mean, and the code of what is multiplied by zero does not
        // matter.
        let factor = largest.recip();
        let code = |number: &f32| if largest > 0.0 { table()[step_of(number * factor)] } else { 0 };
        codes.extend(centred.iter().map(code));
    }
    Scales { codes, nested, offset, book: Arc::clone(book()) }
}

/// The step of a number between -1 and 1.
fn step_of(number: f32) -> usize {
    ((number.clamp(-1.0, 1.0) + 1.0) * 0.5 * (STEPS - 1) as f32 + 0.5) as usize
}

/// The code nearest to each step.
fn table() -> &'static [u8; STEPS] {
    static TABLE: OnceLock<Box<[u8; STEPS]>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let midpoints: Vec<f32> = book().windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
        let nearest = |step: usize| {
            let number = 2.0 * (step as f32 / (STEPS - 1) as f32) - 1.0;
            midpoints.partition_point(|&midpoint| midpoint < number) as u8
        };
        let codes: Vec<u8> = (0..STEPS).map(nearest).collect();
        codes.into_boxed_slice().try_into().expect("one code for each step")
    })
}

/// The numbers that a code stands for, in ascending order: in each decade from 1e-6 to 1, twice as many as in
/// the one before, in the middle of equal steps; zero; and one. bitsandbytes: `create_dynamic_map`.
pub fn book() -> &'static Arc<[f32; 256]> {
    static BOOK: OnceLock<Arc<[f32; 256]>> = OnceLock::new();
    BOOK.get_or_init(|| {
        let mut numbers = vec![0.0, 1.0];
        for decade in 0..7 {
            let bounds = steps_from_a_tenth(1 << decade);
            let factor = 10f64.powi(decade - 6) as f32;
            let middles = bounds.windows(2).map(|pair| factor * f32::midpoint(pair[0], pair[1]));
            numbers.extend(middles.flat_map(|middle| [middle, -middle]));
        }
        numbers.sort_by(f32::total_cmp);
        Arc::new(numbers.try_into().expect("2 + 2 (1 + 2 + .. + 64) numbers"))
    })
}

/// `count + 1` numbers from 0.1 to 1 at equal distances, counted from the nearer end, as torch's `linspace`
/// does.
fn steps_from_a_tenth(count: usize) -> Vec<f32> {
    let step = (1.0 - 0.1f32) / count as f32;
    let number = |index: usize| {
        if index < count.div_ceil(2) {
            (index as f32).mul_add(step, 0.1)
        } else {
            (-step).mul_add((count - index) as f32, 1.0)
        }
    };
    (0..=count).map(number).collect()
}

/// The sum, rounded as torch rounds it in one thread: eight lanes, each with four sums side by side, and
/// partial sums of growing length on four levels (pairwise summation: Higham 1993,
/// <https://doi.org/10.1137/0914050>).
fn sum(numbers: &[f32]) -> f32 {
    const LANES: usize = 8;
    const BESIDE: usize = 4;
    let (vectors, rest) = numbers.as_chunks::<LANES>();
    let (groups, last) = vectors.as_chunks::<BESIDE>();
    let mut sums = levelled_sums(groups);
    for vector in last {
        add(&mut sums[0], vector);
    }
    let [mut first, others @ ..] = sums;
    for other in &others {
        add(&mut first, other);
    }
    let rest: f32 = rest.iter().fold(0.0, |sum, number| sum + number);
    first.iter().fold(rest, |sum, lane| sum + lane)
}

/// The four sums of all groups. A full sum of one level is added to the next level.
fn levelled_sums(groups: &[[[f32; 8]; 4]]) -> [[f32; 8]; 4] {
    const LEVELS: usize = 4;
    let bits = (groups.len().max(1).next_power_of_two().ilog2() / LEVELS as u32).max(4);
    let step = 1usize << bits;
    let mut levels = [[[0f32; 8]; 4]; LEVELS];
    let add_group = |sums: &mut [[f32; 8]; 4], group: &[[f32; 8]; 4]| {
        for (sum, vector) in sums.iter_mut().zip(group) {
            add(sum, vector);
        }
    };
    let whole = groups.len() / step * step;
    for (chunk, done) in groups[..whole].chunks(step).zip((step..).step_by(step)) {
        for group in chunk {
            add_group(&mut levels[0], group);
        }
        for level in 1..LEVELS {
            let full = std::mem::take(&mut levels[level - 1]);
            add_group(&mut levels[level], &full);
            if done >> (level as u32 * bits) & (step - 1) != 0 {
                break;
            }
        }
    }
    for group in &groups[whole..] {
        add_group(&mut levels[0], group);
    }
    let [mut first, others @ ..] = levels;
    for other in &others {
        add_group(&mut first, other);
    }
    first
}

fn add(sum: &mut [f32; 8], numbers: &[f32; 8]) {
    for (sum, number) in sum.iter_mut().zip(numbers) {
        *sum += number;
    }
}
