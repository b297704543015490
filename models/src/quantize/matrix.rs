//! The quantised weight of one linear layer, of which a rank holds all or a shard. The codes never change and
//! have no gradient.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parallel::comm::{ProcessGroup, Reduction};
use parallel::kernels::quantized::{self, Codes};
use parallel::{Placement, upload};
use tch::{Device, Kind, Tensor, no_grad};

use super::codes::MatrixCodes;
use super::kind::Quantization;
use super::layout::CodesLayout;

/// The quantised weights of a model, by the names of their layers.
pub type QuantizedWeights = BTreeMap<String, QuantizedMatrix>;

/// The quantised weight `[out, in]` of a linear layer on this rank.
#[derive(Debug)]
pub struct QuantizedMatrix {
    /// The bytes, which are in memory while the weights of the layer are held.
    bytes: Tensor,
    layout: Arc<CodesLayout>,
    /// The outputs that are meant, of those that are held.
    rows: Range<usize>,
    /// The ranks over which the inputs are sharded.
    input_group: Option<Arc<ProcessGroup>>,
}

impl Clone for QuantizedMatrix {
    /// Makes another handle to the same codes.
    fn clone(&self) -> Self {
        Self {
            bytes: self.bytes.shallow_clone(),
            layout: Arc::clone(&self.layout),
            rows: self.rows.clone(),
            input_group: self.input_group.clone(),
        }
    }
}

impl QuantizedMatrix {
    /// The matrix that lies in `bytes` as `layout` says, of a weight with this placement.
    pub(crate) fn over(bytes: Tensor, layout: CodesLayout, placement: &Placement) -> Self {
        let input_group = match placement {
            Placement::Shard { spec, group } if spec.dim() == 1 => Some(Arc::clone(group)),
            _ => None,
        };
        let [rows, _] = layout.part();
        Self { bytes, layout: Arc::new(layout), rows: 0..rows, input_group }
    }

    /// Quantises `full`, a weight `[out, in]` with finite numbers, as if they were fp32, and keeps this
    /// rank's shard. `None` if a row of the shard consists of several pieces.
    pub fn new(quantization: Quantization, full: &Tensor, placement: &Placement) -> Option<Self> {
        let shape: [i64; 2] = full.size().try_into().expect("a weight is a matrix");
        Self::of_codes(&MatrixCodes::of(quantization, full), shape, placement)
    }

    /// Keeps this rank's shard of the `codes` of a whole matrix `shape` `[out, in]`. `None` if a row of the
    /// shard consists of several pieces.
    pub fn of_codes(codes: &MatrixCodes, shape: [i64; 2], placement: &Placement) -> Option<Self> {
        let layout = CodesLayout::new(codes.format(), shape, placement)?;
        Some(Self::over(upload(&layout.pack(codes), Device::Cpu), layout, placement))
    }

    /// An empty tensor, in place of the numbers of a weight that is quantised.
    pub(crate) fn no_numbers() -> Tensor {
        Tensor::empty([0], (Kind::Float, Device::Cpu))
    }

    /// What the codes are.
    pub fn quantization(&self) -> Quantization {
        self.layout.format().quantization()
    }

    /// The outputs and the inputs on this rank.
    pub fn size(&self) -> [i64; 2] {
        let [_, columns] = self.layout.part();
        [self.rows.len() as i64, columns as i64]
    }

    /// The bytes of codes and scales.
    pub fn num_bytes(&self) -> usize {
        self.layout.num_bytes()
    }

    /// The weight that the codes stand for, `[out, in]` in fp32 or bfloat16.
    pub fn dense(&self, kind: Kind) -> Tensor {
        quantized::dequantize(&self.codes(), kind)
    }

    /// The product `[N, out]` of a few rows `x` `[N, in]`, without a graph; `None` where that with the dense
    /// weight is the better way.
    pub fn product(&self, x: &Tensor) -> Option<Tensor> {
        quantized::product(x, &self.codes())
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
        self.bytes.data_ptr() == other.bytes.data_ptr()
    }

    fn codes(&self) -> Codes<'_> {
        let [_, columns] = self.layout.part();
        Codes { columns, rows: &self.rows, kind: self.layout.code_kind(&self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use parallel::{Axis, Mesh, ProcessGroups, ShardSpec};

    use super::super::codes::CodeFormat;
    use super::super::nf4::Nf4;
    use super::super::scales::NESTED_BLOCK;
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
                    let layout = CodesLayout::new(quantization.into(), [36, 51], &placement).unwrap();
                    assert_eq!(layout.num_bytes(), shard.bytes.numel());
                    let all = layout.placement().global_shape(&[layout.num_bytes() as i64]);
                    assert_eq!(layout.placement().local_shape(&all), [layout.num_bytes() as i64]);
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
                QuantizedMatrix::of_codes(codes, [36, 51], &placement).unwrap().dense(Kind::Float)
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
        assert!(CodesLayout::new(CodeFormat::Int8, [4, 8], &placement).is_none());
    }
}
