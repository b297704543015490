//! How a rank holds the codes of one linear layer: as one row of bytes, which is a frozen parameter like any
//! other. A memory manager can move it, and data-parallel ranks can divide it (ZeRO stage 3).
//!
//! ```text
//!   nf4                    offset, book [256], nested scales [n / 16384]    fp32
//!                          scales [n / 64], codes [part / 2]                bytes
//!   nf4, scales in fp32    scales [n / 64]                                  fp32
//!                          codes [part / 2]                                 bytes
//!   int8                   scales [rows of the part]                        fp32
//!                          codes [part]                                     bytes
//! ```
//! The whole matrix of `n` numbers is quantised and then sharded, so the codes do not depend on the number of
//! ranks. A block of NF4 may lie on two ranks, and the scales are an eighth of a bit a number, so every rank
//! holds all scales.

use std::sync::Arc;

use parallel::kernels::quantized::{self, BlockScales, CodeKind};
use parallel::{Placement, ShardSpec};
use tch::Tensor;

use super::codes::{CodeFormat, MatrixCodes};
use super::int8;
use super::nf4::{self, BLOCK};
use super::scales::NESTED_BLOCK;

/// The bytes in which a rank holds its part of the weight `[out, in]` of one linear layer.
#[derive(Clone, Debug)]
pub struct CodesLayout {
    format: CodeFormat,
    /// The shape of the whole matrix.
    shape: [i64; 2],
    /// The numbers in the whole matrix of the first elements of the part's rows.
    row_starts: Arc<[u64]>,
    /// The columns of the part.
    columns: usize,
    /// The bytes of all ranks that share the matrix.
    placement: Placement,
}

impl CodesLayout {
    /// The layout of this rank's part of a matrix `shape` `[out, in]`. `None` if a row of a part consists of
    /// several pieces.
    pub fn new(format: CodeFormat, shape: [i64; 2], placement: &Placement) -> Option<Self> {
        let [rows, columns] = shape;
        let starts = |rows: &mut dyn Iterator<Item = i64>, first: i64| {
            rows.map(|row| (row * columns + first) as u64).collect::<Arc<[u64]>>()
        };
        let Placement::Shard { spec, group } = placement else {
            let (row_starts, columns) = (starts(&mut (0..rows), 0), columns as usize);
            return Some(Self { format, shape, row_starts, columns, placement: Placement::Replicate });
        };

        let ranks = 0..group.size();
        let is_whole = |rank: usize| spec.dim() == 0 || spec.ranges(rank).len() == 1;
        if !ranks.clone().all(is_whole) {
            return None;
        }
        let lengths: Vec<i64> = ranks
            .map(|rank| {
                let mut part = shape;
                part[spec.dim()] = spec.local_len(rank);
                num_bytes(format, shape, part.map(|length| length as usize)) as i64
            })
            .collect();
        let placement =
            Placement::Shard { spec: ShardSpec::of_lengths(0, &lengths), group: Arc::clone(group) };

        let ranges = spec.ranges(group.rank());
        let (row_starts, columns) = match spec.dim() {
            0 => (starts(&mut ranges.iter().cloned().flatten(), 0), columns),
            _ => (starts(&mut (0..rows), ranges[0].start), spec.local_len(group.rank())),
        };
        Some(Self { format, shape, row_starts, columns: columns as usize, placement })
    }

    /// What the codes are.
    pub fn format(&self) -> CodeFormat {
        self.format
    }

    /// The shape `[out, in]` of the whole matrix.
    pub fn shape(&self) -> [i64; 2] {
        self.shape
    }

    /// The outputs and the inputs of this rank's part.
    pub fn part(&self) -> [usize; 2] {
        [self.row_starts.len(), self.columns]
    }

    /// How the bytes of all ranks lie: in a row, one rank after the other.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The bytes of this rank.
    pub fn num_bytes(&self) -> usize {
        num_bytes(self.format, self.shape, self.part())
    }

    /// This rank's bytes of the `codes` of the whole matrix, which have this format.
    pub fn pack(&self, codes: &MatrixCodes) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.num_bytes());
        let mut push_numbers = |numbers: &mut dyn Iterator<Item = f32>| {
            bytes.extend(numbers.flat_map(f32::to_ne_bytes));
        };
        match codes {
            MatrixCodes::Nf4(nf4::Nf4 { codes, scales }) => {
                let nested = scales.book.iter().chain(&scales.nested).copied();
                push_numbers(&mut std::iter::once(scales.offset).chain(nested));
                bytes.extend(&scales.codes);
                self.push_halves(codes, &mut bytes);
            }
            MatrixCodes::Nf4WithNumbers { codes, scales } => {
                push_numbers(&mut scales.iter().copied());
                self.push_halves(codes, &mut bytes);
            }
            MatrixCodes::Int8(int8::Int8 { codes, scales }) => {
                let row = |start: &u64| *start as usize / self.shape[1].max(1) as usize;
                push_numbers(&mut self.row_starts.iter().map(|start| scales[row(start)]));
                for start in self.row_starts.iter().map(|start| *start as usize) {
                    bytes.extend(codes[start..start + self.columns].iter().map(|code| code.cast_unsigned()));
                }
            }
        }
        assert_eq!(bytes.len(), self.num_bytes(), "the codes are those of the layout");
        bytes
    }

    /// Adds the codes of the part, two in each byte, to `bytes`.
    fn push_halves(&self, whole: &[u8], bytes: &mut Vec<u8>) {
        let starts = || self.row_starts.iter().map(|start| *start as usize);
        if self.columns.is_multiple_of(2) && starts().all(|start| start.is_multiple_of(2)) {
            let row = self.columns / 2;
            starts().for_each(|start| bytes.extend(&whole[start / 2..][..row]));
            return;
        }
        let first = bytes.len();
        for (place, number) in starts().flat_map(|start| start..start + self.columns).enumerate() {
            let code = whole[number / 2] >> (4 * (1 - number % 2)) & 15;
            if place.is_multiple_of(2) {
                bytes.push(code << 4);
            } else {
                bytes[first + place / 2] |= code;
            }
        }
    }

    /// What the bytes in `held` are to the kernels.
    pub(super) fn code_kind<'a>(&'a self, held: &'a Tensor) -> CodeKind<'a> {
        let [num_numbers, num_scale_codes, _] = sections(self.format, self.shape, self.part());
        let (numbers, rest) = quantized::numbers_and_bytes(held, num_numbers);
        let (scale_codes, codes) = rest.split_at(num_scale_codes);
        let scales = match self.format {
            CodeFormat::Int8 => return CodeKind::Eight { codes, scales: numbers, unit: int8::UNIT },
            CodeFormat::Nf4WithNumbers => BlockScales::Numbers(numbers),
            CodeFormat::Nf4 => {
                let (offset, rest) = numbers.split_first().expect("the offset comes first");
                let (book, nested) = rest.split_first_chunk().expect("the book comes next");
                BlockScales::Codes { codes: scale_codes, nested, offset: *offset, book }
            }
        };
        CodeKind::Four { codes, scales, row_starts: &self.row_starts, book: &nf4::BOOK }
    }
}

/// The bytes of a part `[rows, columns]` of a matrix.
fn num_bytes(format: CodeFormat, shape: [i64; 2], part: [usize; 2]) -> usize {
    let [numbers, scale_codes, codes] = sections(format, shape, part);
    numbers * size_of::<f32>() + scale_codes + codes
}

/// The lengths of what lies one after the other for a part `[rows, columns]` of a matrix: the numbers in
/// fp32, the codes of scales, and the bytes of codes.
fn sections(format: CodeFormat, shape: [i64; 2], [rows, columns]: [usize; 2]) -> [usize; 3] {
    let blocks = (shape.iter().product::<i64>() as usize).div_ceil(BLOCK);
    let halves = (rows * columns).div_ceil(2);
    match format {
        CodeFormat::Nf4 => [1 + 256 + blocks.div_ceil(NESTED_BLOCK), blocks, halves],
        CodeFormat::Nf4WithNumbers => [blocks, 0, halves],
        CodeFormat::Int8 => [rows, 0, rows * columns],
    }
}
