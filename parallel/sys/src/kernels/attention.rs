//! Attention of one new token per sequence over the keys and values of a cache, as in decoding.
//!
//! Each sequence reads its own keys and no others, and a key-value head is read once for all query heads that
//! share it. Nothing is padded to the longest sequence, so no mask is needed.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::lanes::{self, Lanes, LanesLoop, dot_products};
use super::{LANES, Writable, common_kind, numbers};
use crate::exponential::exp;
use crate::instruction_set::InstructionSet;
use crate::{openmp, operations};

/// The numbers of keys for which another thread is worth its start: it takes some 2 microseconds to read
/// them.
const NUMBERS_PER_SHARE: usize = 8 << 10;
/// How many numbers of the keys and values are fetched ahead: 4 KiB, which memory gives in the time that a
/// request takes. It is no more, because what lies behind the last token is fetched in vain.
const FETCHED_AHEAD: usize = 1024;
/// The registers in which the outputs of a head are summed.
const SUMS: usize = 4;

/// The cached keys and values `[slots, key-value heads, capacity, D]` of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    /// The keys.
    pub keys: &'a Tensor,
    /// The values.
    pub values: &'a Tensor,
}

/// Computes `softmax(q K^T scale) V` for the query `q[r]` of `[B, heads, D]` and the tokens `visible[r]` of
/// slot `r`, in fp32. Query head `h` belongs to key-value head `h / (heads / key-value heads)`. The result is
/// `[B, heads * D]`. No range is empty.
pub fn decode(q: &Tensor, cached: Cached<'_>, visible: &[Range<usize>], scale: f64) -> Option<Tensor> {
    let [rows, heads, size]: [i64; 3] = q.size().try_into().ok()?;
    let [slots, kv_heads, capacity, _]: [i64; 4] = cached.keys.size().try_into().ok()?;
    assert!(
        rows as usize == visible.len() && rows <= slots && heads % kv_heads == 0,
        "a slot for each query"
    );
    assert!(visible.iter().all(|tokens| tokens.start < tokens.end && tokens.end <= capacity as usize));
    assert!(cached.keys.size() == cached.values.size() && cached.keys.size()[3] == size, "equal heads");
    let is_contiguous = cached.keys.is_contiguous() && cached.values.is_contiguous();
    if common_kind(&[q, cached.keys, cached.values])? != Kind::Float
        || !is_contiguous
        || !lanes::are_available()
    {
        return None;
    }

    operations::record("attention");
    let q = q.contiguous();
    let output = Tensor::empty([rows, heads * size], (Kind::Float, q.device()));
    let [kv_heads, capacity, size] = [kv_heads, capacity, size].map(|size| size as usize);
    let group = heads as usize / kv_heads;
    let attention = Attention {
        q: numbers(&q),
        keys: numbers(cached.keys),
        values: numbers(cached.values),
        visible,
        scale: scale as f32,
        kv_heads,
        group,
        capacity,
        size,
        output: Writable::of(&output),
    };
    // Heads of long sequences take longer, so the shares are of equal numbers of tokens.
    let lengths = visible.iter().flat_map(|tokens| std::iter::repeat_n(tokens.len(), kv_heads));
    let ends: Vec<usize> = lengths
        .scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
        .collect();
    let (count, per_share) = (ends.last().copied().unwrap_or(0), NUMBERS_PER_SHARE.div_ceil(size));
    openmp::share(count, per_share, &|tokens: Range<usize>| {
        let [first, last] = [tokens.start, tokens.end].map(|token| ends.partition_point(|&end| end <= token));
        lanes::run(InstructionSet::best(), Heads { attention: &attention, heads: first..last });
    });
    Some(output)
}

/// The operands of [`decode`], and its sizes.
struct Attention<'a> {
    q: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    visible: &'a [Range<usize>],
    scale: f32,
    kv_heads: usize,
    /// The number of query heads of a key-value head.
    group: usize,
    capacity: usize,
    /// The size of a head.
    size: usize,
    output: Writable<f32>,
}

/// Some of the key-value heads of all rows, counted row by row.
struct Heads<'a> {
    attention: &'a Attention<'a>,
    heads: Range<usize>,
}

impl LanesLoop for Heads<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self) {
        let mut scores = Vec::new();
        for head in self.heads {
            // SAFETY: the caller's promise.
            unsafe { self.attention.head::<L, COLUMNS>(head, &mut scores) };
        }
    }
}

impl Attention<'_> {
    /// Computes the outputs of one key-value head of one row.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn head<L: Lanes, const COLUMNS: usize>(&self, head: usize, scores: &mut Vec<f32>) {
        let size = self.size;
        let visible = &self.visible[head / self.kv_heads];
        let first = head * self.capacity;
        let tokens = (first + visible.start) * size..(first + visible.end) * size;
        let (keys, values) = (&self.keys[tokens.clone()], &self.values[tokens]);
        scores.resize(visible.len(), 0.0);
        let outputs = head * self.group * size;
        for start in (outputs..outputs + self.group * size).step_by(size) {
            // SAFETY: the caller's promise; no other thread has this head.
            unsafe {
                score::<L, COLUMNS>(&self.q[start..start + size], keys, self.scale, scores);
                let inverse = exponentials(scores);
                average::<L>(scores, inverse, values, self.output.range(start..start + size));
            }
        }
    }
}

/// The scaled product of the query with each key.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn score<L: Lanes, const COLUMNS: usize>(q: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    let size = q.len();
    let mut tiles = scores.chunks_exact_mut(COLUMNS);
    let mut keys_of_tiles = keys.chunks_exact(COLUMNS * size);
    // SAFETY: the caller's promise.
    unsafe {
        for (tile, keys) in tiles.by_ref().zip(keys_of_tiles.by_ref()) {
            let [products] = dot_products::<L, 1, COLUMNS>(q, keys, size, FETCHED_AHEAD);
            for (score, product) in tile.iter_mut().zip(products) {
                *score = product * scale;
            }
        }
        let rest = keys_of_tiles.remainder().chunks_exact(size);
        for (score, key) in tiles.into_remainder().iter_mut().zip(rest) {
            let [[product]] = dot_products::<L, 1, 1>(q, key, size, 0);
            *score = product * scale;
        }
    }
}

/// Replaces the scores by `e^(score - highest)`, and returns the inverse of their sum.
#[inline(always)]
fn exponentials(scores: &mut [f32]) -> f32 {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = scores.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            highest[lane] = if chunk[lane] > highest[lane] { chunk[lane] } else { highest[lane] };
        }
    }
    let highest = highest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);

    let mut sums = [0f32; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - highest);
            sums[lane] += chunk[lane];
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sums) {
        *score = exp(*score - highest);
        *sum += *score;
    }
    (1.0 / sums.iter().map(|&sum| f64::from(sum)).sum::<f64>()) as f32
}

/// The sum of the values with the weights, times `inverse`.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn average<L: Lanes>(weights: &[f32], inverse: f32, values: &[f32], output: &mut [f32]) {
    let size = output.len();
    let wide = size / (SUMS * L::COUNT) * (SUMS * L::COUNT);
    let whole = size / L::COUNT * L::COUNT;
    // SAFETY: the caller's promise.
    unsafe {
        for start in (0..wide).step_by(SUMS * L::COUNT) {
            average_of::<L, SUMS>(weights, inverse, values, start, output);
        }
        for start in (wide..whole).step_by(L::COUNT) {
            average_of::<L, 1>(weights, inverse, values, start, output);
        }
    }
    for place in whole..size {
        let mut sum = 0f32;
        for (weight, value) in weights.iter().zip(values.chunks_exact(size)) {
            sum = weight.mul_add(value[place], sum);
        }
        output[place] = sum * inverse;
    }
}

/// [`average`] of the numbers from `start` on that fit into `WIDTH` registers.
///
/// # Safety
/// The processor has the instructions of `L`, and the output has so many numbers.
#[inline(always)]
unsafe fn average_of<L: Lanes, const WIDTH: usize>(
    weights: &[f32],
    inverse: f32,
    values: &[f32],
    start: usize,
    output: &mut [f32],
) {
    let size = output.len();
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [L::splat(0.0); WIDTH];
        for (&weight, value) in weights.iter().zip(values.chunks_exact(size)) {
            let (weight, value) = (L::splat(weight), value.as_ptr().add(start));
            for index in 0..WIDTH {
                lanes::prefetch(value.wrapping_add(FETCHED_AHEAD + index * L::COUNT));
                sums[index] = L::load(value.add(index * L::COUNT)).multiply_add(weight, sums[index]);
            }
        }
        let inverse = L::splat(inverse);
        for index in 0..WIDTH {
            let output = output.as_mut_ptr().add(start + index * L::COUNT);
            sums[index].multiply_add(inverse, L::splat(0.0)).store(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::kernels::on_each_set;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    /// Attention over the visible tokens alone, in double precision.
    fn reference(q: &Tensor, cached: Cached<'_>, visible: &[Range<usize>], scale: f64) -> Tensor {
        let row = |(row, tokens): (usize, &Range<usize>)| {
            let of = |tensor: &Tensor| {
                let (start, length) = (tokens.start as i64, tokens.len() as i64);
                let tokens = tensor.select(0, row as i64).narrow(1, start, length).to_kind(Kind::Double);
                let group = q.size()[1] / tokens.size()[0];
                tokens.repeat_interleave_self_int(group, 0, None)
            };
            let q = q.select(0, row as i64).unsqueeze(1).to_kind(Kind::Double);
            let weights = (q.matmul(&of(cached.keys).transpose(1, 2)) * scale).softmax(-1, Kind::Double);
            weights.matmul(&of(cached.values)).view([-1])
        };
        Tensor::stack(&visible.iter().enumerate().map(row).collect::<Vec<_>>(), 0)
    }

    #[test]
    fn each_row_attends_to_its_own_tokens() {
        tch::manual_seed(4);
        for (heads, kv_heads, size) in [(1, 1, 1), (4, 2, 8), (6, 2, 40), (8, 8, 64), (4, 1, 80), (2, 2, 256)]
        {
            let visible = [0..1, 3..20, 0..17, 0..64, 5..64];
            let (q, keys) = (random(&[5, heads, size]), random(&[7, kv_heads, 64, size]));
            let values = random(&[7, kv_heads, 64, size]);
            // What is not visible is not read, whatever it is.
            let _ = keys.get(0).narrow(1, 1, 63).fill_(f64::NAN);
            let _ = values.get(0).narrow(1, 1, 63).fill_(f64::NAN);
            let cached = Cached { keys: &keys, values: &values };
            let scale = 1.0 / (size as f64).sqrt();
            let Some(found) = decode(&q, cached, &visible, scale) else { return };
            let wanted = reference(&q, cached, &visible, scale);
            let worst = (found.to_kind(Kind::Double) - wanted).abs().max().double_value(&[]);
            assert!(worst < 2e-6, "{heads} heads, {kv_heads} of keys, of {size}: {worst}");
        }
    }

    #[test]
    fn threads_and_other_rows_change_no_bit() {
        tch::manual_seed(5);
        let (q, keys, values) = (random(&[6, 4, 48]), random(&[6, 2, 300, 48]), random(&[6, 2, 300, 48]));
        let cached = Cached { keys: &keys, values: &values };
        let visible = [0..300, 0..1, 200..300, 0..150, 7..8, 0..299];
        let Some(together) = decode(&q, cached, &visible, 0.2) else { return };
        let before = tch::get_num_threads();
        for threads in [1, 2, 3, 5] {
            tch::set_num_threads(threads);
            assert_eq!(decode(&q, cached, &visible, 0.2).unwrap(), together, "{threads} threads");
            let alone = decode(&q.narrow(0, 0, 1), cached, &visible[..1], 0.2).unwrap();
            assert_eq!(alone, together.narrow(0, 0, 1));
        }
        tch::set_num_threads(before);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        tch::manual_seed(6);
        let (q, keys, values) = (random(&[2, 2, 70]), random(&[2, 1, 50, 70]), random(&[2, 1, 50, 70]));
        let found = on_each_set(|set| {
            let output = Tensor::zeros([2, 140], (Kind::Float, Device::Cpu));
            let attention = Attention {
                q: numbers(&q),
                keys: numbers(&keys),
                values: numbers(&values),
                visible: &[0..50, 3..22],
                scale: 0.3,
                kv_heads: 1,
                group: 2,
                capacity: 50,
                size: 70,
                output: Writable::of(&output),
            };
            lanes::run(set, Heads { attention: &attention, heads: 0..2 });
            output
        });
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
