//! Codes, scales and numbers of bitsandbytes 0.50.2, which `golden/quantize/quantize.py` wrote.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[expect(dead_code, reason = "one of its functions is enough here")]
#[path = "golden/folder.rs"]
mod folder;

use folder::golden_folder;
use models::quantize::int8::Int8;
use models::quantize::nf4::{BLOCK, BOOK, Nf4, Nf4Quantizer};
use models::quantize::{Quantization, QuantizedMatrix, scales};
use parallel::Placement;
use parallel::safetensors_file::TensorFile;
use tch::{Kind, Tensor};

/// Name, rows, columns, and how much the rows differ; `None` for zeros.
const SHAPES: [(&str, usize, usize, Option<f32>); 5] = [
    ("blocks", 48, 200, Some(3.0)),
    ("ragged", 37, 51, Some(5.0)),
    ("nested", 130, 150, Some(2.0)),
    ("row", 1, 7, Some(0.0)),
    ("zeros", 4, 64, None),
];

/// The numbers that the script makes.
fn matrix(rows: usize, columns: usize, spread: Option<f32>) -> Vec<f32> {
    let Some(spread) = spread else { return vec![0.0; rows * columns] };
    let number = |index: usize| {
        let mixed = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(12_345);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        let number = mixed.cast_signed() as f32 * 2f32.powi(-31);
        number * number * number * (1.0 + spread * (index / columns % 7) as f32)
    };
    (0..rows * columns).map(number).collect()
}

/// Quantises numbers that arrive in pieces of so many blocks.
fn quantized(numbers: &[f32], blocks: usize) -> Nf4 {
    let mut quantizer = Nf4Quantizer::default();
    numbers.chunks(blocks * BLOCK).for_each(|piece| quantizer.push(piece));
    quantizer.finish()
}

/// The numbers that the codes of a matrix stand for, as a linear layer reads them.
fn dense(quantization: Quantization, numbers: &[f32], rows: usize) -> Vec<f32> {
    let full = Tensor::from_slice(numbers).view([rows as i64, -1]);
    let matrix = QuantizedMatrix::new(quantization, &full, &Placement::Replicate).unwrap();
    matrix.dense(Kind::Float).view([-1]).try_into().unwrap()
}

struct Golden(TensorFile);

impl Golden {
    fn open() -> Self {
        Self(TensorFile::open(&golden_folder("quantize").join("quantize.safetensors")).unwrap())
    }

    fn tensor(&self, name: &str) -> Tensor {
        let shape = self.0.shape(name).unwrap();
        self.0.read(name, shape, &Placement::Replicate).unwrap().view([-1])
    }

    fn bits(&self, name: &str) -> Vec<u32> {
        bits(&Vec::<f32>::try_from(self.tensor(name)).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensor(name).try_into().unwrap()
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn hash(bytes: &[u8]) -> [u8; 8] {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix).to_le_bytes()
}

#[test]
fn the_books_are_those_of_bitsandbytes() {
    let golden = Golden::open();
    assert_eq!(bits(&BOOK), golden.bits("nf4_book"));
    assert_eq!(bits(&scales::book()[..]), golden.bits("scale_book"));
}

#[test]
fn nf4_has_the_bits_of_bitsandbytes() {
    let golden = Golden::open();
    for (name, rows, columns, spread) in SHAPES {
        let numbers = matrix(rows, columns, spread);
        let found = quantized(&numbers, usize::MAX / BLOCK);
        let golden_bits = |end: &str| golden.bits(&format!("{name}.nf4.{end}"));
        assert_eq!(found.codes, golden.bytes(&format!("{name}.nf4.codes")), "{name}");
        assert_eq!(bits(&[found.scales.offset]), golden_bits("offset"), "{name}");
        assert_eq!(bits(&found.scales.nested), golden_bits("nested_scales"), "{name}");
        assert_eq!(found.scales.codes, golden.bytes(&format!("{name}.nf4.scales")), "{name}");
        assert_eq!(bits(&dense(Quantization::Nf4, &numbers, rows)), golden_bits("numbers"), "{name}");
        for blocks in [1, 3] {
            assert_eq!(quantized(&numbers, blocks), found, "{name} in pieces of {blocks} blocks");
        }
    }
}

/// 35,252 scales, whose mean torch would add up in several threads.
#[test]
fn many_scales_have_the_mean_of_one_thread() {
    let golden = Golden::open();
    let found = quantized(&matrix(1100, 2051, Some(4.0)), 1000);
    assert_eq!(bits(&[found.scales.offset]), golden.bits("large.offset"));
    assert_eq!(bits(&found.scales.nested), golden.bits("large.nested_scales"));
    let hashes = [hash(&found.codes), hash(&found.scales.codes)].concat();
    assert_eq!(hashes, golden.bytes("large.hashes"));
}

#[test]
fn int8_has_the_bits_of_bitsandbytes() {
    let golden = Golden::open();
    for (name, rows, columns, spread) in SHAPES {
        let numbers = matrix(rows, columns, spread);
        let mut found = Int8::default();
        numbers.chunks(2 * columns).for_each(|piece| found.push_rows(piece, columns));
        let codes = golden.tensor(&format!("{name}.int8.codes"));
        assert_eq!(codes.kind(), Kind::Int8);
        assert_eq!(found.codes, Vec::<i8>::try_from(codes).unwrap(), "{name}");
        assert_eq!(bits(&found.scales), golden.bits(&format!("{name}.int8.scales")), "{name}");
        let numbers = dense(Quantization::Int8, &numbers, rows);
        assert_eq!(bits(&numbers), golden.bits(&format!("{name}.int8.numbers")), "{name}");
    }
}
