//! The product of a few rows with a matrix, as in decoding.
//!
//! A library of matrix products copies its operands into another layout first, which pays off with many rows.
//! With few, the time is that of reading the matrix, so this kernel reads it as it lies, once, and from the
//! start to the end.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::lanes::{self, Lanes, LanesLoop, dot_products};
use super::{Writable, common_kind, numbers};
use crate::instruction_set::InstructionSet;
use crate::{openmp, operations};

/// The multiplications for which another thread is worth its start. One that waits beside begins within a
/// microsecond or two, the time of some 100,000 of them.
const PRODUCTS_PER_SHARE: usize = 1 << 17;
/// The bytes of the matrix, or of the outputs of a transposed one, that stay in the cache of a core while all
/// rows of `x` pass. A second-level cache has at least 256 KiB, and the other operands need a part of it.
const BLOCK_BYTES: usize = 64 << 10;
/// How many numbers of the matrix are fetched ahead: 16 KiB. Memory gives some 4 KiB in the time that a
/// request takes (35 GB/s, 100 ns), and every second-level cache has room for several times as much.
const FETCHED_AHEAD: isize = 4096;

/// Computes `x W^T` `[N, out]` from a few rows `x` `[N, in]` and the matrix `weight` `[out, in]`, fp32. The
/// matrix or its transpose is contiguous. The bits of a row do not depend on the other rows.
pub fn forward(x: &Tensor, weight: &Tensor) -> Option<Tensor> {
    let ([rows, inputs], [outputs, width]): ([i64; 2], [i64; 2]) =
        (x.size().try_into().ok()?, weight.size().try_into().ok()?);
    assert_eq!(inputs, width, "the matrix has as many columns as `x`");
    let is_transposed = !weight.is_contiguous();
    let weight = if is_transposed { weight.tr() } else { weight.shallow_clone() };
    let is_fp32 = common_kind(&[x, &weight])? == Kind::Float;
    if !is_fp32 || !weight.is_contiguous() || rows > most_rows(is_transposed) {
        return None;
    }
    operations::record("linear");
    let x = x.contiguous();
    let output = Tensor::empty([rows, outputs], (Kind::Float, x.device()));
    let [rows, inputs, outputs] = [rows, inputs, outputs].map(|size| size as usize);
    let (x, weight) = (numbers::<f32>(&x), numbers::<f32>(&weight));
    let shared = Writable::<f32>::of(&output);
    let columns_per_share = PRODUCTS_PER_SHARE.div_ceil((rows * inputs).max(1));
    openmp::share(outputs, columns_per_share, &|columns: Range<usize>| {
        let product = Product { x, rows, inputs, weight, is_transposed, columns, output: &shared, outputs };
        lanes::run(InstructionSet::best(), product);
    });
    Some(output)
}

/// The most rows of `x` with which the kernel is at least as fast as MKL, which copies its operands into
/// another layout first. With the registers of AVX2 it reads its operands more often; of a transposed matrix
/// it would also read and write each output too often.
///
/// Tried on an AMD EPYC (Zen 4) alone, with both instruction sets: with AVX-512 it is faster up to 1024 rows
/// of 512 inputs, and up to 128 of 8192. More rows on another processor cost time, and no result is wrong.
pub(super) fn most_rows(is_transposed: bool) -> i64 {
    match InstructionSet::best() {
        InstructionSet::Build => 0,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 if is_transposed => 0,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => 32,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => 128,
    }
}

/// Some columns of a product.
struct Product<'a> {
    x: &'a [f32],
    rows: usize,
    inputs: usize,
    /// `[outputs, inputs]`, or `[inputs, outputs]` if it is transposed.
    weight: &'a [f32],
    is_transposed: bool,
    columns: Range<usize>,
    output: &'a Writable<f32>,
    outputs: usize,
}

impl LanesLoop for Product<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self) {
        let block_row = if self.is_transposed { self.rows } else { self.inputs };
        let block = (BLOCK_BYTES / (4 * block_row.max(1))).max(1);
        let block = block.next_multiple_of(if self.is_transposed { L::COUNT } else { COLUMNS });
        for start in self.columns.clone().step_by(block) {
            let columns = start..(start + block).min(self.columns.end);
            // SAFETY: the caller's promise.
            unsafe {
                if self.is_transposed {
                    self.transposed_block::<L, VALUES>(&columns);
                } else {
                    self.block::<L, ROWS, COLUMNS>(&columns);
                }
            }
        }
    }
}

impl Product<'_> {
    /// Computes some columns. Their part of the matrix stays in the cache while all rows of `x` pass.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn block<L: Lanes, const ROWS: usize, const COLUMNS: usize>(&self, columns: &Range<usize>) {
        for row in (0..self.rows).step_by(ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                match (self.rows - row).min(ROWS) {
                    1 => self.pass::<L, 1, COLUMNS>(row, columns),
                    2 => self.pass::<L, 2, COLUMNS>(row, columns),
                    3 => self.pass::<L, 3, COLUMNS>(row, columns),
                    _ => self.pass::<L, ROWS, COLUMNS>(row, columns),
                }
            }
        }
    }

    /// Computes some columns of `ROWS` rows from `row` on.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn pass<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
        &self,
        row: usize,
        columns: &Range<usize>,
    ) {
        let whole = columns.start + columns.len() / COLUMNS * COLUMNS;
        // SAFETY: the caller's promise.
        unsafe {
            for column in (columns.start..whole).step_by(COLUMNS) {
                self.tile::<L, ROWS, COLUMNS>(row, column);
            }
            for column in whole..columns.end {
                self.tile::<L, ROWS, 1>(row, column);
            }
        }
    }

    /// Computes `COLUMNS` outputs of `ROWS` rows.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const ROWS: usize, const COLUMNS: usize>(&self, row: usize, column: usize) {
        let inputs = self.inputs;
        let x = &self.x[row * inputs..(row + ROWS) * inputs];
        let weight = &self.weight[column * inputs..(column + COLUMNS) * inputs];
        // The first rows bring the matrix into the cache, and the others find it there.
        let ahead = if row == 0 { FETCHED_AHEAD } else { 0 };
        // SAFETY: the caller's promise.
        let sums = unsafe { dot_products::<L, ROWS, COLUMNS>(x, weight, inputs, ahead) };
        for (row, sums) in (row..).zip(sums) {
            let start = row * self.outputs + column;
            // SAFETY: no other thread has these columns.
            unsafe { self.output.range(start..start + COLUMNS) }.copy_from_slice(&sums);
        }
    }

    /// Computes some columns with a transposed matrix.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn transposed_block<L: Lanes, const VALUES: usize>(&self, columns: &Range<usize>) {
        let whole = self.inputs / VALUES * VALUES;
        // SAFETY: the caller's promise.
        unsafe {
            for input in (0..whole).step_by(VALUES) {
                self.add_inputs::<L, VALUES>(input, columns);
            }
            for input in whole..self.inputs {
                self.add_inputs::<L, 1>(input, columns);
            }
        }
    }

    /// Adds the products with `INPUTS` rows of a transposed matrix, which stay in registers while all rows of
    /// `x` pass. The first ones are not added to what the memory held before.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn add_inputs<L: Lanes, const INPUTS: usize>(&self, input: usize, columns: &Range<usize>) {
        let weight_row = |index: usize| &self.weight[(input + index) * self.outputs..][..self.outputs];
        let whole = columns.start + columns.len() / L::COUNT * L::COUNT;
        // SAFETY: the caller's promise; what is read and written lies within the rows, and no other thread
        // has these columns.
        unsafe {
            for column in (columns.start..whole).step_by(L::COUNT) {
                let mut weights = [L::splat(0.0); INPUTS];
                for index in 0..INPUTS {
                    weights[index] = L::load(weight_row(index)[column..whole].as_ptr());
                }
                for row in 0..self.rows {
                    let x = &self.x[row * self.inputs + input..][..INPUTS];
                    let start = row * self.outputs + column;
                    let output = self.output.range(start..start + L::COUNT).as_mut_ptr();
                    let mut sum = if input == 0 { L::splat(0.0) } else { L::load(output) };
                    for index in 0..INPUTS {
                        sum = L::splat(x[index]).multiply_add(weights[index], sum);
                    }
                    sum.store(output);
                }
            }
            for column in whole..columns.end {
                for row in 0..self.rows {
                    let x = &self.x[row * self.inputs + input..][..INPUTS];
                    let start = row * self.outputs + column;
                    let [output] = self.output.range(start..start + 1) else { unreachable!("one number") };
                    let mut sum = if input == 0 { 0.0 } else { *output };
                    for index in 0..INPUTS {
                        sum = x[index].mul_add(weight_row(index)[column], sum);
                    }
                    *output = sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::kernels::on_each_set;

    fn random(shape: [i64; 2]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    /// The matrix in both layouts.
    fn layouts(weight: &Tensor) -> [Tensor; 2] {
        [weight.shallow_clone(), weight.tr().contiguous().tr()]
    }

    #[test]
    fn the_product_is_that_of_double_precision() {
        tch::manual_seed(1);
        let sizes = [(1, 1, 1), (2, 15, 3), (3, 16, 5), (5, 33, 7), (9, 512, 130), (64, 70, 11)];
        for (rows, inputs, outputs) in sizes {
            let (x, weight) = (random([rows, inputs]), random([outputs, inputs]));
            let wanted = x.to_kind(Kind::Double).matmul(&weight.to_kind(Kind::Double).tr());
            for weight in layouts(&weight) {
                let Some(found) = forward(&x, &weight) else { return };
                let worst = (found.to_kind(Kind::Double) - &wanted).abs().max().double_value(&[]);
                let bound = 4.0 * f64::from(f32::EPSILON) * (inputs as f64);
                assert!(worst < bound, "{rows} x {inputs} x {outputs}: {worst}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_with_others_and_on_several_threads() {
        tch::manual_seed(2);
        let x = random([13, 500]);
        for weight in layouts(&random([1001, 500])) {
            let Some(together) = forward(&x, &weight) else { return };
            let before = tch::get_num_threads();
            for threads in [1, 2, 3] {
                tch::set_num_threads(threads);
                for row in 0..13 {
                    let alone = forward(&x.narrow(0, row, 1), &weight).unwrap();
                    assert_eq!(alone, together.narrow(0, row, 1), "row {row}, {threads} threads");
                }
            }
            tch::set_num_threads(before);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        tch::manual_seed(3);
        let (x, weight) = (random([5, 83]), random([29, 83]));
        for (is_transposed, weight) in [(false, weight.shallow_clone()), (true, weight.tr().contiguous())] {
            let found = on_each_set(|set| {
                let output = Tensor::full([5, 29], f64::NAN, (Kind::Float, Device::Cpu));
                let product = Product {
                    x: numbers(&x),
                    rows: 5,
                    inputs: 83,
                    weight: numbers(&weight),
                    is_transposed,
                    columns: 0..29,
                    output: &Writable::of(&output),
                    outputs: 29,
                };
                lanes::run(set, product);
                output
            });
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn other_kinds_and_layouts_are_left_to_others() {
        let x = Tensor::ones([2, 4], (Kind::Double, Device::Cpu));
        assert!(forward(&x, &x).is_none());
        let x = Tensor::ones([2, 8], (Kind::Float, Device::Cpu));
        assert!(forward(&x.narrow(1, 0, 4), &x.narrow(1, 0, 4)).is_none());
    }
}
