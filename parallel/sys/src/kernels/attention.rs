//! Attention of one new token per sequence over the keys and values of a paged cache, as in decoding (Kwon et
//! al. 2023, arXiv 2309.06180).
//!
//! Each sequence reads its own keys and no others, and a key-value head is read once for all query heads that
//! share it. Nothing is padded to the longest sequence, so no mask is needed. Keys and values in bfloat16 are
//! widened page by page, so that scores, softmax and sums are in fp32.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::lanes::{self, Lanes, LanesLoop, dot_products};
use super::prefetch::prefetch;
use super::{LANES, Number, Writable, common_kind, numbers};
use crate::bfloat16::Bfloat16;
use crate::exponential::exp;
use crate::instruction_set::InstructionSet;
use crate::{openmp, operations};

/// The numbers of keys for which another thread is worth its start: it takes some 2 microseconds to read
/// them.
const NUMBERS_PER_SHARE: usize = 8 << 10;
/// The registers in which the outputs of a head are summed.
const SUMS: usize = 4;

/// The cached keys and values of a layer in pages, `[pages, key-value heads, page size, D]` each.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    /// The keys.
    pub keys: &'a Tensor,
    /// The values.
    pub values: &'a Tensor,
}

/// The tokens that a query sees. The query's own token is the last of them.
#[derive(Clone, Debug)]
pub struct Visible<'a> {
    /// The pages of the sequence, in the order of its tokens.
    pub pages: &'a [u32],
    /// The tokens, which are not empty.
    pub tokens: Range<usize>,
}

/// Computes `softmax(q K^T scale + bias) V` for each query `q[r]` of `[B, heads, D]` over the tokens
/// `visible[r]`. Query head `h` belongs to key-value head `h / (heads / key-value heads)`. The result is
/// `[B, heads * D]`. The bias of a key is the slope of the query head times the key's position minus the
/// query's (Press et al. 2021, arXiv 2108.12409); `slopes` has a slope for each query head, or none if there
/// is no bias. Returns `None` for tensors that it is not made for.
pub fn decode(
    q: &Tensor,
    cached: Cached<'_>,
    visible: &[Visible<'_>],
    scale: f64,
    slopes: &[f32],
) -> Option<Tensor> {
    let [rows, heads, size]: [i64; 3] = q.size().try_into().ok()?;
    let [pages, kv_heads, page_size, _]: [i64; 4] = cached.keys.size().try_into().ok()?;
    assert!(rows as usize == visible.len() && heads % kv_heads == 0, "a sequence for each query");
    let is_cached = |visible: &Visible<'_>| {
        visible.tokens.start < visible.tokens.end
            && visible.tokens.end <= visible.pages.len() * page_size as usize
            && visible.pages.iter().all(|&page| i64::from(page) < pages)
    };
    assert!(visible.iter().all(is_cached), "every visible token is in a page");
    assert!(cached.keys.size() == cached.values.size() && cached.keys.size()[3] == size, "equal heads");
    assert!(slopes.is_empty() || slopes.len() == heads as usize, "a slope for each head");
    let is_contiguous = cached.keys.is_contiguous() && cached.values.is_contiguous();
    let kind = common_kind(&[q, cached.keys, cached.values])?;
    if !is_contiguous || !lanes::are_available() {
        return None;
    }

    operations::record("attention");
    let q = q.contiguous();
    let output = Tensor::empty([rows, heads * size], (kind, q.device()));
    let sizes = Sizes {
        kv_heads: kv_heads as usize,
        group: (heads / kv_heads) as usize,
        page_size: page_size as usize,
        size: size as usize,
    };
    let context = Context { visible, scale: scale as f32, slopes, sizes };
    match kind {
        Kind::Float => context.run::<f32>(&q, cached, &output),
        _ => context.run::<Bfloat16>(&q, cached, &output),
    }
    Some(output)
}

/// The sizes of the operands of [`decode`].
#[derive(Clone, Copy)]
struct Sizes {
    kv_heads: usize,
    /// The number of query heads of a key-value head.
    group: usize,
    page_size: usize,
    /// The size of a head.
    size: usize,
}

/// The operands of [`decode`] without its tensors.
struct Context<'a> {
    visible: &'a [Visible<'a>],
    scale: f32,
    slopes: &'a [f32],
    sizes: Sizes,
}

impl Context<'_> {
    /// Shares the heads of all rows among the threads.
    fn run<T: Number>(&self, q: &Tensor, cached: Cached<'_>, output: &Tensor) {
        let attention = Attention::<T> {
            context: self,
            q: numbers(q),
            keys: numbers(cached.keys),
            values: numbers(cached.values),
            output: Writable::of(output),
        };
        // Heads of long sequences take longer, so the shares are of equal numbers of tokens.
        let lengths = self
            .visible
            .iter()
            .flat_map(|visible| std::iter::repeat_n(visible.tokens.len(), self.sizes.kv_heads));
        let ends: Vec<usize> = lengths
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let count = ends.last().copied().unwrap_or(0);
        openmp::share(count, NUMBERS_PER_SHARE.div_ceil(self.sizes.size), &|tokens: Range<usize>| {
            let [first, last] =
                [tokens.start, tokens.end].map(|token| ends.partition_point(|&end| end <= token));
            lanes::run(InstructionSet::best(), Heads { attention: &attention, heads: first..last });
        });
    }
}

/// The operands of [`decode`].
struct Attention<'a, T> {
    context: &'a Context<'a>,
    q: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    output: Writable<T>,
}

/// Some of the key-value heads of all rows, counted row by row.
struct Heads<'a, T> {
    attention: &'a Attention<'a, T>,
    heads: Range<usize>,
}

impl<T: Number> LanesLoop for Heads<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self) {
        let mut memory = WorkingMemory::default();
        for head in self.heads {
            // SAFETY: the caller's promise.
            unsafe { self.attention.head::<L, COLUMNS>(head, &mut memory) };
        }
    }
}

/// The working memory of a thread.
#[derive(Default)]
struct WorkingMemory {
    /// The queries of a key-value head, `[group, D]`.
    queries: Vec<f32>,
    /// The keys or values of a page.
    page: Vec<f32>,
    /// The scores, `[group, tokens]`, and then their exponentials.
    scores: Vec<f32>,
    /// The inverses of their sums, `[group]`.
    inverses: Vec<f32>,
    /// The outputs, `[group, D]`.
    outputs: Vec<f32>,
}

/// The visible keys or values of a head in one page.
struct Tile<'a, T> {
    numbers: &'a [T],
    /// The indices of its tokens among the visible tokens.
    tokens: Range<usize>,
    /// The distance in numbers to the next page of the head, or 0 behind the last page. A page is about as
    /// much as memory gives in the time that a request takes, so it is fetched while this one is read.
    ahead: isize,
}

/// The tiles of one key-value head of a row, in the order of the tokens.
fn tiles<'a, T>(
    numbers: &'a [T],
    visible: &Visible<'a>,
    kv_head: usize,
    sizes: Sizes,
) -> impl Iterator<Item = Tile<'a, T>> {
    let Sizes { kv_heads, page_size, size, .. } = sizes;
    let Visible { pages, tokens } = visible.clone();
    let start_of = move |page: u32| (page as usize * kv_heads + kv_head) * page_size * size;
    let (first, last) = (tokens.start / page_size, (tokens.end - 1) / page_size);
    (first..=last).map(move |index| {
        let begin = tokens.start.max(index * page_size);
        let end = tokens.end.min((index + 1) * page_size);
        let start = start_of(pages[index]);
        let next = if index < last { start_of(pages[index + 1]) } else { start };
        let within = (begin - index * page_size) * size..(end - index * page_size) * size;
        Tile {
            numbers: &numbers[start + within.start..start + within.end],
            tokens: begin - tokens.start..end - tokens.start,
            ahead: next as isize - start as isize,
        }
    })
}

impl<T: Number> Attention<'_, T> {
    /// Computes the outputs of one key-value head of one row.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn head<L: Lanes, const COLUMNS: usize>(&self, head: usize, memory: &mut WorkingMemory) {
        let Context { visible, scale, slopes, sizes } = *self.context;
        let Sizes { kv_heads, group, size, .. } = sizes;
        let (visible, kv_head) = (&visible[head / kv_heads], head % kv_heads);
        let count = visible.tokens.len();
        let own = head * group * size..(head + 1) * group * size;
        let WorkingMemory { queries, page, scores, inverses, outputs } = memory;
        let (queries, _) = T::widened(&self.q[own.clone()], 0, queries);
        scores.resize(group * count, 0.0);
        outputs.clear();
        outputs.resize(group * size, 0.0);

        for tile in tiles(self.keys, visible, kv_head, sizes) {
            let (keys, mut ahead) = T::widened(tile.numbers, tile.ahead, page);
            for (query, scores) in queries.chunks_exact(size).zip(scores.chunks_exact_mut(count)) {
                // SAFETY: the caller's promise.
                unsafe { score::<L, COLUMNS>(query, keys, scale, ahead, &mut scores[tile.tokens.clone()]) };
                ahead = 0; // The first query has fetched the next page.
            }
        }
        let slopes = slopes.get(kv_head * group..(kv_head + 1) * group).unwrap_or_default();
        for (scores, slope) in scores.chunks_exact_mut(count).zip(slopes) {
            for (distance, score) in scores.iter_mut().rev().enumerate() {
                *score -= slope * distance as f32;
            }
        }
        inverses.clear();
        // A method that takes a closure has no instructions of its own.
        for scores in scores.chunks_exact_mut(count) {
            inverses.push(exponentials(scores));
        }

        for tile in tiles(self.values, visible, kv_head, sizes) {
            let (values, mut ahead) = T::widened(tile.numbers, tile.ahead, page);
            for (weights, outputs) in scores.chunks_exact(count).zip(outputs.chunks_exact_mut(size)) {
                // SAFETY: the caller's promise.
                unsafe { add_weighted::<L>(&weights[tile.tokens.clone()], values, ahead, outputs) };
                ahead = 0;
            }
        }
        // SAFETY: no other thread has this head.
        let places = unsafe { self.output.range(own) };
        for (head, inverse) in inverses.iter().enumerate() {
            let own = head * size..(head + 1) * size;
            for (place, &sum) in places[own.clone()].iter_mut().zip(&outputs[own]) {
                *place = T::narrow(sum * inverse);
            }
        }
    }
}

/// The scaled product of the query with each key. `ahead` is the distance to the numbers that are fetched
/// meanwhile, or 0 for none.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn score<L: Lanes, const COLUMNS: usize>(
    q: &[f32],
    keys: &[f32],
    scale: f32,
    ahead: isize,
    scores: &mut [f32],
) {
    let size = q.len();
    let mut tiles = scores.chunks_exact_mut(COLUMNS);
    let mut keys_of_tiles = keys.chunks_exact(COLUMNS * size);
    // SAFETY: the caller's promise.
    unsafe {
        for (tile, keys) in tiles.by_ref().zip(keys_of_tiles.by_ref()) {
            let [products] = dot_products::<L, 1, COLUMNS>(q, keys, size, ahead);
            for (score, product) in tile.iter_mut().zip(products) {
                *score = product * scale;
            }
        }
        let rest = keys_of_tiles.remainder().chunks_exact(size);
        for (score, key) in tiles.into_remainder().iter_mut().zip(rest) {
            let [[product]] = dot_products::<L, 1, 1>(q, key, size, ahead);
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

/// Adds the values with their weights to the sums. `ahead` is the distance to the numbers that are fetched
/// meanwhile, or 0 for none.
///
/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn add_weighted<L: Lanes>(weights: &[f32], values: &[f32], ahead: isize, sums: &mut [f32]) {
    let size = sums.len();
    let wide = size / (SUMS * L::COUNT) * (SUMS * L::COUNT);
    let whole = size / L::COUNT * L::COUNT;
    // SAFETY: the caller's promise.
    unsafe {
        for start in (0..wide).step_by(SUMS * L::COUNT) {
            add_weighted_from::<L, SUMS>(start, weights, values, ahead, sums);
        }
        for start in (wide..whole).step_by(L::COUNT) {
            add_weighted_from::<L, 1>(start, weights, values, ahead, sums);
        }
    }
    for place in whole..size {
        for (weight, value) in weights.iter().zip(values.chunks_exact(size)) {
            sums[place] = weight.mul_add(value[place], sums[place]);
        }
    }
}

/// [`add_weighted`] for the numbers from `start` on that fit into `WIDTH` registers.
///
/// # Safety
/// The processor has the instructions of `L`, and there are that many numbers.
#[inline(always)]
unsafe fn add_weighted_from<L: Lanes, const WIDTH: usize>(
    start: usize,
    weights: &[f32],
    values: &[f32],
    ahead: isize,
    sums: &mut [f32],
) {
    let size = sums.len();
    let place = sums[start..start + WIDTH * L::COUNT].as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        let mut registers = [L::splat(0.0); WIDTH];
        for index in 0..WIDTH {
            registers[index] = L::load(place.add(index * L::COUNT));
        }
        for (&weight, value) in weights.iter().zip(values.chunks_exact(size)) {
            let (weight, value) = (L::splat(weight), value.as_ptr().add(start));
            for index in 0..WIDTH {
                if ahead != 0 {
                    prefetch(value.wrapping_offset(ahead + (index * L::COUNT) as isize));
                }
                registers[index] =
                    L::load(value.add(index * L::COUNT)).multiply_add(weight, registers[index]);
            }
        }
        for index in 0..WIDTH {
            registers[index].store(place.add(index * L::COUNT));
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::kernels::on_each_set;

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
    }

    /// Attention over the visible tokens alone, in double precision.
    fn reference(
        q: &Tensor,
        cached: Cached<'_>,
        visible: &[Visible<'_>],
        scale: f64,
        slopes: &[f32],
    ) -> Tensor {
        let group = q.size()[1] / cached.keys.size()[1];
        let row = |(row, visible): (usize, &Visible<'_>)| {
            let of = |tensor: &Tensor| {
                let pages: Vec<Tensor> =
                    visible.pages.iter().map(|&page| tensor.get(i64::from(page))).collect();
                let (start, length) = (visible.tokens.start as i64, visible.tokens.len() as i64);
                let tokens = Tensor::cat(&pages, 1).narrow(1, start, length).to_kind(Kind::Double);
                tokens.repeat_interleave_self_int(group, 0, None)
            };
            let q = q.select(0, row as i64).unsqueeze(1).to_kind(Kind::Double);
            let mut scores = q.matmul(&of(cached.keys).transpose(1, 2)) * scale;
            if !slopes.is_empty() {
                let distance =
                    Tensor::arange(scores.size()[2], (Kind::Double, Device::Cpu)) - scores.size()[2] + 1;
                scores += Tensor::from_slice(slopes).view([-1, 1, 1]) * distance;
            }
            scores.softmax(-1, Kind::Double).matmul(&of(cached.values)).view([-1])
        };
        Tensor::stack(&visible.iter().enumerate().map(row).collect::<Vec<_>>(), 0)
    }

    #[test]
    fn each_row_attends_to_its_own_tokens() {
        tch::manual_seed(4);
        let tables: [&[u32]; 5] = [&[3], &[0, 2, 9], &[2, 1], &[4, 8, 7, 5], &[5, 4, 7, 8]];
        let ranges = [0..1, 3..40, 0..17, 0..64, 5..64];
        let visible: Vec<Visible<'_>> =
            tables.into_iter().zip(ranges).map(|(pages, tokens)| Visible { pages, tokens }).collect();
        for (kind, most) in [(Kind::Float, 3e-6), (Kind::BFloat16, 8e-3)] {
            for (heads, kv_heads, size) in
                [(1, 1, 1), (4, 2, 8), (6, 2, 40), (8, 8, 64), (4, 1, 80), (2, 2, 256)]
            {
                let q = random(&[5, heads, size], kind);
                let (keys, values) =
                    (random(&[10, kv_heads, 16, size], kind), random(&[10, kv_heads, 16, size], kind));
                // What is not visible is not read, whatever it is.
                for tensor in [&keys, &values] {
                    let _ = tensor.get(3).narrow(1, 1, 15).fill_(f64::NAN);
                    let _ = tensor.get(6).fill_(f64::NAN);
                }
                let cached = Cached { keys: &keys, values: &values };
                let scale = 1.0 / (size as f64).sqrt();
                let slopes: Vec<f32> = (0..heads).map(|head| 0.3 / (head + 1) as f32).collect();
                for slopes in [&[], slopes.as_slice()] {
                    let Some(found) = decode(&q, cached, &visible, scale, slopes) else { return };
                    let wanted = reference(&q, cached, &visible, scale, slopes);
                    let error = (found.to_kind(Kind::Double) - &wanted).abs() / wanted.abs().clamp_min(1.0);
                    let worst = error.max().double_value(&[]);
                    assert!(worst < most, "{kind:?}, {heads} heads, {kv_heads} of keys, of {size}: {worst}");
                }
            }
        }
    }

    #[test]
    fn threads_pages_and_other_rows_change_no_bit() {
        tch::manual_seed(5);
        let shape = [60, 2, 16, 48];
        let (q, keys, values) =
            (random(&[6, 4, 48], Kind::Float), random(&shape, Kind::Float), random(&shape, Kind::Float));
        let cached = Cached { keys: &keys, values: &values };
        let ranges = [0..300, 0..1, 200..300, 0..150, 7..8, 0..299];
        let tables: Vec<Vec<u32>> = (0..6).map(|row| (0..19).map(|page| row * 7 + page).collect()).collect();
        let visible: Vec<Visible<'_>> =
            tables.iter().zip(ranges).map(|(pages, tokens)| Visible { pages, tokens }).collect();
        let Some(together) = decode(&q, cached, &visible, 0.2, &[]) else { return };
        let before = tch::get_num_threads();
        for threads in [1, 2, 3, 5] {
            tch::set_num_threads(threads);
            assert_eq!(decode(&q, cached, &visible, 0.2, &[]).unwrap(), together, "{threads} threads");
            let alone = decode(&q.narrow(0, 0, 1), cached, &visible[..1], 0.2, &[]).unwrap();
            assert_eq!(alone, together.narrow(0, 0, 1));
        }
        tch::set_num_threads(before);

        // The same tokens in pages of another size.
        let [wide_keys, wide_values] = [&keys, &values].map(|tensor| {
            let pages = tensor.view([15, 4, 2, 16, 48]).transpose(1, 2).contiguous();
            pages.view([15, 2, 64, 48])
        });
        let wide = Cached { keys: &wide_keys, values: &wide_values };
        let visible = [Visible { pages: &[0, 1, 2, 3, 4], tokens: 0..300 }];
        let first = q.narrow(0, 0, 1);
        assert_eq!(decode(&first, wide, &visible, 0.2, &[]).unwrap(), together.narrow(0, 0, 1));
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        tch::manual_seed(6);
        for kind in [Kind::Float, Kind::BFloat16] {
            let q = random(&[2, 2, 70], kind);
            let (keys, values) = (random(&[4, 1, 16, 70], kind), random(&[4, 1, 16, 70], kind));
            let visible =
                [Visible { pages: &[3, 0, 2, 1], tokens: 0..50 }, Visible { pages: &[1, 2], tokens: 3..22 }];
            let sizes = Sizes { kv_heads: 1, group: 2, page_size: 16, size: 70 };
            let context = Context { visible: &visible, scale: 0.3, slopes: &[0.1, 0.2], sizes };
            let found = on_each_set(|set| {
                let output = Tensor::zeros([2, 140], (kind, Device::Cpu));
                match kind {
                    Kind::Float => run_on::<f32>(set, &context, [&q, &keys, &values, &output]),
                    _ => run_on::<Bfloat16>(set, &context, [&q, &keys, &values, &output]),
                }
                output
            });
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    fn run_on<T: Number>(set: InstructionSet, context: &Context<'_>, tensors: [&Tensor; 4]) {
        let [q, keys, values, output] = tensors;
        let attention = Attention::<T> {
            context,
            q: numbers(q),
            keys: numbers(keys),
            values: numbers(values),
            output: Writable::of(output),
        };
        lanes::run(set, Heads { attention: &attention, heads: 0..2 });
    }
}
