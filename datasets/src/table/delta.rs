//! The memory that texts in a delta encoding take (github.com/apache/parquet-format, `Encodings.md`).
//!
//! `DELTA_LENGTH_BYTE_ARRAY` is the lengths of all texts and then their bytes; `DELTA_BYTE_ARRAY` is the
//! lengths of what each text shares with the text before it, and then the rest of each text in the former
//! encoding. Lengths are in `DELTA_BINARY_PACKED`, where a million equal ones take a few bytes. This module
//! reads the lengths alone.

use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescPtr;

/// The bytes of the two lengths of a text while it is decoded.
const LENGTHS: u64 = 8;

/// The bytes of the texts of a page beside the bytes of the page, or the bytes of their lengths if these alone
/// are more than `most`.
pub(super) fn cost(page: &Page, column: &ColumnDescPtr, most: u64) -> Result<u64> {
    let damaged = || ParquetError::General("the lengths of the texts of a page are damaged".to_owned());
    let lengths = values(page, column).and_then(|bytes| Lengths::new(bytes, page.num_values()));
    let lengths = lengths.ok_or_else(damaged)?;
    let count = LENGTHS * u64::from(lengths.count);
    match page.encoding() {
        // So many lengths are refused, and adding them up would take its time.
        _ if count > most => Ok(count),
        Encoding::DELTA_BYTE_ARRAY => Ok(count.saturating_add(lengths.sum().ok_or_else(damaged)?)),
        _ => Ok(count),
    }
}

/// The bytes of a page behind its levels.
fn values<'a>(page: &'a Page, column: &ColumnDescPtr) -> Option<&'a [u8]> {
    let bytes: &[u8] = page.buffer();
    match page {
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            bytes.get(*def_levels_byte_len as usize..)?.get(*rep_levels_byte_len as usize..)
        }
        Page::DataPage { num_values, def_level_encoding, rep_level_encoding, .. } => {
            let bytes = behind_levels(bytes, *num_values, *rep_level_encoding, column.max_rep_level())?;
            behind_levels(bytes, *num_values, *def_level_encoding, column.max_def_level())
        }
        Page::DictionaryPage { .. } => None,
    }
}

/// Leaves out the levels at the start of a page of the first version.
fn behind_levels(bytes: &[u8], count: u32, encoding: Encoding, most: i16) -> Option<&[u8]> {
    if most == 0 {
        return Some(bytes);
    }
    if encoding == Encoding::RLE {
        let (length, rest) = bytes.split_first_chunk()?;
        return rest.get(u32::from_le_bytes(*length) as usize..);
    }
    // The old encoding: so many bits each.
    let bits = u64::from(i16::BITS - most.leading_zeros());
    bytes.get((u64::from(count) * bits).div_ceil(8) as usize..)
}

/// Numbers in `DELTA_BINARY_PACKED`.
struct Lengths<'a> {
    bytes: &'a [u8],
    /// The numbers of a miniblock, and the miniblocks of a block.
    miniblock: u64,
    miniblocks: usize,
    count: u32,
    first: i64,
}

impl<'a> Lengths<'a> {
    /// Reads the header; `None` if it is damaged or announces more than `most` numbers.
    fn new(mut bytes: &'a [u8], most: u32) -> Option<Self> {
        let block = unsigned(&mut bytes)?;
        let miniblocks = unsigned(&mut bytes)?;
        let count = u32::try_from(unsigned(&mut bytes)?).ok().filter(|&count| count <= most)?;
        let first = zigzag(&mut bytes)?;
        let miniblock = block.checked_div(miniblocks).filter(|&size| size > 0 && size % 8 == 0)?;
        Some(Self { bytes, miniblock, miniblocks: usize::try_from(miniblocks).ok()?, count, first })
    }

    /// The sum of the numbers; `None` if they are damaged or negative.
    fn sum(self) -> Option<u64> {
        let mut bytes = self.bytes;
        let mut left = u64::from(self.count);
        if left == 0 {
            return Some(0);
        }
        left -= 1;
        let mut value = self.first;
        let mut sum = u64::try_from(value).ok()?;

        // Each block has the least delta, a width for each of its miniblocks, and the packed deltas above the
        // least one.
        while left > 0 {
            let least = zigzag(&mut bytes)?;
            let (widths, rest) = bytes.split_at_checked(self.miniblocks)?;
            bytes = rest;
            for &width in widths {
                if left == 0 || width > 64 {
                    break;
                }
                let length = usize::try_from(self.miniblock.checked_mul(u64::from(width))? / 8).ok()?;
                let (packed, rest) = bytes.split_at(length.min(bytes.len()));
                bytes = rest;
                let here = left.min(self.miniblock);
                for index in 0..here {
                    value = value.checked_add(least)?.checked_add(bits(packed, index, width)?)?;
                    sum = sum.checked_add(u64::try_from(value).ok()?)?;
                }
                left -= here;
            }
            if widths.is_empty() || widths.iter().any(|&width| width > 64) {
                return None;
            }
        }
        Some(sum)
    }
}

/// The number at `index` of numbers of `width` bits each, least significant bit first.
fn bits(packed: &[u8], index: u64, width: u8) -> Option<i64> {
    let (start, width) = (index * u64::from(width), u64::from(width));
    let mut number = 0_u64;
    let mut done = 0;
    while done < width {
        let at = start + done;
        let byte = u64::from(*packed.get((at / 8) as usize)?) >> (at % 8);
        number |= byte << done;
        done += 8 - at % 8;
    }
    let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
    i64::try_from(number & mask).ok()
}

fn unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn zigzag(bytes: &mut &[u8]) -> Option<i64> {
    let value = unsigned(bytes)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_a_page_are_added_up() {
        // A block of 128 numbers in 4 miniblocks; the numbers 7, 5, 3, 1, 2, 3, 4, 5: the example of the
        // specification. The least difference is -2, and the differences from it take 2 bits: 0 0 0 3 3 3 3.
        let packed = [0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0];
        let header = [0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0];
        let bytes = [header.as_slice(), &packed].concat();
        assert_eq!(Lengths::new(&bytes, 8).unwrap().sum(), Some(7 + 5 + 3 + 1 + 2 + 3 + 4 + 5));
        assert!(Lengths::new(&bytes, 7).is_none());
        // A miniblock that is cut off.
        assert_eq!(Lengths::new(&bytes[..11], 8).unwrap().sum(), None);
        // A million times 3, in a header and some blocks without bits.
        let million = [0x80, 0x80, 0x40, 1, 0xc0, 0x84, 0x3d, 6, 0, 0];
        assert_eq!(Lengths::new(&million, 1_000_000).unwrap().sum(), Some(3_000_000));
    }
}
