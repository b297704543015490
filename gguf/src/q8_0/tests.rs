//! Blocks of `Q8_0` against those of the Python package gguf.

use super::*;

/// Written by `golden.py` beside this file with gguf 0.19.0 and numpy 2.4.6.
const GOLDEN: &str = include_str!("golden.txt");

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn floats(hex: &str) -> Vec<f32> {
    bytes(hex).chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn blocks_are_those_of_the_python_package() {
    for line in GOLDEN.lines() {
        let (numbers, block) = line.split_once(' ').unwrap();
        let mut made = Vec::new();
        quantize(&floats(numbers), &mut made).unwrap();
        assert_eq!(made, bytes(block), "{:?}", floats(numbers));
    }
    assert_eq!(GOLDEN.lines().count(), 10);
}

/// The scale has 11 bits: it is off by a share of 2^-11 at most, and a number is at most 127 scales.
#[test]
fn a_number_is_off_by_half_a_step_at_most() {
    for line in GOLDEN.lines() {
        let numbers = floats(line.split_once(' ').unwrap().0);
        let (mut blocks, mut again) = (Vec::new(), Vec::new());
        quantize(&numbers, &mut blocks).unwrap();
        dequantize(&blocks, &mut again);
        let most = numbers.iter().fold(0f32, |most, number| most.max(number.abs()));
        let bound = most / 127.0 * 0.501 + most / 2048.0 + 3e-8 * 127.0;
        let off = numbers.iter().zip(&again).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(off <= bound, "{off} {bound}");
    }
}

/// Scale 0.5 (0x3800) and the integers 1, -2, 127, -128 and zeros.
#[test]
fn a_block_by_hand() {
    let mut block = vec![0; BLOCK_BYTES];
    block[..6].copy_from_slice(&[0x00, 0x38, 1, 0xfe, 127, 0x80]);
    let mut values = Vec::new();
    dequantize(&block, &mut values);
    assert_eq!(values[..5], [0.5, -1.0, 63.5, -64.0, 0.0]);
}

#[test]
fn numbers_without_a_scale_are_given_back() {
    let with = |value: f32| {
        let mut block = [1f32; BLOCK];
        block[3] = value;
        quantize(&block, &mut Vec::new()).unwrap_err()
    };
    assert!(with(f32::NAN).is_nan());
    assert_eq!(with(f32::INFINITY), f32::INFINITY);
    // 65520 * 127: the scale rounds to infinity.
    assert_eq!(with(-8_321_040.0), 8_321_040.0);
}
