//! The layout that the mathematics of this crate shares: replies one after another, without padding.
//!
//! ```text
//!   B replies of T_1 .. T_B tokens; N = T_1 + .. + T_B
//!   lengths [B]   one flat vector of N numbers per quantity   mask [N], where 0 is a hole
//! ```
//! A hole is a token inside a reply that the policy did not write (the answer of a tool, the other side of a conversation).
//! Lengths and masks are given; nothing here looks at token ids.

use std::ops::Range;

use tch::Tensor;

use crate::{Error, check};

/// Where each reply lies in a flat vector of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// Tokens of each reply, holes included, `[B]`.
    pub lengths: &'a [i64],
    /// What is zero is a hole, `[N]`; without a mask there are none.
    pub mask: Option<&'a Tensor>,
}

impl<'a> Replies<'a> {
    /// Replies without holes.
    pub fn new(lengths: &'a [i64]) -> Self {
        Self { lengths, mask: None }
    }

    /// Replies in which the tokens where `mask` is zero are not the policy's.
    pub fn with_mask(lengths: &'a [i64], mask: &'a Tensor) -> Self {
        Self { lengths, mask: Some(mask) }
    }

    /// `N`, the tokens of all replies, holes included.
    pub fn num_tokens(&self) -> i64 {
        self.lengths.iter().sum()
    }

    /// The range of each reply in a flat vector.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        self.lengths
            .iter()
            .map(|&length| {
                let range = start..start + length as usize;
                start = range.end;
                range
            })
            .collect()
    }

    /// For every token whether it is the policy's.
    pub(crate) fn valid(&self) -> Result<Vec<bool>, Error> {
        check::mask("the mask of the replies", self.mask, self.num_tokens())
    }
}
