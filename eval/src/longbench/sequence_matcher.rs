//! `SequenceMatcher(None, a, b).ratio()` of Python's difflib over the characters of two texts (Ratcliff and
//! Metzener 1988, "Pattern Matching: The Gestalt Approach").
//!
//! The longest common block is found, then those to its left and to its right, and so on. The ratio is twice
//! the characters in common blocks divided by all characters. Characters that make up more than a hundredth of
//! a long `b` do not begin a block, but extend one.

use std::collections::HashMap;
use std::ops::Range;

/// From this length on, frequent characters do not begin a block.
const LONG: usize = 200;

/// The ratio, 1 for two empty texts.
pub(super) fn ratio(a: &str, b: &str) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    let places = places(&b);
    let mut matched = 0;
    let mut left = vec![(0..a.len(), 0..b.len())];
    while let Some((in_a, in_b)) = left.pop() {
        let Some((i, j, length)) = longest_block(&a, &b, &places, &in_a, &in_b) else { continue };
        matched += length;
        left.push((in_a.start..i, in_b.start..j));
        left.push((i + length..in_a.end, j + length..in_b.end));
    }
    2.0 * matched as f64 / (a.len() + b.len()) as f64
}

/// Where each character that may begin a block stands in `b`, in order.
fn places(b: &[char]) -> HashMap<char, Vec<usize>> {
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (place, c) in b.iter().enumerate() {
        places.entry(*c).or_default().push(place);
    }
    if b.len() >= LONG {
        places.retain(|_, of_char| of_char.len() <= b.len() / 100 + 1);
    }
    places
}

/// The longest block within the ranges, the first of them in `a`, then in `b`: its starts and its length.
fn longest_block(
    a: &[char],
    b: &[char],
    places: &HashMap<char, Vec<usize>>,
    in_a: &Range<usize>,
    in_b: &Range<usize>,
) -> Option<(usize, usize, usize)> {
    let (mut i, mut j, mut length) = (in_a.start, in_b.start, 0);
    // The lengths of the blocks that end at the character before and at each place of `b`.
    let mut before: HashMap<usize, usize> = HashMap::new();
    for end_a in in_a.clone() {
        let mut here = HashMap::new();
        let of_char = places.get(&a[end_a]).map_or(&[][..], Vec::as_slice);
        for &end_b in of_char.iter().filter(|place| in_b.contains(place)) {
            let found = 1 + end_b.checked_sub(1).and_then(|place| before.get(&place)).unwrap_or(&0);
            here.insert(end_b, found);
            if found > length {
                (i, j, length) = (end_a + 1 - found, end_b + 1 - found, found);
            }
        }
        before = here;
    }

    while i > in_a.start && j > in_b.start && a[i - 1] == b[j - 1] {
        (i, j, length) = (i - 1, j - 1, length + 1);
    }
    while i + length < in_a.end && j + length < in_b.end && a[i + length] == b[j + length] {
        length += 1;
    }
    (length > 0).then_some((i, j, length))
}
