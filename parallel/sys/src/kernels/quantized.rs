//! Matrices whose numbers are codes of four or eight bits: the matrix that the codes stand for, and its
//! product with a few rows.
//!
//! ```text
//!   four bits:   w = book[code] scale
//!                scale: fp32, or scale_book[scale code] nested scale + offset
//!   eight bits:  w = code scale[row] unit
//! ```
//! The product makes a few rows of the matrix at a time, which stay in the cache of a core. It has the bits
//! of [`linear`] with the whole matrix.
//!
//! A matrix may be a part of a larger one, whose blocks of numbers share scales: a row of the part is then a
//! piece of a row of the whole.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::lanes::{self, Lanes, LanesLoop, dot_products};
use super::{LANES, Number, Writable, linear, numbers, rounded};
use crate::bfloat16::Bfloat16;
use crate::instruction_set::InstructionSet;
use crate::{openmp, operations};

/// The multiplications for which another thread is worth its start, as in [`linear`].
const PRODUCTS_PER_SHARE: usize = 1 << 17;
/// The numbers that share a scale in a matrix of four bits.
pub const BLOCK: usize = 64;
/// The scales that share a nested scale.
pub const NESTED_BLOCK: usize = 256;

/// The codes of a matrix `[rows, columns]`, on the host.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// The number of columns.
    pub columns: usize,
    /// The rows that are meant, of those that there are codes for.
    pub rows: &'a Range<usize>,
    /// How the numbers are held.
    pub kind: CodeKind<'a>,
}

/// How the numbers of a matrix are held.
#[derive(Clone, Copy, Debug)]
pub enum CodeKind<'a> {
    /// Four bits a number.
    Four {
        /// Two codes in each byte, the first in the upper half, row after row.
        codes: &'a [u8],
        /// The scales of all blocks of 64 numbers of the whole matrix.
        scales: BlockScales<'a>,
        /// The number in the whole matrix of the first element of each row.
        row_starts: &'a [u64],
        /// What codes stand for.
        book: &'a [f32; 16],
    },
    /// Eight bits a number.
    Eight {
        /// The codes as `i8`, row after row.
        codes: &'a [u8],
        /// One for each row.
        scales: &'a [f32],
        /// What a code is multiplied by, beside the scale.
        unit: f32,
    },
}

/// How the scales of blocks are held.
#[derive(Clone, Copy, Debug)]
pub enum BlockScales<'a> {
    /// One for each block.
    Numbers(&'a [f32]),
    /// Eight bits a scale.
    Codes {
        /// One for each block.
        codes: &'a [u8],
        /// One for each 256 scales.
        nested: &'a [f32],
        /// What is added to a scale.
        offset: f32,
        /// What codes stand for.
        book: &'a [f32; 256],
    },
}

/// The first `count` numbers in fp32 of a tensor of bytes, and the bytes behind them.
///
/// # Panics
/// If the tensor is not contiguous, not on the host, too short, or begins at an address that no number has.
pub fn numbers_and_bytes(tensor: &Tensor, count: usize) -> (&[f32], &[u8]) {
    assert!(tensor.is_contiguous() && tensor.device() == Device::Cpu, "codes lie in a row on the host");
    assert_eq!(tensor.kind(), Kind::Uint8, "codes are bytes");
    assert!(tensor.numel() >= count * size_of::<f32>(), "the numbers are there");
    if tensor.numel() == 0 {
        return (&[], &[]);
    }
    // SAFETY: the tensor has so many bytes in a row.
    let bytes = unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), tensor.numel()) };
    let (numbers, bytes) = bytes.split_at(count * size_of::<f32>());
    // SAFETY: any bits are a number.
    let (before, numbers, after) = unsafe { numbers.align_to::<f32>() };
    assert!(before.is_empty() && after.is_empty(), "the numbers are aligned");
    (numbers, bytes)
}

/// The matrix `[rows, columns]` that codes stand for, in fp32 or bfloat16. The numbers are computed in fp32.
///
/// # Panics
/// If another kind is asked for, or the codes and scales do not fit each other.
pub fn dequantize(codes: &Codes<'_>, kind: Kind) -> Tensor {
    let matrix = Matrix::of(codes);
    let output = Tensor::empty([codes.rows.len() as i64, codes.columns as i64], (kind, Device::Cpu));
    match kind {
        Kind::Float => fill::<f32>(&matrix, &output),
        Kind::BFloat16 => fill::<Bfloat16>(&matrix, &output),
        _ => panic!("weights are fp32 or bfloat16, not {kind:?}"),
    }
    output
}

fn fill<T: Number>(matrix: &Matrix<'_>, output: &Tensor) {
    let (output, columns) = (Writable::<T>::of(output), matrix.columns);
    let rows_per_share = (PRODUCTS_PER_SHARE / 4).div_ceil(columns.max(1));
    openmp::share(matrix.rows.len(), rows_per_share, &|rows: Range<usize>| {
        let rows_loop = Dequantization { matrix, rows, output: &output };
        if lanes::are_available() {
            lanes::run(InstructionSet::best(), rows_loop);
        } else {
            rows_loop.run_plainly();
        }
    });
}

/// Computes `x W^T` `[N, rows]` from a few rows `x` `[N, columns]`, in the kind of `x`, which is fp32 or
/// bfloat16. The numbers of the matrix are those of [`dequantize`] in that kind, so a reply that is decoded
/// has the weights of the trainer; the sums are fp32. `None` where the whole matrix is made: for as many
/// rows as [`linear::forward`] leaves to MKL. The bits of a row do not depend on the other rows.
pub fn product(x: &Tensor, codes: &Codes<'_>) -> Option<Tensor> {
    let [rows, inputs]: [i64; 2] = x.size().try_into().ok()?;
    assert_eq!(inputs as usize, codes.columns, "the matrix has as many columns as `x`");
    let is_known = matches!(x.kind(), Kind::Float | Kind::BFloat16) && x.device() == Device::Cpu;
    if !is_known || rows == 0 || rows > linear::most_rows(false) {
        return None;
    }
    operations::record("quantized");
    let (matrix, outputs) = (Matrix::of(codes), codes.rows.len());
    let wide = x.to_kind(Kind::Float).contiguous();
    let output = Tensor::empty([rows, outputs as i64], (Kind::Float, Device::Cpu));
    let shared = Writable::<f32>::of(&output);
    let (rows, x_numbers, is_narrow) = (rows as usize, numbers::<f32>(&wide), x.kind() == Kind::BFloat16);
    let columns_per_share = PRODUCTS_PER_SHARE.div_ceil((rows * codes.columns).max(1));
    openmp::share(outputs, columns_per_share, &|columns: Range<usize>| {
        let (x, output) = (x_numbers, &shared);
        let product = Product { x, rows, matrix: &matrix, columns, output, outputs, is_narrow };
        lanes::run(InstructionSet::best(), product);
    });
    Some(output.to_kind(x.kind()))
}

/// [`Codes`] that fit each other.
struct Matrix<'a> {
    columns: usize,
    rows: Range<usize>,
    numbers: Numbers<'a>,
}

enum Numbers<'a> {
    Four(Four<'a>),
    Eight { codes: &'a [u8], scales: &'a [f32], unit: f32 },
}

struct Four<'a> {
    codes: &'a [u8],
    scales: BlockScales<'a>,
    row_starts: &'a [u64],
    book: &'a [f32; 16],
}

impl BlockScales<'_> {
    /// Whether there are scales of `blocks` blocks.
    fn has(&self, blocks: usize) -> bool {
        match self {
            Self::Numbers(scales) => blocks <= scales.len(),
            Self::Codes { codes, nested, .. } => {
                blocks <= codes.len() && blocks.div_ceil(NESTED_BLOCK) <= nested.len()
            }
        }
    }

    #[inline(always)]
    fn scale(&self, block: usize) -> f32 {
        match self {
            Self::Numbers(scales) => scales[block],
            Self::Codes { codes, nested, offset, book } => {
                book[usize::from(codes[block])] * nested[block / NESTED_BLOCK] + offset
            }
        }
    }
}

impl<'a> Matrix<'a> {
    fn of(codes: &Codes<'a>) -> Self {
        let (columns, rows) = (codes.columns, codes.rows.clone());
        let numel = rows.end * columns;
        let numbers = match codes.kind {
            CodeKind::Four { codes, scales, row_starts, book } => {
                let last = row_starts[..rows.end].iter().map(|start| *start as usize + columns).max();
                assert!(codes.len() >= numel.div_ceil(2), "every number has a code");
                assert!(scales.has(last.unwrap_or(0).div_ceil(BLOCK)), "every block has a scale");
                Numbers::Four(Four { codes, scales, row_starts, book })
            }
            CodeKind::Eight { codes, scales, unit } => {
                assert!(
                    codes.len() >= numel && scales.len() >= rows.end,
                    "every number has a code and a scale"
                );
                Numbers::Eight { codes, scales, unit }
            }
        };
        Self { columns, rows, numbers }
    }

    /// Writes the numbers of row `row` of the rows that are meant.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn write_row<L: Lanes>(&self, row: usize, output: &mut [f32]) {
        let row = self.rows.start + row;
        let first = row * self.columns;
        match &self.numbers {
            // SAFETY: the caller's promise.
            Numbers::Four(four) => unsafe { four.write_row::<L>(row, first, output) },
            Numbers::Eight { codes, scales, unit } => {
                let codes = &codes[first..first + output.len()];
                let whole = output.len() / LANES * LANES;
                for (codes, numbers) in codes[..whole].chunks(LANES).zip(output[..whole].chunks_mut(LANES)) {
                    // SAFETY: the caller's promise, and each chunk has as many numbers as lanes.
                    unsafe {
                        let numbers_of = L::load_whole(codes.as_ptr().cast()).multiply(L::splat(scales[row]));
                        numbers_of.multiply(L::splat(*unit)).store(numbers.as_mut_ptr());
                    }
                }
                for (code, number) in codes[whole..].iter().zip(&mut output[whole..]) {
                    *number = f32::from(code.cast_signed()) * scales[row] * unit;
                }
            }
        }
    }

    /// [`write_row`](Self::write_row) with the instructions of the build.
    fn write_row_plainly(&self, row: usize, output: &mut [f32]) {
        let row = self.rows.start + row;
        let first = row * self.columns;
        for (column, number) in output.iter_mut().enumerate() {
            *number = match &self.numbers {
                Numbers::Four(four) => {
                    let block = (four.row_starts[row] as usize + column) / BLOCK;
                    four.number(first + column, four.scales.scale(block))
                }
                Numbers::Eight { codes, scales, unit } => {
                    f32::from(codes[first + column].cast_signed()) * scales[row] * unit
                }
            };
        }
    }
}

impl Four<'_> {
    #[inline(always)]
    fn number(&self, index: usize, scale: f32) -> f32 {
        let pair = self.codes[index / 2];
        self.book[usize::from(if index.is_multiple_of(2) { pair >> 4 } else { pair & 15 })] * scale
    }

    /// Writes the numbers of a row whose first code is code `first`.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn write_row<L: Lanes>(&self, row: usize, first: usize, output: &mut [f32]) {
        let start = self.row_starts[row] as usize;
        let mut done = 0;
        while done < output.len() {
            let block = (start + done) / BLOCK;
            let end = ((block + 1) * BLOCK - start).min(output.len());
            // SAFETY: the caller's promise.
            unsafe { self.write_run::<L>(first + done, self.scales.scale(block), &mut output[done..end]) };
            done = end;
        }
    }

    /// Writes numbers with one scale, from code `at` on.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn write_run<L: Lanes>(&self, at: usize, scale: f32, output: &mut [f32]) {
        // Lanes begin with the first code of a byte.
        let whole = if at.is_multiple_of(2) { output.len() / LANES * LANES } else { 0 };
        let pairs = &self.codes[at / 2..][..whole / 2];
        for (pairs, numbers) in pairs.chunks(LANES / 2).zip(output.chunks_mut(LANES)) {
            // SAFETY: the caller's promise, and each chunk has a byte for two lanes and a number for each
            // lane.
            unsafe {
                L::look_up(self.book, pairs.as_ptr()).multiply(L::splat(scale)).store(numbers.as_mut_ptr());
            }
        }
        for (index, number) in output.iter_mut().enumerate().skip(whole) {
            *number = self.number(at + index, scale);
        }
    }
}

/// Some rows of a matrix, written out as numbers.
struct Dequantization<'a, T> {
    matrix: &'a Matrix<'a>,
    rows: Range<usize>,
    output: &'a Writable<T>,
}

impl<T: Number> Dequantization<'_, T> {
    fn run_plainly(self) {
        let columns = self.matrix.columns;
        let mut wide = vec![0.0; columns];
        for row in self.rows.clone() {
            self.matrix.write_row_plainly(row, &mut wide);
            // SAFETY: no other thread has this row.
            let output = unsafe { self.output.range(row * columns..(row + 1) * columns) };
            output.iter_mut().zip(&wide).for_each(|(number, wide)| *number = T::narrow(*wide));
        }
    }
}

impl<T: Number> LanesLoop for Dequantization<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self) {
        let columns = self.matrix.columns;
        let mut wide = vec![0.0; columns];
        for row in self.rows.clone() {
            // SAFETY: the caller's promise, and no other thread has this row.
            let output = unsafe {
                self.matrix.write_row::<L>(row, &mut wide);
                self.output.range(row * columns..(row + 1) * columns)
            };
            output.iter_mut().zip(&wide).for_each(|(number, wide)| *number = T::narrow(*wide));
        }
    }
}

/// Some columns of a product.
struct Product<'a> {
    x: &'a [f32],
    rows: usize,
    matrix: &'a Matrix<'a>,
    columns: Range<usize>,
    output: &'a Writable<f32>,
    outputs: usize,
    /// Whether the numbers of the matrix are rounded to bfloat16, as those of a whole matrix are.
    is_narrow: bool,
}

impl LanesLoop for Product<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize, const VALUES: usize>(self) {
        let inputs = self.matrix.columns;
        let mut weights = vec![0.0; COLUMNS * inputs];
        for column in self.columns.clone().step_by(COLUMNS) {
            let count = (self.columns.end - column).min(COLUMNS);
            for (column, weights) in (column..column + count).zip(weights.chunks_mut(inputs.max(1))) {
                // SAFETY: the caller's promise.
                unsafe { self.matrix.write_row::<L>(column, weights) };
                if self.is_narrow {
                    for number in weights.iter_mut() {
                        *number = rounded::<Bfloat16>(*number);
                    }
                }
            }
            for row in (0..self.rows).step_by(ROWS) {
                let weights = &weights[..count * inputs];
                // SAFETY: the caller's promise.
                unsafe {
                    match (count == COLUMNS, (self.rows - row).min(ROWS)) {
                        (true, 1) => self.tile::<L, 1, COLUMNS>(row, column, weights),
                        (true, 2) => self.tile::<L, 2, COLUMNS>(row, column, weights),
                        (true, 3) => self.tile::<L, 3, COLUMNS>(row, column, weights),
                        (true, _) => self.tile::<L, ROWS, COLUMNS>(row, column, weights),
                        (false, rows) => {
                            for (row, index) in
                                (row..row + rows).flat_map(|row| (0..count).map(move |i| (row, i)))
                            {
                                let weights = &weights[index * inputs..(index + 1) * inputs];
                                self.tile::<L, 1, 1>(row, column + index, weights);
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Product<'_> {
    /// Computes `COLUMNS` outputs of `ROWS` rows.
    ///
    /// # Safety
    /// The processor has the instructions of `L`.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
        &self,
        row: usize,
        column: usize,
        weights: &[f32],
    ) {
        let inputs = self.matrix.columns;
        let x = &self.x[row * inputs..(row + ROWS) * inputs];
        // SAFETY: the caller's promise.
        let sums = unsafe { dot_products::<L, ROWS, COLUMNS>(x, weights, inputs, 0) };
        for (row, sums) in (row..).zip(sums) {
            let start = row * self.outputs + column;
            // SAFETY: no other thread has these columns.
            unsafe { self.output.range(start..start + COLUMNS) }.copy_from_slice(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;
    use crate::kernels::on_each_set;

    const BOOK: [f32; 16] = {
        let (mut book, mut index) = ([0.0; 16], 0);
        while index < 16 {
            // -1, -0.87, ..: with a zero of each sign.
            book[index] = (index as f32 - 7.5) * 0.13;
            index += 1;
        }
        book[7] = -0.0;
        book[8] = 0.0;
        book
    };

    /// A part of a matrix.
    struct Held {
        codes: Vec<u8>,
        scales: Vec<u8>,
        nested: Vec<f32>,
        row_starts: Vec<u64>,
        scale_book: Vec<f32>,
        columns: usize,
    }

    impl Held {
        /// All rows, and the columns from `first` on, of a matrix with `width` columns.
        fn four(rows: usize, columns: usize, first: usize, width: usize) -> Self {
            let blocks = (rows * width).div_ceil(BLOCK);
            Self {
                codes: random_bytes((rows * columns).div_ceil(2)),
                scales: random_bytes(blocks),
                nested: random_numbers(blocks.div_ceil(NESTED_BLOCK)),
                row_starts: (0..rows).map(|row| (row * width + first) as u64).collect(),
                scale_book: (0..256).map(|index| (index as f32 - 100.0) / 200.0).collect(),
                columns,
            }
        }

        fn codes<'a>(&'a self, rows: &'a Range<usize>) -> Codes<'a> {
            let scales = BlockScales::Codes {
                codes: &self.scales,
                nested: &self.nested,
                offset: 0.75,
                book: self.scale_book.as_slice().try_into().unwrap(),
            };
            self.with_scales(rows, scales)
        }

        fn with_scales<'a>(&'a self, rows: &'a Range<usize>, scales: BlockScales<'a>) -> Codes<'a> {
            let row_starts = self.row_starts.as_slice();
            let kind = CodeKind::Four { codes: &self.codes, scales, row_starts, book: &BOOK };
            Codes { columns: self.columns, rows, kind }
        }

        /// What the codes of the scales stand for.
        fn scales(&self) -> Vec<f32> {
            let scale = |(block, code): (usize, &u8)| {
                self.scale_book[usize::from(*code)] * self.nested[block / 256] + 0.75
            };
            self.scales.iter().enumerate().map(scale).collect()
        }

        /// The numbers, one at a time and from the formula alone.
        fn numbers(&self, rows: &Range<usize>) -> Tensor {
            let scales = self.scales();
            let number = |row: usize, column: usize| {
                let (place, global) = (row * self.columns + column, self.row_starts[row] as usize + column);
                let code = self.codes[place / 2] >> (4 * (1 - place % 2)) & 15;
                BOOK[usize::from(code)] * scales[global / 64]
            };
            let numbers: Vec<f32> = rows
                .clone()
                .flat_map(|row| (0..self.columns).map(move |column| (row, column)))
                .map(|(row, column)| number(row, column))
                .collect();
            Tensor::from_slice(&numbers).view([rows.len() as i64, self.columns as i64])
        }
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        Vec::<f32>::try_from(tensor.reshape([-1])).unwrap().iter().map(|number| number.to_bits()).collect()
    }

    fn random_bytes(count: usize) -> Vec<u8> {
        Tensor::randint(256, [count as i64], (Kind::Uint8, Device::Cpu)).try_into().unwrap()
    }

    fn random_numbers(count: usize) -> Vec<f32> {
        Tensor::rand([count as i64], (Kind::Float, Device::Cpu)).try_into().unwrap()
    }

    #[test]
    fn numbers_lie_before_bytes() {
        let numbers = [1.5f32, -2.0];
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| number.to_ne_bytes()).chain([7, 8, 9]).collect();
        let tensor = Tensor::from_slice(&bytes);
        assert_eq!(numbers_and_bytes(&tensor, 2), (&numbers[..], &[7, 8, 9][..]));
        assert_eq!(numbers_and_bytes(&tensor, 0), (&[][..], &bytes[..]));
        let is_refused = |tensor: &Tensor, count: usize| {
            let taken = AssertUnwindSafe(|| numbers_and_bytes(tensor, count).0.len());
            std::panic::catch_unwind(taken).is_err()
        };
        assert!(is_refused(&tensor, 3), "eleven bytes are not three numbers");
        assert!(is_refused(&tensor.narrow(0, 1, 8), 1), "a number does not begin at any byte");
    }

    /// Rows of whole blocks, rows that begin within a block or within a byte, parts of rows, and some rows
    /// only.
    #[test]
    fn the_matrix_is_that_of_the_formula() {
        tch::manual_seed(5);
        for (rows, columns, first, width) in [
            (3, 128, 0, 128),
            (5, 51, 0, 51),
            (4, 64, 64, 192),
            (7, 33, 17, 100),
            (2, 1, 0, 1),
            (300, 70, 0, 70),
        ] {
            let held = Held::four(rows, columns, first, width);
            for rows in [0..rows, rows / 2..rows] {
                let wanted = held.numbers(&rows);
                let found = dequantize(&held.codes(&rows), Kind::Float);
                assert_eq!(bits(&found), bits(&wanted), "{rows:?} {columns} {first} {width}");
                let scales = held.scales();
                let with_numbers = held.with_scales(&rows, BlockScales::Numbers(&scales));
                assert_eq!(bits(&dequantize(&with_numbers, Kind::Float)), bits(&wanted), "fp32 scales");
                let rounded = dequantize(&held.codes(&rows), Kind::BFloat16);
                assert_eq!(rounded, wanted.to_kind(Kind::BFloat16));
            }
        }

        let (codes, scales) = (random_bytes(5 * 37), random_numbers(5));
        let rows = 1..5;
        let kind = CodeKind::Eight { codes: &codes, scales: &scales, unit: 0.1 };
        let signed: Vec<f32> = codes.iter().map(|code| f32::from(code.cast_signed())).collect();
        let signed = Tensor::from_slice(&signed).view([5, 37]);
        let wanted = signed * Tensor::from_slice(&scales).unsqueeze(1) * Tensor::from(0.1f32);
        let found = dequantize(&Codes { columns: 37, rows: &rows, kind }, Kind::Float);
        assert_eq!(bits(&found), bits(&wanted.narrow(0, 1, 4)));
    }

    #[test]
    fn the_product_is_that_of_the_matrix() {
        if !lanes::are_available() {
            return;
        }
        tch::manual_seed(6);
        for (outputs, inputs, first, width) in
            [(130, 128, 0, 128), (11, 51, 0, 51), (9, 64, 64, 192), (5, 33, 17, 100)]
        {
            let held = Held::four(outputs, inputs, first, width);
            let (codes, scales) = (random_bytes(outputs * inputs), random_numbers(outputs));
            let all = 0..outputs;
            let eight = CodeKind::Eight { codes: &codes, scales: &scales, unit: 0.01 };
            for codes in [held.codes(&all), Codes { columns: inputs, rows: &all, kind: eight }] {
                let weight = dequantize(&codes, Kind::Float);
                for rows in [1, 2, 3, 7, 13] {
                    let x = Tensor::randn([rows, inputs as i64], (Kind::Float, Device::Cpu));
                    let (found, wanted) =
                        (product(&x, &codes).unwrap(), linear::forward(&x, &weight).unwrap());
                    assert_eq!(bits(&found), bits(&wanted), "{rows} x {inputs} x {outputs}");
                    let narrow = x.to_kind(Kind::BFloat16);
                    let found = product(&narrow, &codes).unwrap();
                    let weight = dequantize(&codes, Kind::BFloat16).to_kind(Kind::Float);
                    let wanted = linear::forward(&narrow.to_kind(Kind::Float), &weight).unwrap();
                    assert_eq!(found, wanted.to_kind(Kind::BFloat16));
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        tch::manual_seed(7);
        let held = Held::four(29, 83, 5, 120);
        let all = 0..29;
        let matrix = Matrix::of(&held.codes(&all));
        let plain = Tensor::zeros([29, 83], (Kind::Float, Device::Cpu));
        Dequantization { matrix: &matrix, rows: 0..29, output: &Writable::<f32>::of(&plain) }.run_plainly();
        let x = Tensor::randn([5, 83], (Kind::Float, Device::Cpu));
        let found = on_each_set(|set| {
            let [rows, output] =
                [[29, 83], [5, 29]].map(|shape| Tensor::zeros(shape, (Kind::Float, Device::Cpu)));
            lanes::run(
                set,
                Dequantization { matrix: &matrix, rows: 0..29, output: &Writable::<f32>::of(&rows) },
            );
            assert_eq!(bits(&rows), bits(&plain), "{set:?}");
            let product = Product {
                x: numbers(&x),
                rows: 5,
                matrix: &matrix,
                columns: 0..29,
                output: &Writable::of(&output),
                outputs: 29,
                is_narrow: false,
            };
            lanes::run(set, product);
            bits(&output)
        });
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
