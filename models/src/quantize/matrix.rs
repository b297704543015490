//! The quantised weight of one linear layer, of which a rank holds all or a shard.
//!
//! The whole matrix is quantised and then sharded, so the codes do not depend on the number of ranks. A block
//! of NF4 may lie on two ranks, and the scales are an eighth of a bit a number, so every rank holds all
//! scales. The codes never change and have no gradient.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parallel::comm::{ProcessGroup, Reduction};
use parallel::kernels::quantized::{self, BlockScales, CodeKind, Codes};
use parallel::{Placement, upload};
use tch::{Device, Kind, Tensor, no_grad};

use super::int8::{self, Int8};
use super::kind::Quantization;
use super::nf4::{self, BLOCK, Nf4, Nf4Quantizer};
use super::scales::NESTED_BLOCK;

/// The numbers that are quantised at a time, in whole blocks.
const PIECE_NUMBERS: i64 = 1 << 20;

/// The codes of a whole matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum MatrixCodes {
    /// Four bits a number, and scales in eight bits.
    Nf4(Nf4),
    /// Four bits a number, and scales in fp32.
    Nf4WithNumbers {
        /// Two codes in each byte.
        codes: Vec<u8>,
        /// The scale of each block.
        scales: Vec<f32>,
    },
    /// Eight bits a number.
    Int8(Int8),
}

impl MatrixCodes {
    /// Quantises `full`, a weight `[out, in]` with finite numbers, as if they were fp32.
    pub fn of(quantization: Quantization, full: &Tensor) -> Self {
        match quantization {
            Quantization::Nf4 => Self::Nf4(nf4(full)),
            Quantization::Int8 => Self::Int8(int8(full)),
        }
    }
}

/// The quantised weights of a model, by the names of their layers.
pub type QuantizedWeights = BTreeMap<String, QuantizedMatrix>;

/// The quantised weight `[out, in]` of a linear layer on this rank.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    held: Held,
    /// The outputs that are meant, of those that are held.
    rows: Range<usize>,
    columns: usize,
    /// The ranks over which the inputs are sharded.
    input_group: Option<Arc<ProcessGroup>>,
}

#[derive(Debug)]
enum Held {
    Nf4 {
        /// `u8`, two codes each.
        codes: Tensor,
        /// The scales of the whole matrix.
        scales: HeldScales,
        /// The number of each row's first element in the whole matrix.
        row_starts: Arc<[u64]>,
    },
    Int8 {
        /// `i8`, one for each number.
        codes: Tensor,
        scales: Tensor,
    },
    /// No codes, but the number of bytes that they would take.
    Bytes(usize),
}

/// The scales of the blocks of 64 numbers.
#[derive(Debug)]
enum HeldScales {
    /// fp32.
    Numbers(Tensor),
    Codes {
        /// `u8`, one for each scale.
        codes: Tensor,
        nested: Tensor,
        offset: f32,
        /// What codes stand for.
        book: Arc<[f32; 256]>,
    },
}

impl HeldScales {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Numbers(scales) => 4 * scales.numel(),
            Self::Codes { codes, nested, .. } => codes.numel() + 4 * nested.numel(),
        }
    }
}

impl Clone for HeldScales {
    /// Makes other handles to the same scales.
    fn clone(&self) -> Self {
        match self {
            Self::Numbers(scales) => Self::Numbers(scales.shallow_clone()),
            Self::Codes { codes, nested, offset, book } => Self::Codes {
                codes: codes.shallow_clone(),
                nested: nested.shallow_clone(),
                offset: *offset,
                book: Arc::clone(book),
            },
        }
    }
}

impl Clone for Held {
    /// Makes other handles to the same codes.
    fn clone(&self) -> Self {
        match self {
            Self::Nf4 { codes, scales, row_starts } => Self::Nf4 {
                codes: codes.shallow_clone(),
                scales: scales.clone(),
                row_starts: Arc::clone(row_starts),
            },
            Self::Int8 { codes, scales } => {
                Self::Int8 { codes: codes.shallow_clone(), scales: scales.shallow_clone() }
            }
            Self::Bytes(bytes) => Self::Bytes(*bytes),
        }
    }
}

/// The part of a matrix that a rank holds: whole pieces of its rows.
struct Part {
    /// The numbers in the whole matrix of the first elements of the rows.
    row_starts: Vec<u64>,
    columns: usize,
}

impl Part {
    /// The part of a matrix `[rows, columns]`; `None` if a row of it consists of several pieces.
    fn of([rows, columns]: [i64; 2], placement: &Placement) -> Option<Self> {
        let starts = |rows: &mut dyn Iterator<Item = i64>, first: i64| {
            rows.map(|row| (row * columns + first) as u64).collect::<Vec<u64>>()
        };
        let part = |row_starts, columns: i64| Self { row_starts, columns: columns as usize };
        let Placement::Shard { spec, group } = placement else {
            return Some(part(starts(&mut (0..rows), 0), columns));
        };
        match (spec.dim(), spec.ranges(group.rank())) {
            (0, ranges) => Some(part(starts(&mut ranges.iter().cloned().flatten(), 0), columns)),
            (_, [range]) => Some(part(starts(&mut (0..rows), range.start), range.end - range.start)),
            _ => None,
        }
    }
}

impl QuantizedMatrix {
    /// Quantises `full`, a weight `[out, in]` with finite numbers, as if they were fp32, and keeps this
    /// rank's shard. `None` if a row of the shard consists of several pieces.
    pub fn new(quantization: Quantization, full: &Tensor, placement: &Placement) -> Option<Self> {
        let shape: [i64; 2] = full.size().try_into().expect("a weight is a matrix");
        let part = Part::of(shape, placement)?;
        Some(Self::of_part(MatrixCodes::of(quantization, full), shape, placement, part))
    }

    /// Keeps this rank's shard of the `codes` of a whole matrix `shape` `[out, in]`. `None` if a row of the
    /// shard consists of several pieces.
    pub fn of_codes(codes: MatrixCodes, shape: [i64; 2], placement: &Placement) -> Option<Self> {
        Some(Self::of_part(codes, shape, placement, Part::of(shape, placement)?))
    }

    fn of_part(codes: MatrixCodes, shape: [i64; 2], placement: &Placement, part: Part) -> Self {
        let (rows, columns) = (0..part.row_starts.len(), part.columns);
        let held = match codes {
            MatrixCodes::Nf4(Nf4 { codes, scales }) => {
                let scales = HeldScales::Codes {
                    codes: upload(&scales.codes, Device::Cpu),
                    nested: upload(&scales.nested, Device::Cpu),
                    offset: scales.offset,
                    book: scales.book,
                };
                part.held(&codes, scales, placement)
            }
            MatrixCodes::Nf4WithNumbers { codes, scales } => {
                part.held(&codes, HeldScales::Numbers(upload(&scales, Device::Cpu)), placement)
            }
            MatrixCodes::Int8(whole) => held_int8(&whole, shape[1], placement),
        };
        Self { held, rows, columns, input_group: input_group(placement) }
    }

    /// A matrix without values, which takes the bytes that a rank needs for a weight of this shape.
    pub fn sizes(quantization: Quantization, shape: [i64; 2], placement: &Placement) -> Option<Self> {
        let part = Part::of(shape, placement)?;
        let (rows, columns) = (part.row_starts.len(), part.columns);
        let bytes = match quantization {
            Quantization::Nf4 => {
                let blocks = (shape.iter().product::<i64>() as usize).div_ceil(BLOCK);
                (rows * columns).div_ceil(2) + blocks + 4 * blocks.div_ceil(NESTED_BLOCK) + 8 * rows
            }
            Quantization::Int8 => rows * columns + 4 * rows,
        };
        Some(Self { held: Held::Bytes(bytes), rows: 0..rows, columns, input_group: input_group(placement) })
    }

    /// An empty tensor, in place of the numbers of a weight that is quantised.
    pub(crate) fn no_numbers() -> Tensor {
        Tensor::empty([0], (Kind::Float, Device::Cpu))
    }

    /// What the codes are; `None` if only their sizes are known.
    pub fn quantization(&self) -> Option<Quantization> {
        match &self.held {
            Held::Nf4 { .. } => Some(Quantization::Nf4),
            Held::Int8 { .. } => Some(Quantization::Int8),
            Held::Bytes(_) => None,
        }
    }

    /// The outputs and the inputs on this rank.
    pub fn size(&self) -> [i64; 2] {
        [self.rows.len() as i64, self.columns as i64]
    }

    /// The bytes of codes and scales.
    pub fn num_bytes(&self) -> usize {
        match &self.held {
            Held::Nf4 { codes, scales, row_starts } => {
                codes.numel() + scales.num_bytes() + 8 * row_starts.len()
            }
            Held::Int8 { codes, scales } => codes.numel() + 4 * scales.numel(),
            Held::Bytes(bytes) => *bytes,
        }
    }

    /// The weight that the codes stand for, `[out, in]` in fp32 or bfloat16.
    pub fn dense(&self, kind: Kind) -> Tensor {
        self.with_codes(|codes| quantized::dequantize(codes, kind))
    }

    /// The product `[N, out]` of a few rows `x` `[N, in]`, without a graph; `None` where that with the dense
    /// weight is the better way.
    pub fn product(&self, x: &Tensor) -> Option<Tensor> {
        self.with_codes(|codes| quantized::product(x, codes))
    }

    /// The outputs `outputs` alone.
    #[must_use]
    pub fn select_outputs(&self, outputs: &Range<i64>) -> Self {
        let at = |output: i64| self.rows.start + output as usize;
        Self { rows: at(outputs.start)..at(outputs.end), ..self.clone() }
    }

    /// The norms of the rows of the dense weight in `kind`, `[out]`, fp32. All ranks that hold a part of the
    /// inputs call it.
    pub(crate) fn row_norms(&self, kind: Kind) -> Result<Tensor, parallel::Error> {
        let dense = self.dense(kind).to_kind(Kind::Float);
        let squares = no_grad(|| dense.square().sum_dim_intlist(1, false, Kind::Float));
        if let Some(group) = &self.input_group {
            group.all_reduce(&squares, Reduction::Sum)?;
        }
        Ok(no_grad(|| squares.sqrt()))
    }

    /// Whether two matrices read the same codes in memory.
    pub fn shares_codes_with(&self, other: &Self) -> bool {
        let codes = |matrix: &Self| match &matrix.held {
            Held::Nf4 { codes, .. } | Held::Int8 { codes, .. } => Some(codes.data_ptr()),
            Held::Bytes(_) => None,
        };
        codes(self).is_some() && codes(self) == codes(other)
    }

    fn with_codes<T>(&self, run: impl FnOnce(&Codes<'_>) -> T) -> T {
        let kind = match &self.held {
            Held::Nf4 { codes, scales, row_starts } => {
                let scales = match scales {
                    HeldScales::Numbers(scales) => BlockScales::Numbers(scales),
                    HeldScales::Codes { codes, nested, offset, book } => {
                        BlockScales::Codes { codes, nested, offset: *offset, book }
                    }
                };
                CodeKind::Four { codes, scales, row_starts, book: &nf4::BOOK }
            }
            Held::Int8 { codes, scales } => CodeKind::Eight { codes, scales, unit: int8::UNIT },
            Held::Bytes(_) => unreachable!("a model that is only planned computes nothing"),
        };
        run(&Codes { columns: self.columns, rows: &self.rows, kind })
    }
}

/// The ranks over which a placement shards the inputs.
fn input_group(placement: &Placement) -> Option<Arc<ProcessGroup>> {
    match placement {
        Placement::Shard { spec, group } if spec.dim() == 1 => Some(Arc::clone(group)),
        _ => None,
    }
}

/// Calls `push` with the numbers of `full` in fp32, `length` at a time.
fn in_pieces(full: &Tensor, length: i64, mut push: impl FnMut(&[f32])) {
    let flat = no_grad(|| full.detach().contiguous().view([-1]));
    let numel = flat.numel() as i64;
    for start in (0..numel).step_by(length.max(1) as usize) {
        let piece = flat.narrow(0, start, length.min(numel - start)).to_kind(Kind::Float);
        push(&Vec::<f32>::try_from(piece).expect("fp32 on the host"));
    }
}

fn nf4(full: &Tensor) -> Nf4 {
    let mut quantizer = Nf4Quantizer::default();
    in_pieces(full, PIECE_NUMBERS, |numbers| quantizer.push(numbers));
    quantizer.finish()
}

fn int8(full: &Tensor) -> Int8 {
    let columns = full.size()[1];
    let mut whole = Int8::default();
    let rows_in_piece = (PIECE_NUMBERS / columns.max(1)).max(1);
    in_pieces(full, rows_in_piece * columns, |numbers| whole.push_rows(numbers, columns as usize));
    whole
}

impl Part {
    /// The part of a matrix in NF4, from the codes of the whole matrix.
    fn held(self, whole: &[u8], scales: HeldScales, placement: &Placement) -> Held {
        let codes = match placement {
            Placement::Replicate => upload(whole, Device::Cpu),
            Placement::Shard { .. } => upload(&self.codes(whole), Device::Cpu),
        };
        Held::Nf4 { codes, scales, row_starts: self.row_starts.into() }
    }

    /// The codes of the part, two in each byte, from those of the whole matrix.
    fn codes(&self, whole: &[u8]) -> Vec<u8> {
        let numbers =
            self.row_starts.iter().flat_map(|start| *start as usize..*start as usize + self.columns);
        let mut codes = Vec::with_capacity((self.row_starts.len() * self.columns).div_ceil(2));
        for (place, number) in numbers.enumerate() {
            let code = whole[number / 2] >> (4 * (1 - number % 2)) & 15;
            if place.is_multiple_of(2) {
                codes.push(code << 4);
            } else if let Some(last) = codes.last_mut() {
                *last |= code;
            }
        }
        codes
    }
}

/// The part of a matrix of eight bits with `columns` columns.
fn held_int8(whole: &Int8, columns: i64, placement: &Placement) -> Held {
    let (codes, scales) = (upload(&whole.codes, Device::Cpu), upload(&whole.scales, Device::Cpu));
    let codes = codes.view([-1, columns]);
    // A shard of rows is a view, which would keep the codes of all ranks in memory.
    let (codes, scales) = match placement {
        Placement::Replicate => (codes, scales),
        Placement::Shard { spec, group } if spec.dim() == 0 => {
            (placement.shard(&codes).copy(), spec.local_shard(&scales, group.rank()).copy())
        }
        Placement::Shard { .. } => (placement.shard(&codes).copy(), scales),
    };
    Held::Int8 { codes: codes.view([-1]), scales }
}

#[cfg(test)]
mod tests {
    use parallel::{Axis, Mesh, ProcessGroups, ShardSpec};

    use super::*;

    fn placement(spec: &ShardSpec, rank: usize, ranks: usize) -> Placement {
        let mesh = Mesh::new(&[(Axis::Tensor, ranks)], rank, ranks).unwrap();
        let group = Arc::clone(ProcessGroups::fake(&mesh).tensor_parallel());
        Placement::Shard { spec: spec.clone(), group }
    }

    /// A matrix whose rows are no whole blocks, over three ranks along both dimensions, and fused.
    #[test]
    fn a_shard_has_the_numbers_of_the_whole_matrix() {
        tch::manual_seed(8);
        let full = Tensor::randn([36, 51], (Kind::Float, Device::Cpu));
        let heads = |count| ShardSpec::even(0, count, 3).with_block_size(2);
        let fused = ShardSpec::concat(&[heads(6), heads(6), heads(6)]);
        for quantization in [Quantization::Nf4, Quantization::Int8] {
            let whole = QuantizedMatrix::new(quantization, &full, &Placement::Replicate).unwrap();
            let dense = whole.dense(Kind::Float);
            let error = (&dense - &full).abs().max().double_value(&[]);
            assert!(error < if quantization == Quantization::Nf4 { 0.5 } else { 0.02 }, "{error}");
            for spec in [ShardSpec::even(0, 36, 3), ShardSpec::even(1, 51, 3), fused.clone()] {
                for rank in 0..3 {
                    let placement = placement(&spec, rank, 3);
                    let shard = QuantizedMatrix::new(quantization, &full, &placement).unwrap();
                    let expected = placement.shard(&dense);
                    assert_eq!(shard.dense(Kind::Float), expected, "{quantization:?} {spec:?} {rank}");
                    let some = shard.select_outputs(&(1..4));
                    assert_eq!((some.dense(Kind::Float), some.size()[0]), (expected.narrow(0, 1, 3), 3));
                    let planned = QuantizedMatrix::sizes(quantization, [36, 51], &placement).unwrap();
                    assert_eq!((planned.num_bytes(), planned.size()), (shard.num_bytes(), shard.size()));
                }
            }
        }
    }

    #[test]
    fn scales_in_fp32_make_the_numbers_of_their_codes() {
        tch::manual_seed(9);
        let full = Tensor::randn([36, 51], (Kind::Float, Device::Cpu));
        let coded = MatrixCodes::of(Quantization::Nf4, &full);
        let MatrixCodes::Nf4(Nf4 { codes, scales }) = &coded else { panic!("{coded:?}") };
        let scale = |(block, code): (usize, &u8)| {
            scales.book[usize::from(*code)] * scales.nested[block / NESTED_BLOCK] + scales.offset
        };
        let numbers = scales.codes.iter().enumerate().map(scale).collect();
        let plain = MatrixCodes::Nf4WithNumbers { codes: codes.clone(), scales: numbers };
        let split = |spec: &ShardSpec| placement(spec, 1, 3);
        for placement in
            [Placement::Replicate, split(&ShardSpec::even(0, 36, 3)), split(&ShardSpec::even(1, 51, 3))]
        {
            let dense = |codes: &MatrixCodes| {
                QuantizedMatrix::of_codes(codes.clone(), [36, 51], &placement).unwrap().dense(Kind::Float)
            };
            assert_eq!(dense(&coded), dense(&plain));
        }
    }

    #[test]
    fn rows_in_several_pieces_are_refused() {
        let heads = |count| ShardSpec::even(1, count, 2);
        let spec = ShardSpec::concat(&[heads(4), heads(4)]);
        let placement = placement(&spec, 0, 2);
        let full = Tensor::zeros([4, 8], (Kind::Float, Device::Cpu));
        assert!(QuantizedMatrix::new(Quantization::Nf4, &full, &placement).is_none());
        assert!(QuantizedMatrix::sizes(Quantization::Int8, [4, 8], &placement).is_none());
    }
}
